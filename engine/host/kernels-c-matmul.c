/* The reference of the matrix kernels: what every other table must reproduce bit by bit. Written to be read; the loops
 * over 16 lanes let a compiler use what vectors the baseline has.
 *
 * ORDER, for each output (a lane): quantised activations: acc = 0; for each block b in order,
 * acc = fmaf((float)isum_b, w_scale_b * x_scale_b, acc), where isum_b is exact. F32 activations: acc = 0; for each
 * column k in order, acc = fmaf(w_k, x_k, acc), where w_k is exact. The number of rows or panels of a call changes
 * neither. */
#include <float.h>
#include <math.h>
#include "common/f16.h"
#include "engine/host/kernels-fill.h"

#define LANES TDM_PANEL_ROWS
#define BLOCK TDM_BLOCK_VALUES

static inline uint16_t load_u16(const uint8_t *p)
{
        uint16_t v;

        memcpy(&v, p, sizeof(v));
        return v;
}

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
        return a < b ? a : b;
}

static void store_lanes(const struct tdm_matrix *matrix, uint32_t panel, const float *acc, float *y)
{
        memcpy(y, acc, min_u32(LANES, matrix->rows - panel * LANES) * sizeof(float));
}

/* One block's quants as signed numbers, in the order of Q8_0: [8 k4][16 rows][4]. */
static inline void unpack_block(uint32_t type, const uint8_t *quants, int8_t *w)
{
        if (type == TDM_TYPE_Q8_0) {
                for (unsigned i = 0; i < 512; i++)
                        w[i] = (int8_t)(quants[i] ^ 0x80); /* q + 128, less 128 */
        } else {
                for (unsigned i = 0; i < 256; i++) {
                        w[i] = (int8_t)((quants[i] & 15) - 8);
                        w[i + 256] = (int8_t)((quants[i] >> 4) - 8);
                }
        }
}

static inline void block_sums(const int8_t *w, const int8_t *x, int32_t *isum)
{
        for (unsigned lane = 0; lane < LANES; lane++)
                isum[lane] = 0;
        for (unsigned g = 0; g < BLOCK / 4; g++)
                for (unsigned lane = 0; lane < LANES; lane++)
                        for (unsigned i = 0; i < 4; i++)
                                isum[lane] += w[(g * LANES + lane) * 4 + i] * x[g * 4 + i];
}

static inline __attribute__((always_inline)) void matmul_quantised(const struct tdm_matrix *matrix, uint32_t type,
                                                                   enum tdm_act act, const struct tdm_act_row *rows,
                                                                   uint32_t n_rows, uint32_t first_panel,
                                                                   uint32_t n_panels, float *y, size_t y_stride)
{
        uint32_t nb = matrix->cols / BLOCK;
        size_t scales_bytes = TDM_ALIGN_UP((size_t)nb * LANES * 2, (size_t)64),
               block_bytes = type == TDM_TYPE_Q8_0 ? 512 : 256;

        for (uint32_t p = 0; p < n_panels; p++) {
                const uint8_t *scales = matrix->data + (first_panel + p) * matrix->panel_bytes;

                for (uint32_t r = 0; r < n_rows; r++) {
                        const struct tdm_act_row *row = &rows[r];
                        float acc[LANES] = { 0 };

                        for (uint32_t b = 0; b < nb; b++) {
                                int32_t isum[LANES], isum_lo[LANES];
                                int8_t w[LANES * BLOCK];

                                unpack_block(type, scales + scales_bytes + b * block_bytes, w);
                                block_sums(w, row->hi + b * BLOCK, isum);
                                if (act == TDM_ACT_I16) {
                                        block_sums(w, row->lo + b * BLOCK, isum_lo);
                                        for (unsigned lane = 0; lane < LANES; lane++)
                                                isum[lane] = 256 * isum[lane] + isum_lo[lane];
                                }
                                for (unsigned lane = 0; lane < LANES; lane++) {
                                        float w_scale = tdm_f16_to_f32(load_u16(scales + (b * LANES + lane) * 2));

                                        acc[lane] = fmaf((float)isum[lane], w_scale * row->scale[b], acc[lane]);
                                }
                        }
                        store_lanes(matrix, first_panel + p, acc, y + r * y_stride + p * LANES);
                }
        }
}

