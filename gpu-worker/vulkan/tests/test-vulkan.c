/* The vulkan device on whatever Vulkan device there is (here: a CPU implementation; TANDEM_VULKAN_DEVICE chooses):
 * block by block against the host device for every type of weights, exactness over chunks, neighbours, runs, placements
 * of memory and restarts, nothing allocated in steady state, and what it refuses. Skipped, with the reason, where there
 * is no device.
 *
 * usage: test-vulkan [--full] [PATTERN]
 * --full: draws from many logits over several steps and all temperatures, one more restart behind a long text, and a
 * thousand tokens in steady state */
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <sys/stat.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/tests/layers.h"
#include "gpu-worker/vulkan/tests/random-model.h"
#include "gpu-worker/vulkan/tests/variants.h"
#include "gpu-worker/vulkan/vulkan.h"

#define MAX_ROWS 64u

static bool full;

/* ---- against the host ---- */

static const struct {
        const char *size;
        uint32_t type;
        enum tdm_precision precision;
        /* Largest difference, as a share of the rows' size. Orders of sums differ, and where activations are rounded a
         * last place may tip a value over to the next step of its 255. `precise` rounds to 15 bits here and to 16
         * there. */
        double limit;
        enum tdm_kv_type kv; /* 0: the precision's own */
} ways[] = {
        { "tiny", TDM_TYPE_Q4_0, TDM_PRECISION_DEFAULT, 0.03 },
        { "tiny", TDM_TYPE_Q8_0, TDM_PRECISION_DEFAULT, 0.03 },
        { "tiny", TDM_TYPE_Q4_0, TDM_PRECISION_PRECISE, 8e-4 },
        { "tiny", TDM_TYPE_Q8_0, TDM_PRECISION_PRECISE, 8e-4 },
        { "tiny", TDM_TYPE_Q4_0, TDM_PRECISION_F32, 3e-5 },
        { "tiny", TDM_TYPE_Q8_0, TDM_PRECISION_F32, 3e-5 },
        { "tiny", TDM_TYPE_F32, TDM_PRECISION_F32, 3e-5 },
        { "tiny", TDM_TYPE_F16, TDM_PRECISION_F32, 3e-5 },
        { "tiny", TDM_TYPE_BF16, TDM_PRECISION_F32, 3e-5 },
        { "tiny-128", TDM_TYPE_F16, TDM_PRECISION_F32, 3e-5 },
        { "tiny-256", TDM_TYPE_F16, TDM_PRECISION_F32, 3e-5 },
        { "tiny-100", TDM_TYPE_F16, TDM_PRECISION_F32, 3e-5 },
        { "tiny-100", TDM_TYPE_Q8_0, TDM_PRECISION_DEFAULT, 0.03 },
        /* The cache's rounding: a last place tips over too. */
        { "tiny", TDM_TYPE_F16, TDM_PRECISION_DEFAULT, 0.003, TDM_KV_Q8_0 },
        { "tiny-128", TDM_TYPE_F16, TDM_PRECISION_DEFAULT, 0.003, TDM_KV_Q8_0 },
        { "tiny-100", TDM_TYPE_F16, TDM_PRECISION_DEFAULT, 0.003, TDM_KV_Q8_0 },
        { "tiny", TDM_TYPE_Q4_0, TDM_PRECISION_DEFAULT, 0.03, TDM_KV_Q8_0 },
        { "tiny-20", TDM_TYPE_F16, TDM_PRECISION_F32, 3e-5 }, /* with --full */
};
static const uint32_t k_types[] = {
        TDM_TYPE_Q4_1,  TDM_TYPE_Q5_0,  TDM_TYPE_Q5_1,  TDM_TYPE_Q2_K,      TDM_TYPE_Q3_K,
        TDM_TYPE_Q4_K,  TDM_TYPE_Q5_K,  TDM_TYPE_Q6_K,  TDM_TYPE_IQ4_NL,    TDM_TYPE_IQ4_XS,
        TDM_TYPE_MXFP4, TDM_TYPE_GRID1, TDM_TYPE_GRID2, TDM_TYPE_GRID3_XXS, TDM_TYPE_GRID3_S
};

