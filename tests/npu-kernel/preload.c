/* Stands in for the kernel inside a program: below libxrt_driver_xdna.so, or below whatever else opens
 * /dev/accel/accel0. Thin: it forwards, and keeps no state but which addresses are mapped. What a path of sysfs or /dev
 * that belongs to the NPU leads to lies in the server's directory.
 *
 * Freestanding beside libc, so that one build serves Debian 12 and sid. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/npu-kernel/protocol.h"
#include "tests/npu-kernel/uapi.h"

#define EXPORT __attribute__((visibility("default")))
#define NODE "/dev/accel/accel0"
#define MAX_MAPPINGS 4096u
#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name)
{
        return dlsym(RTLD_NEXT, name);
}

static const char *directory(void)
{
        return getenv(NPK_ENV);
}

/* ---- paths ---- */

static const char *redirect(const char *path, char *room, size_t size)
{
        static const char *const ours[] = { "/sys/bus/pci/drivers/amdxdna", "/sys/bus/pci/devices/0000:c5:00.1",
                                            "/sys/devices/pci0000:c0",      "/sys/class/accel",
                                            "/sys/module/amdxdna",          "/dev/accel" };

        if (!path || path[0] != '/' || !directory())
                return path;
        for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
                size_t n = strlen(ours[i]);

                if (strncmp(path, ours[i], n) == 0 && (path[n] == 0 || path[n] == '/'))
                        return snprintf(room, size, "%s/" NPK_TREE "%s", directory(), path) < (int)size ? room : path;
        }
        return path;
}
#define HERE(path) redirect(path, (char[4096]){ 0 }, 4096)

/* ---- the way to the server ---- */

#define N_PAIRS 16u
#define COPY_BYTES 4096u
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

/* Out of the way of programs that count on a number. */
static int high(int fd)
{
        int moved = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 200) : -1;

        if (moved < 0)
                return fd;
        close(fd);
        return moved;
}

static int connect_to_server(void)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), error;
        struct ucred server;
        socklen_t size = sizeof(server);

        if (fd < 0)
                return -1;
        snprintf(address.sun_path, sizeof(address.sun_path), "%s/" NPK_SOCKET, directory());
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

static void prepare_copies(void)
{
        if (way.pipe[0] >= 0 || pipe2(way.pipe, O_CLOEXEC | O_NONBLOCK) < 0)
                return;
        way.pipe[0] = high(way.pipe[0]);
        way.pipe[1] = high(way.pipe[1]);
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
static bool is_ours(int fd)
{
        struct sockaddr_un address;
        socklen_t size = offsetof(struct sockaddr_un, sun_path) + sizeof(NPK_SOCKET); /* not more than the name has */

        if (!directory() || fd < 0)
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

/* 0 or -errno. extra is read up to r->n_extra; what comes back goes to ret_extra, and the reply's arg into r. */
static int request(int fd, struct npk_request *r, const void *extra, int send_fd, uint8_t *ret_extra,
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

        prepare_copies();
        if (!directory() || strlen(directory()) >= sizeof(way.directory))
                return;
        way.channel = high(connect_to_server());
        if (way.channel < 0)
                return;
        strcpy(way.directory, directory());
        for (unsigned i = 0; i < N_PAIRS; i++) {
                if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, way.pairs[i].ends) < 0) {
                        way.pairs[i].busy = true;
                        continue;
                }
                way.pairs[i].ends[0] = high(way.pairs[i].ends[0]);
                way.pairs[i].ends[1] = high(way.pairs[i].ends[1]);
        }
        if (request(way.channel, &r, NULL, -1, NULL, NULL, NULL) < 0)
                way.channel = -1;
}

/* The node's stand-in is opened for real first, so that what keeps this program from it keeps it from the NPU. */
static int open_node(const char *stand_in, int flags)
{
        struct npk_request r = { .kind = NPK_OPEN };
        int fd = (int)syscall(SYS_openat, AT_FDCWD, stand_in, flags, 0), result;

        if (fd < 0)
                return -1;
        close(fd);
        if (way.channel < 0 || strcmp(way.directory, directory()) != 0)
                return connect_to_server();
        memcpy(r.arg, (int32_t[]){ getpid() }, sizeof(int32_t));
        fd = -1;
        result = request(way.channel, &r, NULL, -1, NULL, NULL, &fd);
        if (result < 0)
                errno = -result;
        return result < 0 ? -1 : fd;
}

