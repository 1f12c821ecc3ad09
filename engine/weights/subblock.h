/* Weight types made of sub-blocks: the 4- and 5-bit types with a minimum, the K-quants, the table types, MXFP4, NVFP4
 * and what IQ1, IQ2 and IQ3 are packed as. How they lie in a PANEL16 matrix, how a file's rows get there and how one
 * lane is read back. Bytes per weight are the file's, or those of the rewritten blocks (rewrite.c).
 *
 * A weight is (q - offset) * scale, or q * scale + min where the type has a minimum; q is unsigned, offset belongs to
 * the type; scale and min belong to a sub-block of 16 or 32 columns and are exact in f32 (11 bits of d times at most
 * 8). So (q - offset) * scale is exact too, and q * scale + min is rounded once.
 *
 * MXFP4's scale is a power of two, 2^(e - 127), whose exponent e is a byte; its weights are a half times a whole
 * number. Here q is twice the weight without its scale, and the scale is 2^(e - 128): subnormal for e < 2, and exact
 * still. NVFP4 has MXFP4's weights. The scale of 16 of them is a byte, E4M3 without a sign, and that of its q is half
 * of it.
 *
 * GRID1, GRID2, GRID3_XXS and GRID3_S hold what IQ1, IQ2 and IQ3 have once their codebooks are looked up (grids.h): a
 * weight is one of at most 16 whole numbers, that of its code, times an odd number below 32 that 16 columns share,
 * times d, times the type's factor. The numbers are those of the format but in GRID3_XXS, where they are half of them.
 *
 *   panel = front, padded to 64 bytes, then units of 32 columns (Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4, NVFP4) or 256
 *           (the others)
 *   front:  f16 [units][halves][16 rows]: d; and m, dmin or, in IQ4_XS, the 16 bits of scales_h. NVFP4: the
 *           scales of both halves of the columns, a byte each. MXFP4: u8 [units][16 rows]: e
 *   unit:   sub-scales, the file's bytes in the file's order as [4-byte groups][16 rows][4], then its blocks of 32
 *           columns. GRID*: 8 bytes; four bits s of a sub-block, for 2 s + 1: of the first 8 the low nibbles, of the
 *           others the high ones
 *   block:  bytes [.][16 rows][4], where byte i of a lane belongs to the columns 4 g + i of the groups g = 0 … 7:
 *           4 bits and more: [4 v]: low nibble group v, high nibble group v + 4;
 *                            then, for a 5th bit, [1]: bit g of group g;
 *                            for the 5th and 6th, [2 a]: bits 2 t, 2 t + 1 of group 4 a + t
 *           Q2_K, Q3_K, GRID1, GRID2: [2 a]: bits 2 t, 2 t + 1 of group 4 a + t; then, for a 3rd bit, [1]: bit g of
 *                            group g
 *
 * In this, [v] and [a] count vectors of 64 bytes, 4 bytes for each of the 16 rows; t is 0 … 3. So of column 22 of a
 * block of Q6_K (22 = 4 g + i with g = 5, i = 2) the low four bits are the high nibble of byte 2 of vector v = 1
 * (g - 4), and the upper two are bits 2 and 3 (t = 1) of byte 2 of vector a = 1 behind the four v's (5 = 4 a + t).
 *
 * Every vector of a group is then one or two shifts and masks away. Nothing here knows a file's tensors or a kernel. */
#ifndef TDM_ENGINE_WEIGHTS_SUBBLOCK_H
#define TDM_ENGINE_WEIGHTS_SUBBLOCK_H

#include "engine/weights/weights.h"

/* What IQ1, IQ2 and IQ3 are packed as, beside enum tdm_type. No file has these types. */
enum tdm_type_packed { TDM_TYPE_GRID1 = 60, TDM_TYPE_GRID2 = 61, TDM_TYPE_GRID3_XXS = 62, TDM_TYPE_GRID3_S = 63 };

/* The one list of these types. X(name of kernels, TDM_TYPE_*, kind of their inner loops): the size of a sub-block, with
 * _min where the type has a minimum, with _table where a quant may be any byte. */
