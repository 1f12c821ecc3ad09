/* Which kernels compute an operation (program/). choose.c says it for each class of rows; compiling, measuring and
 * recording all ask there. All are compiled when the model is loaded, and none later; choosing one never fails after
 * that. Kernels of one matrix differ in speed and in the number of rows that they take, never in bits.
 *
 * Panels are 16 outputs of a matrix; n_panels counts those of all matrices that one dispatch multiplies. ret_panels and
 * ret_rows: what one workgroup makes. Pipelines belong to the device. */
#ifndef TDM_GPU_WORKER_VULKAN_KERNELS_KERNELS_H
#define TDM_GPU_WORKER_VULKAN_KERNELS_KERNELS_H

#include "gpu-worker/vulkan/program/program.h"

/* workgroups of MATMUL_INT8, MATMUL_INT8_WIDE or MATMUL_F16, as many as an H200's multiprocessors */
#define TDM_VK_UNITS_AT_ONCE 132u
#define TDM_VK_F16_ROWS_MAX 32u /* rows of a dispatch of MATMUL_F16 */

/* ---- kernels.c ---- */

/* SHAPE of matvec.glsl. stage: the row goes through shared memory. */
uint32_t tdm_vk_shape_with(const struct tdm_vk_device *device, const struct tdm_vk_matrix *matrix, uint32_t panels,
                           uint32_t ahead, uint32_t sets, bool stage);
/* Whether a thread of a matvec.comp of this shape has registers for this many rows. */
bool tdm_vk_fits_registers(const struct tdm_vk_device *device, const struct tdm_vk_matrix *matrix, uint32_t rows,
                           const struct tdm_vk_shape *shape);
/* Whether a kernel of this shape reads flagged rows (device/chain.c). */
bool tdm_vk_shape_flags(uint32_t shape, uint32_t act);
/* Whether the kernels of a single row do that these matrices, or a layer's gate and up, are multiplied with. */
bool tdm_vk_matrices_flag(const struct tdm_vk_device *device, const struct tdm_vk_matrix *first, uint32_t n_panels);
bool tdm_vk_gate_up_flags(const struct tdm_vk_device *device, const struct tdm_vk_layer *layer);
/* How many of the matrices, at most three, one dispatch can multiply: of one type and rounding, beside each other. */
unsigned tdm_vk_group_of(const struct tdm_vk_matrix *const *matrices, unsigned n_matrices, uint32_t *ret_panels);
/* Whether gate, up and the activation of this many rows are one kernel. In names gelu stands for any activation. */
bool tdm_vk_gate_up_fuses(const struct tdm_vk_layer *layer, uint32_t n_rows);
/* HEADS of rotate.comp. */
uint32_t tdm_vk_heads_of(const struct tdm_vk_layer *layer);
/* Slots of an item (shaders/common/shared-experts.h) where a tile has n_rows rows. No result depends on it. */
uint32_t tdm_vk_item_rows(const struct tdm_vk_experts *experts, uint32_t n_rows);
/* PER of norm.comp. */
uint32_t tdm_vk_norm_per(const struct tdm_vk_model *model);

/* ---- choose.c ---- */

/* A class of rows: what a kernel depends on besides the operation. */
struct tdm_vk_class {
        uint32_t n_rows;        /* of the operation */
        bool is_flagged;        /* flagged words are read and left (device/chain.c) */
        bool is_fused;          /* of ADD: with the next block's norm */
        bool is_few, rehearses; /* of norms: TDM_VK_NORM_FEW, TDM_VK_NORM_REHEARSES */
        /* of attention: several rows an item; one row each, but several of a sequence; the kernel may rotate them */
        bool many, several, may_rotate;
        uint32_t item_heads;
};
/* The dispatches of an operation. Products have one for each group of matrices of one type, from the first on; norms
 * one for each form of rows that they leave (TDM_VK_ACT_*, TDM_VK_ACT_NONE); LOGITS both phases of logits.comp, then
 * gather.comp. */
