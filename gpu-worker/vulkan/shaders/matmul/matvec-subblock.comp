#version 460
// matvec.comp for the types of engine/weights/subblock.h, whose blocks have one or two scales and perhaps minima: the
// same workgroups and segments. ORDER in a segment: of a block of one scale acc = fma(float(isum), w_scale * x_scale,
// acc); of one of two, each of 16 columns, acc = fma(fma(float(isum1), w_scale1, float(isum0) * w_scale0), x_scale,
// acc); then, with a minimum, acc = fma(min, x_scale * float(xsum), acc) for each scale. Q2_K's two scales are whole
// numbers times d: they belong to the sum of integers, and w_scale is d. Of float activations acc = fma(w, x, acc) for
// each column.
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#include "gpu-worker/vulkan/shaders/common/subblock.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint TYPE = TDM_VK_Q4_K;
layout(constant_id = 1) const uint ACT = 0;
layout(constant_id = 2) const uint ROWS = 1;
layout(push_constant) uniform Push { tdm_vk_matmul_push p; };

const bool SUB16 = TDM_SUBBLOCK_SUB16(TYPE), HAS_MIN = TDM_SUBBLOCK_HAS_MIN(TYPE), WHOLE = TDM_SUBBLOCK_WHOLE(TYPE);
// Q2_K's scales come into the bytes of weights where several rows share that, else to sums of halves as floats. These
// are exact but for the last rounding, which is that of the sum of integers.
#define BYTES (SUB16 && WHOLE && ROWS > 2)
#define HALVES (SUB16 && !BYTES)

shared float s_part[TDM_VK_SEGMENTS][ROWS][16];

int dot4(int s, uvec4 w, uvec4 x)
{
        [[unroll]] for (uint i = 0; i < 4; i++)
                s += tdm_sdot(int(w[i]), int(x[i]), 0);
        return s;
}

void main()
{
        uint lane = gl_LocalInvocationID.x & 15u, segment = gl_LocalInvocationID.x >> 4;
        uint panel_index = p.panel0 + gl_WorkGroupID.x, row0 = gl_WorkGroupID.y * ROWS, nb = p.cols / 32;
        uint length = TDM_VK_SEGMENT_BLOCKS(p.cols), b0 = segment * length, b1 = min(b0 + length, nb);
        uint64_t panel = panel_index < p.panel1 ? p.w0 + uint64_t(panel_index) * p.panel_bytes
                       : panel_index < p.panel2 ? p.w1 + uint64_t(panel_index - p.panel1) * p.panel_bytes
                                                : p.w2 + uint64_t(panel_index - p.panel2) * p.panel_bytes;
        uint stride = TDM_VK_ACT_STRIDE(ACT, p.cols);
        tdm_subblock_own own = tdm_subblock_own_of(TYPE, p.cols, lane);
        precise float acc[ROWS];
        uint64_t x[ROWS];

        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);

        [[unroll]] for (uint r = 0; r < ROWS; r++) {
                acc[r] = 0;
                x[r] = p.x + uint64_t(min(row0 + r, p.n_rows - 1)) * stride;
        }
        for (uint b = b0; b < b1; b++) {
                tdm_subblock_raw raw = tdm_subblock_load(TYPE, panel, own, b);
                tdm_subblock_slice block = tdm_subblock_slice_of(TYPE, raw, own, b);
                float d = 0;

                if (ACT == TDM_VK_ACT_F32) {
                        for (uint k = 0; k < 32; k++) {
                                float w = tdm_subblock_value(TYPE, block, k);

                                [[unroll]] for (uint r = 0; r < ROWS; r++)
                                        acc[r] = fma(w, F32s(x[r]).v[b * 32 + k], acc[r]);
                        }
                        continue;
                }
                if (SUB16 && WHOLE)
                        d = tdm_subblock_split(raw, b, block, BYTES);
                const uvec4 w[2] = { uvec4(block.word[0], block.word[1], block.word[2], block.word[3]),
                                     uvec4(block.word[4], block.word[5], block.word[6], block.word[7]) };
                const uvec4 ones = uvec4(0x01010101u);

                [[unroll]] for (uint r = 0; r < ROWS; r++) {
                        float x_scale = TDM_AT(F32s, 4, x[r] + TDM_VK_ACT_SCALES(ACT, p.cols), b, 0);
                        int isum[2], xsum[2] = { 0, 0 };
                        uvec4 high[2], low[2];

                        [[unroll]] for (uint h = 0; h < 2; h++) {
                                high[h] = TDM_AT(Act32x4s, 16, x[r], b * 2, h);
                                if (ACT == TDM_VK_ACT_I16)
                                        low[h] = TDM_AT(Act32x4s, 16, x[r], p.cols / 16 + b * 2, h);
                        }
                        [[unroll]] for (uint h = 0; h < 2; h++) {
                                if (HALVES) {
                                        isum[h] = dot4(0, w[h], high[h]);
                                        if (ACT == TDM_VK_ACT_I16)
                                                isum[h] = dot4(isum[h] * TDM_VK_I16_STEP, w[h], low[h]);
                                }
                                if (SUB16 && HAS_MIN) {
                                        xsum[h] = dot4(0, ones, high[h]);
                                        if (ACT == TDM_VK_ACT_I16)
                                                xsum[h] = dot4(xsum[h] * TDM_VK_I16_STEP, ones, low[h]);
                                }
                        }
                        if (BYTES || !SUB16) {
                                isum[0] = dot4(dot4(0, w[0], high[0]), w[1], high[1]);
                                if (ACT == TDM_VK_ACT_I16)
                                        isum[0] = dot4(dot4(isum[0] * TDM_VK_I16_STEP, w[0], low[0]), w[1], low[1]);
                        }
                        if (!SUB16 && HAS_MIN)
                                xsum[0] = int(TDM_AT(Act32s, 4, x[r] + TDM_VK_ACT_SUMS(ACT, p.cols), b, 0));
                        if (HALVES) {
                                precise float weighted = float(isum[0]) * block.scale[0], scale = d * x_scale;
                                precise float both = fma(float(isum[1]), block.scale[1], weighted);

                                acc[r] = fma(both, WHOLE ? scale : x_scale, acc[r]);
                        } else {
                                precise float scale = (WHOLE && SUB16 ? d : block.scale[0]) * x_scale;

                                acc[r] = fma(float(isum[0]), scale, acc[r]);
                        }
                        [[unroll]] for (uint h = 0; h < 2; h++) {
                                precise float sum = x_scale * float(xsum[h]);

                                if (HAS_MIN && (h == 0 || SUB16))
                                        acc[r] = fma(block.min[h], sum, acc[r]);
                        }
                }
        }
        [[unroll]] for (uint r = 0; r < ROWS; r++)
                s_part[segment][r][lane] = acc[r];
        barrier();
        for (uint i = gl_LocalInvocationID.x; i < ROWS * 16; i += 256) {
                uint r = i / 16, out_lane = i % 16, n_segments = (nb + length - 1) / length;
                precise float sum = s_part[0][r][out_lane];

                for (uint s = 1; s < n_segments; s++)
                        sum += s_part[s][r][out_lane];
                if (row0 + r < p.n_rows && panel_index * 16 + out_lane < p.n_out)
                        F32s(p.y + (uint64_t(row0 + r) * p.y_stride + panel_index * 16 + out_lane) * 4).v[0] = sum;
        }
        tdm_chain_done(p.chain, p.chain_index);
}