#define TDM_SUBBLOCK_TYPES(X)                                                                                          \
        TDM_SUBBLOCK_TYPES_OF_GPUS(X)                                                                                  \
        TDM_SUBBLOCK_GRIDS(X)                                                                                          \
        X(nvfp4, NVFP4, 16)
/* Those that shaders know too, but those for matrix units. */
#define TDM_SUBBLOCK_GRIDS(X)                                                                                          \
        X(grid1, GRID1, 16)                                                                                            \
        X(grid2, GRID2, 16_table)                                                                                      \
        X(grid3_xxs, GRID3_XXS, 16)                                                                                    \
        X(grid3_s, GRID3_S, 16)
/* Those that all shaders know. */
#define TDM_SUBBLOCK_TYPES_OF_GPUS(X)                                                                                  \
        X(q4_1, Q4_1, 32_min)                                                                                          \
        X(q5_0, Q5_0, 32)                                                                                              \
        X(q5_1, Q5_1, 32_min)                                                                                          \
        X(q2_k, Q2_K, 16_min)                                                                                          \
        X(q3_k, Q3_K, 16)                                                                                              \
        X(q4_k, Q4_K, 32_min)                                                                                          \
        X(q5_k, Q5_K, 32_min)                                                                                          \
        X(q6_k, Q6_K, 16)                                                                                              \
        X(iq4_nl, IQ4_NL, 32_table)                                                                                    \
        X(iq4_xs, IQ4_XS, 32_table)                                                                                    \
        X(mxfp4, MXFP4, 32)

#define TDM_SUBBLOCK_PLUS_ONE(name, type, kind) +1
enum { TDM_N_SUBBLOCK_TYPES = 0 TDM_SUBBLOCK_TYPES(TDM_SUBBLOCK_PLUS_ONE) };

struct tdm_subblock_info {
        uint32_t unit_values;
        uint32_t halves;      /* of a unit, in front; 0: bytes */
        uint32_t scale_bytes; /* of a unit and 16 rows */
        uint32_t block_bytes; /* of 32 columns and 16 rows */
        uint32_t sub_values;  /* 16 or 32 columns share scale and min */
        int32_t offset;
        bool has_min;
};

/* Inline, so that a kernel of a known type has constants. All zero for a type that is not of this family. */
static inline __attribute__((always_inline)) struct tdm_subblock_info tdm_subblock_info(uint32_t type)
{
        switch (type) {
        case TDM_TYPE_Q4_1:
                return (struct tdm_subblock_info){ 32, 2, 0, 256, 32, 0, true };
        case TDM_TYPE_Q5_0:
                return (struct tdm_subblock_info){ 32, 1, 0, 320, 32, 16, false };
        case TDM_TYPE_Q5_1:
                return (struct tdm_subblock_info){ 32, 2, 0, 320, 32, 0, true };
        case TDM_TYPE_Q2_K:
                return (struct tdm_subblock_info){ 256, 2, 256, 128, 16, 0, true };
        case TDM_TYPE_Q3_K:
                return (struct tdm_subblock_info){ 256, 1, 192, 192, 16, 4, false };
        case TDM_TYPE_Q4_K:
                return (struct tdm_subblock_info){ 256, 2, 192, 256, 32, 0, true };
        case TDM_TYPE_Q5_K:
                return (struct tdm_subblock_info){ 256, 2, 192, 320, 32, 0, true };
        case TDM_TYPE_Q6_K:
                return (struct tdm_subblock_info){ 256, 1, 256, 384, 16, 32, false };
        case TDM_TYPE_IQ4_NL:
                return (struct tdm_subblock_info){ 32, 1, 0, 256, 32, 128, false };
        case TDM_TYPE_IQ4_XS:
                return (struct tdm_subblock_info){ 256, 2, 64, 256, 32, 128, false };
        case TDM_TYPE_MXFP4:
                return (struct tdm_subblock_info){ 32, 0, 0, 256, 32, 16, false };
        case TDM_TYPE_NVFP4:
                return (struct tdm_subblock_info){ 32, 1, 0, 256, 16, 16, false };
        case TDM_TYPE_GRID1:
                return (struct tdm_subblock_info){ 256, 1, 128, 192, 16, 16, false };
        case TDM_TYPE_GRID2:
                return (struct tdm_subblock_info){ 256, 1, 128, 192, 16, 64, false };
        case TDM_TYPE_GRID3_XXS:
                return (struct tdm_subblock_info){ 256, 1, 128, 256, 16, 32, false };
        case TDM_TYPE_GRID3_S:
                return (struct tdm_subblock_info){ 256, 1, 128, 256, 16, 16, false };
        default:
                return (struct tdm_subblock_info){ 0 };
        }
}

