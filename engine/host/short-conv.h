/* Short convolutions on the host device: what stands between the two products of such a layer (recipe.h).
 *
 * ORDER: s = b u; acc = k_0 s_(t - taps + 1), then acc = acc + k_j s_(t - taps + 1 + j) for j = 1 … taps - 1, each
 * product and each sum rounded; o = c acc. A row's numbers come from its own sequence: from the rows before it in the
 * tile, or from the state, which is a copy of such rows. So it does not matter how a prompt is cut. */
#ifndef TDM_ENGINE_HOST_SHORT_CONV_H
#define TDM_ENGINE_HOST_SHORT_CONV_H

#include "engine/host/forward.h"

/* Takes the scratch, and kernels in the order of their taps, if the model has such layers. The layers' weights are
 * known. False: no memory. */
bool tdm_host_short_conv_init(struct tdm_host_model *model);
void tdm_host_short_conv_free(struct tdm_host_model *model);
/* Rows first … first + n - 1 (n <= tile_rows): model->mixers.conv.in, as the first product leaves it, to
 * model->heads.attn [n][d_model]. Writes the states that the step wants. */
void tdm_host_short_conv(struct tdm_host_model *model, const struct tdm_step *step, uint32_t layer, uint32_t first,
                         uint32_t n);

#endif
