/* Several streams, and inputs of layers: see streams.h. Formulas: Hugging Face transformers' modeling_gemma3n.py
 * and modular_gemma4.py.
 *
 * All of it is row by row but for the matrix products, so a row's values depend on that row alone. Sums of squares are
 * folded in the norms' order (kernels.h); what is not a kernel is written in plain C in this file, so that it has one
 * order whatever the instruction set: each element is a chain of multiplications and additions from the first stream
 * to the last. Nothing is allocated here while steps run. */
#include <assert.h>
#include <math.h>

#include "engine/host/streams.h"

#define FLOOR 1e-5f /* of a stream's mean square, where it is divided by */
#define SQRT_HALF 0.70710678f
#define CHUNK_VALUES 64u

struct pass {
        struct tdm_host_model *model;
        const struct tdm_step *step;
        const struct tdm_host_layer *layer;
        float *hidden; /* the tile's, or the step's where rows are those of logits */
        uint32_t layer_index, first, n;
        uint32_t at; /* where in a row's residual */
        void (*row)(const struct pass *pass, uint32_t row, unsigned thread);
};

static void one_row(void *arg, unsigned row, unsigned thread)
{
        const struct pass *pass = arg;

        pass->row(pass, row, thread);
}

static void streams_each_row(struct pass *pass, void (*row)(const struct pass *pass, uint32_t row, unsigned thread))
{
        pass->row = row;
        tdm_pool_run(pass->model->pool, pass->n, one_row, pass);
}

static struct pass make_pass(struct tdm_host_model *model, const struct tdm_step *step, uint32_t layer, uint32_t first,
                             uint32_t n, float *hidden)
{
        return (struct pass){ .model = model,
                              .step = step,
                              .layer = &model->layers[layer],
                              .hidden = hidden,
                              .layer_index = layer,
                              .first = first,
                              .n = n };
}

static float *row_of(const struct pass *pass, uint32_t row)
{
        return pass->hidden + (size_t)row * pass->model->hp.residual_width;
}

static float *scratch_of(const struct pass *pass, unsigned thread)
{
        return pass->model->row + thread * pass->model->row_stride;
}

/* Rows first … of a matrix that is several below each other. first: a multiple of TDM_PANEL_ROWS. */
static struct tdm_matrix matrix_rows(const struct tdm_matrix *matrix, uint32_t first, uint32_t n)
{
        struct tdm_matrix part = *matrix;

        part.data += first / TDM_PANEL_ROWS * matrix->panel_bytes;
        part.rows = n;
        return part;
}

static void streams_multiply(const struct pass *pass, const struct tdm_acts *acts, const struct tdm_matrix *matrix,
                             enum tdm_act act, float *y, size_t y_stride)
{
        tdm_matmul(pass->model->pool, pass->model->kernels, acts, pass->n,
                   &(struct tdm_matmul_out){ matrix, act, y, y_stride }, 1);
}

/* ---- what a token's row of the embedding is ---- */

/* Kept until another token takes the row's place: all layers ask for the same rows. */
static void embedded_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        struct tdm_host_model *model = pass->model;
        uint32_t token = pass->step->rows[pass->first + row].token, d = model->hp.d_model;
        float *y = scratch_of(pass, thread);

        if (model->streams.embedded_token[row] == token)
                return;
        tdm_weights_row(model->weights, model->embedding.tokens, token, y);
        for (uint32_t i = 0; i < d; i++)
                y[i] *= model->recipe.embed_scale;
        tdm_acts_prepare_row(&model->streams.embedded, model->kernels, row, y, d);
        model->streams.embedded_token[row] = token;
}

/* ---- streams ---- */

/* y becomes as long as x. */
static void take_length(const struct pass *pass, const float *x, float *y)
{
        const struct tdm_host_model *model = pass->model;
        uint32_t d = model->hp.d_model;
        float x_square = model->kernels->mean_square(x, d), y_square = model->kernels->mean_square(y, d);
        float scale = sqrtf(x_square) / sqrtf(TDM_MAX(y_square, FLOOR));

        for (uint32_t i = 0; i < d; i++)
                y[i] *= scale;
}

