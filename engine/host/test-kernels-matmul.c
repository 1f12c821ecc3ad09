/* Matrix kernels: every table's kernels give exactly the bits of the C reference, over random shapes with odd tails;
 * the reference itself agrees with a plain double sum and keeps its stated order; quantising keeps its stated bounds.
 */
#include "common/f16.h"
#include "engine/host/test-kernels-matmul.h"

static const uint32_t types[] = { TDM_TYPE_F32, TDM_TYPE_F16, TDM_TYPE_BF16, TDM_TYPE_Q4_0, TDM_TYPE_Q8_0 };

/* A matrix of random bits. Its memory ends where the layout ends. */
static void matrix_new(struct tdm_matrix *matrix, uint32_t type, uint32_t rows, uint32_t cols)
{
        uint32_t n_panels = TDM_DIV_UP(rows, TDM_PANEL_ROWS), nb = cols / 32;
        size_t scales = type == TDM_TYPE_Q8_0 || type == TDM_TYPE_Q4_0 ? TDM_ALIGN_UP((size_t)nb * 32, (size_t)64) : 0;
        size_t body = type == TDM_TYPE_Q8_0 ? (size_t)nb * 512 :
                      type == TDM_TYPE_Q4_0 ? (size_t)nb * 256 :
                      type == TDM_TYPE_F32  ? (size_t)cols * 64 :
                                              (size_t)cols * 32;
        uint8_t *data;

        *matrix = (struct tdm_matrix){
                .panel_bytes = TDM_ALIGN_UP(scales + body, (size_t)64), .type = type, .rows = rows, .cols = cols
        };
        matrix->data = data = aligned_alloc(64, n_panels * matrix->panel_bytes);
        assert_non_null(data);
        for (size_t i = 0; i < n_panels * matrix->panel_bytes; i += 4) {
                uint32_t v = random_u32();

                memcpy(data + i, &v, 4);
        }
        for (uint32_t p = 0; p < n_panels; p++) {
                uint8_t *panel = data + p * matrix->panel_bytes;

                if (type == TDM_TYPE_F32)
                        for (size_t i = 0; i < body / 4; i++)
                                ((float *)(void *)panel)[i] = random_float();
                for (size_t i = 0; i < (type == TDM_TYPE_F32 ? 0 : scales ? scales : body) / 2; i++) {
                        uint16_t *h = (uint16_t *)(void *)panel + i;

                        if (type == TDM_TYPE_BF16)
                                *h = (uint16_t)(*h & 0x807f) | (uint16_t)(120 + *h % 7) << 7;
                        else /* f16: mostly ordinary, a few subnormal or zero */
                                *h = random_u32() % 16 ? (uint16_t)(*h & 0x83ff) | (uint16_t)(8 + *h % 7) << 10 :
                                                         *h & (random_u32() % 2 ? 0x83ff : 0);
                }
                /* The extremes beside each other: where 16-bit sums would saturate. */
                if (scales > 0 && p == 0)
                        memset(panel + scales, random_u32() % 2 ? 0 : 255, body / nb);
        }
}

static double weight_size(const struct tdm_matrix *matrix, uint32_t row, uint32_t col)
{
        return fabs(matrix_value(matrix, row, col));
}

/* Scales are f16 and activations of ordinary size: nothing is subnormal. */
static double underflow_error(const struct tdm_matrix *matrix, const struct tdm_act_row *acts, enum tdm_act act,
                              uint32_t row)
{
        return 0;
}

static void test_tables_agree(void **state)
{
        _cleanup_(tdm_pool_destroyp) struct tdm_pool *pool = NULL;

        assert_int_equal(tdm_pool_new(&pool, 1, NULL), 0);
        random_begin();
        for (unsigned t = 0; t < TDM_ARRAY_SIZE(types); t++)
                for (unsigned act = 0; act < TDM_N_ACTS; act++) {
                        bool quantised = types[t] == TDM_TYPE_Q8_0 || types[t] == TDM_TYPE_Q4_0;

                        assert_int_equal(kernel_exists(tdm_kernels_get("c"), act, types[t]),
                                         act == TDM_ACT_F32 || quantised);
                        if (act != TDM_ACT_F32 && !quantised)
                                continue;
                        for (uint32_t n_rows = 1; n_rows <= 14; n_rows++)
                                check_shape(pool, types[t], act, 1 + random_u32() % 150, 32 * (1 + random_u32() % 9),
                                            n_rows);
                        check_shape(pool, types[t], act, 100, 32 * 40, 70);
                        /* AVX-512 has tiles of four and of five rows for them. */
                        check_shape(pool, types[t], act, 100, 32 * 9, 19);
                        check_shape(pool, types[t], act, 16, 32, 31);
                }
}

/* ---- quantising ---- */

