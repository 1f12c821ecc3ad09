#version 460
// Flash attention over pages as attend.comp, on the device's f16 matrix units: the same items and spans, the same merge. A subgroup has
// 16 queries (rows of an item, heads of one kv head) as the units' A; keys, and values, go from the cache into the registers that the units
// read as B, eight neighbouring elements a load. A span is four blocks of 64 keys. Of a single row each of four subgroups takes a block, and
// loads are used where they arrive. Of more each has its own queries (of a head with more than 128 dimensions two share them and each makes half
// of the result) and walks through the blocks, so that all use what each loads a quarter of: it goes through shared memory, as the registers have
// it, and the next is on its way while one is used.
//
// ORDER, for a query and a span: queries are f16, times a power of two; a score is one chain of the units' sums over 16 dimensions from
// zero on; m, after each block, is the largest so far; l is, of a block, for each of four threads 16 sums in order, then two and two of them; o[d]
// is, of a block, one chain of the units' sums over 16 keys from zero on, probabilities in f16; from block to block what was there is
// multiplied with what the new m makes of it, and the block's added, in one rounding. Keys that the query does not see count nothing, nor do blocks:
// they change no bit. An element of a unit's result does not depend on the other queries.
//
// Thread t of a subgroup has, of queries g = t / 4 and g + 8, the keys 16 q … 16 q + 15 of a block, q = t % 4: that is where products with
// key 8 g + j as the unit's column g leave them, and where it reads probabilities. Whatever else a page holds is finite (kv.c): it is
// multiplied with zero.
//
// Needs a compiler that knows cooperative matrices, which not every distribution has: compiled/attendhalf.inc is this file, made
// by `glslc --target-env=vulkan1.3 -O -mfmt=c -I . -o compiled/attendhalf.inc attendhalf.comp` (shaderc 2025.2).
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#define WORKERS THREADS
#include "common.glsl"
layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint HEAD_DIM = 128; // a multiple of 64
layout(constant_id = 1) const uint THREADS = 128;
layout(constant_id = 2) const uint TILES = 0;      // of 16 queries, a subgroup each; 0: a single row
layout(constant_id = 3) const uint FORM = 1;       // as in attend.comp
layout(push_constant) uniform Push { tdm_vk_attend_push p; };
// Seen after the fence behind the chain's wait.
layout(buffer_reference, std430, buffer_reference_align = 16) nonprivate buffer Cache4s { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) nonprivate buffer Queries { vec4 v[]; };
#include "merge.glsl"

const uint HEADS = FORM & 255u;
const bool MERGES = FORM >= 256;
const uint ACT = MERGES ? (FORM >> 8) - 1 : TDM_VK_ACT_F16;
#include "acts.glsl"

#define QUERY_ROWS coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define KEYS coopmat<float16_t, gl_ScopeSubgroup, 16, 8, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>
#define HALF2(word) unpackFloat2x16(word)

const bool SINGLE = TILES == 0;
const uint STEPS = HEAD_DIM / 16;              // of 16 dimensions
const uint PARTS = HEAD_DIM / 64;              // of a result's dimensions
const uint OWN_PARTS = PARTS > 2 ? 2 : PARTS;  // that a subgroup makes, of more rows than one
const uint OWN = SINGLE ? 1 : 2;               // queries of a thread that can be some
const uint WIDTH = HEADS * HEAD_DIM;           // of a single row's result, at most 4 THREADS
const uint SHARED_TILES = SINGLE ? 1 : TILES;
const float LOG2E = 1.4426950408889634;
const float LEAST = -1.0e38; // a largest score of none, far above a score that does not count

shared uvec4 s_query[SHARED_TILES * STEPS * 32]; // as a subgroup's threads have them
shared uint64_t s_parts[TDM_VK_SPAN / TDM_VK_PAGE_TOKENS];
shared float s_o[SINGLE ? 4 * WIDTH : 1]; // [block][head][dimension]
shared float s_m[SINGLE ? 4 * HEADS : 1];
shared float s_l[SINGLE ? 4 * HEADS : 1];
shared bool s_is_last;
// Many rows: 16-byte loads of a thread that are under way at once, of keys for so many times 16 dimensions, of values for so many times 16 keys
// by 64 dimensions. [load][subgroup that loads][thread]
const uint STAGE = HEAD_DIM >= 128 ? 8 : 4;
const uint KEY_STAGES = STEPS / STAGE, VALUE_STAGES = 4 * PARTS / STAGE, STAGE_TURNS = STAGE / PARTS; // of a block: turns of 16 keys
shared uvec4 s_stage[SINGLE ? 1 : STAGE * 4 * 32];

