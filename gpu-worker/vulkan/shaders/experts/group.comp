#version 460
// Slots and items of a tile's rows (shared-experts.h), by one workgroup. No atomics: a slot's place follows from the
// choices alone.
#define WORKERS 256
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#include "gpu-worker/vulkan/shaders/common/shared-experts.h"
layout(local_size_x = WORKERS) in;
layout(push_constant) uniform Push { tdm_vk_group_push p; };

shared uint s_count[TDM_VK_EXPERTS_MAX];
shared uint s_first[TDM_VK_EXPERTS_MAX];
shared uint s_first_item[TDM_VK_EXPERTS_MAX];

void main()
{
        uint thread = gl_LocalInvocationID.x, n_slots = p.n_rows * p.n_used;

        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        for (uint e = thread; e < p.n_experts; e += WORKERS) {
                uint n = 0;

                for (uint i = 0; i < n_slots; i++)
                        n += Act32s(p.ids).v[i] == e ? 1 : 0;
                s_count[e] = n;
        }
        barrier();
        if (thread == 0) {
                uint slot = 0, item = 0;

                for (uint e = 0; e < p.n_experts; e++) {
                        s_first[e] = slot;
                        s_first_item[e] = item;
                        slot += s_count[e];
                        item += (s_count[e] + p.item_rows - 1) / p.item_rows;
                }
                Act32s(p.items).v[0] = item;
        }
        barrier();
        for (uint e = thread; e < p.n_experts; e += WORKERS) {
                uint slot = s_first[e], item = s_first_item[e];

                for (uint at = 0; at < s_count[e]; at += p.item_rows)
                        Act32x4s(p.items + TDM_VK_ITEMS_HEAD).v[item++] =
                                uvec4(e, slot + at, min(s_count[e] - at, p.item_rows), 0);
                if (s_count[e] == 0)
                        continue;
                for (uint i = 0; i < n_slots; i++)
                        if (Act32s(p.ids).v[i] == e) {
                                Act32s(p.slots).v[i] = slot;
                                Act32s(p.slot_rows).v[slot] = i / p.n_used;
                                slot++;
                        }
        }
        tdm_chain_done(p.chain, p.chain_index);
}
