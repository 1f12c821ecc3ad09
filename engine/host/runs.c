#include "engine/host/runs.h"

struct runs {
        struct tdm_pool *pool;
        tdm_pool_fn fn;
        void *arg;
        unsigned n_threads;
        struct {
                _Alignas(64) _Atomic uint64_t chunks; /* first << 32 | end */
        } of[TDM_POOL_MAX_THREADS];                   /* those of n_threads are written */
};

static uint32_t n_left(uint64_t run)
{
        return (uint32_t)run - (uint32_t)(run >> 32);
}

/* The next chunk for a thread. False: all are taken. */
static bool run_take_chunk(struct runs *runs, unsigned thread, uint32_t *ret)
{
        _Atomic uint64_t *own = &runs->of[thread].chunks, *longest = own;
        uint64_t run = atomic_load_explicit(own, memory_order_relaxed), other;

        /* Relaxed: the pool orders what the job has written, and a chunk's number is all that is taken here. */
        while (n_left(run) > 0)
                if (atomic_compare_exchange_weak_explicit(own, &run, run + (UINT64_C(1) << 32), memory_order_relaxed,
                                                          memory_order_relaxed)) {
                        *ret = (uint32_t)(run >> 32);
                        return true;
                }
        for (;;) {
                run = 0;
                for (unsigned i = 0; i < runs->n_threads; i++) {
                        other = atomic_load_explicit(&runs->of[i].chunks, memory_order_relaxed);
                        if (n_left(other) > n_left(run)) {
                                run = other;
                                longest = &runs->of[i].chunks;
                        }
                }
                if (n_left(run) == 0)
                        return false;
                if (atomic_compare_exchange_weak_explicit(longest, &run, run - 1, memory_order_relaxed,
                                                          memory_order_relaxed)) {
                        *ret = (uint32_t)run - 1;
                        return true;
                }
        }
}

/* A place of the pool's job. It ends when no chunk is left to take. Other threads may still compute theirs: the pool
 * waits for their places. */
static void take_all(void *arg, unsigned place, unsigned thread)
{
        struct runs *runs = arg;
        uint32_t chunk;

        while (run_take_chunk(runs, thread, &chunk)) {
                runs->fn(runs->arg, chunk, thread);
                tdm_pool_beat(runs->pool);
        }
}

void tdm_runs_run(struct tdm_pool *pool, uint32_t n_chunks, tdm_pool_fn fn, void *arg)
{
        struct runs runs; /* no initialiser: it would clear the runs of threads that are not there */
        uint32_t first = 0, end;

        runs.n_threads = tdm_pool_n_threads(pool);
        if (n_chunks <= 1 || runs.n_threads == 1) {
                tdm_pool_run(pool, n_chunks, fn, arg);
                return;
        }
        runs.pool = pool;
        runs.fn = fn;
        runs.arg = arg;
        for (unsigned i = 0; i < runs.n_threads; i++, first = end) {
                end = (uint32_t)((uint64_t)n_chunks * (i + 1) / runs.n_threads);
                atomic_init(&runs.of[i].chunks, (uint64_t)first << 32 | end);
        }
        tdm_pool_run(pool, TDM_MIN(n_chunks, runs.n_threads), take_all, &runs);
}
