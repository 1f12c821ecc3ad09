/* Packing and reading the weight types of subblock.h.
 *
 * Packing goes through one byte per weight, four in a word: the file's bits are spread over 32 bytes and gathered again
 * in the panel's order, for every type by the same few loops over words.
 *
 * Does not compress, convert or round: every weight keeps its exact value. */
#include "common/f16.h"
#include "engine/weights/subblock.h"
#include "engine/weights/weights-private.h"

#define ROWS TDM_PANEL_ROWS
#define BLOCK TDM_BLOCK_VALUES

const uint8_t tdm_subblock_iq4_values[16] = { 1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241 };
const uint8_t tdm_subblock_mxfp4_values[16] = { 16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4 };
const uint8_t tdm_subblock_grid_values[4][16] = {
        /* 8 g + 1 and 8 g - 1 for g = -1, 0, 1 */
        { 9, 17, 25, 16, 7, 15, 23, 16 },
        /* 8, 25, 43 and their negatives */
        { 72, 89, 107, 64, 56, 39, 21, 64 },
        /* halves of 4, 12, 20, 28, 36, 44, 52, 62 and their negatives */
        { 34, 38, 42, 46, 50, 54, 58, 63, 30, 26, 22, 18, 14, 10, 6, 1 },
        /* 1, 3, … 15 and their negatives */
        { 17, 19, 21, 23, 25, 27, 29, 31, 15, 13, 11, 9, 7, 5, 3, 1 },
};

/* ---- the file's blocks: see the GGUF specification ---- */

/* The places of what a unit of the file has. -1: it has no such part. */
struct file_unit {
        int16_t bytes;
        int16_t half[2]; /* the 16-bit numbers that go in front */
        int16_t scales;  /* sub-scales, scale_bytes / 16 bytes */
        uint16_t parts;  /* more than one: units of a panel, of which each has 16 bits in front behind the last one's */
};

static struct file_unit file_unit(uint32_t type)
{
        switch (type) {
        case TDM_TYPE_Q4_1:
                return (struct file_unit){ 20, { 0, 2 }, -1 };
        case TDM_TYPE_Q5_0:
                return (struct file_unit){ 22, { 0, -1 }, -1 };
        case TDM_TYPE_Q5_1:
                return (struct file_unit){ 24, { 0, 2 }, -1 };
        case TDM_TYPE_Q2_K: /* scales 16, quants 64, d, dmin */
                return (struct file_unit){ 84, { 80, 82 }, 0 };
        case TDM_TYPE_Q3_K: /* high bits 32, quants 64, scales 12, d */
                return (struct file_unit){ 110, { 108, -1 }, 96 };
        case TDM_TYPE_Q4_K: /* d, dmin, scales 12, quants 128 */
                return (struct file_unit){ 144, { 0, 2 }, 4 };
        case TDM_TYPE_Q5_K: /* d, dmin, scales 12, high bits 32, quants 128 */
                return (struct file_unit){ 176, { 0, 2 }, 4 };
        case TDM_TYPE_Q6_K: /* low nibbles 128, high bits 64, scales 16, d */
                return (struct file_unit){ 210, { 208, -1 }, 192 };
        case TDM_TYPE_IQ4_NL:
                return (struct file_unit){ 18, { 0, -1 }, -1 };
        case TDM_TYPE_IQ4_XS: /* d, scales_h, scales_l 4, quants 128 */
                return (struct file_unit){ 136, { 0, 2 }, 4 };
        case TDM_TYPE_MXFP4: /* the exponent's byte, quants 16 */
                return (struct file_unit){ 17, { -1, -1 }, -1 };
        case TDM_TYPE_NVFP4: /* scales 4, quants 32 */
                return (struct file_unit){ 36, { 0, -1 }, -1, 2 };
        case TDM_TYPE_GRID1: /* high bits 32, low ones 64, scales 8, d: see rewrite.c */
        case TDM_TYPE_GRID2:
                return (struct file_unit){ 106, { 104, -1 }, 96 };
        case TDM_TYPE_GRID3_XXS: /* scales 8, codes 128, d */
        case TDM_TYPE_GRID3_S:
                return (struct file_unit){ 138, { 136, -1 }, 0 };
        default:
                abort(); /* callers ask tdm_subblock_type() first */
        }
}

