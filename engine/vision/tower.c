/* The forward pass of a vision tower; see tower.h. It reads top to bottom in tdm_tower_run(). Rows go through matrices
 * in tiles, so that what a tile makes is still in a cache; a row's numbers do not depend on its tile. */
#include <math.h>

#include "engine/image/patches.h"
#include "engine/vision/private.h"

#define TILE_ROWS 128u   /* through matrices together */
#define QUERY_ROWS 16u   /* of a head that share its keys */
#define CHUNK_ROWS 8u    /* of a pass that goes row by row */
#define PARTIAL_SUMS 16u /* of a LayerNorm */

struct tdm_tower {
        struct tdm_projector p;
        struct tdm_tower_options options;
        const struct tdm_kernels *kernels;
        struct tdm_pool *pool;
        struct tower_weights weights;
        struct tower_memory memory;
        struct tdm_acts acts;
        uint32_t n;                    /* patches */
        size_t row, patch_row, ff_row; /* numbers from one row to the next: whole blocks, zeros behind what counts */
        float *x;                      /* [n][row] */
        float *q, *mixed;              /* [n][row]: queries, and what attention makes of them */
        float *k, *v, *y;              /* [TILE_ROWS][row] */
        float *ff;                     /* [TILE_ROWS][ff_row] */
        float *ones;                   /* [d_ff] */
        float *band;                   /* [grid][patch_row] */
        float *pooled;                 /* [rows][row] */
        uint8_t *kv;                   /* [n_heads][pages][part_bytes] */
        uint64_t part_bytes;
        uint32_t n_pages;
        float *scratch; /* [n_threads][scratch_floats] */
        size_t scratch_floats;
        float *thread_rows; /* [n_threads][row] */
};

/* Rows first … first + n - 1 of something, on the pool. */
struct rows_pass {
        struct tdm_tower *tower;
        uint32_t first, n;
        const struct tower_norm *norm;
        void (*row)(const struct rows_pass *pass, uint32_t i, unsigned thread); /* i: from 0 on */
};

static void run_rows_chunk(void *arg, unsigned chunk, unsigned thread)
{
        const struct rows_pass *pass = arg;

        for (uint32_t i = chunk * CHUNK_ROWS; i < TDM_MIN((chunk + 1) * CHUNK_ROWS, pass->n); i++)
                pass->row(pass, i, thread);
}

static void tower_each_row(struct rows_pass *pass)
{
        tdm_pool_run(pass->tower->pool, TDM_DIV_UP(pass->n, CHUNK_ROWS), run_rows_chunk, pass);
}

static void watch(const struct tdm_tower *tower, enum tdm_tower_stage stage, uint32_t layer, uint32_t first,
                  const float *rows, uint32_t n_rows, uint32_t cols, size_t stride)
{
        if (tower->options.watch)
                tower->options.watch(tower->options.userdata, stage, layer, first, rows, n_rows, cols, stride);
}

/* y = x Wᵀ + bias of the rows in acts. */
static void multiply(struct tdm_tower *tower, const struct tower_matrix *matrix, uint32_t n, float *y, size_t stride)
{
        const struct tdm_matmul_out out = {
                .matrix = &matrix->matrix, .act = matrix->act, .y = y, .y_stride = stride, .bias = matrix->bias
        };

        tdm_matmul(tower->pool, tower->kernels, &tower->acts, n, &out, 1);
}

/* ---- LayerNorm ---- */

static float fold_sums(const float *sums)
{
        float t[PARTIAL_SUMS / 2];

        for (unsigned i = 0; i < 8; i++)
                t[i] = sums[i] + sums[i + 8];
        for (unsigned i = 0; i < 4; i++)
                t[i] += t[i + 4];
        return (t[0] + t[2]) + (t[1] + t[3]);
}

/* y = (x - mean) / sqrt(variance + eps) * gain + bias. ORDER: 16 partial sums by i % 16, folded as rmsnorm's
 * (kernels.h); the variance is the mean of (x - mean)², a second pass. y may be x. */
