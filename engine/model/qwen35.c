/* Qwen 3.5 and later, dense: three layers of four are gated delta nets, the fourth has gated attention.
 *
 * Formulas: llama.cpp's qwen35. The length of queries and keys is divided by at least epsilon there. Sections of RoPE
 * say how pictures turn; the three positions of text are the same. */
#include <math.h>
#include "engine/model/private.h"

struct delta_sizes {
        uint32_t taps, size, k_heads, v_heads, every;
};

static int read_delta(const struct tdm_gguf *g, struct delta_sizes *ret, struct tdm_error *err)
{
        struct delta_sizes s = { .every = 4 };
        uint32_t inner = 0;
        int r;

        if ((r = tdm_key_get_u32(g, "qwen35", "ssm.conv_kernel", &s.taps, err)) ||
            (r = tdm_key_get_u32(g, "qwen35", "ssm.state_size", &s.size, err)) ||
            (r = tdm_key_get_u32(g, "qwen35", "ssm.group_count", &s.k_heads, err)) ||
            (r = tdm_key_get_u32(g, "qwen35", "ssm.time_step_rank", &s.v_heads, err)) ||
            (r = tdm_key_get_u32(g, "qwen35", "ssm.inner_size", &inner, err)) ||
            (r = tdm_key_get_u32(g, "qwen35", "full_attention_interval", &s.every, err)) ||
            (r = tdm_check_u32(err, "the key qwen35.ssm.conv_kernel", s.taps, 2, TDM_MAX_CONV_TAPS)) ||
            (r = tdm_check_u32(err, "the key qwen35.ssm.state_size", s.size, 16, 256)) ||
            (r = tdm_check_u32(err, "the key qwen35.ssm.time_step_rank", s.v_heads, 1, 1024)) ||
            (r = tdm_check_u32(err, "the key qwen35.ssm.group_count", s.k_heads, 1, s.v_heads)) ||
            (r = tdm_check_u32(err, "the key qwen35.ssm.inner_size", inner, s.v_heads * s.size, s.v_heads * s.size)) ||
            (r = tdm_check_u32(err, "the key qwen35.full_attention_interval", s.every, 1, TDM_MAX_LAYERS)))
                return r;
        if (s.size % 16 || s.v_heads % s.k_heads)
                return tdm_error_set(
                        err, TDM_E_UNSUPPORTED,
                        "the keys qwen35.ssm.*: %u heads of %u values for %u heads of keys: values must be "
                        "a multiple of 16, and heads one of the heads of keys",
                        s.v_heads, s.size, s.k_heads);
        *ret = s;
        return 0;
}

static int qwen35_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                        struct tdm_error *err)
{
        struct delta_sizes s = { 0 };
        int r = tdm_refuse_window("qwen35", hp, err);

        if (r || (r = read_delta(g, &s, err)))
                return r;
        tdm_plain_recipe(g, "qwen35", hp, TDM_ROPE_HALVES, TDM_NORM_Q | TDM_NORM_K, recipe);
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                struct tdm_layer_recipe *l = &recipe->layers[i];

                l->has_gate = (i + 1) % s.every == 0;
                if (l->has_gate)
                        continue;
                l->mixer = TDM_MIXER_GATED_DELTA;
                l->conv_taps = s.taps;
                l->delta_size = s.size;
                l->delta_k_heads = s.k_heads;
                l->delta_v_heads = s.v_heads;
                l->norms &= ~(uint32_t)(TDM_NORM_Q | TDM_NORM_K);
                l->rope = TDM_ROPE_NONE;
                hp->layers[i].n_state = tdm_recipe_n_state(l, hp->d_model);
        }
        return 0;
}

static const char *const own_keys[] = { "ssm.conv_kernel", "ssm.state_size", "full_attention_interval", NULL };

const struct tdm_architecture tdm_architecture_qwen35 = {
        .name = "qwen35",
        .follows = TDM_PLAIN_KEYS,
        .reads = own_keys,
        .begin = qwen35_begin,
        .end = tdm_plain_end,
};
