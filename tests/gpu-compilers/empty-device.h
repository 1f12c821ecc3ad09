/* Vulkan between Tandem's device and a driver that compiles for a GPU which is not there: the driver finds the device,
 * says what it offers and compiles kernels. Memory, submissions and clocks are made up here: whatever is submitted is
 * done at once and computes nothing. For programs that are linked with --wrap=dlsym. */
#ifndef TDM_TESTS_GPU_COMPILERS_EMPTY_DEVICE_H
#define TDM_TESTS_GPU_COMPILERS_EMPTY_DEVICE_H

#include "gpu-worker/vulkan/device/vk.h"

/* What the driver cannot know of a GPU that is not there; before the device is opened. */
extern VkPhysicalDeviceType empty_device_type;

/* Called for each pipeline before it is destroyed. */
extern void (*empty_device_destroys)(VkPipeline pipeline);

/* What the driver tells of a pipeline; NULL where it does not. */
struct empty_device_functions {
        VkDevice device;
        PFN_vkGetPipelineExecutablePropertiesKHR properties;
        PFN_vkGetPipelineExecutableStatisticsKHR statistics;
        PFN_vkGetPipelineExecutableInternalRepresentationsKHR representations;
};
extern struct empty_device_functions empty_device_functions;

#endif
