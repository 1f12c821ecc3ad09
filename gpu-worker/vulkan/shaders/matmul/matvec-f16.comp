#version 460
// y = x Wᵀ of a single row, on the device's f16 matrix units: see f16.glsl. A workgroup has GROUPS groups of subgroups,
// each with PANELS times 16 outputs of its own, and K is cut among a group's subgroups: each takes ROUNDS segments that
// lie beside each other, one after the other, and puts each one's sums into shared memory. Once all have, the segments
// are added in order. With GELU half of a group's panels are of the first matrix, the others of the second, and what is
// left is gelu(first) times second, rounded for the matrix behind. What is under way of weights is SETS chunks of each
// thread: all are asked for before the row is there, and each again when it is used up, across segments.
//
// Kept compiled (compile.py): it needs a compiler that knows cooperative matrices.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "gpu-worker/vulkan/shaders/common/common.glsl"
layout(local_size_x_id = 2) in;
layout(constant_id = 0) const uint FORM = TDM_VK_Q4_0 | TDM_VK_FRAGMENTS;
// groups; panels; rounds, 4 bits; sets, 4 bits; with GELU, from 1 << 24 on: which activation
layout(constant_id = 1) const uint SHAPE = TDM_VK_MATVEC_F16_SHAPE(1, 2, 1, 1, 0);
layout(constant_id = 2) const uint THREADS = 512;
layout(constant_id = 3) const uint CHUNKS = 1; // of a segment, at most
#ifdef EXPERTS
#include "gpu-worker/vulkan/shaders/common/shared-experts.h"
layout(push_constant) uniform Push { tdm_vk_experts_f16_push p; };
#else
layout(push_constant) uniform Push { tdm_vk_matmul_push p; };
#endif
const uint ACT = TDM_VK_ACT_F16;
const bool FUSED = true;
#include "gpu-worker/vulkan/shaders/common/panels.glsl"
#include "gpu-worker/vulkan/shaders/common/f16-experts.glsl"
#include "gpu-worker/vulkan/shaders/common/f16.glsl"
#include "gpu-worker/vulkan/shaders/ffn/activate.glsl"
#include "gpu-worker/vulkan/shaders/common/fragments.glsl"
// Where the row, its products and what is left of them lie; of experts the y-th workgroup has the row's y-th.
#ifdef EXPERTS
#define X_ROW (p.slot_rows != 0 ? p.x : tdm_fragment_row(p.x, p.cols, gl_WorkGroupID.y))
#define Y_ROW (p.y + uint64_t(gl_WorkGroupID.y) * p.y_stride * 4)
#define ACTS_ROW tdm_fragment_row(p.acts, p.panel1 * 16, gl_WorkGroupID.y)
#else
#define X_ROW p.x
#define Y_ROW p.y
#define ACTS_ROW p.acts
#endif

const uint GROUPS = TDM_VK_MATVEC_F16_GROUPS(SHAPE), PANELS = TDM_VK_MATVEC_F16_PANELS(SHAPE),
           ROUNDS = TDM_VK_MATVEC_F16_ROUNDS(SHAPE), SETS = TDM_VK_MATVEC_F16_SETS(SHAPE);
const bool GELU = TDM_VK_F16_SHAPE_GELU(SHAPE) != 0;
const uint ACTIVATION = TDM_VK_F16_SHAPE_ACTIVATION(SHAPE);
const uint PARTS = THREADS / 32 / GROUPS;                  // of K
const uint OWN = GELU ? PANELS / 2 : PANELS;               // panels of a result that a group makes
const uint RESULTS = GROUPS * OWN * 16;                    // of a workgroup
const uint ITEMS = (RESULTS + THREADS - 1) / THREADS;      // of a thread
const uint AT_ONCE = 6; // 16 bytes of a row that a thread asks for
// a subgroup is the only one that reads its part of the row, and brings it itself
const bool ALONE = GROUPS == 1;
const uint BRINGERS = ALONE ? 32 : THREADS;
// of 16 bytes, of a row, that a thread brings
const uint PIECES = ((ALONE ? 1 : PARTS) * ROUNDS * CHUNKS * 8 + BRINGERS - 1) / BRINGERS;

