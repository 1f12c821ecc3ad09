/* Exactness of the host device: what a sequence gets, hidden rows, log-probabilities and drawn tokens, is the same bits
 * whatever the chunks of its prompt, its neighbours in the step, the threads, the placement of blocks and the kernels.
 *
 * tale has full layers and a context of several spans, so attention takes both of its ways; sprout is small enough for
 * the C reference. Pages are scattered and free ones hold NaN (runner.h).
 *
 * usage: test-host-exact [MODEL.gguf TEXTS.golden.json] [--full]
 * A model is used instead of the two, without a long context, and the C reference, which is slow, computes it in the
 * first way of rounding alone. --full: the C reference computes all ways, and as many rows as the other kernels. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/host/kernels.h"
#include "tests/golden/golden-file.h"
#include "tests/golden/runner.h"

#define MAX_LOGITS 16u   /* a chunk's last rows that are sampled */
#define BASE_LOGITS 240u /* the same of the run that the others are held against */

#ifdef __SANITIZE_THREAD__ /* a hundred times slower */
#define N_ROWS 40u
#define N_QUICK 270u
#elif defined(TANDEM_SANITIZED) /* twenty times */
#define N_ROWS 140u
#define N_QUICK 600u
#else
#define N_ROWS 300u
#define N_QUICK 1600u
#endif

static struct golden_file golden; /* texts: the two models share a vocabulary */
static const char *large = "models/tale.gguf", *small = "models/sprout.gguf";
static uint32_t c_rows = 40; /* that the C reference computes: over the end of a page */
static bool c_in_all_ways = true;

static const struct tdm_sampling sampling = {
        .temperature = 0.9f, .top_p = 0.95f, .min_p = 0.01f, .repeat_penalty = 1, .top_k = 40, .n_top = 4, .seed = 7
};

struct outcome {
        uint32_t n_rows, width;     /* residual_width */
        float *hidden;              /* [n_rows][width] */
        struct tdm_result *results; /* [n_rows] */
        bool *has_result;           /* [n_rows] */
        bool *had_logits;           /* [n_rows]: when the row was read last */
        bool stops_early;           /* rows without a result end before the last layer */
};

struct variant {
        const struct runner_model *model;
        struct runner_options options;
        const uint32_t *ids; /* [n_ids] */
        uint32_t n_ids;
        uint32_t n_rows; /* <= n_ids */
        uint32_t chunk;
        uint32_t n_logits; /* of a chunk, at most; 0: MAX_LOGITS */
        uint32_t n_quick;  /* rows that go before in large chunks */
        uint32_t n_others;
        bool rereads; /* the next step begins in the middle of a chunk, so its last rows are read again */
};

static void outcome_deinit(struct outcome *o)
{
        free(o->hidden);
        free(o->results);
        free(o->has_result);
        free(o->had_logits);
}

static struct outcome run(const struct variant *v)
{
        struct runner_options options = v->options;
        const struct tdm_hparams *hp = v->model->hp;
        struct outcome o = { .n_rows = v->n_rows, .width = hp->residual_width };
        float *hidden;
        struct tdm_result results[TDM_MAX_STEP_LOGITS];
        uint32_t others_at[RUNNER_TABLES] = {};
        struct runner *runner;

        options.max_rows = 2048;
        options.max_positions = 2048;
        runner = runner_new(v->model, &options);
        hidden = calloc(options.max_rows, o.width * sizeof(float));
        o.hidden = calloc(v->n_rows, o.width * sizeof(float));
        o.results = calloc(v->n_rows, sizeof(*o.results));
        o.has_result = calloc(v->n_rows, sizeof(bool));
        o.had_logits = calloc(v->n_rows, sizeof(bool));
        o.stops_early = hp->layers[hp->n_layers - 1].kv_layer != hp->n_layers - 1;

