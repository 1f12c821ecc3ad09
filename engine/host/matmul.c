/* Cuts matrix products into chunks for the pool. A chunk is some panels (always an even number, so that its outputs are
 * whole blocks of 32) times some rows; what is in a chunk changes no result, only who computes it and when.
 *
 * Chunks are small enough to share the work evenly and to beat the heart every few milliseconds on the slowest kernels,
 * and large enough that taking one (some 50 ns) is free. */
#include <assert.h>
#include "engine/host/matmul.h"
#include "engine/host/runs.h"

#define ALIGNMENT 64u
#define CHUNKS_PER_THREAD 16u
#define ROWS_OF_LONG_CHUNKS 6u              /* up to this many rows wait for memory */
#define CHUNKS_PER_THREAD_OF_LONG 6u        /* of these: memory is read faster in long pieces */
#define CHUNKS_PER_THREAD_OF_MANY_ROWS 8u   /* they wait for no memory, and the kernels like long chunks */
#define CHUNKS_PER_THREAD_LEAST 4u          /* of a matrix that lies by rows or columns */
#define CHUNK_MACS_MAX (UINT64_C(32) << 20) /* some ten milliseconds in plain C */
#define CHUNK_MACS_MIN (UINT64_C(64) << 10)
#define CHUNK_BYTES_MAX (UINT64_C(1) << 20) /* of weights: some 50 us of memory, so that threads end together */
#define FEW_ROWS 3u                         /* of which kernels take this many panels at once */
#define FEW_ROWS_PANELS 4u
#define CHUNK_ROWS_MAX 96u /* a multiple of every kernel's row tile */
#define MAX_OUTS 4u
#define PREPARE_VALUES 8192u                       /* per chunk of prepare() */
#define GATE_UP_VALUES_MAX (128u * CHUNK_ROWS_MAX) /* of each, on the stack */

/* ---- prepared rows ---- */

/* An odd number of cache lines: rows of a tile must not fall into one cache set. */
static size_t acts_row_bytes(size_t bytes)
{
        bytes = TDM_ALIGN_UP(bytes, (size_t)ALIGNMENT);
        return bytes / ALIGNMENT % 2 ? bytes : bytes + ALIGNMENT;
}

static size_t form_bytes(enum tdm_act act, uint32_t max_cols)
{
        uint32_t nb = TDM_DIV_UP(max_cols, TDM_BLOCK_VALUES);

        switch (act) {
        case TDM_ACT_F32:
                return acts_row_bytes((size_t)max_cols * sizeof(float));
        case TDM_ACT_I8:
                return acts_row_bytes(max_cols) + 3 * acts_row_bytes((size_t)nb * 4) + acts_row_bytes((size_t)nb * 8);
        default:
                return 2 * acts_row_bytes(max_cols) + 3 * acts_row_bytes((size_t)nb * 4) +
                       acts_row_bytes((size_t)nb * 8);
        }
}

static void *matmul_take_bytes(uint8_t **memory, size_t bytes)
{
        void *p = *memory;

        *memory += bytes;
        return p;
}

int tdm_acts_init(struct tdm_acts *acts, unsigned forms, uint32_t max_rows, uint32_t max_cols)
{
        struct tdm_acts a = { .forms = forms, .max_rows = max_rows };
        size_t rows_bytes = TDM_ALIGN_UP(max_rows * sizeof(struct tdm_act_row), (size_t)ALIGNMENT);
        uint8_t *memory;

        assert(forms && forms < 1u << TDM_N_ACTS && max_rows > 0 && max_cols > 0);
        a.max_cols = max_cols = TDM_ALIGN_UP(max_cols, TDM_BLOCK_VALUES);
        for (unsigned act = 0; act < TDM_N_ACTS; act++)
                if (forms & 1u << act)
                        a.memory_bytes += rows_bytes + max_rows * form_bytes(act, max_cols);
        a.memory = memory = aligned_alloc(ALIGNMENT, a.memory_bytes);
        if (!memory)
                return -ENOMEM;
        memset(memory, 0, a.memory_bytes); /* no page faults later */

        for (unsigned act = 0; act < TDM_N_ACTS; act++) {
                size_t per_block = acts_row_bytes((size_t)max_cols / TDM_BLOCK_VALUES * 4);

                if (!(forms & 1u << act))
                        continue;
                a.rows[act] = matmul_take_bytes(&memory, rows_bytes);
                for (uint32_t r = 0; r < max_rows; r++) {
                        struct tdm_act_row *row = &a.rows[act][r];

                        if (act == TDM_ACT_F32) {
                                row->x = matmul_take_bytes(&memory, acts_row_bytes((size_t)max_cols * sizeof(float)));
                                continue;
                        }
                        row->hi = matmul_take_bytes(&memory, acts_row_bytes(max_cols));
                        if (act == TDM_ACT_I16)
                                row->lo = matmul_take_bytes(&memory, acts_row_bytes(max_cols));
                        row->scale = matmul_take_bytes(&memory, per_block);
                        row->start = matmul_take_bytes(&memory, per_block);
                        row->sum = matmul_take_bytes(&memory, per_block);
                        row->sum_16 =
                                matmul_take_bytes(&memory, acts_row_bytes((size_t)max_cols / TDM_BLOCK_VALUES * 8));
                }
        }
        *acts = a;
        return 0;
}

