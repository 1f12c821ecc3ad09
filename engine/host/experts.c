/* Who computes which piece of which expert: see experts.h. The arithmetic is in the kernels.
 *
 * A slot is a row together with one of the experts that it uses. Slots are in order of expert, then row, so that a
 * group, which is all slots of an expert, is a range of them. What is between the products, and the outputs before
 * they are summed, lies by slot. Rows are not copied: a slot's prepared row is its row's, which is a few pointers. */
#include <assert.h>
#include <math.h>

#include "engine/host/experts.h"
#include "engine/host/runs.h"

#define ALIGNMENT 64u
#define CHUNKS_PER_THREAD 8u
#define CHUNK_WORK_MAX (UINT64_C(32) << 20) /* as in matmul.c */
#define CHUNK_WORK_MIN (UINT64_C(64) << 10)
#define CHUNK_ROWS_MAX 96u
#define VALUES_MAX (128u * CHUNK_ROWS_MAX) /* outputs of a chunk, on the stack */
#define READ_ROWS 4u                       /* reading a group's weights takes as long as multiplying this many rows */
#define SUM_VALUES 8192u                   /* of a chunk of the sum over experts */
#define ALONE_PANELS 32u                   /* of a chunk where there is one row */
#define FEW_ROWS 3u                        /* of which kernels wait for memory */
#define SIGMOIDS_MORE 1e-6f                /* added to the chosen ones' sum, which may be 0 */
#define BEGIN_BYTES 12288u                 /* of each of a pair of panels: what kernels leave to others */

struct group {
        uint32_t expert, first_slot, n_rows;
        /* The cut of the product at hand. */
        uint32_t first_chunk, chunk_panels, chunk_rows, n_row_chunks;
};

struct tdm_experts {
        struct tdm_experts_sizes sizes;
        uint32_t *ids; /* [max_rows][n_used] by rank; so the two below */
        float *weights;
        uint32_t *slots;
        uint32_t *counts;                        /* [n_experts] */
        struct group *groups;                    /* [n_experts] */
        struct tdm_act_row *gate_rows, *up_rows; /* [n_slots] */
        struct tdm_acts mid;                     /* [n_slots]: the inputs of down */
        float *y;                                /* [n_slots][d_out] */
        size_t memory_bytes;
};

/* One call's values, read by all threads. */
struct job {
        struct tdm_experts *e;
        const struct tdm_experts_layer *layer;
        const struct tdm_kernels *kernels;
        tdm_matmul_fn gate_fn, up_fn, down_fn;
        tdm_activation_fn activate;
        const float *z; /* [n_rows][z_stride] */
        size_t z_stride;
        uint32_t n_rows, n_groups, d_out, chunk_rows;
        float *y; /* [n_rows][y_stride] */
        size_t y_stride;
};

/* ---- memory ---- */

static void *experts_alloc(struct tdm_experts *e, size_t n, size_t size)
{
        size_t bytes = TDM_ALIGN_UP(n * size, (size_t)ALIGNMENT);

        e->memory_bytes += bytes;
        return aligned_alloc(ALIGNMENT, bytes);
}

int tdm_experts_new(struct tdm_experts **ret, const struct tdm_experts_sizes *sizes)
{
        struct tdm_experts *e = calloc(1, sizeof(*e));
        size_t n_slots = (size_t)sizes->max_rows * sizes->n_used;

        if (!e)
                return -ENOMEM;
        e->sizes = *sizes;
        e->ids = experts_alloc(e, n_slots, sizeof(*e->ids));
        e->weights = experts_alloc(e, n_slots, sizeof(*e->weights));
        e->slots = experts_alloc(e, n_slots, sizeof(*e->slots));
        e->counts = experts_alloc(e, sizes->n_experts, sizeof(*e->counts));
        e->groups = experts_alloc(e, sizes->n_experts, sizeof(*e->groups));
        e->gate_rows = experts_alloc(e, n_slots, sizeof(*e->gate_rows));
        e->up_rows = experts_alloc(e, n_slots, sizeof(*e->up_rows));
        e->y = experts_alloc(e, n_slots * sizes->d_out, sizeof(*e->y));
        if (!e->ids || !e->weights || !e->slots || !e->counts || !e->groups || !e->gate_rows || !e->up_rows || !e->y ||
            n_slots > UINT32_MAX || tdm_acts_init(&e->mid, sizes->down_forms, (uint32_t)n_slots, sizes->d_expert) < 0) {
                tdm_experts_destroy(e);
                return -ENOMEM;
        }
        e->memory_bytes += e->mid.memory_bytes;
        *ret = e;
        return 0;
}

