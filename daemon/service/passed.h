/* The socket that a service manager has opened for us and passes ($LISTEN_FDS). Nothing without such a manager. */
#ifndef TDM_DAEMON_SERVICE_PASSED_H
#define TDM_DAEMON_SERVICE_PASSED_H

#include "common/error.h"
#include "daemon/faces/dbus/dbus.h"

/* The name of the socket in our socket unit. Where several descriptors are passed, the one with this name is taken. */
#define TDM_LISTEN_NAME "client"
/* What an earlier daemon gave to the manager (names that begin with TDM_DBUS_STORED). */
struct tdm_passed {
        struct tdm_dbus_stored *items; /* owned, and the descriptors */
        size_t n;
};
void tdm_passed_deinit(struct tdm_passed *passed);
/* The listening Unix stream socket, or -1 when none was passed. Removes the variables from the environment, and closes
 * the other descriptors that were passed. TDM_E_BAD_REQUEST: the descriptor is no such socket, or several were passed
 * and none has the name. */
int tdm_listen_fd(int *ret_fd, struct tdm_passed *ret_passed, struct tdm_error *err);

#endif
