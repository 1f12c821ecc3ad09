/* What the tests of matrix kernels share: every table's kernels give exactly the bits of the C reference, and the
 * reference agrees with a plain double sum. A test that includes it defines matrix_new(), weight_size() and
 * underflow_error().
 *
 * Each run draws its cases from a new seed, which it prints; TANDEM_TEST_SEED sets it. A case that failed once is kept
 * in the test: a failure says it as its initializer. A case does not depend on the tables that this CPU has, so that it
 * means the same on every machine. */
#ifndef TDM_ENGINE_HOST_TEST_KERNELS_MATMUL_H
#define TDM_ENGINE_HOST_TEST_KERNELS_MATMUL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "engine/host/matmul.h"

static const char *const names[] = { "c", "avx2", "avx512" };

/* A product whose matrix and rows are drawn from a seed of its own. */
struct shape_case {
        uint32_t type;
        enum tdm_act act;
        uint32_t rows, cols, n_rows;
        uint64_t seed;
};

static uint64_t random_state; /* what random_u32() draws from */
static uint64_t piece_state;  /* how a product is cut into pieces, which is drawn once for each table */

static uint32_t draw(uint64_t *state)
{
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (uint32_t)(*state >> 32);
}

static uint32_t random_u32(void)
{
        return draw(&random_state);
}

static void random_begin(void)
{
        const char *wanted = getenv("TANDEM_TEST_SEED");
        uint64_t seed = wanted && *wanted ? strtoull(wanted, NULL, 10) : (uint64_t)time(NULL);

        printf("seed %" PRIu64 " (TANDEM_TEST_SEED)\n", seed);
        (void)fflush(stdout);
        random_state = seed;
}

static void case_fail(const struct shape_case *c, const char *what)
{
        fail_msg("%s; case { %u, %d, %u, %u, %u, %" PRIu64 " }", what, c->type, (int)c->act, c->rows, c->cols,
                 c->n_rows, c->seed);
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

/* Of random bits. Its memory ends where the layout ends. */
static void matrix_new(struct tdm_matrix *matrix, uint32_t type, uint32_t rows, uint32_t cols);

/* The size of what a weight is made of: a product and a minimum that nearly cancel are rounded as large numbers. */
static double weight_size(const struct tdm_matrix *matrix, uint32_t row, uint32_t col);

/* How far an output may be from the sum beside the rounding of normal numbers: what is lost where a scale's product or
 * a sum is subnormal. */
static double underflow_error(const struct tdm_matrix *matrix, const struct tdm_act_row *acts, enum tdm_act act,
                              uint32_t row);

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
        /* 32384 of 32512 is 127 * 256 - 128. */
        float largest = (random_u32() % 2 ? 3.0f : -3.0f) * 32384 / 32512;
        bool any_sign = random_u32() % 3 == 0, of_low_bytes = random_u32() % 2;

        for (size_t i = 0; i < (size_t)n_rows * cols; i++)
                x[i] = random_float();
        /* Whole blocks of zeros, and of the largest magnitude: of any signs, or all of one, so that sums are largest.
         * Of 16 bits, low bytes are least, or zero. */
        for (uint32_t i = 0; i < 32; i++)
                x[i] = any_sign ? random_u32() % 2 ? 3 : -3 : of_low_bytes && i > 0 ? largest : largest > 0 ? 3 : -3;
        if (n_rows > 1)
                memset(x + cols, 0, 32 * sizeof(*x));
}

static bool kernel_exists(const struct tdm_kernels *kernels, enum tdm_act act, uint32_t type)
{
        return kernels->matmul[act][tdm_kernels_type_index(type)];
}

