/* The order of a model's layers, told once: a list of operations for each block. What kernels a model needs (kernels/),
 * how large its buffers are (buffers.c), which shapes are measured (load/tune.c) and what is recorded (record/) all
 * follow from this list.
 *
 * An operation reads rows and leaves rows. It says which matrices, where its rows lie and how many there are, and
 * nothing that depends on the number of rows. What depends on it, a fused kernel or flagged words, is a variant: the
 * operation is the same, and kernels/choose.c says which kernels compute it for a class of rows.
 *
 * build.c makes the list of the recipe and the layers. One thread uses a program, which belongs to its model. */
#ifndef TDM_GPU_WORKER_VULKAN_PROGRAM_PROGRAM_H
#define TDM_GPU_WORKER_VULKAN_PROGRAM_PROGRAM_H

#include "gpu-worker/vulkan/model/model.h"

/* The kinds of operations, a row each: X(kind, kernel). Where one kernel computes an operation for all classes of rows,
 * the row names it (shaders/common/kernels.def): its first constant is `variant`, its second the form of the rows that
 * it leaves for matrices[0]. Of all other kinds, N_SHADERS here, kernels/choose.c says the kernels. */
#define TDM_VK_OPS(X)                                                                                                  \
        X(EMBED, N_SHADERS)    /* y = the tokens' rows of the embedding */                                             \
        X(NORM, N_SHADERS)     /* the norm of the hidden rows, rounded for each of the matrices */                     \
        X(ADD, N_SHADERS)      /* hidden rows += TDM_VK_Y with its bias, or the norm of that */                        \
        X(SIDE, SIDE)          /* one of those in shaders/norm/side.comp: `variant` says which */                      \
        X(STREAMS, N_SHADERS)  /* the same in shaders/norm/streams.comp */                                             \
        X(MULTIPLY, N_SHADERS) /* y = rounded rows times matrices, all with the same input */                          \
        X(DOWN, N_SHADERS)     /* y = the FFN's hidden values times a matrix */                                        \
        X(ATTEND, N_SHADERS)   /* rotates heads in TDM_VK_Y, caches keys and values; leaves rows for the matrix */     \
        X(GATE_UP, N_SHADERS)  /* gate, up and the activation leave rows for the third matrix */                       \
        X(ACTIVATE, N_SHADERS) /* the activation of gate and up in x leaves rows for the matrix */                     \
        X(ROUTE, N_SHADERS)    /* the router's numbers, each row's experts, and lists of rows by expert */             \
        X(EXPERTS_GATE_UP, N_SHADERS) /* as GATE_UP, for each slot */                                                  \
        X(EXPERTS_DOWN, N_SHADERS)    /* as DOWN, for each slot */                                                     \
        X(EXPERTS_SUM, SUM_EXPERTS)   /* y = the sum of a row's slots */                                               \
        X(HEAD_NORM, N_SHADERS)       /* as NORM, of the rows that want logits */                                      \
        X(LOGITS, N_SHADERS)          /* what the sampler looks at comes to the host */

#define TDM_VK_OP_KIND(kind, kernel) TDM_VK_OP_##kind,
enum tdm_vk_op_kind { TDM_VK_OPS(TDM_VK_OP_KIND) };

/* How many rows an operation has. A tile is tdm_vk_model.tile_rows rows of a step, or what is left: they go through a
 * block together. */
enum tdm_vk_op_rows {
        TDM_VK_ROWS_TILE,   /* the tile's */
        TDM_VK_ROWS_STEP,   /* all of the step's, with its first tile */
        TDM_VK_ROWS_SLOTS,  /* a slot: one row with one of its experts */
        TDM_VK_ROWS_LOGITS, /* those that want logits */
};

/* Rows of f32: an array of the model's, columns from `at` on, `stride` columns from row to row. */
struct tdm_vk_rows {
        enum tdm_vk_array array;
        uint32_t at, stride;
};

