/* The kernel for integer matrix units of any shape, on any Vulkan device: every type of weights, in the shapes that are
 * chosen for 32, 64 and more rows. Where the device has no such units they are emulated
 * (tests/emulated-units.h), of 16 and of 32 columns. What shows that a kernel is right is what shows it at load
 * (proof/prove.c): the bits of the kernel of few rows, on random weights and rows. Arguments name types; without one
 * there are four that differ most, emulated in one shape. On a device that has other units too,
 * TANDEM_VULKAN_MATRICES=any chooses these. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/kernels/kernels-private.h"
#include "gpu-worker/vulkan/tests/emulated-units.h"
#include "gpu-worker/vulkan/vulkan.h"

static _Atomic uint64_t heartbeat;
static struct tdm_vk_device *device;
static uint32_t types[32];
static unsigned n_types;
static bool quick;

/* In each shape that the device has shared memory for. */
static void need_all(uint32_t type, uint32_t act, unsigned *n)
{
        static const uint32_t rows[] = { 32, 64, 128, 256 };
        const struct tdm_vk_matrix matrix = { .type = type, .act = act };
        uint32_t shape[2] = {}, before;
        struct tdm_error err = {};

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(rows); i++) {
                if (device->units.emulated &&
                    (rows[i] >= 128 || (quick && rows[i] == 32))) /* it compiles for seconds */
                        continue;
                before = shape[0];
                tdm_vk_any_shape(device, &matrix, rows[i], shape);
                if (shape[0] == before)
                        continue;
                if (tdm_vk_pipeline_need(device, TDM_VK_MATMUL_INT8_ANY,
                                         (const uint32_t[]){ type, act, shape[0], shape[1] }, &err) != 0 ||
                    tdm_vk_prove_need(device, type, act, &err) != 0)
                        fail_msg("type %u: %s", type, err.message);
                ++*n;
        }
}

static void prove_all(void)
{
        struct tdm_error err = {};
        unsigned n_proven = 0, n_kernels = 0, n_asked = 0, first = device->n_pipelines;

        device->deferring = true;
        for (unsigned i = 0; i < n_types; i++)
                for (uint32_t act = TDM_ACT_I8; act <= TDM_ACT_I16; act++)
                        need_all(types[i], act, &n_asked);
        assert_int_equal(tdm_vk_pipelines_compile(device, &err), 0);
        device->deferring = false;
        assert_int_equal(tdm_vk_prove(device, &err), 0);
        for (unsigned i = first; i < device->n_pipelines; i++) {
                const struct tdm_vk_pipeline *p = &device->pipelines[i];

                if (p->shader != TDM_VK_MATMUL_INT8_ANY)
                        continue;
                if (!p->proven)
                        print_error("%s is %s\n", p->name, p->tried ? "wrong" : "not compiled");
                n_proven += p->proven;
                n_kernels++;
        }
        print_message("units of %u by %u by %u, subgroups of %u%s: %u of %u kernels are proven\n",
                      TDM_VK_TILES_M(device->units.any), TDM_VK_TILES_N(device->units.any),
                      TDM_VK_TILES_K(device->units.any), TDM_VK_TILES_SUBGROUP(device->units.any),
                      device->units.emulated ? ", emulated" : "", n_proven, n_kernels);
        assert_int_equal(n_proven, n_asked);
        assert_int_equal(n_kernels, n_asked);
}

static void proven(void **state)
{
        prove_all();
        if (!device->units.emulated)
                return;
        device->units.any = TDM_VK_TILES_UNIT(16u, 16u, 32u, 32u);
        prove_all();
}

static int open_device(const struct tdm_device_config *config, struct tdm_device **ret)
{
        struct tdm_error err = {};

        if (tdm_vulkan_device_ops.open(ret, config, &err) != 0) {
                fprintf(stderr, "skipped: %s\n", err.message);
                return 77;
        }
        device = (struct tdm_vk_device *)*ret;
        return 0;
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(proven) };
        const struct tdm_device_config config = { .n_threads = 2, .heartbeat = &heartbeat };
        struct tdm_device *opened;
        int r;

        for (uint32_t i = 0; i <= TDM_TYPE_MXFP4; i++)
                for (int k = 1; k < argc; k++)
                        if (tdm_type_info(i) && strcmp(tdm_type_info(i)->name, argv[k]) == 0)
                                types[n_types++] = i;
        quick = argc == 1;
        if (n_types != (unsigned)argc - 1) {
                fprintf(stderr, "a type of weights that is not known\n");
                return 2;
        }
        if (quick) {
                types[n_types++] = TDM_TYPE_Q4_0;
                types[n_types++] = TDM_TYPE_Q2_K;
                types[n_types++] = TDM_TYPE_Q4_K;
                types[n_types++] = TDM_TYPE_Q6_K;
        }
        r = open_device(&config, &opened);
        if (r == 0 && !device->units.any) {
                tdm_vulkan_device_ops.close(opened);
                emulate_units();
                r = open_device(&config, &opened);
        }
        if (r != 0)
                return r;
        if (!device->units.any && getenv("TANDEM_TEST_SHIPPED_KERNELS")) {
                fprintf(stderr, "the device has no matrix units that the kernels take\n");
                return 1;
        }
        if (!device->units.any) {
                fprintf(stderr, "skipped: the device has neither matrix units nor shaderFloat16\n");
                return 77;
        }
        r = cmocka_run_group_tests(tests, NULL, NULL);
        tdm_vulkan_device_ops.close(opened);
        return r;
}
