/* tandem cancel, restart, load, unload: one request, one word back. */
#include "client-lib/cli/cli.h"

#include <inttypes.h>

/* Parses a command whose only argument is one positional (what: its name in messages). */
static bool one_argument(struct cli *cli, int argc, char **argv, const char *what, const char **ret, int *ret_status)
{
        const struct arg args[] = { ARG_SOCKET(cli) };
        unsigned n;

        if (cli_parse(args, TDM_ARRAY_SIZE(args), argc, argv, ret, 1, &n, ret_status))
                return false;
        if (n == 1)
                return true;
        *ret_status = args_usage_error(argv[0], "%s is missing", what);
        return false;
}

int cli_cancel(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        struct tandem_error err;
        const char *text;
        uint64_t job;
        int status;

        if (!one_argument(cli, argc, argv, "the JOB (a number from `tandem jobs`)", &text, &status))
                return status;
        if (!parse_u64(text, UINT64_MAX, &job) || job == 0)
                return args_usage_error(argv[0], "'%.60s' is not the number of a job (`tandem jobs` lists them)", text);
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        if (tandem_cancel_job(tandem, job, &err) != TANDEM_OK)
                return complain_error(&err);
        out_printf("job %" PRIu64 " cancelled\n", job);
        return out_finish();
}

int cli_restart(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        struct tandem_error err;
        const char *worker;
        int status;

        if (!one_argument(cli, argc, argv, "the worker, npu or gpu,", &worker, &status))
                return status;
        if (strcmp(worker, "npu") != 0 && strcmp(worker, "gpu") != 0)
                return args_usage_error(argv[0], "'%.60s' is not npu or gpu", worker);
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        if (tandem_restart_worker(tandem, worker, &err) != TANDEM_OK)
                return complain_error(&err);
        out_printf("%s worker: restarting\n", worker);
        return out_finish();
}

int cli_load(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        struct tandem_error err;
        const char *model, *slash;
        int status;

        if (!one_argument(cli, argc, argv, "the MODEL (a name or a file)", &model, &status))
                return status;
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        slash = strrchr(model, '/');
        progress_show("loading %s…", term_safe(slash && slash[1] ? slash + 1 : model));
        if (tandem_load_model(tandem, model, &err) != TANDEM_OK)
                return complain_error(&err);
        progress_clear();
        out_printf("%s: loaded\n", term_safe(model));
        return out_finish();
}

int cli_unload(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        struct tandem_error err;
        const char *model;
        int status;

        if (!one_argument(cli, argc, argv, "the MODEL's name", &model, &status))
                return status;
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        if (tandem_unload_model(tandem, model, &err) != TANDEM_OK)
                return complain_error(&err);
        out_printf("%s: unloaded\n", term_safe(model));
        return out_finish();
}
