#version 460
// The logits that the sampler looks at, to where they would be if all came to the host: the blocks of 64 whose greatest is not less
// than the n-th greatest of all blocks', and those that it names (engine/sampler.h). A workgroup is a row; the n-th greatest is found
// bit by bit: how many are not less than what is known of it and a 1; as soon as there are n, those are they.
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "common.glsl"
layout(local_size_x = 256) in;
layout(push_constant) uniform Push { tdm_vk_gather_push p; };

const uint OWN = 18, CHUNK = OWN * 256; // blocks that a thread, that all threads keep in registers: a vocabulary of 294,912

shared uint s_counts[3];
shared uint s_n_found;
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
                if (thread < 3)
                        s_counts[thread] = 0;
                barrier();
                // Three counts in turns: while one is read, the next is added to, and the one after made 0.
                [[dont_unroll]] for (uint bit = 32, turn = 0; bit-- > NOTHING(n); turn = turn == 2 ? 0 : turn + 1) {
                        uint tried = least | 1u << bit, own = 0;

                        for (uint first = 0; first < n_blocks; first += CHUNK) {
                                if (n_blocks > CHUNK)
                                        load_keys(first);
                                [[unroll]] for (uint k = 0; k < OWN; k++)
                                        own += first + k * 256 + thread < n_blocks && keys[k] >= tried ? 1 : 0;
                        }
                        own = subgroupAdd(own);
                        if (gl_SubgroupInvocationID == 0 && own != 0)
                                atomicAdd(s_counts[turn], own);
                        if (thread == 0)
                                s_counts[turn == 2 ? 0 : turn + 1] = 0;
                        barrier();
                        least = s_counts[turn] >= n ? tried : least;
                        if (s_counts[turn] == n) // more bits would find the same blocks
                                break;
                }
        }
        uint64_t found = of_row(p.found, n_blocks + 1);
        uint n_before = 0;

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
                for (uint i = thread; i < s_n_found; i += 256)
                        Act32s(found).v[1 + n_before + i] = s_found[i];
                n_before += s_n_found;
        }
        if (thread == 0)
                Act32s(found).v[0] = n_before;
        for (uint i = thread / 16; i < n_named; i += 16)
                copy_block(min(U32s(wanted).v[2 + i], n_blocks - 1), thread % 16);
        tdm_chain_done(p.chain, p.chain_index);
}
