/* A few rows through a sparse layer: see sparse.h. */
#include <assert.h>

#include "engine/host/sparse.h"

#define ALIGNMENT 64u
#define LANES TDM_PANEL_ROWS
#define BLOCK TDM_BLOCK_VALUES
#define DOWN_ROWS_MIN 256u /* of down, in a chunk: a column's piece is then whole cache lines */
#define COLUMNS_AHEAD 6u   /* fetched while others are added */

struct tdm_sparse {
        uint32_t d_ff;
        uint32_t *live; /* [TDM_SPARSE_ROWS_MAX][d_ff] */
        uint32_t n_live[TDM_SPARSE_ROWS_MAX];
        uint8_t *panels; /* [n_threads][panel_bytes] */
        uint64_t panel_bytes;
};

bool tdm_sparse_can(const struct tdm_sparse_layer *l)
{
        return l->up.order == TDM_ORDER_ROWS && l->down.order == TDM_ORDER_COLUMNS && l->up_act != TDM_ACT_F32 &&
               l->down_act != TDM_ACT_F32 && l->up.rows == l->down.cols;
}

/* To make panels of all weights takes as long as half of a row's neurons, or more. Then each row costs a 24th. */
uint32_t tdm_sparse_live_max(uint32_t n, uint32_t n_rows)
{
        return n / 2 + n * n_rows / 24;
}

/* ---- memory ---- */

int tdm_sparse_new(struct tdm_sparse **ret, uint32_t d_ff, uint32_t d_in, unsigned n_threads)
{
        struct tdm_sparse *s = calloc(1, sizeof(*s));

        if (!s)
                return -ENOMEM;
        s->d_ff = d_ff;
        s->panel_bytes = TDM_ALIGN_UP(tdm_panel_scales_bytes(d_in) + (uint64_t)d_in * LANES, (uint64_t)ALIGNMENT);
        s->live = calloc((size_t)TDM_SPARSE_ROWS_MAX * d_ff, sizeof(*s->live));
        s->panels = aligned_alloc(ALIGNMENT, n_threads * s->panel_bytes);
        if (!s->live || !s->panels) {
                tdm_sparse_destroy(s);
                return -ENOMEM;
        }
        *ret = s;
        return 0;
}

void tdm_sparse_destroy(struct tdm_sparse *s)
{
        if (!s)
                return;
        free(s->live);
        free(s->panels);
        free(s);
}

/* ---- what all chunks see ---- */

struct job {
        struct tdm_sparse *s;
        const struct tdm_sparse_layer *l;
        const struct tdm_kernels *kernels;
        const struct tdm_act_row *up_rows, *down_rows; /* [n_rows] */
        struct tdm_acts *mid;
        tdm_matmul_fn up_fn;
        float *gate, *up, *y;
        uint32_t n_rows;
        uint32_t first_chunk[TDM_SPARSE_ROWS_MAX + 1]; /* of each row, of 16 live neurons */
        unsigned n_threads;
        uint32_t chunk_rows; /* of down */
};

static const uint32_t *live_of(const struct job *job, uint32_t row)
{
        return job->s->live + (size_t)row * job->s->d_ff;
}

/* ---- which neurons live ---- */

static void list_row(void *arg, unsigned row, unsigned thread)
{
        const struct job *job = arg;
        uint32_t n_neurons = job->l->up.rows, *live = job->s->live + (size_t)row * job->s->d_ff, n = 0;
        const float *gate = job->gate + (size_t)row * n_neurons;

        for (uint32_t i = 0; i < n_neurons; i++) {
                live[n] = i;
                n += gate[i] != 0;
        }
        job->s->n_live[row] = n;
}

/* ---- up ---- */

/* Inline, all of them: a function that only fetches ahead has no effect for a compiler, which leaves out its calls. */
#define INLINE static inline __attribute__((always_inline))
INLINE void fetch(const void *from, size_t bytes)
{
        for (size_t at = 0; at < bytes; at += ALIGNMENT)
                __builtin_prefetch((const uint8_t *)from + at);
}

/* Up to 16 live neurons of one row. */
struct group {
        uint32_t row, n;
        const uint32_t *live;
};

static struct group group_of(const struct job *job, uint32_t chunk)
{
        struct group group = { 0 };
        uint32_t first;

        while (chunk >= job->first_chunk[group.row + 1])
                group.row++;
        first = (chunk - job->first_chunk[group.row]) * LANES;
        group.n = TDM_MIN(job->s->n_live[group.row] - first, LANES);
        group.live = live_of(job, group.row) + first;
        return group;
}

INLINE void fetch_rows(const struct job *job, uint32_t chunk)
{
        struct group group;

        if (chunk >= job->first_chunk[job->n_rows])
                return;
        group = group_of(job, chunk);
        for (uint32_t lane = 0; lane < group.n; lane++)
                fetch(tdm_matrix_row(&job->l->up, group.live[lane]), tdm_matrix_row_bytes(&job->l->up));
}

