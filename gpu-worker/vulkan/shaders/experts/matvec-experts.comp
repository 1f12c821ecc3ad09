#version 460
// A product of each item's slots with a matrix of its expert, for weights of any type. A workgroup is a panel and an
// item. Workgroups and segments are those of matvec-subblock.comp. ORDER in a segment, for each scale of a block in
// turn, one or two: acc = fma(float(isum), w_scale * x_scale, acc); then, with a minimum, acc = fma(min, x_scale *
// float(xsum), acc). So a block of two scales has other bits than there, where its halves are added first, and a matrix
// of experts has this order for any number of rows. What a slot gets does not depend on its item's others.
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#include "gpu-worker/vulkan/shaders/common/shared-experts.h"
#define TDM_SUBBLOCK_GRIDS
#include "gpu-worker/vulkan/shaders/common/subblock.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint TYPE = TDM_VK_Q4_K;
layout(constant_id = 1) const uint ACT = 0;
layout(constant_id = 2) const uint ROWS = 1; // TDM_VK_ITEM_ROWS at most
layout(push_constant) uniform Push { tdm_vk_experts_push p; };

shared float s_part[TDM_VK_SEGMENTS][ROWS][16];

const bool QUANTISED = TYPE != TDM_VK_F32 && TYPE != TDM_VK_F16 && TYPE != TDM_VK_BF16;

int dot4(uvec4 w, uvec4 x)
{
        int s = 0;

        [[unroll]] for (uint i = 0; i < 4; i++)
                s += tdm_sdot(int(w[i]), int(x[i]), 0);
        return s;
}

tdm_subblock_slice read_block(uint64_t panel, uint b, uint lane)
{
        tdm_subblock_slice block;
        uint64_t quants = panel + tdm_scales_bytes(p.cols);

        if (tdm_subblock_type(TYPE))
                return tdm_subblock_read(TYPE, panel, p.cols, b, lane);
        for (uint h = 0; h < 2; h++) {
                block.scale[h] = tdm_panel_scale(panel, b, lane);
                block.min[h] = 0;
        }
        [[unroll]] for (uint g = 0; g < 8; g++) {
                if (TYPE == TDM_VK_Q8_0) {
                        block.word[g] = U32s(quants).v[tdm_word(false, 8, b, g, lane)] ^ 0x80808080u;
                } else {
                        uint word = U32s(quants).v[tdm_word(false, 4, b, g % 4, lane)] >> g / 4 * 4 & 0x0f0f0f0fu;

                        block.word[g] = (word | 0x80808080u) - 0x08080808u ^ 0x80808080u;
                }
        }
        return block;
}

void main()
{
        uint lane = gl_LocalInvocationID.x & 15u, segment = gl_LocalInvocationID.x >> 4;
        uint nb = p.cols / 32, length = TDM_VK_SEGMENT_BLOCKS(p.cols), b0 = segment * length, b1 = min(b0 + length, nb);
        uint stride = TDM_VK_ACT_STRIDE(ACT, p.cols);
        precise float acc[ROWS];
        uint64_t x[ROWS];

        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        if (gl_WorkGroupID.y < Act32s(p.items).v[0]) {
                uvec4 item = Act32x4s(p.items + TDM_VK_ITEMS_HEAD).v[gl_WorkGroupID.y];
                uint64_t panel = p.weights + (uint64_t(item.x) * p.n_panels + gl_WorkGroupID.x) * p.panel_bytes;

                [[unroll]] for (uint r = 0; r < ROWS; r++) {
                        uint slot = item.y + min(r, item.z - 1),
                                row = p.slot_rows != 0 ? Act32s(p.slot_rows).v[slot] : slot;

                        acc[r] = 0;
                        x[r] = p.x + uint64_t(row) * stride;
                }
                for (uint b = b0; b < b1; b++) {
                        if (!QUANTISED) {
                                for (uint k = b * 32; k < b * 32 + 32; k++) {
                                        float w = tdm_panel_value(TYPE, panel, p.cols, k, lane);

                                        [[unroll]] for (uint r = 0; r < ROWS; r++)
                                                acc[r] = fma(w, F32s(x[r]).v[k], acc[r]);
                                }
                                continue;
                        }
                        tdm_subblock_slice block = read_block(panel, b, lane);

                        if (ACT == TDM_VK_ACT_F32) {
                                for (uint k = 0; k < 32; k++) {
                                        float w = tdm_subblock_value(TYPE, block, k);

                                        [[unroll]] for (uint r = 0; r < ROWS; r++)
                                                acc[r] = fma(w, F32s(x[r]).v[b * 32 + k], acc[r]);
                                }
                                continue;
                        }
                        const uvec4 w[2] = { uvec4(block.word[0], block.word[1], block.word[2], block.word[3]),
                                             uvec4(block.word[4], block.word[5], block.word[6], block.word[7]) };
                        const uvec4 ones = uvec4(0x01010101u);

                        [[unroll]] for (uint r = 0; r < ROWS; r++) {
                                float x_scale = F32s(x[r] + TDM_VK_ACT_SCALES(ACT, p.cols)).v[b];
                                int isum[2], xsum[2] = { 0, 0 };

                                [[unroll]] for (uint h = 0; h < 2; h++) {
                                        uvec4 high = Act32x4s(x[r]).v[b * 2 + h];

                                        isum[h] = dot4(w[h], high);
                                        if (tdm_subblock_has_min(TYPE) && tdm_subblock_sub16(TYPE))
                                                xsum[h] = dot4(ones, high);
                                        if (ACT == TDM_VK_ACT_I16) {
                                                uvec4 low = Act32x4s(x[r]).v[p.cols / 16 + b * 2 + h];

                                                isum[h] = isum[h] * TDM_VK_I16_STEP + dot4(w[h], low);
                                                if (tdm_subblock_has_min(TYPE) && tdm_subblock_sub16(TYPE))
                                                        xsum[h] = xsum[h] * TDM_VK_I16_STEP + dot4(ones, low);
                                        }
                                }
                                if (!tdm_subblock_sub16(TYPE)) {
                                        isum[0] += isum[1];
                                        if (tdm_subblock_has_min(TYPE))
                                                xsum[0] = int(Act32s(x[r] + TDM_VK_ACT_SUMS(ACT, p.cols)).v[b]);
                                }
                                [[unroll]] for (uint h = 0; h < 2; h++) {
                                        if (h == 1 && !tdm_subblock_sub16(TYPE))
                                                continue;
                                        precise float scale = block.scale[h] * x_scale, sum = x_scale * float(xsum[h]);

                                        acc[r] = fma(float(isum[h]), scale, acc[r]);
                                        if (tdm_subblock_has_min(TYPE))
                                                acc[r] = fma(block.min[h], sum, acc[r]);
                                }
                        }
                }
                [[unroll]] for (uint r = 0; r < ROWS; r++)
                        s_part[segment][r][lane] = acc[r];
                barrier();
                for (uint i = gl_LocalInvocationID.x; i < item.z * 16; i += 256) {
                        uint r = i / 16, output_of = gl_WorkGroupID.x * 16 + i % 16,
                                n_segments = (nb + length - 1) / length;
                        precise float sum = s_part[0][r][i % 16];

                        for (uint s = 1; s < n_segments; s++)
                                sum += s_part[s][r][i % 16];
                        if (p.bias != 0)
                                sum += F32s(p.bias).v[item.x * p.n_panels * 16 + output_of];
                        F32s(p.y + (uint64_t(item.y + r) * p.y_stride + output_of) * 4).v[0] = sum;
                }
        }
        tdm_chain_done(p.chain, p.chain_index);
}
