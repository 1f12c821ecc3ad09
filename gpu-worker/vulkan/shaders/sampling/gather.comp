#version 460
// The logits that the sampler looks at, to where they would be if all came to the host: the n blocks of 64 with the
// greatest maxima, of equal ones the first, and those that it names (engine/sampling/sampler.h). A workgroup is a row;
// the n-th greatest is found bit by bit: how many are not less than what is known of it and a 1; as soon as there are
// n, those are they. Where more than n are left, the last of them that counts is found so too.
//
// A row without a filter is drawn from all tokens, so noise decides which of them counts (engine/sampling/noise.h).
// Then the blocks whose bound is not below the largest score of four blocks come as well: each quarter of the workgroup
// looks at that with the greatest bound of its own. Blocks that are named are not looked at, since the past may move
// their tokens.
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#include "gpu-worker/vulkan/shaders/sampling/noise.glsl"
layout(local_size_x = 256) in;
layout(push_constant) uniform Push { tdm_vk_gather_push p; };

// blocks that a thread, that all threads keep in registers: a vocabulary of 294,912
const uint OWN = 18, CHUNK = OWN * 256;

shared uint s_counts[3]; // in turns: while one is read, the next is added to, and the one after made 0
shared uint s_greatest;
shared uint s_n_found;
shared uint s_found[CHUNK];
uint keys[OWN];

// of a row that noise decides
shared uint s_bound[4]; // the greatest bound of a quarter's blocks, as key_of()
shared uint s_block[4]; // and which block it is
shared uint s_score;    // the largest, as key_of()
uvec4 noise_keys;
float inverse, most;

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

// ret: for how many of the row's blocks `is_such` is true of their key and index.
#define COUNT(ret, is_such) { \
        uint own_ = 0; \
\
        for (uint first_ = 0; first_ < n_blocks; first_ += CHUNK) { \
                if (n_blocks > CHUNK) \
                        load_keys(first_); \
                [[unroll]] for (uint k_ = 0; k_ < OWN; k_++) { \
                        uint key = keys[k_], index = first_ + k_ * 256 + thread; \
\
                        own_ += index < n_blocks && (is_such) ? 1 : 0; \
                } \
        } \
        own_ = subgroupAdd(own_); \
        if (gl_SubgroupInvocationID == 0 && own_ != 0) \
                atomicAdd(s_counts[slot], own_); \
        if (thread == 0) \
                s_counts[slot == 2 ? 0 : slot + 1] = 0; \
        barrier(); \
        ret = s_counts[slot]; \
        slot = slot == 2 ? 0 : slot + 1; \
}

// The greatest key, when all have come to the next barrier.
void put_greatest(uint n_blocks)
{
        uint own = 0;

        for (uint first = 0; first < n_blocks; first += CHUNK) {
                if (n_blocks > CHUNK)
                        load_keys(first);
                [[unroll]] for (uint k = 0; k < OWN; k++)
                        own = max(own, keys[k]); // a block that is taken twice changes nothing
        }
        own = subgroupMax(own);
        if (gl_SubgroupInvocationID == 0)
                atomicMax(s_greatest, own);
}

