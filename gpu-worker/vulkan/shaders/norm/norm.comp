#version 460
// The end of a block and the beginning of the next: residual += rmsnorm(y), or y with a bias, and rmsnorm(residual)
// rounded for a matrix. Either half can be left out; what is computed is the same bits, fused or not. One workgroup is
// one row, which stays in registers.
#define WORKERS 512
#define COPIES PER
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#include "gpu-worker/vulkan/shaders/common/shared-norm.h"
layout(local_size_x = WORKERS) in;
layout(constant_id = 0) const uint FLAGS = 0;
layout(constant_id = 1) const uint ACT = 0;
layout(constant_id = 2) const uint PER = 1; // times four values of a thread
layout(push_constant) uniform Push { tdm_vk_norm_push p; };
#include "gpu-worker/vulkan/shaders/common/acts.glsl"
#include "gpu-worker/vulkan/shaders/common/sum.glsl"

const bool REHEARSES = (FLAGS & TDM_VK_NORM_REHEARSES) != 0, FEW = (FLAGS & TDM_VK_NORM_FEW) != 0;

// Known long before: not coherent.
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Gains { vec4 v[]; };

float norm_scale(float sum)
{
        precise float mean = sum / float(p.d) + p.eps;
        precise float scale = 1.0 / sqrt(mean);
        return scale;
}

// Rounds the normalised row for a matrix. Every thread must come here.
void put(uint row, inout vec4 value[PER], bool counts)
{
        uint thread = gl_LocalInvocationID.x, n4 = p.d / 4;
        uint64_t acts = FEW && tdm_flag_left(p.chain_index) != 0 ? p.acts + uint64_t(row * p.flag_stride) :
                tdm_acts_row(p.acts, p.d, row);
        ivec4 q[PER];
        float scales[PER];

        if (F16_ROWS) {
                [[unroll]] for (uint i = 0; i < PER; i++)
                        if (counts && i * WORKERS + thread < n4) {
                                tdm_acts_f16(acts, (i * WORKERS + thread) * 4, value[i], tdm_flag_left(p.chain_index));
                                if ((FLAGS & TDM_VK_NORM_BESIDE) != 0)
                                        F32x4s(p.beside + uint64_t(row) * p.d * 4).v[i * WORKERS + thread] = value[i];
                        }
                return;
        }
        [[unroll]] for (uint i = 0; i < PER; i++)
                if (ACT != TDM_VK_ACT_F32)
                        tdm_acts_look(i, value[i], i * WORKERS + thread < n4);
                else if (counts && i * WORKERS + thread < n4)
                        F32x4s(acts).v[i * WORKERS + thread] = value[i];
        if (ACT == TDM_VK_ACT_F32)
                return;
        barrier();
        [[unroll]] for (uint i = 0; i < PER; i++)
                scales[i] = tdm_acts_round(i, value[i], q[i]);
        barrier();
        [[unroll]] for (uint i = 0; i < PER; i++)
                if (counts && i * WORKERS + thread < n4)
                        tdm_acts_write(i, acts, p.d, (i * WORKERS + thread) * 4, q[i], scales[i],
                                tdm_scale_sums(p.scale_sums, row), p.scale_sums_rows, tdm_flag_left(p.chain_index));
}

