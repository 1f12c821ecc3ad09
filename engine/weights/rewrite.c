/* Types of files whose weights are packed as those of another type, with the same values: MXFP4 of Ollama's first files
 * as MXFP4, and the ternary types as Q2_K, which every device knows. TQ1_0 takes 54 bytes of 256 weights, TQ2_0 66,
 * Q2_K 84. IQ1, IQ2 and IQ3 are in rewrite-grids.c. */
#include "engine/weights/weights-private.h"

#define TERNARY 256u /* weights of a block */

/* ---- MXFP4 ---- */

static void rewrite_pairs(uint8_t *dst, const uint8_t *src)
{
        enum { EXPONENT = 1, HALF = TDM_BLOCK_VALUES / 4 };

        *dst++ = src[0];
        src += EXPONENT;
        /* Byte i has values i and i + 16 then, in place of 2 i and 2 i + 1. */
        for (unsigned i = 0; i < HALF; i++) {
                dst[2 * i] = (uint8_t)((src[i] & 0x0f) | src[i + HALF] << 4);
                dst[2 * i + 1] = (uint8_t)(src[i] >> 4 | (src[i + HALF] & 0xf0));
        }
}

/* ---- ternary types: a weight is (q - 1) d ---- */

/* A block of Q2_K: all scales and minima of its sub-blocks are 1, d and dmin are d. So a weight is q d - d. */
static void put_q2_k(uint8_t *dst, const uint8_t quants[64], const uint8_t *d)
{
        memset(dst, 0x11, 16);
        memcpy(dst + 16, quants, 64);
        memcpy(dst + 80, d, 2);
        memcpy(dst + 82, d, 2);
}

/* The n-th digit of a byte, which is a fraction of 256 to the base 3. */
static unsigned ternary_digit(uint8_t byte, unsigned n)
{
        static const uint8_t powers[] = { 1, 3, 9, 27, 81 };

        return (uint8_t)(byte * powers[n]) * 3u >> 8;
}

/* 32 bytes have the first 160 weights, digit by digit, 16 the next 80 and 4 the last 16. */
static unsigned tq1_0_quant(const uint8_t *src, unsigned i)
{
        if (i < 160)
                return ternary_digit(src[i % 32], i / 32);
        if (i < 240)
                return ternary_digit(src[32 + (i - 160) % 16], (i - 160) / 16);
        return ternary_digit(src[48 + (i - 240) % 4], (i - 240) / 4);
}

static void rewrite_tq1_0(uint8_t *dst, const uint8_t *src)
{
        uint8_t quants[64] = { 0 };

        for (unsigned i = 0; i < TERNARY; i++) /* 32 bytes of each 128 weights, two bits of which are 32 neighbours' */
                quants[i / 128 * 32 + i % 32] |= (uint8_t)(tq1_0_quant(src, i) << i % 128 / 32 * 2);
        put_q2_k(dst, quants, src + 52);
}

/* ---- */

static void rewrite_block(uint32_t type, uint8_t *dst, const uint8_t *src)
{
        switch (type) {
        case TDM_TYPE_MXFP4_PAIRS:
                rewrite_pairs(dst, src);
                break;
        case TDM_TYPE_TQ1_0:
                rewrite_tq1_0(dst, src);
                break;
        case TDM_TYPE_TQ2_0: /* its quants lie as Q2_K's */
                put_q2_k(dst, src, src + 64);
                break;
        default:
                if (!tdm_weights_rewrite_grid(type, dst, src))
                        abort(); /* tdm_weights_packed_type() has it, this has not */
        }
}

void tdm_weights_rewrite(uint32_t type, uint8_t *dst, const uint8_t *src, size_t n_blocks)
{
        const struct tdm_type_info *from = tdm_type_info(type), *to = tdm_type_info(tdm_weights_packed_type(type));

        for (; n_blocks > 0; n_blocks--, dst += to->block_bytes, src += from->block_bytes)
                rewrite_block(type, dst, src);
}
