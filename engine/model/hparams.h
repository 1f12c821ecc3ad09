/* The sizes of a model, and its blocks in the order in which a step runs through them.
 *
 * tandemd fills this from a GGUF (model.h). It travels in the head of the weights segment (engine/weights/weights.h),
 * and the workers check it and read it there. Plain data without pointers: the same bytes in every process.
 *
 * How the sizes are used, that is which operations a layer consists of, is said by the recipe (recipe.h). */
#ifndef TDM_ENGINE_MODEL_HPARAMS_H
#define TDM_ENGINE_MODEL_HPARAMS_H

#include <assert.h>
#include "common/error.h"

#define TDM_MAX_LAYERS 256u
#define TDM_MAX_BLOCKS (2u * TDM_MAX_LAYERS + 3u)
#define TDM_CTX_MAX (1u << 20)   /* positions of any model */
#define TDM_STATE_MAX (1u << 24) /* numbers of a layer's state; a real one has a million */

/* The sizes of one layer. Other layers may have other sizes. */
struct tdm_layer_sizes {
        uint32_t n_heads;    /* of queries; a multiple of n_kv_heads */
        uint32_t n_kv_heads; /* of keys and values */
        uint32_t head_dim;   /* numbers of a head; a multiple of 4, at least 16 */
        uint32_t d_ff;       /* neurons of the dense FFN; a multiple of 32 */
        uint32_t window;     /* keys that a query sees, its own included; 0: all before it */
        uint32_t kv_layer;   /* whose keys and values it reads: its own number, or that of an earlier layer */
        uint32_t n_state;    /* f32 numbers of the state that it keeps in place of keys and values; 0: it has these */
};

struct tdm_hparams {
        uint32_t n_layers;
        uint32_t d_model;        /* width of a layer's input and output; a multiple of 32 */
        uint32_t residual_width; /* f32 numbers that a row carries from block to block: tdm_recipe_residual_width() */
        uint32_t n_vocab;
        uint32_t n_ctx; /* positions */
        /* The largest of any layer: what caches and scratch are made for. Where all layers are alike, that of each. */
        uint32_t n_heads, n_kv_heads, head_dim, d_ff;
        uint32_t window;                               /* 0: no layer has one */
        struct tdm_layer_sizes layers[TDM_MAX_LAYERS]; /* all zero from n_layers on */
};

static_assert(sizeof(struct tdm_layer_sizes) == 28 && sizeof(struct tdm_hparams) == 40 + 28 * TDM_MAX_LAYERS,
              "part of the weights segment's layout");

/* Fills layers: each has the sizes that hp's own fields say, and its own keys and values. For tests and for models
 * whose layers differ in few ways, which are set afterwards. */
void tdm_hparams_all_layers(struct tdm_hparams *hp);
/* Sets n_heads, n_kv_heads, head_dim, d_ff and window to the largest of the layers. */
void tdm_hparams_take_largest(struct tdm_hparams *hp);

/* Checks every field's range, and that the fields fit each other. Workers run it on what they were handed.
 * TDM_E_BAD_MODEL: impossible. TDM_E_UNSUPPORTED: a size that no kernel is written for. */
int tdm_hparams_check(const struct tdm_hparams *hp, struct tdm_error *err);

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

#endif
