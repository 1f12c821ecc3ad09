/* EXAONE 4. Formulas: Hugging Face transformers' modeling_exaone4.py.
 *
 * Norms stand after attention and FFN, none before, and each head of queries and keys has one. The large model has a
 * window in three layers of four, and does not turn the fourth. llama.cpp knows that model by its 64 layers; here the
 * window says so, as in the model's own config. */
#include "engine/model/private.h"

#define FULL_EVERY 4u

static int exaone4_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                         struct tdm_error *err)
{
        bool slides = hp->layers[0].window > 0;
        int r = slides ? tdm_gemma_read_windows(g, "exaone4", FULL_EVERY, hp, err) : 0;

        if (r != 0)
                return r;
        tdm_plain_recipe(g, "exaone4", hp, TDM_ROPE_HALVES, 0, recipe);
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                recipe->layers[i].norms = TDM_NORM_ATTN_AFTER | TDM_NORM_FFN_AFTER | TDM_NORM_Q | TDM_NORM_K;
                if (slides && hp->layers[i].window == 0)
                        recipe->layers[i].rope = TDM_ROPE_NONE;
        }
        return 0;
}

const struct tdm_architecture tdm_architecture_exaone4 = {
        .name = "exaone4",
        .fused = TDM_FUSED_QKV,
        .follows = TDM_PLAIN_KEYS,
        .begin = exaone4_begin,
        .end = tdm_plain_end,
};
