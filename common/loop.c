/* The event loop on io_uring.
 *
 * An fd is watched by one-shot polls, which are submitted again in one batch with the wait itself. Such a poll is
 * level-triggered (arming checks the state), works the same from Linux 5.11 to today, and costs no system call of its
 * own. Multishot poll would be edge-triggered. Timers are a heap in this process; the earliest one is the timeout of
 * the wait.
 *
 * A completion may arrive for a source that is gone or was armed anew. So it carries a slot number and the slot's
 * sequence number, which grows at every arming and at destruction. A completion with an old sequence number is dropped.
 * Nothing in the ring ever points to memory.
 *
 * It does no I/O for its users, and it has no priorities. */
#include "common/loop.h"

#include <assert.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>

#define SQ_ENTRIES 256u
#define CQ_ENTRIES 2048u
#define BATCH_MAX 256u
#define NO_SLOT UINT32_MAX
#define WAIT_MAX_NS (UINT64_C(86400) * TDM_NSEC_PER_SEC)
#define HEAP_NONE SIZE_MAX
/* Completions of cancellations: they are dropped. */
#define USER_DATA_IGNORE UINT64_MAX

static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT && EPOLLPRI == POLLPRI && EPOLLERR == POLLERR &&
                      EPOLLHUP == POLLHUP,
              "poll and epoll speak of events alike");

enum source_type { SOURCE_IO, SOURCE_TIMER, SOURCE_SIGNAL, SOURCE_DEFER, SOURCE_WAKE };

struct tdm_source {
        struct tdm_loop *loop;
        enum source_type type;
        void *userdata;
        struct tdm_source *prev, *next; /* all sources of the loop */

        /* IO, SIGNAL, WAKE: something that is polled */
        int fd; /* owned for SIGNAL and WAKE */
        uint32_t events;
        uint32_t slot;
        bool armed; /* a poll is in flight (or its completion waits in a batch) */
        bool dirty; /* to be armed before the next wait */
        struct tdm_source *dirty_prev, *dirty_next;
        union {
                tdm_io_fn io;
                tdm_timer_fn timer;
                tdm_signal_fn signal;
                tdm_defer_fn defer;
        } fn;
        int signo;

        /* TIMER */
        uint64_t deadline_ns;
        uint64_t armed_at; /* order among equal deadlines, and which turn armed it */
        size_t heap_index;

        /* DEFER */
        bool scheduled;
        struct tdm_source *sched_prev, *sched_next;
};

struct slot {
        struct tdm_source *source;
        uint32_t sequence;
        uint32_t next_free;
};

struct tdm_loop {
        struct io_uring ring;
        struct tdm_source *sources;
        struct tdm_source *dirty;
        struct tdm_source *scheduled_head, *scheduled_tail;
        struct slot *slots;
        uint32_t n_slots, first_free;
        struct tdm_source **heap;
        size_t n_heap, heap_capacity, n_timers;
        uint64_t arm_counter;
        unsigned depth; /* of turns: destroying the loop from inside one is a defect */
        bool exiting;
        int exit_status;
};

/* ---- making and unmaking ---- */

static int read_sysctl(const char *path)
{
        _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
        char text[16] = { 0 };

        if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
                return -1;
        return atoi(text);
}

static int explain(struct tdm_error *err, int r)
{
        int disabled = read_sysctl("/proc/sys/kernel/io_uring_disabled");

        if (r == -EPERM && disabled == 2)
                return tdm_error_set(err, r,
                                     "cannot set up io_uring: the sysctl kernel.io_uring_disabled is 2, which forbids "
                                     "it to every process; allow it with 'sysctl kernel.io_uring_disabled=0'");
        if (r == -EPERM && disabled == 1)
                return tdm_error_set(
                        err, r,
                        "cannot set up io_uring: the sysctl kernel.io_uring_disabled is 1, which allows "
                        "it only to the group in kernel.io_uring_group; put this user into that group or run "
                        "'sysctl kernel.io_uring_disabled=0'");
        if (r == -EPERM || r == -EACCES)
                return tdm_error_set(err, r,
                                     "cannot set up io_uring: a sandbox forbids it (a seccomp filter, as container "
                                     "runtimes install, or a security module); allow the system calls io_uring_setup, "
                                     "io_uring_enter and io_uring_register there");
        if (r == -ENOSYS)
                return tdm_error_set(err, r,
                                     "cannot set up io_uring: this kernel does not have it, or a seccomp sandbox hides "
                                     "it; Linux 5.11 or newer with CONFIG_IO_URING is needed, and the system calls "
                                     "io_uring_setup, io_uring_enter and io_uring_register must be allowed");
        if (r == -ENOMEM)
                return tdm_error_set(err, r,
                                     "cannot set up io_uring: not enough lockable memory; raise RLIMIT_MEMLOCK "
                                     "('ulimit -l', or LimitMEMLOCK= in the unit)");
        if (r == -EMFILE || r == -ENFILE)
                return tdm_error_set(err, r, "cannot set up io_uring: too many open files; raise RLIMIT_NOFILE");
        return tdm_error_set(err, r, "cannot set up io_uring: %s", strerror(-r));
}

