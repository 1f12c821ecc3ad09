/* Running blocks of a model, as engine/device/device.h has it. */
#ifndef TDM_GPU_WORKER_VULKAN_RUN_H
#define TDM_GPU_WORKER_VULKAN_RUN_H

#include "engine/device/device.h"

int tdm_vk_run(struct tdm_device_model *model, const struct tdm_step *step, uint32_t first, uint32_t n, float *hidden,
               struct tdm_result *results, void (*on_block)(uint32_t block, void *userdata), void *userdata,
               struct tdm_error *err);

#endif
