#version 460
// The partial results of a row's items, merged from left to right, divided, and rounded for the output projection.
#define WORKERS 256
#include "common.glsl"
layout(local_size_x = WORKERS) in;
layout(constant_id = 1) const uint ACT = 0;
layout(push_constant) uniform Push { tdm_vk_merge_push p; };
#include "acts.glsl"
#include "merge.glsl"

void main()
{
        uint row = gl_WorkGroupID.y, col = (gl_WorkGroupID.x * WORKERS + gl_LocalInvocationID.x) * 4;
        uint cols = p.n_heads * p.head_dim, width = TDM_VK_PARTIAL_WIDTH(p.head_dim);
        bool used = col < cols;
        tdm_vk_row_items items = RowItems(p.row_items).v[p.first_row + row];
        precise vec4 o = vec4(0);

        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        if (used) {
                tdm_running running = tdm_running(0, 0);

                for (uint i = 0; i < items.n; i++) {
                        uint64_t slot = p.partial + uint64_t(items.slot + i * items.slot_step + col / p.head_dim) * width * 4;
                        float m = F32s(slot).v[p.head_dim], l = F32s(slot).v[p.head_dim + 1], old_factor, new_factor;
                        vec4 span = F32x4s(slot).v[col % p.head_dim / 4];

                        if (l > 0) {
                                bool merged = tdm_merge(running, m, l, old_factor, new_factor);
                                precise vec4 add = span * new_factor;

                                o = merged ? fma(o, vec4(old_factor), add) : span;
                        }
                }
                precise float inverse = 1.0 / running.l;
                o = o * inverse;
        }
        tdm_put_acts(p.acts + uint64_t(row) * TDM_VK_ACT_STRIDE(ACT, cols), cols, col, o, used, tdm_side(p.side, row), p.side_rows);
        tdm_chain_done(p.chain, p.chain_index);
}
