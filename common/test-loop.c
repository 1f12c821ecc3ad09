/* The loop: readiness is level-triggered, timers fire in order, sources may vanish at any moment, and where io_uring is
 * forbidden the message says what forbids it. */
#include "common/loop.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <cmocka.h>

#define MS TDM_NSEC_PER_MSEC

static struct tdm_loop *loop;

static int setup(void **state)
{
        struct tdm_error e;

        if (tdm_loop_new(&loop, &e) != 0) {
                print_error("%s\n", e.message);
                return -1;
        }
        return 0;
}

static int teardown(void **state)
{
        tdm_loop_destroyp(&loop);
        return 0;
}

/* ---- io ---- */

struct io {
        unsigned calls;
        uint32_t events;
        bool drain;
        int result;
};

static int on_io(struct tdm_source *source, int fd, uint32_t events, void *userdata)
{
        struct io *io = userdata;
        char b[64];

        io->calls++;
        io->events = events;
        if (io->drain && events & EPOLLIN)
                while (read(fd, b, sizeof(b)) > 0)
                        ;
        return io->result;
}

static void make_pair(int fds[2])
{
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
}

static void test_io(void **state)
{
        struct tdm_source *s;
        struct io io = { 0 };
        int fds[2];

        make_pair(fds);
        assert_int_equal(tdm_loop_add_io(loop, fds[0], EPOLLIN, on_io, &io, &s), 0);
        assert_int_equal(tdm_loop_turn(loop, 0), 0);
        assert_int_equal(io.calls, 0);
        assert_int_equal(write(fds[1], "x", 1), 1);
        /* level-triggered: again and again while it is not read */
        for (unsigned i = 1; i <= 3; i++) {
                assert_int_equal(tdm_loop_turn(loop, 1000 * MS), 0);
                assert_int_equal(io.calls, i);
                assert_true(io.events & EPOLLIN);
        }
        io.drain = true;
        assert_int_equal(tdm_loop_turn(loop, 1000 * MS), 0);
        assert_int_equal(io.calls, 4);
        assert_int_equal(tdm_loop_turn(loop, 2 * MS), 0);
        assert_int_equal(io.calls, 4);

        assert_int_equal(tdm_source_set_io_events(s, EPOLLOUT), 0);
        assert_int_equal(tdm_loop_turn(loop, 1000 * MS), 0);
        assert_int_equal(io.events, EPOLLOUT);
        assert_int_equal(tdm_source_set_io_events(s, 0), 0);
        io.calls = 0;
        assert_int_equal(write(fds[1], "x", 1), 1);
        assert_int_equal(tdm_loop_turn(loop, 2 * MS), 0);
        assert_int_equal(io.calls, 0);
        /* changed several times within a turn: the last change counts */
        assert_int_equal(tdm_source_set_io_events(s, EPOLLIN), 0);
        assert_int_equal(tdm_source_set_io_events(s, EPOLLOUT), 0);
        assert_int_equal(tdm_source_set_io_events(s, EPOLLIN), 0);
        assert_int_equal(tdm_loop_turn(loop, 1000 * MS), 0);
        assert_int_equal(io.calls, 1);
        assert_int_equal(io.events, EPOLLIN);
        /* hang-up comes without being asked for */
        assert_int_equal(tdm_source_set_io_events(s, 0), 0);
        close(fds[1]);
        assert_int_equal(tdm_loop_turn(loop, 1000 * MS), 0);
        assert_true(io.events & EPOLLHUP);
        tdm_source_destroyp(&s);
        assert_null(s);
        close(fds[0]);
        assert_int_equal(tdm_loop_add_io(loop, fds[0], EPOLLIN, on_io, &io, &s), -EBADF);
        assert_int_equal(tdm_loop_add_io(loop, 0, EPOLLET, on_io, &io, &s), -EINVAL);
        tdm_source_destroy(NULL);
}

/* A poll in flight holds the file. Destroying the source must end the poll, or a peer would not see the close(). */
static void test_close_is_seen(void **state)
{
        struct tdm_source *s;
        struct io io = { 0 };
        int fds[2];
        char b;

        make_pair(fds);
        assert_int_equal(tdm_loop_add_io(loop, fds[0], EPOLLIN, on_io, &io, &s), 0);
        assert_int_equal(tdm_loop_turn(loop, 0), 0); /* now it is in flight */
        tdm_source_destroy(s);
        close(fds[0]);
        assert_int_equal(read(fds[1], &b, 1), 0);
        close(fds[1]);
}

