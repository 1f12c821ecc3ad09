#version 460
// Which experts a row uses: those with the largest numbers of the router, of equal ones the lower; and their weights,
// the softmax of the chosen numbers. One workgroup is one row. ORDER of the sum: by rank.
#define WORKERS 128
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#include "gpu-worker/vulkan/shaders/common/shared-experts.h"
layout(local_size_x = WORKERS) in;
layout(push_constant) uniform Push { tdm_vk_choose_push p; };

shared float s_z[TDM_VK_EXPERTS_MAX];
shared uint s_best[WORKERS];
shared uint s_ids[TDM_VK_EXPERTS_USED_MAX];
shared bool s_taken[TDM_VK_EXPERTS_MAX];

const uint NONE = 0xffffffffu;

// A NaN comes last, so that any numbers give a choice.
bool comes_first(uint a, uint b)
{
        if (a == NONE || b == NONE)
                return b == NONE;
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
                precise float z = F32s(p.z).v[row * p.z_stride + e];

                if (p.bias != 0)
                        z = z + F32s(p.bias).v[e];
                s_z[e] = z;
                s_taken[e] = false;
        }
        barrier();
        for (uint rank = 0; rank < p.n_used; rank++) {
                uint best = NONE;

                for (uint e = thread; e < p.n_experts; e += WORKERS)
                        if (!s_taken[e] && comes_first(e, best))
                                best = e;
                s_best[thread] = best;
                barrier();
                for (uint half_of = WORKERS / 2; half_of > 0; half_of /= 2) {
                        if (thread < half_of && comes_first(s_best[thread + half_of], s_best[thread]))
                                s_best[thread] = s_best[thread + half_of];
                        barrier();
                }
                if (thread == 0) {
                        s_ids[rank] = s_best[0];
                        s_taken[s_best[0]] = true;
                }
                barrier();
        }
        if (thread == 0) {
                precise float sum = 0;

                for (uint i = 0; i < p.n_used; i++)
                        sum += tdm_exp(s_z[s_ids[i]] - s_z[s_ids[0]]);
                for (uint i = 0; i < p.n_used; i++) {
                        precise float weight = tdm_exp(s_z[s_ids[i]] - s_z[s_ids[0]]) / sum;

                        Act32s(p.ids).v[row * p.n_used + i] = s_ids[i];
                        F32s(p.weights).v[row * p.n_used + i] = weight;
                }
        }
        tdm_chain_done(p.chain, p.chain_index);
}
