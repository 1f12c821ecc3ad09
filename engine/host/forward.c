/* The forward pass on the host device, as the model's recipe says: embed, attention, FFN, head, sample, each one
 * function that reads top to bottom; the functions above them are what the pool's threads do with a few rows.
 *
 * A row's values never depend on the other rows: everything between the matrix products is done row by row, and those
 * promise it (kernels.h). Rows are taken in tiles of TDM_HOST_TILE_ROWS; a tile's keys and values are stored before its
 * attention runs, and a row only looks at its own position and before, so tiles change nothing either. Where a row
 * looks further, the keys and values of all tiles are stored first.
 *
 * The residual, norms, softmax and sums are f32. The inputs of a matrix are rounded to the form that the table in
 * host-device.c says. Nothing is allocated here. */
#include <assert.h>
#include <math.h>

#include "engine/host/delta.h"
#include "engine/host/shared.h"
#include "engine/host/short-conv.h"
#include "engine/host/streams.h"

#define CHUNK_ROWS_MAX 16u     /* of a pass that goes row by row */
#define CHUNK_VALUES_MIN 4096u /* about a microsecond: less is done sooner than another thread has taken it */
#define SCAN_LEAST 16384u      /* logits of a row that a thread looks at: some 15 microseconds */

/* The input of a row-by-row pass. Fields that it does not look at are left out. */
struct pass {
        struct tdm_host_model *model;
        const struct tdm_step *step;
        float *hidden;     /* [n_rows][residual_width], the tile's first row first */
        const float *gain; /* [d_model]; NULL where a block's input or output has no norm */
        const float *bias; /* of a norm of a sum; else NULL */
        struct tdm_acts *acts;
        uint32_t layer;
        uint32_t at;        /* where in a row's residual */
        uint32_t from, to;  /* a sum: what is added to lies there, and is left here */
        uint32_t first_row; /* of the tile, in the step */
        uint32_t n_rows;    /* of the tile */
        uint32_t chunk_rows;
        bool no_queries, no_keys; /* of attention: only the others are made */
        void (*row)(const struct pass *pass, uint32_t row, unsigned thread); /* row: within the tile */
};

static void pass_run_rows(void *arg, unsigned chunk, unsigned thread)
{
        const struct pass *pass = arg;
        uint32_t first = chunk * pass->chunk_rows, end = TDM_MIN(first + pass->chunk_rows, pass->n_rows);

        for (uint32_t row = first; row < end; row++)
                pass->row(pass, row, thread);
}

/* width: values of a row that it goes through. */
static void pass_each_row(struct pass *pass, uint32_t width,
                          void (*row)(const struct pass *pass, uint32_t row, unsigned thread))
{
        uint32_t share = pass->n_rows / (4 * tdm_pool_n_threads(pass->model->pool));

        pass->row = row;
        pass->chunk_rows = TDM_MIN(TDM_MAX(TDM_MAX(share, CHUNK_VALUES_MIN / width), 1u), CHUNK_ROWS_MAX);
        tdm_pool_run(pass->model->pool, TDM_DIV_UP(pass->n_rows, pass->chunk_rows), pass_run_rows, pass);
}

/* ---- embed ---- */

static void embedding_add(const float *y, uint32_t n, float *h)
{
        for (uint32_t i = 0; i < n; i++)
                h[i] += y[i];
}

static void embed_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        struct tdm_host_model *model = pass->model;
        float *h = pass->hidden + (size_t)row * model->hp.residual_width;

        if (pass->step->rows[row].picture) /* it is there, as the tower made it: not scaled */
                return;
        tdm_weights_row(model->weights, model->embedding.tokens, pass->step->rows[row].token, h);
        for (uint32_t i = 0; i < model->hp.d_model; i++)
                h[i] *= model->recipe.embed_scale;
        if (model->embedding.types)
                embedding_add(tdm_host_row_type(model, pass->step, row), model->hp.d_model, h);
        if (model->embedding.positions)
                embedding_add(model->embedding.positions + (size_t)pass->step->rows[row].position * model->hp.d_model,
                              model->hp.d_model, h);
        if (model->embedding.norm)
                model->kernels->layernorm(h, model->embedding.norm, model->embedding.bias, model->hp.d_model,
                                          model->recipe.norm_eps, h);
}

void tdm_host_embed(struct tdm_host_model *model, const struct tdm_step *step, float *hidden)
{
        struct pass pass = { .model = model, .step = step, .hidden = hidden, .n_rows = step->head.n_rows };

        pass_each_row(&pass, model->hp.d_model, embed_row);
        for (uint32_t first = 0, n; tdm_host_has_streams(model) && first < step->head.n_rows; first += n) {
                n = TDM_MIN(model->tile_rows, step->head.n_rows - first);
                tdm_host_streams_begin(model, step, first, n, hidden + (size_t)first * model->hp.residual_width);
        }
}

