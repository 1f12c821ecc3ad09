/* Products over the pool: the same bits for every table, number of threads and number of rows; several matrices in one
 * region; gate and up fused with what follows them equal the same steps taken one by one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "engine/host/matmul.h"

static const char *const names[] = { "c", "avx2", "avx512" };
static uint64_t random_state = 7;

static uint32_t random_u32(void)
{
        random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (uint32_t)(random_state >> 32);
}

static void matrix_new(struct tdm_matrix *matrix, uint32_t type, uint32_t rows, uint32_t cols)
{
        uint32_t n_panels = TDM_DIV_UP(rows, TDM_PANEL_ROWS), nb = cols / 32;
        size_t scales = TDM_ALIGN_UP((size_t)nb * 32, (size_t)64);
        uint8_t *data;

        *matrix = (struct tdm_matrix){ .type = type, .rows = rows, .cols = cols };
        matrix->panel_bytes =
                type == TDM_TYPE_BF16 ? (size_t)cols * 32 : scales + (size_t)nb * (type == TDM_TYPE_Q8_0 ? 512 : 256);
        data = aligned_alloc(64, n_panels * matrix->panel_bytes);
        assert_non_null(data);
        matrix->data = data;
        for (size_t i = 0; i < n_panels * matrix->panel_bytes; i++)
                data[i] = (uint8_t)random_u32();
        for (uint32_t p = 0; p < n_panels; p++) {
                uint16_t *h = (uint16_t *)(void *)(data + p * matrix->panel_bytes);

                if (type == TDM_TYPE_BF16)
                        for (size_t i = 0; i < (size_t)cols * 16; i++)
                                h[i] = (h[i] & 0x807f) | (uint16_t)(120 + h[i] % 5) << 7;
                else
                        for (size_t i = 0; i < scales / 2; i++)
                                h[i] = (h[i] & 0x83ff) | (uint16_t)(2 + h[i] % 4) << 10;
        }
}

static void matrix_free(struct tdm_matrix *matrix)
{
        free((void *)matrix->data);
}

static float *random_rows(size_t n)
{
        float *x = malloc(n * sizeof(float));

        assert_non_null(x);
        for (size_t i = 0; i < n; i++)
                x[i] = (float)((int32_t)random_u32() >> 8) * 0x1p-21f;
        return x;
}

static void check_acts_equal(const struct tdm_acts *a, const struct tdm_acts *b, uint32_t n_rows)
{
        size_t nb = a->cols / 32;

        assert_int_equal(a->cols, b->cols);
        for (uint32_t r = 0; r < n_rows; r++) {
                if (a->rows[TDM_ACT_F32])
                        assert_memory_equal(a->rows[TDM_ACT_F32][r].x, b->rows[TDM_ACT_F32][r].x, a->cols * 4);
                for (unsigned act = TDM_ACT_I8; act <= TDM_ACT_I16; act++) {
                        if (!a->rows[act])
                                continue;
                        assert_memory_equal(a->rows[act][r].hi, b->rows[act][r].hi, a->cols);
                        assert_memory_equal(a->rows[act][r].scale, b->rows[act][r].scale, nb * 4);
                        assert_memory_equal(a->rows[act][r].start, b->rows[act][r].start, nb * 4);
                        assert_memory_equal(a->rows[act][r].sum, b->rows[act][r].sum, nb * 4);
                        assert_memory_equal(a->rows[act][r].sum_16, b->rows[act][r].sum_16, nb * 8);
                        if (act == TDM_ACT_I8)
                                continue;
                        assert_memory_equal(a->rows[act][r].lo, b->rows[act][r].lo, a->cols);
                }
        }
}

/* Three matrices of different kinds and sizes in one region, like q, k and v. */
static void test_products(void **state)
{
        static const uint32_t row_counts[] = { 1, 2, 9, 97, 200 };
        const uint32_t cols = 192, max_rows = 200;
        struct tdm_matrix m[3];
        struct tdm_acts want_acts, acts;
        _cleanup_(freep) float *x = random_rows((size_t)max_rows * cols);
        const size_t strides[] = { 300, 80, 70 };
        float *want[3], *got[3];
        struct tdm_matmul_out outs[3];
        _cleanup_(freep) float *bias = random_rows(299);
        _cleanup_(tdm_pool_destroyp) struct tdm_pool *one = NULL;

        matrix_new(&m[0], TDM_TYPE_Q8_0, 299, cols);
        matrix_new(&m[1], TDM_TYPE_Q4_0, 80, cols);
        matrix_new(&m[2], TDM_TYPE_BF16, 33, cols);
        assert_int_equal(tdm_pool_new(&one, 1, NULL), 0);
        assert_int_equal(tdm_acts_init(&want_acts, 7, max_rows, cols + 64), 0);
        assert_int_equal(tdm_acts_init(&acts, 7, max_rows, cols + 64), 0);
        tdm_acts_prepare(&want_acts, tdm_kernels_get("c"), one, x, cols, max_rows, cols);
        for (unsigned i = 0; i < 3; i++) {
                want[i] = calloc(max_rows * strides[i], sizeof(float));
                got[i] = malloc(max_rows * strides[i] * sizeof(float));
                outs[i] = (struct tdm_matmul_out){ &m[i],
                                                   i == 0 ? TDM_ACT_I8 :
                                                   i == 1 ? TDM_ACT_I16 :
                                                            TDM_ACT_F32,
                                                   want[i], strides[i], NULL };
        }
        tdm_matmul(one, tdm_kernels_get("c"), &want_acts, max_rows, outs, 3);
        for (unsigned i = 0; i < 2; i++) /* what is added to a sum, to each row's */
                for (uint32_t r = 0; r < max_rows; r++)
                        for (uint32_t j = 0; j < m[i].rows; j++)
                                want[i][r * strides[i] + j] += bias[j];
        outs[0].bias = outs[1].bias = bias;

        for (unsigned k = 0; k < TDM_ARRAY_SIZE(names); k++)
                for (unsigned n_threads = 1; n_threads <= 3; n_threads++)
                        for (unsigned c = 0; c < TDM_ARRAY_SIZE(row_counts); c++) {
                                const struct tdm_kernels *kernels = tdm_kernels_get(names[k]);
                                _cleanup_(tdm_pool_destroyp) struct tdm_pool *pool = NULL;
                                uint32_t n_rows = row_counts[c];

                                if (!kernels)
                                        continue;
                                assert_int_equal(tdm_pool_new(&pool, n_threads, NULL), 0);
                                tdm_acts_prepare(&acts, kernels, pool, x, cols, n_rows, cols);
                                check_acts_equal(&want_acts, &acts, n_rows);
                                for (unsigned i = 0; i < 3; i++) {
                                        memset(got[i], 0, max_rows * strides[i] * sizeof(float));
                                        outs[i].y = got[i];
                                }
                                tdm_matmul(pool, kernels, &acts, n_rows, outs, 3);
                                for (unsigned i = 0; i < 3; i++) {
                                        assert_memory_equal(got[i], want[i], n_rows * strides[i] * sizeof(float));
                                        for (size_t j = n_rows * strides[i]; j < max_rows * strides[i]; j++)
                                                assert_true(got[i][j] == 0); /* nothing past the last row */
                                }
                        }
        for (unsigned i = 0; i < 3; i++) {
                matrix_free(&m[i]);
                free(want[i]);
                free(got[i]);
        }
        tdm_acts_deinit(&acts);
        tdm_acts_deinit(&want_acts);
}

