/* The ring of events: what is written is read, in order; what was written over is counted and never shown torn; a
 * writer that lies is only a writer that lies. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/device/trace.h"

#ifdef TANDEM_SANITIZED
#define N_RACED UINT64_C(300000)
#else
#define N_RACED UINT64_C(4000000)
#endif

static struct tdm_trace_event events[TDM_TRACE_EVENTS + 100];

static struct tdm_trace_ring *make_ring(void)
{
        struct tdm_trace_ring *ring = malloc(sizeof(*ring));

        assert_non_null(ring);
        memset(ring, 0xa5, sizeof(*ring));
        tdm_trace_ring_init(ring);
        return ring;
}

/* Every field is a function of the number, so that a torn event is seen. */
static struct tdm_trace_event make(uint64_t i)
{
        return (struct tdm_trace_event){
                .time_ns = i * 3 + 1,
                .step = ~i,
                .kind = (uint32_t)(1 + i % 13),
                .block = (uint32_t)(i % 5),
                .from_peer = i % 3 == 0,
                .layer = (uint32_t)(i % 65536),
                .rows = (uint32_t)(i * 7),
                .arg = i ^ 0x5555555555555555u,
        };
}

static void write_n(struct tdm_trace_ring *ring, uint64_t first, uint64_t n)
{
        for (uint64_t i = first; i < first + n; i++) {
                struct tdm_trace_event e = make(i);

                tdm_trace_add(ring, &e);
        }
}

static void check_event(const struct tdm_trace_event *e)
{
        struct tdm_trace_event want = make((e->time_ns - 1) / 3);

        assert_int_equal(e->time_ns, want.time_ns);
        assert_int_equal(e->step, want.step);
        assert_int_equal(e->kind, want.kind);
        assert_int_equal(e->block, want.block);
        assert_int_equal(e->from_peer, want.from_peer);
        assert_int_equal(e->layer, want.layer);
        assert_int_equal(e->rows, want.rows);
        assert_int_equal(e->arg, want.arg);
}

static void test_in_order(void **state)
{
        struct tdm_trace_ring *ring = make_ring();
        uint64_t cursor = tdm_trace_cursor(ring, false), lost = 0, next = 0;

        assert_int_equal(tdm_trace_read(ring, &cursor, events, 10, &lost), 0);
        for (uint64_t round = 0; round < 3 * TDM_TRACE_EVENTS / 100; round++) {
                size_t n;

                write_n(ring, round * 100, 100);
                while ((n = tdm_trace_read(ring, &cursor, events, 33, &lost)) > 0)
                        for (size_t i = 0; i < n; i++) {
                                assert_int_equal(events[i].time_ns, next++ * 3 + 1);
                                check_event(&events[i]);
                        }
                assert_int_equal(next, (round + 1) * 100);
        }
        assert_int_equal(lost, 0);
        free(ring);
}

