#version 460
// Queries and keys: norm of each head, or biases, and rotation; queries are scaled and stay where they are, keys and
// values go into the cache (engine/step/kv.h). One workgroup is one head of one row: n_heads queries, then n_kv_heads
// keys, then the values.
#define WORKERS 128
#extension GL_EXT_shader_8bit_storage : require
#include "gpu-worker/vulkan/shaders/common/common.glsl"
layout(local_size_x = WORKERS) in;
layout(constant_id = 0) const uint KV_TYPE = TDM_VK_KV_F16;
layout(constant_id = 1) const uint HEADS_LATE = TDM_VK_HEADS_NORMED;
const uint HEADS = HEADS_LATE & 0xff;
// 1: the norm's gains come behind the turn, which changes no head's length. Only of heads that are normed.
const uint LATE = HEADS_LATE >> 8;
// Queries are multiplied by 1 + GROWTH ln(1 + floor(position / EVERY)); the bits of a float, and 0 for none.
layout(constant_id = 2) const uint GROWTH = 0;
layout(constant_id = 3) const uint EVERY = 0;
const bool VALUES_NORMED = HEADS == TDM_VK_HEADS_VALUES || HEADS == TDM_VK_HEADS_V_IS_K;
const bool NORMED = HEADS == TDM_VK_HEADS_NORMED || VALUES_NORMED;
layout(push_constant) uniform Push { tdm_vk_rotate_push p; };
#include "gpu-worker/vulkan/shaders/common/sum.glsl"
#include "gpu-worker/vulkan/shaders/attention/rotate.glsl"

shared float s_x[512]; // the head; of Q8_0 as rotated, until its blocks are rounded

layout(buffer_reference, std430, buffer_reference_align = 1) coherent buffer U8s { uint8_t v[]; };

// Rounds a head in s_x as the host's store_block() does, block by block; every thread of the workgroup must come here.
// Scales of a part lie scale_step apart, quants quant_step; in the log both lie side by side.
void store_blocks(uint64_t quants, uint quant_step, uint64_t scales, uint scale_step, uint64_t log_at)
{
        uint n_blocks = (p.head_dim + 31) / 32, saturated = 0;

        barrier();
        for (uint d = gl_LocalInvocationID.x; d < p.head_dim; d += WORKERS) {
                uint first = d & ~31u, end = min(first + 32, p.head_dim), f16_bits;
                float amax = 0, x = s_x[d];
                precise float scale, inverse = 0, share;

                for (uint i = first; i < end; i++)
                        amax = isnan(s_x[i]) ? amax : max(amax, min(abs(s_x[i]), 8319008.0));
                share = amax / 127.0;
                f16_bits = tdm_to_f16(min(share, 65504.0));
                scale = tdm_f16(f16_bits);
                if (scale > 0)
                        inverse = 1.0 / scale;
                if (!(abs(x) <= 8319008.0)) {
                        saturated++;
                        x = isnan(x) ? 0 : clamp(x, -8319008.0, 8319008.0);
                }
                precise float scaled = clamp(x * inverse, -127.0, 127.0);
                uint8_t q = uint8_t(int(roundEven(scaled)) & 0xff);

                U8s(quants).v[d * quant_step] = q;
                if (log_at != 0)
                        U8s(log_at).v[d] = q;
                if (d == first) {
                        Stored16s(scales).v[d / 32 * scale_step] = uint16_t(f16_bits);
                        if (log_at != 0)
                                Stored16s(log_at).v[p.head_dim / 2 + d / 32] = uint16_t(f16_bits);
                }
        }
        if (saturated != 0)
                atomicAdd(Counters(p.counters).n_saturated, saturated);
}

// At an element of a part, and at one of the log, from which the host keeps the cache's twin.
void store_one(uint64_t at, uint index, uint64_t log_at, uint log_index, float x)
{
        if (KV_TYPE == TDM_VK_KV_F32) {
                F32s(at).v[index] = x;
                if (log_at != 0)
                        F32s(log_at).v[log_index] = x;
                return;
        }
        uint saturated = 0;
        uint16_t stored = uint16_t(tdm_stored16(x, saturated));

        if (saturated != 0)
                atomicAdd(Counters(p.counters).n_saturated, saturated);
        Stored16s(at).v[index] = stored;
        if (log_at != 0)
                Stored16s(log_at).v[log_index] = stored;
}

