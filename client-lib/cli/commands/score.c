/* tandem score: how likely a model finds a text that exists already. */
#include "client-lib/cli/cli.h"

#include <inttypes.h>

struct score_options {
        const char *model, *ids_file, *text_file;
        uint32_t top;
};

extern const struct command command_score;

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

/* Asks once, and prints what comes. An exit status; -1: the daemon says in *err why not. */
static int ask_scores(struct tandem *tandem, const struct score_options *given, struct tandem_score_options *options,
                      struct tandem_error *err)
{
        _cleanup_(tandem_job_freep) struct tandem_job *job = NULL;
        struct run_progress progress = { .model = given->model };
        struct tandem_callbacks callbacks;
        const struct tandem_result *result;
        enum run_outcome outcome;

        tandem_callbacks_init(&callbacks);
        callbacks.on_progress = run_show_progress;
        options->model = cli_model(tandem, given->model);
        if (tandem_score(tandem, options, &callbacks, &progress, &job, err) != TANDEM_OK) {
                job = NULL;
                return -1;
        }
        outcome = run_jobs(tandem, &job, 1, SIGNAL_CANCEL);
        if (outcome == RUN_INTERRUPTED)
                return EXIT_INTERRUPTED;
        if (outcome == RUN_OUTPUT_GONE)
                return out_finish();
        result = tandem_job_result(job);
        if (result->reason == TANDEM_REASON_ERROR) {
                *err = result->error;
                return -1;
        }
        if (result->reason == TANDEM_REASON_CANCELLED)
                return complain("cancelled: job %" PRIu64 " was cancelled from elsewhere", result->job);
        print_scores(tandem_job_scores(job));
        return out_finish();
}

static int run_score(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        _cleanup_(buf_freep) struct buf input = { 0 };
        _cleanup_(freep) uint32_t *ids = NULL;
        struct score_options given = { 0 };
        const char *wrong;
        struct tandem_score_options options;
        struct tandem_error err;
        const char *text = NULL;
        size_t n_ids = 0, at;
        bool anew = false;
        unsigned n;
        int status;

        if (cli_parse(cli, &command_score, argc, argv, &given, &text, 1, &n, &status))
                return status;
        if ((given.ids_file != NULL) + (given.text_file != NULL) + (text != NULL) > 1)
                return args_usage_error(argv[0], "TEXT, --ids and --text exclude each other");
        if (text && strcmp(text, "-") == 0) {
                given.text_file = text;
                text = NULL;
        }
        if (!text && !given.ids_file && !given.text_file) {
                if (term_stdin_tty)
                        return args_usage_error(argv[0], "there is no TEXT (give a text, --text FILE or --ids FILE)");
                given.text_file = "-";
        }
        if (text)
                buf_puts(&input, text);
        else if (!read_all(given.ids_file ? given.ids_file : given.text_file, MAX_INPUT_BYTES, &input))
                return EXIT_FAILED;
        tandem_score_options_init(&options);
        if (given.ids_file) {
                wrong = json_parse_ids(input.data, input.size, &ids, &n_ids, &at);
                if (wrong)
                        return complain("%s, byte %zu: %s",
                                        strcmp(given.ids_file, "-") == 0 ? "standard input" : given.ids_file, at,
                                        wrong);
                options.ids = ids;
                options.n_ids = n_ids;
        } else {
                options.text = input.data;
                options.text_size = input.size;
        }
        options.top = given.top;
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        do
                status = ask_scores(tandem, &given, &options, &err);
        while (status < 0 && cli_connect_anew(cli, &tandem, &err, &anew));
        return status < 0 ? complain_model(&err, given.model) : status;
}

static const struct arg args[] = {
        ARG_MODEL(struct score_options, model),
        {
                .name = "top",
                .range = { .type = TDM_VALUE_U32, .max = 64 },
                .at = offsetof(struct score_options, top),
                .value = "K",
                .brief = "the K likeliest tokens at each position",
                .more = "otherwise none",
        },
        {
                .name = "ids",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct score_options, ids_file),
                .value = "FILE",
                .brief = "a JSON array of token ids, taken as they are",
                .more = "- is standard input",
                .offer = OFFER_FILES,
        },
        {
                .name = "text",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct score_options, text_file),
                .value = "FILE",
                .brief = "a text, tokenized with a beginning-of-text token",
                .more = "- is standard input",
                .offer = OFFER_FILES,
        },
};

const struct command command_score = {
        .name = "score",
        .summary = "how likely a model finds a text",
        .usage = "[-m MODEL] [--top K] [--ids FILE | --text FILE | TEXT|-]",
        .about = "Prints how likely a model finds a text, as one JSON object: "
                 "{\"ids\":[…],\"nll\":[…],\"top\":[[[id,logprob],…],…]}. nll[i] is -log p(ids[i+1]), so it has "
                 "one entry less than ids; top[i] is the distribution after ids[0..i].",
        COMMAND_ARGS(args),
        .run = run_score,
};
