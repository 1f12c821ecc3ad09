/* A file that is being fetched (client-lib/store/incoming.h): NAME.gguf.part has its bytes, and NAME.gguf.part.info
 * says where they come from and which of them are here. Locked while it is open.
 *
 * The bytes come in spans, each from its beginning on, so that several connections can fetch one file. The info file
 * counts the bytes of each span after they were written: a killed process loses none of them. Bytes that were not yet
 * synced to the disk count only until the machine starts anew. */
#ifndef TANDEM_FETCH_PART_H
#define TANDEM_FETCH_PART_H

#include "client-lib/store/incoming.h"

#include <inttypes.h>

#define PART_MAX_SPANS 64u
#define PART_NO_END UINT64_MAX /* the end of the only span while the file's size is unknown */

struct part_span {
        uint64_t begin, end;
        uint64_t here;   /* bytes from begin on that were written */
        uint64_t synced; /* and of those, how many the disk has */
};

/* The info file as it lies on the disk: of this machine, of this version, so the layout is the compiler's. */
struct part_info {
        char magic[8], boot_id[40];
        char url[4096], etag[128];
        uint32_t n_spans, unused;
        struct part_span spans[PART_MAX_SPANS]; /* in order of begin, without gaps */
};

struct part {
        struct incoming in;
        int info_fd;
        uint64_t size;          /* bytes that are here, of all spans */
        uint64_t unsynced;      /* and of those, how many came since the last sync */
        struct part_info *info; /* a copy of the info file */
};

/* Takes up what an earlier run left, if it came from this url. Fails as incoming_open() does, and with
 * TDM_E_BAD_REQUEST where a file has the name already. */
int part_open(struct part *part, int folder_fd, const char *folder, const char *name, const char *url,
              struct tdm_error *err);
/* What is here stays for the next run, if that can tell that the rest belongs to it. */
void part_close(struct part *part);
int part_reset(struct part *part, struct tdm_error *err); /* to one span without bytes or end */
/* Remembers which file the next bytes belong to. etag: a strong one, or "" where the server gives none. */
int part_remember(struct part *part, const char *etag, uint64_t total_bytes, struct tdm_error *err);
/* TDM_E_NO_MEMORY: the disk has no room for the rest of total_bytes. */
int part_check_room(const struct part *part, uint64_t total_bytes, struct tdm_error *err);
/* The next bytes of a span. The caller has checked that they end inside it. */
int part_add(struct part *part, unsigned span, const void *data, size_t size, struct tdm_error *err);
/* Cuts what a span still lacks in two; the second half is span + 1, and later spans move up by one. The table must have
 * room. */
int part_split(struct part *part, unsigned span, struct tdm_error *err);
bool part_span_done(const struct part *part, unsigned span);
/* TDM_E_BAD_MODEL: the file at fd is cut off. */
typedef int part_look_fn(int fd, const char *path, struct tdm_error *err);
/* All bytes are here: checks them, and gives the file its name. Wrong bytes are thrown away. size 0, sha256 NULL: not
 * known; where the server told no length either, look() judges the file. */
int part_finish(struct part *part, uint64_t size_bytes, const char *sha256, part_look_fn *look, struct tdm_error *err);

/* The SHA-256 of size_bytes of a file, in hexadecimal digits. path: for messages. */
int part_hash(int fd, const char *path, uint64_t size_bytes, char ret[static 65], struct tdm_error *err);

#endif
