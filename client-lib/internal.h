/* What the library's files share and tandem.h hides: the connection, its send queue, the table of open requests.
 *
 * Every open request is a `struct call` in the connection's list, found by its id when a reply comes. A job embeds one,
 * a blocking request keeps one on its stack. Generated protobuf stays behind this header: nothing of it is exported. */
#ifndef TANDEM_INTERNAL_H
#define TANDEM_INTERNAL_H

#include "client-lib/include/tandem.h"
#include "common/conn.h"
#include "common/util.h"
#include "proto/tandem.pb-c.h"

#define LIB_PROTOCOL 1u
#define LIB_MAX_REPLY_BYTES (16u << 20)           /* of one frame from the daemon */
#define LIB_MAX_UNPACKED_BYTES ((size_t)96 << 20) /* that one reply may grow to when unpacked */
#define LIB_MAX_QUEUE_BYTES ((size_t)256 << 20)   /* waiting to be sent */
#define LIB_HELLO_TIMEOUT_MS 30000
#define LIB_MAX_TOKENS (1u << 24)                /* of one job; no context is longer */
#define LIB_MAX_PICTURE_BYTES ((size_t)32 << 20) /* of one that is read from a descriptor; the decoder takes no more */
#define LIB_MAX_PICTURES 64u                     /* of one job; tandemd takes no more */
#define LIB_MAX_MESSAGES 4096u                   /* of one chat; tandemd takes no more */
#define LIB_MAX_TEXT_BYTES ((size_t)1 << 28)     /* of one job */

struct call {
        uint32_t id;
        struct call *next;
        bool linked;
        /* A reply for this request. A true return keeps `reply` (freed with free_reply()). */
        bool (*on_reply)(struct call *call, Tandem__Reply *reply);
        /* The connection ended (or was closed, then silent is set); the call is no longer in the list. */
        void (*on_lost)(struct call *call, const struct tandem_error *err, bool silent);
        /* again NULL: it ends with the connection. Else it waits for the next one, in the list and with the id 0:
         * on_away() says so, again() sends it there, or ends it. */
        void (*on_away)(struct call *call);
        void (*again)(struct call *call);
        bool (*is_given_up)(const struct call *call); /* NULL: never. Nobody wants it any more: it does not wait */
        unsigned n_losses;                            /* of daemons, since it has got anywhere */
};

/* Whether a daemon is there: yes; a connection is tried from time to time; one is made and not greeted yet. */
enum lib_link { LIB_LINK_UP, LIB_LINK_AWAY, LIB_LINK_GREETING };

struct out_frame {
        struct out_frame *next;
        size_t size, sent; /* sent counts the frame's header too */
        int fd;            /* rides along, owned; or -1 */
        uint8_t data[];
};

struct tandem {
        unsigned refs;
        unsigned depth; /* > 0: inside callbacks */
        bool closed;    /* tandem_close() was called: no callback any more */
        int fd;         /* the socket; -1 while there is none */
        int poll_fd;    /* what the caller polls in its place: an epoll of it and timer_fd; -1: there is none */
        int timer_fd;   /* -1 until the daemon is lost */
        short watched;  /* events of the socket in poll_fd; 0: it is not in there */
        enum lib_link link;
        int reattach_ms;          /* how long a lost daemon is waited for; 0: not at all */
        uint64_t away_ns;         /* when it was lost */
        uint64_t up_ns;           /* when the next one had greeted */
        uint64_t due_ns;          /* when lib_do_due() has something to do; 0: nothing */
        unsigned n_tries;         /* that failed, since either */
        struct tandem_error lost; /* why */
        struct call greeting;
        char *label;
        int timeout_ms;
        struct tdm_frame_reader *reader;
        struct out_frame *out_first, **out_last;
        size_t out_bytes;
        bool send_broken; /* the daemon reads no more; it may still have said why */
        uint32_t next_id;
        uint32_t peer_max_frame;
        struct call *calls;
        bool dead;
        struct tandem_error dead_error;
        char daemon_version[128]; /* in place: who asked for it keeps the pointer */
        char *socket_path;
        uid_t daemon_uid; /* whose process listened on the socket; -1: not known */
};

