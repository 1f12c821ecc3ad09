/* Keys that change what a model computes and that nothing here follows. Converters write them for architectures that
 * have such operations. A file of a known architecture that has one is a variant of it, and would be computed otherwise
 * than its makers meant. Values that change nothing are let pass. */
#include "engine/model/private.h"

/* Numbers that architectures do not follow, but for those whose `reads` name them, with the values that change
 * nothing. */
static const struct {
        const char *key;
        float neutral, also;
} numbers[] = {
        { "logit_scale", 1, 0 },
        { "embedding_scale", 1, 0 },
        { "residual_scale", 1, 0 },
        { "attn_output_scale", 1, 0 },
        { "attention.output_scale", 1, 0 },
        { "attention.value_scale", 1, 0 },
        { "attention.clamp_kqv", 0, 0 },
        { "attention.max_alibi_bias", 0, 0 },
        { "attention.temperature_length", 0, 0 },
        { "attention.temperature_scale", 0, 0 },
        { "attention.q_lora_rank", 0, 0 },
        { "attention.kv_lora_rank", 0, 0 },
        { "attention.indexer.head_count", 0, 0 },
        { "router_logit_softcapping", 0, 0 },
        { "expert_group_used_count", 0, 1 },
        { "experts_per_group", 0, 1 },
        { "leading_dense_block_count", 0, 0 },
        { "interleave_moe_layer_step", 0, 1 },
        { "moe_every_n_layers", 0, 1 },
        { "full_attention_interval", 0, 1 },
        { "ssm.conv_kernel", 0, 0 },
        { "ssm.state_size", 0, 0 },
        { "shortconv.l_cache", 0, 0 },
        { "n_deepstack_layers", 0, 0 },
};

static const char *const flags[] = { "use_parallel_residual", "swin_norm" };

static bool is_read(const struct tdm_architecture *a, const char *key)
{
        for (const char *const *own = a->reads; own && *own; own++)
                if (strcmp(*own, key) == 0)
                        return true;
        return false;
}

static int refuse_numbers(const struct tdm_gguf *g, const struct tdm_architecture *a, struct tdm_error *err)
{
        const char *architecture = a->name;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(numbers); i++) {
                float value = numbers[i].neutral;
                int r = is_read(a, numbers[i].key) ? 0 :
                                                     tdm_key_get_float(g, architecture, numbers[i].key, &value, err);

                if (r == 0 && value != numbers[i].neutral && value != numbers[i].also)
                        r = tdm_error_set(err, TDM_E_UNSUPPORTED,
                                          "the key %s.%s is %g, which asks for what is not done here", architecture,
                                          numbers[i].key, (double)value);
                if (r != 0)
                        return r;
        }
        for (size_t i = 0; i < TDM_ARRAY_SIZE(flags); i++) {
                bool value = false;
                int r = tdm_key_get_bool(g, architecture, flags[i], &value, err);

                if (r == 0 && value)
                        r = tdm_error_set(err, TDM_E_UNSUPPORTED,
                                          "the key %s.%s is true, which asks for what is not done here", architecture,
                                          flags[i]);
                if (r != 0)
                        return r;
        }
        return 0;
}

/* Sizes that some architectures have twice. The others follow one of the two: the second may say the same. */
static int refuse_second_sizes(const struct tdm_gguf *g, const struct tdm_hparams *hp, const struct tdm_recipe *recipe,
                               struct tdm_error *err)
{
        uint32_t head_dim = hp->layers[0].head_dim, n_dims = recipe->n_ropes > 0 ? recipe->ropes[0].n_dims : head_dim;
        const struct {
                const char *key;
                uint32_t same;
        } sizes[] = {
                { "attention.key_length_swa", head_dim },  { "attention.value_length_swa", head_dim },
                { "rope.dimension_count_swa", n_dims },    { "attention.shared_kv_layers", 0 },
                { "embedding_length_per_layer_input", 0 },
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(sizes); i++) {
                uint32_t value = sizes[i].same;
                int r = tdm_key_get_u32(g, recipe->architecture, sizes[i].key, &value, err);

                if (r == 0 && value != sizes[i].same)
                        r = tdm_error_set(
                                err, TDM_E_UNSUPPORTED, "the key %s.%s is %u, only %u is supported in a %s model",
                                recipe->architecture, sizes[i].key, value, sizes[i].same, recipe->architecture);
                if (r != 0)
                        return r;
        }
        return 0;
}

/* The activation as files name it. */
static int refuse_activation(const struct tdm_gguf *g, const struct tdm_recipe *recipe, struct tdm_error *err)
{
        static const char *const silu[] = { "silu", "swish", "swiglu", "swiglu_oai", NULL };
        static const char *const gelu[] = { "gelu_pytorch_tanh", "gelu_tanh", "gelu_new", "gelu", "geglu", NULL };
        bool is_gelu = recipe->layers[0].activation == TDM_ACTIVATION_GELU_TANH;
        struct tdm_gguf_string name;
        char key[96], buffer[64];

        snprintf(key, sizeof(key), "%s.hidden_activation", recipe->architecture);
        if (tdm_gguf_get_string(g, key, &name) < 0)
                return 0;
        for (const char *const *known = is_gelu ? gelu : silu; *known; known++)
                if (tdm_string_is(name, *known))
                        return 0;
        return tdm_error_set(err, TDM_E_UNSUPPORTED, "its activation is \"%s\", only %s is supported (key %s)",
                             tdm_quote(name, buffer), is_gelu ? "GELU" : "SiLU", key);
}

int tdm_refuse_unfollowed(const struct tdm_gguf *g, const struct tdm_architecture *a, const struct tdm_hparams *hp,
                          const struct tdm_recipe *recipe, struct tdm_error *err)
{
        int r;

        if ((r = refuse_numbers(g, a, err)) || (r = refuse_activation(g, recipe, err)))
                return r;
        return a->follows_second_sizes ? 0 : refuse_second_sizes(g, hp, recipe, err);
}
