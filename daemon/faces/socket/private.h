/* Shared by the files of the client face: face.c (connections), unpack.c (frames), request.c (what clients ask),
 * render.c (chats as prompts), job.c (what jobs say), status.c (lists and status), trace.c (traces); gate.c and
 * gate-process.c receive files. */
#ifndef TDM_DAEMON_FACES_SOCKET_PRIVATE_H
#define TDM_DAEMON_FACES_SOCKET_PRIVATE_H

#include "common/utf8.h"
#include "common/background.h"
#include "daemon/accounts/turns.h"
#include "daemon/faces/socket/face.h"
#include "daemon/faces/socket/gate.h"
#include "proto/tandem.pb-c.h"

#define MAX_OPEN_REQUESTS 1024u
/* Unread replies at which a connection's jobs pause, and at which it is over. */
#define PAUSE_BYTES (UINT64_C(256) << 10)
#define QUEUE_LOOK_NS (5 * TDM_NSEC_PER_MSEC)
#define MAX_QUEUE_BYTES (UINT64_C(8) << 20)
#define MAX_TOKENIZE_BYTES (1u << 20)
#define TOKENIZE_BYTES 1024u /* what a request costs beside its text */

enum request_kind { REQUEST_JOB, REQUEST_TOKENIZE, REQUEST_RENDER, REQUEST_LOAD, REQUEST_TRACE };

struct client {
        struct tdm_face *face;
        struct tdm_list node;
        struct tdm_conn *conn;
        int fd; /* a duplicate, to say why when the connection is over */
        pid_t pid;
        uid_t uid;           /* of the process that connected */
        uint64_t identity;   /* uid, or whom the client speaks for: accounts.h */
        uint64_t n_asked;    /* requests that came, this one included */
        uint64_t start_time; /* of the process, where the kernel keeps no handle of it */
        struct tdm_account *account;
        struct tdm_gate *gate;    /* receives fds for it now */
        struct tdm_waiter waiter; /* while its account has had its time (turns.h) */
        uint64_t held_bytes;      /* charged to it: TDM_RESOURCE_FRAME_BYTES */
        char name[32];            /* as it calls itself */
        struct tdm_list requests;
        uint32_t n_requests;
        bool paused;
        bool finishing;
        uint64_t queued_bytes, stalled_since_ns; /* while paused */
};

struct request {
        struct client *client;
        struct tdm_list node;
        uint32_t id;
        enum request_kind kind;
        struct tdm_job *job;
        struct tdm_model *model;
        char *text;                    /* TOKENIZE */
        struct tokenizing *tokenizing; /* on a thread now; text is its */
        struct rendering *rendering;   /* RENDER */
        size_t text_size;
        uint64_t charged_bytes; /* of the client's account, TDM_RESOURCE_WAITING_BYTES */
        unsigned flags;
        char told_numerics[192];  /* JOB: with the last tokens */
        struct face_trace *trace; /* TRACE */
        void *question;           /* LOAD: whether the client may; NULL: it may */
        char *name;               /* LOAD, while that is asked: the model's, and the file that was passed, or -1 */
        int fd;
};

struct tdm_face {
        struct tdm_loop *loop;
        struct tdm_models *models;
        struct tdm_scheduler *scheduler;
        struct tdm_fleet *fleet;
        bool system;
        bool draining;
        enum tdm_face_gateway gateway_state;
        uid_t gateway;
        struct tdm_face_authority authority;
        char *socket;
        struct tdm_accounts *accounts;
        uint64_t half_frame_ns, not_reading_ns;
        uint64_t started_ns;
        struct tdm_list clients;
        uint32_t n_clients;
        uint32_t n_traces;
        struct tdm_turns *turns;           /* of the accounts, on the loop */
        struct tdm_gates *gates;           /* of a system daemon: receive the fds */
        struct tdm_background *background; /* tokenizes long texts */
        struct tdm_source *reading;        /* timer: looks after paused clients */
};

static inline bool client_is_root(const struct client *c)
{
        return c->identity == 0;
}
/* May it see or end what belongs to that identity? A uid may touch what its labels have: it can take each of them. */
static inline bool client_may_touch(const struct client *c, uint64_t identity)
{
        return c->identity == identity || c->identity == (uid_t)identity || client_is_root(c);
}
/* May it restart workers and unload models? */
static inline bool client_is_admin(const struct client *c)
{
        return client_is_root(c) || c->identity == geteuid();
}

/* process.c */
void process_remember(struct client *client);                                    /* when it has connected */
int process_identify(const struct client *client, struct tdm_face_process *ret); /* -ESRCH: it has ended */

/* face.c */
/* From now on the client is the one that its user calls `label`. TDM_E_DENIED: it may not speak for others. */
int face_speak_for(struct client *client, const char *label, struct tdm_error *err);
void face_send(struct client *client, uint32_t id, Tandem__Reply *reply);
void face_send_error(struct client *client, uint32_t id, int code, const char *message);
void face_send_ok(struct client *client, uint32_t id);
void face_protocol_error(struct client *client, const char *message); /* tells it, and hangs up */
/* pauses the job (or none) of one that does not read */
void face_mind_queue(struct client *client, struct tdm_job *job);

/* unpack.c: a frame that came; fds as in tdm_conn_frame_fn */
void face_handle(struct client *client, const uint8_t *data, size_t size, int *fds, unsigned n_fds);

/* request.c */
bool request_may_open(struct client *client, uint32_t id); /* if not, the client has been told */
/* Does what it asks, or begins to. The code of an error that the client is to be told. */
int request_dispatch(struct client *client, const Tandem__Request *request, const int *fds, unsigned n_fds,
                     struct tdm_error *err);
void request_free(struct request *request);
#define REQUEST_NO_LOADS "tandemd is shutting down and loads no models"
void request_model_changed(struct request *request); /* may free it */

/* vector.c: the job of a request, which is checked */
int vector_take_embed(struct client *c, const Tandem__Embed *embed, struct tdm_job **ret, struct tdm_error *err);
int vector_take_rerank(struct client *c, const Tandem__Rerank *rerank, struct tdm_job **ret, struct tdm_error *err);
int vector_take_classify(struct client *c, const Tandem__Classify *classify, struct tdm_job **ret,
                         struct tdm_error *err);

/* render.c */
/* The prompt of a job that is no scheduler's. end frees the request once it has been answered. -ENOMEM. */
int render_new(struct rendering **ret, struct request *request, struct tdm_job *job,
               void (*end)(struct request *request));
/* The request's model is described: a thread makes the prompt. Nothing where one does already. */
void render_start(struct request *request);
/* The request goes. A thread may still have the rendering. rendering may be NULL. */
void render_forget(struct rendering *rendering);

/* job.c */
extern const struct tdm_job_events face_job_events;

/* status.c */
/* The name by which this client may know it. */
char *face_model_name(const struct client *c, const struct tdm_model *model);
void face_send_status(struct client *client, uint32_t id);
void face_send_models(struct client *client, uint32_t id);
void face_send_jobs(struct client *client, uint32_t id);

/* trace.c */
int face_trace_check(struct client *client, uint32_t duration_ms, struct tdm_error *err); /* may it? */
int face_trace_start(struct request *request, uint32_t duration_ms, bool past, struct tdm_error *err);
void face_trace_stop(struct face_trace *trace); /* its last chunk follows from the loop */
void face_trace_free(struct face_trace *trace);

#endif