void tdm_acts_deinit(struct tdm_acts *acts)
{
        free(acts->memory);
        memset(acts, 0, sizeof(*acts));
}

/* The rows are ours: const is for kernels. */
static struct tdm_act_blocks blocks_from(const struct tdm_act_row *row, uint32_t b)
{
        return (struct tdm_act_blocks){
                .scale = (float *)row->scale + b,
                .start = (int32_t *)row->start + b,
                .sum = (float *)row->sum + b,
                .sum_16 = (int32_t *)row->sum_16 + 2 * (size_t)b,
        };
}

void tdm_acts_prepare_part(const struct tdm_acts *acts, const struct tdm_kernels *kernels, uint32_t r, uint32_t first,
                           const float *x, uint32_t n)
{
        uint32_t b = first / TDM_BLOCK_VALUES;

        if (acts->rows[TDM_ACT_F32])
                memcpy((float *)acts->rows[TDM_ACT_F32][r].x + first, x, n * sizeof(float));
        if (n % TDM_BLOCK_VALUES) /* types of blocks have no matrix of such a width */
                return;
        if (acts->rows[TDM_ACT_I8]) {
                const struct tdm_act_row *row = &acts->rows[TDM_ACT_I8][r];
                const struct tdm_act_blocks blocks = blocks_from(row, b);

                kernels->quantise_i8(x, n, (int8_t *)row->hi + first, &blocks);
        }
        if (acts->rows[TDM_ACT_I16]) {
                const struct tdm_act_row *row = &acts->rows[TDM_ACT_I16][r];
                const struct tdm_act_blocks blocks = blocks_from(row, b);

                kernels->quantise_i16(x, n, (int8_t *)row->hi + first, (int8_t *)row->lo + first, &blocks);
        }
}

void tdm_acts_prepare_row(struct tdm_acts *acts, const struct tdm_kernels *kernels, uint32_t row, const float *x,
                          uint32_t cols)
{
        assert(row < acts->max_rows && cols <= acts->max_cols);
        if (row == 0) /* rows are prepared by several threads at once, but row 0 by one */
                acts->cols = cols;
        tdm_acts_prepare_part(acts, kernels, row, 0, x, cols);
}

struct prepare_job {
        struct tdm_acts *acts;
        const struct tdm_kernels *kernels;
        const float *x; /* [n_rows][stride] */
        size_t stride;
        uint32_t n_rows, cols, chunk_rows;
};

static void prepare_chunk(void *arg, unsigned chunk, unsigned thread)
{
        const struct prepare_job *job = arg;
        uint32_t first = chunk * job->chunk_rows, end = TDM_MIN(first + job->chunk_rows, job->n_rows);

        for (uint32_t r = first; r < end; r++)
                tdm_acts_prepare_row(job->acts, job->kernels, r, job->x + r * job->stride, job->cols);
}

void tdm_acts_prepare(struct tdm_acts *acts, const struct tdm_kernels *kernels, struct tdm_pool *pool, const float *x,
                      size_t stride, uint32_t n_rows, uint32_t cols)
{
        struct prepare_job job = { acts, kernels, x, stride, n_rows, cols, TDM_MAX(PREPARE_VALUES / cols, 1u) };

        assert(n_rows <= acts->max_rows);
        tdm_pool_run(pool, TDM_DIV_UP(n_rows, job.chunk_rows), prepare_chunk, &job);
}

/* ---- cutting ---- */

/* How one matrix is cut: chunk c computes panels (c / n_row_chunks) * chunk_panels … of rows (c % n_row_chunks) *
 * chunk_rows …, so that chunks which follow each other use the same weights. */
struct cut {
        uint32_t n_panels, n_rows;
        uint32_t chunk_panels, chunk_rows;
        uint32_t n_row_chunks, n_chunks;
        uint32_t unit; /* of chunk_panels, the least too */
};

