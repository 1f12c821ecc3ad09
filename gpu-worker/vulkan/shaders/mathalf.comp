#version 460
// y = x Wᵀ for up to 32 rows a workgroup, on the device's f16 matrix units: see half.glsl. A workgroup makes PANELS times 16 outputs of TILES
// times 8 rows; each of its 16 subgroups takes a segment of K, and at the end they are added. With GELU half of the panels are of the
// first matrix, the others of the second, and what is left is gelu(first) times second, rounded for the matrix behind.
//
// Needs a compiler that knows cooperative matrices, which not every distribution has: compiled/mathalf.inc is this file, made
// by `glslc --target-env=vulkan1.3 -O -mfmt=c -I . -o compiled/mathalf.inc mathalf.comp` (shaderc 2025.2).
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "common.glsl"
layout(local_size_x = 512) in;
layout(constant_id = 0) const uint FORM = TDM_VK_Q4_0 | TDM_VK_FRAGMENTS;
layout(constant_id = 1) const uint TILES = 1;  // of 8 rows; 0: a single row
layout(constant_id = 2) const uint PANELS = 2;
layout(constant_id = 3) const uint CHUNKS_GELU = 6; // of a segment, where there is a single row; 256: with GELU
layout(push_constant) uniform Push { tdm_vk_matmul_push p; };
const uint ACT = TDM_VK_ACT_F16;
#include "panels.glsl"
#include "half.glsl"
#include "gelu.glsl"
#include "fragments.glsl"

const bool SINGLE = TILES == 0, GELU = CHUNKS_GELU >= 256;
const uint CHUNKS = CHUNKS_GELU & 255u;
const uint NT = SINGLE ? 1 : TILES;
const uint COLUMNS = SINGLE ? 1 : TILES * 8; // rows of a result that count
const uint AT_ONCE = SINGLE ? PANELS : 4 / NT; // panels whose segments are added at once
const uint TURNS = (PANELS + AT_ONCE - 1) / AT_ONCE;
const uint PART_STRIDE = 20; // floats of a row's 16 outputs in shared memory: no bank twice

shared float s_part[TDM_VK_SEGMENTS * AT_ONCE * COLUMNS * PART_STRIDE];
shared uvec4 s_row[SINGLE ? TDM_VK_SEGMENTS * CHUNKS * 8 : 1]; // a single row: [segment][chunk][half][quad]

layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Halves { uint v[]; };

uint panel_of(uint i)
{
        return GELU ? (i < PANELS / 2 ? gl_WorkGroupID.x * (PANELS / 2) + i : p.panel1 + gl_WorkGroupID.x * (PANELS / 2) + i - PANELS / 2)
                    : p.panel0 + gl_WorkGroupID.x * PANELS + i;
}

// A single row's part of a segment into shared memory.
void stage(uint segment, uint lane, uint c0, uint n)
{
        uint flag = tdm_flag_read(p.chain_index, p.chain_wait);
        const uint PIECES = (CHUNKS * 8 + 31) / 32;
        uvec4 row[PIECES];

#define LOOK_FLAGGED \
        tdm_flagged(p.x, gl_LocalInvocationID.x * (p.cols / 64), flag, there);
#define STAGE_FLAGGED \
        [[unroll]] for (uint k = 0; k < PIECES; k++) \
                row[k] = tdm_flagged4(p.x, c0 * 8 + min(k * 32 + lane, n * 8 - 1), flag, there);
        if (flag != 0) {
                // A few words of the row are looked at until they are there: see matvec.glsl.
                if (gl_LocalInvocationID.x < 32)
                        TDM_UNTIL(p.chain, there, LOOK_FLAGGED)
                barrier();
                if (n != 0)
                        TDM_UNTIL(p.chain, there, STAGE_FLAGGED)
        } else if (n != 0) {
                [[unroll]] for (uint k = 0; k < PIECES; k++) {
                        uint i = min(k * 32 + lane, n * 8 - 1);

                        row[k] = Act32x4s(p.x).v[(c0 + i / 8) * 64 + i / 4 % 2 * 32 + i % 4];
                }
        }
        [[unroll]] for (uint k = 0; k < PIECES; k++)
                if (k * 32 + lane < CHUNKS * 8)
                        s_row[segment * CHUNKS * 8 + k * 32 + lane] = row[k];
        subgroupMemoryBarrierShared();
        subgroupBarrier();
}

