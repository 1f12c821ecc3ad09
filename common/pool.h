/* The host device's threads: fork-join over numbered chunks. The caller is thread 0 and works too.
 *
 * Helpers spin briefly between jobs and then sleep on a futex, so that a waiting pool does not burn the core that the
 * other worker needs. Which thread runs which chunk never changes a result. Each finished chunk bumps the heartbeat. */
#ifndef TDM_COMMON_POOL_H
#define TDM_COMMON_POOL_H

#include <stdatomic.h>
#include "common/error.h"

#define TDM_POOL_MAX_THREADS 64u

struct tdm_pool;

/* chunk in [0, n_chunks), thread in [0, n_threads). */
typedef void (*tdm_pool_fn)(void *arg, unsigned chunk, unsigned thread);

/* n_threads 0: as many as sched_getaffinity allows. At most TDM_POOL_MAX_THREADS. */
int tdm_pool_new(struct tdm_pool **ret, unsigned n_threads, _Atomic uint64_t *heartbeat);
void tdm_pool_destroy(struct tdm_pool *pool);
void tdm_pool_destroyp(struct tdm_pool **pool);
unsigned tdm_pool_n_threads(const struct tdm_pool *pool);
/* Returns when all chunks are done; their writes are visible. n_chunks 0 is fine; 1 runs on the caller alone. */
void tdm_pool_run(struct tdm_pool *pool, unsigned n_chunks, tdm_pool_fn fn, void *arg);
/* The same on the threads that are awake, for jobs that are done sooner than a thread is woken. If all helpers sleep,
 * all are woken. */
void tdm_pool_run_awake(struct tdm_pool *pool, unsigned n_chunks, tdm_pool_fn fn, void *arg);
/* Bumps the heartbeat: for a chunk that takes long. */
void tdm_pool_beat(struct tdm_pool *pool);
/* For this time from now on, idle helpers do not sleep: half of the threads, so that other processes have cores. 0: all
 * may sleep again. */
void tdm_pool_stay_awake(struct tdm_pool *pool, uint64_t ns);

#endif
