/* What the files of this folder use of each other, and no other folder does. */
#ifndef TDM_GPU_WORKER_VULKAN_KERNELS_KERNELS_PRIVATE_H
#define TDM_GPU_WORKER_VULKAN_KERNELS_KERNELS_PRIVATE_H

#include "gpu-worker/vulkan/kernels/kernels.h"
#include "gpu-worker/vulkan/proof/proof.h"

/* kernels-f16.c: as tdm_vk_choose_kernel(), or with gelu (1 and an activation) as tdm_vk_gelu_kernel(): n_panels of
 * both matrices. */
struct tdm_vk_pipeline *tdm_vk_f16_kernel(struct tdm_vk_device *device, const struct tdm_vk_matrix *first,
                                          uint32_t n_panels, uint32_t n_rows, uint32_t gelu, uint32_t *ret_panels,
                                          uint32_t *ret_rows);
/* kernels.c: SHAPE and THREADS of matmul-int8-any.comp, of 32, 64 or up to 128 rows. */
void tdm_vk_any_shape(const struct tdm_vk_device *device, const struct tdm_vk_matrix *matrix, uint32_t n_rows,
                      uint32_t ret[2]);
/* attend.c: what record() can ask for. */
int tdm_vk_kernels_need_attend(struct tdm_vk_model *model, struct tdm_error *err);

#endif
