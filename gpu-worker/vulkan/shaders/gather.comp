#version 460
// The logits that the sampler looks at, to where they would be if all came to the host: the blocks of 64 whose greatest is not less
// than the n-th greatest of all blocks', and those that it names (engine/sampler.h). A workgroup is a row; the n-th greatest is found
// four bits at a time.
#include "common.glsl"
layout(local_size_x = 256) in;
layout(push_constant) uniform Push { tdm_vk_gather_push p; };

shared uint s_count[16];
shared uint s_prefix, s_left;

// In rising order of the numbers.
uint key_of(uint bits)
{
        bits = bits == 0x80000000u ? 0 : bits; // -0 is 0
        return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

void copy_block(uint64_t row, uint block, uint first)
{
        for (uint i = first; i < 64; i += 16)
                if (block * 64 + i < p.logits_stride)
                        Act32s(p.host + row).v[block * 64 + i] = Act32s(p.logits + row).v[block * 64 + i];
}

void main()
{
        uint thread = gl_LocalInvocationID.x, n_blocks = p.maxima_stride;
        uint64_t wanted = p.wanted + uint64_t(gl_WorkGroupID.x) * p.wanted_stride * 4; // n, how many are named, which
        uint64_t maxima = p.maxima + uint64_t(gl_WorkGroupID.x) * p.maxima_stride * 4;
        uint64_t row = uint64_t(gl_WorkGroupID.x) * p.logits_stride * 4;
        uint n = U32s(wanted).v[0], n_named = U32s(wanted).v[1], least = 0;

        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        if (n < n_blocks) { // uniform
                for (int shift = 28; shift >= 0; shift -= 4) {
                        if (thread < 16)
                                s_count[thread] = 0;
                        if (thread == 0 && shift == 28) {
                                s_prefix = 0;
                                s_left = n;
                        }
                        barrier();
                        for (uint i = thread; i < n_blocks; i += 256) {
                                uint key = key_of(Act32s(maxima).v[i]);

                                if (shift == 28 || key >> shift + 4 == s_prefix)
                                        atomicAdd(s_count[key >> shift & 15u], 1);
                        }
                        barrier();
                        if (thread == 0) {
                                uint digit = 15;

                                while (digit > 0 && s_count[digit] < s_left)
                                        s_left -= s_count[digit--];
                                s_prefix = s_prefix << 4 | digit;
                        }
                        barrier();
                }
                least = s_prefix;
        }
        for (uint i = thread / 16; i < n_blocks; i += 16)
                if (key_of(Act32s(maxima).v[i]) >= least)
                        copy_block(row, i, thread % 16);
        for (uint i = thread / 16; i < n_named; i += 16)
                copy_block(row, min(U32s(wanted).v[2 + i], n_blocks - 1), thread % 16);
        tdm_chain_done(p.chain, p.chain_index);
}