/* A sandbox may allow io_uring_setup and forbid io_uring_enter. This call finds out now, not in the first wait. */
static int probe_enter(struct io_uring *ring)
{
        struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
        struct io_uring_cqe *cqe;
        int r;

        io_uring_prep_nop(sqe);
        io_uring_sqe_set_data64(sqe, USER_DATA_IGNORE);
        do
                r = io_uring_submit_and_wait(ring, 1);
        while (r == -EINTR);
        if (r < 0)
                return r;
        r = io_uring_peek_cqe(ring, &cqe);
        if (r == 0)
                io_uring_cqe_seen(ring, cqe);
        return r;
}

int tdm_loop_new(struct tdm_loop **ret, struct tdm_error *err)
{
        const unsigned need = IORING_FEAT_EXT_ARG | IORING_FEAT_NODROP;
        struct io_uring_params params = { .flags = IORING_SETUP_CLAMP | IORING_SETUP_CQSIZE, .cq_entries = CQ_ENTRIES };
        struct tdm_loop *loop = calloc(1, sizeof(*loop));
        int r;

        if (!loop)
                return tdm_error_set(err, -ENOMEM, "cannot make an event loop: out of memory");
        loop->first_free = NO_SLOT;
        r = io_uring_queue_init_params(SQ_ENTRIES, &loop->ring, &params);
        if (r < 0) {
                free(loop);
                return explain(err, r);
        }
        if ((params.features & need) != need) {
                io_uring_queue_exit(&loop->ring);
                free(loop);
                return tdm_error_set(err, -ENOSYS,
                                     "cannot use io_uring: this kernel is too old (features 0x%x); Linux 5.11 or newer "
                                     "is needed",
                                     params.features);
        }
        r = probe_enter(&loop->ring);
        if (r < 0) {
                io_uring_queue_exit(&loop->ring);
                free(loop);
                return explain(err, r);
        }
        *ret = loop;
        return 0;
}

void tdm_loop_destroy(struct tdm_loop *loop)
{
        if (!loop)
                return;
        assert(loop->depth == 0);
        while (loop->sources)
                tdm_source_destroy(loop->sources);
        io_uring_queue_exit(&loop->ring);
        free(loop->slots);
        free(loop->heap);
        free(loop);
}

void tdm_loop_destroyp(struct tdm_loop **loop)
{
        tdm_loop_destroy(*loop);
        *loop = NULL;
}

static struct tdm_source *source_new(struct tdm_loop *loop, enum source_type type, void *userdata)
{
        struct tdm_source *s = calloc(1, sizeof(*s));

        if (!s)
                return NULL;
        s->loop = loop;
        s->type = type;
        s->userdata = userdata;
        s->fd = -1;
        s->slot = NO_SLOT;
        s->heap_index = HEAP_NONE;
        s->next = loop->sources;
        if (s->next)
                s->next->prev = s;
        loop->sources = s;
        return s;
}

/* ---- polled sources ---- */

static int slot_take(struct tdm_loop *loop, struct tdm_source *s)
{
        uint32_t i;

        if (loop->first_free == NO_SLOT) {
                uint32_t n = loop->n_slots ? loop->n_slots * 2 : 64;
                struct slot *slots;

                if (n > UINT32_C(1) << 24)
                        return -EMFILE; /* more than there can be fds */
                slots = realloc(loop->slots, n * sizeof(*slots));
                if (!slots)
                        return -ENOMEM;
                loop->slots = slots;
                for (uint32_t k = loop->n_slots; k < n; k++)
                        slots[k] = (struct slot){ .next_free = k + 1 < n ? k + 1 : NO_SLOT };
                loop->first_free = loop->n_slots;
                loop->n_slots = n;
        }
        i = loop->first_free;
        loop->first_free = loop->slots[i].next_free;
        loop->slots[i].source = s;
        s->slot = i;
        return 0;
}

