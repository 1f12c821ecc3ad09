/* Whether a fault in a kernel for matrix units is found: the proofs of gpu-worker/vulkan/proof must refuse each kernel
 * in whose code the executor has planted one, while the kernel that they compare it with is right, and find a wrong one
 * of those too. Runs on the executor alone.
 *
 * usage: test-matrix-faults [--full | --one-type]
 * --full: each fault in each kernel and of each type. Otherwise each fault is in some of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "gpu-worker/vulkan/kernels/kernels-private.h"
#include "gpu-worker/vulkan/proof/proof.h"
#include "gpu-worker/vulkan/vulkan.h"

static _Atomic uint64_t heartbeat;
static struct tdm_vk_device *device;
static bool full, one_type;

static const char *const f16_faults[] = { "weights", "rows", "sums", "quad", "chunk" };
static const char *const int8_faults[] = { "sums", "layout" };
static const char *const any_faults[] = { "layout", "fragment", "offset", "scales", "row-scales", "result" };

struct kernel {
        enum tdm_vk_shader shader;
        uint32_t shape, threads, chunks;
};
static const struct kernel f16_kernels[] = {
        { TDM_VK_MATVEC_F16, TDM_VK_MATVEC_F16_SHAPE(1, 3, 4, 3, 0), 4 * 32, 4 },
        { TDM_VK_MATMUL_F16, TDM_VK_MATMUL_F16_SHAPE(4, 3, 7, 0), 2 * 32, 0 },
        { TDM_VK_MATMUL_F16_WIDE, TDM_VK_MATMUL_F16_WIDE_SHAPE(8, 1, 0), 64, 0 },
        { TDM_VK_MATMUL_F16_EXPERTS, TDM_VK_MATMUL_F16_SHAPE(1, 4, 2, 0), 8 * 32, 0 },
};

static void set_fault(const char *fault)
{
        if (fault)
                setenv("TANDEM_EXECUTOR_FAULT", fault, 1);
        else
                unsetenv("TANDEM_EXECUTOR_FAULT");
}

static void need(enum tdm_vk_shader shader, const uint32_t constants[TDM_VK_N_CONSTANTS], const char *fault)
{
        struct tdm_error err = {};

        set_fault(fault);
        if (tdm_vk_pipeline_need(device, shader, constants, &err) != 0)
                fail_msg("fault %s in shader %d: %s", fault ? fault : "none", (int)shader, err.message);
        set_fault(NULL);
}

/* Of kernels from the first-th on. */
static void check(unsigned first, bool proven, const char *fault)
{
        for (unsigned i = first; i < device->n_pipelines; i++) {
                const struct tdm_vk_pipeline *p = &device->pipelines[i];

                if (tdm_vk_matrix_kernel(p->shader) && p->proven != proven)
                        fail_msg("%s with fault %s was %s", p->name, fault ? fault : "none",
                                 p->proven ? "proven" : "refused");
        }
}

/* From the first-th on each, or every step-th. */
static void need_f16(uint32_t type, const char *fault, unsigned first, unsigned step)
{
        for (unsigned k = first; k < TDM_ARRAY_SIZE(f16_kernels); k += step)
                need(f16_kernels[k].shader,
                     (const uint32_t[]){ type | TDM_VK_FRAGMENTS, f16_kernels[k].shape, f16_kernels[k].threads,
                                         f16_kernels[k].chunks },
                     fault);
}

/* The kernels that others are compared with. */
static unsigned need_f16_reference(uint32_t type, const char *fault)
{
        struct tdm_error err = {};
        unsigned begin = device->n_pipelines;

        set_fault(fault);
        assert_int_equal(tdm_vk_prove_f16_need(device, type, 0, &err), 0);
        set_fault(NULL);
        return begin;
}

/* Each fault in a kernel, then in all of them and in what they are compared with. */
static void f16_type(uint32_t type, bool in_all)
{
        unsigned base = device->n_pipelines, first, step = full ? 1 : TDM_ARRAY_SIZE(f16_kernels);
        struct tdm_error err = {};

        need_f16_reference(type, NULL);
        need_f16(type, NULL, 0, 1);
        assert_int_equal(tdm_vk_prove_f16(device, &err), 0);
        check(base, true, NULL);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(f16_faults); i++) {
                tdm_vk_pipelines_forget(device, base);
                need_f16_reference(type, NULL);
                first = device->n_pipelines;
                need_f16(type, f16_faults[i], i % step, step);
                assert_int_equal(tdm_vk_prove_f16(device, &err), 0);
                check(first, false, f16_faults[i]);
                if (!in_all)
                        continue;
                tdm_vk_pipelines_forget(device, base);
                first = need_f16_reference(type, f16_faults[i]);
                need_f16(type, f16_faults[i], 0, 1);
                assert_int_equal(tdm_vk_prove_f16(device, &err), 0);
                check(first, false, f16_faults[i]);
        }
        tdm_vk_pipelines_forget(device, base);
}

