#include "client-lib/fetch/part.h"

#include <assert.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stddef.h>
#include <strings.h>
#include <sys/stat.h>

#define INFO_MAGIC "tdmpart1"
/* How many bytes may lie in memory alone. */
#define SYNC_BYTES ((uint64_t)256 << 20)

static void read_boot_id(char *to, size_t size)
{
        int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? 0 : read(fd, to, size - 1);

        if (fd >= 0)
                close(fd);
        to[TDM_MAX(n, 0)] = '\0';
}

static int write_info(struct part *p, size_t at, size_t size, struct tdm_error *err)
{
        if (pwrite(p->info_fd, (const char *)p->info + at, size, (off_t)at) != (ssize_t)size)
                return incoming_failed(err, "write", p->in.info);
        return 0;
}

static int write_spans(struct part *p, struct tdm_error *err)
{
        size_t at = offsetof(struct part_info, n_spans);

        return write_info(p, at, offsetof(struct part_info, spans[p->info->n_spans]) - at, err);
}

/* Whether the info file is of this url, and its spans lie in order inside the part file. */
static bool take_info(struct part *p, const char *url, uint64_t file_bytes)
{
        struct part_info *i = p->info;
        char boot_id[sizeof(i->boot_id)] = "";
        uint64_t at = 0;
        bool same_boot;

        if (pread(p->info_fd, i, sizeof(*i), 0) < (ssize_t)offsetof(struct part_info, spans[1]) ||
            memcmp(i->magic, INFO_MAGIC, sizeof(i->magic)) != 0 || memchr(i->url, '\0', sizeof(i->url)) == NULL ||
            memchr(i->etag, '\0', sizeof(i->etag)) == NULL || memchr(i->boot_id, '\0', sizeof(i->boot_id)) == NULL ||
            strcmp(i->url, url) != 0 || !i->etag[0] || i->n_spans == 0 || i->n_spans > PART_MAX_SPANS)
                return false;
        read_boot_id(boot_id, sizeof(boot_id));
        same_boot = boot_id[0] && strcmp(boot_id, i->boot_id) == 0;
        for (uint32_t k = 0; k < i->n_spans; k++) {
                struct part_span *s = &i->spans[k];

                if (!same_boot)
                        s->here = s->synced;
                if (s->begin != at || s->end <= s->begin || s->synced > s->here || s->here > s->end - s->begin ||
                    (s->here > 0 && s->begin + s->here > file_bytes))
                        return false;
                at = s->end;
                p->size += s->here;
        }
        memcpy(i->boot_id, boot_id, sizeof(boot_id));
        return true;
}

