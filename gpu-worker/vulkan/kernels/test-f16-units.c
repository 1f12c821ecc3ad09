/* The kernels for f16 matrix units, every type of weights in each, on any Vulkan device: where it has no such units
 * they are emulated (tests/emulated-units.h). What shows that a kernel is right is what shows it at load
 * (proof/prove-f16.c): the plainest must give the products of random weights and rows, every other its bits. The bound
 * of the former, 2e-5 of the root of the sum of the products' squares, is a few last places of f32.
 *
 * usage: test-f16-units [few] [TYPE ...]
 * few: some of the kernels. Without types: all of them. MATMUL_F16_WIDE with GELU is not here where units are emulated:
 * then it gives other bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/kernels/kernels.h"
#include "gpu-worker/vulkan/proof/proof.h"
#include "gpu-worker/vulkan/tests/emulated-units.h"
#include "gpu-worker/vulkan/vulkan.h"

static _Atomic uint64_t heartbeat;
static struct tdm_vk_device *device;

/* constants: of the shader, without the type. */
static void need(enum tdm_vk_shader shader, uint32_t type, uint32_t shape, uint32_t threads, uint32_t chunks)
{
        struct tdm_error err = {};

        if (tdm_vk_pipeline_need(device, shader, (const uint32_t[]){ type | TDM_VK_FRAGMENTS, shape, threads, chunks },
                                 &err) != 0)
                fail_msg("type %u: %s", type, err.message);
}

#define ROOM(rows) TDM_VK_MATVEC_F16_ROOM(4u, 52u, (uint32_t)(rows))

/* As they are chosen for some model: one row and few, with GELU and without, in one round and several, alone in a
 * workgroup and in groups; hundreds. The proofs' rows have 13 segments of up to 4 chunks, so some subgroups of 14 or 16
 * have nothing. */
static void need_all(uint32_t type)
{
        struct tdm_error err = {};

        for (uint32_t gelu = 1; gelu <= 4; gelu++)
                assert_int_equal(tdm_vk_prove_f16_need(device, type, gelu, &err), 0);
        need(TDM_VK_MATVEC_F16, type, TDM_VK_MATVEC_F16_SHAPE(1, 1, 1, 2, 0), 14 * 32, 4);
        need(TDM_VK_MATVEC_F16, type, TDM_VK_MATVEC_F16_SHAPE(2, 2, 7, 2, 1), 4 * 32, 4);
        need(TDM_VK_MATVEC_F16, type, TDM_VK_MATVEC_F16_SHAPE(1, 3, 4, 3, 0), 4 * 32, 4);
        need(TDM_VK_MATVEC_F16, type, TDM_VK_MATVEC_F16_SHAPE(2, 1, 7, 3, 0), 4 * 32, ROOM(2));
        need(TDM_VK_MATVEC_F16, type, TDM_VK_MATVEC_F16_SHAPE(1, 2, 4, 2, 1), 4 * 32, ROOM(2));
        need(TDM_VK_MATVEC_F16, type, TDM_VK_MATVEC_F16_SHAPE(1, 1, 4, 2, 0), 4 * 32, ROOM(4));
        need(TDM_VK_MATVEC_F16, type, TDM_VK_MATVEC_F16_SHAPE(3, 2, 14, 2, 1), 3 * 32, ROOM(4));
        need(TDM_VK_MATMUL_F16, type, TDM_VK_MATMUL_F16_SHAPE(1, 2, 2, 1), 8 * 32, 0);
        need(TDM_VK_MATMUL_F16, type, TDM_VK_MATMUL_F16_SHAPE(4, 3, 7, 0), 2 * 32, 0);
        need(TDM_VK_MATMUL_F16_WIDE, type, TDM_VK_MATMUL_F16_WIDE_SHAPE(4, 2, 0), 64, 0);
        need(TDM_VK_MATMUL_F16_WIDE, type, TDM_VK_MATMUL_F16_WIDE_SHAPE(8, 1, 0), 64, 0);
        need(TDM_VK_MATMUL_F16_WIDE, type, TDM_VK_MATMUL_F16_WIDE_SHAPE(6, 1, 0), 128, 0);
        if (!device->units.emulated) {
                need(TDM_VK_MATMUL_F16_WIDE, type, TDM_VK_MATMUL_F16_WIDE_SHAPE(6, 1, 1), 128, 0);
                need(TDM_VK_MATMUL_F16_WIDE, type, TDM_VK_MATMUL_F16_WIDE_SHAPE(8, 1, 1), 64, 0);
                need(TDM_VK_MATMUL_F16_WIDE, type, TDM_VK_MATMUL_F16_WIDE_SHAPE(8, 2, 1), 128, 0);
        }
        need(TDM_VK_MATVEC_F16_EXPERTS, type, TDM_VK_MATVEC_F16_SHAPE(1, 2, 2, 2, 0), 8 * 32, 4);
        need(TDM_VK_MATVEC_F16_EXPERTS, type, TDM_VK_MATVEC_F16_SHAPE(1, 2, 2, 2, 3), 8 * 32, 4);
        need(TDM_VK_MATMUL_F16_EXPERTS, type, TDM_VK_MATMUL_F16_SHAPE(1, 4, 2, 0), 8 * 32, 0);
        need(TDM_VK_MATMUL_F16_EXPERTS, type, TDM_VK_MATMUL_F16_SHAPE(2, 4, 2, 4), 8 * 32, 0);
        need(TDM_VK_MATMUL_F16_WIDE_EXPERTS, type, TDM_VK_MATMUL_F16_WIDE_SHAPE(4, 1, 0), 64, 0);
}

