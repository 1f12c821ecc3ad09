#version 460
// Flash attention over pages, in spans of 256 absolute positions. A workgroup takes an item (some rows of one sequence,
// some spans from left to right) and HEADS heads of one kv head; keys and values are loaded once for all of its
// queries.
//
// ORDER, for a query and a span: a score is eight sums over an eighth of the dimensions each, in order, added from the
// first to the last; l is 32 sums over keys j, j + 32, …, added in order; o[d] is SPLITS sums over neighbouring keys,
// added in order; then the merge (merge.glsl). Keys that the query does not see count nothing, and where no query of
// the item sees a key it is never read: so neither the item's other rows nor its other spans change a bit.
#define WORKERS 256
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#include "gpu-worker/vulkan/shaders/common/shared-registers.h"
layout(local_size_x = WORKERS) in;
layout(constant_id = 0) const uint HEAD_DIM = 128;
layout(constant_id = 1) const uint KV_TYPE = TDM_VK_KV_F16;
// TDM_VK_ATTEND_BOTH: rows see keys behind them too; TDM_VK_ATTEND_NARROW; CAPPED (kernels/attend.c)
layout(constant_id = 2) const uint ROWS_AND_SIDES = 1;
layout(constant_id = 3) const uint FORM = TDM_VK_ATTEND_FORM(1); // without MERGES partial results are left
layout(buffer_reference, std430, buffer_reference_align = 2) COHERENT buffer Stored16s { uint16_t v[]; };
layout(push_constant) uniform Push { tdm_vk_attend_push p; };
// With CAPPED scores s become c tanh(s / c); 0: not. Where c lies kernels for f16 units have what they alone want.
// The kernels of other models have no code for it.
#define p_softcap p.score_scale
#include "gpu-worker/vulkan/shaders/attention/merge.glsl"

const uint ROWS = TDM_VK_ATTEND_ROWS(ROWS_AND_SIDES);
const bool CAPPED = (ROWS_AND_SIDES & 1024) != 0;
const uint HEADS = TDM_VK_ATTEND_HEADS(FORM);
const bool MERGES = TDM_VK_ATTEND_MERGES(FORM);
const uint ACT = MERGES ? TDM_VK_ATTEND_ACT(FORM) : 0;
#include "gpu-worker/vulkan/shaders/common/acts.glsl"

const uint QUERIES = ROWS * HEADS; // at most 8
// Written out, so that every index is known to the compiler: an array that is indexed by a variable would lie in
// memory, not in registers, and a loop with a barrier in it is not unrolled.
#define QUERIES_MAX 8
#define EACH_QUERY(what) what(0) what(1) what(2) what(3) what(4) what(5) what(6) what(7)
// HEAD_DIM is a multiple of 4. Of an uneven head the last eighths are shorter, and the last group has 4 dimensions.
const bool UNEVEN = HEAD_DIM % 8 != 0;
const uint EIGHTH = (HEAD_DIM + 7) / 8; // dimensions
const uint GROUPS = (HEAD_DIM + 7) / 8; // of 8 dimensions
const uint SUMS = GROUPS * 8;           // of a split
const uint SPLITS = 256 / GROUPS;
const uint SPLIT_KEYS = (TDM_VK_SPAN + SPLITS - 1) / SPLITS;
const uint OWN = (HEAD_DIM + 255) / 256; // dimensions of a result that one thread keeps
// Dimensions of keys, and values, that are on their way at once. Items of one row and one head are few (step.c), so
// that nothing but how long a load takes counts, and their first values are asked for before the keys are used; more of
// them leave each other more room. Of several rows there is one item on a multiprocessor in any case.
// UNCHAINED: few at once, in loops that are not unrolled. These GPUs hide a load behind other subgroups, for which
// there must be registers, and code beyond 32 KB does not stay in their cache of instructions.
#ifdef UNCHAINED
const bool BOTH = (ROWS_AND_SIDES & TDM_VK_ATTEND_BOTH) != 0, NARROW = (ROWS_AND_SIDES & TDM_VK_ATTEND_NARROW) != 0;
const bool FEW = false;
const uint VALUE_STEP = !NARROW      ? (QUERIES <= 4 ? 4 : 2) :
                        QUERIES == 1 ? 4 :
                        QUERIES == 2 ? (KV_TYPE == TDM_VK_KV_F16 ? 4 : 2) :
                                       (KV_TYPE == TDM_VK_KV_F16 && !MERGES ? 2 : 1),
           STEP = HEAD_DIM % 16 != 0 ? 1 : HEAD_DIM % 32 == 0 || VALUE_STEP < 4 ? VALUE_STEP : 2;
