/* Rows without logits stop after the attention of the last layer that has keys of its own (Gemma 3n, Gemma 4): no other
 * row reads what later blocks would compute for them. So a prompt's rows, but for its last one, skip the layers that
 * read other layers' keys.
 *
 * The later blocks run on a shorter step. Its rows are those that want logits and, in a sequence, those behind its
 * first such row, so that positions stay consecutive. A row's values depend on no other row, so they are the same bits.
 * Hidden rows that are left out stay as they were. Private to engine/host. */
#ifndef TDM_ENGINE_HOST_EARLY_H
#define TDM_ENGINE_HOST_EARLY_H

#include "engine/host/forward.h"

struct tdm_host_early; /* a shorter step, and its hidden rows */

/* *ret NULL: the model has no such layers. -ENOMEM. */
int tdm_host_early_new(struct tdm_host_early **ret, const struct tdm_host_model *model,
                       const struct tdm_steps_limits *limits);
void tdm_host_early_free(struct tdm_host_early *early);
/* Whether a block comes after the attention of the last layer with keys of its own, and before the head. early: may be
 * NULL. */
bool tdm_host_early_has(const struct tdm_host_early *early, const struct tdm_hparams *hp, uint32_t block);
/* The shorter step, and *ret_hidden its rows; a step of no rows where none wants logits. NULL, and *ret_hidden as it
 * was: all rows want them, or more than fit. */
const struct tdm_step *tdm_host_early_begin(struct tdm_host_early *early, const struct tdm_step *step,
                                            const float *hidden, float **ret_hidden);
/* Puts the rows back. */
void tdm_host_early_end(struct tdm_host_early *early, float *hidden);

#endif
