/* The planner: which programs a product gets, and where a weight lies in what they read. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/f16.h"
#include "engine/host/kernels.h"
#include "npu-worker/plan/plan.h"

static struct tdm_npu_manifest manifest;

static void add(uint32_t m, uint32_t k, uint32_t n, enum tdm_npu_type type, const char *order)
{
        struct tdm_npu_program *p = &manifest.programs[manifest.n_programs++];

        *p = (struct tdm_npu_program){
                .op = m == 1 ? TDM_NPU_GEMV : TDM_NPU_GEMM, .m = m, .k = k, .n = n, .type = type
        };
        p->b.kind = TDM_NPU_COLUMNS;
        snprintf(p->order, sizeof(p->order), "%s", order);
}

static int setup(void **state)
{
        memset(&manifest, 0, sizeof(manifest));
        return 0;
}

static void test_shapes(void **state)
{
        struct tdm_npu_plan plan;
        struct tdm_error err = {};

        assert_int_equal(tdm_npu_plan_matrix(&manifest, TDM_NPU_BF16, 384, 256, &plan, &err), TDM_E_UNSUPPORTED);
        add(64, 256, 256, TDM_NPU_BF16, "x");
        add(8, 256, 256, TDM_NPU_BF16, "x");
        add(64, 256, 384, TDM_NPU_INT8, "exact");
        assert_int_equal(tdm_npu_plan_matrix(&manifest, TDM_NPU_BF16, 384, 300, &plan, &err), 0);
        assert_int_equal(plan.n_tiles, 2);
        assert_int_equal(plan.n_segments, 2);
        assert_int_equal(plan.n_variants, 2);
        assert_int_equal(plan.variants[0]->m, 8);
        assert_int_equal(tdm_npu_plan_variant(&plan, 1), 0);
        assert_int_equal(tdm_npu_plan_variant(&plan, 8), 0);
        assert_int_equal(tdm_npu_plan_variant(&plan, 9), 1);
        assert_int_equal(tdm_npu_plan_variant(&plan, 1000), 1);

        /* A program of the very shape is better. */
        add(1, 304, 384, TDM_NPU_BF16, "x");
        assert_int_equal(tdm_npu_plan_matrix(&manifest, TDM_NPU_BF16, 384, 300, &plan, &err), 0);
        assert_int_equal(tdm_npu_plan_commands(&plan), 1);
        assert_int_equal(plan.n_variants, 1);

        /* Another order of sums is another family, whatever its rows. */
        add(32, 256, 256, TDM_NPU_BF16, "y");
        assert_int_equal(tdm_npu_plan_matrix(&manifest, TDM_NPU_BF16, 256, 256, &plan, &err), 0);
        assert_int_equal(plan.n_variants, 2);

        assert_int_equal(tdm_npu_plan_matrix(&manifest, TDM_NPU_BF16, 65536, 65536, &plan, &err), TDM_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "bf16 product of 65536 x 65536"));
}

/* Each layout holds each weight once, where its definition says. */
static void test_layouts(void **state)
{
        static const struct tdm_npu_layout layouts[] = {
                { TDM_NPU_ROWS, 0, 0 }, { TDM_NPU_COLUMNS, 0, 0 }, { TDM_NPU_TILES, 8, 4 }, { TDM_NPU_TILES, 8, 8 }
        };
        enum { K = 32, N = 16, USED = 27 };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(layouts); i++) {
                const struct tdm_npu_plan plan = { .k = K, .n = N, .type = TDM_NPU_BF16, .b = layouts[i] };
                uint32_t tr = layouts[i].tile_rows, tc = layouts[i].tile_cols;
                uint16_t tile[K * N];
                float values[USED];

                memset(tile, 0xff, sizeof(tile));
                for (uint32_t n = 0; n < N; n++) {
                        for (uint32_t k = 0; k < USED; k++)
                                values[k] = (float)(n * USED + k) - 100;
                        assert_true(tdm_npu_put_weights(&plan, values, USED, n, tile) == 1);
                }
                for (uint32_t n = 0; n < N; n++)
                        for (uint32_t k = 0; k < K; k++) {
                                size_t at = layouts[i].kind == TDM_NPU_ROWS ?
                                                    k * N + n :
                                            layouts[i].kind == TDM_NPU_COLUMNS ?
                                                    n * K + k :
                                                    ((k / tr) * (N / tc) + n / tc) * tr * tc + k % tr * tc + n % tc;
                                float want = k < USED ? (float)(n * USED + k) - 100 : 0;

                                assert_true(fabsf(tdm_bf16_to_f32(tile[at]) - want) <= fabsf(want) / 256);
                        }
        }
}

