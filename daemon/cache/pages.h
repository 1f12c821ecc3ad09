/* Who holds which page of a model's KV cache.
 *
 * A page is free, used (by one sequence or, once it is full and committed, by several that share its content), or idle:
 * kept by the prefix cache (daemon/cache/prefix.h) for whoever may want its content, and taken from there, coldest
 * first, as soon as somebody wants a page. So what is kept never keeps anybody waiting.
 *
 * Room is promised before it is drawn: used and promised pages together never exceed what there is, so whoever holds a
 * promise gets the page. Pages of the two groups are counted apart. A page that goes to another user is zeroed first.
 * Loop thread only; knows nothing of steps: the caller lets go of a page only when no step in flight can write to it.
 */
#ifndef TDM_DAEMON_CACHE_PAGES_H
#define TDM_DAEMON_CACHE_PAGES_H

#include <sys/types.h>
#include "common/shm.h"
#include "engine/step/kv.h"

struct tdm_pages;

struct tdm_pages_need {
        uint32_t n[TDM_KV_GROUPS];
};

/* segment: the kv segment, borrowed, used for zeroing; NULL: nothing to zero. */
int tdm_pages_new(struct tdm_pages **ret, const struct tdm_kv_geometry *kv, struct tdm_segment *segment);
void tdm_pages_destroy(struct tdm_pages *pages);
void tdm_pages_destroyp(struct tdm_pages **pages);

/* What a sequence of n_tokens positions needs at most, when a step adds at most max_chunk of them. */
struct tdm_pages_need tdm_pages_need(const struct tdm_hparams *hp, const struct tdm_kv_geometry *kv, uint32_t n_tokens,
                                     uint32_t max_chunk);
/* True where the need could be met if nobody else had anything. */
bool tdm_pages_possible(const struct tdm_pages *pages, const struct tdm_pages_need *need);
/* Promises room for so many pages. False when there is not as much now; nothing is promised then. */
bool tdm_pages_reserve(struct tdm_pages *pages, const struct tdm_pages_need *need);
/* A promise is not needed any more. */
void tdm_pages_unreserve(struct tdm_pages *pages, const struct tdm_pages_need *need);
/* Pages that are neither used nor promised. */
uint32_t tdm_pages_room(const struct tdm_pages *pages, enum tdm_kv_group group);

/* A page of one's own, on a promise, which it uses up. Always succeeds. */
uint32_t tdm_pages_alloc(struct tdm_pages *pages, enum tdm_kv_group group, uid_t uid);
/* Shares a page that is used or idle, on a promise likewise. */
void tdm_pages_share(struct tdm_pages *pages, enum tdm_kv_group group, uint32_t page);
/* Lets go. A kept page that nobody uses any more becomes idle: the last to be taken again, or with `cold` the first. */
void tdm_pages_free(struct tdm_pages *pages, enum tdm_kv_group group, uint32_t page, bool cold);

/* For the prefix cache. keep: a used page is not to be forgotten when it is let go of; drop: it may be, now. */
void tdm_pages_keep(struct tdm_pages *pages, enum tdm_kv_group group, uint32_t page);
void tdm_pages_drop(struct tdm_pages *pages, enum tdm_kv_group group, uint32_t page);
bool tdm_pages_is_used(const struct tdm_pages *pages, enum tdm_kv_group group, uint32_t page);
/* Called when no page is free but some are idle: has to drop `coldest`, and may drop others. */
typedef void (*tdm_pages_reclaim_fn)(enum tdm_kv_group group, uint32_t coldest, void *userdata);
void tdm_pages_set_reclaim(struct tdm_pages *pages, tdm_pages_reclaim_fn fn, void *userdata);

uint32_t tdm_pages_total(const struct tdm_pages *pages, enum tdm_kv_group group);
uint32_t tdm_pages_used(const struct tdm_pages *pages, enum tdm_kv_group group);
uint32_t tdm_pages_idle(const struct tdm_pages *pages, enum tdm_kv_group group);
uint32_t tdm_pages_reserved(const struct tdm_pages *pages, enum tdm_kv_group group); /* promised, not drawn */

/* How a budget is best shared between the two groups: pages for n_sequences full contexts where it allows, fewer where
 * not. A sequence alone can use at least as much of the context as the budget holds. */
void tdm_pages_plan(const struct tdm_hparams *hp, enum tdm_kv_type type, uint64_t budget_bytes, uint32_t n_sequences,
                    uint32_t max_chunk, struct tdm_pages_need *ret);

#endif
