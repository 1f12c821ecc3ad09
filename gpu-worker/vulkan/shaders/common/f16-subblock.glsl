// f16.glsl's weights of the types of engine/weights/subblock.h: how a thread loads what it has of a chunk, and how that
// becomes f16. Where words lie is written in fragments-subblock.glsl.
//
// A weight is u S + M with one rounding, u its unsigned quant. S and M are f16: products of two f16 that are rounded
// once, a sub-block's scale or minimum times its unit's. u's bits are u 2^-24 as an f16 where they begin at a half's
// lowest bit, as those of output g do, and u 2^-20 four bits further, as those of g + 8 (3 bits: 2^-21, 5 bits: 2^-19);
// what is stored as d makes up for it, as in f16.glsl. Types without a minimum have M = -offset S. The quants of IQ4_NL
// and IQ4_XS stand for bytes: two of neighbouring columns come from a table in shared memory as two f16, and S is the
// scale that counts. MXFP4: the sign, exponent and mantissa of a quant are those of an f16 of 2^-14 times its value,
// and S makes up for it.
//
// Everything of outputs g and g + 8 is computed in pairs: a word's low and high half.
#include "gpu-worker/vulkan/shaders/common/fragments-subblock.glsl"

const bool IQ4 = TDM_FRAGMENT_IS_TABLE(TYPE);
const uint BITS = TDM_FRAGMENT_BITS(TYPE);
const uint FIRST_WORDS = BITS <= 3 ? 2 : 4; // of a thread and a chunk, without the rest
const uint UNIT_CHUNKS = TDM_FRAGMENT_UNIT_CHUNKS(TYPE);
const uint LOADS = 1;

// Of two nibbles their two f16, TABLE_COPIES times beside each other: threads that have copies of their own never meet
// at a bank of shared memory. A kernel has as many as fit beside `bytes` of its own, of the 48 KiB that a device with
// such units has; TABLE_WORD is where.
#ifdef EMULATED
#define TABLE_COPIES_BESIDE(bytes) 1
#else
#define TABLE_COPIES_BESIDE(bytes) \
        (!IQ4 ? 1 : (bytes) <= 16384 ? 32 : (bytes) <= 32768 ? 16 : (bytes) <= 40960 ? 8 : (bytes) <= 45056 ? 4 : 1)
#endif
#define TABLE_PLACE(at, table_lane) ((at) * TABLE_COPIES + (table_lane) % TABLE_COPIES)

// In an array of its own.
#define TABLE_ROOM(bytes) \
        const uint TABLE_COPIES = TABLE_COPIES_BESIDE(bytes); \
        shared uint s_table[IQ4 ? 256 * TABLE_COPIES : 1];
#define TABLE_WORD(i) s_table[i]

// Every thread comes here first.
#define TABLE \
        uint table_lane = UNIT_LANE; \
        if (IQ4) { \
                [[dont_unroll]] for (uint i_ = gl_LocalInvocationIndex; i_ < 256; i_ += THREADS) { \
                        uint pair_ = packHalf2x16(vec2(tdm_fragment_table(i_ & 15u), tdm_fragment_table(i_ >> 4))); \
\
                        [[dont_unroll]] for (uint k_ = 0; k_ < TABLE_COPIES + NOTHING(p.n_out); k_++) \
                                TABLE_WORD(TABLE_PLACE(i_, k_ + i_)) = pair_; \
                } \
                barrier(); \
        }

// .xy: of the front, .zw: of the unit's scales
#define SCALES uvec4
#define HIGH_BITS(name, n) uvec2 name[n];
#define HIGH_BITS_COPY(to, from, n) \
        [[unroll]] for (uint i_ = 0; i_ < (n); i_++) \
                to[i_] = from[i_];
#define QUANTS_AT(chunks) TDM_FRAGMENT_FRONT_BYTES(TYPE, (chunks) * 64)

const uint CHUNK_BYTES = TDM_FRAGMENT_CHUNK_BYTES(TYPE);

// body: of a panel, behind its front.
uvec4 load_scales(uint64_t panel, uint64_t body, uint c, uint own)
{
        uint64_t scales = body + (c * CHUNK_BYTES + TDM_FRAGMENT_SCALES_AT(TYPE));
        uint front = c / UNIT_CHUNKS * 8 + own;
        uvec4 s = uvec4(0);

        if (TYPE == TDM_VK_MXFP4) {
                s.x = U32s(panel).v[front];
                return s;
        }
        if (UNIT_CHUNKS == 1) {
                if (TDM_FRAGMENT_N_F16(TYPE) == 2)
                        return U32x4s(panel).v[front];
                s.xy = U32x2s(panel).v[front];
                return s;
        }
        if (TDM_FRAGMENT_N_F16(TYPE) == 2)
                s.xy = U32x2s(panel).v[front];
        else
                s.x = U32s(panel).v[front];
        if (TYPE == TDM_VK_Q2_K || TYPE == TDM_VK_Q6_K)
                s.zw = U32x2s(scales).v[own];
        else if (TYPE == TDM_VK_IQ4_XS) {
                s.z = uint(U16s(scales).v[own]);
                s.y >>= c % 4 * 4;
        } else {
                s.z = U32s(scales).v[own];
                s.w = uint(U16s(scales + 32).v[own]);
        }
        return s;
}