static void q4_0(void **state)
{
        f16_type(TDM_TYPE_Q4_0, true);
}

static void q5_k(void **state)
{
        f16_type(TDM_TYPE_Q5_K, full);
}

static void need_int8(uint32_t type, uint32_t act, const char *fault)
{
        static const struct {
                enum tdm_vk_shader shader;
                uint32_t tail[2];
        } kernels[] = { { TDM_VK_MATMUL_INT8, { 1, 2 } }, { TDM_VK_MATMUL_INT8, { 4, 1 } } };
        struct tdm_error err = {};

        assert_int_equal(tdm_vk_prove_need(device, type, act, &err), 0);
        for (unsigned k = 0; k < TDM_ARRAY_SIZE(kernels); k++)
                need(kernels[k].shader, (const uint32_t[]){ type, act, kernels[k].tail[0], kernels[k].tail[1] }, fault);
}

static void int8(void **state)
{
        static const uint32_t types[] = { TDM_TYPE_Q4_0, TDM_TYPE_Q8_0 | TDM_VK_DEINTERLEAVED };
        unsigned base = device->n_pipelines;
        struct tdm_error err = {};

        for (unsigned t = 0; t < TDM_ARRAY_SIZE(types); t++)
                for (int i = -1; i < (int)TDM_ARRAY_SIZE(int8_faults); i++) {
                        const char *fault = i < 0 ? NULL : int8_faults[i];

                        need_int8(types[t], t ? TDM_VK_ACT_I16 : TDM_VK_ACT_I8, fault);
                        assert_int_equal(tdm_vk_prove(device, &err), 0);
                        check(base, !fault, fault);
                        tdm_vk_pipelines_forget(device, base);
                }
}

/* On units of a shape that the device names: AMD's. Of types with one scale, with two, with minima. */
static void need_any(uint32_t type, uint32_t act, const char *fault)
{
        static const uint32_t rows[] = { 64, 256 };
        const struct tdm_vk_matrix matrix = { .type = type, .act = act };
        struct tdm_error err = {};
        uint32_t shape[2];

        assert_int_equal(tdm_vk_prove_need(device, type, act, &err), 0);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(rows); i++) {
                tdm_vk_any_shape(device, &matrix, rows[i], shape);
                need(TDM_VK_MATMUL_INT8_ANY, (const uint32_t[]){ type, act, shape[0], shape[1] }, fault);
        }
}

static void int8_any(void **state)
{
        static const struct {
                uint32_t type, act;
        } ways[] = { { TDM_TYPE_Q4_0, TDM_VK_ACT_I8 },
                     { TDM_TYPE_Q6_K, TDM_VK_ACT_I8 },
                     { TDM_TYPE_Q5_K, TDM_VK_ACT_I16 } };
        unsigned base = device->n_pipelines;
        struct tdm_error err = {};

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(ways); i++)
                for (int f = -1; f < (int)TDM_ARRAY_SIZE(any_faults); f++) {
                        const char *fault = f < 0 ? NULL : any_faults[f];

                        if (!full && i > 0 && f >= 0 && (one_type || (unsigned)f % TDM_ARRAY_SIZE(ways) != i))
                                continue; /* all of the first type, some of the others */
                        need_any(ways[i].type, ways[i].act, fault);
                        assert_int_equal(tdm_vk_prove(device, &err), 0);
                        check(base, !fault, fault);
                        tdm_vk_pipelines_forget(device, base);
                }
}

int main(int argc, char **argv)
{
        const struct CMUnitTest nvidia[] = { cmocka_unit_test(q4_0), cmocka_unit_test(q5_k), cmocka_unit_test(int8) },
                                amd[] = { cmocka_unit_test(int8_any) };
        const struct tdm_device_config config = { .n_threads = 2, .heartbeat = &heartbeat };
        struct tdm_device *opened;
        struct tdm_error err = {};
        int r;

        full = argc > 1 && strcmp(argv[argc - 1], "--full") == 0;
        one_type = argc > 1 && strcmp(argv[argc - 1], "--one-type") == 0;
        if (argc > 1 && argv[1][0] != '-')
                cmocka_set_test_filter(argv[1]);
        set_fault(NULL);
        if (tdm_vulkan_device_ops.open(&opened, &config, &err) != 0) {
                fprintf(stderr, "%s\n", err.message);
                return 1;
        }
        device = (struct tdm_vk_device *)opened;
        if (device->units.emulated || !(device->units.any || (device->units.f16 && device->units.int8))) {
                fprintf(stderr, "%s is not the executor\n", device->description);
                return 1;
        }
        r = device->units.any ? cmocka_run_group_tests(amd, NULL, NULL) : cmocka_run_group_tests(nvidia, NULL, NULL);
        tdm_vulkan_device_ops.close(opened);
        return r;
}
