/* Who computes which chunk of a job. Chunks that follow each other lie behind each other in memory, and a kernel
 * fetches what follows while it computes. So each thread has a run of them, and one that is done takes from the end of
 * the longest run that is left. The pool's own numbers would give every thread what another one has fetched.
 *
 * The pool gives each thread one place, and the thread stays there until no chunk is left. To take a chunk is then
 * cheap, so chunks can be short. */
#ifndef TDM_ENGINE_HOST_RUNS_H
#define TDM_ENGINE_HOST_RUNS_H

#include "common/pool.h"

/* As tdm_pool_run(): fn once for each chunk below n_chunks. Returns when all are done; their writes are visible. */
void tdm_runs_run(struct tdm_pool *pool, uint32_t n_chunks, tdm_pool_fn fn, void *arg);

#endif
