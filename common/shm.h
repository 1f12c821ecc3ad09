/* Shared memory segments: memfds made by tandemd, sealed against shrinking and growing, in chunks of 32 MiB (udmabuf's
 * default limit is 64 MiB), mapped as one contiguous range, handed to exactly the processes that need them.
 *
 * tandemd creates; a worker imports what came over its socket and checks it before use. A reader's fds are reopened
 * O_RDONLY, so it cannot map them for writing. Not thread-safe; the mapping itself may be used by any thread. */
#ifndef TDM_COMMON_SHM_H
#define TDM_COMMON_SHM_H

#include "common/error.h"

#define TDM_SEGMENT_CHUNK_BYTES (UINT64_C(32) << 20)
#define TDM_SEGMENT_MAX_CHUNKS 4096u /* 128 GiB */

struct tdm_segment {
        char name[32];
        /* [size_bytes], at a page, from TDM_HUGEPAGE_BYTES on at a huge one; NULL when not mapped */
        uint8_t *base;
        uint64_t size_bytes;  /* a multiple of the page size */
        uint64_t chunk_bytes; /* every chunk but the last has this size */
        unsigned n_chunks;
        unsigned n_sealed; /* the creator's: this many of the first ones are */
        unsigned n_mapped; /* an importer's may come one after the other */
        int *fds;          /* [n_chunks], owned */
        bool writable;
        int dmabuf_fd; /* the same memory as one dma-buf (common/dmabuf.h), owned; -1: none */
};

/* The size of chunk i, which must exist. */
uint64_t tdm_segment_chunk_size(const struct tdm_segment *segment, unsigned i);

/* size_bytes is rounded up to a page. The memory is sparse (zero until touched). Mapped read-write. */
int tdm_segment_create(struct tdm_segment **ret, const char *name, uint64_t size_bytes);
/* The same with chunks of another size, whole pages: tests want many small chunks. */
int tdm_segment_create_in_chunks(struct tdm_segment **ret, const char *name, uint64_t size_bytes, uint64_t chunk_bytes);
/* Ends all writing, by every process and for ever: remaps read-only and adds F_SEAL_WRITE. */
int tdm_segment_seal(struct tdm_segment *segment);
/* The same of the first n chunks, while the rest is still written; they can be handed out from then on. Any one thread
 * may, while others ask for resident bytes and hand out chunks that they know to be sealed. */
int tdm_segment_seal_until(struct tdm_segment *segment, unsigned n);
/* Gives whole pages in [offset, offset + len) back to the kernel; they read as zero afterwards. Creator only;
 * -EBUSY where there is a dma-buf, which would keep the old pages. */
int tdm_segment_punch(struct tdm_segment *segment, uint64_t offset, uint64_t len);
/* Writes n_chunks new fds into fds[], read-only unless writable; the caller closes them. */
int tdm_segment_dup_fds(struct tdm_segment *segment, bool writable, int *fds);
/* The same for the chunks [first, first + n), read-only. */
int tdm_segment_dup_chunks(const struct tdm_segment *segment, unsigned first, unsigned n, int *fds);
/* Bytes of real memory behind the segment now (st_blocks). */
uint64_t tdm_segment_resident(const struct tdm_segment *segment);

/* Takes ownership of fds[0..n_fds) on success only. Refuses (TDM_E_PROTOCOL) fds that are no memfds, lack F_SEAL_SHRINK
 * and F_SEAL_GROW, or whose sizes do not add up to size_bytes. */
int tdm_segment_import(struct tdm_segment **ret, const char *name, const int *fds, unsigned n_fds, uint64_t size_bytes,
                       uint64_t chunk_bytes, bool writable, struct tdm_error *err);

/* The same for the first n_fds chunks, which may be fewer than the segment has. The memory behind them must not be
 * touched before tdm_segment_import_more() has brought it. Read-only. */
int tdm_segment_import_first(struct tdm_segment **ret, const char *name, const int *fds, unsigned n_fds,
                             uint64_t size_bytes, uint64_t chunk_bytes, struct tdm_error *err);
/* The next ones; takes ownership on success only. */
int tdm_segment_import_more(struct tdm_segment *segment, const int *fds, unsigned n_fds, struct tdm_error *err);
/* Bytes from base on whose chunks have been imported. */
uint64_t tdm_segment_mapped_bytes(const struct tdm_segment *segment);

void tdm_segment_destroy(struct tdm_segment *segment); /* unmaps, closes; NULL is fine */
void tdm_segment_destroyp(struct tdm_segment **segment);

#endif
