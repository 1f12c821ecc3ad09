/* See part.h. */
#include "client-lib/store/part.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

/* What has to stay free. */
#define SPARE_BYTES ((uint64_t)64 << 20)

static int failed(struct tdm_error *err, const char *what, const char *path)
{
        int e = errno;

        return tdm_error_set(err,
                             e == ENOSPC || e == EDQUOT              ? TDM_E_NO_MEMORY :
                             e == EACCES || e == EPERM || e == EROFS ? TDM_E_DENIED :
                                                                       TDM_E_INTERNAL,
                             "cannot %s %s: %s", what, path, strerror(e));
}

/* PATH.part.info: the url and the ETag, a line each. */
static void read_info(struct part *p, const char *url)
{
        char text[4096], *line, *rest = text;
        int fd = open(p->info_path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);

        if (fd >= 0)
                close(fd);
        text[TDM_MAX(n, 0)] = '\0';
        line = strsep(&rest, "\n");
        if (!rest || strcmp(line, url) != 0)
                return;
        line = strsep(&rest, "\n");
        if (line && strlen(line) < sizeof(p->etag))
                memcpy(p->etag, line, strlen(line) + 1);
}

int part_open(struct part *p, const char *path, const char *url, struct tdm_error *err)
{
        struct stat st, now;
        int r;

        *p = (struct part){ .fd = -1 };
        p->path = strdup(path);
        if (!p->path || asprintf(&p->part_path, "%s.part", path) < 0 ||
            asprintf(&p->info_path, "%s.part.info", path) < 0) {
                part_close(p);
                return tdm_error_set(err, -ENOMEM, "out of memory");
        }
        for (;;) {
                p->fd = open(p->part_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
                if (p->fd < 0 || fstat(p->fd, &st) < 0) {
                        r = failed(err, "write", p->part_path);
                        part_close(p);
                        return r;
                }
                if (flock(p->fd, LOCK_EX | LOCK_NB) < 0) {
                        part_close(p);
                        return tdm_error_set(err, TDM_E_BUSY, "%s is being fetched by another process", path);
                }
                /* The one who had the lock may have given the file its name meanwhile. */
                if (stat(p->part_path, &now) == 0 && now.st_ino == st.st_ino && now.st_dev == st.st_dev)
                        break;
                close(p->fd);
        }
        p->size = (uint64_t)st.st_size;
        read_info(p, url);
        if (p->size > 0 && !p->etag[0])
                return part_reset(p, err); /* nobody knows what these bytes are */
        return 0;
}

void part_close(struct part *p)
{
        if (p->fd >= 0) {
                if (p->part_path && p->size == 0)
                        (void)unlink(p->part_path);
                close(p->fd);
        }
        free(p->path);
        free(p->part_path);
        free(p->info_path);
        *p = (struct part){ .fd = -1 };
}

int part_reset(struct part *p, struct tdm_error *err)
{
        p->size = 0;
        p->etag[0] = '\0';
        return ftruncate(p->fd, 0) < 0 ? failed(err, "write", p->part_path) : 0;
}

int part_remember(struct part *p, const char *url, const char *etag, struct tdm_error *err)
{
        _cleanup_(closep) int fd = -1;

        /* A weak ETag says that two files mean the same, not that they have the same bytes. */
        snprintf(p->etag, sizeof(p->etag), "%s", strncmp(etag, "W/", 2) == 0 ? "" : etag);
        fd = open(p->info_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (fd < 0 || dprintf(fd, "%s\n%s\n", url, p->etag) < 0)
                return failed(err, "write", p->info_path);
        return 0;
}

int part_check_room(const struct part *p, uint64_t total_bytes, struct tdm_error *err)
{
        struct statvfs fs;
        uint64_t missing = total_bytes - TDM_MIN(p->size, total_bytes), room;

        if (fstatvfs(p->fd, &fs) < 0)
                return 0; /* writing will tell */
        room = (uint64_t)fs.f_bavail * fs.f_frsize;
        if (missing + SPARE_BYTES <= room)
                return 0;
        return tdm_error_set(err, TDM_E_NO_MEMORY,
                             "%s needs %.1f GB more, and its disk has %.1f GB left; free some, or choose another "
                             "folder with --to",
                             p->path, (double)missing / 1e9, (double)room / 1e9);
}

int part_add(struct part *p, const void *data, size_t size, struct tdm_error *err)
{
        const char *from = data;

        while (size > 0) {
                ssize_t n = pwrite(p->fd, from, size, (off_t)p->size);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return failed(err, "write", p->part_path);
                p->size += (uint64_t)n;
                from += n;
                size -= (size_t)n;
        }
        return 0;
}

static int hash(const struct part *p, char ret[static 65], struct tdm_error *err)
{
        unsigned char digest[EVP_MAX_MD_SIZE];
        EVP_MD_CTX *context = EVP_MD_CTX_new();
        _cleanup_(freep) char *block = malloc(1 << 20);
        uint64_t at = 0;
        unsigned n_digest = 0;
        bool ok = context && block && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1;

        while (ok && at < p->size) {
                ssize_t n = pread(p->fd, block, 1 << 20, (off_t)at);

                ok = n > 0 && EVP_DigestUpdate(context, block, (size_t)n) == 1;
                at += (uint64_t)TDM_MAX(n, 0);
        }
        ok = ok && EVP_DigestFinal_ex(context, digest, &n_digest) == 1;
        EVP_MD_CTX_free(context);
        if (!ok)
                return failed(err, "read", p->part_path);
        for (unsigned i = 0; i < 32; i++)
                snprintf(ret + 2 * i, 3, "%02x", digest[i]);
        return 0;
}

static int check(const struct part *p, uint64_t size_bytes, const char *sha256, struct tdm_error *err)
{
        char magic[5] = "", found[65];
        int r;

        if (size_bytes && p->size != size_bytes)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "%s has %" PRIu64 " bytes, %" PRIu64 " were announced",
                                     p->path, p->size, size_bytes);
        if (pread(p->fd, magic, 4, 0) != 4 || memcmp(magic, "GGUF", 4) != 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "what came for %s is no GGUF file (it begins with '%.4s', not with GGUF): is the "
                                     "address that of a web page?",
                                     p->path, magic);
        if (!sha256)
                return 0;
        r = hash(p, found, err);
        if (r == 0 && strcasecmp(found, sha256) != 0)
                r = tdm_error_set(err, TDM_E_BAD_MODEL, "%s came with wrong bytes: its SHA-256 is %s, not %s", p->path,
                                  found, sha256);
        return r;
}

/* So that the name survives a power cut, too. */
static void sync_folder(const char *path)
{
        _cleanup_(freep) char *folder = strdup(path);
        char *slash = folder ? strrchr(folder, '/') : NULL;
        int fd;

        if (!slash)
                return;
        slash[slash == folder] = '\0';
        fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0) {
                (void)fsync(fd);
                close(fd);
        }
}

int part_finish(struct part *p, uint64_t size_bytes, const char *sha256, struct tdm_error *err)
{
        struct tdm_error ignored;
        int r = check(p, size_bytes, sha256, err);

        if (r == TDM_E_BAD_MODEL) {
                (void)part_reset(p, &ignored);
                (void)unlink(p->info_path);
        }
        if (r != 0)
                return r;
        if (fsync(p->fd) < 0 || rename(p->part_path, p->path) < 0)
                return failed(err, "write", p->path);
        sync_folder(p->path);
        (void)unlink(p->info_path);
        return 0;
}
