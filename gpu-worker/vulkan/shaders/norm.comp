#version 460
// The end of a block and the beginning of the next: residual += rmsnorm(y), and rmsnorm(residual) rounded for a matrix. Either
// half can be left out; what is computed is the same bits, fused or not. One workgroup is one row.
#define WORKERS 512
#include "common.glsl"
layout(local_size_x = WORKERS) in;
layout(constant_id = 0) const uint FLAGS = 0;
layout(constant_id = 1) const uint ACT = 0;
layout(push_constant) uniform Push { tdm_vk_norm_push p; };
#include "acts.glsl"
#include "sum.glsl"

float norm_scale(float sum)
{
        precise float mean = sum / float(p.d) + p.eps;
        precise float scale = 1.0 / sqrt(mean);
        return scale;
}

void main()
{
        uint row = gl_WorkGroupID.x, thread = gl_LocalInvocationID.x, n4 = p.d / 4;
        uint64_t h = p.hidden;
        precise float sum = 0;
        precise float scale;

        h += uint64_t((FLAGS & TDM_VK_NORM_GATHER) != 0 ? U32s(p.gather).v[row] : row) * p.d * 4;
        if ((FLAGS & TDM_VK_NORM_ADD) != 0) {
                uint64_t y = p.y + uint64_t(row) * p.y_stride * 4;

                for (uint i = thread; i < n4; i += WORKERS) {
                        vec4 v = F32x4s(y).v[i];
                        sum = fma(v.x, v.x, sum);
                        sum = fma(v.y, v.y, sum);
                        sum = fma(v.z, v.z, sum);
                        sum = fma(v.w, v.w, sum);
                }
                scale = norm_scale(tdm_workgroup_sum(sum));
                sum = 0;
                for (uint i = thread; i < n4; i += WORKERS) {
                        precise vec4 add = F32x4s(y).v[i] * scale * F32x4s(p.add_gain).v[i];
                        precise vec4 v = F32x4s(h).v[i] + add;
                        F32x4s(h).v[i] = v;
                        sum = fma(v.x, v.x, sum);
                        sum = fma(v.y, v.y, sum);
                        sum = fma(v.z, v.z, sum);
                        sum = fma(v.w, v.w, sum);
                }
        } else {
                for (uint i = thread; i < n4; i += WORKERS) {
                        vec4 v = F32x4s(h).v[i];
                        sum = fma(v.x, v.x, sum);
                        sum = fma(v.y, v.y, sum);
                        sum = fma(v.z, v.z, sum);
                        sum = fma(v.w, v.w, sum);
                }
        }
        if (ACT == TDM_VK_ACT_NONE)
                return;
        scale = norm_scale(tdm_workgroup_sum(sum));
        // A thread reads what it wrote itself.
        for (uint base = 0; base < n4; base += WORKERS) {
                uint i = base + thread;
                bool used = i < n4;
                precise vec4 x = vec4(0);

                if (used)
                        x = F32x4s(h).v[i] * scale * F32x4s(p.gain).v[i];
                tdm_put_acts(p.acts + uint64_t(row) * TDM_VK_ACT_STRIDE(ACT, p.d), p.d, i * 4, x, used);
        }
}
