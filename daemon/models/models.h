/* The models that the daemon knows: their names and files, what is loaded, and how it is loaded.
 *
 * A model is opened by name (model directories, --model) or by an fd that a client passed. Two requests for the same
 * file (device, inode, size, time of change) share one load. Loading runs on a thread. First it reads the metadata,
 * which is enough to tokenize. When a job needs the weights, it builds them into a sealed segment, and the workers map
 * that. An idle model stays until its memory is needed, or until it has been idle for as long as the configuration
 * says. A file that is cut short or rewritten while it is in use fails that model only. Observers hear of every change.
 * Loop thread only. */
#ifndef TDM_DAEMON_MODELS_MODELS_H
#define TDM_DAEMON_MODELS_MODELS_H

#include "common/dmabuf.h"
#include "common/list.h"
#include "common/loop.h"
#include "common/siphash.h"
#include "daemon/accounts/accounts.h"
#include "daemon/cache/pages.h"
#include "daemon/cache/prefix.h"
#include "daemon/fleet/fleet.h"
#include "daemon/models/pictures.h"
#include "engine/chat/chat.h"
#include "engine/grammar/grammar.h"
#include "engine/model/labels.h"
#include "engine/sampling/recommended.h"
#include "engine/weights/weights.h"

#include <pthread.h>

#define TDM_MAX_MODEL_DIRS 16u
#define TDM_MAX_MODEL_FILES 64u
#define TDM_MAX_MODELS 96u /* that are loaded, loading or failed */

enum tdm_model_state {
        TDM_MODEL_READING,   /* metadata is being read */
        TDM_MODEL_DESCRIBED, /* metadata is there, weights were not wanted yet */
        TDM_MODEL_WAITING,   /* waits for the memory of models that are being unloaded */
        TDM_MODEL_LOADING,   /* weights are being built; the workers take what is ready */
        TDM_MODEL_MAPPING,   /* the workers are taking the rest */
        TDM_MODEL_READY,
        TDM_MODEL_FAILED,
        TDM_MODEL_GONE, /* unloaded; not listed any more */
};

struct tdm_models;
struct tdm_model_load;
struct fetch;

/* Rows of the file that travel in steps; row_bytes 0: the model has none. */
struct tdm_model_inputs {
        uint64_t offset; /* of the first token's row, in the file */
        uint32_t part;   /* which file of a model that was split; 0: the first, or the only one */
        uint32_t row_bytes;
};

/* A model as its metadata describe it, without its weights. */
struct tdm_model_metadata {
        struct tdm_gguf *gguf; /* until the weights are built */
        struct tdm_model_description description;
        struct tdm_weights_plan *plan;
        uint64_t weights_bytes;
        struct tdm_model_inputs inputs;
        struct tdm_model_parts *parts;         /* the other files of a model that was split; NULL: it is one file */
        struct tdm_model_projector *projector; /* NULL: there is no file of one beside the model's (pictures.h) */
        struct tdm_tokenizer *tokenizer;
        struct tdm_chat *chat;
        struct tdm_labels *labels; /* NULL: it tells no classes apart */
        struct tdm_recommended recommended;
        char architecture[32];
        uint64_t n_parameters; /* weights of all tensors */
        bool is_far;           /* its file is on a file system that others answer for */
        char quantisation[64]; /* "Q8_0", "mixed Q4_0/F16" */
        pthread_mutex_t vocabulary_lock;
        struct tdm_vocabulary *vocabulary; /* for grammars; made when the first one is wanted; under the lock */
};

struct tdm_file_identity {
        uint64_t dev, ino, size_bytes;
        int64_t mtime_ns;
};

/* Under which path a client passed the file. */
#define TDM_MODEL_SAID_MAX 8u
struct tdm_model_said {
        char *path;  /* NULL: free */
        char *name;  /* made of the path */
        uint64_t by; /* an identity */
        uint64_t at; /* a later one is larger; 0: free */
};

