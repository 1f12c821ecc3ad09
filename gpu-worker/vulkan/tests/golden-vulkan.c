/* How far the vulkan device is from the reference: scores a golden file in process and prints the distance (what it
 * means is said in tests/golden/golden-host.c). Exits 1 where a limit that was given is missed, 77 where there is no
 * device.
 *
 * usage: golden-vulkan MODEL.gguf GOLDEN.json [--precision P] [--chunk N] [--cases N] [--split] [--swapped] [--mean
 * LIMIT] [--first PERCENT] [--exact]
 *
 * --split: attention on the host device; --swapped: all else on it. --exact: no distance, but the first text's results
 * are the same bits in chunks of 1, 7 and 64, beside other rows, and in a prompt whose other rows want no logits.
 *
 * Of a model that makes vectors the distance is that of cosines, and the limit is of the worst text. Then the texts are
 * run again, all in one step: each vector must be the same bits. */
#include <getopt.h>
#include <math.h>

#include "gpu-worker/vulkan/tests/layers.h"
#include "gpu-worker/vulkan/tests/test-drive.h"
#include "gpu-worker/vulkan/vulkan.h"
#include "tests/golden/golden-file.h"
#include "tests/golden/runner.h"

#define NEAR_TIE 0.05 /* as in golden-host.c */

struct distance {
        double sum, worst;
        uint32_t n, n_same, n_left_out;
};

static double logprob_of(const struct tdm_result *result, uint32_t id)
{
        for (uint32_t i = 0; i < result->n_top; i++)
                if (result->top[i].id == id)
                        return result->top[i].logprob;
        return -INFINITY;
}

static void score(const struct golden_case *c, uint32_t position, const struct tdm_result *result, struct distance *d)
{
        double largest = 0;
        uint32_t i;

        if (position + 1 < c->prompt_len || position + 1 - c->prompt_len >= c->n_top)
                return;
        i = position + 1 - c->prompt_len;
        if (c->n_gap && c->gap[i] < NEAR_TIE) {
                d->n_left_out++;
                return;
        }
        for (uint32_t k = 0; k < GOLDEN_TOP; k++)
                largest = fmax(largest, fabs(logprob_of(result, c->top[i][k].id) - c->top[i][k].logprob));
        d->sum += largest;
        d->worst = fmax(d->worst, largest);
        d->n_same += result->token == c->top[i][0].id;
        d->n++;
}

static void score_case(struct drive *drive, const struct golden_case *c, uint32_t chunk, struct distance *d)
{
        struct tdm_result *results = calloc(TDM_MAX_STEP_LOGITS, sizeof(*results));
        uint32_t n_rows = c->prompt_len - 1 + c->n_top;

        for (uint32_t first = 0, n; first < n_rows; first += n) {
                struct drive_part part = { .ids = c->ids,
                                           .n_ids = c->n_ids,
                                           .first = first,
                                           .sampling = { .top_p = 1, .repeat_penalty = 1, .n_top = TDM_MAX_TOP } };

                part.n = part.n_logits = n = TDM_MIN(chunk, n_rows - first);
                drive_step(drive, &part, 1, NULL, results);
                for (uint32_t i = 0; i < n; i++)
                        score(c, first + i, &results[i], d);
        }
        drive_forget(drive, 0);
        free(results);
}

/* 1 - cosine, from the difference of the unit vectors: nothing cancels. */
static double cosine_distance(const double *a, const float *b, uint32_t n)
{
        double a_square = 0, b_square = 0, sum = 0;

        for (uint32_t i = 0; i < n; i++) {
                a_square += a[i] * a[i];
                b_square += (double)b[i] * b[i];
        }
        for (uint32_t i = 0; i < n; i++) {
                double difference = a[i] / sqrt(a_square) - b[i] / sqrt(b_square);

                sum += difference * difference;
        }
        return fabs(b_square - 1) < 1e-3 ? sum / 2 : NAN;
}

