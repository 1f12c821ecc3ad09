#version 460
// y = x Wᵀ for ROWS rows at a time: see matvec.glsl.
#include "gpu-worker/vulkan/shaders/common/common.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint FORM = 0; // type, TDM_VK_DEINTERLEAVED
layout(constant_id = 1) const uint ACT = 0;
layout(constant_id = 2) const uint ROWS = 1;
layout(constant_id = 3) const uint SHAPE = 4 | 1 << 8 | 1 << 16 | 4 << 24;
layout(push_constant) uniform Push { tdm_vk_matmul_push p; };
#include "gpu-worker/vulkan/shaders/common/panels.glsl"
#include "gpu-worker/vulkan/shaders/matmul/matvec.glsl"

uint panel_of(uint i)
{
        return p.panel0 + gl_WorkGroupID.x * PANELS + i;
}

void main()
{
        uint row0 = gl_WorkGroupID.y * ROWS;

        multiply(row0);
        for (uint i = gl_LocalInvocationID.x; i < ROWS * PANELS * 16; i += 256) {
                uint r = i / 16 / PANELS, out_index = panel_of(i / 16 % PANELS) * 16 + i % 16;
                float sum = output_of(i / 16, i % 16);

                if (row0 + r < p.n_rows && out_index < p.n_out)
                        tdm_put_word(p.y + uint64_t(row0 + r) * p.y_stride * 4, out_index, floatBitsToUint(sum),
                                tdm_flag_left(p.chain_index));
        }
        tdm_chain_done(p.chain, p.chain_index);
}
