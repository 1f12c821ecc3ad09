/* Ministral 3: Llama whose queries grow with their position, from the end of the first training's context on, and whose
 * YaRN leaves cos and sin as they are. Formulas: Hugging Face transformers' modeling_ministral3.py. */
#include "engine/model/private.h"

static int mistral3_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                          struct tdm_error *err)
{
        return tdm_plain_begin(g, "mistral3", hp, TDM_ROPE_NEIGHBOURS, 0, 0, recipe, err);
}

static int mistral3_end(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                        struct tdm_error *err)
{
        uint32_t every = hp->n_ctx;
        int r;

        if ((r = tdm_key_get_float(g, "mistral3", "attention.temperature_scale", &recipe->query_growth, err)) ||
            (r = tdm_key_get_u32(g, "mistral3", "rope.scaling.original_context_length", &every, err)))
                return r;
        recipe->query_growth_every = recipe->query_growth > 0 ? every : 0;
        return tdm_plain_end(g, hp, recipe, err);
}

static const char *const temperature[] = { "attention.temperature_scale", NULL };

const struct tdm_architecture tdm_architecture_mistral3 = {
        .name = "mistral3",
        .fused = TDM_FUSED_QKV,
        .follows = TDM_PLAIN_KEYS,
        .reads = temperature,
        .begin = mistral3_begin,
        .end = mistral3_end,
};