enum tdm_vk_part {
        TDM_VK_PART_FIRST = 0,
        TDM_VK_PART_ROTATE = 0, /* of ATTEND */
        TDM_VK_PART_ATTEND,
        TDM_VK_PART_MERGE,
        TDM_VK_PART_ALL,          /* all three in one kernel */
        TDM_VK_PART_PRODUCTS = 0, /* of GATE_UP, of ROUTE and of EXPERTS_GATE_UP: groups or single matrices */
        TDM_VK_PART_FUSED = 4,    /* gate, up and the activation in one kernel */
        TDM_VK_PART_ACTIVATE = 5, /* the activation alone */
        TDM_VK_PART_CHOOSE = 4,   /* of ROUTE */
        TDM_VK_PART_GROUP = 5,
        TDM_VK_N_PARTS = 6,
};
/* The kernel that a part of an operation takes, and what one workgroup makes (may be NULL). All are compiled when a
 * model is loaded, and then this cannot fail. A kernel that was not compiled, or that choose.c does not know, has no
 * pipeline, and tdm_vk_pipelines_check() names it. */
struct tdm_vk_pipeline *tdm_vk_op_kernel(const struct tdm_vk_model *model, const struct tdm_vk_op *op, unsigned part,
                                         const struct tdm_vk_class *class, uint32_t *ret_panels, uint32_t *ret_rows);
/* The same of a part that not every class has; NULL: this class does without. */
struct tdm_vk_pipeline *tdm_vk_op_kernel_if_any(const struct tdm_vk_model *model, const struct tdm_vk_op *op,
                                                unsigned part, const struct tdm_vk_class *class, uint32_t *ret_panels,
                                                uint32_t *ret_rows);
/* "EXPERTS_SUM", for messages. */
const char *tdm_vk_op_name(enum tdm_vk_op_kind kind);
/* Whether a product reads and leaves flagged words where the recording does. */
bool tdm_vk_op_is_flagged(const struct tdm_vk_op *op, const struct tdm_vk_class *class);
/* Whether all operations of the model's layers do, in steps of this many rows: of one row as far as attention
 * merges. */
bool tdm_vk_program_flags(const struct tdm_vk_model *model, uint32_t n_rows);

/* ---- need.c ---- */

/* Compiles and proves kernels for integer matrix units, and compiles all that are not for matrices. Those for rows of
 * F16 are there already: tdm_vk_kernels_need_f16(), tdm_vk_kernels_attend_f16(). */
int tdm_vk_kernels_prepare_units(struct tdm_vk_model *model, struct tdm_error *err);
/* After that and after tuning: the rest of what is recorded. */
int tdm_vk_kernels_prepare_rest(struct tdm_vk_model *model, struct tdm_error *err);
/* Those that steps of a single row take now. */
int tdm_vk_kernels_need_single(struct tdm_vk_model *model, struct tdm_error *err);
/* Rows and weights of F16: the kernels of their products, and what the proofs of those need; to be compiled and proven
 * before the model's rows are F16. */
int tdm_vk_kernels_need_f16(struct tdm_vk_model *model, struct tdm_error *err);
/* false: one cannot be used here. */
bool tdm_vk_kernels_f16_proven(struct tdm_vk_model *model);
/* Constants of the kernel of gelu.comp with which device/chain.c tries whether dispatches can be chained. */
void tdm_vk_kernels_probe(const struct tdm_vk_model *model, uint32_t ret[TDM_VK_N_CONSTANTS]);

/* ---- kernels-f16.c ---- */

/* Constants of MATVEC_F16 for this many rows; gelu: 0, or 1 and enum tdm_activation. false: it has no room for this
 * shape. */
bool tdm_vk_f16_shaped(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a,
                       const struct tdm_vk_shape *shape, uint32_t gelu, uint32_t rows,
                       uint32_t ret[TDM_VK_N_CONSTANTS]);
/* The same of rows that are not flagged: of MATMUL_F16 with one tile, or of MATVEC_F16, as the shape says. */
bool tdm_vk_f16_tile_shaped(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a,
                            const struct tdm_vk_shape *shape, uint32_t gelu, uint32_t rows,
                            uint32_t ret[TDM_VK_N_CONSTANTS]);
enum tdm_vk_shader tdm_vk_f16_tile_shader(const struct tdm_vk_shape *shape);
/* For experts whose rows are F16: the slots of an item; whether gate, up and what follows them are one kernel. */
uint32_t tdm_vk_f16_item_rows(const struct tdm_vk_experts *experts, uint32_t n_rows);
bool tdm_vk_experts_fuse(const struct tdm_vk_experts *experts);

