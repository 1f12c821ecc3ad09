/* tandem warm: has the beginning of a prompt read before somebody asks. The daemon finds it again in its prefix cache,
 * and on disk where it keeps prefixes (docs/prefix-store.md).
 *
 * A later prompt shares the beginning of its tokens. So the text is sent as that prompt will have it: as the system
 * message of a chat, behind which a user's message follows. */
#include "client-lib/cli/cli.h"

#include <inttypes.h>

struct warm_options {
        const char *model, *file;
        bool raw, json;
};

extern const struct command command_warm;

/* An exit status; -1: the daemon says in *err why not. */
static int ask_warm(struct tandem *tandem, const struct warm_options *given, const struct buf *text,
                    struct tandem_result *ret, struct tandem_error *err)
{
        const struct tandem_message messages[] = { { "system", text->data, text->size }, { "user", ".", 1 } };
        struct run_progress progress = { .model = given->model };
        _cleanup_(tandem_job_freep) struct tandem_job *job = NULL;
        struct tandem_generate_options options;
        struct tandem_callbacks callbacks;
        enum run_outcome outcome;

        tandem_callbacks_init(&callbacks);
        callbacks.on_progress = run_show_progress;
        tandem_generate_options_init(&options);
        options.model = cli_model(tandem, given->model);
        options.priority = TANDEM_PRIORITY_BACKGROUND;
        options.max_tokens = 1; /* which the prompt has to be read for */
        if (given->raw) {
                options.prompt = text->data;
                options.prompt_size = text->size;
        } else {
                options.chat = messages;
                options.n_chat = TDM_ARRAY_SIZE(messages);
        }
        if (tandem_generate(tandem, &options, &callbacks, &progress, &job, err) != TANDEM_OK) {
                job = NULL;
                return -1;
        }
        outcome = run_jobs(tandem, &job, 1, SIGNAL_CANCEL);
        progress_clear();
        if (outcome != RUN_DONE)
                return outcome == RUN_INTERRUPTED ? EXIT_INTERRUPTED : EXIT_FAILED;
        *ret = *tandem_job_result(job);
        if (ret->reason == TANDEM_REASON_ERROR) {
                *err = ret->error;
                return -1;
        }
        if (ret->reason == TANDEM_REASON_CANCELLED)
                return complain("cancelled: job %" PRIu64 " was cancelled from elsewhere", ret->job);
        return EXIT_OK;
}

static int print_warm(const struct warm_options *given, const struct tandem_result *result)
{
        _cleanup_(buf_freep) struct buf b = { 0 };
        char all[32], known[32];

        if (given->json) {
                buf_puts(&b, "{");
                json_field_u64(&b, "prompt_tokens", result->prompt_tokens);
                json_field_u64(&b, "cached_tokens", result->cached_tokens);
                buf_puts(&b, "}");
                return print_json(&b);
        }
        format_count(all, sizeof(all), result->prompt_tokens);
        format_count(known, sizeof(known), result->cached_tokens);
        out_printf("%s: %s tokens are ready, %s of them were before\n", term_safe(given->file), all, known);
        return out_finish();
}

static int run_warm(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        _cleanup_(buf_freep) struct buf text = { 0 };
        struct warm_options given = { 0 };
        struct tandem_result result = { 0 };
        struct tandem_error err;
        bool anew = false;
        unsigned n;
        int status;

        if (cli_parse(cli, &command_warm, argc, argv, &given, NULL, 0, &n, &status))
                return status;
        if (!given.file)
                return args_usage_error(argv[0], "there is no text (-f FILE, or -f - for standard input)");
        if (!read_all(given.file, MAX_INPUT_BYTES, &text))
                return EXIT_FAILED;
        if (text.size == 0)
                return complain("%s is empty: there is nothing to read", term_safe(given.file));
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        do
                status = ask_warm(tandem, &given, &text, &result, &err);
        while (status < 0 && cli_connect_anew(cli, &tandem, &err, &anew));
        if (status < 0)
                return complain_model(&err, given.model);
        return status == EXIT_OK ? print_warm(&given, &result) : status;
}

static const struct arg args[] = {
        ARG_MODEL(struct warm_options, model),
        {
                .letter = 'f',
                .name = "file",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct warm_options, file),
                .value = "FILE",
                .brief = "the text, byte for byte; -: standard input",
                .offer = OFFER_FILES,
        },
        {
                .name = "raw",
                .at = offsetof(struct warm_options, raw),
                .brief = "the beginning of a raw text",
                .more = "otherwise it is the system message of a chat",
        },
        ARG_JSON(struct warm_options, json,
                 "one JSON object: prompt_tokens, cached_tokens (of them, those known before)"),
};

const struct command command_warm = {
        .name = "warm",
        .summary = "have the beginning of a prompt read before it is asked for",
        .usage = "[-m MODEL] [--raw] [--json] -f FILE",
        .about = "Reads a text as the system message of a chat, so that later chats with the same system message begin "
                 "their answers sooner. tandemd keeps what it has read in memory, until the room is needed or the "
                 "model leaves, and on disk where it keeps prefixes (`tandem cache`).\n\n"
                 "A chat shares the beginning of its prompt, in pieces of 32 tokens. So its system message has to be "
                 "the same bytes, and tools or pictures make another prompt.",
        COMMAND_ARGS(args),
        .run = run_warm,
};
