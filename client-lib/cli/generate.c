/* tandem generate: one prompt, one text. */
#include "client-lib/cli/cli.h"

#include <inttypes.h>
#include <math.h>

struct generate {
        struct run_progress progress; /* first: run_show_progress() */
        bool json;
        uint64_t seed;
        uint32_t prompt_tokens; /* from acceptance, for a last line without the daemon's */
};

static void on_accepted(struct tandem_job *job, const struct tandem_accepted *accepted, void *userdata)
{
        struct generate *g = userdata;

        g->prompt_tokens = accepted->prompt_tokens;
}

static void on_token(struct tandem_job *job, const struct tandem_token *token, void *userdata)
{
        const struct generate *g = userdata;
        struct buf line = { 0 };

        progress_clear();
        if (!g->json) {
                out_text(token->text, token->size);
                out_flush();
                return;
        }
        buf_puts(&line, "{");
        json_field_string(&line, "event", "token");
        json_field_u64(&line, "id", token->id);
        json_key(&line, "text");
        json_string(&line, token->text, token->size);
        json_field_number(&line, "logprob", token->logprob);
        buf_puts(&line, "}\n");
        if (!line.failed)
                out_write(line.data, line.size);
        out_flush();
        buf_free(&line);
}

/* The last line of --json. */
static void print_done(const struct generate *g, const uint32_t *ids, size_t n_ids, const struct tandem_result *result)
{
        struct buf line = { 0 };

        buf_puts(&line, "{");
        json_field_string(&line, "event", "done");
        json_field_string(&line, "reason", tandem_reason_name(result->reason));
        if (result->reason == TANDEM_REASON_ERROR) {
                json_key(&line, "error");
                buf_puts(&line, "{");
                json_field_string(&line, "code", result->error.name);
                json_field_string(&line, "message", result->error.message);
                buf_puts(&line, "}");
        }
        json_field_u64(&line, "prompt_tokens", result->prompt_tokens);
        json_field_u64(&line, "cached_tokens", result->cached_tokens);
        json_field_u64(&line, "generated_tokens", result->generated_tokens);
        json_key(&line, "ids");
        json_ids(&line, ids, n_ids);
        json_field_number(&line, "ttft_ms", result->ttft_ms);
        json_field_number(&line, "prefill_tps", result->prefill_tps);
        json_field_number(&line, "decode_tps", result->decode_tps);
        json_field_u64(&line, "recoveries", result->recoveries);
        json_field_bool(&line, "degraded", result->degraded);
        json_key(&line, "tail");
        json_string(&line, result->tail, result->tail_size);
        json_field_u64(&line, "job", result->job);
        json_field_u64(&line, "seed", g->seed);
        json_field_string(&line, "numerics_id", result->numerics_id);
        buf_puts(&line, "}\n");
        if (!line.failed)
                out_write(line.data, line.size);
        buf_free(&line);
}

/* A job that was cancelled when tandemd had no time left to say more: only what is known here. */
static void print_cut(const struct generate *g, const struct tandem_job *job)
{
        struct tandem_result result = { .reason = TANDEM_REASON_CANCELLED,
                                        .job = tandem_job_id(job),
                                        .prompt_tokens = g->prompt_tokens,
                                        .ttft_ms = NAN,
                                        .prefill_tps = NAN,
                                        .decode_tps = NAN,
                                        .numerics_id = "",
                                        .tail = "" };
        const uint32_t *ids;
        size_t n_ids;

        ids = tandem_job_ids(job, &n_ids);
        result.generated_tokens = (uint32_t)n_ids;
        print_done(g, ids, n_ids, &result);
}

/* What fails before there is a job: with --json, too, the last line says why. */
static int fail(const struct generate *g, const struct tandem_error *err)
{
        struct tandem_result result = { .reason = TANDEM_REASON_ERROR, .error = *err, .numerics_id = "", .tail = "" };

        if (g->json)
                print_done(g, NULL, 0, &result);
        return complain_error(err);
}

static void print_summary(const struct generate *g, const struct tandem_result *r, bool verbose)
{
        char rate[32], prefill[32];

        if (r->generated_tokens > 1) {
                format_rate(rate, sizeof(rate), r->decode_tps);
                fprintf(stderr, "%" PRIu32 " prompt tokens, %" PRIu32 " tokens, first after %.0f ms, %s tokens/s",
                        r->prompt_tokens, r->generated_tokens, r->ttft_ms, rate);
        } else if (r->generated_tokens == 1) {
                fprintf(stderr, "%" PRIu32 " prompt tokens, 1 token after %.0f ms", r->prompt_tokens, r->ttft_ms);
        } else {
                fprintf(stderr, "%" PRIu32 " prompt tokens, no tokens", r->prompt_tokens);
        }
        if (r->recoveries > 0)
                fprintf(stderr, ", %" PRIu32 " %s", r->recoveries, r->recoveries == 1 ? "recovery" : "recoveries");
        if (r->degraded)
                fprintf(stderr, ", degraded (a worker is out of service: `tandem status`)");
        if (r->reason == TANDEM_REASON_CANCELLED)
                fprintf(stderr, ", cancelled");
        fprintf(stderr, "\n");
        if (verbose) {
                format_rate(prefill, sizeof(prefill), r->prefill_tps);
                fprintf(stderr,
                        "seed %" PRIu64 ", job %" PRIu64 ", ended by %s, prompt %s tokens/s (%" PRIu32
                        " cached), numerics %s\n",
                        g->seed, r->job, tandem_reason_name(r->reason), prefill, r->cached_tokens,
                        term_safe(r->numerics_id));
        }
}