/* The weights of block b (32 columns), exact: w [32][16]. */
static inline void dequantise_block(const struct tdm_matrix *matrix, uint32_t type, const uint8_t *panel, uint32_t b,
                                    uint32_t n_cols, float *w)
{
        size_t element = (size_t)b * BLOCK * LANES;
        size_t scales_bytes = TDM_ALIGN_UP((size_t)matrix->cols / BLOCK * LANES * 2, (size_t)64);
        int8_t q[LANES * BLOCK];

        switch (type) {
        case TDM_TYPE_F32:
                memcpy(w, panel + element * 4, n_cols * LANES * 4);
                break;
        case TDM_TYPE_F16:
                for (size_t i = 0; i < n_cols * LANES; i++)
                        w[i] = tdm_f16_to_f32(load_u16(panel + (element + i) * 2));
                break;
        case TDM_TYPE_BF16:
                for (size_t i = 0; i < n_cols * LANES; i++)
                        w[i] = tdm_bf16_to_f32(load_u16(panel + (element + i) * 2));
                break;
        default:
                unpack_block(type, panel + scales_bytes + (size_t)b * (type == TDM_TYPE_Q8_0 ? 512 : 256), q);
                for (unsigned k = 0; k < BLOCK; k++)
                        for (unsigned lane = 0; lane < LANES; lane++)
                                w[k * LANES + lane] = (float)q[(k / 4 * LANES + lane) * 4 + k % 4] *
                                                      tdm_f16_to_f32(load_u16(panel + (b * LANES + lane) * 2));
        }
}

static inline __attribute__((always_inline)) void matmul_float(const struct tdm_matrix *matrix, uint32_t type,
                                                               const struct tdm_act_row *rows, uint32_t n_rows,
                                                               uint32_t first_panel, uint32_t n_panels, float *y,
                                                               size_t y_stride)
{
        for (uint32_t p = 0; p < n_panels; p++) {
                const uint8_t *panel = matrix->data + (first_panel + p) * matrix->panel_bytes;

                for (uint32_t r = 0; r < n_rows; r++) {
                        float acc[LANES] = { 0 };

                        for (uint32_t b = 0; b * BLOCK < matrix->cols; b++) {
                                uint32_t n_cols = min_u32(BLOCK, matrix->cols - b * BLOCK);
                                float w[BLOCK * LANES];

                                dequantise_block(matrix, type, panel, b, n_cols, w);
                                for (uint32_t k = 0; k < n_cols; k++)
                                        for (unsigned lane = 0; lane < LANES; lane++)
                                                acc[lane] =
                                                        fmaf(w[k * LANES + lane], rows[r].x[b * BLOCK + k], acc[lane]);
                        }
                        store_lanes(matrix, first_panel + p, acc, y + r * y_stride + p * LANES);
                }
        }
}

#define MATMUL_QUANTISED(name, type, act)                                                                              \
        static void name(const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t n_rows,             \
                         uint32_t first_panel, uint32_t n_panels, float *y, size_t y_stride)                           \
        {                                                                                                              \
                matmul_quantised(matrix, type, act, rows, n_rows, first_panel, n_panels, y, y_stride);                 \
        }
#define MATMUL_FLOAT(name, type)                                                                                       \
        static void name(const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t n_rows,             \
                         uint32_t first_panel, uint32_t n_panels, float *y, size_t y_stride)                           \
        {                                                                                                              \
                matmul_float(matrix, type, rows, n_rows, first_panel, n_panels, y, y_stride);                          \
        }