/* ---- what attention, FFN and head share ---- */

/* A norm before a block, of a head, or the last one. y may be x. */
static void norm(const struct tdm_host_model *model, const float *x, const float *gain, uint32_t n, float *y)
{
        if (model->recipe.norm_kind == TDM_NORMS_CENTERED)
                model->kernels->layernorm(x, gain, model->neutral.zeros, n, model->recipe.norm_eps, y);
        else
                model->kernels->rmsnorm(x, gain, n, model->recipe.norm_eps, y);
}

static void norm_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        struct tdm_host_model *model = pass->model;
        uint32_t d = model->hp.d_model;
        const float *x = pass->hidden + (size_t)row * model->hp.residual_width + pass->at;
        float *y = model->row + thread * model->row_stride;

        if (pass->gain)
                norm(model, x, pass->gain, d, y);
        tdm_acts_prepare_row(pass->acts, model->kernels, row, pass->gain ? y : x, d);
}

void tdm_host_add(const struct tdm_host_model *model, const float *y, const float *gain, float *h)
{
        uint32_t d = model->hp.d_model;

        if (gain)
                model->kernels->rmsnorm_add(y, gain, d, model->recipe.norm_eps, h);
        else
                for (uint32_t i = 0; i < d; i++)
                        h[i] += y[i];
}

static void pass_add_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        struct tdm_host_model *model = pass->model;
        uint32_t d = model->hp.d_model;
        float *h = pass->hidden + (size_t)row * model->hp.residual_width;

        if (pass->from != pass->to)
                memcpy(h + pass->to, h + pass->from, d * sizeof(float));
        h += pass->to;
        tdm_host_add(model, model->y + (size_t)row * d, pass->bias ? NULL : pass->gain, h);
        if (pass->bias)
                model->kernels->layernorm(h, pass->gain, pass->bias, d, model->recipe.norm_eps, h);
}

/* Adds what a block made. Where attention and FFN are parallel, attention's sum is left behind the residual, and the
 * FFN's is made of that. */
static void pass_add(struct pass *pass, const float *gain, const float *bias, bool is_ffn)
{
        uint32_t d = pass->model->hp.d_model;
        bool is_parallel = pass->model->recipe.residual == TDM_RESIDUAL_PARALLEL;

        pass->gain = gain;
        pass->bias = bias;
        pass->from = is_parallel && is_ffn ? d : pass->at;
        pass->to = is_parallel && !is_ffn ? d : pass->at;
        pass_each_row(pass, d, pass_add_row);
}

static struct tdm_matmul_out out(const struct tdm_host_weight *weight, float *y, size_t y_stride)
{
        return (struct tdm_matmul_out){
                .matrix = &weight->matrix, .act = weight->act, .y = y, .y_stride = y_stride, .bias = weight->bias
        };
}

/* ---- attention ---- */

/* cos and sin of the row's position, computed once for all layers that turn alike while the rows stay the same. */
static const float *rope_row(struct tdm_host_model *model, uint32_t rope, uint32_t row, uint32_t position)
{
        uint32_t half = model->rope[rope].half;
        float *cos_sin = model->angles.rows[rope] + (size_t)row * 2 * half;

        if (model->angles.position[rope][row] != position) {
                tdm_rope_row(&model->rope[rope], position, cos_sin, cos_sin + half);
                model->angles.position[rope][row] = position;
        }
        return cos_sin;
}

/* By how much a query is larger for its position. */
static float grown(const struct tdm_recipe *recipe, uint32_t position)
{
        return recipe->query_growth > 0 ?
                       1 + recipe->query_growth * (float)log(1.0 + position / recipe->query_growth_every) :
                       1;
}

/* One norm of all heads of a row. n: their values; 0: they are not made. */
static void norm_heads(const struct tdm_host_model *model, const float *gain, uint32_t n, uint32_t row, float *heads)
{
        float *x = heads + (size_t)row * n;

        if (n > 0)
                model->kernels->rmsnorm(x, gain, n, model->recipe.norm_eps, x);
}

/* Queries and keys: norm of each head and rotation, where the recipe has them. Queries are scaled; keys and values go
 * into the cache. */
