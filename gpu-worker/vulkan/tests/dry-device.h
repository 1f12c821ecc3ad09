/* A Vulkan device that computes nothing. After the real one is opened, its table of Vulkan functions is replaced:
 * kernels are not compiled, submissions end at once, and every kernel for matrix units counts as proven. So the real
 * device only says which units there are: tests/spirv-executor says that it has all of NVIDIA's, or AMD's, and
 * TANDEM_VULKAN_* choose among what it has. Loading a model takes milliseconds then.
 *
 * Test code: one device at a time, and the program ends with a message where something fails. */
#ifndef TDM_GPU_WORKER_VULKAN_TESTS_DRY_DEVICE_H
#define TDM_GPU_WORKER_VULKAN_TESTS_DRY_DEVICE_H

#include "engine/device/device.h"
#include "gpu-worker/vulkan/device/vk.h"

/* As tdm_vulkan_device_ops, for one device. */
struct tdm_device_ops dry_device_ops(void);
/* Whether each submission's commands are printed: the kernel, its size and its push constants. Addresses are printed as
 * the buffer that they point into, in order of creation, and an offset. */
void dry_device_list(bool on);
/* Prints all kernels that the device has, and all buffers. */
void dry_device_list_all(void);
/* Called when a command buffer begins; NULL: nothing. */
void dry_device_on_begin(void (*call)(VkCommandBuffer commands));

#endif
