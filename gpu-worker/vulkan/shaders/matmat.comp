#version 460
// y = x Wᵀ for some rows, on the device's integer matrix units: the same bits as matvec.comp, since a block's 32 products are
// summed as integers, exactly, and what is done in floats has the same order (shared.h). A workgroup of 8 subgroups of 32 makes
// 32 outputs (two panels) of 16 or 32 rows; each subgroup takes two segments of K on its own, and at the end they add their
// sums one after the other. FORM: see matwide.comp.
//
// Needs a compiler that knows cooperative matrices, which not every distribution has: compiled/matmat.inc is this file,
// made by `glslc --target-env=vulkan1.3 -O -mfmt=c -I . -o compiled/matmat.inc matmat.comp` (shaderc 2025.2).
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#include "common.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint TYPE = TDM_VK_Q4_0;
layout(constant_id = 1) const uint ACT = TDM_VK_ACT_I8;
layout(constant_id = 2) const uint ROW_TILES = 2; // of 16
layout(constant_id = 3) const uint FORM = 63;
layout(push_constant) uniform Push { tdm_vk_matmul_push p; };

#define TILE 32        // outputs, and rows at most
#define STRIDE 12      // words of a row of 32 bytes in shared memory: 16-byte steps that meet no bank twice
#define ELEMENTS 8     // of a 16 by 16 matrix, in each of 32 threads
#define SUBGROUPS 8
const uint PLANES = ACT == TDM_VK_ACT_I16 ? 2 : 1;
const uint WORDS = TYPE == TDM_VK_Q4_0 ? 4 : 8; // of weights, per thread and block

#define ACCUMULATOR(type) coopmat<type, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
#define WEIGHTS coopmat<int8_t, gl_ScopeSubgroup, 16, 32, gl_MatrixUseA>
#define ROWS coopmat<int8_t, gl_ScopeSubgroup, 32, 16, gl_MatrixUseB>

shared uint s_weights[SUBGROUPS][TILE * STRIDE];
shared uvec4 s_rows[SUBGROUPS][PLANES * TILE * STRIDE / 4];
shared float s_weight_scales[SUBGROUPS][TILE];
shared float s_row_scales[SUBGROUPS][TILE];
shared float s_total[TILE * TILE]; // [row][output]

uint64_t panel_address(uint panel)
{
        return panel < p.panel1 ? p.w0 + uint64_t(panel) * p.panel_bytes
             : panel < p.panel2 ? p.w1 + uint64_t(panel - p.panel1) * p.panel_bytes
                                : p.w2 + uint64_t(panel - p.panel2) * p.panel_bytes;
}

uint out_twin(uint e)
{
        return e & FORM & 7u;
}

uint row_twin(uint e)
{
        return e & FORM >> 3;
}

void sync()
{
        subgroupMemoryBarrierShared();
        subgroupBarrier();
}

