/* The host device's table: names, threads, what it refuses to load or run, and that it says what it holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/golden/runner.h"

static _Atomic uint64_t heartbeat;

static void test_names(void **unused)
{
        for (int p = TDM_PRECISION_DEFAULT; p <= TDM_PRECISION_F32; p++)
                assert_int_equal(tdm_precision_from_name(tdm_precision_name((enum tdm_precision)p)), p);
        assert_int_equal(tdm_precision_from_name("exact"), -EINVAL);
        assert_int_equal(tdm_precision_from_name(""), -EINVAL);
        assert_int_equal(tdm_precision_kv_type(TDM_PRECISION_F32, TDM_KV_Q8_0), TDM_KV_F32);
        assert_int_equal(tdm_precision_kv_type(TDM_PRECISION_DEFAULT, 0), TDM_KV_F16);
        assert_int_equal(tdm_precision_kv_type(TDM_PRECISION_PRECISE, TDM_KV_Q8_0), TDM_KV_Q8_0);
        for (int t = TDM_KV_F16; t <= TDM_KV_Q8_0; t++)
                assert_int_equal(tdm_kv_type_from_name(tdm_kv_type_name((enum tdm_kv_type)t)), t);
        assert_int_equal(tdm_kv_type_from_name("q4_0"), -EINVAL);
        assert_null(tdm_kv_type_name((enum tdm_kv_type)0));
}

static void test_open(void **unused)
{
        struct tdm_device_config config = { .n_threads = 2, .heartbeat = &heartbeat };
        struct tdm_error err = {};
        struct tdm_device *device = NULL;

        assert_int_equal(tdm_host_device_ops.open(&device, &config, &err), 0);
        assert_ptr_equal(device->ops, &tdm_host_device_ops);
        assert_non_null(strstr(tdm_host_device_ops.describe(device), ", 2 threads"));
        assert_string_equal(tdm_host_device_ops.numerics_id(device), "host-2");
        tdm_host_device_ops.close(device);

        config.n_threads = 1;
        setenv("TANDEM_CPU", "c", 1);
        assert_int_equal(tdm_host_device_ops.open(&device, &config, &err), 0);
        assert_string_equal(tdm_host_device_ops.numerics_id(device), "host-2"); /* equal bits */
        tdm_host_device_ops.close(device);
        setenv("TANDEM_CPU", "abacus", 1);
        assert_int_not_equal(tdm_host_device_ops.open(&device, &config, &err), 0);
        assert_non_null(strstr(err.message, "abacus"));
        unsetenv("TANDEM_CPU");
        tdm_host_device_ops.close(NULL);
        tdm_host_device_ops.model_unload(NULL);
}

static unsigned n_blocks_seen;
static void on_block(uint32_t block, void *userdata)
{
        assert_int_equal(block, *(uint32_t *)userdata + n_blocks_seen++);
}

static void test_load_and_run(void **unused)
{
        struct tdm_device_config config = { .n_threads = 1, .heartbeat = &heartbeat };
        struct runner_model file;
        struct tdm_device_model_config good = { .limits = { 300, 4, 8, 4, 4 } }, bad;
        struct tdm_device_model *model;
        struct tdm_device *device;
        struct tdm_step step = {};
        struct tdm_step_row rows[] = { { 17, 0, 0, UINT32_MAX } };
        struct tdm_error err = {};
        uint32_t first = 0;
        float *hidden;

        runner_model_load(&file, "models/sprout.gguf");
        hidden = calloc(file.hp->d_model, sizeof(float));
        good.weights = file.weights;
        assert_int_equal(tdm_kv_geometry_init(&good.kv, file.hp, TDM_KV_F16, 4, 4), 0);
        assert_int_equal(tdm_host_device_ops.open(&device, &config, &err), 0);

        bad = good;
        bad.precision = (enum tdm_precision)99;
        assert_int_equal(tdm_host_device_ops.model_load(device, &bad, &model, &err), TDM_E_PROTOCOL);
        bad = good;
        bad.limits.max_rows = 0;
        assert_int_equal(tdm_host_device_ops.model_load(device, &bad, &model, &err), TDM_E_PROTOCOL);
        bad = good;
        bad.kv.part_bytes /= 2;
        assert_int_equal(tdm_host_device_ops.model_load(device, &bad, &model, &err), TDM_E_PROTOCOL);
        bad = good;
        bad.kv.type = 3;
        assert_int_equal(tdm_host_device_ops.model_load(device, &bad, &model, &err), TDM_E_PROTOCOL);
        bad = good;
        bad.kv.n_pages[TDM_KV_WINDOW] = 1u << 30; /* its sizes were computed for fewer */
        assert_int_equal(tdm_host_device_ops.model_load(device, &bad, &model, &err), TDM_E_PROTOCOL);

        assert_int_equal(tdm_host_device_ops.model_load(device, &good, &model, &err), 0);
        assert_true(tdm_host_device_ops.model_scratch_bytes(model) > 256 * file.hp->d_ff * sizeof(float));
        assert_int_equal(tdm_host_device_ops.n_saturated(model), 0);

        step.head = (struct tdm_step_head){ .n_rows = 1, .n_seqs = 1 };
        step.rows = rows;
        heartbeat = 0;
        assert_int_equal(tdm_host_device_ops.run(model, &step, 0, 1, hidden, NULL, on_block, &first, &err), 0);
        assert_int_equal(n_blocks_seen, 1);
        assert_true(heartbeat > 0);
        assert_true(hidden[0] ==
                    tdm_weights_value(file.weights, tdm_weights_find(file.weights, TDM_TENSOR_TOKEN_EMBD, 0), 17, 0) *
                            tdm_weights_header(file.weights)->recipe.embed_scale);
        first = 2;
        n_blocks_seen = 0;
        assert_int_equal(tdm_host_device_ops.run(model, &step, 2, 1, hidden, NULL, on_block, &first, &err), 0);
        assert_int_equal(n_blocks_seen, 1);
        /* attention where no cache was handed over */
        assert_int_equal(tdm_host_device_ops.run(model, &step, 1, 1, hidden, NULL, NULL, NULL, &err), -EINVAL);

        tdm_host_device_ops.model_unload(model);
        tdm_host_device_ops.close(device);
        runner_model_unload(&file);
        free(hidden);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_names),
                cmocka_unit_test(test_open),
                cmocka_unit_test(test_load_and_run),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
