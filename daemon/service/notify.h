/* Telling a service manager how we are (sd_notify's protocol: a datagram to $NOTIFY_SOCKET), and taking a socket that
 * it has opened for us ($LISTEN_FDS). Both do nothing where there is no such manager. */
#ifndef TDM_DAEMON_SERVICE_NOTIFY_H
#define TDM_DAEMON_SERVICE_NOTIFY_H

#include "common/error.h"

/* "READY=1", "STOPPING=1", … */
void tdm_notify(const char *state);
/* What our socket unit calls its socket; where several descriptors are passed, that one is meant. */
#define TDM_LISTEN_NAME "client"
/* The listening Unix stream socket, or -1 when none was passed. Takes the variables out of the environment, and closes
 * what else was passed. TDM_E_BAD_REQUEST: the one that is meant is something else, or it is not clear which one is. */
int tdm_listen_fd(int *ret_fd, struct tdm_error *err);

#endif