void tdm_experts_destroy(struct tdm_experts *e)
{
        if (!e)
                return;
        free(e->ids);
        free(e->weights);
        free(e->slots);
        free(e->counts);
        free(e->groups);
        free(e->gate_rows);
        free(e->up_rows);
        free(e->y);
        tdm_acts_deinit(&e->mid);
        free(e);
}

size_t tdm_experts_scratch_bytes(const struct tdm_experts *e)
{
        return e->memory_bytes;
}

/* ---- choosing ---- */

/* Whether expert a comes before expert b, a < b. A NaN comes last, so that any numbers give a choice. */
static bool comes_first(float a, float b)
{
        return a >= b || isnan(b);
}

/* The n_used largest, by insertion: they are few. */
static void choose_largest(const float *z, uint32_t n_experts, uint32_t n_used, uint32_t *ids)
{
        for (uint32_t expert = 0, n = 0; expert < n_experts; expert++) {
                uint32_t at = n;

                while (at > 0 && !comes_first(z[ids[at - 1]], z[expert]))
                        at--;
                if (at == n_used)
                        continue;
                n = TDM_MIN(n + 1, n_used);
                memmove(&ids[at + 1], &ids[at], (n - 1 - at) * sizeof(*ids));
                ids[at] = expert;
        }
}

/* exp(z - most), summed from the first on. */
static float sum_of_all(const struct tdm_kernels *kernels, const float *z, uint32_t n, float most)
{
        float sum = 0, e[64];

        for (uint32_t i = 0, m; i < n; i += m) {
                m = TDM_MIN(n - i, (uint32_t)TDM_ARRAY_SIZE(e));
                for (uint32_t j = 0; j < m; j++)
                        e[j] = z[i + j] - most;
                kernels->exp_array(e, m, e);
                for (uint32_t j = 0; j < m; j++)
                        sum += e[j];
        }
        return sum;
}

/* The bias is of the choice alone. */
static float choose_by_sigmoid(const struct tdm_experts_layer *layer, const struct tdm_kernels *kernels, const float *z,
                               uint32_t *ids, float *weights)
{
        float s[TDM_MAX_EXPERTS], by[TDM_MAX_EXPERTS], sum = 0;

        for (uint32_t i = 0; i < layer->n_experts; i++)
                s[i] = -z[i];
        kernels->exp_array(s, layer->n_experts, s);
        for (uint32_t i = 0; i < layer->n_experts; i++) {
                s[i] = 1 / (1 + s[i]);
                by[i] = layer->choice_bias ? s[i] + layer->choice_bias[i] : s[i];
        }
        choose_largest(by, layer->n_experts, layer->n_used, ids);
        for (uint32_t i = 0; i < layer->n_used; i++)
                sum += weights[i] = s[ids[i]];
        return sum + SIGMOIDS_MORE;
}

/* Returns the softmax's sum: over all, or over the chosen ones. */
static float choose_by_softmax(const struct tdm_experts_layer *layer, const struct tdm_kernels *kernels, const float *z,
                               uint32_t *ids, float *weights)
{
        float sum = 0;

        choose_largest(z, layer->n_experts, layer->n_used, ids);
        for (uint32_t i = 0; i < layer->n_used; i++)
                weights[i] = z[ids[i]] - z[ids[0]];
        kernels->exp_array(weights, layer->n_used, weights);
        if (layer->router == TDM_ROUTER_SOFTMAX_ALL)
                return sum_of_all(kernels, z, layer->n_experts, z[ids[0]]);
        for (uint32_t i = 0; i < layer->n_used; i++)
                sum += weights[i];
        return sum;
}

void tdm_experts_choose(const struct tdm_experts_layer *layer, const struct tdm_kernels *kernels, const float *z,
                        uint32_t *ids, float *weights)
{
        float sum = layer->router == TDM_ROUTER_SIGMOID ? choose_by_sigmoid(layer, kernels, z, ids, weights) :
                                                          choose_by_softmax(layer, kernels, z, ids, weights);

        for (uint32_t i = 0; i < layer->n_used; i++) {
                weights[i] /= sum;
                if (layer->scales)
                        weights[i] *= layer->scales[ids[i]];
        }
}

static void choose_rows(void *arg, unsigned chunk, unsigned thread)
{
        const struct job *job = arg;
        uint32_t first = chunk * job->chunk_rows, end = TDM_MIN(first + job->chunk_rows, job->n_rows);

        for (uint32_t row = first; row < end; row++) {
                size_t at = (size_t)row * job->layer->n_used;

                tdm_experts_choose(job->layer, job->kernels, job->z + row * job->z_stride, job->e->ids + at,
                                   job->e->weights + at);
        }
}

