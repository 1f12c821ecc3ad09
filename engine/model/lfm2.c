/* LFM2 (Liquid AI), dense and with experts: most layers have a short convolution in place of attention.
 *
 * A layer without key heads has one. Attention is Qwen3's: a norm for each head of queries and keys, RoPE of halves.
 * The norm before the head is called token_embd_norm in these files.
 *
 * With experts the first layers have a dense FFN, and routers a sigmoid. Formulas: Hugging Face transformers'
 * modeling_lfm2_moe.py. The bias of the choice (exp_probs_b) has to be in the file, as in llama.cpp. */
#include "engine/model/private.h"

/* A layer with a state has the sizes of the model's attention. They mean nothing in it. */
static int give_state(const char *architecture, struct tdm_hparams *hp, uint32_t taps, struct tdm_error *err)
{
        uint32_t n_kv_heads = 0;

        for (uint32_t i = 0; i < hp->n_layers && n_kv_heads == 0; i++)
                n_kv_heads = hp->layers[i].n_kv_heads;
        if (n_kv_heads == 0)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "no layer of it has attention, which is not supported (key "
                                     "%s.attention.head_count_kv)",
                                     architecture);
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                struct tdm_layer_sizes *l = &hp->layers[i];

                if (l->n_kv_heads > 0)
                        continue;
                l->n_kv_heads = n_kv_heads;
                l->n_state = (taps - 1) * hp->d_model;
        }
        return 0;
}

static int conv_begin_as(const char *architecture, const struct tdm_gguf *g, struct tdm_hparams *hp,
                         struct tdm_recipe *recipe, struct tdm_error *err)
{
        uint32_t taps = 0;
        int r = tdm_refuse_window(architecture, hp, err);

        if (r == 0)
                r = tdm_key_get_u32(g, architecture, "shortconv.l_cache", &taps, err);
        if (r == 0 && (taps < 2 || taps > TDM_MAX_CONV_TAPS))
                r = tdm_error_set(err, taps == 0 ? TDM_E_BAD_MODEL : TDM_E_UNSUPPORTED,
                                  "the key %s.shortconv.l_cache is %u, it must be from 2 to %u", architecture, taps,
                                  TDM_MAX_CONV_TAPS);
        if (r == 0)
                r = give_state(architecture, hp, taps, err);
        if (r != 0)
                return r;
        tdm_plain_recipe(g, architecture, hp, TDM_ROPE_HALVES, TDM_NORM_Q | TDM_NORM_K, recipe);
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                struct tdm_layer_recipe *l = &recipe->layers[i];

                if (hp->layers[i].n_state == 0)
                        continue;
                l->mixer = TDM_MIXER_SHORT_CONV;
                l->conv_taps = taps;
                l->norms &= ~(uint32_t)(TDM_NORM_Q | TDM_NORM_K);
                l->rope = TDM_ROPE_NONE;
        }
        return 0;
}

static int lfm2_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                      struct tdm_error *err)
{
        return conv_begin_as("lfm2", g, hp, recipe, err);
}

static const char *const own_keys[] = { "shortconv.l_cache", NULL };

const struct tdm_architecture tdm_architecture_lfm2 = {
        .name = "lfm2",
        .follows = TDM_PLAIN_KEYS,
        .reads = own_keys,
        .layers_may_differ = true,
        .begin = lfm2_begin,
        .end = tdm_plain_end,
};

static int lfm2moe_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                         struct tdm_error *err)
{
        int r = conv_begin_as("lfm2moe", g, hp, recipe, err);

        for (uint32_t i = 0; r == 0 && i < hp->n_layers; i++)
                recipe->layers[i].router = TDM_ROUTER_SIGMOID;
        return r;
}

static int lfm2moe_end(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                       struct tdm_error *err)
{
        uint32_t n_dense = 0;
        int r = tdm_key_get_u32(g, "lfm2moe", "leading_dense_block_count", &n_dense, err);

        if (r || (r = tdm_check_u32(err, "the key lfm2moe.leading_dense_block_count", n_dense, 0, hp->n_layers - 1)) ||
            (r = tdm_experts_behind_dense(g, "lfm2moe", n_dense, hp, recipe, err)))
                return r;
        for (uint32_t i = n_dense; i < hp->n_layers; i++)
                recipe->layers[i].biases |= TDM_BIAS_CHOICE;
        return tdm_plain_end(g, hp, recipe, err);
}

static const char *const own_keys_with_experts[] = { "shortconv.l_cache", "leading_dense_block_count", NULL };

const struct tdm_architecture tdm_architecture_lfm2moe = {
        .name = "lfm2moe",
        .fused = TDM_FUSED_GATE_UP_EXPS,
        .follows = TDM_PLAIN_KEYS | TDM_EXPERT_KEYS,
        .reads = own_keys_with_experts,
        .layers_may_differ = true,
        .begin = lfm2moe_begin,
        .end = lfm2moe_end,
};
