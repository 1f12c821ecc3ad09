/* What `tandem unload` does, for `tandem stop`, which is its name at Ollama. */
#ifndef TANDEM_CLI_UNLOAD_H
#define TANDEM_CLI_UNLOAD_H

#include "client-lib/cli/cli.h"

/* Parses the arguments of either and gives the model's memory back; an exit status. */
int unload_run(struct cli *cli, const struct command *command, int argc, char **argv);

#endif
