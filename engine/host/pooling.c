/* From the rows of texts to their vectors: the final norm of each row where there is one, the pooling, a pair of
 * matrices where the model has one, and the length 1. A reranker has its head in place of that pair, and the vector's
 * first number is the score. So has a model that tells classes apart, and the first numbers are the head's.
 *
 * A text's vector depends on its rows alone. ORDER of the mean: from the first position to the last, in f64, then
 * times 1 / n in f64, rounded to f32 once. The square of the length is summed as norms sum it (kernels.h). A vector
 * of zeros stays one. tanh and exp are computed in f64 and rounded to f32 once. */
#include <assert.h>
#include <math.h>
#include <stdatomic.h>

#include "engine/host/pooling.h"
#include "engine/host/matmul.h"

struct weight {
        struct tdm_matrix matrix;
        enum tdm_act act;
        const float *bias; /* NULL: none */
};

struct tdm_pooler {
        const uint8_t *weights;
        const struct tdm_hparams *hp;
        const struct tdm_recipe *recipe;
        struct tdm_pool *pool;
        const struct tdm_kernels *kernels;
        const float *output_norm; /* NULL: none */
        /* Behind the pooling: the pair, or the matrix before a head and the head. matrix.rows 0: none. */
        struct weight first, second;
        uint32_t width; /* of what is between them */
        uint32_t max_vectors, stride;
        struct tdm_acts acts; /* [max_vectors]: the input of either matrix */
        float *middle;        /* [max_vectors][width] */
        float *rows;          /* [n_threads][stride]: a row behind its norm */
        double *sums;         /* [n_threads][stride] */
        size_t bytes;
};

struct job {
        const struct tdm_pooler *p;
        const struct tdm_step *step;
        const float *hidden;
        float *vectors;
        _Atomic uint32_t bad_row; /* UINT32_MAX: none */
};

static const float *pooler_vector(const uint8_t *weights, enum tdm_tensor_kind kind)
{
        const struct tdm_weights_tensor *tensor = tdm_weights_find(weights, kind, 0);

        return tensor ? (const float *)(weights + tensor->offset) : NULL;
}

static void take_matrix(const uint8_t *weights, enum tdm_tensor_kind kind, enum tdm_act wanted, struct weight *ret)
{
        const struct tdm_weights_tensor *tensor = tdm_weights_find(weights, kind, 0);

        assert(tensor);
        tdm_matrix_init(&ret->matrix, weights, tensor);
        ret->act = tdm_matmul_act(tensor->type, wanted);
}

static void take_matrices(struct tdm_pooler *p, enum tdm_act wanted)
{
        if (p->recipe->n_labels > 0) {
                p->width = p->hp->d_model;
                if (p->recipe->label_dense)
                        take_matrix(p->weights, TDM_TENSOR_LABEL_DENSE, wanted, &p->first);
                p->first.bias = pooler_vector(p->weights, TDM_TENSOR_LABEL_DENSE_BIAS);
                take_matrix(p->weights, TDM_TENSOR_LABELS, wanted, &p->second);
                p->second.bias = pooler_vector(p->weights, TDM_TENSOR_LABELS_BIAS);
        } else if (p->recipe->dense_width > 0) {
                p->width = p->recipe->dense_width;
                take_matrix(p->weights, TDM_TENSOR_DENSE_2, wanted, &p->first);
                take_matrix(p->weights, TDM_TENSOR_DENSE_3, wanted, &p->second);
        }
}

static void *pooler_alloc(struct tdm_pooler *p, size_t n, size_t size)
{
        size_t bytes = TDM_ALIGN_UP(n * size, (size_t)64);

        p->bytes += bytes;
        return aligned_alloc(64, bytes);
}

int tdm_pooler_new(struct tdm_pooler **ret, const uint8_t *weights, struct tdm_pool *pool,
                   const struct tdm_kernels *kernels, uint32_t max_vectors, enum tdm_act wanted)
{
        const struct tdm_weights_header *header = tdm_weights_header(weights);
        struct tdm_pooler *p = calloc(1, sizeof(*p));
        uint32_t d = header->hparams.d_model;
        unsigned n_threads = tdm_pool_n_threads(pool);
        bool fits;

        if (!p)
                return -ENOMEM;
        p->weights = weights;
        p->hp = &header->hparams;
        p->recipe = &header->recipe;
        p->pool = pool;
        p->kernels = kernels;
        p->output_norm = pooler_vector(weights, TDM_TENSOR_OUTPUT_NORM);
        take_matrices(p, wanted);
        p->max_vectors = max_vectors;
        p->stride = TDM_ALIGN_UP(d, 16u);
        p->rows = pooler_alloc(p, (size_t)n_threads * p->stride, sizeof(*p->rows));
        p->sums = pooler_alloc(p, (size_t)n_threads * p->stride, sizeof(*p->sums));
        fits = p->rows && p->sums;
        if (fits && p->width > 0) {
                unsigned acts = 1u << p->second.act | (p->first.matrix.rows > 0 ? 1u << p->first.act : 0);

                p->middle = pooler_alloc(p, (size_t)p->max_vectors * p->width, sizeof(*p->middle));
                fits = p->middle && tdm_acts_init(&p->acts, acts, p->max_vectors, TDM_MAX(d, p->width)) == 0;
                p->bytes += p->acts.memory_bytes;
        }
        if (!fits) {
                tdm_pooler_destroy(p);
                return -ENOMEM;
        }
        *ret = p;
        return 0;
}