/* ---- ioctl ---- */

/* As copy_from_user and copy_to_user: false where a program would be ended by touching it. Through a pipe, because the
 * kernel checks addresses there and a sandbox allows it. */
static bool copy(void *to, const void *from, size_t size)
{
        bool ok = true;

        pthread_mutex_lock(&way.copying);
        prepare_copies();
        for (size_t at = 0; ok && at < size;) {
                size_t n = size - at < COPY_BYTES ? size - at : COPY_BYTES;
                ssize_t put = syscall(SYS_write, way.pipe[1], (const uint8_t *)from + at, n),
                        got = put > 0 ? syscall(SYS_read, way.pipe[0], (uint8_t *)to + at, put) : -1;

                ok = put == (ssize_t)n && got == put;
                at += n;
        }
        if (!ok) { /* what is left in it belongs to nothing */
                uint8_t rest[COPY_BYTES];

                while (syscall(SYS_read, way.pipe[0], rest, sizeof(rest)) > 0)
                        ;
        }
        pthread_mutex_unlock(&way.copying);
        return ok;
}

static bool from_user(void *to, uint64_t from, size_t size)
{
        return copy(to, (const void *)(uintptr_t)from, size);
}

static bool to_user(uint64_t to, const void *from, size_t size)
{
        return copy((void *)(uintptr_t)to, from, size);
}

static void add(struct npk_request *r, uint8_t *extra, uint64_t from, uint64_t size)
{
        if (size > NPK_MAX_EXTRA - r->n_extra)
                size = NPK_MAX_EXTRA - r->n_extra;
        if (from_user(extra + r->n_extra, from, size))
                r->n_extra += (uint32_t)size;
        else
                r->fault = 1;
}

/* What the arguments point to. Returns a descriptor that goes along, or -1. */
static int gather(struct npk_request *r, uint8_t *extra)
{
        switch (r->nr) {
        case XDNA_NR_CREATE_CONTEXT:
                add(r, extra, ((struct xdna_create_context *)(void *)r->arg)->qos, sizeof(struct xdna_qos));
                break;
        case XDNA_NR_CONFIG_CONTEXT: {
                const struct xdna_config_context *c = (void *)r->arg;

                if (c->type == XDNA_CONFIG_CUS && c->value_bytes <= 4096)
                        add(r, extra, c->value, c->value_bytes);
                break;
        }
        case XDNA_NR_CREATE_BO: {
                const struct xdna_create_bo *c = (void *)r->arg;
                struct xdna_va_table table;

                if (!c->vaddr)
                        break;
                if (!from_user(&table, c->vaddr, sizeof(table)) || table.n_entries > 1024)
                        r->fault = 1;
                else
                        add(r, extra, c->vaddr, sizeof(table) + table.n_entries * sizeof(table.entry[0]));
                break;
        }
        case XDNA_NR_EXECUTE: {
                const struct xdna_execute *e = (void *)r->arg;

                if (e->n_args <= 4095)
                        add(r, extra, e->args, e->n_args * sizeof(uint32_t));
                break;
        }
        case XDNA_NR_GET_INFO:
        case XDNA_NR_SET_STATE: {
                const struct xdna_get_info *i = (void *)r->arg;

                add(r, extra, i->buffer, i->size < 4096 ? i->size : 4096);
                break;
        }
        case XDNA_NR_GET_ARRAY: {
                const struct xdna_get_array *a = (void *)r->arg;

                add(r, extra, a->buffer, a->element_size < 4096 ? a->element_size : 4096);
                break;
        }
        case DRM_NR_TIMELINE_WAIT: {
                const struct drm_timeline_wait *w = (void *)r->arg;

                if (w->n_handles <= 4096) {
                        add(r, extra, w->handles, w->n_handles * sizeof(uint32_t));
                        add(r, extra, w->points, w->n_handles * sizeof(uint64_t));
                } else {
                        r->fault = 1;
                }
                break;
        }
        case DRM_NR_TIMELINE_SIGNAL:
        case DRM_NR_TIMELINE_QUERY: {
                const struct drm_timeline_array *a = (void *)r->arg;

                if (a->n_handles <= 4096) {
                        add(r, extra, a->handles, a->n_handles * sizeof(uint32_t));
                        add(r, extra, a->points, a->n_handles * sizeof(uint64_t));
                } else {
                        r->fault = 1;
                }
                break;
        }
        case DRM_NR_PRIME_IMPORT:
                return ((struct drm_prime *)(void *)r->arg)->fd;
        case DRM_NR_SYNCOBJ_IMPORT:
                return ((struct drm_syncobj_fd *)(void *)r->arg)->fd;
        default:
                break;
        }
        return -1;
}

