/* The protocol is short, so this needs no library. */
#include "common/notify.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "common/log.h"

#define MAX_FDS 1u
#define WAIT_MS 500

/* waits: for room, up to WAIT_MS. 0; -EAGAIN: the manager's queue is full; -ENOTCONN: there is none; what else
 * sendmsg() gives. */
static int notify_send(const char *state, const int *fds, unsigned n_fds, bool waits)
{
        static const struct timeval wait = { .tv_usec = WAIT_MS * 1000 };
        const char *path = getenv("NOTIFY_SOCKET");
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        union {
                struct cmsghdr align;
                char space[CMSG_SPACE(MAX_FDS * sizeof(int))];
        } control = { 0 };
        struct iovec io = { .iov_base = (void *)(uintptr_t)state, .iov_len = strlen(state) };
        struct msghdr message = { .msg_name = &address, .msg_iov = &io, .msg_iovlen = 1 };
        _cleanup_(closep) int fd = -1;
        size_t len;
        int r = 0;

        if (!path || (path[0] != '/' && path[0] != '@') || n_fds > MAX_FDS)
                return -ENOTCONN;
        len = strlen(path);
        if (len >= sizeof(address.sun_path))
                return -ENOTCONN;
        memcpy(address.sun_path, path, len);
        if (path[0] == '@')
                address.sun_path[0] = '\0';
        message.msg_namelen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
        if (n_fds > 0) {
                struct cmsghdr *c;

                message.msg_control = control.space;
                message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
                c = CMSG_FIRSTHDR(&message);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
                memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
        }
        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | (waits ? 0 : SOCK_NONBLOCK), 0);
        if (fd >= 0 && waits)
                (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
        if (fd < 0 || sendmsg(fd, &message, MSG_NOSIGNAL) < 0) {
                r = -errno;
                tdm_log_debug("cannot notify the service manager: %s", strerror(-r));
        }
        return r;
}

void tdm_notify(const char *state)
{
        (void)notify_send(state, NULL, 0, false);
}

void tdm_notify_ready(void)
{
        (void)notify_send("READY=1", NULL, 0, true);
}

int tdm_notify_store(const char *name, int fd)
{
        char state[128];

        snprintf(state, sizeof(state), "FDSTORE=1\nFDNAME=%s", name);
        return notify_send(state, &fd, 1, false);
}

int tdm_notify_forget(const char *name, bool waits)
{
        char state[128];

        snprintf(state, sizeof(state), "FDSTOREREMOVE=1\nFDNAME=%s", name);
        return notify_send(state, NULL, 0, waits);
}
