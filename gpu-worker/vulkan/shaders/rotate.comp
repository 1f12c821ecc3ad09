#version 460
// Queries and keys: norm of each head and rotation; queries are scaled and stay where they are, keys and values go into the
// cache (engine/kv.h). One workgroup is one head of one row: n_heads queries, then n_kv_heads keys, then the values.
#define WORKERS 128
#include "common.glsl"
layout(local_size_x = WORKERS) in;
layout(constant_id = 0) const uint KV_TYPE = TDM_VK_KV_F16;
layout(push_constant) uniform Push { tdm_vk_rotate_push p; };
#include "sum.glsl"

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Counters { uint n_saturated; };

// At an element of a part, and at one of the log, from which the host keeps the cache's twin.
void store(uint64_t at, uint index, uint64_t log_at, uint log_index, float x)
{
        if (KV_TYPE == TDM_VK_KV_F32) {
                F32s(at).v[index] = x;
                if (log_at != 0)
                        F32s(log_at).v[log_index] = x;
                return;
        }
        if (!(abs(x) <= 65504.0)) {
                atomicAdd(Counters(p.counters).n_saturated, 1);
                x = isnan(x) ? 0 : clamp(x, -65504.0, 65504.0);
        }
        uint16_t stored = uint16_t(tdm_to_f16(x));
        U16s(at).v[index] = stored;
        if (log_at != 0)
                U16s(log_at).v[log_index] = stored;
}

void main()
{
        uint row = gl_WorkGroupID.y, head = gl_WorkGroupID.x, thread = gl_LocalInvocationID.x;
        uint half_dim = p.head_dim / 2, width = p.n_heads + 2 * p.n_kv_heads;
        uint64_t x = p.qkv + uint64_t(row * width + head) * p.head_dim * 4;
        tdm_vk_row r = Rows(p.rows).v[p.first_row + row];
        uint kv_head = head - p.n_heads, t = r.position % TDM_VK_PAGE_TOKENS;
        bool is_value = head >= p.n_heads + p.n_kv_heads, is_query = head < p.n_heads;
        uint64_t part = 0, log_at = 0, gain = is_query ? p.q_gain : p.k_gain;
        precise float sum = 0, scale;

        if (!is_query) {
                uint element = KV_TYPE == TDM_VK_KV_F32 ? 4 : 2, which = is_value ? 2 * (kv_head - p.n_kv_heads) + 1 : 2 * kv_head;
                uint page = U32s(p.table).v[r.seq * p.table_entries + r.position / TDM_VK_PAGE_TOKENS];

                part = tdm_page(p.pieces, p.piece_shift, page, p.page_bytes) +
                       uint64_t(is_value ? kv_head - p.n_kv_heads : kv_head) * p.part_bytes;
                if (p.log != 0)
                        log_at = p.log + (uint64_t(p.first_row + row) * p.n_kv_heads * 2 + which) * p.head_dim * element;
        }
        if (is_value) {
                for (uint d = thread; d < p.head_dim; d += WORKERS)
                        store(part + p.part_bytes / 2, t * p.head_dim + d, log_at, d, F32s(x).v[d]);
                return;
        }
        for (uint d = thread; d < p.head_dim; d += WORKERS)
                sum = fma(F32s(x).v[d], F32s(x).v[d], sum);
        precise float mean = tdm_workgroup_sum(sum) / float(p.head_dim) + p.eps;
        scale = 1.0 / sqrt(mean);
        for (uint d = thread; d < half_dim; d += WORKERS) {
                uint64_t angles = p.angles + uint64_t(p.first_row + row) * p.head_dim * 4;
                float c = F32s(angles).v[d], s = F32s(angles).v[half_dim + d];
                precise float left = F32s(x).v[d] * scale * F32s(gain).v[d];
                precise float right = F32s(x).v[half_dim + d] * scale * F32s(gain).v[half_dim + d];
                precise float rs = right * s, ls = left * s;
                precise float new_left = fma(left, c, -rs), new_right = fma(right, c, ls);

                if (is_query) {
                        precise float scaled_left = new_left * p.query_scale, scaled_right = new_right * p.query_scale;
                        F32s(x).v[d] = scaled_left;
                        F32s(x).v[half_dim + d] = scaled_right;
                } else {
                        store(part, (t / 16 * p.head_dim + d) * 16 + t % 16, log_at, d, new_left);
                        store(part, (t / 16 * p.head_dim + half_dim + d) * 16 + t % 16, log_at, half_dim + d, new_right);
                }
        }
}
