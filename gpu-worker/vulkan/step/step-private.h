/* What the files of this folder use of each other, and no other folder does. */
#ifndef TDM_GPU_WORKER_VULKAN_STEP_STEP_PRIVATE_H
#define TDM_GPU_WORKER_VULKAN_STEP_STEP_PRIVATE_H

#include "engine/step/shorter.h"
#include "gpu-worker/vulkan/kernels/kernels.h"
#include "gpu-worker/vulkan/step/step.h"

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
/* The shorter step into model->early_slot, with its rows of the slot's, which lie there or in `hidden`. From `hidden`
 * only these are brought, and the slot stays without any. */
int tdm_vk_early_begin(struct tdm_vk_model *model, struct tdm_vk_slot *slot, const struct tdm_step *shorter,
                       const uint32_t *from, const float *hidden, struct tdm_error *err);
/* The rows to where they came from. */
int tdm_vk_early_end(struct tdm_vk_model *model, struct tdm_vk_slot *slot, const struct tdm_step *shorter,
                     const uint32_t *from, float *hidden, struct tdm_error *err);
/* A slot's rows into `hidden`, for the other worker. */
int tdm_vk_early_bring(struct tdm_vk_model *model, struct tdm_vk_slot *slot, float *hidden, struct tdm_error *err);

/* ---- record.c ---- */

#define TDM_VK_RECORDINGS 256u
#define TDM_VK_SUBMISSION_BLOCKS_MAX 160u /* of a recording: as many as can be chained */

/* A command buffer and what it was recorded for. */
struct tdm_vk_recording {
        VkCommandBuffer commands;
        uint64_t used; /* 0: never */
        const struct tdm_vk_slot *slot;
        uint64_t hidden;
        uint32_t first, n, n_rows, first_logit, n_logits, log_half, item_heads[TDM_VK_KINDS];
        bool many, several, flags, upload, download, joins, joined, profiled;
        uint32_t n_marks;
        struct tdm_vk_pipeline *marks[TDM_VK_MAX_QUERIES]; /* of each timestamp, when profiling */
};

/* Blocks first … first + n - 1 without sample; a head makes logits [first_logit, + n_logits). */
struct tdm_vk_work {
        struct tdm_vk_slot *slot;
        uint32_t first, n;
        uint32_t first_logit, n_logits; /* n_logits 0: no head */
        uint32_t log_half;              /* of the log, which this submission writes */
        bool upload, download;
        /* it ends with the norm that the next block begins with; it begins where one before did so */
        bool joins, joined;
};
/* *ret belongs to the model. */
int tdm_vk_record(struct tdm_vk_model *model, const struct tdm_vk_work *work, struct tdm_vk_recording **ret,
                  struct tdm_error *err);
/* Records what is then dropped: 0, or TDM_E_DEVICE_FAULT, which names a kernel that was not compiled. */
int tdm_vk_record_dry(struct tdm_vk_model *model, const struct tdm_vk_work *work, struct tdm_error *err);
/* After what it depends on besides the work has changed. No recording may be under way. */
void tdm_vk_record_forget(struct tdm_vk_model *model);
/* Whether a block's end can be the next one's beginning. */
bool tdm_vk_record_joins(const struct tdm_vk_model *model, uint32_t block);
/* Whether its kernels leave flagged words for each other: device/chain.c. */
bool tdm_vk_record_flags(const struct tdm_vk_model *model, const struct tdm_vk_work *work);
/* As many of the matrices as one dispatch takes, at least one: what it is pushed for a single row (all but y), and
 * their panels. */
unsigned tdm_vk_matmul_group(const struct tdm_vk_model *model, const struct tdm_vk_matrix *const *matrices,
                             unsigned n_matrices, struct tdm_vk_matmul_push *ret, uint32_t *ret_panels);
/* false: of so many rows this layer's gate, up and GELU are not one kernel. */
bool tdm_vk_gate_up_push(const struct tdm_vk_model *model, const struct tdm_vk_layer *layer, uint32_t n_rows,
                         struct tdm_vk_matmul_push *ret);
/* After a submission: whether a kernel of it gave up waiting for another. 0 or TDM_E_DEVICE_FAULT. */
int tdm_vk_record_check(struct tdm_vk_model *model, struct tdm_error *err);

/* ---- dry.c ---- */

/* All classes of rows, at the end of a load: whether every kernel was compiled. */
int tdm_vk_record_all_dry(struct tdm_vk_model *model, struct tdm_error *err);

/* ---- tune.c ---- */

/* Measures what the model has and the device does not know yet. Weights are on the device. */
int tdm_vk_tune(struct tdm_vk_model *model, struct tdm_error *err);

#endif
