#version 460
// Which experts a row uses: those with the largest numbers of the router, of equal ones the lower; and their weights,
// the softmax of the chosen numbers. One workgroup is one row. ORDER of the sum: by rank.
#define WORKERS 128
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#include "gpu-worker/vulkan/shaders/common/shared-experts.h"
layout(local_size_x = WORKERS) in;
layout(push_constant) uniform Push { tdm_vk_choose_push p; };

shared float s_z[TDM_VK_EXPERTS_MAX];
shared uint s_ids[TDM_VK_EXPERTS_USED_MAX];
shared float s_exp[TDM_VK_EXPERTS_USED_MAX];

// A NaN comes last, so that any numbers give a choice.
bool comes_first(uint a, uint b)
{
        float l = s_z[a], r = s_z[b];

        if (l == r || isnan(l) && isnan(r))
                return a < b;
        return isnan(r) || l > r;
}

void main()
{
        uint row = gl_WorkGroupID.x, thread = gl_LocalInvocationID.x;

        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        for (uint e = thread; e < p.n_experts; e += WORKERS) {
                precise float z = F32s(p.z).v[row * p.z_stride + e] * p.z_scale;

                if (p.bias != 0)
                        z = z + F32s(p.bias).v[e];
                s_z[e] = z;
        }
        barrier();
        // An expert's rank is how many come before it: no two have the same.
        for (uint e = thread; e < p.n_experts; e += WORKERS) {
                uint rank = 0;

                for (uint other = 0; other < p.n_experts; other++)
                        rank += comes_first(other, e) ? 1 : 0;
                if (rank < p.n_used)
                        s_ids[rank] = e;
        }
        barrier();
        if (thread < p.n_used)
                s_exp[thread] = tdm_exp(s_z[s_ids[thread]] - s_z[s_ids[0]]);
        barrier();
        if (thread < p.n_used) {
                precise float sum = 0;

                for (uint i = 0; i < p.n_used; i++)
                        sum += s_exp[i];
                precise float weight = s_exp[thread] / sum;

                if (p.scales != 0)
                        weight = weight * F32s(p.scales).v[s_ids[thread]];

                Act32s(p.ids).v[row * p.n_used + thread] = s_ids[thread];
                F32s(p.weights).v[row * p.n_used + thread] = weight;
        }
        tdm_chain_done(p.chain, p.chain_index);
}