/* What users are charged for a model (charges.c, users.c). */
struct tdm_model_charges {
        bool reads, has_place;                /* LOADS of account, MODELS of holder */
        uint64_t metadata;                    /* METADATA_BYTES of … */
        struct tdm_account *metadata_payer;   /* … account, until another user gets the place; may be NULL */
        uint64_t vocabulary;                  /* METADATA_BYTES for metadata->vocabulary, of … */
        struct tdm_account *vocabulary_payer; /* … the one whose job wanted it first; may be NULL */
};

/* How far it is on its way into memory. */
struct tdm_model_way {
        uint64_t started_ns;
        double load_ms;
        uint64_t waiting_ns; /* since when it waits for memory */
        unsigned n_sealed;   /* chunks of the weights */
        uint64_t sealed_ns;  /* when the first one was */
};

/* Who uses it, and how long it stays when it is idle. */
struct tdm_model_use {
        unsigned n_jobs;  /* above 0: it is not idle */
        unsigned n_steps; /* in flight */
        uint64_t last_ns;
        uint64_t keep_until_ns;  /* it stays until then when it is idle; 0: not said, UINT64_MAX: for ever */
        uint64_t keeper;         /* the identity that said so */
        uint64_t keep_others_ns; /* the longest that another identity had said when the keeper did */
};

struct tdm_model {
        struct tdm_models *models;
        struct tdm_list node;
        unsigned n_refs;
        uint32_t id; /* as the fleet knows it */
        char *name;  /* UTF-8, as the path: what is not is shown as question marks */
        char *path;  /* for people: the file is fd */
        int fd;      /* kept, to see whether the file is still what it was */
        struct tdm_file_identity identity;
        enum tdm_model_state state;
        struct tdm_error error; /* of FAILED */
        bool listed;            /* in models->list */
        bool superseded;        /* its file is read anew with another projector; this one has jobs to end */
        bool slow_to_encode;    /* its vocabulary: no text is tokenized on the loop */

        struct tdm_model_load *load;         /* while a thread works on it */
        struct tdm_model_metadata *metadata; /* from DESCRIBED on; tokenizer and hparams live as long as the model */
        bool wanted;                         /* a job or a client needs the weights */
        bool only_draft;                     /* that is to guess for another model: no model leaves for it */
        bool by_name;                        /* path is the daemon's own; else it is what a client said */
        struct tdm_model_said said[TDM_MODEL_SAID_MAX];
        struct tdm_account *account; /* who asked for it first; may be NULL */
        struct tdm_account *holder;  /* who wanted the weights: has its place in the fleet … */
        struct tdm_model_charges charges;
        struct tdm_list users; /* those with jobs on it: one of them may get the place (users.c, places.c) */
        bool fetching;         /* a thread brings rows of the file into memory; no step can be made meanwhile … */
        struct fetch *fetched; /* … and what it brought last, until a step has it (inputs.c) */
        struct tdm_model_way way;
        uint64_t cache_budget; /* bytes for its KV cache, before a device has its say */

        struct tdm_segment *weights, *kv, *activations, *steps, *results;
        struct tdm_kv_geometry geometry;
        struct tdm_steps_layout layout;
        struct tdm_pages *pages;
        struct tdm_prefix *prefix; /* NULL: off */
        enum tdm_precision precision;
        enum tdm_kv_type kv_type;
        bool in_fleet;

        struct tdm_model_use use;
};

struct tdm_models_config {
        const char *const *dirs;  /* in order of preference, NULL-terminated */
        const char *const *files; /* --model, NULL-terminated; the first is the default */
        const char *default_name; /* where there are no files; NULL: tale */
        enum tdm_precision precision;
        enum tdm_kv_type kv_type; /* wanted; 0: f16 */
        uint64_t kv_bytes;        /* 0: a quarter of what is free */
        enum tdm_activations activations;
        bool no_prefix_cache;
        bool serves_all;   /* other users too: no file is opened beside one that a client passed */
        uint32_t idle_s;   /* a model is unloaded when it had no job for this time; 0: never */
        uint32_t max_rows; /* of a step */
        uint32_t max_sequences;
        const char *program_dir;       /* of the programs that read pictures; NULL: beside this executable */
        unsigned n_threads;            /* of them; 0: as many as they may use */
        struct tdm_accounts *accounts; /* borrowed; NULL: no user is charged */
};

