/* Phi-3, 3.5 and 4 (also mini). Formulas: Hugging Face transformers' modeling_phi3.py.
 *
 * Queries, keys and values are one matrix in the file, gate and up another one. Models for long contexts have two sets
 * of divisors of RoPE and a factor on cos and sin: the long set where the context is longer than that of the first
 * training. The context is the file's: one set serves every text, so that a cached key stays what it is. Some turn a
 * part of each head. A window is that of every layer. */
#include "engine/model/private.h"

static bool has_tensor(const struct tdm_gguf *g, enum tdm_tensor_kind kind, char name[static TDM_TENSOR_NAME_MAX])
{
        tdm_tensor_name(kind, 0, name);
        return tdm_gguf_find_tensor(g, name);
}

/* Which of two sets of divisors, where the file has some. */
static int choose_divisors(const struct tdm_gguf *g, const struct tdm_hparams *hp, uint32_t *ret, struct tdm_error *err)
{
        uint32_t first = hp->n_ctx;
        char name[TDM_TENSOR_NAME_MAX];
        bool is_long;
        int r = tdm_key_get_u32(g, "phi3", "rope.scaling.original_context_length", &first, err);

        if (r || (!has_tensor(g, TDM_TENSOR_ROPE_LONG, name) && !has_tensor(g, TDM_TENSOR_ROPE_SHORT, name)))
                return r;
        is_long = hp->n_ctx > first;
        if (!has_tensor(g, is_long ? TDM_TENSOR_ROPE_LONG : TDM_TENSOR_ROPE_SHORT, name))
                return tdm_error_set(err, TDM_E_BAD_MODEL, "tensor %s is missing", name);
        *ret = is_long ? TDM_DIVISORS_LONG : TDM_DIVISORS_SHORT;
        return 0;
}

static int phi3_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                      struct tdm_error *err)
{
        for (uint32_t i = 0; i < hp->n_layers; i++)
                if (hp->layers[i].window >= hp->n_ctx) /* it hides nothing */
                        hp->layers[i].window = 0;
        tdm_plain_recipe(g, "phi3", hp, TDM_ROPE_HALVES, 0, recipe);
        return choose_divisors(g, hp, &recipe->ropes[0].has_divisors, err);
}

const struct tdm_architecture tdm_architecture_phi3 = {
        .name = "phi3",
        .fused = TDM_FUSED_QKV | TDM_FUSED_GATE_UP,
        .follows = TDM_PLAIN_KEYS,
        .begin = phi3_begin,
        .end = tdm_plain_end,
};
