/* A gate's own process; see gate.h. It does one order at a time, and hangs where a file system hangs. It ends when
 * tandemd has closed the other end. */
#include "daemon/faces/socket/gate-private.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include "common/spawn.h"

#define FUSE_MAGIC 0x65735546
#define OVERLAY_MAGIC 0x794c7630
#define ECRYPTFS_MAGIC 0xf15f

int gate_send(int socket, const void *data, size_t size, int fd)
{
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(sizeof(int))];
        } control = { 0 };
        struct iovec iov = { .iov_base = (void *)(uintptr_t)data, .iov_len = size };
        struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
        ssize_t n;

        if (fd >= 0) {
                msg.msg_control = control.bytes;
                msg.msg_controllen = sizeof(control.bytes);
                *CMSG_FIRSTHDR(&msg) = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)),
                                                         .cmsg_level = SOL_SOCKET,
                                                         .cmsg_type = SCM_RIGHTS };
                memcpy(CMSG_DATA(CMSG_FIRSTHDR(&msg)), &fd, sizeof(int));
        }
        do
                n = sendmsg(socket, &msg, MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);
        return n < 0 ? -errno : 0;
}

/* Receives a message. The first `most` of its fds go into fds. */
static ssize_t receive_all(int socket, void *data, size_t size, int *fds, unsigned most, unsigned *ret_n, int flags)
{
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(GATE_MAX_FDS * sizeof(int))];
        } control;
        struct iovec iov = { .iov_base = data, .iov_len = size };
        struct msghdr msg = { .msg_iov = &iov,
                              .msg_iovlen = 1,
                              .msg_control = control.bytes,
                              .msg_controllen = CMSG_SPACE(most * sizeof(int)) };
        ssize_t n;

        *ret_n = 0;
        do
                n = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC | flags);
        while (n < 0 && errno == EINTR);
        if (n < 0)
                return -errno;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
                unsigned came = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));

                if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
                        continue;
                came = TDM_MIN(came, most - *ret_n);
                memcpy(fds + *ret_n, CMSG_DATA(c), came * sizeof(int));
                *ret_n += came;
        }
        return n;
}

ssize_t gate_receive(int socket, void *data, size_t size, int *ret_fd, int flags)
{
        unsigned n_fds;
        int fd = -1;
        ssize_t n = receive_all(socket, data, size, &fd, 1, &n_fds, flags);

        *ret_fd = n_fds == 1 ? fd : -1;
        return n;
}

/* Is the file system dev one that root mounted, in the daemon's own view of the mounts? A user's mount names the user,
 * and one in a user's own namespace is not seen here. */
static bool mounted_by_root(dev_t dev)
{
        _cleanup_(fclosep) FILE *f = fopen("/proc/self/mountinfo", "re");
        _cleanup_(freep) char *line = NULL;
        size_t size = 0;

        while (f && getline(&line, &size, f) >= 0) {
                unsigned a, b;
                const char *rest = strstr(line, " - "), *user;

                if (sscanf(line, "%*u %*u %u:%u", &a, &b) != 2 || makedev(a, b) != dev || !rest)
                        continue;
                user = strstr(rest, "user_id=");
                return !user || strtoul(user + strlen("user_id="), NULL, 10) == 0;
        }
        return false;
}

static int judge(int fd, bool trusted)
{
        struct statx stx;
        struct statfs fs;

        if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &stx) < 0 || !S_ISREG(stx.stx_mode))
                return TDM_GATE_NOT_A_FILE;
        if (trusted)
                return 0;
        if (fstatfs(fd, &fs) < 0)
                return TDM_GATE_FOREIGN;
        if (((uint32_t)fs.f_type == FUSE_MAGIC || (uint32_t)fs.f_type == OVERLAY_MAGIC ||
             (uint32_t)fs.f_type == ECRYPTFS_MAGIC) &&
            !mounted_by_root(makedev(stx.stx_dev_major, stx.stx_dev_minor)))
                return TDM_GATE_FOREIGN;
        return 0;
}

/* One order; false: tandemd has gone. */
static bool serve_order(int control, int connection, const struct gate_order *order)
{
        struct gate_answer answer = { 0 };
        int fds[GATE_MAX_FDS];
        unsigned n_fds = 0;
        uint8_t first = 0;
        ssize_t n = receive_all(connection, &first, 1, fds, GATE_MAX_FDS, &n_fds, MSG_DONTWAIT);

        close(connection);
        answer.error = n < 0 ? (int32_t)-n : n == 0 ? EPIPE : 0;
        answer.n_fds = n_fds;
        answer.first = first;
        if (n_fds == 1)
                answer.verdict = judge(fds[0], order->trusted);
        else if (n_fds > 1)
                answer.verdict = TDM_GATE_TOO_MANY;
        if (gate_send(control, &answer, sizeof(answer), n_fds == 1 && answer.verdict == 0 ? fds[0] : -1) < 0)
                return false;
        for (unsigned i = 0; i < n_fds; i++)
                close(fds[i]); /* may hang, here */
        answer = (struct gate_answer){ .n_fds = GATE_IDLE };
        return gate_send(control, &answer, sizeof(answer), -1) == 0;
}

int tdm_gate_run(int control)
{
        struct gate_order order;
        int connection;

        /* It ends with tandemd, which is signalled too and may have orders until its end. */
        tdm_spawned_ignore(SIGTERM);
        tdm_spawned_ignore(SIGINT);
        tdm_spawned_ignore(SIGHUP);
        for (;;) {
                ssize_t n = gate_receive(control, &order, sizeof(order), &connection, 0);

                if (n != sizeof(order) || connection < 0)
                        return n == 0 ? 0 : 1;
                if (!serve_order(control, connection, &order))
                        return 0;
        }
}
