/* BERT, and what has its layers: MiniLM, BGE, multilingual E5, XLM-RoBERTa. Formulas: Hugging Face transformers'
 * modeling_bert.py; keys and tensors: llama.cpp's converter.
 *
 * Rows see all rows of the text. A LayerNorm follows the sum of what goes into a block and what it makes; none stands
 * before a block or at the end. Positions have an embedding. Every token is of the first type. The FFN has no gate, and
 * its GELU is the exact one, as the makers' configs have it; no key says so. Where keys and tensors allow it, the
 * tokenizer is any kind. */
#include <math.h>
#include "engine/model/private.h"

static const char name[] = "bert";

static int read_types(const struct tdm_gguf *g, struct tdm_recipe *recipe, struct tdm_error *err)
{
        const struct tdm_gguf_tensor *types;
        char tensor[TDM_TENSOR_NAME_MAX];

        tdm_tensor_name(TDM_TENSOR_TOKEN_TYPES, 0, tensor);
        types = tdm_gguf_find_tensor(g, tensor);
        if (!types)
                return 0;
        if (types->dims[1] > TDM_MAX_TOKEN_TYPES)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "tensor %s has far too many rows", tensor);
        recipe->n_token_types = (uint32_t)types->dims[1];
        return 0;
}

static int bert_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                      struct tdm_error *err)
{
        bool is_causal = false;
        float eps = 0;
        int r;

        if ((r = tdm_refuse_window(name, hp, err)) ||
            (r = tdm_key_get_bool(g, name, "attention.causal", &is_causal, err)) ||
            (r = tdm_key_get_float(g, name, "attention.layer_norm_epsilon", &eps, err)))
                return r;
        if (is_causal)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "its attention is causal, which is not supported in a bert model (key "
                                     "bert.attention.causal)");
        if (!(eps > 0))
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "the key bert.attention.layer_norm_epsilon is missing or not above 0");
        *recipe = (struct tdm_recipe){ .norm_eps = eps,
                                       .embed_scale = 1,
                                       .residual = TDM_RESIDUAL_PLAIN,
                                       .n_streams = 1,
                                       .is_bidirectional = 1,
                                       .norm_kind = TDM_NORMS_OF_SUMS,
                                       .ffn = TDM_FFN_GELU,
                                       .has_positions = 1 };
        snprintf(recipe->architecture, sizeof(recipe->architecture), "%s", name);
        for (uint32_t i = 0; i < hp->n_layers; i++)
                recipe->layers[i] = (struct tdm_layer_recipe){
                        .norms = TDM_NORM_ATTN_AFTER | TDM_NORM_FFN_AFTER,
                        .biases = tdm_biases_of_file(
                                g, i, TDM_BIAS_Q | TDM_BIAS_K | TDM_BIAS_V | TDM_BIAS_O | TDM_BIAS_UP | TDM_BIAS_DOWN),
                        .rope = TDM_ROPE_NONE,
                        .query_scale = (float)(1.0 / sqrt((double)hp->layers[i].head_dim)),
                        .activation = TDM_ACTIVATION_GELU_TANH,
                };
        return read_types(g, recipe, err);
}

const struct tdm_architecture tdm_architecture_bert = {
        .name = "bert",
        .follows = 1u << TDM_KEY_CAUSAL,
        .fused = TDM_FUSED_QKV,
        .begin = bert_begin,
};
