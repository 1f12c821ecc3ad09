#version 460
// y = x Wᵀ for up to 32 rows a workgroup, on the device's integer matrix units: the bits of matvec.comp, since a block's 32
// products are summed as integers, exactly, and what is done in floats has the same order (shared.h). A workgroup makes PANELS
// times 16 outputs of TILES times 8 rows; each of its 16 subgroups of 32 takes a segment of K on its own, with what it loads for
// the next block of 32 on its way while it computes, and at the end they add their sums from the first to the last. Weights go
// through shared memory only to get to the threads whose registers the units read: a subgroup writes and reads its own piece.
//
// It takes for granted which elements of a result a thread holds, as NVIDIA's units have it: of 16 outputs by 8 rows, outputs
// t / 4 and t / 4 + 8 for rows t % 4 * 2 and the next. Where that does not hold the proof fails, and the kernel is not used.
//
// Needs a compiler that knows cooperative matrices, which not every distribution has: compiled/matdirect.inc is this file, made
// by `glslc --target-env=vulkan1.3 -O -mfmt=c -I . -o compiled/matdirect.inc matdirect.comp` (shaderc 2025.2).
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#include "common.glsl"
layout(local_size_x = 512) in;
layout(constant_id = 0) const uint FORM = TDM_VK_Q4_0; // type, TDM_VK_TURNED
layout(constant_id = 1) const uint ACT = TDM_VK_ACT_I8;
layout(constant_id = 2) const uint TILES = 1; // of 8 rows
layout(constant_id = 3) const uint PANELS = 2;
layout(push_constant) uniform Push { tdm_vk_matmul_push p; };

const uint TYPE = FORM & 63u;
const bool TURNED = FORM >= TDM_VK_TURNED;
const uint PLANES = ACT == TDM_VK_ACT_I16 ? 2 : 1;
const uint WORDS = TYPE == TDM_VK_Q4_0 ? 2 : 4; // of a panel's block, in each thread
const uint PART_STRIDE = 20;                    // floats of a row's 16 outputs in shared memory: no bank twice
const uint STAGE_STRIDE = 12;                   // words of an output's 32 columns there: no bank twice
const int MAGIC = 0x4b400000;                   // as f32: 1.5 * 2^23, whose last place is 1

#define RESULT coopmat<int, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>
#define WEIGHTS coopmat<int8_t, gl_ScopeSubgroup, 16, 32, gl_MatrixUseA>
#define ROWS coopmat<int8_t, gl_ScopeSubgroup, 32, 8, gl_MatrixUseB>

const uint STAGE = 16 * STAGE_STRIDE, ROW_STAGE = TILES * 8 * STAGE_STRIDE; // words of a panel's block, of the rows'
const uint PARTS = TDM_VK_SEGMENTS * TILES * 8 * PART_STRIDE, STAGES = TDM_VK_SEGMENTS * (STAGE + ROW_STAGE);
const uint CHUNKS = (TILES + 1) / 2; // of 16 bytes of rows, in each thread; of TILES 1 half of one

shared uint s_words[PARTS > STAGES ? PARTS : STAGES]; // what is on its way into the units; at the end sums of segments

void sync()
{
        subgroupMemoryBarrierShared();
        subgroupBarrier();
}

uint64_t panel_address(uint panel)
{
        return panel < p.panel1 ? p.w0 + uint64_t(panel) * p.panel_bytes
             : panel < p.panel2 ? p.w1 + uint64_t(panel - p.panel1) * p.panel_bytes
                                : p.w2 + uint64_t(panel - p.panel2) * p.panel_bytes;
}

