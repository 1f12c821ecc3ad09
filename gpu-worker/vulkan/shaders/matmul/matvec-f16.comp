#version 460
// y = x Wᵀ of a single row, or of up to four, on the device's f16 matrix units: see f16.glsl. A workgroup has GROUPS
// groups of subgroups, each with PANELS times 16 outputs of its own, and K is cut among a group's subgroups: each
// takes ROUNDS segments that lie beside each other, one after the other, and puts each one's sums into shared memory.
// Once all have, the segments are added in order. With GELU half of a group's panels are of the first matrix, the
// others of the second, and what is left is gelu(first) times second, rounded for the matrix behind. What is under
// way of weights is SETS chunks of each thread: all are asked for before the row is there, and each again when it is
// used up, across segments.
//
// The units multiply eight rows at once: of a single row eight times the same. So ROWS cost no more products, but room
// in shared memory. There the subgroup with a group's first segments adds these up itself, in the same order, and
// leaves one sum. A row that is not there is the last one again, and what comes of it is not stored. With SEVERAL_ROWS
// it is compiled for them; without, nothing of them is in a single row's code.
//
// Kept compiled (compile.py): it needs a compiler that knows cooperative matrices.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "gpu-worker/vulkan/shaders/common/common.glsl"
layout(local_size_x_id = 2) in;
layout(constant_id = 0) const uint FORM = TDM_VK_Q4_0 | TDM_VK_FRAGMENTS;
// groups; panels; rounds, 4 bits; sets, 4 bits; with GELU, from 1 << 24 on: which activation
layout(constant_id = 1) const uint SHAPE = TDM_VK_MATVEC_F16_SHAPE(1, 2, 1, 1, 0);
layout(constant_id = 2) const uint THREADS = 512;
layout(constant_id = 3) const uint ROOM = 1; // chunks of a segment, at most; of a row; rows
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
// Where the first row, a row that is flagged, its products and what is left of them lie; of experts the y-th workgroup
// has the row's y-th.
#if defined(EXPERTS)
#define X_ROWS (p.slot_rows != 0 ? p.x : tdm_fragment_row(p.x, p.cols, gl_WorkGroupID.y))
#define X_FLAGGED(row) X_ROWS
#define Y_ROW(row, flag) (p.y + uint64_t(gl_WorkGroupID.y) * p.y_stride * 4)
#define ACTS_ROW(row, flag) tdm_fragment_row(p.acts, p.panel1 * 16, gl_WorkGroupID.y)
#elif !defined(SEVERAL_ROWS)
#define X_ROWS p.x
#define X_FLAGGED(row) p.x
#define Y_ROW(row, flag) p.y
#define ACTS_ROW(row, flag) p.acts
#else
#define X_ROWS p.x
#define X_FLAGGED(row) (p.x + uint64_t(ROWS == 1 ? 0 : (row) * p.flag_stride))
#define Y_ROW(row, flag) (ROWS == 1 ? p.y : p.y + uint64_t(row) * ((flag) != 0 ? p.flag_stride : p.y_stride * 4))
#define ACTS_ROW(row, flag) (ROWS == 1 ? p.acts : (flag) != 0 ? p.acts + uint64_t((row) * p.flag_stride) \
                                                              : tdm_fragment_row(p.acts, p.panel1 * 16, row))
#define LAST_ROW (ROWS == 1 ? 0 : p.n_rows - 1)
#endif

const uint GROUPS = TDM_VK_MATVEC_F16_GROUPS(SHAPE), PANELS = TDM_VK_MATVEC_F16_PANELS(SHAPE),
           ROUNDS = TDM_VK_MATVEC_F16_ROUNDS(SHAPE), SETS = TDM_VK_MATVEC_F16_SETS(SHAPE);
