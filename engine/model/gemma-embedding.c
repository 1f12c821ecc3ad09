/* EmbeddingGemma. Formulas and defaults: Hugging Face transformers' modeling_gemma3.py, sentence-transformers' modules,
 * and llama.cpp's gemma-embedding.cpp.
 *
 * Gemma 3's layers, but rows see those behind them too. The window of a sliding layer is the sum of both sides: a row
 * sees half of it on each. Behind the mean of a text's rows there may be a pair of matrices, without a bias and without
 * an activation between them. There are files with the pair and files without; their vectors cannot be compared. */
#include <math.h>
#include "engine/model/private.h"

#define FULL_EVERY 6u

static int gemma_embedding_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                                 struct tdm_error *err)
{
        bool is_causal = false;
        int r;

        if ((r = tdm_gemma_read_windows(g, "gemma-embedding", FULL_EVERY, hp, err)) ||
            (r = tdm_key_get_bool(g, "gemma-embedding", "attention.causal", &is_causal, err)))
                return r;
        if (is_causal)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "its attention is causal, which is not supported in a gemma-embedding model (key "
                                     "gemma-embedding.attention.causal)");
        tdm_gemma_recipe("gemma-embedding", hp, recipe);
        recipe->is_bidirectional = 1;
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                recipe->layers[i].query_scale = (float)(1.0 / sqrt((double)hp->layers[i].head_dim));
                if (hp->layers[i].window == 1)
                        return tdm_error_set(err, TDM_E_UNSUPPORTED, "its attention has a window of one position");
                recipe->layers[i].reach = hp->layers[i].window / 2;
                hp->layers[i].window = 0;
        }
        return 0;
}

static int gemma_embedding_end(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                               struct tdm_error *err)
{
        return tdm_gemma_check_rope(hp, recipe, err);
}

const struct tdm_architecture tdm_architecture_gemma_embedding = {
        .name = "gemma-embedding",
        .follows = 1u << TDM_KEY_ROPE_BASE | 1u << TDM_KEY_ROPE_BASE_WINDOW | 1u << TDM_KEY_ROPE_DIMS |
                   1u << TDM_KEY_QUERY_SCALE | 1u << TDM_KEY_CAUSAL,
        .begin = gemma_embedding_begin,
        .end = gemma_embedding_end,
};
