/* A sparse layer's FFN for one row (Gemma 3n): where few neurons live, only their rows of up and their columns of down
 * are read. The bits are those of the dense way.
 *
 * In a panel 16 rows lie interleaved, so one row of it or one column costs as much as all. Such a layer's up and down
 * are therefore kept a second time, up row by row and down column by column: memory for speed, and only in a process
 * that runs the layer for a row alone. Live rows of up are gathered into panels for the same kernel as ever. In down a
 * block without a live column adds zero, and the sum over a block's live columns is exact, so leaving the others out
 * changes nothing.
 *
 * For types of plain blocks (Q4_0, Q8_0) and rounded rows; other layers run densely. Private to engine/host. */
#ifndef TDM_ENGINE_HOST_SPARSE_H
#define TDM_ENGINE_HOST_SPARSE_H

#include "engine/host/matmul.h"

struct tdm_sparse_layer {
        struct tdm_matrix up, down; /* in panels */
        enum tdm_act up_act, down_act;
        bool filled;
        uint8_t *rows;    /* [up.rows][row bytes] */
        uint16_t *scales; /* [down.cols / 32][down.rows]: f16 */
        uint8_t *columns; /* [down.cols][column bytes]: as kernels.h says */
};

struct tdm_sparse;

/* Whether a layer of such matrices can be run so. */
bool tdm_sparse_can(const struct tdm_sparse_layer *layer);
/* Scratch for layers of at most d_ff neurons and d_in inputs. -ENOMEM. */
int tdm_sparse_new(struct tdm_sparse **ret, uint32_t d_ff, uint32_t d_in, unsigned n_threads);
void tdm_sparse_destroy(struct tdm_sparse *sparse);
/* Room for the copies of a layer's up and down, with the matrices and forms set. Its pages are touched when the layer
 * first runs. Returns the bytes; -ENOMEM. */
int64_t tdm_sparse_layer_init(struct tdm_sparse_layer *layer);
void tdm_sparse_layer_deinit(struct tdm_sparse_layer *layer);
/* y [down.rows] = down (gelu(gate) * up x) for the one row x in acts; gate [d_ff] is cut already and is overwritten, as
 * is up [d_ff]; mid takes the input of down. False, and nothing is done: too many neurons live for it to be cheaper. */
bool tdm_sparse_run(struct tdm_sparse *sparse, struct tdm_sparse_layer *layer, struct tdm_pool *pool,
                    const struct tdm_kernels *kernels, const struct tdm_acts *acts, float *gate, float *up,
                    struct tdm_acts *mid, float *y);

#endif
