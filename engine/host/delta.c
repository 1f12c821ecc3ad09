#include "engine/host/delta.h"

#include <math.h>

#define DECAY_MIN 0x1p-64f /* a smaller one is 0: what it leaves is beyond a float, and denormals are slow */
#define NUMBERS 16u        /* of heads, at a time */

/* A tile's rows of one layer. */
struct delta_job {
        struct tdm_host_model *model;
        const struct tdm_step *step;
        const struct tdm_host_layer *l;
        uint32_t layer, taps, width, size, k_heads, v_heads, v_stride;
        bool in_groups;             /* as the recipe says */
        uint32_t first_row, n_rows; /* of the tile, in the step */
        uint32_t first_seq;
};

/* The most of any layer. */
struct delta_sizes {
        uint32_t in, width, v_width, v_heads;
        size_t n_kernels;
};

static struct delta_sizes delta_sizes_of(const struct tdm_host_model *model)
{
        struct delta_sizes most = {};

        for (uint32_t i = 0; i < model->hp.n_layers; i++) {
                const struct tdm_layer_recipe *l = &model->recipe.layers[i];

                if (l->has_gate)
                        most.in = TDM_MAX(most.in, 2 * model->hp.layers[i].n_heads * model->hp.layers[i].head_dim);
                if (l->mixer != TDM_MIXER_GATED_DELTA)
                        continue;
                most.width = TDM_MAX(most.width, tdm_recipe_delta_width(l));
                most.v_width = TDM_MAX(most.v_width, l->delta_v_heads * l->delta_size);
                most.v_heads = TDM_MAX(most.v_heads, l->delta_v_heads);
                most.n_kernels += (size_t)tdm_recipe_delta_width(l) * l->conv_taps;
        }
        most.in = TDM_MAX(most.in, most.width);
        return most;
}

static bool delta_take(struct tdm_host_model *model, float **ret, size_t n)
{
        *ret = calloc(TDM_MAX(n, (size_t)1), sizeof(float));
        model->scratch_bytes += n * sizeof(float);
        return *ret != NULL;
}

/* A file has the taps of a channel beside each other. */
static void turn_kernels(struct tdm_host_model *model)
{
        float *to = model->mixers.delta.kernels;

        for (uint32_t i = 0; i < model->hp.n_layers; i++) {
                const struct tdm_layer_recipe *l = &model->recipe.layers[i];
                uint32_t width = tdm_recipe_delta_width(l);

                if (l->mixer != TDM_MIXER_GATED_DELTA)
                        continue;
                for (uint32_t k = 0; k < width; k++)
                        for (uint32_t j = 0; j < l->conv_taps; j++)
                                to[(size_t)j * width + k] = model->layers[i].conv[(size_t)k * l->conv_taps + j];
                model->layers[i].conv = to;
                to += (size_t)width * l->conv_taps;
        }
}

bool tdm_host_delta_init(struct tdm_host_model *model)
{
        const struct delta_sizes most = delta_sizes_of(model);
        struct tdm_host_delta *d = &model->mixers.delta;
        size_t rows = model->tile_rows;

        if (most.in == 0)
                return true;
        d->v_stride = TDM_ALIGN_UP(most.v_heads, NUMBERS);
        if (!delta_take(model, &d->in, rows * most.in) || !delta_take(model, &d->conv, rows * most.width) ||
            !delta_take(model, &d->z, rows * most.v_width) || !delta_take(model, &d->alpha, rows * d->v_stride) ||
            !delta_take(model, &d->beta, rows * d->v_stride) || !delta_take(model, &d->kernels, most.n_kernels) ||
            !delta_take(model, &d->zeros, most.width) || !delta_take(model, &d->ones, most.width))
                return false;
        for (uint32_t i = 0; i < most.width; i++)
                d->ones[i] = 1;
        turn_kernels(model);
        return true;
}