/* Four bytes at once. */
#define BYTES(x) ((x)*0x01010101u)

/* Four bits, the lowest first, as the lowest bits of four bytes. */
static inline uint32_t spread_bits(uint32_t bits)
{
        return (bits & 15) * 0x00204081u & BYTES(1u);
}

/* The 32 quants of block b of a unit of the file, a byte each, four in a word. */
static inline __attribute__((always_inline)) void spread(uint32_t type, const uint8_t *unit, uint32_t b,
                                                         uint32_t *restrict q)
{
        const uint8_t *low, *high;
        uint32_t bits = 0;
        unsigned shift;

        switch (type) {
        case TDM_TYPE_Q4_1:
        case TDM_TYPE_Q5_0:
        case TDM_TYPE_Q5_1:
        case TDM_TYPE_IQ4_NL:
        case TDM_TYPE_IQ4_XS:
        case TDM_TYPE_MXFP4:
        case TDM_TYPE_GRID3_XXS:
        case TDM_TYPE_GRID3_S:
                low = type == TDM_TYPE_Q4_1   ? unit + 4 :
                      type == TDM_TYPE_Q5_0   ? unit + 6 :
                      type == TDM_TYPE_Q5_1   ? unit + 8 :
                      type == TDM_TYPE_IQ4_NL ? unit + 2 :
                      type == TDM_TYPE_MXFP4  ? unit + 1 :
                                                unit + 8 + 16 * b; /* IQ4_XS, GRID3 */
                if (type == TDM_TYPE_Q5_0 || type == TDM_TYPE_Q5_1)
                        bits = tdm_load_u32(low - 4);
                for (unsigned g = 0; g < 4; g++) {
                        uint32_t word = tdm_load_u32(low + 4 * g);

                        q[g] = (word & BYTES(15u)) | spread_bits(bits >> 4 * g) << 4;
                        q[g + 4] = (word >> 4 & BYTES(15u)) | spread_bits(bits >> (4 * g + 16)) << 4;
                }
                break;
        case TDM_TYPE_NVFP4: /* 8 bytes of each 16 columns */
                for (unsigned g = 0; g < 8; g++)
                        q[g] = tdm_load_u32(unit + 4 + 16 * b + g / 4 * 8 + g % 2 * 4) >> g % 4 / 2 * 4 & BYTES(15u);
                break;
        case TDM_TYPE_Q2_K:
                low = unit + 16 + b / 4 * 32;
                shift = b % 4 * 2;
                for (unsigned g = 0; g < 8; g++)
                        q[g] = tdm_load_u32(low + 4 * g) >> shift & BYTES(3u);
                break;
        case TDM_TYPE_Q3_K:
        case TDM_TYPE_GRID1:
        case TDM_TYPE_GRID2:
                low = unit + 32 + b / 4 * 32;
                high = unit;
                shift = b % 4 * 2;
                for (unsigned g = 0; g < 8; g++)
                        q[g] = (tdm_load_u32(low + 4 * g) >> shift & BYTES(3u)) |
                               (tdm_load_u32(high + 4 * g) >> b & BYTES(1u)) << 2;
                break;
        case TDM_TYPE_Q4_K:
        case TDM_TYPE_Q5_K:
                low = unit + (type == TDM_TYPE_Q4_K ? 16 : 48) + b / 2 * 32;
                high = unit + 16;
                shift = b % 2 * 4;
                for (unsigned g = 0; g < 8; g++)
                        q[g] = (tdm_load_u32(low + 4 * g) >> shift & BYTES(15u)) |
                               (type == TDM_TYPE_Q5_K ? (tdm_load_u32(high + 4 * g) >> b & BYTES(1u)) << 4 : 0);
                break;
        case TDM_TYPE_Q6_K:
                low = unit + b / 4 * 64 + b % 2 * 32;
                high = unit + 128 + b / 4 * 32;
                shift = b % 4 / 2 * 4;
                for (unsigned g = 0; g < 8; g++)
                        q[g] = (tdm_load_u32(low + 4 * g) >> shift & BYTES(15u)) |
                               (tdm_load_u32(high + 4 * g) >> (b % 4 * 2) & BYTES(3u)) << 4;
                break;
        default:
                abort();
        }
}

