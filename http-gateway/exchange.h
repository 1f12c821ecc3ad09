/* One request and its answer.
 *
 * Its life: the head is checked (guard, limits, route, key), the body gathered, then the route's run() is called once.
 * run() answers at once, or later from the loop: the connection is suspended meanwhile, and its socket watched for a
 * hang-up. An answer is whole (exchange_answer…, exchange_fail) or a stream (exchange_begin_stream, additions to `out`
 * with exchange_wake, exchange_end_stream). The exchange is freed by libmicrohttpd's completion, with all that it owns;
 * a hang-up frees its generation at once. */
#ifndef TDM_HTTP_EXCHANGE_H
#define TDM_HTTP_EXCHANGE_H

#include "http-gateway/json.h"
#include "http-gateway/server.h"

struct generation;
struct reading;
struct ask;

struct route {
        const char *path; /* one that ends in '/' takes a name behind it, which is the exchange's `arg` */
        const char *method;
        enum dialect dialect;
        bool without_key;
        void (*run)(struct exchange *x);
};

struct exchange {
        struct server *server;
        struct tdm_list node;
        struct peer *peer;
        struct MHD_Connection *mhd;
        const struct route *route;
        enum dialect dialect;
        char arg[256];
        char id[40];      /* "req_…" */
        char origin[256]; /* an allowed one; "" */
        char allow_headers[1024];
        char allow[64];    /* for 405 and OPTIONS */
        const char *label; /* of its key; NULL: no keys are needed */
        uint64_t begun_ns;
        uint64_t moved_ns; /* when its output last moved, or was last empty */

        struct owner *owner; /* whom it counts for, once its head is admitted */
        uint64_t held_bytes; /* of the owner */
        bool counted;        /* among the owner's requests */
        struct buffer body;
        uint64_t body_seen;
        bool discard; /* the answer is known; the rest of the body is read and dropped */
        bool ran;

        struct failure failure; /* status != 0: the answer, or why the stream broke */
        int status;             /* 0: no answer yet */
        const char *content_type;
        char warning[512]; /* x-tandem-warning; "" */
        char policy[320];  /* Content-Security-Policy of a page; "" */
        struct buffer out;
        bool must_close; /* after this answer */
        bool streaming, stream_ended;
        bool broken; /* nothing more can be sent */
        bool queued;
        bool suspended;
        struct tdm_source *hang_up;

        struct generation *generation;
        struct reading *reading;
        struct ask *ask;
        void (*answered)(struct exchange *x, struct ask *ask);
        void *state; /* the route's */
        void (*free_state)(void *state);
};

/* server.c's side: MHD's handler and completion. */
struct exchange *exchange_new(struct server *s, struct peer *peer, struct MHD_Connection *mhd);
void exchange_free(struct exchange *x);
void exchange_take_body(struct exchange *x, const char *data, size_t size);
enum MHD_Result exchange_continue(struct exchange *x);
/* How long its body may be. */
size_t exchange_most_body(const struct exchange *x);
/* Ends it without a word more. */
void exchange_break(struct exchange *x);
/* The same of one whose body has not come whole, and gives back what it holds at once. */
void exchange_abandon(struct exchange *x);

/* A route's side. Taken over: json, buffer's content. Bodies are read by reading.h. */
/* Charges the owner until it is released, or the exchange ends. 0, or a failure and nothing is charged. */
int exchange_hold(struct exchange *x, uint64_t bytes, struct failure *f);
void exchange_release(struct exchange *x, uint64_t bytes);
void exchange_answer_json(struct exchange *x, int status, json_t *json);
void exchange_answer_exact(struct exchange *x, int status, json_t *json, const struct exact *numbers);
void exchange_answer_text(struct exchange *x, int status, const char *content_type, struct buffer *text);
void exchange_fail(struct exchange *x, const struct failure *f);
void exchange_begin_stream(struct exchange *x, const char *content_type);
void exchange_wake(struct exchange *x);
void exchange_end_stream(struct exchange *x);

/* routes.c: finds the route for a path. *ret_allow: the methods that the path has, where the given one is not among
 * them (then NULL is returned); "" for an unknown path. dialect is set in any case. */
const struct route *routes_find(const char *method, const char *path, enum dialect *dialect, char arg[256],
                                char allow[64]);

#endif
