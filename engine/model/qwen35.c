/* Qwen 3.5 and later, dense and with experts, and Qwen3-Next before them: most layers are gated delta nets, by default
 * three of four, and the others have gated attention. Experts have a shared one with a gate beside them.
 *
 * Formulas: llama.cpp's qwen35, qwen35moe and qwen3next. The length of queries and keys is divided by at least epsilon
 * there. Sections of RoPE say how pictures turn; the three positions of text are the same. Qwen3-Next has the heads of
 * values that share a head of keys beside each other; converters bring those of Qwen 3.5 into turns. */
#include <math.h>
#include "engine/model/private.h"

struct delta_sizes {
        uint32_t taps, size, k_heads, v_heads, every;
};

/* A required number: one that a file lacks is 0, and out of its range. */
static int read_delta_number(const struct tdm_gguf *g, const char *architecture, const char *key, uint32_t min,
                             uint32_t max, uint32_t *ret, struct tdm_error *err)
{
        char named[96];
        int r = tdm_key_get_u32(g, architecture, key, ret, err);

        snprintf(named, sizeof(named), "the key %s.%s", architecture, key);
        return r ? r : tdm_check_u32(err, named, *ret, min, max);
}

static int read_delta(const struct tdm_gguf *g, const char *a, struct delta_sizes *ret, struct tdm_error *err)
{
        struct delta_sizes s = { .every = 4 };
        uint32_t inner = 0;
        int r;

        if ((r = read_delta_number(g, a, "ssm.conv_kernel", 2, TDM_MAX_CONV_TAPS, &s.taps, err)) ||
            (r = read_delta_number(g, a, "ssm.state_size", 16, 256, &s.size, err)) ||
            (r = read_delta_number(g, a, "ssm.time_step_rank", 1, 1024, &s.v_heads, err)) ||
            (r = read_delta_number(g, a, "ssm.group_count", 1, s.v_heads, &s.k_heads, err)) ||
            (r = read_delta_number(g, a, "ssm.inner_size", s.v_heads * s.size, s.v_heads * s.size, &inner, err)) ||
            (r = read_delta_number(g, a, "full_attention_interval", 1, TDM_MAX_LAYERS, &s.every, err)))
                return r;
        if (s.size % 16 || s.v_heads % s.k_heads)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the keys %s.ssm.*: %u heads of %u values for %u heads of keys: values must be "
                                     "a multiple of 16, and heads one of the heads of keys",
                                     a, s.v_heads, s.size, s.k_heads);
        *ret = s;
        return 0;
}

/* Which layers are delta nets: those between every n-th one, or those that an array names. */
static int read_layers(const struct tdm_gguf *g, const char *architecture, uint32_t every, const struct tdm_hparams *hp,
                       bool ret[static TDM_MAX_LAYERS], struct tdm_error *err)
{
        uint64_t n = 0, is_delta;
        char key[96];

        snprintf(key, sizeof(key), "%s.attention.recurrent_layers", architecture);
        for (uint32_t i = 0; i < hp->n_layers; i++)
                ret[i] = (i + 1) % every != 0;
        if (tdm_gguf_get_array_size(g, key, &n) == -ENOENT)
                return 0;
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                if (n < hp->n_layers || tdm_gguf_get_array_u64(g, key, i, &is_delta) < 0)
                        return tdm_error_set(err, TDM_E_BAD_MODEL,
                                             "the key %s is not an array that says of %u layers whether they keep a "
                                             "state",
                                             key, hp->n_layers);
                ret[i] = is_delta != 0;
        }
        return 0;
}

static int delta_begin_as(const char *architecture, bool in_groups, const struct tdm_gguf *g, struct tdm_hparams *hp,
                          struct tdm_recipe *recipe, struct tdm_error *err)
{
        struct delta_sizes s = { 0 };
        bool is_delta[TDM_MAX_LAYERS], has_attention = false;
        int r = tdm_refuse_window(architecture, hp, err);

