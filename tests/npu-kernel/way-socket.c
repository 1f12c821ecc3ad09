/* The way of libnpu-kernel-preload.so: sockets to the server that TANDEM_NPU_KERNEL names. A file of the device is a
 * connection (protocol.h). */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <errno.h>
#include <unistd.h>

#include "tests/npu-kernel/way.h"

const char *npk_directory(void)
{
        return getenv(NPK_ENV);
}

bool npk_is_kernel(void)
{
        return false;
}

bool npk_locks(void)
{
        return true;
}

#define N_PAIRS 16u
#ifndef SO_PEERNAME
#define SO_PEERNAME 28
#endif

/* What a sandbox would not let a program make later, though a kernel asks nobody for it: made when the library is
 * loaded, before any code of the program's. */
static struct {
        char directory[256]; /* of the server that channel leads to */
        int channel;
        struct {
                int ends[2];
                bool busy;
        } pairs[N_PAIRS];
        int pipe[2];
        pthread_mutex_t lock, copying;
} way = { .channel = -1, .pipe = { -1, -1 }, .lock = PTHREAD_MUTEX_INITIALIZER, .copying = PTHREAD_MUTEX_INITIALIZER };

static int connect_to_server(void)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), error;
        struct ucred server;
        socklen_t size = sizeof(server);

        if (fd < 0)
                return -1;
        snprintf(address.sun_path, sizeof(address.sun_path), "%s/" NPK_SOCKET, npk_directory());
        if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0) {
                /* A kernel reads user memory without asking; the server may where this says so. */
                if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &server, &size) == 0)
                        prctl(PR_SET_PTRACER, server.pid, 0, 0, 0);
                return fd;
        }
        error = errno == ECONNREFUSED || errno == ENOENT ? ENODEV : errno;
        close(fd);
        errno = error;
        return -1;
}

/* One of those made before; else a new one, which release_pair() closes. */
static int take_pair(int ret[2])
{
        int which = -1;

        pthread_mutex_lock(&way.lock);
        for (unsigned i = 0; way.channel >= 0 && i < N_PAIRS && which < 0; i++)
                if (!way.pairs[i].busy) {
                        way.pairs[i].busy = true;
                        memcpy(ret, way.pairs[i].ends, sizeof(way.pairs[i].ends));
                        which = (int)i;
                }
        pthread_mutex_unlock(&way.lock);
        if (which < 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ret) < 0)
                return -errno;
        return which;
}

static void release_pair(int which, const int pair[2])
{
        if (which < 0) {
                close(pair[0]);
                close(pair[1]);
                return;
        }
        pthread_mutex_lock(&way.lock);
        way.pairs[which].busy = false;
        pthread_mutex_unlock(&way.lock);
}

/* ---- requests ---- */

/* By the peer's name, which the server binds without its directory: a chroot sees another path. Asked in the one way
 * that a sandbox leaves. */
bool npk_is_ours(int fd)
{
        struct sockaddr_un address;
        socklen_t size = offsetof(struct sockaddr_un, sun_path) + sizeof(NPK_SOCKET); /* not more than the name has */

        if (!npk_directory() || fd < 0)
                return false;
        memset(&address, 0, sizeof(address));
        return syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERNAME, &address, &size) == 0 &&
               address.sun_family == AF_UNIX && strcmp(address.sun_path, NPK_SOCKET) == 0;
}

/* False: the server is gone, or it dropped this file. */
static bool wait_for_reply(int reply, int fd)
{
        struct pollfd fds[2] = { { .fd = reply, .events = POLLIN }, { .fd = fd } };

        while (poll(fds, 2, -1) < 0)
                if (errno != EINTR)
                        return false;
        return fds[0].revents & POLLIN || poll(fds, 1, 0) == 1;
}

int npk_request(int fd, struct npk_request *r, const void *extra, int send_fd, uint8_t *ret_extra,
                uint32_t *ret_n_extra, int *ret_fd)
{
        struct npk_reply answer;
        int pair[2], n_fds = send_fd >= 0 ? 2 : 1, result, which = take_pair(pair);
        struct iovec out[2] = { { r, sizeof(*r) }, { (void *)(uintptr_t)extra, r->n_extra } },
                     in[2] = { { &answer, sizeof(answer) }, { ret_extra, ret_extra ? NPK_MAX_EXTRA : 0 } };
        union {
                struct cmsghdr head;
                char bytes[CMSG_SPACE(2 * sizeof(int))];
        } control;
        struct msghdr msg = { .msg_iov = out, .msg_iovlen = 2, .msg_control = control.bytes };
        ssize_t n;

        if (which < -1)
                return which;
        memset(&control, 0, sizeof(control));
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
        memcpy(CMSG_DATA(&control.head), (int[]){ pair[1], send_fd }, (size_t)n_fds * sizeof(int));
        msg.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
        do
                n = sendmsg(fd, &msg, MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);
        msg = (struct msghdr){
                .msg_iov = in, .msg_iovlen = 2, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)
        };
        memset(&control, 0, sizeof(control));
        if (n >= 0 && wait_for_reply(pair[0], fd))
                n = recvmsg(pair[0], &msg, MSG_CMSG_CLOEXEC);
        else
                n = -1;
        release_pair(which, pair);
        if (n < (ssize_t)sizeof(answer))
                return -ENODEV;
        result = answer.result;
        memcpy(r->arg, answer.arg, sizeof(r->arg));
        if (ret_n_extra)
                *ret_n_extra = answer.n_extra;
        if (msg.msg_controllen >= CMSG_LEN(sizeof(int)) && control.head.cmsg_type == SCM_RIGHTS) {
                int got;

                memcpy(&got, CMSG_DATA(&control.head), sizeof(got));
                if (ret_fd)
                        *ret_fd = got;
                else
                        close(got);
        }
        return result;
}

__attribute__((constructor)) static void prepare(void)
{
        struct npk_request r = { .kind = NPK_CHANNEL };

        if (!npk_directory() || strlen(npk_directory()) >= sizeof(way.directory))
                return;
        way.channel = npk_high(connect_to_server());
        if (way.channel < 0)
                return;
        strcpy(way.directory, npk_directory());
        for (unsigned i = 0; i < N_PAIRS; i++) {
                if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, way.pairs[i].ends) < 0) {
                        way.pairs[i].busy = true;
                        continue;
                }
                way.pairs[i].ends[0] = npk_high(way.pairs[i].ends[0]);
                way.pairs[i].ends[1] = npk_high(way.pairs[i].ends[1]);
        }
        if (npk_request(way.channel, &r, NULL, -1, NULL, NULL, NULL) < 0)
                way.channel = -1;
}

/* The node's stand-in is opened for real first, so that what keeps this program from it keeps it from the NPU. */
int npk_open(const char *stand_in, int flags)
{
        struct npk_request r = { .kind = NPK_OPEN };
        int fd = (int)syscall(SYS_openat, AT_FDCWD, stand_in, flags, 0), result;

        if (fd < 0)
                return -1;
        close(fd);
        if (way.channel < 0 || strcmp(way.directory, npk_directory()) != 0)
                return connect_to_server();
        memcpy(r.arg, (int32_t[]){ getpid() }, sizeof(int32_t));
        fd = -1;
        result = npk_request(way.channel, &r, NULL, -1, NULL, NULL, &fd);
        if (result < 0)
                errno = -result;
        return result < 0 ? -1 : fd;
}