shared float s_part[PARTS * ROUNDS * GROUPS * PANELS * 16]; // [segment][panel][output]
shared uvec4 s_row[PARTS * ROUNDS * CHUNKS * 8];            // [chunk][half][quad]
TABLE_ROOM(PARTS * ROUNDS * (GROUPS * PANELS * 64 + CHUNKS * 128))

// The i-th of a group's panels.
uint panel_of(uint group, uint i)
{
        uint first = (gl_WorkGroupID.x * GROUPS + group) * OWN;

        return GELU ? (i < OWN ? first + i : p.panel1 + first + i - OWN) : FIRST_PANEL + first + i;
}

// The row into shared memory, or the subgroup's chunks begin … end - 1 of it.
void stage(uint begin, uint end, uint chunks)
{
        uint thread = gl_LocalInvocationID.x, flag = tdm_flag_read(p.chain_index, p.chain_wait);
        uint first = ALONE ? begin * 8 + UNIT_LANE : thread, n = (ALONE ? end : chunks) * 8;

#define LOOK_FLAGGED \
        tdm_flagged(X_ROW, thread * (p.cols / 64), flag, there);
        if (flag != 0) {
                // A few words of the row are looked at until they are there: see matvec.glsl.
                if (thread < 32)
                        TDM_UNTIL(p.chain, there, LOOK_FLAGGED)
                barrier();
        }
        [[dont_unroll]] for (uint k0 = 0; k0 < PIECES; k0 += AT_ONCE) {
                uvec4 row[AT_ONCE];

#define STAGE_FLAGGED \
                [[unroll]] for (uint k = 0; k < min(AT_ONCE, PIECES); k++) \
                        row[k] = tdm_flagged4(X_ROW, min((k0 + k) * BRINGERS + first, n - 1), flag, there);
                if (flag != 0) {
                        TDM_UNTIL(p.chain, there, STAGE_FLAGGED)
                } else {
                        [[unroll]] for (uint k = 0; k < min(AT_ONCE, PIECES); k++) {
                                uint i = min((k0 + k) * BRINGERS + first, n - 1);

                                row[k] = Act32x4s(X_ROW).v[i / 8 * 64 + i / 4 % 2 * 32 + i % 4];
                        }
                }
                [[unroll]] for (uint k = 0; k < min(AT_ONCE, PIECES); k++)
                        if ((k0 + k) * BRINGERS + first < n)
                                s_row[(k0 + k) * BRINGERS + first] = row[k];
        }
        if (ALONE) {
                UNIT_BARRIER;
        } else
                barrier();
}

