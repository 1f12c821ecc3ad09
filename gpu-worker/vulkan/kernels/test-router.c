/* The router's kernel against matvec, on any Vulkan device: the same bits for any number of rows, and the sums that
 * they should be. Of a few rows and of hundreds, since each has its own kernel; of experts that fill no panel and
 * columns that fill no segment. What lies behind the last row and output must stay. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/weights/weights.h"
#include "gpu-worker/vulkan/kernels/kernels-private.h"
#include "gpu-worker/vulkan/proof/proof.h"
#include "gpu-worker/vulkan/shaders/common/shared-experts.h"
#include "gpu-worker/vulkan/vulkan.h"

#define MOST_COLS 1056u
#define MOST_OUT 128u
#define MOST_ROWS 150u
#define PLACE (UINT64_C(2) << 20)
enum place { W, X, Y, OWN };
#define BEHIND 0xa5     /* what lies where nothing is to be written */
#define MOST_ERROR 2e-6 /* of the sum of the products' sizes: f32's own is 3e-7 */

static _Atomic uint64_t heartbeat;
static struct tdm_vk_device *device;

static uint8_t *at(enum place place)
{
        return device->stages[0].map + place * PLACE;
}

/* -1 … 1, of either sign. */
static float value(uint64_t *state)
{
        return ((float)(tdm_vk_prove_random(state) % 20001) - 10000) / 10000;
}

static void multiply(const struct tdm_vk_pipeline *pipeline, uint32_t cols, uint32_t n_out, uint32_t n_rows,
                     enum place y, uint32_t groups_x, uint32_t groups_y)
{
        const struct tdm_vk_matmul_push push = {
                .x = device->stages[0].address + X * PLACE,
                .y = device->stages[0].address + y * PLACE,
                .w0 = device->stages[0].address + W * PLACE,
                .panel1 = UINT32_MAX,
                .panel2 = UINT32_MAX,
                .panel_bytes = (uint32_t)tdm_weights_panel_bytes(TDM_TYPE_F32, cols),
                .cols = cols,
                .n_out = n_out,
                .n_rows = n_rows,
                .y_stride = n_out,
        };
        struct tdm_error err = {};

        memset(at(y), BEHIND, PLACE);
        assert_int_equal(
                tdm_vk_once_dispatch(device, pipeline, &push, sizeof(push), groups_x, groups_y, "testing", &err), 0);
}

static void expect_sums(uint32_t cols, uint32_t n_out, uint32_t n_rows)
{
        const float *w = (const float *)at(W), *x = (const float *)at(X), *y = (const float *)at(OWN);

        for (uint32_t row = 0; row < n_rows; row++)
                for (uint32_t out = 0; out < n_out; out++) {
                        const float *panel = w + (uint64_t)(out / TDM_PANEL_ROWS) * cols * TDM_PANEL_ROWS;
                        double sum = 0, sizes = 0;

                        for (uint32_t k = 0; k < cols; k++) {
                                double product = (double)panel[k * TDM_PANEL_ROWS + out % TDM_PANEL_ROWS] *
                                                 (double)x[row * cols + k];

                                sum += product;
                                sizes += fabs(product);
                        }
                        if (!(fabs((double)y[row * n_out + out] - sum) <= MOST_ERROR * sizes))
                                fail_msg("%u columns, %u rows: output %u of row %u is %g, not %g", cols, n_rows, out,
                                         row, (double)y[row * n_out + out], sum);
                }
}

static void same_as_matvec(void **state)
{
        static const struct {
                uint32_t cols, n_out;
        } sizes[] = { { 64, 8 }, { 544, 18 }, { MOST_COLS, MOST_OUT } };
        static const uint32_t n_rows[] = { 1, 13, 64, 65, MOST_ROWS };
        const uint32_t matvec[] = { TDM_TYPE_F32, TDM_VK_ACT_F32, 4, TDM_VK_MATVEC_SHAPE(4, 1, 1, 0) };
        struct tdm_error err = {};
        uint64_t random = 1;

        for (uint32_t rows = 1; rows <= 16; rows = rows == 1 ? 8 : rows * 2)
                assert_int_equal(tdm_vk_pipeline_need(device, TDM_VK_ROUTER, (const uint32_t[]){ rows, 0, 0, 0 }, &err),
                                 0);
        assert_int_equal(tdm_vk_pipeline_need(device, TDM_VK_MATVEC, matvec, &err), 0);
        for (uint32_t i = 0; i < MOST_COLS * MOST_OUT; i++)
                ((float *)at(W))[i] = value(&random);
        for (uint32_t i = 0; i < MOST_COLS * MOST_ROWS; i++)
                ((float *)at(X))[i] = value(&random);
        for (unsigned s = 0; s < TDM_ARRAY_SIZE(sizes); s++)
                for (unsigned i = 0; i < TDM_ARRAY_SIZE(n_rows); i++) {
                        const uint32_t rows = tdm_vk_router_rows(device, n_rows[i]), n_out = sizes[s].n_out;

                        multiply(tdm_vk_pipeline_get(device, TDM_VK_ROUTER, rows, 0, 0, 0), sizes[s].cols, n_out,
                                 n_rows[i], OWN, TDM_DIV_UP(n_out, TDM_VK_ROUTER_OUTS), TDM_DIV_UP(n_rows[i], rows));
                        expect_sums(sizes[s].cols, n_out, n_rows[i]);
                        multiply(tdm_vk_pipeline_get(device, TDM_VK_MATVEC, matvec[0], matvec[1], matvec[2], matvec[3]),
                                 sizes[s].cols, n_out, n_rows[i], Y, TDM_DIV_UP(n_out, TDM_PANEL_ROWS),
                                 TDM_DIV_UP(n_rows[i], matvec[2]));
                        if (memcmp(at(OWN), at(Y), PLACE) != 0)
                                fail_msg("%u columns, %u experts, %u rows: other bits than matvec's", sizes[s].cols,
                                         n_out, n_rows[i]);
                }
        assert_int_equal(tdm_vk_pipelines_check(device, &err), 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(same_as_matvec) };
        const struct tdm_device_config config = { .n_threads = 1, .heartbeat = &heartbeat };
        struct tdm_device *opened;
        struct tdm_error err = {};
        int r;

        static_assert(MOST_COLS * MOST_OUT * 4 <= PLACE && MOST_COLS * MOST_ROWS * 4 <= PLACE, "places");
        static_assert((OWN + 1) * PLACE <= TDM_VK_STAGE_BYTES, "places");
        if (tdm_vulkan_device_ops.open(&opened, &config, &err) != 0) {
                fprintf(stderr, "skipped: %s\n", err.message);
                return 77;
        }
        device = (struct tdm_vk_device *)opened;
        device->few_kernels = false; /* as on a GPU */
        r = cmocka_run_group_tests(tests, NULL, NULL);
        tdm_vulkan_device_ops.close(opened);
        return r;
}
