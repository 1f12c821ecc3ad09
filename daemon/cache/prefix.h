/* The prefix cache of a model: pages of the KV cache, found by the tokens that they hold.
 *
 * A full page holds the keys and values of TDM_KV_PAGE_TOKENS positions. They depend on those tokens, on all tokens
 * before them, and on the device that computed them. So an entry is a page of the full group together with its tokens,
 * and hangs on the entry of the page before it. A path from the root is the beginning of a prompt, and the search along
 * it compares every id, not a hash alone. An entry belongs to one user and one numerics (what gave the bits), and is
 * found by that user only.
 *
 * The window group's page of the same positions is kept beside the entry while there is room. To go on at position P, a
 * sequence needs the full pages of all positions before P, and the window pages of the positions that P can see.
 *
 * Where layers keep a state (engine/step/kv.h), one may be kept beside an entry: that behind its last position. To go
 * on at position P, a sequence needs the state of P. The last state that a text has passed goes when the next one
 * comes, unless it stands where states are kept for good.
 *
 * Entries live in pages that no sequence uses (daemon/cache/pages.h) and vanish, leaves first, when a page is needed.
 * Models without full layers have no prefix cache. Loop thread only. */
#ifndef TDM_DAEMON_CACHE_PREFIX_H
#define TDM_DAEMON_CACHE_PREFIX_H

#include "daemon/cache/pages.h"

struct tdm_prefix;

/* How many of a sequence's own pages are entered; all zero at the beginning. */
struct tdm_prefix_cursor {
        uint32_t n_pages;
        uint32_t entry;
        uint64_t stamp;
        uint32_t passing; /* the entry whose state goes when the next one comes, and that state's stamp; 0: none */
        uint64_t passing_stamp;
};

/* A state of the sequence that entering its pages may keep. */
struct tdm_prefix_state {
        uint32_t page; /* TDM_KV_NO_PAGE: none */
        uint32_t n;    /* positions that it is behind */
        bool passes;
};

/* What this cache needs of a sequence's page tables. */
struct tdm_prefix_tables {
        uint32_t *pages[TDM_KV_GROUPS];
        uint32_t first_page[TDM_KV_GROUPS]; /* those before it have slid out */
        uint32_t state_page;                /* that of the beginning which was found */
        struct tdm_prefix_state states[2];  /* to be kept */
        /* Whether a beginning may end at n positions; NULL: at any. */
        bool (*may_cut)(const void *userdata, uint32_t n);
        const void *userdata;
};

/* pages is borrowed and gets this cache's reclaim function. -EOPNOTSUPP: no full layers. */
int tdm_prefix_new(struct tdm_prefix **ret, struct tdm_pages *pages, const struct tdm_hparams *hp,
                   const struct tdm_kv_geometry *kv);
void tdm_prefix_destroy(struct tdm_prefix *prefix); /* before the pages */
void tdm_prefix_destroyp(struct tdm_prefix **prefix);

/* A number (> 0) for what computes rows, given as a string of bytes; 0: out of memory. */
uint32_t tdm_prefix_numerics(struct tdm_prefix *prefix, const void *key, size_t size);

/* Finds the longest known beginning of ids that a sequence can go on from. Returns its positions: a multiple of a
 * page's, at most n_max. Shares the pages, on promises that the caller holds, fills the tables and first_page, and sets
 * the cursor. */
uint32_t tdm_prefix_take(struct tdm_prefix *prefix, uint64_t identity, uint32_t numerics, const uint32_t *ids,
                         uint32_t n_max, struct tdm_prefix_tables *tables, struct tdm_prefix_cursor *cursor);
/* Enters the full pages of n_committed positions. `numerics` computed all of them. */
void tdm_prefix_add(struct tdm_prefix *prefix, uint64_t identity, uint32_t numerics, const uint32_t *ids,
                    uint32_t n_committed, const struct tdm_prefix_tables *tables, struct tdm_prefix_cursor *cursor);

uint32_t tdm_prefix_n_entries(const struct tdm_prefix *prefix);

/* ---- for pages on disk (daemon/cache/page-store.h) ---- */

/* An entry that was new, as it was. */
struct tdm_prefix_item {
        uint32_t page, parent; /* TDM_KV_NO_PAGE: it has none */
        uint32_t window_page;  /* the same */
        uint32_t n_pages;      /* from the beginning of the text, itself included */
        uint32_t numerics;
        uint64_t identity, stamp, window_stamp;
};

/* New entries are noted from now on, as many as there are pages; -ENOMEM. Those that tdm_prefix_put() makes are not. */
int tdm_prefix_note_new(struct tdm_prefix *prefix);
/* The oldest of them that is still there. False: there is none. */
bool tdm_prefix_first_new(struct tdm_prefix *prefix, struct tdm_prefix_item *ret);
void tdm_prefix_drop_new(struct tdm_prefix *prefix); /* that one is not noted any more */
/* The tokens from the beginning to the entry's end: [n_pages * TDM_KV_PAGE_TOKENS]. */
void tdm_prefix_ids(const struct tdm_prefix *prefix, const struct tdm_prefix_item *item, uint32_t *ret);
/* Its pages have held the same all the time. */
bool tdm_prefix_is_there(const struct tdm_prefix *prefix, const struct tdm_prefix_item *item);
/* What tdm_prefix_numerics() was given. NULL: it is forgotten. */
const void *tdm_prefix_numerics_key(const struct tdm_prefix *prefix, uint32_t numerics, size_t *ret_size);

/* How many full pages of the first n_max ids have entries. */
uint32_t tdm_prefix_known(const struct tdm_prefix *prefix, uint64_t identity, uint32_t numerics, const uint32_t *ids,
                          uint32_t n_max);
/* The first page of the window group that the row after n_pages full pages can see. */
uint32_t tdm_prefix_first_visible(const struct tdm_prefix *prefix, uint32_t n_pages);
/* Enters pages [first, first + n) of ids, if those before them have entries. The caller has the pages, and gives them
 * back. window_pages [n]: TDM_KV_NO_PAGE where there is none. */
void tdm_prefix_put(struct tdm_prefix *prefix, uint64_t identity, uint32_t numerics, const uint32_t *ids,
                    uint32_t first, uint32_t n, const uint32_t *pages, const uint32_t *window_pages);

#endif
