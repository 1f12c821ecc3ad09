/* A step as shaders see it: step.c writes what they read of it, early.c makes the shorter step of a model's later
 * blocks. */
#ifndef TDM_GPU_WORKER_VULKAN_STEP_STEP_H
#define TDM_GPU_WORKER_VULKAN_STEP_STEP_H

#include "engine/step/shorter.h"
#include "gpu-worker/vulkan/kernels/kernels.h"

/* ---- step.c ---- */

/* Offsets in a slot's step buffer. */
struct tdm_vk_step_layout {
        uint64_t rows, gather, wanted, args, tables[TDM_KV_GROUPS];
        uint64_t inputs;
        uint64_t angles[TDM_VK_KINDS], items[TDM_VK_KINDS], row_items[TDM_VK_KINDS];
        uint64_t size_bytes;
};
void tdm_vk_step_layout(const struct tdm_vk_model *model, struct tdm_vk_step_layout *ret);
/* The slot of these hidden rows, free or not; NULL: they lie outside of the activations. */
struct tdm_vk_slot *tdm_vk_slot_of(struct tdm_vk_model *model, const float *hidden);
/* Writes what shaders read of a step, which the slot holds then, and takes the next serial. Who runs steps clears
 * partial results before serials begin again: tdm_vk_partial_clear(). */
void tdm_vk_step_fill(struct tdm_vk_model *model, struct tdm_vk_slot *slot, const struct tdm_step *step);
/* What gather.comp reads of a row of logits: how many, how many named, which. */
#define TDM_VK_WANTED_HEAD 8u /* words before the blocks that a row names (shared.h, tdm_vk_gather_push) */
#define TDM_VK_WANTED_STRIDE (TDM_VK_WANTED_HEAD + TDM_MAX_MOVED + 1u)
/* Offset of a VkDispatchIndirectCommand. */
uint64_t tdm_vk_step_args(const struct tdm_vk_step_layout *layout, uint32_t tile, uint32_t kind);

/* ---- early.c ---- */

/* What the model's later blocks need, if it has such: before buffers are made. -ENOMEM. */
int tdm_vk_early_init(struct tdm_vk_model *model);
void tdm_vk_early_deinit(struct tdm_vk_model *model);
/* The shorter step into model->early.slot, with its rows of the slot's, which lie there or in `hidden`. From `hidden`
 * only these are brought, and the slot stays without any. */
int tdm_vk_early_begin(struct tdm_vk_model *model, struct tdm_vk_slot *slot, const struct tdm_step *shorter,
                       const uint32_t *from, const float *hidden, struct tdm_error *err);
/* The rows to where they came from. */
int tdm_vk_early_end(struct tdm_vk_model *model, struct tdm_vk_slot *slot, const struct tdm_step *shorter,
                     const uint32_t *from, float *hidden, struct tdm_error *err);
/* A slot's rows into `hidden`, for the other worker. */
int tdm_vk_early_bring(struct tdm_vk_model *model, struct tdm_vk_slot *slot, float *hidden, struct tdm_error *err);

#endif