#ifdef SEVERAL_ROWS
const uint ROWS = TDM_VK_MATVEC_F16_ROWS(ROOM), CHUNKS = TDM_VK_MATVEC_F16_CHUNKS(ROOM);
#else
const uint ROWS = 1, CHUNKS = ROOM;
#endif
const bool GELU = TDM_VK_F16_SHAPE_GELU(SHAPE) != 0;
const uint ACTIVATION = TDM_VK_F16_SHAPE_ACTIVATION(SHAPE);
const uint PARTS = THREADS / 32 / GROUPS;                  // of K
const uint OWN = GELU ? PANELS / 2 : PANELS;               // panels of a result that a group makes
const uint RESULTS = GROUPS * OWN * 16 * ROWS;             // of a workgroup
const uint ITEMS = (RESULTS + THREADS - 1) / THREADS;      // of a thread
const uint AT_ONCE = 6; // 16 bytes of a row that a thread asks for
// a subgroup is the only one that reads its part of the row, and brings it itself
const bool ALONE = GROUPS == 1;
const uint BRINGERS = ALONE ? 32 : THREADS;
// chunks of a row in shared memory (emulated, empty segments have some too); of 16 bytes, of the rows, that a thread
// brings
#ifndef SEVERAL_ROWS
const uint ALL = PARTS * ROUNDS * CHUNKS;
const uint PIECES = ((ALONE ? 1 : PARTS) * ROUNDS * CHUNKS * 8 + BRINGERS - 1) / BRINGERS;
#else
#ifdef EMULATED
const uint ALL = PARTS * ROUNDS * CHUNKS;
#else
const uint ALL = ROWS == 1 ? PARTS * ROUNDS * CHUNKS : TDM_VK_MATVEC_F16_ALL(ROOM);
#endif
const uint PIECES = ((ALONE ? ROUNDS * CHUNKS : ALL) * 8 * ROWS + BRINGERS - 1) / BRINGERS;
#endif
#ifdef SEVERAL_ROWS
// a group's first segments are added up by who has them: so many are one part
const uint JOINED = ROWS == 1 ? 1 : ROUNDS;
const uint SLOTS = PARTS * ROUNDS - JOINED + 1;
#define IS_THERE(slot) ((slot) == 0 || (slot) + JOINED - 1 < n_segments)
#else
const uint SLOTS = PARTS * ROUNDS;
#define IS_THERE(slot) ((slot) < n_segments)
#endif

shared float s_part[SLOTS * GROUPS * PANELS * 16 * ROWS]; // [segment][panel][row][output]
shared uvec4 s_row[ALL * 8 * ROWS];                       // [chunk][half][row][quad]
#define PART(slot, group, i, row, out) \
        s_part[((((slot) * GROUPS + (group)) * PANELS + (i)) * ROWS + (row)) * 16 + (out)]
TABLE_ROOM(SLOTS * GROUPS * PANELS * 64 * ROWS + ALL * 128 * ROWS)

// The i-th of a group's panels.
uint panel_of(uint group, uint i)
{
        uint first = (gl_WorkGroupID.x * GROUPS + group) * OWN;

        return GELU ? (i < OWN ? first + i : p.panel1 + first + i - OWN) : FIRST_PANEL + first + i;
}

// Of the i-th 16 bytes there, which row has them, and which they are of it.
#ifdef SEVERAL_ROWS
uint row_of_piece(uint i)
{
        return min(i / 4 % ROWS, LAST_ROW);
}

uint piece_of_row(uint i)
{
        return i / (4 * ROWS) * 4 + i % 4;
}
#else
#define row_of_piece(i) 0
#define piece_of_row(i) i
#endif

