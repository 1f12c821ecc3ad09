/* The thread pool: every chunk runs exactly once with every number of threads, the caller sees what the chunks wrote,
 * jobs that follow each other at once or after a sleep do not mix, and the heartbeat counts chunks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "common/pool.h"

struct job {
        unsigned *counts; /* [n_chunks], plain memory: TSan sees a chunk that runs twice or is read too early */
        unsigned n_chunks;
        unsigned n_threads;
        unsigned job;
        unsigned threads_seen[64];
};

static void count_chunk(void *arg, unsigned chunk, unsigned thread)
{
        struct job *job = arg;

        assert_true(chunk < job->n_chunks);
        assert_true(thread < job->n_threads);
        job->counts[chunk] += job->job;
        job->threads_seen[thread]++;
}

static void run_jobs(unsigned n_threads, unsigned n_jobs, bool sleepy)
{
        _cleanup_(tdm_pool_destroyp) struct tdm_pool *pool = NULL;
        _Atomic uint64_t heartbeat = 0;
        uint64_t n_beats = 0;
        unsigned counts[97];

        assert_int_equal(tdm_pool_new(&pool, n_threads, &heartbeat), 0);
        assert_int_equal(tdm_pool_n_threads(pool), n_threads);
        for (unsigned j = 1; j <= n_jobs; j++) {
                struct job job = { .counts = counts, .n_chunks = (j * 7) % 98, .n_threads = n_threads, .job = j };
                unsigned total = 0;

                memset(counts, 0, sizeof(counts));
                if (sleepy)
                        usleep(300);
                tdm_pool_run(pool, job.n_chunks, count_chunk, &job);
                for (unsigned i = 0; i < 97; i++)
                        assert_int_equal(counts[i], i < job.n_chunks ? j : 0);
                for (unsigned i = 0; i < 64; i++)
                        total += job.threads_seen[i];
                assert_int_equal(total, job.n_chunks);
                n_beats += job.n_chunks;
                assert_int_equal(atomic_load(&heartbeat), n_beats);
        }
}

static void test_every_chunk_once(void **state)
{
        for (unsigned n_threads = 1; n_threads <= 5; n_threads++)
                run_jobs(n_threads, 2000, false);
}

static void test_after_sleep(void **state)
{
        for (unsigned n_threads = 2; n_threads <= 4; n_threads++)
                run_jobs(n_threads, 100, true);
}

static void test_no_spin(void **state)
{
        setenv("TANDEM_SPIN_US", "0", 1);
        run_jobs(3, 1000, false);
        unsetenv("TANDEM_SPIN_US");
}

static void test_create_destroy(void **state)
{
        for (unsigned i = 0; i < 50; i++) {
                _cleanup_(tdm_pool_destroyp) struct tdm_pool *pool = NULL;

                assert_int_equal(tdm_pool_new(&pool, i % 5, NULL), 0);
                assert_true(tdm_pool_n_threads(pool) >= 1);
                if (i & 1)
                        usleep(100);
        }
        tdm_pool_destroy(NULL);
}

static void meet_chunk(void *arg, unsigned chunk, unsigned thread)
{
        _Atomic unsigned *n_inside = arg;

        /* Returns only when both chunks are running: proves that two threads work at once. */
        atomic_fetch_add(n_inside, 1);
        while (atomic_load(n_inside) < 2)
                usleep(10);
}

static void test_threads_meet(void **state)
{
        _cleanup_(tdm_pool_destroyp) struct tdm_pool *pool = NULL;

        assert_int_equal(tdm_pool_new(&pool, 2, NULL), 0);
        for (unsigned i = 0; i < 20; i++) {
                _Atomic unsigned n_inside = 0;

                if (i > 10)
                        usleep(1000); /* the helper sleeps by now */
                tdm_pool_run(pool, 2, meet_chunk, &n_inside);
                assert_int_equal(atomic_load(&n_inside), 2);
        }
}

static void meet_all(void *arg, unsigned chunk, unsigned thread)
{
        _Atomic unsigned *n_inside = arg;

        atomic_fetch_add(n_inside, 1);
        while (atomic_load(n_inside) < 4)
                usleep(10);
}

static void note_thread(void *arg, unsigned chunk, unsigned thread)
{
        atomic_fetch_or((_Atomic unsigned *)arg, 1u << thread);
        usleep(100);
}

/* Of four threads two stay awake when the caller asks for it, and they alone do a job for awake threads. If all sleep,
 * such a job wakes all. */
static void test_awake(void **state)
{
        _cleanup_(tdm_pool_destroyp) struct tdm_pool *pool = NULL;
        unsigned n_right = 0;

        assert_int_equal(tdm_pool_new(&pool, 4, NULL), 0);
        /* On a busy machine it may take more rounds until both awake threads have a CPU at the same moment. */
        for (unsigned i = 0; i < 50 || (n_right == 0 && i < 2000); i++) {
                _Atomic unsigned n_inside = 0, threads = 0, n_again = 0;

                tdm_pool_stay_awake(pool, TDM_NSEC_PER_SEC);
                tdm_pool_run(pool, 4, meet_all, &n_inside);
                usleep(1000); /* by now the other threads sleep, unless the machine is busy */
                tdm_pool_run_awake(pool, 8, note_thread, &threads);
                n_right += atomic_load(&threads) == 3;
                tdm_pool_stay_awake(pool, 0);
                usleep(1000);
                tdm_pool_run_awake(pool, 2, meet_chunk, &n_again);
                assert_int_equal(atomic_load(&n_again), 2);
        }
        assert_true(n_right > 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_every_chunk_once), cmocka_unit_test(test_after_sleep),
                cmocka_unit_test(test_no_spin),          cmocka_unit_test(test_create_destroy),
                cmocka_unit_test(test_threads_meet),     cmocka_unit_test(test_awake),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
