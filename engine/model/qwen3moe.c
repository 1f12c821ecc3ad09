/* Qwen3 with experts: Qwen3's attention, and in every layer experts in place of the dense FFN.
 *
 * Its router takes the softmax of all numbers and divides the weights of the chosen ones by their sum: which is the
 * softmax of the chosen ones. */
#include "engine/model/private.h"

static int qwen3moe_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                          struct tdm_error *err)
{
        int r = tdm_refuse_window("qwen3moe", hp, err);

        if (r == 0)
                tdm_plain_recipe(g, "qwen3moe", hp, TDM_ROPE_HALVES, TDM_NORM_Q | TDM_NORM_K, recipe);
        return r;
}

static int qwen3moe_end(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                        struct tdm_error *err)
{
        int r = tdm_experts_of_file(g, "qwen3moe", hp, recipe, err);

        return r ? r : tdm_rope_read_scaling(g, "qwen3moe", hp, &recipe->ropes[0], err);
}

const struct tdm_architecture tdm_architecture_qwen3moe = {
        .name = "qwen3moe",
        .fused = TDM_FUSED_QKV | TDM_FUSED_GATE_UP_EXPS,
        .follows = TDM_PLAIN_KEYS | TDM_EXPERT_KEYS,
        .begin = qwen3moe_begin,
        .end = qwen3moe_end,
};
