/* Matrix products of the host device over the thread pool: one preparation of the input for all the matrices that read
 * it, one parallel region for all of them (fused QKV), gate and up computed panel by panel and multiplied while they
 * are in cache (fused gate/up). Results do not depend on the number of rows or threads: see kernels.h for the order. */
#ifndef TDM_ENGINE_HOST_MATMUL_H
#define TDM_ENGINE_HOST_MATMUL_H

#include "engine/host/panels.h"
#include "common/pool.h"

/* Rows prepared for matrix kernels, in one or more forms at once (a bit per enum tdm_act). Allocated at load. */
struct tdm_acts {
        unsigned forms; /* bit mask: 1 << TDM_ACT_… */
        uint32_t max_rows;
        uint32_t max_cols;
        uint32_t cols;                        /* of what is held now */
        struct tdm_act_row *rows[TDM_N_ACTS]; /* [max_rows], NULL for forms not asked for */
        void *memory;
        size_t memory_bytes;
};

int tdm_acts_init(struct tdm_acts *acts, unsigned forms, uint32_t max_rows, uint32_t max_cols);
void tdm_acts_deinit(struct tdm_acts *acts);
/* Takes x [n_rows][stride] (first cols of each) into acts; in parallel. cols a multiple of 32. */
void tdm_acts_prepare(struct tdm_acts *acts, const struct tdm_kernels *kernels, struct tdm_pool *pool, const float *x,
                      size_t stride, uint32_t n_rows, uint32_t cols);
/* One row, for callers that are on a pool thread already (fusing a norm before it). */
void tdm_acts_prepare_row(struct tdm_acts *acts, const struct tdm_kernels *kernels, uint32_t row, const float *x,
                          uint32_t cols);

/* Columns first … first + n - 1 of a row, from x [n], into every form; first and n multiples of 32. */
void tdm_acts_prepare_part(const struct tdm_acts *acts, const struct tdm_kernels *kernels, uint32_t row, uint32_t first,
                           const float *x, uint32_t n);

struct tdm_matmul_out {
        const struct tdm_matrix *matrix;
        enum tdm_act act; /* one of acts->forms, fitting the matrix's type */
        float *y;         /* [n_rows][y_stride] */
        size_t y_stride;
        const float *bias;               /* [matrix->rows], added to the sums; NULL: none */
        const struct tdm_panels *panels; /* of a matrix that lies by rows or columns */
};

/* y = x Wᵀ + bias for n_rows rows and every out, in one parallel region. n_outs <= 4. */
void tdm_matmul(struct tdm_pool *pool, const struct tdm_kernels *kernels, const struct tdm_acts *acts, uint32_t n_rows,
                const struct tdm_matmul_out *outs, unsigned n_outs);

struct tdm_gate_up {
        const struct tdm_matrix *gate, *up; /* in panels */
        enum tdm_act gate_act, up_act;
        const float *gate_bias, *up_bias; /* NULL: none */
        enum tdm_activation activation;
};

/* h = activation(gate x + gate_bias) * (up x + up_bias), left in `ret` prepared for the down projection (all of
 * ret->forms), ret->cols = gate->rows. */
void tdm_matmul_gate_up(struct tdm_pool *pool, const struct tdm_kernels *kernels, const struct tdm_acts *acts,
                        uint32_t n_rows, const struct tdm_gate_up *what, struct tdm_acts *ret);

/* y = activation(gate) * up, as the recipe calls it. */
typedef void (*tdm_activation_fn)(const float *gate, const float *up, uint32_t n, float *y);
tdm_activation_fn tdm_matmul_activation(const struct tdm_kernels *kernels, enum tdm_activation activation);

/* The activation form for a matrix: float weights take F32; quantised ones I8 or I16 as asked. */
enum tdm_act tdm_matmul_act(uint32_t type, enum tdm_act wanted);
/* From a tensor of the weights segment. */
void tdm_matrix_init(struct tdm_matrix *ret, const uint8_t *weights, const struct tdm_weights_tensor *tensor);

#endif
