/* The tree of known beginnings. An entry has the number of its full page, so there are as many entries as pages, and
 * nothing is allocated while it runs. Children are found through a hash table, and compared whole. The hash has a
 * secret key, because clients choose the tokens. */
#include "daemon/cache/prefix.h"

#include <assert.h>
#include <sys/random.h>
#include "engine/step/step.h"

#define NONE TDM_KV_NO_PAGE
#define MAX_NUMERICS 16u

struct entry {
        bool used;
        bool state_stays; /* it is kept for good: no sequence drops it when it passes on */
        uint32_t parent;  /* NONE: the first page of a prompt */
        uint32_t first_child, prev_sibling, next_sibling;
        uint32_t bucket, next_in_bucket;
        uint32_t window_page; /* NONE: not kept */
        uint32_t state_page;  /* the same */
        uint64_t state_stamp; /* of the sequence's use of it that came last */
        uint32_t numerics;
        uint64_t identity;
        uint64_t stamp;        /* of this use of the entry */
        uint64_t window_stamp; /* of the window page's */
        uint32_t tokens[TDM_KV_PAGE_TOKENS];
};

struct tdm_prefix {
        struct tdm_pages *pages;
        struct tdm_hparams hp;
        bool has_window, has_state;
        uint32_t n_entries;
        uint32_t max_entries;
        uint32_t n_buckets;     /* a power of two */
        struct entry *entries;  /* [max_entries] */
        uint32_t *buckets;      /* [n_buckets], 1 + entry; 0: empty */
        uint32_t *window_owner; /* [window pages], 1 + entry; 0: none */
        uint32_t *state_owner;  /* the same of states */
        uint64_t secret, last_stamp;
        struct {
                uint32_t number;
                size_t size;
                void *key;
        } numerics[MAX_NUMERICS];
        unsigned n_numerics;
        uint32_t last_numerics;
        struct {
                uint32_t page;
                uint64_t stamp;
        } * fresh; /* [max_entries], a ring of n_fresh from first_fresh on; NULL: new entries are not noted */
        uint32_t first_fresh, n_fresh;
};

static void reclaim(enum tdm_kv_group group, uint32_t coldest, void *userdata);

int tdm_prefix_new(struct tdm_prefix **ret, struct tdm_pages *pages, const struct tdm_hparams *hp,
                   const struct tdm_kv_geometry *kv)
{
        _cleanup_(tdm_prefix_destroyp) struct tdm_prefix *p = NULL;

        if (kv->n_layers[TDM_KV_FULL] == 0)
                return -EOPNOTSUPP;
        p = calloc(1, sizeof(*p));
        if (!p)
                return -ENOMEM;
        p->hp = *hp;
        p->has_window = kv->n_layers[TDM_KV_WINDOW] > 0;
        p->has_state = kv->n_layers[TDM_KV_STATE] > 0;
        p->max_entries = kv->n_pages[TDM_KV_FULL];
        p->n_buckets = 16;
        while (p->n_buckets < p->max_entries && p->n_buckets < UINT32_C(1) << 30)
                p->n_buckets *= 2;
        /* The kernel zeroes it, so entries that are never used take no memory. */
        p->entries = calloc(p->max_entries, sizeof(*p->entries));
        p->buckets = calloc(p->n_buckets, sizeof(*p->buckets));
        p->window_owner = calloc(TDM_MAX(kv->n_pages[TDM_KV_WINDOW], 1u), sizeof(*p->window_owner));
        p->state_owner = calloc(TDM_MAX(kv->n_pages[TDM_KV_STATE], 1u), sizeof(*p->state_owner));
        if (!p->entries || !p->buckets || !p->window_owner || !p->state_owner)
                return -ENOMEM;
        if (getrandom(&p->secret, sizeof(p->secret), 0) != sizeof(p->secret))
                return -errno;
        p->pages = pages;
        tdm_pages_set_reclaim(pages, reclaim, p);
        *ret = steal_ptr(&p);
        return 0;
}

void tdm_prefix_destroy(struct tdm_prefix *p)
{
        if (!p)
                return;
        if (p->pages)
                tdm_pages_set_reclaim(p->pages, NULL, NULL);
        for (unsigned i = 0; i < p->n_numerics; i++)
                free(p->numerics[i].key);
        free(p->entries);
        free(p->buckets);
        free(p->window_owner);
        free(p->state_owner);
        free(p->fresh);
        free(p);
}