static void check_gate_up(uint32_t type, enum tdm_act act, uint32_t d_ff, unsigned ret_forms,
                          enum tdm_activation activation, bool biased)
{
        static const uint32_t row_counts[] = { 1, 3, 100 };
        const uint32_t cols = 128, max_rows = 100, stride = TDM_ALIGN_UP(d_ff, 32u);
        const struct tdm_kernels *c_kernels = tdm_kernels_get("c");
        struct tdm_matrix gate, up;
        struct tdm_acts in, want, got;
        _cleanup_(freep) float *x = random_rows((size_t)max_rows * cols);
        _cleanup_(freep) float *biases = random_rows((size_t)2 * d_ff);
        const struct tdm_gate_up what = { .gate = &gate,
                                          .up = &up,
                                          .gate_act = act,
                                          .up_act = act,
                                          .gate_bias = biased ? biases : NULL,
                                          .up_bias = biased ? biases + d_ff : NULL,
                                          .activation = activation };
        _cleanup_(freep) float *g = calloc((size_t)max_rows * stride, sizeof(float));
        _cleanup_(freep) float *u = calloc((size_t)max_rows * stride, sizeof(float));
        _cleanup_(tdm_pool_destroyp) struct tdm_pool *one = NULL;

        matrix_new(&gate, type, d_ff, cols);
        matrix_new(&up, type, d_ff, cols);
        assert_int_equal(tdm_pool_new(&one, 1, NULL), 0);
        assert_int_equal(tdm_acts_init(&in, 1u << act, max_rows, cols), 0);
        assert_int_equal(tdm_acts_init(&want, ret_forms, max_rows, stride), 0);

