/* The connection: finding the socket, greeting, the send queue, and turning what arrives into calls of on_reply.
 *
 * The socket is non-blocking and nothing here ever waits but lib_wait() and tandem_dispatch() with a timeout; so a
 * caller that must leave at once (Ctrl-C) is never held up by a daemon that does not read. A connection ends once: the
 * first reason is kept, every open request hears it, and all later calls return it. One that breaks while jobs run is
 * made anew by reattach.c, where the caller wants it. */
#include "client-lib/internal.h"
#include "common/frame.h"
#include "common/user-socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

/* A daemon that writes without end does not keep a caller's event loop in here: the rest is read at the next call. */
#define READS_PER_DISPATCH 256
#define SYSTEM_SOCKET "/run/tandem/socket"

struct budget {
        ProtobufCAllocator allocator;
        size_t left;
};

/* Unpacking multiplies: two bytes on the wire can become a struct of a hundred. So what one reply may cost is capped.
 */
static void *budget_alloc(void *data, size_t size)
{
        struct budget *budget = data;

        if (size > budget->left)
                return NULL;
        budget->left -= size;
        return malloc(size ? size : 1);
}

static void budget_free(void *data, void *p)
{
        free(p);
}

void free_reply(Tandem__Reply *reply)
{
        if (reply)
                tandem__reply__free_unpacked(reply, NULL); /* the default allocator frees with free(), as ours */
}

void free_replyp(Tandem__Reply **reply)
{
        free_reply(*reply);
        *reply = NULL;
}

void lib_ref(struct tandem *t)
{
        t->refs++;
}

void lib_drop_queue(struct tandem *t)
{
        while (t->out_first) {
                struct out_frame *frame = t->out_first;

                t->out_first = frame->next;
                closep(&frame->fd);
                free(frame);
        }
        t->out_last = &t->out_first;
        t->out_bytes = 0;
}

void lib_unref(struct tandem *t)
{
        if (--t->refs > 0)
                return;
        lib_drop_queue(t);
        closep(&t->fd);
        closep(&t->timer_fd);
        closep(&t->poll_fd);
        free(t->label);
        tdm_frame_reader_destroy(t->reader);
        free(t->socket_path);
        free(t);
}

void lib_call_unlink(struct tandem *t, struct call *call)
{
        for (struct call **p = &t->calls; *p; p = &(*p)->next) {
                if (*p != call)
                        continue;
                *p = call->next;
                break;
        }
        call->linked = false;
}

static struct call *find_call(struct tandem *t, uint32_t id)
{
        for (struct call *call = t->calls; call; call = call->next)
                if (call->id == id)
                        return call;
        return NULL;
}

/* Ends the connection and tells every open request. The caller holds a reference. */
void lib_fail_calls(struct tandem *t, const struct tandem_error *err, bool silent)
{
        if (t->dead)
                return;
        t->dead = true;
        lib_error_copy(&t->dead_error, err);
        lib_drop_queue(t);
        if (t->fd >= 0)
                shutdown(t->fd, SHUT_RDWR); /* the daemon stops our jobs now, not when the last handle goes */

        t->depth++;
        while (t->calls) {
                struct call *call = t->calls;

                lib_call_unlink(t, call);
                call->on_lost(call, &t->dead_error, silent || t->closed);
        }
        t->depth--;
}

static void fail_lost(struct tandem *t, const char *how)
{
        struct tandem_error err;

        lib_error(&err, TANDEM_E_DAEMON_LOST, "tandemd at %s is gone: %s (did it crash or stop? its log says why%s)",
                  t->socket_path, how, strcmp(t->socket_path, SYSTEM_SOCKET) == 0 ? ": journalctl -u tandemd" : "");
        if (!lib_go_away(t, &err))
                lib_fail_calls(t, &err, false);
}

void lib_protocol_error(struct tandem *t, const char *fmt, ...)
{
        struct tandem_error err;
        char what[512];
        va_list args;

        va_start(args, fmt);
        if (vsnprintf(what, sizeof(what), fmt, args) < 0)
                what[0] = '\0';
        va_end(args);
        lib_error(&err, TANDEM_E_PROTOCOL, "tandemd at %s (version %s) broke the protocol: %s", t->socket_path,
                  t->daemon_version[0] ? t->daemon_version : "unknown", what);
        lib_fail_calls(t, &err, false);
}