static void rotate_and_store_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        struct tdm_host_model *model = pass->model;
        const struct tdm_kernels *kernels = model->kernels;
        const struct tdm_host_layer *layer = &model->layers[pass->layer];
        const struct tdm_step_row *r = &pass->step->rows[pass->first_row + row];
        const struct tdm_layer_recipe *recipe = &model->recipe.layers[pass->layer];
        float query_scale = recipe->query_scale * grown(&model->recipe, r->position);
        enum tdm_kv_group group = tdm_kv_group_of(&model->hp, pass->layer);
        const struct tdm_layer_sizes *sizes = &model->hp.layers[pass->layer];
        uint32_t head_dim = sizes->head_dim, n_heads = pass->no_queries ? 0 : sizes->n_heads;
        /* A layer that reads another's keys and values makes none. */
        uint32_t n_kv_heads = sizes->kv_layer == pass->layer && !pass->no_keys ? sizes->n_kv_heads : 0;
        uint32_t page =
                pass->step
                        ->tables[group][(size_t)r->seq * pass->step->table_entries + r->position / TDM_KV_PAGE_TOKENS];
        uint32_t n_saturated = 0;
        const float *cos = recipe->rope == TDM_ROPE_NONE ? NULL : rope_row(model, recipe->rope, row, r->position);
        uint32_t n_turned = cos ? 2 * model->rope[recipe->rope].half : 0;
        const float *sin = cos ? cos + n_turned / 2 : NULL;
        uint32_t gain_stride = recipe->norms & TDM_NORM_QK_EACH ? head_dim : 0;
        bool is_late = recipe->norms & TDM_NORM_QK_LATE;
        bool has_others = recipe->norms & (TDM_NORM_QK_LATE | TDM_NORM_QK_WIDE);

        if (recipe->norms & TDM_NORM_QK_WIDE) {
                norm_heads(model, layer->q_norm, n_heads * head_dim, row, model->heads.q);
                norm_heads(model, layer->k_norm, n_kv_heads * head_dim, row, model->heads.k);
        }
        for (uint32_t h = 0; h < n_heads; h++) {
                float *q = model->heads.q + ((size_t)row * n_heads + h) * head_dim;

                if (layer->q_norm && !has_others)
                        norm(model, q, layer->q_norm + h * gain_stride, head_dim, q);
                if (cos)
                        kernels->rope(q, cos, sin, n_turned);
                if (is_late)
                        kernels->rmsnorm(q, layer->q_norm, head_dim, model->recipe.norm_eps, q);
                for (uint32_t i = 0; i < head_dim; i++)
                        q[i] *= query_scale;
        }
        for (uint32_t h = 0; h < n_kv_heads; h++) {
                float *k = model->heads.k + ((size_t)row * n_kv_heads + h) * head_dim;
                float *v = model->heads.v + ((size_t)row * n_kv_heads + h) * head_dim;
                uint8_t *part = model->kv_base + tdm_kv_part_offset(&model->kv, pass->layer, page, h);

                if (recipe->v_is_k)
                        memcpy(v, k, head_dim * sizeof(float));
                if (recipe->norms & TDM_NORM_V)
                        kernels->rmsnorm(v, model->neutral.ones, head_dim, model->recipe.norm_eps, v);
                if (layer->k_norm && !has_others)
                        norm(model, k, layer->k_norm + h * gain_stride, head_dim, k);
                if (cos)
                        kernels->rope(k, cos, sin, n_turned);
                if (is_late)
                        kernels->rmsnorm(k, layer->k_norm, head_dim, model->recipe.norm_eps, k);
                n_saturated += kernels->kv_store(part, (enum tdm_kv_type)model->kv.type, head_dim,
                                                 r->position % TDM_KV_PAGE_TOKENS, k, v);
        }
        if (n_saturated)
                atomic_fetch_add_explicit(&model->n_saturated, n_saturated, memory_order_relaxed);
}

void tdm_host_attend(struct tdm_host_model *model, const struct tdm_step *step, uint32_t layer, uint32_t first,
                     uint32_t n)
{
        struct pass pass = { .model = model, .step = step, .layer = layer, .first_row = first, .n_rows = n };
        const struct tdm_layer_sizes *sizes = &model->hp.layers[layer];

        pass_each_row(&pass, (sizes->n_heads + 2 * sizes->n_kv_heads) * sizes->head_dim, rotate_and_store_row);
        tdm_attention_run(model->attention, model->pool, model->kernels, &model->hp, &model->kv, model->kv_base, step,
                          layer, first, n, model->heads.q, model->layers[layer].sinks,
                          model->recipe.layers[layer].attention_softcap, model->heads.attn);
}

