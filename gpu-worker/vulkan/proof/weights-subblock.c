/* Weights of the types of engine/weights/subblock.h for proofs and tests: random panels in the order of
 * shaders/common/fragments-subblock.glsl, and what a weight of them becomes in the kernels for f16 matrix units
 * (shaders/common/f16-subblock.glsl), written a second time and one weight at a time. */
#include <math.h>
#include <string.h>

#include "common/f16.h"
#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/proof/proof.h"

#define LANES (TDM_PANEL_ROWS / 2) /* pairs of outputs g and g + 8 */

struct layout {
        uint32_t unit_chunks, bits, chunk_bytes, front_words;
        uint32_t place; /* from which bit of a half on quants of outputs g + 8 are read */
        bool table;
};

static struct layout layout_of(uint32_t type)
{
        const struct tdm_subblock_info info = tdm_subblock_info(type);
        uint32_t chunks = TDM_MAX(info.unit_values / TDM_VK_CHUNK_COLS, 1u), bits = info.block_bytes / 64;

        return (struct layout){ .unit_chunks = chunks,
                                .bits = bits,
                                .place = bits == 3 || bits == 5 ? bits : 4,
                                .chunk_bytes = info.scale_bytes / 4 + bits * 128,
                                .front_words = type == TDM_TYPE_MXFP4 ? LANES :
                                                                        info.halves * (chunks == 1 ? 2 * LANES : LANES),
                                .table = type == TDM_TYPE_IQ4_NL || type == TDM_TYPE_IQ4_XS };
}

static uint32_t front_bytes(const struct layout *l, uint32_t cols)
{
        return TDM_ALIGN_UP(cols / TDM_VK_CHUNK_COLS / l->unit_chunks * l->front_words * 4, 64u);
}

static uint32_t u32_at(const uint8_t *bytes)
{
        uint32_t word;

        memcpy(&word, bytes, sizeof(word));
        return word;
}

static float rounded_f16(double x)
{
        return tdm_f16_to_f32(tdm_f32_to_f16((float)x));
}

/* The value of output g, or of output g + 8. */
static float pair_value(const uint8_t *words, uint32_t i, uint32_t eight)
{
        return tdm_f16_to_f32((uint16_t)(u32_at(words + i * 4) >> eight * 16));
}

static uint32_t byte_of(const uint8_t *words, uint32_t i)
{
        return words[i];
}

/* ---- random ones ---- */

static uint16_t random_f16(uint64_t *state, int exponent, unsigned n_exponents, bool either_sign)
{
        uint32_t r = tdm_vk_prove_random(state);
        float x = ldexpf(1024 + (float)(r & 0x3ff), exponent - 10 + (int)(r >> 10 & 0xff) % (int)n_exponents);

        return tdm_f32_to_f16(either_sign && r >> 31 ? -x : x);
}

void tdm_vk_prove_random_subblock(uint8_t *panel, uint32_t type, uint32_t cols, uint64_t *state)
{
        struct layout l = layout_of(type);
        uint32_t n_front = cols / TDM_VK_CHUNK_COLS / l.unit_chunks * l.front_words * 2,
                 n_bytes = (uint32_t)tdm_weights_panel_bytes(type, cols);

        for (uint32_t i = 0; i < n_bytes; i++)
                panel[i] = (uint8_t)tdm_vk_prove_random(state);
        if (type == TDM_TYPE_MXFP4) { /* exponents */
                for (uint32_t i = 0; i < 2 * n_front; i++)
                        panel[i] = (uint8_t)(16 + tdm_vk_prove_random(state) % 6);
                return;
        }
        for (uint32_t i = 0; i < n_front; i++) {
                uint32_t which = i / 2 % (l.front_words / LANES), eight = i % 2;
                bool second = l.unit_chunks == 1 ? which >= 2 : which == 1;
                uint16_t half;

                if (type == TDM_TYPE_IQ4_XS && second) /* bits of scales */
                        continue;
                if (second) /* minima: weights are some 2^-8 */
                        half = random_f16(state, l.unit_chunks == 1 ? -10 : -15, 4, true);
                else if (l.table)
                        half = random_f16(state, type == TDM_TYPE_IQ4_XS ? -20 : -15, 4, true);
                else /* times 2^24, or less by 2^place */
                        half = random_f16(state, (l.unit_chunks == 1 ? 12 : 6) - (eight ? (int)l.place : 0), 3, true);
                memcpy(panel + i * 2, &half, 2);
        }
}

/* ---- what a weight becomes ---- */

/* Where the i-th bit of a quant lies: 16 times the number of the thread's word, where words of the rest follow the
 * others, plus the place in a half. */
static uint32_t bit_at(const struct layout *l, uint32_t j, uint32_t late, uint32_t eight, uint32_t i)
{
        /* of 3 bits, by j, late and eight: the word and the place; of 5 bits by j, where both are 1 */
        static const uint8_t three[16][2] = { { 0, 0 }, { 0, 3 }, { 0, 6 },  { 0, 9 }, { 0, 12 },
                                              { 2, 3 }, { 2, 0 }, { 2, 12 }, { 1, 0 }, { 1, 3 },
                                              { 1, 6 }, { 1, 9 }, { 1, 12 }, { 2, 9 }, { 2, 6 } };
        static const uint8_t five[4][2] = { { 4, 5 }, { 4, 0 }, { 4, 10 } };
        uint32_t which = j * 4 + late * 2 + eight;
        const uint8_t *at;

        if (l->bits == 2)
                return j / 2 * 16 + late * 8 + eight * 4 + j % 2 * 2 + i;
        if (l->bits == 4)
                return j * 16 + late * 8 + eight * 4 + i;
        if (l->bits == 6) {
                if (late == 0)
                        return j * 16 + (eight ? 4 : 10) + i;
                if (eight)
                        return (4 + j / 2) * 16 + (j % 2 ? 10 : 4) + i;
                return i < 4 ? j * 16 + i : (4 + j / 2) * 16 + j % 2 * 2 + i - 4;
        }
        if (which == 15) /* made up of a bit of each word */
                return i * 16 + 15;
        if (l->bits == 5 && !(late && eight))
                return j * 16 + late * 10 + eight * 5 + i;
        at = l->bits == 3 ? three[which] : five[j];
        return at[0] * 16u + at[1] + i;
}

