/* What an NPU program of op "attention" is given: a whole attention block over the paged cache (engine/step/kv.h) in
 * one command. Tandem's own contract, which the emulated NPU keeps; no program for silicon exists that does.
 *
 *   A  bf16 [rows][K]: normalised hidden rows; rows past the head's n_rows are not looked at
 *   B  bf16: the columns [N][K] of q, k and v, then those of the output [K][q width]
 *   C  f32  [rows][K]: the block's output before its norm
 *   D  struct tdm_npu_attention_head and what its comment says follows
 *   E  the cache: f16, written at the rows' own positions
 *
 * Products sum as op gemm of the same order does. Norms, rotation, scores and softmax are f32; queries are rounded to
 * bf16 behind their rotation, what goes into the output product too. The keys and values of all rows are stored before
 * any row attends; a row sees positions up to its own. So a row's bits depend on its sequence alone. */
#ifndef TDM_NPU_WORKER_ATTENTION_ABI_H
#define TDM_NPU_WORKER_ATTENTION_ABI_H

#include <stdint.h>

#define TDM_NPU_ATTENTION_PAGE 32u /* positions */

/* Followed by: f32 gains of q and of k [2][head_dim]; u32 position [rows]; f32 cos, sin [rows][2][head_dim / 2];
 * u32 page [rows][pages]: of the row's sequence, entry i has positions 32 i …; those that no row sees are not looked
 * at. */
struct tdm_npu_attention_head {
        uint32_t n_rows;
        uint32_t window; /* positions that a row sees, its own included; 0: all */
        float eps, query_scale;
        uint64_t cache_bytes;  /* of E: nothing beyond is touched */
        uint64_t pages_offset; /* in E: of page 0 */
        uint64_t page_bytes;
        uint64_t layer_offset; /* in a page: of the layer's first part, one part for each key head */
        uint64_t part_bytes;   /* K [2][head_dim][16], then V [32][head_dim] */
};

static inline uint64_t tdm_npu_attention_table_bytes(uint32_t rows, uint32_t head_dim, uint32_t pages)
{
        return sizeof(struct tdm_npu_attention_head) +
               4 * (2 * (uint64_t)head_dim + rows * (1 + (uint64_t)head_dim + pages));
}

#endif
