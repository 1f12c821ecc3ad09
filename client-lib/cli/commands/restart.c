/* tandem restart: ends a worker and starts it again. */
#include "client-lib/cli/cli.h"

extern const struct command command_restart;

static int run_restart(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        struct tandem_error err;
        const char *worker;
        int status;

        if (!cli_parse_one_argument(cli, &command_restart, argc, argv, "the worker, npu or gpu,", &worker, &status))
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

static const char *const workers[] = { "npu", "gpu", NULL };

const struct command command_restart = {
        .name = "restart",
        .summary = "restart a worker (npu or gpu); its jobs go on afterwards",
        .usage = "npu|gpu",
        .about = "Ends a worker and starts it again. Jobs wait and go on with the same tokens. A quarantine "
                 "ends.",
        .choices = workers,
        .run = run_restart,
};
