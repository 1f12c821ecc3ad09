#version 460
// A residual of several streams (Gemma 3n), row by row: engine/model/recipe.h has the formulas. One workgroup is one
// row. ORDER: element by element, a chain of products and sums from the first stream to the last; sums over a row are
// thread t's, of columns 4 t … 4 t + 3 and those 1024 further in rising order, then sum.glsl.
#define WORKERS 256
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#include "gpu-worker/vulkan/shaders/common/shared-streams.h"
layout(local_size_x = WORKERS) in;
layout(constant_id = 0) const uint OP = 0;
layout(push_constant) uniform Push { tdm_vk_streams_push p; };
#include "gpu-worker/vulkan/shaders/common/sum.glsl"

// Known long before: not coherent.
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Gains { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Numbers { float v[]; };

const float SQRT_HALF = 0.70710678;
const float LEAST = 1.0e-5; // of a stream's mean square, where it is divided by

// A constant, not gather's own 0: lavapipe of Mesa 26.2 loads through an address of the whole workgroup before it asks
// whether that is 0.
const bool GATHERS = OP == TDM_VK_STREAMS_GATHER || OP == TDM_VK_STREAMS_FOLD;

#define EACH_COLUMN(col) for (uint col = gl_LocalInvocationID.x * 4; col < p.n; col += WORKERS * 4)

// Sum of (x - from)², or of x.
float row_sum(uint64_t x, bool squares, float from)
{
        precise float sum = 0;

        EACH_COLUMN(col) {
                precise vec4 v = F32x4s(x).v[col / 4];

                if (squares) {
                        v = v - from;
                        sum = fma(v.x, v.x, sum);
                        sum = fma(v.y, v.y, sum);
                        sum = fma(v.z, v.z, sum);
                        sum = fma(v.w, v.w, sum);
                } else {
                        sum = sum + v.x;
                        sum = sum + v.y;
                        sum = sum + v.z;
                        sum = sum + v.w;
                }
        }
        precise float mean = tdm_workgroup_sum(sum) / float(p.n);
        return mean;
}

float norm_scale(uint64_t x)
{
        precise float mean = row_sum(x, true, 0) + p.eps;
        precise float scale = 1.0 / sqrt(mean);
        return scale;
}

uint64_t stream(uint64_t h, uint i)
{
        return h + uint64_t(i) * p.n * 4;
}

// tanh of the router's numbers.
void read_router(uint64_t x, out float r[TDM_VK_STREAMS_MAX])
{
        for (uint i = 0; i < p.n_streams; i++) {
                precise float twice = 2 * F32s(x).v[i];
                precise float e = tdm_exp(min(twice, 89.0));
                precise float value = 1.0 - 2.0 / (e + 1.0);

                r[i] = value;
        }
}

void predict(uint64_t h, uint64_t x)
{
        float r[TDM_VK_STREAMS_MAX];
        uint n = p.n_streams;

        read_router(x, r);
        EACH_COLUMN(col) {
                vec4 was[TDM_VK_STREAMS_MAX];

                for (uint j = 0; j < n; j++)
                        was[j] = F32x4s(stream(h, j)).v[col / 4];
                for (uint i = 0; i < n; i++) {
                        precise vec4 y = was[i];

                        for (uint j = 0; j < n; j++) {
                                precise float c = 0;

                                for (uint k = 0; k < n; k++) {
                                        precise float part = Numbers(p.coefficients).v[(i * n + j) * n + k] * r[k];

                                        c = c + part;
                                }
                                precise vec4 add = c * was[j];

                                y = y + add;
                        }
                        F32x4s(stream(h, i)).v[col / 4] = y;
                }
        }
}

void correct(uint64_t h, uint64_t x)
{
        float r[TDM_VK_STREAMS_MAX];
        uint n = p.n_streams;

        read_router(x, r);
        EACH_COLUMN(col) {
                precise vec4 difference = F32x4s(stream(h, n)).v[col / 4] - F32x4s(stream(h, p.at)).v[col / 4];

                for (uint i = 0; i < n; i++) {
                        precise float c = 1;

                        for (uint k = 0; k < n; k++) {
                                precise float part = Numbers(p.coefficients).v[i * n + k] * r[k];

                                c = c + part;
                        }
                        precise vec4 add = c * difference;
                        precise vec4 y = F32x4s(stream(h, i)).v[col / 4] + add;

                        F32x4s(stream(h, i)).v[col / 4] = y;
                }
        }
}

void join(uint64_t h, uint64_t x, uint64_t other)
{
        uint64_t a = stream(h, p.at);
        float x_scale = norm_scale(x), a_scale = norm_scale(a), other_scale = norm_scale(other);

        EACH_COLUMN(col) {
                precise vec4 was = F32x4s(a).v[col / 4];
                precise vec4 attention = F32x4s(x).v[col / 4] * x_scale * Gains(p.gain0).v[col / 4];
                precise vec4 z = was * a_scale * Gains(p.gain1).v[col / 4];
                precise vec4 branch = F32x4s(other).v[col / 4] * other_scale * Gains(p.gain2).v[col / 4];
                precise vec4 middle = was + attention;

                z = z + branch;
                middle = (middle + z) * SQRT_HALF;
                F32x4s(stream(h, p.n_streams)).v[col / 4] = middle;
        }
}

// What makes y as long as x.
float length_scale(uint64_t x, uint64_t y)
{
        precise float x_length = sqrt(row_sum(x, true, 0)), y_length = sqrt(max(row_sum(y, true, 0), LEAST));
        precise float scale = x_length / y_length;
        return scale;
}

void main()
{
        uint row = gl_WorkGroupID.x;

        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);

        uint from = GATHERS ? U32s(p.gather).v[row] : row;
        uint64_t h = p.hidden + uint64_t(from) * p.hidden_stride * 4, x = p.x + uint64_t(row) * p.x_stride * 4,
                 y = p.y + uint64_t(row) * p.y_stride * 4;

        if (OP == TDM_VK_STREAMS_ROUTE) {
                uint64_t a = h + uint64_t(p.at) * 4;
                float scale = norm_scale(a);

                EACH_COLUMN(col) {
                        precise vec4 v = F32x4s(a).v[col / 4] * scale * Gains(p.gain0).v[col / 4];

                        v = v * p.factor;
                        F32x4s(y).v[col / 4] = v;
                }
        } else if (OP == TDM_VK_STREAMS_PREDICT) {
                predict(h, x);
        } else if (OP == TDM_VK_STREAMS_JOIN) {
                join(h, x, p.other + uint64_t(row) * p.n * 4);
        } else if (OP == TDM_VK_STREAMS_CORRECT) {
                correct(h, x);
        } else if (OP == TDM_VK_STREAMS_LENGTH) {
                for (uint i = 1; i < p.n_streams; i++) {
                        float scale = length_scale(h, stream(h, i));

                        EACH_COLUMN(col) {
                                precise vec4 v = F32x4s(stream(h, i)).v[col / 4] * scale;

                                F32x4s(stream(h, i)).v[col / 4] = v;
                        }
                }
        } else if (OP == TDM_VK_STREAMS_GATHER) {
                EACH_COLUMN(col)
                        F32x4s(y).v[col / 4] = F32x4s(h + uint64_t(p.at) * 4).v[col / 4];
        } else if (OP == TDM_VK_STREAMS_FOLD) {
                float scale = length_scale(h, x);

                EACH_COLUMN(col) {
                        precise vec4 add = F32x4s(x).v[col / 4] * scale;
                        precise vec4 v = p.at == p.n ? F32x4s(h).v[col / 4] : F32x4s(y).v[col / 4];

                        v = v + add;
                        if (p.at == (p.n_streams - 1) * p.n)
                                v = v * p.factor;
                        F32x4s(y).v[col / 4] = v;
                }
        } else {
                float mean = row_sum(y, false, 0);
                precise float deviation = sqrt(row_sum(y, true, mean));
                precise float cut = fma(p.factor, deviation, mean);

                EACH_COLUMN(col) {
                        precise vec4 v = F32x4s(y).v[col / 4] - cut;

                        F32x4s(y).v[col / 4] = max(v, vec4(0));
                }
        }
        tdm_chain_done(p.chain, p.chain_index);
}
