/* Shared by page-store.c and page-share.c. */
#ifndef TDM_DAEMON_CACHE_PAGE_STORE_PRIVATE_H
#define TDM_DAEMON_CACHE_PAGE_STORE_PRIVATE_H

#include "daemon/cache/page-store.h"

#include <stdatomic.h>

#define TDM_PAGE_VERSION "v1" /* the folder; another layout of files or pages is another version */
#define TDM_PAGE_NEW ".new-"  /* so the names of files begin that are being written */
#define TDM_PAGE_PATH 128u    /* uUID/SET/INDEX-KEY.page */
#define TDM_PAGE_SHARES 16u

/* What one user's pages take, as far as it is known. */
struct page_share {
        uid_t uid;
        bool known;
        uint64_t bytes;
};

struct tdm_page_store {
        char *path;
        int root, pages; /* PATH, PATH/v1 */
        uint64_t max_bytes;
        uint8_t secret[TDM_SIPHASH_KEY_BYTES];
        _Atomic uint64_t n_refused;
        /* Of the thread that writes. */
        struct page_share shares[TDM_PAGE_SHARES];
        bool swept;
};

/* 0: the user may have so many bytes more, perhaps because older pages have left. -ENOSPC. */
int tdm_page_store_make_room(struct tdm_page_store *store, uid_t uid, uint64_t bytes);
void tdm_page_store_count(struct tdm_page_store *store, uid_t uid, uint64_t bytes); /* they were written */

#endif