static int report(const struct generate *g, const struct tandem_job *job, enum run_outcome outcome, bool verbose)
{
        const struct tandem_result *result = tandem_job_result(job);

        if (outcome == RUN_OUTPUT_GONE)
                return out_finish();
        if (result && !g->json)
                out_text(result->tail, result->tail_size);
        if (g->json && result) {
                size_t n_ids;
                const uint32_t *ids = tandem_job_ids(job, &n_ids);

                print_done(g, ids, n_ids, result);
        } else if (g->json) {
                print_cut(g, job);
        }
        if (!g->json && term_stdout_tty && out_mid_line())
                out_puts("\n");
        if (out_finish() != 0)
                return EXIT_FAILED;

        if (result && (verbose || (!g->json && term_stdout_tty)) && result->reason != TANDEM_REASON_ERROR)
                print_summary(g, result, verbose);
        if (outcome == RUN_INTERRUPTED)
                return EXIT_INTERRUPTED;
        if (result->reason == TANDEM_REASON_ERROR)
                return complain_error(&result->error);
        if (result->reason == TANDEM_REASON_CANCELLED)
                return complain("cancelled: job %" PRIu64 " was cancelled from elsewhere", result->job);
        return EXIT_OK;
}

int cli_generate(struct cli *cli, int argc, char **argv)
{
        struct sampling_args sampling;
        bool raw = false, chat = false, json = false;
        const char *system_text = NULL, *prompt = NULL;
        const struct arg args[] = {
                ARGS_SAMPLING(&sampling),       { 0, "raw", ARG_FLAG, &raw },
                { 0, "chat", ARG_FLAG, &chat }, { 0, "system", ARG_STRING, &system_text },
                { 0, "json", ARG_FLAG, &json }, ARG_SOCKET(cli),
        };
        struct tandem_message messages[2];
        struct tandem_generate_options options;
        struct tandem_callbacks callbacks;
        struct generate g;
        struct tandem_error err;
        struct tandem *tandem;
        struct tandem_job *job;
        struct buf input = { 0 };
        enum run_outcome outcome;
        unsigned n_positional;
        size_t n_messages = 0, prompt_size;
        int status;

        sampling_args_init(&sampling);
        if (cli_parse(args, TDM_ARRAY_SIZE(args), argc, argv, &prompt, 1, &n_positional, &status))
                goto out_args;
        status = EXIT_USAGE;
        if (!sampling_args_check(&sampling, argv[0]))
                goto out_args;
        if (raw && chat) {
                (void)args_usage_error(argv[0], "--raw and --chat exclude each other");
                goto out_args;
        }
        if (system_text && !chat) {
                (void)args_usage_error(argv[0], "--system needs --chat: raw text has no system message");
                goto out_args;
        }
        if (!prompt && term_stdin_tty) {
                (void)args_usage_error(argv[0], "there is no PROMPT (give a text, or - to type one)");
                goto out_args;
        }

        status = EXIT_FAILED;
        if (!prompt || strcmp(prompt, "-") == 0) {
                if (!read_all("-", MAX_INPUT_BYTES, &input))
                        goto out_args;
                /* `echo text |` means the text: a newline at the end would change what the model goes on with. */
                if (input.size > 0 && input.data[input.size - 1] == '\n')
                        input.size--;
                prompt = input.data;
                prompt_size = input.size;
        } else {
                prompt_size = strlen(prompt);
        }

        tandem_generate_options_init(&options);
        sampling_args_apply(&sampling, &options);
        if (chat) {
                if (system_text)
                        messages[n_messages++] = (struct tandem_message){ "system", system_text, strlen(system_text) };
                messages[n_messages++] = (struct tandem_message){ "user", prompt, prompt_size };
                options.chat = messages;
                options.n_chat = n_messages;
        } else {
                options.prompt = prompt;
                options.prompt_size = prompt_size;
        }
        g = (struct generate){ .progress = { .model = sampling.model }, .json = json, .seed = sampling.seed };
        tandem_callbacks_init(&callbacks);
        callbacks.on_accepted = on_accepted;
        callbacks.on_progress = run_show_progress;
        callbacks.on_token = on_token;

        if (tandem_connect(&tandem, cli->socket, &err) != TANDEM_OK) {
                status = fail(&g, &err);
                goto out_args;
        }
        if (tandem_generate(tandem, &options, &callbacks, &g, &job, &err) != TANDEM_OK) {
                status = fail(&g, &err);
        } else {
                outcome = run_jobs(tandem, &job, 1, SIGNAL_CANCEL);
                status = report(&g, job, outcome, sampling.verbose);
                tandem_job_free(job);
        }
        tandem_close(tandem);
out_args:
        buf_free(&input);
        arg_list_free(&sampling.stop);
        return status;
}
