/* Seed-OSS: Qwen2 with heads of a size of its own. Its files call the norm before the FFN post_attention_norm. */
#include "engine/model/private.h"

static int seed_oss_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                          struct tdm_error *err)
{
        int r = tdm_refuse_window("seed_oss", hp, err);

        if (r != 0)
                return r;
        tdm_plain_recipe(g, "seed_oss", hp, TDM_ROPE_HALVES, 0, recipe);
        for (uint32_t i = 0; i < hp->n_layers; i++) /* all of them have these: a file without was cut */
                recipe->layers[i].biases |= TDM_BIAS_Q | TDM_BIAS_K | TDM_BIAS_V;
        return 0;
}

static int seed_oss_end(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                        struct tdm_error *err)
{
        return tdm_rope_read_scaling(g, "seed_oss", hp, &recipe->ropes[0], err);
}

const struct tdm_architecture tdm_architecture_seed_oss = {
        .name = "seed_oss",
        .fused = TDM_FUSED_QKV,
        .follows = TDM_PLAIN_KEYS,
        .begin = seed_oss_begin,
        .end = seed_oss_end,
};