static void begin_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        float *h = row_of(pass, row);

        for (uint32_t i = 1; i < pass->model->recipe.n_streams; i++)
                take_length(pass, h, h + (size_t)i * pass->model->hp.d_model);
}

void tdm_host_streams_begin(struct tdm_host_model *model, const struct tdm_step *step, uint32_t first, uint32_t n,
                            float *hidden)
{
        struct pass pass = make_pass(model, step, 0, first, n, hidden);
        uint32_t d = model->hp.d_model;

        streams_each_row(&pass, embedded_row);
        for (uint32_t i = 0; i + 1 < model->recipe.n_streams; i++) {
                struct tdm_matrix matrix = matrix_rows(&model->streams.altup_proj.matrix, i * d, d);

                streams_multiply(&pass, &model->streams.embedded, &matrix, model->streams.altup_proj.act,
                                 hidden + (size_t)(i + 1) * d, model->hp.residual_width);
        }
        streams_each_row(&pass, begin_row);
}

static void router_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        struct tdm_host_model *model = pass->model;
        uint32_t d = model->hp.d_model;
        float *y = scratch_of(pass, thread), scale = 1.0f / (float)d;

        model->kernels->rmsnorm(row_of(pass, row) + pass->at, pass->layer->altup_norm, d, model->recipe.norm_eps, y);
        for (uint32_t i = 0; i < d; i++)
                y[i] *= scale;
        tdm_acts_prepare_row(&model->acts[TDM_HOST_SIDE], model->kernels, row, y, d);
}

/* The router's numbers of what rows hold at `at`, into streams.altup: tanh(z) = 1 - 2 / (exp(2z) + 1). */
static void route(struct pass *pass, uint32_t at)
{
        struct tdm_host_model *model = pass->model;

        pass->at = at;
        streams_each_row(pass, router_row);
        streams_multiply(pass, &model->acts[TDM_HOST_SIDE], &pass->layer->altup_router.matrix,
                         pass->layer->altup_router.act, model->streams.altup, TDM_MAX_STREAMS);
        for (uint32_t row = 0; row < pass->n; row++) {
                float *r = model->streams.altup + (size_t)row * TDM_MAX_STREAMS, e[TDM_MAX_STREAMS];

                for (uint32_t i = 0; i < model->recipe.n_streams; i++)
                        e[i] = 2 * r[i];
                model->kernels->exp_array(e, model->recipe.n_streams, e);
                for (uint32_t i = 0; i < model->recipe.n_streams; i++)
                        r[i] = 1.0f - 2.0f / (e[i] + 1.0f);
        }
}

/* Stream i gets c[i n_streams + j] times stream j added. */
static void predict_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        const struct tdm_host_model *model = pass->model;
        const float *r = model->streams.altup + (size_t)row * TDM_MAX_STREAMS;
        uint32_t n = model->recipe.n_streams, d = model->hp.d_model;
        float *h = row_of(pass, row), c[TDM_MAX_STREAMS * TDM_MAX_STREAMS], was[TDM_MAX_STREAMS][CHUNK_VALUES];

        for (uint32_t i = 0; i < n * n; i++) {
                c[i] = 0;
                for (uint32_t k = 0; k < n; k++)
                        c[i] += pass->layer->predict[i * n + k] * r[k];
        }
        for (uint32_t first = 0, width; first < d; first += width) {
                width = TDM_MIN(d - first, CHUNK_VALUES);
                for (uint32_t j = 0; j < n; j++)
                        memcpy(was[j], h + (size_t)j * d + first, width * sizeof(float));
                for (uint32_t i = 0; i < n; i++) {
                        float *y = h + (size_t)i * d + first;

                        for (uint32_t j = 0; j < n; j++)
                                for (uint32_t k = 0; k < width; k++)
                                        y[k] += c[i * n + j] * was[j][k];
                }
        }
}

