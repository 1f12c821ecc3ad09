/* A framed connection on the loop. Reading is the frame reader of frame.c; writing is a queue that the kernel drains.
 *
 * Whatever goes wrong ends in one place, conn_fail(), which remembers the reason and leaves the call to on_closed to
 * the loop (a deferred source): so the user is never called back from inside tdm_conn_send(). Because a callback may
 * destroy the connection it was called for, the struct lives until the last function on the stack has left it (busy).
 *
 * It does not interpret frames and does not retry. One connection reads only this often in one turn of the loop. How
 * much time many connections of one user get is the owner's matter: it is asked before each read, and a connection that
 * may not read waits until it is told to go on. No frame is left in the reader then, since a read completes at most one
 * frame and an empty one, and both are delivered at once. */
#include "common/frame.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define FILLS_PER_TURN 16u
#define FINISH_NS TDM_NSEC_PER_SEC
/* Fds that wait in the queue: all chunks of the largest segment and some. */
#define QUEUE_MAX_FDS 4352u

struct out_frame {
        struct out_frame *next;
        size_t size, sent; /* sent counts the header too */
        unsigned n_fds;
        int *fds; /* dup'd; behind data in the same allocation's tail would save nothing */
        uint8_t data[];
};

enum conn_state { CONN_OPEN, CONN_FINISHING, CONN_FAILED, CONN_CLOSED };

struct tdm_conn {
        struct tdm_loop *loop;
        int fd;
        struct tdm_conn_limits limits;
        tdm_conn_frame_fn on_frame;
        tdm_conn_closed_fn on_closed;
        void *userdata;
        struct ucred peer;

        enum conn_state state;
        struct tdm_error reason; /* for on_closed */
        unsigned busy;           /* our functions on the stack that will touch this struct again */
        bool destroyed;
        bool awaits_fds; /* from limits.receive_fds until tdm_conn_fds_came(): nothing is read */
        bool waits;      /* from a no of limits.may_read until tdm_conn_go_on(): nothing is read */
        uint64_t waits_since_ns;

        struct tdm_source *io;
        struct tdm_source *timer;  /* a half frame that stands still, or the end of finishing */
        struct tdm_source *closer; /* calls on_closed */
        struct tdm_frame_reader *reader;

        struct out_frame *out_head, *out_tail;
        uint64_t queued_bytes;
        unsigned queued_fds;
        uint64_t held_bytes;     /* as limits.hold was told */
        uint64_t frame_began_ns; /* of the half frame that is held; 0: none */
};

static void out_free(struct out_frame *f)
{
        if (!f)
                return;
        for (unsigned i = 0; i < f->n_fds; i++)
                closep(&f->fds[i]);
        free(f->fds);
        free(f);
}

static void out_freep(struct out_frame **f)
{
        out_free(*f);
        *f = NULL;
}

static void out_pop(struct tdm_conn *c)
{
        struct out_frame *f = c->out_head;

        c->out_head = f->next;
        if (!c->out_head)
                c->out_tail = NULL;
        c->queued_fds -= f->n_fds;
        out_free(f);
}

/* Everything but the struct itself. */
static void conn_release(struct tdm_conn *c)
{
        tdm_source_destroyp(&c->io);
        tdm_source_destroyp(&c->timer);
        tdm_source_destroyp(&c->closer);
        closep(&c->fd);
        while (c->out_head)
                out_pop(c);
        c->queued_bytes = 0;
        c->queued_fds = 0;
        if (c->limits.hold && c->held_bytes > 0)
                (void)c->limits.hold(0, &c->reason, c->userdata);
        c->held_bytes = 0;
}

static void conn_enter(struct tdm_conn *c)
{
        c->busy++;
}

static void conn_leave(struct tdm_conn *c)
{
        if (--c->busy > 0 || !c->destroyed)
                return;
        tdm_frame_reader_destroy(c->reader); /* last: a frame that is being handled lies in it */
        free(c);
}

/* The connection is over; the loop will say so. The first reason stands. */
static void conn_over(struct tdm_conn *c)
{
        if (c->state == CONN_FAILED || c->state == CONN_CLOSED)
                return;
        c->state = CONN_FAILED;
        tdm_source_destroyp(&c->io);
        tdm_source_arm(c->timer, 0);
        tdm_source_schedule(c->closer);
}

#define conn_fail(c, code, ...)                                                                                        \
        do {                                                                                                           \
                if ((c)->state < CONN_FAILED)                                                                          \
                        tdm_error_set(&(c)->reason, (code), __VA_ARGS__);                                              \
                conn_over(c);                                                                                          \
        } while (0)

