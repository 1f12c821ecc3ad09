/* IQ1, IQ2 and IQ3 with their codebooks looked up. A file has an index for each group of 4 or 8 columns; a panel has
 * the code of each column, so that kernels need no tables of thousands of entries. That takes 106 bytes of 256 weights
 * in place of 50 to 82 (IQ1, IQ2), and 138 in place of 98 or 110 (IQ3).
 *
 *   GRID1, GRID2:         high bits 32, low ones 64, scales 8, d: codes lie as the quants of Q3_K
 *   GRID3_XXS, GRID3_S:   scales 8, codes 128, d: codes lie as the quants of IQ4_XS
 *
 * The highest bit of a code is the sign, of IQ1 that of what is added to the group. Scales: subblock.h.
 *
 * No index can reach beyond its table, whatever the bytes are. */
#include "engine/weights/grids.h"
#include "engine/weights/weights-private.h"

#define COLS 256u  /* of a block */
#define GROUPS 32u /* of 8 columns */
#define THREE_LOW 32u
#define THREE_SCALES 96u
#define FOUR_CODES 8u

/* The lowest bit of eight bytes each, the first column's first. */
static inline uint64_t spread_1(uint32_t bits)
{
        uint64_t v = bits;

        v = (v | v << 28) & UINT64_C(0x0000000f0000000f);
        v = (v | v << 14) & UINT64_C(0x0003000300030003);
        return (v | v << 7) & UINT64_C(0x0101010101010101);
}

/* Eight codes of two bits, a byte each. */
static inline uint64_t spread_2(uint32_t codes)
{
        uint64_t v = codes;

        v = (v | v << 24) & UINT64_C(0x000000ff000000ff);
        v = (v | v << 12) & UINT64_C(0x000f000f000f000f);
        return (v | v << 6) & UINT64_C(0x0303030303030303);
}

/* Two times four codes of three bits, a byte each. */
static inline uint64_t spread_3(uint32_t first, uint32_t second)
{
        uint64_t v = first | (uint64_t)second << 32;

        v = (v | v << 10) & UINT64_C(0x003f003f003f003f);
        return (v | v << 5) & UINT64_C(0x0707070707070707);
}

static inline void or_u64(uint8_t *p, uint64_t bits)
{
        uint64_t v;

        memcpy(&v, p, sizeof(v));
        v |= bits;
        memcpy(p, &v, sizeof(v));
}

/* Codes of group g: two bits each, and a third. */
static inline void put_three(uint8_t *dst, uint32_t g, uint32_t codes, uint32_t signs)
{
        uint32_t b = g / 4, at = g % 4 * 8; /* a block of 32 columns, and where in it */

        or_u64(dst + THREE_LOW + b / 4 * 32 + at, spread_2(codes) << b % 4 * 2);
        or_u64(dst + at, spread_1(signs) << b);
}

static inline void put_four(uint8_t *dst, uint32_t g, uint32_t first, uint32_t second, uint32_t signs)
{
        uint32_t b = g / 4, at = g % 4 * 8;

        or_u64(dst + FOUR_CODES + b * 16 + at % 16, (spread_3(first, second) | spread_1(signs) << 3) << at / 16 * 4);
}

/* The scale of columns 16 i … 16 i + 15. */
static inline void put_scale(uint8_t *scales, uint32_t i, uint32_t s)
{
        scales[i % 8] |= (uint8_t)(s << i / 8 * 4);
}

/* Seven signs are in the file. Of all eight an even number is negative. */
static inline uint32_t eight_signs(uint32_t seven)
{
        seven &= 127;
        return seven | (uint32_t)__builtin_parity(seven) << 7;
}

/* d; of each 32 columns four indices of 8 bits, four times seven signs, a scale */
static void rewrite_iq2_xxs(uint8_t *dst, const uint8_t *src)
{
        for (uint32_t b = 0; b < COLS / TDM_BLOCK_VALUES; b++) {
                const uint8_t *indices = src + 2 + 8 * b;
                uint32_t word = tdm_load_u32(indices + 4);

                for (uint32_t i = 0; i < 4; i++)
                        put_three(dst, 4 * b + i, tdm_grid_iq2_xxs[indices[i]], eight_signs(word >> 7 * i));
                put_scale(dst + THREE_SCALES, 2 * b, word >> 28);
                put_scale(dst + THREE_SCALES, 2 * b + 1, word >> 28);
        }
        memcpy(dst + 104, src, 2);
}

/* d; of each group an index of 9 bits and seven signs; 16 scales */
static void rewrite_iq2_xs(uint8_t *dst, const uint8_t *src)
{
        for (uint32_t g = 0; g < GROUPS; g++) {
                uint32_t word = tdm_load_u16(src + 2 + 2 * (size_t)g);

                put_three(dst, g, tdm_grid_iq2_xs[word & 511], eight_signs(word >> 9));
        }
        for (uint32_t i = 0; i < 16; i++)
                put_scale(dst + THREE_SCALES, i, src[66 + i / 2] >> i % 2 * 4 & 15u);
        memcpy(dst + 104, src, 2);
}

