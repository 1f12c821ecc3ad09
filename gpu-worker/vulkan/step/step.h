/* Models on the vulkan device as engine/device/device.h has them: loading one, and running blocks of it. The top of
 * this device: it includes every folder below, and only vulkan.c includes it.
 *
 * load.c loads; tune.c measures which shapes of kernels are fastest; step.c writes what shaders read about a step;
 * record.c turns blocks into command buffers; run.c submits them and samples. A tdm_device_model is a struct
 * tdm_vk_model, a tdm_device a struct tdm_vk_device. One thread calls. Errors are as in device/gpu.h. */
#ifndef TDM_GPU_WORKER_VULKAN_STEP_STEP_H
#define TDM_GPU_WORKER_VULKAN_STEP_STEP_H

#include "gpu-worker/vulkan/model/model.h"

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

int tdm_vk_run(struct tdm_device_model *model, const struct tdm_step *step, uint32_t first, uint32_t n, float *hidden,
               struct tdm_result *results, void (*on_block)(uint32_t block, void *userdata), void *userdata,
               struct tdm_error *err);

#endif