static void layer_norm(const float *x, const struct tower_norm *norm, uint32_t n, float eps, float *y)
{
        float sums[PARTIAL_SUMS] = { 0 }, squares[PARTIAL_SUMS] = { 0 }, mean, scale;

        for (uint32_t i = 0; i < n; i++)
                sums[i % PARTIAL_SUMS] += x[i];
        mean = fold_sums(sums) / (float)n;
        for (uint32_t i = 0; i < n; i++)
                squares[i % PARTIAL_SUMS] += (x[i] - mean) * (x[i] - mean);
        scale = 1.0f / sqrtf(fold_sums(squares) / (float)n + eps);
        for (uint32_t i = 0; i < n; i++)
                y[i] = (x[i] - mean) * scale * norm->gain[i] + norm->bias[i];
}

static void norm_to_acts_row(const struct rows_pass *pass, uint32_t i, unsigned thread)
{
        struct tdm_tower *tower = pass->tower;
        float *y = tower->thread_rows + thread * tower->row;

        layer_norm(tower->x + (pass->first + i) * tower->row, pass->norm, tower->p.d_model, tower->p.norm_eps, y);
        tdm_acts_prepare_row(&tower->acts, tower->kernels, i, y, (uint32_t)tower->row);
}

static void norm_in_place_row(const struct rows_pass *pass, uint32_t i, unsigned thread)
{
        struct tdm_tower *tower = pass->tower;
        float *x = tower->x + (pass->first + i) * tower->row;

        layer_norm(x, pass->norm, tower->p.d_model, tower->p.norm_eps, x);
}

static void tower_add_row(const struct rows_pass *pass, uint32_t i, unsigned thread)
{
        struct tdm_tower *tower = pass->tower;
        float *x = tower->x + (pass->first + i) * tower->row;
        const float *y = tower->y + i * tower->row;

        for (uint32_t c = 0; c < tower->p.d_model; c++)
                x[c] += y[c];
}

/* ---- patches ---- */

static int embed_patches(struct tdm_tower *tower, const uint8_t *rgb, struct tdm_image_size size, struct tdm_error *err)
{
        _cleanup_(tdm_image_patches_destroyp) struct tdm_image_patches *patches = NULL;
        const struct tdm_projector *p = &tower->p;
        uint32_t grid = p->grid, numbers = 3 * p->image.patch * p->image.patch;
        int r = tdm_image_patches_new(&patches, &p->image, size, err);

        for (uint32_t y = 0; r == 0 && y < grid; y++) {
                float *x = tower->x + (size_t)y * grid * tower->row;
                const float *position = tower->weights.positions + (size_t)y * grid * p->d_model;

                tdm_image_patches_next(patches, rgb, tower->band, tower->patch_row);
                watch(tower, TDM_TOWER_PATCHES, 0, y * grid, tower->band, grid, numbers, tower->patch_row);
                tdm_acts_prepare(&tower->acts, tower->kernels, tower->pool, tower->band, tower->patch_row, grid,
                                 (uint32_t)tower->patch_row);
                multiply(tower, &tower->weights.patch, grid, x, tower->row);
                for (uint32_t i = 0; i < grid; i++, x += tower->row, position += p->d_model)
                        for (uint32_t c = 0; c < p->d_model; c++)
                                x[c] += position[c];
        }
        if (r == 0)
                watch(tower, TDM_TOWER_EMBEDDED, 0, 0, tower->x, tower->n, p->d_model, tower->row);
        return r;
}

/* ---- attention ---- */

static uint8_t *head_parts(const struct tdm_tower *tower, uint32_t head)
{
        return tower->kv + (uint64_t)head * tower->n_pages * tower->part_bytes;
}

/* Scales a row's queries, and keeps its keys and values. */
static void keep_row(const struct rows_pass *pass, uint32_t i, unsigned thread)
{
        struct tdm_tower *tower = pass->tower;
        uint32_t hd = tower->p.head_dim, t = pass->first + i;
        float *q = tower->q + t * tower->row, scale = 1.0f / sqrtf((float)hd);

        for (uint32_t c = 0; c < tower->p.d_model; c++)
                q[c] *= scale;
        for (uint32_t head = 0; head < tower->p.n_heads; head++)
                tower->kernels->kv_store(head_parts(tower, head) + t / TDM_KV_PAGE_TOKENS * tower->part_bytes,
                                         tower->options.kv, hd, t % TDM_KV_PAGE_TOKENS,
                                         tower->k + i * tower->row + head * hd, tower->v + i * tower->row + head * hd);
}