static const uint32_t types[] = {
#define TYPE(name, type, kind) TDM_TYPE_##type,
        TDM_TYPE_Q4_0, TDM_TYPE_Q8_0, TDM_TYPE_F16, TDM_TYPE_BF16, TDM_SUBBLOCK_TYPES_OF_GPUS(TYPE)
};
static bool wanted[TDM_ARRAY_SIZE(types)], few;

/* One of each source file, and one for experts: types take turns with those. */
static void need_few(uint32_t type)
{
        static unsigned turn;
        struct tdm_error err = {};

        assert_int_equal(tdm_vk_prove_f16_need(device, type, 1, &err), 0);
        need(TDM_VK_MATVEC_F16, type, TDM_VK_MATVEC_F16_SHAPE(2, 2, 7, 2, 1), 4 * 32, 4);
        need(TDM_VK_MATVEC_F16, type, TDM_VK_MATVEC_F16_SHAPE(1, 1, 4, 2, 0), 4 * 32, ROOM(4));
        need(TDM_VK_MATMUL_F16, type, TDM_VK_MATMUL_F16_SHAPE(4, 3, 7, 0), 2 * 32, 0);
        need(TDM_VK_MATMUL_F16_WIDE, type, TDM_VK_MATMUL_F16_WIDE_SHAPE(8, 1, device->units.emulated ? 0 : 1), 64, 0);
        switch (turn++ % 3) {
        case 0:
                need(TDM_VK_MATVEC_F16_EXPERTS, type, TDM_VK_MATVEC_F16_SHAPE(1, 2, 2, 2, 0), 8 * 32, 4);
                break;
        case 1:
                need(TDM_VK_MATMUL_F16_EXPERTS, type, TDM_VK_MATMUL_F16_SHAPE(1, 4, 2, 0), 8 * 32, 0);
                break;
        default:
                need(TDM_VK_MATMUL_F16_WIDE_EXPERTS, type, TDM_VK_MATMUL_F16_WIDE_SHAPE(4, 1, 0), 64, 0);
        }
}

static void prove_type(uint32_t type)
{
        struct tdm_error err = {};
        unsigned n_proven = 0, n_kernels = 0, begin = device->n_pipelines;

        device->deferring = true;
        (few ? need_few : need_all)(type);
        assert_int_equal(tdm_vk_pipelines_compile(device, &err), 0);
        device->deferring = false;
        assert_int_equal(tdm_vk_prove_f16(device, &err), 0);
        for (unsigned i = begin; i < device->n_pipelines; i++) {
                const struct tdm_vk_pipeline *p = &device->pipelines[i];

                if (!tdm_vk_matrix_kernel(p->shader))
                        continue;
                if (!p->proven)
                        print_error("%s is %s\n", p->name, p->tried ? "wrong" : "not tried: the reference is wrong");
                n_proven += p->proven;
                n_kernels++;
        }
        assert_int_equal(n_proven, n_kernels);
        assert_int_equal(n_kernels, few ? 6 : device->units.emulated ? 18 : 21);
        tdm_vk_pipelines_forget(device, begin);
}

static void proven(void **state)
{
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(types); i++)
                if (wanted[i])
                        prove_type(types[i]);
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(proven) };
        const struct tdm_device_config config = { .n_threads = 2, .heartbeat = &heartbeat };
        struct tdm_device *opened;
        struct tdm_error err = {};
        int n_wanted = 0, r;

        few = argc > 1 && strcmp(argv[1], "few") == 0;
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(types); i++) {
                wanted[i] = argc == 1 + few;
                for (int k = 1 + few; k < argc; k++)
                        wanted[i] |= strcmp(tdm_type_info(types[i])->name, argv[k]) == 0;
                n_wanted += wanted[i];
        }
        if (argc > 1 + few && n_wanted != argc - 1 - few) {
                fprintf(stderr, "a type of weights that is not known\n");
                return 2;
        }
        emulate_units();
        if (tdm_vulkan_device_ops.open(&opened, &config, &err) != 0) {
                fprintf(stderr, "skipped: %s\n", err.message);
                return 77;
        }
        device = (struct tdm_vk_device *)opened;
        if (!device->units.f16 && getenv("TANDEM_TEST_SHIPPED_KERNELS")) {
                fprintf(stderr, "the device has no matrix units that the kernels take\n");
                return 1;
        }
        if (!device->units.f16) {
                fprintf(stderr, "skipped: the device has neither matrix units nor shaderFloat16\n");
                return 77;
        }
        r = cmocka_run_group_tests(tests, NULL, NULL);
        tdm_vulkan_device_ops.close(opened);
        return r;
}
