/* The two ends of a ring at work at once, in two processes and in two threads (ThreadSanitizer sees only threads), and
 * wake-ups that must never be lost. The plain payload arrays stand for the segments: one end writes them before a push
 * and the other reads them after the pop, with no other synchronisation. So a memory order that is too weak in the ring
 * is a data race here. */
#include "common/test-ring.h"
#include "common/test-thread.h"

#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifdef TANDEM_SANITIZED
#define N_MESSAGES 30000u
#define N_SLEEPY 3000u
#else
#define N_MESSAGES 200000u
#define N_SLEEPY 4000u
#endif
#define WAIT_NS (20 * TDM_NSEC_PER_SEC) /* a lost wake-up is a failure, not a hang */

/* ---- two ends: ping-pong with payload ---- */

enum style { STYLE_SPIN, STYLE_FUTEX, STYLE_FUTEX_FALLBACK, STYLE_EVENTFD };

/* One end of a conversation: takes from `in`, gives to `out`. */
struct end {
        struct tdm_ring *in, *out;
        enum style style;
        uint32_t n;
        uint64_t *payload; /* [n_entries], plain memory: guarded by the rings alone */
        int result;
};

static int take(struct end *e, struct tdm_desc *d)
{
        for (;;) {
                uint64_t begin_ns;
                int r = tdm_ring_pop(e->in, d);

                if (r != 0)
                        return r;
                if (e->style == STYLE_EVENTFD) {
                        struct pollfd pfd = { .fd = tdm_ring_eventfd(e->in), .events = POLLIN };

                        if (!tdm_ring_arm(e->in) && poll(&pfd, 1, (int)(WAIT_NS / TDM_NSEC_PER_MSEC)) != 1)
                                return -ETIMEDOUT;
                        tdm_ring_disarm(e->in);
                        continue;
                }
                begin_ns = tdm_now_ns();
                r = tdm_ring_wait_any(&e->in, 1, NULL, 0, e->style == STYLE_SPIN ? 20000 : 0, WAIT_NS);
                if (r != 0)
                        return r;
                /* It finds the descriptor also when the timeout has ended the sleep. */
                if (tdm_now_ns() - begin_ns >= WAIT_NS)
                        return -ETIME;
        }
}

#define PAYLOADS 64u

static int run_pinger(struct end *e)
{
        for (uint64_t i = 0; i < e->n; i++) {
                struct tdm_desc d = step(i), got;

                e->payload[i % PAYLOADS] = i * 3;
                if (tdm_ring_push(e->out, &d) != 0)
                        return 1;
                if (take(e, &got) != 1)
                        return 2;
                if (got.step_id != i || got.n_rows != ((uint32_t)i ^ 0x5a5a) || e->payload[i % PAYLOADS] != i * 3 + 1)
                        return 3;
        }
        return 0;
}

static int run_ponger(struct end *e)
{
        for (uint64_t i = 0; i < e->n; i++) {
                struct tdm_desc d;

                if (take(e, &d) != 1)
                        return 4;
                if (d.step_id != i || e->payload[i % PAYLOADS] != i * 3)
                        return 5;
                e->payload[i % PAYLOADS]++;
                if (tdm_ring_push(e->out, &d) != 0)
                        return 6;
        }
        return 0;
}

static void *ponger_thread(void *arg)
{
        struct end *e = arg;

        e->result = run_ponger(e);
        return NULL;
}

/* Streams: the producer runs ahead as far as the ring lets it; full and empty both happen. */
static int run_source(struct end *e)
{
        for (uint64_t i = 0; i < e->n; i++) {
                struct tdm_desc d = step(i);
                int r;

                while ((r = tdm_ring_push(e->out, &d)) == -EAGAIN)
                        sched_yield();
                if (r != 0)
                        return 1;
                if (i % 1024 == 0)
                        usleep(100); /* lets the consumer fall asleep */
        }
        return 0;
}

static int run_sink(struct end *e)
{
        for (uint64_t i = 0; i < e->n; i++) {
                struct tdm_desc d;

                if (take(e, &d) != 1)
                        return 2;
                if (d.step_id != i || d.n_rows != ((uint32_t)i ^ 0x5a5a))
                        return 3;
        }
        return 0;
}

static void *sink_thread(void *arg)
{
        struct end *e = arg;

        e->result = run_sink(e);
        return NULL;
}

