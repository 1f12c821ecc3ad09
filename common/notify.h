/* Tells a service manager this process's state (sd_notify's protocol: a datagram to $NOTIFY_SOCKET). Does nothing
 * without such a manager. */
#ifndef TDM_COMMON_NOTIFY_H
#define TDM_COMMON_NOTIFY_H

#include <stdbool.h>

/* "READY=1", "STOPPING=1", … A manager that does not answer is no reason to fail: errors are only logged. */
void tdm_notify(const char *state);
/* The manager ends a service of which it does not hear this. So it waits for room, for half a second at most. */
void tdm_notify_ready(void);
/* Gives a copy of a descriptor to the manager, which passes it under that name to the next daemon; drops what it has
 * under that name. A negative errno: the manager did not hear it; -EAGAIN: it may hear it later. waits: for
 * room, for half a second at most. */
int tdm_notify_store(const char *name, int fd);
int tdm_notify_forget(const char *name, bool waits);

#endif
