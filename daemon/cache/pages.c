/* The page allocator. Each group has a stack of free pages, a list of idle pages from cold to warm, and for each page
 * the number of sequences that hold it and the user who had it last.
 *
 * A page is zeroed when another user gets it, not when it is freed: most pages go back to the user that they came from.
 * Lists are arrays of indices, so nothing is allocated after the start. */
#include "daemon/cache/pages.h"

#include <assert.h>

#define NO_IDENTITY UINT64_MAX
#define STATE_SPACING_LEAST 8u /* pages: reading 256 rows again takes one step */

struct page {
        uint32_t n_refs;
        uint32_t prev, next; /* while idle: the colder one, the warmer one */
        uint64_t last_identity;
        bool kept;
};

struct group {
        uint32_t n_pages;
        uint32_t n_free;
        uint32_t n_idle;
        uint32_t n_reserved;
        uint32_t coldest, warmest; /* TDM_KV_NO_PAGE: none is idle */
        uint32_t *free;            /* [n_pages], a stack of n_free */
        struct page *pages;        /* [n_pages] */
};

struct tdm_pages {
        struct tdm_kv_geometry kv;
        struct tdm_segment *segment;
        struct group groups[TDM_KV_POOLS];
        tdm_pages_reclaim_fn reclaim;
        void *userdata;
};

int tdm_pages_new(struct tdm_pages **ret, const struct tdm_kv_geometry *kv, struct tdm_segment *segment)
{
        _cleanup_(tdm_pages_destroyp) struct tdm_pages *p = calloc(1, sizeof(*p));

        if (!p)
                return -ENOMEM;
        p->kv = *kv;
        p->segment = segment;
        for (int i = 0; i < TDM_KV_POOLS; i++) {
                struct group *g = &p->groups[i];

                g->n_pages = g->n_free = kv->n_pages[i];
                g->coldest = g->warmest = TDM_KV_NO_PAGE;
                if (g->n_pages == 0)
                        continue;
                g->free = calloc(g->n_pages, sizeof(*g->free));
                g->pages = calloc(g->n_pages, sizeof(*g->pages));
                if (!g->free || !g->pages)
                        return -ENOMEM;
                for (uint32_t k = 0; k < g->n_pages; k++) {
                        g->free[k] = g->n_pages - 1 - k; /* low pages first: pages that were never used take no memory
                                                          */
                        g->pages[k].last_identity = NO_IDENTITY;
                }
        }
        *ret = steal_ptr(&p);
        return 0;
}

void tdm_pages_destroy(struct tdm_pages *p)
{
        if (!p)
                return;
        for (int i = 0; i < TDM_KV_POOLS; i++) {
                free(p->groups[i].free);
                free(p->groups[i].pages);
        }
        free(p);
}

void tdm_pages_destroyp(struct tdm_pages **p)
{
        tdm_pages_destroy(*p);
        *p = NULL;
}

/* Pages of one sequence in a group, if the group has layers. */
static struct tdm_pages_need sequence_need(const struct tdm_hparams *hp, uint32_t n_tokens, uint32_t max_chunk)
{
        struct tdm_pages_need need = { 0 };
        uint32_t all = TDM_DIV_UP(n_tokens, TDM_KV_PAGE_TOKENS);
        uint64_t visible = (uint64_t)hp->window + TDM_MIN(max_chunk, n_tokens);

        need.n[TDM_KV_FULL] = all;
        /* One more, since window and chunk may begin and end inside a page. */
        need.n[TDM_KV_WINDOW] = (uint32_t)TDM_MIN((uint64_t)all, TDM_DIV_UP(visible, TDM_KV_PAGE_TOKENS) + 1);
        need.n[TDM_KV_STATE] = TDM_PAGES_STATES;
        return need;
}

struct tdm_pages_need tdm_pages_need(const struct tdm_hparams *hp, const struct tdm_kv_geometry *kv, uint32_t n_tokens,
                                     uint32_t max_chunk)
{
        struct tdm_pages_need need = sequence_need(hp, n_tokens, max_chunk);

        for (int i = 0; i < TDM_KV_POOLS; i++)
                if (kv->n_layers[i] == 0)
                        need.n[i] = 0;
        return need;
}

bool tdm_pages_possible(const struct tdm_pages *p, const struct tdm_pages_need *need)
{
        for (int i = 0; i < TDM_KV_POOLS; i++)
                if (need->n[i] > p->groups[i].n_pages)
                        return false;
        return true;
}

