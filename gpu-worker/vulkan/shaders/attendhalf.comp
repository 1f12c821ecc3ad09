#version 460
// Flash attention over pages as attend.comp, on the device's f16 matrix units: the same items and spans, the same merge. A subgroup has
// 16 queries (rows of an item, heads of one kv head) as the units' A; keys, and values, go from the cache into the registers that the units
// read as B, eight neighbouring elements a load, no shared memory between. A span is four blocks of 64 keys. Of a single row each of four
// subgroups takes a block; of more each has its own queries and all four.
//
// ORDER, for a query and a span: queries are f16, times a power of two; a score is one chain of the units' sums over 16 dimensions from
// zero on; m is the largest of the span; l is, of a block, for each of four threads 16 sums in order, then two and two of them, the blocks
// in order; o[d] is, of a block, one chain of the units' sums over 16 keys from zero on, probabilities in f16, the blocks in order. Keys that the
// query does not see count nothing. An element of a unit's result does not depend on the other queries, so neither do the bits.
//
// Thread t of a subgroup has, of queries g = t / 4 and g + 8, the keys 16 q … 16 q + 15 of a block, q = t % 4: that is where products by
// 8 g + j as the unit's column g leave them, and where it reads probabilities. Whatever else a page holds is finite (kv.c): it is
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
layout(buffer_reference, std430, buffer_reference_align = 4) nonprivate buffer Queries { float v[]; };
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
const uint BLOCKS = SINGLE ? 1 : 4;                  // of a subgroup
const uint STEPS = HEAD_DIM / 16;                    // of 16 dimensions
const uint PARTS = HEAD_DIM / 64;                    // of a result's dimensions
const uint TILE_ROWS = 16 / HEADS;                   // of an item
const uint WIDTH = HEADS * HEAD_DIM;                 // of a single row's result, at most 4 THREADS
const uint SHARED_TILES = SINGLE ? 1 : TILES;
const float LOG2E = 1.4426950408889634;

shared uvec4 s_query[SHARED_TILES * STEPS * 32]; // as a subgroup's threads have them
shared uint64_t s_parts[TDM_VK_SPAN / TDM_VK_PAGE_TOKENS];
shared float s_o[SINGLE ? 4 * WIDTH : 1]; // [block][head][dimension]
shared float s_m[SINGLE ? 4 * HEADS : 1];
shared float s_l[SINGLE ? 4 * HEADS : 1];
shared bool s_is_last;

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

// The item's queries into shared memory: of a row and 16 dimensions a thread has d, d + 4, d + 8, d + 12, d its number in its quad.
void stage_queries(const tdm_vk_item item, uint head0)
{
        uint width = (p.n_heads + 2 * p.n_kv_heads) * HEAD_DIM, n = (SINGLE ? HEADS : TILES * 16) * STEPS * 4;

        for (uint i = gl_LocalInvocationID.x; i < n; i += THREADS) {
                uint quad = i % 4, k = i / 4 % STEPS, query = i / (4 * STEPS);
                uint at = (item.first_row - p.first_row + query_row(query, item.n_rows)) * width + (head0 + query % HEADS) * HEAD_DIM + k * 16 + quad;
                vec4 x = vec4(Queries(p.qkv).v[at], Queries(p.qkv).v[at + 4], Queries(p.qkv).v[at + 8], Queries(p.qkv).v[at + 12]);
                uint to = (query / 16 * STEPS + k) * 32 + query % 8 * 4 + quad;
                precise vec4 y = vec4(tdm_finite(x.x), tdm_finite(x.y), tdm_finite(x.z), tdm_finite(x.w)) * p.query_scale;
                uvec2 words = uvec2(tdm_half2(y.xy), tdm_half2(y.zw));

                if (query % 16 < 8)
                        s_query[to].xy = words;
                else
                        s_query[to].zw = words;
        }
}

