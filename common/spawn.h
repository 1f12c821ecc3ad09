/* Starting a program that talks over one socket. */
#ifndef TDM_COMMON_SPAWN_H
#define TDM_COMMON_SPAWN_H

#include <sys/types.h>

/* The child's fds: 0 is /dev/null, 1 and 2 are our stderr, socket_fd is `socket`, and there is no other. No signal is
 * blocked in it and all have their default action: an event loop blocks some. socket_fd is 3. 0 or -errno. */
int tdm_spawn(const char *path, char *const argv[], int socket, int socket_fd, pid_t *ret_pid);

#endif
