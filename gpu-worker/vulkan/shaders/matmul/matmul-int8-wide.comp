#version 460
// y = x Wᵀ for hundreds of rows, on the device's integer matrix units: the bits of matvec.comp, since a block's 32
// products are summed as integers, exactly, and what is done in floats has the same order (shared.h). A workgroup makes
// 128 outputs (eight panels) of TILE_ROWS rows, 32 by 32 in each subgroup of 32, and walks along all of K: what is
// loaded once is used 128 or TILE_ROWS times. Four blocks of 32 lie in shared memory while the next four are on their
// way. Elements of a matrix in a thread: see matmul-int8.comp.
//
// On an H200 a subgroup's matrix keeps everything else waiting (6.7 cycles), so what counts is how many instructions
// there are to an element and a block: with a sum that is a float already (panels.glsl) those are two. Hence segments
// are loops of their own: where their ends were found by counting, the compiler chose between old and new sums at every
// block (gate and up of 512 rows: 1,715 µs, then 1,143). Two blocks at a time in two halves of shared memory, with one
// barrier, are slower (1,401): too short for what is on its way.
//
// Kept compiled (compile.py): it needs a compiler that knows cooperative matrices.
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#include "gpu-worker/vulkan/shaders/common/common.glsl"
layout(local_size_x_id = 2) in;
layout(constant_id = 0) const uint FORM = TDM_VK_Q4_0; // type, TDM_VK_DEINTERLEAVED
layout(constant_id = 1) const uint ACT = TDM_VK_ACT_I8;
layout(constant_id = 2) const uint THREADS = 512; // 128 for each 32 rows
layout(push_constant) uniform Push { tdm_vk_matmul_push p; };
#include "gpu-worker/vulkan/shaders/common/panels.glsl"

#define OUTS 128
#define BLOCKS TDM_VK_WIDE_BLOCKS // of 32 along K, at a time
#define STRIDE 9                  // times 16 bytes for the 128 of a row or an output in shared memory: no bank twice
const bool DEINTERLEAVED = FORM >= TDM_VK_DEINTERLEAVED;
const uint TILE_ROWS = THREADS / 4;
const uint PLANES = ACT == TDM_VK_ACT_I16 ? 2 : 1;
const uint BLOCK_VECTORS = TYPE == TDM_VK_Q4_0 ? 1 : 2; // times 16 bytes: an output's block
const uint LOADS = OUTS * BLOCKS * BLOCK_VECTORS / THREADS, SCALE_LOADS = OUTS * BLOCKS / THREADS;

#define RESULT coopmat<int, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>
#define WEIGHTS coopmat<int8_t, gl_ScopeSubgroup, 16, 32, gl_MatrixUseA>
#define ROWS coopmat<int8_t, gl_ScopeSubgroup, 32, 8, gl_MatrixUseB>

shared uvec4 s_weights[OUTS * STRIDE];
shared uvec4 s_rows[PLANES * TILE_ROWS * STRIDE];
// [block][32 outputs][own] of 4: those that a thread needs beside each other
shared vec4 s_weight_scales[BLOCKS * OUTS / 4];
shared vec4 s_row_scales[BLOCKS * TILE_ROWS / 4]; // [block][32 rows][quad][2] of 4

// On their way.
uvec4 w[LOADS], rows[2 * PLANES];
uint16_t weight_scales[SCALE_LOADS];
uint row_scale;
uint64_t weights_at[LOADS], weight_scales_at[SCALE_LOADS], rows_at[2], row_scale_at;

void load(uint b)
{
        [[unroll]] for (uint i = 0; i < LOADS; i++)
                w[i] = U32x4s(weights_at[i]).v[b * 16 * BLOCK_VECTORS];
        [[unroll]] for (uint i = 0; i < SCALE_LOADS; i++)
                weight_scales[i] = U16s(weight_scales_at[i]).v[b * 16];
        [[unroll]] for (uint i = 0; i < 2 * PLANES; i++)
                rows[i] = U32x4s(rows_at[i % 2]).v[i / 2 * (p.cols / 16) + b * 2];
        row_scale = U32s(row_scale_at).v[b];
}

