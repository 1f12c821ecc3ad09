/* Which process a connection is from, so that polkit can be asked about it. A pid alone may be used again by the time
 * that polkit looks. With the time at which its process started it is unique, and polkit compares that time. Here it is
 * read while the process is known to be the one that connected: the kernel's handle of it (SO_PEERPIDFD, Linux 6.5)
 * still says that it lives, or, on an older kernel, it is the time that was read when the connection was accepted. */
#include "daemon/faces/socket/private.h"

#include <poll.h>
#include <sys/socket.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* The 22nd field of /proc/PID/stat; 0: it cannot be read. */
static uint64_t start_time_of(pid_t pid)
{
        char path[64], text[1024];
        _cleanup_(fclosep) FILE *f = NULL;
        unsigned long long time = 0;
        const char *rest;
        size_t n;

        snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
        f = fopen(path, "re");
        n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
        text[n] = '\0';
        rest = strrchr(text, ')'); /* behind the name, which may have anything in it */
        if (!rest ||
            sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                   &time) != 1)
                return 0;
        return time;
}

static int pidfd_of(int socket)
{
        int fd = -1;
        socklen_t size = sizeof(fd);

        return getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) < 0 ? -errno : fd;
}

void process_remember(struct client *c)
{
        _cleanup_(closep) int pidfd = pidfd_of(c->fd);

        if (pidfd == -ENOPROTOOPT)
                c->start_time = start_time_of(c->pid);
}

int process_identify(const struct client *c, struct tdm_face_process *ret)
{
        _cleanup_(closep) int pidfd = pidfd_of(c->fd);
        uint64_t time = start_time_of(c->pid);
        struct pollfd p = { .fd = pidfd, .events = POLLIN };

        if (time == 0 || (pidfd < 0 && pidfd != -ENOPROTOOPT))
                return -ESRCH;
        if (pidfd >= 0 ? poll(&p, 1, 0) != 0 : time != c->start_time)
                return -ESRCH; /* it has ended, and the pid may be another's */
        *ret = (struct tdm_face_process){ .pid = c->pid, .uid = c->uid, .start_time = time };
        return 0;
}
