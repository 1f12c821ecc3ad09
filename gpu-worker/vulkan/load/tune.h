/* Shared by tune.c and tune-rows.c. Errors are as in load.h. */
#ifndef TDM_GPU_WORKER_VULKAN_LOAD_TUNE_H
#define TDM_GPU_WORKER_VULKAN_LOAD_TUNE_H

#include "gpu-worker/vulkan/load/load.h"

#define PLACES 8u                   /* matrices that are taken in turns */
#define WARM_NS UINT64_C(300000000) /* of work, after which a GPU that was idle has its clock */
#define MAX_KEYS 24u
/* Layers in the chain; and where nearly the best shapes are compared, at most. */
#define LAYERS 8u
#define LAYERS_ALL 64u
#define GAIN 0.995 /* and less is another shape's time, or it is noise */

/* A product whose shapes are measured. Blocks to record are another thing: struct tdm_vk_work. */
struct work {
        struct tdm_vk_tuned key;
        struct tdm_vk_matrix matrix;
        uint32_t out;   /* of MATVEC_GELU */
        uint32_t layer; /* the first that has it; UINT32_MAX: none */
        struct tdm_vk_matmul_push places[PLACES];
        unsigned n_places;
};

/* A step of a few rows of a sequence that belongs to no job, with a small cache of its own. Its results are not used.
 */
struct trial {
        struct tdm_vk_model *m;
        struct tdm_step *step;
        struct tdm_vk_buffer cache, pieces;
        struct tdm_vk_work work;
        /* The model's own cache, if it has one already. */
        struct tdm_vk_kv_layer layers[LAYERS_ALL];
        uint32_t n_layers;
        unsigned runs;
};

/* ---- tune.c ---- */

/* The work of such matrices, made where there is none yet. NULL: no room. */
struct work *tdm_vk_work_of(struct work *works, unsigned *n, uint32_t shader, const struct tdm_vk_matrix *matrix,
                            uint32_t n_panels, uint32_t out, uint32_t layer);
/* Whether it is a product of a few rows by MATMUL_F16, which has a shape also where none was found best. */
bool tdm_vk_work_is_tile(const struct work *w);
/* NULL: it may not be used here. */
struct tdm_vk_pipeline *tdm_vk_work_kernel(struct tdm_vk_device *device, const struct work *w,
                                           const struct tdm_vk_shape *shape);
/* Also after a tdm_vk_trial_init() that failed. */
void tdm_vk_trial_deinit(struct trial *t);
/* 0, or an error that is no fault: there is no memory to spare. */
int tdm_vk_trial_init(struct trial *t, struct tdm_vk_model *m, uint32_t n_rows, uint32_t most_layers);
/* By the device's clock. */
int tdm_vk_trial_run(struct trial *t, uint64_t *ret_ns, struct tdm_error *err);
/* Compiles the kernels of all shapes that are tried, as many as there is room for. */
int tdm_vk_compile_shapes(struct tdm_vk_device *device, const struct work *works, unsigned n,
                          unsigned (*list)(const struct tdm_vk_device *device, const struct work *w,
                                           const struct tdm_vk_shape **ret),
                          struct tdm_error *err);

/* ---- tune-rows.c ---- */

/* works: room for MAX_KEYS. After tune.c's own measuring. */
int tdm_vk_tune_few_rows(struct tdm_vk_model *m, struct work *works, struct tdm_error *err);

#endif
