/* Shared by the files of the D-Bus face: bus.c (the connection), watches.c and on-loop.c (on the loop), send.c
 * (messages to the bus), peer.c (who calls), held.c (calls that wait), polkit.c (may they), objects.c (which object and
 * method is meant),
 * properties.c (what objects have), manager.c, options.c, job.c, line.c and job-object.c (jobs),
 * pictures.c (their files), journal.c, outlive.c and restore.c (jobs of more than one daemon),
 * stream.c (pipes), units.c (systemd), logind.c (sleep), status.c (workers and models), writer.c (making messages). */
#ifndef TDM_DAEMON_FACES_DBUS_PRIVATE_H
#define TDM_DAEMON_FACES_DBUS_PRIVATE_H

#include "daemon/faces/dbus/dbus.h"

#include <dbus/dbus.h>
#include <pthread.h>
#include "common/background.h"
#include "common/utf8.h"
#include "daemon/faces/dbus/journal.h"

#define BUS_NAME "dev.tandem.Tandem1"
#define BUS_ROOT "/dev/tandem/Tandem1"
#define BUS_ERROR BUS_NAME ".Error."
#define BUS_MANAGER BUS_NAME ".Manager"
#define BUS_JOB BUS_NAME ".Job"
#define BUS_WORKER BUS_NAME ".Worker"
#define BUS_MODEL BUS_NAME ".Model"
#define BUS_PROPERTIES "org.freedesktop.DBus.Properties"
#define BUS_INTROSPECTABLE "org.freedesktop.DBus.Introspectable"
#define BUS_OBJECT_MANAGER "org.freedesktop.DBus.ObjectManager"
#define BUS_MAX_PATH 384u

/* Limits of one call; a longer one is refused before its contents are read. A prompt of ids has 4 MiB at most. The
 * longest chat has 4,096 messages of 3 values, as many calls of 5 and as many answers of 4; an array of numbers is one
 * value. To go over a value takes libdbus some 50 ns. */
#define BUS_MAX_CALL_BYTES (UINT64_C(5) << 20)
#define BUS_MAX_CALL_VALUES (UINT64_C(1) << 16)
/* Calls that wait for credentials or polkit. */
#define BUS_MAX_HELD 256u
#define BUS_MAX_HELD_PER_UID 64u
#define BUS_MAX_HELD_BYTES (UINT64_C(64) << 20)
#define BUS_MAX_HELD_BYTES_PER_UID (UINT64_C(16) << 20)
/* A message can bring 253 fds, which are open until it is handled, so few may wait. */
#define BUS_MAX_HELD_WITH_FDS 8u
/* Of all files of pictures of a call; as much as a request of the socket has room for. */
#define BUS_MAX_PICTURE_BYTES (8u << 20)
/* Questions to polkit about clients of the socket: no more than their accounts allow. */
#define BUS_MAX_QUESTIONS 224u
#define BUS_MAX_PEERS 1280u /* those of whom the bus was asked who they are included */
/* While this much output waits for the bus, no more calls are read. */
#define BUS_MAX_OUTGOING_BYTES (8 << 20)

/* Bounds: text of one job that is kept for GetText(), output of one that the pipe has not taken; then of all jobs. */
#define BUS_MAX_TEXT_BYTES (UINT64_C(1) << 20)
#define BUS_MAX_OUTPUT_BYTES (UINT64_C(1) << 20)
#define BUS_MAX_KEPT_BYTES (UINT64_C(64) << 20)
#define BUS_MAX_KEPT_BYTES_PER_UID (UINT64_C(16) << 20)
#define BUS_MAX_ENDED_JOBS 512u
#define BUS_MAX_ENDED_JOBS_PER_UID 64u
#define BUS_MAX_WATCHERS 8u
#define BUS_MAX_REFUSALS 256u /* the others are sent at once */
#define BUS_TEXT_REPLY_BYTES (UINT64_C(256) << 10)
/* How long a job can be looked at after its end. */
#define BUS_KEEP_NS (60 * TDM_NSEC_PER_SEC)
#define BUS_KEEP_LINGERING_NS (600 * TDM_NSEC_PER_SEC)
#define BUS_CHANGED_NS (100 * TDM_NSEC_PER_MSEC) /* between two PropertiesChanged of one object */

