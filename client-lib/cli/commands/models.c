/* tandem models: what can be generated with. */
#include "client-lib/cli/cli.h"

struct models_options {
        bool json;
};

extern const struct command command_models;

static void print_models(const struct tandem_model_list *list)
{
        int width = 4;

        if (list->n_models == 0) {
                out_puts("no models (put .gguf files into a model directory, or name a file: -m ./model.gguf)\n");
                return;
        }
        for (size_t i = 0; i < list->n_models; i++)
                width = TDM_MAX(width, TDM_MIN(text_columns(term_safe(list->models[i]->name)), 40));
        out_printf("%-*s  %-9s  %10s  %-12s  %s\n", width, "NAME", "STATE", "SIZE", "TYPE", "FILE");
        for (size_t i = 0; i < list->n_models; i++) {
                const struct tandem_model *m = list->models[i];

                const char *name = term_safe(m->name);

                out_printf("%s%*s  %-9s  %10s  %-12s  %s%s%s%s\n", name, TDM_MAX(width - text_columns(name), 0), "",
                           term_safe(m->state), human_bytes(m->file_bytes), term_safe(m->quantisation),
                           term_safe(m->path), m->is_default ? " (default)" : "", *m->error ? ": " : "",
                           term_safe(m->error));
        }
}

static int run(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        _cleanup_(buf_freep) struct buf b = { 0 };
        struct models_options options = { 0 };
        struct tandem_model_list *answer;
        struct tandem_error err;
        unsigned n;
        int status;

        if (cli_parse(cli, &command_models, argc, argv, &options, NULL, 0, &n, &status))
                return status;
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        if (tandem_list_models(tandem, &answer, &err) != TANDEM_OK)
                return complain_error(&err);
        if (options.json) {
                buf_puts(&b, "{");
                json_models(&b, answer);
                buf_puts(&b, "}");
                status = print_json(&b);
        } else {
                print_models(answer);
                status = out_finish();
        }
        tandem_model_list_free(answer);
        return status;
}

static const struct arg args[] = { ARG_JSON(struct models_options, json,
                                            "one JSON object, with the field names of tandem.proto") };

const struct command command_models = {
        .name = "models",
        .summary = "the models there are",
        .usage = "[--json]",
        .about = "Lists the models in the daemon's model directories and those that clients handed over.",
        COMMAND_ARGS(args),
        .run = run,
};
