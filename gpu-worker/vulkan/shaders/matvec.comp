#version 460
// y = x Wᵀ for ROWS rows at a time. A workgroup is some panels of 16 outputs: thread = (segment of K, lane), so that neighbours
// read neighbours and each chain of additions is short. ORDER of an output: see shared.h; of a quantised block
// acc = fma(float(isum), w_scale * x_scale, acc), of float activations acc = fma(w, x, acc) for each column. ROWS and
// PANELS change only who loads what.
#include "common.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint FORM = 0; // type, TDM_VK_TURNED
layout(constant_id = 1) const uint ACT = 0;
layout(constant_id = 2) const uint ROWS = 1;
layout(constant_id = 3) const uint SHAPE = 4 | 1 << 8;
layout(push_constant) uniform Push { tdm_vk_matmul_push p; };

const uint TYPE = FORM & 63u;
const bool TURNED = FORM >= TDM_VK_TURNED;
const uint AHEAD = SHAPE & 255u; // blocks whose weights are on their way at once
const uint PANELS = SHAPE >> 8;  // of a workgroup: what is loaded of a row is used for each
const uint WORDS = TYPE == TDM_VK_Q4_0 ? 4 : 8;
const int MAGIC = 0x4b400000; // as f32: 1.5 * 2^23, whose last place is 1

shared float s_part[TDM_VK_SEGMENTS][ROWS * PANELS][16];

int dot8(int s, uvec4 w_low, uvec4 w_high, uvec4 x_low, uvec4 x_high)
{
        [[unroll]] for (uint i = 0; i < 4; i++) {
                s += tdm_sdot(int(w_low[i]), int(x_low[i]), 0);
                s += tdm_sdot(int(w_high[i]), int(x_high[i]), 0);
        }
        return s;
}

uint64_t panel_address(uint panel)
{
        return panel < p.panel1 ? p.w0 + uint64_t(panel) * p.panel_bytes
             : panel < p.panel2 ? p.w1 + uint64_t(panel - p.panel1) * p.panel_bytes
                                : p.w2 + uint64_t(panel - p.panel2) * p.panel_bytes;
}

