#version 460
// y = x Wᵀ for ROWS rows at a time. A workgroup is one panel of 16 outputs: thread = (segment of K, lane), so that neighbours
// read neighbours and each chain of additions is short. ORDER of an output: see shared.h; of a quantised block
// acc = fma(float(isum), w_scale * x_scale, acc), of float activations acc = fma(w, x, acc) for each column. ROWS changes
// only who loads a weight.
#include "common.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint TYPE = 0;
layout(constant_id = 1) const uint ACT = 0;
layout(constant_id = 2) const uint ROWS = 1;
layout(constant_id = 3) const uint AHEAD = 4; // blocks whose weights are on their way at once
layout(push_constant) uniform Push { tdm_vk_matmul_push p; };

shared float s_part[TDM_VK_SEGMENTS][ROWS][16];

const uint WORDS = TYPE == TDM_VK_Q4_0 ? 4 : 8;

int dot8(uvec4 w_low, uvec4 w_high, uvec4 x_low, uvec4 x_high)
{
        int s = 0;

        for (uint i = 0; i < 4; i++)
                s += tdm_sdot(int(w_low[i]), int(x_low[i]), 0) + tdm_sdot(int(w_high[i]), int(x_high[i]), 0);
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
        precise float acc[ROWS];
        uint64_t x[ROWS];

        [[unroll]] for (uint r = 0; r < ROWS; r++) {
                acc[r] = 0;
                x[r] = p.x + uint64_t(min(row0 + r, p.n_rows - 1)) * stride;
        }
        if (ACT == TDM_VK_ACT_F32) {
                for (uint k = b0 * 32; k < b1 * 32; k++) {
                        float w = tdm_panel_value(TYPE, panel, p.cols, k, lane);

                        [[unroll]] for (uint r = 0; r < ROWS; r++)
                                acc[r] = fma(w, F32s(x[r]).v[k], acc[r]);
                }
        } else {
                uint64_t quants = panel + tdm_scales_bytes(p.cols);
                U32s words = U32s(quants);

                for (uint b = b0; b < b1; b += AHEAD) {
                        uvec4 w_low[AHEAD], w_high[AHEAD];
                        float w_scale[AHEAD];

                        [[unroll]] for (uint u = 0; u < AHEAD; u++) {
                                uint block = min(b + u, b1 - 1), at = block * WORDS * 16 + lane;

                                w_scale[u] = tdm_panel_scale(panel, block, lane);
                                w_low[u] = uvec4(words.v[at], words.v[at + 16], words.v[at + 32], words.v[at + 48]);
                                if (TYPE == TDM_VK_Q8_0)
                                        w_high[u] = uvec4(words.v[at + 64], words.v[at + 80], words.v[at + 96], words.v[at + 112]);
                        }
                        [[unroll]] for (uint u = 0; u < AHEAD; u++) {
                                uint block = min(b + u, b1 - 1); // past the end: computed, not counted, so that no load waits

                                if (TYPE == TDM_VK_Q8_0) {
                                        w_low[u] ^= 0x80808080u;
                                        w_high[u] ^= 0x80808080u;
                                } else {
                                        w_high[u] = w_low[u] >> 4 & 0x0f0f0f0fu;
                                        w_low[u] &= 0x0f0f0f0fu;
                                }
                                [[unroll]] for (uint r = 0; r < ROWS; r++) {
                                        U32x4s planes = U32x4s(x[r]);
                                        int isum = dot8(w_low[u], w_high[u], planes.v[block * 2], planes.v[block * 2 + 1]);

                                        if (ACT == TDM_VK_ACT_I16)
                                                isum = isum * 256 + dot8(w_low[u], w_high[u], planes.v[p.cols / 16 + block * 2],
                                                                         planes.v[p.cols / 16 + block * 2 + 1]);
                                        if (TYPE == TDM_VK_Q4_0)
                                                isum -= 8 * int(U32s(x[r] + TDM_VK_ACT_SUMS(ACT, p.cols)).v[block]);
                                        precise float scale = w_scale[u] * F32s(x[r] + TDM_VK_ACT_SCALES(ACT, p.cols)).v[block];
                                        precise float sum = fma(float(isum), scale, acc[r]);
                                        acc[r] = b + u < b1 ? sum : acc[r];
                                }
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
}
