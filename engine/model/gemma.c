/* What Gemma 3, 3n and 4 share: which layers slide, which read another's keys and values, and how both kinds turn. */
#include <math.h>
#include "engine/model/private.h"

/* The pattern is a number (every n-th layer sees everything) or, for each layer, whether it slides. */
int tdm_gemma_read_windows(const struct tdm_gguf *g, const char *architecture, uint32_t every, struct tdm_hparams *hp,
                           struct tdm_error *err)
{
        static const char name[] = "attention.sliding_window_pattern";
        uint64_t n = 0;
        char key[96];
        int r;

        snprintf(key, sizeof(key), "%s.%s", architecture, name);
        r = tdm_gguf_get_array_size(g, key, &n);
        if (r == 0 && n < hp->n_layers)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is for %llu layers, the model has %u", key,
                                     (unsigned long long)n, hp->n_layers);
        if (r < 0) {
                n = 0;
                r = tdm_key_get_u32(g, architecture, name, &every, err);
                if (r || (r = tdm_check_u32(err, key, every, 1, UINT32_MAX)))
                        return r;
        }
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                uint64_t slides = (i + 1) % every != 0;

                if (n > 0 && tdm_gguf_get_array_u64(g, key, i, &slides) < 0)
                        return tdm_error_set(err, TDM_E_BAD_MODEL,
                                             "the key %s is neither a number nor an array of numbers", key);
                if (slides == 0)
                        hp->layers[i].window = 0;
        }
        return 0;
}

/* The last n_shared layers read the keys and values of the last layer of their kind that has some of its own. */
int tdm_gemma_share_kv(const char *architecture, uint32_t n_shared, struct tdm_hparams *hp, struct tdm_error *err)
{
        uint32_t n_own = hp->n_layers - TDM_MIN(n_shared, hp->n_layers);

        for (uint32_t i = n_own; i < hp->n_layers; i++) {
                uint32_t owner = n_own;

                while (owner > 0 && !hp->layers[owner - 1].window != !hp->layers[i].window)
                        owner--;
                if (owner == 0)
                        return tdm_error_set(err, TDM_E_BAD_MODEL,
                                             "the key %s.attention.shared_kv_layers is %u, but no layer before these "
                                             "has keys for layer %u",
                                             architecture, n_shared, i);
                hp->layers[i].kv_layer = owner - 1;
        }
        return 0;
}

int tdm_gemma_read_other_names(const struct tdm_gguf *g, const char *architecture, struct tdm_recipe *recipe,
                               struct tdm_error *err)
{
        float *full = &recipe->ropes[TDM_GEMMA_ROPE_FULL].base, *window = &recipe->ropes[TDM_GEMMA_ROPE_WINDOW].base;
        int r;

        if ((r = tdm_key_get_float(g, architecture, "rope.global.freq_base", full, err)) ||
            (r = tdm_key_get_float(g, architecture, "rope.local.freq_base", window, err)) ||
            (r = tdm_key_get_float(g, architecture, "rope.freq_base_local", window, err)))
                return r;
        return tdm_refuse_other(g, architecture, "rope.freq_scale", 1, err);
}

void tdm_gemma_recipe(const char *architecture, const struct tdm_hparams *hp, struct tdm_recipe *ret)
{
        *ret = (struct tdm_recipe){
                .norm_eps = 1e-6f,
                .embed_scale = (float)sqrt((double)hp->d_model),
                .residual = TDM_RESIDUAL_PLAIN,
                .n_streams = 1,
                .n_ropes = TDM_GEMMA_N_ROPES,
        };
        snprintf(ret->architecture, sizeof(ret->architecture), "%s", architecture);
        for (uint32_t i = 0; i < TDM_GEMMA_N_ROPES; i++)
                ret->ropes[i] = (struct tdm_rope_recipe){ .style = TDM_ROPE_HALVES,
                                                          .n_dims = hp->layers[0].head_dim,
                                                          .scaling = TDM_ROPE_LINEAR,
                                                          .base = i == TDM_GEMMA_ROPE_FULL ? 1e6f : 1e4f,
                                                          .factor = 1,
                                                          .magnitude = 1 };
        for (uint32_t i = 0; i < hp->n_layers; i++)
                ret->layers[i] = (struct tdm_layer_recipe){
                        .norms = TDM_NORM_ATTN_BEFORE | TDM_NORM_ATTN_AFTER | TDM_NORM_Q | TDM_NORM_K |
                                 TDM_NORM_FFN_BEFORE | TDM_NORM_FFN_AFTER,
                        .rope = hp->layers[i].window ? TDM_GEMMA_ROPE_WINDOW : TDM_GEMMA_ROPE_FULL,
                        .query_scale = 1,
                        .activation = TDM_ACTIVATION_GELU_TANH,
                };
}

int tdm_gemma_check_rope(const struct tdm_hparams *hp, const struct tdm_recipe *recipe, struct tdm_error *err)
{
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                uint32_t n_dims = recipe->ropes[recipe->layers[i].rope].n_dims;

                if (n_dims != hp->layers[i].head_dim)
                        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                             "it rotates %u of %u dimensions of a head, only all of them is supported",
                                             n_dims, hp->layers[i].head_dim);
        }
        return 0;
}
