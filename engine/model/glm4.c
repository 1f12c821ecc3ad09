/* GLM-4 of 2025 (0414) without experts. Formulas: Hugging Face transformers' modeling_glm4.py.
 *
 * Norms stand before and after attention and FFN. A part of each head is turned, neighbours. Queries, keys and values
 * have biases in some. Gate and up are one matrix in the file. Files of the models that see turn by sections, which is
 * refused. */
#include "engine/model/private.h"

static int glm4_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                      struct tdm_error *err)
{
        uint64_t n = 0;
        int r = tdm_refuse_window("glm4", hp, err);

        if (r != 0)
                return r;
        if (tdm_gguf_get_array_size(g, "glm4.rope.dimension_sections", &n) == 0)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "it turns dimensions by sections, as models that see do, which is not supported "
                                     "(key glm4.rope.dimension_sections)");
        tdm_plain_recipe(g, "glm4", hp, TDM_ROPE_NEIGHBOURS, TDM_NORM_ATTN_AFTER | TDM_NORM_FFN_AFTER, recipe);
        return 0;
}

const struct tdm_architecture tdm_architecture_glm4 = {
        .name = "glm4",
        .fused = TDM_FUSED_QKV | TDM_FUSED_GATE_UP,
        .follows = TDM_PLAIN_KEYS,
        .begin = glm4_begin,
        .end = tdm_plain_end,
};