static void flush_output(struct tandem *t)
{
        while (t->out_first && !t->send_broken && t->fd >= 0) {
                struct out_frame *frame = t->out_first;
                ssize_t n = tdm_frame_send_some(t->fd, frame->data, frame->size, frame->sent, &frame->fd,
                                                frame->fd >= 0 ? 1 : 0);

                if (n == -EAGAIN || n == -ENOBUFS || n == -ENOMEM)
                        return;
                if (n < 0) {
                        t->send_broken = true;
                        break;
                }
                frame->sent += (size_t)n;
                if (frame->sent < TDM_FRAME_HEADER_BYTES + frame->size)
                        continue;
                t->out_first = frame->next;
                if (!t->out_first)
                        t->out_last = &t->out_first;
                t->out_bytes -= frame->size;
                closep(&frame->fd);
                free(frame);
        }
        if (t->send_broken)
                lib_drop_queue(t);
}

static void call_link(struct tandem *t, struct call *call)
{
        if (call->linked)
                return;
        call->next = t->calls;
        call->linked = true;
        t->calls = call;
}

int lib_watch(struct tandem *t)
{
        short wanted = (short)(t->fd < 0 ? 0 : POLLIN | (t->out_first ? POLLOUT : 0));
        struct epoll_event e = { .events = (uint32_t)wanted };
        int how = t->watched == 0 ? EPOLL_CTL_ADD : wanted ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;

        if (wanted == t->watched || t->poll_fd < 0)
                return 0;
        if (epoll_ctl(t->poll_fd, how, t->fd, &e) < 0)
                return -errno;
        t->watched = wanted;
        return 0;
}

int lib_send(struct tandem *t, Tandem__Request *request, int fd, struct call *call, struct tandem_error *err)
{
        struct out_frame *frame;
        size_t size;

        if (t->dead)
                return lib_error_copy(err, &t->dead_error);
        if (t->link != LIB_LINK_UP && call != &t->greeting) {
                if (!call || !call->again)
                        return lib_error_copy(err, &t->lost);
                call->id = 0; /* it is sent when there is a connection */
                call_link(t, call);
                return TANDEM_OK;
        }
        do
                t->next_id = t->next_id == UINT32_MAX ? 1 : t->next_id + 1;
        while (find_call(t, t->next_id));
        request->id = t->next_id;

        size = tandem__request__get_packed_size(request);
        if (size > t->peer_max_frame)
                return lib_error(err, TANDEM_E_TOO_LONG,
                                 "the request is %zu bytes long; tandemd takes requests of at most %u", size,
                                 t->peer_max_frame);
        if (size > LIB_MAX_QUEUE_BYTES - TDM_MIN(t->out_bytes, LIB_MAX_QUEUE_BYTES))
                return lib_error(err, TANDEM_E_BUSY,
                                 "%zu bytes of requests wait for tandemd to read them already: it seems to be stuck",
                                 t->out_bytes);
        frame = malloc(sizeof(*frame) + size);
        if (!frame)
                return lib_error(err, TANDEM_E_NO_MEMORY, "no memory for a request of %zu bytes", size);
        *frame = (struct out_frame){ .size = size, .fd = -1 };
        if (fd >= 0) {
                frame->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
                if (frame->fd < 0) {
                        int e = errno;
                        free(frame);
                        return lib_error(err, TANDEM_E_INTERNAL, "cannot hand the model file over: %s", strerror(e));
                }
        }
        tandem__request__pack(request, frame->data);
        *t->out_last = frame;
        t->out_last = &frame->next;
        t->out_bytes += size;
        if (call) {
                call->id = request->id;
                call_link(t, call);
        }
        flush_output(t); /* what breaks here is found, with the daemon's last words, by the next dispatch */
        (void)lib_watch(t);
        return TANDEM_OK;
}

static void handle_frame(struct tandem *t, const uint8_t *data, size_t size)
{
        struct budget budget = { .left = LIB_MAX_UNPACKED_BYTES };
        Tandem__Reply *reply;
        struct tandem_error err;
        struct call *call;
        bool kept = false;

        budget.allocator =
                (ProtobufCAllocator){ .alloc = budget_alloc, .free = budget_free, .allocator_data = &budget };
        reply = tandem__reply__unpack(&budget.allocator, size, data);
        if (!reply) {
                lib_protocol_error(t, "a reply of %zu bytes cannot be decoded", size);
                return;
        }
        if (reply->id == 0) {
                if (reply->kind_case == TANDEM__REPLY__KIND_ERROR) {
                        lib_error_from_wire(&err, reply->error);
                        if (!lib_greeting_failed(t, &err))
                                lib_fail_calls(t, &err, false);
                }
        } else {
                /* Nobody waits for it: its request was given up. */
                call = find_call(t, reply->id);
                if (call) {
                        t->depth++;
                        kept = call->on_reply(call, reply);
                        t->depth--;
                }
        }
        if (!kept)
                free_reply(reply);
}