/* Every block of a few steps on both devices. */
static void compare(const char *size, uint32_t type, enum tdm_precision precision, enum tdm_kv_type kv, uint32_t rows,
                    double limit)
{
        uint8_t *weights = model_new(size, type);
        const struct drive_options options = { .ops = { &tdm_vulkan_device_ops, &tdm_host_device_ops },
                                               .plan = DRIVE_COMPARE,
                                               .precision = precision,
                                               .kv = kv,
                                               .max_rows = MAX_ROWS,
                                               .n_tables = 4,
                                               .max_positions = 512 };
        struct drive *drive = drive_new(weights, &options);

        /* Up to MAX_ROWS at once, then one alone, then a few of each of three. */
        for (uint32_t first = 0, n; first < rows; first += n)
                drive_step(drive, (struct drive_part[]){ part(0, first, n = TDM_MIN(MAX_ROWS, rows - first)) }, 1, NULL,
                           NULL);
        drive_step(drive, (struct drive_part[]){ part(0, rows, 1) }, 1, NULL, NULL);
        drive_step(drive, (struct drive_part[]){ part(0, rows + 1, 3), part(1, 0, 17), part(2, 0, 1) }, 3, NULL, NULL);
        for (int kind = 0; kind < TDM_N_BLOCK_KINDS; kind++) {
                double difference = drive_difference(drive, (enum tdm_block_kind)kind);
                bool is_embed = kind == TDM_BLOCK_EMBED;

                if (!(difference <= (is_embed ? 0 : limit)))
                        fail_msg("%s, weights %s, precision %s, cache %s, %s: off by %g, limit %g", size,
                                 tdm_type_info(type)->name, tdm_precision_name(precision),
                                 kv ? tdm_kv_type_name(kv) : "as it is", tdm_block_kind_name((enum tdm_block_kind)kind),
                                 difference, is_embed ? 0 : limit);
                if (getenv("TANDEM_TEST_VERBOSE"))
                        print_message("%s %s %s %s: %g\n", tdm_type_info(type)->name, tdm_precision_name(precision),
                                      kv ? tdm_kv_type_name(kv) : "", tdm_block_kind_name((enum tdm_block_kind)kind),
                                      difference);
        }
        drive_destroy(drive);
        random_model_destroy(weights);
}

static void against_host(void **state)
{
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(ways) - !full; i++) /* over the first span's end once */
                compare(ways[i].size, ways[i].type, ways[i].precision, ways[i].kv, i == 0 ? 256 : 37, ways[i].limit);
}

/* Sub-blocks, minima and tables: each with rounded and with float input. */
static void k_against_host(void **state)
{
        setenv("TANDEM_VULKAN_HALVES", "off", 1); /* the host's rows are rounded to 8 and 15 bits too */
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(k_types); i++) {
                compare("tiny-k", k_types[i], TDM_PRECISION_DEFAULT, 0, 18, 0.03);
                compare("tiny-k", k_types[i], TDM_PRECISION_F32, 0, 18, 3e-5);
        }
        compare("tiny-k-1280", TDM_TYPE_Q2_K, TDM_PRECISION_DEFAULT, 0, 18, 0.03); /* pairs of blocks in a segment */
        unsetenv("TANDEM_VULKAN_HALVES");
}

/* ---- exactness ---- */

/* Most tokens have exactly as good twins, as some of a real vocabulary do: its unused ones. n: how many are different.
 */
static void make_twins(uint8_t *weights, uint32_t n)
{
        const struct tdm_weights_header *header = tdm_weights_header(weights);
        const struct tdm_weights_tensor *t = (const struct tdm_weights_tensor *)(weights + header->tensors_offset);

        while (t->rows != header->hparams.n_vocab)
                t++;
        for (uint64_t panel = t->size_bytes / TDM_DIV_UP(t->rows, 16u), at = n / 16 * panel; at < t->size_bytes;
             at += panel)
                memcpy(weights + t->offset + at, weights + t->offset + at % (n / 16 * panel), panel);
}

/* Without a filter noise decides which blocks come to the host: the token is that of all logits, and few came. */
static void unfiltered(const struct choosers *c, uint32_t n_rows, uint32_t chunk, uint32_t stride)
{
        static const float temperatures[] = { 0.05f, 0.7f, 1.0f, 4.0f, 100.0f };
        uint32_t n_blocks = tdm_weights_header(c->weights)->hparams.n_vocab / TDM_SAMPLE_MAX_BLOCK;

        for (uint32_t i = 0; i < 2 * TDM_ARRAY_SIZE(temperatures); i += stride) {
                const struct tdm_sampling s = { .temperature = temperatures[i / 2],
                                                .top_p = 1,
                                                .repeat_penalty = i / 2 % 3 ? 1.0f : 1.3f,
                                                .n_top = i % 2 * 4,
                                                .seed = i };
                uint64_t n =
                        same_results(c, &(struct variant){ "copy", .n_rows = n_rows, .chunk = chunk, .sampling = &s });

                assert_true(n >= n_rows && n < n_rows * n_blocks / 4);
        }
}

