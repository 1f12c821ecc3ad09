/* Rows through a sparse layer give the bits of the dense way: for every table of kernels, type and number of threads
 * and rows, with no neuron alive, with one, with some, with as many as run sparsely at all, and with a tie at the cut.
 * The dense way is that of a matrix in panels. A product with the same matrix by rows or columns has its bits too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "engine/host/sparse.h"

#define D_IN 128u
#define D_FF 320u
#define D_OUT 288u
#define MANY_ROWS 200u /* several pieces of a chunk */

static const char *const names[] = { "c", "avx2", "avx512" };
static uint64_t random_state = 5;

static uint32_t random_u32(void)
{
        random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (uint32_t)(random_state >> 32);
}

static float random_float(void) /* in (-1, 1) */
{
        return (float)((int32_t)random_u32() >> 8) * 0x1p-23f;
}

static void matrix_new(struct tdm_matrix *matrix, uint32_t type, uint32_t rows, uint32_t cols)
{
        uint32_t n_panels = rows / TDM_PANEL_ROWS;
        uint8_t *data;

        *matrix = (struct tdm_matrix){
                .panel_bytes = tdm_weights_panel_bytes(type, cols), .type = type, .rows = rows, .cols = cols
        };
        matrix->data = data = aligned_alloc(64, n_panels * matrix->panel_bytes);
        assert_non_null(data);
        for (size_t i = 0; i < n_panels * matrix->panel_bytes; i++)
                data[i] = (uint8_t)random_u32();
        for (uint32_t p = 0; p < n_panels; p++, data += matrix->panel_bytes)
                for (uint32_t i = 0; i < cols / 32 * TDM_PANEL_ROWS; i++) /* of either sign */
                        ((uint16_t *)(void *)data)[i] =
                                (uint16_t)((0x1400 + random_u32() % 0x400) | (random_u32() & 0x8000));
}

/* A number of a matrix in panels, as it is stored: plus 8, or plus 128. */
static uint32_t stored(const struct tdm_matrix *m, uint32_t row, uint32_t col)
{
        const uint8_t *quants = m->data + row / 16 * m->panel_bytes + tdm_panel_scales_bytes(m->cols);
        uint32_t group = col % 32 / 4, lane = row % 16;

        if (m->type == TDM_TYPE_Q8_0)
                return quants[col / 32 * 512 + group * 64 + lane * 4 + col % 4];
        return quants[col / 32 * 256 + group % 4 * 64 + lane * 4 + col % 4] >> (group < 4 ? 0 : 4) & 15;
}

static uint16_t scale_of(const struct tdm_matrix *m, uint32_t row, uint32_t block)
{
        const uint16_t *scales = (const void *)(m->data + row / 16 * m->panel_bytes);

        return scales[block * 16 + row % 16];
}

/* The same matrix in another order. */
static void reorder(struct tdm_matrix *ret, const struct tdm_matrix *m, enum tdm_matrix_order order)
{
        uint32_t nb = m->cols / 32, n = tdm_matrix_quant_bytes(m);
        uint8_t *data = aligned_alloc(64, m->rows / 16 * m->panel_bytes);

        *ret = *m;
        ret->data = data;
        ret->order = order;
        memset(data, 0, m->rows / 16 * m->panel_bytes);
        for (uint32_t row = 0; row < m->rows; row++)
                for (uint32_t col = 0; col < m->cols; col++) {
                        uint32_t q = stored(m, row, col), b = col / 32;
                        uint16_t scale = scale_of(m, row, b);
                        bool by_row = order == TDM_ORDER_ROWS;
                        uint32_t along = by_row ? col : row;
                        uint8_t *to = by_row ? data + (size_t)row * nb * (n + 2) + b * n :
                                               data + (size_t)nb * m->rows * 2 +
                                                       ((size_t)col * (m->rows / 32) + row / 32) * n;

                        memcpy(by_row ? data + (size_t)row * nb * (n + 2) + nb * n + b * 2 :
                                        data + ((size_t)b * m->rows + row) * 2,
                               &scale, 2);
                        if (m->type == TDM_TYPE_Q4_0)
                                to[along % 16] |= (uint8_t)(q << along % 32 / 16 * 4);
                        else
                                to[along % 32] = (uint8_t)(by_row ? q : q ^ 0x80);
                }
}

struct fixture {
        struct tdm_matrix up, down; /* in panels */
        struct tdm_sparse_layer layer;
        struct tdm_sparse *sparse;
        struct tdm_acts acts, mid;
        struct tdm_pool *pool;
        struct tdm_panels panels;
        float gate[TDM_SPARSE_ROWS_MAX][D_FF], up_y[TDM_SPARSE_ROWS_MAX][D_FF], y[TDM_SPARSE_ROWS_MAX][D_OUT];
};