void tdm_host_streams_predict(struct tdm_host_model *model, uint32_t layer, uint32_t n, float *hidden)
{
        struct pass pass = make_pass(model, NULL, layer, 0, n, hidden);

        route(&pass, tdm_host_active_at(model));
        streams_each_row(&pass, predict_row);
}

/* (a + attention + z + low rank) / sqrt 2, where z is the input of both. */
static void join_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        const struct tdm_host_model *model = pass->model;
        const struct tdm_kernels *kernels = model->kernels;
        uint32_t d = model->hp.d_model;
        float eps = model->recipe.norm_eps, *z = scratch_of(pass, thread), *middle;
        const float *a = row_of(pass, row) + tdm_host_active_at(model);

        middle = row_of(pass, row) + tdm_host_middle_at(model);
        memcpy(middle, a, d * sizeof(float));
        kernels->rmsnorm_add(model->y + (size_t)row * d, pass->layer->post_attn_norm, d, eps, middle);
        kernels->rmsnorm(a, pass->layer->attn_norm, d, eps, z);
        kernels->rmsnorm_add(model->streams.y + (size_t)row * d, pass->layer->laurel_norm, d, eps, z);
        for (uint32_t i = 0; i < d; i++)
                middle[i] = (middle[i] + z[i]) * SQRT_HALF;
}

void tdm_host_streams_join(struct tdm_host_model *model, uint32_t layer, uint32_t n, float *hidden)
{
        struct pass pass = make_pass(model, NULL, layer, 0, n, hidden);
        uint32_t rank = model->recipe.laurel_rank;

        tdm_acts_prepare(&model->acts[TDM_HOST_SIDE], model->kernels, model->pool, model->streams.rank, rank, n, rank);
        streams_multiply(&pass, &model->acts[TDM_HOST_SIDE], &pass.layer->laurel_r.matrix, pass.layer->laurel_r.act,
                         model->streams.y, model->hp.d_model);
        streams_each_row(&pass, join_row);
}

static void correct_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        const struct tdm_host_model *model = pass->model;
        const float *r = model->streams.altup + (size_t)row * TDM_MAX_STREAMS;
        uint32_t n = model->recipe.n_streams, d = model->hp.d_model;
        float *h = row_of(pass, row), *difference = scratch_of(pass, thread);
        const float *made = h + tdm_host_middle_at(model), *predicted = h + tdm_host_active_at(model);

        for (uint32_t k = 0; k < d; k++)
                difference[k] = made[k] - predicted[k];
        for (uint32_t i = 0; i < n; i++) {
                float c = 1, *y = h + (size_t)i * d;

                for (uint32_t k = 0; k < n; k++)
                        c += pass->layer->correct[i * n + k] * r[k];
                for (uint32_t k = 0; k < d; k++)
                        y[k] += c * difference[k];
        }
}

void tdm_host_streams_correct(struct tdm_host_model *model, uint32_t layer, uint32_t n, float *hidden)
{
        struct pass pass = make_pass(model, NULL, layer, 0, n, hidden);

        route(&pass, tdm_host_middle_at(model));
        streams_each_row(&pass, correct_row);
}

/* ---- inputs of layers ---- */

/* Norms a row's projection in streams.input, and adds the token's row of the file. */
static void input_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        struct tdm_host_model *model = pass->model;
        uint32_t width = model->recipe.per_layer_width, bytes = pass->step->input_bytes;
        float *p = model->streams.input + (size_t)row * width, *e = scratch_of(pass, thread);
        float scale = 1.0f / sqrtf((float)model->hp.d_model), e_scale = sqrtf((float)width);

        for (uint32_t i = 0; i < width; i++)
                p[i] *= scale;
        model->kernels->rmsnorm(p, model->streams.per_layer_norm, width, model->recipe.norm_eps, p);
        tdm_weights_file_row(model->streams.per_layer_type, pass->step->inputs + (size_t)(pass->first + row) * bytes,
                             pass->layer_index * width, width, e);
        for (uint32_t i = 0; i < width; i++)
                p[i] = (p[i] + e[i] * e_scale) * SQRT_HALF;
}

