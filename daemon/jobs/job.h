/* A job: what a client asked for (text to continue, or text to score), what has been made of it, and where it stands.
 *
 * It knows no wire and no worker: the scheduler moves it, the client face listens through struct tdm_job_events.
 * Counted: the scheduler holds a reference while it knows the job, a listener another. Loop thread only. */
#ifndef TDM_DAEMON_JOBS_JOB_H
#define TDM_DAEMON_JOBS_JOB_H

#include <stdatomic.h>
#include "common/list.h"
#include "daemon/accounts/accounts.h"
#include "daemon/jobs/constraint.h"
#include "daemon/jobs/drawn.h"
#include "daemon/jobs/options.h"
#include "daemon/jobs/picture-files.h"
#include "daemon/jobs/pictures.h"
#include "daemon/jobs/turn.h"
#include "daemon/placement/placement.h"
#include "engine/chat/chat.h"
#include "engine/model/labels.h"

#define TDM_MAX_CHAT_MESSAGES 4096u
#define TDM_MAX_CHAT_CALLS 4096u       /* in all messages */
#define TDM_PROMPT_BYTES_PER_TOKEN 64u /* a text with more bytes than this for each position cannot fit */
#define TDM_IMPLICIT_MAX_TOKENS 4096u  /* max_tokens 0 means the rest of the context, but at most these many */

enum tdm_job_kind { TDM_JOB_GENERATE, TDM_JOB_SCORE, TDM_JOB_EMBED, TDM_JOB_RERANK, TDM_JOB_CLASSIFY };
enum tdm_job_priority { TDM_JOB_INTERACTIVE, TDM_JOB_BACKGROUND };
enum tdm_job_state {
        TDM_JOB_QUEUED,
        TDM_JOB_LOADING,
        TDM_JOB_PREFILL,
        TDM_JOB_DECODE,
        TDM_JOB_RECOVERING,
        TDM_JOB_DONE,
};
enum tdm_job_end { TDM_JOB_END_STOP, TDM_JOB_END_LENGTH, TDM_JOB_END_CANCELLED, TDM_JOB_END_ERROR };

const char *tdm_job_state_name(enum tdm_job_state state);

/* How a job may get several tokens from one step, in the order of the table of options. */
enum tdm_speculation { TDM_SPECULATION_AUTO, TDM_SPECULATION_OFF, TDM_SPECULATION_LOOKUP, TDM_SPECULATION_DRAFT };

#define TDM_MAX_GUESSES 16u /* rows of a sequence in a step behind the one whose token is known */

/* Why the last step had no guesses for the job. */
enum tdm_unguessed {
        TDM_UNGUESSED_NOT, /* it had some, or there was no such step yet */
        TDM_UNGUESSED_OFF,
        TDM_UNGUESSED_GRAMMAR,   /* its text follows a grammar */
        TDM_UNGUESSED_SUSPECT,   /* it was in a step that killed its worker */
        TDM_UNGUESSED_PROMPT,    /* a prompt was read in this step */
        TDM_UNGUESSED_LAST,      /* it has one token left */
        TDM_UNGUESSED_NO_MATCH,  /* the end of its text does not stand further back */
        TDM_UNGUESSED_MEASURING, /* a step without guesses is measured */
        TDM_UNGUESSED_COST,      /* guesses would cost more time than they save */
        TDM_UNGUESSED_MEMORY,    /* no page is free for them */
        TDM_UNGUESSED_STATE,     /* its model keeps a state, which cannot be cut back */
        /* The same of a job with a draft model. */
        TDM_UNGUESSED_DRAFT_NONE,    /* the configuration wants a draft and names none for the model */
        TDM_UNGUESSED_DRAFT_LOADING, /* it is not loaded yet */
        TDM_UNGUESSED_DRAFT_MISSING, /* the configuration names one that cannot be opened */
        TDM_UNGUESSED_DRAFT_DIFFERS, /* the configuration names one with another vocabulary */
        TDM_UNGUESSED_DRAFT_LOST,    /* it was unloaded, failed, or its steps killed workers */
        TDM_UNGUESSED_DRAFT_BEHIND,  /* it still reads the job's text */
        TDM_UNGUESSED_DRAFT_MEMORY,  /* no page of its cache is free */
        TDM_UNGUESSED_DRAFT_LONG,    /* the text fills its context */
        TDM_UNGUESSED_DRAFT_BLIND,   /* pictures are in the prompt */
        TDM_N_UNGUESSED,
};

