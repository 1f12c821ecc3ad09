/* OLMo 2 and 3. Formulas: Hugging Face transformers' modeling_olmo2.py and modeling_olmo3.py.
 *
 * Norms stand after attention and FFN, none before. Queries have one norm of all their heads together, and so have
 * keys. OLMo 3 has a window in three layers of four. YaRN is of its full layers alone. */
#include "engine/model/private.h"

#define FULL_EVERY 4u
enum { FULL_ROPE, WINDOW_ROPE };

static int olmo2_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                       struct tdm_error *err)
{
        bool slides = hp->layers[0].window > 0;
        int r = slides ? tdm_gemma_read_windows(g, "olmo2", FULL_EVERY, hp, err) : 0;

        if (r != 0)
                return r;
        tdm_plain_recipe(g, "olmo2", hp, TDM_ROPE_HALVES, 0, recipe);
        if (slides)
                recipe->n_ropes = WINDOW_ROPE + 1; /* the second is filled in once the first is read */
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                recipe->layers[i].norms =
                        TDM_NORM_ATTN_AFTER | TDM_NORM_FFN_AFTER | TDM_NORM_Q | TDM_NORM_K | TDM_NORM_QK_WIDE;
                if (hp->layers[i].window > 0)
                        recipe->layers[i].rope = WINDOW_ROPE;
        }
        return 0;
}

/* In a config of OLMo 3, attention_factor is all that multiplies cos and sin. Converters write it as attn_factor, which
 * multiplies YaRN's own in other files. */
static int read_magnitude(const struct tdm_gguf *g, struct tdm_rope_recipe *rope, struct tdm_error *err)
{
        return rope->scaling == TDM_ROPE_YARN ?
                       tdm_key_get_float(g, "olmo2", "rope.scaling.attn_factor", &rope->magnitude, err) :
                       0;
}

static int olmo2_end(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe, struct tdm_error *err)
{
        int r;

        if (recipe->n_ropes > WINDOW_ROPE) {
                recipe->ropes[WINDOW_ROPE] = recipe->ropes[FULL_ROPE];
                recipe->ropes[WINDOW_ROPE].factor = 1;
        }
        r = tdm_rope_read_scaling(g, "olmo2", hp, &recipe->ropes[FULL_ROPE], err);
        return r ? r : read_magnitude(g, &recipe->ropes[FULL_ROPE], err);
}

const struct tdm_architecture tdm_architecture_olmo2 = {
        .name = "olmo2",
        .fused = TDM_FUSED_QKV,
        .follows = TDM_PLAIN_KEYS,
        .begin = olmo2_begin,
        .end = olmo2_end,
};
