/* Segments: memfds in chunks, one contiguous mapping. The chunks exist because a device may import them one by one and
 * udmabuf has a size limit; all other code sees one range, made by reserving address space first and mapping the chunks
 * over it. An fd that only reads is a second open file (through /proc/self/fd), because access is a property of the
 * open file, not of the descriptor. This file does not know what a segment is for, and does not zero memory between
 * users: tdm_segment_punch() is there for that. */
#include "common/hugepage.h"
#include "common/shm.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif

static uint64_t page_bytes(void)
{
        return (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t tdm_segment_chunk_size(const struct tdm_segment *s, unsigned i)
{
        return TDM_MIN(s->chunk_bytes, s->size_bytes - (uint64_t)i * s->chunk_bytes);
}

static int chunk_memfd(const char *name, uint64_t size_bytes)
{
        _cleanup_(closep) int fd = -1;
        char label[64];

        snprintf(label, sizeof(label), "tandem-%s", name);
        fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
        if (fd < 0 && errno == EINVAL)
                fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0)
                return -errno;
        /* 0400: who holds a read-only fd cannot reopen it for writing (unless it owns the file or is root). */
        if (fchmod(fd, 0400) < 0 || ftruncate(fd, (off_t)size_bytes) < 0)
                return -errno;
        if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
                return -errno;
        return steal_fd(&fd);
}

static int reopen_readonly(int fd)
{
        char path[40];
        int flags = fcntl(fd, F_GETFL), r;

        if (flags < 0)
                return -errno;
        /* A process that imported the segment read-only may not own the file, and then cannot reopen it. It holds a
         * read-only fd already, and a duplicate of that will do. */
        if ((flags & O_ACCMODE) == O_RDONLY)
                r = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        else {
                snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
                r = open(path, O_RDONLY | O_CLOEXEC);
        }
        return r < 0 ? -errno : r;
}

static struct tdm_segment *segment_alloc(const char *name, uint64_t size_bytes, uint64_t chunk_bytes, unsigned n_chunks)
{
        struct tdm_segment *s = calloc(1, sizeof(*s));

        if (!s)
                return NULL;
        s->fds = calloc(n_chunks, sizeof(*s->fds));
        if (!s->fds) {
                free(s);
                return NULL;
        }
        snprintf(s->name, sizeof(s->name), "%s", name);
        s->size_bytes = size_bytes;
        s->chunk_bytes = chunk_bytes;
        s->n_chunks = n_chunks;
        s->dmabuf_fd = -1;
        for (unsigned i = 0; i < n_chunks; i++)
                s->fds[i] = -1;
        return s;
}

/* Prompts and answers live here: they must not reach a core dump. */
static int map_chunk(struct tdm_segment *s, unsigned i, int fd, int prot)
{
        uint64_t size = tdm_segment_chunk_size(s, i);
        void *p = mmap(s->base + (uint64_t)i * s->chunk_bytes, size, prot, MAP_SHARED | MAP_FIXED, fd, 0);

        return p == MAP_FAILED || madvise(p, size, MADV_DONTDUMP) < 0 ? -errno : 0;
}

/* Address space that begins where a huge page may: chunks are whole huge pages, so every one of them begins there too.
 */
static int reserve(struct tdm_segment *s)
{
        uint64_t slack = s->size_bytes < TDM_HUGEPAGE_BYTES ? 0 : TDM_HUGEPAGE_BYTES - page_bytes(), before, after;
        uint8_t *p = mmap(NULL, s->size_bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (p == MAP_FAILED)
                return -errno;
        before = slack ? TDM_ALIGN_UP((uintptr_t)p, TDM_HUGEPAGE_BYTES) - (uintptr_t)p : 0;
        after = slack - before;
        s->base = p + before;
        if (before)
                munmap(p, before);
        if (after)
                munmap(s->base + s->size_bytes, after);
        return 0;
}

int tdm_segment_create(struct tdm_segment **ret, const char *name, uint64_t size_bytes)
{
        return tdm_segment_create_in_chunks(ret, name, size_bytes, TDM_SEGMENT_CHUNK_BYTES);
}

int tdm_segment_create_in_chunks(struct tdm_segment **ret, const char *name, uint64_t size_bytes, uint64_t chunk_bytes)
{
        _cleanup_(tdm_segment_destroyp) struct tdm_segment *s = NULL;
        uint64_t n_chunks;
        int r;

        if (size_bytes == 0 || chunk_bytes == 0 || chunk_bytes % page_bytes() != 0)
                return -EINVAL;
        if (size_bytes > TDM_SEGMENT_CHUNK_BYTES * TDM_SEGMENT_MAX_CHUNKS ||
            TDM_DIV_UP(size_bytes, chunk_bytes) > TDM_SEGMENT_MAX_CHUNKS)
                return -EFBIG;
        size_bytes = TDM_ALIGN_UP(size_bytes, page_bytes());
        n_chunks = TDM_DIV_UP(size_bytes, chunk_bytes);

        s = segment_alloc(name, size_bytes, chunk_bytes, (unsigned)n_chunks);
        if (!s)
                return -ENOMEM;
        s->writable = true;
        r = reserve(s);
        for (; s->n_mapped < s->n_chunks && r == 0; s->n_mapped++) {
                r = chunk_memfd(name, tdm_segment_chunk_size(s, s->n_mapped));
                if (r < 0)
                        return r;
                s->fds[s->n_mapped] = r;
                r = map_chunk(s, s->n_mapped, r, PROT_READ | PROT_WRITE);
        }
        if (r < 0)
                return r;
        *ret = steal_ptr(&s);
        return 0;
}

/* F_SEAL_WRITE wants that no writable mapping exists, and a shared mapping made through a read-write fd counts as one
 * even with PROT_READ (mprotect() could turn it). So the chunk is mapped anew through a read-only open file. The fd
 * stays the same: it cannot write any more, and other threads may be using it. */
static int seal_chunk(struct tdm_segment *s, unsigned i)
{
        _cleanup_(closep) int ro = reopen_readonly(s->fds[i]);
        int r;

        if (ro < 0)
                return ro;
        r = map_chunk(s, i, ro, PROT_READ);
        if (r < 0)
                return r;
        return fcntl(s->fds[i], F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL) < 0 ? -errno : 0;
}

int tdm_segment_seal_until(struct tdm_segment *s, unsigned n)
{
        if (!s->writable && s->n_sealed == 0)
                return -EPERM;
        s->writable = false; /* also when the kernel refuses half way: this process writes here no more */
        for (; s->n_sealed < TDM_MIN(n, s->n_chunks); s->n_sealed++) {
                int r = seal_chunk(s, s->n_sealed);

                if (r < 0)
                        return r;
        }
        return 0;
}

int tdm_segment_seal(struct tdm_segment *s)
{
        return s->writable ? tdm_segment_seal_until(s, s->n_chunks) : -EPERM;
}

int tdm_segment_punch(struct tdm_segment *s, uint64_t offset, uint64_t len)
{
        uint64_t page = page_bytes(), end;

        if (!s->writable)
                return -EPERM;
        if (s->dmabuf_fd >= 0)
                return -EBUSY;
        if (offset > s->size_bytes || len > s->size_bytes - offset)
                return -EINVAL;
        end = (offset + len) & ~(page - 1);
        offset = TDM_ALIGN_UP(offset, page);

        while (offset < end) {
                unsigned i = (unsigned)(offset / s->chunk_bytes);
                uint64_t in_chunk = offset % s->chunk_bytes;
                uint64_t n = TDM_MIN(end - offset, s->chunk_bytes - in_chunk);

                if (fallocate(s->fds[i], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)in_chunk, (off_t)n) < 0)
                        return -errno;
                offset += n;
        }
        return 0;
}

/* Duplicates all n fds, or none of them. */
static int dup_each(const int *from, unsigned n, bool writable, int *fds)
{
        for (unsigned i = 0; i < n; i++) {
                int r = writable ? fcntl(from[i], F_DUPFD_CLOEXEC, 3) : reopen_readonly(from[i]);

                if (r < 0) {
                        if (writable)
                                r = -errno;
                        while (i > 0)
                                closep(&fds[--i]);
                        return r;
                }
                fds[i] = r;
        }
        return 0;
}

int tdm_segment_dup_fds(struct tdm_segment *s, bool writable, int *fds)
{
        return writable && !s->writable ? -EPERM : dup_each(s->fds, s->n_chunks, writable, fds);
}

int tdm_segment_dup_chunks(const struct tdm_segment *s, unsigned first, unsigned n, int *fds)
{
        return dup_each(s->fds + first, n, false, fds);
}

uint64_t tdm_segment_resident(const struct tdm_segment *s)
{
        uint64_t bytes = 0;

        for (unsigned i = 0; i < s->n_chunks; i++) {
                struct stat st;

                if (fstat(s->fds[i], &st) == 0)
                        bytes += (uint64_t)st.st_blocks * 512;
        }
        return bytes;
}

/* One fd from outside: a memfd that can no longer change its size, of exactly the size that was told. */
static int check_chunk(const struct tdm_segment *s, unsigned i, int fd, bool writable, struct tdm_error *err)
{
        const int want = F_SEAL_SHRINK | F_SEAL_GROW;
        int seals = fcntl(fd, F_GET_SEALS), flags = fcntl(fd, F_GETFL);
        struct stat st;

        if (seals < 0)
                return tdm_error_set(err, TDM_E_PROTOCOL, "segment %s: chunk %u is not a memfd: %m", s->name, i);
        if ((seals & want) != want)
                return tdm_error_set(err, TDM_E_PROTOCOL,
                                     "segment %s: chunk %u can still change its size (seals 0x%x, need 0x%x)", s->name,
                                     i, (unsigned)seals, (unsigned)want);
        if (writable && (flags & O_ACCMODE) != O_RDWR)
                return tdm_error_set(err, TDM_E_PROTOCOL, "segment %s: chunk %u came read-only but is to be written",
                                     s->name, i);
        if (fstat(fd, &st) < 0)
                return tdm_error_set(err, -errno, "segment %s: cannot stat chunk %u: %m", s->name, i);
        if ((uint64_t)st.st_size != tdm_segment_chunk_size(s, i))
                return tdm_error_set(err, TDM_E_PROTOCOL, "segment %s: chunk %u has %lld bytes, should have %llu",
                                     s->name, i, (long long)st.st_size,
                                     (unsigned long long)tdm_segment_chunk_size(s, i));
        return 0;
}

/* The next n chunks: all are checked before any is mapped. */
static int take_chunks(struct tdm_segment *s, const int *fds, unsigned n, struct tdm_error *err)
{
        for (unsigned i = 0; i < n; i++) {
                int r = check_chunk(s, s->n_mapped + i, fds[i], s->writable, err);

                if (r != 0)
                        return r;
        }
        for (unsigned i = 0; i < n; i++) {
                int r = map_chunk(s, s->n_mapped + i, fds[i], s->writable ? PROT_READ | PROT_WRITE : PROT_READ);

                if (r < 0)
                        return tdm_error_set(err, r, "segment %s: cannot map chunk %u: %s", s->name, s->n_mapped + i,
                                             strerror(-r));
        }
        memcpy(s->fds + s->n_mapped, fds, n * sizeof(*fds));
        s->n_mapped += n;
        return 0;
}

static int wrong_shape(const char *name, unsigned n_fds, uint64_t size_bytes, uint64_t chunk_bytes,
                       struct tdm_error *err)
{
        return tdm_error_set(err, TDM_E_PROTOCOL,
                             "segment %.31s: %u chunks of %llu bytes do not make %llu bytes of whole pages", name,
                             n_fds, (unsigned long long)chunk_bytes, (unsigned long long)size_bytes);
}

static int import_some(struct tdm_segment **ret, const char *name, const int *fds, unsigned n_fds, uint64_t size_bytes,
                       uint64_t chunk_bytes, bool writable, struct tdm_error *err)
{
        _cleanup_(tdm_segment_destroyp) struct tdm_segment *s = NULL;
        uint64_t page = page_bytes();
        int r;

        if (size_bytes == 0 || size_bytes % page != 0 || chunk_bytes == 0 || chunk_bytes % page != 0 || n_fds == 0 ||
            size_bytes > TDM_SEGMENT_CHUNK_BYTES * TDM_SEGMENT_MAX_CHUNKS ||
            chunk_bytes > TDM_SEGMENT_CHUNK_BYTES * TDM_SEGMENT_MAX_CHUNKS ||
            TDM_DIV_UP(size_bytes, chunk_bytes) > TDM_SEGMENT_MAX_CHUNKS || n_fds > TDM_DIV_UP(size_bytes, chunk_bytes))
                return wrong_shape(name, n_fds, size_bytes, chunk_bytes, err);

        s = segment_alloc(name, size_bytes, chunk_bytes, (unsigned)TDM_DIV_UP(size_bytes, chunk_bytes));
        if (!s)
                return tdm_error_set(err, -ENOMEM, "segment %.31s: out of memory", name);
        s->writable = writable;
        r = reserve(s);
        if (r < 0)
                return tdm_error_set(err, r, "segment %s: cannot map %llu bytes: %s", s->name,
                                     (unsigned long long)size_bytes, strerror(-r));
        r = take_chunks(s, fds, n_fds, err);
        if (r != 0)
                return r;
        *ret = steal_ptr(&s);
        return 0;
}

int tdm_segment_import(struct tdm_segment **ret, const char *name, const int *fds, unsigned n_fds, uint64_t size_bytes,
                       uint64_t chunk_bytes, bool writable, struct tdm_error *err)
{
        if (chunk_bytes == 0 || n_fds < TDM_DIV_UP(size_bytes, chunk_bytes))
                return wrong_shape(name, n_fds, size_bytes, chunk_bytes, err);
        return import_some(ret, name, fds, n_fds, size_bytes, chunk_bytes, writable, err);
}

int tdm_segment_import_first(struct tdm_segment **ret, const char *name, const int *fds, unsigned n_fds,
                             uint64_t size_bytes, uint64_t chunk_bytes, struct tdm_error *err)
{
        return import_some(ret, name, fds, n_fds, size_bytes, chunk_bytes, false, err);
}

int tdm_segment_import_more(struct tdm_segment *s, const int *fds, unsigned n_fds, struct tdm_error *err)
{
        if (s->writable || n_fds > s->n_chunks - s->n_mapped)
                return tdm_error_set(err, TDM_E_PROTOCOL, "segment %s: %u more chunks, but %u of %u are here already",
                                     s->name, n_fds, s->n_mapped, s->n_chunks);
        return take_chunks(s, fds, n_fds, err);
}

uint64_t tdm_segment_mapped_bytes(const struct tdm_segment *s)
{
        return TDM_MIN(s->n_mapped * s->chunk_bytes, s->size_bytes);
}

void tdm_segment_destroy(struct tdm_segment *s)
{
        if (!s)
                return;
        if (s->base)
                munmap(s->base, s->size_bytes);
        for (unsigned i = 0; i < s->n_chunks; i++)
                closep(&s->fds[i]);
        closep(&s->dmabuf_fd);
        free(s->fds);
        free(s);
}

void tdm_segment_destroyp(struct tdm_segment **s)
{
        tdm_segment_destroy(*s);
        *s = NULL;
}