/* error.c */
int lib_error(struct tandem_error *err, int code, const char *fmt, ...) _printf_(3, 4);
/* From the wire; returns the code. wire may be NULL. Text is cut to what fits and made one line. */
int lib_error_from_wire(struct tandem_error *err, const Tandem__Error *wire);
int lib_error_copy(struct tandem_error *err, const struct tandem_error *from); /* returns from->code */

/* connection.c */
void lib_ref(struct tandem *t);
void lib_unref(struct tandem *t);
/* Gives request an id, queues it with at most one fd (dup'd; -1: none) and sends what can be sent. With a call, replies
 * reach it; without, they are dropped. */
int lib_send(struct tandem *t, Tandem__Request *request, int fd, struct call *call, struct tandem_error *err);
void lib_call_unlink(struct tandem *t, struct call *call);
/* Polls and dispatches until *done, for at most timeout_ms (-1: no limit). */
int lib_wait(struct tandem *t, const bool *done, int timeout_ms, struct tandem_error *err);
/* Ends the connection, from a reply handler: the daemon broke the rules. */
void lib_protocol_error(struct tandem *t, const char *fmt, ...) _printf_(2, 3);

void lib_fail_calls(struct tandem *t, const struct tandem_error *err, bool silent);
int lib_connect_once(const char *path, int *ret_fd); /* 0, or a negative errno; never waits */
uid_t lib_listener_uid(int fd);                      /* of the process at the other end; -1: not known */
int lib_watch(struct tandem *t);                     /* polls for what the socket is wanted for now */
int lib_new_reader(struct tandem *t);
void lib_drop_queue(struct tandem *t);
void lib_put_hello(const struct tandem *t, Tandem__Hello *hello, char client[64]);
int lib_check_hello(struct tandem *t, const Tandem__HelloReply *hello, struct tandem_error *err);

/* reattach.c */
#define LIB_REATTACH_MS 5000
void lib_open_poll(struct tandem *t);
/* The connection has ended for this reason. True: it is made anew, and what can go on waits for that. */
bool lib_go_away(struct tandem *t, const struct tandem_error *why);
/* The daemon ends, and has ended this request, which waits for the next one. The connection is left when no other
 * request has an answer to come. False: it cannot wait. */
bool lib_leave(struct tandem *t, struct call *call, const struct tandem_error *why);
/* The next daemon did not want the connection. True: it is tried again. */
bool lib_greeting_failed(struct tandem *t, const struct tandem_error *why);
/* What has the id 0 is sent a little later. False: that was so for too long. */
bool lib_send_later(struct tandem *t);
void lib_do_due(struct tandem *t);
void lib_wake(struct tandem *t); /* soon, since a request that waits was given up */

/* sync-request.c */
struct sync_call {
        struct call call;
        struct tandem *tandem;
        Tandem__Request *request;
        int fd;
        bool done;
        Tandem__Reply *reply; /* NULL when lost */
        struct tandem_error err;
};
/* [blocking] Sends and waits for the one reply, which must be of the wanted kind. Frees nothing of request. */
int lib_request(struct tandem *t, Tandem__Request *request, int fd, int timeout_ms, Tandem__Reply__KindCase wanted,
                Tandem__Reply **ret, struct tandem_error *err);
/* The same for one whose answer is a mere Ok, within the caller's timeout. */
int lib_request_ok(struct tandem *t, Tandem__Request *request, int fd, struct tandem_error *err);
void free_reply(Tandem__Reply *reply);
void free_replyp(Tandem__Reply **reply);

/* model-ref.c: fills ref (pointing into name) and *ret_fd (-1 unless the file was opened here). */
int lib_model_ref(Tandem__ModelRef *ref, const char *name, int *ret_fd, struct tandem_error *err);

#endif
