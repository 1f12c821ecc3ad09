/* A vision tower on the host device: a picture's RGB bytes become the rows that stand for it in a text.
 *
 * What is computed is Gemma 3's SigLIP (engine/model/projector.h): patches times a matrix plus positions; layers of
 * LayerNorm, attention of all patches with all, LayerNorm, FFN with GELU; a last LayerNorm; the mean of merge x merge
 * patches; an RMS norm; a projection. The kernels are those of the text models, and keep their rule: a sum's order is
 * fixed by sizes and places alone. So a picture's rows do not depend on the number of threads or the instruction set.
 *
 * The weights are copied from the file when it is made. One picture at a time, which all threads of the pool share. */
#ifndef TDM_ENGINE_VISION_TOWER_H
#define TDM_ENGINE_VISION_TOWER_H

#include "engine/host/matmul.h"
#include "engine/model/projector.h"

enum tdm_tower_stage {
        TDM_TOWER_PATCHES, /* numbers of the patches, before any matrix */
        TDM_TOWER_EMBEDDED,
        TDM_TOWER_LAYER, /* behind it */
        TDM_TOWER_NORMED,
        TDM_TOWER_POOLED,
        TDM_TOWER_SOFT_NORMED,
        TDM_TOWER_PROJECTED,
};

/* rows: [n_rows][stride], of which cols count; the first one is row first of the stage. */
typedef void (*tdm_tower_watch_fn)(void *userdata, enum tdm_tower_stage stage, uint32_t layer, uint32_t first,
                                   const float *rows, uint32_t n_rows, uint32_t cols, size_t stride);

struct tdm_tower_options {
        enum tdm_act act;         /* what inputs of quantised matrices are rounded to; others are f32 */
        enum tdm_kv_type kv;      /* how keys and values are kept within a picture: F16 or F32 */
        tdm_tower_watch_fn watch; /* NULL, or sees each stage, on the thread that runs the tower */
        void *userdata;
};

struct tdm_tower;

/* kernels and pool outlive it; the gguf need not. TDM_E_UNSUPPORTED where a tensor's type has no kernel,
 * TDM_E_MODEL_CHANGED where the file was cut short meanwhile. */
int tdm_tower_new(struct tdm_tower **ret, const struct tdm_gguf *gguf, const struct tdm_kernels *kernels,
                  struct tdm_pool *pool, const struct tdm_tower_options *options, struct tdm_error *err);
const struct tdm_projector *tdm_tower_projector(const struct tdm_tower *tower);
/* Rows that every picture becomes. */
uint32_t tdm_tower_n_rows(const struct tdm_tower *tower);
/* rgb: [size.height][size.width][3]; out: [tdm_tower_n_rows()][projector's n_out]. */
int tdm_tower_run(struct tdm_tower *tower, const uint8_t *rgb, struct tdm_image_size size, float *out,
                  struct tdm_error *err);
size_t tdm_tower_memory(const struct tdm_tower *tower);
void tdm_tower_destroy(struct tdm_tower *tower);
void tdm_tower_destroyp(struct tdm_tower **tower);

#endif