static bool spread_version(struct npk_request *r, const uint8_t *name)
{
        struct drm_version_request *v = (void *)r->arg;
        const uint64_t len = strlen((const char *)name);
        bool ok = !v->name_len || to_user(v->name, name, v->name_len < len ? v->name_len : len);

        v->name_len = len;
        v->date_len = v->desc_len = 0;
        return ok;
}

static bool scatter(struct npk_request *r, const uint8_t *extra, uint32_t n_extra, int fd)
{
        switch (r->nr) {
        case DRM_NR_VERSION:
                return spread_version(r, extra);
        case XDNA_NR_GET_INFO: {
                const struct xdna_get_info *i = (void *)r->arg;

                if (i->param == XDNA_INFO_AIE_STATUS && n_extra >= sizeof(struct xdna_aie_status)) {
                        const struct xdna_aie_status *status = (const void *)extra;

                        return to_user(status->buffer, extra + sizeof(*status), status->size) &&
                               to_user(i->buffer, extra, sizeof(*status));
                }
                return to_user(i->buffer, extra, n_extra);
        }
        case XDNA_NR_GET_ARRAY:
                return to_user(((struct xdna_get_array *)(void *)r->arg)->buffer, extra, n_extra);
        case DRM_NR_TIMELINE_QUERY:
                return to_user(((struct drm_timeline_array *)(void *)r->arg)->points, extra, n_extra);
        case DRM_NR_PRIME_EXPORT: {
                struct drm_prime *p = (void *)r->arg;

                p->fd = fd;
                if (!(p->flags & O_CLOEXEC))
                        fcntl(fd, F_SETFD, 0);
                return true;
        }
        case DRM_NR_SYNCOBJ_EXPORT:
                ((struct drm_syncobj_fd *)(void *)r->arg)->fd = fd;
                return true;
        default:
                return true;
        }
}

static int forward(int fd, unsigned long code, void *arg)
{
        struct npk_request r = { .kind = NPK_IOCTL, .nr = _IOC_NR(code) };
        size_t size = _IOC_SIZE(code) < sizeof(r.arg) ? _IOC_SIZE(code) : sizeof(r.arg);
        uint8_t *room = malloc(2 * NPK_MAX_EXTRA);
        int got = -1, with, result;
        uint32_t n_extra = 0;

        if (!room) {
                errno = ENOMEM;
                return -1;
        }
        if (!from_user(r.arg, (uintptr_t)arg, size)) {
                free(room);
                errno = EFAULT;
                return -1;
        }
        with = gather(&r, room);
        if (with >= 0 && fcntl(with, F_GETFD) < 0)
                with = -1;
        result = request(fd, &r, room, with, room + NPK_MAX_EXTRA, &n_extra, &got);
        if (result == 0 && !scatter(&r, room + NPK_MAX_EXTRA, n_extra, got))
                result = -EFAULT;
        if (result == 0 && !to_user((uintptr_t)arg, r.arg, size))
                result = -EFAULT;
        free(room);
        if (result < 0) {
                errno = -result;
                return -1;
        }
        return 0;
}

EXPORT int ioctl(int fd, unsigned long code, ...)
{
        va_list args;
        void *arg;

        va_start(args, code);
        arg = va_arg(args, void *);
        va_end(args);
        if (_IOC_TYPE(code) == XDNA_IOCTL_TYPE && is_ours(fd)) {
                /* A socket has no such call: only a sandbox says that it is not permitted. */
                if (syscall(SYS_ioctl, fd, code, arg) < 0 && errno == EPERM)
                        return -1;
                return forward(fd, code, arg);
        }
        return (int)syscall(SYS_ioctl, fd, code, arg);
}

/* ---- mappings ---- */