/* Returns how many vectors are other bits in company than alone. */
static uint32_t score_vectors(struct drive *drive, const struct golden_file *file, uint32_t n_cases, uint32_t width,
                              struct distance *d)
{
        struct drive_part *parts = calloc(n_cases, sizeof(*parts));
        float *alone = calloc((size_t)n_cases * width, sizeof(*alone));
        uint32_t n_other = 0;

        for (uint32_t i = 0; i < n_cases; i++) {
                const struct golden_case *c = &file->cases[i];
                struct drive_part *part = &parts[n_cases - 1 - i];
                double distance;

                if (c->n_vector != width) {
                        fprintf(stderr, "a vector of %u numbers, the model's have %u\n", c->n_vector, width);
                        exit(1);
                }
                *part = (struct drive_part){ .table = i,
                                             .ids = c->ids,
                                             .n_ids = c->n_ids,
                                             .n = c->n_ids,
                                             .n_logits = 1,
                                             .sampling = { .top_p = 1, .repeat_penalty = 1 } };
                drive_step(drive, part, 1, NULL, NULL);
                memcpy(alone + (size_t)i * width, drive_vectors(drive), width * sizeof(*alone));
                drive_forget(drive, i);
                distance = cosine_distance(c->vector, alone + (size_t)i * width, width);
                d->sum += distance;
                d->worst = distance <= d->worst ? d->worst : distance; /* a NaN is the worst */
                d->n++;
        }
        drive_step(drive, parts, n_cases, NULL, NULL);
        for (uint32_t i = 0; i < n_cases; i++)
                n_other += memcmp(alone + (size_t)i * width, drive_vectors(drive) + (size_t)(n_cases - 1 - i) * width,
                                  width * sizeof(*alone)) != 0;
        free(parts);
        free(alone);
        return n_other;
}

#define EXACT_ROWS 96u
#define COMPANY_ROWS 33u

/* The result of the last position alone, of a prompt whose other rows want no logits. apart: it comes in a step of its
 * own. */
static void make_last(struct drive *drive, const struct golden_case *c, uint32_t n_rows, uint32_t chunk, bool apart,
                      struct tdm_result *ret)
{
        for (uint32_t first = 0, n; first < n_rows; first += n) {
                struct drive_part part = { .ids = c->ids,
                                           .n_ids = c->n_ids,
                                           .first = first,
                                           .sampling = { .top_p = 1, .repeat_penalty = 1, .n_top = TDM_MAX_TOP } };

                n = TDM_MIN(chunk, n_rows - first);
                if (apart && first < n_rows - 1)
                        n = TDM_MIN(n, n_rows - 1 - first);
                part.n = n;
                part.n_logits = first + n == n_rows;
                drive_step(drive, &part, 1, NULL, ret);
        }
        drive_forget(drive, 0);
}

/* Results of every position. chunk_other: rows of the other text in each step, which begin at another position. */
static void make_results(struct drive *drive, const struct golden_case *c, uint32_t n_rows, uint32_t chunk,
                         uint32_t chunk_other, struct tdm_result *ret)
{
        struct tdm_result *results = calloc(TDM_MAX_STEP_LOGITS, sizeof(*results));
        const struct tdm_sampling sampling = { .top_p = 1, .repeat_penalty = 1, .n_top = TDM_MAX_TOP };
        uint32_t other = 0;

        for (uint32_t first = 0, n; first < n_rows; first += n) {
                uint32_t n_other = TDM_MIN(chunk_other, n_rows - other);
                const struct drive_part others = { .table = 1,
                                                   .ids = c->ids,
                                                   .n_ids = c->n_ids,
                                                   .first = other,
                                                   .n = n_other,
                                                   .n_logits = 1,
                                                   .sampling = sampling };
                struct drive_part parts[2] = { others };
                struct drive_part *part = &parts[n_other > 0];

                n = TDM_MIN(chunk, n_rows - first);
                *part = (struct drive_part){ .table = 0,
                                             .ids = c->ids,
                                             .n_ids = c->n_ids,
                                             .first = first,
                                             .n = n,
                                             .n_logits = n,
                                             .sampling = sampling };
                drive_step(drive, parts, 1 + (n_other > 0), NULL, results);
                memcpy(ret + first, results + (n_other > 0), n * sizeof(*ret));
                other += n_other;
        }
        drive_forget(drive, 0);
        drive_forget(drive, 1);
        free(results);
}