static void test_rounding(void **state)
{
        const struct tdm_npu_plan bf16 = { .k = 8, .n = 8, .type = TDM_NPU_BF16 },
                                  int8 = { .k = 8, .n = 8, .type = TDM_NPU_INT8 };
        /* Half way between two bf16 values: to the even one, down and up. */
        const float x[] = { 1 + 0x1p-8f, 1 + 3 * 0x1p-8f, -1.0f, NAN, INFINITY, 3e38f };
        const float y[] = { 2.54f, -1.27f, 0.011f, 0.009f, NAN };
        uint16_t h[8];
        int8_t q[8];
        float scale;

        assert_true(tdm_npu_put_row(&bf16, x, TDM_ARRAY_SIZE(x), h) == 1);
        assert_int_equal(h[0], 0x3f80);
        assert_int_equal(h[1], 0x3f82);
        assert_int_equal(h[2], 0xbf80);
        assert_true(isnan(tdm_bf16_to_f32(h[3])));
        assert_true(isinf(tdm_bf16_to_f32(h[4])));
        assert_int_equal(h[6], 0);

        scale = tdm_npu_put_row(&int8, y, TDM_ARRAY_SIZE(y), q);
        assert_true(fabsf(scale - 0.02f) < 1e-6f);
        assert_int_equal(q[0], 127);
        assert_int_equal(q[1], -64); /* 63.5: to the even one */
        assert_int_equal(q[2], 1);
        assert_int_equal(q[3], 0);
        assert_int_equal(q[4], 0);
        assert_true(tdm_npu_put_row(&int8, (const float[]){ 0, 0 }, 2, q) == 1);
        scale = tdm_npu_put_row(&int8, (const float[]){ INFINITY, -1 }, 2, q);
        assert_true(isfinite(scale));
        assert_int_equal(q[0], 127);
        scale = tdm_npu_put_row(&int8, (const float[]){ 1e-45f, -1e-45f }, 2, q);
        assert_true(scale >= 0 && q[0] >= 0);
}

/* int4: every number of a block where the manifest's format says, beside numbers that stay. */
static void test_int4_weights(void **state)
{
        enum { K = 256, N = 64, USED = 160, BLOCK = 32 * 2 + 32 * 32 / 2 };
        static const struct tdm_npu_layout layouts[] = { { TDM_NPU_BLOCKS, 16, 8 },
                                                         { TDM_NPU_BLOCKS, 32, 1 },
                                                         { TDM_NPU_BLOCKS, 8, 16 } };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(layouts); i++) {
                const struct tdm_npu_plan plan = { .k = K, .n = N, .type = TDM_NPU_INT4, .b = layouts[i] };
                uint32_t tr = layouts[i].tile_rows, tc = layouts[i].tile_cols;
                uint8_t tile[K / 32 * (N / 32) * BLOCK];

                assert_int_equal(sizeof(tile), tdm_npu_plan_tile_bytes(&plan));
                memset(tile, 0x5a, sizeof(tile));
                for (uint32_t n = 0; n < N; n++) {
                        int8_t q[USED];
                        uint16_t scales[USED / 32];

                        for (uint32_t k = 0; k < USED; k++)
                                q[k] = (int8_t)((k * 3 + n * 5) % 16) - 8;
                        for (uint32_t b = 0; b < USED / 32; b++)
                                scales[b] = (uint16_t)(1 + n * 8 + b);
                        tdm_npu_put_q4(&plan, q, scales, USED, n, tile);
                }
                for (uint32_t n = 0; n < N; n++)
                        for (uint32_t k = 0; k < K; k++) {
                                const uint8_t *block = tile + (n / 32 * (K / 32) + k / 32) * BLOCK;
                                uint32_t at = (k % 32 / tr * (32 / tc) + n % 32 / tc) * tr * tc + k % tr * tc + n % tc;
                                int got = (int8_t)(block[64 + at / 2] << (at % 2 ? 0 : 4)) >> 4;
                                uint16_t scale;

                                memcpy(&scale, block + n % 32 * 2, 2);
                                assert_int_equal(got, k < USED ? (int)((k * 3 + n * 5) % 16) - 8 : 0);
                                assert_int_equal(scale, k < USED ? 1 + n * 8 + k / 32 : 0);
                        }
        }
}

/* Rows are the host's, block by block. */
static void test_int4_rows(void **state)
{
        enum { K = 256, USED = 160 };
        struct tdm_npu_plan plan = { .k = K, .n = 32, .type = TDM_NPU_INT4, .kernels = tdm_kernels_choose(NULL) };
        float values[USED];

        assert_non_null(plan.kernels);
        for (uint32_t k = 0; k < USED; k++)
                values[k] = k < 32 ? 0 : sinf((float)k) * (float)(1 + k / 32);
        for (; plan.type <= TDM_NPU_INT4A16; plan.type++) {
                bool wide = plan.type == TDM_NPU_INT4A16;
                uint8_t row[2 * 272];

                memset(row, 0x77, sizeof(row));
                assert_true(tdm_npu_put_row(&plan, values, USED, row) == 1);
                assert_int_equal(tdm_npu_row_bytes(plan.type, K), wide ? 544 : 288);
                for (uint32_t k = 0; k < K; k++) {
                        const uint8_t *piece = row + k / 128 * (wide ? 272 : 144);
                        int q = (int8_t)piece[16 + k % 128];
                        float scale, x = k < USED ? values[k] : 0;

                        if (wide)
                                q = 256 * q + (int8_t)piece[16 + 128 + k % 128];
                        memcpy(&scale, piece + k % 128 / 32 * 4, 4);
                        assert_true(fabsf((float)q * scale - x) <= 0.5001f * scale);
                        assert_true(x == 0 || scale > 0);
                }
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup(test_shapes, setup),
                cmocka_unit_test(test_layouts),
                cmocka_unit_test(test_rounding),
                cmocka_unit_test(test_int4_weights),
                cmocka_unit_test(test_int4_rows),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
