/* How long a piece of work took by itself: the time that passed, less the time in which the thread that does it was
 * ready to run and had no CPU. Waiting for a disk or for another thread counts.
 *
 * The kernel says how long a thread waited, in /proc. Where it does not, all time counts. Of one thread only. */
#ifndef TDM_COMMON_STINT_H
#define TDM_COMMON_STINT_H

#include "common/util.h"

struct tdm_stint {
        uint64_t begin_ns, waited_ns;
};

void tdm_stint_begin(struct tdm_stint *stint);
uint64_t tdm_stint_ns(const struct tdm_stint *stint);

#endif
