/* A product whose shape no program has, on the emulated NPU: tiles, segments and padding, against sums in double; the
 * same bits in every number of rows; several commands in a submission, and what is left after a fault among them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "common/f16.h"
#include "engine/host/kernels.h"
#include "npu-worker/emulated/control.h"
#include "npu-worker/npu/npu.h"

#define ROWS 300u /* outputs */
#define COLS 520u /* inputs */
#define N_X 70u

static _Atomic uint64_t heartbeat;
static struct tdm_emulated_control *control;
static struct tdm_npu *npu;
static float w[ROWS][COLS], x[N_X][COLS];

/* A larger program with padding would be cheaper. */
static void leave_general_programs(struct tdm_npu_manifest *manifest)
{
        for (uint32_t i = 0; i < manifest->n_programs; i++)
                if (strncmp(manifest->programs[i].name, "general", 7) != 0)
                        manifest->programs[i].op = TDM_NPU_ROPE;
}

static int setup(void **state)
{
        const struct tdm_npu_config config = { .emulated = true, .heartbeat = &heartbeat };
        struct tdm_error err = {};
        uint32_t random = 1;
        int fd = memfd_create("control", 0);
        char path[64];

        if (ftruncate(fd, TDM_EMULATED_CONTROL_BYTES) < 0)
                return -1;
        control = mmap(NULL, TDM_EMULATED_CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        setenv(TDM_EMULATED_CONTROL_ENV, path, 1);
        for (uint32_t i = 0; i < ROWS * COLS; i++)
                (&w[0][0])[i] = (float)(int32_t)(random = random * 1664525 + 1013904223) * 0x1p-33f;
        for (uint32_t i = 0; i < N_X * COLS; i++)
                (&x[0][0])[i] = (float)(int32_t)(random = random * 1664525 + 1013904223) * 0x1p-30f;
        if (tdm_npu_open(&npu, &config, &err) != 0) {
                print_message("%s\n", err.message);
                return -1;
        }
        leave_general_programs((struct tdm_npu_manifest *)tdm_npu_manifest(npu));
        return 0;
}

static int teardown(void **state)
{
        tdm_npu_close(npu);
        return 0;
}

static void make(enum tdm_npu_type type, struct tdm_npu_product **product, struct tdm_npu_weights **weights)
{
        struct tdm_npu_plan plan;
        struct tdm_error err = {};

        assert_int_equal(tdm_npu_plan_matrix(tdm_npu_manifest(npu), type, ROWS, COLS, &plan, &err), 0);
        assert_int_equal(tdm_npu_plan_commands(&plan), 2 * 3);
        assert_int_equal(tdm_npu_product_new(npu, &plan, N_X, product, &err), 0);
        assert_true(tdm_npu_product_rows(*product) >= N_X);
        assert_int_equal(tdm_npu_weights_new(*product, weights, &err), 0);
        for (uint32_t o = 0; o < ROWS; o++)
                tdm_npu_weights_fill(*weights, o, w[o]);
        assert_int_equal(tdm_npu_weights_finish(*weights, &err), 0);
}

/* Rows first … first + n - 1 of x. y [n][ROWS] */
static void run(struct tdm_npu_product *product, const struct tdm_npu_weights *weights, uint32_t first, uint32_t n,
                float *y)
{
        for (uint32_t r = 0; r < n; r++)
                tdm_npu_product_put(product, r, x[first + r]);
        tdm_npu_product_run(product, weights, n);
        for (uint32_t r = 0; r < n; r++) { /* in pieces that are no tiles */
                tdm_npu_product_get(product, weights, r, 0, 100, y + r * ROWS);
                tdm_npu_product_get(product, weights, r, 100, ROWS - 100, y + r * ROWS + 100);
        }
}

static void test_product(void **state)
{
        static const struct {
                enum tdm_npu_type type;
                double bound; /* error of an output, relative to the root of the sum of squares of its products */
        } cases[] = { { TDM_NPU_BF16, 0.01 }, { TDM_NPU_INT8, 0.04 } };
        uint64_t budget = tdm_npu_budget_left(npu);

        for (size_t t = 0; t < TDM_ARRAY_SIZE(cases); t++) {
                float *y = malloc(N_X * ROWS * sizeof(float)), *again = malloc(N_X * ROWS * sizeof(float));
                uint64_t contexts = tdm_npu_counters(npu)->n_contexts;
                struct tdm_npu_product *product;
                struct tdm_npu_weights *weights;

                make(cases[t].type, &product, &weights);
                run(product, weights, 0, N_X, y);
                for (uint32_t r = 0; r < N_X; r++)
                        for (uint32_t o = 0; o < ROWS; o++) {
                                double sum = 0, squares = 0;

                                for (uint32_t k = 0; k < COLS; k++) {
                                        sum += (double)w[o][k] * x[r][k];
                                        squares += (double)w[o][k] * x[r][k] * w[o][k] * x[r][k];
                                }
                                if (!(fabs(y[r * ROWS + o] - sum) <= cases[t].bound * sqrt(squares)))
                                        fail_msg("%s, row %u, output %u: %g, want %g", tdm_npu_type_name(cases[t].type),
                                                 r, o, (double)y[r * ROWS + o], sum);
                        }
                for (uint32_t first = 0, n = 1; first < N_X; first += n, n = n % 11 + 2) {
                        n = TDM_MIN(n, N_X - first);
                        /* Slow: longer than one look at a submission of several commands. */
                        atomic_store(&control->fault, n == 3 ? TDM_EMULATED_FAULT_CONTEXT :
                                                      n == 5 ? TDM_EMULATED_FAULT_SLOW :
                                                               TDM_EMULATED_FAULT_NONE);
                        run(product, weights, first, n, again + first * ROWS);
                }
                assert_memory_equal(y, again, N_X * ROWS * sizeof(float));
                assert_true(tdm_npu_counters(npu)->n_contexts > contexts);
                tdm_npu_weights_destroy(weights);
                tdm_npu_product_destroy(product);
                free(y);
                free(again);
        }
        /* Nothing is left but instructions. */
        assert_true(budget - tdm_npu_budget_left(npu) < 16 * 4096 * 2);
}

/* What the manifest's format says of an output, over `n` inputs. */
static float int4_output(enum tdm_npu_type type, const struct tdm_kernels *kernels, const float *values,
                         const int8_t *q, const uint16_t *scales, uint32_t n)
{
        _Alignas(64) int8_t high[COLS], low[COLS] = { 0 };
        float x_scale[COLS / 32], sums[COLS / 32], acc = 0;
        int32_t start[COLS / 32], sum_16[COLS / 16];
        const struct tdm_act_blocks blocks = { x_scale, start, sums, sum_16 };

        if (type == TDM_NPU_INT4)
                kernels->quantise_i8(values, n, high, &blocks);
        else
                kernels->quantise_i16(values, n, high, low, &blocks);
        for (uint32_t b = 0; b < n / 32; b++) {
                int32_t sum = 0;

                for (uint32_t k = 32 * b; k < 32 * b + 32; k++)
                        sum += q[k] * (type == TDM_NPU_INT4 ? high[k] : 256 * high[k] + low[k]);
                acc = fmaf((float)sum, tdm_f16_to_f32(scales[b]) * x_scale[b], acc);
        }
        return acc;
}

/* int4 and int4a16, whole and cut into segments: bit for bit. */
static void test_int4(void **state)
{
        static int8_t q[ROWS][COLS];
        static uint16_t scales[ROWS][COLS / 32];
        static const uint32_t cols[] = { 256, 512 };
        const struct tdm_kernels *kernels = tdm_kernels_choose(NULL);
        uint32_t random = 7;

        for (uint32_t o = 0; o < ROWS; o++) {
                for (uint32_t k = 0; k < COLS; k++)
                        q[o][k] = (int8_t)((random = random * 1664525 + 1013904223) >> 28) - 8;
                for (uint32_t b = 0; b < COLS / 32; b++)
                        scales[o][b] = tdm_f32_to_f16(0.001f * (float)(1 + (o * 7 + b * 3) % 50));
        }
        for (enum tdm_npu_type type = TDM_NPU_INT4; type <= TDM_NPU_INT4A16; type++)
                for (size_t i = 0; i < TDM_ARRAY_SIZE(cols); i++) {
                        struct tdm_npu_product *product;
                        struct tdm_npu_weights *weights;
                        struct tdm_npu_plan plan;
                        struct tdm_error err = {};

                        assert_int_equal(tdm_npu_plan_matrix(tdm_npu_manifest(npu), type, ROWS, cols[i], &plan, &err),
                                         0);
                        assert_int_equal(tdm_npu_plan_commands(&plan), 2 * cols[i] / 256);
                        plan.kernels = kernels;
                        assert_int_equal(tdm_npu_product_new(npu, &plan, N_X, &product, &err), 0);
                        assert_int_equal(tdm_npu_weights_new(product, &weights, &err), 0);
                        for (uint32_t o = 0; o < ROWS; o++)
                                tdm_npu_weights_fill_q4(weights, o, q[o], scales[o]);
                        assert_int_equal(tdm_npu_weights_finish(weights, &err), 0);
                        for (uint32_t n = 1; n <= N_X; n += 23) {
                                float y[ROWS];

                                for (uint32_t r = 0; r < n; r++)
                                        tdm_npu_product_put(product, r, x[r]);
                                tdm_npu_product_run(product, weights, n);
                                tdm_npu_product_get(product, weights, n - 1, 0, ROWS, y);
                                for (uint32_t o = 0; o < ROWS; o++) {
                                        float want = int4_output(type, kernels, x[n - 1], q[o], scales[o], 256);

                                        if (cols[i] > 256)
                                                want += int4_output(type, kernels, x[n - 1] + 256, q[o] + 256,
                                                                    scales[o] + 8, 256);
                                        if (y[o] != want)
                                                fail_msg("%s, %u inputs, output %u: %a, want %a",
                                                         tdm_npu_type_name(type), cols[i], o, (double)y[o],
                                                         (double)want);
                                }
                        }
                        tdm_npu_weights_destroy(weights);
                        tdm_npu_product_destroy(product);
                }
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_product), cmocka_unit_test(test_int4) };

        return cmocka_run_group_tests(tests, setup, teardown);
}
