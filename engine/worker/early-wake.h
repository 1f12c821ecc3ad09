/* When a worker wakes tandemd before a step is done (tdm_ring_wake_early()). tandemd sleeps while a device computes,
 * and waking a thread whose core sleeps takes 50 µs, which would come on top of every step.
 *
 * A device reports blocks in batches, as it finishes them. The last batches come some time before the step's tokens are
 * drawn. The worker learns how long before from the last step with as many rows. It wakes tandemd at the last batch
 * that comes at least TDM_EARLY_WAKE_MIN_NS before the end, if that is at most TDM_RING_EARLY_WAKE_NS before it:
 * tandemd spins from then on, and a longer spin would only burn time. */
#ifndef TDM_WORKER_EARLY_WAKE_H
#define TDM_WORKER_EARLY_WAKE_H

#include "common/ring.h"
#include "common/util.h"

#define TDM_EARLY_WAKE_MIN_NS UINT64_C(30000)
#define TDM_EARLY_WAKE_BATCH_NS UINT64_C(10000) /* blocks told within this long are one batch */

/* All zero: nothing is learned yet. */
struct tdm_early_wake {
        /* learned: of a step of this many rows, the first of the batch to say it with; n_rows 0: none */
        uint32_t n_rows, block;
        struct {
                uint32_t block;
                uint64_t ns; /* 0: there was none */
        } last, before;      /* batches of the step that is on */
};

static inline void tdm_early_wake_begin(struct tdm_early_wake *s)
{
        s->last.ns = s->before.ns = 0;
}

/* The device has finished `block`, and it is not the step's end. Returns whether to wake tandemd now. */
static inline bool tdm_early_wake_block(struct tdm_early_wake *s, uint32_t n_rows, uint32_t block, uint64_t now_ns)
{
        if (s->last.ns == 0 || now_ns - s->last.ns > TDM_EARLY_WAKE_BATCH_NS) {
                s->before = s->last;
                s->last.block = block;
                s->last.ns = now_ns;
        }
        return s->n_rows == n_rows && s->block == block;
}

/* All of the step is done. */
static inline void tdm_early_wake_end(struct tdm_early_wake *s, uint32_t n_rows, uint64_t now_ns)
{
        bool is_last = s->last.ns != 0 && now_ns - s->last.ns >= TDM_EARLY_WAKE_MIN_NS;
        uint64_t at_ns = is_last ? s->last.ns : s->before.ns;

        s->block = is_last ? s->last.block : s->before.block;
        s->n_rows = at_ns != 0 && now_ns - at_ns <= TDM_RING_EARLY_WAKE_NS ? n_rows : 0;
}

#endif