static uint32_t chunks_per_thread(uint32_t n_rows)
{
        if (n_rows <= ROWS_OF_LONG_CHUNKS)
                return CHUNKS_PER_THREAD_OF_LONG;
        return n_rows < CHUNK_ROWS_MAX ? CHUNKS_PER_THREAD : CHUNKS_PER_THREAD_OF_MANY_ROWS;
}

static struct cut cut_matrix(const struct tdm_matrix *matrix, uint32_t n_rows, uint64_t all_macs, unsigned n_threads)
{
        struct cut cut = { .n_panels = TDM_DIV_UP(matrix->rows, TDM_PANEL_ROWS), .n_rows = n_rows };
        uint64_t wanted = all_macs / n_threads / chunks_per_thread(n_rows);
        uint64_t per_panel, most = TDM_MAX(CHUNK_BYTES_MAX / matrix->panel_bytes, UINT64_C(1));

        cut.unit = n_rows <= FEW_ROWS && cut.n_panels >= FEW_ROWS_PANELS * n_threads ? FEW_ROWS_PANELS : 2;
        wanted = TDM_MIN(TDM_MAX(wanted, CHUNK_MACS_MIN), CHUNK_MACS_MAX);
        cut.n_row_chunks = TDM_DIV_UP(n_rows, CHUNK_ROWS_MAX);
        cut.chunk_rows = TDM_MIN(n_rows, CHUNK_ROWS_MAX);
        per_panel = (uint64_t)TDM_PANEL_ROWS * matrix->cols * cut.chunk_rows;
        cut.chunk_panels = (uint32_t)TDM_MIN(TDM_MIN(wanted / per_panel, most), (uint64_t)cut.n_panels);
        cut.chunk_panels = TDM_MAX(cut.chunk_panels / cut.unit * cut.unit, cut.unit);
        cut.n_chunks = TDM_DIV_UP(cut.n_panels, cut.chunk_panels) * cut.n_row_chunks;
        return cut;
}

/* Where a matrix lies by rows or columns, a chunk makes its panels itself. So a chunk has all rows, and panels are made
 * once, unless there would be too few chunks for the threads. */
static struct cut cut_other(const struct tdm_matrix *matrix, uint32_t n_rows, uint64_t all_macs, unsigned n_threads)
{
        struct cut cut = cut_matrix(matrix, n_rows, all_macs, n_threads);
        uint32_t unit = tdm_panels_unit(matrix);

        cut.chunk_panels = TDM_MAX(cut.chunk_panels / cut.n_row_chunks / unit * unit, unit);
        cut.n_chunks = TDM_DIV_UP(cut.n_panels, cut.chunk_panels);
        if (cut.n_chunks < CHUNKS_PER_THREAD_LEAST * n_threads) {
                cut.n_chunks *= cut.n_row_chunks;
                return cut;
        }
        cut.chunk_rows = n_rows;
        cut.n_row_chunks = 1;
        return cut;
}

struct piece {
        uint32_t first_panel, n_panels, first_row, n_rows;
};

static struct piece cut_piece(const struct cut *cut, uint32_t chunk)
{
        struct piece piece = {
                .first_panel = chunk / cut->n_row_chunks * cut->chunk_panels,
                .first_row = chunk % cut->n_row_chunks * cut->chunk_rows,
        };

        piece.n_panels = TDM_MIN(cut->chunk_panels, cut->n_panels - piece.first_panel);
        piece.n_rows = TDM_MIN(cut->chunk_rows, cut->n_rows - piece.first_row);
        return piece;
}

static uint64_t matrix_macs(const struct tdm_matrix *matrix, uint32_t n_rows)
{
        return (uint64_t)matrix->rows * matrix->cols * n_rows;
}

static tdm_matmul_fn find_kernel(const struct tdm_kernels *kernels, const struct tdm_acts *acts, enum tdm_act act,
                                 const struct tdm_matrix *matrix)
{
        tdm_matmul_fn fn = kernels->matmul[act][tdm_kernels_type_index(matrix->type)];

        assert(fn && acts->rows[act] && acts->cols == matrix->cols);
        return fn;
}

/* ---- products ---- */

struct matmul_job {
        const struct tdm_kernels *kernels;
        const struct tdm_acts *acts;
        const struct tdm_matmul_out *outs;
        unsigned n_outs;
        struct cut cuts[MAX_OUTS];
        tdm_matmul_fn fns[MAX_OUTS];
};

/* To outputs of rows that are still in a cache near by. */
static void add_bias(const float *bias, uint32_t n, uint32_t n_rows, float *y, size_t y_stride)
{
        for (uint32_t r = 0; r < n_rows; r++)
                for (uint32_t i = 0; i < n; i++)
                        y[r * y_stride + i] += bias[i];
}

