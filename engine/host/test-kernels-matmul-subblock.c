/* Matrix kernels of the types of engine/weights/subblock.h: every table's kernels give exactly the bits of the C
 * reference, over random shapes with odd tails, and the reference itself agrees with a plain double sum. */
#include "engine/weights/subblock.h"
#include "engine/host/test-kernels-matmul.h"

static const uint32_t types[] = { TDM_TYPE_Q4_1,   TDM_TYPE_Q5_0,   TDM_TYPE_Q5_1,      TDM_TYPE_Q2_K,
                                  TDM_TYPE_Q3_K,   TDM_TYPE_Q4_K,   TDM_TYPE_Q5_K,      TDM_TYPE_Q6_K,
                                  TDM_TYPE_IQ4_NL, TDM_TYPE_IQ4_XS, TDM_TYPE_MXFP4,     TDM_TYPE_NVFP4,
                                  TDM_TYPE_GRID1,  TDM_TYPE_GRID2,  TDM_TYPE_GRID3_XXS, TDM_TYPE_GRID3_S };

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
                for (size_t i = 0; type == TDM_TYPE_NVFP4 && i < front; i++) /* some of the least, and zero */
                        panel[i] = random_u32() % 8 ? panel[i] % 127 : panel[i] % 8;
                for (size_t i = 0; type != TDM_TYPE_MXFP4 && type != TDM_TYPE_NVFP4 && i < front / 2;
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

static void read_block(const struct tdm_matrix *matrix, uint32_t row, uint32_t b, struct tdm_subblock_slice *ret)
{
        tdm_subblock_read(matrix->type, matrix->data + row / TDM_PANEL_ROWS * matrix->panel_bytes, matrix->cols, b,
                          row % TDM_PANEL_ROWS, ret);
}

static double weight_size(const struct tdm_matrix *matrix, uint32_t row, uint32_t col)
{
        struct tdm_subblock_slice block;
        uint32_t i = col % TDM_BLOCK_VALUES;

        read_block(matrix, row, col / TDM_BLOCK_VALUES, &block);
        return fabs((block.q[i] - tdm_subblock_info(matrix->type).offset) * (double)block.scale[i / 16]) +
               fabs((double)block.min[i / 16]);
}

/* The least exponents of MXFP4 times the scale of activations are subnormal. Such a product is rounded to a multiple of
 * 2^-149, and the whole sum of its sub-block is multiplied by it. */
static double underflow_error(const struct tdm_matrix *matrix, const struct tdm_act_row *acts, enum tdm_act act,
                              uint32_t row)
{
        const struct tdm_subblock_info info = tdm_subblock_info(matrix->type);
        double error = matrix->cols * 0x1p-149; /* of the sums themselves */

        for (uint32_t b = 0; act != TDM_ACT_F32 && b < matrix->cols / TDM_BLOCK_VALUES; b++) {
                struct tdm_subblock_slice block;

                read_block(matrix, row, b, &block);
                for (uint32_t i = 0; i < TDM_BLOCK_VALUES; i += info.sub_values) {
                        double product = fabs((double)block.scale[i / 16] * acts->scale[b]), isum = 0;

                        for (uint32_t k = i; k < i + info.sub_values; k++) {
                                int32_t x = acts->hi[b * TDM_BLOCK_VALUES + k];

                                x = act == TDM_ACT_I16 ? 256 * x + acts->lo[b * TDM_BLOCK_VALUES + k] : x;
                                isum += (block.q[k] - info.offset) * (double)x;
                        }
                        if (product < FLT_MIN)
                                error += fabs(isum) * TDM_MIN(product, 0x1p-150);
                }
        }
        return error;
}

/* Found by earlier runs: products of scales that are subnormal, and products that nearly cancel with a minimum. */
static void test_kept_cases(void **state)
{
        static const struct shape_case kept[] = {
                { TDM_TYPE_MXFP4, TDM_ACT_I16, 16, 32, 31, 2509967169 },
                { TDM_TYPE_MXFP4, TDM_ACT_I16, 6, 32, 1, 2275259211 },
                { TDM_TYPE_MXFP4, TDM_ACT_I8, 59, 64, 9, 1005085256 },
                { TDM_TYPE_Q4_1, TDM_ACT_I16, 16, 32, 31, 3248083300 },
                { TDM_TYPE_Q4_K, TDM_ACT_I8, 31, 256, 13, 3039042011 },
                { TDM_TYPE_Q5_1, TDM_ACT_I16, 16, 32, 31, 1006554037 },
        };
        _cleanup_(tdm_pool_destroyp) struct tdm_pool *pool = NULL;

        assert_int_equal(tdm_pool_new(&pool, 1, NULL), 0);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(kept); i++)
                check_case(pool, &kept[i]);
}

static void test_tables_agree(void **state)
{
        _cleanup_(tdm_pool_destroyp) struct tdm_pool *pool = NULL;

        assert_int_equal(tdm_pool_new(&pool, 1, NULL), 0);
        random_begin();
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
                cmocka_unit_test(test_kept_cases),
                cmocka_unit_test(test_tables_agree),
                cmocka_unit_test(test_tables_full),
        };

        unsetenv("TANDEM_CPU");
        return cmocka_run_group_tests(tests, NULL, NULL);
}
