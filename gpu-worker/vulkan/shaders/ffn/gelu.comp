#version 460
// The activation of gate and up (activate.glsl), rounded for the down projection.
#define WORKERS 256
#include "gpu-worker/vulkan/shaders/common/common.glsl"
layout(local_size_x = WORKERS) in;
layout(constant_id = 0) const uint ACTIVATION = 0;
layout(constant_id = 1) const uint ACT = 0;
layout(push_constant) uniform Push { tdm_vk_gelu_push p; };
#include "gpu-worker/vulkan/shaders/common/acts.glsl"
#include "gpu-worker/vulkan/shaders/ffn/activate.glsl"

void main()
{
        uint row = gl_WorkGroupID.y, col = (gl_WorkGroupID.x * WORKERS + gl_LocalInvocationID.x) * 4;
        uint64_t y = p.y + uint64_t(row) * p.d_ff * 8;
        bool used = col < p.d_ff;
        vec4 x = vec4(0);

        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        if (used) {
                vec4 g = F32x4s(y).v[col / 4], up = F32x4s(y).v[(p.d_ff + col) / 4];
                x = vec4(tdm_activate(ACTIVATION, g.x, up.x), tdm_activate(ACTIVATION, g.y, up.y),
                         tdm_activate(ACTIVATION, g.z, up.z), tdm_activate(ACTIVATION, g.w, up.w));
        }
        tdm_put_acts(tdm_acts_row(p.acts, p.d_ff, row), p.d_ff, col, x, used, tdm_scale_sums(p.scale_sums, row),
                p.scale_sums_rows, 0);
        tdm_chain_done(p.chain, p.chain_index);
}
