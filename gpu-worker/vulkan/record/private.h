/* What the files of this folder use of each other, and no other folder does. */
#ifndef TDM_GPU_WORKER_VULKAN_RECORD_PRIVATE_H
#define TDM_GPU_WORKER_VULKAN_RECORD_PRIVATE_H

#include "gpu-worker/vulkan/record/record.h"

/* How far the dispatches before the next one are. DONE: they are done for it. UNDER_WAY: it needs a barrier. CHAINED:
 * it can wait for `groups` of dispatch `index`. FLAGGED: it must read that one's flagged words. */
enum waiting { WAITING_DONE, WAITING_UNDER_WAY, WAITING_CHAINED, WAITING_FLAGGED };

/* ---- waits.c ---- */

/* Dispatches of a recording, and what each waits for. */
struct chain {
        struct tdm_vk_device *device;
        VkCommandBuffer commands;
        struct tdm_vk_recording *recording;
        uint64_t words;  /* address of the chain's words */
        uint32_t n_rows; /* of the tile: kernels for many rows are not chained */
        enum waiting before;
        uint32_t index, groups;
        /* The next dispatch has the inputs of the one before, and its outputs lie beside: it waits for what that one
         * waited for, and what follows waits for both. */
        bool is_beside;
        bool was_chained; /* the dispatch before was, with this chain_wait */
        uint32_t last_wait;
};
#define READS_FLAGS 1u
#define LEAVES_FLAGS 2u

bool chain_takes(const struct chain *chain, const struct tdm_vk_pipeline *pipeline);
/* Kernels, copies and the host: everything before is done and seen by everything after. */
void chain_barrier_all(struct chain *chain);
/* push ends with TDM_VK_CHAIN; flags: of what pushed addresses point to. */
void chain_dispatch(struct chain *chain, struct tdm_vk_pipeline *pipeline, const void *push, uint32_t push_bytes,
                    uint32_t x, uint32_t y, unsigned flags);
/* The same of as many workgroups as lie in the buffer; groups: that it counts itself done with. */
void chain_dispatch_indirect(struct chain *chain, struct tdm_vk_pipeline *pipeline, const void *push,
                             uint32_t push_bytes, VkBuffer buffer, uint64_t offset, uint32_t groups, unsigned flags);

/* ---- emit.c ---- */

/* Blocks that are recorded. */
struct emitter {
        struct tdm_vk_model *m;
        struct chain chain;
        struct tdm_vk_step_layout layout;
        const struct tdm_vk_work *work;
        uint64_t step;              /* address of the slot's step buffer */
        uint64_t log;               /* address of where a layer's new keys and values are logged; 0: nowhere */
        uint32_t first_row, n_rows; /* of the tile */
        bool is_flagged;            /* what kernels of a single row, or of a few, leave for the next one is flagged */
        bool is_begun;              /* the next block's input was rounded by the end of the last one */
        /* The dispatch of the last norm, or of what wrote hidden rows after it, and its workgroups; 0: it is done. An
         * operation that writes hidden rows between a norm and the sum behind it sets both. */
        uint32_t hidden_index, hidden_groups;
};

void emit_blocks(struct emitter *e);
/* Where a norm leaves the scales and sums of the rows that it rounds. Only matmul-int8.comp reads them, which takes few
 * rows; 0: there are more. */
uint64_t emit_scale_sums(const struct emitter *e, uint32_t act, uint32_t n_rows);
/* Where flagged kernels leave rounded rows, or products, for the next one: of the first row. */
uint64_t emit_flagged_acts(const struct emitter *e, uint32_t act);
uint64_t emit_flagged_y(const struct emitter *e);
/* The address of an operation's rows, from the tile's first on. */
uint64_t emit_address(const struct emitter *e, const struct tdm_vk_rows *rows);
void emit_dispatch(struct emitter *e, struct tdm_vk_pipeline *pipeline, const void *push, uint32_t push_bytes,
                   uint32_t x, uint32_t y);
/* A product with the first n_matrices of the operation's, which may be cut into several dispatches. */
void emit_product(struct emitter *e, const struct tdm_vk_op *op, unsigned n_matrices, const struct tdm_vk_class *class);

/* ---- emit-layers.c ---- */

void emit_attend(struct emitter *e, const struct tdm_vk_op *op);
void emit_route(struct emitter *e, const struct tdm_vk_op *op);
void emit_experts_gate_up(struct emitter *e, const struct tdm_vk_op *op);
void emit_experts_down(struct emitter *e, const struct tdm_vk_op *op);
void emit_experts_sum(struct emitter *e, const struct tdm_vk_op *op);

#endif