/* Some queries of one head over all keys, span by span from the left. */
static void attend_chunk(void *arg, unsigned chunk, unsigned thread)
{
        struct tdm_tower *tower = arg;
        uint32_t n_blocks = TDM_DIV_UP(tower->n, QUERY_ROWS), head = chunk / n_blocks,
                 first = chunk % n_blocks * QUERY_ROWS;
        uint32_t n = TDM_MIN(tower->n - first, QUERY_ROWS), hd = tower->p.head_dim;
        struct tdm_attend_query queries[QUERY_ROWS];
        float m[QUERY_ROWS], l[QUERY_ROWS];
        struct tdm_attend_span span = { .type = tower->options.kv,
                                        .head_dim = hd,
                                        .queries = queries,
                                        .n_queries = n,
                                        .scratch = tower->scratch + thread * tower->scratch_floats };

        for (uint32_t i = 0; i < n; i++) {
                size_t at = (first + i) * tower->row + (size_t)head * hd;

                m[i] = -INFINITY;
                queries[i] =
                        (struct tdm_attend_query){ .q = tower->q + at, .o = tower->mixed + at, .m = &m[i], .l = &l[i] };
        }
        for (uint32_t key = 0; key < tower->n; key += TDM_ATTENTION_SPAN) {
                uint32_t n_keys = TDM_MIN(tower->n - key, TDM_ATTENTION_SPAN);

                for (uint32_t page = 0; page < TDM_ARRAY_SIZE(span.parts); page++)
                        span.parts[page] = page * TDM_KV_PAGE_TOKENS < n_keys ?
                                                   head_parts(tower, head) +
                                                           (key / TDM_KV_PAGE_TOKENS + page) * tower->part_bytes :
                                                   NULL;
                for (uint32_t i = 0; i < n; i++)
                        queries[i].hi = n_keys;
                tower->kernels->attend_span(&span);
        }
        for (uint32_t i = 0; i < n; i++)
                for (uint32_t c = 0; c < hd; c++)
                        queries[i].o[c] *= 1.0f / l[i];
}

/* ---- a layer ---- */

static void run_attention(struct tdm_tower *tower, const struct tower_layer *layer)
{
        struct rows_pass pass = { .tower = tower, .norm = &layer->before_attention };

        for (pass.first = 0; pass.first < tower->n; pass.first += TILE_ROWS) {
                pass.n = TDM_MIN(tower->n - pass.first, TILE_ROWS);
                pass.row = norm_to_acts_row;
                tower_each_row(&pass);
                multiply(tower, &layer->q, pass.n, tower->q + pass.first * tower->row, tower->row);
                multiply(tower, &layer->k, pass.n, tower->k, tower->row);
                multiply(tower, &layer->v, pass.n, tower->v, tower->row);
                pass.row = keep_row;
                tower_each_row(&pass);
        }
        tdm_pool_run(tower->pool, tower->p.n_heads * TDM_DIV_UP(tower->n, QUERY_ROWS), attend_chunk, tower);
        pass.row = tower_add_row;
        for (pass.first = 0; pass.first < tower->n; pass.first += TILE_ROWS) {
                pass.n = TDM_MIN(tower->n - pass.first, TILE_ROWS);
                tdm_acts_prepare(&tower->acts, tower->kernels, tower->pool, tower->mixed + pass.first * tower->row,
                                 tower->row, pass.n, (uint32_t)tower->row);
                multiply(tower, &layer->out, pass.n, tower->y, tower->row);
                tower_each_row(&pass);
        }
}

static void activate_row(const struct rows_pass *pass, uint32_t i, unsigned thread)
{
        struct tdm_tower *tower = pass->tower;
        float *ff = tower->ff + i * tower->ff_row;

        tower->kernels->gelu_mul(ff, tower->ones, tower->p.d_ff, ff);
        tdm_acts_prepare_row(&tower->acts, tower->kernels, i, ff, (uint32_t)tower->ff_row);
}