static void exact(void **state)
{
        static const struct variant base = { "import", .n_rows = 270, .chunk = 384 };
        static const struct variant base_q8 = { "import", .n_rows = 90, .chunk = 384, .kv = TDM_KV_Q8_0 };
        static const struct variant variants_q8[] = {
                { "copy", .n_rows = 90, .chunk = 29, .n_others = 3, .restart_at = 50, .kv = TDM_KV_Q8_0,
                  .submission = "8" },
                { "import", .n_rows = 40, .chunk = 13, .restart_at = 20, .kv = TDM_KV_Q8_0 },
        };
        static const struct variant variants[] = {
                { "import", .n_rows = 270, .chunk = 90, .n_others = 3, .logits = "whole" },
                { "import", .n_rows = 50, .chunk = 7, .run_blocks = 2 },
                { "import", .n_rows = 80, .chunk = 40, .n_others = 2, .restart_at = 40, .anywhere = true },
                { "copy", .n_rows = 60, .chunk = 29, .n_others = 3, .run_blocks = 1 },
                { "copy", .n_rows = 270, .chunk = 70, .n_others = 1, .restart_at = 140, .submission = "8" },
                { "import", .n_rows = 16, .chunk = 1 },
                { "import", .n_rows = 50, .chunk = 20, .in_pieces = true },
                { "copy", .n_rows = 50, .chunk = 20, .restart_at = 20, .in_pieces = true },
                { "copy", .n_rows = 270, .chunk = 100, .restart_at = 200, .run_blocks = 3 }, /* with --full */
        };
        /* Single rows over the end of a span: the last of their items to come merges them all (attend.comp). */
        static const struct variant base_single = { "copy", .n_rows = 262, .chunk = 384 };
        static const struct variant variants_single[] = {
                { "copy", .n_rows = 262, .chunk = 252, .single_from = 252 },
                { "import", .n_rows = 262, .chunk = 126, .single_from = 252, .n_others = 3 },
        };
        /* What comes to the host of many logits, and all of them. */
        static const struct variant many_logits = { "copy", .n_rows = 12, .chunk = 4, .top_k = 4000 };
        /* As many as are wanted of those that are equally good: one, a share of them, one and a share of the next, and
         * so on. */
        static const struct variant twins[] = {
                { "copy", .chunk = 4, .greedy = true },
                { "copy", .chunk = 4, .top_k = 40 },
                { "copy", .chunk = 4, .top_k = 300 },
                { "copy", .chunk = 4, .top_k = TDM_MAX_TOP_K },
        };
        /* Q2_K's scales come into bytes or into sums, by the number of rows. Segments end between two blocks. */
        static const struct variant base_k = { "import", .n_rows = 16, .chunk = 16 };
        static const struct variant variants_k[] = { { "import", .n_rows = 16, .chunk = 1 },
                                                     { "import", .n_rows = 16, .chunk = 2 },
                                                     { "import", .n_rows = 16, .chunk = 8 } };
        /* Heads whose values begin between two loads, over the end of a span. */
        static const struct variant base_uneven = { "import", .n_rows = 262, .chunk = 384 };
        static const struct variant variants_uneven[] = {
                { "copy", .n_rows = 262, .chunk = 90, .n_others = 3, .restart_at = 180, .submission = "8" },
                { "import", .n_rows = 20, .chunk = 1 },
        };
        uint8_t *weights = model_new("tiny", TDM_TYPE_Q4_0), *weights_128 = model_new("tiny-128", TDM_TYPE_Q4_0),
                *weights_k = model_new("tiny-k-1280", TDM_TYPE_Q2_K), *weights_vocab;
        struct choosers choosers;

        same_bits(weights, &base, variants, TDM_ARRAY_SIZE(variants) - !full);
        same_bits(weights, &base_q8, variants_q8, TDM_ARRAY_SIZE(variants_q8));
        same_bits(weights_128, &base_single, variants_single, TDM_ARRAY_SIZE(variants_single));
        same_bits(weights_k, &base_k, variants_k, TDM_ARRAY_SIZE(variants_k));
        random_model_destroy(weights_k);
        random_model_destroy(weights);
        weights = model_new("tiny-100", TDM_TYPE_Q4_0);
        same_bits(weights, &base_q8, variants_q8, TDM_ARRAY_SIZE(variants_q8));
        if (full)
                same_bits(weights, &base_uneven, variants_uneven, TDM_ARRAY_SIZE(variants_uneven));
        random_model_destroy(weights);
        random_model_destroy(weights_128);
        weights_vocab = model_new("tiny-vocab", TDM_TYPE_Q4_0);
        choosers = choosers_new(weights_vocab);
        same_results(&choosers, &many_logits);
        unfiltered(&choosers, full ? 8 : 4, 4, full ? 1 : 3);
        choosers_deinit(&choosers);
        make_twins(weights_vocab, 1024);
        choosers = choosers_new(weights_vocab);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(twins); i++) {
                struct variant v = twins[i];

                v.n_rows = full ? 12 : 4;
                assert_int_equal(same_results(&choosers, &v), v.n_rows * TDM_MAX(v.top_k, 1u));
        }
        unfiltered(&choosers, 4, full ? 2 : 4, full ? 1 : 3);
        choosers_deinit(&choosers);
        random_model_destroy(weights_vocab);
}

