/* What the file beside a text model says of how pictures become rows for it: a vision tower and what ties it to the
 * text ("mmproj"; general.architecture is "clip"). Here are sizes and the recipe of preprocessing; the weights stay in
 * the file.
 *
 * Gemma 3's SigLIP is described so far; every other kind is refused by its name. */
#ifndef TDM_ENGINE_MODEL_PROJECTOR_H
#define TDM_ENGINE_MODEL_PROJECTOR_H

#include "engine/file/gguf.h"
#include "engine/image/fit.h"
#include "engine/model/model.h"

/* The largest real tower has 27 layers and 4096 patches. */
#define TDM_PROJECTOR_LAYERS_MAX 128u
#define TDM_PROJECTOR_PATCHES_MAX 16384u

struct tdm_projector {
        struct tdm_image_recipe image;
        uint32_t grid; /* patches of a side */
        uint32_t n_layers, d_model, d_ff, n_heads, head_dim;
        uint32_t n_out; /* numbers of a row for the text: its embedding_length */
        float norm_eps;
};

/* Reads and checks keys, and that each tensor of the tower is there with its shape. Which types can be computed is
 * decided where they are. TDM_E_UNSUPPORTED: another kind of file or projector, TDM_E_BAD_MODEL: damage. */
int tdm_projector_describe(struct tdm_projector *ret, const struct tdm_gguf *gguf, struct tdm_error *err);
/* TDM_E_BAD_MODEL where the rows do not fit a text model of this architecture and width. */
int tdm_projector_check_text(const struct tdm_projector *projector, const char *architecture, uint32_t d_model,
                             struct tdm_error *err);
/* Both, and whether the model takes pictures at all. *ret_rows: of a picture, for the text. TDM_E_UNSUPPORTED,
 * TDM_E_BAD_MODEL. */
int tdm_projector_describe_for(struct tdm_projector *ret, const struct tdm_gguf *gguf,
                               const struct tdm_model_description *model, const char *architecture, uint32_t *ret_rows,
                               struct tdm_error *err);

#endif