const char *tdm_unguessed_text(enum tdm_unguessed why);

#define TDM_JOB_POOL_THREADS 4u /* of a pool that tokenizes */

struct tdm_job;
struct tdm_model;

/* A prompt's text as ids, or why it could not be encoded. */
struct tdm_job_encoded {
        uint32_t *ids; /* owned */
        uint32_t n_ids, capacity;
        /* Of a prompt with files of pictures: behind which ids their rows go, until tdm_job_place_pictures() … */
        uint32_t places[TDM_MAX_JOB_PICTURES];
        /* … and then the pictures; owned. */
        struct tdm_job_picture *pictures; /* [n_pictures] */
        uint32_t n_pictures, picture_width;
        float *picture_rows;
        uint32_t second_from; /* of a pair, as of a job */
        int r;                /* 0, or why it did not work */
        struct tdm_error error;
};

/* One token as a client sees it; text is valid during the call only. */
struct tdm_job_token {
        uint32_t id;
        float logprob;
        const char *text;
        size_t size;
        const struct tdm_top *top; /* [n_top]: the likeliest tokens, where the job asks for them */
        uint32_t n_top;
        const struct tdm_form_part *parts; /* [n_parts] of a chat: thoughts and calls, which are no text */
        size_t n_parts;
};

/* accepted: prompt_tokens and max_tokens are known now. done: the last call; the listener drops its reference. A job
 * that fails before it was accepted only gets done. None may call back into the scheduler. */
struct tdm_job_events {
        void (*accepted)(struct tdm_job *job, void *userdata);
        void (*progress)(struct tdm_job *job, void *userdata);
        void (*token)(struct tdm_job *job, uint32_t index, const struct tdm_job_token *token, void *userdata);
        /* results [n] of the positions first …; the last position of all has no target. */
        void (*scores)(struct tdm_job *job, uint32_t first, const struct tdm_result *results, uint32_t n,
                       void *userdata);
        void (*done)(struct tdm_job *job, void *userdata);
};

struct tdm_job_params {
        enum tdm_job_kind kind;
        uint64_t identity;           /* of the client: accounts.h */
        struct tdm_account *account; /* is charged for what waits; NULL: no account is */
        /* One of: text, messages, ids. Copied. */
        const char *text;
        size_t text_size;
        const struct tdm_chat_message *messages;
        size_t n_messages;
        const uint32_t *ids;
        size_t n_ids;
        /* Rows that stand in ids, of a generate job: what is written at their places does not matter. Copied. */
        const struct tdm_job_picture *pictures;
        size_t n_pictures;
        uint32_t picture_width;
        /* Files of pictures that stand in text or messages, of a generate job. Copied. */
        const struct tdm_picture_file *picture_files;
        size_t n_picture_files;
        /* Of a rerank job, whose text is the document; it may be empty. Of a classify job the first text of a pair,
         * whose second one is the text; NULL: it is no pair. Copied. */
        const char *query;
        size_t query_size;
        bool raw;                       /* of a classify job: what the head gives, and no probabilities */
        struct tdm_job_options options; /* checked by tdm_job_new() */
        uint32_t n_top;                 /* of a score job: alternatives for each position, at most TDM_MAX_TOP */
        uint32_t dimensions;            /* of an embed job: numbers of the vector; 0: all that the model has */
};

