/* Qwen2 and 2.5 (also QwQ and DeepSeek's distillations into them), and Qwen3 without experts.
 *
 * Qwen2 has biases for queries, keys and values, Qwen3 a norm for each head of queries and keys instead. Both pair
 * halves. Longer texts by YaRN are a choice of the user: files made so have its keys. */
#include "engine/model/private.h"

static int begin2(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe, struct tdm_error *err)
{
        return tdm_plain_begin(g, "qwen2", hp, TDM_ROPE_HALVES, 0, TDM_BIAS_Q | TDM_BIAS_K | TDM_BIAS_V, recipe, err);
}

const struct tdm_architecture tdm_architecture_qwen2 = {
        .name = "qwen2",
        .fused = TDM_FUSED_QKV,
        .follows = TDM_PLAIN_KEYS,
        .begin = begin2,
        .end = tdm_plain_end,
};

static int begin3(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe, struct tdm_error *err)
{
        return tdm_plain_begin(g, "qwen3", hp, TDM_ROPE_HALVES, TDM_NORM_Q | TDM_NORM_K, 0, recipe, err);
}

const struct tdm_architecture tdm_architecture_qwen3 = {
        .name = "qwen3",
        .fused = TDM_FUSED_QKV,
        .follows = TDM_PLAIN_KEYS,
        .begin = begin3,
        .end = tdm_plain_end,
};
