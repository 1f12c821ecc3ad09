/* Whether the terminal that the daemon was started from is still there. SIGHUP means "read the configuration again" to
 * managers, and "your terminal has gone" to shells: this tells one from the other. Without a terminal, and where SIGHUP
 * was ignored at the start (nohup), it never means the latter. Main thread only. */
#ifndef TDM_DAEMON_SERVICE_TERMINAL_H
#define TDM_DAEMON_SERVICE_TERMINAL_H

#include "common/loop.h"

struct tdm_terminal;

/* Before SIGHUP is taken by the loop. on_gone: after a SIGHUP, when the terminal has gone. */
int tdm_terminal_new(struct tdm_terminal **ret, struct tdm_loop *loop, void (*on_gone)(void *userdata), void *userdata);
/* A SIGHUP came. True: it is the terminal's end, and on_gone was called. Some shells send it just before they end, so
 * that is looked at once more a little later. */
bool tdm_terminal_hang_up(struct tdm_terminal *terminal);
void tdm_terminal_destroyp(struct tdm_terminal **terminal);

#endif
