/* tandem cancel: stops a job of any connection. */
#include "client-lib/cli/cli.h"

#include <inttypes.h>

extern const struct command command_cancel;

static int run_cancel(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        struct tandem_error err;
        const char *text;
        uint64_t job;
        int status;

        if (!cli_parse_one_argument(cli, &command_cancel, argc, argv, "the JOB (a number from `tandem jobs`)", &text,
                                    &status))
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

const struct command command_cancel = {
        .name = "cancel",
        .summary = "stop a job",
        .usage = "JOB",
        .about = "Stops the job with this number (`tandem jobs`) at its next step.",
        .offer = OFFER_JOBS,
        .run = run_cancel,
};
