/* The host device's table: names, threads, what it refuses to load or run, and that it says what it holds. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/host/forward.h"
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

/* A device that does not compute pictures says so, and so does one that does, of a recipe that takes none. */
static void test_pictures(void **unused)
{
        const uint64_t feature = TDM_FEATURE_BIT(TDM_FEATURE_PICTURES);
        struct tdm_device_model_config config = { .limits = { 300, 4, 8, 4, 4, .max_pictures = 2 } };
        struct runner_model file;
        struct tdm_recipe *recipe;
        struct tdm_error err = {};

        runner_model_load(&file, "models/sprout.gguf");
        recipe = &((struct tdm_weights_header *)file.weights)->recipe;
        config.weights = file.weights;
        assert_int_equal(tdm_kv_geometry_init(&config.kv, file.hp, TDM_KV_F16, 4, 4, 0), 0);
        assert_int_equal(tdm_device_check_model(&config, feature, "test", &err), 0);
        assert_int_equal(tdm_device_check_model(&config, 0, "test", &err), TDM_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "test device: a model with pictures needs what it does not compute"));
        recipe->layers[1].v_is_k = 1;
        assert_int_equal(tdm_device_check_model(&config, feature, "test", &err), TDM_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "test device: a gemma3 model like this takes no pictures"));
        config.limits.max_pictures = 0;
        assert_int_equal(tdm_device_check_model(&config, 0, "test", &err), 0);
        runner_model_unload(&file);
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
        assert_int_equal(tdm_kv_geometry_init(&good.kv, file.hp, TDM_KV_F16, 4, 4, 0), 0);
        assert_int_equal(tdm_host_device_ops.open(&device, &config, &err), 0);

        bad = good;
        bad.precision = (enum tdm_precision)99;
        assert_int_equal(tdm_host_device_ops.model_load(device, &bad, &model, &err), TDM_E_PROTOCOL);
        bad = good;
        bad.limits.max_rows = 0;
        assert_int_equal(tdm_host_device_ops.model_load(device, &bad, &model, &err), TDM_E_PROTOCOL);
        bad = good;
        bad.kv.layers[0].part_bytes /= 2;
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
        rows[0] = (struct tdm_step_row){ 0, 0, 0, UINT32_MAX, 1 }; /* a picture's: it is there, and not scaled */
        hidden[0] = 0.75f;
        n_blocks_seen = 0;
        assert_int_equal(tdm_host_device_ops.run(model, &step, 0, 1, hidden, NULL, on_block, &first, &err), 0);
        assert_true(hidden[0] == 0.75f);
        rows[0] = (struct tdm_step_row){ 17, 0, 0, UINT32_MAX, 0 };
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

static void refuse_recipe(struct tdm_device *device, const struct tdm_device_model_config *config, const char *text)
{
        struct tdm_device_model *model;
        struct tdm_error err = {};

        assert_int_equal(tdm_host_device_ops.model_load(device, config, &model, &err), TDM_E_UNSUPPORTED);
        if (!strstr(err.message, "host device: ") || !strstr(err.message, text))
                fail_msg("not a word of %s: %s", text, err.message);
}

/* What it does not compute is refused at load, by name. */
static void test_recipe_refused(void **unused)
{
        struct tdm_device_config device_config = { .n_threads = 1, .heartbeat = &heartbeat };
        struct tdm_device_model_config config = { .limits = { 8, 4, 8, 4, 4 } };
        struct tdm_recipe *recipe, good;
        struct tdm_device_model *model;
        struct runner_model file;
        struct tdm_device *device;
        struct tdm_error err = {};

        runner_model_load(&file, "models/sprout.gguf");
        recipe = &((struct tdm_weights_header *)file.weights)->recipe;
        good = *recipe;
        config.weights = file.weights;
        assert_int_equal(tdm_kv_geometry_init(&config.kv, file.hp, TDM_KV_F16, 4, 4, 0), 0);
        assert_int_equal(tdm_host_device_ops.open(&device, &device_config, &err), 0);
        recipe->ropes[1].style = TDM_ROPE_NEIGHBOURS;
        refuse_recipe(device, &config, "RoPE of neighbouring dimensions");
        *recipe = good;
        recipe->logit_scale = 0.5f; /* packing leaves none */
        refuse_recipe(device, &config, "scaled logits");
        *recipe = good;
        assert_int_equal(tdm_host_device_ops.model_load(device, &config, &model, &err), 0);
        tdm_host_device_ops.model_unload(model);
        tdm_host_device_ops.close(device);
        runner_model_unload(&file);
}

