#version 460
// Which experts a row uses: those with the largest numbers of the router, of equal ones the lower; and their weights,
// the softmax of the chosen numbers, or what the softmax of all numbers has for them. One workgroup is one row. ORDER
// of the sum: by rank, or of all by number.
#define WORKERS 128
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#include "gpu-worker/vulkan/shaders/common/shared-experts.h"
layout(local_size_x = WORKERS) in;
layout(constant_id = 0) const uint OF_ALL = 0;
layout(push_constant) uniform Push { tdm_vk_choose_push p; };

shared float s_z[TDM_VK_EXPERTS_MAX];
shared uint s_ids[TDM_VK_EXPERTS_USED_MAX];
shared float s_exp[TDM_VK_EXPERTS_MAX]; // by rank, or of all by number

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
        uint n_summed = OF_ALL != 0 ? p.n_experts : p.n_used;

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
        for (uint i = thread; i < n_summed; i += WORKERS)
                s_exp[i] = tdm_exp(s_z[OF_ALL != 0 ? i : s_ids[i]] - s_z[s_ids[0]]);
        barrier();
        if (thread < p.n_used) {
                precise float sum = 0;

                for (uint i = 0; i < n_summed; i++)
                        sum += s_exp[i];
                precise float weight = s_exp[OF_ALL != 0 ? s_ids[thread] : thread] / sum;

                if (p.scales != 0)
                        weight = weight * F32s(p.scales).v[s_ids[thread]];

                Act32s(p.ids).v[row * p.n_used + thread] = s_ids[thread];
                F32s(p.weights).v[row * p.n_used + thread] = weight;
        }
        tdm_chain_done(p.chain, p.chain_index);
}
