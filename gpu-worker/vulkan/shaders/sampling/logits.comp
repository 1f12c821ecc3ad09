#version 460
// What the sampler wants to know of all logits of a row, so that most of them never leave the device
// (engine/sampling/sampler.h): PHASE 0 the greatest of each 64, NaN where one of them is NaN or +inf; PHASE 1 the sums
// of e^(logit - the greatest of all) of each 256: thread (block of 256, lane) adds those of logits lane, lane + 16, …
// of the block, in this order, then the lanes are added as a tree. A workgroup takes 16 blocks of a row. Both go
// straight to the host's memory: they are few.
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "gpu-worker/vulkan/shaders/common/common.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint PHASE = 0;
layout(push_constant) uniform Push { tdm_vk_logits_push p; };

const uint NEGATIVE_INFINITY = 0xff800000u, NOT_A_NUMBER = 0x7fc00000u;

shared uint s_max[64][16];
shared float s_sums[16][17]; // no bank twice

// 0 for what is not there. Bits are looked at, since a compiler may take it for granted that there are no such numbers.
bool is_none(uint bits)
{
        return (bits & 0x7fffffffu) >= 0x7f800000u && bits != NEGATIVE_INFINITY;
}

uint greater(uint a, uint b)
{
        return is_none(a) || is_none(b) ? NOT_A_NUMBER : uintBitsToFloat(b) > uintBitsToFloat(a) ? b : a;
}

// As engine/sampling/lanes.h's exp_negative().
float exp_negative(float v)
{
        bool small = v < -87.0;
        precise float x = small ? 0.0 : v;
        precise float scaled = x * 1.44269504, shifted = scaled + 12582912.0, n = shifted - 12582912.0;
        precise float high = n * 0.693359375, low = n * -2.12194440e-4, rest = x - high, r = rest - low;
        precise float p = r * (1.0 / 5040.0);

        p = p + 1.0 / 720.0;
        p = p * r;
        p = p + 1.0 / 120.0;
        p = p * r;
        p = p + 1.0 / 24.0;
        p = p * r;
        p = p + 1.0 / 6.0;
        p = p * r;
        p = p + 0.5;
        p = p * r;
        p = p + 1.0;
        p = p * r;
        p = p + 1.0;
        p = p * uintBitsToFloat(floatBitsToUint(shifted) + 127u << 23);
        return small ? 0.0 : p;
}

void main()
{
        uint thread = gl_LocalInvocationID.x, row = gl_WorkGroupID.y, block = gl_WorkGroupID.x * 16 + thread / 16,
                lane = thread % 16;
        uint64_t logits = p.logits + uint64_t(row) * p.logits_stride * 4,
                tops = p.tops + uint64_t(row) * p.tops_stride * 4;
        uint value[16];

        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        [[unroll]] for (uint i = 0; i < 16; i++) {
                uint at = block * 256 + i * 16 + lane;

                value[i] = at < p.n_vocab ? Act32s(logits).v[min(at, p.n_vocab - 1)] : NEGATIVE_INFINITY;
        }
        if (PHASE == 0) {
                [[unroll]] for (uint j = 0; j < 4; j++)
                        s_max[thread / 16 * 4 + j][lane] =
                                greater(greater(value[j * 4], value[j * 4 + 1]),
                                greater(value[j * 4 + 2], value[j * 4 + 3]));
                barrier();
                if (thread < 64) {
                        uint most = s_max[thread][0], at = gl_WorkGroupID.x * 64 + thread;

                        for (uint i = 1; i < 16; i++)
                                most = greater(most, s_max[thread][i]);
                        if (at < p.maxima_stride)
                                Act32s(p.maxima + uint64_t(row) * p.maxima_stride * 4).v[at] = most;
                        s_max[thread][0] = most;
                }
                barrier();
                if (thread < 8) {
                        uint most = s_max[thread * 8][0];

                        for (uint i = 1; i < 8; i++)
                                most = greater(most, s_max[thread * 8 + i][0]);
                        s_max[thread * 8][0] = most;
                }
                barrier();
                if (thread == 0) {
                        uint most = s_max[0][0];

                        for (uint i = 1; i < 8; i++)
                                most = greater(most, s_max[i * 8][0]);
                        Act32s(tops).v[gl_WorkGroupID.x] = most;
                        Act32s(p.host_tops + uint64_t(row) * p.tops_stride * 4).v[gl_WorkGroupID.x] = most;
                }
        } else {
                float most = uintBitsToFloat(NEGATIVE_INFINITY);
                precise float sum = 0;

                for (uint i = gl_SubgroupInvocationID; i < p.tops_stride; i += gl_SubgroupSize)
                        most = max(most, F32s(tops).v[i]);
                most = subgroupMax(most);
                // Written out: shaderc of 2023 unrolls a loop around an exp wrongly.
#define ADD(i) { \
        precise float distance = uintBitsToFloat(value[i]) - most; \
\
        sum += exp_negative(distance); \
}
                ADD(0) ADD(1) ADD(2) ADD(3) ADD(4) ADD(5) ADD(6) ADD(7) ADD(8) ADD(9) ADD(10) ADD(11) ADD(12) ADD(13)
                        ADD(14) ADD(15)
                s_sums[thread / 16][lane] = sum;
                barrier();
                if (thread < 16 && gl_WorkGroupID.x * 16 + thread < p.sums_stride) {
                        float lanes[16];

                        [[unroll]] for (uint i = 0; i < 16; i++)
                                lanes[i] = s_sums[thread][i];
#define HALVE(n) [[unroll]] for (uint i = 0; i < n; i++) { \
        precise float both = lanes[i] + lanes[i + n]; \
\
        lanes[i] = both; \
}
                        HALVE(8) HALVE(4) HALVE(2) HALVE(1)
                        F32s(p.host_sums + uint64_t(row) * p.sums_stride * 4).v[gl_WorkGroupID.x * 16 + thread] =
                        lanes[0];
                }
        }
        tdm_chain_done(p.chain, p.chain_index);
}
