/* Which of a GPU's memory heaps its models may lie in, how much is left of them, and which type of memory a buffer
 * takes. Plain arithmetic over what the driver lists: it asks no device. */
#ifndef TDM_GPU_WORKER_VULKAN_DEVICE_HEAPS_H
#define TDM_GPU_WORKER_VULKAN_DEVICE_HEAPS_H

#include <vulkan/vulkan.h>
#include "common/util.h"

/* A bit for each heap that counts. A GPU with memory of its own: its largest heap, since a second one is a window onto
 * the first. One that shares the machine's memory: every heap, since drivers divide the one memory among them. */
uint32_t tdm_vk_heaps_counted(const VkPhysicalDeviceMemoryProperties *memory, bool is_shared);
uint64_t tdm_vk_heaps_bytes(const VkPhysicalDeviceMemoryProperties *memory, uint32_t heaps);
/* What the driver would still give of these heaps. */
uint64_t tdm_vk_heaps_left(const VkPhysicalDeviceMemoryBudgetPropertiesEXT *budget, uint32_t heaps);
/* The first type that is allowed, lies in none of the heaps in `without` and has all of `must`, preferring those that
 * have `nice` too. -1: none. */
int tdm_vk_memory_type(const VkPhysicalDeviceMemoryProperties *memory, uint32_t allowed, VkMemoryPropertyFlags must,
                       VkMemoryPropertyFlags nice, uint32_t without);

#endif