/* A destroyed source is never called, even if a completion for it was in flight. The next source in the same slot
 * is not called for it, either. */
static void test_stale_readiness(void **state)
{
        struct tdm_source *s;
        struct io io = { 0 }, other = { 0 };
        int fds[2], quiet[2];

        make_pair(fds);
        make_pair(quiet);
        for (int i = 0; i < 50; i++) {
                assert_int_equal(tdm_loop_add_io(loop, fds[0], EPOLLIN, on_io, &io, &s), 0);
                assert_int_equal(tdm_loop_turn(loop, 0), 0);
                assert_int_equal(write(fds[1], "x", 1), 1);
                tdm_source_destroy(s);
                assert_int_equal(tdm_loop_add_io(loop, quiet[0], EPOLLIN, on_io, &other, &s), 0);
                assert_int_equal(tdm_loop_turn(loop, i % 2 ? 0 : MS / 10), 0);
                tdm_source_destroy(s);
                assert_int_equal(read(fds[0], &(char){ 0 }, 1), 1);
        }
        assert_int_equal(io.calls, 0);
        assert_int_equal(other.calls, 0);
        for (int i = 0; i < 2; i++) {
                close(fds[i]);
                close(quiet[i]);
        }
}

/* A non-zero return stops the turn. Other sources that were ready are called in the next one. */
static void test_return_value(void **state)
{
        struct tdm_source *s[4];
        struct io io[4] = { 0 };
        unsigned calls = 0;
        int fds[4][2];

        for (unsigned i = 0; i < 4; i++) {
                make_pair(fds[i]);
                io[i].result = 42;
                io[i].drain = true;
                assert_int_equal(tdm_loop_add_io(loop, fds[i][0], EPOLLIN, on_io, &io[i], &s[i]), 0);
                assert_int_equal(write(fds[i][1], "x", 1), 1);
        }
        for (unsigned i = 0; i < 4; i++)
                assert_int_equal(tdm_loop_run(loop), 42);
        for (unsigned i = 0; i < 4; i++) {
                assert_int_equal(io[i].calls, 1);
                calls += io[i].calls;
                tdm_source_destroy(s[i]);
                close(fds[i][0]);
                close(fds[i][1]);
        }
        assert_int_equal(calls, 4);
}

/* ---- timers ---- */

static struct {
        unsigned order[16], n;
        struct tdm_source *s[16];
        uint64_t at;
} fired;

static int on_timer(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        fired.order[fired.n++ % 16] = (unsigned)(uintptr_t)userdata;
        fired.at = now_ns;
        return 0;
}

static void test_timers(void **state)
{
        uint64_t now = tdm_now_ns();
        static const unsigned after_ms[8] = { 5, 1, 4, 1, 3, 2, 50000, 6 };
        static const unsigned expected[6] = { 1, 3, 5, 4, 2, 0 };

        memset(&fired, 0, sizeof(fired));
        for (unsigned i = 0; i < 8; i++) {
                assert_int_equal(tdm_loop_add_timer(loop, on_timer, (void *)(uintptr_t)i, &fired.s[i]), 0);
                tdm_source_arm(fired.s[i], now + after_ms[i] * MS);
        }
        tdm_source_arm(fired.s[7], 0); /* disarmed */
        while (fired.n < 6)
                assert_int_equal(tdm_loop_turn(loop, UINT64_MAX), 0);
        assert_int_equal(fired.n, 6);
        assert_memory_equal(fired.order, expected, sizeof(expected));
        assert_true(fired.at >= now + 5 * MS);
        assert_int_equal(tdm_loop_turn(loop, 2 * MS), 0);
        assert_int_equal(fired.n, 6); /* one-shot */

        /* rearming replaces the deadline, both ways; ones in the past fire at once */
        now = tdm_now_ns();
        tdm_source_arm(fired.s[6], now + 1 * MS);
        tdm_source_arm(fired.s[0], now + 1 * MS);
        tdm_source_arm(fired.s[0], now + 60000 * MS);
        tdm_source_arm(fired.s[1], 1);
        fired.n = 0;
        assert_int_equal(tdm_loop_turn(loop, UINT64_MAX), 0);
        assert_int_equal(fired.order[0], 1);
        while (fired.n < 2)
                assert_int_equal(tdm_loop_turn(loop, UINT64_MAX), 0);
        assert_int_equal(fired.order[1], 6);
        tdm_source_arm(fired.s[2], UINT64_MAX); /* a deadline in the very far future does not fire now */
        assert_int_equal(tdm_loop_turn(loop, 2 * MS), 0);
        assert_int_equal(fired.n, 2);
        for (unsigned i = 0; i < 8; i++)
                tdm_source_destroy(fired.s[i]);

        /* the timeout of a turn is kept, too: alone it ends the turn */
        now = tdm_now_ns();
        assert_int_equal(tdm_loop_turn(loop, 10 * MS), 0);
        assert_true(tdm_now_ns() - now >= 10 * MS);
}

