// What attention's kernels for f16 matrix units share (attendhalf.comp for a single row, attendhalfwide.comp): the same items and spans as
// attend.comp, the same merge. A subgroup has 16 queries (rows of an item, heads of one kv head) as the units' A; keys, and values, go from the
// cache into the registers that the units read as B, eight neighbouring elements a load. A span is four blocks of 64 keys.
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
// Before this: THREADS, TILES (of 16 queries, in a workgroup), QUERIES_AT_ONCE (that a thread asks for), FORM, p, and for merge.glsl MERGE_AHEAD.
#include "units.glsl"
layout(constant_id = 0) const uint HEAD_DIM = 128; // 64, 128 or 256
// Seen after the fence behind the chain's wait.
layout(buffer_reference, std430, buffer_reference_align = 16) nonprivate buffer Cache4s { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) nonprivate buffer Queries { vec4 v[]; };
#include "merge.glsl"

const uint HEADS = FORM & 255u;
const uint ACT = FORM >= 256 ? (FORM >> 8) - 1 : TDM_VK_ACT_F16;
#include "acts.glsl"

const uint STEPS = HEAD_DIM / 16; // of 16 dimensions
const uint PARTS = HEAD_DIM / 64; // of a result's dimensions
const float LOG2E = 1.4426950408889634;
const float LEAST = -1.0e38; // a largest score of none, far above a score that does not count

shared uvec4 s_query[TILES * STEPS * 32]; // as a subgroup's threads have them
shared uint64_t s_parts[TDM_VK_SPAN / TDM_VK_PAGE_TOKENS]; // of the kv head, in each page

struct tdm_attend {
        tdm_vk_item item;
        tdm_vk_row first;    // of its rows
        uint head0, kv_head; // the first of its heads
        uint begin, end;     // positions that any of its rows sees
};

tdm_attend attend_begin()
{
        tdm_attend a;

        a.item = Items(p.items).v[gl_WorkGroupID.x];
        a.first = Rows(p.rows).v[a.item.first_row];
        a.head0 = gl_WorkGroupID.y * HEADS;
        a.kv_head = a.head0 / (p.n_heads / p.n_kv_heads);
        a.begin = tdm_first_seen(a.first.position, p.window);
        a.end = a.first.position + a.item.n_rows;
        return a;
}

// Where the pages of a span lie, of which keys lo … hi - 1 count; others' are one of theirs. Every thread must come here; then what needs no
// kernel before this one is done.
void attend_pages(const tdm_attend a, uint base, uint lo, uint hi, bool first_span)
{
        uint thread = gl_LocalInvocationID.x;

        barrier(); // the last span's readers are done
        if (thread < TDM_VK_SPAN / TDM_VK_PAGE_TOKENS) {
                uint wanted = clamp(thread, lo / TDM_VK_PAGE_TOKENS, (hi - 1) / TDM_VK_PAGE_TOKENS);
                uint page = U32s(p.table).v[a.first.seq * p.table_entries + base / TDM_VK_PAGE_TOKENS + wanted];

                s_parts[thread] = tdm_page(p.pieces, p.piece_shift, page, p.page_bytes) + uint64_t(a.kv_head) * p.part_bytes;
        }
        barrier();
        if (first_span)
                tdm_chain_wait_cached(p.chain, p.chain_index, p.chain_wait);
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

// Of a block, where a thread's loads begin in its keys' page, and its values': s_parts[2 block + own / 4], s_parts[2 block + quad / 2].
#define KEY_OFFSET(own, quad) ((own % 4 / 2 * HEAD_DIM + quad) * 32 + own % 2 * 16)
#define VALUE_OFFSET(own, quad) (p.part_bytes / 2 + (quad % 2 * 16 * HEAD_DIM + own * 8) * 2)

// Query `query` of an item: its row there. Its head is query % HEADS.
uint query_row(uint query, uint n_rows)
{
        return min(query / HEADS, n_rows - 1);
}

// Of query `query`, dimensions 16 k + d, d + 4, d + 8 and d + 12 into shared memory.
void put_query(uint query, uint k, uint d, vec4 x)
{
        uint to = (query / 16 * STEPS + k) * 32 + query % 8 * 4 + d;
        precise vec4 y = x * p.query_scale;
        f16vec4 halves = f16vec4(clamp(y, vec4(-65504.0), vec4(65504.0)));
        uvec2 words = uvec2(packFloat2x16(halves.xy), packFloat2x16(halves.zw));

        if (query % 16 < 8)
                s_query[to].xy = words;
        else
                s_query[to].zw = words;
}

// The item's queries into shared memory: 16 dimensions of one at a time, of which d, d + 4, d + 8 and d + 12 are the d-th thread's of a quad.
// i0: the first of so many that a thread takes, THREADS apart.
void stage_queries(const tdm_attend a, uint n_queries, uint i0)
{
        uint width = (p.n_heads + 2 * p.n_kv_heads) * HEAD_DIM, n = n_queries * STEPS;
        vec4 x[4 * QUERIES_AT_ONCE];

        [[unroll]] for (uint i = 0; i < QUERIES_AT_ONCE; i++) {
                uint query = min(i0 + i * THREADS, n - 1) / STEPS, k = (i0 + i * THREADS) % STEPS;
                uint at = (a.item.first_row - p.first_row + query_row(query, a.item.n_rows)) * width + (a.head0 + query % HEADS) * HEAD_DIM + k * 16;

                [[unroll]] for (uint e = 0; e < 4; e++)
                        x[i * 4 + e] = Queries(p.qkv).v[at / 4 + e];
        }
        [[unroll]] for (uint i = 0; i < QUERIES_AT_ONCE; i++) {
                uint query = (i0 + i * THREADS) / STEPS, k = (i0 + i * THREADS) % STEPS;

                if (i0 + i * THREADS >= n)
                        break;
                [[unroll]] for (uint d = 0; d < 4; d++)
                        put_query(query, k, d, vec4(x[i * 4][d], x[i * 4 + 1][d], x[i * 4 + 2][d], x[i * 4 + 3][d]));
        }
}

// B's columns c, c + 1, c + 8 and c + 9 of each j are elements j of four loads.
#define TIMES(a, x, at, to, first) \
        [[unroll]] for (uint j = 0; j < 8; j++) { \
                UNIT_B b_; \
\
                [[unroll]] for (uint e = 0; e < 4; e++) \
                        b_[e] = HALF2(x[(at) + e][j / 2])[j % 2]; \
                to[(first) + j] = coopMatMulAdd(a, b_, to[(first) + j]); \
        }
// Sixteen dimensions, from 16 k on, of tile `tile`.
#define QUERY(a, tile, k) { \
        uvec4 words_ = s_query[((tile) * STEPS + (k)) * 32 + lane]; \
\
        [[unroll]] for (uint e = 0; e < 8; e++) \
                a[e] = HALF2(words_[e / 2])[e % 2]; }

// Of scores s, of the block at key `key0`, what each of a thread's OWN queries sees, and the largest of it, in here[]. all_seen: all do all.
#define LOOK(key0, OWN, all_seen) \
        [[unroll]] for (uint r = 0; r < OWN; r++) { \
                int last_ = int(position[r]) - int(key0), low_ = int(tdm_first_seen(position[r], p.window)) - int(key0); \
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
