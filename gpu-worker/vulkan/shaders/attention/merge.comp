#version 460
// The partial results of a row's items, merged from left to right, divided, and rounded for the output projection.
#define WORKERS 256
#include "gpu-worker/vulkan/shaders/common/common.glsl"
layout(local_size_x = WORKERS) in;
layout(constant_id = 1) const uint ACT = 0;
layout(push_constant) uniform Push { tdm_vk_merge_push p; };
#include "gpu-worker/vulkan/shaders/common/acts.glsl"
#include "gpu-worker/vulkan/shaders/attention/merge.glsl"

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
        tdm_put_acts(tdm_acts_row(p.acts, cols, row), cols, col, o, used, tdm_scale_sums(p.scale_sums, row),
                p.scale_sums_rows, 0);
        tdm_chain_done(p.chain, p.chain_index);
}
