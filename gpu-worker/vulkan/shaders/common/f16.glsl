// What the kernels for f16 matrix units share (matmul-f16.comp, matmul-f16-wide.comp): weights of Q4_0 or Q8_0 in
// fragments (fragments.glsl) become f16, times their block's scale, one rounding, in the registers that the units read;
// those of F16 and BF16 are f16 since they were repacked (PLAIN); rows are f16; sums are f32.
//
// ORDER of an output: K is cut into TDM_VK_SEGMENTS segments of TDM_VK_SEGMENT_CHUNKS chunks of 64 columns; a segment's
// sum is one chain of the units' sums over 16 columns from zero on; the segments are added from the first to the last.
// This holds for each kernel and any number of rows: an element of a unit's result does not depend on the others.
//
// Before this: FUSED.
#include "gpu-worker/vulkan/shaders/common/units.glsl"
#ifndef EMULATED // DenormPreserve, of f16
spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4464], 4459, 16);
#endif

#ifdef SUBBLOCK
#include "gpu-worker/vulkan/shaders/common/f16-subblock.glsl"
#else
#define HIGH_BITS(name, n)
#define HIGH_BITS_COPY(to, from, n)
#define TABLE
#define TABLE_ROOM(bytes)
const bool PLAIN = TYPE == TDM_VK_F16 || TYPE == TDM_VK_BF16;
const uint WORDS = TYPE == TDM_VK_Q4_0 ? 4 : 8;
const uint LOADS = PLAIN ? 4 : WORDS / 4; // times 16 bytes: a thread's weights of a chunk

// Q4_0: a nibble u = q + 8 as the bits of an f16 is u 2^-24 where it lies in the lowest four of a half, u 2^-20 in the
// next four, as those of outputs g + 8 do, and what is stored as a scale makes up for it (repack.comp): 2^24 or 2^20
// times the scale that counts, which is a multiple of 2^-24. So u times that less 8 times the scale is one fma (FUSED),
// or the bits of 2^-14 + u 2^-24 less what is too much, which is exact, and a product: the same value, rounded once.
// The first takes 5 operations in half precision for 16 by 16 weights, not 8, of the pipe that products of the units
// are issued to; the second takes fewer registers.
//
// Q8_0: by the bits of 1024 + q; what is taken away and the scale are exact but for the last rounding. Constants that
// are or-ed must come from registers that the compiler knows nothing of: else it makes both of LOP3's operands of a
// mask and a bit pattern instructions of their own.
#define HALF_CONSTANTS \
        uint nothing_ = UNIT_LANE & NOTHING(p.n_out), \
                bits_ = (TYPE == TDM_VK_Q4_0 ? 0x04000400u : 0x64006400u) + nothing_;
// scale, scale8: of outputs g and g + 8, each twice.
#define FRAGMENT_Q4(a, word, scale, scale8) { \
        uint late_ = (word) >> 8; \
        f16vec2 a_, b_, c_, d_; \
\
        if (FUSED) { \
                f16vec2 less_ = (scale) * f16vec2(-4.76837158203125e-7hf), \
                        less8_ = (scale8) * f16vec2(-7.62939453125e-6hf); /* -2^-21, -2^-17 */ \
\
                a_ = UNIT_FMA(F16X2((word) & 0x000f000fu), scale, less_); \
                b_ = UNIT_FMA(F16X2(late_ & 0x000f000fu), scale, less_); \
                c_ = UNIT_FMA(F16X2((word) & 0x00f000f0u), scale8, less8_); \
                d_ = UNIT_FMA(F16X2(late_ & 0x00f000f0u), scale8, less8_); \
        } else { \
                const f16vec2 bias_ = f16vec2(6.151199340820312e-05hf), bias8_ = f16vec2(6.866455078125e-05hf); \
                        /* 2^-14 + 2^-21, 2^-14 + 2^-17 */ \
\
                a_ = (F16X2((word) & 0x000f000fu | bits_) - bias_) * (scale); \
                b_ = (F16X2(late_ & 0x000f000fu | bits_) - bias_) * (scale); \
                c_ = (F16X2((word) & 0x00f000f0u | bits_) - bias8_) * (scale8); \
                d_ = (F16X2(late_ & 0x00f000f0u | bits_) - bias8_) * (scale8); \
        } \
        a[0] = a_.x; a[1] = a_.y; a[2] = b_.x; a[3] = b_.y; a[4] = c_.x; a[5] = c_.y; a[6] = d_.x; a[7] = d_.y; }
#define FRAGMENT_Q8(a, word, word8, scale, scale8) { \
        f16vec2 a_ = (F16X2((word) & 0x00ff00ffu | bits_) - f16vec2(1152.0hf)) * (scale); \
        f16vec2 b_ = (F16X2((word) >> 8 & 0x00ff00ffu | bits_) - f16vec2(1152.0hf)) * (scale); \
        f16vec2 c_ = (F16X2((word8) & 0x00ff00ffu | bits_) - f16vec2(1152.0hf)) * (scale8); \
        f16vec2 d_ = (F16X2((word8) >> 8 & 0x00ff00ffu | bits_) - f16vec2(1152.0hf)) * (scale8); \
        a[0] = a_.x; a[1] = a_.y; a[2] = b_.x; a[3] = b_.y; a[4] = c_.x; a[5] = c_.y; a[6] = d_.x; a[7] = d_.y; }
// Of a chunk: [16 columns][thread] four words, of output g columns c and c + 1, c + 8 and c + 9, the same of g + 8.
#define FRAGMENT_PLAIN(a, words) { \
        f16vec2 a_ = F16X2((words).x), b_ = F16X2((words).y), c_ = F16X2((words).z), d_ = F16X2((words).w); \
        a[0] = a_.x; a[1] = a_.y; a[2] = b_.x; a[3] = b_.y; a[4] = c_.x; a[5] = c_.y; a[6] = d_.x; a[7] = d_.y; }
// What a thread has of a panel's chunk c, the k-th that is on its way.
#define SCALES uvec2
#define QUANTS_AT(chunks) (PLAIN ? 0 : chunks * 64)
#define LOAD_PANEL(w, scales, high, k, at, c) { \
        if (!PLAIN) \
                scales[k] = U32x2s(at).v[(c) * 8 + own]; \
        [[unroll]] for (uint l = 0; l < LOADS; l++) \
                w[(k) * LOADS + l] = U32x4s(at + quants).v[(c) * (32 * LOADS) + l * 32 + lane]; }
// The j-th 16 columns of that chunk.
#define FRAGMENT(a, w, scales, high, k, j) FRAGMENT_AT(a, w, (k) * LOADS, scales[k], j)
#define FRAGMENT_AT(a, w, at, scales, j) { \
        f16vec2 g_ = F16X2((scales).x), g8_ = F16X2((scales).y); \
        f16vec2 scale_ = j < 2 ? g_.xx : g_.yy, scale8_ = j < 2 ? g8_.xx : g8_.yy; \
        if (PLAIN) \
                FRAGMENT_PLAIN(a, w[(at) + min(j, LOADS - 1)]) \
        else if (TYPE == TDM_VK_Q4_0) \
                FRAGMENT_Q4(a, w[at][j], scale_, scale8_) \
        else \
                FRAGMENT_Q8(a, w[(at) + (j) / 2 * (min(LOADS, 2) - 1)][(j) % 2 * 2], \
                        w[(at) + (j) / 2 * (min(LOADS, 2) - 1)][(j) % 2 * 2 + 1], scale_, scale8_) }
#endif
