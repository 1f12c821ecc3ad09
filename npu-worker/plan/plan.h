/* How a matrix product is put together from the programs that exist.
 *
 * Programs of one (K, N, type, layout of B, order) that differ only in their rows are a family: any of them gives a row
 * the same bits, so the number of rows in a step chooses among them and nothing else. A matrix is cut into tiles of a
 * family's N outputs and segments of its K inputs, the last of each padded with zeros; the segments' sums are added in
 * f32, left to right. So the order of a sum follows from the weight's shape and the set of programs alone. */
#ifndef TDM_NPU_PLAN_H
#define TDM_NPU_PLAN_H

#include "npu-worker/manifest/manifest.h"

struct tdm_kernels; /* engine/host/kernels.h */

#define TDM_NPU_MAX_VARIANTS 8u
#define TDM_NPU_MAX_COMMANDS 256u /* for one product */

struct tdm_npu_plan {
        uint32_t rows, cols; /* of the weight matrix: outputs, inputs */
        uint32_t k, n;       /* of the family */
        enum tdm_npu_type type;
        struct tdm_npu_layout b;
        const struct tdm_kernels *kernels; /* round rows of int4 as the host device does; set by who plans */
        uint32_t n_tiles, n_segments;
        uint32_t n_variants;
        const struct tdm_npu_program *variants[TDM_NPU_MAX_VARIANTS]; /* by rows, ascending */
};

static inline uint32_t tdm_npu_plan_commands(const struct tdm_npu_plan *plan)
{
        return plan->n_tiles * plan->n_segments;
}
static inline uint32_t tdm_npu_plan_max_rows(const struct tdm_npu_plan *plan)
{
        return plan->variants[plan->n_variants - 1]->m;
}
/* The bytes of one tile and segment of weights. */
static inline uint64_t tdm_npu_plan_tile_bytes(const struct tdm_npu_plan *plan)
{
        return tdm_npu_weights_bytes(plan->type, plan->k, plan->n);
}
/* The smallest variant for this many rows (at most max_rows). */
uint32_t tdm_npu_plan_variant(const struct tdm_npu_plan *plan, uint32_t n_rows);

/* The cheapest way: few commands, little padding. TDM_E_UNSUPPORTED: the set has nothing for it. The manifest must
 * outlive the plan. */
int tdm_npu_plan_matrix(const struct tdm_npu_manifest *manifest, enum tdm_npu_type type, uint32_t rows, uint32_t cols,
                        struct tdm_npu_plan *ret, struct tdm_error *err);

/* Programs that are a whole attention block of one shape, in ascending rows. */
struct tdm_npu_block_plan {
        uint32_t d_model, width, n_heads, n_kv_heads, head_dim, pages;
        uint32_t n_variants;
        const struct tdm_npu_program *variants[TDM_NPU_MAX_VARIANTS];
};
/* n_pages: of the longest sequence that the model may have. TDM_E_UNSUPPORTED: the set has none. */
int tdm_npu_plan_block(const struct tdm_npu_manifest *manifest, uint32_t d_model, uint32_t n_heads, uint32_t n_kv_heads,
                       uint32_t head_dim, uint32_t n_pages, struct tdm_npu_block_plan *ret);

/* Puts one output's weights into the buffer of its tile: output `column` (< n) of a tile, k values of a segment. bf16:
 * rounded to nearest even. int8: rint(x / scale), the scale is the largest |x| / 127, returned; else 1. Padding past
 * n_values is zero. Not for int4. */
float tdm_npu_put_weights(const struct tdm_npu_plan *plan, const float *values, uint32_t n_values, uint32_t column,
                          void *tile);
/* The same for int4: numbers from -8 to 7 and an f16 scale for each 32, as a file in Q4_0 has them. n_values is a
 * multiple of 32. */
void tdm_npu_put_q4(const struct tdm_npu_plan *plan, const int8_t *q, const uint16_t *scales, uint32_t n_values,
                    uint32_t column, void *tile);
/* One row of activations (layout: rows), rounded as weights are; of int4 by the host's kernels, n_values a multiple of
 * 32. */
float tdm_npu_put_row(const struct tdm_npu_plan *plan, const float *values, uint32_t n_values, void *row);

#endif