/* The keys and values of all rows, where one looks at those behind it: of its text or of its picture. */
static void store_all(struct tdm_host_model *model, const struct tdm_step *step, uint32_t layer, float *hidden)
{
        const struct tdm_host_layer *l = &model->layers[layer];
        const struct tdm_layer_sizes *sizes = &model->hp.layers[layer];
        uint32_t kv_width = sizes->n_kv_heads * sizes->head_dim;

        for (uint32_t first = 0, n; first < step->head.n_rows; first += n) {
                struct pass pass = { .model = model,
                                     .step = step,
                                     .hidden = hidden + (size_t)first * model->hp.residual_width,
                                     .gain = l->attn_norm,
                                     .acts = &model->acts[TDM_HOST_QKV],
                                     .layer = layer,
                                     .first_row = first,
                                     .no_queries = true };

                pass.n_rows = n = TDM_MIN(model->tile_rows, step->head.n_rows - first);
                pass_each_row(&pass, model->hp.d_model, norm_row);
                tdm_matmul(model->pool, model->kernels, pass.acts, n,
                           (struct tdm_matmul_out[]){ out(&l->k, model->heads.k, kv_width),
                                                      out(&l->v, model->heads.v, kv_width) },
                           2);
                pass_each_row(&pass, 2 * kv_width, rotate_and_store_row);
        }
}

/* The queries of a tile; all keys are stored. */
static void attend_stored(struct pass *pass)
{
        struct tdm_host_model *model = pass->model;
        const struct tdm_layer_sizes *sizes = &model->hp.layers[pass->layer];
        const struct tdm_layer_recipe *recipe = &model->recipe.layers[pass->layer];
        const float *sinks = model->layers[pass->layer].sinks;

        pass->no_keys = true;
        pass_each_row(pass, sizes->n_heads * sizes->head_dim, rotate_and_store_row);
        if (model->recipe.is_bidirectional)
                tdm_attention_run_both(model->attention, model->pool, model->kernels, &model->hp, &model->kv,
                                       model->kv_base, pass->step, pass->layer, pass->first_row, pass->n_rows,
                                       model->heads.q, sinks, recipe->attention_softcap, recipe->reach,
                                       model->heads.attn);
        else
                tdm_attention_run(model->attention, model->pool, model->kernels, &model->hp, &model->kv, model->kv_base,
                                  pass->step, pass->layer, pass->first_row, pass->n_rows, model->heads.q, sinks,
                                  recipe->attention_softcap, model->heads.attn);
}

void tdm_host_attention(struct tdm_host_model *model, const struct tdm_step *step, uint32_t layer, float *hidden)
{
        const struct tdm_host_layer *l = &model->layers[layer];
        struct tdm_pool *pool = model->pool;
        const struct tdm_kernels *kernels = model->kernels;
        const struct tdm_layer_sizes *sizes = &model->hp.layers[layer];
        bool stores_first = model->recipe.is_bidirectional || step->head.n_pictures > 0;
        bool has_state = sizes->n_state > 0;
        uint32_t d = model->hp.d_model, q_width = sizes->n_heads * sizes->head_dim;
        const struct tdm_layer_recipe *recipe = &model->recipe.layers[layer];
        bool is_delta = recipe->mixer == TDM_MIXER_GATED_DELTA;
        uint32_t kv_width = sizes->n_kv_heads * sizes->head_dim;
        bool makes_keys = sizes->kv_layer == layer && !stores_first && !has_state;
        struct tdm_matmul_out outs[4];
        unsigned n_outs = 0;

        if (is_delta) {
                q_width = recipe->delta_v_heads * recipe->delta_size;
                outs[n_outs++] = out(&l->q, model->mixers.delta.in, tdm_recipe_delta_width(recipe));
                outs[n_outs++] = out(&l->delta.z, model->mixers.delta.z, q_width);
                outs[n_outs++] = out(&l->delta.alpha, model->mixers.delta.alpha, model->mixers.delta.v_stride);
                outs[n_outs++] = out(&l->delta.beta, model->mixers.delta.beta, model->mixers.delta.v_stride);
        } else if (has_state) {
                q_width = d;
                outs[n_outs++] = out(&l->q, model->mixers.conv.in, 3 * (size_t)d);
        } else if (recipe->has_gate) {
                outs[n_outs++] = out(&l->q, model->mixers.delta.in, 2 * (size_t)q_width);
        } else {
                outs[n_outs++] = out(&l->q, model->heads.q, q_width);
        }
        if (stores_first)
                store_all(model, step, layer, hidden);
        if (makes_keys)
                outs[n_outs++] = out(&l->k, model->heads.k, kv_width);
        if (makes_keys && !model->recipe.layers[layer].v_is_k)
                outs[n_outs++] = out(&l->v, model->heads.v, kv_width);
        if (model->recipe.laurel_rank > 0)
                outs[n_outs++] = out(&l->laurel_l, model->streams.rank, model->recipe.laurel_rank);

        for (uint32_t first = 0, n; first < step->head.n_rows; first += n) {
                struct pass pass = { .model = model,
                                     .step = step,
                                     .hidden = hidden + (size_t)first * model->hp.residual_width,
                                     .layer = layer,
                                     .at = tdm_host_active_at(model),
                                     .first_row = first };

                pass.n_rows = n = TDM_MIN(model->tile_rows, step->head.n_rows - first);

                if (tdm_host_has_streams(model))
                        tdm_host_streams_predict(model, layer, n, pass.hidden);
                pass.gain = l->attn_norm;
                pass.acts = &model->acts[TDM_HOST_QKV];
                pass_each_row(&pass, d, norm_row);
                tdm_matmul(pool, kernels, pass.acts, n, outs, n_outs);
                if (recipe->has_gate)
                        tdm_host_gate_split(model, layer, n);
                if (is_delta)
                        tdm_host_delta(model, step, layer, first, n);
                else if (has_state)
                        tdm_host_short_conv(model, step, layer, first, n);
                else if (stores_first)
                        attend_stored(&pass);
                else
                        tdm_host_attend(model, step, layer, first, n);

                if (recipe->has_gate)
                        tdm_host_gate_apply(model, layer, n);
                tdm_acts_prepare(&model->acts[TDM_HOST_ATTN_OUT], kernels, pool, model->heads.attn, q_width, n,
                                 q_width);
                tdm_matmul(pool, kernels, &model->acts[TDM_HOST_ATTN_OUT], n,
                           (struct tdm_matmul_out[]){ out(&l->o, model->y, d) }, 1);
                if (tdm_host_has_streams(model)) {
                        tdm_host_streams_join(model, layer, n, pass.hidden);
                        continue;
                }
                pass_add(&pass, l->post_attn_norm, l->post_attn_bias, false);
        }
}