/* Token 17 through the embedding and block 1 (attention) or 2 (FFN) of the model as its recipe is now. */
static void run_block(struct tdm_device *device, const struct tdm_device_model_config *config, uint32_t block,
                      float *hidden)
{
        struct tdm_step_row rows[] = { { 17, 0, 0, UINT32_MAX } };
        struct tdm_step_seq seqs[] = { { .first_row = 0, .n_rows = 1 } };
        uint32_t tables[TDM_KV_GROUPS][4] = { { 0 } };
        struct tdm_step step = { .head = { .n_rows = 1, .n_seqs = 1 },
                                 .rows = rows,
                                 .seqs = seqs,
                                 .table_entries = 4,
                                 .tables = { tables[0], tables[1] } };
        struct tdm_device_model *model;
        struct tdm_error err = {};

        if (tdm_host_device_ops.model_load(device, config, &model, &err) != 0)
                fail_msg("%s", err.message);
        assert_int_equal(tdm_host_device_ops.run(model, &step, 0, 1, hidden, NULL, NULL, NULL, &err), 0);
        if (block > 0)
                assert_int_equal(tdm_host_device_ops.run(model, &step, block, 1, hidden, NULL, NULL, NULL, &err), 0);
        tdm_host_device_ops.model_unload(model);
}

/* Without the norm behind it a block adds y, with it RMS(y) times the gain. */
static void test_no_norm_after(void **unused)
{
        static const struct {
                uint32_t block, norm;
                enum tdm_tensor_kind gain;
        } cases[] = { { 1, TDM_NORM_ATTN_AFTER, TDM_TENSOR_POST_ATTN_NORM },
                      { 2, TDM_NORM_FFN_AFTER, TDM_TENSOR_POST_FFW_NORM } };
        struct tdm_device_config device_config = { .n_threads = 1, .heartbeat = &heartbeat };
        struct tdm_device_model_config config = { .limits = { 8, 4, 8, 4, 4 }, .precision = TDM_PRECISION_F32 };
        struct runner_model file;
        struct tdm_device *device;
        struct tdm_recipe *recipe;
        struct tdm_error err = {};
        float *before, *with, *without;
        uint32_t d;

        runner_model_load(&file, "models/sprout.gguf");
        recipe = &((struct tdm_weights_header *)file.weights)->recipe;
        d = file.hp->d_model;
        before = calloc(d, sizeof(float));
        with = calloc(d, sizeof(float));
        without = calloc(d, sizeof(float));
        config.weights = file.weights;
        assert_int_equal(tdm_kv_geometry_init(&config.kv, file.hp, TDM_KV_F32, 4, 4, 0), 0);
        config.kv_base = aligned_alloc(4096, config.kv.size_bytes);
        memset(config.kv_base, 0, config.kv.size_bytes);
        assert_int_equal(tdm_host_device_ops.open(&device, &device_config, &err), 0);
        run_block(device, &config, 0, before);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                const struct tdm_weights_tensor *t = tdm_weights_find(file.weights, cases[i].gain, 0);
                double squares = 0, rms, largest = 0;

                run_block(device, &config, cases[i].block, with);
                recipe->layers[0].norms &= ~cases[i].norm;
                run_block(device, &config, cases[i].block, without);
                recipe->layers[0].norms |= cases[i].norm;
                for (uint32_t k = 0; k < d; k++)
                        squares += pow((double)without[k] - (double)before[k], 2);
                rms = sqrt(squares / d + (double)recipe->norm_eps);
                for (uint32_t k = 0; k < d; k++) {
                        double y = ((double)without[k] - (double)before[k]) / rms *
                                   (double)tdm_weights_value(file.weights, t, 0, k);

                        largest = fmax(largest, fabs(y));
                        if (fabs((double)with[k] - (double)before[k] - y) > 1e-4)
                                fail_msg("block %u, number %u: %g, wanted %g", cases[i].block, k,
                                         (double)(with[k] - before[k]), y);
                }
                assert_true(largest > 0.05); /* else this shows nothing */
        }
        tdm_host_device_ops.close(device);
        runner_model_unload(&file);
        free(config.kv_base);
        free(before);
        free(with);
        free(without);
}

