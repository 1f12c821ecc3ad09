/* Every kernel that a step can ask for is compiled when its model is loaded: models load as each kind of GPU. An
 * operation that is recorded and that no kernel was compiled for fails the load, and the message names the kernel.
 *
 * On a device that computes nothing (tests/dry-device.h), as tests/spirv-executor opens it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu-worker/vulkan/kernels/kernels-private.h"
#include "gpu-worker/vulkan/record/record.h"
#include "gpu-worker/vulkan/tests/dry-device.h"
#include "gpu-worker/vulkan/tests/random-model.h"

static _Atomic uint64_t heartbeat;
static struct tdm_vk_model *loading;
static void (*on_loaded)(struct tdm_vk_model *model); /* what a test does with a model that is loaded */

/* Loads a model and unloads it. Returns what the load returns. */
static int load_model(const char *size, uint32_t type, uint32_t more_type, struct tdm_error *err)
{
        const struct tdm_device_ops ops = dry_device_ops();
        const struct tdm_device_config config = { .n_threads = 2, .heartbeat = &heartbeat };
        struct tdm_device_model_config model_config = { .limits = { 600, 8, 8, 32, 32 } };
        struct tdm_device_model *model = NULL;
        struct tdm_device *device;
        struct tdm_hparams hp;
        uint8_t *weights;
        int r;

        assert_true(random_model_hparams(size, &hp));
        weights = random_model_new_mixed(&hp, type, more_type, type);
        assert_non_null(weights);
        model_config.weights = weights;
        assert_int_equal(tdm_kv_geometry_init(&model_config.kv, &hp, TDM_KV_F16, 4, 4, 0), 0);
        assert_int_equal(ops.open(&device, &config, err), 0);
        loading = NULL;
        r = ops.load_begin(device, &model_config, &model, err);
        if (r != 0)
                fail_msg("%s", err->message);
        loading = (struct tdm_vk_model *)model;
        r = ops.load_weights(model, UINT64_MAX, err);
        if (r == 0)
                r = ops.load_end(model, err);
        if (r == 0 && on_loaded)
                on_loaded(loading);
        dry_device_on_begin(NULL);
        ops.model_unload(model);
        ops.close(device);
        random_model_destroy(weights);
        return r;
}

static void set_switches(const char *matrices, const char *halves, const char *chain, const char *rows)
{
        setenv("TANDEM_VULKAN_MEMORY", "copy", 1);
        setenv("TANDEM_VULKAN_KERNELS", "all", 1);
        setenv("TANDEM_VULKAN_MATRICES", matrices, 1);
        setenv("TANDEM_VULKAN_HALVES", halves, 1);
        setenv("TANDEM_VULKAN_CHAIN", chain, 1);
        setenv("TANDEM_VULKAN_ROWS", rows, 1);
}

static void all_is_compiled(void **state)
{
        static const char *const switches[][4] = {
                { "off", "off", "off", "" }, { "off", "off", "on", "" }, { "any", "off", "off", "" },
                { "", "off", "on", "" },     { "", "on", "off", "" },    { "", "on", "on", "on" },
                { "", "on", "on", "apart" }, { "", "on", "on", "off" },
        };
        static const struct {
                const char *size;
                uint32_t type, more_type;
        } models[] = { { "tiny", TDM_TYPE_Q8_0, TDM_TYPE_Q8_0 },
                       { "tiny-128", TDM_TYPE_Q4_0, TDM_TYPE_Q4_0 },
                       { "tiny-128", TDM_TYPE_Q4_K, TDM_TYPE_Q6_K },
                       { "tiny-256", TDM_TYPE_BF16, TDM_TYPE_F16 } };

        (void)state;
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(switches); i++)
                for (unsigned k = 0; k < TDM_ARRAY_SIZE(models); k++) {
                        struct tdm_error err = { 0 };

                        set_switches(switches[i][0], switches[i][1], switches[i][2], switches[i][3]);
                        if (load_model(models[k].size, models[k].type, models[k].more_type, &err) != 0)
                                fail_msg("switches %u, model %u: %s", i, k, err.message);
                }
}

