#version 460
// Flash attention of a single row, or of a few rows an item each, on the device's f16 matrix units: see
// attend-f16.glsl. Keys, and values, are the units' A and queries, of which there are few, B: so a thread has few sums
// and may ask for all keys of a page, or values of a block, at once. Pages of keys, and then blocks of values by 64
// dimensions, are shared out to four subgroups. The row's last item to come merges all of them, as merge.comp does.
//
// Kept compiled (compile.py): it needs a compiler that knows cooperative matrices.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#define WORKERS 128
#define THREADS WORKERS
#define QUERIES_AT_ONCE 1
#define FEW_QUERIES 4
#define MERGE_AHEAD 6
layout(local_size_x = THREADS) in;
// 1: rows' queries, keys and values are as qkv's matrix left them; 2: and a sequence may have several rows
layout(constant_id = 2) const uint ROTATES = 0;
layout(constant_id = 3) const uint FORM = TDM_VK_ATTEND_FORM(1);
layout(push_constant) uniform Push { tdm_vk_attend_push p; };
// With ROTATES it is a tdm_vk_attend_rotating_push.
#define p_rotation p.qkv
#define p_log p.scale_sums
#define p_layer p.scale_sums_rows
#include "gpu-worker/vulkan/shaders/attention/attend-f16.glsl"
#include "gpu-worker/vulkan/shaders/attention/rotate.glsl"

// The loops over STEPS and PARTS stay loops: fewer registers, too, so that more workgroups fit (on an H200 32 sequences
// 17.5 to 11 µs).
const bool MERGES = TDM_VK_ATTEND_MERGES(FORM);
const uint WIDTH = HEADS * HEAD_DIM; // of the row's result, at most 4 THREADS
const uint PAGES = TDM_VK_SPAN / TDM_VK_PAGE_TOKENS, SUBGROUPS = THREADS / 32;
const uint KEY_STEPS = STEPS > 8 ? 8 : STEPS; // times 16 dimensions of a page's keys that are asked for at once
layout(buffer_reference, std430, buffer_reference_align = 8) nonprivate buffer Cache2s { uvec2 v[]; };

// Scores and probabilities of a page: thread (own, quad) has keys 4 own … 4 own + 3 of head `quad`. Query h is the
// units' column 2 h, so there are at most four. In one array with the blocks' results, as with less shared memory the
// driver sees room for more workgroups. [page][thread] scores; then [block][head][dimension] results
shared vec4 s_o[PAGES * 32 > WIDTH ? PAGES * 32 : WIDTH];
shared uvec2 s_probs[PAGES * 32];                         // f16
shared float s_m[PAGES * HEADS];
shared float s_l[PAGES * HEADS];

// ---- a row's queries, key and value ----

// Heads of queries, then the key's, then the value's; where a sequence has several rows, a key's and a value's of each
// that its item's spans hold. Items do not wait for each other's keys: each stores all that it reads, the same bits.
const uint VECTORS = HEADS + 2;
const bool SEVERAL = ROTATES == 2;
const uint LANE_VALUES = HEAD_DIM / 32;
const uint REHEARSED_ITEMS = 8; // of a row, at most: see main()

shared float s_vector[ROTATES != 0 ? VECTORS * HEAD_DIM : 1];
shared float s_square[ROTATES != 0 ? 4 * 32 : 1];

