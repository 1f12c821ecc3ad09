/* How far the host device is from the reference: scores a golden file in process and prints the distance.
 *
 * Distance: over all positions that the reference continued, the mean and the median of the largest |difference| of
 * log-probability over the reference's top ten. First choice: how often the likeliest token is the same. Also the mean
 * |difference| of nll over every position. Exits 1 where a limit that was given is missed. Positions where two experts
 * are nearly equal are left out: another one may be chosen there for a rounding's sake.
 *
 * usage: golden-host MODEL.gguf GOLDEN.json [--precision P] [--kv f16|f32|q8_0] [--cpu NAME] [--threads N] [--chunk N]
 *                    [--mean LIMIT] [--median LIMIT] [--first PERCENT] [--saturated] [--rounded]
 * --saturated: some value must not have fitted f16. --rounded: YaRN's range as llama.cpp rounds it.
 */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>

#include "tests/golden/golden-file.h"
#include "tests/golden/runner.h"

#define NEAR_TIE 0.05 /* of the router's numbers */

struct distance {
        double sum, worst, nll_sum;
        double *all; /* [n] */
        uint32_t n, n_same, n_nll, n_left_out;
        uint64_t bits; /* FNV-1a of every result's bits, so that two runs can be compared */
};

static void add_bits(struct distance *d, const void *data, size_t n)
{
        for (const uint8_t *p = data, *end = p + n; p < end; p++)
                d->bits = (d->bits ^ *p) * UINT64_C(1099511628211);
}

static double logprob_of(const struct tdm_result *result, uint32_t id)
{
        for (uint32_t i = 0; i < result->n_top; i++)
                if (result->top[i].id == id)
                        return result->top[i].logprob;
        return -INFINITY; /* not among the top 64: as far off as can be */
}

static void score_position(const struct golden_case *c, uint32_t position, const struct tdm_result *result,
                           struct distance *d)
{
        double largest = 0;
        uint32_t i;

        add_bits(d, &result->token, sizeof(result->token));
        add_bits(d, &result->logprob, sizeof(result->logprob));
        for (uint32_t k = 0; k < result->n_top; k++) {
                add_bits(d, &result->top[k].id, sizeof(result->top[k].id));
                add_bits(d, &result->top[k].logprob, sizeof(result->top[k].logprob));
        }
        if (position < c->n_nll) {
                d->nll_sum += fabs(-result->target_logprob - c->nll[position]);
                d->n_nll++;
        }
        if (position + 1 < c->prompt_len || position + 1 - c->prompt_len >= c->n_top)
                return;
        i = position + 1 - c->prompt_len;
        if (c->n_gap && c->gap[i] < NEAR_TIE) {
                d->n_left_out++;
                return;
        }
        for (uint32_t k = 0; k < GOLDEN_TOP; k++)
                largest = fmax(largest, fabs(logprob_of(result, c->top[i][k].id) - c->top[i][k].logprob));
        d->all = realloc(d->all, (d->n + 1) * sizeof(*d->all));
        if (!d->all)
                abort();
        d->all[d->n] = largest;
        d->sum += largest;
        d->worst = fmax(d->worst, largest);
        d->n_same += result->token == c->top[i][0].id;
        d->n++;
}