void main()
{
        uint lane = gl_SubgroupInvocationID, segment = gl_SubgroupID, own = lane / 4, quad = lane % 4, chunks = p.cols / 64;
        uint length = TDM_VK_SEGMENT_CHUNKS(p.cols), c0 = min(segment * length, chunks), c1 = min(c0 + length, chunks);
        uint tile0 = gl_WorkGroupID.y * NT, row0 = tile0 * 8, last_panel = (p.n_out + 15) / 16 - 1;
        SUMS acc[PANELS * NT];
        uvec4 w[PANELS * LOADS], x[NT * 2];
        uvec2 scales[PANELS];
        uint64_t at[PANELS], x_at[NT];
        uint quants = chunks * 64;

        [[unroll]] for (uint i = 0; i < PANELS * NT; i++)
                acc[i] = SUMS(0.0);
        [[unroll]] for (uint i = 0; i < PANELS; i++)
                at[i] = panel_address(min(panel_of(i), last_panel));
        [[unroll]] for (uint t = 0; t < NT; t++)
                x_at[t] = p.x + uint64_t(tile0 + t) * (p.cols * 16) + lane * 16;
#define LOAD_WEIGHTS(i, c) { \
        scales[i] = uvec2(U32s(at[i]).v[(c) * 16 + own * 2], U32s(at[i]).v[(c) * 16 + own * 2 + 1]); \
        [[unroll]] for (uint l = 0; l < LOADS; l++) \
                w[(i) * LOADS + l] = U32x4s(at[i] + quants).v[(c) * (32 * LOADS) + l * 32 + lane]; }
