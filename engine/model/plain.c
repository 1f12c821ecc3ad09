/* What the plain transformers share: Llama's layers, with which Qwen's and others' begin.
 *
 * Formulas: Hugging Face transformers' modeling_llama.py, modeling_qwen2.py, modeling_qwen3.py and
 * modeling_rope_utils.py, and llama.cpp, whose keys these are. Where those two differ a comment says whom this
 * follows. */
#include <math.h>
#include "engine/model/private.h"

#define SAME_MAGNITUDE 1e-4f /* configs have so many digits */

uint32_t tdm_biases_of_file(const struct tdm_gguf *g, uint32_t layer, uint32_t mask)
{
        uint32_t found = 0;

        for (uint32_t kind = 0; kind < TDM_N_TENSOR_KINDS; kind++) {
                uint32_t bias = tdm_tensor_bias((enum tdm_tensor_kind)kind) & mask;
                char name[TDM_TENSOR_NAME_MAX];

                if (!bias)
                        continue;
                tdm_tensor_name((enum tdm_tensor_kind)kind, layer, name);
                if (tdm_gguf_find_tensor(g, name) ||
                    (tdm_tensor_fused((enum tdm_tensor_kind)kind, TDM_FUSED_ALL, NULL, NULL, layer, name, NULL) &&
                     tdm_gguf_find_tensor(g, name)))
                        found |= bias;
        }
        return found;
}

void tdm_plain_recipe(const struct tdm_gguf *g, const char *architecture, const struct tdm_hparams *hp,
                      enum tdm_rope_style style, uint32_t norms, struct tdm_recipe *ret)
{
        char name[TDM_TENSOR_NAME_MAX];

        tdm_tensor_name(TDM_TENSOR_ROPE_FREQS, 0, name);
        *ret = (struct tdm_recipe){
                .embed_scale = 1,
                .residual = TDM_RESIDUAL_PLAIN,
                .n_streams = 1,
                .n_ropes = 1,
                .ropes = { { .style = style,
                             .n_dims = hp->layers[0].head_dim,
                             .scaling = TDM_ROPE_LINEAR,
                             .has_divisors = tdm_gguf_find_tensor(g, name) != NULL,
                             .base = 1e4f,
                             .factor = 1,
                             .magnitude = 1 } },
        };
        snprintf(ret->architecture, sizeof(ret->architecture), "%s", architecture);
        for (uint32_t i = 0; i < hp->n_layers; i++)
                ret->layers[i] = (struct tdm_layer_recipe){
                        .norms = TDM_NORM_ATTN_BEFORE | TDM_NORM_FFN_BEFORE | norms,
                        .biases =
                                tdm_biases_of_file(g, i, TDM_BIAS_ALL & ~(uint32_t)(TDM_BIAS_ROUTER | TDM_BIAS_CHOICE)),
                        .query_scale = (float)(1.0 / sqrt((double)hp->layers[i].head_dim)),
                        .activation = TDM_ACTIVATION_SILU,
                };
}

int tdm_plain_begin(const struct tdm_gguf *g, const char *architecture, struct tdm_hparams *hp,
                    enum tdm_rope_style style, uint32_t norms, uint32_t biases, struct tdm_recipe *recipe,
                    struct tdm_error *err)
{
        int r = tdm_refuse_window(architecture, hp, err);

        if (r != 0)
                return r;
        tdm_plain_recipe(g, architecture, hp, style, norms, recipe);
        for (uint32_t i = 0; i < hp->n_layers; i++)
                recipe->layers[i].biases |= biases;
        return 0;
}

int tdm_plain_end(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe, struct tdm_error *err)
{
        return tdm_rope_read_scaling(g, recipe->architecture, hp, &recipe->ropes[0], err);
}

int tdm_refuse_other(const struct tdm_gguf *g, const char *architecture, const char *key, float neutral,
                     struct tdm_error *err)
{
        float value = neutral;
        int r = tdm_key_get_float(g, architecture, key, &value, err);

        if (r == 0 && value != neutral)
                r = tdm_error_set(err, TDM_E_UNSUPPORTED, "the key %s.%s is %g, only %g is supported", architecture,
                                  key, (double)value, (double)neutral);
        return r;
}

/* Peng and others, 2023. cos and sin are multiplied by 0.1 ln(factor) + 1. Where the file has a multiplier m of that
 * logarithm, they are also divided by 0.1 m ln(factor) + 1. */
static float yarn_magnitude(const struct tdm_rope_recipe *rope, float multiplier)
{
        double more = rope->factor > 1 ? 0.1 * log((double)rope->factor) : 0;

        return (float)((more + 1) / ((double)multiplier * more + 1));
}

