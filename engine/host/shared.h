/* Shared experts on the host device: the expert that every row uses beside those that it chose (recipe.h).
 *
 * ORDER of a row: y = y + s y_shared behind the sum over the experts that it chose, each product and each sum rounded;
 * s = 1 / (exp(-gate) + 1). The gate's number is that of a product in f32, as the router's are. A row's result depends
 * on the row alone. */
#ifndef TDM_ENGINE_HOST_SHARED_H
#define TDM_ENGINE_HOST_SHARED_H

#include "engine/host/forward.h"

/* Adds the shared expert's output to model->y of the tile's n rows. They are prepared in model->acts[TDM_HOST_GATE_UP],
 * and where the layer has a gate, its numbers are in model->routed.router. */
void tdm_host_shared_add(struct tdm_host_model *model, uint32_t layer, uint32_t n);

#endif
