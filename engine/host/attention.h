/* Attention of a step's rows over the paged KV, scheduled on the thread pool.
 *
 * Flash style: keys are taken in spans of TDM_ATTENTION_SPAN absolute positions, left to right; nothing as long as the
 * context is ever held. ORDER: for each (row, head) a span gives (m, l, o) as in kernels.h, spans are merged left to
 * right, and the result is o · (1 / l). With a sink, which is a score s without a value, it is o · (a / fmaf(l, a,
 * b)), a = exp(m - M), b = exp(s - M), M = max(m, s). Rows and heads that share a kv head share the loads of its keys;
 * who shares with whom changes no bit. Where a step has fewer (rows, kv head) items than threads, the spans of a row
 * are computed in parallel, each apart, and merged in the same order: the same bits again.
 *
 * Keys and values of all rows are stored before; a row at position p looks at positions <= p only, unless attention is
 * not causal. A picture's row looks at the whole picture besides: then those of all rows of the step are stored before.
 */
#ifndef TDM_ENGINE_HOST_ATTENTION_H
#define TDM_ENGINE_HOST_ATTENTION_H

#include "engine/host/kernels.h"
#include "common/pool.h"
#include "engine/step/step.h"

struct tdm_attention; /* scratch, allocated at load */

/* max_rows: in one call of run(). */
int tdm_attention_new(struct tdm_attention **ret, const struct tdm_hparams *hp, uint32_t max_rows, unsigned n_threads);
void tdm_attention_destroy(struct tdm_attention *attention);
size_t tdm_attention_scratch_bytes(const struct tdm_attention *attention);

/* Rows [first_row, first_row + n_rows) of the step, in one layer.
 * q, out: [n_rows][n_heads][head_dim], the first row of both is first_row. q is scaled and rotated. sinks
 * [n_heads]; NULL: none. softcap of scores; 0: none. */
void tdm_attention_run(struct tdm_attention *attention, struct tdm_pool *pool, const struct tdm_kernels *kernels,
                       const struct tdm_hparams *hp, const struct tdm_kv_geometry *kv, const uint8_t *kv_base,
                       const struct tdm_step *step, uint32_t layer, uint32_t first_row, uint32_t n_rows, const float *q,
                       const float *sinks, float softcap, float *out);

/* The same of attention that is not causal: a row sees those of its sequence at most `reach` from it, on both sides (0:
 * all). All rows of the sequence are in this step, and the keys and values of all are stored. */
void tdm_attention_run_both(struct tdm_attention *attention, struct tdm_pool *pool, const struct tdm_kernels *kernels,
                            const struct tdm_hparams *hp, const struct tdm_kv_geometry *kv, const uint8_t *kv_base,
                            const struct tdm_step *step, uint32_t layer, uint32_t first_row, uint32_t n_rows,
                            const float *q, const float *sinks, float softcap, uint32_t reach, float *out);

#endif