static uint64_t slot_user_data(const struct tdm_loop *loop, uint32_t i)
{
        return (uint64_t)i << 32 | loop->slots[i].sequence;
}

static void mark_dirty(struct tdm_source *s)
{
        struct tdm_loop *loop = s->loop;

        if (s->dirty)
                return;
        s->dirty = true;
        s->dirty_prev = NULL;
        s->dirty_next = loop->dirty;
        if (loop->dirty)
                loop->dirty->dirty_prev = s;
        loop->dirty = s;
}

static void unmark_dirty(struct tdm_source *s)
{
        if (!s->dirty)
                return;
        s->dirty = false;
        if (s->dirty_next)
                s->dirty_next->dirty_prev = s->dirty_prev;
        if (s->dirty_prev)
                s->dirty_prev->dirty_next = s->dirty_next;
        else
                s->loop->dirty = s->dirty_next;
}

static struct io_uring_sqe *sqe_get(struct tdm_loop *loop)
{
        struct io_uring_sqe *sqe = io_uring_get_sqe(&loop->ring);

        if (!sqe) {
                io_uring_submit(&loop->ring); /* a failure leaves no room, and the caller checks for that */
                sqe = io_uring_get_sqe(&loop->ring);
        }
        return sqe;
}

/* Takes back a poll in flight. Its completion, if it comes, no longer fits the slot's sequence number. */
static void disarm(struct tdm_source *s)
{
        struct tdm_loop *loop = s->loop;
        struct io_uring_sqe *sqe;

        if (!s->armed)
                return;
        s->armed = false;
        sqe = sqe_get(loop);
        if (sqe) {
                io_uring_prep_poll_remove(sqe, slot_user_data(loop, s->slot));
                io_uring_sqe_set_data64(sqe, USER_DATA_IGNORE);
        }
        loop->slots[s->slot].sequence++;
}

/* false: the kernel takes no more submissions until completions are taken. */
static bool arm_dirty(struct tdm_loop *loop)
{
        while (loop->dirty) {
                struct tdm_source *s = loop->dirty;
                struct io_uring_sqe *sqe = sqe_get(loop);

                if (!sqe)
                        return false;
                unmark_dirty(s);
                loop->slots[s->slot].sequence++;
                io_uring_prep_poll_add(sqe, s->fd, s->events);
                io_uring_sqe_set_data64(sqe, slot_user_data(loop, s->slot));
                s->armed = true;
        }
        return true;
}

static int polled_new(struct tdm_source **ret, struct tdm_loop *loop, enum source_type type, int fd, uint32_t events,
                      void *userdata)
{
        struct tdm_source *s;
        int r;

        s = source_new(loop, type, userdata);
        if (!s)
                return -ENOMEM;
        r = slot_take(loop, s);
        if (r < 0) {
                tdm_source_destroy(s);
                return r;
        }
        s->fd = fd;
        s->events = events;
        mark_dirty(s);
        *ret = s;
        return 0;
}

int tdm_loop_add_io(struct tdm_loop *loop, int fd, uint32_t events, tdm_io_fn fn, void *userdata,
                    struct tdm_source **ret)
{
        struct tdm_source *s;
        int r;

        if (events & ~(uint32_t)(EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP))
                return -EINVAL;
        if (fcntl(fd, F_GETFD) < 0)
                return -errno;
        r = polled_new(&s, loop, SOURCE_IO, fd, events, userdata);
        if (r < 0)
                return r;
        s->fn.io = fn;
        *ret = s;
        return 0;
}

int tdm_source_set_io_events(struct tdm_source *s, uint32_t events)
{
        if (s->type != SOURCE_IO || events & ~(uint32_t)(EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP))
                return -EINVAL;
        if (s->events == events)
                return 0;
        s->events = events;
        disarm(s);
        mark_dirty(s);
        return 0;
}