#define LOOP_END(n) (n) + NOTHING(p.n_heads)
#else
const bool BOTH = (ROWS_AND_SIDES & TDM_VK_ATTEND_BOTH) != 0;
const bool FEW = ROWS == 1 && HEADS == 1;
const uint STEP = HEAD_DIM % 128 == 0 ? (FEW || ROWS > 1 ? 16 : 8) :
                  HEAD_DIM % 64 == 0  ? 8 :
                  HEAD_DIM % 32 == 0  ? 4 :
                  HEAD_DIM % 16 == 0  ? 2 :
                                        1;
const uint VALUE_STEP = FEW ? 16 : 8;
#define LOOP_END(n) n
#endif

shared float s_part[2048];
shared float s_prob[QUERIES * TDM_VK_SPAN];
shared float s_query[QUERIES * HEAD_DIM];
shared float s_reduce[256];
shared float s_largest[QUERIES_MAX];
shared float s_l[QUERIES_MAX];
// Of a span into the spans before it: 0: nothing was seen of it, 1: they are taken over, 2: merged.
shared uint s_merging[QUERIES_MAX];
shared float s_old_factor[QUERIES_MAX], s_new_factor[QUERIES_MAX];
shared uint64_t s_parts[TDM_VK_SPAN / TDM_VK_PAGE_TOKENS]; // of the kv head, in each page; 0: not wanted

const uint HEAD_BLOCKS = (HEAD_DIM + 31) / 32;

// Eight neighbouring elements of a part as they are stored, and what they are scaled with: loaded first, all together,
// and converted where they are used, since a conversion waits.
struct tdm_eight {
        uvec4 a, b;
};

void load8(uint64_t at, uint index, out tdm_eight e)
{
        if (KV_TYPE == TDM_VK_KV_F32) {
                e.a = Act32x4s(at).v[index / 4];
                e.b = Act32x4s(at).v[index / 4 + 1];
        } else if (KV_TYPE == TDM_VK_KV_F16) {
                e.a = Act32x4s(at).v[index / 8];
        } else {
                e.a.xy = Act32x2s(at).v[index / 8];
        }
}

// The first or second four of such elements.
void load4(uint64_t at, uint index, const bool second, inout tdm_eight e)
{
        if (KV_TYPE == TDM_VK_KV_F32) {
                uvec4 x = Act32x4s(at).v[index / 4];

                if (second)
                        e.b = x;
                else
                        e.a = x;
        } else if (KV_TYPE == TDM_VK_KV_F16) {
                uvec2 x = Act32x2s(at).v[index / 4];

                if (second)
                        e.a.zw = x;
                else
                        e.a.xy = x;
        } else if (second) {
                e.a.y = Act32s(at).v[index / 4];
        } else {
                e.a.x = Act32s(at).v[index / 4];
        }
}

// Dimension d of eight neighbouring keys from t on.
void load_keys(uint64_t part, uint t, uint d, out tdm_eight e)
{
        load8(part, (t % TDM_VK_PAGE_TOKENS / 16 * HEAD_DIM + d) * 16 + t % 16, e);
        if (KV_TYPE == TDM_VK_KV_Q8_0)
                e.b = Act32x4s(part + TDM_VK_PAGE_TOKENS * HEAD_DIM)
                        .v[((t % TDM_VK_PAGE_TOKENS / 16 * HEAD_BLOCKS + d / 32) * 16 + t % 16) / 8];
}

// Eight neighbouring dimensions from d on of the value at t. Every second value of an uneven head begins between two
// loads of eight. Behind its last four dimensions nothing is read; the sums of those that are not there are not used.
void load_values(uint64_t part, uint t, uint d, out tdm_eight e)
{
        uint row = t % TDM_VK_PAGE_TOKENS;

        part += p.part_bytes / 2;
        if (UNEVEN) {
                load4(part, row * HEAD_DIM + d, false, e);
                load4(part, row * HEAD_DIM + min(d + 4, HEAD_DIM - 4), true, e);
        } else {
                load8(part, row * HEAD_DIM + d, e);
        }
        if (KV_TYPE == TDM_VK_KV_Q8_0) {
                uint scale = uint(Stored16s(part + TDM_VK_PAGE_TOKENS * HEAD_DIM).v[row * HEAD_BLOCKS + d / 32]);

                e.b = uvec4(scale | scale << 16);
        }
}

