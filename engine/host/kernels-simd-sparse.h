/* The SIMD versions of what a sparse layer's few rows need (sparse.h), and of panels of matrices that lie by rows or
 * columns (panels.h), written once for AVX2 and AVX-512. Integers
 * only, but for the one fmaf of a block, so there is no order to keep.
 *
 * Wanted beside what kernels-simd-ops.h wants: `struct v16i`, 16 int32, with v16i_set1, load_u8 and load_i8 (16 bytes),
 * and, right (shifted as unsigned numbers), add_product (c + a b, for a from -128 to 255 and b as v16i_factor() makes
 * it) and to_float. */
#include <string.h>

#include "engine/host/kernels.h"

/* An int16 as a factor of pairs: the upper half is zero, so that a multiplication of pairs adds nothing for it. */
TDM_INLINE int32_t v16i_factor(int16_t q)
{
        return (uint16_t)q;
}

/* y += isum * (scale * x_scale), for 16 rows. */
TDM_INLINE void add_block(struct v16i isum, const uint16_t *scales, struct v16 x_scale, float *y)
{
        v16_store(y, v16_fma(v16i_to_float(isum), v16_mul(v16_load_f16(scales), x_scale), v16_load(y)));
}

static void add_columns_q4_0(const struct tdm_columns *c, const int32_t *q, uint32_t n_rows, float *y)
{
        struct v16 x_scale = v16_set1(c->x_scale);
        struct v16i nibble = v16i_set1(15), start;
        int32_t sum = 0;

        for (uint32_t i = 0; i < c->n; i++)
                sum += c->q[i];
        start = v16i_set1(-8 * sum);
        for (uint32_t r = 0; r < n_rows; r += 32) {
                struct v16i low = start, high = start;

                for (uint32_t i = 0; i < c->n; i++) {
                        struct v16i w = v16i_load_u8(c->w[i] + r / 2), factor = v16i_set1(q[i]);

                        low = v16i_add_product(low, v16i_and(w, nibble), factor);
                        high = v16i_add_product(high, v16i_right(w, 4), factor);
                }
                add_block(low, c->scales + r, x_scale, y + r);
                add_block(high, c->scales + r + 16, x_scale, y + r + 16);
        }
}

static void add_columns_q8_0(const struct tdm_columns *c, const int32_t *q, uint32_t n_rows, float *y)
{
        struct v16 x_scale = v16_set1(c->x_scale);

        for (uint32_t r = 0; r < n_rows; r += 16) {
                struct v16i isum = v16i_set1(0);

                for (uint32_t i = 0; i < c->n; i++)
                        isum = v16i_add_product(isum, v16i_load_i8((const int8_t *)c->w[i] + r), v16i_set1(q[i]));
                add_block(isum, c->scales + r, x_scale, y + r);
        }
}

static void add_columns(const struct tdm_columns *c, uint32_t n_rows, float *y)
{
        int32_t q[TDM_BLOCK_VALUES];

        for (uint32_t i = 0; i < c->n; i++)
                q[i] = v16i_factor(c->q[i]);
        (c->type == TDM_TYPE_Q4_0 ? add_columns_q4_0 : add_columns_q8_0)(c, q, n_rows, y);
}

/* ---- rows into a panel ---- */

typedef uint32_t u32x4 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t u16x8 __attribute__((vector_size(16), aligned(1), may_alias));

#define U32_LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define U32_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#define U16_LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define U16_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)

/* 4 pieces of 4 rows: out[piece][row], pieces 16 rows apart. */
TDM_INLINE void turn_pieces(const uint8_t *const *rows, size_t at, uint8_t *out)
{
        u32x4 r[4], t[4];

        for (int i = 0; i < 4; i++)
                r[i] = *(const u32x4 *)(rows[i] + at);
        for (int i = 0; i < 2; i++) { /* rows 0 and 2, 1 and 3 */
                t[2 * i] = U32_LOW(r[i], r[i + 2]);
                t[2 * i + 1] = U32_HIGH(r[i], r[i + 2]);
        }
        for (int i = 0; i < 2; i++) {
                *(u32x4 *)(out + (size_t)(2 * i) * 64) = U32_LOW(t[i], t[i + 2]);
                *(u32x4 *)(out + (size_t)(2 * i + 1) * 64) = U32_HIGH(t[i], t[i + 2]);
        }
}

/* 8 scales of 8 rows: out[scale][row], scales 16 rows apart. */
TDM_INLINE void turn_scales(const uint8_t *const *rows, size_t at, uint8_t *out)
{
        u16x8 r[8], t[8];

        for (int i = 0; i < 8; i++)
                r[i] = *(const u16x8 *)(rows[i] + at);
        for (int step = 0; step < 3; step++) {
                for (int i = 0; i < 4; i++) {
                        t[2 * i] = U16_LOW(r[i], r[i + 4]);
                        t[2 * i + 1] = U16_HIGH(r[i], r[i + 4]);
                }
                memcpy(r, t, sizeof(r));
        }
        for (int i = 0; i < 8; i++)
                *(u16x8 *)(out + (size_t)i * 32) = r[i];
}