/* Tells the owner how much memory is held; false: that is too much, and the connection is over. */
static bool update_held(struct tdm_conn *c)
{
        uint64_t bytes = tdm_frame_reader_held(c->reader) + c->queued_bytes;
        struct tdm_error err = { 0 };
        int r;

        if (!c->limits.hold || bytes == c->held_bytes || c->destroyed || c->state >= CONN_FAILED)
                return true;
        r = c->limits.hold(bytes, &err, c->userdata);
        if (r == 0) {
                c->held_bytes = bytes;
                return true;
        }
        conn_fail(c, r, "%s", err.message);
        return false;
}

static int on_closer(struct tdm_source *source, void *userdata)
{
        struct tdm_conn *c = userdata;

        conn_enter(c);
        c->state = CONN_CLOSED;
        conn_release(c);
        c->on_closed(c, &c->reason, c->userdata);
        conn_leave(c);
        return 0;
}

static void update_events(struct tdm_conn *c)
{
        uint32_t events = 0;

        if (!c->io)
                return;
        if (c->state == CONN_OPEN && !c->awaits_fds && !c->waits)
                events |= EPOLLIN;
        if (c->out_head)
                events |= EPOLLOUT;
        tdm_source_set_io_events(c->io, events);
}

static void fail_sending(struct tdm_conn *c, int r)
{
        if (r == -EPIPE)
                conn_fail(c, TDM_E_NONE, "the peer has left");
        else
                conn_fail(c, r, "cannot send: %s", strerror(-r));
}

static void conn_flush(struct tdm_conn *c)
{
        while (c->out_head && c->state < CONN_FAILED) {
                struct out_frame *f = c->out_head;
                ssize_t n = tdm_frame_send_some(c->fd, f->data, f->size, f->sent, f->fds, f->n_fds);

                if (n == -EAGAIN)
                        break;
                if (n < 0) {
                        fail_sending(c, (int)n);
                        return;
                }
                f->sent += (size_t)n;
                c->queued_bytes -= (uint64_t)n;
                if (f->sent == TDM_FRAME_HEADER_BYTES + f->size)
                        out_pop(c);
        }
        update_held(c);
        if (!c->out_head && c->state == CONN_FINISHING)
                conn_fail(c, TDM_E_NONE, "finished");
}

/* Hands out complete frames until there are none or the user has had enough. */
static bool deliver(struct tdm_conn *c)
{
        bool any = false;
        const uint8_t *data;
        unsigned n_fds;
        size_t size;
        int *fds, r;

        while (c->state == CONN_OPEN && !c->destroyed &&
               tdm_frame_reader_next(c->reader, &data, &size, &fds, &n_fds) == 1) {
                any = true;
                r = c->on_frame(c, data, size, fds, n_fds, c->userdata);
                if (r != 0 && !c->destroyed)
                        conn_fail(c, r, "a frame was refused (%s)", r < 0 ? strerror(-r) : tdm_error_name(r));
        }
        return any;
}

/* When the half frame that is held is late, or 0. */
static uint64_t late_at(struct tdm_conn *c, bool frames_came)
{
        uint64_t now = tdm_now_ns(), at = UINT64_MAX;

        if (!tdm_frame_reader_mid_frame(c->reader)) {
                c->frame_began_ns = 0;
                return 0;
        }
        if (c->frame_began_ns == 0 || frames_came)
                c->frame_began_ns = now;
        if (c->limits.stall_timeout_ns > 0)
                at = now + c->limits.stall_timeout_ns;
        if (c->limits.frame_timeout_ns > 0)
                at = TDM_MIN(at, c->frame_began_ns + c->limits.frame_timeout_ns);
        return at == UINT64_MAX ? 0 : at;
}

static void await_fds(struct tdm_conn *c)
{
        struct tdm_error err = { 0 };
        int r;

        c->awaits_fds = true;
        r = c->limits.receive_fds(c->fd, &err, c->userdata);
        if (r != 0)
                conn_fail(c, r, "%s", err.message);
}

/* One read and what it completes; false: there is nothing more to read now. */
static bool receive_some(struct tdm_conn *c)
{
        ssize_t n = tdm_frame_reader_fill(c->reader, c->fd);
        bool frames_came;

        if (n == -EAGAIN)
                return false;
        if (n == -EREMOTEIO) {
                await_fds(c);
                return false;
        }
        if (n == 0 || n == -ECONNRESET) {
                conn_fail(c, TDM_E_NONE, "the peer has left%s",
                          tdm_frame_reader_mid_frame(c->reader) ? " in the middle of a frame" : "");
                return false;
        }
        if (n == -EPROTO) {
                tdm_frame_reader_explain(c->reader, &c->reason);
                conn_over(c);
                return false;
        }
        if (n < 0) {
                conn_fail(c, (int)n, "cannot receive: %s", strerror((int)-n));
                return false;
        }
        if (!update_held(c)) /* before the frame is handled: it may be one too many */
                return false;
        frames_came = deliver(c);
        if (c->destroyed || c->state != CONN_OPEN)
                return false;
        tdm_source_arm(c->timer, late_at(c, frames_came));
        tdm_frame_reader_trim(c->reader);
        update_held(c);
        return c->state == CONN_OPEN;
}