/* How a job is to run and to draw: what the client asked for, beside the prompt. */
struct tdm_job_request {
        struct tdm_job_options options; /* as asked for, without the texts; the members below follow from them */
        enum tdm_job_priority priority;
        enum tdm_placement placement;
        char *draft_name; /* as asked for; NULL: none */
        struct tdm_sampling sampling;
        uint32_t repeat_last;
        struct tdm_logit_bias *biases; /* [n_biases] */
        uint32_t n_biases;
        uint32_t prefill_chunk;
        bool ignore_end;
        bool implicit_limit;  /* the client gave no max_tokens */
        uint32_t dimensions;  /* of an embed job */
        bool raw;             /* of a classify job */
        uint64_t deadline_ns; /* 0: none */
};

/* The prompt as it came, until tdm_job_prepare(). */
struct tdm_job_prompt {
        char *text;
        size_t text_size;
        size_t query_size;                 /* of a pair: that much of the text is the first one, or the query */
        struct tdm_chat_message *messages; /* texts lie in text */
        size_t n_messages;
        struct tdm_chat_call *calls; /* of all messages */
        size_t n_calls;
        struct tdm_chat_text variables; /* for the template; lies in text */
        struct tdm_picture_files pictures;
        bool is_text, is_pair, is_chat;
        bool goes_on;  /* a chat whose last message is the assistant's: the model goes on with it */
        bool encoding; /* a thread reads the text: the loop may not */
        bool encoded;
        atomic_bool cancel_encoding; /* the job has ended: no thread need go on with its text */
        struct tdm_job_encoded from_text;
};

/* The text that is made: from drawn ids to what the client sees. */
struct tdm_job_text {
        const struct tdm_tokenizer *tokenizer; /* after prepare; the model's */
        struct tdm_decoder decoder;
        struct tdm_stop *stop;             /* NULL: no stop strings */
        struct tdm_turn *turn;             /* of a chat whose answer has thoughts or calls */
        struct tdm_constraint *constraint; /* what it must follow; NULL: nothing */
        bool masking;                      /* a thread has the constraint: the loop may not use it */
        bool slow_masks;                   /* the last mask took long: the next one is made before its step */
        bool is_over;                      /* a stop string was found */
        bool at_end_token;                 /* the model ended it */
        bool incomplete;                   /* the job ended before its text satisfied the constraint */
        char *room;                        /* for the texts of the tokens of one step: [n_rooms][room_size] */
        size_t room_size;
        uint32_t n_rooms, room_at;                                  /* that of the next token */
        char tail[64 + 2 * TDM_FORM_HELD_MAX + TDM_MAX_STOP_BYTES]; /* text still held when it ended */
        size_t tail_size;
};

/* Where a job stands, for its listener and for status. */
struct tdm_job_progress {
        uint32_t queue_position;   /* among those that wait */
        uint64_t done, total;      /* bytes while its model loads, then tokens to read */
        uint32_t prefilled_tokens; /* of the prompt, in the cache now */
        bool told_accepted;        /* events->accepted was called */
};

struct tdm_job_statistics {
        uint64_t created_ns, accepted_ns, prefill_ns, first_token_ns, last_token_ns;
        uint32_t cached_tokens;         /* of the prompt, found in the prefix cache */
        uint64_t n_drafted, n_accepted; /* guesses that were checked, and of those that were right */
        uint64_t drafted_at[TDM_MAX_GUESSES], accepted_at[TDM_MAX_GUESSES]; /* the same by place in their step */
        uint32_t n_guesses;                                                 /* in its last step */
        enum tdm_unguessed unguessed;
        uint32_t recoveries;
        uint32_t evictions;     /* times it gave its pages back for another job */
        uint32_t reread_tokens; /* rows that were computed again because of it */
        bool degraded;
        char numerics_id[192];
};

/* How a job ended and what was counted of it: enough to show it when the process that ran it is gone. */
struct tdm_job_ended {
        enum tdm_job_end end;
        bool incomplete;
        uint32_t prompt_tokens, max_tokens, generated, thinking_tokens;
        struct tdm_error error;
        struct tdm_job_progress progress;
        struct tdm_job_statistics stats;
};