/* The info file, of which only the caller's own is believed: who writes it says which bytes of the part file count. */
static int open_info(struct part *p, struct tdm_error *err)
{
        const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
        struct stat st;

        p->info_fd = openat(p->in.folder_fd, p->in.info, flags, 0600);
        if (p->info_fd >= 0 && fstat(p->info_fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
            st.st_nlink == 1)
                return 0;
        closep(&p->info_fd);
        if (unlinkat(p->in.folder_fd, p->in.info, 0) == 0)
                p->info_fd = openat(p->in.folder_fd, p->in.info, flags | O_EXCL, 0600);
        return p->info_fd < 0 ? incoming_failed(err, "write", p->in.info) : 0;
}

static int begin_info(struct part *p, const char *url, struct tdm_error *err)
{
        struct stat st;
        int r = open_info(p, err);

        if (r != 0)
                return r;
        if (fstat(p->in.fd, &st) < 0)
                return incoming_failed(err, "read", p->in.part);
        if (take_info(p, url, (uint64_t)st.st_size))
                return write_info(p, 0, sizeof(*p->info), err);
        *p->info = (struct part_info){ 0 };
        memcpy(p->info->magic, INFO_MAGIC, sizeof(p->info->magic));
        memcpy(p->info->url, url, strlen(url) + 1);
        read_boot_id(p->info->boot_id, sizeof(p->info->boot_id));
        return part_reset(p, err); /* nobody knows what these bytes are */
}

int part_open(struct part *p, int folder_fd, const char *folder, const char *name, const char *url,
              struct tdm_error *err)
{
        int r = 0;

        *p = (struct part){ .in = INCOMING_NONE, .info_fd = -1 };
        p->info = calloc(1, sizeof(*p->info));
        if (!p->info)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        if (strlen(url) >= sizeof(p->info->url))
                r = tdm_error_set(err, TDM_E_BAD_REQUEST, "the address has more than %zu bytes",
                                  sizeof(p->info->url) - 1);
        if (r == 0)
                r = incoming_open(&p->in, folder_fd, folder, name, err);
        if (r == 0 && incoming_is_taken(&p->in))
                r = incoming_taken(&p->in, err);
        if (r == 0)
                r = incoming_begin(&p->in, true, err);
        if (r == 0)
                r = begin_info(p, url, err);
        if (r != 0)
                part_close(p);
        return r;
}

void part_close(struct part *p)
{
        /* Bytes whose ETag is not known cannot be taken up: they would only take room. */
        if (p->in.fd >= 0)
                p->in.keep_part = p->in.keep_part && p->size > 0 && p->info->etag[0];
        incoming_close(&p->in);
        closep(&p->info_fd);
        free(p->info);
        *p = (struct part){ .in = INCOMING_NONE, .info_fd = -1 };
}

int part_reset(struct part *p, struct tdm_error *err)
{
        p->size = p->unsynced = 0;
        p->info->etag[0] = '\0';
        memset(p->info->spans, 0, sizeof(p->info->spans));
        p->info->n_spans = 1;
        p->info->spans[0].end = PART_NO_END;
        p->in.keep_part = true;
        if (ftruncate(p->in.fd, 0) < 0)
                return incoming_failed(err, "write", p->in.part);
        return write_info(p, 0, sizeof(*p->info), err);
}

int part_remember(struct part *p, const char *etag, uint64_t total_bytes, struct tdm_error *err)
{
        struct part_info *i = p->info;

        snprintf(i->etag, sizeof(i->etag), "%s", etag);
        i->spans[i->n_spans - 1].end = total_bytes ? total_bytes : PART_NO_END;
        return write_info(p, 0, sizeof(*i), err);
}

bool part_span_done(const struct part *p, unsigned span)
{
        const struct part_span *s = &p->info->spans[span];

        return s->end != PART_NO_END && s->here == s->end - s->begin;
}

int part_split(struct part *p, unsigned span, struct tdm_error *err)
{
        struct part_info *i = p->info;
        struct part_span *s = &i->spans[span];
        uint64_t at = s->begin + s->here, middle = at + (s->end - at) / 2;

        assert(i->n_spans < PART_MAX_SPANS && s->end != PART_NO_END && middle > at);
        memmove(s + 2, s + 1, (i->n_spans - span - 1) * sizeof(*s));
        s[1] = (struct part_span){ .begin = middle, .end = s->end };
        s->end = middle;
        i->n_spans++;
        return write_spans(p, err);
}

int part_check_room(const struct part *p, uint64_t total_bytes, struct tdm_error *err)
{
        return incoming_check_room(&p->in, total_bytes - TDM_MIN(p->size, total_bytes), err);
}

/* Once in a while what came goes to the disk, and only then counts for after a power cut. */
static int sync_bytes(struct part *p, struct tdm_error *err)
{
        if (fdatasync(p->in.fd) < 0)
                return incoming_failed(err, "write", p->in.part);
        p->unsynced = 0;
        for (uint32_t k = 0; k < p->info->n_spans; k++)
                p->info->spans[k].synced = p->info->spans[k].here;
        return write_spans(p, err);
}

int part_add(struct part *p, unsigned span, const void *data, size_t size, struct tdm_error *err)
{
        struct part_span *s = &p->info->spans[span];
        const char *from = data;

        while (size > 0) {
                ssize_t n = pwrite(p->in.fd, from, size, (off_t)(s->begin + s->here));

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return incoming_failed(err, "write", p->in.part);
                s->here += (uint64_t)n;
                p->size += (uint64_t)n;
                p->unsynced += (uint64_t)n;
                from += n;
                size -= (size_t)n;
        }
        if (p->unsynced >= SYNC_BYTES)
                return sync_bytes(p, err);
        return write_info(p, (size_t)((char *)s - (char *)p->info), sizeof(*s), err);
}

int part_hash(int fd, const char *path, uint64_t size_bytes, char ret[static 65], struct tdm_error *err)
{
        unsigned char digest[EVP_MAX_MD_SIZE];
        EVP_MD_CTX *context = EVP_MD_CTX_new();
        _cleanup_(freep) char *block = malloc(1 << 20);
        uint64_t at = 0;
        unsigned n_digest = 0;
        bool ok = context && block && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1;

        while (ok && at < size_bytes) {
                ssize_t n = pread(fd, block, TDM_MIN((uint64_t)1 << 20, size_bytes - at), (off_t)at);

                if (n < 0 && errno == EINTR)
                        continue;
                ok = n > 0 && EVP_DigestUpdate(context, block, (size_t)n) == 1;
                at += (uint64_t)TDM_MAX(n, 0);
        }
        ok = ok && EVP_DigestFinal_ex(context, digest, &n_digest) == 1;
        EVP_MD_CTX_free(context);
        if (!ok)
                return incoming_failed(err, "read", path);
        for (unsigned i = 0; i < 32; i++)
                snprintf(ret + 2 * i, 3, "%02x", digest[i]);
        return 0;
}

static int check_bytes(const struct part *p, uint64_t size_bytes, const char *sha256, struct tdm_error *err)
{
        char magic[5] = "", found[65];
        int r;

        if (size_bytes && p->size != size_bytes)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "%s has %" PRIu64 " bytes, %" PRIu64 " were announced",
                                     p->in.path, p->size, size_bytes);
        if (pread(p->in.fd, magic, 4, 0) != 4 || memcmp(magic, "GGUF", 4) != 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "what came for %s is no GGUF file (it begins with '%.4s', not with GGUF): is the "
                                     "address that of a web page?",
                                     p->in.path, magic);
        if (!sha256)
                return 0;
        r = part_hash(p->in.fd, p->in.path, p->size, found, err);
        if (r == 0 && strcasecmp(found, sha256) != 0)
                r = tdm_error_set(err, TDM_E_BAD_MODEL, "%s came with wrong bytes: its SHA-256 is %s, not %s",
                                  p->in.path, found, sha256);
        return r;
}

int part_finish(struct part *p, uint64_t size_bytes, const char *sha256, part_look_fn *look, struct tdm_error *err)
{
        struct tdm_error ignored;
        int r = check_bytes(p, size_bytes, sha256, err);

        /* A transfer without a length ends when the connection does, cut off or not. */
        if (r == 0 && look && !sha256 && !size_bytes && p->info->spans[p->info->n_spans - 1].end == PART_NO_END)
                r = look(p->in.fd, p->in.path, err);
        if (r == TDM_E_BAD_MODEL)
                (void)part_reset(p, &ignored);
        if (r == 0)
                r = incoming_link(&p->in, err);
        if (r == TDM_E_BAD_REQUEST) /* of another process: these bytes can get no name any more */
                p->in.keep_part = false;
        return r;
}