// The rows into shared memory, or the subgroup's chunks begin … end - 1 of them.
void stage(uint begin, uint end, uint chunks)
{
        uint thread = gl_LocalInvocationID.x, flag = tdm_flag_read(p.chain_index, p.chain_wait);
        uint first = ALONE ? begin * 8 * ROWS + UNIT_LANE : thread, n = (ALONE ? end : chunks) * 8 * ROWS;

#ifdef SEVERAL_ROWS
#define LOOK_FLAGGED \
        [[unroll]] for (uint r = 0; r < ROWS; r++) \
                tdm_flagged(X_FLAGGED(min(r, LAST_ROW)), thread * (p.cols / 64), flag, there);
#else
#define LOOK_FLAGGED \
        tdm_flagged(X_FLAGGED(0), thread * (p.cols / 64), flag, there);
#endif
        if (flag != 0) {
                // A few words of the row are looked at until they are there: see matvec.glsl.
                if (thread < 32)
                        TDM_UNTIL(p.chain, there, LOOK_FLAGGED)
                barrier();
        }
        [[dont_unroll]] for (uint k0 = 0; k0 < PIECES; k0 += AT_ONCE) {
                uvec4 row[AT_ONCE];

#define PIECE(k) min((k0 + (k)) * BRINGERS + first, n - 1)
#define STAGE_FLAGGED \
                [[unroll]] for (uint k = 0; k < min(AT_ONCE, PIECES); k++) \
                        row[k] = tdm_flagged4(X_FLAGGED(row_of_piece(PIECE(k))), piece_of_row(PIECE(k)), flag, there);
                if (flag != 0) {
                        TDM_UNTIL(p.chain, there, STAGE_FLAGGED)
                } else {
                        [[unroll]] for (uint k = 0; k < min(AT_ONCE, PIECES); k++) {
                                uint i = PIECE(k);

                                row[k] = Act32x4s(X_ROWS).v[i / (8 * ROWS) * 64 + i / (4 * ROWS) % 2 * 32 +
                                        row_of_piece(i) * 4 + i % 4];
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
#ifdef SEVERAL_ROWS
        precise float joined[PANELS * 4]; // the sum of this subgroup's segments
#endif
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
#ifdef SEVERAL_ROWS
        [[unroll]] for (uint i = 0; i < PANELS * 4; i++)
                joined[i] = 0;
#endif

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
#ifdef SEVERAL_ROWS
                                        x[h] = s_row[((c + set) * 2 + h) * 4 * ROWS + own % ROWS * 4 + quad];
#else
                                        x[h] = s_row[(c + set) * 8 + h * 4 + quad];
#endif
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
#ifdef SEVERAL_ROWS
                [[unroll]] for (uint i = 0; i < PANELS; i++)
                        [[unroll]] for (uint e = 0; e < 4; e++) {
                                joined[i * 4 + e] += acc[i][e];
                                if (segment >= JOINED && quad * 2 + e % 2 < ROWS)
                                        PART(segment + 1 - JOINED, group, i, quad * 2 + e % 2, own + e / 2 * 8) =
                                                acc[i][e];
                        }
#else
                if (quad == 0)
                        [[unroll]] for (uint i = 0; i < PANELS; i++)
                                [[unroll]] for (uint e = 0; e < 2; e++)
                                        s_part[((segment * GROUPS + group) * PANELS + i) * 16 + own + e * 8] =
                                                acc[i][e * 2];
#endif
        }
#ifdef SEVERAL_ROWS
        if (segment0 == 0)
                [[unroll]] for (uint i = 0; i < PANELS; i++)
                        [[unroll]] for (uint e = 0; e < 4; e++)
                                if (quad * 2 + e % 2 < ROWS)
                                        PART(0, group, i, quad * 2 + e % 2, own + e / 2 * 8) = joined[i * 4 + e];
#endif
        barrier();

        uint n_segments = (chunks + length - 1) / length, flag = tdm_flag_left(p.chain_index);

        [[unroll]] for (uint k = 0; k < ITEMS; k++) {
                uint item = min(gl_LocalInvocationID.x + k * THREADS, RESULTS - 1), out_in_panel = item % 16;
#ifdef SEVERAL_ROWS
                uint row = item / 16 % ROWS, panel = item / 16 / ROWS;
                uint at_first = ((panel / OWN * PANELS + panel % OWN) * ROWS + row) * 16 + out_in_panel;
                bool used = gl_LocalInvocationID.x + k * THREADS < RESULTS && row <= LAST_ROW;
#else
                uint panel = item / 16;
                uint at_first = (panel / OWN * PANELS + panel % OWN) * 16 + out_in_panel;
                bool used = gl_LocalInvocationID.x + k * THREADS < RESULTS;
#endif
                float parts[SLOTS * (GELU ? 2 : 1)]; // asked for at once
                precise float sum = 0, second = 0;

                [[unroll]] for (uint s = 0; s < SLOTS; s++) {
                        parts[s] = s_part[s * (GROUPS * PANELS * 16 * ROWS) + at_first];
                        if (GELU)
                                parts[SLOTS + s] = s_part[s * (GROUPS * PANELS * 16 * ROWS) + at_first +
                                        OWN * 16 * ROWS];
                }
                [[unroll]] for (uint s = 0; s < SLOTS; s++) {
                        sum += IS_THERE(s) ? parts[s] : 0;
                        if (GELU)
                                second += IS_THERE(s) ? parts[SLOTS + s] : 0;
                }
                if (GELU) {
                        uint out_index = (gl_WorkGroupID.x * GROUPS * OWN + panel) * 16 + out_in_panel;
                        precise float x = clamp(tdm_activate(ACTIVATION, BIASED(sum * p.y_scale, p.bias0, out_index),
                                BIASED(second * p.y_scale, p.bias1, out_index)) * p.act_scale, -65504.0, 65504.0);
                        uint f16_bits = tdm_to_f16(isnan(x) ? 0.0 : x), beside = UNIT_SHUFFLE_XOR(f16_bits, 1);

                        if (used && out_in_panel % 2 == 0 && out_index < p.panel1 * 16)
                                tdm_put_word(ACTS_ROW(row, flag), flag != 0 ? tdm_fragment_word(out_index, true) :
                                        tdm_fragment_word(out_index, false),
                                             f16_bits | beside << 16, flag);
                } else {
                        uint out_index = panel_of(panel / OWN, panel % OWN) * 16 + out_in_panel;

                        if (used && out_index < p.n_out)
                                tdm_put_word(Y_ROW(row, flag), out_index,
                                             floatBitsToUint(BIASED(sum * p.y_scale, p.bias0, out_index)), flag);
                }
        }
        tdm_chain_done(p.chain, p.chain_index);
}