/* Converters write the magnitude that a model's config names. Named as usual it changes nothing. */
static int refuse_magnitude(const struct tdm_gguf *g, const char *architecture, float usual, struct tdm_error *err)
{
        float value = 1;
        int r = tdm_key_get_float(g, architecture, "rope.scaling.yarn_attn_factor", &value, err);

        if (r == 0 && fabsf(value - usual) < SAME_MAGNITUDE)
                return 0;
        return r ? r : tdm_refuse_other(g, architecture, "rope.scaling.yarn_attn_factor", 1, err);
}

static int read_yarn(const struct tdm_gguf *g, const char *architecture, const struct tdm_hparams *hp,
                     struct tdm_rope_recipe *rope, struct tdm_error *err)
{
        float multiplier = 0;
        int r;

        rope->scaling = TDM_ROPE_YARN;
        rope->yarn_beta_fast = 32;
        rope->yarn_beta_slow = 1;
        rope->yarn_n_ctx = hp->n_ctx;
        rope->yarn_is_rounded = 1;
        if ((r = tdm_refuse_other(g, architecture, "rope.scaling.yarn_ext_factor", 1, err)) ||
            (r = tdm_key_get_float(g, architecture, "rope.scaling.yarn_log_multiplier", &multiplier, err)) ||
            (r = tdm_check_float(err, "rope.scaling.yarn_log_multiplier", multiplier, 0, 10)) ||
            (r = refuse_magnitude(g, architecture, yarn_magnitude(rope, multiplier), err)) ||
            (r = tdm_key_get_float(g, architecture, "rope.scaling.yarn_beta_fast", &rope->yarn_beta_fast, err)) ||
            (r = tdm_key_get_float(g, architecture, "rope.scaling.yarn_beta_slow", &rope->yarn_beta_slow, err)) ||
            (r = tdm_key_get_u32(g, architecture, "rope.scaling.original_context_length", &rope->yarn_n_ctx, err)))
                return r;
        rope->magnitude *= yarn_magnitude(rope, multiplier);
        return 0;
}

int tdm_rope_read_scaling(const struct tdm_gguf *g, const char *architecture, const struct tdm_hparams *hp,
                          struct tdm_rope_recipe *rope, struct tdm_error *err)
{
        struct tdm_gguf_string type = { "linear", 6 };
        char key[96], buffer[64];
        int r = tdm_key_get_float(g, architecture, "rope.scaling.attn_factor", &rope->magnitude, err);

        if (rope->scaling == TDM_ROPE_YARN) /* the family's own: a factor means this unless the file says otherwise */
                type = (struct tdm_gguf_string){ "yarn", 4 };
        rope->scaling = TDM_ROPE_LINEAR;

        if (r != 0)
                return r;
        snprintf(key, sizeof(key), "%s.rope.scaling.type", architecture);
        if (tdm_gguf_get_string(g, key, &type) == -EINVAL)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is not a string", key);
        if (tdm_string_is(type, "none") || rope->factor == 0) /* written by some converters for "none" */
                rope->factor = 1;
        if (tdm_string_is(type, "yarn"))
                return read_yarn(g, architecture, hp, rope, err);
        if (tdm_string_is(type, "longrope") && rope->has_divisors > TDM_DIVISORS_FREQS)
                return 0; /* the divisors are all that it means */
        if (!tdm_string_is(type, "none") && !tdm_string_is(type, "linear"))
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "its RoPE scaling is \"%s\", only \"linear\" and \"yarn\" are supported",
                                     tdm_quote(type, buffer));
        return 0;
}

int tdm_refuse_window(const char *architecture, struct tdm_hparams *hp, struct tdm_error *err)
{
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                if (hp->layers[i].window != 0 && hp->layers[i].window < hp->n_ctx)
                        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                             "its attention has a window of %u positions, which is not supported in a "
                                             "%s model (key %s.attention.sliding_window)",
                                             hp->layers[i].window, architecture, architecture);
                hp->layers[i].window = 0;
        }
        return 0;
}

/* Refuses weights of experts, and choices, of another kind. */
static int refuse_other_routers(const struct tdm_gguf *g, const char *architecture, struct tdm_error *err)
{
        float scale = 0;
        int r;

        if ((r = tdm_key_get_float(g, architecture, "expert_weights_scale", &scale, err)) ||
            (r = scale == 1 ? 0 : tdm_refuse_other(g, architecture, "expert_weights_scale", 0, err)))
                return r;
        return tdm_refuse_other(g, architecture, "expert_group_count", 0, err);
}

int tdm_experts_refuse_others(const struct tdm_gguf *g, const char *architecture, struct tdm_error *err)
{
        int r;

        if ((r = refuse_other_routers(g, architecture, err)) ||
            (r = tdm_refuse_other(g, architecture, "expert_shared_count", 0, err)))
                return r;
        return tdm_refuse_other(g, architecture, "expert_shared_feed_forward_length", 0, err);
}

/* As llama.cpp numbers them; the third is a softmax over the chosen ones alone. */
enum gating { GATING_NONE, GATING_SOFTMAX, GATING_SIGMOID, GATING_SOFTMAX_CHOSEN };