        /* Step by step. */
        tdm_acts_prepare(&in, c_kernels, one, x, cols, max_rows, cols);
        tdm_matmul(one, c_kernels, &in, max_rows,
                   (struct tdm_matmul_out[]){ { &gate, act, g, stride, what.gate_bias },
                                              { &up, act, u, stride, what.up_bias } },
                   2);
        for (uint32_t r = 0; r < max_rows; r++) {
                (activation == TDM_ACTIVATION_SILU ? c_kernels->silu_mul : c_kernels->gelu_mul)(
                        g + r * stride, u + r * stride, d_ff, g + r * stride);
                if (d_ff % 32 == 0)
                        tdm_acts_prepare_row(&want, c_kernels, r, g + r * stride, d_ff);
                else
                        memcpy((float *)want.rows[TDM_ACT_F32][r].x, g + r * stride, d_ff * sizeof(float));
        }
        want.cols = d_ff;

        for (unsigned k = 0; k < TDM_ARRAY_SIZE(names); k++)
                for (unsigned n_threads = 1; n_threads <= 3; n_threads++)
                        for (unsigned c = 0; c < TDM_ARRAY_SIZE(row_counts); c++) {
                                const struct tdm_kernels *kernels = tdm_kernels_get(names[k]);
                                _cleanup_(tdm_pool_destroyp) struct tdm_pool *pool = NULL;

                                if (!kernels)
                                        continue;
                                assert_int_equal(tdm_pool_new(&pool, n_threads, NULL), 0);
                                assert_int_equal(tdm_acts_init(&got, ret_forms, max_rows, stride), 0);
                                tdm_matmul_gate_up(pool, kernels, &in, row_counts[c], &what, &got);
                                check_acts_equal(&want, &got, row_counts[c]);
                                tdm_acts_deinit(&got);
                        }
        matrix_free(&gate);
        matrix_free(&up);
        tdm_acts_deinit(&in);
        tdm_acts_deinit(&want);
}

static void test_gate_up(void **state)
{
        check_gate_up(TDM_TYPE_Q8_0, TDM_ACT_I8, 352, 1u << TDM_ACT_I16, TDM_ACTIVATION_GELU_TANH, false);
        check_gate_up(TDM_TYPE_Q4_0, TDM_ACT_I16, 1024, 7, TDM_ACTIVATION_SILU, true);
        check_gate_up(TDM_TYPE_Q8_0, TDM_ACT_F32, 32, 1u << TDM_ACT_I8, TDM_ACTIVATION_SILU, false);
        check_gate_up(TDM_TYPE_BF16, TDM_ACT_F32, 205, 1u << TDM_ACT_F32, TDM_ACTIVATION_GELU_TANH, true);
}

static void test_acts(void **state)
{
        struct tdm_acts acts;
        float x[64];

        /* Forms that are not asked for take nothing; a shorter row may follow a longer one. */
        assert_int_equal(tdm_acts_init(&acts, 1u << TDM_ACT_I8, 3, 64), 0);
        assert_null(acts.rows[TDM_ACT_F32]);
        assert_null(acts.rows[TDM_ACT_I16]);
        assert_non_null(acts.rows[TDM_ACT_I8]);
        for (unsigned i = 0; i < 64; i++)
                x[i] = (float)i - 20;
        tdm_acts_prepare_row(&acts, tdm_kernels_get("c"), 0, x, 64);
        assert_int_equal(acts.cols, 64);
        tdm_acts_prepare_row(&acts, tdm_kernels_get("c"), 0, x, 32);
        assert_int_equal(acts.cols, 32);
        assert_int_equal(acts.rows[TDM_ACT_I8][0].hi[0], -127);
        tdm_acts_deinit(&acts);
        tdm_acts_deinit(&acts); /* twice is harmless */
        assert_int_equal(tdm_matmul_act(TDM_TYPE_F16, TDM_ACT_I8), TDM_ACT_F32);
        assert_int_equal(tdm_matmul_act(TDM_TYPE_Q4_0, TDM_ACT_I16), TDM_ACT_I16);
        assert_int_equal(tdm_matmul_act(TDM_TYPE_Q8_0, TDM_ACT_F32), TDM_ACT_F32);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_products),
                cmocka_unit_test(test_gate_up),
                cmocka_unit_test(test_acts),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
