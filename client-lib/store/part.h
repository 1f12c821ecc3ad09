/* A file that is being fetched: PATH.part with its bytes, and PATH.part.info with where they come from. Locked while it
 * is open. */
#ifndef TANDEM_STORE_PART_H
#define TANDEM_STORE_PART_H

#include "common/error.h"

#include <inttypes.h>

struct part {
        char *path, *part_path, *info_path;
        int fd;
        uint64_t size; /* bytes that are here */
        char etag[128];
};

/* Takes up what an earlier run left, if it came from this url. TDM_E_BUSY: another process has it open. */
int part_open(struct part *part, const char *path, const char *url, struct tdm_error *err);
void part_close(struct part *part);                       /* what is here stays for the next run */
int part_reset(struct part *part, struct tdm_error *err); /* to no bytes */
int part_remember(struct part *part, const char *url, const char *etag, struct tdm_error *err);
/* TDM_E_NO_MEMORY: the disk has no room for the rest of total_bytes. */
int part_check_room(const struct part *part, uint64_t total_bytes, struct tdm_error *err);
int part_add(struct part *part, const void *data, size_t size, struct tdm_error *err);
/* All bytes are here: checks them, and gives the file its name. Wrong bytes are thrown away. size 0, sha256 NULL: not
 * known. */
int part_finish(struct part *part, uint64_t size_bytes, const char *sha256, struct tdm_error *err);

#endif
