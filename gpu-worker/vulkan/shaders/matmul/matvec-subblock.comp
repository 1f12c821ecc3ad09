#version 460
// matvec.comp for the types of engine/weights/subblock.h, whose blocks have one or two scales and perhaps minima: the
// same workgroups and segments. ORDER in a segment: of a block of one scale acc = fma(float(isum), w_scale * x_scale,
// acc); of one of two, each of 16 columns, acc = fma(fma(float(isum1), w_scale1, float(isum0) * w_scale0), x_scale,
// acc); then, with a minimum, acc = fma(min, x_scale * float(xsum), acc) for each scale. Of float activations acc =
// fma(w, x, acc) for each column.
//
// Q2_K's two scales are whole numbers times d. They belong to the sum of integers, and d to pairs of blocks, of which
// the first one is even: pair = float(isum) * x_scale of the first, pair = fma(float(isum), x_scale, pair) of the
// second, each with its minima; then acc = fma(pair, d, acc). Where a segment begins or ends within a pair, a pair is
// one block.
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#define TDM_SUBBLOCK_GRIDS
#include "gpu-worker/vulkan/shaders/common/subblock.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint TYPE = TDM_VK_Q4_K;
layout(constant_id = 1) const uint ACT = 0;
layout(constant_id = 2) const uint ROWS = 1;
layout(push_constant) uniform Push { tdm_vk_matmul_push p; };

const bool SUB16 = TDM_SUBBLOCK_SUB16(TYPE), HAS_MIN = TDM_SUBBLOCK_HAS_MIN(TYPE), PAIRS = TDM_SUBBLOCK_PAIRS(TYPE);
// Q2_K's scales come into the bytes of weights where several rows share that, else to sums of halves as floats. These
// are exact but for the last rounding, which is that of the sum of integers.
#define BYTES (PAIRS && ROWS > 2)
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
        precise float acc[ROWS], pair[ROWS]; // pair: of blocks that have not met d
        uint64_t x[ROWS];

        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);

        [[unroll]] for (uint r = 0; r < ROWS; r++) {
                acc[r] = 0;
                pair[r] = -0.0; // to which a product is added as it is
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
                if (PAIRS)
                        d = tdm_subblock_split(raw, b, block, BYTES);
                const uvec4 w[2] = { uvec4(block.word[0], block.word[1], block.word[2], block.word[3]),
                                     uvec4(block.word[4], block.word[5], block.word[6], block.word[7]) };
                const uvec4 ones = uvec4(0x01010101u);

                [[unroll]] for (uint r = 0; r < ROWS; r++) {
                        float x_scale = TDM_AT(F32s, 4, x[r] + TDM_VK_ACT_SCALES(ACT, p.cols), b, 0);
                        int isum[2] = { 0, 0 }, xsum[2] = { 0, 0 };

                        // Rows of 16 bits are two of 8, of which the first counts TDM_VK_I16_STEP times.
                        [[unroll]] for (uint part = 0; part < (ACT == TDM_VK_ACT_I16 ? 2 : 1); part++)
                                [[unroll]] for (uint h = 0; h < 2; h++) {
                                        const uint sum = HALVES ? h : 0;
                                        uvec4 row = TDM_AT(Act32x4s, 16, x[r], part * (p.cols / 16) + b * 2, h);

                                        if (part == 1 && sum == h)
                                                isum[sum] *= TDM_VK_I16_STEP;
                                        isum[sum] = dot4(isum[sum], w[h], row);
                                        if (SUB16 && HAS_MIN)
                                                xsum[h] = dot4(part == 1 ? xsum[h] * TDM_VK_I16_STEP : 0, ones, row);
                                }
                        if (!SUB16 && HAS_MIN)
                                xsum[0] = int(TDM_AT(Act32s, 4, x[r] + TDM_VK_ACT_SUMS(ACT, p.cols), b, 0));
                        if (HALVES) {
                                precise float weighted = float(isum[0]) * block.scale[0];
                                precise float both = fma(float(isum[1]), block.scale[1], weighted);

                                if (PAIRS)
                                        pair[r] = fma(both, x_scale, pair[r]);
                                else
                                        acc[r] = fma(both, x_scale, acc[r]);
                        } else if (PAIRS) {
                                pair[r] = fma(float(isum[0]), x_scale, pair[r]);
                        } else {
                                precise float scale = block.scale[0] * x_scale;

                                acc[r] = fma(float(isum[0]), scale, acc[r]);
                        }
                        [[unroll]] for (uint h = 0; h < 2; h++) {
                                precise float sum = x_scale * float(xsum[h]);

                                if (HAS_MIN && (h == 0 || SUB16))
                                        acc[r] = fma(block.min[h], sum, acc[r]);
                        }
                }
                if (PAIRS && (b % 2 == 1 || b + 1 == b1))
                        [[unroll]] for (uint r = 0; r < ROWS; r++) {
                                acc[r] = fma(pair[r], d, acc[r]);
                                pair[r] = -0.0;
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