/* When recording begins, all kernels are compiled: what comes now is not among them. */
static void plant_op(VkCommandBuffer commands)
{
        struct tdm_vk_program *p = loading ? loading->program : NULL;

        if (!p || !loading->recordings || commands != loading->recordings[0].commands || p->inputs.n > 0)
                return;
        assert_true(p->n_ops < p->n_max);
        p->ops[p->n_ops] = (struct tdm_vk_op){ .kind = TDM_VK_OP_SIDE, .variant = TDM_VK_SIDE_BOTH, .n = 16 };
        p->inputs = (struct tdm_vk_ops){ p->n_ops, 1 };
        p->wants_inputs[2] = true;
}

static void planted_op_fails_the_load(void **state)
{
        struct tdm_error err = { 0 };

        (void)state;
        set_switches("off", "off", "off", "");
        dry_device_on_begin(plant_op);
        assert_int_equal(load_model("tiny", TDM_TYPE_Q8_0, TDM_TYPE_Q8_0, &err), TDM_E_DEVICE_FAULT);
        assert_non_null(strstr(err.message, "the kernel side-4-0-0-0 was not compiled at load"));
}

/* A product without a matrix is an operation that choose.c has no kernel for. */
static const struct tdm_vk_op no_kernel = { .kind = TDM_VK_OP_MULTIPLY, .layer = UINT32_MAX };

static void check_op_without_kernel(struct tdm_vk_model *m)
{
        struct tdm_vk_program *p = m->program;
        struct tdm_error err = { 0 };

        assert_true(p->n_ops < p->n_max);
        p->ops[p->n_ops++] = no_kernel;
        assert_int_equal(tdm_vk_kernels_prepare_rest(m, &err), TDM_E_DEVICE_FAULT);
        p->n_ops--;
        assert_non_null(strstr(err.message, "no kernel computes the operation MULTIPLY of 1 rows"));
        assert_int_equal(tdm_vk_kernels_prepare_rest(m, &err), 0);
}

static void op_without_kernel_fails_the_load(void **state)
{
        struct tdm_error err = { 0 };

        (void)state;
        set_switches("off", "off", "off", "");
        on_loaded = check_op_without_kernel;
        assert_int_equal(load_model("tiny", TDM_TYPE_Q8_0, TDM_TYPE_Q8_0, &err), 0);
        on_loaded = NULL;
}

/* A recording asks for a part that choose.c does not know. */
static void ask_for_part(VkCommandBuffer commands)
{
        const struct tdm_vk_class class = { .n_rows = 1 };
        uint32_t panels = 0, rows = 0;

        if (!loading || !loading->recordings || commands != loading->recordings[0].commands)
                return;
        assert_null(tdm_vk_op_kernel_if_any(loading, &no_kernel, 2, &class, &panels, &rows));
        assert_null(tdm_vk_op_kernel(loading, &no_kernel, 2, &class, &panels, &rows)->pipeline);
        assert_int_equal(panels, 1);
        assert_int_equal(rows, 1);
}

static void part_without_kernel_fails_the_load(void **state)
{
        struct tdm_error err = { 0 };

        (void)state;
        set_switches("off", "off", "off", "");
        dry_device_on_begin(ask_for_part);
        assert_int_equal(load_model("tiny", TDM_TYPE_Q8_0, TDM_TYPE_Q8_0, &err), TDM_E_DEVICE_FAULT);
        assert_non_null(strstr(err.message, "the kernel of part 2 of the operation MULTIPLY was not compiled"));
}

/* need.c asks for the kernels of some numbers of rows. Every other number takes one of those. */
static void check_all_rows(struct tdm_vk_model *m)
{
        for (uint32_t n_rows = 1; n_rows <= m->tile_rows; n_rows++)
                for (uint32_t i = 0; i < m->program->n_ops; i++) {
                        const struct tdm_vk_op *op = &m->program->ops[i];
                        const struct tdm_vk_class class = { .n_rows = n_rows };

                        if (op->rows != TDM_VK_ROWS_TILE || op->kind == TDM_VK_OP_ATTEND)
                                continue;
                        for (unsigned part = 0; part < TDM_VK_N_PARTS; part++) {
                                const struct tdm_vk_pipeline *p =
                                        tdm_vk_op_kernel_if_any(m, op, part, &class, NULL, NULL);

                                if (p && !p->pipeline)
                                        fail_msg("%u rows, part %u of %s: not compiled at load", n_rows, part,
                                                 tdm_vk_op_name(op->kind));
                        }
                }
}

