/* The weights segment: a model's tensors repacked once per (file, layout) by tandemd, then sealed and mapped read-only
 * by every worker. It starts with a self-describing header, so a worker never sees the GGUF. Same size as the file's
 * tensors.
 *
 * Layout PANEL16: a matrix [rows][cols] is cut into panels of 16 rows (the last padded with zero weights), so that one
 * vector lane is one output and a sum over k runs in one lane, in order: the same order in C, AVX2 and AVX-512.
 * k4(c) is the group of 4 consecutive columns 4c … 4c+3; nb = cols / 32 blocks.
 *
 *   panel = scales, padded to 64 bytes, then quants            (quantised types; panels are 64-byte aligned)
 *   Q8_0:  scales f16 [nb][16 rows]; quants u8 = q + 128, [nb][8 k4][16 rows][4]                    (512 bytes a block)
 *   Q4_0:  scales f16 [nb][16 rows]; quants [nb][4 v][16 rows][4]: low nibble k4 group v, high nibble group v + 4,
 *          each 0 … 15 meaning q - 8                                                                (256 bytes a block)
 *   F32, F16, BF16: [cols][16 rows], the file's element type
 *   Q4_1, Q5_0, Q5_1, Q2_K … Q6_K, IQ4_NL, IQ4_XS, MXFP4: engine/weights/subblock.h
 * Experts' matrices of a layer are one tensor, one below the other: an expert has whole panels, and none lies in two.
 * Layouts BY_ROW and BY_COLUMN: ffn_up and ffn_down of a layer with sparse activations, so that one row of ffn_up, or
 * one column of ffn_down, is read without the others (engine/host/sparse.h). Of Q4_0 and Q8_0, where rows and cols are
 * multiples of 64: there such a matrix takes the bytes that it takes in panels, and panel_bytes is what a panel would
 * have.
 *   BY_ROW:    row by row: quants [nb][16 or 32 bytes] as one row of a panel has them, then scales f16 [nb]
 *   BY_COLUMN: scales f16 [nb][rows], then columns. Q8_0: i8 [cols][rows]; Q4_0: [cols][rows / 32][16], where byte r of
 *              16 has row r in its low and row 16 + r in its high nibble, each 0 … 15 meaning q - 8
 * Layout ROWS: vectors (norm gains, biases), f32, as they are; the gains of the last norm times logit_scale.
 * Layout FILE: nothing lies here. Rows stay in the file as it has them, panel_bytes each; tandemd reads those of a
 * step's tokens, and devices get them with the step (tdm_weights_file_row()).
 *
 * Where RoPE turns neighbours (2 i and 2 i + 1 of a head), the rows that make queries and keys, with their biases and
 * gains, lie in the order of halves here: the even ones of a head begin its first half, the odd ones its second, and
 * what is not turned ends both. So do the halves of what is turned where that is a part of each head. Products of
 * queries and keys stay what they are, and every device turns halves of whole heads. The recipe in the header says so
 * then. */
#ifndef TDM_ENGINE_WEIGHTS_WEIGHTS_H
#define TDM_ENGINE_WEIGHTS_WEIGHTS_H

#include "common/shm.h"
#include "engine/model/model.h"

#define TDM_WEIGHTS_MAGIC UINT32_C(0x54475754) /* "TWGT" */
#define TDM_WEIGHTS_ABI (6u + TDM_RECIPE_LAYOUT)
#define TDM_PANEL_ROWS 16u
#define TDM_BLOCK_VALUES 32u

enum tdm_layout {
        TDM_LAYOUT_ROWS = 1,
        TDM_LAYOUT_PANEL16 = 2,
        TDM_LAYOUT_FILE = 3,
        TDM_LAYOUT_BY_ROW = 4,
        TDM_LAYOUT_BY_COLUMN = 5
};

struct tdm_weights_tensor {
        uint32_t kind; /* enum tdm_tensor_kind */
        uint32_t layer;
        uint32_t type; /* enum tdm_type */
        uint32_t layout;
        uint32_t rows;
        uint32_t cols;
        uint64_t offset; /* from the segment's start, 64-byte aligned */
        uint64_t size_bytes;
        uint64_t panel_bytes; /* of two panels' distance; FILE: of two rows', in the file */
        uint64_t reserved;
};

struct tdm_weights_header {
        uint32_t magic;
        uint32_t abi;
        uint64_t size_bytes; /* of everything */
        struct tdm_hparams hparams;
        struct tdm_recipe recipe;
        uint32_t n_tensors;
        uint32_t reserved;
        uint64_t tensors_offset; /* of struct tdm_weights_tensor [n_tensors] */
};

