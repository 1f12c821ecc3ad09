/* One row through a sparse layer: see sparse.h. */
#include <assert.h>
#include <sys/mman.h>

#include "engine/host/sparse.h"

#define ALIGNMENT 64u
#define LANES TDM_PANEL_ROWS
#define BLOCK TDM_BLOCK_VALUES
#define LIVE_SHARE 4u      /* a row with more than one live neuron in so many runs densely */
#define DOWN_ROWS_MIN 256u /* of down, in a chunk: a column's piece is then whole cache lines */
#define CHUNKS_PER_THREAD 1u
#define COLUMNS_AHEAD 6u /* fetched while others are added */

struct tdm_sparse {
        uint32_t *live; /* [d_ff] */
        uint32_t n_live;
        uint8_t *panels; /* [n_threads][panel_bytes] */
        uint64_t panel_bytes;
};

static uint32_t quant_bytes(uint32_t type)
{
        return type == TDM_TYPE_Q8_0 ? BLOCK : BLOCK / 2;
}

static uint64_t scales_bytes(uint32_t cols)
{
        return TDM_ALIGN_UP((uint64_t)cols / BLOCK * LANES * 2, (uint64_t)ALIGNMENT);
}

/* Quants first, then scales: what a row has in a panel. */
static uint64_t row_bytes(const struct tdm_matrix *m)
{
        return (uint64_t)m->cols / BLOCK * (quant_bytes(m->type) + 2);
}

static uint32_t column_bytes(const struct tdm_matrix *m)
{
        return m->rows / BLOCK * quant_bytes(m->type);
}

bool tdm_sparse_can(const struct tdm_sparse_layer *l)
{
        const struct tdm_matrix *m[] = { &l->up, &l->down };

        for (int i = 0; i < 2; i++)
                if ((m[i]->type != TDM_TYPE_Q4_0 && m[i]->type != TDM_TYPE_Q8_0) || m[i]->rows % LANES ||
                    m[i]->cols % BLOCK)
                        return false;
        if (l->down.rows % BLOCK) /* a column of nibbles */
                return false;
        return l->up_act != TDM_ACT_F32 && l->down_act != TDM_ACT_F32 && l->up.rows == l->down.cols;
}

/* ---- memory ---- */