static void interleave(const uint8_t *const *rows, uint32_t n_blocks, uint32_t block_bytes, uint8_t *scales,
                       uint8_t *quants)
{
        size_t bytes = (size_t)n_blocks * block_bytes;
        uint32_t b = 0;

        for (size_t at = 0; at < bytes; at += 16)
                for (int lane = 0; lane < 16; lane += 4)
                        turn_pieces(rows + lane, at, quants + at * 16 + (size_t)lane * 4);
        for (; b + 8 <= n_blocks; b += 8)
                for (int lane = 0; lane < 16; lane += 8)
                        turn_scales(rows + lane, bytes + 2 * (size_t)b, scales + (size_t)b * 32 + (size_t)lane * 2);
        for (; b < n_blocks; b++)
                for (int lane = 0; lane < 16; lane++)
                        memcpy(scales + (size_t)b * 32 + (size_t)lane * 2, rows[lane] + bytes + 2 * (size_t)b, 2);
}

/* ---- columns into panels ---- */

typedef uint8_t u8x16 __attribute__((vector_size(16), aligned(1), may_alias));

#define COLUMNS_AHEAD_OF_TURN 64u /* fetched: each lies in another page's line */

#define U8_LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define U8_HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)

/* 4 columns of 16 rows: out[row][column]. */
TDM_INLINE void store_group(const u8x16 *c, uint8_t *out)
{
        u16x8 low01 = (u16x8)U8_LOW(c[0], c[1]), high01 = (u16x8)U8_HIGH(c[0], c[1]);
        u16x8 low23 = (u16x8)U8_LOW(c[2], c[3]), high23 = (u16x8)U8_HIGH(c[2], c[3]);

        *(u16x8 *)out = U16_LOW(low01, low23);
        *(u16x8 *)(out + 16) = U16_HIGH(low01, low23);
        *(u16x8 *)(out + 32) = U16_LOW(high01, high23);
        *(u16x8 *)(out + 48) = U16_HIGH(high01, high23);
}

/* 32 columns of the 32 rows of two panels. A byte of a column has a row of each; a byte of a panel has two columns. */
TDM_INLINE void turn_block_q4_0(const uint8_t *w, size_t column_bytes, uint8_t *first, uint8_t *second)
{
        const u8x16 nibble = { 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15 };

        for (int group = 0; group < 4; group++) {
                u8x16 low[4], high[4];

                for (int i = 0; i < 4; i++) {
                        u8x16 a = *(const u8x16 *)(w + (size_t)(4 * group + i) * column_bytes),
                              b = *(const u8x16 *)(w + (size_t)(4 * group + 16 + i) * column_bytes);

                        low[i] = (a & nibble) | ((u8x16)((u16x8)b << 4) & ~nibble);
                        high[i] = ((u8x16)((u16x8)a >> 4) & nibble) | (b & ~nibble);
                }
                store_group(low, first + group * 64);
                store_group(high, second + group * 64);
        }
}

TDM_INLINE void turn_block_q8_0(const uint8_t *w, size_t column_bytes, uint8_t *panel)
{
        for (int group = 0; group < 8; group++) {
                u8x16 c[4];

                for (int i = 0; i < 4; i++)
                        c[i] = *(const u8x16 *)(w + (size_t)(4 * group + i) * column_bytes) ^ 0x80;
                store_group(c, panel + group * 64);
        }
}

static void turn_columns(uint32_t type, const uint8_t *w, size_t column_bytes, uint32_t n_blocks, uint32_t n_panels,
                         uint8_t *quants, size_t panel_bytes)
{
        bool is_q4 = type == TDM_TYPE_Q4_0;
        size_t n_bytes = n_panels * (is_q4 ? 8u : 16u), block_bytes = is_q4 ? 256 : 512;

        for (uint32_t b = 0; b < n_blocks; b++, w += TDM_BLOCK_VALUES * column_bytes, quants += block_bytes) {
                for (uint32_t k = 0; k < TDM_BLOCK_VALUES; k++)
                        for (size_t at = 0; at < n_bytes; at += 64)
                                __builtin_prefetch(w + (COLUMNS_AHEAD_OF_TURN + k) * column_bytes + at);
                for (uint32_t i = 0; i < n_panels; i += 2) {
                        uint8_t *first = quants + i * panel_bytes, *second = first + panel_bytes;

                        if (is_q4) {
                                turn_block_q4_0(w + (size_t)i * 8, column_bytes, first, second);
                                continue;
                        }
                        turn_block_q8_0(w + (size_t)i * 16, column_bytes, first);
                        turn_block_q8_0(w + (size_t)i * 16 + 16, column_bytes, second);
                }
        }
}