static bool is_exact(struct drive *drive, const struct golden_case *c)
{
        static const uint32_t prompts[] = { EXACT_ROWS, 64, 7, 1 };
        static const uint32_t chunks[][2] = { { 1, 0 }, { 7, 0 }, { 64, 0 }, { COMPANY_ROWS, 40 }, { 1, 3 } };
        uint32_t n_rows = TDM_MIN(c->n_ids, EXACT_ROWS);
        struct tdm_result *whole = calloc(n_rows, sizeof(*whole)), *cut = calloc(n_rows, sizeof(*cut));
        bool same = true;

        make_results(drive, c, n_rows, n_rows, 0, whole);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(chunks); i++) {
                make_results(drive, c, n_rows, chunks[i][0], chunks[i][1], cut);
                if (memcmp(whole, cut, n_rows * sizeof(*whole)) == 0)
                        continue;
                printf("chunks of %u beside %u rows: other bits\n", chunks[i][0], chunks[i][1]);
                same = false;
        }
        for (unsigned i = 0; i < 2 * TDM_ARRAY_SIZE(prompts); i++) {
                make_last(drive, c, n_rows, prompts[i / 2], i % 2, cut);
                if (memcmp(whole + n_rows - 1, cut, sizeof(*cut)) == 0)
                        continue;
                printf("a prompt in chunks of %u%s: other bits\n", prompts[i / 2], i % 2 ? ", its last row apart" : "");
                same = false;
        }
        free(whole);
        free(cut);
        return same;
}

/* Whether rows without logits stopped early, where some layers have no keys of their own, and only there. */
static bool spares(struct drive *drive, const struct tdm_hparams *hp)
{
        bool wanted = hp->layers[hp->n_layers - 1].kv_layer != hp->n_layers - 1;
        struct tdm_vulkan_counters counters;

        tdm_vulkan_counters(drive_device(drive, 0), &counters);
        if ((counters.rows_spared > 0) == wanted)
                return true;
        printf("rows without logits %s\n", wanted ? "did not stop early" : "stopped early where none may");
        return false;
}

static int usage(void)
{
        fprintf(stderr, "usage: golden-vulkan MODEL.gguf GOLDEN.json [--precision P] [--chunk N] [--cases N] [--split] "
                        "[--swapped] "
                        "[--mean LIMIT] [--first PERCENT] [--exact]\n");
        return 2;
}

