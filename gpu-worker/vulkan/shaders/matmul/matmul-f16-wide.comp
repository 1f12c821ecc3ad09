#version 460
// y = x Wᵀ for many rows on the device's f16 matrix units: the bits of matmul-f16.comp (f16.glsl), and GELU as there. A
// workgroup makes THREADS / 32 times 2 panels of 16 outputs, a subgroup two of them (with GELU one of each matrix), of
// TILES times 8 rows. Rows of AT_ONCE chunks of 64 columns lie in shared memory for all subgroups, those of the next
// are on their way into the other half of it; weights come to each subgroup's registers by themselves. Loads are asked
// for right before a barrier: behind it the driver's compiler would move them to where they are used. No branch within
// a segment touches the totals: it would copy them all.
//
// Kept compiled (compile.py), as matmul-f16.comp is.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "gpu-worker/vulkan/shaders/common/common.glsl"
layout(local_size_x_id = 2) in;
layout(constant_id = 0) const uint FORM = TDM_VK_Q4_0 | TDM_VK_FRAGMENTS;
// tiles of 8 rows; chunks at once, which divide a segment's and all; with GELU, from 1 << 24 on: which activation
layout(constant_id = 1) const uint SHAPE = TDM_VK_MATMUL_F16_WIDE_SHAPE(8, 1, 0);
layout(constant_id = 2) const uint THREADS = 128;
#ifdef EXPERTS
#include "gpu-worker/vulkan/shaders/common/shared-experts.h"
layout(push_constant) uniform Push { tdm_vk_experts_f16_push p; };
#else
layout(push_constant) uniform Push { tdm_vk_matmul_push p; };
#endif
const uint ACT = TDM_VK_ACT_F16;
const bool FUSED = TDM_VK_MATMUL_F16_TILES(SHAPE) <= 4; // with more tiles there are no registers left for it
#include "gpu-worker/vulkan/shaders/common/panels.glsl"
#include "gpu-worker/vulkan/shaders/common/f16-experts.glsl"
#include "gpu-worker/vulkan/shaders/common/f16.glsl"
#include "gpu-worker/vulkan/shaders/ffn/activate.glsl"
#include "gpu-worker/vulkan/shaders/common/fragments.glsl"

const uint TILES = TDM_VK_MATMUL_F16_TILES(SHAPE), AT_ONCE = TDM_VK_MATMUL_F16_WIDE_AT_ONCE(SHAPE);
const bool GELU = TDM_VK_F16_SHAPE_GELU(SHAPE) != 0;
const uint ACTIVATION = TDM_VK_F16_SHAPE_ACTIVATION(SHAPE);
const uint CHUNK_PIECES = TILES * 64, PIECES = CHUNK_PIECES * AT_ONCE; // of 16 bytes
const uint ROW_LOADS = (PIECES + THREADS - 1) / THREADS;                // of a thread
const uint SET = 2 * AT_ONCE;
#if defined(SUBBLOCK) && !defined(EXPERTS)
// Of these, rows of one group of tiles are asked for before those of the other are multiplied: found on an H200.
const bool AHEAD = TILES > 4 && GELU && TYPE == TDM_VK_Q4_K;
#else
const bool AHEAD = false;
#endif
const uint GROUP = TILES / 2; // tiles
// Seen after a barrier (record.c), or the fence behind the chain's wait; not coherent, so that the first-level cache
// has them.
#ifdef EMULATED
#define nonprivate
#endif
layout(buffer_reference, std430, buffer_reference_align = 16) nonprivate readonly buffer RowF16s { uvec4 v[]; };

// [slot][piece], and the table (f16-subblock.glsl); at last the sums of gate and up: [subgroup][matrix][tile][thread]
const uint GELU_PIECES = GELU ? THREADS * 2 * TILES : 0;
#ifdef SUBBLOCK
const uint TABLE_COPIES = TABLE_COPIES_BESIDE(2 * PIECES * 16), TABLE_PIECES = IQ4 ? 64 * TABLE_COPIES : 0;
#undef TABLE_WORD
#define TABLE_WORD(i) s_rows[2 * PIECES + (i) / 4][(i) % 4]
#else
const uint TABLE_PIECES = 0;
#endif
const uint BEFORE = 2 * PIECES + TABLE_PIECES;
shared uvec4 s_rows[BEFORE > GELU_PIECES ? BEFORE : GELU_PIECES];