uint first_seen(uint position)
{
        return p.window != 0 && position + 1 > p.window ? position + 1 - p.window : 0;
}

float quad_max(float x)
{
        x = max(x, subgroupShuffleXor(x, 1));
        return max(x, subgroupShuffleXor(x, 2));
}

float quad_sum(float x)
{
        precise float two = x + subgroupShuffleXor(x, 1);
        precise float four = two + subgroupShuffleXor(two, 2);

        return four;
}

// Query `query` of the item: its row there, and head.
uint query_row(uint query, uint n_rows)
{
        return min(query / HEADS, n_rows - 1);
}

// The item's queries into shared memory: 16 dimensions of one at a time, of which d, d + 4, d + 8 and d + 12 are the d-th thread's of a quad.
void stage_queries(const tdm_vk_item item, uint head0)
{
        uint width = (p.n_heads + 2 * p.n_kv_heads) * HEAD_DIM, n = (SINGLE ? HEADS : TILES * 16) * STEPS;

        [[dont_unroll]] for (uint i0 = gl_LocalInvocationID.x; i0 < n; i0 += 4 * THREADS) {
                vec4 x[16]; // asked for at once

                [[unroll]] for (uint i = 0; i < (SINGLE ? 1 : 4); i++) {
                        uint item_query = min(i0 + i * THREADS, n - 1) / STEPS, k = (i0 + i * THREADS) % STEPS;
                        uint at = (item.first_row - p.first_row + query_row(item_query, item.n_rows)) * width + (head0 + item_query % HEADS) * HEAD_DIM + k * 16;

                        [[unroll]] for (uint e = 0; e < 4; e++)
                                x[i * 4 + e] = Queries(p.qkv).v[at / 4 + e];
                }
                [[unroll]] for (uint i = 0; i < (SINGLE ? 1 : 4); i++) {
                        uint item_query = (i0 + i * THREADS) / STEPS, k = (i0 + i * THREADS) % STEPS;
                        uint to = (item_query / 16 * STEPS + k) * 32 + item_query % 8 * 4;

                        if (i0 + i * THREADS >= n)
                                break;
                        [[unroll]] for (uint d = 0; d < 4; d++) {
                                precise vec4 y = vec4(x[i * 4][d], x[i * 4 + 1][d], x[i * 4 + 2][d], x[i * 4 + 3][d]) * p.query_scale;
                                f16vec4 halves = f16vec4(clamp(y, vec4(-65504.0), vec4(65504.0)));
                                uvec2 words = uvec2(packFloat2x16(halves.xy), packFloat2x16(halves.zw));

                                if (item_query % 16 < 8)
                                        s_query[to + d].xy = words;
                                else
                                        s_query[to + d].zw = words;
                        }
                }
        }
}

// B's columns c, c + 1, c + 8 and c + 9 of each j are elements j of four loads.
#define TIMES(a, x, at, to, first) \
        [[unroll]] for (uint j = 0; j < 8; j++) { \
                KEYS b_; \
\
                [[unroll]] for (uint e = 0; e < 4; e++) \
                        b_[e] = HALF2(x[(at) + e][j / 2])[j % 2]; \
                to[(first) + j] = coopMatMulAdd(a, b_, to[(first) + j]); \
        }
#define QUERY(a, k) { \
        uvec4 words_ = s_query[(tile * STEPS + (k)) * 32 + lane]; \
\
        [[unroll]] for (uint e = 0; e < 8; e++) \
                a[e] = HALF2(words_[e / 2])[e % 2]; }
#define LOADS_STAY controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, 0, 0); // they are not moved behind it

