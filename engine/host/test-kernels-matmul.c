/* Matrix kernels: every table's kernels give exactly the bits of the C reference, over random shapes with odd tails;
 * the reference itself agrees with a plain double sum and keeps its stated order; quantising keeps its stated bounds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include "common/f16.h"
#include "engine/host/matmul.h"

static const uint32_t types[] = { TDM_TYPE_F32, TDM_TYPE_F16, TDM_TYPE_BF16, TDM_TYPE_Q4_0, TDM_TYPE_Q8_0 };
static const char *const names[] = { "c", "avx2", "avx512" };

static uint64_t random_state = 1;

static uint32_t random_u32(void)
{
        random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (uint32_t)(random_state >> 32);
}

static float random_float(void) /* in (-1, 1), of many magnitudes */
{
        float f = ((float)(random_u32() >> 8) - 0x1p23f) * 0x1p-23f;

        return ldexpf(f, -(int)(random_u32() % 8));
}

/* Guarded memory: what is behind the end is checked after use. */
#define CANARY 0x5a

static void *guarded_new(size_t bytes)
{
        uint8_t *p = aligned_alloc(64, TDM_ALIGN_UP(bytes + 64, (size_t)64));

        assert_non_null(p);
        memset(p, CANARY, bytes + 64);
        return p;
}

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
                /* The extremes of a byte beside each other: where 16-bit sums would saturate. */
                if (type == TDM_TYPE_Q8_0 && p == 0)
                        memset(panel + scales, random_u32() % 2 ? 0 : 255, 512);
        }
}

static float matrix_value(const struct tdm_matrix *matrix, uint32_t row, uint32_t col)
{
        struct tdm_weights_tensor tensor = {
                .type = matrix->type,
                .layout = TDM_LAYOUT_PANEL16,
                .rows = matrix->rows,
                .cols = matrix->cols,
                .panel_bytes = matrix->panel_bytes,
        };

        return tdm_weights_value(matrix->data, &tensor, row, col);
}

static void fill_rows(float *x, uint32_t n_rows, uint32_t cols)
{
        for (size_t i = 0; i < (size_t)n_rows * cols; i++)
                x[i] = random_float();
        /* Whole blocks of the largest magnitude, and of zeros. */
        for (uint32_t i = 0; i < 32; i++)
                x[i] = random_u32() % 2 ? 3 : -3;
        if (n_rows > 1)
                memset(x + cols, 0, 32 * sizeof(*x));
}

static bool kernel_exists(const struct tdm_kernels *kernels, enum tdm_act act, uint32_t type)
{
        return kernels->matmul[act][tdm_kernels_type_index(type)];
}

/* The reference against double sums of what the forms really hold. */
static void check_reference(const struct tdm_matrix *matrix, const struct tdm_acts *acts, enum tdm_act act,
                            uint32_t n_rows, const float *y, size_t y_stride)
{
        for (uint32_t t = 0; t < 20; t++) {
                uint32_t r = random_u32() % n_rows, row = random_u32() % matrix->rows;
                const struct tdm_act_row *a = &acts->rows[act][r];
                double sum = 0, size = 0;

                for (uint32_t k = 0; k < matrix->cols; k++) {
                        double x = act == TDM_ACT_F32 ? a->x[k] :
                                   act == TDM_ACT_I8  ? (double)a->hi[k] * a->scale[k / 32] :
                                                        (256.0 * a->hi[k] + a->lo[k]) * a->scale[k / 32];

                        sum += matrix_value(matrix, row, k) * x;
                        size += fabs(matrix_value(matrix, row, k) * x);
                }
                assert_true(fabs(y[r * y_stride + row] - sum) <= size * 3e-7 * (2 + matrix->cols / 32.0));
        }
}

/* At once, or in pieces of random size, rows and panels both: no result may depend on it. */
static void multiply(tdm_matmul_fn fn, bool in_pieces, const struct tdm_matrix *matrix, const struct tdm_act_row *rows,
                     uint32_t n_rows, float *y, size_t y_stride)
{
        uint32_t n_panels = TDM_DIV_UP(matrix->rows, TDM_PANEL_ROWS), n_r, n;

        for (uint32_t r = 0; r < n_rows; r += n_r) {
                n_r = in_pieces ? 1 + random_u32() % (n_rows - r) : n_rows;
                for (uint32_t first = 0; first < n_panels; first += n) {
                        n = in_pieces ? 1 + random_u32() % (n_panels - first) : n_panels;
                        fn(matrix, rows + r, n_r, first, n, y + r * y_stride + first * TDM_PANEL_ROWS, y_stride);
                }
        }
}

static void check_shape(struct tdm_pool *pool, uint32_t type, enum tdm_act act, uint32_t rows, uint32_t cols,
                        uint32_t n_rows)
{
        const struct tdm_kernels *c = tdm_kernels_get("c");
        uint32_t n_panels = TDM_DIV_UP(rows, TDM_PANEL_ROWS);
        size_t y_stride = rows + random_u32() % 5, y_bytes = ((size_t)(n_rows - 1) * y_stride + rows) * sizeof(float);
        _cleanup_(freep) float *x = malloc((size_t)n_rows * cols * sizeof(float));
        _cleanup_(freep) uint8_t *want = guarded_new(y_bytes), *got = guarded_new(y_bytes);
        struct tdm_matrix matrix;
        struct tdm_acts acts;

        matrix_new(&matrix, type, rows, cols);
        fill_rows(x, n_rows, cols);
        assert_int_equal(tdm_acts_init(&acts, 1u << act, n_rows, cols), 0);
        tdm_acts_prepare(&acts, c, pool, x, cols, n_rows, cols);

        c->matmul[act][tdm_kernels_type_index(type)](&matrix, acts.rows[act], n_rows, 0, n_panels,
                                                     (float *)(void *)want, y_stride);
        check_reference(&matrix, &acts, act, n_rows, (const float *)(const void *)want, y_stride);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(names); i++) {
                const struct tdm_kernels *kernels = tdm_kernels_get(names[i]);

                if (!kernels || !kernel_exists(kernels, act, type))
                        continue;
                for (unsigned in_pieces = 0; in_pieces < 2; in_pieces++) {
                        memset(got, CANARY, y_bytes + 64);
                        multiply(kernels->matmul[act][tdm_kernels_type_index(type)], in_pieces, &matrix, acts.rows[act],
                                 n_rows, (float *)(void *)got, y_stride);
                        if (memcmp(got, want, y_bytes + 64) != 0)
                                fail_msg("%s differs: type %u, form %d, %u x %u, %u rows%s", names[i], type, (int)act,
                                         rows, cols, n_rows, in_pieces ? ", in pieces" : "");
                }
        }
        tdm_acts_deinit(&acts);
        free((void *)matrix.data);
}

static void test_tables_agree(void **state)
{
        _cleanup_(tdm_pool_destroyp) struct tdm_pool *pool = NULL;

        assert_int_equal(tdm_pool_new(&pool, 1, NULL), 0);
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