static uint32_t used(const struct group *g)
{
        return g->n_pages - g->n_free - g->n_idle;
}

uint32_t tdm_pages_room(const struct tdm_pages *p, enum tdm_kv_group group)
{
        const struct group *g = &p->groups[group];

        return g->n_pages - used(g) - g->n_reserved;
}

bool tdm_pages_reserve(struct tdm_pages *p, const struct tdm_pages_need *need)
{
        for (int i = 0; i < TDM_KV_POOLS; i++)
                if (need->n[i] > tdm_pages_room(p, (enum tdm_kv_group)i))
                        return false;
        for (int i = 0; i < TDM_KV_POOLS; i++)
                p->groups[i].n_reserved += need->n[i];
        return true;
}

void tdm_pages_unreserve(struct tdm_pages *p, const struct tdm_pages_need *need)
{
        for (int i = 0; i < TDM_KV_POOLS; i++) {
                assert(need->n[i] <= p->groups[i].n_reserved);
                p->groups[i].n_reserved -= need->n[i];
        }
}

/* ---- idle pages ---- */

static void idle_remove(struct group *g, uint32_t page)
{
        struct page *e = &g->pages[page];

        *(e->prev == TDM_KV_NO_PAGE ? &g->coldest : &g->pages[e->prev].next) = e->next;
        *(e->next == TDM_KV_NO_PAGE ? &g->warmest : &g->pages[e->next].prev) = e->prev;
        g->n_idle--;
}

static void idle_insert(struct group *g, uint32_t page, bool cold)
{
        struct page *e = &g->pages[page];

        e->prev = cold ? TDM_KV_NO_PAGE : g->warmest;
        e->next = cold ? g->coldest : TDM_KV_NO_PAGE;
        *(e->prev == TDM_KV_NO_PAGE ? &g->coldest : &g->pages[e->prev].next) = page;
        *(e->next == TDM_KV_NO_PAGE ? &g->warmest : &g->pages[e->next].prev) = page;
        g->n_idle++;
}

/* ---- pages ---- */

static void zero_page(struct tdm_pages *p, enum tdm_kv_group group, uint32_t page)
{
        uint64_t offset = p->kv.offset[group] + (uint64_t)page * p->kv.page_bytes[group];

        if (!p->segment)
                return;
        if (tdm_segment_punch(p->segment, offset, p->kv.page_bytes[group]) < 0)
                memset(p->segment->base + offset, 0, p->kv.page_bytes[group]);
}

uint32_t tdm_pages_alloc(struct tdm_pages *p, enum tdm_kv_group group, uint64_t identity)
{
        struct group *g = &p->groups[group];
        uint32_t page;

        assert(g->n_reserved > 0);
        if (g->n_free == 0)
                p->reclaim(group, g->coldest, p->userdata);
        assert(g->n_free > 0);
        page = g->free[--g->n_free];
        assert(g->pages[page].n_refs == 0 && !g->pages[page].kept);
        if (g->pages[page].last_identity != identity && g->pages[page].last_identity != NO_IDENTITY)
                zero_page(p, group, page);
        g->pages[page].last_identity = identity;
        g->pages[page].n_refs = 1;
        g->n_reserved--;
        return page;
}

void tdm_pages_share(struct tdm_pages *p, enum tdm_kv_group group, uint32_t page)
{
        struct group *g = &p->groups[group];

        assert(page < g->n_pages && (g->pages[page].n_refs > 0 || g->pages[page].kept) && g->n_reserved > 0);
        if (g->pages[page].n_refs++ == 0)
                idle_remove(g, page);
        g->n_reserved--;
}

void tdm_pages_free(struct tdm_pages *p, enum tdm_kv_group group, uint32_t page, bool cold)
{
        struct group *g = &p->groups[group];

        assert(page < g->n_pages && g->pages[page].n_refs > 0);
        if (--g->pages[page].n_refs > 0)
                return;
        if (g->pages[page].kept)
                idle_insert(g, page, cold);
        else
                g->free[g->n_free++] = page;
}

void tdm_pages_keep(struct tdm_pages *p, enum tdm_kv_group group, uint32_t page)
{
        assert(page < p->groups[group].n_pages && p->groups[group].pages[page].n_refs > 0);
        p->groups[group].pages[page].kept = true;
}

void tdm_pages_drop(struct tdm_pages *p, enum tdm_kv_group group, uint32_t page)
{
        struct group *g = &p->groups[group];

        assert(page < g->n_pages && g->pages[page].kept);
        g->pages[page].kept = false;
        if (g->pages[page].n_refs > 0)
                return;
        idle_remove(g, page);
        g->free[g->n_free++] = page;
}