// One subgroup's: as rotate.comp does it. back: of the row so many before the item's. first: where the head's values
// lie in the row; waits: for flagged ones.
void rotate_head(const tdm_attend a, tdm_vk_rotation rotation, uint vector, uint back, uint first, bool waits,
        bool stores)
{
        uint lane = gl_SubgroupInvocationID, subgroup = gl_SubgroupID,
                flag = tdm_flag_read(p.chain_index, p.chain_wait), saturated = 0;
        bool is_query = vector < HEADS, is_value = SEVERAL ? !is_query && (vector - HEADS) % 2 == 1 :
                vector == HEADS + 1;
        uint position = a.item.position - back, row = a.item.first_row - back, t = position % TDM_VK_PAGE_TOKENS;
        // Not from the item or s_parts, although it may be there: with a choice between them the driver takes more
        // registers, and a single row 5% longer.
        uint page = U32s(p.table).v[a.item.seq * p.table_entries + position / TDM_VK_PAGE_TOKENS];
        uint64_t part = tdm_page(p.pieces, p.piece_shift, page, p.page_bytes) + uint64_t(a.kv_head) * p.part_bytes +
                (is_value ? p.part_bytes / 2 : 0);
        uint64_t gains = is_query ? rotation.q_gain : rotation.k_gain,
                angles = p.rows + rotation.angles + uint64_t(row) * (HEAD_DIM * 4),
                flagged = p.chain + TDM_VK_FLAGGED_Y +
                        (SEVERAL ? uint64_t((row - p.first_row) * rotation.flag_stride) : 0);
        float x[LANE_VALUES];
        vec2 gain[LANE_VALUES / 2], cos_sin[LANE_VALUES / 2];

        [[unroll]] for (uint j = 0; j < LANE_VALUES / 2; j++) {
                uint d = lane + j * 32;

                gain[j] = vec2(Constants(gains).v[d], Constants(gains).v[HEAD_DIM / 2 + d]);
                cos_sin[j] = vec2(Constants(angles).v[d], Constants(angles).v[HEAD_DIM / 2 + d]);
        }
#define VECTOR_FLAGGED \
        [[unroll]] for (uint j = 0; j < LANE_VALUES; j++) \
                x[j] = uintBitsToFloat(tdm_flagged(flagged, first + j * 32 + lane, flag, there));
        if (flag != 0)
                TDM_UNTIL_OR(p.chain, there, !waits, VECTOR_FLAGGED)
        else
                [[unroll]] for (uint j = 0; j < LANE_VALUES; j++)
                        x[j] = F32s(rotation.y).v[(row - p.first_row) *
                                ((p.n_heads + 2 * p.n_kv_heads) * HEAD_DIM) + first + j * 32 + lane];
        if (!is_value) {
                precise float sum = 0, all = 0;

                [[unroll]] for (uint j = 0; j < min(LANE_VALUES, 4); j++) {
                        precise float square = fma(x[j], x[j], 0.0);

                        if (LANE_VALUES > 4)
                                square = fma(x[LANE_VALUES / 2 + j], x[LANE_VALUES / 2 + j], square);
                        sum += square;
                }
                subgroupBarrier(); // the last head's readers are done
                s_square[subgroup * 32 + lane] = sum;
                subgroupMemoryBarrierShared();
                subgroupBarrier();
                [[unroll]] for (uint i = 0; i < 32; i++)
                        all += s_square[subgroup * 32 + i];

                float scale = tdm_head_scale(all, HEAD_DIM, rotation.eps);

                [[unroll]] for (uint j = 0; j < LANE_VALUES / 2; j++) {
                        precise vec2 y = tdm_rotated(vec2(x[j], x[LANE_VALUES / 2 + j]), scale, gain[j], cos_sin[j]) *
                                (is_query ? rotation.query_scale : 1.0);

                        x[j] = y.x;
                        x[LANE_VALUES / 2 + j] = y.y;
                }
        }
        if (is_query) {
                [[unroll]] for (uint j = 0; j < LANE_VALUES; j++)
                        s_vector[vector * HEAD_DIM + lane + j * 32] = x[j];
        } else if (stores) {
                uint64_t log = p_log + (uint64_t(row) * p.n_kv_heads * 2 + 2 * a.kv_head + (is_value ? 1 : 0)) *
                        (HEAD_DIM * 2);
                bool own = back == 0 && a.head0 % (p.n_heads / p.n_kv_heads) == 0, logs = p_log != 0 && own;

                [[unroll]] for (uint j = 0; j < LANE_VALUES; j++) {
                        uint d = lane + j * 32;
                        uint16_t stored = uint16_t(tdm_stored16(x[j], saturated));

                        Stored16s(part).v[is_value ? t * HEAD_DIM + d : tdm_key_at(t, d, HEAD_DIM)] = stored;
                        if (logs)
                                Stored16s(log).v[d] = stored;
                }
                if (saturated != 0 && own)
                        atomicAdd(Counters(rotation.counters).n_saturated, saturated);
        }
}

