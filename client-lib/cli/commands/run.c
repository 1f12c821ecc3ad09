/* tandem run: talk to a model, as users of Ollama say it. With a message it is `generate --chat`, else `chat`. */
#include "client-lib/cli/cli.h"
#include "client-lib/cli/talk.h"

extern const struct command command_run;

static int run_run(struct cli *cli, int argc, char **argv)
{
        _cleanup_(generate_options_deinit) struct generate_options given = { .chat = true };
        const char *words[2] = { NULL }, *message;
        struct chat_options chat;
        unsigned n;
        int status;

        job_args_init(&given.job);
        if (cli_parse(cli, &command_run, argc, argv, &given, words, TDM_ARRAY_SIZE(words), &n, &status))
                return status;
        if (!given.model && n == 0)
                return args_usage_error(argv[0], "MODEL is missing; `tandem models` lists them");
        if (given.model && n > 1)
                return args_usage_error(argv[0], "'%.60s' is one argument too many; quote text that has spaces",
                                        words[1]);
        message = given.model ? words[0] : words[1];
        status = generate_check_stdin(&given, argv[0], message);
        if (status == ARGS_OK)
                status = generate_check_json(&given, argv[0]);
        if (status != ARGS_OK)
                return status;
        given.model = given.model ? given.model : words[0];
        if (message || given.files.n > 0 || given.json || stdin_has_text())
                return generate_text(cli, &given, message);
        chat = (struct chat_options){
                .job = given.job, .images = given.images, .model = given.model, .system = given.system
        };
        given.job = (struct job_args){ 0 }; /* the conversation's now */
        given.images = (struct arg_list){ 0 };
        return chat_hold(cli, &chat);
}

static const struct arg args[] = {
        {
                .name = "system",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct generate_options, system),
                .value = "TEXT",
                .brief = "a system message before the conversation",
        },
        {
                .letter = 'f',
                .name = "file",
                .range.type = TDM_VALUE_TEXTS,
                .at = offsetof(struct generate_options, files),
                .value = "FILE",
                .brief = "add a file's text to MESSAGE, after an empty line",
                .more = "may be given several times",
                .offer = OFFER_FILES,
        },
        {
                .name = "image",
                .range.type = TDM_VALUE_TEXTS,
                .at = offsetof(struct generate_options, images),
                .value = "FILE",
                .brief = "a picture before MESSAGE, or before the first one of a conversation",
                .more = "may be given several times",
                .offer = OFFER_FILES,
        },
        ARG_JSON(struct generate_options, json, "one JSON object a line, as `tandem generate --json` has them"),
        {
                .letter = 'm',
                .name = "model",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct generate_options, model),
                .value = "MODEL",
                .brief = "the same as MODEL in the first place",
                .offer = OFFER_MODELS,
        },
};

const struct command command_run = {
        .name = "run",
        .summary = "talk to a model: one message, or a conversation",
        .usage = "[OPTIONS] MODEL [MESSAGE|-]",
        .about = "With MESSAGE, a FILE, or text from a pipe: answers that one message, as `tandem generate --chat` "
                 "does. "
                 "Otherwise holds a conversation, as `tandem chat` does. Both use the model's own chat template.",
        .examples = "  tandem run gemma3-1b\n"
                    "  tandem run gemma3-1b \"Why is the sky blue?\"\n"
                    "  cat letter.txt | tandem run gemma3-1b \"Summarise this letter.\"",
        COMMAND_ARGS(args),
        .job_args = JOB_ARGS_ALL,
        .offer = OFFER_MODELS,
        .run = run_run,
};