        for (uint32_t first = 0, n, step = 0; first < v->n_rows; first += v->rereads && n > 1 ? n / 2 : n, step++) {
                struct runner_part parts[RUNNER_TABLES];
                uint32_t n_parts = 0, at = 0, row = 0, logits = 0;

                n = TDM_MIN(first < v->n_quick ? N_QUICK / 8 : v->chunk, v->n_rows - first);
                for (uint32_t slot = 0; slot <= v->n_others; slot++) {
                        uint32_t other = (slot + step) % (v->n_others + 1); /* 0 is ours: everywhere in turn */
                        const struct golden_case *c = &golden.cases[other % golden.n_cases];
                        struct runner_part part = { .table = other,
                                                    .ids = v->ids,
                                                    .n_ids = v->n_ids,
                                                    .first = first,
                                                    .n = n,
                                                    .n_logits = TDM_MIN(n, v->n_logits ? v->n_logits : MAX_LOGITS),
                                                    .sampling = sampling };

                        if (other) { /* other chunks, other positions, from the start again at the end */
                                part.ids = c->ids;
                                part.n_ids = c->n_ids;
                                part.first = others_at[other];
                                part.n = TDM_MIN(1 + (other * 5 + step * 3) % 11, c->n_ids - part.first);
                                part.n_logits = other % 2;
                                others_at[other] = (part.first + part.n) % c->n_ids;
                                if (part.first == 0)
                                        runner_forget(runner, other);
                        } else {
                                at = n_parts;
                        }
                        parts[n_parts++] = part;
                }
                for (uint32_t i = 0; i < at; i++) {
                        row += parts[i].n;
                        logits += parts[i].n_logits;
                }
                runner_step(runner, parts, n_parts, hidden, results);
                memcpy(o.hidden + (size_t)first * o.width, hidden + (size_t)row * o.width,
                       (size_t)n * o.width * sizeof(float));
                memset(o.had_logits + first, 0, n * sizeof(bool));
                for (uint32_t i = 0; i < parts[at].n_logits; i++) {
                        uint32_t position = first + n - parts[at].n_logits + i;

                        o.results[position] = results[logits + i];
                        o.has_result[position] = o.had_logits[position] = true;
                }
        }
        runner_destroy(runner);
        free(hidden);
        return o;
}

/* A model whose last layers have no keys of their own leaves the hidden rows unfinished that want no logits. */
static bool has_hidden(const struct outcome *o, uint32_t row)
{
        return !o->stops_early || o->had_logits[row];
}

static void assert_same(const struct outcome *a, const struct outcome *b, const char *what)
{
        uint32_t n_compared = 0;

        for (uint32_t i = 0; i < TDM_MIN(a->n_rows, b->n_rows); i++) {
                n_compared += has_hidden(a, i) && has_hidden(b, i);
                if (has_hidden(a, i) && has_hidden(b, i) &&
                    memcmp(a->hidden + (size_t)i * a->width, b->hidden + (size_t)i * a->width,
                           a->width * sizeof(float)) != 0)
                        fail_msg("%s: hidden row of position %u differs", what, i);
                if (!a->has_result[i] || !b->has_result[i])
                        continue;
                if (a->results[i].token != b->results[i].token || a->results[i].n_top != b->results[i].n_top ||
                    memcmp(&a->results[i].logprob, &b->results[i].logprob, sizeof(float)) != 0 ||
                    memcmp(&a->results[i].target_logprob, &b->results[i].target_logprob, sizeof(float)) != 0 ||
                    memcmp(a->results[i].top, b->results[i].top, a->results[i].n_top * sizeof(struct tdm_top)) != 0)
                        fail_msg("%s: result of position %u differs", what, i);
        }
        assert_true(n_compared > 0);
}

/* All rows at once on one thread, nearly all with logits, is what the others are held against. A variant may have
 * fewer rows. */