enum bus_action { BUS_ANYBODY, BUS_GENERATE, BUS_MANAGE_MODELS, BUS_RESTART_WORKER, BUS_VIEW_OTHERS };
enum bus_polkit { BUS_POLKIT_UNKNOWN, BUS_POLKIT_YES, BUS_POLKIT_NO };

/* Somebody on the bus, by unique name. Known once the bus has said who it is. */
struct bus_peer {
        struct tdm_dbus *bus;
        struct tdm_list node; /* least recently heard of first */
        char *name;
        uid_t uid;
        bool known;
        struct tdm_account *account; /* NULL: not known yet */
        DBusPendingCall *asking;
        struct tdm_list held;   /* struct bus_held */
        struct tdm_list loads;  /* struct bus_load */
        struct tdm_list embeds; /* struct bus_embed */
};

/* A call that waits for something. */
struct bus_held {
        struct bus_peer *peer;
        struct tdm_list node;
        DBusMessage *message;
        uint64_t size_bytes;
        bool fds, charged; /* TDM_RESOURCE_CALLS of the peer's account */
        enum bus_action action;
        DBusPendingCall *asking;     /* polkit */
        struct bus_reading *reading; /* pictures.c; NULL: it waits for something else */
};

/* A caller who waits for a model. */
struct bus_load {
        struct bus_peer *peer;
        struct tdm_list node;
        DBusMessage *call;
        struct tdm_model *model;
};

enum bus_output { BUS_OUTPUT_TEXT, BUS_OUTPUT_EVENTS, BUS_OUTPUT_NONE };

/* The writing end of a pipe, and what it has not taken yet. */
struct bus_stream {
        struct tdm_loop *loop;
        int fd;
        char *data;
        size_t first, size, capacity; /* the bytes that wait: data[first … size) */
        bool cut;                     /* it could not hold all */
        bool over;                    /* no more will come: closed when it is empty */
        struct tdm_source *writable;
        struct bus_journal *journal;         /* has what waits, in place of data; NULL: there is none */
        void (*on_writable)(void *userdata); /* there is room for a journal's output; from the loop */
        void *userdata;
};

/* A job as an object: who may hear of it, what it has said, and when its properties were last told. */
struct bus_job {
        struct tdm_dbus *bus;
        struct tdm_list node;
        struct tdm_job *job; /* referenced, to the end of this object */
        struct tdm_model *model;
        struct tdm_error lost; /* why there is none, of a job that an earlier daemon began */
        char asked_model[160]; /* then its name, as the caller has it */
        char path[BUS_MAX_PATH];
        uid_t uid, login;       /* login: the account of uid, for what it may keep */
        struct bus_peer *owner; /* NULL: it has left */
        struct bus_peer *watchers[BUS_MAX_WATCHERS];
        bool lingers;
        enum bus_output output;
        struct bus_stream stream;
        uint64_t sequence;       /* of events */
        char told_numerics[192]; /* with the last token event that named it */

        char *text; /* well-formed UTF-8 without NUL */
        size_t text_size, text_capacity;
        uint64_t text_bytes; /* in all, those not kept included */
        bool text_truncated;

        struct bus_journal *journal;      /* NULL: it ends with this daemon */
        char stored_as[40];               /* by the service manager */
        bool pipe_stored;                 /* by it, now or soon */
        struct bus_journal_token last[2]; /* that an earlier daemon drew: number n at n % 2 */
        uint64_t n_earlier;               /* tokens that it told */
        bool differs;                     /* this one draws others */

        bool ended;
        uint64_t ended_ns;
        uint64_t changed_ns; /* when PropertiesChanged was last sent */
        bool changed;
};

