#version 460
// y = x Wᵀ for up to 32 rows a workgroup, on the device's f16 matrix units: see f16.glsl. A workgroup makes PANELS
// times 16 outputs of TILES times 8 rows; each of its subgroups takes ROUNDS segments of K, one after the other, and
// after each round all add what they have. With GELU half of the panels are of the first matrix, the others of the
// second, and what is left is gelu(first) times second, rounded for the matrix behind. Weights and rows of the next
// chunk are on their way while one is multiplied, in two sets of registers and a loop that is written twice: copies
// from one to the other would wait for what is on its way. It is written no more often: what the kernels of a layer are
// together should fit a multiprocessor's instruction cache, as each is begun anew for each layer.
//
// Kept compiled (compile.py): it needs a compiler that knows cooperative matrices.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "gpu-worker/vulkan/shaders/common/common.glsl"
layout(local_size_x_id = 2) in;
layout(constant_id = 0) const uint FORM = TDM_VK_Q4_0 | TDM_VK_FRAGMENTS;
layout(constant_id = 1) const uint SHAPE = TDM_VK_MATMUL_F16_SHAPE(1, 2, 1, 0);
layout(constant_id = 2) const uint THREADS = 512;
#ifdef EXPERTS
#include "gpu-worker/vulkan/shaders/common/shared-experts.h"
layout(push_constant) uniform Push { tdm_vk_experts_f16_push p; };
#else
layout(push_constant) uniform Push { tdm_vk_matmul_push p; };
#endif
const uint ACT = TDM_VK_ACT_F16;
// For few rows, or four panels: found on an H200.
const bool FUSED = (TDM_VK_MATMUL_F16_TILES(SHAPE) <= 1 ? 4 : TDM_VK_MATMUL_F16_PANELS(SHAPE)) >= 4;
#include "gpu-worker/vulkan/shaders/common/panels.glsl"
#include "gpu-worker/vulkan/shaders/common/f16-experts.glsl"
#include "gpu-worker/vulkan/shaders/common/f16.glsl"
#include "gpu-worker/vulkan/shaders/ffn/activate.glsl"
#include "gpu-worker/vulkan/shaders/common/fragments.glsl"
#ifdef EXPERTS
#define FIRST_TILE 0
#define X_TILE(t) item_row_at(t * 8 + lane / 4) + quad * 16
#else
#define FIRST_TILE gl_WorkGroupID.y * TILES
// Of a tile's rows that are not there the last one again: what is not brought does not take the caches' time.
#define X_TILE(t) p.x + uint64_t(tile0 + t) * (p.cols * 16) + \
        min(lane, (min(p.n_rows - min((tile0 + t) * 8 + 1, p.n_rows), 7) * 4) + quad) * 16
#endif

const bool GELU = TDM_VK_F16_SHAPE_GELU(SHAPE) != 0;
const uint ACTIVATION = TDM_VK_F16_SHAPE_ACTIVATION(SHAPE);
const uint TILES = TDM_VK_MATMUL_F16_TILES(SHAPE), PANELS = TDM_VK_MATMUL_F16_PANELS(SHAPE),
           ROUNDS = TDM_VK_MATMUL_F16_ROUNDS(SHAPE);
const uint SUBGROUPS = THREADS / 32;
const uint COLUMNS = TILES * 8; // rows of a result
// panels whose segments are added at once
const uint AT_ONCE = GELU ? PANELS / 2 : TILES == 1 || PANELS < 2 ? PANELS : 2;
const uint PASSES = (PANELS + AT_ONCE - 1) / AT_ONCE;
const uint ITEMS = (AT_ONCE * COLUMNS + 2 * SUBGROUPS - 1) / (2 * SUBGROUPS); // that a thread adds in a pass
const uint PART_STRIDE = 20; // floats of a row's 16 outputs in shared memory: no bank twice

shared float s_part[SUBGROUPS * AT_ONCE * COLUMNS * PART_STRIDE];
TABLE_ROOM(SUBGROUPS * AT_ONCE * COLUMNS * PART_STRIDE * 4)

