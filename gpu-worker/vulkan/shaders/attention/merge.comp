#version 460
// The partial results of a row's items, merged from left to right, divided, and rounded for the output projection. A
// sink, a score without a value, joins what they are divided by.
#define WORKERS 256
#include "gpu-worker/vulkan/shaders/common/common.glsl"
layout(local_size_x = WORKERS) in;
layout(constant_id = 1) const uint ACT = 0;
layout(push_constant) uniform Push { tdm_vk_merge_push p; };
#include "gpu-worker/vulkan/shaders/common/acts.glsl"
#include "gpu-worker/vulkan/shaders/attention/merge.glsl"

// The share of all scores together that is not the sink's.
float share_beside(float sink, uint slot, uint slot_step, uint n)
{
        tdm_running running = tdm_running(0, 0);

        for (uint i = 0; i < n; i++) {
                uvec2 ml = Act32x2s(p.partial + uint64_t(slot + i * slot_step) * TDM_VK_PARTIAL_WIDTH(p.head_dim) * 4)
                        .v[p.head_dim / 2];
                float old_factor, new_factor;

                if (uintBitsToFloat(ml.y) > 0)
                        tdm_merge(running, uintBitsToFloat(ml.x), uintBitsToFloat(ml.y), old_factor, new_factor);
        }
        float largest = max(running.m, sink);
        precise float distance = running.m - largest, sink_distance = sink - largest;
        precise float own = running.l * tdm_exp(distance);
        precise float share = own / (own + tdm_exp(sink_distance));
        return share;
}

void main()
{
        uint row = gl_WorkGroupID.y, col = (gl_WorkGroupID.x * WORKERS + gl_LocalInvocationID.x) * 4;
        uint cols = p.n_heads * p.head_dim;
        bool used = col < cols;
        tdm_vk_row_items items = RowItems(p.row_items).v[p.first_row + row];
        vec4 o = vec4(0);

        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        if (used)
                o = tdm_merge_items(p.partial, items.slot + col / p.head_dim, items.slot_step, items.n, p.head_dim,
                        col % p.head_dim);
        if (used && p.sinks != 0) {
                precise vec4 shared_out = o * share_beside(F32s(p.sinks).v[col / p.head_dim],
                        items.slot + col / p.head_dim, items.slot_step, items.n);

                o = shared_out;
        }
        tdm_put_acts(tdm_acts_row(p.acts, cols, row), cols, col, o, used, tdm_scale_sums(p.scale_sums, row),
                p.scale_sums_rows, 0);
        tdm_chain_done(p.chain, p.chain_index);
}