// What key_of() is of.
float number_of(uint key)
{
        return uintBitsToFloat((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

uint bound_of(uint key, uint block)
{
        return key_of(floatBitsToUint(tdm_noise_bound(block, number_of(key), most, inverse, noise_keys)));
}

// A bound takes many instructions, so not all of a thread's are written out: BOUNDS at once, in a loop. What a loop
// indexes cannot be a register, so there keys are read from s_found, into which nothing has been found yet.
#define BOUNDS 2

void keep_keys()
{
        [[unroll]] for (uint k = 0; k < OWN; k++)
                s_found[k * 256 + gl_LocalInvocationID.x] = keys[k];
}

// which: what is said of each of a thread's blocks, of which `block`, the k-th, has `bound`. n: any number of things.
#define EACH_BOUND(first, n, which) { \
        [[dont_unroll]] for (uint k_ = 0; k_ < OWN + NOTHING(n); k_ += BOUNDS) \
                [[unroll]] for (uint i_ = 0; i_ < BOUNDS; i_++) { \
                        uint k = k_ + i_, block = (first) + k * 256 + gl_LocalInvocationID.x; \
                        uint bound = bound_of(s_found[k * 256 + gl_LocalInvocationID.x], block); \
\
                        which \
                } \
}

// The key of the largest score found; 0 where all blocks that were looked at are named.
uint find_score(uint n_blocks, uint64_t wanted, uint n_named)
{
        uint thread = gl_LocalInvocationID.x, quarter = thread / 64, own = 0, own_block = 0xffffffffu;

        if (thread < 4) {
                s_bound[thread] = 0;
                s_block[thread] = 0xffffffffu;
        }
        if (thread == 0) {
                s_greatest = 0;
                s_score = 0;
        }
        barrier();
        put_greatest(n_blocks);
        barrier();
        most = number_of(s_greatest);
        for (uint first = 0; first < n_blocks; first += CHUNK) {
                if (n_blocks > CHUNK)
                        load_keys(first);
                keep_keys();
#define GREATEST \
                if (block < n_blocks && bound > own) { \
                        own_block = block; \
                        own = bound; \
                }
                EACH_BOUND(first, n_named, GREATEST)
        }
        atomicMax(s_bound[quarter], own);
        barrier();
        if (own == s_bound[quarter])
                atomicMin(s_block[quarter], own_block);
        barrier();
        uint block = s_block[quarter], at = block * 64 + thread % 64;
        bool counts = block < n_blocks && at < p.logits_stride;

        for (uint i = 0; i < n_named; i++)
                counts = counts && U32s(wanted).v[8 + i] != block;
        if (counts) {
                float logit = F32s(p.logits + of_row(0, p.logits_stride)).v[at];

                atomicMax(s_score, key_of(floatBitsToUint(tdm_noise_score(logit, most, inverse,
                        tdm_noise_token(at, noise_keys)))));
        }
        barrier();
        return s_score;
}

void main()
{
        uint thread = gl_LocalInvocationID.x, n_blocks = p.maxima_stride;
        uint64_t wanted = of_row(p.wanted, p.wanted_stride); // n, how many are named, noise; which
        uint n = U32s(wanted).v[0], n_named = U32s(wanted).v[1];
        uint least = 0, last = 0xffffffffu; // of a block that counts: its key; if that is the least, its index
        uint least_bound = 0xffffffffu;     // or its bound

        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        inverse = uintBitsToFloat(U32s(wanted).v[2]);
        noise_keys = uvec4(U32s(wanted).v[3], U32s(wanted).v[4], U32s(wanted).v[5], U32s(wanted).v[6]);
        load_keys(0); // loaded again only where one chunk does not hold them
        if (inverse > 0 && n < n_blocks) // uniform
                least_bound = find_score(n_blocks, wanted, n_named);
        if (n == 0) { // uniform
                least = 0xffffffffu;
                last = 0;
        } else if (n < n_blocks) { // uniform
                uint slot = 0, n_left = n_blocks;

                if (thread < 3)
                        s_counts[thread] = 0;
                if (thread == 0)
                        s_greatest = 0;
                barrier();
                if (n == 1) {
                        put_greatest(n_blocks);
                        barrier();
                        least = s_greatest;
                        COUNT(n_left, key >= least)
                } else
                        [[dont_unroll]] for (uint bit = 32; bit-- > NOTHING(n);) {
                                uint tried = least | 1u << bit, count;

                                COUNT(count, key >= tried)
                                least = count >= n ? tried : least;
                                n_left = count >= n ? count : n_left;
                                if (count == n) // more bits would find the same blocks
                                        break;
                        }
                if (n_left > n) { // many are as great as the n-th
                        last = 0;
                        [[dont_unroll]] for (uint bit = findMSB(n_blocks) + 1; bit-- > NOTHING(n);) {
                                uint tried = last | 1u << bit, count;

                                COUNT(count, key > least || key == least && index < tried)
                                last = count < n ? tried : last; // too few lie before it
                                if (count == n) {
                                        last = tried - 1;
                                        break;
                                }
                        }
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
                uint by_bound = 0; // of the thread's blocks, a bit each

                if (inverse > 0) { // uniform
                        keep_keys();
#define NOT_BELOW by_bound |= bound >= least_bound ? 1u << k : 0;
                        EACH_BOUND(first, n_named, NOT_BELOW)
                        barrier();
                }
                [[unroll]] for (uint k = 0; k < OWN; k++) {
                        uint block = first + k * 256 + thread;
                        bool counts = keys[k] > least || keys[k] == least && block <= last ||
                                (by_bound >> k & 1u) != 0;

                        if (block < n_blocks && counts)
                                s_found[atomicAdd(s_n_found, 1)] = block;
                }
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
                copy_block(min(U32s(wanted).v[8 + i], n_blocks - 1), thread % 16);
        tdm_chain_done(p.chain, p.chain_index);
}
