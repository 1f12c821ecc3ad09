#version 460
// y = x Wᵀ for hundreds of rows, on the device's integer matrix units: the bits of matvec.comp, since a block's 32 products are
// summed as integers, exactly, and what is done in floats has the same order (shared.h). A workgroup of 8 subgroups of 32 makes
// 128 outputs (eight panels) of 64 rows, 32 by 32 in each subgroup, and walks along all of K: what is loaded once is used 128
// or 64 times. Four blocks of 32 lie in shared memory while the next four are on their way. Elements of a matrix in a thread:
// see matdirect.comp.
//
// Needs a compiler that knows cooperative matrices, which not every distribution has: compiled/matwide.inc is this file, made by
// `glslc --target-env=vulkan1.3 -O -mfmt=c -I . -o compiled/matwide.inc matwide.comp` (shaderc 2025.2).
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#include "common.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint FORM = TDM_VK_Q4_0; // type, TDM_VK_TURNED
layout(constant_id = 1) const uint ACT = TDM_VK_ACT_I8;
layout(push_constant) uniform Push { tdm_vk_matmul_push p; };

#define OUTS 128
#define TILE_ROWS 64
#define BLOCKS 4         // of 32 along K, at a time
#define STRIDE 36        // words of 128 bytes in shared memory: 16-byte steps that meet no bank twice
const uint TYPE = FORM & 63u;
const bool TURNED = FORM >= TDM_VK_TURNED;
const uint PLANES = ACT == TDM_VK_ACT_I16 ? 2 : 1;
const uint LOADS = TYPE == TDM_VK_Q4_0 ? 2 : 4; // of 16 bytes of weights, per thread

#define RESULT coopmat<int, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>
#define WEIGHTS coopmat<int8_t, gl_ScopeSubgroup, 16, 32, gl_MatrixUseA>
#define ROWS coopmat<int8_t, gl_ScopeSubgroup, 32, 8, gl_MatrixUseB>

shared uint s_weights[OUTS * STRIDE];
shared uvec4 s_rows[PLANES * TILE_ROWS * STRIDE / 4];
shared float s_weight_scales[BLOCKS * OUTS];
shared vec2 s_row_scales[BLOCKS * TILE_ROWS / 2];

// 0 … 15 to -8 … 7, four at once.
uint tdm_signed4(uint q)
{
        return (q | 0x80808080u) - 0x08080808u ^ 0x80808080u;
}

uint64_t panel_address(uint panel)
{
        return panel < p.panel1 ? p.w0 + uint64_t(panel) * p.panel_bytes
             : panel < p.panel2 ? p.w1 + uint64_t(panel - p.panel1) * p.panel_bytes
                                : p.w2 + uint64_t(panel - p.panel2) * p.panel_bytes;
}