/* ---- tandemd: building ---- */

/* True where the host kernels know the type; matrices of other types are refused with type and tensor named. */
bool tdm_weights_type_supported(uint32_t type);
/* Whether a supported type has integer weights and scales: the kernels of these types take rounded input too. */
bool tdm_weights_type_quantised(uint32_t type);
/* Distance of two panels of a matrix of this type; cols a multiple of the type's block. */
uint64_t tdm_weights_panel_bytes(uint32_t type, uint32_t cols);

/* src: n_rows <= 16 rows of the file, row_bytes apart; dst: a panel (tdm_weights_panel_bytes()). False: a scale or
 * weight is not finite. */
bool tdm_weights_pack_panel(uint32_t type, uint8_t *dst, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows,
                            uint32_t cols);

struct tdm_weights_plan; /* where each tensor will lie */
int tdm_weights_plan_new(struct tdm_weights_plan **ret, const struct tdm_model_description *model,
                         struct tdm_error *err);
uint64_t tdm_weights_plan_size(const struct tdm_weights_plan *plan);
/* All matrices in panels, for a device that reads them in place and has no use for single rows and columns. Sizes and
 * places stay. */
void tdm_weights_plan_panels(struct tdm_weights_plan *plan);
struct tdm_weights_progress {
        uint64_t done_bytes, total_bytes; /* of the tensors */
        /* dst [0, ready_bytes) is as it will be, header and table included, and is not written any more */
        uint64_t ready_bytes;
};
/* A non-zero return cancels (-ECANCELED). */
typedef int (*tdm_weights_progress_fn)(const struct tdm_weights_progress *progress, void *userdata);
/* Writes header and tensors into dst [plan_size], reading the mapped gguf under a guard. May take seconds: run it on a
 * thread of its own. n_threads: that pack, the caller among them; their number changes no byte. progress (NULL: nobody)
 * is called now and then, by the caller's thread; in the end all of plan_size is ready. TDM_E_MODEL_CHANGED when the
 * file shrank meanwhile. Scales that are not finite are TDM_E_BAD_MODEL (tensor named). Whatever is ready has passed
 * both. */
int tdm_weights_build(const struct tdm_weights_plan *plan, const struct tdm_gguf *gguf, uint8_t *dst,
                      unsigned n_threads, tdm_weights_progress_fn progress, void *userdata, struct tdm_error *err);
void tdm_weights_plan_destroy(struct tdm_weights_plan *plan);
void tdm_weights_plan_destroyp(struct tdm_weights_plan **plan);

/* ---- workers: reading ---- */

/* Checks everything but the values (magic, sizes, hparams, recipe, each tensor's place and shape, that all needed ones
 * are there). Of size_bytes the first there_bytes can be read: header and table must be among them. */
int tdm_weights_check(const uint8_t *base, uint64_t size_bytes, uint64_t there_bytes, struct tdm_error *err);
/* NULL when absent. base has passed the check. */
const struct tdm_weights_tensor *tdm_weights_find(const uint8_t *base, enum tdm_tensor_kind kind, uint32_t layer);
static inline const struct tdm_weights_header *tdm_weights_header(const uint8_t *base)
{
        return (const struct tdm_weights_header *)base;
}
/* One value, dequantised: for tests and for the embedding's reference. */
float tdm_weights_value(const uint8_t *base, const struct tdm_weights_tensor *tensor, uint32_t row, uint32_t col);
/* One row, dequantised to f32: y [cols]. */
void tdm_weights_row(const uint8_t *base, const struct tdm_weights_tensor *tensor, uint32_t row, float *y);
/* One row of a matrix in Q4_0 as it is: q [cols] from -8 to 7, scales f16 [cols / 32]. */
void tdm_weights_row_q4_0(const uint8_t *base, const struct tdm_weights_tensor *tensor, uint32_t row, int8_t *q,
                          uint16_t *scales);
/* Columns first … first + n - 1 of a row as a file has it, dequantised: y [n]. type: a supported one. row: from column
 * 0 on, of which at least first + n, rounded up to a block, are there; of any alignment. */
void tdm_weights_file_row(uint32_t type, const uint8_t *row, uint32_t first, uint32_t n, float *y);
/* Bytes of the file that each row of a step carries: a row of the model's tensor with that layout; 0: it has none. */
uint32_t tdm_weights_input_bytes(const uint8_t *base);

#endif
