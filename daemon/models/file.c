/* A model's file: opened, and known again. */
#include "daemon/models/private.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

/* Without asking the server of a file system: the loop must not wait for a network, or for a file system that a user
 * runs. */
static int file_identify_at(int fd, const char *path, struct tdm_file_identity *ret)
{
        struct statx stx;

        if (statx(fd, path, AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO | STATX_SIZE | STATX_MTIME,
                  &stx) < 0)
                return -errno;
        if (!S_ISREG(stx.stx_mode))
                return -ENXIO;
        *ret = (struct tdm_file_identity){
                .dev = makedev(stx.stx_dev_major, stx.stx_dev_minor),
                .ino = stx.stx_ino,
                .size_bytes = stx.stx_size,
                .mtime_ns = stx.stx_mtime.tv_sec * (int64_t)TDM_NSEC_PER_SEC + stx.stx_mtime.tv_nsec,
        };
        return 0;
}

int tdm_file_identify(int fd, struct tdm_file_identity *ret)
{
        return file_identify_at(fd, "", ret);
}

int tdm_file_identify_path(const char *path, struct tdm_file_identity *ret)
{
        return file_identify_at(AT_FDCWD, path, ret);
}

bool tdm_file_identity_equal(const struct tdm_file_identity *a, const struct tdm_file_identity *b)
{
        return a->dev == b->dev && a->ino == b->ino && a->size_bytes == b->size_bytes && a->mtime_ns == b->mtime_ns;
}

/* O_NONBLOCK: a FIFO in the place of a file must not stop the daemon. */
int tdm_open_model_file(const char *path)
{
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

        return fd < 0 ? -errno : fd;
}

bool tdm_file_is_far(int fd)
{
        static const uint32_t far[] = { FUSE_SUPER_MAGIC, NFS_SUPER_MAGIC,  SMB_SUPER_MAGIC, CIFS_SUPER_MAGIC,
                                        SMB2_SUPER_MAGIC, AFS_SUPER_MAGIC,  AFS_FS_MAGIC,    CODA_SUPER_MAGIC,
                                        V9FS_MAGIC,       CEPH_SUPER_MAGIC, NCP_SUPER_MAGIC };
        struct statfs fs;

        if (fstatfs(fd, &fs) < 0)
                return true;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(far); i++)
                if ((uint32_t)fs.f_type == far[i])
                        return true;
        return false;
}