/* Called from the loop after every change of state and about ten times a second while a model loads. */
typedef void (*tdm_model_changed_fn)(struct tdm_model *model, void *userdata);

/* fleet is borrowed; may be NULL until tdm_models_set_fleet(). TDM_E_NO_MODEL: a --model file that cannot be opened. */
int tdm_models_new(struct tdm_models **ret, struct tdm_loop *loop, const struct tdm_models_config *config,
                   struct tdm_error *err);
void tdm_models_set_fleet(struct tdm_models *models, struct tdm_fleet *fleet);
/* The directories that are searched from now on, as tdm_models_default_dirs() gave them; takes them. */
void tdm_models_take_dirs(struct tdm_models *models, char **dirs);
/* The name that is taken from now on where no --model is given; NULL: tale. -ENOMEM. */
int tdm_models_set_default(struct tdm_models *models, const char *name);
int tdm_models_observe(struct tdm_models *models, tdm_model_changed_fn fn, void *userdata);
/* Ends the threads that still run. The fleet must be destroyed already. */
void tdm_models_destroy(struct tdm_models *models);
void tdm_models_destroyp(struct tdm_models **models);

/* name NULL or "": the default; a path: what this account passed under it before. fd >= 0: the file itself (name is its
 * path, for messages); the fd stays the caller's.
 * A new model starts to be read at once. The caller drops the reference. TDM_E_NO_MODEL, TDM_E_BUSY, TDM_E_BAD_MODEL,
 * TDM_E_QUOTA. account pays for what is read; it may be NULL, and it does not for the default model, which is root's.
 * When the last one who refers to a model leaves while its metadata is read, reading is cancelled. */
int tdm_models_open(struct tdm_models *models, struct tdm_account *account, const char *name, int fd,
                    struct tdm_model **ret, struct tdm_error *err);
/* Closes a client's file beside the loop: its file system may hang. One thread at most hangs for each account. */
void tdm_models_close_file(struct tdm_models *models, const struct tdm_account *account, int fd);
struct tdm_model *tdm_model_ref(struct tdm_model *model);
void tdm_model_unref(struct tdm_model *model);
void tdm_model_unrefp(struct tdm_model **model);

/* The weights too; account (or NULL) holds them. 0: they are loaded, or the model fails and tells its observers.
 * TDM_E_QUOTA, TDM_E_BUSY: this account has no place for them; others who wait for the model are not concerned. */
int tdm_model_want(struct tdm_model *model, struct tdm_account *account, struct tdm_error *err);
/* The same for a model that is to guess for another one: no idle model leaves for it, and without a place it stays
 * unloaded. */
void tdm_model_want_draft(struct tdm_model *model, struct tdm_account *account);
/* Whether `draft` can guess for `target`; both are described. TDM_E_UNSUPPORTED: it names the first token id at which
 * the vocabularies differ. */
int tdm_model_check_draft(struct tdm_model *target, struct tdm_model *draft, struct tdm_error *err);
/* It has guessed, so it is not idle now. It counts no job for that, so it may be unloaded at any time. */
void tdm_model_drafted(struct tdm_model *model);
/* The daemon ends: nothing goes on loading. */
void tdm_models_cancel_loads(struct tdm_models *models);
/* Is it the default model, and not only called like it? */
bool tdm_model_is_default(const struct tdm_model *model);
/* Ends its jobs with this error; it leaves the workers with its last step. One that failed or left stays so. */
void tdm_model_fail(struct tdm_model *model, const struct tdm_error *err);
/* A job of account (NULL: of nobody) begins to use it. TDM_E_QUOTA: this user has jobs on models that others hold,
 * and on as many in all as it may. -ENOMEM. */
