#version 460
// What the sampler wants to know of all logits of a row, so that most of them never leave the device (engine/sampler.h): PHASE 0 the
// greatest of each 64, NaN where one of them is NaN or +inf; PHASE 1 the sums of e^(logit - the greatest of all) that thread
// (block of 256, lane) makes of logits lane, lane + 16, … of the block, in this order. A workgroup takes 16 blocks of a row.
#include "common.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint PHASE = 0;
layout(push_constant) uniform Push { tdm_vk_logits_push p; };

const uint NEGATIVE_INFINITY = 0xff800000u, NOT_A_NUMBER = 0x7fc00000u;

shared uint s_max[64][16];
shared float s_row[256];

// 0 for what is not there. Bits are looked at, since a compiler may take it for granted that there are no such numbers.
bool is_none(uint bits)
{
        return (bits & 0x7fffffffu) >= 0x7f800000u && bits != NEGATIVE_INFINITY;
}

uint greater(uint a, uint b)
{
        return is_none(a) || is_none(b) ? NOT_A_NUMBER : uintBitsToFloat(b) > uintBitsToFloat(a) ? b : a;
}

// As engine/sampler.c's exp_negative().
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
        uint thread = gl_LocalInvocationID.x, row = gl_WorkGroupID.y, block = gl_WorkGroupID.x * 16 + thread / 16, lane = thread % 16;
        uint64_t logits = p.logits + uint64_t(row) * p.logits_stride * 4, maxima = p.maxima + uint64_t(row) * p.maxima_stride * 4;
        uint value[16];

        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        [[unroll]] for (uint i = 0; i < 16; i++) {
                uint at = block * 256 + i * 16 + lane;

                value[i] = at < p.n_vocab ? Act32s(logits).v[min(at, p.n_vocab - 1)] : NEGATIVE_INFINITY;
        }
        if (PHASE == 0) {
                [[unroll]] for (uint j = 0; j < 4; j++)
                        s_max[thread / 16 * 4 + j][lane] = greater(greater(value[j * 4], value[j * 4 + 1]), greater(value[j * 4 + 2], value[j * 4 + 3]));
                barrier();
                if (thread < 64 && gl_WorkGroupID.x * 64 + thread < p.maxima_stride) {
                        uint most = s_max[thread][0];

                        for (uint i = 1; i < 16; i++)
                                most = greater(most, s_max[thread][i]);
                        Act32s(maxima).v[gl_WorkGroupID.x * 64 + thread] = most;
                }
        } else {
                float most = uintBitsToFloat(NEGATIVE_INFINITY);
                precise float sum = 0;

                for (uint first = 0; first < p.maxima_stride; first += 16 * 256) { // asked for together
                        float part[16];

                        [[unroll]] for (uint i = 0; i < 16; i++)
                                part[i] = F32s(maxima).v[min(first + i * 256 + thread, p.maxima_stride - 1)];
                        [[unroll]] for (uint i = 0; i < 16; i++)
                                most = max(most, part[i]);
                }
                s_row[thread] = most;
                barrier();
                for (uint half_count = 128; half_count > 0; half_count /= 2) {
                        if (thread < half_count)
                                s_row[thread] = max(s_row[thread], s_row[thread + half_count]);
                        barrier();
                }
                most = s_row[0];
                // Written out: shaderc of 2023 unrolls a loop around an exp wrongly.
#define ADD(i) { \
        precise float distance = uintBitsToFloat(value[i]) - most; \
\
        sum += exp_negative(distance); \
}
                ADD(0) ADD(1) ADD(2) ADD(3) ADD(4) ADD(5) ADD(6) ADD(7) ADD(8) ADD(9) ADD(10) ADD(11) ADD(12) ADD(13) ADD(14) ADD(15)
                if (block * 16 < p.sums_stride)
                        F32s(p.sums + uint64_t(row) * p.sums_stride * 4).v[block * 16 + lane] = sum;
        }
        tdm_chain_done(p.chain, p.chain_index);
}
