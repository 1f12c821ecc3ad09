#version 460
// How large a row's products with a matrix of Q4_0 or Q8_0 can be, whatever the row: for rows of a norm, whose values
// before its gains have a sum of squares of at most d, an output is at most sqrt(d) times the root of the sum of
// (weight times gain) squared, and a weight at most its block's scale times what a type's largest value is. Leaves the
// largest of all outputs of the sum over blocks of scale² times the sum of gain², of the two matrices' product where
// there are two; and the largest scale. As bits of floats, which are in order where they are not negative. Layout as in
// the segment: before repack.comp. Of a type of engine/weights/subblock.h a block's scale is taken for the largest of
// its weights, and the largest scale is that of d and of all sub-blocks'. So it is of F16 and BF16, whose largest scale
// is the largest weight times 2^-24: what a scale of Q4_0 is divided by, theirs need not be.
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#include "gpu-worker/vulkan/shaders/common/subblock.glsl"
layout(local_size_x = 256) in;
// of the matrices, where they are made of sub-blocks, or F16 or BF16; else any other
layout(constant_id = 0) const uint TYPE0 = 0;
layout(constant_id = 1) const uint TYPE1 = 0;
layout(push_constant) uniform Push { tdm_vk_bound_push p; };

shared float s_sum[2][256];
shared float s_most[256];

// What counts for a block's products; `most` grows to its largest scale.
float block_scale(const uint type, uint64_t panel, uint b, uint lane, inout float most)
{
        float scale;

        if (type == TDM_VK_F16 || type == TDM_VK_BF16) {
                scale = 0;
                for (uint k = b * 32; k < b * 32 + 32; k++)
                        scale = max(scale, abs(tdm_panel_value(type, panel, p.cols, k, lane)));
                most = max(most, scale * 5.9604644775390625e-8);
                return scale;
        }
        if (!tdm_subblock_type(type)) {
                scale = abs(tdm_panel_scale(panel, b, lane));
                most = max(most, scale);
                return scale;
        }

        tdm_subblock_slice block = tdm_subblock_read(type, panel, p.cols, b, lane);

        scale = 0;
        for (uint k = 0; k < 32; k++)
                scale = max(scale, abs(tdm_subblock_value(type, block, k)));
        most = max(most, max(abs(block.scale[0]), abs(block.scale[1])));
        if (type != TDM_VK_MXFP4)
                most = max(most, abs(tdm_f16(uint(U16s(panel).v[b / tdm_subblock_unit_blocks(type) *
                tdm_subblock_n_f16(type) * 16 + lane])))); // d
        return scale;
}

void main()
{
        uint thread = gl_LocalInvocationID.x, lane = thread % 16, part = thread / 16, nb = p.cols / 32,
                panel = p.panel0 + gl_WorkGroupID.x;
        float sums[2] = float[2](0.0, 0.0), most = 0;

        for (uint b = part; b < nb; b += 16) {
                float gains = 0;

                for (uint k = 0; k < 32; k++) {
                        float gain = p.gains != 0 ? F32s(p.gains).v[b * 32 + k] : 1.0;

                        gains += gain * gain;
                }
                float d0 = block_scale(TYPE0, p.w0 + uint64_t(panel) * p.panel_bytes, b, lane, most);

                sums[0] += d0 * d0 * gains;
                if (p.w1 != 0) {
                        float d1 = block_scale(TYPE1, p.w1 + uint64_t(panel) * p.panel_bytes1, b, lane, most);

                        sums[1] += d1 * d1 * gains;
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

        atomicMax(Act32s(p.bounds).v[0], bound < 3.0e38 ? floatBitsToUint(bound) : 0x7f800000u);
        atomicMax(Act32s(p.bounds).v[1], most < 3.0e38 ? floatBitsToUint(most) : 0x7f800000u);
}