/* The state of a worker, and of a model, that was last sent to the bus. */
struct bus_known_worker {
        enum tdm_worker_state state;
        pid_t pid;
        uint32_t restarts;
        uint64_t looked_ns, busy_ns; /* BusyShare is over the last look */
        double busy_share;
};
struct bus_known_model {
        uint32_t id; /* 0: free */
        enum tdm_model_state state;
        uint64_t told_ns;
        bool changed;
};

/* To systemd: whether it stops a unit. */
struct bus_stop_question {
        DBusPendingCall *asking; /* NULL: there is none */
        char unit[64];
        void (*answer)(bool stops, void *userdata);
        void *userdata;
};

/* They are sent when the name is given up. */
struct bus_refusals {
        DBusMessage *messages[BUS_MAX_REFUSALS];
        unsigned n;
};

/* What the service manager keeps. */
struct bus_journals {
        struct tdm_list stored; /* struct bus_stored: jobs of an earlier daemon, not begun yet */
        struct tdm_list words;  /* struct bus_word: what it is to keep or drop, and has not heard yet */
        unsigned n, max;        /* of jobs of this daemon */
};

/* Threads for files that callers send. */
struct bus_files {
        struct tdm_background *closer; /* NULL: nothing had to be closed yet */
        unsigned n_closing;            /* messages that the closer has */
        struct tdm_background *reader; /* of pictures; NULL: there was none yet */
};

struct tdm_dbus {
        struct tdm_loop *loop;
        struct tdm_models *models;
        struct tdm_scheduler *scheduler;
        struct tdm_fleet *fleet;
        struct tdm_accounts *accounts;
        bool system;
        bool asked_for; /* --bus or the configuration names this bus */
        bool draining;
        bool name_given_up;
        struct bus_refusals refused;
        char *address;
        char *socket; /* for status */
        uint64_t started_ns;

        DBusConnection *connection; /* NULL: not connected */
        bool registered;            /* Hello was answered */
        DBusPendingCall *asking;    /* Hello, then RequestName */
        struct tdm_source *dispatch, *retry, *tick;
        uint64_t retry_ns, tick_ns; /* how long to wait; when the tick comes */
        bool lost;                  /* to be torn down */
        DBusWatch *watches[4];      /* of the connection */
        pthread_t loop_thread;
        DBusConnection *leaving; /* while it is torn down */
        DBusMessage *dispatched; /* with file descriptors: given up when its dispatch is over */
        struct bus_files files;

        struct bus_stop_question stop_question;
        struct tdm_list questions; /* to polkit, about processes that are not on the bus */
        unsigned n_questions;
        struct tdm_list peers;
        unsigned n_peers;
        unsigned n_held, n_held_with_fds;
        uint64_t held_bytes;

        struct bus_journals journals;
        struct tdm_list jobs; /* struct bus_job; those that have ended lie in the order of their ends */

        struct bus_known_worker workers[TDM_N_WORKERS];
        struct bus_known_model known[TDM_MAX_MODELS];
};

/* writer.c: a message being written. What fails (memory) is remembered until bus_send(); nothing else has to check.
 * Strings are made well-formed on the way: libdbus ends the process over one that is not. */
#define BUS_WRITER_DEPTH 12u

struct bus_writer {
        DBusMessage *message;
        DBusMessageIter at[BUS_WRITER_DEPTH + 1];
        unsigned depth;
        bool failed;
};

void bus_writer_init(struct bus_writer *w, DBusMessage *message);  /* NULL: failed */
void bus_write(struct bus_writer *w, int type, const void *value); /* fixed types, and fds (duplicated) */
void bus_write_string(struct bus_writer *w, const char *s);
void bus_write_path(struct bus_writer *w, const char *path); /* valid */
void bus_write_u32(struct bus_writer *w, uint32_t v);
void bus_write_u64(struct bus_writer *w, uint64_t v);
void bus_write_double(struct bus_writer *w, double v);
void bus_write_bool(struct bus_writer *w, bool v);
void bus_open(struct bus_writer *w, int type, const char *contents); /* as dbus_message_iter_open_container() */
void bus_close(struct bus_writer *w);
/* {key: <value>} of an a{sv} */
void bus_entry_string(struct bus_writer *w, const char *key, const char *value);
void bus_entry_path(struct bus_writer *w, const char *key, const char *value);
void bus_entry_u32(struct bus_writer *w, const char *key, uint32_t value);
void bus_entry_u64(struct bus_writer *w, const char *key, uint64_t value);
void bus_entry_double(struct bus_writer *w, const char *key, double value);
void bus_entry_bool(struct bus_writer *w, const char *key, bool value);
/* The message (referenced), or NULL when something failed. */
DBusMessage *bus_writer_finish(struct bus_writer *w);
/* Writes size bytes as well-formed UTF-8 without NUL to out (room: 3 * size) and returns how many. */
size_t bus_clean_text(const char *text, size_t size, char *out);

