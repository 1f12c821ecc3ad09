/* An attention block with its two matrix products on the NPU: norm, [q k v], rotate, store, attend, [output], norm,
 * add. What lies between the products is the host device's own code, so keys, values and their order of sums are the
 * same.
 *
 * Rows are taken in tiles of what one submission holds. Each product goes to the NPU in one; its input is rounded to
 * the program's type on the way into the buffer that the NPU reads, so hidden rows in the arena are read in place and
 * there is no other copy. */
#include "npu-worker/device/private.h"

#define CHUNK_ROWS 8u

struct pass {
        struct tdm_npu_model *model;
        const struct tdm_npu_layer *weights;
        const struct tdm_host_layer *layer;
        float *hidden; /* [n_rows][residual_width] */
        uint32_t n_rows;
        void (*row)(const struct pass *pass, uint32_t row, unsigned thread);
};

static void run_rows(void *arg, unsigned chunk, unsigned thread)
{
        const struct pass *pass = arg;
        uint32_t first = chunk * CHUNK_ROWS, end = TDM_MIN(first + CHUNK_ROWS, pass->n_rows);

        for (uint32_t row = first; row < end; row++)
                pass->row(pass, row, thread);
}

static void each_row(struct pass *pass, void (*row)(const struct pass *pass, uint32_t row, unsigned thread))
{
        pass->row = row;
        tdm_pool_run(pass->model->host->pool, TDM_DIV_UP(pass->n_rows, CHUNK_ROWS), run_rows, pass);
}

static void norm_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        struct tdm_host_model *host = pass->model->host;
        const float *x = pass->hidden + (size_t)row * host->hp.residual_width, *gain = pass->layer->attn_norm;
        float *y = host->row + thread * host->row_stride;

        if (gain)
                host->kernels->rmsnorm(x, gain, host->hp.d_model, host->recipe.norm_eps, y);
        tdm_npu_product_put(pass->model->qkv, row, gain ? y : x);
}

/* A product's output with its bias. */
static void take(const struct tdm_npu_product *product, const struct tdm_npu_weights *weights, uint32_t row,
                 uint32_t first, uint32_t n, const float *bias, float *y)
{
        tdm_npu_product_get(product, weights, row, first, n, y);
        for (uint32_t i = 0; bias && i < n; i++)
                y[i] += bias[i];
}

static void take_qkv_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        struct tdm_host_model *host = pass->model->host;
        const struct tdm_npu_product *qkv = pass->model->qkv;
        uint32_t q_width = host->hp.n_heads * host->hp.head_dim, kv_width = host->hp.n_kv_heads * host->hp.head_dim;

        take(qkv, pass->weights->qkv, row, 0, q_width, pass->layer->q.bias, host->heads.q + (size_t)row * q_width);
        take(qkv, pass->weights->qkv, row, q_width, kv_width, pass->layer->k.bias,
             host->heads.k + (size_t)row * kv_width);
        take(qkv, pass->weights->qkv, row, q_width + kv_width, kv_width, pass->layer->v.bias,
             host->heads.v + (size_t)row * kv_width);
}

static void put_attended_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        const struct tdm_host_model *host = pass->model->host;

        tdm_npu_product_put(pass->model->out, row,
                            host->heads.attn + (size_t)row * host->hp.n_heads * host->hp.head_dim);
}

static void add_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        struct tdm_host_model *host = pass->model->host;
        float *y = host->y + (size_t)row * host->hp.d_model;

        take(pass->model->out, pass->weights->out, row, 0, host->hp.d_model, pass->layer->o.bias, y);
        tdm_host_add(host, y, pass->layer->post_attn_norm, pass->hidden + (size_t)row * host->hp.residual_width);
}

void tdm_npu_attention(struct tdm_npu_model *model, const struct tdm_step *step, uint32_t layer, float *hidden)
{
        struct tdm_host_model *host = model->host;
        uint32_t tile =
                TDM_MIN(host->tile_rows, TDM_MIN(tdm_npu_product_rows(model->qkv), tdm_npu_product_rows(model->out)));
        struct pass pass = { .model = model, .weights = &model->layers[layer], .layer = &host->layers[layer] };

        for (uint32_t first = 0; first < step->head.n_rows; first += pass.n_rows) {
                pass.n_rows = TDM_MIN(tile, step->head.n_rows - first);
                pass.hidden = hidden + (size_t)first * host->hp.residual_width;

                each_row(&pass, norm_row);
                tdm_npu_product_run(model->qkv, pass.weights->qkv, pass.n_rows);
                each_row(&pass, take_qkv_row);
                tdm_host_attend(host, step, layer, first, pass.n_rows);
                each_row(&pass, put_attended_row);
                tdm_npu_product_run(model->out, pass.weights->out, pass.n_rows);
                each_row(&pass, add_row);
        }
}

uint64_t tdm_npu_attend_macs(const struct tdm_hparams *hp, const struct tdm_step *step, uint32_t layer)
{
        enum tdm_kv_group group = tdm_kv_group_of(hp, layer);
        uint64_t n_keys = 0;

        for (uint32_t i = 0; i < step->head.n_rows; i++) {
                uint32_t position = step->rows[i].position;

                n_keys += position + 1 - tdm_window_first(hp, group, position);
        }
        return n_keys * 2 * hp->n_heads * hp->head_dim;
}
