/* The commands there are, in the order of the list in CMakeLists.txt, which commands.inc is made from. */
#include "client-lib/cli/command.h"

#define COMMAND(name) extern const struct command command_##name;
#include "client-lib/cli/commands.inc"
#undef COMMAND

const struct command *const commands[] = {
#define COMMAND(name) &command_##name,
#include "client-lib/cli/commands.inc"
#undef COMMAND
};

const size_t n_commands = TDM_ARRAY_SIZE(commands);

const struct command *command_find(const char *name)
{
        for (size_t i = 0; i < n_commands; i++)
                if (strcmp(commands[i]->name, name) == 0)
                        return commands[i];
        return NULL;
}