/* on-loop.c: which events a watch waits for; what the loop calls with them (userdata: the watch); a connection's
 * timeouts on the loop. false: no memory. */
uint32_t bus_watch_events(DBusWatch *watch);
int bus_on_watch(struct tdm_source *source, int fd, uint32_t events, void *userdata);
bool bus_put_timeouts(DBusConnection *connection, struct tdm_loop *loop);

/* The tick comes, not later than that. */
void bus_tick_soon(struct tdm_dbus *bus, uint64_t deadline_ns);

/* watches.c: false: no memory. */
bool bus_put_watches(struct tdm_dbus *bus, DBusConnection *connection);
/* Watches that libdbus turned on or off on another thread. */
void bus_look_at_watches(struct tdm_dbus *bus);

/* bus.c */
int bus_connect(struct tdm_dbus *bus);
void bus_tear_down(struct tdm_dbus *bus);

/* name.c */
void bus_name_request(struct tdm_dbus *bus);
void bus_name_give_up(struct tdm_dbus *bus);
void bus_name_may_go(struct tdm_dbus *bus); /* if the daemon ends and no job of the bus runs */

/* closing.c: gives up a reference to a message that came; peer: who sent it, or NULL. */
void bus_message_done(struct tdm_dbus *bus, const struct bus_peer *peer, DBusMessage *message);
/* After a flood of files that hang. */
bool bus_closes_too_many(const struct tdm_dbus *bus);
void bus_close_undispatched(struct tdm_dbus *bus, DBusConnection *connection);

/* send.c */
/* Takes message; NULL is fine. Not sent while there is no bus. */
void bus_send(struct tdm_dbus *bus, DBusMessage *message);
/* A call to another service (polkit, the bus itself); fn is called once, unless *ret is cancelled before. */
int bus_ask(struct tdm_dbus *bus, DBusMessage *message, int timeout_ms, DBusPendingCallNotifyFunction fn,
            void *userdata, DBusPendingCall **ret);
void bus_forget_asking(DBusPendingCall **asking);

/* Answers. They take nothing; a caller who wants no answer gets none. */
DBusMessage *bus_reply_new(DBusMessage *call); /* NULL: none is wanted, or no memory */
void bus_reply_ok(struct tdm_dbus *bus, DBusMessage *call);
void bus_reply_error(struct tdm_dbus *bus, DBusMessage *call, const char *name, const char *text);
void bus_reply_failed(struct tdm_dbus *bus, DBusMessage *call, int code, const char *text); /* TDM_E_*, or -errno */
void bus_send_refusals(struct tdm_dbus *bus);
void bus_forget_refusals(struct tdm_dbus *bus);
const char *bus_error_name(int code); /* dev.tandem.Tandem1.Error.Quota */
void bus_reply_finish(struct tdm_dbus *bus, DBusMessage *call, struct bus_writer *w);

/* peer.c */
void bus_peer_call(struct tdm_dbus *bus, DBusMessage *message); /* a method call came */
void bus_peer_left(struct tdm_dbus *bus, const char *name);
void bus_peer_free(struct bus_peer *peer);
/* held.c: TDM_E_TOO_LONG: it has more bytes or values than any honest call. */
int bus_call_measure(DBusMessage *message, uint64_t *ret_bytes, struct tdm_error *err);
/* more_bytes: that wait with it. */
int bus_peer_hold(struct bus_peer *peer, DBusMessage *message, uint64_t more_bytes, struct bus_held **ret,
                  struct tdm_error *err);