void main()
{
        uint thread = gl_LocalInvocationID.x, lane = gl_SubgroupInvocationID, sub = gl_SubgroupID, own = lane / 4, quad = lane % 4;
        uint nb = p.cols / 32, length = TDM_VK_SEGMENT_BLOCKS(p.cols), stride = TDM_VK_ACT_STRIDE(ACT, p.cols);
        uint panel0 = p.panel0 + gl_WorkGroupID.x * (OUTS / 16), row0 = gl_WorkGroupID.y * TILE_ROWS, last_panel = (p.n_out + 15) / 16 - 1;
        uint64_t panel = panel_address(min(panel0 + sub, last_panel)), quants = panel + tdm_scales_bytes(p.cols);
        uint out0 = sub % 4 * 32, own_row0 = sub / 4 * 32, left = length; // of this subgroup, in the tile
        bool first = true;
        precise float sums[32], totals[32]; // [16 outputs][8 rows][element], of the segment, of those before
        uvec4 w[LOADS], rows[2 * PLANES];
        uint weight_scales = 0;
        float row_scale = 0;

        [[unroll]] for (uint e = 0; e < 32; e++)
                sums[e] = totals[e] = 0;

        for (uint b0 = 0; b0 < nb + BLOCKS; b0 += BLOCKS) {
                // What was loaded in the last turn goes to shared memory, the next blocks are asked for, then the last are used.
                if (b0 > 0) {
                        barrier();
                        [[unroll]] for (uint i = 0; i < LOADS; i++) {
                                uint at = i * 32 + lane;
                                uint block = TYPE == TDM_VK_Q4_0 ? at / 16 : i, group = (TYPE == TDM_VK_Q4_0 ? at % 16 : lane) / 4;
                                uint base = (sub * 16 + at % 4 * 4) * STRIDE + block * 8 + group;

                                if (TURNED) { // four words of one output
                                        const uint per = TYPE == TDM_VK_Q4_0 ? 1 : 2;
                                        uint to = (sub * 16 + at / per % 16) * STRIDE + at / (16 * per) * 8 + at % per * 4;

                                        [[unroll]] for (uint c = 0; c < 4; c++)
                                                s_weights[to + c] = TYPE == TDM_VK_Q4_0 ? tdm_signed4(w[i][c] & 0x0f0f0f0fu) : w[i][c] ^ 0x80808080u;
                                        if (TYPE == TDM_VK_Q4_0)
                                                [[unroll]] for (uint c = 0; c < 4; c++)
                                                        s_weights[to + 4 + c] = tdm_signed4(w[i][c] >> 4 & 0x0f0f0f0fu);
                                        continue;
                                }
                                [[unroll]] for (uint c = 0; c < 4; c++)
                                        if (TYPE == TDM_VK_Q4_0) {
                                                s_weights[base + c * STRIDE] = tdm_signed4(w[i][c] & 0x0f0f0f0fu);
                                                s_weights[base + c * STRIDE + 4] = tdm_signed4(w[i][c] >> 4 & 0x0f0f0f0fu);
                                        } else {
                                                s_weights[base + c * STRIDE] = w[i][c] ^ 0x80808080u;
                                        }
                        }
                        [[unroll]] for (uint i = 0; i < 2 * PLANES; i++) {
                                uint at = i % 2 * 256 + thread;

                                s_rows[(i / 2 * TILE_ROWS + at / 8) * (STRIDE / 4) + at % 8] = rows[i];
                        }
                        vec2 pair = unpackHalf2x16(weight_scales);
                        s_weight_scales[lane / 8 * OUTS + sub * 16 + lane % 8 * 2] = pair.x;
                        s_weight_scales[lane / 8 * OUTS + sub * 16 + lane % 8 * 2 + 1] = pair.y;
                        s_row_scales[thread % 4 * (TILE_ROWS / 2) + thread / 8][thread / 4 % 2] = row_scale;
                        barrier();
                }
                if (b0 < nb) { // past the end: the last block again, not used
                        [[unroll]] for (uint i = 0; i < LOADS; i++) {
                                uint at = i * 32 + lane;

                                if (TYPE == TDM_VK_Q4_0)
                                        w[i] = U32x4s(quants).v[min(b0 + at / 16, nb - 1) * 16 + at % 16];
                                else
                                        w[i] = U32x4s(quants).v[min(b0 + i, nb - 1) * 32 + lane];
                        }
                        weight_scales = U32s(panel).v[min(b0 + lane / 8, nb - 1) * 8 + lane % 8];
                        [[unroll]] for (uint i = 0; i < 2 * PLANES; i++) {
                                uint at = i % 2 * 256 + thread;
                                uint64_t x = p.x + uint64_t(min(row0 + at / 8, p.n_rows - 1)) * stride;

                                rows[i] = U32x4s(x).v[i / 2 * (p.cols / 16) + min(b0 + at % 8 / 2, nb - 1) * 2 + at % 2];
                        }
                        row_scale = F32s(p.x + uint64_t(min(row0 + thread / 4, p.n_rows - 1)) * stride +
                                         TDM_VK_ACT_SCALES(ACT, p.cols)).v[min(b0 + thread % 4, nb - 1)];
                }
                if (b0 == 0)
                        continue;
                [[dont_unroll]] for (uint u = 0; u < min(BLOCKS, nb - (b0 - BLOCKS)); u++) {
                        WEIGHTS a[2];
                        float a_scale[4];

                        [[unroll]] for (uint i = 0; i < 2; i++) {
                                coopMatLoad(a[i], s_weights, (out0 + i * 16) * STRIDE + u * 8, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                                [[unroll]] for (uint h = 0; h < 2; h++)
                                        a_scale[i * 2 + h] = s_weight_scales[u * OUTS + out0 + i * 16 + h * 8 + own];
                        }
                        [[unroll]] for (uint j = 0; j < 4; j++) {
                                uint row = own_row0 + j * 8;
                                vec2 x_scale = s_row_scales[(u * TILE_ROWS + row) / 2 + quad];
                                ROWS high, low;

                                coopMatLoad(high, s_rows, row * (STRIDE / 4) + u * 2, STRIDE / 4, gl_CooperativeMatrixLayoutColumnMajor);
                                if (ACT == TDM_VK_ACT_I16)
                                        coopMatLoad(low, s_rows, (TILE_ROWS + row) * (STRIDE / 4) + u * 2, STRIDE / 4,
                                                    gl_CooperativeMatrixLayoutColumnMajor);
                                [[unroll]] for (uint i = 0; i < 2; i++) {
                                        RESULT sum32 = coopMatMulAdd(a[i], high, RESULT(0));

                                        if (ACT == TDM_VK_ACT_I16) {
                                                sum32 = sum32 * 256;
                                                sum32 = coopMatMulAdd(a[i], low, sum32);
                                        }
                                        [[unroll]] for (uint e = 0; e < 4; e++) {
                                                uint at = (i * 4 + j) * 4 + e;
                                                precise float scale = a_scale[i * 2 + e / 2] * x_scale[e % 2];
                                                precise float sum = fma(float(sum32[e]), scale, sums[at]);

                                                sums[at] = sum;
                                        }
                                }
                        }
                        if (--left == 0 || b0 - BLOCKS + u + 1 == nb) {
                                [[unroll]] for (uint e = 0; e < 32; e++) {
                                        precise float sum = totals[e] + sums[e];

                                        totals[e] = first ? sums[e] : sum;
                                        sums[e] = 0;
                                }
                                first = false;
                                left = length;
                        }
                }
        }

        [[unroll]] for (uint e = 0; e < 32; e++) {
                uint row = row0 + own_row0 + e / 4 % 4 * 8 + quad * 2 + e % 2, at = panel0 * 16 + out0 + e / 16 * 16 + e / 2 % 2 * 8 + own;

                if (row < p.n_rows && at < p.n_out)
                        F32s(p.y + (uint64_t(row) * p.y_stride + at) * 4).v[0] = totals[e];
        }
}
