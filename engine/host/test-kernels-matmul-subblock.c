/* Matrix kernels of the types of engine/weights/subblock.h: every table's kernels give exactly the bits of the C
 * reference, over random shapes with odd tails, and the reference itself agrees with a plain double sum. */
#define SUBNORMAL_ERROR 0x1p-148

#include "engine/weights/subblock.h"
#include "engine/host/test-kernels-matmul.h"

static const uint32_t types[] = { TDM_TYPE_Q4_1,   TDM_TYPE_Q5_0,   TDM_TYPE_Q5_1, TDM_TYPE_Q2_K,
                                  TDM_TYPE_Q3_K,   TDM_TYPE_Q4_K,   TDM_TYPE_Q5_K, TDM_TYPE_Q6_K,
                                  TDM_TYPE_IQ4_NL, TDM_TYPE_IQ4_XS, TDM_TYPE_MXFP4 };

/* A matrix of random bits. Its memory ends where the layout ends. */
static void matrix_new(struct tdm_matrix *matrix, uint32_t type, uint32_t rows, uint32_t cols)
{
        const struct tdm_subblock_info info = tdm_subblock_info(type);
        uint32_t n_panels = TDM_DIV_UP(rows, TDM_PANEL_ROWS);
        uint8_t *data;

        *matrix = (struct tdm_matrix){
                .panel_bytes = tdm_weights_panel_bytes(type, cols), .type = type, .rows = rows, .cols = cols
        };
        matrix->data = data = aligned_alloc(64, n_panels * matrix->panel_bytes);
        assert_non_null(data);
        for (size_t i = 0; i < n_panels * matrix->panel_bytes; i += 4) {
                uint32_t v = random_u32();

                memcpy(data + i, &v, 4);
        }
        for (uint32_t p = 0; p < n_panels; p++) {
                uint8_t *panel = data + p * matrix->panel_bytes;
                size_t front = tdm_subblock_front_bytes(&info, cols);

                for (size_t i = 0; type == TDM_TYPE_MXFP4 && i < front; i++) /* exponents: a few of the least */
                        panel[i] = random_u32() % 32 ? (uint8_t)(112 + panel[i] % 20) : panel[i] % 3;
                for (size_t i = 0; type != TDM_TYPE_MXFP4 && i < front / 2;
                     i++) { /* f16: mostly ordinary, a few subnormal or zero */
                        uint16_t *h = (uint16_t *)(void *)panel + i;

                        *h = random_u32() % 16 ? (uint16_t)(*h & 0x83ff) | (uint16_t)(8 + *h % 7) << 10 :
                                                 *h & (random_u32() % 2 ? 0x83ff : 0);
                }
                /* The extremes beside each other: where 16-bit sums would saturate. */
                if (p == 0)
                        memset(panel + front, random_u32() % 2 ? 0 : 255, matrix->panel_bytes - front);
        }
}

static void test_tables_agree(void **state)
{
        _cleanup_(tdm_pool_destroyp) struct tdm_pool *pool = NULL;

        assert_int_equal(tdm_pool_new(&pool, 1, NULL), 0);
        for (unsigned t = 0; t < TDM_ARRAY_SIZE(types); t++)
                for (unsigned act = 0; act < TDM_N_ACTS; act++) {
                        uint32_t unit = tdm_subblock_info(types[t]).unit_values;

                        assert_true(kernel_exists(tdm_kernels_get("c"), act, types[t]));
                        for (uint32_t n_rows = 1; n_rows <= 14; n_rows++)
                                check_shape(pool, types[t], act, 1 + random_u32() % 70,
                                            unit * (1 + random_u32() % (unit == 32 ? 20 : 3)), n_rows);
                        check_shape(pool, types[t], act, 33, 256 * 2, 101);
                        check_shape(pool, types[t], act, 16, unit, 31);
                }
}

/* No table leaves a type to the one below it. */
static void test_tables_full(void **state)
{
        for (unsigned i = 1; i < TDM_ARRAY_SIZE(names); i++)
                for (unsigned t = 0; t < TDM_ARRAY_SIZE(types); t++)
                        for (unsigned act = 0; act < TDM_N_ACTS; act++) {
                                int index = tdm_kernels_type_index(types[t]);

                                if (tdm_kernels_get(names[i]))
                                        assert_true(tdm_kernels_get(names[i])->matmul[act][index] !=
                                                    tdm_kernels_get(names[i - 1])->matmul[act][index]);
                        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_tables_agree),
                cmocka_unit_test(test_tables_full),
        };

        unsetenv("TANDEM_CPU");
        return cmocka_run_group_tests(tests, NULL, NULL);
}
