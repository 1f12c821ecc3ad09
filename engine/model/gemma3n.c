/* Gemma 3n. Formulas and defaults: Hugging Face transformers' modeling_gemma3n.py and llama.cpp's gemma3n.cpp.
 *
 * Four streams of the residual (AltUp), a low-rank branch beside attention (LAuReL), an input of each layer that comes
 * from a second embedding, values with a norm, sparse activations in the first layers, and later layers that read the
 * keys and values of earlier ones. Where a file lacks a key, the number that llama.cpp has fixed for it holds. */
#include <math.h>
#include "engine/model/private.h"

#define FULL_EVERY 5u
#define OWN_LAYERS 20u
#define SPARSE_LAYERS 10u
#define SPARSITY_SCALE 1.6448533535003662f /* 95 % of a normal distribution are below */

static int bad_key(struct tdm_error *err, const char *key)
{
        return tdm_error_set(err, TDM_E_BAD_MODEL, "the key gemma3n.%s is not a usable number for each layer", key);
}

/* An array with a number for each layer; minus infinity: the layer is dense. */
static int get_sparsity(const struct tdm_gguf *g, const struct tdm_hparams *hp, struct tdm_recipe *recipe,
                        struct tdm_error *err)
{
        static const char key[] = "gemma3n.activation_sparsity_scale";
        uint64_t n = 0;
        bool is_there = tdm_gguf_get_array_size(g, key, &n) == 0;

        for (uint32_t i = 0; i < hp->n_layers; i++) {
                struct tdm_layer_recipe *l = &recipe->layers[i];
                double scale = i < SPARSE_LAYERS ? (double)SPARSITY_SCALE : -INFINITY;

                if (is_there && (n < hp->n_layers || tdm_gguf_get_array_f64(g, key, i, &scale) < 0 || isnan(scale)))
                        return bad_key(err, key + strlen("gemma3n."));
                l->is_sparse = scale != -INFINITY;
                l->sparsity_scale = l->is_sparse ? (float)scale : 0;
        }
        return 0;
}

/* There is no key for the rank. */
static uint32_t rank_of_file(const struct tdm_gguf *g)
{
        const struct tdm_gguf_tensor *t = tdm_gguf_find_tensor(g, "blk.0.laurel_l.weight");

        return t ? (uint32_t)TDM_MIN(t->dims[1], (uint64_t)TDM_WIDTH_MAX) : 64;
}

static int gemma3n_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                         struct tdm_error *err)
{
        uint32_t n_shared = hp->n_layers - TDM_MIN(hp->n_layers, OWN_LAYERS), n_streams = 4, active = 0, width = 256;
        bool corrects_scale = true;
        int r;

        if ((r = tdm_key_get_bool(g, "gemma3n", "altup.correct_scale", &corrects_scale, err)))
                return r;
        if (!corrects_scale)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "its corrections are not scaled, which is not supported (key "
                                     "gemma3n.altup.correct_scale)");
        if ((r = tdm_key_get_u32(g, "gemma3n", "attention.shared_kv_layers", &n_shared, err)) ||
            (r = tdm_key_get_u32(g, "gemma3n", "altup.num_inputs", &n_streams, err)) ||
            (r = tdm_key_get_u32(g, "gemma3n", "altup.active_idx", &active, err)) ||
            (r = tdm_key_get_u32(g, "gemma3n", "embedding_length_per_layer_input", &width, err)) ||
            (r = tdm_check_u32(err, "the number of streams", n_streams, 2, TDM_MAX_STREAMS)) ||
            (r = tdm_check_u32(err, "the width of a layer's input", width, 1, TDM_WIDTH_MAX)) ||
            (r = tdm_gemma_read_windows(g, "gemma3n", FULL_EVERY, hp, err)) ||
            (r = tdm_gemma_share_kv("gemma3n", n_shared, hp, err)))
                return r;
        tdm_gemma_recipe("gemma3n", hp, recipe);
        recipe->logit_softcap = 30;
        recipe->residual = TDM_RESIDUAL_ALTUP;
        recipe->n_streams = n_streams;
        recipe->active_stream = active;
        recipe->laurel_rank = rank_of_file(g);
        recipe->per_layer_width = width;
        hp->residual_width = tdm_recipe_residual_width(recipe, hp->d_model);
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                recipe->layers[i].norms |= TDM_NORM_V;
                recipe->layers[i].has_input = 1;
        }
        if ((r = tdm_gemma_read_other_names(g, "gemma3n", recipe, err)))
                return r;
        return get_sparsity(g, hp, recipe, err);
}

static int gemma3n_end(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                       struct tdm_error *err)
{
        return tdm_gemma_check_rope(hp, recipe, err);
}

const struct tdm_architecture tdm_architecture_gemma3n = {
        .name = "gemma3n",
        .follows = 1u << TDM_KEY_LOGIT_SOFTCAP | 1u << TDM_KEY_ROPE_BASE | 1u << TDM_KEY_ROPE_BASE_WINDOW |
                   1u << TDM_KEY_ROPE_DIMS,
        .follows_second_sizes = true,
        .layers_may_differ = true,
        .begin = gemma3n_begin,
        .end = gemma3n_end,
};
