/* tandem: the command line. A client of libtandem and nothing more: what it can do, every program can. */
#include "client-lib/cli/cli.h"
#include "common/standard-fds.h"

#include <stdarg.h>

static int usage_error(const char *fmt, ...) _printf_(1, 2);
static int usage_error(const char *fmt, ...)
{
        _cleanup_(freep) char *text = NULL;
        va_list args;

        va_start(args, fmt);
        if (vasprintf(&text, fmt, args) < 0)
                text = NULL;
        va_end(args);
        complain("%s (see `tandem help`)", text ? text : fmt);
        return EXIT_USAGE;
}

int main(int argc, char **argv)
{
        const struct arg *colour = args_find(args_of_all, n_args_of_all, "color", 5, 0);
        const struct command *command;
        _cleanup_(buf_freep) struct buf help = { 0 };
        const char *value;
        int n;
        struct cli cli = { .program = argc > 0 ? argv[0] : "tandem" };
        int i;

        tdm_standard_fds_open();
        term_init();
        signal_init();
        commands_register();

        for (i = 1; i < argc && argv[i][0] == '-'; i++) {
                if (strcmp(argv[i], "--socket") == 0) {
                        if (i + 1 == argc)
                                return usage_error("--socket needs a value");
                        cli.socket = argv[++i];
                } else if (strncmp(argv[i], "--socket=", 9) == 0) {
                        cli.socket = argv[i] + 9;
                } else if (strcmp(argv[i], "--color") == 0 || strncmp(argv[i], "--color=", 8) == 0) {
                        value = argv[i][7] ? argv[i] + 8 : i + 1 < argc ? argv[++i] : "";
                        n = tdm_range_choice(&colour->range, value);
                        if (n < 0)
                                return usage_error("--color: '%.60s' is none of auto, always, never", value);
                        cli.colour = (uint32_t)n;
                } else if (strcmp(argv[i], "--version") == 0) {
                        out_printf("tandem %d.%d.%d (libtandem %s)\n", TANDEM_VERSION_MAJOR, TANDEM_VERSION_MINOR,
                                   TANDEM_VERSION_PATCH, tandem_version());
                        return out_finish();
                } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
                        return help_print(NULL);
                } else {
                        return usage_error("there is no option %.60s", argv[i]);
                }
        }
        if (i == argc) {
                help_write(&help, NULL);
                fwrite(help.data, 1, help.size, stderr);
                return EXIT_USAGE;
        }
        command = command_find(argv[i]);
        if (command)
                return command->run(&cli, argc - i, argv + i);
        return command_complain_unknown(argv[i]);
}