/* Rounds the row that the gate's matrix reads. */
static void gate_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        struct tdm_host_model *model = pass->model;
        const float *h = row_of(pass, row) + tdm_host_active_at(model);
        uint32_t d = model->hp.d_model;
        float *y = scratch_of(pass, thread);

        for (uint32_t i = 0; pass->layer->correct_scale && i < d; i++)
                y[i] = h[i] * pass->layer->correct_scale[i];
        tdm_acts_prepare_row(&model->acts[TDM_HOST_SIDE], model->kernels, row, pass->layer->correct_scale ? y : h, d);
}

static void gated_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        struct tdm_host_model *model = pass->model;
        uint32_t width = model->recipe.per_layer_width;
        float *p = model->streams.input + (size_t)row * width, *gate = model->streams.input_gate + (size_t)row * width;

        model->kernels->gelu_mul(gate, p, width, gate);
        tdm_acts_prepare_row(&model->acts[TDM_HOST_SIDE], model->kernels, row, gate, width);
}

/* To every stream but the first, or to the only one. */
static void add_input_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        const struct tdm_host_model *model = pass->model;
        uint32_t d = model->hp.d_model, n = model->recipe.n_streams;

        for (uint32_t i = n > 1; i < n; i++)
                model->kernels->rmsnorm_add(model->streams.y + (size_t)row * d, pass->layer->input_norm, d,
                                            model->recipe.norm_eps, row_of(pass, row) + (size_t)i * d);
}

static void scale_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        const struct tdm_host_model *model = pass->model;
        float *h = row_of(pass, row), scale = pass->layer->output_scale;

        for (uint32_t i = 0; i < model->recipe.n_streams * model->hp.d_model; i++)
                h[i] *= scale;
}

void tdm_host_layer_end(struct tdm_host_model *model, const struct tdm_step *step, uint32_t layer, uint32_t first,
                        uint32_t n, float *hidden)
{
        const struct tdm_layer_recipe *recipe = &model->recipe.layers[layer];
        struct pass pass = make_pass(model, step, layer, first, n, hidden);
        const struct tdm_host_layer *l = pass.layer;
        uint32_t width = model->recipe.per_layer_width;

        if (recipe->has_input) {
                struct tdm_matrix matrix = matrix_rows(&model->streams.per_layer_proj.matrix, layer * width, width);

                streams_each_row(&pass, embedded_row);
                streams_multiply(&pass, &model->streams.embedded, &matrix, model->streams.per_layer_proj.act,
                                 model->streams.input, width);
                streams_each_row(&pass, input_row);
                streams_each_row(&pass, gate_row);
                streams_multiply(&pass, &model->acts[TDM_HOST_SIDE], &l->input_gate.matrix, l->input_gate.act,
                                 model->streams.input_gate, width);
                streams_each_row(&pass, gated_row);
                streams_multiply(&pass, &model->acts[TDM_HOST_SIDE], &l->input_proj.matrix, l->input_proj.act,
                                 model->streams.y, model->hp.d_model);
                streams_each_row(&pass, add_input_row);
        }
        if (recipe->has_output_scale)
                streams_each_row(&pass, scale_row);
}

/* ---- the end ---- */

static float *logits_row(const struct pass *pass, uint32_t row)
{
        return row_of(pass, pass->step->logits[pass->first + row].row);
}

static void folded_input_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        tdm_acts_prepare_row(&pass->model->acts[TDM_HOST_SIDE], pass->model->kernels, row,
                             logits_row(pass, row) + pass->at, pass->model->hp.d_model);
}