void tdm_prefix_destroyp(struct tdm_prefix **p)
{
        tdm_prefix_destroy(*p);
        *p = NULL;
}

/* ---- entries ---- */

static uint32_t bucket_of(const struct tdm_prefix *p, uint32_t parent, uint64_t identity, uint32_t numerics,
                          const uint32_t *tokens)
{
        uint64_t h = p->secret ^ parent ^ identity * UINT64_C(0x9e3779b97f4a7c15);

        h = (h ^ numerics) * UINT64_C(0x9e3779b97f4a7c15);
        for (uint32_t i = 0; i < TDM_KV_PAGE_TOKENS; i++) {
                h ^= h >> 29;
                h = (h ^ tokens[i]) * UINT64_C(0xbf58476d1ce4e5b9);
        }
        return (uint32_t)((h ^ h >> 32) & (p->n_buckets - 1));
}

static uint32_t prefix_page_find(const struct tdm_prefix *p, uint32_t parent, uint64_t identity, uint32_t numerics,
                                 const uint32_t *tokens)
{
        for (uint32_t at = p->buckets[bucket_of(p, parent, identity, numerics, tokens)]; at;
             at = p->entries[at - 1].next_in_bucket) {
                const struct entry *e = &p->entries[at - 1];

                if (e->parent == parent && e->identity == identity && e->numerics == numerics &&
                    memcmp(e->tokens, tokens, sizeof(e->tokens)) == 0)
                        return at - 1;
        }
        return NONE;
}

static void keep_window(struct tdm_prefix *p, uint32_t entry, uint32_t page)
{
        if (page == NONE || p->entries[entry].window_page != NONE || p->window_owner[page])
                return;
        p->entries[entry].window_page = page;
        p->entries[entry].window_stamp = ++p->last_stamp;
        p->window_owner[page] = 1 + entry;
        tdm_pages_keep(p->pages, TDM_KV_WINDOW, page);
}

static void drop_window(struct tdm_prefix *p, struct entry *e)
{
        uint32_t page = e->window_page;

        if (page == NONE)
                return;
        e->window_page = NONE;
        p->window_owner[page] = 0;
        tdm_pages_drop(p->pages, TDM_KV_WINDOW, page);
}

static void drop_state(struct tdm_prefix *p, struct entry *e)
{
        uint32_t page = e->state_page;

        if (page == NONE)
                return;
        e->state_page = NONE;
        p->state_owner[page] = 0;
        tdm_pages_drop(p->pages, TDM_KV_STATE, page);
}

/* The state that the sequence kept of the last border that it passed, unless another one came to the same border. */
static void drop_passed(struct tdm_prefix *p, struct tdm_prefix_cursor *cursor)
{
        struct entry *e = cursor->passing ? &p->entries[cursor->passing - 1] : NULL;

        if (e && e->used && e->state_stamp == cursor->passing_stamp)
                drop_state(p, e);
        cursor->passing = 0;
}

/* Keeps that of the states which is behind n_pages pages. The sequence that came to a border last says whether its
 * state stays: one that came before may be far on by now. */
static void keep_state(struct tdm_prefix *p, uint32_t entry, uint32_t n_pages, const struct tdm_prefix_tables *tables,
                       struct tdm_prefix_cursor *cursor)
{
        struct entry *e = &p->entries[entry];

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(tables->states); i++) {
                const struct tdm_prefix_state *s = &tables->states[i];

                if (s->page == NONE || s->n != n_pages * TDM_KV_PAGE_TOKENS)
                        continue;
                drop_passed(p, cursor);
                if (e->state_page == NONE) {
                        if (p->state_owner[s->page])
                                return; /* it is kept of another border */
                        e->state_page = s->page;
                        p->state_owner[s->page] = 1 + entry;
                        tdm_pages_keep(p->pages, TDM_KV_STATE, s->page);
                        e->state_stays = false;
                }
                e->state_stamp = ++p->last_stamp;
                e->state_stays = e->state_stays || !s->passes;
                if (!e->state_stays) {
                        cursor->passing = 1 + entry;
                        cursor->passing_stamp = e->state_stamp;
                }
                return;
        }
}

