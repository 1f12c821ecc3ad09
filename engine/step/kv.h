/* The paged KV cache: where a key and a value lie.
 *
 * Two groups of layers, each with pages of its own: full layers (pages live as long as the sequence) and window layers
 * (pages are freed as they slide out). A page of a group holds TDM_KV_PAGE_TOKENS consecutive positions of one sequence
 * for all layers of that group that have keys and values of their own; layers may differ in their heads. Keys lie 16
 * positions side by side, so that one vector is one dimension of 16 keys and a score is summed over dimensions in one
 * lane, in order; values lie as rows.
 *
 *   page     = [layer of the group][kv head of the layer] parts
 *   part     = K [TDM_KV_PAGE_TOKENS / 16][head_dim][16]  then  V [TDM_KV_PAGE_TOKENS][head_dim]     (f16 or f32)
 *   q8_0:      K i8 [TDM_KV_PAGE_TOKENS / 16][head_dim][16]   K scales f16 [TDM_KV_PAGE_TOKENS / 16][blocks][16]
 *              V i8 [TDM_KV_PAGE_TOKENS][head_dim]            V scales f16 [TDM_KV_PAGE_TOKENS][blocks]
 *              a block is 32 dimensions of one key or value (the last may be 16); what it holds is q * scale
 *   segment  = full pages, then window pages, then states; all are multiples of 4096 bytes, so one can be given back
 *              alone
 *
 * A layer may keep a state in place of keys and values (struct tdm_layer_sizes, n_state). A state page holds what all
 * such layers keep of one sequence behind one position, as f32 numbers. A step reads one and writes another, so a step
 * can always be run again. */
#ifndef TDM_ENGINE_STEP_KV_H
#define TDM_ENGINE_STEP_KV_H

#include "engine/model/model.h"

#define TDM_KV_PAGE_TOKENS 32u
#define TDM_KV_NO_PAGE UINT32_MAX

/* The groups of layers with keys and values have page tables. States are a pool of pages of their own. */
enum tdm_kv_group { TDM_KV_FULL = 0, TDM_KV_WINDOW = 1, TDM_KV_GROUPS = 2, TDM_KV_STATE = 2, TDM_KV_POOLS = 3 };
enum tdm_kv_type { TDM_KV_F16 = 1, TDM_KV_F32 = 2, TDM_KV_Q8_0 = 3 };
const char *tdm_kv_type_name(enum tdm_kv_type type); /* "f16"; NULL: no such type */
int tdm_kv_type_from_name(const char *name);         /* -EINVAL */

/* Where a layer's keys and values lie in each page of its group. A layer that reads another's has its numbers. */
struct tdm_kv_layer {
        uint32_t group; /* enum tdm_kv_group */
        uint32_t n_kv_heads;
        uint32_t head_dim;
        uint32_t reserved;
        uint64_t offset; /* of its first part, or of its state, from the page's start */
        uint64_t part_bytes;
};

struct tdm_kv_geometry {
        uint32_t type;                   /* enum tdm_kv_type */
        uint32_t n_layers[TDM_KV_POOLS]; /* with keys and values of their own, or with a state */
        uint32_t n_pages[TDM_KV_POOLS];
        uint64_t page_bytes[TDM_KV_POOLS]; /* 0 for a group without layers */
        uint64_t offset[TDM_KV_POOLS];     /* of the group's first page */
        uint64_t size_bytes;
        struct tdm_kv_layer layers[TDM_MAX_LAYERS]; /* all zero from the model's n_layers on */
};

#define TDM_KV_BLOCK_DIMS 32u /* q8_0: dimensions that share a scale */

static inline uint32_t tdm_kv_n_blocks(uint32_t head_dim)
{
        return (head_dim + TDM_KV_BLOCK_DIMS - 1) / TDM_KV_BLOCK_DIMS;
}
/* Where the values begin within a part, and how long a part is: both multiples of 64. */
static inline uint64_t tdm_kv_values_offset(enum tdm_kv_type type, uint32_t head_dim)
{
        switch (type) {
        case TDM_KV_F32:
                return (uint64_t)TDM_KV_PAGE_TOKENS * head_dim * 4;
        case TDM_KV_Q8_0:
                return (uint64_t)TDM_KV_PAGE_TOKENS * (head_dim + 2 * tdm_kv_n_blocks(head_dim));
        default:
                return (uint64_t)TDM_KV_PAGE_TOKENS * head_dim * 2;
        }
}
static inline uint64_t tdm_kv_part_bytes(enum tdm_kv_type type, uint32_t head_dim)
{
        return 2 * tdm_kv_values_offset(type, head_dim);
}

/* n_pages of a group without layers is taken as 0. -EOVERFLOW when it cannot be addressed. */
int tdm_kv_geometry_init(struct tdm_kv_geometry *kv, const struct tdm_hparams *hp, enum tdm_kv_type type,
                         uint32_t n_full_pages, uint32_t n_window_pages, uint32_t n_states);
static inline enum tdm_kv_group tdm_kv_group_of(const struct tdm_hparams *hp, uint32_t layer)
{
        return hp->layers[layer].n_state > 0 ? TDM_KV_STATE :
               hp->layers[layer].window > 0  ? TDM_KV_WINDOW :
                                               TDM_KV_FULL;
}
/* The first layer of the group, which has keys and values of its own; n_layers: the group has none. */
uint32_t tdm_kv_first_layer(const struct tdm_hparams *hp, enum tdm_kv_group group);
static inline uint64_t tdm_kv_page_offset(const struct tdm_kv_geometry *kv, enum tdm_kv_group group, uint32_t page)
{
        return kv->offset[group] + (uint64_t)page * kv->page_bytes[group];
}
/* page: of the layer's group. */
static inline uint64_t tdm_kv_part_offset(const struct tdm_kv_geometry *kv, uint32_t layer, uint32_t page,
                                          uint32_t kv_head)
{
        const struct tdm_kv_layer *l = &kv->layers[layer];

        return tdm_kv_page_offset(kv, (enum tdm_kv_group)l->group, page) + l->offset + kv_head * l->part_bytes;
}
/* Where a layer's state lies in a state page: n_state numbers. */
static inline uint64_t tdm_kv_state_offset(const struct tdm_kv_geometry *kv, uint32_t layer, uint32_t page)
{
        return tdm_kv_page_offset(kv, TDM_KV_STATE, page) + kv->layers[layer].offset;
}
/* Bytes of a layer's parts in a page, which lie behind each other. */
static inline uint64_t tdm_kv_layer_bytes(const struct tdm_kv_geometry *kv, uint32_t layer)
{
        return kv->layers[layer].n_kv_heads * kv->layers[layer].part_bytes;
}
/* Whether both say the same of every page and layer. */
bool tdm_kv_geometry_equal(const struct tdm_kv_geometry *a, const struct tdm_kv_geometry *b);

#endif
