/* Shared by the files of the model registry:
 *
 *   models.c   the list: which file a request means, and whether it is loaded already
 *   life.c     a model's way from being asked for to being ready;   draft.c  models that guess for others
 *   places.c   which models make room for others
 *   leave.c    a model fails or leaves;   inputs.c  rows of a file that steps need
 *   charges.c  what models cost before they are loaded
 *   users.c    who uses a model, and who holds it
 *   names.c    what it is called, and to whom
 *   summaries.c    what lists say of files that nobody used
 *   model.c    what is known of it;   load.c  the threads that read files;   dirs.c  the directories
 *   parts.c    models of several files
 *   file.c     one file;   memory.c  how much there is
 *
 * A file calls those below it, and on its own line. */
#ifndef TDM_DAEMON_MODELS_PRIVATE_H
#define TDM_DAEMON_MODELS_PRIVATE_H

#include "common/background.h"
#include "common/utf8.h"
#include "daemon/models/load.h"
#include "daemon/models/models.h"

#define MAX_OBSERVERS 4
/* While something is under way; and between two looks at files in use. */
#define MODELS_TICK_NS (100 * TDM_NSEC_PER_MSEC)
#define MODELS_FILE_CHECK_NS TDM_NSEC_PER_SEC

/* Segments of a model that left, until the workers have unmapped them. */
struct left_segments {
        struct tdm_list node;
        struct tdm_segment *segments[5];
        uint64_t since_ns;
};

/* A user with jobs on a model. */
struct model_user {
        struct tdm_list node;
        struct tdm_account *account; /* NULL: nobody's jobs */
        unsigned n_jobs;
        bool admitted; /* more jobs on the same model need no more */
};

struct named_file {
        char *name;
        char *path;
};

struct tdm_models {
        struct tdm_loop *loop;
        struct tdm_fleet *fleet;
        char **dirs;
        struct named_file files[TDM_MAX_MODEL_FILES];
        unsigned n_files;
        bool said_cut;      /* that a list was */
        char *default_name; /* where there are no files; NULL: DEFAULT_NAME */
        enum tdm_precision precision;
        enum tdm_kv_type kv_type;
        uint64_t kv_bytes;
        enum tdm_activations activations;
        bool no_prefix_cache;
        bool serves_all;
        bool ending; /* what is read now will not be done */
        uint64_t idle_ns;
        uint32_t max_rows, max_sequences;
        char *program_dir;
        struct tdm_projector_config pictures;

        struct tdm_accounts *accounts;
        struct tdm_account *root; /* holds the default model */

        struct tdm_background *closer;   /* closes files: their file system may hang */
        struct tdm_background *fetcher;  /* reads rows of files for steps; NULL: none was wanted yet */
        struct tdm_summaries *summaries; /* NULL: no list was made yet */

        struct tdm_list list;
        unsigned n_models;
        uint32_t last_id;
        uint64_t n_said; /* counts what clients said */
        tdm_model_changed_fn on_rows;
        void *rows_userdata;
        struct tdm_list left;
        struct tdm_source *tick; /* progress, models that wait for memory, files in use, left */
        uint64_t last_file_check_ns;
        struct {
                tdm_model_changed_fn fn;
                void *userdata;
        } observers[MAX_OBSERVERS];
        unsigned n_observers;
};

/* summaries.c */
void tdm_summaries_free(struct tdm_summaries *summaries); /* NULL is fine */

/* names.c */
/* A path that a client said stands for the file, for that user alone. NULL: it did not pass the file under this path,
 * or not lately. */
struct tdm_model_said *tdm_model_said_by(struct tdm_model *model, const struct tdm_account *account, const char *path);
/* Without memory nothing is remembered. */
void tdm_model_remember_said(struct tdm_model *model, const struct tdm_account *account, const char *path);
void tdm_model_forget_said(struct tdm_model *model);

/* dirs.c: an fd on NAME.gguf and its path. TDM_E_NO_MODEL. */
int tdm_models_open_name(struct tdm_models *models, const char *name, int *ret_fd, char **ret_path, char **ret_name,
                         struct tdm_error *err);
char *tdm_model_name_of_path(const char *path); /* the file's name without .gguf, and without the number of its part */

/* parts.c */
/* Whether a file's name without .gguf ends as those of parts do: in -00001-of-00003. */
bool tdm_part_of_name(const char *base, size_t size, size_t *ret_name_bytes, uint32_t *ret_no, uint32_t *ret_n);
/* Bytes of the other parts that the first one's name tells of, as far as they are there. 0: it is one file. */
uint64_t tdm_size_of_other_parts(const char *first_path);
/* An fd on the first of the files that the model `name` was split into; -ENOENT: there are none in dir. */
int tdm_open_first_part(const char *dir, const char *name, char *ret_path, size_t path_bytes);
/* NULL, or the path of a part that is no longer what it was. */
const char *tdm_model_parts_changed(const struct tdm_model_parts *parts);