static void ping_pong(enum style style, bool processes, uint32_t n)
{
        enum tdm_ring_wake wake = style == STYLE_EVENTFD ? TDM_RING_WAKE_EVENTFD : TDM_RING_WAKE_FUTEX;
        uint64_t *payload = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        struct pair there, back;
        struct end a, b;

        assert_true(payload != MAP_FAILED);
        pair_make(&there, 8, wake);
        pair_make(&back, 8, wake);
        a = (struct end){ .in = back.consumer, .out = there.producer, .style = style, .n = n, .payload = payload };
        b = (struct end){ .in = there.consumer, .out = back.producer, .style = style, .n = n, .payload = payload };
        tdm_ring_without_waitv(style == STYLE_FUTEX_FALLBACK);
        if (!processes) {
                tdm_ring_borrow_mapping(there.consumer, there.producer);
                tdm_ring_borrow_mapping(back.consumer, back.producer);
        }
        if (processes) {
                pid_t pid = fork();
                int status;

                assert_true(pid >= 0);
                if (pid == 0)
                        _exit(run_ponger(&b));
                assert_int_equal(run_pinger(&a), 0);
                assert_int_equal(waitpid(pid, &status, 0), pid);
                assert_int_equal(status, 0);
        } else {
                pthread_t t;

                assert_int_equal(pthread_create(&t, NULL, ponger_thread, &b), 0);
                assert_int_equal(run_pinger(&a), 0);
                pthread_join(t, NULL);
                assert_int_equal(b.result, 0);
        }
        tdm_ring_without_waitv(false);
        pair_free(&there);
        pair_free(&back);
        munmap(payload, 4096);
}

static void stream(enum style style, bool processes, uint32_t n)
{
        struct pair p;
        struct end source, sink;

        pair_make(&p, 16, style == STYLE_EVENTFD ? TDM_RING_WAKE_EVENTFD : TDM_RING_WAKE_FUTEX);
        source = (struct end){ .out = p.producer, .n = n };
        sink = (struct end){ .in = p.consumer, .style = style, .n = n };
        tdm_ring_without_waitv(style == STYLE_FUTEX_FALLBACK);
        if (!processes)
                tdm_ring_borrow_mapping(p.consumer, p.producer);
        if (processes) {
                pid_t pid = fork();
                int status;

                assert_true(pid >= 0);
                if (pid == 0)
                        _exit(run_sink(&sink));
                assert_int_equal(run_source(&source), 0);
                assert_int_equal(waitpid(pid, &status, 0), pid);
                assert_int_equal(status, 0);
        } else {
                pthread_t t;

                assert_int_equal(pthread_create(&t, NULL, sink_thread, &sink), 0);
                assert_int_equal(run_source(&source), 0);
                pthread_join(t, NULL);
                assert_int_equal(sink.result, 0);
        }
        tdm_ring_without_waitv(false);
        pair_free(&p);
}

static void test_ping_pong_threads(void **state)
{
        ping_pong(STYLE_SPIN, false, N_SLEEPY);
        ping_pong(STYLE_FUTEX, false, N_SLEEPY);
        ping_pong(STYLE_FUTEX_FALLBACK, false, N_SLEEPY);
        ping_pong(STYLE_EVENTFD, false, N_SLEEPY);
}

static void test_ping_pong_processes(void **state)
{
        ping_pong(STYLE_SPIN, true, N_SLEEPY);
        ping_pong(STYLE_FUTEX, true, N_SLEEPY);
        ping_pong(STYLE_FUTEX_FALLBACK, true, N_SLEEPY);
        ping_pong(STYLE_EVENTFD, true, N_SLEEPY);
}

static void test_stream(void **state)
{
        for (int processes = 0; processes < 2; processes++) {
                stream(STYLE_FUTEX, processes, N_MESSAGES);
                stream(STYLE_EVENTFD, processes, N_MESSAGES / 4);
                stream(STYLE_FUTEX_FALLBACK, processes, N_MESSAGES / 8);
        }
}

/* ---- wait_any ---- */

struct any {
        struct tdm_ring *rings[4]; /* producers, with a hole */
        _Atomic uint32_t *kick;
        uint32_t n;
};

