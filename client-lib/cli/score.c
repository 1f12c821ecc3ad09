/* tandem tokenize and score: what a model makes of a text that exists already. */
#include "client-lib/cli/cli.h"

#include <inttypes.h>

int cli_tokenize(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        _cleanup_(buf_freep) struct buf input = { 0 }, line = { 0 };
        const char *model = NULL, *text = NULL;
        bool special = false, no_bos = false;
        const struct arg args[] = {
                { 'm', "model", ARG_STRING, &model },
                { 0, "special", ARG_FLAG, &special },
                { 0, "no-bos", ARG_FLAG, &no_bos },
                ARG_SOCKET(cli),
        };
        struct tandem_error err;
        uint32_t *ids;
        size_t n_ids;
        unsigned n;
        int status;

        if (cli_parse(args, TDM_ARRAY_SIZE(args), argc, argv, &text, 1, &n, &status))
                return status;
        if (!text && term_stdin_tty)
                return args_usage_error(argv[0], "there is no TEXT (give a text, or - to type one)");
        if (text && strcmp(text, "-") != 0)
                buf_puts(&input, text);
        else if (!read_all("-", MAX_INPUT_BYTES, &input))
                return EXIT_FAILED;
        if (input.failed)
                return complain("no memory for the text");

        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        if (tandem_tokenize(tandem, model, input.data, input.size,
                            (special ? TANDEM_TOKENIZE_SPECIAL : 0) | (no_bos ? TANDEM_TOKENIZE_NO_BOS : 0), &ids,
                            &n_ids, &err) != TANDEM_OK)
                return complain_error(&err);
        json_ids(&line, ids, n_ids);
        tandem_free(ids);
        if (line.failed)
                return complain("no memory for %zu ids", n_ids);
        out_write(line.data, line.size);
        out_puts("\n");
        return out_finish();
}

static void print_scores(const struct tandem_scores *s)
{
        struct buf b = { 0 };

        buf_puts(&b, "{\"ids\":");
        json_ids(&b, s->ids, s->n);
        buf_puts(&b, ",\"nll\":[");
        for (size_t i = 0; i + 1 < s->n; i++) {
                if (i)
                        buf_puts(&b, ",");
                json_number(&b, s->nll[i]);
        }
        buf_puts(&b, "],\"top\":[");
        for (size_t i = 0; i < s->n; i++) {
                buf_puts(&b, i ? ",[" : "[");
                for (size_t k = 0; k < s->n_top[i]; k++) {
                        buf_printf(&b, "%s[%" PRIu32 ",", k ? "," : "", s->top_ids[i * s->top + k]);
                        json_number(&b, s->top_logprobs[i * s->top + k]);
                        buf_puts(&b, "]");
                }
                buf_puts(&b, "]");
                if (b.failed || b.size < 65536)
                        continue;
                out_write(b.data, b.size);
                b.size = 0;
        }
        buf_puts(&b, "]}\n");
        if (b.failed)
                complain("no memory for the scores");
        else
                out_write(b.data, b.size);
        buf_free(&b);
}

int cli_score(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        _cleanup_(tandem_job_freep) struct tandem_job *job = NULL;
        _cleanup_(buf_freep) struct buf input = { 0 };
        _cleanup_(freep) uint32_t *ids = NULL;
        const char *model = NULL, *ids_file = NULL, *text_file = NULL, *wrong;
        uint32_t top = 0;
        const struct arg args[] = {
                { 'm', "model", ARG_STRING, &model },
                { 0, "top", ARG_U32, &top, 0, 64 },
                { 0, "ids", ARG_STRING, &ids_file },
                { 0, "text", ARG_STRING, &text_file },
                ARG_SOCKET(cli),
        };
        struct run_progress progress;
        struct tandem_score_options options;
        struct tandem_callbacks callbacks;
        const struct tandem_result *result;
        struct tandem_error err;
        enum run_outcome outcome;
        size_t n_ids = 0, at;
        unsigned n;
        int status;

        if (cli_parse(args, TDM_ARRAY_SIZE(args), argc, argv, NULL, 0, &n, &status))
                return status;
        if (ids_file && text_file)
                return args_usage_error(argv[0], "--ids and --text exclude each other");
        if (!ids_file && !text_file) {
                if (term_stdin_tty)
                        return args_usage_error(argv[0],
                                                "one of --ids FILE and --text FILE is needed (- is standard input)");
                text_file = "-";
        }
        if (!read_all(ids_file ? ids_file : text_file, MAX_INPUT_BYTES, &input))
                return EXIT_FAILED;
        tandem_score_options_init(&options);
        if (ids_file) {
                wrong = json_parse_ids(input.data, input.size, &ids, &n_ids, &at);
                if (wrong)
                        return complain("%s, byte %zu: %s", strcmp(ids_file, "-") == 0 ? "standard input" : ids_file,
                                        at, wrong);
                options.ids = ids;
                options.n_ids = n_ids;
        } else {
                options.text = input.data;
                options.text_size = input.size;
        }
        options.model = progress.model = model;
        options.top = top;
        progress.off = false;
        tandem_callbacks_init(&callbacks);
        callbacks.on_progress = run_show_progress;

        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        if (tandem_score(tandem, &options, &callbacks, &progress, &job, &err) != TANDEM_OK)
                return complain_error(&err);
        outcome = run_jobs(tandem, &job, 1, SIGNAL_CANCEL);
        if (outcome == RUN_INTERRUPTED)
                return EXIT_INTERRUPTED;
        if (outcome == RUN_OUTPUT_GONE)
                return out_finish();
        result = tandem_job_result(job);
        if (result->reason == TANDEM_REASON_ERROR)
                return complain_error(&result->error);
        if (result->reason == TANDEM_REASON_CANCELLED)
                return complain("cancelled: job %" PRIu64 " was cancelled from elsewhere", result->job);
        print_scores(tandem_job_scores(job));
        return out_finish();
}
