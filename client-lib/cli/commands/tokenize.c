/* tandem tokenize: a text as token ids. */
#include "client-lib/cli/cli.h"

struct tokenize_options {
        const char *model;
        bool special, no_bos;
};

extern const struct command command_tokenize;

static int run_tokenize(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        _cleanup_(buf_freep) struct buf input = { 0 }, line = { 0 };
        struct tokenize_options options = { 0 };
        const char *text = NULL;
        struct tandem_error err;
        uint32_t *ids;
        size_t n_ids;
        unsigned n;
        int status;

        if (cli_parse(cli, &command_tokenize, argc, argv, &options, &text, 1, &n, &status))
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
        if (tandem_tokenize(tandem, cli_model(tandem, options.model), input.data, input.size,
                            (options.special ? TANDEM_TOKENIZE_SPECIAL : 0) |
                                    (options.no_bos ? TANDEM_TOKENIZE_NO_BOS : 0),
                            &ids, &n_ids, &err) != TANDEM_OK)
                return complain_model(&err, options.model);
        json_ids(&line, ids, n_ids);
        tandem_free(ids);
        if (line.failed)
                return complain("no memory for %zu ids", n_ids);
        out_write(line.data, line.size);
        out_puts("\n");
        return out_finish();
}

static const struct arg args[] = {
        ARG_MODEL(struct tokenize_options, model),
        {
                .name = "special",
                .at = offsetof(struct tokenize_options, special),
                .brief = "recognise control pieces such as <start_of_turn> in the text",
        },
        {
                .name = "no-bos",
                .at = offsetof(struct tokenize_options, no_bos),
                .brief = "put no beginning-of-text token in front",
        },
};

const struct command command_tokenize = {
        .name = "tokenize",
        .summary = "a text as token ids",
        .usage = "[-m MODEL] [--special] [--no-bos] [TEXT|-]",
        .about = "Prints the token ids of TEXT as a JSON array on one line. Standard input is taken byte for byte.",
        COMMAND_ARGS(args),
        .run = run_tokenize,
};
