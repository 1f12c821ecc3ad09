/* tandem help: what the program and its commands do. */
#include "client-lib/cli/cli.h"

extern const struct command command_help;

static int run_help(struct cli *cli, int argc, char **argv)
{
        const struct command *command;
        const char *name = NULL;
        unsigned n;
        int status;

        if (cli_parse(cli, &command_help, argc, argv, NULL, &name, 1, &n, &status))
                return status;
        command = name ? command_find(name) : NULL;
        if (name && !command)
                return command_complain_unknown(name);
        return help_print(command);
}

const struct command command_help = {
        .name = "help",
        .summary = "this text, or help COMMAND",
        .usage = "[COMMAND]",
        .about = "Prints a short text about the program, or about one command.",
        .offer = OFFER_COMMANDS,
        .run = run_help,
};