/* ---- packing ---- */

/* What spread() left to a block's planes; to: the block's first byte of this lane. */
static inline __attribute__((always_inline)) void gather(uint32_t type, const uint32_t *restrict q,
                                                         uint8_t *restrict to)
{
        bool has_three = type == TDM_TYPE_Q3_K || type == TDM_TYPE_GRID1 || type == TDM_TYPE_GRID2;
        bool has_nibbles = type != TDM_TYPE_Q2_K && !has_three;
        bool has_pairs = type == TDM_TYPE_Q6_K || !has_nibbles;
        unsigned pair_shift = has_nibbles ? 4 : 0, bit_shift = has_nibbles ? 4 : 2;

        for (unsigned v = 0; has_nibbles && v < 4; v++, to += 4 * ROWS)
                tdm_store_u32(to, (q[v] & BYTES(15u)) | (q[v + 4] & BYTES(15u)) << 4);
        for (unsigned a = 0; has_pairs && a < 2; a++, to += 4 * ROWS) {
                uint32_t pairs = 0;

                for (unsigned t = 0; t < 4; t++)
                        pairs |= (q[4 * a + t] >> pair_shift & BYTES(3u)) << 2 * t;
                tdm_store_u32(to, pairs);
        }
        if (has_three || type == TDM_TYPE_Q5_0 || type == TDM_TYPE_Q5_1 || type == TDM_TYPE_Q5_K) {
                uint32_t bits = 0;

                for (unsigned g = 0; g < 8; g++)
                        bits |= (q[g] >> bit_shift & BYTES(1u)) << g;
                tdm_store_u32(to, bits);
        }
}

/* Whether what goes in front is no finite number. */
static inline __attribute__((always_inline)) bool half_is_bad(uint32_t type, uint32_t h, uint16_t half)
{
        if (type == TDM_TYPE_NVFP4)
                return (half & 0xff) > TDM_NVFP4_SCALE_MAX || half >> 8 > TDM_NVFP4_SCALE_MAX;
        return !(type == TDM_TYPE_IQ4_XS && h == 1) && (half & 0x7c00) == 0x7c00;
}

static inline __attribute__((always_inline)) bool pack_panel(uint32_t type, uint8_t *panel, const uint8_t *src,
                                                             uint64_t row_bytes, uint32_t n_rows, uint32_t cols)
{
        const struct tdm_subblock_info info = tdm_subblock_info(type);
        const struct file_unit file = file_unit(type);
        size_t unit_bytes = tdm_subblock_unit_bytes(&info);
        uint8_t *body = panel + tdm_subblock_front_bytes(&info, cols);
        const uint32_t parts = TDM_MAX(file.parts, 1), n_blocks = info.unit_values / BLOCK;
        unsigned n_bad = 0;

        memset(panel, 0, (size_t)(body - panel));
        for (uint32_t u = 0; u < cols / info.unit_values; u++, body += unit_bytes) {
                if (n_rows < ROWS)
                        memset(body, 0, unit_bytes); /* d is 0 there, or in MXFP4 and NVFP4 the quant: a zero weight */
                for (uint32_t row = 0; row < n_rows; row++) {
                        const uint8_t *unit = src + row * row_bytes + (uint64_t)(u / parts) * (uint64_t)file.bytes;
                        uint8_t *to = body + 4 * row;

                        for (uint32_t h = 0; h < info.halves; h++) {
                                uint16_t half = tdm_load_u16(unit + file.half[h] + 2 * (u % parts));

                                memcpy(panel + ((u * info.halves + h) * ROWS + row) * 2, &half, 2);
                                n_bad += half_is_bad(type, h, half);
                        }
                        if (info.halves == 0) {
                                panel[u * ROWS + row] = unit[0];
                                n_bad += unit[0] > TDM_MXFP4_EXPONENT_MAX;
                        }
                        for (uint32_t i = 0; i < info.scale_bytes / (4 * ROWS); i++, to += 4 * ROWS)
                                memcpy(to, unit + file.scales + 4 * i, 4);
#pragma GCC unroll 8 /* shifts are constants then */
                        for (uint32_t b = 0; b < n_blocks; b++, to += info.block_bytes) {
                                uint32_t q[BLOCK / 4];

                                spread(type, unit, u % parts * n_blocks + b, q);
                                gather(type, q, to);
                        }
                }
        }
        return n_bad == 0;
}