/* All pages are there from the beginning. */
static void test_pages(void **state)
{
        uint8_t *bytes = mmap(NULL, TDM_TRACE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (TDM_TRACE_BYTES + page - 1) / page;
        unsigned char *resident = calloc(n, 1);

        assert_true(bytes != MAP_FAILED && resident);
        assert_int_equal(mincore(bytes, TDM_TRACE_BYTES, resident), 0);
        assert_false(resident[n - 1] & 1);
        tdm_trace_ring_init((struct tdm_trace_ring *)bytes);
        assert_int_equal(mincore(bytes, TDM_TRACE_BYTES, resident), 0);
        for (size_t i = 0; i < n; i++)
                assert_true(resident[i] & 1);
        free(resident);
        munmap(bytes, TDM_TRACE_BYTES);
}

static void test_overtaken(void **state)
{
        struct tdm_trace_ring *ring = make_ring();
        uint64_t cursor = tdm_trace_cursor(ring, false), lost = 0, past;
        size_t n;

        write_n(ring, 0, 3 * TDM_TRACE_EVENTS + 5);
        n = tdm_trace_read(ring, &cursor, events, TDM_ARRAY_SIZE(events), &lost);
        assert_int_equal(n, TDM_TRACE_EVENTS - 1);
        assert_int_equal(lost + n, 3 * TDM_TRACE_EVENTS + 5);
        for (size_t i = 0; i < n; i++)
                assert_int_equal(events[i].time_ns, (lost + i) * 3 + 1);
        assert_int_equal(tdm_trace_read(ring, &cursor, events, 10, &lost), 0);

        past = tdm_trace_cursor(ring, true);
        assert_int_equal(past, cursor - (TDM_TRACE_EVENTS - 1));
        assert_int_equal(tdm_trace_cursor(ring, false), cursor);
        free(ring);
}

/* What stands in the ring is the writer's say: no count makes the reader look outside, run long or go backwards. */
static void test_lies(void **state)
{
        static const uint64_t counts[] = { 0, 1, TDM_TRACE_EVENTS - 1, TDM_TRACE_EVENTS, UINT64_MAX / 2, UINT64_MAX };
        struct tdm_trace_ring *ring = make_ring();

        memset(ring->entries, 0xff, sizeof(ring->entries));
        for (size_t a = 0; a < TDM_ARRAY_SIZE(counts); a++)
                for (size_t b = 0; b < TDM_ARRAY_SIZE(counts); b++) {
                        uint64_t cursor, lost = 0;
                        size_t n;

                        atomic_store(&ring->written, counts[a]);
                        cursor = tdm_trace_cursor(ring, a & 1);
                        atomic_store(&ring->written, counts[b]);
                        n = tdm_trace_read(ring, &cursor, events, TDM_ARRAY_SIZE(events), &lost);
                        assert_true(n < TDM_TRACE_EVENTS);
                        assert_int_equal(cursor, counts[b]);
                        for (size_t i = 0; i < n; i++) {
                                assert_int_equal(events[i].kind, 0xff);
                                assert_int_equal(events[i].layer, 0xffff);
                        }
                }
        free(ring);
}

static void *writer(void *ring)
{
        write_n(ring, 0, N_RACED);
        return NULL;
}

/* A reader that copies the whole ring while the writer runs over it: nothing torn, nothing counted twice or not at all.
 */
static void test_race(void **state)
{
        struct tdm_trace_ring *ring = make_ring();
        uint64_t cursor = 0, lost = 0, got = 0, last = 0;
        pthread_t thread;

        assert_int_equal(pthread_create(&thread, NULL, writer, ring), 0);
        while (cursor < N_RACED) {
                size_t n = tdm_trace_read(ring, &cursor, events, TDM_ARRAY_SIZE(events), &lost);

                for (size_t i = 0; i < n; i++) {
                        assert_true(events[i].time_ns > last);
                        last = events[i].time_ns;
                        check_event(&events[i]);
                }
                got += n;
        }
        pthread_join(thread, NULL);
        assert_int_equal(got + lost, N_RACED);
        print_message("%llu of %llu events read, %llu overtaken\n", (unsigned long long)got,
                      (unsigned long long)N_RACED, (unsigned long long)lost);
        free(ring);
}

#ifndef TANDEM_SANITIZED
static struct tdm_trace_ring *interrupted;
static volatile sig_atomic_t n_interrupts;
static uint64_t n_written;

static void on_alarm(int signo)
{
        write_n(interrupted, n_written, TDM_TRACE_EVENTS / 2);
        n_written += TDM_TRACE_EVENTS / 2;
        n_interrupts = n_interrupts + 1;
}

/* The same on one core: the writer is a signal, so that it comes in the middle of a copy for certain. */
static void test_interrupted(void **state)
{
        const struct itimerval often = { .it_interval = { .tv_usec = 200 }, .it_value = { .tv_usec = 200 } };
        const struct itimerval never = { 0 };
        uint64_t cursor = 0, lost = 0, got = 0, last = 0;

        interrupted = make_ring();
        assert_true(signal(SIGALRM, on_alarm) != SIG_ERR);
        assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
        while (n_interrupts < 300) {
                /* Always the whole ring: the slot that is copied first is the one that is written next. */
                uint64_t from = cursor = tdm_trace_cursor(interrupted, true), lost_before = lost;
                size_t n = tdm_trace_read(interrupted, &cursor, events, TDM_ARRAY_SIZE(events), &lost);

                for (size_t i = 0; i < n; i++) {
                        assert_true(i == 0 || events[i].time_ns == last + 3);
                        last = events[i].time_ns;
                        check_event(&events[i]);
                }
                got += n;
                assert_int_equal(cursor - from, n + lost - lost_before);
        }
        assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
        assert_true(got > 0 && lost > 0);
        free(interrupted);
}
#endif

static uint64_t cpu_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return (uint64_t)now.tv_sec * TDM_NSEC_PER_SEC + (uint64_t)now.tv_nsec;
}

/* The price of being watched, told; held to a bound far above what it is, for machines that are busy. */
static void test_cost(void **state)
{
        struct tdm_trace_ring *ring = make_ring();
        uint64_t best = UINT64_MAX;

        for (int round = 0; round < 5; round++) {
                uint64_t begin = cpu_ns();

                write_n(ring, 0, 100000);
                best = TDM_MIN(best, cpu_ns() - begin);
        }
        print_message("%.1f ns an event\n", (double)best / 100000);
#ifndef TANDEM_SANITIZED
        assert_true(best < 100000 * UINT64_C(50));
#endif
        free(ring);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_pages),       cmocka_unit_test(test_in_order), cmocka_unit_test(test_overtaken),
                cmocka_unit_test(test_lies),        cmocka_unit_test(test_race),     cmocka_unit_test(test_cost),
#ifndef TANDEM_SANITIZED
                cmocka_unit_test(test_interrupted), /* sanitizers put signals off */
#endif
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