static void compare(const struct variant *base, const struct variant *variants, unsigned n)
{
        struct variant whole = *base;
        struct outcome want;
        bool differ = false;

        whole.n_logits = BASE_LOGITS;
        want = run(&whole);

        for (uint32_t i = 1; i < want.n_rows; i++) /* a comparison of nothing with nothing would pass */
                differ |= memcmp(want.hidden, want.hidden + (size_t)i * want.width, want.width * sizeof(float)) != 0;
        assert_true(differ && isfinite(want.hidden[0]));
        for (unsigned i = 0; i < n; i++) {
                const struct variant *v = &variants[i];
                struct outcome got = run(v);
                char what[160];

                snprintf(what, sizeof(what), "chunks of %u, %u others, %u threads%s, kernels %s, precision %s",
                         v->chunk, v->n_others, v->options.n_threads,
                         v->options.split_threads ? " and a second device" : "",
                         v->options.cpu ? v->options.cpu : "best", tdm_precision_name(v->options.precision));
                assert_same(&want, &got, what);
                outcome_deinit(&got);
        }
        outcome_deinit(&want);
}

static struct variant base_of(const struct runner_model *model, uint32_t text, uint32_t n_rows,
                              enum tdm_precision precision)
{
        const struct golden_case *c = &golden.cases[text % golden.n_cases];

        return (struct variant){ .model = model,
                                 .options = { .precision = precision, .n_threads = 1 },
                                 .ids = c->ids,
                                 .n_ids = TDM_MIN(n_rows, c->n_ids),
                                 .n_rows = TDM_MIN(n_rows, c->n_ids),
                                 .chunk = 2048 };
}

static void test_chunks_threads_neighbours(void **state)
{
        static const struct {
                uint32_t chunk, n_threads, n_others;
                bool rereads;
        } ways[] = { { 1, 1, 0, false },  { 1, 2, 7, false },    { 7, 2, 0, false },
                     { 7, 1, 7, true },   { 64, 1, 7, true },    { 64, 2, 0, false },
                     { 64, 3, 7, false }, { 2048, 2, 0, false }, { 2048, 3, 0, false } };
        struct runner_model model;
        struct variant base, variants[TDM_ARRAY_SIZE(ways)];

        runner_model_load(&model, large);
        base = base_of(&model, 3, N_ROWS, TDM_PRECISION_DEFAULT);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(ways); i++) {
                variants[i] = base;
                variants[i].chunk = ways[i].chunk;
                variants[i].options.n_threads = ways[i].n_threads;
                variants[i].n_others = ways[i].n_others;
                variants[i].rereads = ways[i].rereads;
        }
        compare(&base, variants, TDM_ARRAY_SIZE(ways));
        runner_model_unload(&model);
}

/* Full layers over several spans: by spans in parallel where the rows are few. */
static void test_long_context(void **state)
{
        static const struct {
                uint32_t chunk, n_threads;
        } ways[] = { { 1, 1 }, { 1, 2 }, { 1, 3 }, { 5, 3 }, { 64, 2 } };
        struct runner_model model;
        struct variant base, variants[TDM_ARRAY_SIZE(ways)];

        runner_model_load(&model, large);
        base = base_of(&model, 4, N_QUICK + 30, TDM_PRECISION_DEFAULT);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(ways); i++) {
                variants[i] = base;
                variants[i].n_quick = N_QUICK;
                variants[i].chunk = ways[i].chunk;
                variants[i].options.n_threads = ways[i].n_threads;
        }
        compare(&base, variants, TDM_ARRAY_SIZE(ways));
        runner_model_unload(&model);
}

