#version 460
// A matrix of a type of engine/weights/subblock.h as it lies in a weights segment, repacked where it lies on the device
// into the order of fragments-subblock.glsl. A workgroup has a unit of 256 columns, or a chunk of 64, and 16 outputs:
// nothing leaves that. d and dmin are stored times p.scale and, of d, what f16-subblock.glsl wants.
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#include "gpu-worker/vulkan/shaders/common/subblock.glsl"
#include "gpu-worker/vulkan/shaders/common/fragments-subblock.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint TYPE = TDM_VK_Q4_K;
layout(push_constant) uniform Push { tdm_vk_repack_push p; };

const uint CHUNKS = TDM_FRAGMENT_UNIT_CHUNKS(TYPE), BITS = TDM_FRAGMENT_BITS(TYPE), LOW_BITS = BITS <= 3 ? 2 : 4;
const uint CHUNK_WORDS = TDM_FRAGMENT_CHUNK_BYTES(TYPE) / 4, WORDS = CHUNKS * CHUNK_WORDS,
           FRONT_WORDS = TDM_FRAGMENT_FRONT_WORDS(TYPE);
const uint SCALE_WORDS = TDM_FRAGMENT_SCALE_BYTES(TYPE) / 4, BLOCK_WORDS = BITS * 16;
const uint LOW_WORDS = LOW_BITS * 32, HIGH_WORDS = (BITS - LOW_BITS) * 32; // of a chunk

shared uint s_word[WORDS], s_front[FRONT_WORDS];

// Column k of an output, as subblock.h says that it lies.
uint stored(uint lane, uint k)
{
        uint at = SCALE_WORDS + k / 32 * BLOCK_WORDS + lane, g = k % 32 / 4, byte = k % 4 * 8, q;

        if (LOW_BITS == 2) {
                q = s_word[at + g / 4 * 16] >> byte + g % 4 * 2 & 3u;
                return BITS == 2 ? q : q | (s_word[at + 32] >> byte + g & 1u) << 2;
        }
        q = s_word[at + g % 4 * 16] >> byte + g / 4 * 4 & 15u;
        if (BITS == 5)
                q |= (s_word[at + 64] >> byte + g & 1u) << 4;
        if (BITS == 6)
                q |= (s_word[at + 64 + g / 4 * 16] >> byte + g % 4 * 2 & 3u) << 4;
        return q;
}

uint scale_byte(uint lane, uint i)
{
        return s_word[i / 4 * 16 + lane] >> i % 4 * 8 & 0xffu;
}

// Six bits: of columns 16 i … 16 i + 15 (Q3_K); of block i, and with `min` its minimum.
uint six(uint lane, uint i, bool min)
{
        if (TYPE == TDM_VK_Q3_K)
                return (i < 8 ? scale_byte(lane, i) & 15u : scale_byte(lane, i - 8) >> 4) |
                       (scale_byte(lane, 8 + i % 4) >> 2 * (i / 4) & 3u) << 4;
        if (i < 4)
                return scale_byte(lane, min ? i + 4 : i) & 63u;
        return min ? scale_byte(lane, i + 4) >> 4 | scale_byte(lane, i) >> 6 << 4
                   : scale_byte(lane, i + 4) & 15u | scale_byte(lane, i - 4) >> 6 << 4;
}

// The f-th of a chunk's four.
uint field(uint lane, uint chunk, uint f)
{
        return TYPE == TDM_VK_Q3_K ? six(lane, chunk * 4 + f, false) : six(lane, chunk * 2 + f % 2, f >= 2);
}

