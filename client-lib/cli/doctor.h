/* The devices of this machine that Tandem can use, the reasons against others, and the commands that mend those. */
#ifndef TANDEM_CLI_DOCTOR_H
#define TANDEM_CLI_DOCTOR_H

#include "client-lib/cli/json.h"

/* Looks at the machine whose /sys, /dev, /proc, /usr and /etc lie in root ("": this one), and at the daemon unless
 * ask_daemon is false. Appends lines for a person. Returns how many things want mending. */
struct cli;
unsigned doctor_write(struct buf *to, struct cli *cli, const char *root, bool ask_daemon);

#endif
