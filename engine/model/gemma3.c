/* Gemma 3. Formulas and defaults: Hugging Face transformers' modeling_gemma3.py and llama.cpp's gemma3.cpp.
 *
 * Norms stand before and after attention and FFN, and each head of queries and keys has one. Five layers in six slide
 * over a window; RoPE has a base for those and one, with a scaling factor, for the full ones. */
#include <math.h>
#include "engine/model/private.h"

#define FULL_EVERY 6u /* five sliding layers, then a full one */
#define LAYERS_4B 34u
#define LAYERS_12B 48u
#define LAYERS_27B 62u
#define FULL_FACTOR 8.0f /* of these three */

void tdm_gemma3_recipe(struct tdm_recipe *ret, const struct tdm_hparams *hp)
{
        /* The 27B divides by the width of a head as if heads filled the embedding, the others by the real one. */
        float scalar = hp->n_layers == LAYERS_27B ? (float)hp->d_model / (float)hp->layers[0].n_heads :
                                                    (float)hp->layers[0].head_dim;

        tdm_gemma_recipe("gemma3", hp, ret);
        for (uint32_t i = 0; i < hp->n_layers; i++)
                ret->layers[i].query_scale = (float)(1.0 / sqrt((double)scalar));
}

/* Ollama's converter writes neither epsilon nor scaling of the models that see: it knows them by their layers. */
static bool leaves_scaling_out(const struct tdm_gguf *g, const struct tdm_hparams *hp)
{
        double value;

        return (hp->n_layers == LAYERS_4B || hp->n_layers == LAYERS_12B || hp->n_layers == LAYERS_27B) &&
               tdm_gguf_get_f64(g, "gemma3.attention.layer_norm_rms_epsilon", &value) == -ENOENT;
}

static int gemma3_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                        struct tdm_error *err)
{
        float scalar = NAN;
        int r;

        if ((r = tdm_gemma_read_windows(g, "gemma3", FULL_EVERY, hp, err)))
                return r;
        tdm_gemma3_recipe(recipe, hp);
        if (leaves_scaling_out(g, hp))
                recipe->ropes[TDM_GEMMA_ROPE_FULL].factor = FULL_FACTOR;
        if ((r = tdm_gemma_read_other_names(g, "gemma3", recipe, err)) ||
            (r = tdm_key_get_float(g, "gemma3", "attention.query_pre_attn_scalar", &scalar, err)))
                return r;
        for (uint32_t i = 0; i < hp->n_layers && !isnan(scalar); i++) /* the file has it */
                recipe->layers[i].query_scale = (float)(1.0 / sqrt((double)scalar));
        return 0;
}

static int gemma3_end(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                      struct tdm_error *err)
{
        struct tdm_rope_recipe *full = &recipe->ropes[TDM_GEMMA_ROPE_FULL];
        struct tdm_gguf_string type = { "linear", 6 };
        char buffer[64];

        if (full->n_dims != hp->layers[0].head_dim)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "it rotates %u of %u dimensions of a head, only all of them is supported",
                                     full->n_dims, hp->layers[0].head_dim);
        if (tdm_gguf_get_string(g, "gemma3.rope.scaling.type", &type) == -EINVAL)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key gemma3.rope.scaling.type is not a string");
        if (tdm_string_is(type, "none"))
                full->factor = 1;
        else if (!tdm_string_is(type, "linear"))
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "its RoPE scaling is \"%s\", only \"linear\" is supported",
                                     tdm_quote(type, buffer));
        if (full->factor == 0) /* written by some converters for "none" */
                full->factor = 1;
        return 0;
}

const struct tdm_architecture tdm_architecture_gemma3 = {
        .name = "gemma3",
        .fused = TDM_FUSED_QKV,
        .follows = 1u << TDM_KEY_LOGIT_SOFTCAP | 1u << TDM_KEY_ROPE_BASE | 1u << TDM_KEY_ROPE_BASE_WINDOW |
                   1u << TDM_KEY_ROPE_FACTOR_OLD | 1u << TDM_KEY_ROPE_FACTOR | 1u << TDM_KEY_ROPE_DIMS |
                   1u << TDM_KEY_QUERY_SCALE,
        .begin = gemma3_begin,
        .end = gemma3_end,
};