int tdm_loop_add_signal(struct tdm_loop *loop, int signo, tdm_signal_fn fn, void *userdata, struct tdm_source **ret)
{
        _cleanup_(closep) int fd = -1;
        struct tdm_source *s;
        sigset_t set;
        int r;

        sigemptyset(&set);
        if (sigaddset(&set, signo) < 0)
                return -errno;
        r = pthread_sigmask(SIG_BLOCK, &set, NULL);
        if (r != 0)
                return -r;
        fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
        if (fd < 0)
                return -errno;
        r = polled_new(&s, loop, SOURCE_SIGNAL, fd, EPOLLIN, userdata);
        if (r < 0)
                return r;
        s->signo = signo;
        s->fn.signal = fn;
        (void)steal_fd(&fd);
        *ret = s;
        return 0;
}

int tdm_loop_add_wake(struct tdm_loop *loop, tdm_defer_fn fn, void *userdata, struct tdm_source **ret)
{
        _cleanup_(closep) int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        struct tdm_source *s;
        int r;

        if (fd < 0)
                return -errno;
        r = polled_new(&s, loop, SOURCE_WAKE, fd, EPOLLIN, userdata);
        if (r < 0)
                return r;
        s->fn.defer = fn;
        (void)steal_fd(&fd);
        *ret = s;
        return 0;
}

void tdm_loop_wake(struct tdm_source *s)
{
        const uint64_t one = 1;
        int saved = errno;

        /* EAGAIN means that the counter is full, so the loop will wake in any case. */
        while (write(s->fd, &one, sizeof(one)) < 0 && errno == EINTR)
                ;
        errno = saved;
}

/* ---- timers: a binary heap by (deadline, order of arming) ---- */

static bool timer_before(const struct tdm_source *a, const struct tdm_source *b)
{
        return a->deadline_ns != b->deadline_ns ? a->deadline_ns < b->deadline_ns : a->armed_at < b->armed_at;
}

static void heap_put(struct tdm_loop *loop, size_t i, struct tdm_source *s)
{
        loop->heap[i] = s;
        s->heap_index = i;
}

static void heap_up(struct tdm_loop *loop, size_t i, struct tdm_source *s)
{
        for (; i > 0 && timer_before(s, loop->heap[(i - 1) / 2]); i = (i - 1) / 2)
                heap_put(loop, i, loop->heap[(i - 1) / 2]);
        heap_put(loop, i, s);
}

static void heap_down(struct tdm_loop *loop, size_t i, struct tdm_source *s)
{
        for (;;) {
                size_t c = 2 * i + 1;

                if (c >= loop->n_heap)
                        break;
                if (c + 1 < loop->n_heap && timer_before(loop->heap[c + 1], loop->heap[c]))
                        c++;
                if (!timer_before(loop->heap[c], s))
                        break;
                heap_put(loop, i, loop->heap[c]);
                i = c;
        }
        heap_put(loop, i, s);
}

static void heap_remove(struct tdm_source *s)
{
        struct tdm_loop *loop = s->loop;
        size_t i = s->heap_index;
        struct tdm_source *last;

        if (i == HEAP_NONE)
                return;
        s->heap_index = HEAP_NONE;
        last = loop->heap[--loop->n_heap];
        if (last == s)
                return;
        if (i > 0 && timer_before(last, loop->heap[(i - 1) / 2]))
                heap_up(loop, i, last);
        else
                heap_down(loop, i, last);
}

int tdm_loop_add_timer(struct tdm_loop *loop, tdm_timer_fn fn, void *userdata, struct tdm_source **ret)
{
        struct tdm_source *s;

        /* Room is made here, so that arming cannot fail. */
        if (loop->n_timers == loop->heap_capacity) {
                size_t capacity = loop->heap_capacity ? loop->heap_capacity * 2 : 16;
                struct tdm_source **heap = realloc(loop->heap, capacity * sizeof(*heap));

                if (!heap)
                        return -ENOMEM;
                loop->heap = heap;
                loop->heap_capacity = capacity;
        }
        s = source_new(loop, SOURCE_TIMER, userdata);
        if (!s)
                return -ENOMEM;
        loop->n_timers++;
        s->fn.timer = fn;
        *ret = s;
        return 0;
}

void tdm_source_arm(struct tdm_source *s, uint64_t deadline_ns)
{
        struct tdm_loop *loop = s->loop;

        assert(s->type == SOURCE_TIMER);
        heap_remove(s);
        if (deadline_ns == 0)
                return;
        s->deadline_ns = deadline_ns;
        s->armed_at = ++loop->arm_counter;
        heap_up(loop, loop->n_heap++, s);
}