// Of the sequence's rows in this step: the oldest that it has.
uint oldest_new(const tdm_attend a)
{
        return a.item.position - (SEVERAL ? a.item.n_before : 0);
}

// Queries as stage_queries() has them; keys and values into the cache, by who reads them from there too.
void rotate_row(const tdm_attend a, tdm_vk_rotation rotation, bool waits)
{
        bool stores = waits && (SEVERAL || a.item.span_last == a.item.position / TDM_VK_SPAN);
        uint i = gl_LocalInvocationID.x, n = VECTORS, newest = a.item.position;

        if (SEVERAL) { // those that lie in the item's spans
                uint oldest = max(oldest_new(a), a.item.span_first * TDM_VK_SPAN);

                newest = min(newest, a.item.span_last * TDM_VK_SPAN + TDM_VK_SPAN - 1);
                n = HEADS + (newest >= oldest ? newest - oldest + 1 : 0) * 2;
        }
        if (waits)
                tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        for (uint vector = gl_SubgroupID; vector < n; vector += THREADS / 32) {
                uint back = SEVERAL && vector >= HEADS ? a.item.position - newest + (vector - HEADS) / 2 : 0,
                     which = SEVERAL ? (vector - HEADS) % 2 : vector - HEADS,
                     head = vector < HEADS ? a.head0 + vector : p.n_heads + which * p.n_kv_heads + a.kv_head;

                rotate_head(a, rotation, vector, back, head * HEAD_DIM, waits, stores);
        }
        controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                       gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
        if (i < HEADS * STEPS * 4) {
                uint at = i / 4 * 16 + i % 4;

                put_query(i / 4 / STEPS, i / 4 % STEPS, i % 4,
                        vec4(s_vector[at], s_vector[at + 4], s_vector[at + 8], s_vector[at + 12]));
        }
}

// Four neighbouring dimensions of a row's head, of all items: those before this one as they come, then this one's, as
// tdm_merge_items() does it.
vec4 merge_flagged(const tdm_attend a, uint head, uint d, uint flag, bool waits, vec4 own, tdm_running own_ml)
{
        tdm_running running = tdm_running(0, 0);
        precise vec4 o = vec4(0);
        float old_factor, new_factor;
        uint n = a.item.n_items - 1;

        for (uint first = 0; first < n; first += MERGE_AHEAD) {
                vec4 spans[MERGE_AHEAD];
                uvec2 ml[MERGE_AHEAD];

#define SPANS_FLAGGED \
                [[unroll]] for (uint i = 0; i < MERGE_AHEAD; i++) { \
                        uint slot = a.item.first_slot + a.head0 + head + min(first + i, n - 1) * p.n_heads; \
                        uint64_t item = p.partial + uint64_t(slot) * TDM_VK_PARTIAL_WIDTH(HEAD_DIM) * 8; \
\
                        ml[i] = tdm_flagged2(item, HEAD_DIM / 2, flag, there); \
                        spans[i] = uintBitsToFloat(tdm_flagged4(item, d / 4, flag, there)); \
                }
                TDM_UNTIL_OR(p.chain, there, !waits, SPANS_FLAGGED)
                MERGE_ITEMS
        }
        if (own_ml.l > 0) {
                bool merged = tdm_merge(running, own_ml.m, own_ml.l, old_factor, new_factor);
                precise vec4 add = own * new_factor;

                o = merged ? fma(o, vec4(old_factor), add) : own;
        }
        precise float inverse = 1.0 / running.l;
        precise vec4 divided = o * inverse;

        return divided;
}

// ---- a span ----

// What a row sees of a span.
struct tdm_seen {
        uint lo, hi;       // places of its keys, lo … hi - 1
        uint page0, pages; // where they lie, from page0 on
        uint block0, parts; // the first block, and how many blocks by 64 dimensions
};