void main()
{
        uint lane = gl_LocalInvocationID.x & 15u, segment = gl_LocalInvocationID.x >> 4;
        uint panel0 = p.panel0 + gl_WorkGroupID.x * PANELS, row0 = gl_WorkGroupID.y * ROWS, nb = p.cols / 32;
        uint length = TDM_VK_SEGMENT_BLOCKS(p.cols), b0 = segment * length, b1 = min(b0 + length, nb);
        uint stride = TDM_VK_ACT_STRIDE(ACT, p.cols), last_panel = (p.n_out + 15) / 16 - 1;
        precise float acc[ROWS * PANELS];
        uint64_t panels[PANELS], x[ROWS];

        [[unroll]] for (uint i = 0; i < ROWS * PANELS; i++)
                acc[i] = 0;
        [[unroll]] for (uint i = 0; i < PANELS; i++)
                panels[i] = panel_address(min(panel0 + i, last_panel));
        [[unroll]] for (uint r = 0; r < ROWS; r++)
                x[r] = p.x + uint64_t(min(row0 + r, p.n_rows - 1)) * stride;
        if (ACT == TDM_VK_ACT_F32) {
                for (uint k = b0 * 32; k < b1 * 32; k++)
                        [[unroll]] for (uint i = 0; i < PANELS; i++) {
                                float w = tdm_panel_value(TYPE, TURNED, panels[i], p.cols, k, lane);

                                [[unroll]] for (uint r = 0; r < ROWS; r++)
                                        acc[r * PANELS + i] = fma(w, F32s(x[r]).v[k], acc[r * PANELS + i]);
                        }
        } else {
                uint scales_bytes = tdm_scales_bytes(p.cols);

                for (uint b = b0; b < b1; b += AHEAD) {
                        uvec4 w_low[AHEAD * PANELS], w_high[AHEAD * PANELS];
                        uint w_scale[AHEAD * PANELS];

                        [[unroll]] for (uint u = 0; u < AHEAD; u++)
                                [[unroll]] for (uint i = 0; i < PANELS; i++) {
                                        uint block = min(b + u, b1 - 1), at = block * WORDS * 16 + lane, k = u * PANELS + i;
                                        U32s words = U32s(panels[i] + scales_bytes);

                                        w_scale[k] = uint(U16s(panels[i]).v[block * 16 + lane]);
                                        if (TURNED) {
                                                w_low[k] = U32x4s(panels[i] + scales_bytes).v[(block * 16 + lane) * (WORDS / 4)];
                                                if (TYPE == TDM_VK_Q8_0)
                                                        w_high[k] = U32x4s(panels[i] + scales_bytes).v[(block * 16 + lane) * 2 + 1];
                                                continue;
                                        }
                                        w_low[k] = uvec4(words.v[at], words.v[at + 16], words.v[at + 32], words.v[at + 48]);
                                        if (TYPE == TDM_VK_Q8_0)
                                                w_high[k] = uvec4(words.v[at + 64], words.v[at + 80], words.v[at + 96], words.v[at + 112]);
                                }
                        [[unroll]] for (uint u = 0; u < AHEAD; u++) {
                                uint block = min(b + u, b1 - 1); // past the end: computed, not counted, so that no load waits

                                [[unroll]] for (uint i = 0; i < PANELS; i++) {
                                        uint k = u * PANELS + i;

                                        if (TYPE == TDM_VK_Q8_0) {
                                                w_low[k] ^= 0x80808080u;
                                                w_high[k] ^= 0x80808080u;
                                        } else {
                                                w_high[k] = w_low[k] >> 4 & 0x0f0f0f0fu;
                                                w_low[k] &= 0x0f0f0f0fu;
                                        }
                                }
                                [[unroll]] for (uint r = 0; r < ROWS; r++) {
                                        U32x4s planes = U32x4s(x[r]);
                                        uvec4 high0 = planes.v[block * 2], high1 = planes.v[block * 2 + 1], low0, low1;
                                        float x_scale = F32s(x[r] + TDM_VK_ACT_SCALES(ACT, p.cols)).v[block];
                                        int start = TYPE == TDM_VK_Q4_0 ? -8 * int(U32s(x[r] + TDM_VK_ACT_SUMS(ACT, p.cols)).v[block]) : 0;

                                        if (ACT == TDM_VK_ACT_I16) {
                                                low0 = planes.v[p.cols / 16 + block * 2];
                                                low1 = planes.v[p.cols / 16 + block * 2 + 1];
                                        } else {
                                                start += MAGIC; // a sum far below 2^22 makes a float of itself in its places
                                        }
                                        [[unroll]] for (uint i = 0; i < PANELS; i++) {
                                                uint k = u * PANELS + i, at = r * PANELS + i;
                                                precise float exact;

                                                if (ACT == TDM_VK_ACT_I16) {
                                                        int high = dot8(0, w_low[k], w_high[k], high0, high1);

                                                        exact = float(dot8(start + high * 256, w_low[k], w_high[k], low0, low1));
                                                } else {
                                                        exact = intBitsToFloat(dot8(start, w_low[k], w_high[k], high0, high1)) - 12582912.0;
                                                }
                                                precise float scale = tdm_f16(w_scale[k]) * x_scale;
                                                precise float sum = fma(exact, scale, acc[at]);
                                                acc[at] = b + u < b1 ? sum : acc[at];
                                        }
                                }
                        }
                }
        }
        [[unroll]] for (uint i = 0; i < ROWS * PANELS; i++)
                s_part[segment][i][lane] = acc[i];
        barrier();
        for (uint i = gl_LocalInvocationID.x; i < ROWS * PANELS * 16; i += 256) {
                uint r = i / 16 / PANELS, out_index = (panel0 + i / 16 % PANELS) * 16 + i % 16, n_segments = (nb + length - 1) / length;
                precise float sum = s_part[0][i / 16][i % 16];

                for (uint s = 1; s < n_segments; s++)
                        sum += s_part[s][i / 16][i % 16];
                if (row0 + r < p.n_rows && out_index < p.n_out)
                        F32s(p.y + (uint64_t(row0 + r) * p.y_stride + out_index) * 4).v[0] = sum;
        }
}
