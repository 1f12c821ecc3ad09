/* Who owns which page of a model's KV cache.
 *
 * A sequence reserves what it may need at most before its first step and draws pages from that reservation as it grows,
 * so that a running sequence never waits for a page. Pages of the two groups are counted apart. A page that goes to
 * another user is zeroed first. Loop thread only; knows nothing of steps: the caller frees a page only when no step in
 * flight can look at it. */
#ifndef TDM_DAEMON_PAGES_H
#define TDM_DAEMON_PAGES_H

#include <sys/types.h>
#include "common/shm.h"
#include "engine/kv.h"

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
/* False when it does not fit now; nothing is taken then. */
bool tdm_pages_reserve(struct tdm_pages *pages, const struct tdm_pages_need *need);
void tdm_pages_unreserve(struct tdm_pages *pages, const struct tdm_pages_need *need);

/* Always succeeds within a reservation. */
uint32_t tdm_pages_alloc(struct tdm_pages *pages, enum tdm_kv_group group, uid_t uid);
void tdm_pages_free(struct tdm_pages *pages, enum tdm_kv_group group, uint32_t page);

uint32_t tdm_pages_total(const struct tdm_pages *pages, enum tdm_kv_group group);
uint32_t tdm_pages_used(const struct tdm_pages *pages, enum tdm_kv_group group);
uint32_t tdm_pages_reserved(const struct tdm_pages *pages, enum tdm_kv_group group);

/* How a budget is best shared between the two groups: pages for n_sequences full contexts where it allows, fewer where
 * not. A sequence alone can use at least as much of the context as the budget holds. */
void tdm_pages_plan(const struct tdm_hparams *hp, enum tdm_kv_type type, uint64_t budget_bytes, uint32_t n_sequences,
                    uint32_t max_chunk, struct tdm_pages_need *ret);

#endif
