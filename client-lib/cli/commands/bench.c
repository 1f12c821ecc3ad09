/* tandem bench: how fast the daemon is, measured from outside like any client sees it.
 *
 * For each batch size b, b jobs start together, each with a prompt of its own: BOS, then ids drawn from a sample text's
 * tokens with a fixed generator, so that every run and every machine reads the same prompts and no prefix is shared.
 * Prefill is what happens until every job has its first token; decode is what comes after that, until the first job has
 * its last: while all of them generate. Where that never happens there is no such rate, and a reason stands in its
 * place; what is generated in all, per second, can always be said. */
#include "client-lib/cli/cli.h"

#include <inttypes.h>
#include <math.h>

static const char sample_text[] =
        "Once upon a time there was a small fox who lived at the edge of a great forest. Every morning she walked down "
        "to the river, looked at the water and asked herself where it came from and where it went. One day a grey "
        "heron said: \"Follow it upward and you will find snow; follow it downward and you will find the sea.\" The "
        "fox thought about this for 3 days and 14 nights, packed some bread, two apples and a blue lamp, and left "
        "before the sun was up. Numbers, names and other things were left behind: clocks, letters, maps of cities, "
        "songs about winter, the price of salt. She had never been happier.";

struct bench_options {
        struct job_args job;       /* first: command.h */
        const char *model, *asked; /* asked: what the library is asked for */
        uint32_t n_prompt, n_tokens;
        struct arg_u32_list batches;
        bool json;
};

extern const struct command command_bench;

struct bench_job {
        struct tandem_job *job;
        struct bench_run *run;
        uint64_t start_ns, first_token_ns, last_token_ns;
        uint64_t first_together_ns, last_together_ns; /* while all jobs generate */
        uint32_t n_tokens, n_together;
};

#define GAPS_MAX (4u << 20) /* that percentiles are made of: the first ones */

struct bench_run {
        struct run_progress progress;
        float *gaps; /* [gaps_max]: milliseconds between a job's tokens */
        size_t n_gaps, gaps_max;
        unsigned n_jobs, n_started; /* jobs that have their first token */
        uint32_t n_tokens;          /* of each */
        bool one_ended;
        struct bench_job *jobs;
        uint64_t all_started_ns, last_ns;
};

struct bench_result {
        uint32_t batch;
        double ttft_ms, ttft_max_ms, prefill_tps, decode_tps_stream, decode_tps, generated_tps, wall_ms;
        double ttft_percentiles[3], gap_percentiles[3]; /* of percentiles[] */
        uint32_t recoveries;
};

static const double percentiles[] = { 0.50, 0.95, 0.99 };
static const char *const ttft_names[] = { "ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms" }, *const gap_names[] = {
        "gap_p50_ms", "gap_p95_ms", "gap_p99_ms"
};

static int compare_ms(const void *a, const void *b)
{
        float x = *(const float *)a, y = *(const float *)b;

        return (x > y) - (x < y);
}

/* Sorts them. NAN: there are none. */
static void find_percentiles(float *ms, size_t n, double ret[3])
{
        qsort(ms, n, sizeof(*ms), compare_ms);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(percentiles); i++)
                ret[i] = n > 0 ? (double)ms[(size_t)(percentiles[i] * (double)(n - 1) + 0.5)] : NAN;
}

static void on_bench_token(struct tandem_job *job, const struct tandem_token *token, void *userdata)
{
        struct bench_job *b = userdata;
        struct bench_run *run = b->run;
        uint64_t now = tdm_now_ns();

        progress_clear();
        if (b->n_tokens > 0 && run->n_gaps < run->gaps_max)
                run->gaps[run->n_gaps++] = (float)((double)(now - b->last_token_ns) / 1e6);
        if (b->n_tokens++ == 0) {
                b->first_token_ns = now;
                if (++run->n_started == run->n_jobs)
                        run->all_started_ns = now;
        }
        if (run->n_started == run->n_jobs && !run->one_ended) {
                if (b->n_together++ == 0)
                        b->first_together_ns = now;
                b->last_together_ns = now;
                run->one_ended = b->n_tokens == run->n_tokens;
        }
        b->last_token_ns = run->last_ns = now;
}

static void on_bench_progress(struct tandem_job *job, const struct tandem_progress *progress, void *userdata)
{
        struct bench_job *b = userdata;

        if (progress->state == TANDEM_JOB_LOADING || progress->state == TANDEM_JOB_RECOVERING)
                run_show_progress(job, progress, &b->run->progress);
}

/* SplitMix64's finaliser: a well-mixed draw for (job, position). */
static uint64_t draw_id(uint64_t job, uint64_t position)
{
        uint64_t x = (job << 32 | position) + UINT64_C(0x9e3779b97f4a7c15);

        x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
        return x ^ x >> 31;
}