static struct {
        pthread_mutex_t lock;
        struct {
                uintptr_t address;
                size_t len;
                int fd;
        } at[MAX_MAPPINGS];
        unsigned n;
} mappings = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void *map(void *address, size_t len, int prot, int flags, int fd, off_t offset)
{
        return (void *)syscall(SYS_mmap, address, len, prot, flags, fd, offset);
}

/* The range means something else from now on. */
static void forget(void *address, size_t len)
{
        uintptr_t from = (uintptr_t)address, to = from + len;

        pthread_mutex_lock(&mappings.lock);
        for (unsigned i = 0; i < mappings.n;)
                if (mappings.at[i].address < to && from < mappings.at[i].address + mappings.at[i].len) {
                        struct npk_request r = { .kind = NPK_UNMAPPED };

                        memcpy(r.arg, (uint64_t[]){ mappings.at[i].address, mappings.at[i].len }, 16);
                        if (is_ours(mappings.at[i].fd))
                                request(mappings.at[i].fd, &r, NULL, -1, NULL, NULL, NULL);
                        mappings.at[i] = mappings.at[--mappings.n];
                } else {
                        i++;
                }
        pthread_mutex_unlock(&mappings.lock);
}

static void *map_ours(void *address, size_t len, int prot, int flags, int fd, off_t offset)
{
        struct npk_request r = { .kind = NPK_MMAP };
        int memory = -1, result;
        void *p;

        if (!(flags & MAP_SHARED)) {
                errno = EINVAL;
                return MAP_FAILED;
        }
        memcpy(r.arg, (uint64_t[]){ (uint64_t)offset, len }, 16);
        result = request(fd, &r, NULL, -1, NULL, NULL, &memory);
        if (result < 0) {
                errno = -result;
                return MAP_FAILED;
        }
        p = map(address, len, prot, flags, memory, 0);
        close(memory);
        if (p == MAP_FAILED)
                return p;
        r = (struct npk_request){ .kind = NPK_MAPPED };
        memcpy(r.arg, (uint64_t[]){ (uint64_t)offset, len, (uintptr_t)p }, 24);
        request(fd, &r, NULL, -1, NULL, NULL, NULL);
        pthread_mutex_lock(&mappings.lock);
        if (mappings.n < MAX_MAPPINGS) {
                mappings.at[mappings.n].address = (uintptr_t)p;
                mappings.at[mappings.n].len = len;
                mappings.at[mappings.n++].fd = fd;
        }
        pthread_mutex_unlock(&mappings.lock);
        return p;
}

EXPORT void *mmap(void *address, size_t len, int prot, int flags, int fd, off_t offset)
{
        if (mappings.n > 0 && flags & MAP_FIXED)
                forget(address, len);
        if (fd >= 0 && !(flags & MAP_ANONYMOUS) && is_ours(fd))
                return map_ours(address, len, prot, flags, fd, offset);
        return map(address, len, prot, flags, fd, offset);
}

EXPORT void *mmap64(void *address, size_t len, int prot, int flags, int fd, off_t offset)
{
        return mmap(address, len, prot, flags, fd, offset);
}

EXPORT int munmap(void *address, size_t len)
{
        if (mappings.n > 0)
                forget(address, len);
        return (int)syscall(SYS_munmap, address, len);
}

/* ---- files ---- */

static int open_at(int at, const char *path, int flags, mode_t mode)
{
        if (directory() && path && strcmp(path, NODE) == 0 && !(flags & O_PATH))
                return open_node(HERE(path), flags);
        return (int)syscall(SYS_openat, at, HERE(path), flags, mode);
}

#define OPEN_MODE(last)                                                                                                \
        mode_t mode = 0;                                                                                               \
        if (flags & (O_CREAT | O_TMPFILE)) {                                                                           \
                va_list args;                                                                                          \
                va_start(args, last);                                                                                  \
                mode = va_arg(args, mode_t);                                                                           \
                va_end(args);                                                                                          \
        }

EXPORT int open(const char *path, int flags, ...)
{
        OPEN_MODE(flags)
        return open_at(AT_FDCWD, path, flags, mode);
}

