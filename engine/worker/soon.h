/* When a worker tells tandemd that a step will be done soon (tdm_ring_soon()): tandemd sleeps while a device computes,
 * and a thread whose core sleeps too takes 50 µs to be woken, which would come on top of every step.
 *
 * A device tells of blocks in batches, as it finishes them; the last batches come some time before the step's tokens
 * are drawn. How long before is learned from the last step of as many rows: it is said with the last batch that comes
 * early enough for somebody to wake up, if that is not so early that he would only burn time. */
#ifndef TDM_WORKER_SOON_H
#define TDM_WORKER_SOON_H

#include "common/ring.h"
#include "common/util.h"

#define TDM_SOON_MIN_NS UINT64_C(30000)
#define TDM_SOON_BATCH_NS UINT64_C(10000) /* blocks told within so long are one batch */

/* All zero: nothing is known. */
struct tdm_soon {
        /* learned: of a step of so many rows, the first of the batch to say it with; n_rows 0: none */
        uint32_t n_rows, block;
        struct {
                uint32_t block;
                uint64_t ns; /* 0: there was none */
        } last, before;      /* batches of the step that is on */
};

static inline void tdm_soon_begin(struct tdm_soon *s)
{
        s->last.ns = s->before.ns = 0;
}

/* The device has finished `block`, and it is not the step's end. Returns whether to say so. */
static inline bool tdm_soon_block(struct tdm_soon *s, uint32_t n_rows, uint32_t block, uint64_t now_ns)
{
        if (s->last.ns == 0 || now_ns - s->last.ns > TDM_SOON_BATCH_NS) {
                s->before = s->last;
                s->last.block = block;
                s->last.ns = now_ns;
        }
        return s->n_rows == n_rows && s->block == block;
}

/* All of the step is done. */
static inline void tdm_soon_end(struct tdm_soon *s, uint32_t n_rows, uint64_t now_ns)
{
        bool is_last = s->last.ns != 0 && now_ns - s->last.ns >= TDM_SOON_MIN_NS;
        uint64_t at_ns = is_last ? s->last.ns : s->before.ns;

        s->block = is_last ? s->last.block : s->before.block;
        s->n_rows = at_ns != 0 && now_ns - at_ns <= TDM_RING_SOON_NS ? n_rows : 0;
}

#endif