static double per_second(double count, uint64_t ns)
{
        return ns > 0 ? count * 1e9 / (double)ns : NAN;
}

/* Each job's own rate while all generate, from one of its tokens to another: counting all tokens of that time would be
 * off by part of a step at both ends. NAN: they never did, or for less than two tokens each. */
static double rate_together(const struct bench_run *run)
{
        double sum = 0;

        for (unsigned i = 0; i < run->n_jobs; i++) {
                const struct bench_job *b = &run->jobs[i];

                if (b->n_together < 2)
                        return NAN;
                sum += per_second(b->n_together - 1, b->last_together_ns - b->first_together_ns);
        }
        return sum;
}

/* Of what all jobs generated, from the first of them to the last. */
static double rate_of_all(const struct bench_run *run)
{
        uint64_t first_ns = run->last_ns, n = 0;

        for (unsigned i = 0; i < run->n_jobs; i++) {
                first_ns = TDM_MIN(first_ns, run->jobs[i].first_token_ns);
                n += run->jobs[i].n_tokens;
        }
        return n > 1 ? per_second((double)(n - 1), run->last_ns - first_ns) : NAN;
}

/* Starts the jobs of one batch size and waits; EXIT_OK or the program's exit status. */
static int run_batch(struct tandem *tandem, const struct bench_options *given, const uint32_t *vocabulary,
                     size_t n_vocabulary, uint32_t n_prompt, uint32_t n_tokens, uint32_t batch,
                     struct bench_result *ret)
{
        _cleanup_(freep) struct bench_job *jobs = calloc(batch, sizeof(*jobs));
        _cleanup_(freep) struct tandem_job **handles = calloc(batch, sizeof(*handles));
        _cleanup_(freep) uint32_t *prompt = calloc(n_prompt, sizeof(*prompt));
        size_t gaps_max = (size_t)TDM_MIN((uint64_t)batch * n_tokens, (uint64_t)GAPS_MAX);
        _cleanup_(freep) float *gaps = calloc(gaps_max, sizeof(*gaps)), *firsts = calloc(batch, sizeof(*firsts));
        /* from the clock: what an earlier run left in the daemon's prefix cache would count as read */
        static uint64_t serial;
        struct bench_run run = { .progress.model = given->model,
                                 .n_jobs = batch,
                                 .n_tokens = n_tokens,
                                 .jobs = jobs,
                                 .gaps = gaps,
                                 .gaps_max = gaps_max };
        struct tandem_generate_options options = given->job.options;
        struct tandem_callbacks callbacks;
        struct tandem_error err;
        enum run_outcome outcome;
        uint64_t start_ns;
        double streams = 0;
        unsigned n_streams = 0;
        int status = EXIT_OK;

        if (!jobs || !handles || !prompt || !gaps || !firsts)
                return complain("no memory for %" PRIu32 " jobs", batch);
        tandem_callbacks_init(&callbacks);
        callbacks.on_token = on_bench_token;
        callbacks.on_progress = on_bench_progress;
        options.model = given->asked;
        options.prompt_ids = prompt;
        options.n_prompt_ids = n_prompt;
        options.max_tokens = n_tokens;
        options.temperature = 0;
        options.ignore_end = true;

        start_ns = tdm_now_ns();
        if (serial == 0)
                serial = start_ns;
        for (uint32_t b = 0; b < batch; b++, serial++) {
                prompt[0] = vocabulary[0];
                for (uint32_t i = 1; i < n_prompt; i++)
                        prompt[i] = vocabulary[n_vocabulary > 1 ? 1 + draw_id(serial, i) % (n_vocabulary - 1) : 0];
                jobs[b].run = &run;
                jobs[b].start_ns = tdm_now_ns();
                if (tandem_generate(tandem, &options, &callbacks, &jobs[b], &jobs[b].job, &err) != TANDEM_OK) {
                        status = complain_error(&err);
                        batch = b;
                        break;
                }
                handles[b] = jobs[b].job;
        }
        outcome = status == EXIT_OK ? run_jobs(tandem, handles, batch, SIGNAL_CANCEL) : RUN_DONE;
        if (outcome == RUN_INTERRUPTED)
                status = EXIT_INTERRUPTED;
        else if (outcome == RUN_OUTPUT_GONE)
                status = EXIT_FAILED;