/* Others read all of it. They write through the functions below. */
struct tdm_job {
        unsigned n_refs;
        uint64_t id;
        enum tdm_job_kind kind;
        uint64_t identity; /* who may see and end it, and whose prompts it may share pages with */
        uint64_t login;    /* the identity's account: its quotas and its turns */
        struct tdm_account *account;
        uint64_t charged_bytes;  /* of it, TDM_RESOURCE_WAITING_BYTES */
        struct tdm_model *model; /* borrowed from the scheduler's reference */
        const struct tdm_job_events *events;
        void *userdata;
        struct tdm_job_request request;
        struct tdm_job_prompt prompt;
        struct tdm_job_drawn drawn;

        /* what it is made of: prompt, then what was generated */
        uint32_t *ids;
        uint32_t n_ids, ids_capacity;
        uint32_t prompt_tokens;
        struct tdm_job_pictures pictures;
        uint32_t second_from; /* of a pair: where the document begins, if its tokens are of another type; else 0 */
        uint32_t max_tokens;  /* asked for; after prepare: the limit */
        uint32_t generated;
        struct tdm_job_text text;
        /* [n_vector], of an embed job that ended without an error; of a rerank job the score, of a classify job those
         * of all classes */
        float *vector;
        uint32_t n_vector;
        bool probability;          /* of scores: they are such */
        struct tdm_labels *labels; /* of a classify job: of its scores; NULL: there are none */

        enum tdm_job_state state;
        bool accepted;
        bool paused;     /* the client does not read: left out of steps */
        bool finished;   /* its end is decided; the scheduler takes it out */
        bool reattaches; /* its client goes on with it at the next daemon */
        enum tdm_job_end end;
        struct tdm_error error;           /* of TDM_JOB_END_ERROR */
        uint32_t earlier_thinking_tokens; /* of one that ended before this process began */
        struct tdm_job_progress progress;
        struct tdm_job_statistics stats;

        struct tdm_list node; /* in tdm_scheduler_jobs() */
};

/* TDM_E_BAD_REQUEST with the reason; TDM_E_QUOTA, TDM_E_BUSY: too much waits already. */
int tdm_job_new(struct tdm_job **ret, const struct tdm_job_params *params, struct tdm_error *err);
struct tdm_job *tdm_job_ref(struct tdm_job *job);
void tdm_job_unref(struct tdm_job *job);
void tdm_job_unrefp(struct tdm_job **job);

/* How many of the generated tokens are thoughts or the marks around them. */
static inline uint32_t tdm_job_thinking_tokens(const struct tdm_job *job)
{
        return job->text.turn ? tdm_turn_thinking_tokens(job->text.turn) : job->earlier_thinking_tokens;
}

/* "the prompt", or what other jobs have in its place; for messages. */
const char *tdm_job_prompt_name(const struct tdm_job *job);
/* Its result is a vector, or scores in the place of one. */
static inline bool tdm_job_wants_vector(const struct tdm_job *job)
{
        return job->kind == TDM_JOB_EMBED || job->kind == TDM_JOB_RERANK || job->kind == TDM_JOB_CLASSIFY;
}

static inline bool tdm_job_has_grammar(const struct tdm_job *job)
{
        return job->text.constraint && tdm_constraint_has_grammar(job->text.constraint);
}

/* Bytes of text it holds until it is prepared. */
size_t tdm_job_pending_bytes(const struct tdm_job *job);
/* Bytes of text that are still to be encoded; 0: it is encoded or came as ids. */
size_t tdm_job_text_to_encode(const struct tdm_job *job);
/* Makes ids of the text. Any thread: only reads the job. ret->ids is the caller's. */
void tdm_job_encode(const struct tdm_job *job, const struct tdm_tokenizer *tokenizer, const struct tdm_chat *chat,
                    const struct tdm_hparams *hp, struct tdm_job_encoded *ret);