/* d; of each group 8 bits of an index; its signs; two more bits of the index; 16 scales */
static void rewrite_iq2_s(uint8_t *dst, const uint8_t *src)
{
        const uint8_t *low = src + 2, *signs = src + 34, *high = src + 66, *scales = src + 74;

        for (uint32_t g = 0; g < GROUPS; g++)
                put_three(dst, g, tdm_grid_iq2_s[low[g] | (high[g / 4] >> g % 4 * 2 & 3u) << 8], signs[g]);
        for (uint32_t i = 0; i < 16; i++)
                put_scale(dst + THREE_SCALES, i, scales[i / 2] >> i % 2 * 4 & 15u);
        memcpy(dst + 104, src, 2);
}

/* d; of each group two indices of 8 bits; of each 32 columns four times seven signs, a scale */
static void rewrite_iq3_xxs(uint8_t *dst, const uint8_t *src)
{
        const uint8_t *indices = src + 2;

        for (uint32_t b = 0; b < COLS / TDM_BLOCK_VALUES; b++) {
                uint32_t word = tdm_load_u32(src + 66 + 4 * (size_t)b);

                for (uint32_t i = 0; i < 4; i++, indices += 2)
                        put_four(dst, 4 * b + i, tdm_grid_iq3_xxs[indices[0]], tdm_grid_iq3_xxs[indices[1]],
                                 eight_signs(word >> 7 * i));
                put_scale(dst, 2 * b, word >> 28);
                put_scale(dst, 2 * b + 1, word >> 28);
        }
        memcpy(dst + 136, src, 2);
}

/* d; of each group twice 8 bits of an index; their ninth bits; signs; a scale of each 32 columns */
static void rewrite_iq3_s(uint8_t *dst, const uint8_t *src)
{
        const uint8_t *low = src + 2, *high = src + 66, *signs = src + 74, *scales = src + 106;

        for (uint32_t g = 0; g < GROUPS; g++) {
                uint32_t ninth = (uint32_t)high[g / 4] >> g % 4 * 2;

                put_four(dst, g, tdm_grid_iq3_s[low[2 * g] | (ninth & 1) << 8],
                         tdm_grid_iq3_s[low[2 * g + 1] | (ninth >> 1 & 1) << 8], signs[g]);
        }
        for (uint32_t i = 0; i < 16; i++)
                put_scale(dst, i, scales[i / 4] >> i / 2 % 2 * 4 & 15u);
        memcpy(dst + 136, src, 2);
}

/* d; of each group 8 bits of an index; of each 32 columns four times three more, a scale, a sign */
static void rewrite_iq1_s(uint8_t *dst, const uint8_t *src)
{
        const uint8_t *low = src + 2;

        for (uint32_t b = 0; b < COLS / TDM_BLOCK_VALUES; b++) {
                uint32_t word = tdm_load_u16(src + 34 + 2 * (size_t)b);

                for (uint32_t i = 0; i < 4; i++)
                        put_three(dst, 4 * b + i, tdm_grid_iq1[low[4 * b + i] | (word >> 3 * i & 7) << 8],
                                  word >> 15 ? 255 : 0);
                put_scale(dst + THREE_SCALES, 2 * b, word >> 12 & 7);
                put_scale(dst + THREE_SCALES, 2 * b + 1, word >> 12 & 7);
        }
        memcpy(dst + 104, src, 2);
}

/* Of each group 8 bits of an index; three more and a sign; then words of four scales and four bits of d */
static void rewrite_iq1_m(uint8_t *dst, const uint8_t *src)
{
        const uint8_t *low = src, *high = src + 32;
        uint16_t d = 0;

        for (uint32_t g = 0; g < GROUPS; g++) {
                uint32_t more = (uint32_t)high[g / 2] >> g % 2 * 4;

                put_three(dst, g, tdm_grid_iq1[low[g] | (more & 7) << 8], more & 8 ? 255 : 0);
        }
        for (uint32_t i = 0; i < 16; i++) {
                uint32_t word = tdm_load_u16(src + 48 + i / 4 * 2);

                put_scale(dst + THREE_SCALES, i, word >> i % 4 * 3 & 7);
                if (i % 4 == 0)
                        d |= (uint16_t)(word >> 12 << i);
        }
        memcpy(dst + 104, &d, 2);
}

bool tdm_weights_rewrite_grid(uint32_t type, uint8_t *dst, const uint8_t *src)
{
        void (*rewrite)(uint8_t * dst, const uint8_t *src) = type == TDM_TYPE_IQ1_S   ? rewrite_iq1_s :
                                                             type == TDM_TYPE_IQ1_M   ? rewrite_iq1_m :
                                                             type == TDM_TYPE_IQ2_XXS ? rewrite_iq2_xxs :
                                                             type == TDM_TYPE_IQ2_XS  ? rewrite_iq2_xs :
                                                             type == TDM_TYPE_IQ2_S   ? rewrite_iq2_s :
                                                             type == TDM_TYPE_IQ3_XXS ? rewrite_iq3_xxs :
                                                             type == TDM_TYPE_IQ3_S   ? rewrite_iq3_s :
                                                                                        NULL;

        if (!rewrite)
                return false;
        memset(dst, 0, tdm_type_info(tdm_weights_packed_type(type))->block_bytes);
        rewrite(dst, src);
        return true;
}
