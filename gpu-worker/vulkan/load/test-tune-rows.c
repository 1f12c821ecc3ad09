/* Two models with matrices of the same sizes on one device: what the first one uses stays as it is while the second is
 * measured. Else a step of a few rows of the first would look for kernels that are there no more.
 *
 * And a model of a file is measured: a kernel that a step of a few rows needs, and that is not there so early, is an
 * error of the load.
 *
 * usage: test-tune-rows [FILE.gguf [ROWS]], with what tests/spirv-executor/CMakeLists.txt gives it
 * ROWS: the most rows of a step, 2 to 8; without it 8 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "gpu-worker/vulkan/kernels/kernels.h"
#include "gpu-worker/vulkan/record/record.h"
#include "gpu-worker/vulkan/tests/random-model.h"
#include "gpu-worker/vulkan/vulkan.h"
#include "tests/golden/runner.h"

static _Atomic uint64_t heartbeat;

static struct tdm_device_model *load(struct tdm_device *device, const struct tdm_device_model_config *config)
{
        struct tdm_device_model *model;
        struct tdm_error err = {};

        if (tdm_vulkan_device_ops.model_load(device, config, &model, &err) != 0)
                fail_msg("%s", err.message);
        return model;
}

/* Of a few rows, and of kernels that leave flagged words: those have no shape but the one that is kept. */
static bool is_flagged(const struct tdm_vk_tuned *tuned)
{
        uint32_t shader = TDM_VK_TUNED_SHADER(tuned->shader);

        return tuned->shader > 0xffff && (shader == TDM_VK_MATVEC || shader == TDM_VK_MATVEC_GELU);
}

static void others_shapes_stay(void **state)
{
        const struct tdm_device_config config = { .n_threads = 2, .heartbeat = &heartbeat };
        struct tdm_device_model_config model_config = { .limits = { 2, 2, 2, 8, 8 } };
        struct tdm_device_model *first, *second;
        struct tdm_vk_tuned before[TDM_VK_MAX_TUNED];
        struct tdm_device *opened;
        struct tdm_vk_device *device;
        struct tdm_hparams hp;
        struct tdm_error err = {};
        unsigned n_flagged = 0, n = 0;
        uint8_t *weights;

        (void)state;
        assert_true(random_model_hparams("tiny-128", &hp));
        weights = random_model_new(&hp, TDM_TYPE_Q4_0, TDM_TYPE_Q4_0);
        assert_non_null(weights);
        model_config.weights = weights;
        assert_int_equal(tdm_kv_geometry_init(&model_config.kv, &hp, TDM_KV_F16, 4, 4, 0), 0);
        assert_int_equal(tdm_vulkan_device_ops.open(&opened, &config, &err), 0);
        device = (struct tdm_vk_device *)opened;
        first = load(opened, &model_config);

        /* The first model uses flagged words, in shapes that a CPU implementation does not try. The way of attention is
         * forgotten, as if the second model had other heads: so it is measured again. */
        for (unsigned i = 0; i < device->n_tuned; i++) {
                struct tdm_vk_tuned *t = &device->tuned[i];
                const struct tdm_vk_shape *shapes;
                unsigned n_shapes = tdm_vk_tuned_shapes(t, &shapes);

                if (TDM_VK_TUNED_SHADER(t->shader) == TDM_VK_ATTEND_F16)
                        continue;
                if (is_flagged(t)) {
                        t->shape = shapes[n_shapes - 1];
                        n_flagged++;
                }
                device->tuned[n] = *t;
                before[n++] = *t;
        }
        device->n_tuned = n;
        assert_true(n_flagged > 0);
        second = load(opened, &model_config);
        assert_true(device->n_tuned > n); /* it was measured */
        assert_memory_equal(device->tuned, before, n * sizeof(before[0]));

        tdm_vulkan_device_ops.model_unload(second);
        tdm_vulkan_device_ops.model_unload(first);
        tdm_vulkan_device_ops.close(opened);
        random_model_destroy(weights);
}

static const char *path;
static uint32_t most_rows = 8;

static void a_file_is_measured(void **state)
{
        const struct tdm_device_config config = { .n_threads = 2, .heartbeat = &heartbeat };
        struct tdm_device_model_config model_config = { .limits = { most_rows, 2, 2, 8, 8 } };
        struct tdm_device_model *model;
        struct tdm_error err = {};
        struct runner_model file;
        struct tdm_device *device;

        (void)state;
        runner_model_load(&file, path);
        model_config.weights = file.weights;
        assert_int_equal(tdm_kv_geometry_init(&model_config.kv, file.hp, TDM_KV_F16, 4, 4, 0), 0);
        assert_int_equal(tdm_vulkan_device_ops.open(&device, &config, &err), 0);
        model = load(device, &model_config);
        for (uint32_t rows = 2; rows <= most_rows; rows *= 2)
                assert_true(tdm_vk_few_rows_known((struct tdm_vk_model *)model, rows));
        tdm_vulkan_device_ops.model_unload(model);
        tdm_vulkan_device_ops.close(device);
        runner_model_unload(&file);
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(others_shapes_stay) };
        const struct CMUnitTest of_file[] = { cmocka_unit_test(a_file_is_measured) };

        path = argc > 1 ? argv[1] : NULL;
        if (argc > 2)
                most_rows = TDM_MAX(2u, TDM_MIN(8u, (uint32_t)strtoul(argv[2], NULL, 10)));
        return path ? cmocka_run_group_tests(of_file, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
