/* Gemma 2. Formulas and defaults: Hugging Face transformers' modeling_gemma2.py and llama.cpp's gemma2.cpp.
 *
 * Norms stand before and after attention and FFN, none on queries and keys. Every second layer slides over a window,
 * from the first one on; all turn alike. Scores and logits are soft-capped. */
#include <math.h>
#include "engine/model/private.h"

#define FULL_EVERY 2u
#define WINDOW 4096u /* of files without the key */
#define LAYERS_27B 46u

/* The 27B divides by the width of a head as if heads filled the embedding, the others by the real one. */
static float usual_scalar(const struct tdm_hparams *hp)
{
        return hp->n_layers == LAYERS_27B ? (float)hp->d_model / (float)hp->layers[0].n_heads :
                                            (float)hp->layers[0].head_dim;
}

static int gemma2_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                        struct tdm_error *err)
{
        uint32_t window = WINDOW;
        float scalar = usual_scalar(hp);
        int r;

        if ((r = tdm_key_get_u32(g, "gemma2", "attention.sliding_window", &window, err)) ||
            (r = tdm_key_get_float(g, "gemma2", "attention.query_pre_attn_scalar", &scalar, err)))
                return r;
        for (uint32_t i = 0; i < hp->n_layers; i++)
                hp->layers[i].window = window;
        if ((r = tdm_gemma_read_windows(g, "gemma2", FULL_EVERY, hp, err)))
                return r;
        tdm_gemma_recipe("gemma2", hp, recipe);
        recipe->logit_softcap = 30;
        recipe->n_ropes = 1;
        recipe->ropes[0].base = 1e4f;
        recipe->ropes[1] = (struct tdm_rope_recipe){ 0 };
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                struct tdm_layer_recipe *l = &recipe->layers[i];

                l->norms &= ~(uint32_t)(TDM_NORM_Q | TDM_NORM_K);
                l->rope = 0;
                l->attention_softcap = 50;
                l->query_scale = (float)(1.0 / sqrt((double)scalar));
        }
        return 0;
}

static int gemma2_end(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                      struct tdm_error *err)
{
        return tdm_gemma_check_rope(hp, recipe, err);
}

const struct tdm_architecture tdm_architecture_gemma2 = {
        .name = "gemma2",
        .fused = TDM_FUSED_QKV,
        .follows = 1u << TDM_KEY_LOGIT_SOFTCAP | 1u << TDM_KEY_ATTENTION_SOFTCAP | 1u << TDM_KEY_ROPE_BASE |
                   1u << TDM_KEY_ROPE_DIMS | 1u << TDM_KEY_QUERY_SCALE,
        .begin = gemma2_begin,
        .end = gemma2_end,
};