int main(int argc, char **argv)
{
        static const struct option options[] = {
                { "precision", required_argument, NULL, 'p' },
                { "chunk", required_argument, NULL, 'c' },
                { "cases", required_argument, NULL, 'n' },
                { "split", no_argument, NULL, 's' },
                { "swapped", no_argument, NULL, 'w' },
                { "mean", required_argument, NULL, 'm' },
                { "first", required_argument, NULL, 'f' },
                { "exact", no_argument, NULL, 'e' },
                {},
        };
        static _Atomic uint64_t heartbeat;
        struct drive_options o = { .ops = { &tdm_vulkan_device_ops }, .n_tables = 1 };
        const struct tdm_device_config config = { .n_threads = 1, .heartbeat = &heartbeat };
        double mean_limit = INFINITY, first_limit = 0, mean, first;
        uint32_t chunk = 256, n_cases = UINT32_MAX, n_rows = 0, n_other;
        const struct tdm_recipe *recipe;
        struct runner_model model;
        struct golden_file file;
        struct distance d = {};
        struct tdm_device *device;
        struct tdm_error err = {};
        struct drive *drive;
        bool passed, exact = false;
        int c;

        while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
                switch (c) {
                case 'p':
                        c = tdm_precision_from_name(optarg);
                        if (c < 0)
                                return usage();
                        o.precision = (enum tdm_precision)c;
                        break;
                case 'c':
                        chunk = (uint32_t)TDM_MIN(TDM_MAX(atoi(optarg), 1), (int)TDM_MAX_STEP_LOGITS);
                        break;
                case 'n':
                        n_cases = (uint32_t)atoi(optarg);
                        break;
                case 's':
                case 'w':
                        o.ops[1] = &tdm_host_device_ops;
                        o.plan = c == 's' ? DRIVE_SPLIT : DRIVE_SWAPPED;
                        break;
                case 'e':
                        exact = true;
                        break;
                case 'm':
                        mean_limit = atof(optarg);
                        break;
                case 'f':
                        first_limit = atof(optarg);
                        break;
                default:
                        return usage();
                }
        }
        if (argc - optind != 2)
                return usage();
        if (layer_is_missing())
                return 77;
        if (tdm_vulkan_device_ops.open(&device, &config, &err) != 0) {
                fprintf(stderr, "skipped: %s\n", err.message);
                return 77;
        }
        tdm_vulkan_device_ops.close(device);
        runner_model_load(&model, argv[optind]);
        golden_file_read(&file, argv[optind + 1]);
        n_cases = TDM_MIN(n_cases, file.n_cases);
        recipe = &tdm_weights_header(model.weights)->recipe;
        o.inputs = model.inputs;
        for (uint32_t i = 0; i < n_cases; i++) {
                o.max_positions = TDM_MAX(o.max_positions, file.cases[i].n_ids);
                n_rows += file.cases[i].n_ids;
        }
        if (recipe->pooling != TDM_POOLING_NONE) {
                o.max_rows = n_rows;
                o.n_tables = n_cases;
        }
        if (exact)
                o.n_tables = 2;
        drive = drive_new(model.weights, &o);
        if (exact) {
                passed = is_exact(drive, &file.cases[0]);
                printf("%s %s%s: %s\n", argv[optind], tdm_precision_name(o.precision),
                       o.plan == DRIVE_SPLIT ? " split" :
                       o.plan                ? " swapped" :
                                               "",
                       passed ? "the same bits" : "OTHER BITS");
                passed = spares(drive, model.hp) && passed;
                goto end;
        }
        if (recipe->pooling != TDM_POOLING_NONE) {
                n_other = score_vectors(drive, &file, n_cases, model.hp->d_model, &d);
                passed = d.worst <= mean_limit && n_other == 0;
                printf("%s %s (%s)%s: cosine distance %.1e, worst %.1e of %u, %u other bits in company: %s\n",
                       argv[optind], tdm_precision_name(o.precision),
                       tdm_vulkan_device_ops.describe(drive_device(drive, 0)),
                       o.plan == DRIVE_SPLIT ? " split" :
                       o.plan                ? " swapped" :
                                               "",
                       d.sum / d.n, d.worst, d.n, n_other, passed ? "within limits" : "LIMITS MISSED");
                goto end;
        }
        for (uint32_t i = 0; i < n_cases; i++)
                score_case(drive, &file.cases[i], chunk, &d);

        mean = d.sum / d.n;
        first = 100.0 * d.n_same / d.n;
        passed = mean <= mean_limit && first >= first_limit; /* a NaN passes nothing */
        printf("%s %s (%s)%s: mean %.5f, worst %.4f, first choice %.2f%% of %u: %s\n", argv[optind],
               tdm_precision_name(o.precision), tdm_vulkan_device_ops.describe(drive_device(drive, 0)),
               o.plan == DRIVE_SPLIT ? " split" :
               o.plan                ? " swapped" :
                                       "",
               mean, d.worst, first, d.n, passed ? "within limits" : "LIMITS MISSED");
end:
        drive_destroy(drive);
        runner_model_unload(&model);
        golden_file_deinit(&file);
        return passed ? 0 : 1;
}