/* ---- FFN ---- */

/* The gate's numbers are cut where few of them stay, which takes all of a row's. */
static void cut_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        struct tdm_host_model *model = pass->model;
        uint32_t n = model->hp.layers[pass->layer].d_ff;

        model->kernels->cut_below(model->gate + (size_t)row * n, n, model->recipe.layers[pass->layer].sparsity_scale);
}

static void activate_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        struct tdm_host_model *model = pass->model;
        uint32_t n = model->hp.layers[pass->layer].d_ff;
        float *gate = model->gate + (size_t)row * n;

        model->kernels->gelu_mul(gate, model->up + (size_t)row * n, n, gate);
        tdm_acts_prepare_row(&model->acts[TDM_HOST_DOWN], model->kernels, row, gate, n);
}

/* Few rows, whose dead neurons are not computed. For many rows, all that a layer has is computed, of panels made for
 * them where it has none. */
static void run_sparse(struct pass *pass)
{
        struct tdm_host_model *model = pass->model;
        const struct tdm_host_layer *l = &model->layers[pass->layer];
        struct tdm_acts *mid = &model->acts[TDM_HOST_DOWN];
        uint32_t n = model->hp.layers[pass->layer].d_ff;
        bool is_few = l->sparse.up.data && pass->n_rows <= TDM_SPARSE_ROWS_MAX;
        struct tdm_matmul_out gate = out(&l->gate, model->gate, n), up = out(&l->up, model->up, n),
                              down = out(&l->down, model->y, model->hp.d_model);

        up.panels = down.panels = &model->panels;
        tdm_matmul(model->pool, model->kernels, pass->acts, pass->n_rows, (struct tdm_matmul_out[]){ gate, up },
                   is_few ? 1 : 2);
        pass_each_row(pass, n, cut_row);
        if (is_few) {
                if (tdm_sparse_run(model->sparse, &l->sparse, model->pool, model->kernels, pass->acts, pass->n_rows,
                                   model->gate, model->up, mid, model->y))
                        return;
                tdm_matmul(model->pool, model->kernels, pass->acts, pass->n_rows, &up, 1);
        }
        pass_each_row(pass, n, activate_row);
        tdm_matmul(model->pool, model->kernels, mid, pass->n_rows, &down, 1);
}

static void activate_alone_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        struct tdm_host_model *model = pass->model;
        uint32_t n = model->hp.layers[pass->layer].d_ff;
        float *up = model->up + (size_t)row * n;

        model->kernels->gelu_erf(up, n, up);
        tdm_acts_prepare_row(&model->acts[TDM_HOST_DOWN], model->kernels, row, up, n);
}

/* An FFN without a gate. */
static void run_ungated(struct pass *pass)
{
        struct tdm_host_model *model = pass->model;
        const struct tdm_host_layer *l = &model->layers[pass->layer];
        uint32_t n = model->hp.layers[pass->layer].d_ff;

        tdm_matmul(model->pool, model->kernels, pass->acts, pass->n_rows,
                   (struct tdm_matmul_out[]){ out(&l->up, model->up, n) }, 1);
        pass_each_row(pass, n, activate_alone_row);
        tdm_matmul(model->pool, model->kernels, &model->acts[TDM_HOST_DOWN], pass->n_rows,
                   (struct tdm_matmul_out[]){ out(&l->down, model->y, model->hp.d_model) }, 1);
}