static void *any_thread(void *arg)
{
        struct any *a = arg;

        for (uint64_t i = 0; i < a->n; i++) {
                unsigned k = (unsigned)(i * 7 % 4);

                if (k == 1)
                        tdm_ring_kick(a->kick);
                else {
                        struct tdm_desc d = step(i);

                        while (tdm_ring_push(a->rings[k], &d) == -EAGAIN)
                                sched_yield();
                }
                if (i % 16 == 0)
                        usleep(50);
        }
        return NULL;
}

static void wait_any(bool without_waitv, uint32_t n)
{
        struct tdm_ring *rings[4] = { 0 };
        _Atomic uint32_t kick = 0;
        struct pair p[3];
        struct any a = { .kick = &kick, .n = n };
        uint32_t kick_seen = 0, popped = 0, last[4] = { 0 };
        pthread_t t;

        for (unsigned k = 0, i = 0; k < 4; k++) {
                if (k == 1)
                        continue;
                pair_make(&p[i], 8, TDM_RING_WAKE_FUTEX);
                tdm_ring_borrow_mapping(p[i].consumer, p[i].producer);
                a.rings[k] = p[i].producer;
                rings[k] = p[i++].consumer;
        }
        tdm_ring_without_waitv(without_waitv);
        assert_int_equal(pthread_create(&t, NULL, any_thread, &a), 0);
        while (popped + kick_seen < n) {
                uint64_t begin_ns = tdm_now_ns();
                struct tdm_desc d;

                assert_int_equal(tdm_ring_wait_any(rings, 4, &kick, kick_seen, 1000, WAIT_NS), 0);
                assert_true(tdm_now_ns() - begin_ns < WAIT_NS);
                kick_seen = atomic_load(&kick);
                for (unsigned k = 0; k < 4; k++)
                        while (rings[k] && tdm_ring_pop(rings[k], &d) == 1) {
                                assert_true(d.step_id >= last[k]);
                                last[k] = (uint32_t)d.step_id;
                                popped++;
                        }
        }
        pthread_join(t, NULL);
        tdm_ring_without_waitv(false);
        for (unsigned i = 0; i < 3; i++)
                pair_free(&p[i]);
}

static void test_wait_any(void **state)
{
        wait_any(false, N_SLEEPY);
        wait_any(true, N_SLEEPY / 2);
}

static bool is_woken(const struct pair *p)
{
        struct pollfd fd = { .fd = tdm_ring_eventfd(p->consumer), .events = POLLIN };

        return poll(&fd, 1, 0) == 1;
}

/* An early wake-up ends a sleep as a descriptor does. It ends one sleep: a descriptor that comes while the consumer is
 * awake causes no wake-up, and one that comes during the next sleep causes one as always. */
static void test_wake_early(void **state)
{
        const struct tdm_desc d = step(1);
        struct tdm_desc got;
        struct pair p;
        uint64_t start;

        pair_make(&p, 4, TDM_RING_WAKE_EVENTFD);
        tdm_ring_wake_early(p.producer); /* the consumer is awake */
        assert_false(is_woken(&p));
        assert_false(tdm_ring_arm(p.consumer));
        tdm_ring_wake_early(p.producer);
        assert_true(is_woken(&p));
        tdm_ring_disarm(p.consumer);
        assert_false(is_woken(&p));

        start = tdm_now_ns();
        assert_false(tdm_ring_spin(p.consumer, 2 * TDM_NSEC_PER_MSEC));
        assert_true(tdm_now_ns() - start >= 2 * TDM_NSEC_PER_MSEC);
        assert_int_equal(tdm_ring_push(p.producer, &d), 0);
        assert_false(is_woken(&p));
        assert_true(tdm_ring_spin(p.consumer, WAIT_NS));
        assert_int_equal(tdm_ring_pop(p.consumer, &got), 1);

        assert_false(tdm_ring_arm(p.consumer));
        tdm_ring_wake_early(p.producer);
        assert_int_equal(tdm_ring_push(p.producer, &d), 0); /* before the consumer has disarmed */
        tdm_ring_disarm(p.consumer);
        assert_int_equal(tdm_ring_pop(p.consumer, &got), 1);
        assert_false(tdm_ring_arm(p.consumer));
        assert_int_equal(tdm_ring_push(p.producer, &d), 0);
        assert_true(is_woken(&p));
        pair_free(&p);
}