bool tdm_pages_is_used(const struct tdm_pages *p, enum tdm_kv_group group, uint32_t page)
{
        return p->groups[group].pages[page].n_refs > 0;
}

bool tdm_pages_is_sole(const struct tdm_pages *p, enum tdm_kv_group group, uint32_t page)
{
        return p->groups[group].pages[page].n_refs == 1 && !p->groups[group].pages[page].kept;
}

void tdm_pages_set_reclaim(struct tdm_pages *p, tdm_pages_reclaim_fn fn, void *userdata)
{
        p->reclaim = fn;
        p->userdata = userdata;
}

uint32_t tdm_pages_total(const struct tdm_pages *p, enum tdm_kv_group group)
{
        return p->groups[group].n_pages;
}

uint32_t tdm_pages_used(const struct tdm_pages *p, enum tdm_kv_group group)
{
        return used(&p->groups[group]);
}

uint32_t tdm_pages_idle(const struct tdm_pages *p, enum tdm_kv_group group)
{
        return p->groups[group].n_idle;
}

uint32_t tdm_pages_reserved(const struct tdm_pages *p, enum tdm_kv_group group)
{
        return p->groups[group].n_reserved;
}

uint32_t tdm_pages_state_spacing(const struct tdm_kv_geometry *kv)
{
        uint64_t n = kv->page_bytes[TDM_KV_FULL] ?
                             TDM_DIV_UP(kv->page_bytes[TDM_KV_STATE], kv->page_bytes[TDM_KV_FULL]) :
                             STATE_SPACING_LEAST;

        return (uint32_t)TDM_MIN(TDM_MAX(n, (uint64_t)STATE_SPACING_LEAST), (uint64_t)TDM_CTX_MAX / TDM_KV_PAGE_TOKENS);
}

/* Those of n_sequences that run, and one for the prefix cache for every four full pages: a turn of a conversation is
 * about that long. A sequence that runs has a full page, so there are never more than five for four of them. */
static uint32_t plan_states(const struct tdm_kv_geometry *kv, uint64_t budget_bytes, uint32_t n_sequences)
{
        const uint64_t bytes = kv->page_bytes[TDM_KV_STATE], full_bytes = kv->page_bytes[TDM_KV_FULL];
        uint64_t n;

        if (bytes == 0)
                return 0;
        n = full_bytes == 0 ?
                    (uint64_t)TDM_PAGES_STATES * n_sequences :
                    (4 * full_bytes * TDM_PAGES_STATES * n_sequences + budget_bytes) / (4 * full_bytes + bytes);
        if (full_bytes > 0)
                n = TDM_MIN(n, 5 * budget_bytes / (4 * full_bytes + 5 * bytes));
        n = TDM_MIN(n, budget_bytes / 2 / bytes);
        return (uint32_t)TDM_MIN(TDM_MAX(n, (uint64_t)TDM_PAGES_STATES), (uint64_t)UINT32_MAX - 1);
}

void tdm_pages_plan(const struct tdm_hparams *hp, enum tdm_kv_type type, uint64_t budget_bytes, uint32_t n_sequences,
                    uint32_t max_chunk, struct tdm_pages_need *ret)
{
        struct tdm_pages_need one = sequence_need(hp, hp->n_ctx, max_chunk), out = { 0 };
        struct tdm_kv_geometry kv;
        uint64_t full_bytes, window_bytes, all_window, n;

        if (tdm_kv_geometry_init(&kv, hp, type, 1, 1, 1) < 0) { /* cannot overflow: hparams has caps */
                *ret = out;
                return;
        }
        full_bytes = kv.page_bytes[TDM_KV_FULL];
        window_bytes = kv.page_bytes[TDM_KV_WINDOW];
        one.n[TDM_KV_FULL] = full_bytes ? one.n[TDM_KV_FULL] : 0;
        one.n[TDM_KV_WINDOW] = window_bytes ? one.n[TDM_KV_WINDOW] : 0;

        out.n[TDM_KV_STATE] = plan_states(&kv, budget_bytes, n_sequences);
        budget_bytes -= TDM_MIN(budget_bytes, out.n[TDM_KV_STATE] * kv.page_bytes[TDM_KV_STATE]);

        /* Window pages first, because without them no sequence can run; but at most half of the budget as soon as one
         * sequence has its share. */
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