/* The same with rows of F16, where there are units for them: each number of rows that has a kernel of its own. */
static void exact_f16(void **state)
{
        static const struct variant base = { "copy", .n_rows = 270, .chunk = 384 };
        static const struct variant variants[] = {
                { "copy", .n_rows = 270, .chunk = 90, .n_others = 3, .logits = "whole" },
                { "copy", .n_rows = 50, .chunk = 7, .run_blocks = 2 },
                { "copy", .n_rows = 80, .chunk = 40, .n_others = 2, .restart_at = 40, .anywhere = true },
                { "copy", .n_rows = 60, .chunk = 29, .n_others = 3, .run_blocks = 1 },
                { "copy", .n_rows = 60, .chunk = 13 },
                { "copy", .n_rows = 270, .chunk = 70, .n_others = 1, .restart_at = 140, .submission = "8" },
                { "copy", .n_rows = 16, .chunk = 1 },
                { "copy", .n_rows = 262, .chunk = 252, .single_from = 252 },
                { "copy", .n_rows = 50, .chunk = 20, .restart_at = 20, .in_pieces = true },
        };
        static const struct {
                const char *size;
                uint32_t type, more_type; /* the latter in some layers */
                unsigned n_variants;      /* each loads the model anew, which takes a GPU's compiler seconds */
        } models[] = {
                { "tiny-128", TDM_TYPE_Q4_0, TDM_TYPE_Q4_0, TDM_ARRAY_SIZE(variants) },
                { "tiny-256", TDM_TYPE_Q8_0, TDM_TYPE_Q8_0, TDM_ARRAY_SIZE(variants) },
                { "tiny-128", TDM_TYPE_Q4_K, TDM_TYPE_Q6_K, TDM_ARRAY_SIZE(variants) },
                { "tiny-128", TDM_TYPE_Q5_K, TDM_TYPE_Q8_0, 2 },
                { "tiny-128", TDM_TYPE_IQ4_XS, TDM_TYPE_Q3_K, 2 },
                { "tiny-128", TDM_TYPE_Q4_0, TDM_TYPE_Q4_1, 2 },
        };

        if (!has_f16_units())
                skip();
        setenv("TANDEM_VULKAN_HALVES", "on", 1);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(models); i++) {
                uint8_t *weights = model_new_mixed(models[i].size, models[i].type, models[i].more_type);

                same_bits(weights, &base, variants, models[i].n_variants);
                random_model_destroy(weights);
        }
        unsetenv("TANDEM_VULKAN_HALVES");
}

/* With weights of 16 bits. */
static void exact_plain(void **state)
{
        static const struct variant base = { "copy", .n_rows = 40, .chunk = 384 };
        static const struct variant variants[] = { { "copy", .n_rows = 40, .chunk = 29, .n_others = 1 },
                                                   { "copy", .n_rows = 8, .chunk = 1 } };
        uint8_t *weights;

        (void)state;
        if (!has_f16_units())
                skip();
        weights = model_new_mixed("tiny-128", TDM_TYPE_BF16, TDM_TYPE_F16);
        same_bits(weights, &base, variants, TDM_ARRAY_SIZE(variants));
        random_model_destroy(weights);
}

/* The variants of a few rows on a model of f16 rows, where its kernels can wait for each other. */
static void few_rows_of(const char *size, uint32_t type, uint32_t more_type, const struct variant *variants,
                        unsigned n_variants)
{
        static const struct variant base = { "copy", .n_rows = 268, .chunk = 384, .rows = "off" };
        const char *chain = getenv("TANDEM_VULKAN_CHAIN");
        uint8_t *weights;

        if (!has_f16_units())
                skip();
        if (!chain || strcmp(chain, "on") != 0) {
                print_message("TANDEM_VULKAN_CHAIN is not on\n");
                skip();
        }
        setenv("TANDEM_VULKAN_HALVES", "on", 1);
        weights = model_new_mixed(size, type, more_type);
        same_bits(weights, &base, variants, n_variants);
        random_model_destroy(weights);
        unsetenv("TANDEM_VULKAN_HALVES");
}

/* Steps of a few rows of one sequence, or two, as guesses are checked: over the ends of a page and a span, with a
 * window and without, in several submissions and runs. They run as those of single rows do (kernels/few-rows.c). */
static void exact_few(void **state)
{
        static const struct variant variants[] = {
                { "copy", .n_rows = 262, .chunk = 254, .single_from = 254, .few = 8, .rows = "on" },
                { "copy", .n_rows = 262, .chunk = 250, .single_from = 250, .few = 2, .n_others = 1, .rows = "on" },
                /* What was logged comes back. No page is begun then: what free pages are filled with may not. */
                { "copy", .n_rows = 264, .chunk = 252, .single_from = 252, .few = 4, .restart_at = 256, .rows = "on",
                  .run_blocks = 1 },
        };

        (void)state;
        few_rows_of("tiny-128", TDM_TYPE_Q4_0, TDM_TYPE_Q4_0, variants, TDM_ARRAY_SIZE(variants));
}

static void more_exact_few(void **state)
{
        static const struct variant variants[] = {
                { "copy", .n_rows = 268, .chunk = 246, .single_from = 246, .few = 4, .rows = "on" },
                { "copy", .n_rows = 266, .chunk = 252, .single_from = 252, .few = 7, .rows = "on" },
                { "copy", .n_rows = 268, .chunk = 246, .single_from = 246, .few = 3, .rows = "on", .run_blocks = 2 },
                { "copy", .n_rows = 262, .chunk = 254, .single_from = 254, .n_others = 3, .rows = "on" },
                { "copy", .n_rows = 262, .chunk = 250, .single_from = 250, .few = 4, .n_others = 1, .rows = "on",
                  .submission = "16" },
                { "copy", .n_rows = 262, .chunk = 250, .single_from = 250, .few = 4, .rows = "off" },
                { "copy", .n_rows = 268, .chunk = 246, .single_from = 246, .few = 3, .rows = "apart" },
                { "copy", .n_rows = 262, .chunk = 254, .single_from = 254, .n_others = 3, .rows = "apart" },
                { "copy", .n_rows = 268, .chunk = 246, .single_from = 246, .few = 2, .rows = "on" },
                { "copy", .n_rows = 262, .chunk = 252, .single_from = 252, .few = 2, .rows = "apart" },
        };

        (void)state;
        few_rows_of("tiny-128", TDM_TYPE_Q4_0, TDM_TYPE_Q4_0, variants, TDM_ARRAY_SIZE(variants));
        few_rows_of("tiny-256", TDM_TYPE_Q8_0, TDM_TYPE_Q8_0, variants, 3);
        few_rows_of("tiny-128", TDM_TYPE_Q4_K, TDM_TYPE_Q6_K, variants, 3);
}

