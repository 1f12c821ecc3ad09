/* The commands there are, in the order of the list in CMakeLists.txt, which commands.inc is made from.
 *
 * A file of its own: the commands use what looks names up, and that does not use them. */
#include "client-lib/cli/command.h"

#define COMMAND(name) extern const struct command command_##name;
#include "client-lib/cli/commands.inc"
#undef COMMAND

void commands_register(void)
{
        static const struct command *const table[] = {
#define COMMAND(name) &command_##name,
#include "client-lib/cli/commands.inc"
#undef COMMAND
        };

        commands = table;
        n_commands = TDM_ARRAY_SIZE(table);
}
