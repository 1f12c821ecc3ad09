#include "common/user-socket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_own(const struct stat *st)
{
        return S_ISDIR(st->st_mode) && st->st_uid == geteuid() && (st->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

int tdm_user_socket(char *to, size_t size, bool create)
{
        const char *runtime = getenv("XDG_RUNTIME_DIR");
        unsigned uid = (unsigned)geteuid();
        struct stat st;
        char dir[64];

        if (runtime && runtime[0] == '/')
                return snprintf(to, size, "%s/tandem/socket", runtime) < (int)size ? 0 : -ENAMETOOLONG;
        if (uid == 0)
                return -ENOENT;
        snprintf(dir, sizeof(dir), "/run/user/%u", uid);
        if (lstat(dir, &st) == 0 && is_own(&st)) {
                snprintf(to, size, "%s/tandem/socket", dir);
                return 0;
        }
        /* In /tmp nobody but its owner can replace a folder, so what is the user's now stays it. */
        snprintf(dir, sizeof(dir), "/tmp/tandem-%u", uid);
        if (create && mkdir(dir, 0700) < 0 && errno != EEXIST)
                return -errno;
        if (lstat(dir, &st) == 0 ? !is_own(&st) : errno != ENOENT)
                return -EPERM;
        snprintf(to, size, "%s/socket", dir);
        return 0;
}
