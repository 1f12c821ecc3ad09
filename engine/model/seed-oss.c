/* Seed-OSS: Qwen2 with heads of a size of its own. Its files call the norm before the FFN post_attention_norm. */
#include "engine/model/private.h"

static int seed_oss_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                          struct tdm_error *err)
{
        return tdm_plain_begin(g, "seed_oss", hp, TDM_ROPE_HALVES, 0, TDM_BIAS_Q | TDM_BIAS_K | TDM_BIAS_V, recipe,
                               err);
}

const struct tdm_architecture tdm_architecture_seed_oss = {
        .name = "seed_oss",
        .fused = TDM_FUSED_QKV,
        .follows = TDM_PLAIN_KEYS,
        .begin = seed_oss_begin,
        .end = tdm_plain_end,
};
