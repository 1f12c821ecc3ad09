/* Gated delta nets and gated attention on the host device: what stands between the products of such layers (recipe.h).
 *
 * ORDER of a row: each channel c = silu of the sum over taps j = 0, 1, … of kernel_j u, each product and each sum
 * rounded; the length of a head is sqrtf(mean_square() size); the recurrence is delta_rows() of kernels.h. A row's
 * numbers come from its own sequence: from the rows before it in the tile, or from the state, which is a copy of them.
 * So it does not matter how a prompt is cut.
 *
 * The state of a layer: the last taps - 1 rows of u, the oldest first; then the matrix of each head of values, in
 * panels as delta_rows() reads it. */
#ifndef TDM_ENGINE_HOST_DELTA_H
#define TDM_ENGINE_HOST_DELTA_H

#include "engine/host/forward.h"

/* Takes the scratch, and kernels in the order of their taps, if the model has such layers. The layers' weights are
 * known. False: no memory. */
bool tdm_host_delta_init(struct tdm_host_model *model);
void tdm_host_delta_free(struct tdm_host_model *model);
/* Rows first … first + n - 1 (n <= tile_rows): model->mixers.delta's in, z, alpha and beta, as the products leave them,
 * to model->heads.attn. Writes the states that the step wants. */
void tdm_host_delta(struct tdm_host_model *model, const struct tdm_step *step, uint32_t layer, uint32_t first,
                    uint32_t n);
/* Gated attention, of the tile's n rows: model->heads.q out of model->mixers.delta.in; and model->heads.attn times
 * 1 / (exp(-gate) + 1). */
void tdm_host_gate_split(struct tdm_host_model *model, uint32_t layer, uint32_t n);
void tdm_host_gate_apply(struct tdm_host_model *model, uint32_t layer, uint32_t n);

/* log(1 + exp(x)) with e = exp(-|x|) in any precision: max(x, 0) + 2 atanh(e / (2 + e)) by ten terms of its series, in
 * double. They leave out less than 3e-12 of the second part, so the result is as right as e is. Nothing of libm, whose
 * last bits differ between machines. */
float tdm_host_softplus(float x, float e);

#endif