/* The dense way: gate as it is after the cut. */
static void run_dense(struct fixture *f, const struct tdm_kernels *kernels, const float *gate, uint32_t n_rows,
                      float *y)
{
        const struct tdm_sparse_layer *l = &f->layer;
        float up[TDM_SPARSE_ROWS_MAX][D_FF];

        tdm_matmul(f->pool, kernels, &f->acts, n_rows, &(struct tdm_matmul_out){ &f->up, l->up_act, up[0], D_FF }, 1);
        for (uint32_t r = 0; r < n_rows; r++) {
                kernels->gelu_mul(gate + (size_t)r * D_FF, up[r], D_FF, up[r]);
                tdm_acts_prepare_row(&f->mid, kernels, r, up[r], D_FF);
        }
        tdm_matmul(f->pool, kernels, &f->mid, n_rows, &(struct tdm_matmul_out){ &f->down, l->down_act, y, D_OUT }, 1);
}

static void compare_rows(struct fixture *f, const struct tdm_kernels *kernels, const float *gate, uint32_t n_rows,
                         bool want)
{
        float y[TDM_SPARSE_ROWS_MAX][D_OUT];

        run_dense(f, kernels, gate, n_rows, y[0]);
        memcpy(f->gate, gate, n_rows * sizeof(f->gate[0]));
        memset(f->up_y, 0x7f, sizeof(f->up_y)); /* of other rows: is not to be seen */
        assert_int_equal(tdm_sparse_run(f->sparse, &f->layer, f->pool, kernels, &f->acts, n_rows, f->gate[0],
                                        f->up_y[0], &f->mid, f->y[0]),
                         want);
        if (want)
                assert_memory_equal(f->y, y, n_rows * sizeof(y[0]));
        else
                assert_memory_equal(f->gate, gate, n_rows * sizeof(f->gate[0]));
}

static void compare(struct fixture *f, const struct tdm_kernels *kernels, const float *gate, bool want)
{
        compare_rows(f, kernels, gate, 1, want);
}

static void some_alive(uint32_t n, float *gate)
{
        memset(gate, 0, D_FF * sizeof(*gate));
        while (n > 0) {
                uint32_t i = random_u32() % D_FF;

                n -= gate[i] == 0;
                gate[i] = 0.01f + 2 * (random_float() + 1);
        }
}

/* Rows of which each has other live neurons, one of them none. */
static void several_rows(struct fixture *f, const struct tdm_kernels *kernels)
{
        float gate[TDM_SPARSE_ROWS_MAX][D_FF];

        for (uint32_t n = 2; n <= TDM_SPARSE_ROWS_MAX; n += 6) {
                for (uint32_t r = 0; r < n; r++)
                        some_alive(r == 1 ? 0 : 1 + random_u32() % (tdm_sparse_live_max(D_FF, n) / n - 1), gate[r]);
                compare_rows(f, kernels, gate[0], n, true);
                for (uint32_t r = 0; r < n; r++)
                        some_alive(tdm_sparse_live_max(D_FF, n) / n + 1, gate[r]);
                compare_rows(f, kernels, gate[0], n, false);
        }
}

/* Many rows by a matrix in another order. */
static void multiply_other(struct fixture *f, const struct tdm_kernels *kernels, struct tdm_acts *acts,
                           const struct tdm_matrix *panels, const struct tdm_matrix *other, enum tdm_act act)
{
        static float want[MANY_ROWS][D_FF], got[MANY_ROWS][D_FF], x[D_FF];
        struct tdm_matmul_out out = { .matrix = panels, .act = act, .y = want[0], .y_stride = D_FF };

        assert_true(panels->rows <= D_FF && panels->cols <= D_FF);
        for (uint32_t r = 0; r < MANY_ROWS; r++) {
                for (uint32_t i = 0; i < panels->cols; i++)
                        x[i] = random_float();
                tdm_acts_prepare_row(acts, kernels, r, x, panels->cols);
        }
        for (uint32_t n = 1; n <= MANY_ROWS; n = n * 3 + 50) {
                memset(want, 0, sizeof(want)), memset(got, 0, sizeof(got));
                out.matrix = panels, out.y = want[0];
                tdm_matmul(f->pool, kernels, acts, n, &out, 1);
                out.matrix = other, out.y = got[0], out.panels = &f->panels;
                tdm_matmul(f->pool, kernels, acts, n, &out, 1);
                assert_memory_equal(got, want, sizeof(want));
        }
}

