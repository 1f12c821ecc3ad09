/* Gemma 4. Formulas and defaults: Hugging Face transformers' modular_gemma4.py and llama.cpp's gemma4.cpp.
 *
 * Full layers have longer heads than sliding ones, and turn a part of them: the pairs that stay have a huge divisor.
 * Values have a norm, and in some full layers they are the keys before norm and RoPE. The small models have an input
 * of each layer and later layers that read the keys and values of earlier ones. Each layer's output is scaled. One
 * model has experts beside the dense FFN. Its router takes the softmax of all numbers and divides the weights of the
 * chosen ones by their sum: which is the softmax of the chosen ones. */
#include "engine/model/private.h"

#define FULL_EVERY 6u

/* The keys without an ending are of the full layers. */
static int get_heads(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_error *err)
{
        uint32_t key_length = hp->layers[0].head_dim, value_length;
        int r = tdm_key_get_u32(g, "gemma4", "attention.key_length_swa", &key_length, err);

        value_length = key_length;
        if (r || (r = tdm_key_get_u32(g, "gemma4", "attention.value_length_swa", &value_length, err)) ||
            (r = tdm_check_u32(err, "the head dimension of sliding layers", key_length, 1, TDM_HEAD_DIM_MAX)))
                return r;
        if (value_length != key_length)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "keys of %u and values of %u dimensions differ, which is not supported",
                                     key_length, value_length);
        for (uint32_t i = 0; i < hp->n_layers; i++)
                if (hp->layers[i].window)
                        hp->layers[i].head_dim = key_length;
        return 0;
}

static bool has_tensor(const struct tdm_gguf *g, enum tdm_tensor_kind kind, uint32_t layer)
{
        char name[TDM_TENSOR_NAME_MAX];

        tdm_tensor_name(kind, layer, name);
        return tdm_gguf_find_tensor(g, name);
}

static int gemma4_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                        struct tdm_error *err)
{
        uint32_t n_shared = 0, width = 0, window_dims;
        int r;

        if ((r = tdm_key_get_u32(g, "gemma4", "attention.shared_kv_layers", &n_shared, err)) ||
            (r = tdm_key_get_u32(g, "gemma4", "embedding_length_per_layer_input", &width, err)) ||
            (r = tdm_check_u32(err, "the width of a layer's input", width, 0, TDM_WIDTH_MAX)) ||
            (r = tdm_gemma_read_windows(g, "gemma4", FULL_EVERY, hp, err)) || (r = get_heads(g, hp, err)) ||
            (r = tdm_gemma_share_kv("gemma4", n_shared, hp, err)))
                return r;
        tdm_gemma_recipe("gemma4", hp, recipe);
        recipe->logit_softcap = 30;
        recipe->per_layer_width = width;
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                struct tdm_layer_recipe *l = &recipe->layers[i];

                l->norms |= TDM_NORM_V;
                l->has_input = width > 0;
                l->has_output_scale = has_tensor(g, TDM_TENSOR_OUTPUT_SCALE, i);
                l->v_is_k = hp->layers[i].kv_layer == i && !has_tensor(g, TDM_TENSOR_V, i);
                recipe->ropes[l->rope].n_dims = hp->layers[i].head_dim;
        }
        window_dims = recipe->ropes[TDM_GEMMA_ROPE_WINDOW].n_dims;
        if ((r = tdm_key_get_u32(g, "gemma4", "rope.dimension_count_swa", &window_dims, err)))
                return r;
        recipe->ropes[TDM_GEMMA_ROPE_WINDOW].n_dims = window_dims;
        recipe->ropes[TDM_GEMMA_ROPE_FULL].has_divisors = has_tensor(g, TDM_TENSOR_ROPE_FREQS, 0);
        return 0;
}

static int gemma4_end(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                      struct tdm_error *err)
{
        uint32_t router = TDM_ROUTER_NONE;
        int r = tdm_experts_read_router(g, "gemma4", &router, err);

        if (r)
                return r;
        for (uint32_t i = 0; i < hp->n_layers && recipe->layers[i].n_experts > 0; i++) {
                struct tdm_layer_recipe *l = &recipe->layers[i];

                if (l->n_experts_used == 0 || l->d_expert == 0)
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "the key gemma4.%s is missing",
                                             l->d_expert == 0 ? "expert_feed_forward_length" : "expert_used_count");
                l->router = router;
                l->has_dense_beside = 1;
                l->gate_up_is_one = has_tensor(g, TDM_TENSOR_GATE_UP_EXPS, i);
        }
        r = tdm_experts_refuse_others(g, "gemma4", err);
        return r ? r : tdm_gemma_check_rope(hp, recipe, err);
}

const struct tdm_architecture tdm_architecture_gemma4 = {
        .name = "gemma4",
        .follows = 1u << TDM_KEY_LOGIT_SOFTCAP | 1u << TDM_KEY_ROPE_BASE | 1u << TDM_KEY_ROPE_BASE_WINDOW |
                   1u << TDM_KEY_ROPE_DIMS | TDM_EXPERT_KEYS,
        .follows_second_sizes = true,
        .layers_may_differ = true,
        .begin = gemma4_begin,
        .end = gemma4_end,
};