static void test_wait_timeouts(void **state)
{
        _Atomic uint32_t kick = 5;
        struct tdm_ring *none[2] = { 0 };
        struct pair p, q;

        pair_make(&p, 4, TDM_RING_WAKE_FUTEX);
        pair_make(&q, 4, TDM_RING_WAKE_EVENTFD);
        for (int without = 0; without < 2; without++) {
                uint64_t start = tdm_now_ns(), took;

                tdm_ring_without_waitv(without);
                assert_int_equal(tdm_ring_wait_any(&p.consumer, 1, &kick, 5, 0, 0), -ETIMEDOUT);
                assert_int_equal(tdm_ring_wait_any(&p.consumer, 1, &kick, 5, 1000000, 20 * TDM_NSEC_PER_MSEC),
                                 -ETIMEDOUT);
                /* spinning is part of the timeout, not on top of it */
                assert_int_equal(tdm_ring_wait_any(&p.consumer, 1, &kick, 5, UINT64_MAX, 5 * TDM_NSEC_PER_MSEC),
                                 -ETIMEDOUT);
                assert_int_equal(tdm_ring_wait_any(none, 2, NULL, 0, 0, 5 * TDM_NSEC_PER_MSEC), -ETIMEDOUT);
                took = tdm_now_ns() - start;
                assert_true(took >= 30 * TDM_NSEC_PER_MSEC);
                assert_true(took < WAIT_NS);
                assert_int_equal(tdm_ring_wait_any(&p.consumer, 1, &kick, 4, 0, UINT64_MAX), 0);
        }
        tdm_ring_without_waitv(false);
        assert_int_equal(tdm_ring_wait_any(none, 2, NULL, 0, 0, UINT64_MAX), -EINVAL);
        assert_int_equal(tdm_ring_wait_any(&p.producer, 1, NULL, 0, 0, 1), -EINVAL);
        assert_int_equal(tdm_ring_wait_any(&q.consumer, 1, NULL, 0, 0, 1), -EINVAL);
        pair_free(&p);
        pair_free(&q);
}

/* One sleep costs the producer one wake-up, however much it pushes. */
static void test_one_wake_for_one_sleep(void **state)
{
        struct tdm_desc d = step(1), got;
        uint64_t count;
        struct pair p;

        pair_make(&p, 8, TDM_RING_WAKE_EVENTFD);
        assert_int_equal(tdm_ring_push(p.producer, &d), 0);
        assert_int_equal(read(tdm_ring_eventfd(p.consumer), &count, 8), -1); /* awake: no wake-up at all */
        assert_true(tdm_ring_arm(p.consumer));                               /* a descriptor waits: no sleep */
        tdm_ring_disarm(p.consumer);
        assert_int_equal(tdm_ring_pop(p.consumer, &got), 1);
        for (int round = 0; round < 3; round++) {
                assert_false(tdm_ring_arm(p.consumer));
                for (int i = 0; i < 5; i++)
                        assert_int_equal(tdm_ring_push(p.producer, &d), 0);
                assert_int_equal(read(tdm_ring_eventfd(p.producer), &count, 8), 8);
                assert_int_equal(count, 1);
                tdm_ring_disarm(p.consumer);
                for (int i = 0; i < 5; i++)
                        assert_int_equal(tdm_ring_pop(p.consumer, &got), 1);
                /* armed twice without a disarm between: the second is a sleep of its own */
                assert_false(tdm_ring_arm(p.consumer));
                assert_int_equal(tdm_ring_push(p.producer, &d), 0);
                assert_int_equal(tdm_ring_pop(p.consumer, &got), 1);
                assert_false(tdm_ring_arm(p.consumer));
                assert_int_equal(tdm_ring_push(p.producer, &d), 0);
                assert_int_equal(read(tdm_ring_eventfd(p.producer), &count, 8), 8);
                assert_int_equal(count, 2);
                tdm_ring_disarm(p.consumer);
                assert_int_equal(tdm_ring_pop(p.consumer, &got), 1);
        }
        pair_free(&p);
}

/* A producer is held up in the middle of a push, after its store of `produced`. Meanwhile the consumer pops and goes to
 * sleep. The producer takes that sleep for the one that its push has to end, and wakes for nothing. Its wake-up comes
 * before the consumer is in the kernel, and reaches no thread, or after, and then the consumer sleeps again. In both
 * cases the next push must find the consumer asleep and wake it. */
