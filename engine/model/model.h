/* What a model is: its sizes, and its blocks in the order in which a step runs through them.
 *
 * Filled from a GGUF by tandemd (tdm_model_describe), travels in the head of the weights segment
 * (engine/weights/weights.h), read from there by the workers. Plain data, no pointers: the same bytes in every process.
 */
#ifndef TDM_ENGINE_MODEL_MODEL_H
#define TDM_ENGINE_MODEL_MODEL_H

#include <assert.h>
#include "engine/file/gguf.h"

#define TDM_MAX_LAYERS 256u
#define TDM_MAX_BLOCKS (2u * TDM_MAX_LAYERS + 3u)

/* Blocks: 0 embed; 1 + 2l attention of layer l; 2 + 2l FFN of layer l; then head (final norm and logits); then sample.
 */
enum tdm_block_kind {
        TDM_BLOCK_EMBED,
        TDM_BLOCK_ATTENTION,
        TDM_BLOCK_FFN,
        TDM_BLOCK_HEAD,
        TDM_BLOCK_SAMPLE,
        TDM_N_BLOCK_KINDS
};

struct tdm_hparams {
        uint32_t n_layers;
        uint32_t d_model; /* multiple of 32 */
        uint32_t n_heads; /* multiple of n_kv_heads */
        uint32_t n_kv_heads;
        uint32_t head_dim; /* even; multiple of 16 */
        uint32_t d_ff;     /* multiple of 32, as n_heads * head_dim is */
        uint32_t n_vocab;
        uint32_t n_ctx;
        uint32_t window; /* keys a sliding layer sees, itself included; 0: every layer is full */
        float norm_eps;
        float rope_base_full;
        float rope_base_window;
        float rope_factor_full; /* positions are divided by it in full layers; 1: none */
        float query_scale;
        float embed_scale;   /* sqrt(d_model) */
        float logit_softcap; /* 0: none */
        uint8_t layer_is_full[TDM_MAX_LAYERS];
};

static inline uint32_t tdm_model_n_blocks(const struct tdm_hparams *hp)
{
        return 2 * hp->n_layers + 3;
}
static inline enum tdm_block_kind tdm_block_kind(const struct tdm_hparams *hp, uint32_t block)
{
        if (block == 0)
                return TDM_BLOCK_EMBED;
        if (block <= 2 * hp->n_layers)
                return block & 1 ? TDM_BLOCK_ATTENTION : TDM_BLOCK_FFN;
        return block == 2 * hp->n_layers + 1 ? TDM_BLOCK_HEAD : TDM_BLOCK_SAMPLE;
}
static inline uint32_t tdm_block_layer(uint32_t block) /* of attention and FFN blocks */
{
        return (block - 1) / 2;
}
const char *tdm_block_kind_name(enum tdm_block_kind kind); /* "embed", "attention", "ffn", "head", "sample" */

enum tdm_tensor_kind {
        TDM_TENSOR_TOKEN_EMBD, /* [n_vocab][d_model] */
        TDM_TENSOR_OUTPUT,     /* [n_vocab][d_model]; absent: TOKEN_EMBD serves */
        TDM_TENSOR_OUTPUT_NORM,
        TDM_TENSOR_ATTN_NORM,
        TDM_TENSOR_Q, /* [n_heads * head_dim][d_model] */
        TDM_TENSOR_K, /* [n_kv_heads * head_dim][d_model] */
        TDM_TENSOR_V,
        TDM_TENSOR_Q_NORM, /* [head_dim] */
        TDM_TENSOR_K_NORM,
        TDM_TENSOR_O, /* [d_model][n_heads * head_dim] */
        TDM_TENSOR_POST_ATTN_NORM,
        TDM_TENSOR_FFN_NORM,
        TDM_TENSOR_GATE, /* [d_ff][d_model] */
        TDM_TENSOR_UP,
        TDM_TENSOR_DOWN, /* [d_model][d_ff] */
        TDM_TENSOR_POST_FFW_NORM,
        TDM_N_TENSOR_KINDS
};

/* One tensor that the model needs, found in the file with exactly this shape. */
struct tdm_tensor_ref {
        uint32_t kind;
        uint32_t layer; /* 0 for the ones without */
        uint32_t rows;  /* 1 for vectors */
        uint32_t cols;
        const struct tdm_gguf_tensor *tensor; /* owned by the gguf */
};

struct tdm_model_description {
        struct tdm_hparams hparams;
        uint32_t n_tensors;
        struct tdm_tensor_ref *tensors; /* [n_tensors], owned */
};

/* Checks architecture ("gemma3", else TDM_E_UNSUPPORTED with its name), every key's range (caps: d_model, d_ff,
 * heads·dim
 * <= 65536, n_vocab <= 2^21, n_ctx <= 2^20, layers <= TDM_MAX_LAYERS), every tensor's presence and shape (message names
 * tensor, wanted and found shape), that tensors nobody knows are only ignored when harmless, and that the vocabulary of
 * the tokenizer fits n_vocab. */
int tdm_model_describe(const struct tdm_gguf *gguf, struct tdm_model_description *ret, struct tdm_error *err);
void tdm_model_description_deinit(struct tdm_model_description *description);
/* The range checks alone; workers run it on what they were handed. */
int tdm_hparams_check(const struct tdm_hparams *hp, struct tdm_error *err);

#endif