void main()
{
        uint lane = gl_SubgroupInvocationID, sub = gl_SubgroupID, nb = p.cols / 32, length = TDM_VK_SEGMENT_BLOCKS(p.cols);
        uint panel0 = p.panel0 + gl_WorkGroupID.x * 2, row0 = gl_WorkGroupID.y * ROW_TILES * 16, last_panel = (p.n_out + 15) / 16 - 1;
        uint64_t panels[2] = { panel_address(panel0), panel_address(min(panel0 + 1, last_panel)) };
        uint64_t x = p.x + uint64_t(min(row0 + lane, p.n_rows - 1)) * TDM_VK_ACT_STRIDE(ACT, p.cols);
        uint64_t scales_bytes = tdm_scales_bytes(p.cols), lane_panel = lane < 16 ? panels[0] : panels[1];
        uint out_of[ELEMENTS], row_of[ELEMENTS]; // where this thread's elements of a result lie
        ACCUMULATOR(float) sums[2][2][2];        // [segment][panel][16 rows]

        // Each thread learns its elements from a matrix that holds their indices.
        if (sub == 0)
                for (uint i = lane; i < 256; i += 32)
                        s_total[i] = float(i);
        barrier();
        {
                ACCUMULATOR(float) index;

                coopMatLoad(index, s_total, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (uint e = 0; e < ELEMENTS; e++) {
                        out_of[e] = uint(index[e]) / 16;
                        row_of[e] = uint(index[e]) % 16;
                }
        }
        barrier();

        [[unroll]] for (uint s = 0; s < 2; s++) {
                uint b0 = (2 * sub + s) * length, b1 = min(b0 + length, nb);
                uint w[8];
                uvec4 rows[4];
                float weight_scale = 0, row_scale = 0;

                [[unroll]] for (uint i = 0; i < 2; i++)
                        [[unroll]] for (uint j = 0; j < 2; j++)
                                sums[s][i][j] = ACCUMULATOR(float)(0.0);

                for (uint b = b0; b <= b1 && b0 < b1; b++) {
                        // What was loaded in the last turn goes to shared memory, the next block is asked for, then the last is used.
                        if (b > b0) {
                                sync();
                                [[unroll]] for (uint i = 0; i < WORDS; i++) {
                                        uint at = i * 32 + lane, half_words = WORDS * 16, panel = at / half_words;
                                        uint group = at % half_words / 16, base = (panel * 16 + at % 16) * STRIDE + group;

                                        if (TYPE == TDM_VK_Q4_0) { // 0 … 15 to -8 … 7, four at once
                                                uint low = w[i] & 0x0f0f0f0fu, high = w[i] >> 4 & 0x0f0f0f0fu;

                                                s_weights[sub][base] = (low | 0x80808080u) - 0x08080808u ^ 0x80808080u;
                                                s_weights[sub][base + 4] = (high | 0x80808080u) - 0x08080808u ^ 0x80808080u;
                                        } else {
                                                s_weights[sub][base] = w[i] ^ 0x80808080u;
                                        }
                                }
                                [[unroll]] for (uint i = 0; i < 2 * PLANES; i++)
                                        s_rows[sub][(i / 2 * TILE + lane) * (STRIDE / 4) + i % 2] = rows[i];
                                s_weight_scales[sub][lane] = weight_scale;
                                s_row_scales[sub][lane] = row_scale;
                                sync();
                        }
                        if (b < b1) {
                                weight_scale = tdm_panel_scale(lane_panel, b, lane & 15u);
                                row_scale = F32s(x + TDM_VK_ACT_SCALES(ACT, p.cols)).v[b];
                                [[unroll]] for (uint i = 0; i < WORDS; i++) {
                                        uint at = i * 32 + lane, half_words = WORDS * 16;

                                        w[i] = U32s(panels[i * 32 / half_words] + scales_bytes).v[b * half_words + at % half_words];
                                }
                                [[unroll]] for (uint i = 0; i < 2 * PLANES; i++)
                                        rows[i] = U32x4s(x).v[i / 2 * (p.cols / 16) + b * 2 + i % 2];
                        }
                        if (b == b0)
                                continue;
                        WEIGHTS a[2];
                        float a_scale[2][ELEMENTS];

                        [[unroll]] for (uint i = 0; i < 2; i++) {
                                coopMatLoad(a[i], s_weights[sub], i * 16 * STRIDE, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                                [[unroll]] for (uint e = 0; e < ELEMENTS; e++)
                                        a_scale[i][e] = out_twin(e) != e ? a_scale[i][out_twin(e)] : s_weight_scales[sub][i * 16 + out_of[e]];
                        }
                        [[unroll]] for (uint j = 0; j < 2; j++) {
                                if (j >= ROW_TILES)
                                        continue;
                                ROWS high, low;
                                float x_scale[ELEMENTS];

                                coopMatLoad(high, s_rows[sub], j * 16 * (STRIDE / 4), STRIDE / 4, gl_CooperativeMatrixLayoutColumnMajor);
                                if (ACT == TDM_VK_ACT_I16)
                                        coopMatLoad(low, s_rows[sub], (TILE + j * 16) * (STRIDE / 4), STRIDE / 4,
                                                    gl_CooperativeMatrixLayoutColumnMajor);
                                [[unroll]] for (uint e = 0; e < ELEMENTS; e++)
                                        x_scale[e] = row_twin(e) != e ? x_scale[row_twin(e)] : s_row_scales[sub][j * 16 + row_of[e]];
                                [[unroll]] for (uint i = 0; i < 2; i++) {
                                        ACCUMULATOR(int) isum = coopMatMulAdd(a[i], high, ACCUMULATOR(int)(0));

                                        if (ACT == TDM_VK_ACT_I16) {
                                                isum = isum * 256;
                                                isum = coopMatMulAdd(a[i], low, isum);
                                        }
                                        [[unroll]] for (uint e = 0; e < ELEMENTS; e++) {
                                                precise float scale = a_scale[i][e] * x_scale[e];
                                                precise float sum = fma(float(isum[e]), scale, sums[s][i][j][e]);

                                                sums[s][i][j][e] = sum;
                                        }
                                }
                        }
                }
        }

        for (uint turn = 0; turn < SUBGROUPS; turn++) {
                if (sub == turn)
                        [[unroll]] for (uint s = 0; s < 2; s++) {
                                if ((2 * sub + s) * length >= nb)
                                        break;
                                [[unroll]] for (uint i = 0; i < 2; i++)
                                        [[unroll]] for (uint j = 0; j < 2; j++)
                                                [[unroll]] for (uint e = 0; e < ELEMENTS; e++) {
                                                        uint at = (j * 16 + row_of[e]) * TILE + i * 16 + out_of[e];
                                                        precise float sum = sums[s][i][j][e];

                                                        if (j >= ROW_TILES)
                                                                continue;
                                                        if (2 * sub + s > 0)
                                                                sum = s_total[at] + sum;
                                                        s_total[at] = sum;
                                                }
                        }
                barrier();
        }
        for (uint i = gl_LocalInvocationID.x; i < ROW_TILES * 16 * TILE; i += 256) {
                uint row = row0 + i / TILE, at = panel0 * 16 + i % TILE;

                if (row < p.n_rows && at < p.n_out)
                        F32s(p.y + (uint64_t(row) * p.y_stride + at) * 4).v[0] = s_total[i];
        }
}