struct late {
        struct tdm_ring *consumer;
        int result;
        uint64_t took_ns;
        _Atomic pid_t tid;
};

static void *late_thread(void *arg)
{
        struct late *l = arg;
        uint64_t begin_ns = tdm_now_ns();

        atomic_store(&l->tid, gettid());
        l->result = tdm_ring_wait_any(&l->consumer, 1, NULL, 0, 0, WAIT_NS);
        l->took_ns = tdm_now_ns() - begin_ns;
        return NULL;
}

enum late_wake { LATE_WAKE_BEFORE_SLEEP, LATE_WAKE_IN_SLEEP };

static void late_wake_up(bool without_waitv, enum late_wake when, bool early)
{
        struct tdm_ring_shared *shared;
        struct late l = { 0 };
        struct tdm_desc d = step(1), got;
        struct pair p;
        pthread_t t;

        pair_make(&p, 8, TDM_RING_WAKE_FUTEX);
        tdm_ring_without_waitv(without_waitv);
        shared = tdm_ring_shared(p.consumer);
        l.consumer = p.consumer;
        atomic_store(&shared->sleep_seq, 1); /* the number of the sleep to come: what follows answers it */
        if (early)
                tdm_ring_wake_early(p.producer);
        else {
                assert_int_equal(tdm_ring_push(p.producer, &d), 0);
                assert_int_equal(tdm_ring_pop(p.consumer, &got), 1);
        }
        assert_int_equal(pthread_create(&t, NULL, late_thread, &l), 0);
        if (when == LATE_WAKE_IN_SLEEP) {
                while (syscall(SYS_futex, &shared->produced, FUTEX_WAKE, 1, NULL, NULL, 0) != 1)
                        usleep(100);
                usleep(20000); /* time to sleep again; a consumer that is slower makes this round show nothing */
        } else
                while (!atomic_load(&l.tid) || !test_thread_sleeps(atomic_load(&l.tid)))
                        usleep(100);
        assert_int_equal(tdm_ring_push(p.producer, &d), 0);
        pthread_join(t, NULL);
        tdm_ring_without_waitv(false);
        assert_int_equal(l.result, 0);
        assert_true(l.took_ns < WAIT_NS / 2); /* else the timeout ended the wait */
        pair_free(&p);
}

static void test_late_wake_up(void **state)
{
        for (int without_waitv = 0; without_waitv < 2; without_waitv++)
                for (int early = 0; early < 2; early++) {
                        late_wake_up(without_waitv, LATE_WAKE_BEFORE_SLEEP, early);
                        late_wake_up(without_waitv, LATE_WAKE_IN_SLEEP, early);
                }
}

static uint64_t cpu_ns(pthread_t thread)
{
        struct timespec ts;
        clockid_t clock;

        assert_int_equal(pthread_getcpuclockid(thread, &clock), 0);
        assert_int_equal(clock_gettime(clock, &ts), 0);
        return (uint64_t)ts.tv_sec * TDM_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

/* Wakes a consumer early and waits until it sleeps again. Returns what it computed meanwhile. */
static uint64_t spun_ns(struct pair *p, pthread_t thread, pid_t tid)
{
        uint64_t before_ns;

        while (!test_thread_sleeps(tid))
                usleep(100);
        before_ns = cpu_ns(thread);
        tdm_ring_wake_early(p->producer);
        usleep(5000);
        while (!test_thread_sleeps(tid))
                usleep(100);
        return cpu_ns(thread) - before_ns;
}

/* A consumer that waits spins when it is woken early, once for a wait. It then sleeps as before. On a machine whose
 * cores are taken the spin may get no time: one of some is enough. */
static void test_spins_when_woken_early(void **state)
{
        bool spun = false;

        for (unsigned i = 0; i < 50 && !spun; i++) {
                struct tdm_desc d = step(1);
                struct late l = { 0 };
                uint64_t first_ns, second_ns;
                struct pair p;
                pthread_t t;

                pair_make(&p, 8, TDM_RING_WAKE_FUTEX);
                l.consumer = p.consumer;
                assert_int_equal(pthread_create(&t, NULL, late_thread, &l), 0);
                while (!atomic_load(&l.tid))
                        usleep(100);
                first_ns = spun_ns(&p, t, atomic_load(&l.tid));
                second_ns = spun_ns(&p, t, atomic_load(&l.tid));
                spun = first_ns > TDM_RING_EARLY_WAKE_NS / 2 && second_ns < TDM_RING_EARLY_WAKE_NS / 2;
                assert_int_equal(tdm_ring_push(p.producer, &d), 0);
                pthread_join(t, NULL);
                assert_int_equal(l.result, 0);
                assert_true(l.took_ns < WAIT_NS / 2); /* else the timeout ended the wait */
                pair_free(&p);
        }
        assert_true(spun);
}

/* The handshake before a sleep (P3 in docs/ring-abi.md): a push and an arm at the same moment, many times. Either the
 * consumer sees the descriptor or the producer sees the sleeper. With orders weaker than seq_cst both can miss. */
struct handshake {
        struct tdm_ring *producer;
        _Atomic uint32_t go, done; /* go UINT32_MAX: stop */
        uint32_t n;
};

/* Both threads must run at the same moment, so each gets a core of its own if the machine has two. */
static void pin(unsigned which)
{
        cpu_set_t allowed, one;

        CPU_ZERO(&one);
        if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0 || CPU_COUNT(&allowed) < 2)
                return;
        for (unsigned cpu = 0, n = 0; cpu < CPU_SETSIZE; cpu++)
                if (CPU_ISSET(cpu, &allowed) && n++ == which) {
                        CPU_SET(cpu, &one);
                        sched_setaffinity(0, sizeof(one), &one);
                        return;
                }
}