void bus_held_free(struct bus_held *held);
struct bus_peer *bus_peer_of(struct tdm_dbus *bus, DBusMessage *message); /* NULL: not known */
void bus_load_free(struct bus_load *load);                                /* manager.c */
static inline bool bus_peer_is_root(const struct bus_peer *peer)
{
        return peer->uid == 0;
}
static inline bool bus_peer_is_admin(const struct bus_peer *peer)
{
        return bus_peer_is_root(peer) || peer->uid == geteuid();
}

/* polkit.c: goes on with bus_object_call(), now or later, or refuses. */
void bus_authorize(struct bus_peer *peer, DBusMessage *message, enum bus_action action);
void bus_polkit_end(struct tdm_dbus *bus); /* answers the questions that are open with no */

/* objects.c */
struct bus_method {
        const char *name, *in;
        enum bus_action action;
        void (*fn)(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, void *object);
};
struct bus_property {
        const char *name, *type;
        bool changes; /* told by PropertiesChanged */
};
struct bus_interface {
        const char *name;
        const struct bus_method *methods;
        size_t n_methods;
        const struct bus_property *properties;
        size_t n_properties;
        void (*write)(struct bus_writer *w, struct tdm_dbus *bus, void *object, size_t property);
};
extern const struct bus_interface bus_manager_interface, bus_job_interface, bus_worker_interface, bus_model_interface;
extern const char bus_introspection_xml[];

/* A call from somebody who is known. others: what polkit says about seeing other users' jobs. */
void bus_object_call(struct bus_peer *peer, DBusMessage *message, enum bus_action allowed, enum bus_polkit others);

/* properties.c */
void bus_write_value(struct bus_writer *w, struct tdm_dbus *bus, const struct bus_interface *interface, void *object,
                     size_t property);
/* {name: <value>} of all, or of those that PropertiesChanged tells. */
void bus_write_properties(struct bus_writer *w, struct tdm_dbus *bus, const struct bus_interface *interface,
                          void *object, bool only_changing);
/* The path and {interface: {name: <value>}}; in_dict: as an entry. */
void bus_write_object(struct bus_writer *w, struct tdm_dbus *bus, const char *path,
                      const struct bus_interface *interface, void *object, bool in_dict);
void bus_properties_changed(struct tdm_dbus *bus, const char *path, const struct bus_interface *interface, void *object,
                            const char *destination);
void bus_interfaces_added(struct tdm_dbus *bus, const char *path, const struct bus_interface *interface, void *object,
                          const char *destination);
void bus_interfaces_removed(struct tdm_dbus *bus, const char *path, const char *interface, const char *destination);

/* line.c: one event */
struct bus_line {
        char text[8192];
        size_t size;
};
void bus_line_add(struct bus_line *l, const char *fmt, ...) _printf_(2, 3);
/* ,"key":"text", which is well-formed */
void bus_line_add_json(struct bus_line *l, const char *key, const char *text, size_t size);

/* options.c */
struct bus_request {
        struct tdm_job_params params;
        const char *model;
        int model_fd; /* owned */
        const char *token;
        bool linger;
        bool restored; /* of an earlier daemon: the job is made also where its model cannot be opened */
        enum bus_output output;
        struct tdm_stop_string stops[TDM_JOB_MAX_TEXTS];
        struct tdm_chat_message *messages; /* owned */
        struct tdm_chat_call *calls;       /* owned; of the messages */
        struct tdm_picture_file *pictures; /* owned; params has them too */
        int *picture_fds;                  /* owned, as the fds: the file of each picture; -1: its bytes came */
        unsigned n_picture_fds;            /* that are files */
};
typedef void (*bus_pictures_fn)(struct bus_held *held, struct bus_request *request, int r, const struct tdm_error *err);
void bus_request_deinit(struct bus_request *request);
/* Of one in memory of its own; account: whose thread closes its files. NULL is fine. */
void bus_request_free(struct tdm_dbus *bus, const struct tdm_account *account, struct bus_request *request);
/* *ret points into the message. */
int bus_read_request(DBusMessageIter *args, bool chat, struct bus_request *ret, struct tdm_error *err);
/* wait, model-fd (-1 before; the caller's to close, also where the call is refused); where no option is known yet */
int bus_read_load(DBusMessageIter *options, bool *ret_wait, int *ret_fd, struct tdm_error *err);
/* Reads the options of Embed, Rerank or Classify. Texts point into the message, *ret_model too; it
 * stays NULL where no model is named. */