uint panel_of(uint i)
{
        return GELU ? (i < PANELS / 2 ? gl_WorkGroupID.x * (PANELS / 2) + i :
                p.panel1 + gl_WorkGroupID.x * (PANELS / 2) + i - PANELS / 2)
                    : FIRST_PANEL + gl_WorkGroupID.x * PANELS + i;
}

void main()
{
        uint lane = UNIT_LANE, subgroup = UNIT_INDEX, own = lane / 4, quad = lane % 4,
                chunks = p.cols / 64;
        uint length = TDM_VK_SEGMENT_CHUNKS(p.cols), tile0 = FIRST_TILE, row0 = tile0 * 8;
        uint last_panel = (p.n_out + 15) / 16 - 1, quants = QUANTS_AT(chunks);
        CHAIN_WAIT_ITEM
        SUMS acc[PANELS * TILES];
        uvec4 w0[PANELS * LOADS], w1[PANELS * LOADS], x0[TILES * 2], x1[TILES * 2];
        SCALES scales0[PANELS], scales1[PANELS];
        HIGH_BITS(high0, PANELS)
        HIGH_BITS(high1, PANELS)
        uint64_t at[PANELS], x_at[TILES];
        float sums[PASSES * ITEMS];

        HALF_CONSTANTS
        TABLE
        [[unroll]] for (uint i = 0; i < PANELS; i++)
                at[i] = panel_address(min(panel_of(i), last_panel));
        [[unroll]] for (uint t = 0; t < TILES; t++)
                x_at[t] = X_TILE(t);
#define LOAD_WEIGHTS(w, scales, high, c) \
        [[unroll]] for (uint i = 0; i < PANELS; i++) { \
                LOAD_PANEL(w, scales, high, i, at[i], c) \
        }
#define LOAD_ROWS(x, c) \
        [[unroll]] for (uint t = 0; t < TILES; t++) \
                [[unroll]] for (uint h = 0; h < 2; h++) \
                        x[t * 2 + h] = Act32x4s(x_at[t]).v[(c) * 64 + h * 32];
#define MULTIPLY(w, scales, high, x) \
        [[unroll]] for (uint i = 0; i < PANELS; i++) \
                [[unroll]] for (uint j = 0; j < 4; j++) { \
                        UNIT_A a; \
\
                        FRAGMENT(a, w, scales, high, i, j) \
                        [[unroll]] for (uint t = 0; t < TILES; t++) { \
                                UNIT_B b; \
\
                                ROWS_FRAGMENT(b, x[t * 2 + j / 2][j % 2 * 2], x[t * 2 + j / 2][j % 2 * 2 + 1]) \
                                acc[i * TILES + t] = coopMatMulAdd(a, b, acc[i * TILES + t]); \
                        } \
                }
        if (subgroup * length < chunks)
                LOAD_WEIGHTS(w0, scales0, high0, subgroup * length)
        CHAIN_WAIT

        // What is loaded last in a round is the first of the next one; in the last round it is in vain.
        if (subgroup * length < chunks)
                LOAD_ROWS(x0, subgroup * length)
        [[dont_unroll]] for (uint round = 0; round < ROUNDS; round++) {
                uint c0 = (round * SUBGROUPS + subgroup) * length, c = c0, c1 = UNIT_END(c0, length, chunks);
                uint next_round = c0 + SUBGROUPS * length,
                        after = round + 1 < ROUNDS && next_round < chunks ? next_round : c1 - 1;

                [[unroll]] for (uint i = 0; i < PANELS * TILES; i++)
                        acc[i] = SUMS(0.0);
                if (UNIT_HAS_WORK(c0 < chunks))
                        for (;;) {
                                uint next = c + 1 < c1 ? c + 1 : after, second = c + 2 < c1 ? c + 2 : after;

                                LOAD_ROWS(x1, next)
                                LOAD_WEIGHTS(w1, scales1, high1, next)
                                LOADS_STAY
                                UNIT_COUNTS(c < chunks)
                                MULTIPLY(w0, scales0, high0, x0)
                                if (c + 1 >= c1) {
                                        [[unroll]] for (uint i = 0; i < PANELS * LOADS; i++)
                                                w0[i] = w1[i];
                                        [[unroll]] for (uint i = 0; i < PANELS; i++)
                                                scales0[i] = scales1[i];
                                        HIGH_BITS_COPY(high0, high1, PANELS)
                                        [[unroll]] for (uint i = 0; i < TILES * 2; i++)
                                                x0[i] = x1[i];
                                        break;
                                }
                                LOAD_ROWS(x0, second)
                                LOAD_WEIGHTS(w0, scales0, high0, second)
                                LOADS_STAY
                                UNIT_COUNTS(c + 1 < chunks)
                                MULTIPLY(w1, scales1, high1, x1)
                                if (c + 2 >= c1)
                                        break;
                                c += 2;
                        }
                [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
                        if (pass + round != 0)
                                barrier();
                        [[unroll]] for (uint i = 0; i < AT_ONCE; i++)
                                if (pass * AT_ONCE + i < PANELS)
                                        [[unroll]] for (uint t = 0; t < TILES; t++)
                                                [[unroll]] for (uint e = 0; e < 4; e++)
                                                        s_part[((subgroup * AT_ONCE + i) * COLUMNS + t * 8 +
                                                                quad * 2 + e % 2) * PART_STRIDE + own + e / 2 * 8] =
                                                                acc[(pass * AT_ONCE + i) * TILES + t][e];
                        barrier();
                        [[unroll]] for (uint k = 0; k < ITEMS; k++) {
                                uint r = min(gl_LocalInvocationID.x / 16 + k * 2 * SUBGROUPS, AT_ONCE * COLUMNS - 1);
                                uint part_at = r * PART_STRIDE + gl_LocalInvocationID.x % 16;
                                float parts[SUBGROUPS]; // asked for at once
                                precise float sum;

                                [[unroll]] for (uint s = 0; s < SUBGROUPS; s++)
                                        parts[s] = s_part[s * AT_ONCE * COLUMNS * PART_STRIDE + part_at];
                                sum = round == 0 ? parts[0] : sums[pass * ITEMS + k] + parts[0];
                                [[unroll]] for (uint s = 1; s < SUBGROUPS; s++)
                                        sum += parts[s];
                                sums[pass * ITEMS + k] = sum;
                        }
                }
        }

        uint out_in_panel = gl_LocalInvocationID.x % 16;

        [[unroll]] for (uint k = 0; k < ITEMS; k++) {
                uint r = gl_LocalInvocationID.x / 16 + k * 2 * SUBGROUPS, i = r / COLUMNS, row = row0 + r % COLUMNS;
                bool used = r < AT_ONCE * COLUMNS && row < N_ROWS;

                if (GELU) { // panel i is of the first pass, i + PANELS / 2 of the second
                        uint out_index = (gl_WorkGroupID.x * (PANELS / 2) + i) * 16 + out_in_panel;
                        precise float x = clamp(tdm_activate(ACTIVATION,
                                BIASED(sums[k] * p.y_scale, p.bias0, out_index),
                                BIASED(sums[ITEMS + k] * p.y_scale, p.bias1, out_index)) * p.act_scale, -65504.0,
                                65504.0);
                        uint f16_bits = tdm_to_f16(isnan(x) ? 0.0 : x), beside = UNIT_SHUFFLE_XOR(f16_bits, 1);

                        if (used && out_in_panel % 2 == 0 && out_index < p.panel1 * 16)
                                Act32s(tdm_fragment_row(p.acts, p.panel1 * 16, OUT_ROW(row)))
                                        .v[tdm_fragment_word(out_index, false)] = f16_bits | beside << 16;
                } else {
                        [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
                                uint out_index = panel_of(pass * AT_ONCE + i) * 16 + out_in_panel;

                                if (used && pass * AT_ONCE + i < PANELS && out_index < p.n_out)
                                        F32s(p.y + uint64_t(OUT_ROW(row)) * p.y_stride * 4).v[out_index] =
                                                BIASED(sums[pass * ITEMS + k] * p.y_scale, p.bias0,
                                                       out_index);
                        }
                }
        }
        tdm_chain_done(p.chain, p.chain_index);
}