static void *handshake_thread(void *arg)
{
        struct handshake *h = arg;
        struct tdm_desc d = step(1);

        pin(1);
        for (uint32_t i = 1; i <= h->n; i++) {
                for (unsigned spins = 0; atomic_load(&h->go) < i; spins++)
                        if (spins > 50000)
                                sched_yield();
                if (atomic_load(&h->go) == UINT32_MAX || tdm_ring_push(h->producer, &d) != 0)
                        break;
                atomic_store(&h->done, i);
        }
        return NULL;
}

static void test_handshake(void **state)
{
        struct handshake h = { .n = 10 * N_MESSAGES };
        uint64_t until_ns = tdm_now_ns() + TDM_NSEC_PER_SEC / 2;
        uint32_t i, missed = 0, slept = 0;
        cpu_set_t before;
        struct tdm_desc d;
        uint64_t count;
        struct pair p;
        pthread_t t;

        pair_make(&p, 8, TDM_RING_WAKE_EVENTFD);
        tdm_ring_borrow_mapping(p.consumer, p.producer);
        h.producer = p.producer;
        sched_getaffinity(0, sizeof(before), &before);
        assert_int_equal(pthread_create(&t, NULL, handshake_thread, &h), 0);
        pin(0);
        for (i = 1; i <= h.n && tdm_now_ns() < until_ns; i++) {
                bool seen, woken;

                atomic_store(&h.go, i);
                for (uint32_t k = i % 1499; k > 0; k--) /* sweeps across the other thread's reaction time */
                        __asm__ volatile("");
                seen = tdm_ring_arm(p.consumer);
                for (unsigned spins = 0; atomic_load(&h.done) < i; spins++)
                        if (spins > 50000)
                                sched_yield();
                woken = read(tdm_ring_eventfd(p.consumer), &count, 8) == 8;
                tdm_ring_disarm(p.consumer);
                missed += !seen && !woken;
                slept += !seen;
                assert_int_equal(tdm_ring_pop(p.consumer, &d), 1);
        }
        print_message("%u handshakes, %u times put to sleep\n", i - 1, slept);
        atomic_store(&h.go, UINT32_MAX);
        pthread_join(t, NULL);
        sched_setaffinity(0, sizeof(before), &before);
        assert_int_equal(missed, 0);
        pair_free(&p);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_one_wake_for_one_sleep),
                cmocka_unit_test(test_late_wake_up),
                cmocka_unit_test(test_wake_early),
                cmocka_unit_test(test_spins_when_woken_early),
                cmocka_unit_test(test_wait_timeouts),
                cmocka_unit_test(test_ping_pong_processes),
                cmocka_unit_test(test_ping_pong_threads),
                cmocka_unit_test(test_stream),
                cmocka_unit_test(test_wait_any),
                cmocka_unit_test(test_handshake),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
