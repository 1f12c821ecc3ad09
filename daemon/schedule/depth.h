/* How many rows of a prompt a step may have where its rows look at many positions.
 *
 * A driver gives up on a submission of some seconds, and the smallest submission of a GPU is a block of all rows of a
 * step. Rows are learned by the time that steps took (device-time.c), and a row costs a fixed part and a part for each
 * position that it looks at. So what was learned at the begin of a text says too much for one that goes on behind
 * 100,000 positions, as after a hit in the prefix cache. There the product of rows and positions bounds the first step,
 * and the next ones are learned again. */
#ifndef TDM_DAEMON_SCHEDULE_DEPTH_H
#define TDM_DAEMON_SCHEDULE_DEPTH_H

#include "common/util.h"

/* The fixed part of a row's cost, in positions: a little one, so that rows are rather too few once. */
#define TDM_DEPTH_FIXED 4096u

/* Rows at `depth` positions, where n_rows were right at `known`. Steps that go on from each other are learned by
 * themselves: it is changed only where a row may cost more than twice as much. */
static inline uint32_t tdm_rows_at_depth(uint32_t n_rows, uint32_t known, uint32_t depth)
{
        uint64_t was = 2 * ((uint64_t)known + TDM_DEPTH_FIXED), is = (uint64_t)depth + TDM_DEPTH_FIXED;

        return is <= was ? n_rows : (uint32_t)TDM_MAX(n_rows * was / is, UINT64_C(1));
}

#endif