        if (r || (r = read_delta(g, architecture, &s, err)) ||
            (r = read_layers(g, architecture, s.every, hp, is_delta, err)))
                return r;
        tdm_plain_recipe(g, architecture, hp, TDM_ROPE_HALVES, TDM_NORM_Q | TDM_NORM_K, recipe);
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                struct tdm_layer_recipe *l = &recipe->layers[i];

                l->has_gate = !is_delta[i];
                has_attention = has_attention || l->has_gate;
                if (l->has_gate)
                        continue;
                l->mixer = TDM_MIXER_GATED_DELTA;
                l->conv_taps = s.taps;
                l->delta_size = s.size;
                l->delta_k_heads = s.k_heads;
                l->delta_v_heads = s.v_heads;
                l->delta_in_groups = in_groups;
                l->norms &= ~(uint32_t)(TDM_NORM_Q | TDM_NORM_K);
                l->rope = TDM_ROPE_NONE;
                hp->layers[i].n_state = tdm_recipe_n_state(l, hp->d_model);
        }
        if (!has_attention)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "no layer of it has attention, which is not supported (key "
                                     "%s.full_attention_interval)",
                                     architecture);
        return 0;
}

static const char *const own_keys[] = { "ssm.conv_kernel", "ssm.state_size", "full_attention_interval", NULL };

static int qwen35_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                        struct tdm_error *err)
{
        return delta_begin_as("qwen35", false, g, hp, recipe, err);
}

const struct tdm_architecture tdm_architecture_qwen35 = {
        .name = "qwen35",
        .follows = TDM_PLAIN_KEYS,
        .reads = own_keys,
        .begin = qwen35_begin,
        .end = tdm_plain_end,
};

/* Routers divide the weights of the chosen experts by their sum. */
static int end_with_experts(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                            struct tdm_error *err)
{
        int r = tdm_experts_with_shared(g, recipe->architecture, true, hp, recipe, err);

        if (r == 0 && recipe->layers[0].d_shared == 0)
                r = tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s.expert_shared_feed_forward_length is missing or 0",
                                  recipe->architecture);
        return r ? r : tdm_plain_end(g, hp, recipe, err);
}

static int qwen35moe_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                           struct tdm_error *err)
{
        return delta_begin_as("qwen35moe", false, g, hp, recipe, err);
}

const struct tdm_architecture tdm_architecture_qwen35moe = {
        .name = "qwen35moe",
        .fused = TDM_FUSED_GATE_UP_EXPS,
        .follows = TDM_PLAIN_KEYS | TDM_EXPERT_KEYS,
        .reads = own_keys,
        .has_only_experts = true,
        .begin = qwen35moe_begin,
        .end = end_with_experts,
};

/* Its first files have the queries, keys, values and gates of a delta net as one tensor. */
static int refuse_first_form(const struct tdm_gguf *g, const struct tdm_hparams *hp, struct tdm_error *err)
{
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                char name[TDM_TENSOR_NAME_MAX];

                snprintf(name, sizeof(name), "blk.%u.ssm_in.weight", i);
                if (tdm_gguf_find_tensor(g, name))
                        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                             "tensor %s is of a form that only the first files of qwen3next have: use "
                                             "a file with attn_qkv and attn_gate in its place",
                                             name);
        }
        return 0;
}

static int qwen3next_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                           struct tdm_error *err)
{
        int r = refuse_first_form(g, hp, err);

        return r ? r : delta_begin_as("qwen3next", true, g, hp, recipe, err);
}

const struct tdm_architecture tdm_architecture_qwen3next = {
        .name = "qwen3next",
        .fused = TDM_FUSED_GATE_UP_EXPS | TDM_FUSED_DELTA,
        .follows = TDM_PLAIN_KEYS | TDM_EXPERT_KEYS,
        .reads = own_keys,
        .has_only_experts = true,
        .begin = qwen3next_begin,
        .end = end_with_experts,
};