/* An infinite wait with nothing but a deadline beyond all bounds: an overflow in the kernel's sum would spin here. */
static void test_far_timer_sleeps(void **state)
{
        struct tdm_source *timer, *wake_up;
        struct rusage a, b;

        assert_int_equal(tdm_loop_add_timer(loop, on_timer, NULL, &timer), 0);
        assert_int_equal(tdm_loop_add_timer(loop, on_timer, NULL, &wake_up), 0);
        tdm_source_arm(timer, UINT64_MAX - 1);
        getrusage(RUSAGE_THREAD, &a);
        assert_int_equal(tdm_loop_turn(loop, 30 * MS), 0);
        tdm_source_arm(wake_up, tdm_now_ns() + 30 * MS);
        fired.n = 0;
        assert_int_equal(tdm_loop_turn(loop, UINT64_MAX - 1), 0);
        assert_int_equal(fired.n, 1);
        getrusage(RUSAGE_THREAD, &b);
        assert_true(b.ru_nvcsw - a.ru_nvcsw < 20);
        tdm_source_destroy(timer);
        tdm_source_destroy(wake_up);
}

static int rearm_in_the_past(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        ++*(unsigned *)userdata;
        tdm_source_arm(source, 1);
        return 0;
}

static void test_timer_cannot_starve(void **state)
{
        struct tdm_source *s, *t;
        struct io io = { .drain = true };
        unsigned calls = 0;
        int fds[2];

        make_pair(fds);
        assert_int_equal(tdm_loop_add_timer(loop, rearm_in_the_past, &calls, &t), 0);
        assert_int_equal(tdm_loop_add_io(loop, fds[0], EPOLLIN, on_io, &io, &s), 0);
        tdm_source_arm(t, 1);
        assert_int_equal(tdm_loop_turn(loop, UINT64_MAX), 0);
        assert_int_equal(calls, 1);
        assert_int_equal(write(fds[1], "x", 1), 1);
        assert_int_equal(tdm_loop_turn(loop, UINT64_MAX), 0);
        assert_int_equal(calls, 2);
        assert_int_equal(io.calls, 1);
        tdm_source_destroy(s);
        tdm_source_destroy(t);
        close(fds[0]);
        close(fds[1]);
}

/* Heap surgery: random arming, rearming, disarming and destruction against a plain list. */
static struct {
        uint64_t deadline;
        struct tdm_source *s;
} heap_ref[200];

static int on_heap_timer(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        size_t i = (size_t)(uintptr_t)userdata;

        assert_ptr_equal(heap_ref[i].s, source);
        assert_true(heap_ref[i].deadline != 0 && heap_ref[i].deadline <= now_ns);
        for (size_t k = 0; k < TDM_ARRAY_SIZE(heap_ref); k++)
                if (heap_ref[k].deadline)
                        assert_true(heap_ref[k].deadline >= heap_ref[i].deadline);
        heap_ref[i].deadline = 0;
        fired.n++;
        return 0;
}