MATMUL_QUANTISED(matmul_i8_q8_0, TDM_TYPE_Q8_0, TDM_ACT_I8)
MATMUL_QUANTISED(matmul_i8_q4_0, TDM_TYPE_Q4_0, TDM_ACT_I8)
MATMUL_QUANTISED(matmul_i16_q8_0, TDM_TYPE_Q8_0, TDM_ACT_I16)
MATMUL_QUANTISED(matmul_i16_q4_0, TDM_TYPE_Q4_0, TDM_ACT_I16)
MATMUL_FLOAT(matmul_f32_f32, TDM_TYPE_F32)
MATMUL_FLOAT(matmul_f32_f16, TDM_TYPE_F16)
MATMUL_FLOAT(matmul_f32_bf16, TDM_TYPE_BF16)
MATMUL_FLOAT(matmul_f32_q8_0, TDM_TYPE_Q8_0)
MATMUL_FLOAT(matmul_f32_q4_0, TDM_TYPE_Q4_0)

/* ---- quantising ----
 *
 * d = amax / Q, q = rint(x * (1 / d)), ties to even, for Q = 127 or 32512; never more than Q, since the three roundings
 * are off by less than half a unit. Where d would be subnormal (amax below some 1e-36) the block counts as zero: scale
 * 0, all q 0. NaN counts as 0, infinities as the largest finite number of their sign. */

static inline float saturate(float x)
{
        if (x != x)
                return 0;
        return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
}

/* Returns 1 / d, or 0 for a block that counts as zero. */
static inline float block_scale(const float *x, float q_max, float *scale)
{
        float amax = 0, d;

        for (unsigned i = 0; i < BLOCK; i++) {
                float a = fabsf(saturate(x[i]));

                amax = a > amax ? a : amax;
        }
        d = amax / q_max;
        if (d < FLT_MIN) {
                *scale = 0;
                return 0;
        }
        *scale = d;
        return 1 / d;
}

/* Finishes block b: its sums, from the sums of its halves. */
static void block_done(const struct tdm_act_blocks *blocks, uint32_t b, const int32_t *sum_16)
{
        int32_t sum = sum_16[0] + sum_16[1];

        memcpy(&blocks->sum_16[2 * b], sum_16, 2 * sizeof(*sum_16));
        blocks->start[b] = -8 * sum;
        blocks->sum[b] = blocks->scale[b] * (float)sum;
}

static void quantise_i8_c(const float *x, uint32_t cols, int8_t *q, const struct tdm_act_blocks *blocks)
{
        for (uint32_t b = 0; b < cols / BLOCK; b++, x += BLOCK, q += BLOCK) {
                float inverse = block_scale(x, 127, &blocks->scale[b]);
                int32_t sum_16[2] = { 0 };

                for (unsigned i = 0; i < BLOCK; i++) {
                        q[i] = (int8_t)lrintf(saturate(x[i]) * inverse);
                        sum_16[i / 16] += q[i];
                }
                block_done(blocks, b, sum_16);
        }
}

static void quantise_i16_c(const float *x, uint32_t cols, int8_t *hi, int8_t *lo, const struct tdm_act_blocks *blocks)
{
        for (uint32_t b = 0; b < cols / BLOCK; b++, x += BLOCK, hi += BLOCK, lo += BLOCK) {
                float inverse = block_scale(x, 32512, &blocks->scale[b]);
                int32_t sum_16[2] = { 0 };

                for (unsigned i = 0; i < BLOCK; i++) {
                        int32_t v = (int32_t)lrintf(saturate(x[i]) * inverse), high = (v + 128) >> 8;

                        hi[i] = (int8_t)high;
                        lo[i] = (int8_t)(v - 256 * high);
                        sum_16[i / 16] += v;
                }
                block_done(blocks, b, sum_16);
        }
}

static int32_t column_weight(uint32_t type, const uint8_t *w, uint32_t r)
{
        return type == TDM_TYPE_Q4_0 ? (w[r / 32 * 16 + r % 16] >> r % 32 / 16 * 4 & 15) - 8 : (int8_t)w[r];
}

