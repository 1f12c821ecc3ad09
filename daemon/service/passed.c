/* Sockets that a service manager passes, by sd_listen_fds' protocol. It is short, so this needs no library. */
#include "daemon/service/passed.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "common/log.h"

#define LISTEN_FDS_START 3
#define MAX_PASSED 64

static int int_option(int fd, int option)
{
        socklen_t len = sizeof(int);
        int value;

        return getsockopt(fd, SOL_SOCKET, option, &value, &len) < 0 ? -errno : value;
}

/* The nth of names separated by colons; false when there are fewer. */
static bool name_is(const char *names, long n, const char *wanted)
{
        size_t len;

        for (; names && n > 0; n--) {
                names = strchr(names, ':');
                names = names ? names + 1 : NULL;
        }
        if (!names)
                return false;
        len = strcspn(names, ":");
        return len == strlen(wanted) && memcmp(names, wanted, len) == 0;
}

static int check_socket(int fd, struct tdm_error *err)
{
        int flags;

        if (int_option(fd, SO_DOMAIN) != AF_UNIX || int_option(fd, SO_TYPE) != SOCK_STREAM ||
            int_option(fd, SO_ACCEPTCONN) != 1)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "what the service manager passed is not a listening Unix stream socket");
        flags = fcntl(fd, F_GETFL);
        if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 || flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
                return tdm_error_set(err, -errno, "cannot take the service manager's socket: %s", strerror(errno));
        return 0;
}

int tdm_listen_fd(int *ret_fd, struct tdm_error *err)
{
        const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
        _cleanup_(freep) char *names = getenv("LISTEN_FDNAMES") ? strdup(getenv("LISTEN_FDNAMES")) : NULL;
        bool ours = pid && fds && strtol(pid, NULL, 10) == getpid();
        long n = ours ? strtol(fds, NULL, 10) : 0, chosen = -1;
        int r;

        unsetenv("LISTEN_PID");
        unsetenv("LISTEN_FDS");
        unsetenv("LISTEN_FDNAMES");
        *ret_fd = -1;
        if (n <= 0)
                return 0;
        if (n > MAX_PASSED)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "the service manager passed %ld descriptors; tandemd takes one socket", n);
        for (long i = 0; i < n; i++)
                if (name_is(names, i, TDM_LISTEN_NAME)) {
                        if (chosen >= 0)
                                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                                     "the service manager passed several sockets named " TDM_LISTEN_NAME
                                                     "; tandemd takes one");
                        chosen = i;
                }
        if (chosen < 0 && n == 1)
                chosen = 0;
        if (chosen < 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "the service manager passed %ld descriptors and none is named " TDM_LISTEN_NAME
                                     " (FileDescriptorName=)",
                                     n);
        r = check_socket((int)(LISTEN_FDS_START + chosen), err);
        if (r != 0)
                return r;
        for (long i = 0; i < n; i++)
                if (i != chosen) {
                        tdm_log_warning("the service manager passed descriptor %ld, which is not named " TDM_LISTEN_NAME
                                        "; it is closed",
                                        LISTEN_FDS_START + i);
                        close((int)(LISTEN_FDS_START + i));
                }
        *ret_fd = (int)(LISTEN_FDS_START + chosen);
        return 0;
}