/* Panels first, at y, for the rows of a piece. */
static void multiply_other(const struct matmul_job *job, unsigned i, const struct piece *piece, unsigned thread,
                           float *y)
{
        const struct tdm_matmul_out *out = &job->outs[i];
        const struct tdm_act_row *rows = job->acts->rows[out->act] + piece->first_row;
        uint8_t *panels = out->panels->memory + thread * out->panels->stride;
        struct tdm_matrix made = *out->matrix;
        uint32_t unit = tdm_panels_unit(&made);

        made.data = panels;
        made.order = TDM_ORDER_PANELS;
        for (uint32_t at = 0, n; at < piece->n_panels; at += n, y += n * TDM_PANEL_ROWS) {
                n = TDM_MIN(unit, piece->n_panels - at);
                made.rows = n * TDM_PANEL_ROWS;
                assert(n * made.panel_bytes <= out->panels->stride);
                tdm_panels_make(job->kernels, out->matrix, piece->first_panel + at, n, panels);
                for (uint32_t row = 0; row < piece->n_rows; row += CHUNK_ROWS_MAX)
                        job->fns[i](&made, rows + row, TDM_MIN(piece->n_rows - row, CHUNK_ROWS_MAX), 0, n,
                                    y + row * out->y_stride, out->y_stride);
        }
}

static void matmul_chunk(void *arg, unsigned chunk, unsigned thread)
{
        const struct matmul_job *job = arg;
        const struct tdm_matmul_out *out;
        uint32_t first;
        struct piece piece;
        unsigned i = 0;
        float *y;

        while (chunk >= job->cuts[i].n_chunks)
                chunk -= job->cuts[i++].n_chunks;
        out = &job->outs[i];
        piece = cut_piece(&job->cuts[i], chunk);
        first = piece.first_panel * TDM_PANEL_ROWS;
        y = out->y + piece.first_row * out->y_stride + first;
        if (out->matrix->order != TDM_ORDER_PANELS)
                multiply_other(job, i, &piece, thread, y);
        else
                job->fns[i](out->matrix, job->acts->rows[out->act] + piece.first_row, piece.n_rows, piece.first_panel,
                            piece.n_panels, y, out->y_stride);
        if (out->bias)
                add_bias(out->bias + first, TDM_MIN(piece.n_panels * TDM_PANEL_ROWS, out->matrix->rows - first),
                         piece.n_rows, y, out->y_stride);
}

void tdm_matmul(struct tdm_pool *pool, const struct tdm_kernels *kernels, const struct tdm_acts *acts, uint32_t n_rows,
                const struct tdm_matmul_out *outs, unsigned n_outs)
{
        struct matmul_job job;
        unsigned n_chunks = 0;
        uint64_t macs = 0;

        assert(n_outs <= MAX_OUTS && n_rows <= acts->max_rows);
        if (n_rows == 0)
                return;
        job.kernels = kernels;
        job.acts = acts;
        job.outs = outs;
        job.n_outs = n_outs;
        for (unsigned i = 0; i < n_outs; i++)
                macs += matrix_macs(outs[i].matrix, n_rows);
        for (unsigned i = 0; i < n_outs; i++) {
                job.fns[i] = find_kernel(kernels, acts, outs[i].act, outs[i].matrix);
                job.cuts[i] = (outs[i].matrix->order == TDM_ORDER_PANELS ? cut_matrix : cut_other)(
                        outs[i].matrix, n_rows, macs, tdm_pool_n_threads(pool));
                n_chunks += job.cuts[i].n_chunks;
        }
        tdm_runs_run(pool, n_chunks, matmul_chunk, &job);
}

struct gate_up_job {
        const struct tdm_kernels *kernels;
        const struct tdm_acts *acts;
        const struct tdm_gate_up *what;
        const struct tdm_act_row *gate_rows, *up_rows;
        tdm_matmul_fn gate_fn, up_fn;
        tdm_activation_fn activate;
        const struct tdm_acts *ret;
        struct cut cut;
};

