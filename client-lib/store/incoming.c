#include "client-lib/store/incoming.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

/* This much has to stay free on a file system, on a small one a sixteenth of it. */
#define SPARE_BYTES ((uint64_t)64 << 20)
#define BLOCK_BYTES ((size_t)1 << 20)

int incoming_failed(struct tdm_error *err, const char *what, const char *path)
{
        int e = errno;

        return tdm_error_set(err,
                             e == ENOSPC || e == EDQUOT              ? TDM_E_NO_MEMORY :
                             e == EACCES || e == EPERM || e == EROFS ? TDM_E_DENIED :
                                                                       TDM_E_INTERNAL,
                             "cannot %s %s: %s", what, path, strerror(e));
}

/* ---- the lock ---- */

static int not_ours(const struct incoming *in, const char *why, struct tdm_error *err)
{
        return tdm_error_set(err, TDM_E_DENIED, "cannot write %s: %s.part %s; remove that first (tandem help rm)",
                             in->path, in->path, why);
}

/* Opens the part file, which may be there already. What it is, is looked at on the descriptor. */
static int open_part(struct incoming *in, struct stat *ret_st, struct tdm_error *err)
{
        in->lock_fd = openat(in->folder_fd, in->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY,
                             0600);
        if (in->lock_fd < 0 && errno == ELOOP)
                return not_ours(in, "is a link", err);
        if (in->lock_fd < 0 && (errno == EISDIR || errno == ENXIO))
                return not_ours(in, "is not a regular file", err);
        if (in->lock_fd < 0 || fstat(in->lock_fd, ret_st) < 0)
                return incoming_failed(err, "write", in->path);
        if (!S_ISREG(ret_st->st_mode))
                return not_ours(in, "is not a regular file", err);
        if (ret_st->st_uid != geteuid())
                return not_ours(in, "belongs to another user", err);
        return 0;
}

static int is_busy(const struct incoming *in, struct tdm_error *err)
{
        return tdm_error_set(err, TDM_E_BUSY, "%s is being fetched or copied by another process", in->path);
}

static bool is_same_file(const struct stat *a, const struct stat *b)
{
        return a->st_ino == b->st_ino && a->st_dev == b->st_dev;
}

/* The part file under its lock. It is taken anew when another process removed it meanwhile, and when it has a second
 * name: then it is whole and was linked by a process that was killed just after, or the link is not ours. */
static int lock_part(struct incoming *in, struct tdm_error *err)
{
        for (;;) {
                struct stat st, now;
                int r = open_part(in, &st, err);

                if (r != 0)
                        return r;
                if (flock(in->lock_fd, LOCK_EX | LOCK_NB) < 0)
                        return errno == EWOULDBLOCK ? is_busy(in, err) : incoming_failed(err, "lock", in->path);
                if (fstat(in->lock_fd, &st) == 0 && fstatat(in->folder_fd, in->part, &now, AT_SYMLINK_NOFOLLOW) == 0 &&
                    is_same_file(&st, &now)) {
                        in->keep_part = st.st_size > 0; /* of a download, for whoever takes it up */
                        if (st.st_nlink == 1)
                                return 0;
                        if (unlinkat(in->folder_fd, in->part, 0) < 0)
                                return incoming_failed(err, "remove", in->part);
                }
                closep(&in->lock_fd);
        }
}

int incoming_open(struct incoming *in, int folder_fd, const char *folder, const char *name, struct tdm_error *err)
{
        int r;

        *in = INCOMING_NONE;
        in->folder_fd = folder_fd;
        if (asprintf(&in->path, "%s/%s.gguf", folder, name) < 0)
                in->path = NULL;
        if (asprintf(&in->name, "%s.gguf", name) < 0)
                in->name = NULL;
        if (asprintf(&in->part, "%s.gguf.part", name) < 0)
                in->part = NULL;
        if (asprintf(&in->info, "%s.gguf.part.info", name) < 0)
                in->info = NULL;
        r = in->path && in->name && in->part && in->info ? lock_part(in, err) :
                                                           tdm_error_set(err, -ENOMEM, "out of memory");
        if (r != 0) {
                closep(&in->lock_fd); /* another's: not to be removed */
                incoming_close(in);
        }
        return r;
}

/* First what says which bytes are here, then the bytes: a process that is killed in between leaves nothing that a later
 * one would believe. Both go while the lock is held. */
static void remove_part(struct incoming *in)
{
        (void)unlinkat(in->folder_fd, in->info, 0);
        (void)unlinkat(in->folder_fd, in->part, 0);
}

