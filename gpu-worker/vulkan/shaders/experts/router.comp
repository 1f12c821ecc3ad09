#version 460
// The router's numbers: y = x Wᵀ of f32 weights and rows, in the ORDER and so with the bits of matvec.glsl. There a
// workgroup has a panel, and a router has so few panels that most of a GPU would have nothing. Here a workgroup has
// four outputs of a panel and ROWS rows; a thread has one segment of K of an output and some of the rows. All threads
// bring a piece of each segment into shared memory, PIECE columns, while they add up the piece before.
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#include "gpu-worker/vulkan/shaders/common/shared-experts.h"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint ROWS = 1; // 1, 8 or 16
layout(push_constant) uniform Push { tdm_vk_matmul_push p; };

const uint OUTS = TDM_VK_ROUTER_OUTS;
const uint PIECE = ROWS == 1 ? 64 : ROWS == 8 ? 32 : 16; // as much as fits into 32 KiB, 16 at least
const uint ROW_STEP = ROWS == 1 ? 1 : 4, EACH = ROWS / ROW_STEP; // rows of a thread
// of 16 bytes: what a subgroup reads at once has no bank twice
const uint STRIDE = PIECE / 4 + 1, ROW_STRIDE = TDM_VK_SEGMENTS * STRIDE + 2;
const uint W_LOADS = TDM_VK_SEGMENTS * PIECE / 256, X_PIECES = ROWS * TDM_VK_SEGMENTS * PIECE / 4,
           X_LOADS = (X_PIECES + 255) / 256;
const uint PARTS = (TDM_VK_SEGMENTS * ROWS * OUTS + 3) / 4, X_ROOM = ROWS * ROW_STRIDE;

shared vec4 s_w[TDM_VK_SEGMENTS * OUTS * STRIDE];         // [segment][output][column]
shared vec4 s_x[X_ROOM > PARTS ? X_ROOM : PARTS];         // [row][segment][column]; at last sums [segment][row][output]

uvec4 w[W_LOADS];
vec4 x[X_LOADS];

// Past the end of a segment or of K: any, not counted.
void load_weights(uint64_t panel, uint first, uint length)
{
        [[unroll]] for (uint i = 0; i < W_LOADS; i++) {
                uint at = i * 256 + gl_LocalInvocationID.x;
                uint k = min(at / PIECE * length + first + at % PIECE, p.cols - 1);

                w[i] = U32x4s(panel).v[k * 4];
        }
}

void load_rows(uint row0, uint first, uint length)
{
        [[unroll]] for (uint i = 0; i < X_LOADS; i++) {
                uint at = i * 256 + gl_LocalInvocationID.x, row = at / (PIECE / 4 * TDM_VK_SEGMENTS);
                uint k = min(at / (PIECE / 4) % TDM_VK_SEGMENTS * length + first + at % (PIECE / 4) * 4, p.cols - 4);

                x[i] = F32x4s(p.x + uint64_t(min(row0 + row, p.n_rows - 1)) * p.cols * 4).v[k / 4];
        }
}

void put()
{
        [[unroll]] for (uint i = 0; i < W_LOADS; i++) {
                uint at = i * 256 + gl_LocalInvocationID.x, segment = at / PIECE, col = at % PIECE;

                [[unroll]] for (uint e = 0; e < OUTS; e++)
                        s_w[(segment * OUTS + e) * STRIDE + col / 4][col % 4] = uintBitsToFloat(w[i][e]);
        }
        [[unroll]] for (uint i = 0; i < X_LOADS; i++) {
                uint at = i * 256 + gl_LocalInvocationID.x;

                if (at < X_PIECES)
                        s_x[at / (PIECE / 4 * TDM_VK_SEGMENTS) * ROW_STRIDE +
                            at / (PIECE / 4) % TDM_VK_SEGMENTS * STRIDE + at % (PIECE / 4)] = x[i];
        }
}

void main()
{
        uint thread = gl_LocalInvocationID.x, out_of = thread % OUTS, row_of = thread / OUTS % ROW_STEP,
             segment = thread / OUTS / ROW_STEP;
        uint length = TDM_VK_SEGMENT_BLOCKS(p.cols) * 32, n_segments = (p.cols + length - 1) / length;
        uint row0 = gl_WorkGroupID.y * ROWS, out0 = gl_WorkGroupID.x * OUTS;
        uint64_t panel = p.w0 + uint64_t(out0 / 16) * p.panel_bytes + out0 % 16 * 4;
        bool counts = segment < n_segments;
        uint n = counts ? min(length, p.cols - segment * length) : 0; // columns of this thread
        float acc[EACH];

        [[unroll]] for (uint i = 0; i < EACH; i++)
                acc[i] = 0;
        load_weights(panel, 0, length);
        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        load_rows(row0, 0, length);
        for (uint first = 0; first < length; first += PIECE) {
                barrier();
                put();
                barrier();
                if (first + PIECE < length) {
                        load_weights(panel, first + PIECE, length);
                        load_rows(row0, first + PIECE, length);
                }
                uint most = n > first ? min(n - first, PIECE) : 0;

                [[dont_unroll]] for (uint col = 0; col < most; col += 8) {
                        [[unroll]] for (uint half_of = 0; half_of < 2; half_of++) {
                                vec4 a = s_w[(segment * OUTS + out_of) * STRIDE + col / 4 + half_of];

                                [[unroll]] for (uint i = 0; i < EACH; i++) {
                                        vec4 b = s_x[(i * ROW_STEP + row_of) * ROW_STRIDE + segment * STRIDE + col / 4 +
                                                     half_of];

                                        [[unroll]] for (uint e = 0; e < 4; e++)
                                                acc[i] = fma(a[e], b[e], acc[i]);
                                }
                        }
                }
        }
        barrier();
        [[unroll]] for (uint i = 0; i < EACH; i++)
                if (counts) {
                        uint at = (segment * ROWS + i * ROW_STEP + row_of) * OUTS + out_of;

                        s_x[at / 4][at % 4] = acc[i];
                }
        barrier();
        if (thread < ROWS * OUTS) {
                uint row = row0 + thread / OUTS, out_index = out0 + thread % OUTS;
                precise float sum = s_x[thread / 4][thread % 4];

                for (uint s = 1; s < n_segments; s++) {
                        uint at = s * ROWS * OUTS + thread;

                        sum += s_x[at / 4][at % 4];
                }
                if (row < p.n_rows && out_index < p.n_out)
                        F32s(p.y + uint64_t(row) * p.y_stride * 4).v[out_index] = sum;
        }
        tdm_chain_done(p.chain, p.chain_index);
}