tdm_seen seen_of(const tdm_attend a, uint base)
{
        uint lo = max(a.begin, base) - base, hi = min(a.end, base + TDM_VK_SPAN) - base;
        uint page0 = lo / TDM_VK_PAGE_TOKENS, block0 = lo / 64;

        return tdm_seen(lo, hi, page0, (hi - 1) / TDM_VK_PAGE_TOKENS + 1 - page0, block0,
                ((hi - 1) / 64 + 1 - block0) * PARTS);
}

// Pages of a span, the last ones, that keys of this step come to.
uint new_pages(const tdm_attend a, const tdm_seen seen, uint base)
{
        uint oldest = oldest_new(a);

        if (!SEVERAL)
                return seen.hi == a.end - base ? 1 : 0;
        return base + seen.hi > oldest ?
                (seen.hi - 1) / TDM_VK_PAGE_TOKENS + 1 - (max(oldest, base + seen.lo) - base) / TDM_VK_PAGE_TOKENS : 0;
}

bool is_seen(const tdm_seen seen, uint page)
{
        return page - seen.page0 < seen.pages;
}

// Where the group-th 16 keys, or values, of a span lie, or of those that are seen the nearest: what is multiplied with
// zero need not be brought.
uint64_t group_near(const tdm_seen seen, uint group)
{
        uint near = clamp(group, seen.lo / 16, (seen.hi - 1) / 16);

        return s_parts[near / 2] + near % 2 * (HEAD_DIM * 32);
}

// Where a thread's keys of a page begin, and its values of a block by 64 dimensions.
uint64_t keys_of(const tdm_seen seen, uint page)
{
        uint own = gl_SubgroupInvocationID / 4, quad = gl_SubgroupInvocationID % 4;

        return group_near(seen, page * 2 + own / 4) + quad * 32 + own % 4 * 8;
}

uint64_t values_of(const tdm_seen seen, uint part)
{
        uint own = gl_SubgroupInvocationID / 4, quad = gl_SubgroupInvocationID % 4;

        return group_near(seen, (seen.block0 + part / PARTS) * 4 + quad) + p.part_bytes / 2 +
                (own * 8 + part % PARTS * 64) * 2;
}

#define LOAD_KEYS(x, keys, step0) \
        [[unroll]] for (uint l_ = 0; l_ < KEY_STEPS * 4; l_++) \
                x[l_] = Cache2s(keys).v[((step0) * 4 + l_) * 16];
#define LOAD_VALUES(x, values) \
        [[unroll]] for (uint l_ = 0; l_ < 16; l_++) \
                x[l_] = Cache4s(values).v[l_ * (HEAD_DIM / 8)];

// sums += rows of A, which are neighbouring elements of the loads x, by B. A's columns c, c + 1, c + 8 and c + 9 are
// four loads.
#define TIMES_COLUMNS(x, at, b, sums, tiles) \
        [[unroll]] for (uint j_ = 0; j_ < tiles; j_++) { \
                UNIT_A a_; \
\
                [[unroll]] for (uint e_ = 0; e_ < 8; e_++) \
                        a_[e_] = F16X2(x[(at) + e_ % 4][j_])[e_ / 4]; \
                sums[j_] = coopMatMulAdd(a_, b, sums[j_]); \
        }
#define MULTIPLY_KEYS(loads, step0) \
        [[unroll]] for (uint k_ = 0; k_ < KEY_STEPS; k_++) { \
                uvec2 words_ = s_query[(((step0) + k_) * FEW_QUERIES + min(own / 2, HEADS - 1)) * 4 + quad]; \
                UNIT_B b_; \
\
                ROWS_FRAGMENT(b_, words_.x, words_.y) \
                TIMES_COLUMNS(loads, k_ * 4, b_, s, 2) \
        }
#define MULTIPLY_VALUES(loads, part) \
        [[unroll]] for (uint k_ = 0; k_ < 4; k_++) { \
                uint page_ = (seen.block0 + (part) / PARTS) * 2 + quad / 2; \
                uvec2 words_ = s_probs[page_ * 32 + (quad % 2 * 4 + k_) * 4 + min(own / 2, HEADS - 1)]; \
                UNIT_B b_; \
\
                words_ = is_seen(seen, page_) ? words_ : uvec2(0); \
                ROWS_FRAGMENT(b_, words_.x, words_.y) \
                TIMES_COLUMNS(loads, k_ * 4, b_, o, 4) \
        }