void main()
{
        uint thread = gl_LocalInvocationID.x, lane = gl_SubgroupInvocationID, own = lane / 4, quad = lane % 4;
        uint tile = SINGLE ? 0 : gl_SubgroupID % TILES, dims0 = SINGLE ? 0 : gl_SubgroupID / TILES * 128;
        tdm_vk_item item = Items(p.items).v[gl_WorkGroupID.x];
        uint head0 = gl_WorkGroupID.y * HEADS, kv_head = head0 / (p.n_heads / p.n_kv_heads);
        tdm_vk_row first = Rows(p.rows).v[item.first_row];
        uint end = first.position + item.n_rows, begin = first_seen(first.position);
        uint query[2] = uint[2](tile * 16 + own, tile * 16 + own + 8);
        uint position[2] = uint[2](first.position + query_row(query[0], item.n_rows), first.position + query_row(query[1], item.n_rows));
        uint key_offset = (own % 4 / 2 * HEAD_DIM + quad) * 32 + own % 2 * 16, value_offset = p.part_bytes / 2 + (quad % 2 * 16 * HEAD_DIM + own * 8) * 2;
        precise float to_exponent = p.score_scale * LOG2E;
        tdm_running running[2];
        precise vec4 row_o = vec4(0); // of a single row, four dimensions of a head
        uint row_at = min(thread * 4, WIDTH - 4);
        bool row_used = thread * 4 < WIDTH;
        SUMS s[8];
        QUERY_ROWS probs[4];
        float m[2], l[2], fade[2]; // fade: what a new m makes of what was there

        running[0] = running[1] = tdm_running(0, 0);
        [[unroll]] for (uint turn = 0; turn < 4; turn++)
                probs[turn] = QUERY_ROWS(0.0hf);
        for (uint span = item.span_first; span <= item.span_last; span++) {
                uint base = span * TDM_VK_SPAN;
                uint lo = max(begin, base) - base, hi = min(end, base + TDM_VK_SPAN) - base; // seen by any row of the item
                SUMS total[OWN_PARTS * 8];

                barrier(); // the last span's readers are done
                if (thread < TDM_VK_SPAN / TDM_VK_PAGE_TOKENS) {
                        uint wanted = clamp(thread, lo / TDM_VK_PAGE_TOKENS, (hi - 1) / TDM_VK_PAGE_TOKENS);
                        uint page = U32s(p.table).v[first.seq * p.table_entries + base / TDM_VK_PAGE_TOKENS + wanted];

                        s_parts[thread] = tdm_page(p.pieces, p.piece_shift, page, p.page_bytes) + uint64_t(kv_head) * p.part_bytes;
                }
                barrier();
                if (span == item.span_first) { // what needs no kernel before this one is done by now
                        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
                        if (p.chain_wait != 0)
                                memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquire | gl_SemanticsMakeVisible);
                }

// Of s, of the block at key `key0`: what each query sees, and the largest of it, in here[].
#define LOOK(key0, all_seen) \
        [[unroll]] for (uint r = 0; r < OWN; r++) { \
                int last_ = int(position[r]) - int(key0), low_ = int(first_seen(position[r])) - int(key0); \
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
// Probabilities against m, as the units read them, and the sum of a block's.
#define WEIGH \
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
                if (SINGLE) {
                        uint block = gl_SubgroupID;
                        bool seen = block * 64 < hi && block * 64 + 64 > lo;
                        uint64_t keys = s_parts[block * 2 + own / 4] + key_offset, values = s_parts[block * 2 + quad / 2] + value_offset;
                        float here[2], sums[2];
                        uvec4 x[16];

                        if (span == item.span_first)
                                stage_queries(item, head0);
                        barrier();
                        [[unroll]] for (uint j = 0; j < 8; j++)
                                s[j] = SUMS(0.0);
                        if (seen)
                                [[dont_unroll]] for (uint k0 = 0; k0 < STEPS; k0 += 4) {
                                        [[unroll]] for (uint i = 0; i < 16; i++)
                                                x[i] = Cache4s(keys).v[(k0 + i / 4) * 32 + i % 4 * 8];
                                        LOADS_STAY
                                        [[unroll]] for (uint k = 0; k < 4; k++) {
                                                QUERY_ROWS a;

                                                QUERY(a, k0 + k)
                                                TIMES(a, x, k * 4, s, 0)
                                        }
                                }
                        LOOK(base + block * 64, false)
                        if (quad == 0 && own < HEADS)
                                s_m[block * HEADS + own] = here[0];
                        barrier();
                        m[0] = LEAST;
                        [[unroll]] for (uint b = 0; b < 4; b++)
                                if (b <= block)
                                        m[0] = max(m[0], s_m[b * HEADS + min(own, HEADS - 1)]);
                        WEIGH
                        [[dont_unroll]] for (uint part = 0; part < PARTS; part++) {
                                [[unroll]] for (uint j = 0; j < 8; j++)
                                        s[j] = SUMS(0.0);
                                if (seen) {
                                        [[unroll]] for (uint i = 0; i < 16; i++)
                                                x[i] = Cache4s(values).v[i * (HEAD_DIM / 8) + part * 8];
                                        LOADS_STAY
                                        [[unroll]] for (uint turn = 0; turn < 4; turn++)
                                                TIMES(probs[turn], x, turn * 4, s, 0)
                                }
                                if (own < HEADS)
                                        [[unroll]] for (uint j = 0; j < 8; j++)
                                                [[unroll]] for (uint e = 0; e < 2; e++)
                                                        s_o[block * WIDTH + own * HEAD_DIM + part * 64 + quad * 16 + e * 8 + j] = s[j][e];
                        }
                        if (quad == 0 && own < HEADS)
                                s_l[block * HEADS + own] = sums[0];
                        barrier();
                        // Now each thread has four dimensions of one head.
                        uint head = row_at / HEAD_DIM;
                        precise vec4 sum = vec4(0);
                        precise float all = 0;
                        float largest = LEAST, old_factor, new_factor;

                        [[unroll]] for (uint b = 0; b < 4; b++) {
                                uint at = b * WIDTH + row_at;
                                float next = max(largest, s_m[b * HEADS + head]);
                                precise float distance = largest - next;
                                precise float exponent = distance * to_exponent;
                                float factor = exp2(exponent);

                                sum = fma(sum, vec4(factor), vec4(s_o[at], s_o[at + 1], s_o[at + 2], s_o[at + 3]));
                                all = fma(all, factor, s_l[b * HEADS + head]);
                                largest = next;
                        }
                        if (all > 0) {
                                bool merged = tdm_merge(running[0], largest * p.score_scale, all, old_factor, new_factor);
                                precise vec4 add = sum * new_factor;

                                row_o = merged ? fma(row_o, vec4(old_factor), add) : sum;
                        }
                        continue;
                }

                uint subgroup = gl_SubgroupID, block_end = (hi + 63) / 64;
                uint64_t keys = s_parts[lo / 64 * 2 + own / 4] + key_offset, values;
                uvec4 x[STAGE];

#define LOAD_KEYS(k0) \
        [[unroll]] for (uint i = 0; i < STAGE; i++) \
                x[i] = Cache4s(keys).v[((k0) + i) * 32 + subgroup * 8];
#define LOAD_VALUES(turn0) \
        [[unroll]] for (uint i = 0; i < STAGE; i++) \
                x[i] = Cache4s(values).v[(((turn0) + i / PARTS) * 4 + subgroup) * (HEAD_DIM / 8) + i % PARTS * 8];
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
                        LOAD_VALUES(STAGE_TURNS) \
                } else { \
                        keys = s_parts[min(block + 1, block_end - 1) * 2 + own / 4] + key_offset; \
                        LOAD_KEYS(0) /* past the end: any, not used */ \
                } \
                barrier(); \
                [[unroll]] for (uint part = 0; part < OWN_PARTS; part++) { \
                        if (v == 0) \
                                [[unroll]] for (uint j = 0; j < 8; j++) \
                                        o[part * 8 + j] = SUMS(0.0); \
                        [[unroll]] for (uint turn = 0; turn < STAGE_TURNS; turn++) \
                                TIMES_STAGED(probs[v * STAGE_TURNS + turn], turn * PARTS + dims0 / 64 + part, o, part * 8) \
                        if (v + 1 == VALUE_STAGES) \
                                [[unroll]] for (uint j = 0; j < 8; j++) \
                                        [[unroll]] for (uint e = 0; e < 4; e++) { \
                                                precise float faded_ = fma(total[part * 8 + j][e], fade[e / 2], o[part * 8 + j][e]); \
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
                if (span == item.span_first)
                        stage_queries(item, head0); // seen behind the next barriers
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
                                        QUERY_ROWS a;

                                        QUERY(a, k0 + k)
                                        TIMES_STAGED(a, k, s, 0)
                                }
                        }
                        LOOK(base + block * 64, base + block * 64 + 63 <= first.position && base + block * 64 >= first_seen(end - 1))
                        [[unroll]] for (uint r = 0; r < 2; r++) {
                                float next = max(m[r], here[r]);
                                precise float distance = m[r] - next;
                                precise float exponent = distance * to_exponent;

                                fade[r] = exp2(exponent);
                                m[r] = next;
                        }
                        WEIGH
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
                        uint64_t slot = p.partial + uint64_t(item.slot + query[r] / HEADS * p.n_heads + head0 + query[r] % HEADS) * TDM_VK_PARTIAL_WIDTH(HEAD_DIM) * 4 +
                                        (dims0 + quad * 16) * 4;
                        float old_factor = 1, new_factor = 0;
                        vec4 before[OWN_PARTS * 4]; // all asked for before the first is written
                        bool used = query[r] / HEADS < item.n_rows;

                        if (l[r] > 0)
                                tdm_merge(running[r], m[r] * p.score_scale, l[r], old_factor, new_factor);
                        if (span == item.span_first) {
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

        if (!SINGLE) {
                [[unroll]] for (uint r = 0; r < 2; r++)
                        if (quad == 0 && dims0 == 0 && query[r] / HEADS < item.n_rows) {
                                uint64_t slot = p.partial + uint64_t(item.slot + query[r] / HEADS * p.n_heads + head0 + query[r] % HEADS) * TDM_VK_PARTIAL_WIDTH(HEAD_DIM) * 4;

                                F32s(slot).v[HEAD_DIM] = running[r].m;
                                F32s(slot).v[HEAD_DIM + 1] = running[r].l;
                        }
                tdm_chain_done_all(p.chain, p.chain_index);
                return;
        }

        // The row's last item to come merges all of them, as merge.comp does.
        uint row = item.first_row - p.first_row, head = row_at / HEAD_DIM;
        vec4 o = row_o;

        if (!MERGES || item.n_items > 1) {
                uint64_t slot = p.partial + uint64_t(item.slot + head0 + head) * TDM_VK_PARTIAL_WIDTH(HEAD_DIM) * 4;

                if (row_used)
                        F32x4s(slot).v[row_at % HEAD_DIM / 4] = o;
                if (row_used && row_at % HEAD_DIM == 0) {
                        F32s(slot).v[HEAD_DIM] = running[0].m;
                        F32s(slot).v[HEAD_DIM + 1] = running[0].l;
                }
        }
        if (!MERGES) {
                tdm_chain_done_all(p.chain, p.chain_index);
                return;
        }
        if (item.n_items > 1) {
                uint64_t arrivals = p.partial - TDM_VK_ARRIVALS * 4;
                uint at = row * p.n_heads + head0, n_done = tdm_chain_count(arrivals, at);

                if (thread == 0) {
                        s_is_last = n_done == item.n_items;
                        if (s_is_last)
                                Chain(arrivals).v[at] = 0;
                        memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
                }
                barrier();
                if (!s_is_last)
                        return;
                o = tdm_merge_items(p.partial, item.first_slot + head0 + head, p.n_heads, item.n_items, HEAD_DIM, row_at % HEAD_DIM);
        } else { // what merging a single result comes to
                precise float inverse = 1.0 / running[0].l;
                precise vec4 whole = o * inverse;

                o = whole;
        }
        uint cols = p.n_heads * HEAD_DIM;

        tdm_put_acts(tdm_acts_row(p.acts, cols, row), cols, head0 * HEAD_DIM + thread * 4, o, row_used,
                     tdm_side(p.side, row), p.side_rows, tdm_flag_left(p.chain_index));
        tdm_chain_done(p.chain, p.chain_index);
}
