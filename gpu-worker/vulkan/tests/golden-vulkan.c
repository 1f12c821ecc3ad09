/* How far the vulkan device is from the reference: scores a golden file in process and prints the distance (what it
 * means is said in tests/golden/golden-host.c). Exits 1 where a limit that was given is missed, 77 where there is no
 * device.
 *
 * usage: golden-vulkan MODEL.gguf GOLDEN.json [--precision P] [--chunk N] [--cases N] [--split] [--swapped] [--mean
 * LIMIT]
 *                      [--first PERCENT]     --split: attention on the host device; --swapped: all else on it */
#include <getopt.h>
#include <math.h>

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

static int usage(void)
{
        fprintf(stderr, "usage: golden-vulkan MODEL.gguf GOLDEN.json [--precision P] [--chunk N] [--cases N] [--split] "
                        "[--swapped] "
                        "[--mean LIMIT] [--first PERCENT]\n");
        return 2;
}

int main(int argc, char **argv)
{
        static const struct option options[] = {
                { "precision", required_argument, NULL, 'p' }, { "chunk", required_argument, NULL, 'c' },
                { "cases", required_argument, NULL, 'n' },     { "split", no_argument, NULL, 's' },
                { "swapped", no_argument, NULL, 'w' },         { "mean", required_argument, NULL, 'm' },
                { "first", required_argument, NULL, 'f' },     {},
        };
        static _Atomic uint64_t heartbeat;
        struct drive_options o = { .ops = { &tdm_vulkan_device_ops }, .n_tables = 1 };
        const struct tdm_device_config config = { .n_threads = 1, .heartbeat = &heartbeat };
        double mean_limit = INFINITY, first_limit = 0, mean, first;
        uint32_t chunk = 256, n_cases = UINT32_MAX;
        struct runner_model model;
        struct golden_file file;
        struct distance d = {};
        struct tdm_device *device;
        struct tdm_error err = {};
        struct drive *drive;
        bool passed;
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
        if (tdm_vulkan_device_ops.open(&device, &config, &err) != 0) {
                fprintf(stderr, "skipped: %s\n", err.message);
                return 77;
        }
        tdm_vulkan_device_ops.close(device);
        runner_model_load(&model, argv[optind]);
        golden_file_read(&file, argv[optind + 1]);
        for (uint32_t i = 0; i < TDM_MIN(file.n_cases, n_cases); i++)
                o.max_positions = TDM_MAX(o.max_positions, file.cases[i].n_ids);
        drive = drive_new(model.weights, &o);
        for (uint32_t i = 0; i < TDM_MIN(file.n_cases, n_cases); i++)
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
        drive_destroy(drive);
        runner_model_unload(&model);
        golden_file_deinit(&file);
        return passed ? 0 : 1;
}