static int compare_doubles(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

static double median(struct distance *d)
{
        qsort(d->all, d->n, sizeof(*d->all), compare_doubles);
        return (d->all[(d->n - 1) / 2] + d->all[d->n / 2]) / 2;
}

static void score_case(struct runner *runner, const struct golden_case *c, uint32_t chunk, struct distance *d)
{
        struct tdm_result *results = calloc(TDM_MAX_STEP_LOGITS, sizeof(*results));
        uint32_t n_rows = TDM_MAX(c->n_nll, c->prompt_len - 1 + c->n_top);

        for (uint32_t first = 0, n; first < n_rows; first += n) {
                struct runner_part part = { .ids = c->ids,
                                            .n_ids = c->n_ids,
                                            .first = first,
                                            .sampling = { .top_p = 1, .repeat_penalty = 1, .n_top = TDM_MAX_TOP } };

                part.n = part.n_logits = n = TDM_MIN(chunk, n_rows - first);
                runner_step(runner, &part, 1, NULL, results);
                for (uint32_t i = 0; i < n; i++)
                        score_position(c, first + i, &results[i], d);
        }
        runner_forget(runner, 0);
        free(results);
}

int main(int argc, char **argv)
{
        static const struct option options[] = {
                { "precision", required_argument, NULL, 'p' },
                { "kv", required_argument, NULL, 'k' },
                { "cpu", required_argument, NULL, 'u' },
                { "threads", required_argument, NULL, 't' },
                { "chunk", required_argument, NULL, 'c' },
                { "mean", required_argument, NULL, 'm' },
                { "median", required_argument, NULL, 'd' },
                { "first", required_argument, NULL, 'f' },
                { "saturated", no_argument, NULL, 's' },
                { "rounded", no_argument, NULL, 'r' },
                {},
        };
        struct runner_options o = {};
        double mean_limit = INFINITY, median_limit = INFINITY, first_limit = 0, mean, middle, first;
        struct runner_model model;
        struct golden_file file;
        struct distance d = { .bits = UINT64_C(14695981039346656037) };
        struct runner *runner;
        uint32_t chunk = 256;
        bool must_saturate = false, rounded = false, passed;
        int c;

        while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
                switch (c) {
                case 'p':
                        c = tdm_precision_from_name(optarg);
                        if (c < 0)
                                return 2;
                        o.precision = (enum tdm_precision)c;
                        break;
                case 'k':
                        c = tdm_kv_type_from_name(optarg);
                        if (c < 0)
                                return 2;
                        o.kv_type = (enum tdm_kv_type)c;
                        break;
                case 'u':
                        o.cpu = optarg;
                        break;
                case 't':
                        o.n_threads = (unsigned)atoi(optarg);
                        break;
                case 'c':
                        chunk = (uint32_t)TDM_MIN(TDM_MAX(atoi(optarg), 1), (int)TDM_MAX_STEP_LOGITS);
                        break;
                case 'm':
                        mean_limit = atof(optarg);
                        break;
                case 'd':
                        median_limit = atof(optarg);
                        break;
                case 'f':
                        first_limit = atof(optarg);
                        break;
                case 's':
                        must_saturate = true;
                        break;
                case 'r':
                        rounded = true;
                        break;
                default:
                        return 2;
                }
        }
        if (argc - optind != 2) {
                fprintf(stderr,
                        "usage: golden-host MODEL.gguf GOLDEN.json [--precision P] [--kv f16|f32|q8_0] [--cpu NAME] "
                        "[--threads N] [--chunk N] [--mean LIMIT] [--median LIMIT] [--first PERCENT] [--saturated] "
                        "[--rounded]\n");
                return 2;
        }
        runner_model_load(&model, argv[optind]);
        if (rounded)
                runner_model_round_yarn(&model);
        golden_file_read(&file, argv[optind + 1]);
        runner = runner_new(&model, &o);
        for (uint32_t i = 0; i < file.n_cases; i++)
                score_case(runner, &file.cases[i], chunk, &d);

        mean = d.sum / d.n;
        middle = median(&d);
        first = 100.0 * d.n_same / d.n;
        /* A NaN passes nothing. */
        passed = mean <= mean_limit && middle <= median_limit && first >= first_limit &&
                 (!must_saturate || runner_n_saturated(runner) > 0);
        printf("%s %s (%s): mean %.5f, median %.5f, worst %.4f, first choice %.2f%% of %u (%u left out); nll off by "
               "%.5f; %llu saturated; bits %016" PRIx64 ": %s\n",
               argv[optind], tdm_precision_name(o.precision), runner_describe(runner), mean, middle, d.worst, first,
               d.n, d.n_left_out, d.nll_sum / d.n_nll, (unsigned long long)runner_n_saturated(runner), d.bits,
               passed ? "within limits" : "LIMITS MISSED");
        runner_destroy(runner);
        runner_model_unload(&model);
        golden_file_deinit(&file);
        free(d.all);
        return passed ? 0 : 1;
}