        *ret = (struct bench_result){ .batch = batch };
        for (uint32_t b = 0; b < batch && status == EXIT_OK; b++) {
                const struct tandem_result *result = tandem_job_result(jobs[b].job);
                double ttft_ms = (double)(jobs[b].first_token_ns - jobs[b].start_ns) / 1e6;

                if (result->reason == TANDEM_REASON_ERROR)
                        status = complain_model(&result->error, given->model);
                else if (result->reason == TANDEM_REASON_CANCELLED)
                        status = complain("cancelled: job %" PRIu64 " was cancelled from elsewhere", result->job);
                else if (jobs[b].n_tokens == 0)
                        status = complain("job %" PRIu64 " of the benchmark generated nothing", result->job);
                if (status != EXIT_OK)
                        break;
                firsts[b] = (float)ttft_ms;
                ret->ttft_ms += ttft_ms / batch;
                ret->ttft_max_ms = TDM_MAX(ret->ttft_max_ms, ttft_ms);
                ret->recoveries += result->recoveries;
                if (jobs[b].n_tokens > 1 && jobs[b].last_token_ns > jobs[b].first_token_ns) {
                        streams += per_second(jobs[b].n_tokens - 1, jobs[b].last_token_ns - jobs[b].first_token_ns);
                        n_streams++;
                }
        }
        if (status == EXIT_OK) {
                ret->prefill_tps = per_second((double)batch * n_prompt, run.all_started_ns - start_ns);
                ret->decode_tps_stream = n_streams ? streams / n_streams : NAN;
                ret->decode_tps = rate_together(&run);
                ret->generated_tps = rate_of_all(&run);
                find_percentiles(firsts, batch, ret->ttft_percentiles);
                find_percentiles(gaps, run.n_gaps, ret->gap_percentiles);
                ret->wall_ms = (double)(run.last_ns - start_ns) / 1e6;
        }
        for (uint32_t b = 0; b < batch; b++)
                tandem_job_free(jobs[b].job);
        return status;
}

/* Why there is no rate of all jobs together; false: there is one. */
static bool lacks_together(const struct bench_options *given, const struct bench_result *r, char *ret, size_t size)
{
        if (!isnan(r->decode_tps))
                return false;
        if (given->n_tokens < 2)
                snprintf(ret, size, "one token each has no rate of generation: ask for more (-n)");
        else
                snprintf(ret, size,
                         "of %" PRIu32 " jobs the first had ended before all generated: their rate together needs more "
                         "tokens each (-n), and a daemon that runs as many at once (max-sequences)",
                         r->batch);
        return true;
}

static void print_results(const struct bench_options *given, const struct bench_result *results)
{
        struct buf b = { 0 };
        char why[240];

        buf_puts(&b, "{");
        json_field_string(&b, "model", given->model ? given->model : "");
        json_field_u64(&b, "prompt_tokens", given->n_prompt);
        json_field_u64(&b, "max_tokens", given->n_tokens);
        json_key(&b, "results");
        buf_puts(&b, "[");
        for (size_t i = 0; i < given->batches.n; i++) {
                buf_puts(&b, i ? ",{" : "{");
                json_field_u64(&b, "batch", results[i].batch);
                json_field_number(&b, "prefill_tps", results[i].prefill_tps);
                json_field_number(&b, "decode_tps_stream", results[i].decode_tps_stream);
                json_field_number(&b, "decode_tps", results[i].decode_tps);
                if (lacks_together(given, &results[i], why, sizeof(why)))
                        json_field_string(&b, "decode_tps_missing", why);
                json_field_number(&b, "generated_tps", results[i].generated_tps);
                json_field_number(&b, "ttft_ms", results[i].ttft_ms);
                json_field_number(&b, "ttft_max_ms", results[i].ttft_max_ms);
                for (size_t k = 0; k < TDM_ARRAY_SIZE(percentiles); k++)
                        json_field_number(&b, ttft_names[k], results[i].ttft_percentiles[k]);
                for (size_t k = 0; k < TDM_ARRAY_SIZE(percentiles); k++)
                        json_field_number(&b, gap_names[k], results[i].gap_percentiles[k]);
                json_field_number(&b, "wall_ms", results[i].wall_ms);
                json_field_u64(&b, "recoveries", results[i].recoveries);
                buf_puts(&b, "}");
        }
        buf_puts(&b, "]}\n");
        if (!b.failed)
                out_write(b.data, b.size);
        buf_free(&b);
}

static void print_row(const struct bench_options *given, const struct bench_result *r)
{
        char why[240];

        char prefill[32], stream[32], total[32];

        format_rate(prefill, sizeof(prefill), r->prefill_tps);
        format_rate(stream, sizeof(stream), r->decode_tps_stream);
        format_rate(total, sizeof(total), r->decode_tps);
        out_printf("%6" PRIu32 " %14s %14s %14s %12.0f %12.0f%s\n", r->batch, prefill, stream, total, r->ttft_ms,
                   r->ttft_max_ms, r->recoveries ? "  (a worker was lost meanwhile)" : "");
        out_printf("%6s first token p50 %.0f, p95 %.0f, p99 %.0f ms", "", r->ttft_percentiles[0],
                   r->ttft_percentiles[1], r->ttft_percentiles[2]);
        if (!isnan(r->gap_percentiles[0])) {
                format_rate(total, sizeof(total), r->generated_tps);
                out_printf("; gap p50 %.1f, p95 %.1f, p99 %.1f ms; all that was generated: %s tokens/s",
                           r->gap_percentiles[0], r->gap_percentiles[1], r->gap_percentiles[2], total);
        }
        out_printf("\n");
        out_flush();
        if (given->n_tokens > 1 && lacks_together(given, r, why, sizeof(why)))
                complain("%s", why);
}

