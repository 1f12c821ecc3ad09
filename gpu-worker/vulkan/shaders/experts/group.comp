#version 460
// Slots and items of a tile's rows (shared-experts.h), by one workgroup.
//
// An expert has a bit for each row of a part: set where the row uses it. A slot's place among those of its expert is
// the number of bits below its own. Atomics only set bits, so the order in which they come does not matter: a slot's
// place follows from the choices alone.
#define WORKERS 256
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#include "gpu-worker/vulkan/shaders/common/shared-experts.h"
layout(local_size_x = WORKERS) in;
layout(push_constant) uniform Push { tdm_vk_group_push p; };

#define PART_WORDS 4
#define PART_ROWS (32 * PART_WORDS)

shared uint s_bits[PART_WORDS][TDM_VK_EXPERTS_MAX];
shared uint s_next[TDM_VK_EXPERTS_MAX]; /* of each expert: slots so far; later the next one */
shared uvec2 s_sums[WORKERS];           /* slots, items */

uint begin, end; /* experts whose bits and sums are this thread's */

uint count(uint e)
{
        uint n = 0;

        for (uint w = 0; w < PART_WORDS; w++)
                n += bitCount(s_bits[w][e]);
        return n;
}

uint part_slots(uint first_row)
{
        return min(p.n_rows - first_row, PART_ROWS) * p.n_used;
}

void set_bits(uint first_row)
{
        uint n_slots = part_slots(first_row);

        barrier();
        for (uint e = begin; e < end; e++)
                for (uint w = 0; w < PART_WORDS; w++)
                        s_bits[w][e] = 0;
        barrier();
        for (uint i = gl_LocalInvocationID.x; i < n_slots; i += WORKERS) {
                uint row = i / p.n_used, e = Act32s(p.ids).v[first_row * p.n_used + i];

                atomicOr(s_bits[row / 32][e], 1u << row % 32);
        }
        barrier();
}

/* Sums over this thread's experts and those of the threads before. */
uvec2 scan(uvec2 sum)
{
        uint thread = gl_LocalInvocationID.x;

        s_sums[thread] = sum;
        for (uint distance = 1; distance < WORKERS; distance *= 2) {
                barrier();
                if (thread >= distance)
                        sum += s_sums[thread - distance];
                barrier();
                s_sums[thread] = sum;
        }
        return sum;
}

void main()
{
        uint thread = gl_LocalInvocationID.x, each = (p.n_experts + WORKERS - 1) / WORKERS;
        uvec2 own = uvec2(0), last;

        begin = min(thread * each, p.n_experts);
        end = min(begin + each, p.n_experts);
        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        for (uint e = begin; e < end; e++)
                s_next[e] = 0;
        for (uint row = 0; row < p.n_rows; row += PART_ROWS) {
                set_bits(row);
                for (uint e = begin; e < end; e++)
                        s_next[e] += count(e);
        }

        for (uint e = begin; e < end; e++)
                own += uvec2(s_next[e], (s_next[e] + p.item_rows - 1) / p.item_rows);
        last = scan(own);
        if (thread == WORKERS - 1)
                Act32s(p.items).v[0] = last.y;
        last -= own;
        for (uint e = begin; e < end; e++) {
                uint n = s_next[e];

                for (uint at = 0; at < n; at += p.item_rows)
                        Act32x4s(p.items + TDM_VK_ITEMS_HEAD).v[last.y++] =
                                uvec4(e, last.x + at, min(n - at, p.item_rows), 0);
                s_next[e] = last.x;
                last.x += n;
        }

        for (uint first_row = 0; first_row < p.n_rows; first_row += PART_ROWS) {
                uint n_slots = part_slots(first_row);

                set_bits(first_row);
                for (uint i = thread; i < n_slots; i += WORKERS) {
                        uint row = i / p.n_used, choice = first_row * p.n_used + i, e = Act32s(p.ids).v[choice];
                        uint slot = s_next[e] + bitCount(s_bits[row / 32][e] & ((1u << row % 32) - 1));

                        for (uint w = 0; w < row / 32; w++)
                                slot += bitCount(s_bits[w][e]);
                        Act32s(p.slots).v[choice] = slot;
                        Act32s(p.slot_rows).v[slot] = first_row + row;
                }
                barrier();
                for (uint e = begin; e < end; e++)
                        s_next[e] += count(e);
        }
        tdm_chain_done(p.chain, p.chain_index);
}
