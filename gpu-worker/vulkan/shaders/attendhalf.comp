#version 460
// Flash attention of a single row, or of some sequences with a row each, on the device's f16 matrix units: see attendhalf.glsl. Each of four
// subgroups takes a block of the span, and loads are used where they arrive. The row's last item to come merges all of them, as merge.comp does.
//
// Needs a compiler that knows cooperative matrices, which not every distribution has: compiled/attendhalf.inc is this file, made
// by `glslc --target-env=vulkan1.3 -O -mfmt=c -I . -o compiled/attendhalf.inc attendhalf.comp` (shaderc 2025.2).
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "common.glsl"
#define WORKERS 128
#define THREADS WORKERS
#define TILES 1
#define QUERIES_AT_ONCE 1
#define MERGE_AHEAD 8
layout(local_size_x = THREADS) in;
layout(constant_id = 2) const uint ROTATES = 0; // 1: rows' queries, keys and values are as qkv's matrix left them
layout(constant_id = 3) const uint FORM = 1; // heads; 256 times what is left, and 1; without it partial results are: as in attend.comp
layout(push_constant) uniform Push { tdm_vk_attend_push p; };
#include "attendhalf.glsl"
#include "rotate.glsl"

// The loops over STEPS and PARTS stay loops: fewer registers, too, so that more workgroups fit (on an H200 32 sequences 17.5 to 11 µs).
const bool MERGES = FORM >= 256;
const uint WIDTH = HEADS * HEAD_DIM; // of the row's result, at most 4 THREADS

shared float s_o[4 * WIDTH]; // [block][head][dimension]
shared float s_m[4 * HEADS];
shared float s_l[4 * HEADS];

// ---- a row's queries, key and value ----

const uint VECTORS = HEADS + 2; // heads of queries, then the key's, then the value's
const uint LANE_VALUES = HEAD_DIM / 32;
const uint REHEARSED_ITEMS = 8; // of a row, at most: see main()

shared float s_vector[ROTATES != 0 ? VECTORS * HEAD_DIM : 1];
shared float s_square[ROTATES != 0 ? 4 * 32 : 1];

// One subgroup's: as rotate.comp does it. first: where the head's values lie in the row; waits: for flagged ones.
void rotate_head(const tdm_attend a, tdm_vk_rotation rotation, uint vector, uint first, bool waits, bool stores)
{
        uint lane = gl_SubgroupInvocationID, subgroup = gl_SubgroupID, flag = tdm_flag_read(p.chain_index, p.chain_wait), saturated = 0;
        bool is_query = vector < HEADS, is_value = vector == HEADS + 1;
        uint t = a.first.position % TDM_VK_PAGE_TOKENS;
        uint page = U32s(p.table).v[a.first.seq * p.table_entries + a.first.position / TDM_VK_PAGE_TOKENS];
        uint64_t part = tdm_page(p.pieces, p.piece_shift, page, p.page_bytes) + uint64_t(a.kv_head) * p.part_bytes + (is_value ? p.part_bytes / 2 : 0);
        uint64_t gains = is_query ? rotation.q_gain : rotation.k_gain, angles = p.rows + rotation.angles + uint64_t(a.item.first_row) * (HEAD_DIM * 4);
        float x[LANE_VALUES];
        vec2 gain[LANE_VALUES / 2], turn[LANE_VALUES / 2];

        [[unroll]] for (uint j = 0; j < LANE_VALUES / 2; j++) {
                uint d = lane + j * 32;

                gain[j] = vec2(Constants(gains).v[d], Constants(gains).v[HEAD_DIM / 2 + d]);
                turn[j] = vec2(Constants(angles).v[d], Constants(angles).v[HEAD_DIM / 2 + d]);
        }
#define VECTOR_FLAGGED \
        [[unroll]] for (uint j = 0; j < LANE_VALUES; j++) \
                x[j] = uintBitsToFloat(tdm_flagged(p.chain + TDM_VK_FLAGGED_Y, first + j * 32 + lane, flag, there));
        if (flag != 0)
                TDM_UNTIL_OR(p.chain, there, !waits, VECTOR_FLAGGED)
        else
                [[unroll]] for (uint j = 0; j < LANE_VALUES; j++)
                        x[j] = F32s(rotation.y).v[(a.item.first_row - p.first_row) * ((p.n_heads + 2 * p.n_kv_heads) * HEAD_DIM) + first + j * 32 + lane];
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
                        precise vec2 y = tdm_turned(vec2(x[j], x[LANE_VALUES / 2 + j]), scale, gain[j], turn[j]) * (is_query ? rotation.query_scale : 1.0);

                        x[j] = y.x;
                        x[LANE_VALUES / 2 + j] = y.y;
                }
        }
        if (is_query) {
                [[unroll]] for (uint j = 0; j < LANE_VALUES; j++)
                        s_vector[vector * HEAD_DIM + lane + j * 32] = x[j];
        } else if (stores) {
                uint64_t log = p.side + (uint64_t(a.item.first_row) * p.n_kv_heads * 2 + 2 * a.kv_head + (is_value ? 1 : 0)) * (HEAD_DIM * 2);
                bool logs = p.side != 0 && a.head0 % (p.n_heads / p.n_kv_heads) == 0;

                [[unroll]] for (uint j = 0; j < LANE_VALUES; j++) {
                        uint d = lane + j * 32;
                        uint16_t stored = uint16_t(tdm_stored16(x[j], saturated));

                        Stored16s(part).v[is_value ? t * HEAD_DIM + d : tdm_key_at(t, d, HEAD_DIM)] = stored;
                        if (logs)
                                Stored16s(log).v[d] = stored;
                }
                if (saturated != 0 && a.head0 % (p.n_heads / p.n_kv_heads) == 0)
                        atomicAdd(Counters(rotation.counters).n_saturated, saturated);
        }
}