static void all_rows_have_kernels(void **state)
{
        struct tdm_error err = { 0 };

        (void)state;
        set_switches("", "on", "on", "on");
        on_loaded = check_all_rows;
        assert_int_equal(load_model("tiny-128", TDM_TYPE_Q4_K, TDM_TYPE_Q6_K, &err), 0);
        assert_int_equal(load_model("tiny-256", TDM_TYPE_BF16, TDM_TYPE_F16, &err), 0);
        on_loaded = NULL;
}

/* The rows of a step decide: a matrix with few panels and a long K keeps all of a GPU at work where workgroups share K,
 * up to 160 rows; a prompt has workgroups enough. Workgroups of 48 rows are taken where those of 64 leave more of a GPU
 * idle. Sizes of a 27B. */
static void kernels_follow_rows(void **state)
{
        static const struct {
                uint32_t panels, cols, gelu, n_rows;
                enum tdm_vk_shader shader;
                uint32_t rows; /* of a workgroup */
        } cases[] = {
                { 336, 21504, 0, 32, TDM_VK_MATMUL_F16, 32 },       { 336, 21504, 0, 33, TDM_VK_MATMUL_F16, 32 },
                { 336, 21504, 0, 64, TDM_VK_MATMUL_F16, 32 },       { 336, 21504, 0, 128, TDM_VK_MATMUL_F16, 32 },
                { 336, 21504, 0, 160, TDM_VK_MATMUL_F16, 32 },      { 336, 21504, 0, 256, TDM_VK_MATMUL_F16_WIDE, 48 },
                { 336, 21504, 0, 257, TDM_VK_MATMUL_F16_WIDE, 64 }, { 336, 21504, 0, 512, TDM_VK_MATMUL_F16_WIDE, 64 },
                { 512, 5376, 0, 64, TDM_VK_MATMUL_F16, 32 },        { 512, 5376, 0, 128, TDM_VK_MATMUL_F16_WIDE, 48 },
                { 512, 5376, 0, 256, TDM_VK_MATMUL_F16_WIDE, 64 },  { 336, 4096, 0, 64, TDM_VK_MATMUL_F16, 32 },
                { 336, 4096, 0, 256, TDM_VK_MATMUL_F16_WIDE, 48 },  { 2688, 5376, 1, 40, TDM_VK_MATMUL_F16_WIDE, 48 },
                { 2688, 5376, 1, 64, TDM_VK_MATMUL_F16_WIDE, 64 },  { 2688, 5376, 1, 96, TDM_VK_MATMUL_F16_WIDE, 48 },
                { 2688, 5376, 1, 128, TDM_VK_MATMUL_F16_WIDE, 64 }, { 2688, 5376, 1, 512, TDM_VK_MATMUL_F16_WIDE, 64 },
                { 16384, 5376, 0, 64, TDM_VK_MATMUL_F16_WIDE, 64 },
        };
        static struct tdm_vk_device device;

        (void)state;
        device.properties.limits.maxComputeWorkGroupInvocations = 1024;
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                const struct tdm_vk_matrix a = { .type = TDM_TYPE_Q4_K | TDM_VK_FRAGMENTS,
                                                 .act = TDM_VK_ACT_F16,
                                                 .rows = cases[i].panels * TDM_PANEL_ROWS,
                                                 .cols = cases[i].cols,
                                                 .n_panels = cases[i].panels };
                struct tdm_vk_kernel kernels[TDM_VK_CANDIDATES];
                unsigned n = tdm_vk_f16_kernels(&device, &a, cases[i].panels, cases[i].n_rows, cases[i].gelu, kernels);

                if (n == 0 || kernels[n - 1].shader != cases[i].shader || kernels[n - 1].rows != cases[i].rows)
                        fail_msg("%u panels of %u columns, %u rows: another kernel", cases[i].panels, cases[i].cols,
                                 cases[i].n_rows);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(all_is_compiled),
                cmocka_unit_test(planted_op_fails_the_load),
                cmocka_unit_test(op_without_kernel_fails_the_load),
                cmocka_unit_test(part_without_kernel_fails_the_load),
                cmocka_unit_test(all_rows_have_kernels),
                cmocka_unit_test(kernels_follow_rows),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
