/* tandem load: loads a model before its first job. */
#include "client-lib/cli/cli.h"

extern const struct command command_load;

static int run_load(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        struct tandem_error err;
        const char *model, *slash;
        bool anew = false;
        int status;

        if (!cli_parse_one_argument(cli, &command_load, argc, argv, "the MODEL (a name or a file)", &model, &status))
                return status;
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        slash = strrchr(model, '/');
        progress_show("loading %s…", term_safe(slash && slash[1] ? slash + 1 : model));
        while (tandem_load_model(tandem, cli_model(tandem, model), &err) != TANDEM_OK)
                if (!cli_connect_anew(cli, &tandem, &err, &anew))
                        return complain_model(&err, model);
        progress_clear();
        out_printf("%s: loaded\n", term_safe(model));
        return out_finish();
}

const struct command command_load = {
        .name = "load",
        .summary = "load a model before its first job",
        .usage = "MODEL",
        .about = "Loads a model (a name or a file) before its first job, and returns when it is ready.",
        .offer = OFFER_MODELS,
        .run = run_load,
};