int bus_read_embed(DBusMessageIter *options, const char **ret_model, struct tdm_job_params *ret, struct tdm_error *err);

/* embed.c */
void bus_embed_call(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, enum tdm_job_kind kind);
void bus_embed_peer_left(struct bus_peer *peer); /* its jobs end */

int bus_read_no_options(DBusMessageIter *options, struct tdm_error *err);

/* restore.c: jobs of an earlier daemon */
void bus_restore_take(struct tdm_dbus *bus, struct tdm_dbus_stored *stored, size_t n);
void bus_restore_none(struct tdm_dbus_stored *stored, size_t n); /* no bus is served */
/* The bus is there. The jobs of an owner begin when it is known who that is, and then the name is requested. */
void bus_restore_begin(struct tdm_dbus *bus);
bool bus_restore_next(struct tdm_dbus *bus, char owner[256]); /* who is to be asked for; false: no more */
void bus_restore_look(struct tdm_dbus *bus);                  /* requests the name where no job is left to begin */
void bus_restore_of(struct bus_peer *peer);                   /* who it is is known now */
void bus_restore_owner_left(struct tdm_dbus *bus, const char *owner); /* or cannot be asked for */
void bus_restore_end(struct tdm_dbus *bus);                           /* the next daemon may try those that wait */
int bus_peer_want(struct tdm_dbus *bus, const char *name, struct tdm_error *err); /* bus_restore_of() follows */

/* outlive.c: what is noted for the next one. They do nothing where a job has no journal. */
void bus_journal_begin(struct bus_job *job, DBusMessage *message); /* makes one, where it can outlive this daemon */
void bus_journal_text(struct bus_job *job, const char *text, size_t size);
/* Output, for when the journal is settled. false: the stream has no journal. */
bool bus_journal_output(struct bus_job *job, const char *data, size_t size);
void bus_journal_settle(struct bus_job *job, uint64_t flags); /* after whatever was told; flags are added */
void bus_journal_push(struct bus_job *job);                   /* what the pipe takes of committed output goes */
void bus_journal_note_end(struct bus_job *job);
void bus_journal_give_up(struct bus_job *job, int r); /* it is of no use any more; no output is lost */
bool bus_journal_has(const struct bus_job *job, uint64_t flag);
bool bus_journal_repeats(struct bus_job *job, uint32_t index, const struct tdm_job_token *token); /* it was told */
void bus_journal_say_differs(struct tdm_error *err, const char *why); /* why: "" or a cause */
void bus_journal_differs(struct bus_job *job);       /* an earlier daemon drew other tokens: the job ends */
bool bus_journal_is_left(const struct bus_job *job); /* its end here is that of this daemon */
void bus_journal_leave(struct bus_job *job);
void bus_journal_end(struct bus_job *job); /* the manager forgets it */
/* The manager drops what it has under the name, soon; when it is tried again, 0: not; the last try. */
void bus_stored_forget(struct tdm_dbus *bus, const char *name);
uint64_t bus_stored_tick(struct tdm_dbus *bus, uint64_t now_ns);
void bus_stored_end(struct tdm_dbus *bus);
#define BUS_STORED_PIPE "-pipe" /* the end of the name of a journal's pipe */