static void wait_for_turn(struct tdm_conn *c)
{
        c->waits = true;
        c->waits_since_ns = tdm_now_ns();
        tdm_source_arm(c->timer, 0);
}

static void receive(struct tdm_conn *c)
{
        bool more = true;

        for (unsigned i = 0; i < FILLS_PER_TURN && more; i++) {
                uint64_t begin = 0;

                if (c->limits.may_read) {
                        if (!c->limits.may_read(c->userdata)) {
                                wait_for_turn(c);
                                return;
                        }
                        begin = tdm_now_ns();
                }
                more = receive_some(c);
                if (c->limits.took && !c->destroyed)
                        c->limits.took(tdm_now_ns() - begin, c->userdata);
        }
}

static int on_conn_io(struct tdm_source *source, int fd, uint32_t events, void *userdata)
{
        struct tdm_conn *c = userdata;

        conn_enter(c);
        if (events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
                conn_flush(c);
        if (c->state == CONN_OPEN && !c->awaits_fds && !c->waits && events & (EPOLLIN | EPOLLERR | EPOLLHUP))
                receive(c);
        else if ((c->state == CONN_FINISHING || c->awaits_fds) && events & (EPOLLERR | EPOLLHUP))
                conn_fail(c, TDM_E_NONE, "the peer has left");
        else if (c->waits && events & (EPOLLERR | EPOLLHUP))
                tdm_source_destroyp(&c->io); /* it would wake the loop without end; what it has sent is read later */
        if (!c->destroyed && c->state < CONN_FAILED)
                update_events(c);
        conn_leave(c);
        return 0;
}

static int on_conn_timer(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct tdm_conn *c = userdata;

        if (c->state == CONN_FINISHING)
                conn_fail(c, TDM_E_NONE, "finished, but the peer did not read everything in time");
        else
                conn_fail(c, TDM_E_PROTOCOL,
                          "the peer sent half a frame and then nothing for %llu ms, or not the rest within %llu ms",
                          (unsigned long long)(c->limits.stall_timeout_ns / TDM_NSEC_PER_MSEC),
                          (unsigned long long)(c->limits.frame_timeout_ns / TDM_NSEC_PER_MSEC));
        return 0;
}

int tdm_conn_new(struct tdm_conn **ret, struct tdm_loop *loop, int fd, const struct tdm_conn_limits *limits,
                 tdm_conn_frame_fn on_frame, tdm_conn_closed_fn on_closed, void *userdata)
{
        _cleanup_(tdm_conn_destroyp) struct tdm_conn *c = NULL;
        int flags = fcntl(fd, F_GETFL), r;
        socklen_t len;

        if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
                return -errno;
        c = calloc(1, sizeof(*c));
        if (!c)
                return -ENOMEM;
        c->loop = loop;
        c->fd = -1;
        c->limits = *limits;
        c->on_frame = on_frame;
        c->on_closed = on_closed;
        c->userdata = userdata;
        len = sizeof(c->peer);
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c->peer, &len) < 0)
                return -errno;
        r = tdm_frame_reader_new(&c->reader, limits->max_frame_bytes);
        if (r < 0)
                return r;
        if (limits->receive_fds)
                tdm_frame_reader_guard(c->reader);
        r = tdm_loop_add_timer(loop, on_conn_timer, c, &c->timer);
        if (r < 0)
                return r;
        r = tdm_loop_add_defer(loop, on_closer, c, &c->closer);
        if (r < 0)
                return r;
        r = tdm_loop_add_io(loop, fd, EPOLLIN, on_conn_io, c, &c->io);
        if (r < 0)
                return r;
        c->fd = fd;
        *ret = steal_ptr(&c);
        return 0;
}

void tdm_conn_destroy(struct tdm_conn *c)
{
        if (!c || c->destroyed)
                return;
        conn_enter(c);
        c->destroyed = true;
        c->state = CONN_CLOSED;
        conn_release(c);
        conn_leave(c);
}

void tdm_conn_destroyp(struct tdm_conn **c)
{
        tdm_conn_destroy(*c);
        *c = NULL;
}

