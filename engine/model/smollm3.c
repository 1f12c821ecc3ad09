/* SmolLM3: Llama with layers that do not turn queries and keys, every fourth one. No key says so: it is part of the
 * name. Weights in a GGUF pair neighbours, as Llama's. */
#include "engine/model/private.h"

#define NO_ROPE_EVERY 4u

static int smollm3_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                         struct tdm_error *err)
{
        int r = tdm_refuse_window("smollm3", hp, err);

        if (r != 0)
                return r;
        tdm_plain_recipe(g, "smollm3", hp, TDM_ROPE_NEIGHBOURS, 0, recipe);
        for (uint32_t i = NO_ROPE_EVERY - 1; i < hp->n_layers; i += NO_ROPE_EVERY)
                recipe->layers[i].rope = TDM_ROPE_NONE;
        return 0;
}

const struct tdm_architecture tdm_architecture_smollm3 = {
        .name = "smollm3",
        .fused = TDM_FUSED_QKV,
        .follows = TDM_PLAIN_KEYS,
        .begin = smollm3_begin,
        .end = tdm_plain_end,
};