/* ---- deferred work ---- */

int tdm_loop_add_defer(struct tdm_loop *loop, tdm_defer_fn fn, void *userdata, struct tdm_source **ret)
{
        struct tdm_source *s = source_new(loop, SOURCE_DEFER, userdata);

        if (!s)
                return -ENOMEM;
        s->fn.defer = fn;
        *ret = s;
        return 0;
}

void tdm_source_schedule(struct tdm_source *s)
{
        struct tdm_loop *loop = s->loop;

        assert(s->type == SOURCE_DEFER);
        if (s->scheduled)
                return;
        s->scheduled = true;
        s->sched_next = NULL;
        s->sched_prev = loop->scheduled_tail;
        if (loop->scheduled_tail)
                loop->scheduled_tail->sched_next = s;
        else
                loop->scheduled_head = s;
        loop->scheduled_tail = s;
}

static void unschedule(struct tdm_source *s)
{
        struct tdm_loop *loop = s->loop;

        if (!s->scheduled)
                return;
        s->scheduled = false;
        if (s->sched_prev)
                s->sched_prev->sched_next = s->sched_next;
        else
                loop->scheduled_head = s->sched_next;
        if (s->sched_next)
                s->sched_next->sched_prev = s->sched_prev;
        else
                loop->scheduled_tail = s->sched_prev;
}

void tdm_source_destroy(struct tdm_source *s)
{
        struct tdm_loop *loop;

        if (!s)
                return;
        loop = s->loop;
        if (s->slot != NO_SLOT) {
                bool was_armed = s->armed;

                unmark_dirty(s);
                disarm(s);
                /* At once: the poll holds the file, and a peer should see the close() that follows. */
                if (was_armed)
                        io_uring_submit(&loop->ring);
                loop->slots[s->slot].sequence++;
                loop->slots[s->slot].source = NULL;
                loop->slots[s->slot].next_free = loop->first_free;
                loop->first_free = s->slot;
                if (s->type != SOURCE_IO)
                        closep(&s->fd);
        }
        if (s->type == SOURCE_TIMER) {
                heap_remove(s);
                loop->n_timers--;
        }
        unschedule(s);
        if (s->next)
                s->next->prev = s->prev;
        if (s->prev)
                s->prev->next = s->next;
        else
                loop->sources = s->next;
        free(s);
}

void tdm_source_destroyp(struct tdm_source **s)
{
        tdm_source_destroy(*s);
        *s = NULL;
}

/* ---- a turn ---- */

