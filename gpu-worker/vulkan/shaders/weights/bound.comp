#version 460
// How large a row's products with a matrix of Q4_0 or Q8_0 can be, whatever the row: for rows of a norm, whose values
// before its gains have a sum of squares of at most d, an output is at most sqrt(d) times the root of the sum of
// (weight times gain) squared, and a weight at most its block's scale times what a type's largest value is. Leaves the
// largest of all outputs of the sum over blocks of scale² times the sum of gain², of the two matrices' product where
// there are two; and the largest scale. As bits of floats, which are in order where they are not negative. Layout as in
// the segment: before repack.comp.
#include "gpu-worker/vulkan/shaders/common/common.glsl"
layout(local_size_x = 256) in;
layout(push_constant) uniform Push { tdm_vk_matmul_push p; }; // w0, w1 or 0; x: gains, 0: all 1; y: two words

shared float s_sum[2][256];
shared float s_most[256];

void main()
{
        uint thread = gl_LocalInvocationID.x, lane = thread % 16, part = thread / 16, nb = p.cols / 32,
                panel = p.panel0 + gl_WorkGroupID.x;
        float sums[2] = float[2](0.0, 0.0), most = 0;

        for (uint b = part; b < nb; b += 16) {
                float gains = 0;

                for (uint k = 0; k < 32; k++) {
                        float gain = p.x != 0 ? F32s(p.x).v[b * 32 + k] : 1.0;

                        gains += gain * gain;
                }
                float d0 = abs(tdm_panel_scale(p.w0 + uint64_t(panel) * p.panel_bytes, b, lane));

                sums[0] += d0 * d0 * gains;
                most = max(most, d0);
                if (p.w1 != 0) {
                        float d1 = abs(tdm_panel_scale(p.w1 + uint64_t(panel) * p.panel_bytes, b, lane));

                        sums[1] += d1 * d1 * gains;
                        most = max(most, d1);
                }
        }
        s_sum[0][thread] = sums[0];
        s_sum[1][thread] = sums[1];
        s_most[thread] = most;
        barrier();
        if (thread >= 16)
                return;
        for (uint i = 1; i < 16; i++) {
                sums[0] += s_sum[0][i * 16 + lane];
                sums[1] += s_sum[1][i * 16 + lane];
                most = max(most, s_most[i * 16 + lane]);
        }
        // Infinite or not a number: more than anything that fits.
        float bound = sqrt(sums[0]) * (p.w1 != 0 ? sqrt(sums[1]) : 1.0);

        atomicMax(Act32s(p.y).v[0], bound < 3.0e38 ? floatBitsToUint(bound) : 0x7f800000u);
        atomicMax(Act32s(p.y).v[1], most < 3.0e38 ? floatBitsToUint(most) : 0x7f800000u);
}
