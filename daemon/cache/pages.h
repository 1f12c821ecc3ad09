/* Which sequences hold which page of a model's KV cache.
 *
 * A page is free, used, or idle. It is used by one sequence, or, once it is full and committed, by several that share
 * its content. An idle page is kept by the prefix cache (daemon/cache/prefix.h) for its content; as soon as a sequence
 * needs a page, the coldest idle page is taken. So keeping pages never makes a sequence wait.
 *
 * States of layers that have no keys and values are pages of a pool of their own (TDM_KV_STATE). A sequence that runs
 * has two: the state behind its committed positions, and the one that a step writes.
 *
 * Room is promised before pages are drawn. Used and promised pages together never exceed the number of pages, so a
 * promised page can always be drawn. The pools are counted apart. A page that goes to another user is zeroed
 * first. Loop thread only. The allocator knows nothing of steps: the caller frees a page only when no step in flight
 * can write to it. */
#ifndef TDM_DAEMON_CACHE_PAGES_H
#define TDM_DAEMON_CACHE_PAGES_H

#include <sys/types.h>
#include "common/shm.h"
#include "engine/step/kv.h"

#define TDM_PAGES_STATES 2u /* of a sequence that runs */

struct tdm_pages;

struct tdm_pages_need {
        uint32_t n[TDM_KV_POOLS];
};

/* segment: the kv segment, borrowed, used for zeroing; NULL: nothing to zero. */
int tdm_pages_new(struct tdm_pages **ret, const struct tdm_kv_geometry *kv, struct tdm_segment *segment);
void tdm_pages_destroy(struct tdm_pages *pages);
void tdm_pages_destroyp(struct tdm_pages **pages);

/* The most pages that a sequence of n_tokens positions needs, when a step adds at most max_chunk of them. */
struct tdm_pages_need tdm_pages_need(const struct tdm_hparams *hp, const struct tdm_kv_geometry *kv, uint32_t n_tokens,
                                     uint32_t max_chunk);
/* True where the need could be met if no other sequence had any page. */
bool tdm_pages_possible(const struct tdm_pages *pages, const struct tdm_pages_need *need);
/* Promises these pages. False: fewer are free now, and nothing is promised. */
bool tdm_pages_reserve(struct tdm_pages *pages, const struct tdm_pages_need *need);
/* Gives back a promise. */
void tdm_pages_unreserve(struct tdm_pages *pages, const struct tdm_pages_need *need);
/* Pages that are neither used nor promised. */
uint32_t tdm_pages_room(const struct tdm_pages *pages, enum tdm_kv_group group);

/* Draws a page of a promise, for one sequence. Always succeeds. */
uint32_t tdm_pages_alloc(struct tdm_pages *pages, enum tdm_kv_group group, uint64_t identity);
/* Draws a promise for a page that is used or idle already. */
void tdm_pages_share(struct tdm_pages *pages, enum tdm_kv_group group, uint32_t page);
/* The sequence gives the page back. A kept page that no sequence uses any more becomes idle: the last to be taken, or
 * with `cold` the first. */
void tdm_pages_free(struct tdm_pages *pages, enum tdm_kv_group group, uint32_t page, bool cold);

/* For the prefix cache. keep: a used page becomes idle and not free when it is given back. drop: it may become free. */
void tdm_pages_keep(struct tdm_pages *pages, enum tdm_kv_group group, uint32_t page);
void tdm_pages_drop(struct tdm_pages *pages, enum tdm_kv_group group, uint32_t page);
/* One sequence uses the page, and the prefix cache does not keep it. */
bool tdm_pages_is_sole(const struct tdm_pages *pages, enum tdm_kv_group group, uint32_t page);
bool tdm_pages_is_used(const struct tdm_pages *pages, enum tdm_kv_group group, uint32_t page);
/* Called when no page is free and some are idle. The prefix cache has to drop `coldest`, and may drop others. */
typedef void (*tdm_pages_reclaim_fn)(enum tdm_kv_group group, uint32_t coldest, void *userdata);
void tdm_pages_set_reclaim(struct tdm_pages *pages, tdm_pages_reclaim_fn fn, void *userdata);

uint32_t tdm_pages_total(const struct tdm_pages *pages, enum tdm_kv_group group);
uint32_t tdm_pages_used(const struct tdm_pages *pages, enum tdm_kv_group group);
uint32_t tdm_pages_idle(const struct tdm_pages *pages, enum tdm_kv_group group);
uint32_t tdm_pages_reserved(const struct tdm_pages *pages, enum tdm_kv_group group); /* promised, not drawn */

/* The prefix cache keeps a state of a prompt every so many pages: as often as it takes no more memory than these, and
 * not more often than reading rows again is worth. */
uint32_t tdm_pages_state_spacing(const struct tdm_kv_geometry *kv);

/* Shares a budget between the pools: pages for n_sequences full contexts where it allows, fewer where not. A sequence
 * alone can use at least as much of the context as the budget holds. States get up to half of the budget. */
void tdm_pages_plan(const struct tdm_hparams *hp, enum tdm_kv_type type, uint64_t budget_bytes, uint32_t n_sequences,
                    uint32_t max_chunk, struct tdm_pages_need *ret);

#endif
