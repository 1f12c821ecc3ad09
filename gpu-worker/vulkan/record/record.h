/* Blocks as command buffers, recorded from a model's program (program/program.h). A recording depends on shapes and
 * addresses only: which slot, which blocks, how many rows and logits. It never depends on tokens, positions or pages,
 * so it is used again for the next step of its shape.
 *
 * emit.c and emit-layers.c dispatch an operation's kernels, waits.c says what each waits for, cache.c keeps recordings,
 * dry.c tries all at the end of a load. One thread uses a model. */
#ifndef TDM_GPU_WORKER_VULKAN_RECORD_RECORD_H
#define TDM_GPU_WORKER_VULKAN_RECORD_RECORD_H

#include "gpu-worker/vulkan/step/step.h"

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

/* ---- cache.c ---- */

#define TDM_VK_SUBMISSION_BLOCKS_MAX 160u /* of a recording: as many as can be chained */

/* A command buffer and what it was recorded for. */
struct tdm_vk_recording {
        VkCommandBuffer commands;
        uint64_t used;                /* 0: never */
        struct tdm_vk_work work;      /* slot: its address alone is looked at */
        struct tdm_vk_recorded_step { /* what its slot held */
                uint64_t hidden;
                uint32_t n_rows, item_heads[TDM_VK_KINDS];
                bool many, several, flags, profiled;
        } step;
        uint32_t n_marks;
        struct tdm_vk_pipeline *marks[TDM_VK_MAX_QUERIES]; /* of each timestamp, when profiling */
};

/* Command buffers, once for a model. TDM_E_NO_MEMORY. */
int tdm_vk_recordings_init(struct tdm_vk_model *model, struct tdm_error *err);
void tdm_vk_recordings_deinit(struct tdm_vk_model *model);
/* *ret belongs to the model. */
int tdm_vk_record(struct tdm_vk_model *model, const struct tdm_vk_work *work, struct tdm_vk_recording **ret,
                  struct tdm_error *err);
/* Records what is then dropped: 0, or TDM_E_DEVICE_FAULT, which names a kernel that was not compiled. */
int tdm_vk_record_dry(struct tdm_vk_model *model, const struct tdm_vk_work *work, struct tdm_error *err);
/* After what it depends on besides the work has changed. No recording may be under way. */
void tdm_vk_record_forget(struct tdm_vk_model *model);
/* After a submission: whether a kernel of it gave up waiting for another. 0 or TDM_E_DEVICE_FAULT. */
int tdm_vk_record_check(struct tdm_vk_model *model, struct tdm_error *err);

/* ---- waits.c ---- */

/* Whether the kernels of these blocks leave flagged words for each other: device/chain.c. */
bool tdm_vk_record_flags(const struct tdm_vk_model *model, const struct tdm_vk_work *work);

/* ---- emit.c ---- */

/* As many of the matrices as one dispatch takes, at least one: what it is pushed for a single row (all but y), and
 * their panels. */
unsigned tdm_vk_matmul_group(const struct tdm_vk_model *model, const struct tdm_vk_matrix *const *matrices,
                             unsigned n_matrices, struct tdm_vk_matmul_push *ret, uint32_t *ret_panels);
/* What is pushed for a layer's gate, up and activation as one kernel. */
void tdm_vk_gate_up_push(const struct tdm_vk_model *model, const struct tdm_vk_layer *layer, uint32_t n_rows,
                         struct tdm_vk_matmul_push *ret);

/* ---- dry.c ---- */

/* All classes of rows, at the end of a load: whether every kernel was compiled. */
int tdm_vk_record_all_dry(struct tdm_vk_model *model, struct tdm_error *err);

#endif
