/* Hunyuan without experts. Formulas: Hugging Face transformers' modeling_hunyuan_v1_dense.py.
 *
 * Each head of queries and keys has a norm behind RoPE. Converters put the factor of longer contexts into RoPE's base.
 * Where a file has it as a key, it is done here. */
#include <math.h>
#include "engine/model/private.h"

static int hunyuan_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                         struct tdm_error *err)
{
        int r = tdm_refuse_window("hunyuan-dense", hp, err);

        if (r == 0)
                tdm_plain_recipe(g, "hunyuan-dense", hp, TDM_ROPE_HALVES, TDM_NORM_Q | TDM_NORM_K | TDM_NORM_QK_LATE,
                                 recipe);
        return r;
}

static int hunyuan_end(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                       struct tdm_error *err)
{
        double head_dim = hp->layers[0].head_dim;
        float alpha = 0;
        int r = tdm_key_get_float(g, "hunyuan-dense", "rope.scaling.alpha", &alpha, err);

        if (r || (r = tdm_check_float(err, "rope.scaling.alpha", alpha, 0, 1e6)))
                return r;
        if (alpha > 0)
                recipe->ropes[0].base *= (float)pow((double)alpha, head_dim / (head_dim - 2));
        r = tdm_rope_read_scaling(g, "hunyuan-dense", hp, &recipe->ropes[0], err);
        if (r == 0 && recipe->ropes[0].magnitude != 1)
                r = tdm_error_set(err, TDM_E_UNSUPPORTED,
                                  "its RoPE multiplies by %g before a norm, which is not supported",
                                  (double)recipe->ropes[0].magnitude);
        return r;
}

const struct tdm_architecture tdm_architecture_hunyuan_dense = {
        .name = "hunyuan-dense",
        .fused = TDM_FUSED_QKV,
        .follows = TDM_PLAIN_KEYS,
        .begin = hunyuan_begin,
        .end = hunyuan_end,
};