/* ---- hidden rows as a dma-buf ---- */

/* The same bits through a dma-buf; a driver that imports none says so, and memory of the process it is. */
static void as_dmabuf(void **state)
{
        static const struct variant base = { "import", .n_rows = 40, .chunk = 40 };
        static const struct variant variants[] = {
                { "import", .n_rows = 40, .chunk = 13, .n_others = 2, .run_blocks = 1, .restart_at = 20,
                  .dmabuf = true },
                { "copy", .n_rows = 40, .chunk = 40, .dmabuf = true },
        };
        const struct drive_options options = {
                .ops = { &tdm_vulkan_device_ops }, .max_rows = 8, .n_tables = 1, .max_positions = 64, .dmabuf = true
        };
        uint8_t *weights;
        struct drive *drive;
        const char *plan;

        if (access("/dev/udmabuf", R_OK | W_OK) != 0) {
                print_message("no /dev/udmabuf here\n");
                skip();
        }
        weights = model_new("tiny", TDM_TYPE_Q4_0);
        drive = drive_new(weights, &options);
        plan = drive_describe(drive, 0);
        print_message("%s\n", plan);
        assert_true(strstr(plan, "hidden rows imported in place (dma-buf)") != NULL ||
                    strstr(plan, ", no dma-buf: ") != NULL);
        drive_destroy(drive);
        same_bits(weights, &base, variants, TDM_ARRAY_SIZE(variants));
        random_model_destroy(weights);
}

/* What cannot be imported: the next best way, and the reason; or, where nothing else will do, a refusal. */
static void no_dmabuf(void **state)
{
        const struct tdm_device_config config = { .n_threads = 1, .heartbeat = &heartbeat };
        const struct tdm_device_ops *ops = &tdm_vulkan_device_ops;
        uint8_t *weights = model_new("tiny", TDM_TYPE_Q4_0);
        const struct tdm_hparams *hp = &tdm_weights_header(weights)->hparams;
        struct tdm_device_model_config c = { .weights = weights, .limits = { 64, 4, 8, 4, 8 } };
        struct tdm_device_model *model = NULL;
        struct tdm_device *device;
        struct tdm_error err = {};
        int pipes[2];

        assert_int_equal(pipe(pipes), 0);
        assert_int_equal(tdm_kv_geometry_init(&c.kv, hp, TDM_KV_F16, 4, 4, 0), 0);
        c.activations_bytes = TDM_ALIGN_UP(TDM_STEP_SLOTS * UINT64_C(64) * hp->d_model * sizeof(float), UINT64_C(4096));
        c.activations = aligned_alloc(4096, c.activations_bytes);
        for (int copy = 0; copy < 2; copy++) {
                setenv("TANDEM_VULKAN_MEMORY", copy ? "copy" : "import", 1);
                assert_int_equal(ops->open(&device, &config, &err), 0);
                for (int fd = 0; fd < 2; fd++) {
                        c.activations_dmabuf = fd ? pipes[0] : 0;
                        c.dmabuf_only = true;
                        assert_int_equal(ops->model_load(device, &c, &model, &err), TDM_E_UNSUPPORTED);
                        assert_non_null(strstr(err.message, "activations = dma-buf, but "));
                        c.dmabuf_only = false;
                        assert_int_equal(ops->model_load(device, &c, &model, &err), 0);
                        assert_non_null(strstr(ops->plan(model),
                                               copy ? "hidden rows copied" : "imported in place (host pointer)"));
                        assert_int_equal(strstr(ops->plan(model), ", no dma-buf: ") != NULL, fd);
                        ops->model_unload(model);
                }
                ops->close(device);
        }
        unsetenv("TANDEM_VULKAN_MEMORY");
        assert_int_equal(fcntl(pipes[0], F_GETFD), 0); /* borrowed */
        close(pipes[0]);
        close(pipes[1]);
        free(c.activations);
        random_model_destroy(weights);
}

/* ---- steady state ---- */