// Queries as stage_queries() has them; the key and the value into the cache, by who reads them from there too.
void rotate_row(const tdm_attend a, tdm_vk_rotation rotation, bool waits)
{
        bool stores = waits && a.item.span_last == a.first.position / TDM_VK_SPAN;
        uint i = gl_LocalInvocationID.x;

        if (waits)
                tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        for (uint vector = gl_SubgroupID; vector < VECTORS; vector += THREADS / 32) {
                uint head = vector < HEADS ? a.head0 + vector : p.n_heads + (vector - HEADS) * p.n_kv_heads + a.kv_head;

                rotate_head(a, rotation, vector, head * HEAD_DIM, waits, stores);
        }
        controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                       gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
        if (i < HEADS * STEPS * 4) {
                uint at = i / 4 * 16 + i % 4;

                put_query(i / 4 / STEPS, i / 4 % STEPS, i % 4, vec4(s_vector[at], s_vector[at + 4], s_vector[at + 8], s_vector[at + 12]));
        }
}

// Four neighbouring dimensions of a row's head, of all items: those before this one as they come, then this one's, as tdm_merge_items() does it.
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
                MERGE_ITEM(0) MERGE_ITEM(1) MERGE_ITEM(2) MERGE_ITEM(3)
                MERGE_ITEM(4) MERGE_ITEM(5) MERGE_ITEM(6) MERGE_ITEM(7)
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

