/* One panel's worth of a file's rows, brought into the layout of weights.h: a transposition of 4-byte groups, or of
 * elements. A panel is written once and checked for scales and weights that are not finite while it is in cache. What
 * is checked is the copy, not the mapped file, which may change meanwhile. */
#include "common/f16.h"
#include "engine/weights/subblock.h"
#include "engine/weights/weights-private.h"

static inline void store_u32(uint8_t *p, uint32_t v)
{
        memcpy(p, &v, sizeof(v));
}

static inline void store_u16(uint8_t *p, uint16_t v)
{
        memcpy(p, &v, sizeof(v));
}

/* Every target has these types: where there are no such registers, the compiler uses words. */
typedef uint32_t four_u32 __attribute__((vector_size(16)));
typedef uint16_t eight_u16 __attribute__((vector_size(16)));

static inline four_u32 load_four(const uint8_t *p)
{
        four_u32 v;

        memcpy(&v, p, sizeof(v));
        return v;
}

static inline eight_u16 load_eight(const uint8_t *p)
{
        eight_u16 v;

        memcpy(&v, p, sizeof(v));
        return v;
}

static inline void store_four(uint8_t *p, four_u32 v)
{
        memcpy(p, &v, sizeof(v));
}

/* The columns of a matrix with rows r0 … r3, stride bytes apart. */
static inline void store_transposed(uint8_t *dst, size_t stride, four_u32 r0, four_u32 r1, four_u32 r2, four_u32 r3)
{
        four_u32 low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5),
                 high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
        four_u32 low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5),
                 high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);

        store_four(dst, __builtin_shufflevector(low01, low23, 0, 1, 4, 5));
        store_four(dst + stride, __builtin_shufflevector(low01, low23, 2, 3, 6, 7));
        store_four(dst + 2 * stride, __builtin_shufflevector(high01, high23, 0, 1, 4, 5));
        store_four(dst + 3 * stride, __builtin_shufflevector(high01, high23, 2, 3, 6, 7));
}

/* 4 columns of 4 rows into dst [4][16 rows], every element xored with flip. */
static inline void transpose_4x4(uint8_t *dst, const uint8_t *src, uint64_t row_bytes, uint32_t flip)
{
        store_transposed(dst, 4 * TDM_PANEL_ROWS, load_four(src) ^ flip, load_four(src + row_bytes) ^ flip,
                         load_four(src + 2 * row_bytes) ^ flip, load_four(src + 3 * row_bytes) ^ flip);
}

/* 8 columns of 8 rows into dst [8][16 rows], elements of 16 bits: in pairs of two rows they are a matrix as above. */
static inline void transpose_8x8(uint8_t *dst, const uint8_t *src, uint64_t row_bytes)
{
        four_u32 low[4], high[4]; /* columns 0 … 3, 4 … 7 */

        for (unsigned i = 0; i < 4; i++, src += 2 * row_bytes) {
                eight_u16 r0 = load_eight(src), r1 = load_eight(src + row_bytes);

                low[i] = (four_u32)__builtin_shufflevector(r0, r1, 0, 8, 1, 9, 2, 10, 3, 11);
                high[i] = (four_u32)__builtin_shufflevector(r0, r1, 4, 12, 5, 13, 6, 14, 7, 15);
        }
        store_transposed(dst, 2 * TDM_PANEL_ROWS, low[0], low[1], low[2], low[3]);
        store_transposed(dst + 8 * TDM_PANEL_ROWS, 2 * TDM_PANEL_ROWS, high[0], high[1], high[2], high[3]);
}

/* n: a multiple of 8. */
static bool all_finite_16(const uint8_t *p, size_t n, uint16_t exponent)
{
        eight_u16 bad = { 0 };
        unsigned n_bad = 0;

        for (size_t i = 0; i < n; i += 8)
                bad |= (eight_u16)((load_eight(p + 2 * i) & exponent) == exponent);
        for (unsigned i = 0; i < 8; i++)
                n_bad += bad[i] != 0;
        return n_bad == 0;
}