void main()
{
        uint thread = gl_LocalInvocationID.x, lane = gl_SubgroupInvocationID, own = lane / 4, quad = lane % 4;
        uint tile = SINGLE ? 0 : gl_SubgroupID, block0 = SINGLE ? gl_SubgroupID : 0;
        tdm_vk_item item = Items(p.items).v[gl_WorkGroupID.x];
        uint head0 = gl_WorkGroupID.y * HEADS, kv_head = head0 / (p.n_heads / p.n_kv_heads);
        tdm_vk_row first = Rows(p.rows).v[item.first_row];
        uint end = first.position + item.n_rows, begin = first_seen(first.position);
        uint query[2] = uint[2](tile * 16 + own, tile * 16 + own + 8);
        uint position[2] = uint[2](first.position + query_row(query[0], item.n_rows), first.position + query_row(query[1], item.n_rows));
        precise float to_exponent = p.score_scale * LOG2E;
        tdm_running running[2];
        precise vec4 row_o = vec4(0); // of a single row, four dimensions of a head
        uint row_at = min(thread * 4, WIDTH - 4);
        bool row_used = thread * 4 < WIDTH;
        SUMS s[BLOCKS * 8];
        QUERY_ROWS probs[BLOCKS * 4];

        running[0] = running[1] = tdm_running(0, 0);
        for (uint span = item.span_first; span <= item.span_last; span++) {
                uint base = span * TDM_VK_SPAN;
                uint lo = max(begin, base) - base, hi = min(end, base + TDM_VK_SPAN) - base; // seen by any row of the item
                uint64_t key_at[BLOCKS], value_at[BLOCKS];
                float m[2], l[2];

                barrier(); // the last span's readers are done
                if (thread < TDM_VK_SPAN / TDM_VK_PAGE_TOKENS) {
                        uint wanted = clamp(thread, lo / TDM_VK_PAGE_TOKENS, (hi - 1) / TDM_VK_PAGE_TOKENS);
                        uint page = U32s(p.table).v[first.seq * p.table_entries + base / TDM_VK_PAGE_TOKENS + wanted];

                        s_parts[thread] = tdm_page(p.pieces, p.piece_shift, page, p.page_bytes) + uint64_t(kv_head) * p.part_bytes;
                }
                if (span == item.span_first) { // what needs no kernel before this one is done by now
                        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
                        if (p.chain_wait != 0)
                                memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquire | gl_SemanticsMakeVisible);
                        stage_queries(item, head0);
                }
                barrier();
                [[unroll]] for (uint b = 0; b < BLOCKS; b++) {
                        key_at[b] = s_parts[(block0 + b) * 2 + own / 4] + (own % 4 / 2 * HEAD_DIM + quad) * 32 + own % 2 * 16;
                        value_at[b] = s_parts[(block0 + b) * 2 + quad / 2] + p.part_bytes / 2 + (quad % 2 * 16 * HEAD_DIM + own * 8) * 2;
                }

                // Scores.
#define LOAD_KEYS(x, at, b, k) \
        [[unroll]] for (uint e = 0; e < 4; e++) \
                x[(at) + e] = Cache4s(key_at[b]).v[(k) * 32 + e * 8];
// B's columns c, c + 1, c + 8 and c + 9 of each j are elements j of four loads.
#define TIMES(a, x, at, to) \
        [[unroll]] for (uint j = 0; j < 8; j++) { \
                KEYS b_; \
\
                [[unroll]] for (uint e = 0; e < 4; e++) \
                        b_[e] = HALF2(x[(at) + e][j / 2])[j % 2]; \
                to[j] = coopMatMulAdd(a, b_, to[j]); \
        }
#define QUERY(a, k) { \
        uvec4 words_ = s_query[(tile * STEPS + (k)) * 32 + lane]; \
\
        [[unroll]] for (uint e = 0; e < 8; e++) \
                a[e] = HALF2(words_[e / 2])[e % 2]; }
                [[unroll]] for (uint i = 0; i < BLOCKS * 8; i++)
                        s[i] = SUMS(0.0);
                bool seen = !SINGLE || (block0 * 64 < hi && block0 * 64 + 64 > lo);

                if (SINGLE) {
                        if (seen)
                                for (uint k0 = 0; k0 < STEPS; k0 += 4) {
                                        uvec4 x[16];

                                        [[unroll]] for (uint k = 0; k < 4; k++)
                                                LOAD_KEYS(x, k * 4, 0, k0 + k)
                                        subgroupBarrier();
                                        [[unroll]] for (uint k = 0; k < 4; k++) {
                                                QUERY_ROWS a;

                                                QUERY(a, k0 + k)
                                                TIMES(a, x, k * 4, s)
                                        }
                                }
                } else {
                        uvec4 x0[4], x1[4];

#define TIMES_BLOCK(x, b) \
        [[unroll]] for (uint j = 0; j < 8; j++) { \
                KEYS b_; \
\
                [[unroll]] for (uint e = 0; e < 4; e++) \
                        b_[e] = HALF2(x[e][j / 2])[j % 2]; \
                s[(b) * 8 + j] = coopMatMulAdd(a, b_, s[(b) * 8 + j]); \
        }
                        LOAD_KEYS(x0, 0, 0, 0)
                        for (uint k = 0; k < STEPS; k++) {
                                QUERY_ROWS a;

                                QUERY(a, k)
                                LOAD_KEYS(x1, 0, min(1, BLOCKS - 1), k)
                                subgroupBarrier();
                                TIMES_BLOCK(x0, 0)
                                LOAD_KEYS(x0, 0, min(2, BLOCKS - 1), k)
                                subgroupBarrier();
                                TIMES_BLOCK(x1, min(1, BLOCKS - 1))
                                LOAD_KEYS(x1, 0, min(3, BLOCKS - 1), k)
                                subgroupBarrier();
                                TIMES_BLOCK(x0, min(2, BLOCKS - 1))
                                LOAD_KEYS(x0, 0, 0, min(k + 1, STEPS - 1))
                                subgroupBarrier();
                                TIMES_BLOCK(x1, min(3, BLOCKS - 1))
                        }
                }

                // What a query sees, and the largest of it; above -1e38, so that what is not seen comes to 0.
                [[unroll]] for (uint r = 0; r < 2; r++) {
                        uint key0 = base + block0 * 64 + quad * 16, lowest = first_seen(position[r]);
                        int last = int(position[r]) - int(key0), low = int(lowest) - int(key0);

                        m[r] = -1.0e38;
                        [[unroll]] for (uint b = 0; b < BLOCKS; b++)
                                [[unroll]] for (uint j = 0; j < 8; j++)
                                        [[unroll]] for (uint e = 0; e < 2; e++) {
                                                int key = int(b * 64 + e * 8 + j);
                                                float score = s[b * 8 + j][r * 2 + e];

                                                score = key <= last && key >= low && seen ? score : -3.0e38;
                                                s[b * 8 + j][r * 2 + e] = score;
                                                m[r] = max(m[r], score);
                                        }
                        m[r] = quad_max(m[r]);
                }
                if (SINGLE) {
                        if (quad == 0 && own < HEADS)
                                s_m[block0 * HEADS + own] = m[0];
                        barrier();
                        [[unroll]] for (uint b = 0; b < 4; b++)
                                m[0] = max(m[0], s_m[b * HEADS + min(own, HEADS - 1)]);
                }

                // Probabilities, as the units read them.
                [[unroll]] for (uint r = 0; r < 2; r++)
                        [[unroll]] for (uint b = 0; b < BLOCKS; b++) {
                                precise float sum = 0;

                                [[unroll]] for (uint e = 0; e < 2; e++)
                                        [[unroll]] for (uint j = 0; j < 8; j++) {
                                                precise float distance = s[b * 8 + j][r * 2 + e] - m[r];
                                                precise float exponent = distance * to_exponent;
                                                float prob = exp2(exponent);

                                                sum += prob;
                                                probs[b * 4 + e * 2 + j / 4][r * 4 + j % 4] = float16_t(prob);
                                        }
                                sum = quad_sum(sum);
                                if (b == 0)
                                        l[r] = sum;
                                else {
                                        precise float more = l[r] + sum;
                                        l[r] = more;
                                }
                        }

                // Values, 64 dimensions at a time.
                float old_factor[2], new_factor[2];

                if (!SINGLE)
                        [[unroll]] for (uint r = 0; r < 2; r++) {
                                old_factor[r] = 1;
                                new_factor[r] = 0;
                                if (l[r] > 0)
                                        tdm_merge(running[r], m[r] * p.score_scale, l[r], old_factor[r], new_factor[r]);
                        }
                for (uint part = 0; part < PARTS; part++) {
                        SUMS o[8], total[8];

#define LOAD_VALUES(x, at, b, turn) \
        [[unroll]] for (uint e = 0; e < 4; e++) \
                x[(at) + e] = Cache4s(value_at[b]).v[((turn) * 4 + e) * (HEAD_DIM / 8) + part * 8];
                        if (SINGLE) {
                                [[unroll]] for (uint j = 0; j < 8; j++)
                                        total[j] = SUMS(0.0);
                                if (seen) {
                                        uvec4 x[16];

                                        [[unroll]] for (uint turn = 0; turn < 4; turn++)
                                                LOAD_VALUES(x, turn * 4, 0, turn)
                                        subgroupBarrier();
                                        [[unroll]] for (uint turn = 0; turn < 4; turn++)
                                                TIMES(probs[turn], x, turn * 4, total)
                                }
                                [[unroll]] for (uint j = 0; j < 8; j++)
                                        [[unroll]] for (uint e = 0; e < 2; e++)
                                                if (own < HEADS)
                                                        s_o[block0 * WIDTH + own * HEAD_DIM + part * 64 + quad * 16 + e * 8 + j] = total[j][e];
                                continue;
                        }
                        uvec4 x0[4], x1[4];

                        LOAD_VALUES(x0, 0, 0, 0)
                        [[unroll]] for (uint b = 0; b < BLOCKS; b++) {
                                [[unroll]] for (uint j = 0; j < 8; j++)
                                        o[j] = SUMS(0.0);
                                [[unroll]] for (uint turn = 0; turn < 4; turn += 2) {
                                        LOAD_VALUES(x1, 0, b, turn + 1)
                                        subgroupBarrier();
                                        TIMES(probs[b * 4 + turn], x0, 0, o)
                                        if (turn == 0)
                                                LOAD_VALUES(x0, 0, b, 2)
                                        else
                                                LOAD_VALUES(x0, 0, min(b + 1, BLOCKS - 1), 0)
                                        subgroupBarrier();
                                        TIMES(probs[b * 4 + turn + 1], x1, 0, o)
                                }
                                [[unroll]] for (uint j = 0; j < 8; j++)
                                        total[j] = b == 0 ? o[j] : total[j] + o[j];
                        }
                        // Into what the item has so far, which waits where it is left in the end.
                        [[unroll]] for (uint r = 0; r < 2; r++) {
                                uint64_t slot = p.partial + uint64_t(item.slot + query[r] / HEADS * p.n_heads + head0 + query[r] % HEADS) * TDM_VK_PARTIAL_WIDTH(HEAD_DIM) * 4;

                                if (query[r] / HEADS < item.n_rows)
                                        [[unroll]] for (uint e = 0; e < 2; e++)
                                                [[unroll]] for (uint half_ = 0; half_ < 2; half_++) {
                                                        uint at = part * 16 + quad * 4 + e * 2 + half_;
                                                        precise vec4 new = vec4(total[half_ * 4][r * 2 + e], total[half_ * 4 + 1][r * 2 + e], total[half_ * 4 + 2][r * 2 + e],
                                                                                total[half_ * 4 + 3][r * 2 + e]);

                                                        if (span != item.span_first) {
                                                                precise vec4 add = new * new_factor[r];

                                                                new = fma(F32x4s(slot).v[at], vec4(old_factor[r]), add);
                                                        }
                                                        F32x4s(slot).v[at] = new;
                                                }
                        }
                }
                if (SINGLE) {
                        if (quad == 0 && own < HEADS)
                                s_l[block0 * HEADS + own] = l[0];
                        barrier();
                        // Now each thread has four dimensions of one head.
                        uint head = row_at / HEAD_DIM;
                        precise vec4 sum = vec4(s_o[row_at], s_o[row_at + 1], s_o[row_at + 2], s_o[row_at + 3]);
                        precise float all = s_l[head];
                        float largest = s_m[head], one_old, one_new;

                        [[unroll]] for (uint b = 1; b < 4; b++) {
                                uint at = b * WIDTH + row_at;

                                sum += vec4(s_o[at], s_o[at + 1], s_o[at + 2], s_o[at + 3]);
                                all += s_l[b * HEADS + head];
                                largest = max(largest, s_m[b * HEADS + head]);
                        }
                        if (all > 0) {
                                bool merged = tdm_merge(running[0], largest * p.score_scale, all, one_old, one_new);
                                precise vec4 add = sum * one_new;

                                row_o = merged ? fma(row_o, vec4(one_old), add) : sum;
                        }
                }
        }

        if (!SINGLE) {
                [[unroll]] for (uint r = 0; r < 2; r++)
                        if (quad == 0 && query[r] / HEADS < item.n_rows) {
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
