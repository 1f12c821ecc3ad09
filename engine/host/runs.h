/* Who computes which chunk of a job. Chunks that follow each other lie behind each other in memory, and a kernel
 * fetches what follows while it computes. So each thread has a run of them, and one that is done takes from the end of
 * the longest run that is left. The pool's own numbers would give every thread what another one has fetched. */
#ifndef TDM_ENGINE_HOST_RUNS_H
#define TDM_ENGINE_HOST_RUNS_H

#include <stdatomic.h>

#include "common/pool.h"

struct tdm_runs {
        unsigned n_threads;
        struct {
                _Alignas(64) _Atomic uint64_t chunks; /* first << 32 | end */
        } of[TDM_POOL_MAX_THREADS];
};

/* Before the job runs. Only the runs of n_threads are written. */
void tdm_runs_init(struct tdm_runs *runs, uint32_t n_chunks, unsigned n_threads);
/* The number of the chunk to compute. Called once for each chunk of the job, so there is one. */
uint32_t tdm_runs_take(struct tdm_runs *runs, unsigned thread);

#endif