EXPORT int open64(const char *path, int flags, ...)
{
        OPEN_MODE(flags)
        return open_at(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

EXPORT int openat(int at, const char *path, int flags, ...)
{
        OPEN_MODE(flags)
        return open_at(at, path, flags, mode);
}

EXPORT int openat64(int at, const char *path, int flags, ...)
{
        OPEN_MODE(flags)
        return open_at(at, path, flags | O_LARGEFILE, mode);
}

EXPORT int __open_2(const char *path, int flags);
EXPORT int __open_2(const char *path, int flags)
{
        return open_at(AT_FDCWD, path, flags, 0);
}

EXPORT int __open64_2(const char *path, int flags);
EXPORT int __open64_2(const char *path, int flags)
{
        return open_at(AT_FDCWD, path, flags | O_LARGEFILE, 0);
}

EXPORT FILE *fopen(const char *path, const char *mode)
{
        return REAL(fopen)(HERE(path), mode);
}

EXPORT FILE *fopen64(const char *path, const char *mode)
{
        return REAL(fopen64)(HERE(path), mode);
}

EXPORT DIR *opendir(const char *path)
{
        return REAL(opendir)(HERE(path));
}

EXPORT int stat(const char *path, struct stat *st)
{
        return REAL(stat)(HERE(path), st);
}

EXPORT int lstat(const char *path, struct stat *st)
{
        return REAL(lstat)(HERE(path), st);
}

EXPORT int stat64(const char *path, struct stat64 *st)
{
        return REAL(stat64)(HERE(path), st);
}

EXPORT int lstat64(const char *path, struct stat64 *st)
{
        return REAL(lstat64)(HERE(path), st);
}

EXPORT int fstatat(int at, const char *path, struct stat *st, int flags)
{
        return REAL(fstatat)(at, HERE(path), st, flags);
}

EXPORT int access(const char *path, int mode)
{
        return REAL(access)(HERE(path), mode);
}

/* Found where they stand, told as the paths that were asked for. */
static int find(int (*real_glob)(const char *, int, int (*)(const char *, int), glob_t *), const char *pattern,
                int flags, int (*on_error)(const char *, int), glob_t *found)
{
        char tree[4096];
        size_t n, before = flags & GLOB_APPEND ? found->gl_pathc : 0;
        const char *here = HERE(pattern);
        int r = real_glob(here, flags, on_error, found);

        if (r != 0 || here == pattern)
                return r;
        n = (size_t)snprintf(tree, sizeof(tree), "%s/" NPK_TREE, directory());
        for (size_t i = (flags & GLOB_DOOFFS ? found->gl_offs : 0) + before; found->gl_pathv[i]; i++)
                if (strncmp(found->gl_pathv[i], tree, n) == 0)
                        memmove(found->gl_pathv[i], found->gl_pathv[i] + n, strlen(found->gl_pathv[i] + n) + 1);
        return 0;
}

EXPORT int glob(const char *pattern, int flags, int (*on_error)(const char *, int), glob_t *found)
{
        return find(REAL(glob), pattern, flags, on_error, found);
}

EXPORT int glob64(const char *pattern, int flags, int (*on_error)(const char *, int), glob64_t *found)
{
        return find((int (*)(const char *, int, int (*)(const char *, int), glob_t *))real("glob64"), pattern, flags,
                    on_error, (glob_t *)found); /* the same layout where size_t has 64 bits */
}

EXPORT ssize_t readlink(const char *path, char *room, size_t size)
{
        return REAL(readlink)(HERE(path), room, size);
}

/* The answer is a path of the system's, not of the server's directory: XRT looks for /sys/devices/ in it. */
static char *resolve(const char *path, char *resolved)
{
        char tree[4096], room[4096], *real_tree, *p;
        const char *here = redirect(path, room, sizeof(room));
        size_t n;

        p = REAL(realpath)(here, resolved);
        if (!p || here == path)
                return p;
        snprintf(tree, sizeof(tree), "%s/" NPK_TREE, directory());
        real_tree = REAL(realpath)(tree, NULL);
        n = real_tree ? strlen(real_tree) : 0;
        if (n > 0 && strncmp(p, real_tree, n) == 0)
                memmove(p, p + n, strlen(p + n) + 1);
        free(real_tree);
        return p;
}

EXPORT char *realpath(const char *path, char *resolved)
{
        return resolve(path, resolved);
}

EXPORT char *__realpath_chk(const char *path, char *resolved, size_t size);
EXPORT char *__realpath_chk(const char *path, char *resolved, size_t size)
{
        (void)size;
        return resolve(path, resolved);
}