#define LOAD_ROWS(c) \
        if (!SINGLE) \
                [[unroll]] for (uint t = 0; t < NT; t++) \
                        [[unroll]] for (uint h = 0; h < 2; h++) \
                                x[t * 2 + h] = Act32x4s(x_at[t]).v[(c) * 64 + h * 32];
        if (c0 < c1)
                [[unroll]] for (uint i = 0; i < PANELS; i++)
                        LOAD_WEIGHTS(i, c0)
        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        if (SINGLE)
                stage(segment, lane, c0, c1 - c0);
        else if (c0 < c1)
                LOAD_ROWS(c0)

        for (uint c = c0; c < c1; c++) {
                uint next = min(c + 1, c1 - 1); // past the end: the last again, not used
                ROWS b[NT * 4];

                if (SINGLE)
                        [[unroll]] for (uint h = 0; h < 2; h++)
                                x[h] = s_row[(segment * CHUNKS + c - c0) * 8 + h * 4 + quad];
                [[unroll]] for (uint t = 0; t < NT; t++)
                        [[unroll]] for (uint h = 0; h < 2; h++) {
                                ROWS_FRAGMENT(b[t * 4 + h * 2], x[t * 2 + h].x, x[t * 2 + h].y)
                                ROWS_FRAGMENT(b[t * 4 + h * 2 + 1], x[t * 2 + h].z, x[t * 2 + h].w)
                        }
                LOAD_ROWS(next)
                [[unroll]] for (uint i = 0; i < PANELS; i++) {
                        uvec4 now[LOADS];
                        uvec2 scales_now = scales[i];

                        [[unroll]] for (uint l = 0; l < LOADS; l++)
                                now[l] = w[i * LOADS + l];
                        LOAD_WEIGHTS(i, next)
                        [[unroll]] for (uint j = 0; j < 4; j++) {
                                WEIGHTS a;

                                FRAGMENT(a, now, 0, scales_now, j)
                                [[unroll]] for (uint t = 0; t < NT; t++)
                                        acc[i * NT + t] = coopMatMulAdd(a, b[t * 4 + j], acc[i * NT + t]);
                        }
                }
        }

        uint n_segments = (chunks + length - 1) / length;
        float sums[TURNS];

        [[unroll]] for (uint turn = 0; turn < TURNS; turn++) {
                if (turn != 0)
                        barrier();
                [[unroll]] for (uint i = 0; i < AT_ONCE; i++)
                        if (turn * AT_ONCE + i < PANELS)
                                [[unroll]] for (uint t = 0; t < NT; t++)
                                        [[unroll]] for (uint e = 0; e < 4; e++)
                                                if (!SINGLE || (e % 2 == 0 && quad == 0))
                                                        s_part[((segment * AT_ONCE + i) * COLUMNS + (SINGLE ? 0 : t * 8 + quad * 2 + e % 2)) * PART_STRIDE +
                                                               own + e / 2 * 8] = acc[(turn * AT_ONCE + i) * NT + t][e];
                barrier();

                uint r = gl_LocalInvocationID.x / 16, part_at = min(r, AT_ONCE * COLUMNS - 1) * PART_STRIDE + gl_LocalInvocationID.x % 16;
                float parts[TDM_VK_SEGMENTS]; // asked for at once
                precise float sum;

                [[unroll]] for (uint s = 0; s < TDM_VK_SEGMENTS; s++)
                        parts[s] = s_part[s * AT_ONCE * COLUMNS * PART_STRIDE + part_at];
                sum = parts[0];
                [[unroll]] for (uint s = 1; s < TDM_VK_SEGMENTS; s++)
                        if (s < n_segments)
                                sum += parts[s];
                sums[turn] = sum * p.y_scale;
        }

        uint r = gl_LocalInvocationID.x / 16, out_in_panel = gl_LocalInvocationID.x % 16, row = row0 + r % COLUMNS, flag = tdm_flag_left(p.chain_index);

        if (GELU) { // panel i and panel i + PANELS / 2
                if (AT_ONCE * 2 > PANELS) { // of the same turn: other threads have the second
                        barrier();
                        if (r < PANELS * COLUMNS)
                                s_part[r * 16 + out_in_panel] = sums[0];
                        barrier();
                }
                [[unroll]] for (uint turn = 0; turn < (TURNS + 1) / 2; turn++) {
                        uint i = turn * AT_ONCE + r / COLUMNS, out_index = (gl_WorkGroupID.x * (PANELS / 2) + i) * 16 + out_in_panel;
                        float second = AT_ONCE * 2 > PANELS ? s_part[min(r + PANELS / 2 * COLUMNS, PANELS * COLUMNS - 1) * 16 + out_in_panel]
                                                            : sums[turn + TURNS / 2];
                        precise float x = clamp(tdm_gelu_mul(sums[turn], second) * p.act_scale, -65504.0, 65504.0);
                        uint half16 = tdm_to_f16(isnan(x) ? 0.0 : x), beside = subgroupShuffleXor(half16, 1);

                        if (out_in_panel % 2 == 0 && i < PANELS / 2 && r < AT_ONCE * COLUMNS && row < p.n_rows && out_index < p.panel1 * 16)
                                tdm_put_word(flag != 0 ? p.acts : tdm_fragment_row(p.acts, p.panel1 * 16, row),
                                             flag != 0 ? tdm_fragment_word(out_index, true) : tdm_fragment_word(out_index, false),
                                             half16 | beside << 16, flag);
                }
        } else {
                [[unroll]] for (uint turn = 0; turn < TURNS; turn++) {
                        uint panel = turn * AT_ONCE + r / COLUMNS, out_index = panel_of(panel) * 16 + out_in_panel;

                        if (panel < PANELS && r < AT_ONCE * COLUMNS && row < p.n_rows && out_index < p.n_out)
                                tdm_put_word(p.y + uint64_t(row) * p.y_stride * 4, out_index, floatBitsToUint(sums[turn]), flag);
                }
        }
        tdm_chain_done(p.chain, p.chain_index);
}
