// What attention's kernels for f16 matrix units share (attend-f16.comp for a single row, attend-f16-wide.comp): the
// same items and spans as attend.comp, the same merge. Keys, and values, go from the cache into the registers that the
// units read, four or eight neighbouring elements a load: as B where a subgroup has 16 queries (rows of an item, heads
// of one kv head), which are A then; as A where there are few queries, B. A span is four blocks of 64 keys.
//
// ORDER, for a query and a span: queries are f16, times a power of two; a score is one chain of the units' sums over 16
// dimensions from zero on; m, after each block, is the largest so far; l is, of a block, for each of four threads 16
// sums in order, then two and two of them; o[d] is, of a block, one chain of the units' sums over 16 keys from zero on,
// probabilities in f16; from block to block what was there is multiplied with what the new m makes of it, and the
// block's added, in one rounding. Keys and blocks that the query does not see change no bit. An
// element of a unit's result depends neither on the other queries nor on which of its factors is A (prove-attend.c).
//
// Of a block q = 0 … 3 stands for the keys 16 q … 16 q + 15 that l adds up in order, and of which the q-th thread of
// four has four in each of four products with values. Whatever else a page holds is finite (kv.c): it is multiplied
// with zero.
//
// Before this: THREADS, TILES (of 16 queries, in a workgroup; or FEW_QUERIES, at most), QUERIES_AT_ONCE (that a thread
// asks for), FORM, p, and for merge.glsl MERGE_AHEAD.
#include "gpu-worker/vulkan/shaders/common/units.glsl"
layout(constant_id = 0) const uint HEAD_DIM = 128; // 64, 128 or 256
// Seen after the fence behind the chain's wait.
layout(buffer_reference, std430, buffer_reference_align = 16) nonprivate buffer Cache4s { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) nonprivate buffer Queries { vec4 v[]; };
#include "gpu-worker/vulkan/shaders/attention/merge.glsl"

const uint HEADS = TDM_VK_ATTEND_HEADS(FORM);
const uint ACT = TDM_VK_ATTEND_MERGES(FORM) ? TDM_VK_ATTEND_ACT(FORM) : TDM_VK_ACT_F16;
#include "gpu-worker/vulkan/shaders/common/acts.glsl"

const uint STEPS = HEAD_DIM / 16; // of 16 dimensions
const uint PARTS = HEAD_DIM / 64; // of a result's dimensions
const float LOG2E = 1.4426950408889634;
const float LEAST = -1.0e38; // a largest score of none, far above a score that does not count

#ifdef FEW_QUERIES
shared uvec2 s_query[STEPS * 4 * FEW_QUERIES]; // [16 dimensions][query][thread of a quad]
#else
shared uvec4 s_query[TILES * STEPS * 32]; // as a subgroup's threads have them
#endif
shared uint64_t s_parts[TDM_VK_SPAN / TDM_VK_PAGE_TOKENS]; // of the kv head, in each page

struct tdm_attend {
        tdm_vk_item item;
        uint page;           // of its first span, thread i's of the first ones the i-th
        uint head0, kv_head; // the first of its heads
        uint begin, end;     // positions that any of its rows sees
};

tdm_attend attend_begin()
{
        tdm_attend a;

        a.item = Items(p.items).v[gl_WorkGroupID.x];
        a.page = Items(p.items).v[gl_WorkGroupID.x].pages[min(gl_LocalInvocationID.x,
                TDM_VK_SPAN / TDM_VK_PAGE_TOKENS - 1)];
        a.head0 = gl_WorkGroupID.y * HEADS;
        a.kv_head = a.head0 / (p.n_heads / p.n_kv_heads);
        a.begin = tdm_first_seen(a.item.position, p.window);
        a.end = a.item.position + a.item.n_rows;
        return a;
}

// Where the pages of a span lie, of which keys lo … hi - 1 count; others' are one of theirs. Every thread must come
// here; then what needs no kernel before this one is done.
void attend_pages(const tdm_attend a, uint base, uint lo, uint hi, bool first_span)
{
        uint thread = gl_LocalInvocationID.x;

        barrier(); // the last span's readers are done
        if (thread < TDM_VK_SPAN / TDM_VK_PAGE_TOKENS) {
                uint wanted = clamp(thread, lo / TDM_VK_PAGE_TOKENS, (hi - 1) / TDM_VK_PAGE_TOKENS), page = a.page;

                if (base != a.item.span_first * TDM_VK_SPAN)
                        page = U32s(p.table).v[a.item.seq * p.table_entries + base / TDM_VK_PAGE_TOKENS + wanted];
                s_parts[thread] = tdm_page(p.pieces, p.piece_shift, page, p.page_bytes) +
                        uint64_t(a.kv_head) * p.part_bytes;
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

// Query `query` of an item: its row there. Its head is query % HEADS.
uint query_row(uint query, uint n_rows)
{
        return min(query / HEADS, n_rows - 1);
}

// Of query `query`, dimensions 16 k + d, d + 4, d + 8 and d + 12 into shared memory.
void put_query(uint query, uint k, uint d, vec4 x)
{
#ifdef FEW_QUERIES
        uint to = (k * FEW_QUERIES + query) * 4 + d;
#else
        uint to = (query / 16 * STEPS + k) * 32 + query % 8 * 4 + d;
#endif
        precise vec4 y = x * p.query_scale;
        f16vec4 rounded = f16vec4(clamp(y, vec4(-65504.0), vec4(65504.0)));
        uvec2 words = uvec2(packFloat2x16(rounded.xy), packFloat2x16(rounded.zw));

#ifdef FEW_QUERIES
        s_query[to] = words;
#else
        if (query % 16 < 8)
                s_query[to].xy = words;
        else
                s_query[to].zw = words;
#endif
}

// The item's queries into shared memory: 16 dimensions of one at a time, of which d, d + 4, d + 8 and d + 12 are the
// d-th thread's of a quad. i0: the first of so many that a thread takes, THREADS apart.
void stage_queries(const tdm_attend a, uint n_queries, uint i0)
{
        uint width = (p.n_heads + 2 * p.n_kv_heads) * HEAD_DIM, n = n_queries * STEPS;
        vec4 x[4 * QUERIES_AT_ONCE];

        [[unroll]] for (uint i = 0; i < QUERIES_AT_ONCE; i++) {
                uint query = min(i0 + i * THREADS, n - 1) / STEPS, k = (i0 + i * THREADS) % STEPS;
                uint at = (a.item.first_row - p.first_row + query_row(query, a.item.n_rows)) * width +
                        (a.head0 + query % HEADS) * HEAD_DIM + k * 16;

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