/* ---- attend.c ---- */

/* Whether attend.comp, or attend-f16.comp, is its own merge: where an item is one row, whose last item to come merges
 * all. */
bool tdm_vk_attend_merges(const struct tdm_vk_model *model, uint32_t kind, bool many, uint32_t item_heads);
/* Whether attend-f16.comp can rotate the rows of all layers. */
bool tdm_vk_attend_rotates(const struct tdm_vk_model *model);
/* Once tensors' addresses are known: what that kernel wants to know of a layer. angles: of each kind, in bytes from a
 * step's rows on. */
void tdm_vk_attend_rotations(struct tdm_vk_model *model, const uint32_t angles[TDM_VK_KINDS]);
/* For models with rows of F16: compiles and proves attention's kernels for f16 units. Where they can be used, it sets
 * attention.is_f16 and how items are cut. */
int tdm_vk_kernels_attend_f16(struct tdm_vk_model *model, struct tdm_error *err);

/* ---- f16-rows.c ---- */

/* Whether this model's layers can have rows of F16 on this device, as far as its tensors and the configuration say. */
bool tdm_vk_f16_wanted(const struct tdm_vk_model *model);
/* Finds each matrix' x_scale and y_scale. Its weights are on the device as they are in the segment, and its layers are
 * found. */
int tdm_vk_f16_scales(struct tdm_vk_model *model, struct tdm_error *err);

/* ---- few-rows.c ---- */

/* The class of a step of a few rows: 1, 2, 4 or 8, the most rows of it; 0: there are more. A struct tdm_vk_class is
 * another thing. */
#define TDM_VK_FEW_ROWS_MAX 8u
uint32_t tdm_vk_rows_class(uint32_t n_rows);
/* Whether a step of a few rows may do without what many rows have. Where nothing was measured it may not. */
enum tdm_vk_few { TDM_VK_FEW_NOT, TDM_VK_FEW_ITEMS, TDM_VK_FEW_FLAGGED };
enum tdm_vk_few tdm_vk_few_rows(const struct tdm_vk_model *model, uint32_t n_rows);
/* Looks up what was found. All kernels are compiled. */
void tdm_vk_few_rows_find(struct tdm_vk_model *model);
/* TANDEM_VULKAN_ROWS in tests: "off", or without measuring "on" or "apart". */
enum tdm_vk_rows_forced {
        TDM_VK_ROWS_MEASURED,
        TDM_VK_ROWS_FORCED_OFF,
        TDM_VK_ROWS_FORCED_ON,
        TDM_VK_ROWS_FORCED_APART
};
enum tdm_vk_rows_forced tdm_vk_few_rows_forced(void);
/* For the plan: "; up to 2 flagged, 4 flagged, 8 apart", or "". */
void tdm_vk_few_rows_describe(const struct tdm_vk_model *model, char *ret, size_t size);
/* For such a class of rows it is measured whether each row has an item of its own: the key under which the result is
 * kept, and the result; NULL: it was not measured. */
struct tdm_vk_tuned tdm_vk_few_rows_key(const struct tdm_vk_model *model, uint32_t rows);
const struct tdm_vk_tuned *tdm_vk_few_rows_known(const struct tdm_vk_model *model, uint32_t rows);

/* ---- tuned.c ---- */

/* The shape that was found best for such a matrix (load/tune.c); NULL: none was. shader: MATVEC or MATVEC_GELU, also
 * with TDM_VK_TUNED_ROWS. */
const struct tdm_vk_tuned *tdm_vk_tuned(const struct tdm_vk_device *device, uint32_t shader,
                                        const struct tdm_vk_matrix *matrix, uint32_t n_panels);
/* Whether *tuned is of such a matrix. */
bool tdm_vk_tuned_is_of(const struct tdm_vk_tuned *tuned, uint32_t shader, const struct tdm_vk_matrix *matrix,
                        uint32_t n_panels);
/* The shapes that are tried for a kernel: *ret is constant. */
#define TDM_VK_MAX_SHAPES 16u
unsigned tdm_vk_tuned_shapes(const struct tdm_vk_tuned *key, const struct tdm_vk_shape **ret);
/* Whether its shape is one of those. */
bool tdm_vk_tuned_sane(const struct tdm_vk_tuned *tuned);

#endif
