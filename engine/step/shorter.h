/* Rows without logits stop after the attention of the last layer that has keys of its own (Gemma 3n, Gemma 4): no other
 * row reads what later blocks would compute for them. So a prompt's rows, but for its last one, skip the layers that
 * read other layers' keys.
 *
 * The later blocks run on a shorter step. Its rows are those that want logits and, in a sequence, those behind its
 * first such row, so that positions stay consecutive. A row's values depend on no other row, so they are the same bits.
 * A sequence may have no rows in it. The device moves the hidden rows. */
#ifndef TDM_ENGINE_STEP_SHORTER_H
#define TDM_ENGINE_STEP_SHORTER_H

#include "engine/step/step.h"

struct tdm_shorter;

/* *ret NULL: the model has no such layers, or wants all rows of a text. max_rows: of a shorter step. -ENOMEM. */
int tdm_shorter_new(struct tdm_shorter **ret, const struct tdm_hparams *hp, bool is_pooled, uint32_t max_rows,
                    const struct tdm_steps_limits *limits);
void tdm_shorter_free(struct tdm_shorter *shorter);
/* The blocks that run on a shorter step: from *ret_first to the one before *ret_end, which is the head. */
void tdm_shorter_blocks(const struct tdm_shorter *shorter, uint32_t *ret_first, uint32_t *ret_end);
/* The shorter step, without logits, and of each of its rows which one of the step it is. No rows where none wants
 * logits. NULL: all rows want them, or more than fit. Valid until the next call; it shares the step's tables. */
const struct tdm_step *tdm_shorter_make(struct tdm_shorter *shorter, const struct tdm_step *step,
                                        const uint32_t **ret_from);

#endif
