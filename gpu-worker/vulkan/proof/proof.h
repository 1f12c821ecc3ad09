/* Kernels for matrix units are only used where they are proven: each must give the bits of a kernel that needs no such
 * units, or of one that was compared with the definition, on this very device and driver. Proofs run when a model is
 * loaded, once for each kernel. What they find is in tdm_vk_pipeline's tried and proven. A kernel that fails is no
 * error: another one takes its work. All use device->stages[0]. */
#ifndef TDM_GPU_WORKER_VULKAN_PROOF_PROOF_H
#define TDM_GPU_WORKER_VULKAN_PROOF_PROOF_H

#include "gpu-worker/vulkan/device/gpu.h"

/* Chunks of a segment that a kernel of a single row of F16 has room for: the proof's rows have as many. */
#define TDM_VK_F16_CHUNKS_MIN 4u
/* And of several rows, chunks of a whole row. */
#define TDM_VK_F16_CHUNKS_ALL_MIN (13u * TDM_VK_F16_CHUNKS_MIN)

/* What weights and rows of proofs are made of: the same numbers in every process. */
uint32_t tdm_vk_prove_random(uint64_t *state);

/* ---- prove.c: kernels for integer matrix units ---- */

/* The kernel that proofs of this type and rounding (TDM_VK_ACT_*) need. */
int tdm_vk_prove_need(struct tdm_vk_device *device, uint32_t type, uint32_t act, struct tdm_error *err);
/* Tries those that were compiled and not yet tried. */
int tdm_vk_prove(struct tdm_vk_device *device, struct tdm_error *err);

/* ---- prove-f16.c: kernels for f16 matrix units ---- */

/* As above; type: of weights, without TDM_VK_FRAGMENTS; gelu: 0, or 1 and an activation. */
int tdm_vk_prove_f16_need(struct tdm_vk_device *device, uint32_t type, uint32_t gelu, struct tdm_error *err);
int tdm_vk_prove_f16(struct tdm_vk_device *device, struct tdm_error *err);

/* ---- weights-subblock.c ---- */

/* A panel of random weights as kernels for f16 matrix units read them: type: of engine/weights/subblock.h. */
void tdm_vk_prove_random_subblock(uint8_t *panel, uint32_t type, uint32_t cols, uint64_t *state);
/* What column k of a row of a panel becomes there. */
double tdm_vk_prove_subblock_weight(const uint8_t *panel, uint32_t type, uint32_t cols, uint32_t lane, uint32_t k);

/* ---- prove-attend.c ---- */

/* Attention of a single row with this many heads an item, and of many_rows; NULL: it could not be compiled. */
int tdm_vk_prove_attend(struct tdm_vk_device *device, struct tdm_vk_pipeline *single, struct tdm_vk_pipeline *many,
                        uint32_t heads, uint32_t many_rows, struct tdm_error *err);
/* And the one that rotates rows itself, against `rotate` and `single`, which leaves rows of F16. */
int tdm_vk_prove_rotating(struct tdm_vk_device *device, const struct tdm_vk_pipeline *rotate,
                          const struct tdm_vk_pipeline *single, struct tdm_vk_pipeline *rotating, uint32_t heads,
                          struct tdm_error *err);

#endif