/* Groups, slots, and the slots' rows. */
static void make_groups(struct job *job, const struct tdm_acts *acts)
{
        struct tdm_experts *e = job->e;
        const struct tdm_experts_layer *layer = job->layer;
        uint32_t n_slots = job->n_rows * layer->n_used, first = 0;

        memset(e->counts, 0, layer->n_experts * sizeof(*e->counts));
        for (uint32_t i = 0; i < n_slots; i++)
                e->counts[e->ids[i]]++;
        for (uint32_t expert = 0; expert < layer->n_experts; expert++) {
                uint32_t n = e->counts[expert];

                if (n > 0)
                        e->groups[job->n_groups++] =
                                (struct group){ .expert = expert, .first_slot = first, .n_rows = n };
                e->counts[expert] = first; /* from here on: its next slot */
                first += n;
        }
        for (uint32_t i = 0; i < n_slots; i++) {
                uint32_t slot = e->slots[i] = e->counts[e->ids[i]]++;

                e->gate_rows[slot] = acts->rows[layer->gate_act][i / layer->n_used];
                e->up_rows[slot] = acts->rows[layer->up_act][i / layer->n_used];
        }
}

/* ---- cutting ---- */

/* Cuts a product in which each group has n_panels panels of cols columns, n_products times; returns how many chunks. */
static uint32_t cut_groups(struct job *job, uint32_t n_panels, uint32_t cols, unsigned n_products, unsigned n_threads)
{
        uint64_t panel_work = (uint64_t)TDM_PANEL_ROWS * cols * n_products, work = 0;
        uint32_t n_chunks = 0;

        for (uint32_t g = 0; g < job->n_groups; g++)
                work += panel_work * n_panels * (job->e->groups[g].n_rows + READ_ROWS);
        work = TDM_MIN(TDM_MAX(work / (n_threads * CHUNKS_PER_THREAD), CHUNK_WORK_MIN), CHUNK_WORK_MAX);
        for (uint32_t g = 0; g < job->n_groups; g++) {
                struct group *group = &job->e->groups[g];
                uint32_t n;

                group->n_row_chunks = TDM_DIV_UP(group->n_rows, CHUNK_ROWS_MAX);
                group->chunk_rows = TDM_DIV_UP(group->n_rows, group->n_row_chunks);
                n = (uint32_t)TDM_MIN(work / (panel_work * (group->chunk_rows + READ_ROWS)), (uint64_t)n_panels);
                n = TDM_MIN(n, VALUES_MAX / TDM_PANEL_ROWS / group->chunk_rows);
                group->chunk_panels = TDM_MAX(n & ~1u, 2u); /* outputs are whole blocks of 32 */
                group->first_chunk = n_chunks;
                n_chunks += TDM_DIV_UP(n_panels, group->chunk_panels) * group->n_row_chunks;
        }
        return n_chunks;
}

struct piece {
        const struct group *group;
        uint32_t first_panel, n_panels; /* of an expert's */
        uint32_t first_slot, n_rows;
};

static struct piece find_piece(const struct job *job, uint32_t chunk, uint32_t n_panels)
{
        const struct group *groups = job->e->groups;
        uint32_t low = 0, high = job->n_groups;
        struct piece piece;

        while (high - low > 1) {
                uint32_t middle = (low + high) / 2;

                if (groups[middle].first_chunk <= chunk)
                        low = middle;
                else
                        high = middle;
        }
        piece.group = &groups[low];
        chunk -= groups[low].first_chunk;
        piece.first_panel = chunk / groups[low].n_row_chunks * groups[low].chunk_panels;
        piece.n_panels = TDM_MIN(groups[low].chunk_panels, n_panels - piece.first_panel);
        piece.first_slot = chunk % groups[low].n_row_chunks * groups[low].chunk_rows;
        piece.n_rows = TDM_MIN(groups[low].chunk_rows, groups[low].n_rows - piece.first_slot);
        piece.first_slot += groups[low].first_slot;
        return piece;
}

static void add_bias(const float *bias, uint32_t n, uint32_t n_rows, float *y, size_t y_stride)
{
        for (uint32_t r = 0; bias && r < n_rows; r++)
                for (uint32_t i = 0; i < n; i++)
                        y[r * y_stride + i] += bias[i];
}