// A page's scores, of those products, and the largest of each head.
void put_scores(const tdm_seen seen, uint page, vec4 scores)
{
        uint lane = gl_SubgroupInvocationID;
        float largest = LEAST;

        [[unroll]] for (uint i = 0; i < 4; i++) {
                uint key = page * TDM_VK_PAGE_TOKENS + lane / 4 * 4 + i;

                scores[i] = key >= seen.lo && key < seen.hi ? scores[i] : -3.0e38;
                largest = max(largest, scores[i]);
        }
        [[unroll]] for (uint i = 4; i < 32; i *= 2)
                largest = max(largest, subgroupShuffleXor(largest, i));
        s_o[page * 32 + lane] = scores;
        if (lane < HEADS)
                s_m[page * HEADS + lane] = largest;
}

// Of a head, the largest from block `first` to the end of block `last`.
float largest_of(const tdm_seen seen, uint first, uint last, uint head)
{
        float largest = LEAST;

        [[unroll]] for (uint i = 0; i < PAGES; i++)
                if (is_seen(seen, i) && i >= first * 2 && i <= last * 2 + 1)
                        largest = max(largest, s_m[i * HEADS + head]);
        return largest;
}

// A page's probabilities, and their sum: of 16 keys in order, and then of both.
void put_probabilities(const tdm_seen seen, uint page, float to_exponent)
{
        uint lane = gl_SubgroupInvocationID, head = min(lane % 4, HEADS - 1);
        float m = largest_of(seen, 0, page / 2, head), before = 0;
        vec4 scores = s_o[page * 32 + lane], probs;
        precise float sum;

        [[unroll]] for (uint i = 0; i < 4; i++) {
                precise float distance = scores[i] - m;
                precise float exponent = distance * to_exponent;

                probs[i] = exp2(exponent);
        }
        // the threads with own % 4 = pass have what comes before them
        [[unroll]] for (uint pass = 0; pass < 4; pass++) {
                sum = before + probs[0];
                sum += probs[1];
                sum += probs[2];
                sum += probs[3];
                before = subgroupShuffle(sum, (lane + 28) % 32);
        }
        precise float both = sum + subgroupShuffleXor(sum, 16);

        s_probs[page * 32 + lane] = uvec2(packFloat2x16(f16vec2(probs.xy)), packFloat2x16(f16vec2(probs.zw)));
        if (lane / 4 == 3 && lane % 4 < HEADS)
                s_l[page * HEADS + lane % 4] = both;
}

// A block's results of 64 dimensions.
#define PUT_RESULTS(part) \
        if (quad < HEADS) { \
                uint at_ = ((seen.block0 + (part) / PARTS) * WIDTH + quad * HEAD_DIM + (part) % PARTS * 64 + \
                        own * 8) / 4; \
\
                s_o[at_] = vec4(o[0][0], o[0][2], o[1][0], o[1][2]); \
                s_o[at_ + 1] = vec4(o[2][0], o[2][2], o[3][0], o[3][2]); \
        }
#define CLEAR(sums, n) \
        [[unroll]] for (uint j_ = 0; j_ < n; j_++) \
                sums[j_] = SUMS(0.0);

