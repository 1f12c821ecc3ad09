#version 460
// y = x Wᵀ for up to 32 rows a workgroup, on the device's integer matrix units: the bits of matvec.comp, since a
// block's 32 products are summed as integers, exactly, and what is done in floats has the same order (shared.h). A
// workgroup makes PANELS times 16 outputs of TILES times 8 rows; each of its 16 subgroups of 32 takes a segment of K on
// its own, and at the end they add their sums from the first to the last. All goes through shared memory to the threads
// whose registers the units read, by 16 bytes: a subgroup writes and reads its own piece, without waiting for others.
//
// The next block is asked for when this one has left the registers, not before: this driver counts all loads of a loop
// on one counter, so a thread that waits for the oldest load waits for the newest too. And registers must do for what
// is on its way, since one that is put elsewhere is waited for first; hence each thread loads one scale, and weights
// are signed before they are multiplied, so that no sums of rows are needed. Measured on an H200: 32 rows of 21,504
// columns of 16 bits took 158 µs, then 88.
//
// It takes for granted which elements of a result a thread holds, as NVIDIA's units have it: of 16 outputs by 8 rows,
// outputs t / 4 and t / 4 + 8 for rows t % 4 * 2 and the next. Where that does not hold the proof fails, and the kernel
// is not used.
//
// Kept compiled (compile.py): it needs a compiler that knows cooperative matrices.
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#include "gpu-worker/vulkan/shaders/common/common.glsl"
layout(local_size_x = 512) in;
layout(constant_id = 0) const uint FORM = TDM_VK_Q4_0; // type, TDM_VK_DEINTERLEAVED
layout(constant_id = 1) const uint ACT = TDM_VK_ACT_I8;
layout(constant_id = 2) const uint TILES = 1; // of 8 rows
layout(constant_id = 3) const uint PANELS = 2;
layout(push_constant) uniform Push { tdm_vk_matmul_push p; };
#include "gpu-worker/vulkan/shaders/common/panels.glsl"

const bool DEINTERLEAVED = FORM >= TDM_VK_DEINTERLEAVED;
const uint PLANES = ACT == TDM_VK_ACT_I16 ? 2 : 1;
const uint BLOCK_VECTORS = TYPE == TDM_VK_Q4_0 ? 1 : 2; // times 16 bytes: an output's block
const uint PAIRS = (PANELS + 1) / 2;             // of panels: as many as fit into shared memory at once
const uint PART_STRIDE = 20;                     // floats of a row's 16 outputs in shared memory: no bank twice
const uint STRIDE = 12;                          // words of 32 columns of a row or an output there: no bank twice

#define RESULT coopmat<int, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>
#define WEIGHTS coopmat<int8_t, gl_ScopeSubgroup, 16, 32, gl_MatrixUseA>
#define ROWS coopmat<int8_t, gl_ScopeSubgroup, 32, 8, gl_MatrixUseB>

// A subgroup's piece of shared memory: rows and then weights, scales of outputs and rows.
const uint WEIGHTS_STAGE = (PANELS < 2 ? PANELS : 2) * 16 * STRIDE, ROWS_STAGE = TILES * 8 * STRIDE;
const uint SCALES = WEIGHTS_STAGE > ROWS_STAGE ? WEIGHTS_STAGE : ROWS_STAGE, ROW_SCALES = SCALES + PANELS * 16;
const uint STAGE = (ROW_SCALES + TILES * 8 + 3) / 4 * 4;
const uint AT_ONCE = 4 / TILES; // panels whose segments are added at once, by all threads
const uint PARTS = TDM_VK_SEGMENTS * AT_ONCE * TILES * 8 * PART_STRIDE, STAGES = TDM_VK_SEGMENTS * STAGE;
const uint W_ITEMS = PANELS * 16 * BLOCK_VECTORS, W_LOADS = (W_ITEMS + 31) / 32; // of 16 bytes; of a thread
const uint X_ITEMS = TILES * 16, X_LOADS = (X_ITEMS + 31) / 32;

shared uint s_words[PARTS > STAGES ? PARTS : STAGES]; // what is on its way into the units; at the end sums of segments

// A block on its way.
uvec4 w[W_LOADS], x[X_LOADS * PLANES];
uint16_t w_scales[PAIRS];
uint x_scale;
uint64_t w_at[W_LOADS], w_scales_at[PAIRS], x_at[X_LOADS], x_scale_at;

void sync()
{
        subgroupMemoryBarrierShared();
        subgroupBarrier();
}

void load_rows(uint b)
{
        x_scale = Act32s(x_scale_at).v[b * p.scale_sums_rows * 2];
        [[unroll]] for (uint i = 0; i < X_LOADS; i++)
                [[unroll]] for (uint plane = 0; plane < PLANES; plane++)
                        x[plane * X_LOADS + i] = Act32x4s(x_at[i]).v[plane * (p.cols / 16) + b * 2];
}