void main()
{
        uint lane = UNIT_LANE, own = lane / 4, quad = lane % 4, chunks = p.cols / 64,
                length = TDM_VK_SEGMENT_CHUNKS(p.cols);
        uint group = UNIT_INDEX / PARTS, segment0 = UNIT_INDEX % PARTS * ROUNDS;
        uint last_panel = (p.n_out + 15) / 16 - 1, quants = QUANTS_AT(chunks),
                end = min((segment0 + ROUNDS) * length, chunks);
        CHAIN_WAIT_EXPERTS(Act32s(p.items).v[gl_WorkGroupID.y], 0, 0)
        SUMS acc[PANELS];
        SCALES scales[SETS * PANELS];
        uvec4 w[SETS * PANELS * LOADS];
        HIGH_BITS(high, SETS * PANELS)
        uint64_t at[PANELS];

        HALF_CONSTANTS
        TABLE
        [[unroll]] for (uint i = 0; i < PANELS; i++)
                at[i] = panel_address(min(panel_of(group, i), last_panel));
#define LOAD_SET(set, c) \
        [[unroll]] for (uint i = 0; i < PANELS; i++) { \
                LOAD_PANEL(w, scales, high, (set) * PANELS + i, at[i], c) \
        }
        if (segment0 * length < chunks)
                [[unroll]] for (uint set = 0; set < SETS; set++)
                        LOAD_SET(set, min(segment0 * length + set, end - 1))
        CHAIN_WAIT
        stage(segment0 * length, end, chunks);

        [[dont_unroll]] for (uint segment = segment0;
                segment < segment0 + ROUNDS && UNIT_HAS_WORK(segment * length < chunks); segment++) {
                uint c0 = segment * length, c1 = UNIT_END(c0, length, chunks);

                [[unroll]] for (uint i = 0; i < PANELS; i++)
                        acc[i] = SUMS(0.0);
                [[dont_unroll]] for (uint c = c0; c < c1; c += SETS)
                        [[unroll]] for (uint set = 0; set < SETS; set++) {
                                // of this segment, or the next one's
                                uint next = c + set + SETS < c1 ? c + set + SETS : c1 + set;

                                if (c + set >= c1)
                                        break;
                                uvec4 x[2];

                                UNIT_COUNTS(c + set < chunks)

                                [[unroll]] for (uint h = 0; h < 2; h++)
                                        x[h] = s_row[(c + set) * 8 + h * 4 + quad];
                                [[unroll]] for (uint i = 0; i < PANELS; i++)
                                        [[unroll]] for (uint j = 0; j < 4; j++) {
                                                UNIT_A a;
                                                UNIT_B b;

                                                FRAGMENT(a, w, scales, high, set * PANELS + i, j)
                                                ROWS_FRAGMENT(b, x[j / 2][j % 2 * 2], x[j / 2][j % 2 * 2 + 1])
                                                acc[i] = coopMatMulAdd(a, b, acc[i]);
                                        }
                                LOAD_SET(set, min(next, end - 1))
                                LOADS_STAY
                        }
                if (quad == 0)
                        [[unroll]] for (uint i = 0; i < PANELS; i++)
                                [[unroll]] for (uint e = 0; e < 2; e++)
                                        s_part[((segment * GROUPS + group) * PANELS + i) * 16 + own + e * 8] =
                                                acc[i][e * 2];
        }
        barrier();

        uint n_segments = (chunks + length - 1) / length, flag = tdm_flag_left(p.chain_index);

        [[unroll]] for (uint k = 0; k < ITEMS; k++) {
                uint item = min(gl_LocalInvocationID.x + k * THREADS, RESULTS - 1), out_in_panel = item % 16,
                        panel = item / 16;
                uint at_first = (panel / OWN * PANELS + panel % OWN) * 16 + out_in_panel;
                bool used = gl_LocalInvocationID.x + k * THREADS < RESULTS;
                float parts[PARTS * ROUNDS * (GELU ? 2 : 1)]; // asked for at once
                precise float sum = 0, second = 0;

                [[unroll]] for (uint s = 0; s < PARTS * ROUNDS; s++) {
                        parts[s] = s_part[s * (GROUPS * PANELS * 16) + at_first];
                        if (GELU)
                                parts[PARTS * ROUNDS + s] = s_part[s * (GROUPS * PANELS * 16) + at_first + OWN * 16];
                }
                [[unroll]] for (uint s = 0; s < PARTS * ROUNDS; s++) {
                        sum += s < n_segments ? parts[s] : 0;
                        if (GELU)
                                second += s < n_segments ? parts[PARTS * ROUNDS + s] : 0;
                }
                if (GELU) {
                        uint out_index = (gl_WorkGroupID.x * GROUPS * OWN + panel) * 16 + out_in_panel;
                        precise float x = clamp(tdm_activate(ACTIVATION, BIASED(sum * p.y_scale, p.bias0, out_index),
                                BIASED(second * p.y_scale, p.bias1, out_index)) * p.act_scale, -65504.0, 65504.0);
                        uint f16_bits = tdm_to_f16(isnan(x) ? 0.0 : x), beside = UNIT_SHUFFLE_XOR(f16_bits, 1);

                        if (used && out_in_panel % 2 == 0 && out_index < p.panel1 * 16)
                                tdm_put_word(ACTS_ROW, flag != 0 ? tdm_fragment_word(out_index, true) :
                                        tdm_fragment_word(out_index, false),
                                             f16_bits | beside << 16, flag);
                } else {
                        uint out_index = panel_of(panel / OWN, panel % OWN) * 16 + out_in_panel;

                        if (used && out_index < p.n_out)
                                tdm_put_word(Y_ROW, out_index,
                                             floatBitsToUint(BIASED(sum * p.y_scale, p.bias0, out_index)), flag);
                }
        }
        tdm_chain_done(p.chain, p.chain_index);
}
