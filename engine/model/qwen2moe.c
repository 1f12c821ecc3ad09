/* Qwen2 with experts (also Qwen 1.5's): Qwen2's attention with its biases, experts in place of every dense FFN, and a
 * shared one with a gate. Formulas: Hugging Face transformers' modeling_qwen2_moe.py.
 *
 * The router takes the softmax of all numbers, and the weights of the chosen ones stay as they are. A file that says
 * nothing of the shared expert's width has one as wide as a dense FFN. */
#include "engine/model/private.h"

static int qwen2moe_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                          struct tdm_error *err)
{
        int r = tdm_plain_begin(g, "qwen2moe", hp, TDM_ROPE_HALVES, 0, TDM_BIAS_Q | TDM_BIAS_K | TDM_BIAS_V, recipe,
                                err);

        for (uint32_t i = 0; r == 0 && i < hp->n_layers; i++) {
                recipe->layers[i].router = TDM_ROUTER_SOFTMAX_ALL;
                recipe->layers[i].d_shared = hp->layers[i].d_ff;
        }
        return r;
}

static int qwen2moe_end(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                        struct tdm_error *err)
{
        int r = tdm_experts_with_shared(g, "qwen2moe", true, hp, recipe, err);

        return r ? r : tdm_rope_read_scaling(g, "qwen2moe", hp, &recipe->ropes[0], err);
}

const struct tdm_architecture tdm_architecture_qwen2moe = {
        .name = "qwen2moe",
        .fused = TDM_FUSED_QKV | TDM_FUSED_GATE_UP_EXPS,
        .follows = TDM_PLAIN_KEYS | TDM_EXPERT_KEYS,
        .begin = qwen2moe_begin,
        .end = qwen2moe_end,
};
