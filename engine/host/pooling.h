/* Vectors of texts: what a model with a pooling makes in place of logits, from the rows behind its last layer. The
 * devices share it: those with a processor of their own bring these rows to the host.
 *
 * All memory is allocated by tdm_pooler_new(). A vector depends on the rows of its text alone. */
#ifndef TDM_ENGINE_HOST_POOLING_H
#define TDM_ENGINE_HOST_POOLING_H

#include "common/pool.h"
#include "engine/host/kernels.h"
#include "engine/step/step.h"
#include "engine/weights/weights.h"

struct tdm_pooler;

/* weights: of a model with a pooling; they, the pool and the kernels are borrowed. max_vectors: of a step. wanted: how
 * the inputs of the matrices behind the mean are rounded. -ENOMEM. */
int tdm_pooler_new(struct tdm_pooler **ret, const uint8_t *weights, struct tdm_pool *pool,
                   const struct tdm_kernels *kernels, uint32_t max_vectors, enum tdm_act wanted);
void tdm_pooler_destroy(struct tdm_pooler *pooling); /* NULL: nothing */
size_t tdm_pooler_bytes(const struct tdm_pooler *pooling);
/* hidden [n_rows][residual_width] of the step; vectors [n_logits][d_model], of length 1; a reranker's have the score
 * first, those of a model that tells classes apart its head's numbers, and zeros behind them. -EDOM where one holds a
 * number that is not finite, which is the weights' doing: the error names its row. */
int tdm_pooler_run(struct tdm_pooler *pooling, const struct tdm_step *step, const float *hidden, float *vectors,
                   struct tdm_error *err);

#endif
