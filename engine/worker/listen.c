/* A worker as a unit of its own: the service manager owns the listening socket and starts us when tandemd connects. One
 * connection is one life, as with a worker that tandemd starts: it is taken from the manager's socket, nothing else is,
 * and afterwards the process cannot make, bind or connect a socket (sandbox.c). It needs none.
 *
 * The socket's mode (0600, tandemd's user) says who may connect, so nothing is asked here. The first byte is ours. The
 * kernel adds to it who sent it, and that is the only way for tandemd to learn which process it talks to: the peer of a
 * connection to such a socket is the process that listened, which is the manager (see daemon/fleet/unit.c). */
#include "engine/worker/listen.h"

#include <poll.h>
#include <sys/socket.h>
#include "common/log.h"
#include "engine/worker/abi.h"

#define LISTEN_FD 3
/* Started by hand, or tandemd has changed its mind. */
#define WAIT_MS 30000

static int int_option(int fd, int option)
{
        socklen_t len = sizeof(int);
        int value;

        return getsockopt(fd, SOL_SOCKET, option, &value, &len) < 0 ? -errno : value;
}

bool tdm_worker_is_unit(void)
{
        const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");

        return pid && fds && strtol(pid, NULL, 10) == getpid() && strtol(fds, NULL, 10) > 0;
}

int tdm_worker_accept(int *ret_fd, struct tdm_error *err)
{
        static const char greeting = TDM_WORKER_GREETING;
        _cleanup_(closep) int listening = LISTEN_FD, fd = -1;
        struct pollfd p = { .fd = listening, .events = POLLIN };
        bool one = strtol(getenv("LISTEN_FDS"), NULL, 10) == 1;
        int r;

        unsetenv("LISTEN_PID");
        unsetenv("LISTEN_FDS");
        unsetenv("LISTEN_FDNAMES");
        if (!one || int_option(listening, SO_DOMAIN) != AF_UNIX || int_option(listening, SO_TYPE) != SOCK_STREAM ||
            int_option(listening, SO_ACCEPTCONN) != 1)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "the service manager passed something else than one listening Unix "
                                     "stream socket");
        for (;;) {
                r = poll(&p, 1, WAIT_MS);
                if (r < 0 && errno != EINTR)
                        return tdm_error_set(err, -errno, "cannot wait for tandemd: %s", strerror(errno));
                if (r == 0)
                        return tdm_error_set(err, -ETIMEDOUT, "tandemd does not connect");
                if (r < 0)
                        continue;
                fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
                if (fd < 0 && (errno == EINTR || errno == EAGAIN || errno == ECONNABORTED))
                        continue;
                if (fd < 0)
                        return tdm_error_set(err, -errno, "cannot accept tandemd's connection: %s", strerror(errno));
                /* One who has left again has had no answer: the next one may be waiting behind. */
                if (send(fd, &greeting, 1, MSG_NOSIGNAL) == 1)
                        break;
                closep(&fd);
                fd = -1;
        }
        *ret_fd = steal_fd(&fd);
        return 0;
}