static bool all_finite_32(const uint8_t *p, size_t n)
{
        const uint32_t exponent = 0x7f800000;
        four_u32 bad = { 0 };
        unsigned n_bad = 0;

        for (; n >= 4; n -= 4, p += 16)
                bad |= (four_u32)((load_four(p) & exponent) == exponent);
        for (unsigned i = 0; i < 4; i++)
                n_bad += bad[i] != 0;
        for (size_t i = 0; i < n; i++)
                n_bad += (tdm_load_u32(p + 4 * i) & exponent) == exponent;
        return n_bad == 0;
}

/* Blocks of an f16 scale and 16 * n_parts bytes of quants, xored with flip. In Q4_0 value j is the low and value j + 16
 * the high nibble of byte j: already groups v and v + 4. src: n_rows <= 16 rows of the file, row_bytes apart; the
 * others get scale 0 and missing, xored. False: a scale is not finite. */
static bool pack_panel_blocks(uint8_t *dst, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows, uint32_t cols,
                              uint32_t n_parts, uint32_t flip, uint8_t missing)
{
        uint32_t nb = cols / TDM_BLOCK_VALUES, block_bytes = 2 + 16 * n_parts;
        uint8_t *scales = dst, *quants = dst + tdm_weights_scales_bytes(cols);
        uint8_t padded[TDM_PANEL_ROWS * (2 + 32)];

        for (uint32_t row = n_rows; row < TDM_PANEL_ROWS; row++) {
                memset(padded + row * block_bytes, 0, 2);
                memset(padded + row * block_bytes + 2, missing, block_bytes - 2);
        }
        for (uint32_t b = 0; b < nb; b++, src += block_bytes) {
                const uint8_t *block = src;
                uint64_t stride = row_bytes;

                if (n_rows < TDM_PANEL_ROWS) {
                        for (uint32_t row = 0; row < n_rows; row++)
                                memcpy(padded + row * block_bytes, src + row * row_bytes, block_bytes);
                        block = padded;
                        stride = block_bytes;
                }
                for (uint32_t part = 0; part < n_parts; part++, quants += 16 * TDM_PANEL_ROWS)
                        for (uint32_t row = 0; row < TDM_PANEL_ROWS; row += 4)
                                transpose_4x4(quants + 4 * row, block + row * stride + 2 + 16 * part, stride, flip);
                for (uint32_t row = 0; row < TDM_PANEL_ROWS; row++, block += stride, scales += 2) {
                        store_u16(scales, tdm_load_u16(block));
                        /* this many rows at once are too much for the processor to foresee */
                        __builtin_prefetch(block + 256);
                }
        }
        return all_finite_16(dst, (size_t)nb * TDM_PANEL_ROWS, 0x7c00);
}

static uint16_t load_scale(const uint8_t *block, bool *finite)
{
        uint16_t scale = tdm_load_u16(block);

        *finite = *finite && (scale & 0x7c00) != 0x7c00;
        return scale;
}

bool tdm_weights_pack_rows(uint32_t type, uint8_t *dst, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows,
                           uint32_t cols)
{
        uint32_t nb = cols / TDM_BLOCK_VALUES, n = tdm_weights_quant_bytes(type);
        uint8_t flip = type == TDM_TYPE_Q8_0 ? 0x80 : 0;
        bool finite = true;

        for (uint32_t row = 0; row < n_rows; row++, src += row_bytes, dst += (size_t)nb * (n + 2)) {
                const uint8_t *block = src;

                for (uint32_t b = 0; b < nb; b++, block += n + 2) {
                        store_u16(dst + (size_t)nb * n + 2 * (size_t)b, load_scale(block, &finite));
                        for (uint32_t i = 0; i < n; i++)
                                dst[(size_t)b * n + i] = block[2 + i] ^ flip;
                }
        }
        return finite;
}

typedef uint8_t sixteen_u8 __attribute__((vector_size(16)));