/* life.c: where its file lies, beside which a projector may; in `room`, or its own. NULL: nobody knows. */
const char *tdm_model_place(const struct tdm_model *model, char *room, size_t size);
/* pictures.c: whether a file's name is that of a projector beside a model. */
bool tdm_is_projector_name(const char *base);

/* life.c */
int tdm_model_start(struct tdm_model *model, struct tdm_error *err);
/* Its weights are wanted, and account holds its place. TDM_E_QUOTA, TDM_E_BUSY: it has none; nothing has changed. */
int tdm_model_need(struct tdm_model *model, struct tdm_account *account, struct tdm_error *err);
void tdm_model_continue(struct tdm_model *model); /* wanted, and nothing works on it: goes on to the next state */
int tdm_models_on_tick(struct tdm_source *source, uint64_t now_ns, void *userdata);

/* leave.c */
void tdm_model_notify(struct tdm_model *model);
void tdm_model_unused(struct tdm_model *model); /* only the list refers to it any more */
void tdm_model_leave(struct tdm_model *model);  /* out of the fleet, memory given back; state stays */
void tdm_model_retire(struct tdm_model *model); /* idle or failed: unloaded, told, forgotten */
/* It has failed, and only its failure is shown, until tdm_model_spent_until(). */
bool tdm_model_is_spent(const struct tdm_model *model);
uint64_t tdm_model_spent_until(const struct tdm_model *model);
void tdm_models_arm_tick(struct tdm_models *models);
void tdm_models_free_left(struct tdm_models *models, uint64_t before_ns);
void tdm_model_unlist(struct tdm_model *model);

/* charges.c */
void tdm_model_charge_read(struct tdm_model *model); /* what it really takes, after reading and after trimming */
void tdm_model_uncharge(struct tdm_model *model);    /* the model is freed */
bool tdm_models_have_too_many_described(struct tdm_models *models);
/* The oldest of the described models whose metadata `account` pays for; NULL: of all described models. */
struct tdm_model *tdm_models_oldest_described(struct tdm_models *models, const struct tdm_account *account);

/* users.c */
bool tdm_model_is_idle(const struct tdm_model *model);
bool tdm_model_may_leave(const struct tdm_model *model); /* idle, and it has something to give back */
bool tdm_model_is_held(const struct tdm_model *model);   /* by a user, and not by everybody */
const struct tdm_account *tdm_model_payer(const struct tdm_model *model);
uint64_t tdm_account_n_models(const struct tdm_account *account); /* that it holds */
void tdm_model_give_place(struct tdm_model *model);
void tdm_model_give_to(struct tdm_model *model, struct tdm_account *account); /* which holds and pays it from now on */
/* How much its holder would get back. While a model is read, the most that it may take is charged: much more. */
uint64_t tdm_model_cost(const struct tdm_model *model, enum tdm_resource resource);
struct model_user *tdm_model_user_of(const struct tdm_model *model, const struct tdm_account *account);
/* A job of account begins or ends to use it. TDM_E_QUOTA, as tdm_model_check_user(); -ENOMEM. */
int tdm_model_add_user(struct tdm_model *model, struct tdm_account *account, struct tdm_error *err);
void tdm_model_remove_user(struct tdm_model *model, const struct tdm_account *account);
/* TDM_E_QUOTA: this user is a guest, of this model or others, and has jobs on as many models as it may. */
int tdm_model_check_user(struct tdm_model *model, struct tdm_account *account, struct tdm_error *err);
void tdm_model_give_to_root(struct tdm_model *model); /* where it has a place: it is the default model */
/* The cost of all models that other users pay for and that this user has jobs on. */
uint64_t tdm_models_guest_cost(struct tdm_models *models, const struct tdm_account *account,
                               enum tdm_resource resource);

/* places.c */
int tdm_model_take_place(struct tdm_model *model, struct tdm_error *err);
/* A model for which this user pays some of the resource, and on which only others have jobs: one of those pays for it
 * from now on. False: there is none. */
bool tdm_models_hand_over_one(struct tdm_models *models, struct tdm_account *account, enum tdm_resource resource);
/* Charges LOADS, and METADATA_BYTES for what the metadata may take: *ret_max_bytes. */
int tdm_model_charge_reading(struct tdm_model *model, uint64_t *ret_max_bytes, struct tdm_error *err);
void tdm_models_drop_described(struct tdm_models *models);
/* For account: its own idle models go first, then those of the account that holds most. */
bool tdm_models_evict_one(struct tdm_models *models, const struct tdm_account *account, const struct tdm_model *keep);

/* model.c */
void tdm_model_touch(struct tdm_model *model); /* used without a job: its time of idling begins anew */

/* file.c */
int tdm_open_model_file(const char *path);
int tdm_file_identify(int fd, struct tdm_file_identity *ret);
int tdm_file_identify_path(const char *path, struct tdm_file_identity *ret);
/* A file system whose reads somebody else answers, perhaps never. Asking that may wait there, too: not on the loop. A
 * thread that waits there holds up what others want of it, and the daemon's end. */
bool tdm_file_is_far(int fd);
bool tdm_file_identity_equal(const struct tdm_file_identity *a, const struct tdm_file_identity *b);

#endif