int tdm_model_job_begin(struct tdm_model *model, struct tdm_account *account, struct tdm_error *err);
/* A job ends to use it. keep_s: how long the model stays then, unless its memory is needed; 0: as long as the
 * configuration says. The last job of a user replaces what that user said before. It never shortens what another user
 * said. */
void tdm_model_job_end(struct tdm_model *model, const struct tdm_account *account, uint32_t keep_s);
/* Says the same, without a job: the user asked for the model itself. */
void tdm_model_keep(struct tdm_model *model, const struct tdm_account *account, uint32_t keep_s);
/* A step enters or leaves flight. The segments of a model that failed are kept until no step is in flight. */
void tdm_model_step_begin(struct tdm_model *model);
void tdm_model_step_end(struct tdm_model *model);
/* Compares the file with what it was. TDM_E_MODEL_CHANGED: it has changed, and the model has failed. */
int tdm_model_check_file(struct tdm_model *model, struct tdm_error *err);
/* Called when rows that a step needs have come into memory. */
void tdm_models_on_rows(struct tdm_models *models, tdm_model_changed_fn fn, void *userdata);
/* The rows of a step's tokens: to [n_rows][row_bytes]. Does nothing for a model without. -EAGAIN: not all are in
 * memory. A thread reads them, and says when it has (tdm_models_on_rows()). TDM_E_MODEL_CHANGED: the file
 * lacks one, and the model has failed. */
int tdm_model_read_inputs(struct tdm_model *model, const struct tdm_step_row *rows, uint32_t n_rows, uint8_t *to);
/* May a text of n_bytes be tokenized on the loop? Only a short one, and not with a vocabulary that was slow. */
bool tdm_model_encodes_here(const struct tdm_model *model, size_t size_bytes);
/* Around such a call, to find out. */
uint64_t tdm_model_encode_begin(void);
void tdm_model_encode_end(struct tdm_model *model, uint64_t begin);
/* The trie that grammars need. Before it is made: charges what it may take to account (NULL: to nobody), unless it was
 * charged already. The account is the job's: the one that named the model first may have used up its share.
 * TDM_E_QUOTA, TDM_E_BUSY. */
int tdm_model_want_vocabulary(struct tdm_model *model, struct tdm_account *account, struct tdm_error *err);
/* Makes it the first time, in up to some 100 ms. Any thread that holds the model; *ret is a reference. */
int tdm_model_make_vocabulary(struct tdm_model *model, struct tdm_vocabulary **ret);
void tdm_model_made_vocabulary(struct tdm_model *model); /* charges what it takes */
bool tdm_model_is_described(const struct tdm_model *model);
const struct tdm_hparams *tdm_model_hparams(const struct tdm_model *model);
const struct tdm_recipe *tdm_model_recipe(const struct tdm_model *model);
uint32_t tdm_model_max_rows(const struct tdm_model *model);     /* of its steps, from DESCRIBED on */
uint32_t tdm_model_max_pictures(const struct tdm_model *model); /* the same; 0: it takes none */
/* TDM_E_UNSUPPORTED: why it takes no pictures. */
int tdm_model_check_pictures(const struct tdm_model *model, struct tdm_error *err);
/* The share of its weights that a step of n_rows rows reads: tdm_recipe_share_read(). */
double tdm_model_share_read(const struct tdm_model *model, uint32_t n_rows);
const char *tdm_model_state_name(enum tdm_model_state state); /* "loading", "loaded", "failed": as the wire has it */
/* A digest of what it computes with: a file's size and time, and samples of the packed weights, which are in memory.
 * For what is kept on disk of it. May take some 50 ms; any thread, while the weights stay. */
void tdm_model_digest(const struct tdm_model *model, uint8_t ret[TDM_SIPHASH_BYTES]);
uint64_t tdm_model_file_bytes(const struct tdm_model *model); /* of all its files, from DESCRIBED on */
uint64_t tdm_model_resident_bytes(const struct tdm_model *model);
/* When an idle model leaves, by tdm_now_ns(); UINT64_MAX: not by the clock. */
uint64_t tdm_model_leaves_at(const struct tdm_model *model);
/* Bytes done and in all, while it loads. */
void tdm_model_progress(const struct tdm_model *model, uint64_t *ret_done, uint64_t *ret_total);