/* The reference against double sums of what the forms really hold. */
static void check_reference(const struct shape_case *c, const struct tdm_matrix *matrix, const struct tdm_acts *acts,
                            const float *y, size_t y_stride)
{
        for (uint32_t t = 0; t < 20; t++) {
                uint32_t r = random_u32() % c->n_rows, row = random_u32() % matrix->rows;
                const struct tdm_act_row *a = &acts->rows[c->act][r];
                double sum = 0, size = 0, got = y[r * y_stride + row], allowed;
                char what[128];

                for (uint32_t k = 0; k < matrix->cols; k++) {
                        double x = c->act == TDM_ACT_F32 ? a->x[k] :
                                   c->act == TDM_ACT_I8  ? (double)a->hi[k] * a->scale[k / 32] :
                                                           (256.0 * a->hi[k] + a->lo[k]) * a->scale[k / 32];

                        sum += matrix_value(matrix, row, k) * x;
                        size += weight_size(matrix, row, k) * fabs(x);
                }
                allowed = size * 3e-7 * (2 + matrix->cols / 32.0) + underflow_error(matrix, a, c->act, row);
                snprintf(what, sizeof(what), "y %.9g, sum %.9g, allowed %.3g", got, sum, allowed);
                if (!(fabs(got - sum) <= allowed))
                        case_fail(c, what);
        }
}

/* At once, or in pieces of random size, rows and panels both: no result may depend on it. */
static void multiply(tdm_matmul_fn fn, bool in_pieces, const struct tdm_matrix *matrix, const struct tdm_act_row *rows,
                     uint32_t n_rows, float *y, size_t y_stride)
{
        uint32_t n_panels = TDM_DIV_UP(matrix->rows, TDM_PANEL_ROWS), n_r, n;

        for (uint32_t r = 0; r < n_rows; r += n_r) {
                n_r = in_pieces ? 1 + draw(&piece_state) % (n_rows - r) : n_rows;
                for (uint32_t first = 0; first < n_panels; first += n) {
                        n = in_pieces ? 1 + draw(&piece_state) % (n_panels - first) : n_panels;
                        fn(matrix, rows + r, n_r, first, n, y + r * y_stride + first * TDM_PANEL_ROWS, y_stride);
                }
        }
}

static void check_case(struct tdm_pool *pool, const struct shape_case *c)
{
        const struct tdm_kernels *reference = tdm_kernels_get("c");
        uint32_t n_panels = TDM_DIV_UP(c->rows, TDM_PANEL_ROWS);
        int type = tdm_kernels_type_index(c->type);
        _cleanup_(freep) float *x = malloc((size_t)c->n_rows * c->cols * sizeof(float));
        _cleanup_(freep) uint8_t *want = NULL, *got = NULL;
        size_t y_stride, y_bytes;
        struct tdm_matrix matrix;
        struct tdm_acts acts;

        random_state = piece_state = c->seed;
        y_stride = c->rows + random_u32() % 5;
        y_bytes = ((size_t)(c->n_rows - 1) * y_stride + c->rows) * sizeof(float);
        want = guarded_new(y_bytes);
        got = guarded_new(y_bytes);
        matrix_new(&matrix, c->type, c->rows, c->cols);
        fill_rows(x, c->n_rows, c->cols);
        assert_int_equal(tdm_acts_init(&acts, 1u << c->act, c->n_rows, c->cols), 0);
        tdm_acts_prepare(&acts, reference, pool, x, c->cols, c->n_rows, c->cols);

        reference->matmul[c->act][type](&matrix, acts.rows[c->act], c->n_rows, 0, n_panels, (float *)(void *)want,
                                        y_stride);
        check_reference(c, &matrix, &acts, (const float *)(const void *)want, y_stride);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(names); i++) {
                const struct tdm_kernels *kernels = tdm_kernels_get(names[i]);

                if (!kernels || !kernel_exists(kernels, c->act, c->type))
                        continue;
                for (unsigned in_pieces = 0; in_pieces < 2; in_pieces++) {
                        memset(got, CANARY, y_bytes + 64);
                        multiply(kernels->matmul[c->act][type], in_pieces, &matrix, acts.rows[c->act], c->n_rows,
                                 (float *)(void *)got, y_stride);
                        if (memcmp(got, want, y_bytes + 64) != 0) {
                                char what[64];

                                snprintf(what, sizeof(what), "%s differs%s", names[i], in_pieces ? " in pieces" : "");
                                case_fail(c, what);
                        }
                }
        }
        tdm_acts_deinit(&acts);
        free((void *)matrix.data);
}

/* A new case. */
static void check_shape(struct tdm_pool *pool, uint32_t type, enum tdm_act act, uint32_t rows, uint32_t cols,
                        uint32_t n_rows)
{
        const struct shape_case c = { type, act, rows, cols, n_rows, random_u32() };
        uint64_t state = random_state;

        check_case(pool, &c);
        random_state = state;
}

#endif