uvec4 load_low(uint64_t body, uint c, uint thread)
{
        if (FIRST_WORDS == 2)
                return uvec4(U32x2s(body + c * CHUNK_BYTES).v[thread], 0, 0);
        return U32x4s(body + c * CHUNK_BYTES).v[thread];
}

uvec2 load_high(uint64_t body, uint c, uint thread)
{
        uint64_t high = body + (c * CHUNK_BYTES + TDM_FRAGMENT_HIGH_AT(TYPE));

        if (BITS - FIRST_WORDS == 2)
                return U32x2s(high).v[thread];
        if (BITS - FIRST_WORDS == 1)
                return uvec2(U32s(high).v[thread], 0);
        return uvec2(0);
}

#define LOAD_PANEL(w, scales, high, k, at, c) { \
        scales[k] = load_scales(at, (at) + quants, c, own); \
        w[k] = load_low((at) + quants, c, lane); \
        high[k] = load_high((at) + quants, c, lane); }

// Whole numbers below 1024, one in each half, less a number.
#define WHOLE(word, less) (F16X2((word) | bits_) - f16vec2(1024.0hf + (less)))

// 16 bits to two halves of 8.
uint halves(uint word)
{
        return word & 0xffu | word << 8 & 0xff0000u;
}

// S and M of the j-th 16 columns of a chunk, of outputs g and g + 8.
void scales_of(uvec4 s, const uint j, uint bits_, out f16vec2 scale, out f16vec2 add)
{
        const uint b = j / 2;

        add = f16vec2(0.0hf);
        if (TYPE == TDM_VK_MXFP4) {
                scale = F16X2((s.x >> 8 * b & 0x001f001fu) << 10);
                return;
        }
        if (TYPE == TDM_VK_Q4_1 || TYPE == TDM_VK_Q5_1) {
                scale = F16X2(s[b]);
                add = F16X2(s[2 + b]);
        } else if (TYPE == TDM_VK_Q5_0 || TYPE == TDM_VK_IQ4_NL) {
                scale = F16X2(s[b]);
        } else if (TYPE == TDM_VK_IQ4_XS) {
                scale = WHOLE(halves(s.z) >> 4 * b & 0x000f000fu | (s.y >> 2 * b & 0x00030003u) << 4, 32.0hf) *
                        F16X2(s.x);
        } else if (TYPE == TDM_VK_Q6_K) {
                scale = WHOLE(s[2 + b] >> 8 * (j % 2) & 0x00ff00ffu, 128.0hf) * F16X2(s.x);
        } else if (TYPE == TDM_VK_Q2_K) {
                scale = WHOLE(s[2 + b] >> 8 * (j % 2) & 0x000f000fu, 0.0hf) * F16X2(s.x);
                add = WHOLE(s[2 + b] >> 8 * (j % 2) + 4 & 0x000f000fu, 0.0hf) * F16X2(s.y);
        } else {
                // In each half its byte from the lowest bit on. The masks below drop what is further up.
                uint rest = s.w | s.w << 8, word[4] = uint[4](s.z & 0x003f003fu, s.z >> 6 & 0x003f003fu,
                        s.z >> 12 & 0x000f000fu | rest >> 2 & 0x00300030u, rest & 0x003f003fu);

                if (TYPE == TDM_VK_Q3_K) {
                        scale = WHOLE(word[j], 32.0hf) * F16X2(s.x);
                } else {
                        scale = WHOLE(word[b], 0.0hf) * F16X2(s.x);
                        add = WHOLE(word[2 + b], 0.0hf) * F16X2(s.y);
                }
        }
        if (TYPE == TDM_VK_Q3_K) // -4 2^-24, -4 2^-21
                add = scale * f16vec2(-2.384185791015625e-7hf, -1.9073486328125e-6hf);
        if (TYPE == TDM_VK_Q5_0) // -16 2^-24, -16 2^-19
                add = scale * f16vec2(-9.5367431640625e-7hf, -3.0517578125e-5hf);
        if (TYPE == TDM_VK_Q6_K) // -32 2^-24, -32 2^-20
                add = scale * f16vec2(-1.9073486328125e-6hf, -3.0517578125e-5hf);
}