static void insert(struct tdm_prefix *p, uint32_t at, uint32_t parent, uint64_t identity, uint32_t numerics,
                   const uint32_t *tokens)
{
        struct entry *e = &p->entries[at];

        *e = (struct entry){ .used = true,
                             .parent = parent,
                             .first_child = NONE,
                             .prev_sibling = NONE,
                             .next_sibling = NONE,
                             .window_page = NONE,
                             .state_page = NONE,
                             .numerics = numerics,
                             .identity = identity,
                             .stamp = ++p->last_stamp };
        memcpy(e->tokens, tokens, sizeof(e->tokens));
        e->bucket = bucket_of(p, parent, identity, numerics, tokens);
        e->next_in_bucket = p->buckets[e->bucket];
        p->buckets[e->bucket] = 1 + at;
        if (parent != NONE) {
                e->next_sibling = p->entries[parent].first_child;
                if (e->next_sibling != NONE)
                        p->entries[e->next_sibling].prev_sibling = at;
                p->entries[parent].first_child = at;
        }
        tdm_pages_keep(p->pages, TDM_KV_FULL, at);
        p->n_entries++;
}

static void remove_leaf(struct tdm_prefix *p, uint32_t at)
{
        struct entry *e = &p->entries[at];
        uint32_t *link = &p->buckets[e->bucket];

        assert(e->used && e->first_child == NONE);
        while (*link != 1 + at)
                link = &p->entries[*link - 1].next_in_bucket;
        *link = e->next_in_bucket;
        if (e->prev_sibling != NONE)
                p->entries[e->prev_sibling].next_sibling = e->next_sibling;
        else if (e->parent != NONE)
                p->entries[e->parent].first_child = e->next_sibling;
        if (e->next_sibling != NONE)
                p->entries[e->next_sibling].prev_sibling = e->prev_sibling;
        drop_window(p, e);
        drop_state(p, e);
        e->used = false;
        p->n_entries--;
        tdm_pages_drop(p->pages, TDM_KV_FULL, at);
}

/* A sequence may still use a page that hangs on an idle one: a sequence that computed a page which was known already
 * has its own copy of it. Such a leaf is only forgotten. */
static void reclaim(enum tdm_kv_group group, uint32_t coldest, void *userdata)
{
        struct tdm_prefix *p = userdata;
        bool freed = false;

        if (group == TDM_KV_STATE) {
                drop_state(p, &p->entries[p->state_owner[coldest] - 1]);
                return;
        }
        if (group == TDM_KV_WINDOW) {
                drop_window(p, &p->entries[p->window_owner[coldest] - 1]);
                return;
        }
        while (!freed) {
                uint32_t leaf = coldest;

                while (p->entries[leaf].first_child != NONE)
                        leaf = p->entries[leaf].first_child;
                freed = !tdm_pages_is_used(p->pages, TDM_KV_FULL, leaf);
                remove_leaf(p, leaf);
        }
}

/* ---- numerics ---- */

static void forget_all(struct tdm_prefix *p)
{
        for (uint32_t i = 0; i < p->max_entries; i++)
                while (p->entries[i].used) {
                        uint32_t leaf = i;

                        while (p->entries[leaf].first_child != NONE)
                                leaf = p->entries[leaf].first_child;
                        remove_leaf(p, leaf);
                }
        for (unsigned i = 0; i < p->n_numerics; i++)
                free(p->numerics[i].key);
        p->n_numerics = 0;
}

uint32_t tdm_prefix_numerics(struct tdm_prefix *p, const void *key, size_t size)
{
        void *copy;

        for (unsigned i = 0; i < p->n_numerics; i++)
                if (p->numerics[i].size == size && memcmp(p->numerics[i].key, key, size) == 0)
                        return p->numerics[i].number;
        copy = malloc(size);
        if (!copy || p->last_numerics == UINT32_MAX) {
                free(copy);
                return 0;
        }
        /* One life of the daemon rarely sees so many kinds of devices, so they are not ordered by age. */
        if (p->n_numerics == MAX_NUMERICS)
                forget_all(p);
        memcpy(copy, key, size);
        p->numerics[p->n_numerics].key = copy;
        p->numerics[p->n_numerics].size = size;
        p->numerics[p->n_numerics].number = ++p->last_numerics;
        return p->numerics[p->n_numerics++].number;
}

static bool numerics_are_known(const struct tdm_prefix *p, uint32_t numerics)
{
        for (unsigned i = 0; i < p->n_numerics; i++)
                if (p->numerics[i].number == numerics)
                        return true;
        return false;
}