static void read_replies(struct tandem *t)
{
        for (unsigned i = 0; i < READS_PER_DISPATCH && !t->dead && t->fd >= 0; i++) {
                const uint8_t *data;
                size_t size;
                int *fds;
                unsigned n_fds;
                ssize_t n = tdm_frame_reader_fill(t->reader, t->fd);

                if (n == -EAGAIN) {
                        if (t->send_broken)
                                fail_lost(t, "it reads no more requests");
                        return;
                }
                if (n == -EPROTO) {
                        struct tdm_error why;

                        tdm_frame_reader_explain(t->reader, &why);
                        lib_protocol_error(t, "%s", why.message);
                        return;
                }
                if (n <= 0) {
                        fail_lost(t, n < 0 && n != -ECONNRESET             ? strerror((int)-n) :
                                     tdm_frame_reader_mid_frame(t->reader) ? "it hung up in the middle of a reply" :
                                                                             "it hung up");
                        return;
                }
                while (!t->dead && t->fd >= 0 && tdm_frame_reader_next(t->reader, &data, &size, &fds, &n_fds) > 0)
                        handle_frame(t, data, size);
                if (t->fd >= 0 && tdm_frame_reader_drained(t->reader) && !t->send_broken)
                        return; /* saves a call; what comes now wakes the next poll */
        }
}

static int dispatch_frames(struct tandem *t, int timeout_ms)
{
        int code;

        lib_ref(t);
        if (!t->dead && timeout_ms != 0) {
                struct pollfd p = { .fd = tandem_fd(t), .events = tandem_events(t) };

                (void)poll(&p, 1, timeout_ms); /* a signal, too, only ends the wait */
        }
        if (!t->dead && t->timer_fd >= 0)
                lib_do_due(t);
        if (!t->dead && t->fd >= 0)
                flush_output(t);
        if (!t->dead && t->fd >= 0)
                read_replies(t);
        if (!t->dead)
                (void)lib_watch(t);
        code = t->dead ? t->dead_error.code : TANDEM_OK;
        lib_unref(t);
        return code;
}

int tandem_dispatch(struct tandem *t, int timeout_ms)
{
        return t->depth > 0 ? TANDEM_E_BAD_REQUEST : dispatch_frames(t, timeout_ms);
}

int lib_wait(struct tandem *t, const bool *done, int timeout_ms, struct tandem_error *err)
{
        uint64_t deadline = 0;

        if (*done)
                return TANDEM_OK;
        if (t->depth > 0)
                return lib_error(err, TANDEM_E_BAD_REQUEST,
                                 "a callback asked for something that has to wait for tandemd");
        if (timeout_ms >= 0)
                deadline = tdm_now_ns() + (uint64_t)timeout_ms * TDM_NSEC_PER_MSEC;
        lib_ref(t);
        while (!*done && !t->dead) {
                int wait_ms = -1;

                if (timeout_ms >= 0) {
                        uint64_t now = tdm_now_ns();

                        wait_ms = now < deadline ? (int)TDM_DIV_UP(deadline - now, TDM_NSEC_PER_MSEC) : 0;
                }
                dispatch_frames(t, wait_ms);
                if (!*done && wait_ms == 0)
                        break;
        }
        lib_unref(t);
        return *done ? TANDEM_OK : lib_error(err, TANDEM_E_TIMEOUT, "tandemd did not answer within %d ms", timeout_ms);
}

int tandem_fd(const struct tandem *t)
{
        return t->poll_fd < 0 ? t->fd : t->poll_fd;
}

short tandem_events(const struct tandem *t)
{
        return (short)(POLLIN | (t->out_first ? POLLOUT : 0));
}

const struct tandem_error *tandem_connection_error(const struct tandem *t)
{
        return t->dead ? &t->dead_error : NULL;
}

void tandem_set_timeout(struct tandem *t, int timeout_ms)
{
        t->timeout_ms = timeout_ms < 0 ? -1 : timeout_ms;
}

const char *tandem_socket_path(const struct tandem *t)
{
        return t->socket_path;
}

const char *tandem_daemon_version(const struct tandem *t)
{
        return t->daemon_version;
}

void tandem_close(struct tandem *t)
{
        struct tandem_error err;

        if (!t || t->closed)
                return;
        t->closed = true;
        flush_output(t); /* a Cancel that waits has a last chance */
        lib_error(&err, TANDEM_E_CANCELLED, "the connection was closed here");
        lib_fail_calls(t, &err, true);
        lib_unref(t);
}

/* ---- finding the daemon ------------------------------------------------------------------------------------------ */