void main()
{
        uint thread = gl_LocalInvocationID.x, lane = gl_SubgroupInvocationID, own = lane / 4, quad = lane % 4,
                subgroup = gl_SubgroupID;
        tdm_attend a = attend_begin();
        uint row_at = min(thread * 4, WIDTH - 4);
        bool row_used = thread * 4 < WIDTH;
        precise float to_exponent = p.score_scale * LOG2E;
        tdm_running running;
        precise vec4 row_o; // four dimensions of a head
        tdm_vk_rotation rotation;

        if (ROTATES != 0)
                rotation = Rotation(p_rotation).v;
        // Who waits for a flagged row, or for one of a few, goes through the first span once for nothing while it is
        // still computed: then its instructions, and keys and values that are older than the row, are in this
        // multiprocessor's caches. Where a row has many items they would need the memory for that.
        bool waits = SEVERAL ? p.chain_wait != 0 : p.chain_wait == TDM_VK_CHAIN_FLAGS;
        uint begin = ROTATES != 0 && waits && a.item.n_items <= REHEARSED_ITEMS ? 0 : 1;

        [[dont_unroll]] for (uint pass = begin; pass < 2 + (ROTATES != 0 ? NOTHING(p.n_heads) : 0); pass++) {
                bool counts = ROTATES == 0 || pass == 1;

                running = tdm_running(0, 0);
                row_o = vec4(0);
                [[dont_unroll]] for (uint span = a.item.span_first;
                        span <= (counts ? a.item.span_last : a.item.span_first); span++) {
                        uint base = span * TDM_VK_SPAN;
                        tdm_seen seen = seen_of(a, base);
                        SUMS s[2], o[4];
                        uvec2 early_keys[KEY_STEPS * 4];
                        uvec4 early_values[16];
                        uint step = 0;

                        if (pass == begin || span != a.item.span_first)
                                attend_pages(a, base, seen.lo, seen.hi, ROTATES == 0 && span == a.item.span_first);
                        // What a subgroup takes first is on its way while the row is waited for, but for the pages that
                        // new keys come to; and values while probabilities are made. Asked for without a condition,
                        // of any page: else it would be in twice as many registers.
                        bool early = subgroup + (ROTATES != 0 ? new_pages(a, seen, base) : 0) < seen.pages;

                        LOAD_KEYS(early_keys, keys_of(seen, seen.page0 + min(subgroup, seen.pages - 1)), 0)
                        LOADS_STAY
                        if (ROTATES != 0 && span == a.item.span_first)
                                rotate_row(a, rotation, counts);
                        else if (span == a.item.span_first && thread < HEADS * STEPS)
                                stage_queries(a, HEADS, thread);
                        barrier();
                        CLEAR(s, 2)
                        if (early) {
                                MULTIPLY_KEYS(early_keys, 0)
                                step = KEY_STEPS;
                        }
                        [[dont_unroll]] for (uint i = subgroup; i < seen.pages; i += SUBGROUPS) {
                                uint64_t keys = keys_of(seen, seen.page0 + i);

                                [[dont_unroll]] for (; step < STEPS + NOTHING(p.n_heads); step += KEY_STEPS) {
                                        uvec2 x[KEY_STEPS * 4];

                                        LOAD_KEYS(x, keys, step)
                                        LOADS_STAY
                                        MULTIPLY_KEYS(x, step)
                                }
                                put_scores(seen, seen.page0 + i, vec4(s[0][0], s[0][2], s[1][0], s[1][2]));
                                CLEAR(s, 2)
                                step = 0;
                        }
                        LOAD_VALUES(early_values, values_of(seen, min(subgroup, seen.parts - 1)))
                        barrier();
                        [[dont_unroll]] for (uint i = subgroup; i < seen.pages; i += SUBGROUPS)
                                put_probabilities(seen, seen.page0 + i, to_exponent);
                        barrier();
                        CLEAR(o, 4)
                        MULTIPLY_VALUES(early_values, min(subgroup, seen.parts - 1))
                        if (subgroup < seen.parts)
                                PUT_RESULTS(subgroup)
                        [[dont_unroll]] for (uint i = subgroup + SUBGROUPS; i < seen.parts; i += SUBGROUPS) {
                                uvec4 x[16];

                                LOAD_VALUES(x, values_of(seen, i))
                                LOADS_STAY
                                CLEAR(o, 4)
                                MULTIPLY_VALUES(x, i)
                                PUT_RESULTS(i)
                        }
                        barrier();
                        // Now each thread has four dimensions of one head.
                        uint head = row_at / HEAD_DIM;
                        precise vec4 sum = vec4(0);
                        precise float all = 0;
                        float largest = LEAST, old_factor, new_factor;

                        [[unroll]] for (uint b = 0; b < 4; b++)
                                if (is_seen(seen, b * 2) || is_seen(seen, b * 2 + 1)) {
                                        float next = max(largest, largest_of(seen, b, b, head));
                                        precise float distance = largest - next;
                                        precise float exponent = distance * to_exponent;
                                        float factor = exp2(exponent);
                                        precise float l = 0;

                                        [[unroll]] for (uint i = b * 2; i < b * 2 + 2; i++)
                                                if (is_seen(seen, i))
                                                        l += s_l[i * HEADS + head];
                                        sum = fma(sum, vec4(factor), s_o[(b * WIDTH + row_at) / 4]);
                                        all = fma(all, factor, l);
                                        largest = next;
                                }
                        if (all > 0) {
                                bool merged = tdm_merge(running, largest * p.score_scale, all, old_factor, new_factor);
                                precise vec4 add = sum * new_factor;

                                row_o = merged ? fma(row_o, vec4(old_factor), add) : sum;
                        }
                }

                // The row's last item, or the last one to come, merges all of them, as merge.comp does.
                uint row = a.item.first_row - p.first_row, head = row_at / HEAD_DIM;
                vec4 o = row_o;

                if (ROTATES != 0 && a.item.n_items > 1) {
                        uint64_t slot = p.partial + uint64_t(a.item.slot + a.head0 + head) *
                                TDM_VK_PARTIAL_WIDTH(HEAD_DIM) * 8;
                        uint flag = a.item.serial + p_layer;

                        if (a.item.slot != a.item.first_slot + (a.item.n_items - 1) * p.n_heads) {
                                if (row_used && counts)
                                        [[unroll]] for (uint e = 0; e < 4; e++)
                                                tdm_put_word(slot, row_at % HEAD_DIM + e, floatBitsToUint(o[e]), flag);
                                if (row_used && counts && row_at % HEAD_DIM == 0) {
                                        tdm_put_word(slot, HEAD_DIM, floatBitsToUint(running.m), flag);
                                        tdm_put_word(slot, HEAD_DIM + 1, floatBitsToUint(running.l), flag);
                                }
                                if (counts)
                                        return;
                                continue;
                        }
                        o = merge_flagged(a, head, row_at % HEAD_DIM, flag, counts, o, running);
                } else if (!MERGES || a.item.n_items > 1) {
                        uint64_t slot = p.partial + uint64_t(a.item.slot + a.head0 + head) *
                                TDM_VK_PARTIAL_WIDTH(HEAD_DIM) * 4;

                        if (row_used)
                                F32x4s(slot).v[row_at % HEAD_DIM / 4] = o;
                        if (row_used && row_at % HEAD_DIM == 0) {
                                F32s(slot).v[HEAD_DIM] = running.m;
                                F32s(slot).v[HEAD_DIM + 1] = running.l;
                        }
                }
                if (!MERGES) {
                        tdm_chain_done_all(p.chain, p.chain_index);
                        return;
                }
                if (ROTATES == 0 && a.item.n_items > 1) {
                        if (!tdm_last_item(p.partial, row * p.n_heads + a.head0, a.item.n_items))
                                return;
                        o = tdm_merge_items(p.partial, a.item.first_slot + a.head0 + head, p.n_heads, a.item.n_items,
                                HEAD_DIM, row_at % HEAD_DIM);
                } else if (a.item.n_items == 1) { // what merging a single result comes to
                        precise float inverse = 1.0 / running.l;
                        precise vec4 whole = o * inverse;

                        o = whole;
                }
                uint cols = p.n_heads * HEAD_DIM;
                uint64_t acts = tdm_acts_row(p.acts, cols, row);

                if (SEVERAL && tdm_flag_left(p.chain_index) != 0)
                        acts = p.acts + uint64_t(row * Rotation(p_rotation).v.flag_stride);
                tdm_put_acts(acts, cols, a.head0 * HEAD_DIM + thread * 4, o,
                        row_used && counts,
                             ROTATES != 0 ? 0 : tdm_scale_sums(p.scale_sums, row), p.scale_sums_rows,
                             tdm_flag_left(p.chain_index));
        }
        tdm_chain_done(p.chain, p.chain_index);
}
