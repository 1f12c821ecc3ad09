/* One row through a sparse layer gives the bits of the dense way: for every table of kernels, type and number of
 * threads, with no neuron alive, with one, with some, with as many as run sparsely at all, and with a tie at the cut.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "engine/host/sparse.h"

#define D_IN 96u
#define D_FF 320u
#define D_OUT 288u

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

struct fixture {
        struct tdm_sparse_layer layer;
        struct tdm_sparse *sparse;
        struct tdm_acts acts, mid;
        struct tdm_pool *pool;
        float gate[D_FF], up[D_FF], y[D_OUT];
};

/* The dense way: gate as it is after the cut. */
static void run_dense(struct fixture *f, const struct tdm_kernels *kernels, const float *gate, float *y)
{
        const struct tdm_sparse_layer *l = &f->layer;
        float up[D_FF];

        tdm_matmul(f->pool, kernels, &f->acts, 1, &(struct tdm_matmul_out){ &l->up, l->up_act, up, D_FF }, 1);
        kernels->gelu_mul(gate, up, D_FF, up);
        tdm_acts_prepare_row(&f->mid, kernels, 0, up, D_FF);
        tdm_matmul(f->pool, kernels, &f->mid, 1, &(struct tdm_matmul_out){ &l->down, l->down_act, y, D_OUT }, 1);
}

static void compare(struct fixture *f, const struct tdm_kernels *kernels, const float *gate, bool want)
{
        float y[D_OUT];

        run_dense(f, kernels, gate, y);
        memcpy(f->gate, gate, sizeof(f->gate));
        memset(f->up, 0x7f, sizeof(f->up)); /* of another row: is not to be seen */
        assert_int_equal(
                tdm_sparse_run(f->sparse, &f->layer, f->pool, kernels, &f->acts, f->gate, f->up, &f->mid, f->y), want);
        if (want)
                assert_memory_equal(f->y, y, sizeof(y));
        else
                assert_memory_equal(f->gate, gate, sizeof(f->gate));
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

static void each_way(struct fixture *f, const struct tdm_kernels *kernels)
{
        float gate[D_FF] = { 0 }, x[D_IN];

        for (uint32_t i = 0; i < D_IN; i++)
                x[i] = random_float();
        tdm_acts_prepare_row(&f->acts, kernels, 0, x, D_IN);
        compare(f, kernels, gate, true);
        for (uint32_t i = 0; i < D_OUT; i++)
                assert_true(f->y[i] == 0);
        for (uint32_t i = 0; i < D_FF; i += D_FF - 1) { /* the first, the last */
                memset(gate, 0, sizeof(gate));
                gate[i] = 3;
                compare(f, kernels, gate, true);
        }
        for (uint32_t n = 2; n <= D_FF / 4; n += 13) {
                some_alive(n, gate);
                compare(f, kernels, gate, true);
        }
        some_alive(D_FF / 4, gate);
        compare(f, kernels, gate, true);
        some_alive(D_FF / 4 + 1, gate);
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
                matrix_new(&f.layer.up, types[i % 2], D_FF, D_IN);
                matrix_new(&f.layer.down, types[i / 2 % 2], D_OUT, D_FF);
                assert_true(tdm_sparse_can(&f.layer));
                assert_int_equal(tdm_pool_new(&f.pool, n_threads, NULL), 0);
                assert_int_equal(tdm_sparse_new(&f.sparse, D_FF, D_IN, n_threads), 0);
                assert_true(tdm_sparse_layer_init(&f.layer) > 0);
                assert_int_equal(tdm_acts_init(&f.acts, 1u << f.layer.up_act, 1, D_IN), 0);
                assert_int_equal(tdm_acts_init(&f.mid, 1u << f.layer.down_act, 1, D_FF), 0);
                each_way(&f, kernels);
                tdm_sparse_layer_deinit(&f.layer);
                tdm_sparse_destroy(f.sparse);
                tdm_acts_deinit(&f.acts), tdm_acts_deinit(&f.mid);
                tdm_pool_destroy(f.pool);
                free((void *)f.layer.up.data), free((void *)f.layer.down.data);
        }
}

static void test_refused(void **state)
{
        struct tdm_sparse_layer l = { .up = { .type = TDM_TYPE_Q4_0, .rows = 64, .cols = 32 },
                                      .down = { .type = TDM_TYPE_Q8_0, .rows = 32, .cols = 64 },
                                      .up_act = TDM_ACT_I8,
                                      .down_act = TDM_ACT_I16 };

        assert_true(tdm_sparse_can(&l));
        l.up.type = TDM_TYPE_Q4_K;
        assert_false(tdm_sparse_can(&l));
        l.up.type = TDM_TYPE_Q4_0;
        l.down_act = TDM_ACT_F32;
        assert_false(tdm_sparse_can(&l));
        l.down_act = TDM_ACT_I16;
        l.down.rows = 48; /* whole panels, but not whole blocks */
        assert_false(tdm_sparse_can(&l));
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_bits), cmocka_unit_test(test_refused) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