void load_scales(uint b)
{
        [[unroll]] for (uint i = 0; i < PAIRS; i++)
                w_scales[i] = U16s(w_scales_at[i]).v[b * 16];
}

void load_weights(uint b, const uint pair)
{
        [[unroll]] for (uint i = pair * BLOCK_VECTORS; i < (pair + 1) * BLOCK_VECTORS && i < W_LOADS; i++)
                w[i] = U32x4s(w_at[i]).v[b * 16 * BLOCK_VECTORS];
}

void main()
{
        uint lane = gl_SubgroupInvocationID, segment = gl_SubgroupID, own = lane / 4, quad = lane % 4,
                stage = segment * STAGE;
        uint nb = p.cols / 32, length = TDM_VK_SEGMENT_BLOCKS(p.cols), b0 = segment * length, b1 = min(b0 + length, nb);
        uint panel0 = p.panel0 + gl_WorkGroupID.x * PANELS, row0 = gl_WorkGroupID.y * TILES * 8,
                last_panel = (p.n_out + 15) / 16 - 1;
        precise float acc[PANELS * TILES * 4];

        [[unroll]] for (uint i = 0; i < W_LOADS; i++) {
                uint at = min(i * 32 + lane, W_ITEMS - 1);

                w_at[i] = panel_address(min(panel0 + at / (16 * BLOCK_VECTORS), last_panel)) +
                        tdm_scales_bytes(p.cols) + at % (16 * BLOCK_VECTORS) * 16;
        }
        [[unroll]] for (uint i = 0; i < PAIRS; i++) {
                uint at = min(i * 32 + lane, PANELS * 16 - 1);

                w_scales_at[i] = panel_address(min(panel0 + at / 16, last_panel)) + at % 16 * 2;
        }
        [[unroll]] for (uint i = 0; i < X_LOADS; i++) {
                uint at = min(i * 32 + lane, X_ITEMS - 1);

                x_at[i] = p.x + uint64_t(row0 + at / 2) * TDM_VK_ACT_STRIDE(ACT, p.cols) + at % 2 * 16;
        }
        x_scale_at = p.scale_sums + (row0 + min(lane, TILES * 8 - 1)) * 8;
        [[unroll]] for (uint i = 0; i < PANELS * TILES * 4; i++)
                acc[i] = 0;
        if (b0 < b1) {
                load_scales(b0);
                [[unroll]] for (uint pair = 0; pair < PAIRS; pair++)
                        load_weights(b0, pair);
        }
        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        if (b0 < b1)
                load_rows(b0);

        for (uint b = b0; b < b1; b++) {
                uint next = min(b + 1, b1 - 1); // past the end: the last block again, not used
                vec2 x_scales[TILES];
                ROWS rows[TILES * PLANES];

                [[unroll]] for (uint plane = 0; plane < PLANES; plane++) { // of I16 the high bytes, then the low ones
                        sync();
                        [[unroll]] for (uint i = 0; i < X_LOADS; i++) {
                                uint at = i * 32 + lane, to = stage + at / 2 * STRIDE + at % 2 * 4;

                                if (X_ITEMS % 32 == 0 || at < X_ITEMS)
                                        [[unroll]] for (uint c = 0; c < 4; c++)
                                                s_words[to + c] = x[plane * X_LOADS + i][c];
                        }
                        if (plane == 0) {
                                if (TILES == 4 || lane < TILES * 8)
                                        s_words[stage + ROW_SCALES + lane] = x_scale;
                                [[unroll]] for (uint i = 0; i < PAIRS; i++) {
                                        uint at = i * 32 + lane;

                                        // outputs n and n + 8 beside each other
                                        if (PANELS % 2 == 0 || at < PANELS * 16)
                                                s_words[stage + SCALES + at / 16 * 16 + at % 8 * 2 + at / 8 % 2] =
                                                        floatBitsToUint(tdm_f16(uint(w_scales[i])) * WEIGHTS_SCALE);
                                }
                        }
                        sync();
                        [[unroll]] for (uint t = 0; t < TILES; t++)
                                coopMatLoad(rows[t * PLANES + plane], s_words, stage + t * 8 * STRIDE, STRIDE,
                                            gl_CooperativeMatrixLayoutColumnMajor);
                }
                [[unroll]] for (uint t = 0; t < TILES; t++) {
                        uint at = stage + ROW_SCALES + t * 8 + quad * 2;

                        x_scales[t] = vec2(uintBitsToFloat(s_words[at]), uintBitsToFloat(s_words[at + 1]));
                }
                [[unroll]] for (uint pair = 0; pair < PAIRS; pair++) {
                        sync();
                        [[unroll]] for (uint i = pair * BLOCK_VECTORS; i < (pair + 1) * BLOCK_VECTORS && i < W_LOADS;
                                i++) {
                                uint at = i * 32 + lane, q = at % (16 * BLOCK_VECTORS);
                                uint base = stage + (at / (16 * BLOCK_VECTORS) - pair * 2) * 16 * STRIDE;
                                uvec4 low = TYPE == TDM_VK_Q4_0 ? tdm_weights4(w[i] << 4) : w[i] ^ 0x80808080u,
                                        high = tdm_weights4(w[i]);

                                if (W_ITEMS % 32 != 0 && at >= W_ITEMS)
                                        break;
                                // four words of one output; one word of four outputs
                                [[unroll]] for (uint c = 0; c < 4; c++)
                                        s_words[DEINTERLEAVED ?
                                                base + q / BLOCK_VECTORS * STRIDE + q % BLOCK_VECTORS * 4 + c
                                                       : base + (q % 4 * 4 + c) * STRIDE + q / 4] = low[c];
                                if (TYPE == TDM_VK_Q4_0)
                                        [[unroll]] for (uint c = 0; c < 4; c++)
                                                s_words[4 + (DEINTERLEAVED ? base + q * STRIDE + c :
                                                        base + (q % 4 * 4 + c) * STRIDE + q / 4)] =
                                                        high[c];
                        }
                        sync();
                        if (pair == 0) {
                                load_rows(next);
                                load_scales(next);
                        }
                        load_weights(next, pair);
                        [[unroll]] for (uint i = pair * 2; i < pair * 2 + 2 && i < PANELS; i++) {
                                uint at = stage + SCALES + i * 16 + own * 2;
                                vec2 w_scale = vec2(uintBitsToFloat(s_words[at]), uintBitsToFloat(s_words[at + 1]));
                                WEIGHTS a;

                                coopMatLoad(a, s_words, stage + (i - pair * 2) * 16 * STRIDE, STRIDE,
                                        gl_CooperativeMatrixLayoutRowMajor);
                                [[unroll]] for (uint t = 0; t < TILES; t++) {
                                        uint sum_at = (i * TILES + t) * 4;
                                        RESULT sum32 = coopMatMulAdd(a, rows[t * PLANES], RESULT(0));

                                        if (ACT == TDM_VK_ACT_I16) {
                                                sum32 = sum32 * TDM_VK_I16_STEP;
                                                sum32 = coopMatMulAdd(a, rows[t * PLANES + 1], sum32);
                                        }
                                        [[unroll]] for (uint e = 0; e < 4; e++) {
                                                precise float weighted = float(sum32[e]) * w_scale[e / 2];
                                                precise float sum = fma(weighted, x_scales[t][e % 2], acc[sum_at + e]);

                                                acc[sum_at + e] = sum;
                                        }
                                }
                        }
                }
        }

        uint n_segments = (nb + length - 1) / length;

        [[unroll]] for (uint pass = 0; pass < (PANELS + AT_ONCE - 1) / AT_ONCE; pass++) {
                barrier();
                [[unroll]] for (uint i = 0; i < AT_ONCE; i++)
                        if (pass * AT_ONCE + i < PANELS)
                                [[unroll]] for (uint t = 0; t < TILES; t++)
                                        [[unroll]] for (uint e = 0; e < 4; e++)
                                                s_words[((segment * AT_ONCE + i) * TILES * 8 + t * 8 + quad * 2 +
                                                        e % 2) * PART_STRIDE +
                                                        own + e / 2 * 8] = floatBitsToUint(acc[((pass * AT_ONCE + i) *
                                                        TILES + t) * 4 + e]);
                barrier();

                uint r = gl_LocalInvocationID.x / 16, out_in_panel = gl_LocalInvocationID.x % 16,
                        at = r * PART_STRIDE + out_in_panel;
                uint panel = pass * AT_ONCE + r / (TILES * 8), row = row0 + r % (TILES * 8);
                uint out_index = (panel0 + panel) * 16 + out_in_panel;
                float parts[TDM_VK_SEGMENTS]; // asked for at once
                precise float sum;

                [[unroll]] for (uint s = 0; s < TDM_VK_SEGMENTS; s++)
                        parts[s] = uintBitsToFloat(s_words[s * AT_ONCE * TILES * 8 * PART_STRIDE + at]);
                sum = parts[0];
                [[unroll]] for (uint s = 1; s < TDM_VK_SEGMENTS; s++)
                        if (s < n_segments)
                                sum += parts[s];
                if (panel < PANELS && row < p.n_rows && out_index < p.n_out)
                        F32s(p.y + (uint64_t(row) * p.y_stride + out_index) * 4).v[0] = sum;
        }
        tdm_chain_done(p.chain, p.chain_index);
}