static const float *of_expert(const float *bias, uint32_t expert, uint32_t width, uint32_t first)
{
        return bias ? bias + (size_t)expert * width + first : NULL;
}

/* ---- products ---- */

/* Kernels of few rows wait for memory. They fetch ahead what follows in the same matrix, but where the next piece lies
 * elsewhere, its first bytes come late. So they are fetched while the piece before is computed. Inline: a function that
 * only fetches has no effect for a compiler, which leaves out its calls. */
static inline __attribute__((always_inline)) void fetch_begin(const struct tdm_matrix *matrix, uint32_t panel)
{
        const uint8_t *from = matrix->data + (size_t)panel * matrix->panel_bytes;
        size_t n = TDM_MIN((size_t)BEGIN_BYTES, (size_t)matrix->panel_bytes);

        for (size_t at = 0; at < n; at += ALIGNMENT) {
                __builtin_prefetch(from + at, 0, 2);
                __builtin_prefetch(from + matrix->panel_bytes + at, 0, 2);
        }
}

static void gate_up_chunk(void *arg, unsigned chunk, unsigned thread)
{
        const struct job *job = arg;
        const struct tdm_experts_layer *layer = job->layer;
        uint32_t all_panels = layer->d_expert / TDM_PANEL_ROWS;
        struct piece piece = find_piece(job, chunk, all_panels);
        uint32_t expert = piece.group->expert, first = piece.first_panel * TDM_PANEL_ROWS;
        uint32_t panel = expert * layer->gate_panels + piece.first_panel, width = piece.n_panels * TDM_PANEL_ROWS;
        _Alignas(ALIGNMENT) float gate[VALUES_MAX], up[VALUES_MAX];

        assert(width * piece.n_rows <= VALUES_MAX);
        if (piece.n_rows <= FEW_ROWS)
                fetch_begin(&layer->up, panel);
        job->gate_fn(&layer->gate, job->e->gate_rows + piece.first_slot, piece.n_rows, panel, piece.n_panels, gate,
                     width);
        job->up_fn(&layer->up, job->e->up_rows + piece.first_slot, piece.n_rows, panel, piece.n_panels, up, width);
        add_bias(of_expert(layer->gate_bias, expert, layer->d_expert, first), width, piece.n_rows, gate, width);
        add_bias(of_expert(layer->up_bias, expert, layer->d_expert, first), width, piece.n_rows, up, width);
        for (uint32_t r = 0; r < piece.n_rows; r++) {
                float *h = gate + r * width;

                job->activate(h, up + r * width, width, h);
                tdm_acts_prepare_part(&job->e->mid, job->kernels, piece.first_slot + r, first, h, width);
        }
}

static void down_chunk(void *arg, unsigned chunk, unsigned thread)
{
        const struct job *job = arg;
        const struct tdm_experts_layer *layer = job->layer;
        uint32_t all_panels = job->d_out / TDM_PANEL_ROWS;
        struct piece piece = find_piece(job, chunk, all_panels);
        uint32_t expert = piece.group->expert, first = piece.first_panel * TDM_PANEL_ROWS;
        float *y = job->e->y + (size_t)piece.first_slot * job->d_out + first;

        job->down_fn(&layer->down, job->e->mid.rows[layer->down_act] + piece.first_slot, piece.n_rows,
                     expert * all_panels + piece.first_panel, piece.n_panels, y, job->d_out);
        add_bias(of_expert(layer->down_bias, expert, job->d_out, first), piece.n_panels * TDM_PANEL_ROWS, piece.n_rows,
                 y, job->d_out);
}

/* ---- sums ---- */

static void add_weighted(float *y, const float *part, float weight, uint32_t n, bool is_first)
{
        if (is_first)
                for (uint32_t i = 0; i < n; i++)
                        y[i] = weight * part[i];
        else
                for (uint32_t i = 0; i < n; i++)
                        y[i] = y[i] + weight * part[i];
}

static void sum_rows(void *arg, unsigned chunk, unsigned thread)
{
        const struct job *job = arg;
        const struct tdm_experts *e = job->e;
        uint32_t first = chunk * job->chunk_rows, end = TDM_MIN(first + job->chunk_rows, job->n_rows);

        for (uint32_t row = first; row < end; row++)
                for (uint32_t rank = 0; rank < job->layer->n_used; rank++) {
                        size_t at = (size_t)row * job->layer->n_used + rank;

                        add_weighted(job->y + row * job->y_stride, e->y + (size_t)e->slots[at] * job->d_out,
                                     e->weights[at], job->d_out, rank == 0);
                }
}