static void test_timer_heap(void **state)
{
        uint64_t rnd = 88172645463325252u, base = 1000;

        memset(heap_ref, 0, sizeof(heap_ref));
        for (int round = 0; round < 4000; round++) {
                size_t i;

                rnd ^= rnd << 13;
                rnd ^= rnd >> 7;
                rnd ^= rnd << 17;
                i = rnd % TDM_ARRAY_SIZE(heap_ref);
                if (!heap_ref[i].s)
                        assert_int_equal(tdm_loop_add_timer(loop, on_heap_timer, (void *)i, &heap_ref[i].s), 0);
                switch (rnd >> 32 & 7) {
                case 0:
                        tdm_source_destroyp(&heap_ref[i].s);
                        heap_ref[i].deadline = 0;
                        break;
                case 1:
                        tdm_source_arm(heap_ref[i].s, 0);
                        heap_ref[i].deadline = 0;
                        break;
                default:
                        heap_ref[i].deadline = base + (rnd >> 40) % 100000;
                        tdm_source_arm(heap_ref[i].s, heap_ref[i].deadline);
                }
                if (round % 500 == 499) {
                        size_t armed = 0;

                        for (size_t k = 0; k < TDM_ARRAY_SIZE(heap_ref); k++)
                                armed += heap_ref[k].deadline != 0;
                        fired.n = 0;
                        assert_int_equal(tdm_loop_turn(loop, 0), 0);
                        assert_int_equal(fired.n, armed);
                }
        }
        for (size_t k = 0; k < TDM_ARRAY_SIZE(heap_ref); k++)
                tdm_source_destroy(heap_ref[k].s);
}

/* ---- deferred, signals, wake-ups ---- */

static int on_defer(struct tdm_source *source, void *userdata)
{
        if (++*(unsigned *)userdata % 3 != 0)
                tdm_source_schedule(source); /* runs again in the next turn, which does not wait */
        return 0;
}

static int on_defer_exit(struct tdm_source *source, void *userdata)
{
        tdm_loop_exit(loop, 17);
        return 0;
}

static void test_defer_and_exit(void **state)
{
        struct tdm_source *s, *x;
        unsigned calls = 0;

        assert_int_equal(tdm_loop_add_defer(loop, on_defer, &calls, &s), 0);
        assert_int_equal(tdm_loop_add_defer(loop, on_defer_exit, NULL, &x), 0);
        assert_int_equal(tdm_loop_turn(loop, 0), 0);
        assert_int_equal(calls, 0);
        tdm_source_schedule(s);
        tdm_source_schedule(s);
        for (unsigned i = 1; i <= 3; i++) {
                assert_int_equal(tdm_loop_turn(loop, UINT64_MAX), 0);
                assert_int_equal(calls, i);
        }
        tdm_source_schedule(s);
        tdm_source_destroy(s); /* scheduled and gone */
        tdm_source_schedule(x);
        assert_int_equal(tdm_loop_run(loop), 17);
        assert_int_equal(calls, 3);
        tdm_loop_exit(loop, 3); /* before run: at once, and only once */
        assert_int_equal(tdm_loop_run(loop), 3);
        tdm_source_schedule(x);
        assert_int_equal(tdm_loop_run(loop), 17);
        tdm_source_destroy(x);
}

static int on_signal(struct tdm_source *source, int signo, void *userdata)
{
        *(int *)userdata = signo;
        tdm_loop_exit(loop, 0);
        return 0;
}

static void test_signals(void **state)
{
        struct tdm_source *a, *b;
        int got_a = 0, got_b = 0;

        assert_int_equal(tdm_loop_add_signal(loop, SIGUSR1, on_signal, &got_a, &a), 0);
        assert_int_equal(tdm_loop_add_signal(loop, SIGTERM, on_signal, &got_b, &b), 0);
        for (int i = 0; i < 3; i++) {
                got_a = got_b = 0;
                assert_int_equal(kill(getpid(), SIGUSR1), 0);
                assert_int_equal(tdm_loop_run(loop), 0);
                assert_int_equal(got_a, SIGUSR1);
                assert_int_equal(got_b, 0);
                assert_int_equal(kill(getpid(), SIGTERM), 0);
                assert_int_equal(tdm_loop_run(loop), 0);
                assert_int_equal(got_b, SIGTERM);
        }
        tdm_source_destroy(a);
        tdm_source_destroy(b);
        assert_int_equal(tdm_loop_add_signal(loop, 1000, on_signal, NULL, &a), -EINVAL);
}

struct waker {
        struct tdm_source *s;
        _Atomic unsigned posted;
        unsigned seen, calls, n;
};

static int on_wake(struct tdm_source *source, void *userdata)
{
        struct waker *w = userdata;

        w->calls++;
        w->seen = atomic_load(&w->posted);
        if (w->seen == w->n)
                tdm_loop_exit(loop, 0);
        return 0;
}