void main()
{
        uint lane = UNIT_LANE, own = lane / 4, quad = lane % 4, thread = gl_LocalInvocationIndex;
        uint chunks = p.cols / 64, length = TDM_VK_SEGMENT_CHUNKS(p.cols), quants = QUANTS_AT(chunks);
        CHAIN_WAIT_ITEM
        uint last_panel = (p.n_out + 15) / 16 - 1, last_tile = (N_ROWS + 7) / 8 - 1;
#ifdef EXPERTS
        uint tile0 = 0, pair = gl_WorkGroupID.x * (THREADS / 32) + UNIT_INDEX;
#else
        // Neighbours take the same weights.
        uint workgroup = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x,
                tile0 = workgroup % gl_NumWorkGroups.y * TILES;
        uint pair = workgroup / gl_NumWorkGroups.y * (THREADS / 32) + UNIT_INDEX;
#endif
        uint panels[2] = uint[2](GELU ? pair : FIRST_PANEL + pair * 2,
                                 GELU ? p.panel1 + pair : FIRST_PANEL + pair * 2 + 1);
        SUMS acc[2 * TILES], total[2 * TILES];
        uvec4 w0[SET * LOADS], w1[SET * LOADS], x[ROW_LOADS];
        SCALES scales0[SET], scales1[SET];
        HIGH_BITS(high0, SET)
        HIGH_BITS(high1, SET)
        uint64_t at[2], x_at[ROW_LOADS];
        uint slot = 0;

        HALF_CONSTANTS
        TABLE
        [[unroll]] for (uint i = 0; i < 2 * TILES; i++)
                total[i] = SUMS(0.0);
        [[unroll]] for (uint i = 0; i < 2; i++)
                at[i] = panel_address(min(panels[i], last_panel));
        [[unroll]] for (uint i = 0; i < ROW_LOADS; i++) {
                uint k = i * THREADS + thread;

#ifdef EXPERTS
                x_at[i] = item_row_at(min(k / 64 % TILES, last_tile) * 8 + k % 32 / 4) + k / CHUNK_PIECES * 1024 +
                        k % 64 / 32 * 512 + k % 4 * 16;
#else
                x_at[i] = p.x + uint64_t(min(tile0 + k / 64 % TILES, last_tile) * chunks + k / CHUNK_PIECES) * 1024 +
                        k % 64 * 16;
#endif
        }
#define LOAD_WEIGHTS(w, scales, high, c) \
        [[unroll]] for (uint u = 0; u < AT_ONCE; u++) \
                [[unroll]] for (uint i = 0; i < 2; i++) { \
                        LOAD_PANEL(w, scales, high, u * 2 + i, at[i], (c) + u) \
                }
#define HAS_PIECE(i) (i * THREADS + THREADS <= PIECES || i * THREADS + thread < PIECES)
#define LOAD_ROWS(c) \
        [[unroll]] for (uint i = 0; i < ROW_LOADS; i++) \
                if (HAS_PIECE(i)) \
                        x[i] = RowF16s(x_at[i]).v[(c) * 64];
#define PUT_ROWS(to) \
        [[unroll]] for (uint i = 0; i < ROW_LOADS; i++) \
                if (HAS_PIECE(i)) \
                        s_rows[(to) * PIECES + i * THREADS + thread] = x[i];
// Half h of the chunks that are there, a tile's rows.
#define ROWS_AT(h, t) s_rows[slot * PIECES + (h) / 2 * CHUNK_PIECES + (t) * 64 + (h) % 2 * 32 + lane]
#define MULTIPLY_HALVES(w, scales, high) \
        [[unroll]] for (uint u = 0; u < AT_ONCE; u++) \
                [[unroll]] for (uint h = 0; h < 2; h++) { \
                        uvec4 rows[TILES]; \
\
                        [[unroll]] for (uint t = 0; t < TILES; t++) \
                                rows[t] = ROWS_AT(u * 2 + h, t); \
                        [[unroll]] for (uint k = 0; k < 2; k++) { \
                                UNIT_A a[2]; \
\
                                [[unroll]] for (uint i = 0; i < 2; i++) \
                                        FRAGMENT(a[i], w, scales, high, u * 2 + i, (h * 2 + k)) \
                                [[unroll]] for (uint t = 0; t < TILES; t++) { \
                                        UNIT_B b; \
\
                                        ROWS_FRAGMENT(b, rows[t][k * 2], rows[t][k * 2 + 1]) \
                                        [[unroll]] for (uint i = 0; i < 2; i++) \
                                                acc[i * TILES + t] = coopMatMulAdd(a[i], b, acc[i * TILES + t]); \
                                } \
                        } \
                }
#define MULTIPLY_AHEAD(w, scales, high) { \
        uvec4 rows[2][GROUP]; \
        UNIT_A a[4]; \
\
        [[unroll]] for (uint t = 0; t < GROUP; t++) \
                rows[0][t] = ROWS_AT(0, t); \
        [[unroll]] for (uint g = 0; g < 4 * AT_ONCE; g++) { \
                const uint h = g / 2, first = g % 2 * GROUP; \
\
                if (first == 0) \
                        [[unroll]] for (uint k = 0; k < 2; k++) \
                                [[unroll]] for (uint i = 0; i < 2; i++) \
                                        FRAGMENT(a[k * 2 + i], w, scales, high, h / 2 * 2 + i, (h % 2 * 2 + k)) \
                if (g + 1 < 4 * AT_ONCE) \
                        [[unroll]] for (uint t = 0; t < GROUP; t++) \
                                rows[(g + 1) % 2][t] = ROWS_AT((g + 1) / 2, GROUP - first + t); \
                [[unroll]] for (uint k = 0; k < 2; k++) \
                        [[unroll]] for (uint t = 0; t < GROUP; t++) { \
                                UNIT_B b; \
                                uint at = first + t; \
\
                                ROWS_FRAGMENT(b, rows[g % 2][t][k * 2], rows[g % 2][t][k * 2 + 1]) \
                                [[unroll]] for (uint i = 0; i < 2; i++) \
                                        acc[i * TILES + at] = \
                                                coopMatMulAdd(a[k * 2 + i], b, acc[i * TILES + at]); \
                        } \
        } }