static void steady(void **state)
{
        uint8_t *weights = model_new("tiny", TDM_TYPE_Q4_0);

        for (int copy = 0; copy < 2; copy++) {
                const struct drive_options options = {
                        .ops = { &tdm_vulkan_device_ops }, .max_rows = 8, .n_tables = 1, .max_positions = 1024
                };
                struct tdm_vulkan_counters before = {}, after;
                uint32_t n_tokens = !copy ? 100 : full ? 1000 : 300; /* over the ends of pages and a span */
                struct drive *drive;

                setenv("TANDEM_VULKAN_MEMORY", copy ? "copy" : "import", 1);
                drive = drive_new(weights, &options);
                for (uint32_t i = 0; i < n_tokens; i++) {
                        if (i == 10)
                                tdm_vulkan_counters(drive_device(drive, 0), &before);
                        drive_step(drive, (struct drive_part[]){ part(0, i, 1) }, 1, NULL, NULL);
                }
                tdm_vulkan_counters(drive_device(drive, 0), &after);
                assert_true(before.allocations > 0 && before.pipelines > 0);
                assert_int_equal(after.allocations, before.allocations);
                assert_int_equal(after.pipelines, before.pipelines);
                assert_int_equal(after.recordings, before.recordings);
                assert_int_equal(after.submissions - before.submissions, n_tokens - 10); /* a token is one submission */
                assert_int_equal(after.hidden_copies, 0); /* no other worker reads them */
                assert_int_equal(after.kv_restored_bytes, 0);
                drive_destroy(drive);
        }
        unsetenv("TANDEM_VULKAN_MEMORY");
        random_model_destroy(weights);
}

/* ---- refusals ---- */

static void refused(void **state)
{
        const struct tdm_device_config config = { .n_threads = 1, .heartbeat = &heartbeat };
        uint8_t *weights = model_new("tiny", TDM_TYPE_Q4_0);
        const struct tdm_hparams *hp = &tdm_weights_header(weights)->hparams;
        struct tdm_device_model_config good = { .weights = weights, .limits = { 64, 4, 8, 4, 8 } }, bad;
        const struct tdm_device_ops *ops = &tdm_vulkan_device_ops;
        struct tdm_device_model *model = NULL;
        struct tdm_step_row row = { 17, 0, 0, UINT32_MAX };
        struct tdm_step step = { .head = { .step_id = 1, .n_rows = 1, .n_seqs = 1 }, .rows = &row };
        const struct tdm_device_config little_config = { .n_threads = 1,
                                                         .heartbeat = &heartbeat,
                                                         .memory_bytes = 1 << 20 };
        struct tdm_device *device, *little;
        struct tdm_recipe *recipe;
        struct tdm_error err = {};
        float *hidden = calloc(hp->d_model, sizeof(float));

        setenv("TANDEM_VULKAN_MEMORY", "copy", 1);
        assert_int_equal(ops->open(&device, &config, &err), 0);
        assert_non_null(strstr(ops->describe(device), "memory copied"));
        assert_non_null(strstr(ops->numerics_id(device), "vulkan-9/"));
        assert_int_equal(tdm_kv_geometry_init(&good.kv, hp, TDM_KV_F16, 4, 4, 0), 0);

        bad = good;
        bad.precision = (enum tdm_precision)99;
        assert_int_equal(ops->model_load(device, &bad, &model, &err), TDM_E_PROTOCOL);
        bad = good;
        bad.kv.layers[0].part_bytes /= 2;
        assert_int_equal(ops->model_load(device, &bad, &model, &err), TDM_E_PROTOCOL);

        /* What a recipe asks for and no kernel does. */
        recipe = &((struct tdm_weights_header *)weights)->recipe;
        recipe->logit_scale = 0.5f; /* packing leaves none */
        assert_int_equal(ops->model_load(device, &good, &model, &err), TDM_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "vulkan device: "));
        assert_non_null(strstr(err.message, "scaled logits"));
        recipe->logit_scale = 0;

        assert_int_equal(ops->open(&little, &little_config, &err), 0);
        assert_int_equal(ops->model_load(little, &good, &model, &err), TDM_E_NO_MEMORY);
        assert_non_null(strstr(err.message, "MiB on the GPU (weights"));
        ops->close(little);

        assert_int_equal(ops->model_load(device, &good, &model, &err), 0);
        assert_int_equal(ops->run(model, &step, 1, 1, hidden, NULL, NULL, NULL, &err),
                         -EINVAL); /* attention without a cache */
        ops->model_unload(model);
        ops->close(device);
        ops->model_unload(NULL);
        ops->close(NULL);

        setenv("TANDEM_VULKAN_MEMORY", "magic", 1);
        assert_int_equal(ops->open(&device, &config, &err), TDM_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "magic"));
        unsetenv("TANDEM_VULKAN_MEMORY");
        setenv("TANDEM_VULKAN_DEVICE", "no such GPU", 1);
        assert_int_equal(ops->open(&device, &config, &err), TDM_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "no such GPU"));
        unsetenv("TANDEM_VULKAN_DEVICE");
        random_model_destroy(weights);
        free(hidden);
}

/* ---- compiled kernels on disk ---- */

static char *kept_file(const char *folder)
{
        char pattern[256];
        glob_t found;
        char *path;

        snprintf(pattern, sizeof(pattern), "%s/tandem/kernels-*", folder);
        assert_int_equal(glob(pattern, 0, NULL, &found), 0);
        assert_int_equal(found.gl_pathc, 1); /* nothing half-written beside it */
        path = strdup(found.gl_pathv[0]);
        globfree(&found);
        return path;
}

