/* An attention block as one command over the paged cache: norm, [q k v, rotate, store, attend, output], norm, add. What
 * is in brackets runs on the NPU. Rows are taken in tiles of what one command holds; the keys and values of a tile are
 * in the cache before the next one runs. */
#include "npu-worker/device/private.h"

#include "engine/host/rope.h"

struct pass {
        struct tdm_npu_model *model;
        const struct tdm_step *step;
        uint32_t layer, first;
        float *hidden; /* [residual_width], of the row `first` on */
        struct tdm_npu_block_table table;
};

static void put_row(void *arg, unsigned row, unsigned thread)
{
        const struct pass *pass = arg;
        struct tdm_host_model *host = pass->model->host;
        const struct tdm_step_row *r = &pass->step->rows[pass->first + row];
        enum tdm_kv_group group = tdm_kv_group_of(&host->hp, pass->layer);
        uint32_t rope = host->recipe.layers[pass->layer].rope, half = host->hp.head_dim / 2;
        uint32_t n_entries = TDM_MIN(pass->step->table_entries, pass->table.n_pages);
        float *y = host->row + thread * host->row_stride, *cos = pass->table.cos_sin + (size_t)row * 2 * half;

        host->kernels->rmsnorm(pass->hidden + (size_t)row * host->hp.residual_width,
                               host->layers[pass->layer].attn_norm, host->hp.d_model, host->recipe.norm_eps, y);
        tdm_npu_block_put(pass->model->block, row, y);
        pass->table.positions[row] = r->position;
        tdm_rope_row(&host->rope[rope], r->position, cos, cos + half);
        memcpy(pass->table.pages + (size_t)row * pass->table.n_pages,
               pass->step->tables[group] + (size_t)r->seq * pass->step->table_entries, n_entries * sizeof(uint32_t));
}

static void add_row(void *arg, unsigned row, unsigned thread)
{
        const struct pass *pass = arg;
        const struct tdm_host_model *host = pass->model->host;

        tdm_host_add(host, tdm_npu_block_get(pass->model->block, row), host->layers[pass->layer].post_attn_norm,
                     pass->hidden + (size_t)row * host->hp.residual_width);
}

static void fill_head(const struct pass *pass, uint32_t n_rows)
{
        const struct tdm_host_model *host = pass->model->host;
        const struct tdm_host_layer *layer = &host->layers[pass->layer];
        enum tdm_kv_group group = tdm_kv_group_of(&host->hp, pass->layer);
        uint32_t d = host->hp.head_dim;

        *pass->table.head = (struct tdm_npu_attention_head){
                .n_rows = n_rows,
                .window = host->hp.layers[pass->layer].window,
                .eps = host->recipe.norm_eps,
                .query_scale = host->recipe.layers[pass->layer].query_scale,
                .cache_bytes = host->kv.size_bytes,
                .pages_offset = host->kv.offset[group],
                .page_bytes = host->kv.page_bytes[group],
                .layer_offset = host->kv.layers[pass->layer].offset,
                .part_bytes = host->kv.layers[pass->layer].part_bytes,
        };
        memcpy(pass->table.gains, layer->q_norm, d * sizeof(float));
        memcpy(pass->table.gains + d, layer->k_norm, d * sizeof(float));
}

/* Adds the pages of the cache that the rows of a sequence read and write, each page once. */
static void add_parts(const struct pass *pass, uint32_t first, uint32_t n, size_t *n_reads, size_t *n_writes)
{
        const struct tdm_host_model *host = pass->model->host;
        const struct tdm_step_row *rows = &pass->step->rows[first];
        enum tdm_kv_group group = tdm_kv_group_of(&host->hp, pass->layer);
        const uint32_t *pages = pass->step->tables[group] + (size_t)rows[0].seq * pass->step->table_entries;
        uint32_t begin = rows[0].position, end = rows[n - 1].position;

        for (uint32_t i = tdm_window_first(&host->hp, group, begin) / TDM_KV_PAGE_TOKENS; i <= end / TDM_KV_PAGE_TOKENS;
             i++) {
                const struct tdm_npu_part part = { tdm_kv_part_offset(&host->kv, pass->layer, pages[i], 0),
                                                   tdm_kv_layer_bytes(&host->kv, pass->layer) };

                pass->model->reads[(*n_reads)++] = part;
                if (i >= begin / TDM_KV_PAGE_TOKENS)
                        pass->model->writes[(*n_writes)++] = part;
        }
}

void tdm_npu_attention_block(struct tdm_npu_model *model, const struct tdm_step *step, uint32_t layer, float *hidden)
{
        struct tdm_host_model *host = model->host;
        struct pass pass = { .model = model, .step = step, .layer = layer };

        for (uint32_t first = 0, n_rows; first < step->head.n_rows; first += n_rows) {
                size_t n_reads = 0, n_writes = 0;

                n_rows = TDM_MIN(tdm_npu_block_rows(model->block), step->head.n_rows - first);
                pass.first = first;
                pass.hidden = hidden + (size_t)first * host->hp.residual_width;
                tdm_npu_block_table(model->block, n_rows, &pass.table);
                fill_head(&pass, n_rows);
                tdm_pool_run(host->pool, n_rows, put_row, &pass);
                for (uint32_t row = first, n; row < first + n_rows; row += n) {
                        for (n = 1; row + n < first + n_rows && step->rows[row + n].seq == step->rows[row].seq; n++)
                                ;
                        add_parts(&pass, row, n, &n_reads, &n_writes);
                }
                tdm_npu_block_run(model->block, model->layers[layer].block, n_rows, model->reads, n_reads,
                                  model->writes, n_writes);
                tdm_pool_run(host->pool, n_rows, add_row, &pass);
        }
}
