#version 460
// The sum of the outputs of a row's experts. ORDER: y = w_0 y_0, then y = y + w_i y_i by rank, each product and each
// sum rounded.
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#include "gpu-worker/vulkan/shaders/common/shared-experts.h"
layout(local_size_x = 256) in;
layout(push_constant) uniform Push { tdm_vk_experts_sum_push p; };

void main()
{
        uint row = gl_WorkGroupID.y, col = gl_WorkGroupID.x * 256 + gl_LocalInvocationID.x;

        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        if (col < p.d) {
                precise float sum = 0;

                for (uint i = 0; i < p.n_used; i++) {
                        uint at = row * p.n_used + i;
                        uint slot = p.slots != 0 ? Act32s(p.slots).v[at] : at;
                        precise float part = F32s(p.weights).v[at] *
                                F32s(p.parts + (uint64_t(slot) * p.d + col) * 4).v[0];

                        sum = i == 0 ? part : sum + part;
                }
                F32s(p.y + (uint64_t(row) * p.d + col) * 4).v[0] = sum;
        }
        tdm_chain_done(p.chain, p.chain_index);
}