static void *waker_thread(void *arg)
{
        struct waker *w = arg;

        for (unsigned i = 0; i < w->n; i++) {
                atomic_fetch_add(&w->posted, 1);
                tdm_loop_wake(w->s);
                if (i % 50 == 0)
                        usleep(100);
        }
        return NULL;
}

static void test_wake(void **state)
{
        struct waker w = { .n = 5000 };
        pthread_t t;

        assert_int_equal(tdm_loop_add_wake(loop, on_wake, &w, &w.s), 0);
        assert_int_equal(tdm_loop_turn(loop, 0), 0);
        assert_int_equal(w.calls, 0);
        assert_int_equal(pthread_create(&t, NULL, waker_thread, &w), 0);
        alarm(300); /* after a lost wake-up this would wait for ever */
        assert_int_equal(tdm_loop_run(loop), 0);
        alarm(0);
        pthread_join(t, NULL);
        assert_int_equal(w.seen, w.n);
        assert_true(w.calls <= w.n);
        tdm_source_destroy(w.s);
}

/* ---- destruction from inside ---- */

static struct tdm_source *victims[4];
static unsigned n_called;

static int on_io_destroy_all(struct tdm_source *source, int fd, uint32_t events, void *userdata)
{
        n_called++;
        for (unsigned i = 0; i < 4; i++)
                tdm_source_destroyp(&victims[i]);
        return 0;
}

static int on_timer_destroy_all(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        return on_io_destroy_all(source, -1, 0, NULL);
}

static int on_defer_destroy_all(struct tdm_source *source, void *userdata)
{
        return on_io_destroy_all(source, -1, 0, NULL);
}

static int on_signal_destroy_all(struct tdm_source *source, int signo, void *userdata)
{
        return on_io_destroy_all(source, -1, 0, NULL);
}

static void test_destroy_inside(void **state)
{
        int fds[4][2];

        /* four are ready at once; the first one called destroys all, itself included */
        for (unsigned kind = 0; kind < 5; kind++) {
                n_called = 0;
                for (unsigned i = 0; i < 4; i++) {
                        if (kind == 0) {
                                make_pair(fds[i]);
                                assert_int_equal(write(fds[i][1], "x", 1), 1);
                                assert_int_equal(
                                        tdm_loop_add_io(loop, fds[i][0], EPOLLIN, on_io_destroy_all, NULL, &victims[i]),
                                        0);
                        } else if (kind == 1) {
                                assert_int_equal(tdm_loop_add_timer(loop, on_timer_destroy_all, NULL, &victims[i]), 0);
                                tdm_source_arm(victims[i], 1 + i);
                        } else if (kind == 2) {
                                assert_int_equal(tdm_loop_add_defer(loop, on_defer_destroy_all, NULL, &victims[i]), 0);
                                tdm_source_schedule(victims[i]);
                        } else if (kind == 3) {
                                assert_int_equal(tdm_loop_add_wake(loop, on_defer_destroy_all, NULL, &victims[i]), 0);
                                tdm_loop_wake(victims[i]);
                        } else {
                                assert_int_equal(tdm_loop_add_signal(loop, SIGUSR1 + (int)i % 2 * 2,
                                                                     on_signal_destroy_all, NULL, &victims[i]),
                                                 0);
                        }
                }
                if (kind == 4) {
                        kill(getpid(), SIGUSR1);
                        kill(getpid(), SIGUSR2);
                }
                for (int i = 0; i < 3; i++)
                        assert_int_equal(tdm_loop_turn(loop, MS), 0);
                assert_int_equal(n_called, 1);
                if (kind == 0)
                        for (unsigned i = 0; i < 4; i++) {
                                close(fds[i][0]);
                                close(fds[i][1]);
                        }
        }
}

/* The other sources are destroyed with the loop. A leak would show in the run under a sanitizer. */
static void test_destroy_loop_with_sources(void **state)
{
        struct tdm_source *s;
        int fds[2];

        make_pair(fds);
        assert_int_equal(tdm_loop_add_io(loop, fds[0], EPOLLIN, on_io, NULL, &s), 0);
        assert_int_equal(tdm_loop_add_timer(loop, on_timer, NULL, &s), 0);
        tdm_source_arm(s, tdm_now_ns() + 1000 * MS);
        assert_int_equal(tdm_loop_add_wake(loop, on_defer, NULL, &s), 0);
        assert_int_equal(tdm_loop_turn(loop, 0), 0);
        assert_int_equal(tdm_loop_add_defer(loop, on_defer, NULL, &s), 0);
        tdm_source_schedule(s);
        tdm_loop_destroyp(&loop);
        close(fds[0]);
        close(fds[1]);
        assert_int_equal(setup(NULL), 0);
}