void tdm_host_delta_free(struct tdm_host_model *model)
{
        free(model->mixers.delta.in);
        free(model->mixers.delta.conv);
        free(model->mixers.delta.z);
        free(model->mixers.delta.alpha);
        free(model->mixers.delta.beta);
        free(model->mixers.delta.kernels);
        free(model->mixers.delta.zeros);
        free(model->mixers.delta.ones);
}

static float *state_at(const struct delta_job *job, uint32_t page)
{
        return (float *)(job->model->kv_base + tdm_kv_state_offset(&job->model->kv, job->layer, page));
}

/* The first row of the sequence in this tile, and the state before it: NULL at position 0. */
static uint32_t state_before(const struct delta_job *job, const struct tdm_step_seq *seq, const float **ret)
{
        bool goes_on = seq->first_row < job->first_row;
        uint32_t page = goes_on ? seq->state.to : seq->state.from;

        *ret = page == TDM_KV_NO_PAGE ? NULL : state_at(job, page);
        return goes_on ? 0 : seq->first_row - job->first_row;
}

/* u of the row `back` rows before the n-th row of the sequence in this tile, which is row `begin` of the tile. */
static const float *values_before(const struct delta_job *job, uint32_t begin, const float *state, uint32_t n,
                                  uint32_t back)
{
        if (back <= n)
                return job->model->mixers.delta.in + (size_t)(begin + n - back) * job->width;
        return state ? state + (size_t)(job->taps - 1 - (back - n)) * job->width : job->model->mixers.delta.zeros;
}

static void convolve(const struct delta_job *job, uint32_t row, float *c)
{
        const struct tdm_step_seq *seq = &job->step->seqs[job->step->rows[job->first_row + row].seq];
        const float *state, *kernel = job->l->conv;
        uint32_t begin = state_before(job, seq, &state), w = job->width;

        for (uint32_t j = 0; j < job->taps; j++, kernel += w) {
                const float *u = values_before(job, begin, state, row - begin, job->taps - 1 - j);

                for (uint32_t i = 0; i < w; i++)
                        c[i] = j == 0 ? kernel[i] * u[i] : c[i] + kernel[i] * u[i];
        }
        job->model->kernels->silu_mul(c, job->model->mixers.delta.ones, w, c);
}

/* Queries and keys become of length 1, queries 1 / sqrt(size) of it. */
static void scale_heads(const struct delta_job *job, float *c)
{
        for (uint32_t h = 0; h < 2 * job->k_heads; h++) {
                float *x = c + (size_t)h * job->size;
                float length = sqrtf(job->model->kernels->mean_square(x, job->size) * (float)job->size);
                float scale = 1 / TDM_MAX(length, job->model->recipe.norm_eps);

                if (h < job->k_heads)
                        scale *= 1 / sqrtf((float)job->size);
                for (uint32_t i = 0; i < job->size; i++)
                        x[i] *= scale;
        }
}

float tdm_host_softplus(float x, float e)
{
        const double s = (double)e / (2 + (double)e), s2 = s * s;
        double sum = 0;

        for (int k = 9; k >= 0; k--)
                sum = sum * s2 + 1.0 / (2 * k + 1);
        return (float)((x > 0 ? (double)x : 0) + 2 * s * sum);
}

/* alpha becomes the decay, beta what a row corrects. */
static void prepare_numbers(const struct delta_job *job, float *alpha, float *beta)
{
        const struct tdm_kernels *kernels = job->model->kernels;

        for (uint32_t first = 0, n; first < job->v_heads; first += n, alpha += n, beta += n) {
                const float *a = job->l->delta.a + first, *dt = job->l->delta.dt + first;
                float e[NUMBERS];

                n = TDM_MIN(job->v_heads - first, NUMBERS);
                for (uint32_t i = 0; i < n; i++) {
                        alpha[i] += dt[i];
                        e[i] = -fabsf(alpha[i]);
                        beta[i] = -beta[i];
                }
                kernels->exp_array(e, n, e);
                for (uint32_t i = 0; i < n; i++)
                        alpha[i] = a[i] * tdm_host_softplus(alpha[i], e[i]);
                kernels->exp_array(alpha, n, alpha);
                kernels->exp_array(beta, n, beta);
                for (uint32_t i = 0; i < n; i++) {
                        alpha[i] = alpha[i] < DECAY_MIN ? 0 : alpha[i];
                        beta[i] = 1 / (beta[i] + 1);
                }
        }
}