// The i-th word of a chunk's scales.
uint scale_word(uint chunk, uint i)
{
        uint word = 0;

        if (TYPE == TDM_VK_Q2_K || TYPE == TDM_VK_Q6_K) {
                for (uint n = 0; n < 4; n++)
                        word |= (scale_byte(i / 2 + n / 2 * 8, chunk * 4 + i % 2 * 2 + n % 2) ^
                                 (TYPE == TDM_VK_Q6_K ? 0x80u : 0)) << n * 8;
                return word;
        }
        if (TYPE == TDM_VK_IQ4_XS) { // of two outputs
                for (uint n = 0; n < 8; n++) {
                        uint lane = i * 2 + n / 4 + n / 2 % 2 * 8, block = chunk * 2 + n % 2;

                        word |= (scale_byte(lane, block / 2) >> block % 2 * 4 & 15u) << n * 4;
                }
                return word;
        }
        if (i < 8) {
                for (uint n = 0; n < 2; n++) {
                        uint lane = i + n * 8;

                        word |= (field(lane, chunk, 0) | field(lane, chunk, 1) << 6 |
                                 (field(lane, chunk, 2) & 15u) << 12) << n * 16;
                }
                return word;
        }
        for (uint n = 0; n < 4; n++) { // of two outputs
                uint lane = (i - 8) * 2 + n / 2 + n % 2 * 8;

                word |= (field(lane, chunk, 3) | field(lane, chunk, 2) >> 4 << 6) << n * 8;
        }
        return word;
}

// `next`: in the high half of a word, the column one further.
uint column_of(uint chunk, uint thread, uint j, uint late, uint next)
{
        return chunk * 64 + j * 16 + late * 8 + thread % 4 * 2 + next;
}

// Of both columns the n bits from `first` on of a quant, from bit `place` of their half on.
uint piece(uint chunk, uint thread, uint j, uint late, uint eight, uint first, uint n, uint place)
{
        uint word = 0;

        for (uint next = 0; next < 2; next++)
                word |= (stored(thread / 4 + eight * 8, column_of(chunk, thread, j, late, next)) >> first &
                         (1u << n) - 1u) << next * 16 + place;
        return word;
}

uint quant(uint chunk, uint thread, uint j, uint late, uint eight, uint place)
{
        return piece(chunk, thread, j, late, eight, 0, BITS, place);
}

// The i-th bit of the quant that the words' last bits make up.
uint last_bit(uint chunk, uint thread, uint i)
{
        return piece(chunk, thread, 3, 1, 1, i, 1, 15);
}

uint e2m1_word(uint chunk, uint thread, uint j)
{
        uint word = 0;

        for (uint n = 0; n < 8; n++) {
                uint i = n / 2;
                uint q = stored(thread / 4 + i % 2 * 8, column_of(chunk, thread, j, i / 2, n % 2));

                word |= (q >> 3 << TDM_FRAGMENT_E2M1_SIGN(i) | (q & 7u) << TDM_FRAGMENT_E2M1_REST(i)) << n % 2 * 16;
        }
        return word;
}

uint table_word(uint chunk, uint thread, uint j)
{
        uint word = 0;

        for (uint n = 0; n < 8; n++)
                word |= stored(thread / 4 + n / 4 * 8, column_of(chunk, thread, j, n / 2 % 2, n % 2)) << n * 4;
        return word;
}

uint low_word(uint chunk, uint at)
{
        const uint per = LOW_WORDS / 32;
        uint t = at / per, j = at % per * (4 / per), word = 0;

        if (TYPE == TDM_VK_MXFP4)
                return e2m1_word(chunk, t, j);
        if (TDM_FRAGMENT_IS_TABLE(TYPE))
                return table_word(chunk, t, j);
        if (BITS == 3)
                return quant(chunk, t, j, 0, 0, 0) | quant(chunk, t, j, 0, 1, 3) | quant(chunk, t, j, 1, 0, 6) |
                       quant(chunk, t, j, 1, 1, 9) | quant(chunk, t, j + 1, 0, 0, 12) | last_bit(chunk, t, j / 2);
        if (BITS == 5)
                return quant(chunk, t, j, 0, 0, 0) | quant(chunk, t, j, 0, 1, 5) | quant(chunk, t, j, 1, 0, 10) |
                       last_bit(chunk, t, j);
        if (BITS == 6)
                return piece(chunk, t, j, 1, 0, 0, 4, 0) | quant(chunk, t, j, 0, 1, 4) | quant(chunk, t, j, 0, 0, 10);
        for (uint n = 0; n < 16 / BITS; n++) {
                uint eight = n % 2, late = n / 2 % 2, further = n / 4;

                word |= quant(chunk, t, j + further, late, eight, late * 8 + eight * 4 + further * 2);
        }
        return word;
}