static void run_dense(struct pass *pass)
{
        struct tdm_host_model *model = pass->model;
        const struct tdm_host_layer *l = &model->layers[pass->layer];
        const struct tdm_gate_up gate_up = {
                .gate = &l->gate.matrix,
                .up = &l->up.matrix,
                .gate_act = l->gate.act,
                .up_act = l->up.act,
                .gate_bias = l->gate.bias,
                .up_bias = l->up.bias,
                .activation = (enum tdm_activation)model->recipe.layers[pass->layer].activation
        };

        pass->gain = l->ffn_norm;
        pass_each_row(pass, model->hp.d_model, norm_row);
        if (model->recipe.ffn == TDM_FFN_GELU) {
                run_ungated(pass);
                return;
        }
        if (model->recipe.layers[pass->layer].is_sparse) {
                run_sparse(pass);
                return;
        }
        tdm_matmul_gate_up(model->pool, model->kernels, pass->acts, pass->n_rows, &gate_up,
                           &model->acts[TDM_HOST_DOWN]);
        tdm_matmul(model->pool, model->kernels, &model->acts[TDM_HOST_DOWN], pass->n_rows,
                   (struct tdm_matmul_out[]){ out(&l->down, model->y, model->hp.d_model) }, 1);
}

/* The router's numbers are f32 throughout: another expert would be another model. So is a shared expert's gate. */
static void run_router(const struct pass *pass)
{
        struct tdm_host_model *model = pass->model;
        const struct tdm_host_layer *l = &model->layers[pass->layer];
        struct tdm_matmul_out outs[2] = { out(&l->router, model->routed.router, model->routed.router_stride) };
        bool has_gate = model->recipe.layers[pass->layer].has_shared_gate;

        if (has_gate)
                outs[1] = out(&l->shared.scale, model->routed.router + model->routed.gate_at,
                              model->routed.router_stride);
        tdm_matmul(model->pool, model->kernels, pass->acts, pass->n_rows, outs, has_gate ? 2 : 1);
}

static void run_experts(const struct pass *pass, float *y)
{
        struct tdm_host_model *model = pass->model;

        tdm_experts_run(model->routed.experts, &model->layers[pass->layer].experts, model->pool, model->kernels,
                        pass->acts, pass->n_rows, model->routed.router, model->routed.router_stride, y,
                        model->hp.d_model);
}

static void scale_router_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        const struct tdm_host_model *model = pass->model;
        float *z = model->routed.router + (size_t)row * model->routed.router_stride,
              scale = 1.0f / sqrtf((float)model->hp.d_model);

        for (uint32_t i = 0; i < model->layers[pass->layer].experts.n_experts; i++)
                z[i] *= scale;
}

static void add_experts_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        const struct tdm_host_model *model = pass->model;
        const struct tdm_host_layer *l = &model->layers[pass->layer];
        uint32_t d = model->hp.d_model;
        float *y = model->y + (size_t)row * d;

        model->kernels->rmsnorm(y, l->post_dense_norm, d, model->recipe.norm_eps, y);
        model->kernels->rmsnorm_add(model->routed.y + (size_t)row * d, l->post_experts_norm, d, model->recipe.norm_eps,
                                    y);
}

/* Experts and a dense FFN beside them. All three inputs are made of the same rows, one after the other. */
static void run_beside(struct pass *pass)
{
        struct tdm_host_model *model = pass->model;
        const struct tdm_host_layer *l = &model->layers[pass->layer];
        uint32_t d = model->hp.d_model;

        pass->gain = l->router_scale;
        pass_each_row(pass, d, norm_row);
        run_router(pass);
        pass_each_row(pass, l->experts.n_experts, scale_router_row);
        pass->gain = l->experts_norm;
        pass_each_row(pass, d, norm_row);
        run_experts(pass, model->routed.y);
        run_dense(pass);
        pass_each_row(pass, d, add_experts_row);
}

void tdm_host_ffn(struct tdm_host_model *model, const struct tdm_step *step, uint32_t layer, float *hidden)
{
        const struct tdm_host_layer *l = &model->layers[layer];
        uint32_t d = model->hp.d_model;

        for (uint32_t first = 0, n; first < step->head.n_rows; first += n) {
                struct pass pass = { .model = model,
                                     .hidden = hidden + (size_t)first * model->hp.residual_width,
                                     .layer = layer,
                                     .at = tdm_host_middle_at(model) };

                pass.n_rows = n = TDM_MIN(model->tile_rows, step->head.n_rows - first);

                pass.acts = &model->acts[TDM_HOST_GATE_UP];
                if (model->recipe.layers[layer].has_dense_beside) {
                        run_beside(&pass);
                } else if (l->experts.n_experts > 0) {
                        pass.gain = l->ffn_norm;
                        pass_each_row(&pass, d, norm_row);
                        run_router(&pass);
                        run_experts(&pass, model->y);
                        if (model->recipe.layers[layer].d_shared > 0)
                                tdm_host_shared_add(model, layer, n);
                } else {
                        run_dense(&pass);
                }
                pass_add(&pass, l->post_ffw_norm, l->post_ffw_bias, true);
                if (tdm_host_has_streams(model))
                        tdm_host_streams_correct(model, layer, n, pass.hidden);
                tdm_host_layer_end(model, step, layer, first, n, pass.hidden);
        }
}

