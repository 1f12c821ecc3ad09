/* tandem unload: gives a model's memory back. */
#include "client-lib/cli/unload.h"

extern const struct command command_unload;

int unload_run(struct cli *cli, const struct command *command, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        struct tandem_error err;
        const char *model;
        int status;

        if (!cli_parse_one_argument(cli, command, argc, argv, "the MODEL's name", &model, &status))
                return status;
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        model = cli_plain_name(model);
        if (tandem_unload_model(tandem, model, &err) != TANDEM_OK)
                return complain_error(&err);
        out_printf("%s: unloaded\n", term_safe(model));
        return out_finish();
}

static int run_unload(struct cli *cli, int argc, char **argv)
{
        return unload_run(cli, &command_unload, argc, argv);
}

const struct command command_unload = {
        .name = "unload",
        .summary = "give a model's memory back",
        .usage = "MODEL",
        .about = "Gives a model's memory back, by its name in `tandem models`.",
        .offer = OFFER_MODELS,
        .run = run_unload,
};