void main()
{
        uint row = gl_WorkGroupID.x, thread = gl_LocalInvocationID.x, n4 = p.d / 4;
        uint64_t h = p.hidden + uint64_t((FLAGS & TDM_VK_NORM_GATHER) != 0 ? U32s(p.gather).v[row] : row) *
                (p.hidden_stride != 0 ? p.hidden_stride : p.d) * 4;
        uint64_t left = (FLAGS & TDM_VK_NORM_ELSEWHERE) != 0 ? h + uint64_t(int64_t(int(p.TDM_VK_NORM_LEAVES)) * 4) : h;
        precise vec4 value[PER];
        vec4 gain[PER], add_gain[PER], hidden[PER];
        precise float sum;
        precise float scale;

        [[unroll]] for (uint i = 0; i < PER; i++) {
                uint at = min(i * WORKERS + thread, n4 - 1);

                if (ACT != TDM_VK_ACT_NONE)
                        gain[i] = Gains(p.gain).v[at];
                if ((FLAGS & TDM_VK_NORM_PLAIN) != 0)
                        add_gain[i] = p.add_gain != 0 ? Gains(p.add_gain).v[at] : vec4(0);
                else if ((FLAGS & TDM_VK_NORM_ADD) != 0)
                        add_gain[i] = Gains(p.add_gain).v[at];
        }
        uint flag = tdm_flag_read(p.chain_index, p.chain_wait);

        // A kernel that read flagged words has not waited for the hidden rows that were left beside them.
        if (FEW) {
                tdm_chain_wait(p.chain, p.hidden_index + 1, p.hidden_wait);
                if (!REHEARSES)
                        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        } else if (flag != 0)
                tdm_chain_wait(p.chain, p.hidden_index + 1, p.hidden_wait);
        else
                tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        [[unroll]] for (uint i = 0; i < PER; i++)
                hidden[i] = F32x4s(h).v[min(i * WORKERS + thread, n4 - 1)];
        // Who rehearses goes through all of it for nothing while y is made: then its instructions are in this
        // multiprocessor's cache when y is there. The last time counts. The loop costs registers, and many rows
        // workgroups of a multiprocessor: so not theirs.
        [[dont_unroll]] for (uint pass = REHEARSES ? 0 : 1; pass < 2 + (REHEARSES ? p.d >> 31 : 0); pass++) {
                bool counts = pass == 1;

                [[unroll]] for (uint i = 0; i < PER; i++)
                        value[i] = hidden[i];
                sum = 0;
                if ((FLAGS & TDM_VK_NORM_ADD) != 0) {
                        uint64_t y = p.y + uint64_t(row) * p.y_stride * 4;
                        vec4 added[PER];

#define ADD_FLAGGED \
                        [[unroll]] for (uint i = 0; i < PER; i++) \
                                added[i] = uintBitsToFloat(tdm_flagged4(y, min(i * WORKERS + thread, n4 - 1), flag, \
                                        there));
                        if (flag != 0) {
                                TDM_UNTIL_OR(p.chain, there, !counts, ADD_FLAGGED)
                        } else {
                                if (FEW && REHEARSES && counts)
                                        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
                                [[unroll]] for (uint i = 0; i < PER; i++)
                                        added[i] = F32x4s(y).v[min(i * WORKERS + thread, n4 - 1)];
                        }
                        [[unroll]] for (uint i = 0; i < PER; i++)
                                if ((FLAGS & TDM_VK_NORM_PLAIN) == 0 && i * WORKERS + thread < n4) {
                                        sum = fma(added[i].x, added[i].x, sum);
                                        sum = fma(added[i].y, added[i].y, sum);
                                        sum = fma(added[i].z, added[i].z, sum);
                                        sum = fma(added[i].w, added[i].w, sum);
                                }
                        if ((FLAGS & TDM_VK_NORM_PLAIN) == 0)
                                scale = norm_scale(tdm_workgroup_sum(sum));
                        sum = 0;
                        [[unroll]] for (uint i = 0; i < PER; i++) {
                                precise vec4 add;

                                if ((FLAGS & TDM_VK_NORM_PLAIN) != 0)
                                        add = added[i] + add_gain[i];
                                else
                                        add = added[i] * scale * add_gain[i];

                                value[i] = value[i] + add;
                                if (counts && i * WORKERS + thread < n4)
                                        F32x4s(left).v[i * WORKERS + thread] = value[i];
                        }
                }
                if ((FLAGS & TDM_VK_NORM_CENTERED) != 0) {
                        [[unroll]] for (uint i = 0; i < PER; i++)
                                if (i * WORKERS + thread < n4)
                                        sum += value[i].x + value[i].y + value[i].z + value[i].w;
                        precise float mean = tdm_workgroup_sum(sum) / float(p.d);

                        sum = 0;
                        [[unroll]] for (uint i = 0; i < PER; i++) {
                                precise vec4 rest = value[i] - mean;

                                value[i] = rest;
                        }
                }
                if (ACT != TDM_VK_ACT_NONE) {
                        [[unroll]] for (uint i = 0; i < PER; i++)
                                if (i * WORKERS + thread < n4) {
                                        sum = fma(value[i].x, value[i].x, sum);
                                        sum = fma(value[i].y, value[i].y, sum);
                                        sum = fma(value[i].z, value[i].z, sum);
                                        sum = fma(value[i].w, value[i].w, sum);
                                }
                        scale = norm_scale(tdm_workgroup_sum(sum));
                        [[unroll]] for (uint i = 0; i < PER; i++) {
                                precise vec4 x = value[i] * scale * gain[i];

                                value[i] = x;
                        }
                        put(row, value, counts);
                }
        }
        if (p.chain != 0) // flagged or not: hidden is not
                tdm_chain_count(p.chain, p.chain_index & ~TDM_VK_CHAIN_FLAGS);
}
