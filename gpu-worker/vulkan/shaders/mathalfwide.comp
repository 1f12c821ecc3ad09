#version 460
// y = x Wᵀ for hundreds of rows on the device's f16 matrix units: the bits of mathalf.comp (half.glsl), and GELU as there. A workgroup makes
// THREADS / 32 times 2 panels of 16 outputs, a subgroup two of them, of TILES times 8 rows. Rows of a chunk of 64 columns lie in
// shared memory for all subgroups, those of the next are on their way into the other half of it; weights come to each subgroup's
// registers by themselves.
//
// Compiled as mathalf.comp is, to compiled/mathalfwide.inc.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "common.glsl"
layout(local_size_x_id = 2) in;
layout(constant_id = 0) const uint FORM = TDM_VK_Q4_0 | TDM_VK_FRAGMENTS;
layout(constant_id = 1) const uint TILES = 8;
layout(constant_id = 2) const uint THREADS = 128;
layout(constant_id = 3) const uint GELU = 0;
layout(push_constant) uniform Push { tdm_vk_matmul_push p; };
const uint ACT = TDM_VK_ACT_F16;
#include "panels.glsl"
#include "half.glsl"
#include "gelu.glsl"
#include "fragments.glsl"

const uint PIECES = TILES * 64 / THREADS; // times 16 bytes: a thread's rows of a chunk
// What one kernel writes and another reads need not be coherent here: there is a barrier between (record.c).
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer RowHalves { uvec4 v[]; };

shared uvec4 s_rows[2][TILES * 64];

void main()
{
        uint lane = gl_SubgroupInvocationID, warp = gl_SubgroupID, own = lane / 4, quad = lane % 4, thread = gl_LocalInvocationIndex;
        uint chunks = p.cols / 64, length = TDM_VK_SEGMENT_CHUNKS(p.cols), quants = chunks * 64;
        uint group = gl_WorkGroupID.x * (THREADS / 32) + warp, tile0 = gl_WorkGroupID.y * TILES, last_panel = (p.n_out + 15) / 16 - 1;
        uint panels[2] = uint[2](GELU != 0 ? group : p.panel0 + group * 2, GELU != 0 ? p.panel1 + group : p.panel0 + group * 2 + 1);
        SUMS acc[2 * TILES], total[2 * TILES];
        uvec4 w[2 * LOADS], x[PIECES];
        uvec2 scales[2];
        uint64_t at[2];
        uint buf = 0;

        [[unroll]] for (uint i = 0; i < 2 * TILES; i++)
                total[i] = SUMS(0.0);
        [[unroll]] for (uint i = 0; i < 2; i++)
                at[i] = panel_address(min(panels[i], last_panel));
#define LOAD_WEIGHTS(c) \
        [[unroll]] for (uint i = 0; i < 2; i++) { \
                scales[i] = uvec2(U32s(at[i]).v[(c) * 16 + own * 2], U32s(at[i]).v[(c) * 16 + own * 2 + 1]); \
                [[unroll]] for (uint l = 0; l < LOADS; l++) \
                        w[i * LOADS + l] = U32x4s(at[i] + quants).v[(c) * (32 * LOADS) + l * 32 + lane]; \
        }
#define LOAD_ROWS(c) \
        [[unroll]] for (uint i = 0; i < PIECES; i++) { \
                uint k = i * THREADS + thread; \
\
                x[i] = RowHalves(p.x + uint64_t((tile0 + k / 64) * chunks + (c)) * 1024).v[k % 64]; \
        }
#define PUT_ROWS(to) \
        [[unroll]] for (uint i = 0; i < PIECES; i++) \
                s_rows[to][i * THREADS + thread] = x[i];
        LOAD_WEIGHTS(0)
        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        LOAD_ROWS(0)
        PUT_ROWS(0)
        for (uint c0 = 0; c0 < chunks; c0 += length) { // segments
                [[unroll]] for (uint i = 0; i < 2 * TILES; i++)
                        acc[i] = SUMS(0.0);
                for (uint c = c0; c < min(c0 + length, chunks); c++) {
                        uint next = min(c + 1, chunks - 1); // past the end: the last again, not used
                        uvec4 now[2 * LOADS];
                        uvec2 scales_now[2];

                        barrier();
                        LOAD_ROWS(next)
                        [[unroll]] for (uint i = 0; i < 2; i++)
                                scales_now[i] = scales[i];
                        [[unroll]] for (uint i = 0; i < 2 * LOADS; i++)
                                now[i] = w[i];
                        LOAD_WEIGHTS(next)
                        [[unroll]] for (uint h = 0; h < 2; h++) {
                                uvec4 rows[TILES];

                                [[unroll]] for (uint t = 0; t < TILES; t++)
                                        rows[t] = s_rows[buf][t * 64 + h * 32 + lane];
                                [[unroll]] for (uint k = 0; k < 2; k++) {
                                        WEIGHTS a[2];

                                        [[unroll]] for (uint i = 0; i < 2; i++)
                                                FRAGMENT(a[i], now, i * LOADS, scales_now[i], (h * 2 + k))
                                        [[unroll]] for (uint t = 0; t < TILES; t++) {
                                                ROWS b;

                                                ROWS_FRAGMENT(b, rows[t][k * 2], rows[t][k * 2 + 1])
                                                [[unroll]] for (uint i = 0; i < 2; i++)
                                                        acc[i * TILES + t] = coopMatMulAdd(a[i], b, acc[i * TILES + t]);
                                        }
                                }
                        }
                        PUT_ROWS(1 - buf)
                        buf = 1 - buf;
                }
                [[unroll]] for (uint i = 0; i < 2 * TILES; i++)
                        total[i] = total[i] + acc[i];
        }

        [[unroll]] for (uint t = 0; t < TILES; t++)
                [[unroll]] for (uint e = 0; e < 4; e++) {
                        uint row = (tile0 + t) * 8 + quad * 2 + e % 2, out_in_panel = own + e / 2 * 8;

                        if (GELU != 0) {
                                precise float x = clamp(tdm_gelu_mul(total[t][e] * p.y_scale, total[TILES + t][e] * p.y_scale) * p.act_scale, -65504.0, 65504.0);
                                uint half16 = tdm_to_f16(isnan(x) ? 0.0 : x), beside = subgroupShuffleXor(half16, 4), out_index = group * 16 + out_in_panel;

                                if (own % 2 == 0 && row < p.n_rows && group < p.panel1)
                                        U32s(tdm_fragment_row(p.acts, p.panel1 * 16, row)).v[tdm_fragment_word(out_index, false)] = half16 | beside << 16;
                        } else {
                                [[unroll]] for (uint i = 0; i < 2; i++) {
                                        uint out_index = panels[i] * 16 + out_in_panel;

                                        if (row < p.n_rows && out_index < p.n_out)
                                                F32s(p.y + uint64_t(row) * p.y_stride * 4).v[out_index] = total[i * TILES + t][e] * p.y_scale;
                                }
                        }
                }
        tdm_chain_done(p.chain, p.chain_index);
}