static int run_bench(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        struct bench_options given = { .batches = { .items = { 1, 8, 32 }, .n = 3 } };
        struct bench_result results[TDM_ARRAY_SIZE(given.batches.items)];
        struct tandem_error err;
        uint32_t *vocabulary;
        size_t n_vocabulary;
        unsigned n;
        int status;

        job_args_init(&given.job);
        if (cli_parse(cli, &command_bench, argc, argv, &given, NULL, 0, &n, &status))
                return status;
        if (!job_args_finish(&given.job))
                return EXIT_FAILED;
        /* The prompts are no texts, and what a model says to them soon repeats itself: more guesses would be right than
         * in a text. */
        if (!given.job.options.draft)
                given.job.options.speculation = TANDEM_SPECULATION_OFF;
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        progress_show("loading the model…");
        given.asked = cli_model(tandem, given.model);
        if (cli_take_draft(tandem, &given.job.options, &err) != TANDEM_OK)
                return complain_error(&err);
        if (tandem_tokenize(tandem, given.asked, sample_text, sizeof(sample_text) - 1, 0, &vocabulary, &n_vocabulary,
                            &err) != TANDEM_OK)
                return complain_model(&err, given.model);
        progress_clear();
        if (n_vocabulary == 0) {
                tandem_free(vocabulary);
                return complain("the model's tokenizer makes nothing of the sample text");
        }

        /* A short job first: what is loaded or mapped at first use is not what is measured. */
        status = run_batch(tandem, &given, vocabulary, n_vocabulary, TDM_MIN(given.n_prompt, 8u), 2, 1, &results[0]);
        if (status == EXIT_OK && !given.json)
                out_printf("%6s %14s %14s %14s %12s %12s\n%6s %14s %14s %14s %12s %12s\n", "jobs", "prefill",
                           "decode each", "decode total", "first token", "the last's", "", "tokens/s", "tokens/s",
                           "tokens/s", "mean ms", "ms");
        out_flush();
        for (size_t i = 0; i < given.batches.n && status == EXIT_OK; i++) {
                status = run_batch(tandem, &given, vocabulary, n_vocabulary, given.n_prompt, given.n_tokens,
                                   given.batches.items[i], &results[i]);
                if (status == EXIT_OK && !given.json)
                        print_row(&given, &results[i]);
        }
        tandem_free(vocabulary);
        if (out_broken())
                return out_finish();
        if (status == EXIT_OK && given.json)
                print_results(&given, results);
        return out_finish() == 0 ? status : EXIT_FAILED;
}

static const struct arg args[] = {
        ARG_MODEL(struct bench_options, model),
        {
                .letter = 'p',
                .name = "prompt-tokens",
                .range = { TDM_VALUE_U32, .min = 1, .max = 1u << 20 },
                .at = offsetof(struct bench_options, n_prompt),
                .default_value = 128,
                .value = "P",
                .brief = "tokens in each prompt",
        },
        {
                .letter = 'n',
                .name = "max-tokens",
                .range = { TDM_VALUE_U32, .min = 1, .max = 1u << 20 },
                .at = offsetof(struct bench_options, n_tokens),
                .default_value = 32,
                .value = "N",
                .brief = "tokens generated by each job",
        },
        {
                .letter = 'b',
                .name = "batch",
                .range = { TDM_VALUE_U32_LIST, .min = 1, .max = 1024 },
                .at = offsetof(struct bench_options, batches),
                .value = "LIST",
                .brief = "numbers of concurrent jobs",
                .more = "otherwise 1,8,32",
        },
        ARG_JSON(struct bench_options, json, "one JSON object with all results"),
};

const struct command command_bench = {
        .name = "bench",
        .summary = "measure speed",
        .usage = "[-m MODEL] [-p P] [-n N] [-b LIST] [--json]",
        .about = "Measures speed through the daemon, like any client. For each batch size, that many jobs "
                 "start together, each with a prompt of its own (no two runs have the same). Prefill lasts "
                 "until every job has its first token. Decode comes after that: the rate of each stream, and "
                 "of all together while all of them generate. Where the first job ends before the last begins, "
                 "there is no such rate, and it says so. Speculation is off.",
        COMMAND_ARGS(args),
        .job_args = JOB_ARGS_BENCH,
        .run = run_bench,
};