static void run_ffn(struct tdm_tower *tower, const struct tower_layer *layer)
{
        struct rows_pass pass = { .tower = tower, .norm = &layer->before_ffn };

        for (pass.first = 0; pass.first < tower->n; pass.first += TILE_ROWS) {
                pass.n = TDM_MIN(tower->n - pass.first, TILE_ROWS);
                pass.row = norm_to_acts_row;
                tower_each_row(&pass);
                multiply(tower, &layer->up, pass.n, tower->ff, tower->ff_row);
                pass.row = activate_row;
                tower_each_row(&pass);
                multiply(tower, &layer->down, pass.n, tower->y, tower->row);
                pass.row = tower_add_row;
                tower_each_row(&pass);
        }
}

/* ---- from patches to rows ---- */

/* The mean of the patches that make row i: sums in the order of the grid. */
static void pool_row(const struct rows_pass *pass, uint32_t i, unsigned thread)
{
        struct tdm_tower *tower = pass->tower;
        uint32_t merge = tower->p.image.merge, side = tower->p.grid / merge;
        const float *x = tower->x + ((size_t)(i / side) * merge * tower->p.grid + i % side * merge) * tower->row;
        float *y = tower->pooled + i * tower->row, share = 1.0f / (float)(merge * merge);

        memset(y, 0, tower->p.d_model * sizeof(*y));
        for (uint32_t row = 0; row < merge; row++)
                for (uint32_t column = 0; column < merge; column++)
                        for (uint32_t c = 0; c < tower->p.d_model; c++)
                                y[c] += x[(row * tower->p.grid + column) * tower->row + c];
        for (uint32_t c = 0; c < tower->p.d_model; c++)
                y[c] *= share;
}

static void soft_norm_row(const struct rows_pass *pass, uint32_t i, unsigned thread)
{
        struct tdm_tower *tower = pass->tower;
        float *y = tower->pooled + i * tower->row;

        tower->kernels->rmsnorm(y, tower->weights.soft_gain, tower->p.d_model, tower->p.norm_eps, y);
}

static void project(struct tdm_tower *tower, float *out)
{
        uint32_t n_rows = tdm_tower_n_rows(tower), d = tower->p.d_model, n_out = tower->p.n_out;
        struct rows_pass pass = { .tower = tower, .n = n_rows, .row = pool_row };

        tower_each_row(&pass);
        watch(tower, TDM_TOWER_POOLED, 0, 0, tower->pooled, n_rows, d, tower->row);
        pass.row = soft_norm_row;
        tower_each_row(&pass);
        watch(tower, TDM_TOWER_SOFT_NORMED, 0, 0, tower->pooled, n_rows, d, tower->row);
        for (uint32_t first = 0, n; first < n_rows; first += n) {
                n = TDM_MIN(n_rows - first, TILE_ROWS);
                tdm_acts_prepare(&tower->acts, tower->kernels, tower->pool, tower->pooled + first * tower->row,
                                 tower->row, n, (uint32_t)tower->row);
                multiply(tower, &tower->weights.projection, n, out + (size_t)first * n_out, n_out);
        }
        watch(tower, TDM_TOWER_PROJECTED, 0, 0, out, n_rows, n_out, n_out);
}

int tdm_tower_run(struct tdm_tower *tower, const uint8_t *rgb, struct tdm_image_size size, float *out,
                  struct tdm_error *err)
{
        struct rows_pass last = {
                .tower = tower, .n = tower->n, .norm = &tower->weights.last, .row = norm_in_place_row
        };
        uint32_t d = tower->p.d_model;
        int r = embed_patches(tower, rgb, size, err);

        if (r != 0)
                return r;
        for (uint32_t layer = 0; layer < tower->p.n_layers; layer++) {
                run_attention(tower, &tower->weights.layers[layer]);
                run_ffn(tower, &tower->weights.layers[layer]);
                watch(tower, TDM_TOWER_LAYER, layer, 0, tower->x, tower->n, d, tower->row);
        }
        tower_each_row(&last);
        watch(tower, TDM_TOWER_NORMED, 0, 0, tower->x, tower->n, d, tower->row);
        project(tower, out);
        return 0;
}

/* ---- its life ---- */