/* Whether the text and the rows of its pictures are within the context: 0 or TDM_E_TOO_LONG. */
int tdm_job_check_length(const struct tdm_job *job, const struct tdm_job_encoded *encoded, uint32_t n_rows,
                         const struct tdm_hparams *hp, struct tdm_error *err);
/* Writes the rows of the prompt's pictures between the ids of the text, which tdm_job_check_length() has passed.
 * hashes: [n][TDM_PICTURE_HASH_BYTES], one for each file, which has n_rows rows of `width` numbers; takes over rows.
 * -ENOMEM. Any thread. */
int tdm_job_place_pictures(const struct tdm_job *job, struct tdm_job_encoded *encoded,
                           const uint8_t (*hashes)[TDM_PICTURE_HASH_BYTES], uint32_t n_rows, uint32_t width,
                           float *rows, struct tdm_error *err);
/* Frees what nobody took over. */
void tdm_job_encoded_deinit(struct tdm_job_encoded *encoded);
/* The same of a chat, with the text. *ret_prompt is written where ret->r is 0, and is the caller's. */
void tdm_job_render(const struct tdm_job *job, const struct tdm_chat *chat, const struct tdm_hparams *hp,
                    struct tdm_chat_prompt *ret_prompt, struct tdm_job_encoded *ret);
/* Before tdm_job_prepare(): what the model's file recommends, for the options that the client left open. */
void tdm_job_take_recommended(struct tdm_job *job, const struct tdm_recommended *recommended);
/* Makes the ids (or takes from_text's when the text is encoded already), checks them against the model, fixes
 * max_tokens, drops the text. TDM_E_BAD_REQUEST, TDM_E_TOO_LONG. */
int tdm_job_prepare(struct tdm_job *job, const struct tdm_tokenizer *tokenizer, const struct tdm_chat *chat,
                    const struct tdm_hparams *hp, struct tdm_error *err);

/* Appends a chosen token: decodes, looks for ends. *ret_token is what the client is to see (its text lies in the job's
 * room until 1 + TDM_MAX_GUESSES more tokens were taken); false when it sees nothing (an end token). Sets finished. */
bool tdm_job_take_token(struct tdm_job *job, uint32_t id, float logprob, uint64_t now_ns,
                        struct tdm_job_token *ret_token);
/* Takes a text's vector of length 1: its first numbers, made that long again where not all are wanted. Of a rerank job
 * the first number is the score, of a classify job the first ones are those of the head. False: it has a number that is
 * none, and nothing happened. labels: of a model that tells classes apart; NULL: it does not. */
bool tdm_job_take_vector(struct tdm_job *job, const struct tdm_recipe *recipe, struct tdm_labels *labels,
                         const float *vector, uint32_t width, uint64_t now_ns);
/* Whether a model with this recipe does what the job asks; max_rows: of a step. The pictures of a job are another
 * matter: what a step may have of them is checked by the scheduler. TDM_E_UNSUPPORTED, TDM_E_TOO_LONG,
 * TDM_E_BAD_REQUEST. After prepare. */
int tdm_job_check_model(const struct tdm_job *job, const struct tdm_recipe *recipe, const struct tdm_hparams *hp,
                        uint32_t max_rows, struct tdm_error *err);
/* A job of the model `draft` that reads what `of` has read and guesses at what comes next. No client knows it, and it
 * is charged to none. It draws with the same numbers, so that it agrees more often. */
int tdm_job_new_draft(struct tdm_job **ret, const struct tdm_job *of, struct tdm_model *draft, uint32_t n_vocab);
/* Takes more of the tokens that were drawn already, for about until_ns at most. To be called after prepare, while
 * tdm_job_drawn_waits(). 0: it has taken them all, and may be finished. -EAGAIN: not yet. -EBUSY: not before the
 * constraint has made the mask of all but the last one. TDM_E_BAD_REQUEST: they are none that the job can have drawn.
 */
