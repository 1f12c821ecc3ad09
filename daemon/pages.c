/* The page allocator: a stack of free pages and the last user of each page, for either group.
 *
 * Reservation and allocation are two things, because a window group's pages come and go while the sequence runs: what is
 * reserved bounds what is allocated, so allocation cannot fail. Zeroing is done when a page changes hands rather than
 * when it is freed: most pages go back to the user they came from, and then there is nothing to hide. */
#include "daemon/pages.h"

#include <assert.h>

#define NO_UID ((uid_t)-1)

struct group {
        uint32_t n_pages;
        uint32_t n_free;
        uint32_t n_reserved;
        uint32_t *free;  /* [n_pages], a stack of n_free */
        uid_t *last_uid; /* [n_pages] */
        bool *used;      /* [n_pages] */
};

struct tdm_pages {
        struct tdm_kv_geometry kv;
        struct tdm_segment *segment;
        struct group groups[TDM_KV_GROUPS];
};

int tdm_pages_new(struct tdm_pages **ret, const struct tdm_kv_geometry *kv, struct tdm_segment *segment)
{
        _cleanup_(tdm_pages_destroyp) struct tdm_pages *p = calloc(1, sizeof(*p));

        if (!p)
                return -ENOMEM;
        p->kv = *kv;
        p->segment = segment;
        for (int i = 0; i < TDM_KV_GROUPS; i++) {
                struct group *g = &p->groups[i];

                g->n_pages = g->n_free = kv->n_pages[i];
                if (g->n_pages == 0)
                        continue;
                g->free = calloc(g->n_pages, sizeof(*g->free));
                g->last_uid = calloc(g->n_pages, sizeof(*g->last_uid));
                g->used = calloc(g->n_pages, sizeof(*g->used));
                if (!g->free || !g->last_uid || !g->used)
                        return -ENOMEM;
                for (uint32_t k = 0; k < g->n_pages; k++) {
                        g->free[k] = g->n_pages - 1 - k; /* low pages first: what was never touched stays sparse */
                        g->last_uid[k] = NO_UID;
                }
        }
        *ret = steal_ptr(&p);
        return 0;
}

void tdm_pages_destroy(struct tdm_pages *p)
{
        if (!p)
                return;
        for (int i = 0; i < TDM_KV_GROUPS; i++) {
                free(p->groups[i].free);
                free(p->groups[i].last_uid);
                free(p->groups[i].used);
        }
        free(p);
}

void tdm_pages_destroyp(struct tdm_pages **p)
{
        tdm_pages_destroy(*p);
        *p = NULL;
}

/* Pages of one sequence in either group, were the group to have layers. */
static struct tdm_pages_need sequence_need(const struct tdm_hparams *hp, uint32_t n_tokens, uint32_t max_chunk)
{
        struct tdm_pages_need need = { 0 };
        uint32_t all = TDM_DIV_UP(n_tokens, TDM_KV_PAGE_TOKENS);
        uint64_t visible = (uint64_t)hp->window + TDM_MIN(max_chunk, n_tokens);

        need.n[TDM_KV_FULL] = all;
        /* Window and chunk may begin and end inside a page: one more. */
        need.n[TDM_KV_WINDOW] = (uint32_t)TDM_MIN((uint64_t)all, TDM_DIV_UP(visible, TDM_KV_PAGE_TOKENS) + 1);
        return need;
}

struct tdm_pages_need tdm_pages_need(const struct tdm_hparams *hp, const struct tdm_kv_geometry *kv, uint32_t n_tokens,
                                     uint32_t max_chunk)
{
        struct tdm_pages_need need = sequence_need(hp, n_tokens, max_chunk);

        for (int i = 0; i < TDM_KV_GROUPS; i++)
                if (kv->n_layers[i] == 0)
                        need.n[i] = 0;
        return need;
}

bool tdm_pages_possible(const struct tdm_pages *p, const struct tdm_pages_need *need)
{
        for (int i = 0; i < TDM_KV_GROUPS; i++)
                if (need->n[i] > p->groups[i].n_pages)
                        return false;
        return true;
}

bool tdm_pages_reserve(struct tdm_pages *p, const struct tdm_pages_need *need)
{
        for (int i = 0; i < TDM_KV_GROUPS; i++)
                if (need->n[i] > p->groups[i].n_pages - p->groups[i].n_reserved)
                        return false;
        for (int i = 0; i < TDM_KV_GROUPS; i++)
                p->groups[i].n_reserved += need->n[i];
        return true;
}

