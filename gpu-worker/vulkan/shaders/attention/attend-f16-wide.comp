#version 460
// Flash attention of many rows on the device's f16 matrix units: see attend-f16.glsl. Each subgroup has its own queries
// (of a head with more than 128 dimensions two share them and each makes half of the result) and walks through the
// blocks, so that all use what each loads a quarter of: it goes through shared memory, as the registers have it, and
// the next is on its way while one is used. What an item has so far waits where it is left in the end: between spans no
// registers are left for it. Partial results are left for merge.comp.
//
// Kept compiled (compile.py): it needs a compiler that knows cooperative matrices.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#define WORKERS 128
#define THREADS WORKERS
#define QUERIES_AT_ONCE 4
layout(local_size_x = THREADS) in;
layout(constant_id = 2) const uint TILES = 4; // of 16 queries: four, or two where a head has more than 128 dimensions
layout(constant_id = 3) const uint FORM = 1;  // heads
layout(push_constant) uniform Push { tdm_vk_attend_push p; };
#include "gpu-worker/vulkan/shaders/attention/attend-f16.glsl"

const uint OWN_PARTS = PARTS > 2 ? 2 : PARTS; // that a subgroup makes
// 16-byte loads of a thread that are under way at once, of keys for so many times 16 dimensions, of values for so many
// times 16 keys by 64 dimensions. [load][subgroup that loads][thread]
const uint STAGE = HEAD_DIM >= 128 ? 8 : 4;
const uint VALUE_STAGES = 4 * PARTS / STAGE, STAGE_PASSES = STAGE / PARTS; // of a block; passes of 16 keys
shared uvec4 s_stage[STAGE * 4 * 32];

// Thread t of a subgroup has, of queries g = t / 4 and g + 8, the keys 16 q … 16 q + 15 of a block, q = t % 4: that is
// where products with key 8 g + j as the unit's column g leave them, and where it reads probabilities.
//
// Of a block, where a thread's loads begin in its keys' page, and its values': s_parts[2 block + own / 4], s_parts[2
// block + quad / 2].
#define KEY_OFFSET(own, quad) ((own % 4 / 2 * HEAD_DIM + quad) * 32 + own % 2 * 16)
#define VALUE_OFFSET(own, quad) (p.part_bytes / 2 + (quad % 2 * 16 * HEAD_DIM + own * 8) * 2)

// B's columns c, c + 1, c + 8 and c + 9 of each j are elements j of four loads.
#define TIMES(a, x, at, to, first) \
        [[unroll]] for (uint j = 0; j < 8; j++) { \
                UNIT_B b_; \
\
                [[unroll]] for (uint e = 0; e < 4; e++) \
                        b_[e] = F16X2(x[(at) + e][j / 2])[j % 2]; \
                to[(first) + j] = coopMatMulAdd(a, b_, to[(first) + j]); \
        }
// Sixteen dimensions, from 16 k on, of tile `tile`.
#define QUERY(a, tile, k) { \
        uvec4 words_ = s_query[((tile) * STEPS + (k)) * 32 + lane]; \
\
        [[unroll]] for (uint e = 0; e < 8; e++) \
                a[e] = F16X2(words_[e / 2])[e % 2]; }

// Of scores s, of the block at key `key0`, what each of a thread's OWN queries sees, and the largest of it, in here[].
// all_seen: all do all.
#define LOOK(key0, OWN, all_seen) \
        [[unroll]] for (uint r = 0; r < OWN; r++) { \
                int last_ = int(position[r]) - int(key0), \
                        low_ = int(tdm_first_seen(position[r], p.window)) - int(key0); \
\
                if (!(all_seen)) \
                        [[unroll]] for (uint j = 0; j < 8; j++) \
                                [[unroll]] for (uint e = 0; e < 2; e++) { \
                                        int key_ = int(quad * 16 + e * 8 + j); \
\
                                        s[j][r * 2 + e] = key_ <= last_ && key_ >= low_ ? s[j][r * 2 + e] : -3.0e38; \
                                } \
                here[r] = LEAST; \
                [[unroll]] for (uint j = 0; j < 8; j++) \
                        [[unroll]] for (uint e = 0; e < 2; e++) \
                                here[r] = max(here[r], s[j][r * 2 + e]); \
                here[r] = quad_max(here[r]); \
        }
// Probabilities against m, as the units read them, and their sum.
#define WEIGH(OWN) \
        [[unroll]] for (uint r = 0; r < OWN; r++) { \
                precise float sum_ = 0; \
\
                [[unroll]] for (uint e = 0; e < 2; e++) \
                        [[unroll]] for (uint j = 0; j < 8; j++) { \
                                precise float distance_ = s[j][r * 2 + e] - m[r]; \
                                precise float exponent_ = distance_ * to_exponent; \
                                float prob_ = exp2(exponent_); \
\
                                sum_ += prob_; \
                                probs[e * 2 + j / 4][r * 4 + j % 4] = float16_t(prob_); \
                        } \
                sums[r] = quad_sum(sum_); \
        }

