/* tandem embed: texts as vectors. */
#include "client-lib/cli/cli.h"

#include <inttypes.h>

#define AT_ONCE 32u /* texts that are with the daemon at one time; it has a bound for each user */
#define MAX_TEXTS 4096u

struct embed_options {
        const char *model;
        uint32_t dimensions;
};

extern const struct command command_embed;

static void free_jobs(struct tandem_job **jobs, size_t n)
{
        for (size_t i = 0; i < n; i++)
                tandem_job_free(jobs[i]);
}

static void print_vector(struct buf *b, const struct tandem_job *job, bool is_first)
{
        size_t n;
        const float *v = tandem_job_vector(job, &n);

        buf_puts(b, is_first ? "[[" : ",[");
        for (size_t i = 0; i < n; i++)
                buf_printf(b, "%s%.9g", i ? "," : "", (double)v[i]);
        buf_puts(b, "]");
}

/* Some texts at once; their vectors to b, or none. An exit status; -1: the daemon says in *err why not. */
static int ask_vectors(struct tandem *tandem, const struct embed_options *given, const char *const *texts, size_t n,
                       size_t size, bool is_first, struct buf *b, struct tandem_error *err)
{
        struct run_progress progress = { .model = given->model };
        struct tandem_job *jobs[AT_ONCE] = { NULL };
        struct tandem_embed_options options;
        struct tandem_callbacks callbacks;
        enum run_outcome outcome;
        size_t before = b->size;
        int status = 0;

        tandem_callbacks_init(&callbacks);
        callbacks.on_progress = run_show_progress;
        tandem_embed_options_init(&options);
        options.model = cli_model(tandem, given->model);
        options.dimensions = given->dimensions;
        options.text_size = size;
        for (size_t i = 0; i < n; i++) {
                options.text = texts[i];
                if (tandem_embed(tandem, &options, &callbacks, &progress, &jobs[i], err) != TANDEM_OK) {
                        free_jobs(jobs, i);
                        return -1;
                }
        }
        outcome = run_jobs(tandem, jobs, n, SIGNAL_CANCEL);
        if (outcome == RUN_INTERRUPTED)
                status = EXIT_INTERRUPTED;
        else if (outcome == RUN_OUTPUT_GONE)
                status = EXIT_FAILED;
        for (size_t i = 0; i < n && status == 0; i++) {
                const struct tandem_result *result = tandem_job_result(jobs[i]);

                if (result->reason == TANDEM_REASON_ERROR) {
                        *err = result->error;
                        status = -1;
                } else if (result->reason == TANDEM_REASON_CANCELLED) {
                        status = complain("cancelled: job %" PRIu64 " was cancelled from elsewhere", result->job);
                } else {
                        print_vector(b, jobs[i], is_first && i == 0);
                }
        }
        if (status != 0)
                b->size = before;
        free_jobs(jobs, n);
        return status;
}

static int embed_texts(struct cli *cli, struct tandem **tandem, const struct embed_options *given,
                       const char *const *texts, size_t n, size_t size, bool is_first, struct buf *b)
{
        struct tandem_error err;
        bool anew = false;
        int status;

        do
                status = ask_vectors(*tandem, given, texts, n, size, is_first, b, &err);
        while (status < 0 && cli_connect_anew(cli, tandem, &err, &anew));
        return status < 0 ? complain_model(&err, given->model) : status;
}

static int run_embed(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        _cleanup_(buf_freep) struct buf input = { 0 }, line = { 0 };
        struct embed_options given = { 0 };
        const char *texts[MAX_TEXTS], *only[1];
        unsigned n;
        int status;

        if (cli_parse(cli, &command_embed, argc, argv, &given, texts, MAX_TEXTS, &n, &status))
                return status;
        if (n == 0 && term_stdin_tty)
                return args_usage_error(argv[0], "there is no TEXT (give texts, or - to type one)");
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        if (n == 0 || (n == 1 && strcmp(texts[0], "-") == 0)) {
                if (!read_all("-", MAX_INPUT_BYTES, &input))
                        return EXIT_FAILED;
                only[0] = input.data ? input.data : "";
                status = embed_texts(cli, &tandem, &given, only, 1, input.size, true, &line);
        } else {
                status = 0;
                for (unsigned i = 0; i < n && status == 0; i += AT_ONCE)
                        status = embed_texts(cli, &tandem, &given, texts + i, TDM_MIN(n - i, AT_ONCE), SIZE_MAX, i == 0,
                                             &line);
        }
        if (status != 0)
                return status;
        buf_puts(&line, "]\n");
        if (line.failed)
                return complain("no memory for the vectors");
        out_write(line.data, line.size);
        return out_finish();
}

static const struct arg args[] = {
        ARG_MODEL(struct embed_options, model),
        {
                .name = "dimensions",
                .range = { .type = TDM_VALUE_U32, .min = 1, .max = 65536 },
                .at = offsetof(struct embed_options, dimensions),
                .value = "N",
                .brief = "only the first N numbers, made a vector of length 1 again",
                .more = "for models that were trained so",
        },
};

const struct command command_embed = {
        .name = "embed",
        .summary = "texts as vectors",
        .usage = "[-m MODEL] [--dimensions N] [TEXT...|-]",
        .about = "Prints the vectors of the TEXTs as a JSON array of arrays of numbers, in their order, each of length "
                 "1. The model must be an embedding model: one whose file names a pooling. What such a model was "
                 "trained to have before a query or a document belongs into the TEXT. A vector depends on its text and "
                 "the model alone.",
        COMMAND_ARGS(args),
        .run = run_embed,
};
