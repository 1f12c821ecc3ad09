/* Who has a TCP port, for people whose own program wants it. Asks /proc; nothing else depends on the answer. */
#ifndef TDM_HTTP_PORT_OWNER_H
#define TDM_HTTP_PORT_OWNER_H

#include <sys/socket.h>
#include "common/util.h"

/* Writes who listens where this address would: "ollama (pid 4711)"; "a process of user ollama" where /proc does
 * not show this user whose sockets are whose; False: /proc shows nobody. */
bool port_owner(const struct sockaddr *address, char *to, size_t size);

#endif