/* One row: some panels of all its experts, and their sum at once. */
static void down_alone_chunk(void *arg, unsigned chunk, unsigned thread)
{
        const struct job *job = arg;
        const struct tdm_experts *e = job->e;
        const struct tdm_experts_layer *layer = job->layer;
        uint32_t all_panels = job->d_out / TDM_PANEL_ROWS, panel = chunk * job->chunk_rows;
        uint32_t first = panel * TDM_PANEL_ROWS;
        uint32_t n_panels = TDM_MIN(job->chunk_rows, all_panels - panel), n = n_panels * TDM_PANEL_ROWS;
        _Alignas(ALIGNMENT) float part[ALONE_PANELS * TDM_PANEL_ROWS];

        for (uint32_t rank = 0; rank < layer->n_used; rank++) {
                if (rank + 1 < layer->n_used)
                        fetch_begin(&layer->down, e->ids[rank + 1] * all_panels + panel);
                job->down_fn(&layer->down, e->mid.rows[layer->down_act] + e->slots[rank], 1,
                             e->ids[rank] * all_panels + panel, n_panels, part, n);
                add_bias(of_expert(layer->down_bias, e->ids[rank], job->d_out, first), n, 1, part, n);
                add_weighted(job->y + first, part, e->weights[rank], n, rank == 0);
        }
}

/* ---- all of it ---- */

static tdm_matmul_fn find_kernel(const struct tdm_kernels *kernels, enum tdm_act act, const struct tdm_matrix *matrix)
{
        tdm_matmul_fn fn = kernels->matmul[act][tdm_kernels_type_index(matrix->type)];

        assert(fn);
        return fn;
}

void tdm_experts_run(struct tdm_experts *e, const struct tdm_experts_layer *layer, struct tdm_pool *pool,
                     const struct tdm_kernels *kernels, const struct tdm_acts *acts, uint32_t n_rows, const float *z,
                     size_t z_stride, float *y, size_t y_stride)
{
        struct job job;
        unsigned n_threads = tdm_pool_n_threads(pool);

        job.e = e;
        job.layer = layer;
        job.kernels = kernels;
        job.gate_fn = find_kernel(kernels, layer->gate_act, &layer->gate);
        job.up_fn = find_kernel(kernels, layer->up_act, &layer->up);
        job.down_fn = find_kernel(kernels, layer->down_act, &layer->down);
        job.activate = tdm_matmul_activation(kernels, layer->activation);
        job.z = z;
        job.z_stride = z_stride;
        job.n_rows = n_rows;
        job.n_groups = 0;
        job.d_out = layer->down.rows / layer->n_experts;
        job.y = y;
        job.y_stride = y_stride;
        assert(n_rows <= e->sizes.max_rows && layer->n_experts <= e->sizes.n_experts &&
               layer->n_used <= e->sizes.n_used && layer->d_expert <= e->sizes.d_expert &&
               job.d_out <= e->sizes.d_out && layer->d_expert % TDM_BLOCK_VALUES == 0 &&
               job.d_out % TDM_BLOCK_VALUES == 0);
        if (n_rows == 0)
                return;
        job.chunk_rows = TDM_MAX(SUM_VALUES / layer->n_experts, 1u);
        tdm_pool_run(pool, TDM_DIV_UP(n_rows, job.chunk_rows), choose_rows, &job);
        make_groups(&job, acts);

        e->mid.cols = layer->d_expert;
        tdm_runs_run(pool, cut_groups(&job, layer->d_expert / TDM_PANEL_ROWS, layer->gate.cols, 2, n_threads),
                     gate_up_chunk, &job);
        if (n_rows == 1) {
                uint32_t n_panels = job.d_out / TDM_PANEL_ROWS;

                job.chunk_rows = TDM_MIN(TDM_DIV_UP(n_panels, n_threads * CHUNKS_PER_THREAD), ALONE_PANELS);
                job.chunk_rows = TDM_ALIGN_UP(job.chunk_rows, 2u);
                tdm_runs_run(pool, TDM_DIV_UP(n_panels, job.chunk_rows), down_alone_chunk, &job);
                return;
        }
        tdm_runs_run(pool, cut_groups(&job, job.d_out / TDM_PANEL_ROWS, layer->d_expert, 1, n_threads), down_chunk,
                     &job);
        job.chunk_rows = TDM_MAX(SUM_VALUES / (job.d_out * layer->n_used), 1u);
        tdm_pool_run(pool, TDM_DIV_UP(n_rows, job.chunk_rows), sum_rows, &job);
}
