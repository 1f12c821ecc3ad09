/* How long to spin before sleeping. Spinning pays where the peer runs on a core of its own and answers soon; where it
 * does not, we spin on the very core that it needs. Which of the two it is changes with the load of the machine, so it
 * is learned: a spin that was answered brings back the full length, one that was not halves it down to none, and every
 * so often one is tried. */
#ifndef TDM_COMMON_SPIN_H
#define TDM_COMMON_SPIN_H

#include "common/util.h"

#define TDM_SPIN_MIN_NS UINT64_C(2000)
#define TDM_SPIN_TRY_EVERY 64u

/* All zero: nothing is known, so the first one is tried. */
struct tdm_spin {
        uint64_t ns;
        uint32_t n_waits;
};

/* For the wait that begins; 0: not. */
static inline uint64_t tdm_spin_next(struct tdm_spin *s, uint64_t max_ns)
{
        bool tries = s->n_waits++ % TDM_SPIN_TRY_EVERY == 0;

        return s->ns == 0 && tries ? max_ns : s->ns;
}

/* It was spun for so long, at most. */
static inline void tdm_spin_learn(struct tdm_spin *s, uint64_t max_ns, uint64_t spun_ns, bool answered)
{
        if (spun_ns == 0)
                return;
        s->ns = answered ? max_ns : spun_ns / 2 < TDM_SPIN_MIN_NS ? 0 : spun_ns / 2;
}

#endif