// Of a byte and its scale the product is exact.
float element(const tdm_eight e, const uint i)
{
        if (KV_TYPE == TDM_VK_KV_F32)
                return uintBitsToFloat(i < 4 ? e.a[i % 4] : e.b[i % 4]);
        if (KV_TYPE == TDM_VK_KV_F16)
                return unpackHalf2x16(e.a[i / 2])[i % 2];
        precise float x = float(int(e.a[i / 4]) << (24 - i % 4 * 8) >> 24) * unpackHalf2x16(e.b[i / 2])[i % 2];
        return x;
}

// As the host device makes it.
float capped(float score)
{
        precise float sharper = score * (2.0 / p_softcap);
        precise float capped_score = p_softcap * (1.0 - 2.0 / (tdm_exp(sharper) + 1.0));
        return capped_score;
}

// Behind the last key that a row of the item sees. On both sides it sees window - 1 keys, or all that there are.
uint seen_end(uint position, uint end)
{
        return !BOTH ? position + 1 : p.window != 0 ? min(position + p.window, end) : end;
}

void main()
{
        uint thread = gl_LocalInvocationID.x;
        tdm_vk_item item = Items(p.items).v[gl_WorkGroupID.x];
        uint head0 = gl_WorkGroupID.y * HEADS, kv_head = head0 / (p.n_heads / p.n_kv_heads);
        uint width = (p.n_heads + 2 * p.n_kv_heads) * HEAD_DIM;
        uint end = BOTH ? item.end : item.position + item.n_rows, begin = tdm_first_seen(item.position, p.window);
        tdm_running running = tdm_running(0, 0); // of query `thread`
        precise float out_o[QUERIES_MAX * OWN];

#define CLEAR(q) \
        [[unroll]] for (uint i = 0; i < OWN; i++) \
                out_o[q * OWN + i] = 0;
        EACH_QUERY(CLEAR)

        for (uint span = item.span_first; span <= item.span_last; span++) {
                uint base = span * TDM_VK_SPAN;
                // seen by any row of the item
                uint lo = max(begin, base) - base, hi = min(end, base + TDM_VK_SPAN) - base;
                uint group = thread % GROUPS, split = thread / GROUPS; // of values: 8 dimensions, neighbouring keys
                uint value0 = max(split * SPLIT_KEYS, lo),
                value1 = split < SPLITS ? min(min((split + 1) * SPLIT_KEYS, TDM_VK_SPAN), hi) : 0;
                precise float acc[QUERIES_MAX * 8];
                tdm_eight v[VALUE_STEP];

                barrier(); // the last span's readers are done
                if (thread < TDM_VK_SPAN / TDM_VK_PAGE_TOKENS) {
                        uint t = thread * TDM_VK_PAGE_TOKENS;
                        bool wanted = t < hi && t + TDM_VK_PAGE_TOKENS > lo;
                        uint page = Items(p.items).v[gl_WorkGroupID.x].pages[thread];

                        if (wanted && span != item.span_first)
                                page = U32s(p.table).v[item.seq * p.table_entries + base / TDM_VK_PAGE_TOKENS + thread];
                        s_parts[thread] = wanted ? tdm_page(p.pieces, p.piece_shift, page, p.page_bytes) +
                                uint64_t(kv_head) * p.part_bytes
                                                 : uint64_t(0);
                }
                if (span == item.span_first) { // what needs no kernel before this one is done by now
                        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
                        for (uint i = thread; i < QUERIES * HEAD_DIM; i += 256) {
                                uint q = i / HEAD_DIM, row = min(q / HEADS, item.n_rows - 1);

                                s_query[i] = F32s(p.qkv).v[(item.first_row - p.first_row + row) * width +
                                        (head0 + q % HEADS) * HEAD_DIM + i % HEAD_DIM];
                        }
                }
                barrier();

#define LOAD_VALUES(t0) \
        [[unroll]] for (uint u = 0; u < VALUE_STEP; u++) { \
                uint at = min(t0 + u, value1 - 1); \
\
                load_values(s_parts[at / TDM_VK_PAGE_TOKENS], at, group * 8, v[u]); \
        }
                if (FEW && value0 < value1)
                        LOAD_VALUES(value0)

                // Scores: thread = (eighth of the dimensions, 8 neighbouring keys).
                {
                        uint t = (thread & 31u) * 8, eighth = thread >> 5, d0 = eighth * EIGHTH;
                        uint n_own = UNEVEN ? min(EIGHTH, HEAD_DIM - min(d0, HEAD_DIM)) : EIGHTH;
                        uint64_t keys = s_parts[t / TDM_VK_PAGE_TOKENS];

                        [[unroll]] for (uint i = 0; i < QUERIES_MAX * 8; i++)
                                acc[i] = 0;
                        if (keys != 0 && t < hi && t + 8 > lo) {
                                for (uint d = 0; d < LOOP_END(n_own); d += STEP) {
                                        tdm_eight k[STEP];

                                        [[unroll]] for (uint u = 0; u < STEP; u++)
                                                load_keys(keys, t, d0 + d + u, k[u]);
                                        [[unroll]] for (uint u = 0; u < STEP; u++)
                                                [[unroll]] for (uint q = 0; q < QUERIES; q++) {
                                                        float x = s_query[q * HEAD_DIM + d0 + d + u];

                                                        [[unroll]] for (uint i = 0; i < 8; i++)
                                                                acc[q * 8 + i] = fma(x, element(k[u], i),
                                                                        acc[q * 8 + i]);
                                                }
                                }
                        }
                        uint key = base + thread;
#define PUT_SCORES(q) \
        if (q < QUERIES) { \
                uint position = item.position + min(q / HEADS, item.n_rows - 1); \
\
                [[unroll]] for (uint i = 0; i < 8; i++) \
                        s_part[eighth * TDM_VK_SPAN + t + i] = acc[q * 8 + i]; \
                barrier(); \
                precise float score = s_part[thread]; \
                [[unroll]] for (uint i = 1; i < 8; i++) \
                        score += s_part[i * TDM_VK_SPAN + thread]; \
                if (CAPPED && p_softcap != 0) \
                        score = capped(score); \
                s_prob[q * TDM_VK_SPAN + thread] = key < seen_end(position, item.end) && \
                        key >= tdm_first_seen(position, p.window) ? score : -3.0e38; \
                barrier(); \
        }
                        EACH_QUERY(PUT_SCORES)
                }

                // Softmax: 32 threads a query.
                uint own = thread >> 5, j = thread & 31u;

                if (own < QUERIES) {
                        float m = s_prob[own * TDM_VK_SPAN + j];

                        [[unroll]] for (uint i = 1; i < TDM_VK_SPAN / 32; i++)
                                m = max(m, s_prob[own * TDM_VK_SPAN + i * 32 + j]);
                        s_reduce[thread] = m;
                }
                barrier();
                if (thread < QUERIES) {
                        float m = s_reduce[thread * 32];

                        [[unroll]] for (uint i = 1; i < 32; i++)
                                m = max(m, s_reduce[thread * 32 + i]);
                        s_largest[thread] = m + 0.0;
                }
                barrier();
                if (own < QUERIES) {
                        float m = s_largest[own];
                        precise float l = 0;

                        for (uint i = 0; i < TDM_VK_SPAN / 32; i++) { // not unrolled: shaderc of 2023 does it wrongly
                                float score = s_prob[own * TDM_VK_SPAN + i * 32 + j];
                                precise float distance = score - m;
                                float prob = score > -2.9e38 ? tdm_exp(distance) : 0;

                                s_prob[own * TDM_VK_SPAN + i * 32 + j] = prob;
                                l += prob;
                        }
                        s_reduce[thread] = l;
                }
                barrier();
                if (thread < QUERIES) {
                        precise float l = 0;

                        [[unroll]] for (uint i = 0; i < 32; i++)
                                l += s_reduce[thread * 32 + i];
                        uint merging = 0;
                        float old_factor = 0, new_factor = 0;

                        if (l > 0)
                                merging = tdm_merge(running, s_largest[thread], l, old_factor, new_factor) ? 2 : 1;
                        s_merging[thread] = merging;
                        s_old_factor[thread] = old_factor;
                        s_new_factor[thread] = new_factor;
                }

                // Values.
                [[unroll]] for (uint i = 0; i < QUERIES_MAX * 8; i++)
                        acc[i] = 0;
                for (uint t0 = value0; t0 < value1; t0 += VALUE_STEP) {
                        if (!FEW || t0 != value0)
                                LOAD_VALUES(t0)
                        [[unroll]] for (uint u = 0; u < VALUE_STEP; u++) if (t0 + u < value1) {
                                [[unroll]] for (uint q = 0; q < QUERIES; q++) {
                                        float prob = s_prob[q * TDM_VK_SPAN + t0 + u];

                                        [[unroll]] for (uint i = 0; i < 8; i++)
                                                acc[q * 8 + i] = fma(prob, element(v[u], i), acc[q * 8 + i]);
                                }
                        }
                }
#define MERGE(q) \
        if (q < QUERIES) { \
                if (split < SPLITS) \
                        [[unroll]] for (uint i = 0; i < 8; i++) \
                                s_part[split * SUMS + group * 8 + i] = acc[q * 8 + i]; \
                barrier(); \
                if (s_merging[q] != 0) { \
                        [[unroll]] for (uint i = 0; i < OWN; i++) \
                                if (i * 256 + thread < HEAD_DIM) { \
                                        precise float o = s_part[i * 256 + thread]; \
\
                                        for (uint s = 1; s < SPLITS; s++) \
                                                o += s_part[s * SUMS + i * 256 + thread]; \
                                        precise float add = o * s_new_factor[q]; \
                                        out_o[q * OWN + i] = s_merging[q] == 2 ? \
                                                fma(out_o[q * OWN + i], s_old_factor[q], add) : o; \
                                } \
                } \
                barrier(); \
        }
                EACH_QUERY(MERGE)
        }
        if (thread < QUERIES) {
                s_largest[thread] = running.m;
                s_l[thread] = running.l;
        }
        barrier();

#define PUT(q) \
        if (q < QUERIES && q / HEADS < item.n_rows) { \
                uint64_t slot = p.partial + uint64_t(item.slot + q / HEADS * p.n_heads + head0 + q % HEADS) * \
                                                    TDM_VK_PARTIAL_WIDTH(HEAD_DIM) * 4; \
\
                [[unroll]] for (uint i = 0; i < OWN; i++) \
                        if (i * 256 + thread < HEAD_DIM) \
                                Partials(slot).v[i * 256 + thread] = out_o[q * OWN + i]; \
                if (thread == 0) { \
                        Partials(slot).v[HEAD_DIM] = s_largest[q]; \
                        Partials(slot).v[HEAD_DIM + 1] = s_l[q]; \
                } \
        }
        if (!MERGES || item.n_items > 1) {
                EACH_QUERY(PUT)
        }
        if (!MERGES) {
                tdm_chain_done_all(p.chain, p.chain_index);
                return;
        }

        // The row's last item to come merges all of them, as merge.comp does.
        uint row = item.first_row - p.first_row, quad = thread * 4;
        bool used = quad < HEADS * HEAD_DIM;
        vec4 o = vec4(0);

        if (item.n_items > 1) {
                if (!tdm_last_item(p.partial, row * p.n_heads + head0, item.n_items))
                        return;
                if (used)
                        o = tdm_merge_items(p.partial, item.first_slot + head0 + quad / HEAD_DIM, p.n_heads,
                                item.n_items, HEAD_DIM, quad % HEAD_DIM);
        } else { // what merging a single result comes to
#define KEEP(q) \
        if (q < QUERIES) { \
                [[unroll]] for (uint i = 0; i < OWN; i++) \
                        if (i * 256 + thread < HEAD_DIM) \
                                s_part[q * HEAD_DIM + i * 256 + thread] = out_o[q * OWN + i]; \
        }
                EACH_QUERY(KEEP)
                barrier();
                if (used) {
                        precise float inverse = 1.0 / s_l[quad / HEAD_DIM];
                        precise vec4 whole = vec4(s_part[quad], s_part[quad + 1], s_part[quad + 2],
                                s_part[quad + 3]) * inverse;

                        o = whole;
                }
        }
        uint cols = p.n_heads * HEAD_DIM;

        tdm_put_acts(tdm_acts_row(p.acts, cols, row), cols, head0 * HEAD_DIM + quad, o, used,
                     tdm_scale_sums(p.scale_sums, row), p.scale_sums_rows, tdm_flag_left(p.chain_index));
        tdm_chain_done(p.chain, p.chain_index);
}