void incoming_close(struct incoming *in)
{
        if (in->lock_fd >= 0 && !in->keep_part)
                remove_part(in);
        if (in->fd != in->lock_fd)
                closep(&in->fd);
        closep(&in->lock_fd);
        free(in->path);
        free(in->name);
        free(in->part);
        free(in->info);
        *in = INCOMING_NONE;
}

/* ---- the bytes ---- */

/* The errors of file systems that have no files without a name: FUSE, NFS, VFAT, an overlay of an old kernel. */
static bool has_no_tmpfile(int error)
{
        return error == EOPNOTSUPP || error == EISDIR || error == EINVAL || error == ENOSYS || error == ENOENT;
}

int incoming_begin(struct incoming *in, bool named, struct tdm_error *err)
{
        if (!named) {
                in->fd = openat(in->folder_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
                if (in->fd >= 0)
                        return 0;
                if (!has_no_tmpfile(errno))
                        return incoming_failed(err, "write", in->path);
                /* The part file it is. Bytes of a download that was broken off are in the way. */
                in->keep_part = false;
                (void)unlinkat(in->folder_fd, in->info, 0);
                if (ftruncate(in->lock_fd, 0) < 0)
                        return incoming_failed(err, "write", in->path);
        }
        in->fd = in->lock_fd;
        return 0;
}

/* "7.2 GB", "14 MB": as disks are sold. */
static const char *disk_bytes_text(uint64_t bytes, char to[static 32])
{
        if (bytes >= 1000000000)
                snprintf(to, 32, "%.1f GB", (double)bytes / 1e9);
        else
                snprintf(to, 32, "%llu MB", (unsigned long long)TDM_DIV_UP(bytes, 1000000));
        return to;
}

int incoming_check_room(const struct incoming *in, uint64_t missing_bytes, struct tdm_error *err)
{
        struct statvfs fs;
        char needs[32], has[32];
        uint64_t room, spare;

        if (fstatvfs(in->fd, &fs) < 0)
                return 0; /* writing will tell */
        room = (uint64_t)fs.f_bavail * fs.f_frsize;
        spare = TDM_MIN(SPARE_BYTES, (uint64_t)fs.f_blocks * fs.f_frsize / 16);
        if (room >= spare && missing_bytes <= room - spare)
                return 0;
        return tdm_error_set(err, TDM_E_NO_MEMORY,
                             "%s needs %s more, and its disk has %s left; free some, or choose another folder with "
                             "--to",
                             in->path, disk_bytes_text(missing_bytes, needs), disk_bytes_text(room, has));
}

static int write_block(struct incoming *in, const char *data, size_t size, struct tdm_error *err)
{
        while (size > 0) {
                ssize_t n = write(in->fd, data, size);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return incoming_failed(err, "write", in->path);
                data += n;
                size -= (size_t)n;
        }
        return 0;
}

int incoming_copy(struct incoming *in, int from_fd, uint64_t size_bytes, bool (*on_progress)(uint64_t done_bytes),
                  struct tdm_error *err)
{
        _cleanup_(freep) char *block = malloc(BLOCK_BYTES);
        uint64_t done = 0;
        int r = block ? incoming_check_room(in, size_bytes, err) : tdm_error_set(err, -ENOMEM, "out of memory");

        while (r == 0) {
                ssize_t n = pread(from_fd, block, BLOCK_BYTES, (off_t)done);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return incoming_failed(err, "read what is to become", in->path);
                if (n == 0)
                        break;
                if ((uint64_t)n > size_bytes - done)
                        return tdm_error_set(err, TDM_E_MODEL_CHANGED, "%s: the file grew while it was copied",
                                             in->path);
                r = write_block(in, block, (size_t)n, err);
                done += (uint64_t)n;
                if (r == 0 && on_progress && !on_progress(done))
                        return tdm_error_set(err, TDM_E_CANCELLED, "stopped");
        }
        if (r == 0 && done < size_bytes)
                return tdm_error_set(err, TDM_E_MODEL_CHANGED, "%s: the file shrank while it was copied", in->path);
        return r;
}

/* ---- the name ---- */

bool incoming_is_taken(const struct incoming *in)
{
        struct stat st;

        return fstatat(in->folder_fd, in->name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Syncs the folder, so that the name survives a power cut too. Some file systems cannot do that, and need not. */
static void sync_folder(const struct incoming *in)
{
        (void)fsync(in->folder_fd);
}

/* On file systems without links (VFAT, many of FUSE) the part file is renamed. It is ours and locked: nobody but who
 * may write the folder anyway can put another in its place. */
static int rename_part(struct incoming *in)
{
        struct stat st, now;

        if (in->fd != in->lock_fd)
                return -EPERM;
        if (fstat(in->fd, &st) < 0 || fstatat(in->folder_fd, in->part, &now, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        if (!is_same_file(&st, &now))
                return -ENOENT;
        if (renameat2(in->folder_fd, in->part, in->folder_fd, in->name, RENAME_NOREPLACE) == 0)
                return 0;
        if (errno != EINVAL && errno != ENOSYS)
                return -errno;
        if (incoming_is_taken(in))
                return -EEXIST;
        return renameat(in->folder_fd, in->part, in->folder_fd, in->name) < 0 ? -errno : 0;
}

static int link_descriptor(struct incoming *in)
{
        char self[40];

        snprintf(self, sizeof(self), "/proc/self/fd/%d", in->fd);
        if (linkat(AT_FDCWD, self, in->folder_fd, in->name, AT_SYMLINK_FOLLOW) == 0)
                return 0;
        /* Without /proc: root may, and since Linux 6.10 who opened the file. */
        if (errno == ENOENT && linkat(in->fd, "", in->folder_fd, in->name, AT_EMPTY_PATH) == 0)
                return 0;
        if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS || errno == EMLINK)
                return rename_part(in);
        return -errno;
}

int incoming_taken(const struct incoming *in, struct tdm_error *err)
{
        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                             "there is another %s already; choose a name with --name, or remove it first "
                             "(tandem help rm)",
                             in->path);
}

int incoming_link(struct incoming *in, struct tdm_error *err)
{
        mode_t mask = umask(0);
        int r;

        (void)umask(mask);
        (void)fchmod(in->fd, 0644 & ~mask); /* a file system that has no modes refuses */
        if (fsync(in->fd) < 0)
                return incoming_failed(err, "write", in->path);
        r = link_descriptor(in);
        if (r == -EEXIST)
                return incoming_taken(in, err);
        errno = -r;
        if (r < 0)
                return incoming_failed(err, "write", in->path);
        in->keep_part = false;
        sync_folder(in);
        return 0;
}

int incoming_symlink(struct incoming *in, const char *target, struct tdm_error *err)
{
        if (symlinkat(target, in->folder_fd, in->name) < 0)
                return errno == EEXIST ? incoming_taken(in, err) : incoming_failed(err, "write", in->path);
        in->keep_part = false;
        sync_folder(in);
        return 0;
}

void incoming_unlink(struct incoming *in)
{
        (void)unlinkat(in->folder_fd, in->name, 0);
}

/* ---- what was left behind ---- */

/* Removes one name and counts what it took. A hard link of the finished file takes nothing. */
static bool forget_name(int folder_fd, const char *name, uint64_t *bytes)
{
        struct stat st;

        if (fstatat(folder_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return false;
        if (unlinkat(folder_fd, name, 0) < 0)
                return false;
        if (S_ISREG(st.st_mode) && st.st_nlink == 1)
                *bytes += (uint64_t)st.st_blocks * 512;
        return true;
}

int incoming_forget(int folder_fd, const char *folder, const char *name, uint64_t *ret_bytes, struct tdm_error *err)
{
        _cleanup_(freep) char *part = NULL, *info = NULL;
        _cleanup_(closep) int fd = -1;
        uint64_t bytes = 0;
        struct stat st;
        bool any;

        if (asprintf(&part, "%s.gguf.part", name) < 0)
                part = NULL;
        if (asprintf(&info, "%s.gguf.part.info", name) < 0)
                info = NULL;
        if (!part || !info)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        if (fstatat(folder_fd, part, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode)) {
                fd = openat(folder_fd, part, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
                if (fd < 0 && errno != ENOENT)
                        return tdm_error_set(err, TDM_E_DENIED, "cannot remove %s/%s: %s", folder, part,
                                             strerror(errno));
                if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
                        return tdm_error_set(err, TDM_E_BUSY,
                                             "%s/%s.gguf is being fetched or copied by another process; end that first",
                                             folder, name);
        }
        any = forget_name(folder_fd, info, &bytes);
        any |= forget_name(folder_fd, part, &bytes);
        if (fstatat(folder_fd, part, &st, AT_SYMLINK_NOFOLLOW) == 0)
                return tdm_error_set(err, TDM_E_DENIED, "cannot remove %s/%s", folder, part);
        if (!any)
                return -ENOENT;
        *ret_bytes = bytes;
        return 0;
}
