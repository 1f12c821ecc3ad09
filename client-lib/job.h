/* A job as the library sees it; job.c runs it, score.c keeps what a score job found. */
#ifndef TANDEM_JOB_H
#define TANDEM_JOB_H

#include "client-lib/internal.h"

/* Grows by doubling; a capped number of elements. */
struct text_buf {
        char *data; /* NUL after size bytes, once there is any */
        size_t size, capacity;
};

struct id_buf {
        uint32_t *data;
        size_t n, capacity;
};

struct score_buf {
        float *nll;
        uint32_t *n_top;
        uint32_t *top_ids;   /* [capacity][top] */
        float *top_logprobs; /* [capacity][top] */
        size_t n, capacity;
        uint32_t top;
        size_t n_expected; /* ids that were sent; 0: a text was */
};

#define LIB_MAX_CALLS 4096u /* of an answer, and of a message */

/* The calls of tools in a generate job's answer; calls.c. */
struct call_list {
        struct tandem_call *items; /* arguments point into texts */
        struct text_buf *arguments;
        size_t n, capacity;
};

struct tandem_job {
        struct call call;
        struct tandem *tandem; /* NULL once done */
        unsigned refs;         /* the user's handle, the open request, and each callback that runs */
        bool released;         /* the handle is gone: no callbacks */
        bool done;
        bool scoring, embedding; /* embedding: a vector comes, or scores in the place of one */
        bool classifying;        /* with labels */
        float *vector;           /* [n_vector] */
        char **labels;           /* [n_vector]; NULL: they have none */
        size_t n_vector;
        bool cancel_wanted, cancel_sent;
        uint64_t id;
        struct tandem_callbacks callbacks;
        void *userdata;
        struct text_buf text;
        struct id_buf ids;
        struct call_list calls;
        struct score_buf score;
        struct tandem_scores scores;
        struct tandem_result result;
        char *numerics_id, *unguessed;
        char drew[192];   /* names the arithmetic of the last token; "": not known */
        uint32_t n_given; /* of its ids, those that it was given as drawn already */
        uint32_t n_asked; /* the most tokens that its request wants; 0: it does not say */
        uint32_t n_most;  /* the most that may come, the daemon's word included; 0: not known */
        /* resume.c: for another daemon. */
        uint8_t *request; /* [request_size]: as it was sent; NULL: it ends with its daemon */
        size_t request_size;
        int model_fd; /* of the request; -1: none */
        uint64_t begun_ns;
        bool was_sent, told_accepted;
        bool may_degrade;
        bool is_stale;          /* its id is of a daemon that was lost */
        bool degrades;          /* the arithmetic there is another one, and that is allowed */
        uint32_t n_again;       /* how often it was sent again */
        uint64_t first_id;      /* at the first daemon */
        float last_logprobs[2]; /* of the last ids: that of id number i at i % 2 */
};

/* buffers.c. 0, -E2BIG, -ENOMEM. */
int text_add(struct text_buf *buf, const void *data, size_t size);
int id_buf_add(struct id_buf *buf, const uint32_t *ids, size_t n);

/* calls.c. begun: calls may have begun in tokens that the job was given, so their names are not known. call_list_add()
 * returns NULL, or what is wrong with the delta (then the connection ends). */
const char *call_list_add(struct call_list *calls, const Tandem__CallDelta *delta, bool begun);
void call_list_deinit(struct call_list *calls);

/* job.c */
void job_finish_error(struct tandem_job *job, const struct tandem_error *err, bool silent);
void job_finish_cancelled(struct tandem_job *job, bool silent);
void job_send_cancel(struct tandem_job *job);
bool job_is_heard(const struct tandem_job *job);

void job_unref(struct tandem_job *job);
void job_unrefp(struct tandem_job **job);
/* Makes the parts that every kind of job has: itself, and the model that it asks for, by name or as an open file
 * (ret_fd). */
int job_open(struct tandem *t, const struct tandem_callbacks *callbacks, void *userdata, const char *model,
             struct tandem_job **ret, Tandem__ModelRef *ret_ref, int *ret_fd, struct tandem_error *err);
/* Sends its request. On success the job is the caller's: job is taken. */
int job_send(struct tandem *t, struct tandem_job **job, Tandem__Request *request, int fd, struct tandem_job **ret,
             struct tandem_error *err);

/* job-vector.c. vector_take(): NULL, or what is wrong with it (then the connection ends). */
const char *vector_take(struct tandem_job *job, const Tandem__Vector *wire);
void vector_forget(struct tandem_job *job);

/* resume.c. job_keep_request(): so that it can go on at another daemon. A negative errno. */
int job_keep_request(struct tandem_job *job, const Tandem__Request *request, int fd);
void job_drop_request(struct tandem_job *job); /* once it is done; the handle may stay for long */
/* What came is there already. False: it differs, and the job has ended. */
bool job_has_token(struct tandem_job *job, size_t index, const Tandem__Token *token);
/* The token with this index is another one there: the job ends. */
void job_finish_changed(struct tandem_job *job, size_t index);
void job_note_logprob(struct tandem_job *job, float logprob);
/* It was to end with this error. True: it waits, is sent in another way, or has ended with one that says more. */
bool job_goes_on_after(struct tandem_job *job, const Tandem__Error *wire);

/* render.c: a Generate message, of which nothing but the model is missing. It points into the options, and into itself:
 * it must not move. */
struct generate_wire {
        struct tandem_generate_options options; /* as given, of this library's size */
        Tandem__Generate generate;
        Tandem__Sampling sampling;
        ProtobufCBinaryData *stops;
        Tandem__ChatMessage *messages;
        Tandem__ChatMessage **message_ptrs;
        void **rooms; /* [options.n_chat]: of the messages */
        Tandem__Picture *pictures;
        void **picture_files; /* [options.n_pictures]: those that were read from descriptors */
};
int generate_wire_init(struct generate_wire *wire, const struct tandem_generate_options *given,
                       struct tandem_error *err);
void generate_wire_deinit(struct generate_wire *wire);

/* options.c */
ProtobufCBinaryData lib_bytes(const char *text, size_t size); /* SIZE_MAX: up to the NUL */
int lib_check_options(const struct tandem_generate_options *o, struct tandem_error *err);
/* stops has room for o's; what is put there points into o. */
void lib_put_options(Tandem__Generate *generate, Tandem__Sampling *sampling, ProtobufCBinaryData *stops,
                     const struct tandem_generate_options *o);

/* score.c. Returns NULL, or what is wrong with the chunk (then the connection ends). */
const char *score_add_chunk(struct tandem_job *job, const Tandem__ScoreChunk *chunk);
/* At the end: NULL, or what is missing. Fills job->scores. */
const char *score_finish(struct tandem_job *job);
void score_deinit(struct score_buf *score);

#endif