static void fold_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        const struct tdm_host_model *model = pass->model;
        uint32_t d = model->hp.d_model;
        float *u = model->streams.y + (size_t)row * d, *y = model->streams.folded + (size_t)row * d;

        take_length(pass, logits_row(pass, row), u);
        for (uint32_t i = 0; i < d; i++)
                y[i] += u[i];
}

static void first_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        uint32_t d = pass->model->hp.d_model;

        memcpy(pass->model->streams.folded + (size_t)row * d, logits_row(pass, row), d * sizeof(float));
}

static void average_row(const struct pass *pass, uint32_t row, unsigned thread)
{
        uint32_t d = pass->model->hp.d_model;
        float *y = pass->model->streams.folded + (size_t)row * d, scale = 1.0f / (float)pass->model->recipe.n_streams;

        for (uint32_t i = 0; i < d; i++)
                y[i] *= scale;
}

void tdm_host_streams_fold(struct tdm_host_model *model, const struct tdm_step *step, const float *hidden,
                           uint32_t first, uint32_t n)
{
        struct pass pass = make_pass(model, step, 0, first, n, (float *)hidden);
        uint32_t d = model->hp.d_model;

        streams_each_row(&pass, first_row);
        for (uint32_t i = 1; i < model->recipe.n_streams; i++) {
                struct tdm_matrix matrix = matrix_rows(&model->streams.altup_unembd.matrix, (i - 1) * d, d);

                pass.at = i * d;
                streams_each_row(&pass, folded_input_row);
                streams_multiply(&pass, &model->acts[TDM_HOST_SIDE], &matrix, model->streams.altup_unembd.act,
                                 model->streams.y, d);
                streams_each_row(&pass, fold_row);
        }
        streams_each_row(&pass, average_row);
}

/* ---- loading ---- */

static bool has_side(const struct tdm_host_model *model)
{
        return tdm_host_has_streams(model) || model->recipe.per_layer_width > 0;
}

static void take_matrix(struct tdm_host_model *model, enum tdm_tensor_kind kind, uint32_t layer, enum tdm_act wanted,
                        struct tdm_host_weight *ret)
{
        const struct tdm_weights_tensor *tensor = tdm_weights_find(model->weights, kind, layer);

        if (!tensor)
                return;
        tdm_matrix_init(&ret->matrix, model->weights, tensor);
        ret->act = tdm_matmul_act(tensor->type, wanted);
}

static const float *take_vector(const struct tdm_host_model *model, enum tdm_tensor_kind kind, uint32_t layer)
{
        const struct tdm_weights_tensor *tensor = tdm_weights_find(model->weights, kind, layer);

        return tensor ? (const float *)(model->weights + tensor->offset) : NULL;
}

void tdm_host_streams_weights(struct tdm_host_model *model, enum tdm_act qkv, enum tdm_act side)
{
        const struct tdm_weights_tensor *rows = tdm_weights_find(model->weights, TDM_TENSOR_PER_LAYER_EMBD, 0);

        model->streams.per_layer_type = rows ? rows->type : 0;
        take_matrix(model, TDM_TENSOR_PER_LAYER_PROJ, 0, side, &model->streams.per_layer_proj);
        model->streams.per_layer_norm = take_vector(model, TDM_TENSOR_PER_LAYER_PROJ_NORM, 0);
        take_matrix(model, TDM_TENSOR_ALTUP_PROJ, 0, side, &model->streams.altup_proj);
        take_matrix(model, TDM_TENSOR_ALTUP_UNEMBD, 0, side, &model->streams.altup_unembd);
        for (uint32_t i = 0; i < model->hp.n_layers; i++) {
                struct tdm_host_layer *l = &model->layers[i];
                const float *scale = take_vector(model, TDM_TENSOR_OUTPUT_SCALE, i);

                take_matrix(model, TDM_TENSOR_LAUREL_L, i, qkv, &l->laurel_l);
                take_matrix(model, TDM_TENSOR_LAUREL_R, i, side, &l->laurel_r);
                take_matrix(model, TDM_TENSOR_ALTUP_ROUTER, i, TDM_ACT_F32, &l->altup_router);
                take_matrix(model, TDM_TENSOR_INPUT_GATE, i, side, &l->input_gate);
                take_matrix(model, TDM_TENSOR_INPUT_PROJ, i, side, &l->input_proj);
                l->laurel_norm = take_vector(model, TDM_TENSOR_LAUREL_NORM, i);
                l->altup_norm = take_vector(model, TDM_TENSOR_ALTUP_ROUTER_NORM, i);
                l->predict = take_vector(model, TDM_TENSOR_ALTUP_PREDICT, i);
                l->correct = take_vector(model, TDM_TENSOR_ALTUP_CORRECT, i);
                l->correct_scale = take_vector(model, TDM_TENSOR_ALTUP_CORRECT_SCALE, i);
                l->input_norm = take_vector(model, TDM_TENSOR_INPUT_NORM, i);
                l->output_scale = scale ? *scale : 1;
        }
}

