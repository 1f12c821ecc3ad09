/* Thirty lines instead of a library. A manager that does not answer is no reason to fail: errors are only logged. */
#include "daemon/notify.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "common/log.h"

#define LISTEN_FDS_START 3

void tdm_notify(const char *state)
{
        const char *path = getenv("NOTIFY_SOCKET");
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        _cleanup_(closep) int fd = -1;
        size_t len;

        if (!path || (path[0] != '/' && path[0] != '@'))
                return;
        len = strlen(path);
        if (len >= sizeof(address.sun_path))
                return;
        memcpy(address.sun_path, path, len);
        if (path[0] == '@')
                address.sun_path[0] = '\0';
        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address,
                             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) < 0)
                tdm_log_debug("cannot notify the service manager: %s", strerror(errno));
}

static int int_option(int fd, int option)
{
        socklen_t len = sizeof(int);
        int value;

        return getsockopt(fd, SOL_SOCKET, option, &value, &len) < 0 ? -errno : value;
}

int tdm_listen_fd(int *ret_fd, struct tdm_error *err)
{
        const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
        bool ours = pid && fds && strtol(pid, NULL, 10) == getpid();
        long n = ours ? strtol(fds, NULL, 10) : 0;
        int flags;

        unsetenv("LISTEN_PID");
        unsetenv("LISTEN_FDS");
        unsetenv("LISTEN_FDNAMES");
        *ret_fd = -1;
        if (n <= 0)
                return 0;
        if (n != 1)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "the service manager passed %ld sockets; tandemd takes one", n);
        if (int_option(LISTEN_FDS_START, SO_DOMAIN) != AF_UNIX || int_option(LISTEN_FDS_START, SO_TYPE) != SOCK_STREAM ||
            int_option(LISTEN_FDS_START, SO_ACCEPTCONN) != 1)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "what the service manager passed is not a listening Unix stream socket");
        flags = fcntl(LISTEN_FDS_START, F_GETFL);
        if (fcntl(LISTEN_FDS_START, F_SETFD, FD_CLOEXEC) < 0 || flags < 0 ||
            fcntl(LISTEN_FDS_START, F_SETFL, flags | O_NONBLOCK) < 0)
                return tdm_error_set(err, -errno, "cannot take the service manager's socket: %s", strerror(errno));
        *ret_fd = LISTEN_FDS_START;
        return 0;
}