void tdm_pages_unreserve(struct tdm_pages *p, const struct tdm_pages_need *need)
{
        for (int i = 0; i < TDM_KV_GROUPS; i++) {
                assert(need->n[i] <= p->groups[i].n_reserved);
                p->groups[i].n_reserved -= need->n[i];
        }
}

static void zero_page(struct tdm_pages *p, enum tdm_kv_group group, uint32_t page)
{
        uint64_t offset = p->kv.offset[group] + (uint64_t)page * p->kv.page_bytes[group];

        if (!p->segment)
                return;
        if (tdm_segment_punch(p->segment, offset, p->kv.page_bytes[group]) < 0)
                memset(p->segment->base + offset, 0, p->kv.page_bytes[group]);
}

uint32_t tdm_pages_alloc(struct tdm_pages *p, enum tdm_kv_group group, uid_t uid)
{
        struct group *g = &p->groups[group];
        uint32_t page;

        assert(g->n_free > 0);
        assert(g->n_pages - g->n_free < g->n_reserved);
        page = g->free[--g->n_free];
        assert(!g->used[page]);
        if (g->last_uid[page] != uid && g->last_uid[page] != NO_UID)
                zero_page(p, group, page);
        g->last_uid[page] = uid;
        g->used[page] = true;
        return page;
}

void tdm_pages_free(struct tdm_pages *p, enum tdm_kv_group group, uint32_t page)
{
        struct group *g = &p->groups[group];

        assert(page < g->n_pages && g->used[page] && g->n_free < g->n_pages);
        g->used[page] = false;
        g->free[g->n_free++] = page;
}

uint32_t tdm_pages_total(const struct tdm_pages *p, enum tdm_kv_group group)
{
        return p->groups[group].n_pages;
}

uint32_t tdm_pages_used(const struct tdm_pages *p, enum tdm_kv_group group)
{
        return p->groups[group].n_pages - p->groups[group].n_free;
}

uint32_t tdm_pages_reserved(const struct tdm_pages *p, enum tdm_kv_group group)
{
        return p->groups[group].n_reserved;
}

void tdm_pages_plan(const struct tdm_hparams *hp, enum tdm_kv_type type, uint64_t budget_bytes, uint32_t n_sequences,
                    uint32_t max_chunk, struct tdm_pages_need *ret)
{
        struct tdm_pages_need one = sequence_need(hp, hp->n_ctx, max_chunk), out = { 0 };
        struct tdm_kv_geometry kv;
        uint64_t full_bytes, window_bytes, all_window, n;

        if (tdm_kv_geometry_init(&kv, hp, type, 1, 1) < 0) { /* one page of each cannot overflow within hparams' caps */
                *ret = out;
                return;
        }
        full_bytes = kv.page_bytes[TDM_KV_FULL];
        window_bytes = kv.page_bytes[TDM_KV_WINDOW];
        one.n[TDM_KV_FULL] = full_bytes ? one.n[TDM_KV_FULL] : 0;
        one.n[TDM_KV_WINDOW] = window_bytes ? one.n[TDM_KV_WINDOW] : 0;

        /* Window pages first, for they bound how many sequences can run at all, but no more than half of the budget as
         * soon as one sequence has its share. */
        all_window = (uint64_t)one.n[TDM_KV_WINDOW] * n_sequences;
        n = all_window;
        if (window_bytes && full_bytes && n * window_bytes > budget_bytes / 2)
                n = TDM_MAX(budget_bytes / 2 / window_bytes, (uint64_t)one.n[TDM_KV_WINDOW]);
        if (window_bytes)
                n = TDM_MIN(n, budget_bytes / window_bytes);
        out.n[TDM_KV_WINDOW] = (uint32_t)TDM_MIN(n, (uint64_t)UINT32_MAX - 1);
        budget_bytes -= TDM_MIN(budget_bytes, out.n[TDM_KV_WINDOW] * window_bytes);
        if (full_bytes) {
                n = TDM_MIN((uint64_t)one.n[TDM_KV_FULL] * n_sequences, budget_bytes / full_bytes);
                out.n[TDM_KV_FULL] = (uint32_t)TDM_MIN(n, (uint64_t)UINT32_MAX - 1);
        }
        *ret = out;
}