static bool streams_scratch_take(struct tdm_host_model *model, float **ret, size_t n)
{
        size_t bytes = TDM_ALIGN_UP(n * sizeof(float), (size_t)64);

        *ret = aligned_alloc(64, bytes);
        model->scratch_bytes += bytes;
        return *ret != NULL;
}

bool tdm_host_streams_scratch(struct tdm_host_model *model)
{
        const struct tdm_recipe *recipe = &model->recipe;
        uint32_t d = model->hp.d_model, width = recipe->per_layer_width;
        size_t rows = model->tile_rows, most = TDM_MAX(rows, model->logits_rows);
        unsigned side = 1u << model->streams.altup_unembd.act,
                 embedded = 1u << model->streams.altup_proj.act | 1u << model->streams.per_layer_proj.act;

        if (!has_side(model))
                return true;
        for (uint32_t i = 0; i < model->hp.n_layers; i++) {
                const struct tdm_host_layer *l = &model->layers[i];

                side |= 1u << l->laurel_r.act | 1u << l->altup_router.act | 1u << l->input_gate.act |
                        1u << l->input_proj.act;
        }
        if (tdm_acts_init(&model->acts[TDM_HOST_SIDE], side, (uint32_t)most,
                          TDM_MAX(d, TDM_MAX(width, recipe->laurel_rank))) < 0 ||
            tdm_acts_init(&model->streams.embedded, embedded, (uint32_t)rows, d) < 0 ||
            !streams_scratch_take(model, (float **)&model->streams.embedded_token, rows) ||
            !streams_scratch_take(model, &model->streams.y, most * d) ||
            !streams_scratch_take(model, &model->streams.folded, (size_t)model->logits_rows * d) ||
            !streams_scratch_take(model, &model->streams.rank, rows * TDM_MAX(recipe->laurel_rank, 1u)) ||
            !streams_scratch_take(model, &model->streams.altup, rows * TDM_MAX_STREAMS) ||
            !streams_scratch_take(model, &model->streams.input, rows * TDM_MAX(width, 1u)) ||
            !streams_scratch_take(model, &model->streams.input_gate, rows * TDM_MAX(width, 1u)))
                return false;
        memset(model->streams.embedded_token, 0xff, rows * sizeof(uint32_t));
        model->scratch_bytes += model->acts[TDM_HOST_SIDE].memory_bytes + model->streams.embedded.memory_bytes;
        return true;
}

void tdm_host_streams_free(struct tdm_host_model *model)
{
        tdm_acts_deinit(&model->streams.embedded);
        free(model->streams.embedded_token);
        free(model->streams.y);
        free(model->streams.folded);
        free(model->streams.rank);
        free(model->streams.altup);
        free(model->streams.input);
        free(model->streams.input_gate);
}
