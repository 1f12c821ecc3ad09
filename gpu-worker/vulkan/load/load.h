/* Loading a model on the Vulkan device, as engine/device/device.h has it. load.c loads; tune.c measures which shapes of
 * kernels are fastest. A tdm_device_model is a struct tdm_vk_model, a tdm_device a struct tdm_vk_device. One thread
 * calls. Errors are as in device/gpu.h. */
#ifndef TDM_GPU_WORKER_VULKAN_LOAD_LOAD_H
#define TDM_GPU_WORKER_VULKAN_LOAD_LOAD_H

#include "gpu-worker/vulkan/record/record.h"

/* ---- load.c ---- */

/* The three parts of a load; all three at once; and the end of it. The caller owns *ret. */
int tdm_vk_model_begin(struct tdm_device *device, const struct tdm_device_model_config *config,
                       struct tdm_device_model **ret, struct tdm_error *err);
int tdm_vk_model_weights(struct tdm_device_model *model, uint64_t n_bytes, struct tdm_error *err);
int tdm_vk_model_end(struct tdm_device_model *model, struct tdm_error *err);
int tdm_vk_model_load(struct tdm_device *device, const struct tdm_device_model_config *config,
                      struct tdm_device_model **ret, struct tdm_error *err);
void tdm_vk_model_unload(struct tdm_device_model *model); /* NULL: nothing */
/* Another segment for the cache, or none (NULL). A failure is told by the next run(). */
void tdm_vk_model_set_kv(struct tdm_device_model *model, uint8_t *kv_base);

/* ---- tune.c ---- */

/* Measures what the model has and the device does not know yet. Weights are on the device. */
int tdm_vk_tune(struct tdm_vk_model *model, struct tdm_error *err);

#endif