int tdm_experts_read_router(const struct tdm_gguf *g, const char *architecture, uint32_t *ret, struct tdm_error *err)
{
        uint32_t gating = GATING_NONE;
        bool normed = *ret != TDM_ROUTER_SOFTMAX_ALL, is_sigmoid = *ret == TDM_ROUTER_SIGMOID;
        int r;

        if ((r = tdm_key_get_u32(g, architecture, "expert_gating_func", &gating, err)) ||
            (r = tdm_key_get_bool(g, architecture, "norm_top_k_prob", &normed, err)) || /* as Ollama calls it */
            (r = tdm_key_get_bool(g, architecture, "expert_weights_norm", &normed, err)))
                return r;
        if (is_sigmoid && gating != GATING_NONE && gating != GATING_SIGMOID)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "its router weights experts by function %u, only a sigmoid is supported in a %s "
                                     "model (key %s.expert_gating_func)",
                                     gating, architecture, architecture);
        if (is_sigmoid)
                return normed ? 0 :
                                tdm_error_set(err, TDM_E_UNSUPPORTED,
                                              "its weights of experts are not divided by their sum, which is not "
                                              "supported with a sigmoid (key %s.expert_weights_norm)",
                                              architecture);
        if (gating != GATING_NONE && gating != GATING_SOFTMAX && gating != GATING_SOFTMAX_CHOSEN)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "its router weights experts by function %u%s, only softmax is supported (key "
                                     "%s.expert_gating_func)",
                                     gating, gating == GATING_SIGMOID ? ", a sigmoid" : "", architecture);
        /* Divided by their sum, the weights of the chosen ones are their own softmax. */
        *ret = normed || gating == GATING_SOFTMAX_CHOSEN ? TDM_ROUTER_SOFTMAX_CHOSEN : TDM_ROUTER_SOFTMAX_ALL;
        return 0;
}

/* The first n_dense layers have a dense FFN. */
static int read_experts(const struct tdm_gguf *g, const char *architecture, uint32_t n_dense, struct tdm_hparams *hp,
                        struct tdm_recipe *recipe, struct tdm_error *err)
{
        uint32_t router = recipe->layers[0].router;
        int r = tdm_experts_read_router(g, architecture, &router, err);

        if (r)
                return r;
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                struct tdm_layer_recipe *l = &recipe->layers[i];

                if (i < n_dense) {
                        l->n_experts = l->n_experts_used = l->d_expert = l->router = 0;
                        continue;
                }
                if (l->n_experts == 0 || l->n_experts_used == 0)
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s.%s is missing", architecture,
                                             l->n_experts == 0 ? "expert_count" : "expert_used_count");
                if (l->d_expert == 0) /* files of some converters: the experts in use are as wide as a dense FFN */
                        l->d_expert = hp->layers[i].d_ff / l->n_experts_used;
                l->router = router;
                hp->layers[i].d_ff = l->d_expert;
        }
        return 0;
}

int tdm_experts_of_file(const struct tdm_gguf *g, const char *architecture, struct tdm_hparams *hp,
                        struct tdm_recipe *recipe, struct tdm_error *err)
{
        return tdm_experts_behind_dense(g, architecture, 0, hp, recipe, err);
}

int tdm_experts_behind_dense(const struct tdm_gguf *g, const char *architecture, uint32_t n_dense,
                             struct tdm_hparams *hp, struct tdm_recipe *recipe, struct tdm_error *err)
{
        int r = tdm_experts_refuse_others(g, architecture, err);

        return r ? r : read_experts(g, architecture, n_dense, hp, recipe, err);
}

int tdm_experts_with_shared(const struct tdm_gguf *g, const char *architecture, bool is_gated, struct tdm_hparams *hp,
                            struct tdm_recipe *recipe, struct tdm_error *err)
{
        static const char width_key[] = "expert_shared_feed_forward_length";
        uint32_t width = recipe->layers[0].d_shared, count = 1;
        char key[96];
        int r;

        snprintf(key, sizeof(key), "the key %s.%s", architecture, width_key);
        if ((r = refuse_other_routers(g, architecture, err)) ||
            (r = tdm_key_get_u32(g, architecture, width_key, &width, err)) ||
            (r = tdm_check_u32(err, key, width, 0, TDM_WIDTH_MAX)) ||
            (r = tdm_key_get_u32(g, architecture, "expert_shared_count", &count, err)))
                return r;
        if (width % 32)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "%s is %u: only multiples of 32 are supported", key,
                                     width);
        if (count > 1 || (count == 0 && width > 0))
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the key %s.expert_shared_count is %u, only one shared expert is supported",
                                     architecture, count);
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                recipe->layers[i].d_shared = width;
                recipe->layers[i].has_shared_gate = is_gated && width > 0;
        }
        return read_experts(g, architecture, 0, hp, recipe, err);
}