static bool take_buffers(struct tdm_tower *tower)
{
        const struct tdm_projector *p = &tower->p;
        unsigned n_threads = tdm_pool_n_threads(tower->pool);
        const struct {
                float **ret;
                size_t n;
        } buffers[] = {
                { &tower->x, tower->n * tower->row },
                { &tower->q, tower->n * tower->row },
                { &tower->mixed, tower->n * tower->row },
                { &tower->k, TILE_ROWS * tower->row },
                { &tower->v, TILE_ROWS * tower->row },
                { &tower->y, TILE_ROWS * tower->row },
                { &tower->ff, TILE_ROWS * tower->ff_row },
                { &tower->ones, p->d_ff },
                { &tower->band, p->grid * tower->patch_row },
                { &tower->pooled, tdm_tower_n_rows(tower) * tower->row },
                { &tower->scratch, n_threads * tower->scratch_floats },
                { &tower->thread_rows, n_threads * tower->row },
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(buffers); i++) {
                *buffers[i].ret = tower_take(&tower->memory, buffers[i].n * sizeof(float));
                if (!*buffers[i].ret)
                        return false;
        }
        for (uint32_t i = 0; i < p->d_ff; i++)
                tower->ones[i] = 1.0f;
        tower->kv = tower_take(&tower->memory, p->n_heads * tower->n_pages * tower->part_bytes);
        return tower->kv &&
               tdm_acts_init(&tower->acts, 1u << TDM_ACT_F32 | 1u << tower->options.act, TDM_MAX(TILE_ROWS, p->grid),
                             (uint32_t)TDM_MAX(TDM_MAX(tower->row, tower->ff_row), tower->patch_row)) == 0;
}

int tdm_tower_new(struct tdm_tower **ret, const struct tdm_gguf *gguf, const struct tdm_kernels *kernels,
                  struct tdm_pool *pool, const struct tdm_tower_options *options, struct tdm_error *err)
{
        _cleanup_(tdm_tower_destroyp) struct tdm_tower *tower = calloc(1, sizeof(*tower));
        struct tdm_projector *p;
        int r;

        if (!tower)
                return -ENOMEM;
        p = &tower->p;
        r = tdm_projector_describe(p, gguf, err);
        if (r != 0)
                return r;
        tower->options = *options;
        tower->kernels = kernels;
        tower->pool = pool;
        tower->n = p->grid * p->grid;
        tower->row = TDM_ALIGN_UP(p->d_model, TDM_BLOCK_VALUES);
        tower->ff_row = TDM_ALIGN_UP(p->d_ff, TDM_BLOCK_VALUES);
        tower->patch_row = TDM_ALIGN_UP(3 * p->image.patch * p->image.patch, TDM_BLOCK_VALUES);
        tower->n_pages = TDM_DIV_UP(tower->n, TDM_KV_PAGE_TOKENS);
        tower->part_bytes = tdm_kv_part_bytes(options->kv, p->head_dim);
        tower->scratch_floats = TDM_ALIGN_UP(TDM_ATTEND_SCRATCH(p->head_dim), 16u);
        if (!take_buffers(tower))
                return tdm_error_set(err, TDM_E_NO_MEMORY, "not enough memory for the vision tower of %s",
                                     tdm_gguf_name(gguf));
        r = tower_weights_load(&tower->weights, p, gguf, options->act, err);
        if (r == 0)
                *ret = steal_ptr(&tower);
        return r;
}

const struct tdm_projector *tdm_tower_projector(const struct tdm_tower *tower)
{
        return &tower->p;
}

uint32_t tdm_tower_n_rows(const struct tdm_tower *tower)
{
        return tower->p.grid / tower->p.image.merge * (tower->p.grid / tower->p.image.merge);
}

size_t tdm_tower_memory(const struct tdm_tower *tower)
{
        return tower->memory.bytes + tower->weights.memory.bytes + tower->acts.memory_bytes;
}

void tdm_tower_destroy(struct tdm_tower *tower)
{
        if (!tower)
                return;
        tdm_acts_deinit(&tower->acts);
        tower_memory_deinit(&tower->memory);
        tower_weights_deinit(&tower->weights);
        free(tower);
}

void tdm_tower_destroyp(struct tdm_tower **tower)
{
        tdm_tower_destroy(*tower);
}