#define MULTIPLY(w, scales, high, next_w, next_scales, next_high, c) { \
        uint next = (c) + AT_ONCE < chunks ? (c) + AT_ONCE : 0; /* past the end: any, not used */ \
\
        LOAD_ROWS(next) \
        LOAD_WEIGHTS(next_w, next_scales, next_high, next) \
        barrier(); \
        if (AHEAD) { \
                MULTIPLY_AHEAD(w, scales, high) \
        } else { \
                MULTIPLY_HALVES(w, scales, high) \
        } \
        slot ^= 1; \
        PUT_ROWS(slot) }
        LOAD_WEIGHTS(w0, scales0, high0, 0)
        CHAIN_WAIT_CACHED
        LOAD_ROWS(0)
        PUT_ROWS(0)
        for (uint c0 = 0; c0 < chunks; c0 += length) { // segments
                uint c = c0, c1 = min(c0 + length, chunks);

                [[unroll]] for (uint i = 0; i < 2 * TILES; i++)
                        acc[i] = SUMS(0.0);
                for (; c + AT_ONCE < c1; c += 2 * AT_ONCE) {
                        MULTIPLY(w0, scales0, high0, w1, scales1, high1, c)
                        MULTIPLY(w1, scales1, high1, w0, scales0, high0, c + AT_ONCE)
                }
                if (c < c1) {
                        MULTIPLY(w0, scales0, high0, w1, scales1, high1, c)
                        [[unroll]] for (uint i = 0; i < SET * LOADS; i++)
                                w0[i] = w1[i];
                        [[unroll]] for (uint i = 0; i < SET; i++)
                                scales0[i] = scales1[i];
                        HIGH_BITS_COPY(high0, high1, SET)
                }
                [[unroll]] for (uint i = 0; i < 2 * TILES; i++)
                        total[i] = total[i] + acc[i];
        }

        // one tile after the other, by way of shared memory: written out for all it would be as large as the rest of
        // the kernel
        if (GELU) {
                barrier();
                [[unroll]] for (uint i = 0; i < 2 * TILES; i++)
                        s_rows[(UNIT_INDEX * 2 * TILES + i) * 32 + lane] =
                                floatBitsToUint(vec4(total[i][0], total[i][1], total[i][2], total[i][3]));
                [[dont_unroll]] for (uint t = 0; t < TILES + NOTHING(p.n_out); t++) {
                        uint from = (UNIT_INDEX * 2 * TILES + t) * 32 + lane;
                        vec4 gate = uintBitsToFloat(s_rows[from]), up = uintBitsToFloat(s_rows[from + TILES * 32]);

                        [[unroll]] for (uint e = 0; e < 4; e++) {
                                uint row = (tile0 + t) * 8 + quad * 2 + e % 2, out_index = pair * 16 + own + e / 2 * 8;
                                precise float x = clamp(tdm_activate(ACTIVATION,
                                        BIASED(gate[e] * p.y_scale, p.bias0, out_index),
                                        BIASED(up[e] * p.y_scale, p.bias1, out_index)) * p.act_scale, -65504.0,
                                        65504.0);
                                uint f16_bits = tdm_to_f16(isnan(x) ? 0.0 : x),
                                        beside = UNIT_SHUFFLE_XOR(f16_bits, 4);

                                if (own % 2 == 0 && row < N_ROWS && pair < p.panel1)
                                        U32s(tdm_fragment_row(p.acts, p.panel1 * 16, OUT_ROW(row)))
                                                .v[tdm_fragment_word(out_index, false)] = f16_bits | beside << 16;
                        }
                }
        } else {
                [[unroll]] for (uint t = 0; t < TILES; t++)
                        [[unroll]] for (uint e = 0; e < 4; e++)
                                [[unroll]] for (uint i = 0; i < 2; i++) {
                                        uint row = (tile0 + t) * 8 + quad * 2 + e % 2,
                                                out_index = panels[i] * 16 + own + e / 2 * 8;

                                        if (row < N_ROWS && out_index < p.n_out)
                                                F32s(p.y + uint64_t(OUT_ROW(row)) * p.y_stride * 4).v[out_index] =
                                                        BIASED(total[i * TILES + t][e] * p.y_scale, p.bias0,
                                                               out_index);
                                }
        }
        tdm_chain_done(p.chain, p.chain_index);
}