#define TDM_VK_OP_MATRICES 4u
#define TDM_VK_NO_OP UINT32_MAX
struct tdm_vk_op {
        enum tdm_vk_op_kind kind;
        enum tdm_vk_op_rows rows;
        uint32_t variant;
        uint32_t layer; /* UINT32_MAX: of none */
        /* What is multiplied with, or what rows are rounded for. x: a product without one reads the rounded rows of
         * the matrix' form; NORM, ADD and ATTEND read what is said beside their kind. */
        const struct tdm_vk_matrix *matrices[TDM_VK_OP_MATRICES];
        unsigned n_matrices;
        struct tdm_vk_rows x, y, other;
        uint64_t gains[3];           /* addresses of a norm's; 0: none */
        uint64_t bias, coefficients; /* addresses; 0: none */
        uint32_t at;                 /* a column of the hidden rows */
        int32_t leaves;              /* of ADD: so many columns behind it the sum is left */
        uint32_t n;                  /* columns, where no matrix says how many */
        float factors[2];
        bool begins;         /* the norm that a block begins with: the block before may have made it */
        bool is_measured;    /* a main product: its kernels' shapes are measured, and a layer's may be flagged */
        uint32_t fused_with; /* of ADD: the next block's NORM, with which it can be one kernel; TDM_VK_NO_OP: none */
};

struct tdm_vk_ops {
        uint32_t first, n;
};

struct tdm_vk_program {
        struct tdm_vk_op *ops;
        uint32_t n_ops, n_max;
        struct tdm_vk_matrix *parts; /* rows of matrices that operations multiply with */
        uint32_t n_parts, n_parts_max;
        struct tdm_vk_ops *blocks; /* [n_blocks] */
        uint32_t n_blocks;         /* without sample */
        bool *wants_inputs;        /* [n_blocks]: `inputs` come before it, once in a submission */
        struct tdm_vk_ops inputs;
        uint32_t slots_of_row; /* the most experts that a row uses */
};

/* Makes the list from the model's layers as they are now. It is made again after tdm_vk_weights_find(). -ENOMEM. */
int tdm_vk_program_build(struct tdm_vk_model *model);
void tdm_vk_program_free(struct tdm_vk_program *program);
/* Whether a block's end can be the next one's beginning. */
bool tdm_vk_program_joins(const struct tdm_vk_program *program, uint32_t block);
/* The layer of an operation that has one. */
static inline const struct tdm_vk_layer *tdm_vk_op_layer(const struct tdm_vk_model *m, const struct tdm_vk_op *op)
{
        return &m->layers[op->layer];
}

/* ---- buffers.c ---- */

/* Where hidden rows are used in place: as a dma-buf, else as memory of this process, else not at all. A device with
 * memory of its own is faster with a copy there, unless it was told otherwise. */
int tdm_vk_buffers_import_activations(struct tdm_vk_model *model, const struct tdm_device_model_config *config,
                                      struct tdm_error *err);
/* Every buffer but the weights', after a check that all fits. step_bytes: of a slot's step. The program is built. */
int tdm_vk_buffers_init(struct tdm_vk_model *model, uint64_t step_bytes, struct tdm_error *err);
/* The angles of each position. All weights are in the segment: the file's own divisors are among them. */
int tdm_vk_buffers_angles(struct tdm_vk_model *model, struct tdm_error *err);
/* The device uses none of them any more. */
void tdm_vk_buffers_deinit(struct tdm_vk_model *model);
/* Where the lists of a tile's experts lie in model->choices, and the bytes of all of them. */
struct tdm_vk_experts_lists {
        uint64_t ids, weights, slots, slot_rows, items, size_bytes;
};
struct tdm_vk_experts_lists tdm_vk_experts_lists(const struct tdm_vk_model *model);
/* Flagged partial results lie behind the others: where. */
uint64_t tdm_vk_partial_flagged(const struct tdm_vk_model *model);
/* When serials begin again, too: an old one's results must not be taken for new ones. */
int tdm_vk_partial_clear(struct tdm_vk_model *model, struct tdm_error *err);

#endif