/* The newest entries are noted: the oldest gives way where there are too many. */
static void note_fresh(struct tdm_prefix *p, uint32_t at)
{
        uint32_t slot;

        if (!p->fresh)
                return;
        if (p->n_fresh == p->max_entries)
                tdm_prefix_drop_new(p);
        slot = (p->first_fresh + p->n_fresh++) % p->max_entries;
        p->fresh[slot].page = at;
        p->fresh[slot].stamp = p->entries[at].stamp;
}

/* ---- sequences ---- */

uint32_t tdm_prefix_first_visible(const struct tdm_prefix *p, uint32_t n_pages)
{
        return tdm_window_first(&p->hp, TDM_KV_WINDOW, n_pages * TDM_KV_PAGE_TOKENS) / TDM_KV_PAGE_TOKENS;
}

uint32_t tdm_prefix_take(struct tdm_prefix *p, uint64_t identity, uint32_t numerics, const uint32_t *ids,
                         uint32_t n_max, struct tdm_prefix_tables *tables, struct tdm_prefix_cursor *cursor)
{
        uint32_t parent = NONE, n_known = 0, best = 0, n_window = 0 /* in a row, at the end */;

        while ((n_known + 1) * TDM_KV_PAGE_TOKENS <= n_max) {
                uint32_t at = prefix_page_find(p, parent, identity, numerics, ids + n_known * TDM_KV_PAGE_TOKENS);

                if (at == NONE)
                        break;
                tables->pages[TDM_KV_FULL][n_known++] = at;
                n_window = p->entries[at].window_page == NONE ? 0 : n_window + 1;
                if ((!p->has_window || n_window >= n_known - tdm_prefix_first_visible(p, n_known)) &&
                    (!p->has_state || p->entries[at].state_page != NONE) &&
                    (!tables->may_cut || tables->may_cut(tables->userdata, n_known * TDM_KV_PAGE_TOKENS))) {
                        best = n_known;
                        cursor->entry = at;
                }
                parent = at;
        }
        for (uint32_t i = best; i < n_known; i++)
                tables->pages[TDM_KV_FULL][i] = NONE;
        if (best == 0)
                return 0;
        cursor->n_pages = best;
        cursor->stamp = p->entries[cursor->entry].stamp;
        tables->state_page = p->has_state ? p->entries[cursor->entry].state_page : NONE;
        if (p->has_state)
                tdm_pages_share(p->pages, TDM_KV_STATE, tables->state_page);
        tables->first_page[TDM_KV_FULL] = 0;
        tables->first_page[TDM_KV_WINDOW] = tdm_prefix_first_visible(p, best);
        for (uint32_t i = 0; i < best; i++) {
                uint32_t at = tables->pages[TDM_KV_FULL][i];

                tdm_pages_share(p->pages, TDM_KV_FULL, at);
                if (!p->has_window || i < tables->first_page[TDM_KV_WINDOW])
                        continue;
                tables->pages[TDM_KV_WINDOW][i] = p->entries[at].window_page;
                tdm_pages_share(p->pages, TDM_KV_WINDOW, p->entries[at].window_page);
        }
        return best * TDM_KV_PAGE_TOKENS;
}

void tdm_prefix_add(struct tdm_prefix *p, uint64_t identity, uint32_t numerics, const uint32_t *ids,
                    uint32_t n_committed, const struct tdm_prefix_tables *tables, struct tdm_prefix_cursor *cursor)
{
        uint32_t parent = NONE;

        if (n_committed / TDM_KV_PAGE_TOKENS <= cursor->n_pages || !numerics_are_known(p, numerics))
                return;
        /* The entry that this sequence's last page hangs on may be forgotten, if it was another sequence's page. Then
         * all its pages are entered again from the beginning. */
        if (cursor->n_pages > 0 && p->entries[cursor->entry].used && p->entries[cursor->entry].stamp == cursor->stamp)
                parent = cursor->entry;
        else
                cursor->n_pages = 0;
        while (cursor->n_pages < n_committed / TDM_KV_PAGE_TOKENS) {
                uint32_t i = cursor->n_pages,
                         at = prefix_page_find(p, parent, identity, numerics, ids + i * TDM_KV_PAGE_TOKENS);

                if (at == NONE) {
                        at = tables->pages[TDM_KV_FULL][i];
                        assert(!p->entries[at].used);
                        insert(p, at, parent, identity, numerics, ids + i * TDM_KV_PAGE_TOKENS);
                        note_fresh(p, at);
                }
                if (p->has_window && i >= tables->first_page[TDM_KV_WINDOW])
                        keep_window(p, at, tables->pages[TDM_KV_WINDOW][i]);
                cursor->n_pages++;
                if (p->has_state)
                        keep_state(p, at, cursor->n_pages, tables, cursor);
                parent = at;
                cursor->entry = at;
                cursor->stamp = p->entries[at].stamp;
        }
}

