/* The reference of the matrix kernels for the types of engine/weights/subblock.h: what every other table must
 * reproduce bit by bit. Weights are (q - offset) * scale, or q * scale + min; scale and min belong to a sub-block of 16
 * or 32 columns.
 *
 * ORDER, for each output (a lane), quantised activations: acc = 0; for each sub-block s in order, x_scale being its
 * block's, acc = fmaf((float)isum_s, scale_s * x_scale, acc); where the type has a minimum: acc = fmaf(min_s, x_scale *
 * (float)xsum_s, acc); isum_s is the exact sum of (q - offset) * x over the sub-block's columns and xsum_s that of x
 * (I16: x = 256 hi + lo). F32 activations: acc = 0; for each column k in order, acc = fmaf(w_k, x_k, acc), where w_k is
 * (float)(q - offset) * scale (exact) or fmaf((float)q, scale, min). The number of rows or panels of a call changes
 * neither.
 *
 * No table flushes subnormal numbers. The product of the scales is an f32: where it is subnormal, as MXFP4's least
 * exponents make it, it is off by up to 2^-150 and the sum by isum_s times that. Such sums are below 1e-35. */
#include <math.h>
#include "engine/host/kernels-fill.h"
#include "engine/weights/subblock.h"

#define LANES TDM_PANEL_ROWS
#define BLOCK TDM_BLOCK_VALUES

static void store_lanes(const struct tdm_matrix *matrix, uint32_t panel, const float *acc, float *y)
{
        memcpy(y, acc, TDM_MIN(LANES, matrix->rows - panel * LANES) * sizeof(float));
}

/* One sub-block of one lane; first: its first column in the block. */
static inline float fold(const struct tdm_subblock_info *info, enum tdm_act act, const struct tdm_act_row *row,
                         uint32_t b, const struct tdm_subblock_slice *block, uint32_t first, float acc)
{
        int32_t isum = 0, xsum = 0;

        for (uint32_t i = first; i < first + info->sub_values; i++) {
                int32_t x = row->hi[b * BLOCK + i];

                if (act == TDM_ACT_I16)
                        x = 256 * x + row->lo[b * BLOCK + i];
                isum += (block->q[i] - info->offset) * x;
                xsum += x;
        }
        acc = fmaf((float)isum, block->scale[first / 16] * row->scale[b], acc);
        if (info->has_min)
                acc = fmaf(block->min[first / 16], row->scale[b] * (float)xsum, acc);
        return acc;
}

static inline __attribute__((always_inline)) void matmul(const struct tdm_matrix *matrix, uint32_t type,
                                                         enum tdm_act act, const struct tdm_act_row *rows,
                                                         uint32_t n_rows, uint32_t first_panel, uint32_t n_panels,
                                                         float *y, size_t y_stride)
{
        const struct tdm_subblock_info info = tdm_subblock_info(type);

        for (uint32_t p = 0; p < n_panels; p++) {
                const uint8_t *panel = matrix->data + (first_panel + p) * matrix->panel_bytes;

                for (uint32_t r0 = 0; r0 < n_rows; r0 += 16) { /* a block is read once for these rows */
                        uint32_t n = TDM_MIN(n_rows - r0, 16u);
                        float acc[16][LANES] = { { 0 } };

                        for (uint32_t b = 0; b < matrix->cols / BLOCK; b++)
                                for (uint32_t lane = 0; lane < LANES; lane++) {
                                        struct tdm_subblock_slice block;
                                        float w[BLOCK];

                                        tdm_subblock_read(type, panel, matrix->cols, b, lane, &block);
                                        for (uint32_t i = 0; i < BLOCK; i++)
                                                w[i] = tdm_subblock_value(&info, &block, i);
                                        for (uint32_t r = 0; r < n; r++) {
                                                const struct tdm_act_row *row = &rows[r0 + r];

                                                if (act == TDM_ACT_F32)
                                                        for (uint32_t i = 0; i < BLOCK; i++)
                                                                acc[r][lane] =
                                                                        fmaf(w[i], row->x[b * BLOCK + i], acc[r][lane]);
                                                else
                                                        for (uint32_t i = 0; i < BLOCK; i += info.sub_values)
                                                                acc[r][lane] = fold(&info, act, row, b, &block, i,
                                                                                    acc[r][lane]);
                                        }
                                }
                        for (uint32_t r = 0; r < n; r++)
                                store_lanes(matrix, first_panel + p, acc[r], y + (r0 + r) * y_stride + p * LANES);
                }
        }
}

#define MATMUL(name, type, act)                                                                                        \
        static void name(const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t n_rows,             \
                         uint32_t first_panel, uint32_t n_panels, float *y, size_t y_stride)                           \
        {                                                                                                              \
                matmul(matrix, type, act, rows, n_rows, first_panel, n_panels, y, y_stride);                           \
        }
#define MATMULS(name, type, kind)                                                                                      \
        MATMUL(name##_f32, TDM_TYPE_##type, TDM_ACT_F32)                                                               \
        MATMUL(name##_i8, TDM_TYPE_##type, TDM_ACT_I8)                                                                 \
        MATMUL(name##_i16, TDM_TYPE_##type, TDM_ACT_I16)

TDM_SUBBLOCK_TYPES(MATMULS)

static void fill_type(struct tdm_kernels *kernels, uint32_t type, tdm_matmul_fn f32, tdm_matmul_fn i8,
                      tdm_matmul_fn i16)
{
        int i = tdm_kernels_type_index(type);

        kernels->matmul[TDM_ACT_F32][i] = f32;
        kernels->matmul[TDM_ACT_I8][i] = i8;
        kernels->matmul[TDM_ACT_I16][i] = i16;
}

#define FILL(name, type, kind) fill_type(kernels, TDM_TYPE_##type, name##_f32, name##_i8, name##_i16);

void tdm_kernels_c_matmul_subblock_fill(struct tdm_kernels *kernels)
{
        TDM_SUBBLOCK_TYPES(FILL)
}
