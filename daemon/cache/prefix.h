/* The prefix cache of a model: pages of the KV cache, found by what is in them.
 *
 * A full page holds the keys and values of TDM_KV_PAGE_TOKENS positions, which depend on those tokens, on all tokens
 * before them, and on what computed them. So an entry is a page of the full group together with its tokens, and hangs
 * on the entry of the page before it: a path from the root is a prompt's beginning, and whoever walks it has compared
 * every id, not a hash alone. Entries belong to one user and one numerics (what gave the bits); nobody finds another
 * one's. The window group's page of the same positions is kept beside it while there is room: to go on at position P, a
 * sequence needs the full pages of all positions before P and the window pages of those that P can see.
 *
 * Entries live in pages that nobody uses (daemon/cache/pages.h) and vanish, leaves first, when a page is wanted. Models
 * without full layers have no prefix cache. Loop thread only. */
#ifndef TDM_DAEMON_CACHE_PREFIX_H
#define TDM_DAEMON_CACHE_PREFIX_H

#include "daemon/cache/pages.h"

struct tdm_prefix;

/* How far a sequence's own pages are entered; all zero to begin with. */
struct tdm_prefix_cursor {
        uint32_t n_pages;
        uint32_t entry;
        uint64_t stamp;
};

/* A sequence's page tables, as far as this cache looks at them. */
struct tdm_prefix_tables {
        uint32_t *pages[TDM_KV_GROUPS];
        uint32_t first_page[TDM_KV_GROUPS]; /* those before it have slid out */
};

/* pages is borrowed and gets this cache's reclaim function. -EOPNOTSUPP: no full layers. */
int tdm_prefix_new(struct tdm_prefix **ret, struct tdm_pages *pages, const struct tdm_hparams *hp,
                   const struct tdm_kv_geometry *kv);
void tdm_prefix_destroy(struct tdm_prefix *prefix); /* before the pages */
void tdm_prefix_destroyp(struct tdm_prefix **prefix);

/* A number (> 0) for what computes rows, as a string of bytes; 0: out of memory. */
uint32_t tdm_prefix_numerics(struct tdm_prefix *prefix, const void *key, size_t size);

/* Positions of the longest known beginning of ids that a sequence can go on from, a multiple of a page's positions, at
 * most n_max. Takes shares in the pages, on promises that the caller holds, fills the tables and first_page, sets the
 * cursor. */
uint32_t tdm_prefix_take(struct tdm_prefix *prefix, uid_t uid, uint32_t numerics, const uint32_t *ids, uint32_t n_max,
                         struct tdm_prefix_tables *tables, struct tdm_prefix_cursor *cursor);
/* Enters what is full of n_committed positions. All of them were computed by `numerics`. */
void tdm_prefix_add(struct tdm_prefix *prefix, uid_t uid, uint32_t numerics, const uint32_t *ids, uint32_t n_committed,
                    const struct tdm_prefix_tables *tables, struct tdm_prefix_cursor *cursor);

uint32_t tdm_prefix_n_entries(const struct tdm_prefix *prefix);

#endif