void main()
{
        uint row = gl_WorkGroupID.y, head = gl_WorkGroupID.x, thread = gl_LocalInvocationID.x;
        uint half_dim = p.head_dim / 2, width = p.n_heads + 2 * p.n_kv_heads;
        tdm_vk_row r = Rows(p.rows).v[p.first_row + row];
        uint kv_head = head - p.n_heads, t = r.position % TDM_VK_PAGE_TOKENS;
        bool is_value = head >= p.n_heads + p.n_kv_heads, is_query = head < p.n_heads;
        uint from = HEADS == TDM_VK_HEADS_V_IS_K && is_value ? head - p.n_kv_heads : head;
        uint64_t x = p.qkv + uint64_t(row * width + from) * p.head_dim * 4;
        uint64_t part = 0, log_at = 0, gain = is_query ? p.q_gain : p.k_gain;
        uint n_blocks = (p.head_dim + 31) / 32;
        precise float sum = 0, query_scale = p.query_scale;

        if (GROWTH != 0)
                query_scale *= 1 + uintBitsToFloat(GROWTH) * log(float(1 + r.position / max(EVERY, 1)));
        if (!is_query) {
                uint head_bytes = KV_TYPE == TDM_VK_KV_F32 ? p.head_dim * 4 : KV_TYPE == TDM_VK_KV_F16 ?
                        p.head_dim * 2 : p.head_dim + n_blocks * 2;
                uint which = is_value ? 2 * (kv_head - p.n_kv_heads) + 1 : 2 * kv_head;
                uint page = U32s(p.table).v[r.seq * p.table_entries + r.position / TDM_VK_PAGE_TOKENS];

                part = tdm_page(p.pieces, p.piece_shift, page, p.page_bytes) +
                       uint64_t(is_value ? kv_head - p.n_kv_heads : kv_head) * p.part_bytes;
                if (p.log != 0)
                        log_at = p.log + (uint64_t(p.first_row + row) * p.n_kv_heads * 2 + which) * head_bytes;
        }
        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);

        uint flag = tdm_flag_read(p.chain_index, p.chain_wait);

        for (uint d = thread; d < half_dim; d += WORKERS) {
                uvec2 two;

#define ROTATE_FLAGGED \
                two = tdm_flagged2(p.chain + TDM_VK_FLAGGED_Y, from * half_dim + d, flag, there);
                if (flag != 0)
                        TDM_UNTIL(p.chain, there, ROTATE_FLAGGED)
                else
                        two = Act32x2s(x).v[d];
                s_x[d * 2] = uintBitsToFloat(two.x);
                s_x[d * 2 + 1] = uintBitsToFloat(two.y);
                if (HEADS == TDM_VK_HEADS_BIASED) {
                        precise vec2 biased = vec2(s_x[d * 2], s_x[d * 2 + 1]) +
                                vec2(Constants(p.q_gain).v[head * p.head_dim + d * 2],
                                     Constants(p.q_gain).v[head * p.head_dim + d * 2 + 1]);

                        s_x[d * 2] = biased.x;
                        s_x[d * 2 + 1] = biased.y;
                }
        }
        barrier();
        if (VALUES_NORMED && is_value) {
                for (uint d = thread; d < p.head_dim; d += WORKERS)
                        sum = fma(s_x[d], s_x[d], sum);

                float scale = tdm_head_scale(tdm_workgroup_sum(sum), p.head_dim, p.eps);

                for (uint d = thread; d < p.head_dim; d += WORKERS) {
                        precise float normed = s_x[d] * scale;

                        s_x[d] = normed;
                }
                barrier();
        }
        if (is_value && KV_TYPE == TDM_VK_KV_Q8_0) {
                uint64_t values = part + p.part_bytes / 2;

                store_blocks(values + t * p.head_dim, 1, values + TDM_VK_PAGE_TOKENS * p.head_dim + t * n_blocks * 2,
                        1, log_at);
        } else if (is_value) {
                for (uint d = thread; d < p.head_dim; d += WORKERS)
                        store_one(part + p.part_bytes / 2, t * p.head_dim + d, log_at, d, s_x[d]);
        } else {
                float scale = 1;

                if (NORMED) {
                        for (uint d = thread; d < p.head_dim; d += WORKERS)
                                sum = fma(s_x[d], s_x[d], sum);
                        scale = tdm_head_scale(tdm_workgroup_sum(sum), p.head_dim, p.eps);
                }

                for (uint d = thread; d < half_dim; d += WORKERS) {
                        uint64_t angles = p.angles + uint64_t(p.first_row + row) * p.head_dim * 4;
                        vec2 gains = NORMED ? vec2(Constants(gain).v[d],
                                Constants(gain).v[half_dim + d]) : vec2(1);
                        vec2 rotated = tdm_rotated(vec2(s_x[d], s_x[half_dim + d]), scale, LATE != 0 ? vec2(1) : gains,
                                                 vec2(Constants(angles).v[d], Constants(angles).v[half_dim + d]));

                        if (LATE != 0) {
                                precise vec2 normed = rotated * gains;

                                rotated = normed;
                        }

                        if (is_query) {
                                precise vec2 scaled = rotated * query_scale;

                                F32s(x).v[d] = scaled.x;
                                F32s(x).v[half_dim + d] = scaled.y;
                        } else if (KV_TYPE == TDM_VK_KV_Q8_0) {
                                s_x[d] = rotated.x;
                                s_x[half_dim + d] = rotated.y;
                        } else {
                                store_one(part, tdm_key_at(t, d, p.head_dim), log_at, d, rotated.x);
                                store_one(part, tdm_key_at(t, half_dim + d, p.head_dim), log_at, half_dim + d,
                                        rotated.y);
                        }
                }
                if (!is_query && KV_TYPE == TDM_VK_KV_Q8_0)
                        store_blocks(part + t / 16 * p.head_dim * 16 + t % 16, 16,
                                     part + TDM_VK_PAGE_TOKENS * p.head_dim + (t / 16 * n_blocks * 16 + t % 16) * 2,
                                     16, log_at);
        }
        tdm_chain_done(p.chain, p.chain_index);
}
