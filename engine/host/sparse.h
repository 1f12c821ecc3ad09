/* A sparse layer's FFN for a few rows (Gemma 3n): where few neurons live, only their rows of up and their columns of
 * down are read. The bits are those of the dense way.
 *
 * In a panel 16 rows lie interleaved, so one row of it or one column costs as much as all. Such a layer's up therefore
 * lies by rows in the segment, and its down by columns (engine/weights/weights.h). Live rows of up are gathered into
 * panels for the same kernel as ever. In down a block without a live column adds zero, and the sum over a block's live
 * columns is exact, so leaving the others out changes nothing. Each row has live neurons of its own, so what is read
 * grows with the rows; those that read all of the matrices have panels made of them (panels.h).
 *
 * For rounded rows; others run densely. Private to engine/host. */
#ifndef TDM_ENGINE_HOST_SPARSE_H
#define TDM_ENGINE_HOST_SPARSE_H

#include "engine/host/matmul.h"

#define TDM_SPARSE_ROWS_MAX 32u /* rows that are looked at; which run sparsely depends on how many neurons live */

struct tdm_sparse_layer {
        struct tdm_matrix up, down; /* by rows, by columns */
        enum tdm_act up_act, down_act;
};

struct tdm_sparse;

/* Whether a layer of such matrices can be run so. */
bool tdm_sparse_can(const struct tdm_sparse_layer *layer);
/* Scratch for layers of at most d_ff neurons and d_in inputs. -ENOMEM. */
int tdm_sparse_new(struct tdm_sparse **ret, uint32_t d_ff, uint32_t d_in, unsigned n_threads);
void tdm_sparse_destroy(struct tdm_sparse *sparse);
/* Live neurons, of all rows together, with which rows of n neurons run sparsely at most. */
uint32_t tdm_sparse_live_max(uint32_t n, uint32_t n_rows);
/* y [n_rows][down.rows] = down (gelu(gate) * up x) for rows x in acts, at most TDM_SPARSE_ROWS_MAX; gate [n_rows][d_ff]
 * is cut already and is overwritten, as is up [n_rows][d_ff]; mid takes the input of down. False, and nothing is done:
 * too many neurons live for it to be cheaper. */
bool tdm_sparse_run(struct tdm_sparse *sparse, const struct tdm_sparse_layer *layer, struct tdm_pool *pool,
                    const struct tdm_kernels *kernels, const struct tdm_acts *acts, uint32_t n_rows, float *gate,
                    float *up, struct tdm_acts *mid, float *y);

#endif
