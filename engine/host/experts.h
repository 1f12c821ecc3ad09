/* Mixtures of experts on the host device: from a router's numbers to the sum of the outputs of each row's experts.
 *
 * Rows are grouped by expert, so that the weights of an expert that several rows want are read once, and those of an
 * expert that no row wants are not read. Each product is one parallel region over pieces of all groups.
 *
 * A row's result depends on the row alone. Products are what kernels.h promises, whoever shares the group. ORDER of the
 * sum over a row's experts: by rank, which is by the numbers that they are chosen by, from large to small, of equal
 * ones the lower expert first; y = w_0 y_0, then y = y + w_i y_i for i = 1 …, each product and each sum rounded. They
 * are chosen by the router's numbers z, or with TDM_ROUTER_SIGMOID by 1 / (1 + exp(-z)) + bias.
 *
 * Everything is allocated at load. */
#ifndef TDM_ENGINE_HOST_EXPERTS_H
#define TDM_ENGINE_HOST_EXPERTS_H

#include "engine/host/matmul.h"

/* One layer's. Matrices hold all experts, one below the other. */
struct tdm_experts_layer {
        struct tdm_matrix gate, up; /* [n_experts * d_expert][cols] */
        struct tdm_matrix down;     /* [n_experts * d_out][d_expert] */
        enum tdm_act gate_act, up_act, down_act;
        const float *gate_bias, *up_bias; /* [n_experts][d_expert]; NULL: none */
        const float *down_bias;           /* [n_experts][d_out] */
        const float *choice_bias;         /* [n_experts], with TDM_ROUTER_SIGMOID; NULL: none */
        const float *scales;              /* [n_experts]: a weight is multiplied by its expert's; NULL: 1 */
        uint32_t n_experts, n_used, d_expert;
        /* From an expert's gate to the next one's, and so of up: more than its own where the two alternate. */
        uint32_t gate_panels;
        enum tdm_router router;
        enum tdm_activation activation;
};

struct tdm_experts;

/* The largest numbers of any layer. down_forms: bits of the layers' down_act. */
struct tdm_experts_sizes {
        uint32_t max_rows, n_experts, n_used, d_expert, d_out;
        unsigned down_forms;
};

int tdm_experts_new(struct tdm_experts **ret, const struct tdm_experts_sizes *sizes);
void tdm_experts_destroy(struct tdm_experts *experts);
size_t tdm_experts_scratch_bytes(const struct tdm_experts *experts);

/* z [n_rows][z_stride]: the router's numbers, those of n_experts first. acts: the rows prepared for gate and up.
 * y [n_rows][y_stride]: d_out numbers of each. */
void tdm_experts_run(struct tdm_experts *experts, const struct tdm_experts_layer *layer, struct tdm_pool *pool,
                     const struct tdm_kernels *kernels, const struct tdm_acts *acts, uint32_t n_rows, const float *z,
                     size_t z_stride, float *y, size_t y_stride);

/* A row's choice alone: ids and weights [n_used], by rank. For tests, and for devices whose kernels repeat it. */
void tdm_experts_choose(const struct tdm_experts_layer *layer, const struct tdm_kernels *kernels, const float *z,
                        uint32_t *ids, float *weights);

#endif
