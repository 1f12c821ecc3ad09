/* Telling a service manager how we are (sd_notify's protocol: a datagram to $NOTIFY_SOCKET), and taking a socket that it
 * has opened for us ($LISTEN_FDS). Both do nothing where there is no such manager. */
#ifndef TDM_DAEMON_NOTIFY_H
#define TDM_DAEMON_NOTIFY_H

#include "common/error.h"

/* "READY=1", "STOPPING=1", … */
void tdm_notify(const char *state);
/* The listening Unix stream socket, or -1 when none was passed. Takes the variables out of the environment.
 * TDM_E_BAD_REQUEST: something else was passed. */
int tdm_listen_fd(int *ret_fd, struct tdm_error *err);

#endif
