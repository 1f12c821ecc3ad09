/* OLMoE. Formulas: Hugging Face transformers' modeling_olmoe.py.
 *
 * Experts in place of every dense FFN. The router takes the softmax of all numbers, and the weights of the chosen ones
 * stay as they are. Queries have one norm of all their heads together, and so have keys. */
#include "engine/model/private.h"

static int olmoe_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                       struct tdm_error *err)
{
        int r = tdm_refuse_window("olmoe", hp, err);

        if (r != 0)
                return r;
        tdm_plain_recipe(g, "olmoe", hp, TDM_ROPE_HALVES, TDM_NORM_Q | TDM_NORM_K | TDM_NORM_QK_WIDE, recipe);
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                recipe->layers[i].router = TDM_ROUTER_SOFTMAX_ALL;
                recipe->layers[i].d_expert = hp->layers[i].d_ff; /* unless the file says more */
        }
        return 0;
}

static int olmoe_end(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe, struct tdm_error *err)
{
        int r = tdm_experts_of_file(g, "olmoe", hp, recipe, err);

        return r ? r : tdm_rope_read_scaling(g, "olmoe", hp, &recipe->ropes[0], err);
}

const struct tdm_architecture tdm_architecture_olmoe = {
        .name = "olmoe",
        .fused = TDM_FUSED_QKV | TDM_FUSED_GATE_UP_EXPS,
        .follows = TDM_PLAIN_KEYS | TDM_EXPERT_KEYS,
        .begin = olmoe_begin,
        .end = olmoe_end,
};
