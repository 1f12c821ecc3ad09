/* Pages of the prefix cache on disk: one file for each page.
 *
 * A file's name is the page's key: a keyed hash of whose it is, of the model, the arithmetic and the layout, and of all
 * tokens from the beginning of the text to the page's end. So whoever asks for a text finds pages of that text alone.
 * The file holds the key, the page's tokens, and sums of everything in it. A page is used only if all of it is as it
 * was written; else it is removed. The secret of the hashes lies in the store, so no client can make two texts with one
 * key.
 *
 *   PATH/key                               the secret
 *   PATH/v1/uUID/SET/INDEX-KEY.page        a page; SET: what goes together (struct tdm_page_set)
 *
 * Files are written beside their place and renamed. They are not synced: what a power cut leaves of them fails its
 * sums. A user's pages take at most the store's size; those that were used longest ago leave first. A folder vN of
 * another version is removed.
 *
 * Open it from the loop. Everything else blocks and is for threads: any number may read, one at a time may write. */
#ifndef TDM_DAEMON_CACHE_PAGE_STORE_H
#define TDM_DAEMON_CACHE_PAGE_STORE_H

#include <sys/types.h>
#include "common/error.h"
#include "common/siphash.h"
#include "engine/step/kv.h"

struct tdm_page_store;

struct tdm_page_key {
        uint8_t bytes[TDM_SIPHASH_BYTES];
};

/* Pages that go together: of one user, one model, one arithmetic, one layout. */
struct tdm_page_set {
        uid_t uid;
        struct tdm_page_key key;
        uint64_t page_bytes[TDM_KV_GROUPS];
};

/* path: its last folder is made; 0700, and nobody else's. max_bytes: for each user; 0: a tenth of the file system, and
 * 8 GiB at most. */
int tdm_page_store_open(struct tdm_page_store **ret, const char *path, uint64_t max_bytes, struct tdm_error *err);
void tdm_page_store_close(struct tdm_page_store *store);
void tdm_page_store_closep(struct tdm_page_store **store);

/* model: a digest of its weights; numerics: what gives the bits. Any thread. */
void tdm_page_store_set(const struct tdm_page_store *store, struct tdm_page_set *ret, uid_t uid,
                        const struct tdm_page_key *model, const void *numerics, size_t numerics_size,
                        const struct tdm_kv_geometry *kv);
/* The keys of the first n pages of a text. Any thread. */
void tdm_page_store_keys(const struct tdm_page_store *store, const struct tdm_page_set *set, const uint32_t *ids,
                         uint32_t n, struct tdm_page_key *ret);

/* A page of a text: page `index` of ids, with the keys of the text's pages. */
struct tdm_page_place {
        const struct tdm_page_set *set;
        const uint32_t *ids;
        const struct tdm_page_key *keys;
        uint32_t index;
};
/* There is a file. It may be damaged. */
bool tdm_page_store_has(const struct tdm_page_store *store, const struct tdm_page_place *place);
/* Fills full [page_bytes[TDM_KV_FULL]], and window likewise (NULL: it is not wanted). *ret_window: the file has it.
 * *ret_row_ns: how long a row took to compute, when it was written; 0: not known. -ENOENT: there is none. -EBADMSG: it
 * was damaged, and is gone. Other errors: it cannot be read. What was filled by then is of no use. */
int tdm_page_store_read(struct tdm_page_store *store, const struct tdm_page_place *place, void *full, void *window,
                        bool *ret_window, uint64_t *ret_row_ns);
/* window NULL: the page has none. -EEXIST: the store has it. -ENOSPC: there is no room for it. */
int tdm_page_store_write(struct tdm_page_store *store, const struct tdm_page_place *place, const void *full,
                         const void *window, uint64_t row_ns);

uint64_t tdm_page_store_n_refused(const struct tdm_page_store *store); /* pages that were damaged; any thread */

#endif