static void each_way(struct fixture *f, const struct tdm_kernels *kernels)
{
        float gate[D_FF] = { 0 }, x[D_IN];

        multiply_other(f, kernels, &f->acts, &f->up, &f->layer.up, f->layer.up_act);
        multiply_other(f, kernels, &f->mid, &f->down, &f->layer.down, f->layer.down_act);
        for (uint32_t r = 0; r < TDM_SPARSE_ROWS_MAX; r++) {
                for (uint32_t i = 0; i < D_IN; i++)
                        x[i] = random_float();
                tdm_acts_prepare_row(&f->acts, kernels, r, x, D_IN);
        }
        several_rows(f, kernels);
        compare(f, kernels, gate, true);
        for (uint32_t i = 0; i < D_OUT; i++)
                assert_true(f->y[0][i] == 0);
        for (uint32_t i = 0; i < D_FF; i += D_FF - 1) { /* the first, the last */
                memset(gate, 0, sizeof(gate));
                gate[i] = 3;
                compare(f, kernels, gate, true);
        }
        for (uint32_t n = 2; n <= D_FF / 2; n += 31) {
                some_alive(n, gate);
                compare(f, kernels, gate, true);
        }
        some_alive(tdm_sparse_live_max(D_FF, 1), gate);
        compare(f, kernels, gate, true);
        some_alive(tdm_sparse_live_max(D_FF, 1) + 1, gate);
        compare(f, kernels, gate, false);
        some_alive(D_FF, gate);
        compare(f, kernels, gate, false);
        /* Mean 0 and deviation 1: half of the numbers are the cut itself, and die. One above it lives. */
        for (uint32_t i = 0; i < D_FF; i++)
                gate[i] = i % 2 ? 1 : -1;
        kernels->cut_below(gate, D_FF, 1);
        for (uint32_t i = 0; i < D_FF; i++)
                assert_true(gate[i] == 0);
        for (uint32_t i = 0; i < D_FF; i++)
                gate[i] = i % 2 ? 1 : -1;
        gate[40] = 60;
        kernels->cut_below(gate, D_FF, 1);
        assert_true(gate[40] > 0);
        compare(f, kernels, gate, true);
}

static void test_bits(void **state)
{
        static const uint32_t types[] = { TDM_TYPE_Q4_0, TDM_TYPE_Q8_0 };
        static const enum tdm_act acts[][2] = { { TDM_ACT_I8, TDM_ACT_I16 },
                                                { TDM_ACT_I16, TDM_ACT_I16 },
                                                { TDM_ACT_I8, TDM_ACT_I8 } };

        for (unsigned i = 0; i < 2 * 2 * 3 * 3 * 2; i++) {
                const struct tdm_kernels *kernels = tdm_kernels_get(names[i / 24]);
                struct fixture f = { .layer = { .up_act = acts[i / 4 % 3][0], .down_act = acts[i / 4 % 3][1] } };
                unsigned n_threads = i / 12 % 2 ? 3 : 1;

                if (!kernels)
                        continue;
                matrix_new(&f.up, types[i % 2], D_FF, D_IN);
                matrix_new(&f.down, types[i / 2 % 2], D_OUT, D_FF);
                reorder(&f.layer.up, &f.up, TDM_ORDER_ROWS);
                reorder(&f.layer.down, &f.down, TDM_ORDER_COLUMNS);
                f.panels.stride = TDM_MAX(2 * f.up.panel_bytes, 8 * f.down.panel_bytes);
                f.panels.memory = aligned_alloc(64, n_threads * f.panels.stride);
                assert_true(tdm_sparse_can(&f.layer));
                assert_int_equal(tdm_pool_new(&f.pool, n_threads, NULL), 0);
                assert_int_equal(tdm_sparse_new(&f.sparse, D_FF, D_IN, n_threads), 0);
                assert_int_equal(tdm_acts_init(&f.acts, 1u << f.layer.up_act, MANY_ROWS, D_IN), 0);
                assert_int_equal(tdm_acts_init(&f.mid, 1u << f.layer.down_act, MANY_ROWS, D_FF), 0);
                each_way(&f, kernels);
                tdm_sparse_destroy(f.sparse);
                tdm_acts_deinit(&f.acts), tdm_acts_deinit(&f.mid);
                tdm_pool_destroy(f.pool);
                free((void *)f.layer.up.data), free((void *)f.layer.down.data);
                free((void *)f.up.data), free((void *)f.down.data), free(f.panels.memory);
        }
}

static void test_refused(void **state)
{
        struct tdm_sparse_layer l = {
                .up = { .type = TDM_TYPE_Q4_0, .rows = 64, .cols = 32, .order = TDM_ORDER_ROWS },
                .down = { .type = TDM_TYPE_Q8_0, .rows = 32, .cols = 64, .order = TDM_ORDER_COLUMNS },
                .up_act = TDM_ACT_I8,
                .down_act = TDM_ACT_I16
        };

        assert_true(tdm_sparse_can(&l));
        l.up.order = TDM_ORDER_PANELS;
        assert_false(tdm_sparse_can(&l));
        l.up.order = TDM_ORDER_ROWS;
        l.down_act = TDM_ACT_F32;
        assert_false(tdm_sparse_can(&l));
        l.down_act = TDM_ACT_I16;
        l.down.order = TDM_ORDER_PANELS;
        assert_false(tdm_sparse_can(&l));
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_bits), cmocka_unit_test(test_refused) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