// Of types with 3, 5 or 6 bits.
uint high_word(uint chunk, uint at)
{
        const uint per = max(HIGH_WORDS / 32, 1);
        uint t = at / per, j = at % per * 2;

        if (BITS == 3)
                return quant(chunk, t, 1, 1, 0, 0) | quant(chunk, t, 1, 0, 1, 3) | quant(chunk, t, 3, 1, 0, 6) |
                       quant(chunk, t, 3, 0, 1, 9) | quant(chunk, t, 1, 1, 1, 12) | last_bit(chunk, t, 2);
        if (BITS == 5)
                return quant(chunk, t, 1, 1, 1, 0) | quant(chunk, t, 0, 1, 1, 5) | quant(chunk, t, 2, 1, 1, 10) |
                       last_bit(chunk, t, 4);
        return piece(chunk, t, j, 1, 0, 4, 2, 0) | piece(chunk, t, j + 1, 1, 0, 4, 2, 2) |
               quant(chunk, t, j, 1, 1, 4) | quant(chunk, t, j + 1, 1, 1, 10);
}

// What is stored for d: see f16-subblock.glsl. One too large, which no finite file has, becomes the largest.
uint scaled(uint f16_bits, float factor)
{
        return tdm_to_f16(clamp(tdm_f16(f16_bits) * factor, -65504.0, 65504.0));
}

uint front_f16(uint h, uint lane)
{
        return s_front[h * 8 + lane / 2] >> lane % 2 * 16 & 0xffffu;
}

// Of a chunk of MXFP4: bytes of both blocks of output i, then of i + 8; e is 127 more than what 2 is raised to. 98: 113
// is 14 for the quants' 2^-14 and f16's 15 less.
uint exponents_word(uint i)
{
        int more = (floatBitsToInt(p.scale) >> 23) - 127 - 98;
        uint word = 0;

        for (uint n = 0; n < 4; n++) {
                uint at = n % 2 * 16 + i + n / 2 * 8, e = s_front[at / 4] >> at % 4 * 8 & 0xffu;

                word |= uint(clamp(int(e) + more, 0, 30)) << n * 8;
        }
        return word;
}

// f16 h of a unit is d, dmin or scales_h; of a chunk's blocks [block][d, m].
uint front_word(uint i)
{
        const uint n_f16 = TDM_FRAGMENT_N_F16(TYPE), per = FRONT_WORDS / 8;
        uint own = i / per, which = i % per, word = 0;
        uint h = CHUNKS == 1 ? which % 2 * n_f16 + which / 2 : which;
        bool is_min = n_f16 == 2 && (CHUNKS == 1 ? which >= 2 : which == 1);

        for (uint n = 0; n < 2; n++) {
                uint bits = front_f16(h, own + n * 8);
                float factor = p.scale * (TYPE == TDM_VK_IQ4_XS || TYPE == TDM_VK_IQ4_NL ? 1.0
                                        : is_min ? (CHUNKS == 1 ? 1.0 : -1.0)
                                        : TDM_FRAGMENT_FACTOR(TYPE, n));

                word |= (is_min && TYPE == TDM_VK_IQ4_XS ? bits : scaled(bits, factor)) << n * 16;
        }
        return word;
}

void main()
{
        uint thread = gl_LocalInvocationID.x, unit = gl_WorkGroupID.x;
        uint64_t panel = p.weights + uint64_t(p.panel0 + gl_WorkGroupID.y) * p.panel_bytes;
        U32s front = U32s(panel + uint64_t(unit) * (FRONT_WORDS * 4)),
             words = U32s(panel + TDM_FRAGMENT_FRONT_BYTES(TYPE, p.cols) + uint64_t(unit) * (WORDS * 4));

        for (uint i = thread; i < WORDS; i += 256)
                s_word[i] = words.v[i];
        if (thread < FRONT_WORDS)
                s_front[thread] = front.v[thread];
        barrier();
        for (uint i = thread; i < WORDS; i += 256) {
                uint chunk = i / CHUNK_WORDS, at = i % CHUNK_WORDS;

                words.v[i] = at < LOW_WORDS ? low_word(chunk, at)
                           : at < LOW_WORDS + HIGH_WORDS ? high_word(chunk, at - LOW_WORDS)
                                                         : scale_word(chunk, at - LOW_WORDS - HIGH_WORDS);
        }
        if (thread < FRONT_WORDS)
                front.v[thread] = TYPE == TDM_VK_MXFP4 ? exponents_word(thread) : front_word(thread);
}