/* What q8_0 stores depends on the row alone, and long contexts are read by spans in parallel. */
static void test_q8_cache(void **state)
{
        static const struct {
                uint32_t chunk, n_threads, n_others;
        } ways[] = { { 1, 2, 0 }, { 7, 3, 7 }, { 64, 2, 0 } };
        struct runner_model model;
        struct variant base, variants[TDM_ARRAY_SIZE(ways)];

        runner_model_load(&model, small);
        base = base_of(&model, 4, N_QUICK, TDM_PRECISION_DEFAULT);
        base.options.kv_type = TDM_KV_Q8_0;
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(ways); i++) {
                variants[i] = base;
                variants[i].chunk = ways[i].chunk;
                variants[i].options.n_threads = ways[i].n_threads;
                variants[i].n_others = ways[i].n_others;
        }
        compare(&base, variants, TDM_ARRAY_SIZE(ways));
        runner_model_unload(&model);
}

static void test_placement(void **state)
{
        struct runner_model model;
        struct variant base, variants[3];

        runner_model_load(&model, small);
        base = base_of(&model, 3, N_ROWS, TDM_PRECISION_DEFAULT);
        variants[0] = variants[1] = variants[2] = base;
        variants[0].options.split_threads = 2;
        variants[0].chunk = 64;
        variants[1].options.split_threads = 1;
        variants[1].options.n_threads = 2;
        variants[1].chunk = 7;
        variants[1].n_others = 7;
        variants[2].options.logits_rows = 3; /* logits made tile by tile */
        variants[2].n_others = 7;
        variants[2].chunk = 64;
        compare(&base, variants, 3);
        runner_model_unload(&model);
}

static void test_kernels(void **state)
{
        static const struct {
                enum tdm_precision precision;
                enum tdm_kv_type kv_type;
        } ways[] = { { TDM_PRECISION_DEFAULT, TDM_KV_F16 },
                     { TDM_PRECISION_DEFAULT, TDM_KV_Q8_0 },
                     { TDM_PRECISION_PRECISE, TDM_KV_F16 },
                     { TDM_PRECISION_F32, TDM_KV_F32 } };
        static const char *const names[] = { "c", "avx2", "avx512" };
        struct runner_model model;

        runner_model_load(&model, small);
        for (unsigned p = 0; p < TDM_ARRAY_SIZE(ways); p++) {
                struct variant base = base_of(&model, 4, N_ROWS / 2, ways[p].precision), variants[6];
                unsigned n = 0;

                base.options.kv_type = ways[p].kv_type;
                for (unsigned i = 0; i < TDM_ARRAY_SIZE(names); i++) {
                        if (names[i][0] == 'c' && p > 0 && !c_in_all_ways)
                                continue;
                        if (!tdm_kernels_get(names[i])) {
                                print_message("this CPU cannot run the kernels %s\n", names[i]);
                                continue;
                        }
                        variants[n] = base;
                        variants[n].options.cpu = names[i];
                        variants[n].options.n_threads = 2;
                        variants[n].chunk = 2048;
                        variants[n + 1] = variants[n];
                        variants[n + 1].chunk = 13;
                        if (strcmp(names[i], "c") == 0)
                                variants[n].n_rows = TDM_MIN(c_rows, base.n_rows);
                        n += names[i][0] == 'c' ? 1 : 2;
                }
                compare(&base, variants, n);
        }
        runner_model_unload(&model);
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_chunks_threads_neighbours),
                cmocka_unit_test(test_q8_cache),
                cmocka_unit_test(test_placement),
                cmocka_unit_test(test_kernels),
        };
        const struct CMUnitTest long_tests[] = { cmocka_unit_test(test_long_context) };
        int r;

        c_in_all_ways = argc != 3;
        if (argc > 1 && strcmp(argv[argc - 1], "--full") == 0) {
                c_rows = UINT32_MAX;
                c_in_all_ways = true;
                argc--;
        }
        if (argc == 3)
                large = small = argv[1];
        golden_file_read(&golden, argc == 3 ? argv[2] : "tests/golden/tale.golden.json");
        r = cmocka_run_group_tests(tests, NULL, NULL);
        if (argc != 3)
                r += cmocka_run_group_tests(long_tests, NULL, NULL);
        golden_file_deinit(&golden);
        return r;
}