static void prepare_row(void *arg, unsigned row, unsigned thread)
{
        const struct delta_job *job = arg;
        struct tdm_host_delta *d = &job->model->mixers.delta;
        float *c = d->conv + (size_t)row * job->width;

        convolve(job, row, c);
        scale_heads(job, c);
        prepare_numbers(job, d->alpha + (size_t)row * job->v_stride, d->beta + (size_t)row * job->v_stride);
}

/* Rows begin … begin + n - 1 of the tile through one head. */
static void recur_rows(const struct delta_job *job, uint32_t h, const float *from, float *to, uint32_t begin,
                       uint32_t n)
{
        const struct tdm_host_delta *d = &job->model->mixers.delta;
        const float *c = d->conv + (size_t)begin * job->width;
        const uint32_t k_head = job->in_groups ? h / (job->v_heads / job->k_heads) : h % job->k_heads;
        const struct tdm_delta_rows rows = { .from = from,
                                             .to = to,
                                             .q = c + (size_t)k_head * job->size,
                                             .k = c + (size_t)(job->k_heads + k_head) * job->size,
                                             .v = c + (size_t)(2 * job->k_heads + h) * job->size,
                                             .decay = d->alpha + (size_t)begin * job->v_stride + h,
                                             .beta = d->beta + (size_t)begin * job->v_stride + h,
                                             .out = job->model->heads.attn +
                                                    ((size_t)begin * job->v_heads + h) * job->size,
                                             .stride = job->width,
                                             .numbers_stride = job->v_stride,
                                             .out_stride = (size_t)job->v_heads * job->size,
                                             .size = job->size,
                                             .n_rows = n };

        if (n > 0)
                job->model->kernels->delta_rows(&rows);
}

/* One head of values of one sequence, over its rows in the tile. */
static void recur_head(void *arg, unsigned item, unsigned thread)
{
        const struct delta_job *job = arg;
        const struct tdm_host_model *model = job->model;
        const struct tdm_kernels *kernels = model->kernels;
        const struct tdm_step_seq *seq = &job->step->seqs[job->first_seq + item / job->v_heads];
        uint32_t h = item % job->v_heads, s = job->size, end = job->first_row + job->n_rows;
        size_t at = (size_t)(job->taps - 1) * job->width + (size_t)h * s * s, bytes = (size_t)s * s * sizeof(float);
        const float *state;
        uint32_t begin = state_before(job, seq, &state), before = job->first_row + begin - seq->first_row;
        uint32_t n = TDM_MIN(seq->first_row + seq->n_rows, end) - job->first_row - begin, n_kept = 0;
        float *to = state_at(job, seq->state.to) + at;

        if (!state)
                memset(to, 0, bytes);
        if (seq->state.n_kept > before && seq->state.n_kept <= before + n)
                n_kept = seq->state.n_kept - before;
        recur_rows(job, h, state ? state + at : to, to, begin, n_kept > 0 ? n_kept : n);
        if (n_kept > 0) {
                memcpy(state_at(job, seq->state.kept) + at, to, bytes);
                recur_rows(job, h, to, to, begin + n_kept, n - n_kept);
        }
        for (uint32_t row = begin; row < begin + n; row++) {
                size_t value = ((size_t)row * job->v_heads + h) * s;
                float *out = model->heads.attn + value;

                kernels->rmsnorm(out, job->l->delta.norm, s, model->recipe.norm_eps, out);
                kernels->silu_mul(model->mixers.delta.z + value, out, s, out);
        }
}

/* The rows of the convolution behind the first n rows of the sequence in this tile. They may take the place of those
 * before them. */