static int dispatch_polled(struct tdm_source *s, uint32_t revents)
{
        struct signalfd_siginfo info;
        uint64_t count;

        /* The source may be gone after its callback: nothing of it is touched then. */
        switch (s->type) {
        case SOURCE_IO:
                return s->fn.io(s, s->fd, revents, s->userdata);
        case SOURCE_SIGNAL:
                if (read(s->fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
                        return 0;
                return s->fn.signal(s, s->signo, s->userdata);
        case SOURCE_WAKE:
                if (read(s->fd, &count, sizeof(count)) != (ssize_t)sizeof(count))
                        return 0;
                return s->fn.defer(s, s->userdata);
        default:
                return 0;
        }
}

struct completion {
        uint64_t user_data;
        int32_t res;
};

static struct tdm_source *completion_source(struct tdm_loop *loop, const struct completion *c)
{
        uint32_t i = (uint32_t)(c->user_data >> 32);

        if (c->user_data == USER_DATA_IGNORE || i >= loop->n_slots)
                return NULL;
        if (!loop->slots[i].source || loop->slots[i].sequence != (uint32_t)c->user_data)
                return NULL;
        return loop->slots[i].source;
}

static int dispatch_completions(struct tdm_loop *loop)
{
        struct io_uring_cqe *cqes[BATCH_MAX];
        struct completion batch[BATCH_MAX];
        unsigned n = io_uring_peek_batch_cqe(&loop->ring, cqes, BATCH_MAX);
        int r = 0;

        /* Copied and returned to the kernel first, because a callback may submit, or run a turn of the loop itself. */
        for (unsigned i = 0; i < n; i++)
                batch[i] = (struct completion){ .user_data = cqes[i]->user_data, .res = cqes[i]->res };
        io_uring_cq_advance(&loop->ring, n);

        for (unsigned i = 0; i < n; i++) {
                struct tdm_source *s = completion_source(loop, &batch[i]);
                int32_t res = batch[i].res;

                if (!s)
                        continue;
                s->armed = false;
                if (res == -EBADF) {
                        /* The fd was closed before its source was destroyed, against the rules. Reported once, not
                         * armed again. */
                        if (r == 0)
                                r = dispatch_polled(s, EPOLLERR);
                        continue;
                }
                mark_dirty(s);
                /* After a non-zero return the rest of the batch is only armed again, which loses nothing. Other errors
                 * than EBADF (no memory, cancelled by a signal's task work) are cured the same way. */
                if (r == 0 && res > 0)
                        r = dispatch_polled(s, (uint32_t)res);
        }
        return r;
}

static int dispatch_timers(struct tdm_loop *loop)
{
        uint64_t now = tdm_now_ns(), armed_before = loop->arm_counter;
        int r = 0;

        /* A timer armed by a callback of this pass waits for the next one, however early its deadline. */
        while (r == 0 && loop->n_heap > 0) {
                struct tdm_source *s = loop->heap[0];

                if (s->deadline_ns > now || s->armed_at > armed_before)
                        break;
                heap_remove(s);
                r = s->fn.timer(s, now, s->userdata);
        }
        return r;
}

static int dispatch_deferred(struct tdm_loop *loop)
{
        size_t budget = 0;
        int r = 0;

        /* Only the sources scheduled before this pass: a callback that schedules itself must not starve the fds. They
         * are counted, because a callback may destroy the last one. */
        for (struct tdm_source *s = loop->scheduled_head; s; s = s->sched_next)
                budget++;
        while (r == 0 && budget-- > 0 && loop->scheduled_head) {
                struct tdm_source *s = loop->scheduled_head;

                unschedule(s);
                r = s->fn.defer(s, s->userdata);
        }
        return r;
}

static int wait_completions(struct tdm_loop *loop, uint64_t timeout_ns)
{
        struct __kernel_timespec ts;
        struct io_uring_cqe *cqe;
        int r;

        if (timeout_ns == UINT64_MAX)
                r = io_uring_submit_and_wait(&loop->ring, 1);
        else {
                /* The kernel adds it to the current time. A sum that overflows would not wait. */
                timeout_ns = TDM_MIN(timeout_ns, WAIT_MAX_NS);
                ts.tv_sec = (long long)(timeout_ns / TDM_NSEC_PER_SEC);
                ts.tv_nsec = (long long)(timeout_ns % TDM_NSEC_PER_SEC);
                r = io_uring_submit_and_wait_timeout(&loop->ring, &cqe, 1, &ts, NULL);
        }
        /* ETIME: nothing came. EINTR: a signal. EAGAIN, EBUSY: the kernel is short of memory or of completion slots;
         * what has completed is taken now, what was not submitted is submitted by the next turn. */
        if (r < 0 && r != -ETIME && r != -EINTR && r != -EAGAIN && r != -EBUSY)
                return r;
        return 0;
}

int tdm_loop_turn(struct tdm_loop *loop, uint64_t timeout_ns)
{
        int r;

        if (!arm_dirty(loop) || loop->scheduled_head || loop->exiting)
                timeout_ns = 0;
        else if (loop->n_heap > 0) {
                uint64_t now = tdm_now_ns(), deadline_ns = loop->heap[0]->deadline_ns;

                timeout_ns = TDM_MIN(timeout_ns, deadline_ns > now ? deadline_ns - now : 0);
        }
        r = wait_completions(loop, timeout_ns);
        if (r < 0)
                return r;

        loop->depth++;
        r = dispatch_completions(loop);
        if (r == 0)
                r = dispatch_timers(loop);
        if (r == 0)
                r = dispatch_deferred(loop);
        loop->depth--;
        return r;
}

int tdm_loop_run(struct tdm_loop *loop)
{
        while (!loop->exiting) {
                int r = tdm_loop_turn(loop, UINT64_MAX);

                if (r != 0)
                        return r;
        }
        loop->exiting = false;
        return loop->exit_status;
}

void tdm_loop_exit(struct tdm_loop *loop, int status)
{
        loop->exiting = true;
        loop->exit_status = status;
}