int tdm_sparse_new(struct tdm_sparse **ret, uint32_t d_ff, uint32_t d_in, unsigned n_threads)
{
        struct tdm_sparse *s = calloc(1, sizeof(*s));

        if (!s)
                return -ENOMEM;
        s->panel_bytes = TDM_ALIGN_UP(scales_bytes(d_in) + (uint64_t)d_in * LANES, (uint64_t)ALIGNMENT);
        s->live = calloc(d_ff, sizeof(*s->live));
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

static uint64_t layer_bytes(const struct tdm_sparse_layer *l, uint64_t *ret_scales_at, uint64_t *ret_columns_at)
{
        *ret_scales_at = TDM_ALIGN_UP(l->up.rows * row_bytes(&l->up), (uint64_t)ALIGNMENT);
        *ret_columns_at =
                TDM_ALIGN_UP(*ret_scales_at + (uint64_t)l->down.cols / BLOCK * l->down.rows * 2, (uint64_t)ALIGNMENT);
        return *ret_columns_at + (uint64_t)l->down.cols * column_bytes(&l->down);
}

int64_t tdm_sparse_layer_init(struct tdm_sparse_layer *l)
{
        uint64_t scales_at, columns_at, bytes = layer_bytes(l, &scales_at, &columns_at);
        uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (memory == MAP_FAILED)
                return -ENOMEM;
        (void)madvise(memory, bytes, MADV_HUGEPAGE); /* what is read lies far apart: fewer translations */
        l->rows = memory;
        l->scales = (uint16_t *)(memory + scales_at);
        l->columns = memory + columns_at;
        return (int64_t)bytes;
}

void tdm_sparse_layer_deinit(struct tdm_sparse_layer *l)
{
        uint64_t scales_at, columns_at;

        if (l->rows)
                munmap(l->rows, layer_bytes(l, &scales_at, &columns_at));
        l->rows = NULL;
}

/* ---- copies ---- */

/* A panel's rows: in each block a row has quant_bytes / 4 pieces of 4 bytes, 16 rows apart. */
static void fill_rows(void *arg, unsigned panel, unsigned thread)
{
        const struct tdm_sparse_layer *l = arg;
        const uint8_t *from = l->up.data + panel * l->up.panel_bytes, *quants = from + scales_bytes(l->up.cols);
        uint32_t n_blocks = l->up.cols / BLOCK, n_pieces = n_blocks * quant_bytes(l->up.type) / 4;

        for (uint32_t lane = 0; lane < LANES; lane++) {
                uint8_t *row = l->rows + ((uint64_t)panel * LANES + lane) * row_bytes(&l->up);

                for (uint32_t i = 0; i < n_pieces; i++)
                        memcpy(row + 4 * (size_t)i, quants + ((size_t)i * LANES + lane) * 4, 4);
                for (uint32_t b = 0; b < n_blocks; b++)
                        memcpy(row + 4 * (size_t)n_pieces + 2 * (size_t)b, from + ((size_t)b * LANES + lane) * 2, 2);
        }
}

/* Of a column of nibbles: 16 rows are the lower half of 16 bytes, the next 16 the upper one. Two panels are filled by
 * one thread, so that no byte is another's too. */
static void fill_columns_of(const struct tdm_sparse_layer *l, uint32_t panel)
{
        const uint8_t *from = l->down.data + panel * l->down.panel_bytes, *quants = from + scales_bytes(l->down.cols);
        bool is_q4 = l->down.type == TDM_TYPE_Q4_0;
        uint32_t d = l->down.rows, at_row = is_q4 ? panel / 2 * LANES : panel * LANES;

        for (uint32_t b = 0; b < l->down.cols / BLOCK; b++, quants += LANES * quant_bytes(l->down.type)) {
                memcpy(l->scales + (size_t)b * d + panel * LANES, from + (size_t)b * LANES * 2, LANES * 2);
                for (uint32_t k = 0; k < BLOCK; k++) {
                        uint8_t *column = l->columns + ((size_t)b * BLOCK + k) * column_bytes(&l->down) + at_row;

                        for (uint32_t lane = 0; lane < LANES; lane++) {
                                uint32_t at = (k / 4 * LANES + lane) * 4 + k % 4, nibble;

                                if (!is_q4) {
                                        column[lane] = quants[at] ^ 0x80;
                                        continue;
                                }
                                nibble = at < 256 ? quants[at] & 15 : quants[at - 256] >> 4;
                                column[lane] = (uint8_t)(panel % 2 ? column[lane] | nibble << 4 : nibble);
                        }
                }
        }
}

static void fill_columns(void *arg, unsigned pair, unsigned thread)
{
        fill_columns_of(arg, 2 * pair);
        fill_columns_of(arg, 2 * pair + 1);
}

/* ---- up ---- */

struct up_job {
        const struct tdm_sparse *s;
        const struct tdm_sparse_layer *l;
        const struct tdm_kernels *kernels;
        const struct tdm_act_row *row;
        tdm_matmul_fn fn;
        float *up;
        unsigned n_threads, n_chunks;
};

/* Inline, all of them: a function that only fetches ahead has no effect for a compiler, which leaves out its calls. */
#define INLINE static inline __attribute__((always_inline))
INLINE void fetch(const void *from, size_t bytes)
{
        for (size_t at = 0; at < bytes; at += ALIGNMENT)
                __builtin_prefetch((const uint8_t *)from + at);
}

/* The rows of 16 live neurons. The last panel's lanes that are none have the last one again. Returns how many live. */
static uint32_t list_rows(const struct up_job *job, unsigned chunk, const uint8_t **rows)
{
        const uint32_t *live = job->s->live + chunk * LANES;
        uint32_t n = TDM_MIN(job->s->n_live - chunk * LANES, LANES);

        for (uint32_t lane = 0; lane < LANES; lane++)
                rows[lane] = job->l->rows + live[TDM_MIN(lane, n - 1)] * row_bytes(&job->l->up);
        return n;
}

INLINE void fetch_rows(const struct up_job *job, unsigned chunk)
{
        const uint8_t *rows[LANES];
        uint32_t n = list_rows(job, chunk, rows);

        for (uint32_t lane = 0; lane < n; lane++)
                fetch(rows[lane], row_bytes(&job->l->up));
}

/* 16 live neurons. Meanwhile the rows of those that are probably this thread's next ones come. */
static void up_chunk(void *arg, unsigned chunk, unsigned thread)
{
        const struct up_job *job = arg;
        const uint32_t *live = job->s->live + chunk * LANES;
        uint8_t *panel = job->s->panels + thread * job->s->panel_bytes;
        struct tdm_matrix matrix = { panel, job->s->panel_bytes, job->l->up.type, LANES, job->l->up.cols };
        const uint8_t *rows[LANES];
        uint32_t n = list_rows(job, chunk, rows);
        float y[LANES];

        if (chunk < job->n_threads)
                fetch_rows(job, chunk);
        if (chunk + job->n_threads < job->n_chunks)
                fetch_rows(job, chunk + job->n_threads);
        job->kernels->interleave(rows, job->l->up.cols / BLOCK, quant_bytes(job->l->up.type), panel,
                                 panel + scales_bytes(job->l->up.cols));
        job->fn(&matrix, job->row, 1, 0, 1, y, LANES);
        for (uint32_t lane = 0; lane < n; lane++)
                job->up[live[lane]] = y[lane];
}

/* ---- down ---- */

struct down_job {
        const struct tdm_sparse *s;
        const struct tdm_sparse_layer *l;
        const struct tdm_kernels *kernels;
        const struct tdm_act_row *row;
        uint32_t chunk_rows;
        float *y;
};

/* From row `first` on. */
static const uint8_t *column(const struct tdm_sparse_layer *l, uint32_t neuron, uint32_t first)
{
        return l->columns + (size_t)neuron * column_bytes(&l->down) + first / BLOCK * quant_bytes(l->down.type);
}

/* Of a chunk's rows, what the i-th live column needs: hardware does not guess which column is next. */
INLINE void fetch_column(const struct down_job *job, uint32_t i, uint32_t first, uint32_t n_rows)
{
        const struct tdm_sparse_layer *l = job->l;
        const uint32_t *live = job->s->live;

        if (i >= job->s->n_live)
                return;
        fetch(column(l, live[i], first), n_rows / BLOCK * quant_bytes(l->down.type));
        if (i == 0 || live[i] / BLOCK != live[i - 1] / BLOCK)
                fetch(l->scales + (size_t)(live[i] / BLOCK) * l->down.rows + first, 2 * (size_t)n_rows);
}

static void down_chunk(void *arg, unsigned chunk, unsigned thread)
{
        const struct down_job *job = arg;
        const struct tdm_sparse_layer *l = job->l;
        const uint32_t *live = job->s->live;
        uint32_t first = chunk * job->chunk_rows, n_rows = TDM_MIN(job->chunk_rows, l->down.rows - first);
        bool has_lo = l->down_act == TDM_ACT_I16;
        float *y = job->y + first;

        memset(y, 0, n_rows * sizeof(*y));
        for (uint32_t i = 0; i < COLUMNS_AHEAD; i++)
                fetch_column(job, i, first, n_rows);
        for (uint32_t i = 0; i < job->s->n_live;) {
                uint32_t b = live[i] / BLOCK;
                struct tdm_columns columns = { .type = l->down.type,
                                               .scales = l->scales + (size_t)b * l->down.rows + first,
                                               .x_scale = job->row->scale[b] };

                for (; i < job->s->n_live && live[i] / BLOCK == b; i++) {
                        fetch_column(job, i + COLUMNS_AHEAD, first, n_rows);
                        columns.w[columns.n] = column(l, live[i], first);
                        columns.q[columns.n++] =
                                (int16_t)(has_lo ? 256 * job->row->hi[live[i]] + job->row->lo[live[i]] :
                                                   job->row->hi[live[i]]);
                }
                job->kernels->add_columns(&columns, n_rows, y);
        }
}

/* ---- all of it ---- */

static uint32_t list_live(const float *gate, uint32_t n, uint32_t *live)
{
        uint32_t n_live = 0;

        for (uint32_t i = 0; i < n; i++) {
                live[n_live] = i;
                n_live += gate[i] != 0;
        }
        return n_live;
}

bool tdm_sparse_run(struct tdm_sparse *s, struct tdm_sparse_layer *l, struct tdm_pool *pool,
                    const struct tdm_kernels *kernels, const struct tdm_acts *acts, float *gate, float *up,
                    struct tdm_acts *mid, float *y)
{
        uint32_t n = l->up.rows, n_parts = CHUNKS_PER_THREAD * tdm_pool_n_threads(pool);
        struct up_job up_job = {
                s, l, kernels, acts->rows[l->up_act], kernels->matmul[l->up_act][tdm_kernels_type_index(l->up.type)], up
        };
        struct down_job down_job = { s,
                                     l,
                                     kernels,
                                     mid->rows[l->down_act],
                                     TDM_MAX(TDM_ALIGN_UP(TDM_DIV_UP(l->down.rows, n_parts), BLOCK), DOWN_ROWS_MIN),
                                     y };

        assert(up_job.fn && acts->cols == l->up.cols);
        s->n_live = list_live(gate, n, s->live);
        if (s->n_live > n / LIVE_SHARE)
                return false;
        if (!l->filled) {
                tdm_pool_run(pool, l->up.rows / LANES, fill_rows, l);
                tdm_pool_run(pool, l->down.rows / BLOCK, fill_columns, l);
                l->filled = true;
        }
        memset(up, 0, n * sizeof(*up)); /* of dead neurons: the gate's zero times anything finite */
        up_job.n_threads = tdm_pool_n_threads(pool);
        up_job.n_chunks = TDM_DIV_UP(s->n_live, LANES);
        tdm_pool_run(pool, up_job.n_chunks, up_chunk, &up_job);
        kernels->gelu_mul(gate, up, n, gate);
        tdm_acts_prepare_row(mid, kernels, 0, gate, n);
        tdm_pool_run(pool, TDM_DIV_UP(l->down.rows, down_job.chunk_rows), down_chunk, &down_job);
        return true;
}