// Of both columns: u's bits from a half's lowest on; of output g + 8 from PLACE on. Where they lie stands in
// fragments-subblock.glsl.
uint quants_of(uvec4 low, uvec2 high, const uint j, const uint late, const bool eight)
{
        const uint b = j / 2, odd = j % 2, place = eight ? TDM_FRAGMENT_PLACE(TYPE) : 0;
        const uint mask = ((1u << BITS) - 1u) * 0x00010001u << place;

        if (BITS == 2)
                return low[b] >> 8 * late + 2 * odd & mask;
        if (BITS == 3) {
                if (odd == 0)
                        return low[b] >> 6 * late & mask;
                if (late == 0)
                        return eight ? high.x >> 6 * b & mask : low[b] >> 12 & mask;
                if (!eight)
                        return high.x >> 6 * b & mask;
                if (b == 0)
                        return high.x >> 9 & mask;
                return low.x >> 12 & 0x00080008u | low.y >> 11 & 0x00100010u | high.x >> 10 & 0x00200020u;
        }
        if (BITS == 5) {
                if (late == 0)
                        return low[j] & mask;
                if (!eight)
                        return low[j] >> 10 & mask;
                if (j == 0)
                        return high.x & mask;
                if (j == 1)
                        return high.x << 5 & mask;
                if (j == 2)
                        return high.x >> 5 & mask;
                return low.x >> 10 & 0x00200020u | low.y >> 9 & 0x00400040u | low.z >> 8 & 0x00800080u |
                       low.w >> 7 & 0x01000100u | high.x >> 6 & 0x02000200u;
        }
        if (BITS == 6) {
                if (late == 0)
                        return eight ? low[j] & mask : low[j] >> 10 & mask;
                if (eight)
                        return high[b] >> 6 * odd & mask;
                return low[j] & 0x000f000fu | high[b] << 4 - 2 * odd & 0x00300030u;
        }
        return low[j] >> 8 * late & mask;
}

// The f16 of MXFP4's i-th quants.
f16vec2 e2m1_pair(uint word, const uint i)
{
        if (i < 2) // sign and rest lie as those of an f16
                return F16X2(word << 3 * i & 0x8e008e00u);
        return F16X2(word << 15 - TDM_FRAGMENT_E2M1_SIGN(i) & 0x80008000u |
                     word << 9 - TDM_FRAGMENT_E2M1_REST(i) & 0x0e000e00u);
}

#define TABLE_PAIR(word, i) F16X2(TABLE_WORD(TABLE_PLACE((word) >> 8 * (i) & 0xffu, table_lane)))

#define FRAGMENT(a, w, scales, high, k, j) { \
        f16vec2 scale_, add_, a_, b_, c_, d_; \
\
        scales_of(scales[k], j, bits_, scale_, add_); \
        if (TYPE == TDM_VK_MXFP4) { \
                a_ = e2m1_pair(w[k][j], 0) * scale_.xx; \
                b_ = e2m1_pair(w[k][j], 2) * scale_.xx; \
                c_ = e2m1_pair(w[k][j], 1) * scale_.yy; \
                d_ = e2m1_pair(w[k][j], 3) * scale_.yy; \
        } else if (IQ4) { \
                a_ = TABLE_PAIR(w[k][j], 0) * scale_.xx; \
                b_ = TABLE_PAIR(w[k][j], 1) * scale_.xx; \
                c_ = TABLE_PAIR(w[k][j], 2) * scale_.yy; \
                d_ = TABLE_PAIR(w[k][j], 3) * scale_.yy; \
        } else { \
                a_ = UNIT_FMA(F16X2(quants_of(w[k], high[k], j, 0, false)), scale_.xx, add_.xx); \
                b_ = UNIT_FMA(F16X2(quants_of(w[k], high[k], j, 1, false)), scale_.xx, add_.xx); \
                c_ = UNIT_FMA(F16X2(quants_of(w[k], high[k], j, 0, true)), scale_.yy, add_.yy); \
                d_ = UNIT_FMA(F16X2(quants_of(w[k], high[k], j, 1, true)), scale_.yy, add_.yy); \
        } \
        a[0] = a_.x; a[1] = a_.y; a[2] = b_.x; a[3] = b_.y; a[4] = c_.x; a[5] = c_.y; a[6] = d_.x; a[7] = d_.y; }

#define HALF_CONSTANTS \
        uint nothing_ = UNIT_LANE & NOTHING(p.n_out), bits_ = 0x64006400u + nothing_;