/* ---- many ---- */

static void test_many(void **state)
{
        enum { N = 3000 };
        struct rlimit old, lim;
        static struct tdm_source *s[N];
        static struct io io[N];
        static int fds[N][2];
        unsigned n;

        assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
        lim = old;
        lim.rlim_cur = TDM_MIN(old.rlim_max, 2 * N + 100);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &lim), 0);
        n = TDM_MIN((unsigned)N, ((unsigned)lim.rlim_cur - 100) / 2);
        for (unsigned i = 0; i < n; i++) {
                io[i] = (struct io){ .drain = true };
                make_pair(fds[i]);
                assert_int_equal(tdm_loop_add_io(loop, fds[i][0], EPOLLIN, on_io, &io[i], &s[i]), 0);
        }
        /* all ready at once: more than the submission and the completion ring hold */
        for (unsigned round = 1; round <= 3; round++) {
                unsigned turns = 0, done = 0;

                for (unsigned i = 0; i < n; i++)
                        assert_int_equal(write(fds[i][1], "x", 1), 1);
                while (done < n && turns++ < 1000) {
                        assert_int_equal(tdm_loop_turn(loop, 100 * MS), 0);
                        done = 0;
                        for (unsigned i = 0; i < n; i++)
                                done += io[i].calls >= round;
                }
                assert_int_equal(done, n);
        }
        for (unsigned i = 0; i < n; i++) {
                assert_int_equal(io[i].calls, 3);
                tdm_source_destroy(s[i]);
                close(fds[i][0]);
                close(fds[i][1]);
        }
        setrlimit(RLIMIT_NOFILE, &old);
}

/* ---- forbidden ---- */

/* A child whose seccomp filter answers one system call with an errno, as a container's would. */
static void forbidden(long number, int error, const char *expect1, const char *expect2)
{
        struct sock_filter filter[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog prog = { .len = TDM_ARRAY_SIZE(filter), .filter = filter };
        struct tdm_error e = { 0 };
        int fds[2], status;
        pid_t pid;

        assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                struct tdm_loop *forbidden_loop = NULL;
                int r;

                if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0)
                        _exit(1);
                r = tdm_loop_new(&forbidden_loop, &e);
                _exit(r != -error || forbidden_loop || write(fds[1], &e, sizeof(e)) != (ssize_t)sizeof(e));
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        assert_int_equal(read(fds[0], &e, sizeof(e)), sizeof(e));
        print_message("%s\n", e.message);
        assert_non_null(strstr(e.message, expect1));
        assert_non_null(strstr(e.message, expect2));
        close(fds[0]);
        close(fds[1]);
}

static void test_forbidden(void **state)
{
        forbidden(SYS_io_uring_setup, EPERM, "sandbox", "seccomp");
        forbidden(SYS_io_uring_enter, EPERM, "sandbox", "io_uring_enter");
        forbidden(SYS_io_uring_setup, ENOSYS, "Linux 5.11", "seccomp");
        forbidden(SYS_io_uring_setup, ENOMEM, "RLIMIT_MEMLOCK", "LimitMEMLOCK=");
        forbidden(SYS_io_uring_setup, EMFILE, "RLIMIT_NOFILE", "open files");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_io),
                cmocka_unit_test(test_close_is_seen),
                cmocka_unit_test(test_stale_readiness),
                cmocka_unit_test(test_return_value),
                cmocka_unit_test(test_timers),
                cmocka_unit_test(test_far_timer_sleeps),
                cmocka_unit_test(test_timer_cannot_starve),
                cmocka_unit_test(test_timer_heap),
                cmocka_unit_test(test_defer_and_exit),
                cmocka_unit_test(test_signals),
                cmocka_unit_test(test_wake),
                cmocka_unit_test(test_destroy_inside),
                cmocka_unit_test(test_destroy_loop_with_sources),
                cmocka_unit_test(test_many),
                cmocka_unit_test(test_forbidden),
        };
        return cmocka_run_group_tests(tests, setup, teardown);
}
