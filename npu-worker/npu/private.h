/* Shared by npu.c (the device), product.c and block.c (matrix products and attention blocks on it). */
#ifndef TDM_NPU_PRIVATE_H
#define TDM_NPU_PRIVATE_H

#include "npu-worker/npu/npu.h"

#define TDM_NPU_MAX_INSTRUCTIONS (UINT64_C(4) << 20)

/* Arguments of every open NPU program: opcode, instructions, their words, then data. */
enum {
        TDM_NPU_ARG_OPCODE,
        TDM_NPU_ARG_INSTRUCTIONS,
        TDM_NPU_ARG_WORDS,
        TDM_NPU_ARG_DATA,
        TDM_NPU_N_ARGS = TDM_NPU_ARG_DATA + TDM_NPU_MAX_ARGUMENTS
};
#define TDM_NPU_OPCODE_RUN 3u

struct tdm_npu_instructions {
        void *words;
        uint32_t n_words;
        struct tdm_xrt_buffer *buffer; /* NULL until a plan wants it */
};

struct tdm_npu {
        const struct tdm_xrt_front *xrt;
        struct tdm_xrt_device *device;
        struct tdm_xrt_context *context;
        struct tdm_npu_manifest *manifest;
        struct tdm_npu_instructions instructions[TDM_NPU_MAX_PROGRAMS];
        unsigned groups[TDM_NPU_N_ARGS]; /* memory group of each argument */
        uint64_t budget_bytes, used_bytes, memlock_bytes;
        struct tdm_npu_product *products; /* whose runs die with the context */
        struct tdm_npu_block *blocks;     /* the same */
        struct tdm_npu_counters counters;
        _Atomic uint64_t *heartbeat;
};

struct tdm_npu_product {
        struct tdm_npu *npu;
        struct tdm_npu_product *next;
        struct tdm_npu_plan plan;
        uint32_t max_rows;
        uint32_t n_variants; /* of the plan's: those up to max_rows */
        /* [n_segments], [commands]: tile-major, so command t * n_segments + s */
        struct tdm_xrt_buffer **a, **c;
        void **a_map;
        const void **c_map;
        float *row_scale;          /* [max_rows][n_segments] */
        struct tdm_xrt_run **runs; /* [n_variants][commands] */
};

int tdm_npu_buffer(struct tdm_npu *npu, uint64_t bytes, unsigned arg, struct tdm_xrt_buffer **ret, void **ret_map,
                   struct tdm_error *err);
void tdm_npu_buffer_free(struct tdm_npu *npu, struct tdm_xrt_buffer *buffer, uint64_t bytes);
int tdm_npu_instructions(struct tdm_npu *npu, const struct tdm_npu_program *program, struct tdm_npu_instructions **ret,
                         struct tdm_error *err);
/* Frees all runs, which must have finished, and the context, and makes both again. Does not return where that fails. */
void tdm_npu_renew_context(struct tdm_npu *npu, const char *reason);
int tdm_npu_xrt_error(const struct tdm_npu *npu, int r, struct tdm_error *err, const char *what);

/* A command with its opcode and instructions; its data are the caller's to set. */
int tdm_npu_run_new(struct tdm_npu *npu, const struct tdm_npu_program *program, struct tdm_xrt_run **ret,
                    struct tdm_error *err);
/* Sends commands and waits for them. NULL, or why it failed; lost: the context is. Does not return where one may still
 * run. */
const char *tdm_npu_execute(struct tdm_npu *npu, struct tdm_xrt_run *const *runs, uint32_t n, bool *lost);
/* After the n_tries-th failure: a new context where that may help. Does not return where nothing does. */
void tdm_npu_try_again(struct tdm_npu *npu, const char *why, bool lost, unsigned n_tries);

int tdm_npu_block_make_runs(struct tdm_npu_block *block, struct tdm_error *err);
void tdm_npu_block_free_runs(struct tdm_npu_block *block);
struct tdm_npu_block *tdm_npu_block_next(const struct tdm_npu_block *block);
int tdm_npu_product_make_runs(struct tdm_npu_product *product, struct tdm_error *err);
void tdm_npu_product_free_runs(struct tdm_npu_product *product);

#endif