void main()
{
        uint lane = gl_SubgroupInvocationID, own = lane / 4, quad = lane % 4, subgroup = gl_SubgroupID;
        uint tile = subgroup % TILES, dims0 = subgroup / TILES * 128;
        tdm_attend a = attend_begin();
        uint query[2] = uint[2](tile * 16 + own, tile * 16 + own + 8);
        uint position[2] = uint[2](a.item.position + query_row(query[0], a.item.n_rows),
                a.item.position + query_row(query[1], a.item.n_rows));
        uint key_offset = KEY_OFFSET(own, quad), value_offset = VALUE_OFFSET(own, quad);
        precise float to_exponent = p.score_scale * LOG2E;
        tdm_running running[2];
        SUMS s[8];
        UNIT_A probs[4];
        float m[2], l[2], fade[2]; // fade: what a new m makes of what was there

        running[0] = running[1] = tdm_running(0, 0);
        [[unroll]] for (uint pass = 0; pass < 4; pass++)
                probs[pass] = UNIT_A(0.0hf);
        for (uint span = a.item.span_first; span <= a.item.span_last; span++) {
                uint base = span * TDM_VK_SPAN;
                // seen by any row of the item
                uint lo = max(a.begin, base) - base, hi = min(a.end, base + TDM_VK_SPAN) - base;
                SUMS total[OWN_PARTS * 8];

                attend_pages(a, base, lo, hi, span == a.item.span_first);

                uint block_end = (hi + 63) / 64;
                uint64_t keys = s_parts[lo / 64 * 2 + own / 4] + key_offset, values;
                uvec4 x[STAGE];

#define LOAD_KEYS(k0) \
        [[unroll]] for (uint i = 0; i < STAGE; i++) \
                x[i] = Cache4s(keys).v[((k0) + i) * 32 + subgroup * 8];
#define LOAD_VALUES(pass0) \
        [[unroll]] for (uint i = 0; i < STAGE; i++) \
                x[i] = Cache4s(values).v[(((pass0) + i / PARTS) * 4 + subgroup) * (HEAD_DIM / 8) + i % PARTS * 8];
#define PUT_STAGE \
        barrier(); \
        [[unroll]] for (uint i = 0; i < STAGE; i++) \
                s_stage[(i * 4 + subgroup) * 32 + lane] = x[i];
#define TIMES_STAGED(a, i, to, first) { \
        uvec4 y_[4]; \
\
        [[unroll]] for (uint e = 0; e < 4; e++) \
                y_[e] = s_stage[((i) * 4 + e) * 32 + lane]; \
        TIMES(a, y_, 0, to, first) }
// Values of the v-th stage of a block. Written out where there are two: probabilities must be known by their index.
#define VALUE_STAGE(v) \
        if (v < VALUE_STAGES) { \
                PUT_STAGE \
                if (v + 1 < VALUE_STAGES) { \
                        LOAD_VALUES(STAGE_PASSES) \
                } else { \
                        keys = s_parts[min(block + 1, block_end - 1) * 2 + own / 4] + key_offset; \
                        LOAD_KEYS(0) /* past the end: any, not used */ \
                } \
                barrier(); \
                [[unroll]] for (uint part = 0; part < OWN_PARTS; part++) { \
                        if (v == 0) \
                                [[unroll]] for (uint j = 0; j < 8; j++) \
                                        o[part * 8 + j] = SUMS(0.0); \
                        [[unroll]] for (uint pass = 0; pass < STAGE_PASSES; pass++) \
                                TIMES_STAGED(probs[v * STAGE_PASSES + pass], pass * PARTS + dims0 / 64 + part, o, \
                                        part * 8) \
                        if (v + 1 == VALUE_STAGES) \
                                [[unroll]] for (uint j = 0; j < 8; j++) \
                                        [[unroll]] for (uint e = 0; e < 4; e++) { \
                                                precise float faded_ = \
                                                        fma(total[part * 8 + j][e], fade[e / 2], o[part * 8 + j][e]); \
\
                                                total[part * 8 + j][e] = faded_; \
                                        } \
                } \
        }
                [[unroll]] for (uint i = 0; i < OWN_PARTS * 8; i++)
                        total[i] = SUMS(0.0);
                [[unroll]] for (uint r = 0; r < 2; r++) {
                        m[r] = LEAST;
                        l[r] = 0;
                }
                LOAD_KEYS(0)
                LOADS_STAY
                if (span == a.item.span_first)
                        [[dont_unroll]] for (uint i0 = gl_LocalInvocationID.x; i0 < TILES * 16 * STEPS;
                                i0 += QUERIES_AT_ONCE * THREADS)
                                stage_queries(a, TILES * 16, i0); // seen behind the next barriers
                for (uint block = lo / 64; block < block_end; block++) {
                        float here[2], sums[2];
                        SUMS o[OWN_PARTS * 8];

                        values = s_parts[block * 2 + quad / 2] + value_offset;
                        [[unroll]] for (uint j = 0; j < 8; j++)
                                s[j] = SUMS(0.0);
                        [[dont_unroll]] for (uint k0 = 0; k0 < STEPS; k0 += STAGE) {
                                PUT_STAGE
                                if (k0 + STAGE < STEPS)
                                        LOAD_KEYS(k0 + STAGE)
                                else
                                        LOAD_VALUES(0)
                                barrier(); // loads are not moved behind it
                                [[unroll]] for (uint k = 0; k < STAGE; k++) {
                                        UNIT_A q;

                                        QUERY(q, tile, k0 + k)
                                        TIMES_STAGED(q, k, s, 0)
                                }
                        }
                        LOOK(base + block * 64, 2, base + block * 64 + 63 <= a.item.position &&
                                base + block * 64 >= tdm_first_seen(a.end - 1, p.window))
                        [[unroll]] for (uint r = 0; r < 2; r++) {
                                float next = max(m[r], here[r]);
                                precise float distance = m[r] - next;
                                precise float exponent = distance * to_exponent;

                                fade[r] = exp2(exponent);
                                m[r] = next;
                        }
                        WEIGH(2)
                        [[unroll]] for (uint r = 0; r < 2; r++) {
                                precise float faded = fma(l[r], fade[r], sums[r]);

                                l[r] = faded;
                        }
                        VALUE_STAGE(0)
                        VALUE_STAGE(1)
                }
// Dimensions 4 i … 4 i + 3 of a part's 16 that a thread has, of query r.
#define TOTALS(i, r) \
        vec4(total[i / 4 * 8 + i % 2 * 4][r * 2 + i % 4 / 2], total[i / 4 * 8 + i % 2 * 4 + 1][r * 2 + i % 4 / 2], \
             total[i / 4 * 8 + i % 2 * 4 + 2][r * 2 + i % 4 / 2], total[i / 4 * 8 + i % 2 * 4 + 3][r * 2 + i % 4 / 2])
                // Into what the item has so far, which waits where it is left in the end.
                [[unroll]] for (uint r = 0; r < 2; r++) {
                        uint64_t slot = p.partial + uint64_t(a.item.slot + query[r] / HEADS * p.n_heads + a.head0 +
                                query[r] % HEADS) * TDM_VK_PARTIAL_WIDTH(HEAD_DIM) * 4 +
                                        (dims0 + quad * 16) * 4;
                        float old_factor = 1, new_factor = 0;
                        vec4 before[OWN_PARTS * 4]; // all asked for before the first is written
                        bool used = query[r] / HEADS < a.item.n_rows;

                        if (l[r] > 0)
                                tdm_merge(running[r], m[r] * p.score_scale, l[r], old_factor, new_factor);
                        if (span == a.item.span_first) {
                                if (used)
                                        [[unroll]] for (uint i = 0; i < OWN_PARTS * 4; i++)
                                                F32x4s(slot).v[i / 4 * 16 + i % 4] = TOTALS(i, r);
                                continue;
                        }
                        if (used)
                                [[unroll]] for (uint i = 0; i < OWN_PARTS * 4; i++)
                                        before[i] = F32x4s(slot).v[i / 4 * 16 + i % 4];
                        if (used)
                                [[unroll]] for (uint i = 0; i < OWN_PARTS * 4; i++) {
                                        precise vec4 add = TOTALS(i, r) * new_factor;
                                        precise vec4 merged = fma(before[i], vec4(old_factor), add);

                                        F32x4s(slot).v[i / 4 * 16 + i % 4] = merged;
                                }
                }
        }

        [[unroll]] for (uint r = 0; r < 2; r++)
                if (quad == 0 && dims0 == 0 && query[r] / HEADS < a.item.n_rows) {
                        uint64_t slot = p.partial + uint64_t(a.item.slot + query[r] / HEADS * p.n_heads + a.head0 +
                                query[r] % HEADS) * TDM_VK_PARTIAL_WIDTH(HEAD_DIM) * 4;

                        F32s(slot).v[HEAD_DIM] = running[r].m;
                        F32s(slot).v[HEAD_DIM + 1] = running[r].l;
                }
        tdm_chain_done_all(p.chain, p.chain_index);
}
