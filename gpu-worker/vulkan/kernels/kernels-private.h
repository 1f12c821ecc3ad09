/* What the files of this folder use of each other, and no other folder does. */
#ifndef TDM_GPU_WORKER_VULKAN_KERNELS_KERNELS_PRIVATE_H
#define TDM_GPU_WORKER_VULKAN_KERNELS_KERNELS_PRIVATE_H

#include "gpu-worker/vulkan/kernels/kernels.h"
#include "gpu-worker/vulkan/proof/proof.h"

struct tdm_vk_kernel {
        enum tdm_vk_shader shader;
        uint32_t constants[TDM_VK_N_CONSTANTS];
        uint32_t panels, rows; /* that one workgroup makes, with GELU of each of the two */
        bool spare;            /* it is used where it is proven; else what follows is */
        bool fits;             /* there is room for it */
};
/* At most, for one dispatch: the best first. Those before the last one are spare. Of a few flagged rows the last
 * one is too, since steps do without flags. */
#define TDM_VK_CANDIDATES 6u

/* ---- kernels.c ---- */

/* The kernels for this many rows: for a product with n_panels; for a layer's gate, up and activation as one kernel. */
unsigned tdm_vk_matrix_kernels(const struct tdm_vk_device *device, const struct tdm_vk_matrix *first, uint32_t n_panels,
                               uint32_t n_rows, struct tdm_vk_kernel ret[TDM_VK_CANDIDATES]);
unsigned tdm_vk_gate_up_kernels(const struct tdm_vk_device *device, const struct tdm_vk_layer *layer, uint32_t n_rows,
                                struct tdm_vk_kernel ret[TDM_VK_CANDIDATES]);
/* Whether router.comp multiplies it, and this many rows in a workgroup. */
bool tdm_vk_router_takes(const struct tdm_vk_matrix *router);
uint32_t tdm_vk_router_rows(const struct tdm_vk_device *device, uint32_t n_rows);
/* SHAPE and THREADS of matmul-int8-any.comp, of 32, 64 or up to 128 rows. */
void tdm_vk_any_shape(const struct tdm_vk_device *device, const struct tdm_vk_matrix *matrix, uint32_t n_rows,
                      uint32_t ret[2]);

/* ---- kernels-f16.c ---- */

/* As tdm_vk_matrix_kernels(), or with gelu (1 and an activation) as tdm_vk_gate_up_kernels(): n_panels of both. */
unsigned tdm_vk_f16_kernels(const struct tdm_vk_device *device, const struct tdm_vk_matrix *first, uint32_t n_panels,
                            uint32_t n_rows, uint32_t gelu, struct tdm_vk_kernel ret[TDM_VK_CANDIDATES]);
/* The same of a few rows as flagged words; 0: there is none. */
unsigned tdm_vk_f16_rows_kernels(const struct tdm_vk_device *device, const struct tdm_vk_matrix *first,
                                 uint32_t n_panels, uint32_t n_rows, uint32_t gelu,
                                 struct tdm_vk_kernel ret[TDM_VK_CANDIDATES]);
/* The kernel for items of this many slots. gelu: it is for a layer's gate, with up beside it. */
struct tdm_vk_kernel tdm_vk_expert_kernel(const struct tdm_vk_device *device, const struct tdm_vk_matrix *matrix,
                                          uint32_t item_rows, uint32_t gelu);

/* ---- attend.c ---- */

/* Attention of items of one row, or many, and this many heads each; out_act: what goes into the matrix behind it, if it
 * merges. */
struct tdm_vk_kernel tdm_vk_attend_kernel(const struct tdm_vk_model *model, uint32_t kind, bool many,
                                          uint32_t item_heads, uint32_t out_act);
/* That of items of one row each which rotates them too; several: a sequence may have some. false: there is none. */
bool tdm_vk_attend_rotating_kernel(const struct tdm_vk_model *model, uint32_t kind, uint32_t out_act, bool several,
                                   struct tdm_vk_kernel *ret);

/* ---- choose.c ---- */

/* Those that a part of an operation can take in a class, the best first; 0: it has no such part there. */
unsigned tdm_vk_op_kernels(const struct tdm_vk_model *model, const struct tdm_vk_op *op, unsigned part,
                           const struct tdm_vk_class *class, struct tdm_vk_kernel ret[TDM_VK_CANDIDATES]);
/* The first that is not spare or is proven; NULL: none is. */
const struct tdm_vk_kernel *tdm_vk_kernel_chosen(struct tdm_vk_device *device, const struct tdm_vk_kernel *kernels,
                                                 unsigned n);

#endif
