/* The Vulkan loader, opened at run time: a worker whose machine has no libvulkan.so.1 starts and says so. Every
 * function that the device calls is a row of one of the three lists below, and nothing else of Vulkan is linked. Not
 * thread-safe; one thread opens, uses and closes. */
#ifndef TDM_GPU_WORKER_VULKAN_DEVICE_VK_H
#define TDM_GPU_WORKER_VULKAN_DEVICE_VK_H

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan_core.h>

#include "common/error.h"

#define TDM_VK_GLOBAL_FUNCTIONS(X) X(CreateInstance) X(EnumerateInstanceVersion)
#define TDM_VK_INSTANCE_FUNCTIONS(X)                                                                                   \
        X(DestroyInstance)                                                                                             \
        X(EnumeratePhysicalDevices)                                                                                    \
        X(GetPhysicalDeviceProperties2)                                                                                \
        X(GetPhysicalDeviceFeatures2)                                                                                  \
        X(GetPhysicalDeviceMemoryProperties2)                                                                          \
        X(GetPhysicalDeviceQueueFamilyProperties)                                                                      \
        X(GetPhysicalDeviceExternalBufferProperties)                                                                   \
        X(EnumerateDeviceExtensionProperties)                                                                          \
        X(CreateDevice)                                                                                                \
        X(GetDeviceProcAddr)
#define TDM_VK_DEVICE_FUNCTIONS(X)                                                                                     \
        X(DestroyDevice)                                                                                               \
        X(GetDeviceQueue)                                                                                              \
        X(DeviceWaitIdle)                                                                                              \
        X(CreateBuffer)                                                                                                \
        X(DestroyBuffer)                                                                                               \
        X(GetBufferMemoryRequirements)                                                                                 \
        X(GetBufferDeviceAddress)                                                                                      \
        X(AllocateMemory)                                                                                              \
        X(FreeMemory)                                                                                                  \
        X(BindBufferMemory)                                                                                            \
        X(MapMemory)                                                                                                   \
        X(CreateShaderModule)                                                                                          \
        X(DestroyShaderModule)                                                                                         \
        X(CreatePipelineLayout)                                                                                        \
        X(DestroyPipelineLayout)                                                                                       \
        X(CreateComputePipelines)                                                                                      \
        X(DestroyPipeline)                                                                                             \
        X(CreatePipelineCache)                                                                                         \
        X(DestroyPipelineCache)                                                                                        \
        X(GetPipelineCacheData)                                                                                        \
        X(CreateCommandPool)                                                                                           \
        X(DestroyCommandPool)                                                                                          \
        X(FreeCommandBuffers)                                                                                          \
        X(AllocateCommandBuffers)                                                                                      \
        X(BeginCommandBuffer)                                                                                          \
        X(EndCommandBuffer)                                                                                            \
        X(CmdBindPipeline)                                                                                             \
        X(CmdPushConstants)                                                                                            \
        X(CmdDispatch)                                                                                                 \
        X(CmdDispatchIndirect)                                                                                         \
        X(CmdPipelineBarrier)                                                                                          \
        X(CmdFillBuffer)                                                                                               \
        X(CmdCopyBuffer)                                                                                               \
        X(CmdWriteTimestamp)                                                                                           \
        X(CmdResetQueryPool)                                                                                           \
        X(CreateQueryPool)                                                                                             \
        X(DestroyQueryPool)                                                                                            \
        X(GetQueryPoolResults)                                                                                         \
        X(QueueSubmit)                                                                                                 \
        X(CreateFence)                                                                                                 \
        X(DestroyFence)                                                                                                \
        X(ResetFences)                                                                                                 \
        X(GetFenceStatus)                                                                                              \
        X(WaitForFences)

#define TDM_VK_DECLARE(name) PFN_vk##name name;
struct tdm_vk {
        void *library;
        VkInstance instance;
        VkDevice device;
        PFN_vkGetInstanceProcAddr GetInstanceProcAddr;
        TDM_VK_GLOBAL_FUNCTIONS(TDM_VK_DECLARE)
        TDM_VK_INSTANCE_FUNCTIONS(TDM_VK_DECLARE)
        TDM_VK_DEVICE_FUNCTIONS(TDM_VK_DECLARE)
        PFN_vkGetMemoryHostPointerPropertiesEXT GetMemoryHostPointerPropertiesEXT; /* NULL without the extension */
        PFN_vkGetMemoryFdPropertiesKHR GetMemoryFdPropertiesKHR;                   /* the same */
};

/* Loader, instance and its functions. Instance and driver are the process's: made by the first call and kept for good,
 * since drivers leave threads and thread-local memory behind that their unloading would pull away. TDM_E_UNSUPPORTED
 * with what is missing and what to install. */
int tdm_vk_open(struct tdm_vk *vk, struct tdm_error *err);
/* The device's functions; vk->device is set. */
int tdm_vk_open_device(struct tdm_vk *vk, struct tdm_error *err);
/* The device, where there is one. */
void tdm_vk_close(struct tdm_vk *vk);

const char *tdm_vk_result_name(VkResult result);

#endif
