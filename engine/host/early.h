/* The blocks that run on a shorter step (engine/step/shorter.h), and its hidden rows. Rows that are left out stay as
 * they were. Private to engine/host. */
#ifndef TDM_ENGINE_HOST_EARLY_H
#define TDM_ENGINE_HOST_EARLY_H

#include "engine/host/forward.h"
#include "engine/step/shorter.h"

struct tdm_host_early; /* a shorter step, and its hidden rows */

/* *ret NULL: the model has no such layers. -ENOMEM. */
int tdm_host_early_new(struct tdm_host_early **ret, const struct tdm_host_model *model,
                       const struct tdm_steps_limits *limits);
void tdm_host_early_free(struct tdm_host_early *early);
/* Whether a block is one of them. early: may be NULL. */
bool tdm_host_early_has(const struct tdm_host_early *early, uint32_t block);
/* The shorter step, and *ret_hidden its rows; a step of no rows where none wants logits. NULL, and *ret_hidden as it
 * was: all rows want them, or more than fit. */
const struct tdm_step *tdm_host_early_begin(struct tdm_host_early *early, const struct tdm_step *step,
                                            const float *hidden, float **ret_hidden);
/* Puts the rows back. */
void tdm_host_early_end(struct tdm_host_early *early, float *hidden);

#endif
