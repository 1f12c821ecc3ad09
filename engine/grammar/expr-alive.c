/* Whether an expression takes any text at all. Without AND and NOT construction has settled that; with them, a text is
 * looked for through the derivatives, and what was found is remembered in the flags. */
#include "engine/grammar/expr.h"
#include "engine/grammar/expr-private.h"

enum { VISITED = 64 };

struct visit {
        uint32_t e, parent; /* parent: index of the visit that led here */
};

struct search {
        struct visit *items;
        uint32_t n, capacity;
};

static uint8_t *own_flags(struct tdm_arena *arena, uint32_t e)
{
        return e < arena->n_base ? &arena->base_alive[e] : &arena->items[e - arena->n_base].flags;
}

static uint8_t known(struct tdm_arena *arena, uint32_t e)
{
        const struct tdm_expr *x = tdm_expr_get(arena, e);

        if (!(x->flags & TDM_EXPR_HAS_BOOL))
                return e == TDM_EXPR_NONE ? TDM_EXPR_DEAD : TDM_EXPR_ALIVE;
        if (x->flags & TDM_EXPR_NULLABLE)
                return TDM_EXPR_ALIVE;
        return (x->flags | *own_flags(arena, e)) & (TDM_EXPR_ALIVE | TDM_EXPR_DEAD | VISITED);
}

static bool search_add(struct tdm_arena *arena, struct search *search, uint32_t e, uint32_t parent)
{
        if (search->n == search->capacity) {
                uint32_t capacity = TDM_MAX(search->capacity * 2, 64u);
                struct visit *items = realloc(search->items, capacity * sizeof(*items));

                if (!items) {
                        arena->failed = true;
                        return false;
                }
                search->items = items;
                search->capacity = capacity;
        }
        search->items[search->n++] = (struct visit){ e, parent };
        *own_flags(arena, e) |= VISITED;
        return true;
}

/* One byte of each class that the sets below distinguish. */
unsigned tdm_arena_representatives(const struct tdm_arena *arena, uint8_t *class_of, uint8_t *representatives)
{
        uint32_t n_sets = arena->n_base_sets + arena->n_sets;
        unsigned n = 1;
        uint8_t map[256] = { 0 };

        for (uint32_t s = 0; s <= n_sets && n < 256; s++) {
                int16_t split[256];
                const struct tdm_byte_set *set = s < n_sets ? tdm_expr_set(arena, s) : NULL;

                if (!set) { /* MOD tells each digit from the others, and '.' */
                        for (unsigned c = 0; c < 11 && n < 256; c++) {
                                uint8_t byte = c < 10 ? (uint8_t)('0' + c) : (uint8_t)'.';
                                bool alone = true;

                                for (unsigned b = 0; b < 256; b++)
                                        alone &= b == byte || map[b] != map[byte];
                                if (!alone)
                                        map[byte] = (uint8_t)n++;
                        }
                        break;
                }
                for (unsigned c = 0; c < n; c++)
                        split[c] = -1;
                /* A class of which a part is in the set keeps its number for the bytes outside it. */
                bool outside[256] = { false }, inside[256] = { false };

                for (unsigned b = 0; b < 256; b++) {
                        if (tdm_byte_set_has(set, (uint8_t)b))
                                inside[map[b]] = true;
                        else
                                outside[map[b]] = true;
                }
                for (unsigned b = 0; b < 256; b++) {
                        unsigned c = map[b];

                        if (!tdm_byte_set_has(set, (uint8_t)b) || !inside[c] || !outside[c])
                                continue;
                        if (split[c] < 0)
                                split[c] = (int16_t)n++;
                        map[b] = (uint8_t)split[c];
                }
        }
        if (class_of)
                memcpy(class_of, map, 256);
        for (unsigned b = 256; b-- > 0;)
                representatives[map[b]] = (uint8_t)b;
        return n;
}

static bool search_text(struct tdm_arena *arena, uint32_t e)
{
        struct search search = { 0 };
        struct tdm_expr_list stack = { 0 };
        uint32_t found = UINT32_MAX;

        if (arena->n_representatives == 0 || arena->n_represented != arena->n_base_sets + arena->n_sets) {
                arena->n_representatives = tdm_arena_representatives(arena, NULL, arena->representatives);
                arena->n_represented = arena->n_base_sets + arena->n_sets;
        }
        if (search_add(arena, &search, e, UINT32_MAX))
                tdm_expr_list_add(arena, &stack, 0);
        while (stack.n > 0 && found == UINT32_MAX && !arena->failed) {
                uint32_t at = stack.items[--stack.n];
                struct tdm_byte_set first = { 0 };

                tdm_expr_first(arena, search.items[at].e, &first);
                for (unsigned b = 0; b < arena->n_representatives && found == UINT32_MAX; b++) {
                        uint32_t next;
                        uint8_t flags;

                        if (!tdm_byte_set_has(&first, arena->representatives[b]))
                                continue;
                        next = tdm_expr_derive(arena, search.items[at].e, arena->representatives[b]);
                        flags = known(arena, next);
                        if (arena->failed)
                                break;
                        if (flags & TDM_EXPR_ALIVE) {
                                found = at;
                        } else if (flags == 0) {
                                if (search_add(arena, &search, next, at))
                                        tdm_expr_list_add(arena, &stack, search.n - 1);
                        }
                }
        }
        for (uint32_t i = 0; i < search.n; i++) {
                *own_flags(arena, search.items[i].e) &= (uint8_t)~VISITED;
                if (found == UINT32_MAX && !arena->failed)
                        *own_flags(arena, search.items[i].e) |= TDM_EXPR_DEAD;
        }
        for (uint32_t i = found; i != UINT32_MAX; i = search.items[i].parent)
                *own_flags(arena, search.items[i].e) |= TDM_EXPR_ALIVE;
        free(search.items);
        tdm_expr_list_deinit(&stack);
        return found != UINT32_MAX;
}

bool tdm_expr_alive(struct tdm_arena *arena, uint32_t e)
{
        for (;;) {
                struct tdm_expr x = *tdm_expr_get(arena, e);
                uint8_t flags = known(arena, e);

                if (flags & (TDM_EXPR_ALIVE | TDM_EXPR_DEAD))
                        return flags & TDM_EXPR_ALIVE;
                switch (x.kind) {
                case TDM_EXPR_KIND_CAT:
                        if (!tdm_expr_alive(arena, x.a))
                                return false;
                        e = x.b;
                        continue;
                case TDM_EXPR_KIND_ALT:
                        if (tdm_expr_alive(arena, x.a))
                                return true;
                        e = x.b;
                        continue;
                case TDM_EXPR_KIND_REP:
                        if (x.b == 0)
                                return true;
                        e = x.a;
                        continue;
                default:
                        return search_text(arena, e);
                }
        }
}