static uint32_t quant_of(const struct layout *l, const uint8_t *low, uint32_t k, uint32_t lane)
{
        uint32_t j = k / 16 % 4, late = k / 8 % 2, next = k % 2, eight = lane / LANES,
                 thread = lane % LANES * 4 + k % 8 / 2, n_low = l->bits <= 3 ? 2 : 4, u = 0;

        if (l->table)
                return u32_at(low + (thread * 4 + j) * 4) >> (eight * 16 + late * 8 + next * 4) & 15;
        for (uint32_t i = 0; i < l->bits; i++) {
                uint32_t at = bit_at(l, j, late, eight, i), word = at / 16,
                         index = word < n_low ? thread * n_low + word :
                                                32 * n_low + thread * (l->bits - n_low) + word - n_low;

                u |= (u32_at(low + index * 4) >> (next * 16 + at % 16) & 1) << i;
        }
        return u;
}

/* Six bits of the f-th field of a chunk. */
static float field_of(const uint8_t *scales, uint32_t own, uint32_t eight, uint32_t f)
{
        uint32_t word = u32_at(scales + own * 4) >> eight * 16, rest = scales[32 + own * 2 + eight];

        return (float)(f == 0 ? word & 63 :
                       f == 1 ? word >> 6 & 63 :
                       f == 2 ? (word >> 12 & 15) | rest >> 6 << 4 :
                                rest & 63);
}

/* A weight of MXFP4. */
static double e2m1_weight(const uint8_t *exponents, const uint8_t *low, uint32_t k, uint32_t lane)
{
        static const double magnitudes[] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
        static const uint32_t signs[] = { 15, 12, 14, 13 }, rests[] = { 9, 6, 3, 0 };
        uint32_t thread = lane % LANES * 4 + k % 8 / 2, i = lane / LANES + k / 8 % 2 * 2,
                 half = u32_at(low + (thread * 4 + k / 16 % 4) * 4) >> k % 2 * 16;
        double value = magnitudes[half >> rests[i] & 7] * ldexp(1, (int)exponents[lane / LANES * 2 + k / 32 % 2] - 29);

        return half >> signs[i] & 1 ? -value : value;
}

double tdm_vk_prove_subblock_weight(const uint8_t *panel, uint32_t type, uint32_t cols, uint32_t lane, uint32_t k)
{
        struct layout l = layout_of(type);
        uint32_t c = k / TDM_VK_CHUNK_COLS, unit_index = c / l.unit_chunks, j = k / 16 % 4, b = j / 2,
                 eight = lane / LANES, own = lane % LANES;
        const uint8_t *front = panel + (unit_index * LANES + own) * (l.front_words / LANES) * 4,
                      *chunk = panel + front_bytes(&l, cols) + c * l.chunk_bytes, *scales = chunk + l.bits * 128;
        uint32_t u = quant_of(&l, chunk, k, lane);
        double one = l.table ? 1 : ldexp(1, (eight ? (int)l.place : 0) - 24);
        float d, s, m = 0;

        if (type == TDM_TYPE_MXFP4)
                return e2m1_weight(front, chunk, k, lane);
        d = pair_value(front, 0, eight);

        switch (type) {
        case TDM_TYPE_Q4_1:
        case TDM_TYPE_Q5_1:
                m = pair_value(front, 2 + b, eight);
                /* fall through */
        case TDM_TYPE_Q5_0:
        case TDM_TYPE_IQ4_NL:
                s = pair_value(front, b, eight);
                break;
        case TDM_TYPE_IQ4_XS:
                s = d * (float)((int)((byte_of(scales, own * 2 + eight) >> 4 * b & 15u) |
                                      (u32_at(front + 4) >> (eight * 16 + c % 4 * 4 + b * 2) & 3) << 4) -
                                32);
                break;
        case TDM_TYPE_Q2_K:
                s = d * (float)(byte_of(scales, own * 8 + b * 4 + eight * 2 + j % 2) & 15u);
                m = pair_value(front, 1, eight) * (float)(byte_of(scales, own * 8 + b * 4 + eight * 2 + j % 2) >> 4);
                break;
        case TDM_TYPE_Q6_K:
                s = d * (float)((int)byte_of(scales, own * 8 + b * 4 + eight * 2 + j % 2) - 128);
                break;
        case TDM_TYPE_Q3_K:
                s = d * (field_of(scales, own, eight, j) - 32);
                break;
        default:
                s = d * field_of(scales, own, eight, b);
                m = pair_value(front, 1, eight) * field_of(scales, own, eight, 2 + b);
                break;
        }
        s = rounded_f16((double)s);
        if (l.table)
                return (double)rounded_f16((double)((int)tdm_subblock_iq4_values[u] - 128) * (double)s);
        m = rounded_f16(tdm_subblock_info(type).has_min ? (double)m :
                                                          -(double)tdm_subblock_info(type).offset * one * (double)s);
        return (double)rounded_f16(u * one * (double)s + (double)m);
}