static void add_columns(const struct tdm_columns *c, uint32_t n_rows, float *y)
{
        for (uint32_t r = 0; r < n_rows; r++) {
                int32_t isum = 0;

                for (uint32_t i = 0; i < c->n; i++)
                        isum += column_weight(c->type, c->w[i], r) * c->q[i];
                y[r] = fmaf((float)isum, tdm_f16_to_f32(c->scales[r]) * c->x_scale, y[r]);
        }
}

/* In each block a row has block_bytes / 4 pieces of 4 bytes, 16 rows apart. */
static void interleave(const uint8_t *const *rows, uint32_t n_blocks, uint32_t block_bytes, uint8_t *scales,
                       uint8_t *quants)
{
        size_t bytes = (size_t)n_blocks * block_bytes;

        for (size_t lane = 0; lane < TDM_PANEL_ROWS; lane++) {
                for (size_t at = 0; at < bytes; at += 4)
                        memcpy(quants + at * TDM_PANEL_ROWS + lane * 4, rows[lane] + at, 4);
                for (size_t b = 0; b < n_blocks; b++)
                        memcpy(scales + (b * TDM_PANEL_ROWS + lane) * 2, rows[lane] + bytes + b * 2, 2);
        }
}

static void turn_columns(uint32_t type, const uint8_t *w, size_t column_bytes, uint32_t n_blocks, uint32_t n_panels,
                         uint8_t *quants, size_t panel_bytes)
{
        size_t block_bytes = TDM_PANEL_ROWS * BLOCK / (type == TDM_TYPE_Q4_0 ? 2 : 1);

        for (uint32_t b = 0; b < n_blocks; b++, w += BLOCK * column_bytes, quants += block_bytes)
                for (uint32_t row = 0; row < n_panels * TDM_PANEL_ROWS; row++) {
                        uint8_t *to = quants + row / TDM_PANEL_ROWS * panel_bytes + row % TDM_PANEL_ROWS * 4;

                        for (uint32_t k = 0; k < BLOCK; k++) {
                                uint32_t at = k / 4 * TDM_PANEL_ROWS * 4 + k % 4;
                                int32_t value = column_weight(type, w + k * column_bytes, row);

                                if (type == TDM_TYPE_Q8_0)
                                        to[at] = (uint8_t)(value + 128);
                                else if (k < BLOCK / 2)
                                        to[at] = (uint8_t)(value + 8);
                                else /* its nibble's other half was written before */
                                        to[at - block_bytes] |= (uint8_t)((value + 8) << 4);
                        }
                }
}

void tdm_kernels_c_matmul_fill(struct tdm_kernels *kernels)
{
        tdm_matmul_fn *f32 = kernels->matmul[TDM_ACT_F32], *i8 = kernels->matmul[TDM_ACT_I8],
                      *i16 = kernels->matmul[TDM_ACT_I16];

        f32[tdm_kernels_type_index(TDM_TYPE_F32)] = matmul_f32_f32;
        f32[tdm_kernels_type_index(TDM_TYPE_F16)] = matmul_f32_f16;
        f32[tdm_kernels_type_index(TDM_TYPE_BF16)] = matmul_f32_bf16;
        f32[tdm_kernels_type_index(TDM_TYPE_Q8_0)] = matmul_f32_q8_0;
        f32[tdm_kernels_type_index(TDM_TYPE_Q4_0)] = matmul_f32_q4_0;
        i8[tdm_kernels_type_index(TDM_TYPE_Q8_0)] = matmul_i8_q8_0;
        i8[tdm_kernels_type_index(TDM_TYPE_Q4_0)] = matmul_i8_q4_0;
        i16[tdm_kernels_type_index(TDM_TYPE_Q8_0)] = matmul_i16_q8_0;
        i16[tdm_kernels_type_index(TDM_TYPE_Q4_0)] = matmul_i16_q4_0;
        kernels->add_columns = add_columns;
        kernels->interleave = interleave;
        kernels->turn_columns = turn_columns;
        kernels->quantise_i8 = quantise_i8_c;
        kernels->quantise_i16 = quantise_i16_c;
}