/* ---- head and sample ---- */

static void head_norm_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        struct tdm_host_model *model = pass->model;
        const float *h =
                tdm_host_has_streams(model) ?
                        model->streams.folded + (size_t)row * model->hp.d_model :
                        pass->hidden + (size_t)pass->step->logits[pass->first_row + row].row * model->hp.residual_width;
        float *y = model->row + thread * model->row_stride;

        norm(model, h, pass->gain, model->hp.d_model, y);
        tdm_acts_prepare_row(pass->acts, model->kernels, row, y, model->hp.d_model);
}

/* y = cap tanh(x / cap), tanh(z) = 1 - 2 / (exp(2z) + 1). */
static void softcap_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        struct tdm_host_model *model = pass->model;
        float *x = model->logits + (size_t)row * model->logits_stride, cap = model->recipe.logit_softcap, e[64];

        for (uint32_t i = 0, n; i < model->hp.n_vocab; i += n) {
                n = TDM_MIN((uint32_t)TDM_ARRAY_SIZE(e), model->hp.n_vocab - i);
                for (uint32_t j = 0; j < n; j++)
                        e[j] = x[i + j] * (2.0f / cap);
                model->kernels->exp_array(e, n, e);
                for (uint32_t j = 0; j < n; j++)
                        x[i + j] = cap * (1.0f - 2.0f / (e[j] + 1.0f));
        }
}

/* Logits [first, first + n) of the step into model->logits. */
static void make_logits(struct tdm_host_model *model, const struct tdm_step *step, const float *hidden, uint32_t first,
                        uint32_t n)
{
        struct pass pass = { .model = model,
                             .step = step,
                             .hidden = (float *)hidden,
                             .gain = model->output_norm,
                             .acts = &model->acts[TDM_HOST_HEAD],
                             .first_row = first,
                             .n_rows = n };

        if (tdm_host_has_streams(model))
                tdm_host_streams_fold(model, step, hidden, first, n);
        pass_each_row(&pass, model->hp.d_model, head_norm_row);
        tdm_matmul(model->pool, model->kernels, pass.acts, n,
                   (struct tdm_matmul_out[]){ out(&model->output, model->logits, model->logits_stride) }, 1);
        if (model->recipe.logit_softcap > 0)
                pass_each_row(&pass, model->hp.n_vocab, softcap_row);
}

void tdm_host_head(struct tdm_host_model *model, const struct tdm_step *step, const float *hidden)
{
        if (step->head.n_logits > 0 && step->head.n_logits <= model->logits_rows)
                make_logits(model, step, hidden, 0, step->head.n_logits);
}

/* The passes over all logits of rows that are fewer than the threads, or left over for them: each row in parts. */
struct scan {
        struct tdm_host_model *model;
        uint32_t first_row;
        uint32_t n_parts, part;          /* of a row; logits of one */
        float max[TDM_POOL_MAX_THREADS]; /* [n_rows][n_parts], then of the row in its first */
};

static uint8_t *scratch_of(const struct tdm_host_model *model, unsigned i)
{
        return model->sampler.scratch + i * model->sampler.stride;
}

static const float *row_logits(const struct tdm_host_model *model, uint32_t row)
{
        return model->logits + (size_t)row * model->logits_stride;
}

static void maxima_of_part(void *arg, unsigned chunk, unsigned thread)
{
        struct scan *scan = arg;
        const struct tdm_host_model *model = scan->model;
        uint32_t row = chunk / scan->n_parts, first = chunk % scan->n_parts * scan->part;

        scan->max[chunk] = tdm_sample_maxima(row_logits(model, scan->first_row + row), model->hp.n_vocab, first,
                                             TDM_MIN(scan->part, model->hp.n_vocab - first), scratch_of(model, row));
}

static void sums_of_part(void *arg, unsigned chunk, unsigned thread)
{
        struct scan *scan = arg;
        const struct tdm_host_model *model = scan->model;
        uint32_t row = chunk / scan->n_parts, first = chunk % scan->n_parts * scan->part;

        tdm_sample_sums(row_logits(model, scan->first_row + row), first, TDM_MIN(scan->part, model->hp.n_vocab - first),
                        scan->max[row * scan->n_parts], scratch_of(model, row));
}