void main()
{
        uint lane = gl_SubgroupInvocationID, segment = gl_SubgroupID, own = lane / 4, quad = lane % 4;
        uint nb = p.cols / 32, length = TDM_VK_SEGMENT_BLOCKS(p.cols), b0 = segment * length, b1 = min(b0 + length, nb);
        uint panel0 = p.panel0 + gl_WorkGroupID.x * PANELS, row0 = gl_WorkGroupID.y * TILES * 8, last_panel = (p.n_out + 15) / 16 - 1;
        uint stride = TDM_VK_ACT_STRIDE(ACT, p.cols), scales_bytes = tdm_scales_bytes(p.cols);
        uint64_t panels[PANELS];
        // Two sets: one is on its way while the other is used.
        uint w[2 * PANELS * WORDS];
        uint16_t scales[2 * PANELS * 2];
        uvec4 sides[2 * TILES]; // of two rows: scale, sum
        uvec4 x[2 * CHUNKS * PLANES];
        precise float acc[PANELS * TILES * 4];

        [[unroll]] for (uint i = 0; i < PANELS * TILES * 4; i++)
                acc[i] = 0;
        [[unroll]] for (uint i = 0; i < PANELS; i++)
                panels[i] = panel_address(min(panel0 + i, last_panel));

        for (uint b = b0; b0 < b1 && b <= b1; b += 2)
                [[unroll]] for (uint set = 0; set < 2; set++) {
                        // Asked for now, used in the next turn; past the end: the last block again.
                        uint block = min(b + set, b1 - 1);

                        [[unroll]] for (uint i = 0; i < PANELS; i++) {
                                U32s words = U32s(panels[i] + scales_bytes);
                                uint k = set * PANELS + i;

                                [[unroll]] for (uint j = 0; j < WORDS; j++)
                                        w[k * WORDS + j] = words.v[tdm_word(TURNED, WORDS * 2, block, j / 2 * 4 + quad, j % 2 * 8 + own)];
                                scales[k * 2] = U16s(panels[i]).v[block * 16 + own];
                                scales[k * 2 + 1] = U16s(panels[i]).v[block * 16 + own + 8];
                        }
                        [[unroll]] for (uint t = 0; t < TILES; t++)
                                sides[set * TILES + t] = U32x4s(p.side).v[(block * p.side_rows + row0 + t * 8) / 2 + quad];
                        [[unroll]] for (uint c = 0; c < CHUNKS * PLANES; c++) {
                                uint at = c % CHUNKS * 32 + lane;
                                uint64_t row = p.x + uint64_t(row0 + (TILES == 1 ? own : at / 2)) * stride + c / CHUNKS * p.cols;

                                if (TILES == 1)
                                        x[set * CHUNKS * PLANES + c].xy = U32x2s(row).v[block * 4 + quad];
                                else
                                        x[set * CHUNKS * PLANES + c] = U32x4s(row).v[block * 2 + at % 2];
                        }

                        // Block b + set - 1.
                        uint used = 1 - set, row_stage = TDM_VK_SEGMENTS * STAGE + segment * ROW_STAGE;
                        RESULT start[TILES];
                        float x_scale[TILES * 2];
                        ROWS rows[TILES * PLANES];

                        if (b + set == b0 || b + set > b1)
                                continue;
                        [[unroll]] for (uint t = 0; t < TILES; t++) {
                                uvec4 side = sides[used * TILES + t];
                                int first = TYPE == TDM_VK_Q4_0 ? -8 * int(side.y) : 0, second = TYPE == TDM_VK_Q4_0 ? -8 * int(side.w) : 0;

                                x_scale[t * 2] = uintBitsToFloat(side.x);
                                x_scale[t * 2 + 1] = uintBitsToFloat(side.z);
                                if (ACT == TDM_VK_ACT_I8) { // a sum far below 2^22 makes a float of itself in the magic number's places
                                        first += MAGIC;
                                        second += MAGIC;
                                }
                                start[t][0] = first;
                                start[t][1] = second;
                                start[t][2] = first;
                                start[t][3] = second;
                        }
                        [[unroll]] for (uint plane = 0; plane < PLANES; plane++) { // of I16 the high bytes, then the low ones
                                sync();
                                [[unroll]] for (uint c = 0; c < CHUNKS; c++) {
                                        uvec4 chunk = x[(used * PLANES + plane) * CHUNKS + c];
                                        uint to = row_stage + (TILES == 1 ? own * STAGE_STRIDE + quad * 2
                                                                          : (c * 16 + lane / 2) * STAGE_STRIDE + lane % 2 * 4);

                                        [[unroll]] for (uint j = 0; j < (TILES == 1 ? 2 : 4); j++)
                                                s_words[to + j] = chunk[j];
                                }
                                sync();
                                [[unroll]] for (uint t = 0; t < TILES; t++)
                                        coopMatLoad(rows[t * PLANES + plane], s_words, row_stage + t * 8 * STAGE_STRIDE, STAGE_STRIDE,
                                                    gl_CooperativeMatrixLayoutColumnMajor);
                        }
                        [[unroll]] for (uint i = 0; i < PANELS; i++) {
                                uint k = used * PANELS + i, stage = segment * STAGE, at = stage + own * STAGE_STRIDE + quad;
                                float w_scale[2] = { tdm_f16(uint(scales[k * 2])), tdm_f16(uint(scales[k * 2 + 1])) };
                                WEIGHTS a;

                                sync();
                                [[unroll]] for (uint j = 0; j < 4; j++)
                                        s_words[at + j / 2 * 8 * STAGE_STRIDE + j % 2 * 4] =
                                                TYPE == TDM_VK_Q4_0 ? w[k * WORDS + j / 2] >> j % 2 * 4 & 0x0f0f0f0fu
                                                                    : w[k * WORDS + j % 2 * 2 + j / 2] ^ 0x80808080u;
                                sync();
                                coopMatLoad(a, s_words, stage, STAGE_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                                [[unroll]] for (uint t = 0; t < TILES; t++) {
                                        uint sum_at = (i * TILES + t) * 4;
                                        RESULT sum32 = start[t];

                                        if (ACT == TDM_VK_ACT_I16) {
                                                RESULT high = coopMatMulAdd(a, rows[t * PLANES], RESULT(0));

                                                sum32 = sum32 + high * 256;
                                        }
                                        sum32 = coopMatMulAdd(a, rows[t * PLANES + PLANES - 1], sum32);
                                        [[unroll]] for (uint e = 0; e < 4; e++) {
                                                precise float exact = ACT == TDM_VK_ACT_I16 ? float(sum32[e])
                                                                                            : intBitsToFloat(sum32[e]) - 12582912.0;
                                                precise float scale = w_scale[e / 2] * x_scale[t * 2 + e % 2];
                                                precise float sum = fma(exact, scale, acc[sum_at + e]);

                                                acc[sum_at + e] = sum;
                                        }
                                }
                        }
                }

        uint n_segments = (nb + length - 1) / length;

        [[unroll]] for (uint i = 0; i < PANELS; i++) {
                barrier();
                [[unroll]] for (uint t = 0; t < TILES; t++)
                        [[unroll]] for (uint e = 0; e < 4; e++)
                                s_words[(segment * TILES * 8 + t * 8 + quad * 2 + e % 2) * PART_STRIDE + own + e / 2 * 8] =
                                        floatBitsToUint(acc[(i * TILES + t) * 4 + e]);
                barrier();
                if (gl_LocalInvocationID.x < TILES * 128) {
                        uint r = gl_LocalInvocationID.x / 16, out_in_panel = gl_LocalInvocationID.x % 16, at = r * PART_STRIDE + out_in_panel;
                        uint out_index = (panel0 + i) * 16 + out_in_panel;
                        precise float sum = uintBitsToFloat(s_words[at]);

                        for (uint s = 1; s < n_segments; s++)
                                sum += uintBitsToFloat(s_words[s * TILES * 8 * PART_STRIDE + at]);
                        if (row0 + r < p.n_rows && out_index < p.n_out)
                                F32s(p.y + (uint64_t(row0 + r) * p.y_stride + out_index) * 4).v[0] = sum;
                }
        }
}
