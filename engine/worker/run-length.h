/* How many blocks of a step a worker gives its device in one run().
 *
 * A long run is cut here and there, so that a step that is void already is dropped soon: one layer of a prefill takes
 * tens of milliseconds, all layers of a few decode rows take as much together. A device that is faster than that gets
 * more at once, since each run() costs it a submission and a wait: how many is learned for each size of step, in powers
 * of two far enough apart that it settles (a device may keep what it recorded for a run of this many blocks). A slow
 * GPU that also draws a screen gets a block at a time, half a layer. */
#ifndef TDM_WORKER_RUN_LENGTH_H
#define TDM_WORKER_RUN_LENGTH_H

#include "common/util.h"

#define TDM_RUN_SHORT_NS (16 * TDM_NSEC_PER_MSEC)
#define TDM_RUN_LONG_NS (48 * TDM_NSEC_PER_MSEC)
#define TDM_RUN_FEW_ROWS 16u
#define TDM_RUN_BLOCKS_MIN 1u
#define TDM_RUN_BLOCKS_OF_MANY 2u /* the first guess, as the next one */
#define TDM_RUN_BLOCKS_OF_FEW 16u
#define TDM_RUN_SIZES 4u

/* Sizes of steps that are learned apart: 0 … TDM_RUN_SIZES - 1. */
static inline unsigned tdm_run_size_of(uint32_t n_rows)
{
        return n_rows <= TDM_RUN_FEW_ROWS ? 0 : n_rows <= 64 ? 1 : n_rows <= 256 ? 2 : 3;
}

static inline uint32_t tdm_run_first_guess(unsigned size)
{
        return size == 0 ? TDM_RUN_BLOCKS_OF_FEW : TDM_RUN_BLOCKS_OF_MANY;
}

/* After a run() of *n blocks, of n_blocks that a model has, took this long. */
static inline void tdm_run_learn(uint32_t *n, uint64_t ns, uint32_t n_blocks)
{
        if (ns < TDM_RUN_SHORT_NS && *n < n_blocks)
                *n *= 2;
        else if (ns > TDM_RUN_LONG_NS && *n > TDM_RUN_BLOCKS_MIN)
                *n /= 2;
}

#endif
