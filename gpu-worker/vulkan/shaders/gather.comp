#version 460
// The logits that the sampler looks at, to where they would be if all came to the host: the blocks of 64 whose greatest is not less
// than the n-th greatest of all blocks', and those that it names (engine/sampler.h). A workgroup is a row; the n-th greatest is found
// four bits at a time.
#include "common.glsl"
layout(local_size_x = 256) in;
layout(push_constant) uniform Push { tdm_vk_gather_push p; };

const uint OWN = 16, CHUNK = OWN * 256; // blocks that a thread, that all threads keep in registers

shared uint s_count[16];
shared uint s_prefix, s_left, s_n_found;
shared uint s_found[CHUNK];
uint keys[OWN];

// In rising order of the numbers.
uint key_of(uint bits)
{
        bits = bits == 0x80000000u ? 0 : bits; // -0 is 0
        return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

uint64_t of_row(uint64_t rows, uint stride)
{
        return rows + uint64_t(gl_WorkGroupID.x) * stride * 4;
}

void load_keys(uint first)
{
        uint64_t maxima = of_row(p.maxima, p.maxima_stride);

        [[unroll]] for (uint k = 0; k < OWN; k++)
                keys[k] = key_of(Act32s(maxima).v[min(first + k * 256 + gl_LocalInvocationID.x, p.maxima_stride - 1)]);
}

void copy_block(uint block, uint first)
{
        uint64_t row = of_row(0, p.logits_stride);
        uint value[4]; // asked for together

        [[unroll]] for (uint i = 0; i < 4; i++)
                value[i] = Act32s(p.logits + row).v[min(block * 64 + first + i * 16, p.logits_stride - 1)];
        [[unroll]] for (uint i = 0; i < 4; i++)
                if (block * 64 + first + i * 16 < p.logits_stride)
                        Act32s(p.host + row).v[block * 64 + first + i * 16] = value[i];
}

void main()
{
        uint thread = gl_LocalInvocationID.x, n_blocks = p.maxima_stride;
        uint64_t wanted = of_row(p.wanted, p.wanted_stride); // n, how many are named, which
        uint n = U32s(wanted).v[0], n_named = U32s(wanted).v[1], least = 0;

        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        load_keys(0); // loaded again only where one chunk does not hold them
        if (n < n_blocks) { // uniform
                for (int shift = 28; shift >= 0; shift -= 4) {
                        if (thread < 16)
                                s_count[thread] = 0;
                        if (thread == 0 && shift == 28) {
                                s_prefix = 0;
                                s_left = n;
                        }
                        barrier();
                        for (uint first = 0; first < n_blocks; first += CHUNK) {
                                if (n_blocks > CHUNK)
                                        load_keys(first);
                                [[unroll]] for (uint k = 0; k < OWN; k++)
                                        if (first + k * 256 + thread < n_blocks && (shift == 28 || keys[k] >> shift + 4 == s_prefix))
                                                atomicAdd(s_count[keys[k] >> shift & 15u], 1);
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
        for (uint first = 0; first < n_blocks; first += CHUNK) {
                barrier();
                if (thread == 0)
                        s_n_found = 0;
                barrier();
                if (n_blocks > CHUNK)
                        load_keys(first);
                [[unroll]] for (uint k = 0; k < OWN; k++)
                        if (first + k * 256 + thread < n_blocks && keys[k] >= least)
                                s_found[atomicAdd(s_n_found, 1)] = first + k * 256 + thread;
                barrier();
                for (uint i = thread / 16; i < s_n_found; i += 16)
                        copy_block(s_found[i], thread % 16);
        }
        for (uint i = thread / 16; i < n_named; i += 16)
                copy_block(min(U32s(wanted).v[2 + i], n_blocks - 1), thread % 16);
        tdm_chain_done(p.chain, p.chain_index);
}