/* False: each row is one thread's. Else scratch i has what was found in row first_row + i. */
static bool scan_rows(struct tdm_host_model *model, uint32_t first_row, uint32_t n_rows)
{
        uint32_t n_vocab = model->hp.n_vocab;
        struct scan scan;

        scan.n_parts = TDM_MIN(tdm_pool_n_threads(model->pool) / n_rows, n_vocab / SCAN_LEAST);
        if (scan.n_parts < 2)
                return false;
        scan.model = model;
        scan.first_row = first_row;
        scan.part = TDM_ALIGN_UP(TDM_DIV_UP(n_vocab, scan.n_parts), TDM_SAMPLE_SUM_BLOCK);
        scan.n_parts = TDM_DIV_UP(n_vocab, scan.part);
        tdm_pool_run(model->pool, n_rows * scan.n_parts, maxima_of_part, &scan);
        for (uint32_t row = 0; row < n_rows; row++) {
                float *max = scan.max + row * scan.n_parts;

                for (uint32_t i = 1; i < scan.n_parts; i++)
                        max[0] = isnan(max[0]) || max[0] > max[i] ? max[0] : max[i];
        }
        tdm_pool_run(model->pool, n_rows * scan.n_parts, sums_of_part, &scan);
        for (uint32_t row = 0; row < n_rows; row++)
                tdm_sample_take_own(scan.max[row * scan.n_parts], scratch_of(model, row));
        return true;
}

struct sample_job {
        struct tdm_host_model *model;
        const struct tdm_step *step;
        uint32_t first;     /* of the step's logits: row 0 of the model's */
        uint32_t first_row; /* of those that are drawn now */
        bool scanned;
        struct tdm_result *results;
        uint64_t masks_until_ns;
        _Atomic uint32_t bad_row; /* UINT32_MAX: none */
};

static void sample_one(void *arg, unsigned chunk, unsigned thread)
{
        struct sample_job *job = arg;
        struct tdm_host_model *model = job->model;
        const struct tdm_step *step = job->step;
        uint32_t row = job->first_row + chunk, i = job->first + row;
        const struct tdm_step_logits *l = &step->logits[i];
        struct tdm_result result = { .token = TDM_NO_TOKEN };
        struct tdm_past past = tdm_step_past(step, i);
        const uint64_t *allowed;
        int r = -ENODATA;

        if (tdm_step_mask(step, i, job->masks_until_ns, &allowed)) {
                const float *logits = row_logits(model, row);
                uint8_t *scratch = scratch_of(model, job->scanned ? chunk : thread);

                if (!job->scanned)
                        tdm_sample_scan(logits, model->hp.n_vocab, scratch);
                r = tdm_sample_finish(logits, model->hp.n_vocab, &l->sampling, allowed, &past,
                                      step->rows[l->row].position + 1, l->target, scratch, &result);
        }
        if (r < 0 && r != -ENODATA)
                atomic_store_explicit(&job->bad_row, l->row, memory_order_relaxed);
        else
                job->results[i] = result;
}

static void sample_rows(struct sample_job *job, uint32_t first_row, uint32_t n_rows)
{
        job->first_row = first_row;
        job->scanned = scan_rows(job->model, first_row, n_rows);
        tdm_pool_run(job->model->pool, n_rows, sample_one, job);
}

int tdm_host_sample(struct tdm_host_model *model, const struct tdm_step *step, const float *hidden,
                    struct tdm_result *results, struct tdm_error *err)
{
        bool tiled = step->head.n_logits > model->logits_rows;
        unsigned n_threads = tdm_pool_n_threads(model->pool);

        for (uint32_t first = 0, n, n_apart; first < step->head.n_logits; first += n) {
                struct sample_job job = {
                        .model = model, .step = step, .first = first, .results = results, .bad_row = UINT32_MAX
                };

                n = TDM_MIN(step->head.n_logits - first, model->logits_rows);
                if (tiled)
                        make_logits(model, step, hidden, first, n);
                job.masks_until_ns = tdm_now_ns() + TDM_STEP_MASK_WAIT_NS;
                /* Rows that are left over for the threads are looked at in parts, where that leaves no thread idle. */
                n_apart = n % n_threads;
                if (n_apart > n_threads / 2)
                        n_apart = 0;
                if (n > n_apart)
                        sample_rows(&job, 0, n - n_apart);
                if (n_apart > 0)
                        sample_rows(&job, n - n_apart, n_apart);
                if (job.bad_row != UINT32_MAX)
                        return tdm_error_set(
                                err, -EDOM,
                                "host device: the logits of row %u (position %u) hold a NaN (damaged weights?)",
                                job.bad_row, step->rows[job.bad_row].position);
        }
        return 0;
}