static size_t read_file(const char *path, uint8_t *to, size_t size)
{
        FILE *f = fopen(path, "re");
        size_t n;

        assert_non_null(f);
        n = fread(to, 1, size, f);
        fclose(f);
        return n;
}

static void open_and_close(void)
{
        const struct tdm_device_config config = { .n_threads = 1, .heartbeat = &heartbeat };
        struct tdm_device *device;
        struct tdm_error err;

        assert_int_equal(tdm_vulkan_device_ops.open(&device, &config, &err), 0);
        tdm_vulkan_device_ops.close(device);
}

/* What is kept is taken when it is whole, ours and nobody else's to write, and replaced in every other case. */
static void kept(void **state)
{
        static uint8_t want[64 << 10], got[64 << 10];
        char folder[] = "/tmp/test-vulkan-XXXXXX", sub_folder[64], *path;
        const char *before = getenv("XDG_CACHE_HOME");
        _cleanup_(freep) char *old = before ? strdup(before) : NULL;
        struct stat st;
        glob_t rest;
        size_t n;
        FILE *f;

        assert_non_null(mkdtemp(folder));
        snprintf(sub_folder, sizeof(sub_folder), "%s/tandem", folder);
        assert_int_equal(mkdir(sub_folder, 0700), 0);
        setenv("XDG_CACHE_HOME", folder, 1);
        open_and_close();
        path = kept_file(folder);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        n = read_file(path, want, sizeof(want));
        assert_true(n > 56);
        open_and_close();
        assert_int_equal(read_file(path, got, sizeof(got)), n);

        for (unsigned damage = 0; damage < 5; damage++) {
                struct stat after;

                if (damage == 0) { /* one bit of what the driver would get */
                        memcpy(got, want, n);
                        got[n - 1] ^= 1;
                        f = fopen(path, "we");
                        assert_int_equal(fwrite(got, 1, n, f), n);
                        fclose(f);
                } else if (damage == 1) { /* cut */
                        assert_int_equal(truncate(path, (off_t)n / 2), 0);
                } else if (damage == 2) {
                        assert_int_equal(truncate(path, 0), 0);
                } else if (damage == 3) { /* others could have written it */
                        assert_int_equal(chmod(path, 0622), 0);
                } else { /* a link to who knows where */
                        assert_int_equal(unlink(path), 0);
                        assert_int_equal(symlink("/etc/passwd", path), 0);
                }
                assert_int_equal(lstat(path, &st), 0);
                open_and_close();
                assert_int_equal(lstat(path, &after), 0);
                if (S_ISREG(st.st_mode)) /* replaced: it was not taken */
                        assert_true(after.st_ino != st.st_ino);
                assert_true(S_ISREG(after.st_mode) && (after.st_mode & 0777) == 0600);
                assert_int_equal(read_file(path, got, sizeof(got)), n > sizeof(got) ? sizeof(got) : n);
        }
        assert_int_equal(unlink(path), 0);
        free(path);
        assert_int_equal(rmdir(sub_folder), 0);
        open_and_close(); /* no folder: nothing is kept, and nothing is wrong */
        snprintf(sub_folder, sizeof(sub_folder), "%s/*", folder);
        if (glob(sub_folder, 0, NULL, &rest) == 0) { /* of validation layers */
                for (size_t i = 0; i < rest.gl_pathc; i++)
                        unlink(rest.gl_pathv[i]);
                globfree(&rest);
        }
        assert_int_equal(rmdir(folder), 0);
        if (old)
                setenv("XDG_CACHE_HOME", old, 1);
        else
                unsetenv("XDG_CACHE_HOME");
}

/* Given a pattern, only the tests of such names. */
/* ---- measured shapes ---- */

/* Kernels that were compiled for a model by a device that was opened anew. Its context is one page: less than what is
 * measured at. */
static uint64_t compiled_for(const uint8_t *weights)
{
        const struct tdm_device_config config = { .n_threads = 2, .heartbeat = &heartbeat };
        struct tdm_device_model_config model_config = { .weights = weights, .limits = { 64, 1, 1, 1, 1 } };
        struct tdm_vulkan_counters counters;
        struct tdm_device_model *model;
        struct tdm_device *device;
        struct tdm_error err = {};

        assert_int_equal(
                tdm_kv_geometry_init(&model_config.kv, &tdm_weights_header(weights)->hparams, TDM_KV_F16, 4, 4, 0), 0);
        assert_int_equal(tdm_vulkan_device_ops.open(&device, &config, &err), 0);
        if (tdm_vulkan_device_ops.model_load(device, &model_config, &model, &err) != 0)
                fail_msg("%s", err.message);
        tdm_vulkan_counters(device, &counters);
        tdm_vulkan_device_ops.model_unload(model);
        tdm_vulkan_device_ops.close(device);
        return counters.pipelines;
}

/* The first load compiles and measures several shapes of each matrix; what it found is kept, so the next compiles those
 * alone. Without the file it measures again. TANDEM_VULKAN_TUNE=on asks for it on a CPU implementation, which takes a
 * minute. */