/* Copies what the kernel did not take. */
static int enqueue(struct tdm_conn *c, const void *data, size_t size, size_t sent, const int *fds, unsigned n_fds)
{
        _cleanup_(out_freep) struct out_frame *f = malloc(sizeof(*f) + size);

        if (!f)
                return -ENOMEM;
        *f = (struct out_frame){ .size = size, .sent = sent };
        if (size > 0)
                memcpy(f->data, data, size);
        if (sent == 0 && n_fds > 0) {
                f->fds = calloc(n_fds, sizeof(int));
                if (!f->fds)
                        return -ENOMEM;
                for (unsigned i = 0; i < n_fds; i++) {
                        f->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
                        if (f->fds[i] < 0)
                                return -errno;
                        f->n_fds++;
                }
        }
        c->queued_bytes += TDM_FRAME_HEADER_BYTES + size - sent;
        c->queued_fds += f->n_fds;
        if (c->out_tail)
                c->out_tail->next = f;
        else
                c->out_head = f;
        c->out_tail = f;
        (void)steal_ptr(&f);
        return 0;
}

int tdm_conn_send(struct tdm_conn *c, const void *data, size_t size, const int *fds, unsigned n_fds)
{
        ssize_t sent = 0;
        int r;

        if (c->state != CONN_OPEN)
                return -EPIPE;
        if (n_fds > TDM_CONN_MAX_FDS)
                return -EINVAL;
        if (size > UINT32_MAX)
                return -EMSGSIZE;
        if (TDM_FRAME_HEADER_BYTES + size > c->limits.max_queue_bytes ||
            c->queued_bytes > c->limits.max_queue_bytes - TDM_FRAME_HEADER_BYTES - size ||
            c->queued_fds + n_fds > QUEUE_MAX_FDS) {
                conn_fail(c, TDM_E_BUSY, "the peer does not read: %llu bytes are waiting for it, %llu are allowed",
                          (unsigned long long)(c->queued_bytes + TDM_FRAME_HEADER_BYTES + size),
                          (unsigned long long)c->limits.max_queue_bytes);
                return -ENOBUFS;
        }

        if (!c->out_head) {
                sent = tdm_frame_send_some(c->fd, data, size, 0, fds, n_fds);
                if (sent == -EAGAIN)
                        sent = 0;
                if (sent < 0) {
                        fail_sending(c, (int)sent);
                        return (int)sent;
                }
                if ((size_t)sent == TDM_FRAME_HEADER_BYTES + size)
                        return 0;
        }
        r = enqueue(c, data, size, (size_t)sent, fds, n_fds);
        if (r < 0) {
                /* Half a frame may be out: nothing sensible can follow it. */
                fail_sending(c, r);
                return r;
        }
        update_events(c);
        return update_held(c) ? 0 : -ENOBUFS;
}

uint64_t tdm_conn_queued_bytes(const struct tdm_conn *c)
{
        return c->queued_bytes;
}

void tdm_conn_finish(struct tdm_conn *c)
{
        if (c->state != CONN_OPEN)
                return;
        if (!c->out_head) {
                conn_fail(c, TDM_E_NONE, "finished");
                return;
        }
        c->state = CONN_FINISHING;
        tdm_source_arm(c->timer, tdm_now_ns() + FINISH_NS);
        update_events(c);
}

static void conn_read_on(struct tdm_conn *c)
{
        uint64_t waited_ns = tdm_now_ns() - c->waits_since_ns;
        int r = c->io ? 0 : tdm_loop_add_io(c->loop, c->fd, EPOLLIN, on_conn_io, c, &c->io);

        if (r < 0) {
                conn_fail(c, r, "cannot go on reading: %s", strerror(-r));
                return;
        }
        if (c->frame_began_ns > 0)
                c->frame_began_ns += waited_ns;
        tdm_source_arm(c->timer, late_at(c, false));
        receive(c);
}

void tdm_conn_go_on(struct tdm_conn *c)
{
        if (!c->waits)
                return;
        c->waits = false;
        if (c->state != CONN_OPEN)
                return;
        conn_enter(c);
        conn_read_on(c);
        if (!c->destroyed && c->state < CONN_FAILED)
                update_events(c);
        conn_leave(c);
}

void tdm_conn_fds_came(struct tdm_conn *c, uint8_t first, const int *fds, unsigned n_fds)
{
        conn_enter(c);
        c->awaits_fds = false;
        /* The loop reads the rest. This may be called from receive(), and the next frame may have fds too. */
        if (c->state == CONN_OPEN && tdm_frame_reader_push(c->reader, first, fds, n_fds) == 0)
                tdm_source_arm(c->timer, late_at(c, true));
        else {
                for (unsigned i = 0; i < n_fds; i++)
                        if (fds[i] >= 0)
                                close(fds[i]);
                conn_fail(c, TDM_E_PROTOCOL, "the peer sent too many fds");
        }
        if (!c->destroyed && c->state < CONN_FAILED)
                update_events(c);
        conn_leave(c);
}

void tdm_conn_peer(const struct tdm_conn *c, pid_t *ret_pid, uid_t *ret_uid, gid_t *ret_gid)
{
        if (ret_pid)
                *ret_pid = c->peer.pid;
        if (ret_uid)
                *ret_uid = c->peer.uid;
        if (ret_gid)
                *ret_gid = c->peer.gid;
}
