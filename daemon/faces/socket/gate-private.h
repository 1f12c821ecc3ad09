/* What tandemd and a gate say to each other, over a SOCK_SEQPACKET pair. */
#ifndef TDM_DAEMON_FACES_SOCKET_GATE_PRIVATE_H
#define TDM_DAEMON_FACES_SOCKET_GATE_PRIVATE_H

#include "daemon/faces/socket/gate.h"

#define GATE_CONTROL_FD 3
#define GATE_MAX_FDS 253u /* the kernel's limit for one message */

/* With the connection as its fd. */
struct gate_order {
        uint32_t trusted;
};

/* Two for each order: what was received (with an fd, if n_fds is 1 and verdict 0), then n_fds = GATE_IDLE: all that was
 * not passed on is closed. */
#define GATE_IDLE UINT32_MAX
struct gate_answer {
        int32_t error; /* errno: nothing was received */
        uint32_t n_fds;
        int32_t verdict;
        uint32_t first;
};

int gate_send(int socket, const void *data, size_t size, int fd);
/* The size, 0 at the end, or a negative errno. *ret_fd: -1 if none came. */
ssize_t gate_receive(int socket, void *data, size_t size, int *ret_fd, int flags);

#endif
