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
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/npu-kernel/uapi.h"
#include "tests/npu-kernel/way.h"

#define EXPORT __attribute__((visibility("default")))
#define NODE "/dev/accel/accel0"
#define MAX_MAPPINGS 4096u
#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name)
{
        return dlsym(RTLD_NEXT, name);
}

/* ---- paths ---- */

static const char *redirect(const char *path, char *room, size_t size)
{
        static const char *const ours[] = { "/sys/bus/pci/drivers/amdxdna", "/sys/bus/pci/devices/0000:c5:00.1",
                                            "/sys/devices/pci0000:c0",      "/sys/class/accel",
                                            "/sys/module/amdxdna",          "/dev/accel" };

        if (!path || path[0] != '/' || !npk_directory())
                return path;
        for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
                size_t n = strlen(ours[i]);

                if (strncmp(path, ours[i], n) == 0 && (path[n] == 0 || path[n] == '/'))
                        return snprintf(room, size, "%s/" NPK_TREE "%s", npk_directory(), path) < (int)size ? room :
                                                                                                              path;
        }
        return path;
}
#define HERE(path) redirect(path, (char[4096]){ 0 }, 4096)

/* ---- ioctl ---- */

#define COPY_BYTES 4096u

static struct {
        pthread_mutex_t lock;
        int pipe[2];
} copying = { PTHREAD_MUTEX_INITIALIZER, { -1, -1 } };

/* Out of the way of programs that count on a number. */
int npk_high(int fd)
{
        int moved = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 200) : -1;

        if (moved < 0)
                return fd;
        close(fd);
        return moved;
}

__attribute__((constructor)) static void prepare_copies(void)
{
        if (copying.pipe[0] >= 0 || pipe2(copying.pipe, O_CLOEXEC | O_NONBLOCK) < 0)
                return;
        copying.pipe[0] = npk_high(copying.pipe[0]);
        copying.pipe[1] = npk_high(copying.pipe[1]);
}

/* As copy_from_user and copy_to_user: false where a program would be ended by touching it. Through a pipe, because the
 * kernel checks addresses there and a sandbox allows it. */
static bool copy(void *to, const void *from, size_t size)
{
        bool ok = true;

        pthread_mutex_lock(&copying.lock);
        prepare_copies();
        for (size_t at = 0; ok && at < size;) {
                size_t n = size - at < COPY_BYTES ? size - at : COPY_BYTES;
                ssize_t put = syscall(SYS_write, copying.pipe[1], (const uint8_t *)from + at, n),
                        got = put > 0 ? syscall(SYS_read, copying.pipe[0], (uint8_t *)to + at, put) : -1;

                ok = put == (ssize_t)n && got == put;
                at += n;
        }
        if (!ok) { /* what is left in it belongs to nothing */
                uint8_t rest[COPY_BYTES];

                while (syscall(SYS_read, copying.pipe[0], rest, sizeof(rest)) > 0)
                        ;
        }
        pthread_mutex_unlock(&copying.lock);
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
        result = npk_request(fd, &r, room, with, room + NPK_MAX_EXTRA, &n_extra, &got);
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
        if (_IOC_TYPE(code) == XDNA_IOCTL_TYPE && npk_is_ours(fd)) {
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
                        if (npk_is_ours(mappings.at[i].fd))
                                npk_request(mappings.at[i].fd, &r, NULL, -1, NULL, NULL, NULL);
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
        result = npk_request(fd, &r, NULL, -1, NULL, NULL, &memory);
        if (result < 0) {
                errno = -result;
                return MAP_FAILED;
        }
        p = map(address, len, prot, npk_locks() ? flags : flags & ~MAP_LOCKED, memory, 0);
        close(memory);
        if (p == MAP_FAILED)
                return p;
        r = (struct npk_request){ .kind = NPK_MAPPED };
        memcpy(r.arg, (uint64_t[]){ (uint64_t)offset, len, (uintptr_t)p }, 24);
        npk_request(fd, &r, NULL, -1, NULL, NULL, NULL);
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
        if (npk_is_kernel())
                return map(address, len, prot, flags, fd, offset);
        if (mappings.n > 0 && flags & MAP_FIXED)
                forget(address, len);
        if (fd >= 0 && !(flags & MAP_ANONYMOUS) && npk_is_ours(fd))
                return map_ours(address, len, prot, flags, fd, offset);
        return map(address, len, prot, flags, fd, offset);
}

EXPORT void *mmap64(void *address, size_t len, int prot, int flags, int fd, off_t offset)
{
        return mmap(address, len, prot, flags, fd, offset);
}

EXPORT int munmap(void *address, size_t len)
{
        if (mappings.n > 0 && !npk_is_kernel())
                forget(address, len);
        return (int)syscall(SYS_munmap, address, len);
}

/* ---- files ---- */

static int open_at(int at, const char *path, int flags, mode_t mode)
{
        if (npk_directory() && path && strcmp(path, NODE) == 0 && !(flags & O_PATH))
                return npk_open(HERE(path), flags);
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
        n = (size_t)snprintf(tree, sizeof(tree), "%s/" NPK_TREE, npk_directory());
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
        snprintf(tree, sizeof(tree), "%s/" NPK_TREE, npk_directory());
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