int tdm_job_take_drawn(struct tdm_job *job, uint64_t until_ns, struct tdm_error *err);
/* They are refused, whatever end the job came to while they were taken. Nobody was told yet. */
void tdm_job_refuse_drawn(struct tdm_job *job, const struct tdm_error *err);
/* It does not wait any more: the account gets back what the job was charged. */
void tdm_job_settle_charge(struct tdm_job *job);
/* Appends a token that counts for nothing else. -ENOMEM. */
int tdm_job_append(struct tdm_job *job, uint32_t id);
/* Decides the end, once; the first call wins. err for TDM_JOB_END_ERROR. */
void tdm_job_finish(struct tdm_job *job, enum tdm_job_end end, const struct tdm_error *err);

/* ---- what others write (job-notes.c) ---- */

/* Who hears of the job; events NULL: nobody does. */
void tdm_job_listen(struct tdm_job *job, const struct tdm_job_events *events, void *userdata);
void tdm_job_pause(struct tdm_job *job, bool paused);
/* The scheduler knows it; model is borrowed. */
void tdm_job_enter(struct tdm_job *job, uint64_t id, struct tdm_model *model);
void tdm_job_accept(struct tdm_job *job, uint64_t now_ns);
void tdm_job_set_state(struct tdm_job *job, enum tdm_job_state state);
/* At most max_tokens are generated; at most the first n_ids ids stay. */
void tdm_job_cut_limit(struct tdm_job *job, uint64_t max_tokens);
void tdm_job_cut_back(struct tdm_job *job, uint32_t n_ids);
/* A thread reads the prompt from here on, and until there. result NULL: it did not run; else what it has becomes the
 * job's. */
void tdm_job_begin_encoding(struct tdm_job *job);
void tdm_job_end_encoding(struct tdm_job *job, const struct tdm_job_encoded *result);
/* The same of a thread that makes a mask. slow: it took long. */
void tdm_job_begin_mask(struct tdm_job *job);
void tdm_job_end_mask(struct tdm_job *job, bool slow);

void tdm_job_note_position(struct tdm_job *job, uint32_t queue_position);
void tdm_job_note_progress(struct tdm_job *job, uint64_t done, uint64_t total);
void tdm_job_note_prefilled(struct tdm_job *job, uint32_t n_tokens); /* those behind the prompt do not count */
bool tdm_job_tell_accepted(struct tdm_job *job);                     /* false: its listener was told before */

void tdm_job_note_issued(struct tdm_job *job, uint64_t now_ns); /* rows of it are in a step; the first call counts */
void tdm_job_note_scores(struct tdm_job *job, uint64_t now_ns); /* of a score job */
void tdm_job_note_cached(struct tdm_job *job, uint32_t n_tokens);
/* A step of it is done, with n_reread rows that were read before. */
void tdm_job_note_committed(struct tdm_job *job, bool degraded, uint32_t n_reread);
void tdm_job_note_compared(struct tdm_job *job); /* what drew its drawn tokens */
void tdm_job_note_numerics(struct tdm_job *job, const char *numerics_id);
/* How many guesses its next step checks, and why there are none or fewer. */
void tdm_job_note_guesses(struct tdm_job *job, uint32_t n, enum tdm_unguessed why);
/* One guess, at its place in the step, was right or not; a step with n guesses is done. */
void tdm_job_count_guess(struct tdm_job *job, uint32_t place, bool right);
void tdm_job_count_guesses(struct tdm_job *job, uint32_t n);
void tdm_job_count_eviction(struct tdm_job *job);
void tdm_job_count_recovery(struct tdm_job *job);

/* *ret has no byte that was not written. */
void tdm_job_read_end(const struct tdm_job *job, struct tdm_job_ended *ret);
/* The job ended like that in an earlier process. -EINVAL: no job ends so, and nothing was written. */
int tdm_job_restore_end(struct tdm_job *job, const struct tdm_job_ended *ended);

/* ---- speeds ---- */

double tdm_job_ttft_ms(const struct tdm_job *job);
double tdm_job_prefill_tps(const struct tdm_job *job);
double tdm_job_decode_tps(const struct tdm_job *job);

#endif
