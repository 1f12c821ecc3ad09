/* Whole attention blocks over the paged cache on the NPU, one command each (attention-abi.h).
 *
 * The cache is the arena's, and what is written into it by another worker or on the CPU is seen. Where RLIMIT_MEMLOCK
 * allows it is imported (user memory), so that the NPU writes where the next worker will read; else the pages that a
 * command reads and writes are copied through a buffer of the NPU's of the same layout. The same bits either way. Not
 * cache-coherent: what a command will read is synced to the device before it and what it wrote back behind it, page by
 * page. Faults are met as in npu.h; a block's command may be repeated, since it writes the same keys and values again
 * and its output is not its input. One thread calls, put() may be called by several for different rows. */
#ifndef TDM_NPU_BLOCK_H
#define TDM_NPU_BLOCK_H

#include "npu-worker/manifest/attention-abi.h"
#include "npu-worker/npu/npu.h"

struct tdm_npu_block;
struct tdm_npu_block_weights;

/* A part of the cache that a command reads or writes. */
struct tdm_npu_part {
        uint64_t offset, size_bytes;
};

/* TDM_E_NO_MEMORY: no room for it or for a cache of this many bytes, which is set aside in either case. */
int tdm_npu_block_new(struct tdm_npu *npu, const struct tdm_npu_block_plan *plan, uint32_t max_rows,
                      uint64_t cache_bytes, struct tdm_npu_block **ret, struct tdm_error *err);
void tdm_npu_block_destroy(struct tdm_npu_block *block);
uint32_t tdm_npu_block_rows(const struct tdm_npu_block *block); /* at a time */
/* Page-aligned, of the size that new() was told. NULL: lets go of it. */
int tdm_npu_block_set_cache(struct tdm_npu_block *block, void *cache, struct tdm_error *err);

/* TDM_E_NO_MEMORY: over the budget. */
int tdm_npu_block_weights_new(struct tdm_npu_block *block, struct tdm_npu_block_weights **ret, struct tdm_error *err);
/* Output `output` of q, k and v together [d_model], or with out of the output product [q width]. By any thread. */
void tdm_npu_block_weights_fill(struct tdm_npu_block_weights *weights, bool out, uint32_t output, const float *values);
int tdm_npu_block_weights_finish(struct tdm_npu_block_weights *weights, struct tdm_error *err);
void tdm_npu_block_weights_destroy(struct tdm_npu_block_weights *weights);

/* Where the next command's table is written: the layout is the program's for this many rows. */
struct tdm_npu_block_table {
        struct tdm_npu_attention_head *head;
        float *gains;        /* [2][head_dim] */
        uint32_t *positions; /* [rows] */
        float *cos_sin;      /* [rows][2][head_dim / 2] */
        uint32_t *pages;     /* [rows][n_pages] */
        uint32_t n_pages;
};
void tdm_npu_block_table(struct tdm_npu_block *block, uint32_t n_rows, struct tdm_npu_block_table *ret);
void tdm_npu_block_put(struct tdm_npu_block *block, uint32_t row, const float *x); /* [d_model] */
/* reads: of the cache, to the device before; writes: back behind it. Does not return where no retry helps.
 */
void tdm_npu_block_run(struct tdm_npu_block *block, const struct tdm_npu_block_weights *weights, uint32_t n_rows,
                       const struct tdm_npu_part *reads, size_t n_reads, const struct tdm_npu_part *writes,
                       size_t n_writes);
const float *tdm_npu_block_get(const struct tdm_npu_block *block, uint32_t row); /* [d_model] */

#endif