void tdm_pooler_destroy(struct tdm_pooler *p)
{
        if (!p)
                return;
        tdm_acts_deinit(&p->acts);
        free(p->middle);
        free(p->rows);
        free(p->sums);
        free(p);
}

size_t tdm_pooler_bytes(const struct tdm_pooler *p)
{
        return p->bytes;
}

static void pool_text(void *arg, unsigned index, unsigned thread)
{
        const struct job *job = arg;
        const struct tdm_pooler *p = job->p;
        const struct tdm_step_seq *seq = &job->step->seqs[job->step->rows[job->step->logits[index].row].seq];
        uint32_t d = p->hp->d_model, last = job->step->logits[index].row, first = seq->first_row;
        float *row = p->rows + (size_t)thread * p->stride, *y = job->vectors + (size_t)index * d;
        double *sum = p->sums + (size_t)thread * p->stride, scale;

        if (p->recipe->pooling == TDM_POOLING_LAST)
                first = last;
        else if (p->recipe->pooling == TDM_POOLING_FIRST)
                last = first;
        memset(sum, 0, d * sizeof(*sum));
        for (uint32_t r = first; r <= last; r++) {
                const float *x = job->hidden + (size_t)r * p->hp->residual_width;

                if (p->output_norm) {
                        p->kernels->rmsnorm(x, p->output_norm, d, p->recipe->norm_eps, row);
                        x = row;
                }
                for (uint32_t i = 0; i < d; i++)
                        sum[i] += (double)x[i];
        }
        scale = 1.0 / (double)(last - first + 1);
        for (uint32_t i = 0; i < d; i++)
                y[i] = (float)(sum[i] * scale);
}

static void measure_square(void *arg, unsigned index, unsigned thread)
{
        struct job *job = arg;
        uint32_t d = job->p->hp->d_model;
        float *y = job->vectors + (size_t)index * d;
        float length = sqrtf(job->p->kernels->mean_square(y, d) * (float)d);
        bool fine = true;

        for (uint32_t i = 0; i < d && length > 0; i++)
                y[i] /= length;
        for (uint32_t i = 0; i < d; i++)
                fine = fine && isfinite(y[i]);
        if (!fine)
                atomic_store_explicit(&job->bad_row, job->step->logits[index].row, memory_order_relaxed);
}

static void activate_text(void *arg, unsigned index, unsigned thread)
{
        const struct tdm_pooler *p = ((const struct job *)arg)->p;
        float *y = p->middle + (size_t)index * p->width;

        for (uint32_t i = 0; i < p->width; i++)
                y[i] = p->recipe->label_dense != TDM_LABEL_DENSE_RELU ? (float)tanh((double)y[i]) : y[i] < 0 ? 0 : y[i];
}

/* The score, or what the head gives of each class, becomes the vector's first numbers, and all others 0. */
static void score_text(void *arg, unsigned index, unsigned thread)
{
        struct job *job = arg;
        const struct tdm_recipe *recipe = job->p->recipe;
        uint32_t d = job->p->hp->d_model, n = recipe->tells_classes ? recipe->n_labels : 1;
        float *z = job->vectors + (size_t)index * d;
        bool fine = true;

        if (!recipe->tells_classes && recipe->n_labels == 2)
                z[0] = (float)(1 / (1 + exp((double)z[!recipe->label] - (double)z[recipe->label])));
        memset(z + n, 0, (d - n) * sizeof(*z));
        for (uint32_t i = 0; i < n; i++)
                fine = fine && isfinite(z[i]);
        if (!fine)
                atomic_store_explicit(&job->bad_row, job->step->logits[index].row, memory_order_relaxed);
}

/* y = x Wᵀ + bias of all texts. The panels of a head are written whole: a vector is longer. */
static void weight_apply(struct tdm_pooler *p, const struct weight *w, uint32_t n, const float *x, uint32_t x_width,
                         float *y, uint32_t y_width)
{
        tdm_acts_prepare(&p->acts, p->kernels, p->pool, x, x_width, n, x_width);
        tdm_matmul(p->pool, p->kernels, &p->acts, n,
                   &(struct tdm_matmul_out){ &w->matrix, w->act, y, y_width, w->bias }, 1);
}

int tdm_pooler_run(struct tdm_pooler *p, const struct tdm_step *step, const float *hidden, float *vectors,
                   struct tdm_error *err)
{
        struct job job = { .p = p, .step = step, .hidden = hidden, .vectors = vectors, .bad_row = UINT32_MAX };
        uint32_t n = step->head.n_logits, d = p->hp->d_model;
        bool has_first = p->first.matrix.rows > 0;

        if (n == 0)
                return 0;
        tdm_pool_run(p->pool, n, pool_text, &job);
        if (has_first)
                weight_apply(p, &p->first, n, vectors, d, p->middle, p->width);
        if (has_first && p->recipe->n_labels > 0)
                tdm_pool_run(p->pool, n, activate_text, &job);
        if (p->width > 0)
                weight_apply(p, &p->second, n, has_first ? p->middle : vectors, p->width, vectors, d);
        tdm_pool_run(p->pool, n, p->recipe->n_labels > 0 ? score_text : measure_square, &job);
        if (job.bad_row == UINT32_MAX)
                return 0;
        return tdm_error_set(
                err, -EDOM,
                "the vector or score of the text that ends with row %u (position %u) holds a NaN or an infinity "
                "(damaged weights?)",
                job.bad_row, step->rows[job.bad_row].position);
}
