/* What the files of this folder use of each other, and no other folder does. */
#ifndef TDM_GPU_WORKER_VULKAN_DEVICE_GPU_PRIVATE_H
#define TDM_GPU_WORKER_VULKAN_DEVICE_GPU_PRIVATE_H

#include "gpu-worker/vulkan/device/gpu.h"

#define TDM_VK_VENDOR_NVIDIA 0x10deu
#define TDM_VK_VENDOR_INTEL 0x8086u

/* ---- matrix-units.c ---- */

struct tdm_vk_matrix_features {
        VkStructureType type;
        void *next;
        VkBool32 cooperative_matrix;
        VkBool32 robust;
};
enum tdm_vk_units {
        TDM_VK_UNITS_INT8, /* 16 by 8 by 32, to int32 */
        TDM_VK_UNITS_F16,  /* 16 by 8 by 16, to f32 */
};
bool tdm_vk_matrix_units(const struct tdm_vk_device *device, enum tdm_vk_units units);
/* The device lists its units. This returns those of bytes with the largest product, in a shape that
 * matmul-int8-any.comp takes and in subgroups of this many, as TDM_VK_TILES_UNIT; 0: there are none. */
uint32_t tdm_vk_matrix_units_any(const struct tdm_vk_device *device, uint32_t subgroup);
/* What to enable with the extension whose name it returns. */
const char *tdm_vk_matrix_feature(struct tdm_vk_matrix_features *features);

/* ---- pipeline.c ---- */

void tdm_vk_pipelines_deinit(struct tdm_vk_device *device);

/* ---- pipeline-cache.c ---- */

/* Reads what an earlier process kept, of tuned shapes those that are sane. */
void tdm_vk_cache_open(struct tdm_vk_device *device, bool (*sane)(const struct tdm_vk_tuned *tuned));
void tdm_vk_cache_close(struct tdm_vk_device *device);

/* ---- submit.c ---- */

/* Until the fence is signalled, at most WAIT_MAX_NS. */
int tdm_vk_wait(struct tdm_vk_device *device, VkFence fence, struct tdm_error *err);

#endif
