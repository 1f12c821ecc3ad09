/* tandem stop: `tandem unload`, as users of Ollama say it. */
#include "client-lib/cli/unload.h"

extern const struct command command_stop;

static int run_stop(struct cli *cli, int argc, char **argv)
{
        return unload_run(cli, &command_stop, argc, argv);
}

const struct command command_stop = {
        .name = "stop",
        .summary = "the same as unload",
        .usage = "MODEL",
        .about = "Gives a model's memory back, by its name in `tandem models`, as `tandem unload` does. A job is "
                 "stopped "
                 "with `tandem cancel`, and tandemd itself with kill or `systemctl stop tandemd`.",
        .offer = OFFER_MODELS,
        .run = run_stop,
};