/* Four times, the first half of the rows is interleaved with the second: row and column have then changed places. */
static inline void transpose_16x16(sixteen_u8 r[16])
{
        sixteen_u8 t[16];

        for (unsigned step = 0; step < 4; step++) {
                for (unsigned i = 0; i < 8; i++) {
                        t[2 * i] = __builtin_shufflevector(r[i], r[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6,
                                                           22, 7, 23);
                        t[2 * i + 1] = __builtin_shufflevector(r[i], r[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,
                                                               29, 14, 30, 15, 31);
                }
                memcpy(r, t, sizeof(t));
        }
}

/* 16 bytes of each of 16 rows, turned: byte j of all rows. */
static inline void load_turned(sixteen_u8 r[16], const uint8_t *src, uint64_t row_bytes)
{
        for (unsigned i = 0; i < 16; i++)
                memcpy(&r[i], src + i * row_bytes, sizeof(r[i]));
        transpose_16x16(r);
}

/* 32 columns of 32 rows, to columns that are stride apart. In the file value j of a block of nibbles is the low and
 * value j + 16 the high half of byte j; here the halves are rows. */
static void turn_block(uint32_t type, uint8_t *dst, size_t stride, const uint8_t *src, uint64_t row_bytes)
{
        sixteen_u8 low[16], high[16];

        if (type == TDM_TYPE_Q8_0) {
                for (unsigned i = 0; i < 4; i++) {
                        load_turned(low, src + i % 2 * 16 + i / 2 * 16 * row_bytes, row_bytes);
                        for (unsigned k = 0; k < 16; k++)
                                memcpy(dst + (i % 2 * 16 + k) * stride + i / 2 * 16, &low[k], sizeof(low[k]));
                }
                return;
        }
        load_turned(low, src, row_bytes);
        load_turned(high, src + 16 * row_bytes, row_bytes);
        for (unsigned k = 0; k < 16; k++) {
                sixteen_u8 first = (low[k] & 15) | high[k] << 4, second = low[k] >> 4 | (high[k] & 0xf0);

                memcpy(dst + k * stride, &first, sizeof(first));
                memcpy(dst + (k + 16) * stride, &second, sizeof(second));
        }
}

bool tdm_weights_pack_columns(const struct tdm_weights_tensor *tensor, uint8_t *dst, uint32_t first, uint32_t n_rows,
                              const uint8_t *src, uint64_t row_bytes)
{
        uint32_t nb = tensor->cols / TDM_BLOCK_VALUES, n = tdm_weights_quant_bytes(tensor->type);
        size_t stride = (size_t)tensor->rows / TDM_BLOCK_VALUES * n;
        uint8_t *scales = dst + 2 * (size_t)first,
                *columns = dst + 2 * (size_t)nb * tensor->rows + first / TDM_BLOCK_VALUES * n;
        bool finite = true;

        for (uint32_t b = 0; b < nb; b++, src += n + 2) {
                for (uint32_t row = 0; row < n_rows; row++) {
                        const uint8_t *block = src + row * row_bytes;

                        store_u16(scales + 2 * ((size_t)b * tensor->rows + row), load_scale(block, &finite));
                        __builtin_prefetch(block + 256); /* as above */
                }
                for (uint32_t row = 0; row < n_rows; row += TDM_BLOCK_VALUES)
                        turn_block(tensor->type,
                                   columns + (size_t)b * TDM_BLOCK_VALUES * stride + row / TDM_BLOCK_VALUES * n, stride,
                                   src + row * row_bytes + 2, row_bytes);
        }
        return finite;
}

/* src: n_rows <= 16 rows of the file, row_bytes apart. False: a weight is not finite. One line of every row at a time,
 * since rows of 2^n bytes share a set of the cache. */
static bool pack_panel_16(uint8_t *dst, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows, uint32_t cols,
                          uint16_t exponent)
{
        for (uint32_t c0 = 0; c0 < cols; c0 += 32) {
                uint32_t c1 = TDM_MIN(c0 + 32, cols);

                if (n_rows == TDM_PANEL_ROWS && c1 - c0 == 32) {
                        for (uint32_t row = 0; row < TDM_PANEL_ROWS; row += 8)
                                for (uint32_t c = c0; c < c1; c += 8)
                                        transpose_8x8(dst + ((uint64_t)c * TDM_PANEL_ROWS + row) * 2,
                                                      src + row * row_bytes + (uint64_t)c * 2, row_bytes);
                        continue;
                }
                for (uint32_t row = 0; row < TDM_PANEL_ROWS; row++)
                        for (uint32_t c = c0; c < c1; c++)
                                store_u16(dst + ((uint64_t)c * TDM_PANEL_ROWS + row) * 2,
                                          row < n_rows ? tdm_load_u16(src + row * row_bytes + (uint64_t)c * 2) : 0);
        }
        return all_finite_16(dst, (size_t)cols * TDM_PANEL_ROWS, exponent);
}

static bool pack_panel_32(uint8_t *dst, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows, uint32_t cols)
{
        for (uint32_t c0 = 0; c0 < cols; c0 += 16) {
                uint32_t c1 = TDM_MIN(c0 + 16, cols);

                if (n_rows == TDM_PANEL_ROWS && c1 - c0 == 16) {
                        for (uint32_t row = 0; row < TDM_PANEL_ROWS; row += 4)
                                for (uint32_t c = c0; c < c1; c += 4)
                                        transpose_4x4(dst + ((uint64_t)c * TDM_PANEL_ROWS + row) * 4,
                                                      src + row * row_bytes + (uint64_t)c * 4, row_bytes, 0);
                        continue;
                }
                for (uint32_t row = 0; row < TDM_PANEL_ROWS; row++)
                        for (uint32_t c = c0; c < c1; c++)
                                store_u32(dst + ((uint64_t)c * TDM_PANEL_ROWS + row) * 4,
                                          row < n_rows ? tdm_load_u32(src + row * row_bytes + (uint64_t)c * 4) : 0);
        }
        return all_finite_32(dst, (size_t)cols * TDM_PANEL_ROWS);
}

bool tdm_weights_pack_panel(uint32_t type, uint8_t *dst, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows,
                            uint32_t cols)
{
        switch (type) {
        case TDM_TYPE_Q8_0:
                return pack_panel_blocks(dst, src, row_bytes, n_rows, cols, 2, 0x80808080, 0);
        case TDM_TYPE_Q4_0:
                return pack_panel_blocks(dst, src, row_bytes, n_rows, cols, 1, 0, 0x88);
        case TDM_TYPE_F16:
                return pack_panel_16(dst, src, row_bytes, n_rows, cols, 0x7c00);
        case TDM_TYPE_BF16:
                return pack_panel_16(dst, src, row_bytes, n_rows, cols, 0x7f80);
        case TDM_TYPE_F32:
                return pack_panel_32(dst, src, row_bytes, n_rows, cols);
        default: /* the plan has only supported types */
                return tdm_subblock_pack_panel(type, dst, src, row_bytes, n_rows, cols);
        }
}

bool tdm_weights_pack_vector(uint32_t type, float *dst, const uint8_t *src, uint32_t n,
                             const struct tdm_weights_order *order)
{
        for (uint32_t i = 0; i < n; i++) {
                size_t from = tdm_weights_source_row(order, i);

                dst[i] = type == TDM_TYPE_F16  ? tdm_f16_to_f32(tdm_load_u16(src + 2 * from)) :
                         type == TDM_TYPE_BF16 ? tdm_bf16_to_f32(tdm_load_u16(src + 2 * from)) :
                                                 tdm_bits_to_f32(tdm_load_u32(src + 4 * from));
                if (order->scale != 0)
                        dst[i] *= order->scale;
        }
        return all_finite_32((const uint8_t *)dst, n);
}