int lib_connect_once(const char *path, int *ret_fd)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        _cleanup_(closep) int fd = -1;
        size_t n = strlen(path);

        if (n == 0)
                return -ENOENT;
        if (n >= sizeof(address.sun_path))
                return -ENAMETOOLONG;
        memcpy(address.sun_path, path, n + 1);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        while (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
                if (errno != EINTR)
                        return -errno;
        *ret_fd = steal_fd(&fd);
        return 0;
}

uid_t lib_listener_uid(int fd)
{
        struct ucred who;
        socklen_t len = sizeof(who);

        return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 ? who.uid : (uid_t)-1;
}

/* Connects to one path. 0, or a negative errno. */
static int connect_path(const char *path, int *ret_fd)
{
        uint64_t deadline = tdm_now_ns() + 2 * TDM_NSEC_PER_SEC;
        int r;

        /* EAGAIN: more clients wait to be accepted than the daemon's backlog holds. There is nothing to poll. */
        while ((r = lib_connect_once(path, ret_fd)) == -EAGAIN && tdm_now_ns() <= deadline)
                usleep(5000);
        return r;
}

/* Whether something that is no socket lies there. Connecting to it is refused as where nobody listens. */
static bool is_no_socket(const char *path)
{
        struct stat st;

        return stat(path, &st) == 0 && !S_ISSOCK(st.st_mode);
}

static const char *connect_failure(const char *path, int k)
{
        if (is_no_socket(path))
                return "no socket: a file or folder of another kind";
        switch (-k) {
        case ENOENT:
                return "no such socket";
        case ECONNREFUSED:
                return "nobody listens";
        case EAGAIN:
                return "too many clients wait";
        case EACCES:
                return "this user may not use it";
        case ENAMETOOLONG:
                return "a socket's path has at most 107 bytes";
        default:
                return strerror(-k);
        }
}

static bool is_installed(const char *unit)
{
        static const char *const folders[] = { "/etc/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd",
                                               "/lib/systemd" };
        char path[128];

        for (size_t i = 0; i < TDM_ARRAY_SIZE(folders); i++) {
                snprintf(path, sizeof(path), "%s/%s", folders[i], unit);
                if (access(path, F_OK) == 0)
                        return true;
        }
        return false;
}

/* How to start a daemon here: the service that is installed; the program beside this one, in a build folder say; or
 * what PATH has. own: one that this user may use in any case. */
static const char *how_to_start(char *to, size_t size, bool own)
{
        char exe[4096], *slash;
        ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 16);
        bool beside = false;

        if (n > 0) {
                exe[n] = '\0';
                slash = strrchr(exe, '/');
                memcpy(slash, "/tandemd", sizeof("/tandemd"));
                beside = strncmp(exe, "/usr/", 5) != 0 && access(exe, X_OK) == 0;
        }
        if (beside)
                snprintf(to, size, "`%.300s --user &`", exe);
        else if (!own && is_installed("system/tandemd.socket"))
                snprintf(to, size, "`%ssystemctl start tandemd.socket`, or one for yourself with `tandemd --user &`",
                         geteuid() == 0 ? "" : "sudo ");
        else
                snprintf(to, size, "`tandemd --user &`");
        return to;
}

static int find_daemon(const char *path, int *ret_fd, char **ret_path, struct tandem_error *err)
{
        char user_path[4096];
        const char *chosen = path ? path : getenv("TANDEM_SOCKET");
        const char *candidates[2];
        unsigned n_candidates = 0;
        char tried[640] = "", start[400];
        size_t used = 0;
        int k = -ENOENT, e;
        bool denied = false;

        if (chosen && (path || *chosen)) {
                candidates[n_candidates++] = chosen;
        } else {
                if (tdm_user_socket(user_path, sizeof(user_path), false) == 0)
                        candidates[n_candidates++] = user_path;
                candidates[n_candidates++] = SYSTEM_SOCKET;
        }
        for (unsigned i = 0; i < n_candidates; i++) {
                k = connect_path(candidates[i], ret_fd);
                if (k == 0) {
                        *ret_path = strdup(candidates[i]);
                        if (*ret_path)
                                return TANDEM_OK;
                        close(*ret_fd);
                        return lib_error(err, TANDEM_E_NO_MEMORY, "no memory for a socket's path");
                }
                denied |= k == -EACCES && !is_no_socket(candidates[i]);
                e = snprintf(tried + used, sizeof(tried) - used, "%s%.250s (%s)", i ? ", " : "", candidates[i],
                             connect_failure(candidates[i], k));
                if (e > 0)
                        used = TDM_MIN(used + (size_t)e, sizeof(tried) - 1);
        }
        if (denied)
                return lib_error(err, TANDEM_E_DENIED,
                                 "there is a tandemd that this user may not use; tried %s. One for yourself: %s", tried,
                                 how_to_start(start, sizeof(start), true));
        return lib_error(err, TANDEM_E_NO_DAEMON,
                         "no tandemd answers; tried %s. Start it with %s, or name its socket with --socket or "
                         "$TANDEM_SOCKET",
                         tried, how_to_start(start, sizeof(start), false));
}