/* Meanwhile the rows of the neurons that are probably this thread's next ones come. */
static void up_chunk(void *arg, unsigned chunk, unsigned thread)
{
        const struct job *job = arg;
        const struct tdm_matrix *up = &job->l->up;
        struct group group = group_of(job, chunk);
        uint8_t *panel = job->s->panels + thread * job->s->panel_bytes;
        struct tdm_matrix matrix = {
                .data = panel, .panel_bytes = job->s->panel_bytes, .type = up->type, .rows = LANES, .cols = up->cols
        };
        const uint8_t *rows[LANES];
        float y[LANES];

        if (chunk < job->n_threads)
                fetch_rows(job, chunk);
        fetch_rows(job, chunk + job->n_threads);
        for (uint32_t lane = 0; lane < LANES; lane++) /* lanes that are none have the last one again */
                rows[lane] = tdm_matrix_row(up, group.live[TDM_MIN(lane, group.n - 1)]);
        job->kernels->interleave(rows, up->cols / BLOCK, tdm_matrix_quant_bytes(up), panel,
                                 panel + tdm_panel_scales_bytes(up->cols));
        job->up_fn(&matrix, job->up_rows + group.row, 1, 0, 1, y, LANES);
        for (uint32_t lane = 0; lane < group.n; lane++)
                job->up[(size_t)group.row * up->rows + group.live[lane]] = y[lane];
}

static void finish_row(void *arg, unsigned row, unsigned thread)
{
        const struct job *job = arg;
        uint32_t n = job->l->up.rows;
        float *gate = job->gate + (size_t)row * n;

        job->kernels->gelu_mul(gate, job->up + (size_t)row * n, n, gate);
        tdm_acts_prepare_row(job->mid, job->kernels, row, gate, n);
}

/* ---- down ---- */

/* Fetches what the i-th live column needs of a chunk's rows, because hardware does not guess which column is next. */
INLINE void fetch_column(const struct job *job, const uint32_t *live, uint32_t n_live, uint32_t i, uint32_t first,
                         uint32_t n_rows)
{
        const struct tdm_matrix *down = &job->l->down;

        if (i >= n_live)
                return;
        fetch(tdm_matrix_column(down, live[i], first), n_rows / BLOCK * tdm_matrix_quant_bytes(down));
        if (i == 0 || live[i] / BLOCK != live[i - 1] / BLOCK)
                fetch(tdm_matrix_column_scales(down, live[i] / BLOCK, first), 2 * (size_t)n_rows);
}

/* y [n_rows] of one row x. */
static void down_row(const struct job *job, uint32_t row, uint32_t first, uint32_t n_rows, float *y)
{
        const struct tdm_matrix *down = &job->l->down;
        const struct tdm_act_row *x = job->down_rows + row;
        const uint32_t *live = live_of(job, row);
        uint32_t n_live = job->s->n_live[row];
        bool has_lo = job->l->down_act == TDM_ACT_I16;

        memset(y, 0, n_rows * sizeof(*y));
        for (uint32_t i = 0; i < COLUMNS_AHEAD; i++)
                fetch_column(job, live, n_live, i, first, n_rows);
        for (uint32_t i = 0; i < n_live;) {
                uint32_t b = live[i] / BLOCK;
                struct tdm_columns columns = { .type = down->type,
                                               .scales = tdm_matrix_column_scales(down, b, first),
                                               .x_scale = x->scale[b] };

                for (; i < n_live && live[i] / BLOCK == b; i++) {
                        fetch_column(job, live, n_live, i + COLUMNS_AHEAD, first, n_rows);
                        columns.w[columns.n] = tdm_matrix_column(down, live[i], first);
                        columns.q[columns.n++] =
                                (int16_t)(has_lo ? 256 * x->hi[live[i]] + x->lo[live[i]] : x->hi[live[i]]);
                }
                job->kernels->add_columns(&columns, n_rows, y);
        }
}

static void down_chunk(void *arg, unsigned chunk, unsigned thread)
{
        const struct job *job = arg;
        uint32_t d = job->l->down.rows, first = chunk * job->chunk_rows, n = TDM_MIN(job->chunk_rows, d - first);

        for (uint32_t row = 0; row < job->n_rows; row++)
                down_row(job, row, first, n, job->y + (size_t)row * d + first);
}

/* ---- all of it ---- */

bool tdm_sparse_run(struct tdm_sparse *s, const struct tdm_sparse_layer *l, struct tdm_pool *pool,
                    const struct tdm_kernels *kernels, const struct tdm_acts *acts, uint32_t n_rows, float *gate,
                    float *up, struct tdm_acts *mid, float *y)
{
        uint32_t n = l->up.rows, n_live = 0;
        struct job job = { .s = s,
                           .l = l,
                           .kernels = kernels,
                           .up_rows = acts->rows[l->up_act],
                           .down_rows = mid->rows[l->down_act],
                           .mid = mid,
                           .up_fn = kernels->matmul[l->up_act][tdm_kernels_type_index(l->up.type)],
                           .gate = gate,
                           .up = up,
                           .y = y,
                           .n_rows = n_rows,
                           .n_threads = tdm_pool_n_threads(pool) };

        assert(job.up_fn && acts->cols == l->up.cols && n_rows <= TDM_SPARSE_ROWS_MAX && n <= s->d_ff);
        tdm_pool_run(pool, n_rows, list_row, &job);
        for (uint32_t row = 0; row < n_rows; row++) {
                n_live += s->n_live[row];
                job.first_chunk[row + 1] = job.first_chunk[row] + TDM_DIV_UP(s->n_live[row], LANES);
        }
        if (n_live > tdm_sparse_live_max(n, n_rows))
                return false;
        memset(up, 0, (size_t)n_rows * n * sizeof(*up)); /* of dead neurons: the gate's zero times anything finite */
        tdm_pool_run(pool, job.first_chunk[n_rows], up_chunk, &job);
        tdm_pool_run(pool, n_rows, finish_row, &job);
        job.chunk_rows = TDM_MAX(TDM_ALIGN_UP(TDM_DIV_UP(l->down.rows, job.n_threads), BLOCK), DOWN_ROWS_MIN);
        tdm_pool_run(pool, TDM_DIV_UP(l->down.rows, job.chunk_rows), down_chunk, &job);
        return true;
}