uint32_t tdm_prefix_n_entries(const struct tdm_prefix *p)
{
        return p->n_entries;
}

/* ---- pages on disk ---- */

int tdm_prefix_note_new(struct tdm_prefix *p)
{
        if (!p->fresh)
                p->fresh = calloc(p->max_entries, sizeof(*p->fresh));
        return p->fresh ? 0 : -ENOMEM;
}

void tdm_prefix_drop_new(struct tdm_prefix *p)
{
        if (p->n_fresh == 0)
                return;
        p->first_fresh = (p->first_fresh + 1) % p->max_entries;
        p->n_fresh--;
}

bool tdm_prefix_first_new(struct tdm_prefix *p, struct tdm_prefix_item *ret)
{
        for (; p->n_fresh > 0; tdm_prefix_drop_new(p)) {
                uint32_t at = p->fresh[p->first_fresh].page, n = 1;
                const struct entry *e = &p->entries[at];

                if (!e->used || e->stamp != p->fresh[p->first_fresh].stamp)
                        continue;
                for (uint32_t up = e->parent; up != NONE; up = p->entries[up].parent)
                        n++;
                *ret = (struct tdm_prefix_item){ .page = at,
                                                 .parent = e->parent,
                                                 .window_page = e->window_page,
                                                 .n_pages = n,
                                                 .numerics = e->numerics,
                                                 .identity = e->identity,
                                                 .stamp = e->stamp,
                                                 .window_stamp = e->window_stamp };
                return true;
        }
        return false;
}

void tdm_prefix_ids(const struct tdm_prefix *p, const struct tdm_prefix_item *item, uint32_t *ret)
{
        uint32_t n = item->n_pages;

        for (uint32_t at = item->page; n > 0; at = p->entries[at].parent)
                memcpy(ret + --n * TDM_KV_PAGE_TOKENS, p->entries[at].tokens, sizeof(p->entries[at].tokens));
}

bool tdm_prefix_is_there(const struct tdm_prefix *p, const struct tdm_prefix_item *item)
{
        const struct entry *e = &p->entries[item->page];

        return e->used && e->stamp == item->stamp &&
               (item->window_page == NONE ||
                (e->window_page == item->window_page && e->window_stamp == item->window_stamp));
}

const void *tdm_prefix_numerics_key(const struct tdm_prefix *p, uint32_t numerics, size_t *ret_size)
{
        for (unsigned i = 0; i < p->n_numerics; i++)
                if (p->numerics[i].number == numerics) {
                        *ret_size = p->numerics[i].size;
                        return p->numerics[i].key;
                }
        return NULL;
}

uint32_t tdm_prefix_known(const struct tdm_prefix *p, uint64_t identity, uint32_t numerics, const uint32_t *ids,
                          uint32_t n_max)
{
        uint32_t parent = NONE, n = 0;

        while ((n + 1) * TDM_KV_PAGE_TOKENS <= n_max) {
                parent = prefix_page_find(p, parent, identity, numerics, ids + n * TDM_KV_PAGE_TOKENS);
                if (parent == NONE)
                        break;
                n++;
        }
        return n;
}

void tdm_prefix_put(struct tdm_prefix *p, uint64_t identity, uint32_t numerics, const uint32_t *ids, uint32_t first,
                    uint32_t n, const uint32_t *pages, const uint32_t *window_pages)
{
        uint32_t parent = NONE;

        if (!numerics_are_known(p, numerics))
                return;
        for (uint32_t i = 0; i < first + n; i++) {
                uint32_t at = prefix_page_find(p, parent, identity, numerics, ids + i * TDM_KV_PAGE_TOKENS);

                if (at == NONE && i < first)
                        return; /* it has left meanwhile */
                if (at == NONE) {
                        at = pages[i - first];
                        assert(!p->entries[at].used);
                        insert(p, at, parent, identity, numerics, ids + i * TDM_KV_PAGE_TOKENS);
                }
                if (p->has_window && i >= first)
                        keep_window(p, at, window_pages[i - first]);
                parent = at;
        }
}