/* job.c */
/* Not begun yet: bus_job_free() drops it. Its path and its stream are the caller's to set. */
struct bus_job_owner {
        struct bus_peer *peer; /* NULL: it has left */
        uid_t uid;
        struct tdm_account *account; /* borrowed */
};
int bus_job_new(struct tdm_dbus *bus, const struct bus_job_owner *owner, struct bus_request *request,
                struct bus_job **ret, struct tdm_error *err);
/* It is as an earlier daemon left it: it begins, or has ended and that is told. */
void bus_job_restored(struct bus_job *job, bool ended);
void bus_job_restore_text(struct bus_job *job, const char *text, size_t size);
void bus_job_generate(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, bool chat);
/* pictures.c: files of a request's pictures, which are charged to the account; the request outlives *ret, which the
 * caller reads or drops. *ret_size: their bytes. TDM_E_BAD_REQUEST, TDM_E_TOO_LONG, TDM_E_DENIED, TDM_E_QUOTA. */
int bus_pictures_look(struct tdm_dbus *bus, struct tdm_account *account, struct bus_request *request,
                      struct bus_reading **ret, uint64_t *ret_size, struct tdm_error *err);
/* Reads them while the call is held. 0: takes over reading and request, and calls done, which frees held, unless it is
 * freed before. */
int bus_pictures_read(struct bus_reading *reading, struct bus_held *held, bus_pictures_fn done, struct tdm_error *err);
void bus_pictures_drop(struct bus_reading *reading);
void bus_pictures_forget(struct bus_reading *reading); /* the held call goes; NULL is fine */
struct bus_job *bus_job_find(struct tdm_dbus *bus, const char *path);
bool bus_job_is_seen_by(const struct bus_job *job, const struct bus_peer *peer);
void bus_job_peer_left(struct tdm_dbus *bus, struct bus_peer *peer);
bool bus_job_knows(const struct tdm_dbus *bus, const struct bus_peer *peer); /* one belongs to it or is watched by it */
void bus_job_free(struct bus_job *job);
void bus_job_forget(struct bus_job *job);                     /* with a word to those who watch it */
uint64_t bus_job_tick(struct tdm_dbus *bus, uint64_t now_ns); /* when it wants to be called again; 0: not */
void bus_job_cancel(struct bus_job *job);
bool bus_may_keep(struct tdm_dbus *bus, uid_t uid, uint64_t more); /* drops what has ended to make room */
bool bus_may_keep_journal(const struct tdm_dbus *bus, uid_t uid,
                          uint64_t more); /* texts and output have half at least */
void bus_job_write_end(struct bus_writer *w, const struct bus_job *job);

/* manager.c */
void bus_manager_model_changed(struct tdm_dbus *bus, struct tdm_model *model);
void bus_unload_model(struct bus_peer *peer, DBusMessage *message, const char *name);

/* stream.c */
int bus_stream_open(struct bus_stream *stream, struct tdm_loop *loop, int *ret_read_fd);
bool bus_stream_is_open(const struct bus_stream *stream);
size_t bus_stream_waiting(const struct bus_stream *stream);
/* false: it is full, and takes no more from now on. room: what it may hold. */
bool bus_stream_write(struct bus_stream *stream, const char *data, size_t size, size_t room);
void bus_stream_finish(struct bus_stream *stream); /* closes it when all has been read */
void bus_stream_deinit(struct bus_stream *stream);
/* Output was committed to its journal, and what the pipe takes of it goes. A negative errno: no more can. */
int bus_stream_settle(struct bus_stream *stream);
void bus_stream_leave_journal(struct bus_stream *stream); /* keeps what waits in it */

/* status.c */
void bus_write_status(struct bus_writer *w, struct bus_peer *peer);
void bus_write_models(struct bus_writer *w, struct bus_peer *peer);
struct tdm_model *bus_model_find(struct tdm_dbus *bus, const char *path);
void bus_model_path(const struct tdm_model *model, char path[BUS_MAX_PATH]);
int bus_start_tick(struct tdm_dbus *bus);
void bus_restart_worker(struct bus_peer *peer, DBusMessage *message, enum tdm_worker_index index);
extern const char *const bus_worker_names[TDM_N_WORKERS];

#endif
