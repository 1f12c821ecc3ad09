/* The socket that a service manager has opened for us and passes ($LISTEN_FDS). Nothing without such a manager. */
#ifndef TDM_DAEMON_SERVICE_PASSED_H
#define TDM_DAEMON_SERVICE_PASSED_H

#include "common/error.h"

/* The name of the socket in our socket unit. Where several descriptors are passed, the one with this name is taken. */
#define TDM_LISTEN_NAME "client"
/* The listening Unix stream socket, or -1 when none was passed. Removes the variables from the environment, and closes
 * the other descriptors that were passed. TDM_E_BAD_REQUEST: the descriptor is no such socket, or several were passed
 * and none has the name. */
int tdm_listen_fd(int *ret_fd, struct tdm_error *err);

#endif
