#version 460
// What a layer does beside attention and FFN, row by row: a token's own input to it, and the scale of its output. One
// workgroup is one row. ORDER of a sum of squares: thread t's are of columns 4 t … 4 t + 3 and those 1024 further, in
// rising order; then sum.glsl.
#define WORKERS 256
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#include "gpu-worker/vulkan/shaders/common/shared-side.h"
layout(local_size_x = WORKERS) in;
layout(constant_id = 0) const uint OP = 0;
layout(constant_id = 1) const uint ACT = 0;
layout(push_constant) uniform Push { tdm_vk_side_push p; };
#include "gpu-worker/vulkan/shaders/common/acts.glsl"
#include "gpu-worker/vulkan/shaders/common/sum.glsl"
#include "gpu-worker/vulkan/shaders/ffn/gelu.glsl"

// Known long before: not coherent.
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Gains { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Numbers { float v[]; };

const float SQRT_HALF = 0.70710678;

vec4 at(uint64_t rows, uint stride, uint col)
{
        return F32x4s(rows + uint64_t(gl_WorkGroupID.x) * stride * 4).v[col / 4];
}

// What a row's norm multiplies it with.
float norm_scale(uint64_t rows, uint stride, float factor)
{
        precise float sum = 0;

        for (uint col = gl_LocalInvocationID.x * 4; col < p.n; col += WORKERS * 4) {
                precise vec4 v = at(rows, stride, col) * factor;

                sum = fma(v.x, v.x, sum);
                sum = fma(v.y, v.y, sum);
                sum = fma(v.z, v.z, sum);
                sum = fma(v.w, v.w, sum);
        }
        precise float mean = tdm_workgroup_sum(sum) / float(p.n) + p.eps;
        precise float scale = 1.0 / sqrt(mean);
        return scale;
}

// Every thread must come here, with the same col0.
void put(uint col0)
{
        uint row = gl_WorkGroupID.x, col = col0 + gl_LocalInvocationID.x * 4;
        bool used = col < p.n;
        vec4 value = vec4(0);

        if (used) {
                precise vec4 x = at(p.x, p.x_stride, col);

                if (OP == TDM_VK_SIDE_GATED) {
                        vec4 other = at(p.other, p.other_stride, col);

                        x = vec4(tdm_gelu_mul(x.x, other.x), tdm_gelu_mul(x.y, other.y), tdm_gelu_mul(x.z, other.z),
                                tdm_gelu_mul(x.w, other.w));
                } else if (p.gain != 0) {
                        x = x * Gains(p.gain).v[col / 4];
                }
                value = x;
        }
        tdm_put_acts(tdm_acts_row(p.acts, p.n, row), p.n, col, value, used, tdm_scale_sums(p.scale_sums, row),
                p.scale_sums_rows, 0);
}

void change(float scale, float factor, float output_scale, float scale1)
{
        uint64_t y = p.y + uint64_t(gl_WorkGroupID.x) * p.y_stride * 4;

        for (uint col = gl_LocalInvocationID.x * 4; col < p.n; col += WORKERS * 4) {
                precise vec4 value = F32x4s(y).v[col / 4];

                if (OP == TDM_VK_SIDE_INPUT) {
                        precise vec4 scaled = value * factor;
                        precise vec4 normed = scaled * scale * Gains(p.gain).v[col / 4];
                        precise vec4 other = at(p.other, p.other_stride, col) * p.factor1;

                        value = (normed + other) * SQRT_HALF;
                } else if (OP == TDM_VK_SIDE_BOTH) {
                        precise vec4 normed = value * scale * Gains(p.gain).v[col / 4];
                        precise vec4 other = at(p.x, p.x_stride, col) * scale1 * Gains(p.gain1).v[col / 4];

                        value = normed + other;
                } else if (OP == TDM_VK_SIDE_NORM) {
                        precise vec4 normed = value * scale * Gains(p.gain).v[col / 4];

                        value = normed;
                } else {
                        if (p.x != 0) {
                                precise vec4 added = at(p.x, p.x_stride, col) * scale * Gains(p.gain).v[col / 4];

                                value = value + added;
                        }
                        value = value * output_scale;
                }
                F32x4s(y).v[col / 4] = value;
        }
}

void main()
{
        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        if (OP == TDM_VK_SIDE_COPY || OP == TDM_VK_SIDE_GATED) {
                for (uint col = 0; col < p.n; col += WORKERS * 4)
                        put(col);
        } else if (OP == TDM_VK_SIDE_INPUT) {
                change(norm_scale(p.y, p.y_stride, p.factor), p.factor, 1, 0);
        } else if (OP == TDM_VK_SIDE_NORM) {
                change(norm_scale(p.y, p.y_stride, 1), 1, 1, 0);
        } else if (OP == TDM_VK_SIDE_BOTH) {
                change(norm_scale(p.y, p.y_stride, 1), 1, 1, norm_scale(p.x, p.x_stride, 1));
        } else {
                change(p.x != 0 ? norm_scale(p.x, p.x_stride, 1) : 0, 1, p.other != 0 ? Numbers(p.other).v[0] : 1, 0);
        }
        tdm_chain_done(p.chain, p.chain_index);
}
