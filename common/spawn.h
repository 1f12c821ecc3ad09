/* Starting a program that talks over one socket. */
#ifndef TDM_COMMON_SPAWN_H
#define TDM_COMMON_SPAWN_H

#include <sys/types.h>

/* The child's fds: 0 is /dev/null, 1 and 2 are our stderr, socket_fd is `socket`, and there is no other. All signals
 * have their default action. SIGHUP, SIGINT and SIGTERM are blocked, and no other: a terminal or a service that ends
 * sends them to all its processes, and must not end the child before it has said what they mean to it. socket_fd is 3.
 * 0 or -errno. */
int tdm_spawn(const char *path, char *const argv[], int socket, int socket_fd, pid_t *ret_pid);
/* Makes such a child ignore one of those three signals, also where it has come already. */
void tdm_spawned_ignore(int signo);

#endif
