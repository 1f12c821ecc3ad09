/* Heaps and types of memory: see heaps.h. */
#include "gpu-worker/vulkan/device/heaps.h"

/* Memory that no buffer of a model can lie in. */
#define NO_USE (VK_MEMORY_PROPERTY_PROTECTED_BIT | VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT)

static uint32_t largest_own(const VkPhysicalDeviceMemoryProperties *memory)
{
        uint64_t most = 0;
        uint32_t heaps = 1;

        for (uint32_t i = 0; i < memory->memoryHeapCount; i++)
                if (memory->memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT &&
                    memory->memoryHeaps[i].size > most) {
                        most = memory->memoryHeaps[i].size;
                        heaps = 1u << i;
                }
        return heaps;
}

uint32_t tdm_vk_heaps_counted(const VkPhysicalDeviceMemoryProperties *memory, bool is_shared)
{
        uint32_t heaps = 0;

        if (!is_shared)
                return largest_own(memory);
        for (uint32_t i = 0; i < memory->memoryTypeCount; i++)
                if (!(memory->memoryTypes[i].propertyFlags & NO_USE))
                        heaps |= 1u << memory->memoryTypes[i].heapIndex;
        return heaps;
}

uint64_t tdm_vk_heaps_bytes(const VkPhysicalDeviceMemoryProperties *memory, uint32_t heaps)
{
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < memory->memoryHeapCount; i++)
                if (heaps >> i & 1)
                        bytes += memory->memoryHeaps[i].size;
        return bytes;
}

uint64_t tdm_vk_heaps_left(const VkPhysicalDeviceMemoryBudgetPropertiesEXT *budget, uint32_t heaps)
{
        uint64_t left = 0;

        for (uint32_t i = 0; i < VK_MAX_MEMORY_HEAPS; i++)
                if (heaps >> i & 1 && budget->heapBudget[i] > budget->heapUsage[i])
                        left += budget->heapBudget[i] - budget->heapUsage[i];
        return left;
}

int tdm_vk_memory_type(const VkPhysicalDeviceMemoryProperties *memory, uint32_t allowed, VkMemoryPropertyFlags must,
                       VkMemoryPropertyFlags nice, uint32_t without)
{
        for (int pass = 0; pass < 2; pass++) {
                VkMemoryPropertyFlags want = pass == 0 ? must | nice : must;

                for (uint32_t i = 0; i < memory->memoryTypeCount; i++)
                        if (allowed >> i & 1 && !(without >> memory->memoryTypes[i].heapIndex & 1) &&
                            (memory->memoryTypes[i].propertyFlags & want) == want &&
                            !(memory->memoryTypes[i].propertyFlags & NO_USE))
                                return (int)i;
        }
        return -1;
}
