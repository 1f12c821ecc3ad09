/* What a layer of Gemma 3n and Gemma 4 does beside attention and FFN: a residual of several streams (AltUp), and an
 * input of a token's own to each layer. Private to engine/host.
 *
 * A row's residual is its streams, one behind the other, then room for one more: between attention and FFN what
 * attention made of the active stream. All functions take rows in tiles: hidden is that of the tile's first row, n of
 * them are taken, and `first` is its number in the step. */
#ifndef TDM_ENGINE_HOST_STREAMS_H
#define TDM_ENGINE_HOST_STREAMS_H

#include "engine/host/forward.h"

static inline bool tdm_host_has_streams(const struct tdm_host_model *model)
{
        return model->recipe.residual == TDM_RESIDUAL_ALTUP;
}
/* Where in a row's residual attention reads, and where the FFN reads and adds. */
static inline uint32_t tdm_host_active_at(const struct tdm_host_model *model)
{
        return model->recipe.active_stream * model->hp.d_model;
}
static inline uint32_t tdm_host_middle_at(const struct tdm_host_model *model)
{
        return tdm_host_has_streams(model) ? model->recipe.n_streams * model->hp.d_model : 0;
}

/* The streams beside the first, which the embedding has filled. */
void tdm_host_streams_begin(struct tdm_host_model *model, const struct tdm_step *step, uint32_t first, uint32_t n,
                            float *hidden);
/* Before attention: each stream becomes its prediction. */
void tdm_host_streams_predict(struct tdm_host_model *model, uint32_t layer, uint32_t n, float *hidden);
/* After attention: model->y is its output, model->rank the low-rank branch's; makes the middle. */
void tdm_host_streams_join(struct tdm_host_model *model, uint32_t layer, uint32_t n, float *hidden);
/* After the FFN, which has added to the middle: each prediction is corrected. */
void tdm_host_streams_correct(struct tdm_host_model *model, uint32_t layer, uint32_t n, float *hidden);
/* A layer's end: its own input joins, and the residual is scaled, where the layer's recipe says so. */
void tdm_host_layer_end(struct tdm_host_model *model, const struct tdm_step *step, uint32_t layer, uint32_t first,
                        uint32_t n, float *hidden);
/* The streams of the rows of logits first … first + n - 1, folded into one: model->folded. hidden: the step's. */
void tdm_host_streams_fold(struct tdm_host_model *model, const struct tdm_step *step, const float *hidden,
                           uint32_t first, uint32_t n);

/* When a model is loaded: finds the weights, allocates the scratch. side: how inputs of these matrices are rounded. */
void tdm_host_streams_weights(struct tdm_host_model *model, enum tdm_act qkv, enum tdm_act side);
bool tdm_host_streams_scratch(struct tdm_host_model *model);
void tdm_host_streams_free(struct tdm_host_model *model);

#endif