static void measured(void)
{
        /* Measured while it has its own cache already. */
        static const struct variant in_pieces = { "copy", .n_rows = 50, .chunk = 20, .in_pieces = true },
                                    whole = { "copy", .n_rows = 50, .chunk = 20 };
        char folder[] = "/tmp/test-vulkan-XXXXXX", sub_folder[64], *path;
        const char *wanted = getenv("TANDEM_VULKAN_TUNE"), *before = getenv("XDG_CACHE_HOME");
        _cleanup_(freep) char *old = before ? strdup(before) : NULL;
        uint64_t first, second, third;
        struct tdm_hparams hp;
        uint8_t *weights, *other;

        if (!wanted || strcmp(wanted, "on") != 0) {
                print_message("TANDEM_VULKAN_TUNE is not on\n");
                skip();
        }
        weights = model_new("tiny-128", TDM_TYPE_Q4_0);
        assert_true(random_model_hparams("tiny-128", &hp));
        hp.d_ff *= 2;
        for (uint32_t l = 0; l < hp.n_layers; l++)
                hp.layers[l].d_ff *= 2;
        other = random_model_new(&hp, TDM_TYPE_Q4_0, TDM_TYPE_Q4_0);
        assert_non_null(other);
        assert_non_null(mkdtemp(folder));
        snprintf(sub_folder, sizeof(sub_folder), "%s/tandem", folder);
        assert_int_equal(mkdir(sub_folder, 0700), 0);
        setenv("XDG_CACHE_HOME", folder, 1);
        first = compiled_for(weights);
        second = compiled_for(weights);
        compiled_for(other); /* of which some was measured, and some was not */
        path = kept_file(folder);
        assert_int_equal(unlink(path), 0);
        free(path);
        third = compiled_for(weights);
        print_message("%llu kernels compiled, then %llu, without the file %llu\n", (unsigned long long)first,
                      (unsigned long long)second, (unsigned long long)third);
        /* which shapes win, and so how many kernels, may differ */
        assert_true(second + 10 < first && second + 10 < third);
        path = kept_file(folder);
        assert_int_equal(unlink(path), 0);
        free(path);
        same_bits(weights, &in_pieces, &whole, 1);
        path = kept_file(folder);
        assert_int_equal(unlink(path), 0);
        free(path);
        assert_int_equal(rmdir(sub_folder), 0);
        assert_int_equal(rmdir(folder), 0);
        if (old)
                setenv("XDG_CACHE_HOME", old, 1);
        else
                unsetenv("XDG_CACHE_HOME");
        random_model_destroy(other);
        random_model_destroy(weights);
}

static void tuned(void **state)
{
        measured();
}

/* Rows of F16, where there are units for them. */
static void tuned_f16(void **state)
{
        if (!has_f16_units())
                skip();
        setenv("TANDEM_VULKAN_HALVES", "on", 1);
        measured();
        unsetenv("TANDEM_VULKAN_HALVES");
}

/* A folder for compiled kernels and measured shapes, as a worker has one (engine/worker/sandbox.c). Without it each of
 * the hundred loads here compiles and measures all shapes anew, which takes a GPU seconds. */
static char own_cache[] = "/tmp/test-vulkan-XXXXXX";

static int cache_begin(void **state)
{
        char folder[64];

        if (!mkdtemp(own_cache))
                return -1;
        snprintf(folder, sizeof(folder), "%s/tandem", own_cache);
        if (mkdir(folder, 0700) < 0)
                return -1;
        return setenv("XDG_CACHE_HOME", own_cache, 1);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
        (void)st, (void)kind, (void)at;
        return remove(path);
}

static int cache_end(void **state)
{
        return nftw(own_cache, remove_one, 8, FTW_DEPTH | FTW_PHYS); /* drivers leave theirs there too */
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(against_host),   cmocka_unit_test(k_against_host), cmocka_unit_test(exact),
                cmocka_unit_test(exact_f16),      cmocka_unit_test(as_dmabuf),      cmocka_unit_test(no_dmabuf),
                cmocka_unit_test(steady),         cmocka_unit_test(refused),        cmocka_unit_test(kept),
                cmocka_unit_test(tuned),          cmocka_unit_test(tuned_f16),      cmocka_unit_test(exact_few),
                cmocka_unit_test(more_exact_few), cmocka_unit_test(exact_plain),
        };
        const struct tdm_device_config config = { .n_threads = 1, .heartbeat = &heartbeat };
        struct tdm_device *device;
        struct tdm_error err = {};

        if (layer_is_missing())
                return 77;
        if (tdm_vulkan_device_ops.open(&device, &config, &err) != 0) {
                fprintf(stderr, "skipped: %s\n", err.message);
                return 77;
        }
        fprintf(stderr, "%s\n", tdm_vulkan_device_ops.describe(device));
        tdm_vulkan_device_ops.close(device);
        full = argc > 1 && strcmp(argv[1], "--full") == 0;
        if (argc > 1 + full)
                cmocka_set_test_filter(argv[1 + full]);
        return cmocka_run_group_tests(tests, cache_begin, cache_end);
}