/* TDM_E_NO_MODEL: not loaded; TDM_E_BUSY: jobs use it. */
int tdm_models_unload(struct tdm_models *models, const char *name, struct tdm_error *err);
struct tdm_list *tdm_models_list(struct tdm_models *models); /* of struct tdm_model by node */
const char *tdm_models_default_name(const struct tdm_models *models);
/* The daemon's own model of this file, whichever of the file's names it has. NULL: none, or it has failed. */
struct tdm_model *tdm_models_find_file(struct tdm_models *models, const struct tdm_file_identity *identity);
/* Names and paths that can be opened, each name once, at most 8192. A file whose name is no UTF-8 has no name here.
 * size_bytes: of all its parts. */
typedef void (*tdm_models_scanned_fn)(const char *name, const char *path, uint64_t size_bytes,
                                      const struct tdm_file_identity *identity, void *userdata);
int tdm_models_scan(struct tdm_models *models, tdm_models_scanned_fn fn, void *userdata);
/* What the head of a file says, whether or not a model was made of it. */
struct tdm_model_summary {
        char architecture[32];
        char quantisation[64];
        uint64_t n_parameters;
        uint64_t file_bytes; /* of all its parts; 0: not known */
        uint32_t context;    /* 0: a model that is not computed here */
};
/* NULL: it was not read yet, cannot be read, or lies on a network's or a program's file system. A thread reads it once.
 * Valid until the loop runs again. */
const struct tdm_model_summary *tdm_models_summary_of(struct tdm_models *models, const char *path,
                                                      const struct tdm_file_identity *identity);
/* The same for a file of any place, if its head was read already: it reads none. */
const struct tdm_model_summary *tdm_models_known_summary(const struct tdm_models *models,
                                                         const struct tdm_file_identity *identity);
/* Has a thread read the heads of all files that lists have. */
void tdm_models_read_summaries(struct tdm_models *models);
/* Bytes of the shared segments as they stand in memory. */
uint64_t tdm_models_resident_bytes(struct tdm_models *models);

/* From the fleet. */
void tdm_models_on_fleet_ready(struct tdm_models *models);
void tdm_models_on_model_ready(struct tdm_models *models, uint32_t model_id);
void tdm_models_on_model_failed(struct tdm_models *models, uint32_t model_id, const struct tdm_error *err);

/* The directories that are searched for names: $TANDEM_MODEL_PATH, then `configured`, the user's and the system's, and
 * those beside this executable (an installed prefix or a build tree). The caller frees strings and array. */
int tdm_models_default_dirs(const char *const *configured, char ***ret);
/* Whether one of the directories has a file of that name, which this process may open. */
bool tdm_models_have_name(char *const *dirs, const char *name);
void tdm_strv_freep(char ***strv);

/* names.c: a file that a client passed to a daemon of several users has the name that this client gave it, for that
 * client alone. The texts live as long as the model does not change. */
/* In messages that may reach anybody who uses the model. */
const char *tdm_model_told_name(const struct tdm_model *model);
const char *tdm_model_told_path(const struct tdm_model *model);
/* In lists for this user (NULL: for everybody); the path is without its folder where the daemon serves several users.
 * NULL: it did not pass the file. */
const char *tdm_model_name_for(const struct tdm_model *model, const struct tdm_account *account);
const char *tdm_model_path_for(const struct tdm_model *model, const struct tdm_account *account);
const char *tdm_model_shown_error(const struct tdm_model *model); /* for everybody; "" unless it failed */
/* Memory is short on this machine. Of the models that no job has used for 10 s, the one that was used longest ago
 * leaves. False: there is none. */
bool tdm_models_relieve(struct tdm_models *models);

#endif