void main()
{
        uint thread = gl_LocalInvocationID.x, sub = gl_SubgroupID, own = gl_SubgroupInvocationID / 4,
                quad = gl_SubgroupInvocationID % 4;
        uint nb = p.cols / 32, length = TDM_VK_SEGMENT_BLOCKS(p.cols), stride = TDM_VK_ACT_STRIDE(ACT, p.cols);
        // All rows of some outputs at a time: weights come from memory once.
        uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
        uint panel0 = p.panel0 + group / gl_NumWorkGroups.y * (OUTS / 16),
                row0 = group % gl_NumWorkGroups.y * TILE_ROWS;
        uint last_panel = (p.n_out + 15) / 16 - 1;
        uint own_outs = sub % 4 * 32, own_rows = sub / 4 * 32;  // of this subgroup, in the tile
        precise float sums[32], totals[32]; // [16 outputs][8 rows][element], of the segment, of those before

        [[unroll]] for (uint i = 0; i < LOADS; i++) {
                uint at = i * THREADS + thread;

                weights_at[i] = panel_address(min(panel0 + at / (16 * BLOCKS * BLOCK_VECTORS), last_panel)) +
                        tdm_scales_bytes(p.cols) +
                                at % (16 * BLOCKS * BLOCK_VECTORS) * 16;
        }
        [[unroll]] for (uint i = 0; i < SCALE_LOADS; i++) {
                uint at = i * THREADS + thread;

                weight_scales_at[i] = panel_address(min(panel0 + at / (16 * BLOCKS), last_panel)) +
                        at % (16 * BLOCKS) * 2;
        }
        [[unroll]] for (uint i = 0; i < 2; i++) {
                uint at = i * THREADS + thread;

                rows_at[i] = p.x + uint64_t(min(row0 + at / (2 * BLOCKS), p.n_rows - 1)) * stride +
                        at % (2 * BLOCKS) * 16;
        }
        row_scale_at = p.x + uint64_t(min(row0 + thread / BLOCKS, p.n_rows - 1)) * stride +
                TDM_VK_ACT_SCALES(ACT, p.cols) +
                       thread % BLOCKS * 4;
        [[unroll]] for (uint e = 0; e < 32; e++)
                totals[e] = -0.0; // to which a sum is added as it is

        uint b = 0, loaded = 0; // where what is loaded begins: the last blocks again where there are not enough

        load(0);
        for (uint end = length; b < nb; end += length) { // a segment
                uint stop = min(end, nb);

                [[unroll]] for (uint e = 0; e < 32; e++)
                        sums[e] = 0;
                do {
                        uint next = min(b + BLOCKS, stop), u0 = b - loaded, u1 = next - loaded;
                        uvec4 low[LOADS], high[LOADS];
                        float scales[SCALE_LOADS];

                        [[unroll]] for (uint i = 0; i < LOADS; i++)
                                if (TYPE == TDM_VK_Q4_0) {
                                        low[i] = tdm_weights4(w[i] << 4);
                                        high[i] = tdm_weights4(w[i]);
                                } else {
                                        low[i] = w[i] ^ 0x80808080u;
                                }
                        [[unroll]] for (uint i = 0; i < SCALE_LOADS; i++)
                                scales[i] = tdm_f16(uint(weight_scales[i])) * WEIGHTS_SCALE;
                        barrier();
                        [[unroll]] for (uint i = 0; i < LOADS; i++) {
                                uint at = i * THREADS + thread, q = at % (16 * BLOCK_VECTORS);
                                uint base = at / (16 * BLOCKS * BLOCK_VECTORS) * 16 * STRIDE +
                                        at / (16 * BLOCK_VECTORS) % BLOCKS * 2;

                                if (DEINTERLEAVED) { // four words of one output
                                        s_weights[base + q / BLOCK_VECTORS * STRIDE + q % BLOCK_VECTORS] = low[i];
                                        if (TYPE == TDM_VK_Q4_0)
                                                s_weights[base + q * STRIDE + 1] = high[i];
                                        continue;
                                }
                                [[unroll]] for (uint c = 0; c < 4; c++) { // one word of four outputs
                                        uint to = base + (q % 4 * 4 + c) * STRIDE;

                                        s_weights[to + q / 16][q / 4 % 4] = low[i][c];
                                        if (TYPE == TDM_VK_Q4_0)
                                                s_weights[to + 1][q / 4] = high[i][c];
                                }
                        }
                        [[unroll]] for (uint i = 0; i < SCALE_LOADS; i++) {
                                // output in the tile
                                uint at = i * THREADS + thread, o = at / (16 * BLOCKS) * 16 + at % 16;

                                s_weight_scales[(at / 16 % BLOCKS * OUTS + o / 32 * 32) / 4 + o % 8][o / 8 % 4] =
                                        scales[i];
                        }
                        [[unroll]] for (uint i = 0; i < 2 * PLANES; i++) {
                                uint at = i % 2 * THREADS + thread;

                                s_rows[(i / 2 * TILE_ROWS + at / (2 * BLOCKS)) * STRIDE + at % (2 * BLOCKS)] = rows[i];
                        }
                        uint r = thread / BLOCKS; // row in the tile
                        s_row_scales[(thread % BLOCKS * TILE_ROWS + r / 32 * 32) / 4 + r / 2 % 4 * 2 + r / 16 % 2]
                                [r / 8 % 2 * 2 + r % 2] =
                                uintBitsToFloat(row_scale);
                        barrier();
                        loaded = min(next, nb - BLOCKS);
                        if (next < nb)
                                load(loaded);
                        [[dont_unroll]] for (uint u = u0; u < u1; u++) {
                                WEIGHTS a[2];
                                RESULT sum32[8];
                                vec4 a_scale = s_weight_scales[(u * OUTS + own_outs) / 4 + own];
                                precise vec4 a_less = a_scale * -MAGIC_VALUE; // exact

                                [[unroll]] for (uint i = 0; i < 2; i++)
                                        coopMatLoad(a[i], s_weights, (own_outs + i * 16) * STRIDE + u * 2, STRIDE,
                                                    gl_CooperativeMatrixLayoutRowMajor);
                                [[unroll]] for (uint j = 0; j < 4; j++) {
                                        uint row = own_rows + j * 8;
                                        ROWS plane;

                                        coopMatLoad(plane, s_rows, row * STRIDE + u * 2, STRIDE,
                                                gl_CooperativeMatrixLayoutColumnMajor);
                                        [[unroll]] for (uint i = 0; i < 2; i++)
                                                sum32[i * 4 + j] = coopMatMulAdd(a[i], plane,
                                                        RESULT(ACT == TDM_VK_ACT_I16 ? 0 : MAGIC));
                                }
                                [[unroll]] for (uint j = 0; j < 4 && ACT == TDM_VK_ACT_I16; j++) {
                                        uint row = own_rows + j * 8;
                                        ROWS plane;

                                        coopMatLoad(plane, s_rows, (TILE_ROWS + row) * STRIDE + u * 2, STRIDE,
                                                gl_CooperativeMatrixLayoutColumnMajor);
                                        [[unroll]] for (uint i = 0; i < 2; i++)
                                                sum32[i * 4 + j] = coopMatMulAdd(a[i], plane,
                                                        sum32[i * 4 + j] * TDM_VK_I16_STEP + RESULT(MAGIC));
                                }
                                [[unroll]] for (uint j = 0; j < 4; j++) {
                                        vec4 x_scale = s_row_scales[(u * TILE_ROWS + own_rows) / 4 + quad * 2 + j / 2];

                                        [[unroll]] for (uint i = 0; i < 2; i++)
                                                [[unroll]] for (uint e = 0; e < 4; e++) {
                                                        uint at = (i * 4 + j) * 4 + e, o = i * 2 + e / 2;
                                                        precise float weighted =
                                                                MAGIC != 0 ?
                                                                fma(intBitsToFloat(sum32[i * 4 + j][e]), a_scale[o],
                                                                    a_less[o]) :
                                                                float(sum32[i * 4 + j][e]) * a_scale[o];
                                                        precise float sum = fma(weighted, x_scale[j % 2 * 2 + e % 2],
                                                                sums[at]);

                                                        sums[at] = sum;
                                                }
                                }
                        }
                        b = next;
                } while (b < stop);
                [[unroll]] for (uint e = 0; e < 32; e++) {
                        precise float sum = totals[e] + sums[e];

                        totals[e] = sum;
                }
        }

        [[unroll]] for (uint e = 0; e < 32; e++) {
                uint row = row0 + own_rows + e / 4 % 4 * 8 + quad * 2 + e % 2;
                uint at = panel0 * 16 + own_outs + e / 16 * 16 + e / 2 % 2 * 8 + own;

                if (row < p.n_rows && at < p.n_out)
                        F32s(p.y + (uint64_t(row) * p.y_stride + at) * 4).v[0] = totals[e];
        }
}