bool tdm_subblock_pack_panel(uint32_t type, uint8_t *panel, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows,
                             uint32_t cols)
{
#define PACK(name, type, kind)                                                                                         \
        case TDM_TYPE_##type:                                                                                          \
                return pack_panel(TDM_TYPE_##type, panel, src, row_bytes, n_rows, cols);
        switch (type) {
                TDM_SUBBLOCK_TYPES(PACK)
        default:
                abort(); /* callers ask tdm_subblock_type() first */
        }
#undef PACK
}

/* ---- reading ---- */

/* Sub-scales of block b of a unit: scales are the lane's, 4 bytes every 64; halves are the lane's in front, or its
 * exponent. */
static void read_scales(uint32_t type, const uint8_t *scales, const uint16_t *halves, uint32_t b,
                        struct tdm_subblock_slice *ret)
{
        float d = tdm_f16_to_f32(halves[0]);

#define SCALE(i) scales[(i) / 4 * 4 * ROWS + (i) % 4]
        switch (type) {
        case TDM_TYPE_Q4_1:
        case TDM_TYPE_Q5_1:
                ret->scale[0] = ret->scale[1] = d;
                ret->min[0] = ret->min[1] = tdm_f16_to_f32(halves[1]);
                break;
        case TDM_TYPE_Q5_0:
        case TDM_TYPE_IQ4_NL:
                ret->scale[0] = ret->scale[1] = d;
                break;
        case TDM_TYPE_MXFP4: {
                uint32_t bits = halves[0] ? (uint32_t)halves[0] << 23 : 1u << 22;

                ret->scale[0] = ret->scale[1] = tdm_bits_to_f32(bits) * 0.5f;
                break;
        }
        case TDM_TYPE_NVFP4: /* as f16 it has an exponent of 8 less */
                for (unsigned h = 0; h < 2; h++)
                        ret->scale[h] = tdm_f16_to_f32((uint16_t)((halves[0] >> 8 * h & 0x7f) << 7)) * 128;
                break;
        case TDM_TYPE_IQ4_XS: {
                int s = (SCALE(b / 2) >> b % 2 * 4 & 15) | (halves[1] >> 2 * b & 3) << 4;

                ret->scale[0] = ret->scale[1] = d * (float)(s - 32);
                break;
        }
        case TDM_TYPE_Q4_K:
        case TDM_TYPE_Q5_K: {
                unsigned s = b < 4 ? SCALE(b) & 63u : (SCALE(b + 4) & 15u) | (unsigned)(SCALE(b - 4) >> 6) << 4;
                unsigned m =
                        b < 4 ? SCALE(b + 4) & 63u : (unsigned)(SCALE(b + 4) >> 4) | (unsigned)(SCALE(b) >> 6) << 4;

                ret->scale[0] = ret->scale[1] = d * (float)s;
                ret->min[0] = ret->min[1] = -(tdm_f16_to_f32(halves[1]) * (float)m);
                break;
        }
        case TDM_TYPE_Q2_K:
                for (unsigned h = 0; h < 2; h++) {
                        ret->scale[h] = d * (float)(SCALE(2 * b + h) & 15);
                        ret->min[h] = -(tdm_f16_to_f32(halves[1]) * (float)(SCALE(2 * b + h) >> 4));
                }
                break;
        case TDM_TYPE_Q3_K:
                for (unsigned h = 0; h < 2; h++) {
                        unsigned i = 2 * b + h, low = i < 8 ? SCALE(i) & 15u : SCALE(i - 8) >> 4;

                        ret->scale[h] = d * (float)((int)(low | (SCALE(8 + i % 4) >> 2 * (i / 4) & 3u) << 4) - 32);
                }
                break;
        case TDM_TYPE_Q6_K:
                for (unsigned h = 0; h < 2; h++)
                        ret->scale[h] = d * (float)(int8_t)SCALE(2 * b + h);
                break;
        case TDM_TYPE_GRID1:
        case TDM_TYPE_GRID2:
        case TDM_TYPE_GRID3_XXS:
        case TDM_TYPE_GRID3_S:
                for (unsigned h = 0; h < 2; h++) {
                        unsigned i = 2 * b + h, s = SCALE(i % 8) >> i / 8 * 4 & 15u;

                        ret->scale[h] = d * tdm_subblock_grid_factor(type) * (float)(2 * s + 1);
                }
                break;
        default:
                abort();
        }
#undef SCALE
}

void tdm_subblock_read(uint32_t type, const uint8_t *panel, uint32_t cols, uint32_t b, uint32_t lane,
                       struct tdm_subblock_slice *ret)
{
        const struct tdm_subblock_info info = tdm_subblock_info(type);
        uint32_t per_unit = info.unit_values / BLOCK, u = b / per_unit;
        const uint8_t *scales =
                panel + tdm_subblock_front_bytes(&info, cols) + u * tdm_subblock_unit_bytes(&info) + 4 * lane;
        const uint8_t *planes = scales + info.scale_bytes + b % per_unit * info.block_bytes;
        uint16_t halves[2] = { 0 };

        for (uint32_t h = 0; h < info.halves; h++)
                halves[h] = tdm_load_u16(panel + ((u * info.halves + h) * ROWS + lane) * 2);
        if (info.halves == 0)
                halves[0] = panel[u * ROWS + lane];
        *ret = (struct tdm_subblock_slice){ 0 };
        read_scales(type, scales, halves, b % per_unit, ret);

        for (unsigned i = 0; i < BLOCK; i++) {
                unsigned g = i / 4, byte = i % 4;

#define PLANE(n) ((unsigned)planes[(n)*4 * ROWS + byte])
#define NIBBLE (PLANE(g % 4) >> g / 4 * 4 & 15)
                switch (type) {
                case TDM_TYPE_Q4_1:
                case TDM_TYPE_Q4_K:
                        ret->q[i] = (uint8_t)NIBBLE;
                        break;
                case TDM_TYPE_IQ4_NL:
                case TDM_TYPE_IQ4_XS:
                        ret->q[i] = tdm_subblock_iq4_values[NIBBLE];
                        break;
                case TDM_TYPE_MXFP4:
                case TDM_TYPE_NVFP4:
                        ret->q[i] = tdm_subblock_mxfp4_values[NIBBLE];
                        break;
                case TDM_TYPE_Q5_0:
                case TDM_TYPE_Q5_1:
                case TDM_TYPE_Q5_K:
                        ret->q[i] = (uint8_t)(NIBBLE | (PLANE(4) >> g & 1) << 4);
                        break;
                case TDM_TYPE_Q6_K:
                        ret->q[i] = (uint8_t)(NIBBLE | (PLANE(4 + g / 4) >> g % 4 * 2 & 3) << 4);
                        break;
                case TDM_TYPE_Q2_K:
                        ret->q[i] = PLANE(g / 4) >> g % 4 * 2 & 3;
                        break;
                case TDM_TYPE_Q3_K:
                        ret->q[i] = (uint8_t)((PLANE(g / 4) >> g % 4 * 2 & 3) | (PLANE(2) >> g & 1) << 2);
                        break;
                case TDM_TYPE_GRID1:
                case TDM_TYPE_GRID2:
                        ret->q[i] = tdm_subblock_grid_values[type - TDM_TYPE_GRID1][(PLANE(g / 4) >> g % 4 * 2 & 3) |
                                                                                    (PLANE(2) >> g & 1) << 2];
                        break;
                case TDM_TYPE_GRID3_XXS:
                case TDM_TYPE_GRID3_S:
                        ret->q[i] = tdm_subblock_grid_values[type - TDM_TYPE_GRID1][NIBBLE];
                        break;
                default:
                        abort();
                }
#undef NIBBLE
#undef PLANE
        }
}
