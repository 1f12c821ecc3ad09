/* LFM2 (Liquid AI), dense: most layers have a short convolution in place of attention.
 *
 * A layer without key heads has one. Attention is Qwen3's: a norm for each head of queries and keys, RoPE of halves.
 * The norm before the head is called token_embd_norm in these files. */
#include "engine/model/private.h"

/* A layer with a state has the sizes of the model's attention. They mean nothing in it. */
static int give_state(struct tdm_hparams *hp, uint32_t taps, struct tdm_error *err)
{
        uint32_t n_kv_heads = 0;

        for (uint32_t i = 0; i < hp->n_layers && n_kv_heads == 0; i++)
                n_kv_heads = hp->layers[i].n_kv_heads;
        if (n_kv_heads == 0)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "no layer of it has attention, which is not supported (key "
                                     "lfm2.attention.head_count_kv)");
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                struct tdm_layer_sizes *l = &hp->layers[i];

                if (l->n_kv_heads > 0)
                        continue;
                l->n_kv_heads = n_kv_heads;
                l->n_state = (taps - 1) * hp->d_model;
        }
        return 0;
}

static int lfm2_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                      struct tdm_error *err)
{
        uint32_t taps = 0;
        int r = tdm_refuse_window("lfm2", hp, err);

        if (r == 0)
                r = tdm_key_get_u32(g, "lfm2", "shortconv.l_cache", &taps, err);
        if (r == 0 && (taps < 2 || taps > TDM_MAX_CONV_TAPS))
                r = tdm_error_set(err, taps == 0 ? TDM_E_BAD_MODEL : TDM_E_UNSUPPORTED,
                                  "the key lfm2.shortconv.l_cache is %u, it must be from 2 to %u", taps,
                                  TDM_MAX_CONV_TAPS);
        if (r == 0)
                r = give_state(hp, taps, err);
        if (r != 0)
                return r;
        tdm_plain_recipe(g, "lfm2", hp, TDM_ROPE_HALVES, TDM_NORM_Q | TDM_NORM_K, recipe);
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

static const char *const own_keys[] = { "shortconv.l_cache", NULL };

const struct tdm_architecture tdm_architecture_lfm2 = {
        .name = "lfm2",
        .follows = TDM_PLAIN_KEYS,
        .reads = own_keys,
        .layers_may_differ = true,
        .begin = lfm2_begin,
        .end = tdm_plain_end,
};