/* Rows that are fewer than the threads, or left over for them, are looked at in parts. That gives the bits of one
 * thread, and a bad logit in any row and part is found. */
static void test_sample_in_parts(void **unused)
{
        enum { N_VOCAB = 200003, N_ROWS = 7 };
        static float logits[N_ROWS][N_VOCAB];
        static const unsigned threads[] = { 1, 2, 3, 4, 5, 8 };
        struct tdm_step_row rows[N_ROWS] = {};
        struct tdm_step_logits wanted[N_ROWS];
        struct tdm_step step = { .head = { .n_rows = N_ROWS, .n_seqs = 1 }, .rows = rows, .logits = wanted };
        struct tdm_host_model model = { .hp = { .n_vocab = N_VOCAB },
                                        .logits = logits[0],
                                        .logits_stride = N_VOCAB,
                                        .logits_rows = N_ROWS,
                                        .sampler.stride =
                                                TDM_ALIGN_UP(tdm_sampler_scratch_bytes(N_VOCAB), (size_t)64) };
        struct tdm_result want[N_ROWS], got[N_ROWS];
        struct tdm_error err = {};
        uint32_t bits = 1;

        for (uint32_t r = 0; r < N_ROWS; r++) {
                rows[r].position = 7 + r;
                wanted[r] = (struct tdm_step_logits){
                        .row = r,
                        .target = 11,
                        .sampling = { .temperature = 0.5f * (float)r, .top_p = 1, .repeat_penalty = 1, .n_top = 3 },
                };
                for (uint32_t i = 0; i < N_VOCAB; i++) {
                        bits = bits * 1664525 + 1013904223;
                        logits[r][i] = 12.0f * (float)(bits >> 8) / (1 << 24);
                }
        }
        for (unsigned t = 0; t < TDM_ARRAY_SIZE(threads); t++) {
                assert_int_equal(tdm_pool_new(&model.pool, threads[t], NULL), 0);
                model.sampler.scratch = aligned_alloc(64, threads[t] * model.sampler.stride);
                assert_non_null(model.sampler.scratch);
                for (uint32_t n = 1; n <= N_ROWS; n++) {
                        step.head.n_logits = n;
                        memset(got, 0, sizeof(got));
                        assert_int_equal(tdm_host_sample(&model, &step, NULL, got, &err), 0);
                        if (t == 0)
                                memcpy(want, got, sizeof(want));
                        assert_memory_equal(got, want, n * sizeof(got[0]));
                        for (uint32_t r = 0; r < n; r++) {
                                uint32_t bad = N_VOCAB / N_ROWS * (r + 1) - 1;
                                float was = logits[r][bad];

                                logits[r][bad] = NAN;
                                assert_int_equal(tdm_host_sample(&model, &step, NULL, got, &err), -EDOM);
                                logits[r][bad] = was;
                        }
                }
                free(model.sampler.scratch);
                tdm_pool_destroy(model.pool);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_names),           cmocka_unit_test(test_open),
                cmocka_unit_test(test_pictures),        cmocka_unit_test(test_load_and_run),
                cmocka_unit_test(test_recipe_refused),  cmocka_unit_test(test_no_norm_after),
                cmocka_unit_test(test_sample_in_parts),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