static void gate_up_chunk(void *arg, unsigned chunk, unsigned thread)
{
        const struct gate_up_job *job = arg;
        struct piece piece = cut_piece(&job->cut, chunk);
        uint32_t first = piece.first_panel * TDM_PANEL_ROWS, width = piece.n_panels * TDM_PANEL_ROWS;
        const struct tdm_gate_up *what = job->what;
        uint32_t n = TDM_MIN(width, what->gate->rows - first);
        /* Never anywhere but in a cache near by: in memory these rows would be more than all weights of a long step. */
        _Alignas(ALIGNMENT) float gate[GATE_UP_VALUES_MAX], up[GATE_UP_VALUES_MAX];

        assert(width * piece.n_rows <= GATE_UP_VALUES_MAX);
        job->gate_fn(what->gate, job->gate_rows + piece.first_row, piece.n_rows, piece.first_panel, piece.n_panels,
                     gate, width);
        job->up_fn(what->up, job->up_rows + piece.first_row, piece.n_rows, piece.first_panel, piece.n_panels, up,
                   width);
        if (what->gate_bias)
                add_bias(what->gate_bias + first, n, piece.n_rows, gate, width);
        if (what->up_bias)
                add_bias(what->up_bias + first, n, piece.n_rows, up, width);
        for (uint32_t r = 0; r < piece.n_rows; r++) {
                float *h = gate + r * width;

                job->activate(h, up + r * width, n, h);
                tdm_acts_prepare_part(job->ret, job->kernels, piece.first_row + r, first, h, n);
        }
}

void tdm_matmul_gate_up(struct tdm_pool *pool, const struct tdm_kernels *kernels, const struct tdm_acts *acts,
                        uint32_t n_rows, const struct tdm_gate_up *what, struct tdm_acts *ret)
{
        const struct tdm_matrix *gate = what->gate, *up = what->up;
        struct gate_up_job job;

        assert(gate->order == TDM_ORDER_PANELS && up->order == TDM_ORDER_PANELS);
        assert(n_rows <= acts->max_rows && n_rows <= ret->max_rows && gate->rows == up->rows &&
               gate->rows <= ret->max_cols);
        assert(gate->rows % TDM_BLOCK_VALUES == 0 || ret->forms == 1u << TDM_ACT_F32);
        ret->cols = gate->rows;
        if (n_rows == 0)
                return;
        job.kernels = kernels;
        job.acts = acts;
        job.what = what;
        job.gate_rows = acts->rows[what->gate_act];
        job.up_rows = acts->rows[what->up_act];
        job.gate_fn = find_kernel(kernels, acts, what->gate_act, gate);
        job.up_fn = find_kernel(kernels, acts, what->up_act, up);
        job.activate = tdm_matmul_activation(kernels, what->activation);
        job.ret = ret;
        job.cut = cut_matrix(gate, n_rows, matrix_macs(gate, n_rows), tdm_pool_n_threads(pool));
        /* Two products in a chunk, both on the stack. */
        job.cut.chunk_panels =
                TDM_MIN(job.cut.chunk_panels / 2, GATE_UP_VALUES_MAX / TDM_PANEL_ROWS / job.cut.chunk_rows);
        job.cut.chunk_panels = TDM_MAX(job.cut.chunk_panels / job.cut.unit * job.cut.unit, job.cut.unit);
        job.cut.n_chunks = TDM_DIV_UP(job.cut.n_panels, job.cut.chunk_panels) * job.cut.n_row_chunks;
        tdm_runs_run(pool, job.cut.n_chunks, gate_up_chunk, &job);
}

/* ---- describing ---- */

tdm_activation_fn tdm_matmul_activation(const struct tdm_kernels *kernels, enum tdm_activation activation)
{
        switch (activation) {
        case TDM_ACTIVATION_GELU_TANH:
                return kernels->gelu_mul;
        case TDM_ACTIVATION_SILU:
                return kernels->silu_mul;
        case TDM_ACTIVATION_SWIGLU_CLAMPED:
                return kernels->swiglu_clamped;
        }
        abort(); /* a recipe has passed its check */
}

enum tdm_act tdm_matmul_act(uint32_t type, enum tdm_act wanted)
{
        return tdm_weights_type_quantised(type) ? wanted : TDM_ACT_F32;
}

void tdm_matrix_init(struct tdm_matrix *ret, const uint8_t *weights, const struct tdm_weights_tensor *tensor)
{
        assert(tensor->layout == TDM_LAYOUT_PANEL16 || tensor->layout == TDM_LAYOUT_BY_ROW ||
               tensor->layout == TDM_LAYOUT_BY_COLUMN);
        *ret = (struct tdm_matrix){
                .data = weights + tensor->offset,
                .panel_bytes = tensor->panel_bytes,
                .type = tensor->type,
                .rows = tensor->rows,
                .cols = tensor->cols,
                .order = tensor->layout == TDM_LAYOUT_BY_ROW    ? TDM_ORDER_ROWS :
                         tensor->layout == TDM_LAYOUT_BY_COLUMN ? TDM_ORDER_COLUMNS :
                                                                  TDM_ORDER_PANELS,
        };
}
