/* How long to spin before sleeping. Spinning pays if the peer runs on a core of its own and answers soon. If it has no
 * core, the spin takes the very core that it needs. Which of the two is true changes with the load of the machine, so
 * it is learned: a spin that was answered restores the full length, a spin that was not halves it, down to none. After
 * that, one spin is tried now and then. */
#ifndef TDM_COMMON_SPIN_H
#define TDM_COMMON_SPIN_H

#include <sched.h>
#include "common/util.h"

/* From this number of CPUs on, one may spin while others work. */
#define TDM_SPIN_CPUS 4
#define TDM_SPIN_MIN_NS UINT64_C(2000)
#define TDM_SPIN_TRY_EVERY 64u

/* All zero: nothing is known, so the first one is tried. */
struct tdm_spin {
        uint64_t ns;
        uint32_t n_waits;
};

/* Whether a thread may spin although work that it waits for runs on CPUs too. */
static inline bool tdm_spin_has_cores(void)
{
        cpu_set_t cpus;

        return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) >= TDM_SPIN_CPUS;
}

/* How long to spin for the wait that begins; 0: sleep at once. */
static inline uint64_t tdm_spin_next(struct tdm_spin *s, uint64_t max_ns)
{
        bool tries = s->n_waits++ % TDM_SPIN_TRY_EVERY == 0;

        return s->ns == 0 && tries ? max_ns : s->ns;
}

/* Call it after a spin of at most that long. */
static inline void tdm_spin_learn(struct tdm_spin *s, uint64_t max_ns, uint64_t spun_ns, bool answered)
{
        if (spun_ns == 0)
                return;
        s->ns = answered ? max_ns : spun_ns / 2 < TDM_SPIN_MIN_NS ? 0 : spun_ns / 2;
}

#endif