void main()
{
        uint thread = gl_LocalInvocationID.x, lane = gl_SubgroupInvocationID, own = lane / 4, quad = lane % 4, block = gl_SubgroupID;
        tdm_attend a = attend_begin();
        uint position[1] = uint[1](a.first.position), row_at = min(thread * 4, WIDTH - 4);
        bool row_used = thread * 4 < WIDTH;
        precise float to_exponent = p.score_scale * LOG2E;
        tdm_running running;
        precise vec4 row_o; // four dimensions of a head
        SUMS s[8];
        UNIT_A probs[4];
        tdm_vk_rotation rotation;

        if (ROTATES != 0)
                rotation = Rotation(p.qkv).v;
        [[unroll]] for (uint i = 0; i < 4; i++)
                probs[i] = UNIT_A(0.0hf);
        // Who waits for a flagged row goes through the first span once for nothing while it is still computed: then its instructions, and keys and values
        // that are older than the row, are in this multiprocessor's caches. Where a row has many items they would need the memory for that.
        uint begin = ROTATES != 0 && p.chain_wait == TDM_VK_CHAIN_FLAGS && a.item.n_items <= REHEARSED_ITEMS ? 0 : 1;

        [[dont_unroll]] for (uint turn = begin; turn < 2 + (ROTATES != 0 ? NOTHING(p.n_heads) : 0); turn++) {
                bool counts = ROTATES == 0 || turn == 1;

                running = tdm_running(0, 0);
                row_o = vec4(0);
                for (uint span = a.item.span_first; span <= (counts ? a.item.span_last : a.item.span_first); span++) {
                        uint base = span * TDM_VK_SPAN;
                        uint lo = max(a.begin, base) - base, hi = min(a.end, base + TDM_VK_SPAN) - base; // seen
                        bool seen = block * 64 < hi && block * 64 + 64 > lo;
                        float here[1], sums[1], m[1];
                        uvec4 x[16];

                        if (turn == begin || span != a.item.span_first)
                                attend_pages(a, base, lo, hi, ROTATES == 0 && span == a.item.span_first);

                        uint64_t keys = s_parts[block * 2 + own / 4] + KEY_OFFSET(own, quad), values = s_parts[block * 2 + quad / 2] + VALUE_OFFSET(own, quad);

                        if (ROTATES != 0 && span == a.item.span_first)
                                rotate_row(a, rotation, counts);
                        else if (span == a.item.span_first && thread < HEADS * STEPS)
                                stage_queries(a, HEADS, thread);
                        barrier();
                        [[unroll]] for (uint j = 0; j < 8; j++)
                                s[j] = SUMS(0.0);
                        if (seen)
                                [[dont_unroll]] for (uint k0 = 0; k0 < STEPS + NOTHING(p.n_heads); k0 += 4) {
                                        [[unroll]] for (uint i = 0; i < 16; i++)
                                                x[i] = Cache4s(keys).v[(k0 + i / 4) * 32 + i % 4 * 8];
                                        LOADS_STAY
                                        [[unroll]] for (uint k = 0; k < 4; k++) {
                                                UNIT_A q;

                                                QUERY(q, 0, k0 + k)
                                                TIMES(q, x, k * 4, s, 0)
                                        }
                                }
                        LOOK(base + block * 64, 1, false)
                        if (quad == 0 && own < HEADS)
                                s_m[block * HEADS + own] = here[0];
                        barrier();
                        m[0] = LEAST;
                        [[unroll]] for (uint b = 0; b < 4; b++)
                                if (b <= block)
                                        m[0] = max(m[0], s_m[b * HEADS + min(own, HEADS - 1)]);
                        WEIGH(1)
                        [[dont_unroll]] for (uint part = 0; part < PARTS + NOTHING(p.n_heads); part++) {
                                [[unroll]] for (uint j = 0; j < 8; j++)
                                        s[j] = SUMS(0.0);
                                if (seen) {
                                        [[unroll]] for (uint i = 0; i < 16; i++)
                                                x[i] = Cache4s(values).v[i * (HEAD_DIM / 8) + part * 8];
                                        LOADS_STAY
                                        [[unroll]] for (uint i = 0; i < 4; i++)
                                                TIMES(probs[i], x, i * 4, s, 0)
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
                                bool merged = tdm_merge(running, largest * p.score_scale, all, old_factor, new_factor);
                                precise vec4 add = sum * new_factor;

                                row_o = merged ? fma(row_o, vec4(old_factor), add) : sum;
                        }
                }

                // The row's last item, or the last one to come, merges all of them, as merge.comp does.
                uint row = a.item.first_row - p.first_row, head = row_at / HEAD_DIM;
                vec4 o = row_o;

                if (ROTATES != 0 && a.item.n_items > 1) {
                        uint64_t slot = p.partial + uint64_t(a.item.slot + a.head0 + head) * TDM_VK_PARTIAL_WIDTH(HEAD_DIM) * 8;
                        uint flag = a.first.serial + p.side_rows;

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
                        uint64_t slot = p.partial + uint64_t(a.item.slot + a.head0 + head) * TDM_VK_PARTIAL_WIDTH(HEAD_DIM) * 4;

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
                        o = tdm_merge_items(p.partial, a.item.first_slot + a.head0 + head, p.n_heads, a.item.n_items, HEAD_DIM, row_at % HEAD_DIM);
                } else if (a.item.n_items == 1) { // what merging a single result comes to
                        precise float inverse = 1.0 / running.l;
                        precise vec4 whole = o * inverse;

                        o = whole;
                }
                uint cols = p.n_heads * HEAD_DIM;

                tdm_put_acts(tdm_acts_row(p.acts, cols, row), cols, a.head0 * HEAD_DIM + thread * 4, o, row_used && counts,
                             ROTATES != 0 ? 0 : tdm_side(p.side, row), p.side_rows, tdm_flag_left(p.chain_index));
        }
        tdm_chain_done(p.chain, p.chain_index);
}