void lib_put_hello(const struct tandem *t, Tandem__Hello *hello, char client[64])
{
        snprintf(client, 64, "libtandem %s", tandem_version());
        hello->protocol = LIB_PROTOCOL;
        hello->client = client;
        hello->speaks_for = t->label;
}

int lib_check_hello(struct tandem *t, const Tandem__HelloReply *hello, struct tandem_error *err)
{
        if (hello->protocol != LIB_PROTOCOL)
                return lib_error(err, TANDEM_E_PROTOCOL,
                                 "tandemd at %s (version %s) speaks protocol %u, this library %u: update the older one",
                                 t->socket_path, hello->version, hello->protocol, LIB_PROTOCOL);
        /* A daemon that knows no labels would take all that is asked for as this user's own. */
        if (strcmp(hello->speaks_for, t->label) != 0)
                return lib_error(err, TANDEM_E_UNSUPPORTED,
                                 "tandemd at %s (version %s) cannot tell those apart for whom this program speaks: "
                                 "update it",
                                 t->socket_path, hello->version);
        if (hello->max_frame_bytes > 0)
                t->peer_max_frame = hello->max_frame_bytes;
        snprintf(t->daemon_version, sizeof(t->daemon_version), "%s", hello->version);
        return TANDEM_OK;
}

static int greet_daemon(struct tandem *t, struct tandem_error *err)
{
        _cleanup_(free_replyp) Tandem__Reply *reply = NULL;
        Tandem__Request request = TANDEM__REQUEST__INIT;
        Tandem__Hello hello = TANDEM__HELLO__INIT;
        char client[64];
        int code;

        lib_put_hello(t, &hello, client);
        request.kind_case = TANDEM__REQUEST__KIND_HELLO;
        request.hello = &hello;
        code = lib_request(t, &request, -1, LIB_HELLO_TIMEOUT_MS, TANDEM__REPLY__KIND_HELLO, &reply, err);
        if (code == TANDEM_E_TIMEOUT)
                return lib_error(err, code,
                                 "tandemd at %s accepted the connection but did not greet within %d s: it seems to be "
                                 "stuck (%s)",
                                 t->socket_path, LIB_HELLO_TIMEOUT_MS / 1000,
                                 strcmp(t->socket_path, SYSTEM_SOCKET) == 0 ? "sudo systemctl restart tandemd" :
                                                                              "end it and start it anew");
        return code == TANDEM_OK ? lib_check_hello(t, reply->hello, err) : code;
}

int lib_new_reader(struct tandem *t)
{
        tdm_frame_reader_destroy(t->reader);
        t->reader = NULL;
        if (tdm_frame_reader_new(&t->reader, LIB_MAX_REPLY_BYTES) < 0)
                return -ENOMEM;
        tdm_frame_reader_without_fds(t->reader);
        return 0;
}

int tandem_connect(struct tandem **ret, const char *path, struct tandem_error *err)
{
        return tandem_connect_for(ret, path, NULL, err);
}

int tandem_connect_for(struct tandem **ret, const char *path, const char *label, struct tandem_error *err)
{
        struct tandem *t = calloc(1, sizeof(*t));
        int code;

        if (!t)
                return lib_error(err, TANDEM_E_NO_MEMORY, "no memory for a connection");
        *t = (struct tandem){
                .refs = 1, .fd = -1, .poll_fd = -1, .timer_fd = -1, .timeout_ms = -1, .peer_max_frame = 1u << 20
        };
        t->out_last = &t->out_first;
        t->label = strdup(label ? label : "");
        if (!t->label || lib_new_reader(t) < 0)
                code = lib_error(err, TANDEM_E_NO_MEMORY, "no memory for a connection");
        else
                code = find_daemon(path, &t->fd, &t->socket_path, err);
        if (code == TANDEM_OK) {
                t->daemon_uid = lib_listener_uid(t->fd);
                code = greet_daemon(t, err);
        }
        if (code != TANDEM_OK) {
                tandem_close(t);
                return code;
        }
        lib_open_poll(t);
        *ret = t;
        return TANDEM_OK;
}
