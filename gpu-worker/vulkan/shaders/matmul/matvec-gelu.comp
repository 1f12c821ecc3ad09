#version 460
// A single row's gate and up projections and what follows them, rounded for the down projection: the bits of
// matvec.comp and gelu.comp, without y in memory between them. A workgroup makes a block of 32: two panels of gates,
// and the two of their ups.
#define WORKERS 256
#include "gpu-worker/vulkan/shaders/common/common.glsl"
layout(local_size_x = WORKERS) in;
layout(constant_id = 0) const uint FORM = 0; // type, TDM_VK_DEINTERLEAVED
layout(constant_id = 1) const uint ACT = TDM_VK_ACT_I8;
layout(constant_id = 2) const uint OUT = TDM_VK_ACT_I16; // TDM_VK_GELU_OUT
layout(constant_id = 3) const uint SHAPE = TDM_VK_MATVEC_SHAPE(1, 4, 1, 4);
layout(push_constant) uniform Push { tdm_vk_matmul_push p; };
#define ROWS 1
#include "gpu-worker/vulkan/shaders/common/panels.glsl"
#include "gpu-worker/vulkan/shaders/matmul/matvec.glsl"
#include "gpu-worker/vulkan/shaders/ffn/activate.glsl"
const uint OUT_ACT = TDM_VK_GELU_OUT_ACT(OUT), ACTIVATION = TDM_VK_GELU_OUT_ACTIVATION(OUT);
#define ACT OUT_ACT
#include "gpu-worker/vulkan/shaders/common/acts.glsl"

shared float s_out[64]; // gates, ups

uint panel_of(uint i)
{
        return i / 2 * p.panel1 + gl_WorkGroupID.x * 2 + i % 2;
}

void main()
{
        uint thread = gl_LocalInvocationID.x;
        bool used = thread < 8;
        vec4 x = vec4(0);

        multiply(0);
        if (thread < 64)
                s_out[thread] = output_of(thread / 16, thread % 16);
        barrier();
        if (used) // no loop: shaderc of 2023 unrolls it wrongly
                x = vec4(tdm_activate(ACTIVATION, s_out[thread * 4], s_out[32 + thread * 4]),
                         tdm_activate(ACTIVATION, s_out[thread * 4 + 1], s_out[33 + thread * 4]),
                         tdm_activate(ACTIVATION, s_out[thread * 4 + 2], s_out[34 + thread * 4]),
                         tdm_activate(ACTIVATION, s_out[thread * 4 + 3], s_out[35 + thread * 4]));
        tdm_put_acts(p.acts, p.panel1 * 16, gl_WorkGroupID.x * 32 + thread * 4, x, used, p.out_scale_sums,
                p.scale_sums_rows, tdm_flag_left(p.chain_index));
        tdm_chain_done(p.chain, p.chain_index);
}
