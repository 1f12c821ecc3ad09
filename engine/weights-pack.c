/* One panel's worth of a file's rows, brought into the layout of weights.h: a transposition of 4-byte groups, or of elements. A
 * panel is written once and checked for scales and weights that are not finite while it is in cache. What is checked is the
 * copy, not the mapped file, which may change meanwhile. */
#include "engine/half.h"
#include "engine/weights-k.h"
#include "engine/weights-private.h"

static inline void store_u32(uint8_t *p, uint32_t v)
{
        memcpy(p, &v, sizeof(v));
}

static inline void store_u16(uint8_t *p, uint16_t v)
{
        memcpy(p, &v, sizeof(v));
}

static bool all_finite_16(const uint8_t *p, size_t n, uint16_t exponent)
{
        unsigned n_bad = 0;

        for (size_t i = 0; i < n; i++)
                n_bad += (tdm_load_u16(p + 2 * i) & exponent) == exponent;
        return n_bad == 0;
}

static bool all_finite_32(const uint8_t *p, size_t n)
{
        const uint32_t exponent = 0x7f800000;
        unsigned n_bad = 0;

        for (size_t i = 0; i < n; i++)
                n_bad += (tdm_load_u32(p + 4 * i) & exponent) == exponent;
        return n_bad == 0;
}

/* src: n_rows <= 16 rows of the file, row_bytes apart. False: a scale or weight is not finite. */
static bool pack_panel_q8_0(uint8_t *dst, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows, uint32_t cols)
{
        uint32_t nb = cols / TDM_BLOCK_VALUES;
        uint8_t *quants = dst + tdm_weights_scales_bytes(cols);

        for (uint32_t b = 0; b < nb; b++, quants += 512) {
                for (uint32_t row = 0; row < n_rows; row++) {
                        const uint8_t *block = src + row * row_bytes + (uint64_t)b * 34;

                        store_u16(dst + (b * TDM_PANEL_ROWS + row) * 2, tdm_load_u16(block));
                        for (uint32_t g = 0; g < 8; g++)
                                store_u32(quants + 64 * g + 4 * row, tdm_load_u32(block + 2 + 4 * g) ^ 0x80808080);
                }
                for (uint32_t row = n_rows; row < TDM_PANEL_ROWS; row++) {
                        store_u16(dst + (b * TDM_PANEL_ROWS + row) * 2, 0);
                        for (uint32_t g = 0; g < 8; g++)
                                store_u32(quants + 64 * g + 4 * row, 0x80808080);
                }
        }
        return all_finite_16(dst, (size_t)nb * TDM_PANEL_ROWS, 0x7c00);
}

/* The file's block has value j in the low and value j + 16 in the high nibble of byte j: already groups v and v + 4. */
static bool pack_panel_q4_0(uint8_t *dst, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows, uint32_t cols)
{
        uint32_t nb = cols / TDM_BLOCK_VALUES;
        uint8_t *quants = dst + tdm_weights_scales_bytes(cols);

        for (uint32_t b = 0; b < nb; b++, quants += 256) {
                for (uint32_t row = 0; row < n_rows; row++) {
                        const uint8_t *block = src + row * row_bytes + (uint64_t)b * 18;

                        store_u16(dst + (b * TDM_PANEL_ROWS + row) * 2, tdm_load_u16(block));
                        for (uint32_t v = 0; v < 4; v++)
                                store_u32(quants + 64 * v + 4 * row, tdm_load_u32(block + 2 + 4 * v));
                }
                for (uint32_t row = n_rows; row < TDM_PANEL_ROWS; row++) {
                        store_u16(dst + (b * TDM_PANEL_ROWS + row) * 2, 0);
                        for (uint32_t v = 0; v < 4; v++)
                                store_u32(quants + 64 * v + 4 * row, 0x88888888);
                }
        }
        return all_finite_16(dst, (size_t)nb * TDM_PANEL_ROWS, 0x7c00);
}

static bool pack_panel_16(uint8_t *dst, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows, uint32_t cols,
                          uint16_t exponent)
{
        for (uint32_t c0 = 0; c0 < cols; c0 += 32) { /* a few lines of every row at a time */
                uint32_t c1 = TDM_MIN(c0 + 32, cols);

                for (uint32_t row = 0; row < n_rows; row++)
                        for (uint32_t c = c0; c < c1; c++)
                                store_u16(dst + ((uint64_t)c * TDM_PANEL_ROWS + row) * 2,
                                          tdm_load_u16(src + row * row_bytes + (uint64_t)c * 2));
                for (uint32_t row = n_rows; row < TDM_PANEL_ROWS; row++)
                        for (uint32_t c = c0; c < c1; c++)
                                store_u16(dst + ((uint64_t)c * TDM_PANEL_ROWS + row) * 2, 0);
        }
        return all_finite_16(dst, (size_t)cols * TDM_PANEL_ROWS, exponent);
}

static bool pack_panel_32(uint8_t *dst, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows, uint32_t cols)
{
        for (uint32_t c0 = 0; c0 < cols; c0 += 16) {
                uint32_t c1 = TDM_MIN(c0 + 16, cols);

                for (uint32_t row = 0; row < n_rows; row++)
                        for (uint32_t c = c0; c < c1; c++)
                                store_u32(dst + ((uint64_t)c * TDM_PANEL_ROWS + row) * 4,
                                          tdm_load_u32(src + row * row_bytes + (uint64_t)c * 4));
                for (uint32_t row = n_rows; row < TDM_PANEL_ROWS; row++)
                        for (uint32_t c = c0; c < c1; c++)
                                store_u32(dst + ((uint64_t)c * TDM_PANEL_ROWS + row) * 4, 0);
        }
        return all_finite_32(dst, (size_t)cols * TDM_PANEL_ROWS);
}

bool tdm_weights_pack_panel(uint32_t type, uint8_t *dst, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows, uint32_t cols)
{
        switch (type) {
        case TDM_TYPE_Q8_0:
                return pack_panel_q8_0(dst, src, row_bytes, n_rows, cols);
        case TDM_TYPE_Q4_0:
                return pack_panel_q4_0(dst, src, row_bytes, n_rows, cols);
        case TDM_TYPE_F16:
                return pack_panel_16(dst, src, row_bytes, n_rows, cols, 0x7c00);
        case TDM_TYPE_BF16:
                return pack_panel_16(dst, src, row_bytes, n_rows, cols, 0x7f80);
        case TDM_TYPE_F32:
                return pack_panel_32(dst, src, row_bytes, n_rows, cols);
        default: /* the plan has only supported types */
                return tdm_k_pack_panel(type, dst, src, row_bytes, n_rows, cols);
        }
}

bool tdm_weights_pack_vector(uint32_t type, float *dst, const uint8_t *src, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                dst[i] = type == TDM_TYPE_F16    ? tdm_f16_to_f32(tdm_load_u16(src + 2 * (size_t)i))
                         : type == TDM_TYPE_BF16 ? tdm_bf16_to_f32(tdm_load_u16(src + 2 * (size_t)i))
                                                 : tdm_bits_to_f32(tdm_load_u32(src + 4 * (size_t)i));
        return all_finite_32((const uint8_t *)dst, n);
}