static void check_quantise(const float *x, uint32_t cols)
{
        struct {
                int8_t hi[256], lo[256];
                float scale[8];
                int32_t start[8];
                float sum[8];
                int32_t sum_16[16];
        } want, got;
        const struct tdm_act_blocks blocks = { got.scale, got.start, got.sum, got.sum_16 };

        for (unsigned form = 0; form < 2; form++)
                for (unsigned i = 0; i < TDM_ARRAY_SIZE(names); i++) {
                        const struct tdm_kernels *kernels = tdm_kernels_get(names[i]);

                        if (!kernels)
                                continue;
                        memset(&got, CANARY, sizeof(got));
                        if (form == 0)
                                kernels->quantise_i8(x, cols, got.hi, &blocks);
                        else
                                kernels->quantise_i16(x, cols, got.hi, got.lo, &blocks);
                        if (i == 0)
                                want = got;
                        if (memcmp(&want, &got, sizeof(got)) != 0)
                                fail_msg("%s quantises differently, form %u", names[i], form);
                        if (i > 0)
                                continue;
                        for (uint32_t b = 0; b < cols / 32; b++) {
                                int32_t sum = 0, sum_16[2] = { 0 };
                                float amax = 0;

                                for (uint32_t k = 32 * b; k < 32 * b + 32; k++)
                                        if (x[k] == x[k])
                                                amax = fmaxf(amax, fminf(fabsf(x[k]), FLT_MAX));
                                for (uint32_t k = 32 * b; k < 32 * b + 32; k++) {
                                        double v = x[k] != x[k] ? 0 : fmax(fmin(x[k], FLT_MAX), -FLT_MAX);
                                        double q = form ? 256 * got.hi[k] + got.lo[k] : got.hi[k];

                                        assert_true(fabs(q) <= (form ? 32512 : 127));
                                        assert_true(fabs(q * got.scale[b] - v) <=
                                                    (got.scale[b] > 0 ? 0.51 * got.scale[b] : amax));
                                        sum += (int32_t)q;
                                        sum_16[k / 16 % 2] += (int32_t)q;
                                }
                                assert_int_equal(got.start[b], -8 * sum);
                                assert_memory_equal(&got.sum_16[2 * b], sum_16, sizeof(sum_16));
                                assert_true(got.sum[b] == got.scale[b] * (float)sum);
                                if (amax > 1e-32f)
                                        assert_true(got.scale[b] > 0);
                        }
                }
}

static void test_quantise(void **state)
{
        static const float special[] = {
                0,    -0.0f,   1,        -1,        FLT_MAX,       -FLT_MAX,         INFINITY,        -INFINITY,
                NAN,  FLT_MIN, -FLT_MIN, 0x1p-149f, 127 * FLT_MIN, 126.9f * FLT_MIN, 32512 * FLT_MIN, 0.5f,
                1.5f, 2.5f,    -0.5f,    1e-30f,    1e30f
        };
        float x[256];

        for (unsigned round = 0; round < 2000; round++) {
                int exponent = (int)(random_u32() % 240) - 120;

                for (unsigned i = 0; i < 256; i++)
                        x[i] = ldexpf(random_float(), exponent);
                for (unsigned i = 0; round % 2 && i < 6; i++)
                        x[random_u32() % 256] = special[random_u32() % TDM_ARRAY_SIZE(special)];
                if (round % 8 == 3) /* ties: amax 127 gives a scale of 1 */
                        for (unsigned i = 0; i < 256; i++)
                                x[i] = i % 32 ? (float)(random_u32() % 254) * 0.5f - 63.5f : 127;
                check_quantise(x, 32 * (1 + random_u32() % 8));
        }
}

static void test_quantise_ties(void **state)
{
        const struct tdm_kernels *c = tdm_kernels_get("c");
        float x[32] = { 127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f }, scale, sum;
        int8_t q[32], lo[32];
        int32_t start, sum_16[2];
        const struct tdm_act_blocks blocks = { &scale, &start, &sum, sum_16 };

        c->quantise_i8(x, 32, q, &blocks);
        assert_true(scale == 1);
        assert_int_equal(q[0], 127);
        assert_int_equal(q[1], 0);
        assert_int_equal(q[2], 2);
        assert_int_equal(q[3], 2);
        assert_int_equal(q[5], -2);
        x[0] = 32512;
        x[1] = 300;
        x[2] = -129;
        c->quantise_i16(x, 32, q, lo, &blocks);
        assert_true(scale == 1);
        assert_int_equal(q[0], 127);
        assert_int_equal(lo[0], 0);
        assert_int_equal(256 * q[1] + lo[1], 300);
        assert_int_equal(256 * q[2] + lo[2], -129);
}

/* ---- choosing ---- */

static void test_choose(void **state)
{
        struct tdm_error err = { 0 };
        const struct tdm_kernels *best = tdm_kernels_choose(&err);

        assert_non_null(best);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(names); i++) {
                setenv("TANDEM_CPU", names[i], 1);
                assert_ptr_equal(tdm_kernels_choose(&err), tdm_kernels_get(names[i]));
                if (!tdm_kernels_get(names[i]))
                        assert_int_equal(err.code, TDM_E_UNSUPPORTED);
        }
        setenv("TANDEM_CPU", "mmx", 1);
        assert_null(tdm_kernels_choose(&err));
        assert_int_equal(err.code, TDM_E_BAD_REQUEST);
        assert_null(tdm_kernels_choose(NULL));
        setenv("TANDEM_CPU", "", 1);
        assert_ptr_equal(tdm_kernels_choose(&err), best);
        unsetenv("TANDEM_CPU");
        assert_null(tdm_kernels_get("mmx"));
        assert_int_equal(tdm_kernels_type_index(9), -1);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_tables_agree),
                cmocka_unit_test(test_quantise),
                cmocka_unit_test(test_quantise_ties),
                cmocka_unit_test(test_choose),
        };

        unsetenv("TANDEM_CPU");
        return cmocka_run_group_tests(tests, NULL, NULL);
}
