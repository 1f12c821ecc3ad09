/* See runs.h. */
#include "engine/host/runs.h"

void tdm_runs_init(struct tdm_runs *runs, uint32_t n_chunks, unsigned n_threads)
{
        uint32_t first = 0, end;

        runs->n_threads = n_threads;
        for (unsigned i = 0; i < n_threads; i++, first = end) {
                end = (uint32_t)((uint64_t)n_chunks * (i + 1) / n_threads);
                atomic_init(&runs->of[i].chunks, (uint64_t)first << 32 | end);
        }
}

static uint32_t n_left(uint64_t run)
{
        return (uint32_t)run - (uint32_t)(run >> 32);
}

uint32_t tdm_runs_take(struct tdm_runs *runs, unsigned thread)
{
        _Atomic uint64_t *own = &runs->of[thread].chunks, *longest;
        uint64_t run = atomic_load_explicit(own, memory_order_relaxed), other;

        if (runs->n_threads == 1) { /* nobody else takes any, so no instruction is locked */
                atomic_store_explicit(own, run + (UINT64_C(1) << 32), memory_order_relaxed);
                return (uint32_t)(run >> 32);
        }
        /* Relaxed: the pool orders what the job has written, and a chunk's number is all that is taken here. */
        while (n_left(run) > 0)
                if (atomic_compare_exchange_weak_explicit(own, &run, run + (UINT64_C(1) << 32), memory_order_relaxed,
                                                          memory_order_relaxed))
                        return (uint32_t)(run >> 32);
        do {
                longest = own;
                run = 0;
                for (unsigned i = 0; i < runs->n_threads; i++) {
                        other = atomic_load_explicit(&runs->of[i].chunks, memory_order_relaxed);
                        if (n_left(other) > n_left(run)) {
                                run = other;
                                longest = &runs->of[i].chunks;
                        }
                }
        } while (n_left(run) == 0 || !atomic_compare_exchange_weak_explicit(
                                             longest, &run, run - 1, memory_order_relaxed, memory_order_relaxed));
        return (uint32_t)run - 1;
}
