/* See report.h. The golden values are those of tests/golden: of six prompts the ids that the model in float64 goes on
 * with, and its ten likeliest tokens at each of these positions. The distance is the mean, over all positions, of the
 * largest difference in log-probability over the ten. */
#include "client-lib/cli/report/report.h"

#include <jansson.h>
#include <math.h>

enum { TOP = 64 };

struct sums {
        double sum, worst;
        unsigned n, n_first;
        const char *why; /* NULL: it could be measured */
};

static void compare_scores(const struct tandem_scores *scores, const json_t *top, size_t begin, struct sums *sums)
{
        for (size_t i = 0; i < json_array_size(top); i++) {
                const json_t *want = json_array_get(top, i);
                size_t at = begin + i;
                const uint32_t *ids = scores->top_ids + at * scores->top;
                const float *logprobs = scores->top_logprobs + at * scores->top;
                double largest = 0;

                if (at >= scores->n || scores->n_top[at] == 0) {
                        sums->why = "the daemon gave fewer positions than there are";
                        return;
                }
                for (size_t j = 0; j < json_array_size(want); j++) {
                        const json_t *pair = json_array_get(want, j);
                        json_int_t id = json_integer_value(json_array_get(pair, 0));
                        double logprob = json_number_value(json_array_get(pair, 1));
                        uint32_t k = 0;

                        while (k < scores->n_top[at] && ids[k] != (uint32_t)id)
                                k++;
                        if (k == scores->n_top[at]) {
                                sums->why = "its values are of another model: is the one called tale the demo model?";
                                return;
                        }
                        largest = fmax(largest, fabs((double)logprobs[k] - logprob));
                }
                sums->sum += largest;
                sums->worst = fmax(sums->worst, largest);
                sums->n_first += ids[0] == (uint32_t)json_integer_value(json_array_get(json_array_get(want, 0), 0));
                sums->n++;
        }
}

/* One prompt of the golden file. False: err says why the daemon did not do it. */
static bool measure_golden(struct tandem *tandem, const json_t *golden, struct sums *sums, struct tandem_error *err)
{
        _cleanup_(tandem_job_freep) struct tandem_job *job = NULL;
        const json_t *ids = json_object_get(golden, "ids");
        size_t n = json_array_size(ids);
        _cleanup_(freep) uint32_t *numbers = calloc(TDM_MAX(n, 1u), sizeof(*numbers));
        const struct tandem_result *result;
        struct tandem_score_options options;

        if (!numbers) {
                sums->why = "no memory";
                return true;
        }
        for (size_t i = 0; i < n; i++)
                numbers[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
        tandem_score_options_init(&options);
        options.model = "tale";
        options.ids = numbers;
        options.n_ids = n;
        options.top = TOP;
        if (tandem_score(tandem, &options, NULL, NULL, &job, err) != TANDEM_OK)
                return false;
        if (run_jobs(tandem, &job, 1, SIGNAL_CANCEL) != RUN_DONE) {
                sums->why = "interrupted";
                return true;
        }
        result = tandem_job_result(job);
        if (result->reason == TANDEM_REASON_ERROR) {
                *err = result->error;
                return false;
        }
        if (!tandem_job_scores(job)) {
                sums->why = "the job was cancelled";
                return true;
        }
        compare_scores(tandem_job_scores(job), json_object_get(golden, "top"),
                       (size_t)json_integer_value(json_object_get(golden, "prompt_len")) - 1, sums);
        return true;
}

void report_distance(struct buf *to, struct tandem *tandem)
{
        struct tandem_error err = { 0 };
        struct sums sums = { 0 };
        json_t *all = json_loads(report_golden_json, 0, NULL);
        bool ok = true;

        for (size_t i = 0; ok && !sums.why && i < json_array_size(all); i++)
                ok = measure_golden(tandem, json_array_get(all, i), &sums, &err);
        json_decref(all);
        if (!ok)
                buf_printf(to, "Not measured: %s: %s\n", err.name, err.message);
        else if (sums.why || sums.n == 0)
                buf_printf(to, "Not measured: %s\n", sums.why ? sums.why : "no golden values");
        else
                buf_printf(to,
                           "Mean %.4f, worst %.4f, the same first choice at %.1f%% of %u positions. An exact model has "
                           "0; with the default precision at most 0.087 is expected.\n",
                           sums.sum / sums.n, sums.worst, 100.0 * sums.n_first / sums.n, sums.n);
}