static void store_rows(const struct delta_job *job, uint32_t begin, const float *state, uint32_t n, uint32_t page)
{
        float *to = state_at(job, page);

        for (uint32_t back = job->taps - 1; back > 0; back--, to += job->width)
                memmove(to, values_before(job, begin, state, n, back), job->width * sizeof(float));
}

static void store_states(const struct delta_job *job, uint32_t n_seqs)
{
        const uint32_t first = job->first_row, n = job->n_rows;

        for (uint32_t s = job->first_seq; s < job->first_seq + n_seqs; s++) {
                const struct tdm_step_seq *seq = &job->step->seqs[s];
                const float *state;
                uint32_t begin = state_before(job, seq, &state), before = first + begin - seq->first_row;
                uint32_t n_here = TDM_MIN(seq->first_row + seq->n_rows, first + n) - first - begin;

                if (seq->state.n_kept > before && seq->state.n_kept <= before + n_here)
                        store_rows(job, begin, state, seq->state.n_kept - before, seq->state.kept);
                store_rows(job, begin, state, n_here, seq->state.to);
        }
}

void tdm_host_delta(struct tdm_host_model *model, const struct tdm_step *step, uint32_t layer, uint32_t first,
                    uint32_t n)
{
        const struct tdm_layer_recipe *r = &model->recipe.layers[layer];
        struct delta_job job = { .model = model,
                                 .step = step,
                                 .l = &model->layers[layer],
                                 .layer = layer,
                                 .taps = r->conv_taps,
                                 .width = tdm_recipe_delta_width(r),
                                 .size = r->delta_size,
                                 .k_heads = r->delta_k_heads,
                                 .v_heads = r->delta_v_heads,
                                 .in_groups = r->delta_in_groups,
                                 .v_stride = model->mixers.delta.v_stride,
                                 .first_row = first,
                                 .n_rows = n,
                                 .first_seq = step->rows[first].seq };
        const uint32_t n_seqs = step->rows[first + n - 1].seq - job.first_seq + 1;

        tdm_pool_run(model->pool, n, prepare_row, &job);
        tdm_pool_run(model->pool, n_seqs * job.v_heads, recur_head, &job);
        store_states(&job, n_seqs);
}

/* What goes through the gates: rows of a tile. */
struct gate_job {
        struct tdm_host_model *model;
        uint32_t n_heads, dim;
};

static void split_row(void *arg, unsigned row, unsigned thread)
{
        const struct gate_job *job = arg;
        const struct tdm_host_model *model = job->model;

        for (size_t h = (size_t)row * job->n_heads; h < ((size_t)row + 1) * job->n_heads; h++)
                memcpy(model->heads.q + h * job->dim, model->mixers.delta.in + h * 2 * job->dim,
                       job->dim * sizeof(float));
}

static void apply_row(void *arg, unsigned row, unsigned thread)
{
        const struct gate_job *job = arg;
        const struct tdm_host_model *model = job->model;

        for (size_t h = (size_t)row * job->n_heads; h < ((size_t)row + 1) * job->n_heads; h++) {
                float *gate = model->mixers.delta.in + (h * 2 + 1) * job->dim, *out = model->heads.attn + h * job->dim;

                for (uint32_t i = 0; i < job->dim; i++)
                        gate[i] = -gate[i];
                model->kernels->exp_array(gate, job->dim, gate);
                for (uint32_t i = 0; i < job->dim; i++)
                        out[i] *= 1 / (gate[i] + 1);
        }
}

static void gate_rows(struct tdm_host_model *model, uint32_t layer, uint32_t n,
                      void (*row)(void *arg, unsigned row, unsigned thread))
{
        struct gate_job job = { model, model->hp.layers[layer].n_heads, model->hp.layers[layer].head_dim };

        tdm_pool_run(model->pool, n, row, &job);
}

void tdm_host_gate_split(struct tdm_host_model *model, uint32_t layer, uint32_t n)
{
        gate_rows(model, layer, n, split_row);
}

void tdm_host_gate_apply(struct tdm_host_model *model, uint32_t layer, uint32_t n)
{
        gate_rows(model, layer, n, apply_row);
}