static inline bool tdm_subblock_type(uint32_t type)
{
        return tdm_subblock_info(type).unit_values != 0;
}

/* Bytes that one unit of 16 rows has in the front. */
static inline __attribute__((always_inline)) size_t tdm_subblock_unit_front_bytes(const struct tdm_subblock_info *info)
{
        return info->halves ? info->halves * TDM_PANEL_ROWS * 2 : TDM_PANEL_ROWS;
}

static inline size_t tdm_subblock_front_bytes(const struct tdm_subblock_info *info, uint32_t cols)
{
        return TDM_ALIGN_UP((size_t)cols / info->unit_values * tdm_subblock_unit_front_bytes(info), (size_t)64);
}

static inline size_t tdm_subblock_unit_bytes(const struct tdm_subblock_info *info)
{
        return info->scale_bytes + info->unit_values / TDM_BLOCK_VALUES * info->block_bytes;
}

/* cols a multiple of info->unit_values. */
static inline size_t tdm_subblock_panel_bytes(const struct tdm_subblock_info *info, uint32_t cols)
{
        return tdm_subblock_front_bytes(info, cols) + cols / info->unit_values * tdm_subblock_unit_bytes(info);
}

/* What the 4 bits of IQ4_NL and IQ4_XS stand for, plus 128. */
extern const uint8_t tdm_subblock_iq4_values[16];
/* What the 4 bits of MXFP4 and NVFP4 stand for, twice, plus 16. */
extern const uint8_t tdm_subblock_mxfp4_values[16];
/* With a larger exponent, weights of MXFP4 may be more than f32 holds. */
#define TDM_MXFP4_EXPONENT_MAX 252u
/* The largest scale of NVFP4. What is above is no number, or has a sign. */
#define TDM_NVFP4_SCALE_MAX 0x7eu

/* What GRID1 … GRID3_S have besides a layout: what their codes stand for, plus the type's offset, and what d is
 * multiplied with besides the odd numbers. */
static inline __attribute__((always_inline)) bool tdm_subblock_grid(uint32_t type)
{
        return type >= TDM_TYPE_GRID1 && type <= TDM_TYPE_GRID3_S;
}

static inline __attribute__((always_inline)) float tdm_subblock_grid_factor(uint32_t type)
{
        return type == TDM_TYPE_GRID3_S ? 1 : type == TDM_TYPE_GRID3_XXS ? 0.5f : 0.125f;
}

extern const uint8_t tdm_subblock_grid_values[4][16]; /* [type - TDM_TYPE_GRID1] */

/* Packs n_rows <= 16 rows of a file, row_bytes apart, into a panel; the lanes behind them become zero weights. False: a
 * scale or minimum is not finite. */
bool tdm_subblock_pack_panel(uint32_t type, uint8_t *panel, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows,
                             uint32_t cols);

/* 32 columns of one lane of a panel. */
struct tdm_subblock_slice {
        uint8_t q[TDM_BLOCK_VALUES];
        float scale[2]; /* of each half of the columns; the same twice where sub_values is 32 */
        float min[2];   /* 0 where the type has none */
};
void tdm_subblock_read(uint32_t type, const uint8_t *panel, uint32_t cols, uint32_t b, uint32_t lane,
                       struct tdm_subblock_slice *ret);

/* The value of column col of such a block. */
static inline float tdm_subblock_value(const struct tdm_subblock_info *info, const struct tdm_subblock_slice *block,
                                       uint32_t col)
{
        float v = (float)(block->q[col] - info->offset) * block->scale[col / 16]; /* exact */

        return info->has_min ? v + block->min[col / 16] : v;
}

#endif
