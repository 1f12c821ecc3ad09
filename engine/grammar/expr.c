/* Expressions shared by structure: construction, with the few simplifications that keep derivatives few. */
#include "engine/grammar/expr.h"

static uint32_t hash_expr(const struct tdm_expr *e)
{
        uint64_t h = e->kind;

        h = (h ^ e->a) * UINT64_C(0x9e3779b97f4a7c15);
        h = (h ^ h >> 29 ^ e->b) * UINT64_C(0xbf58476d1ce4e5b9);
        h = (h ^ h >> 32 ^ e->c) * UINT64_C(0x94d049bb133111eb);
        return (uint32_t)(h >> 32);
}

static bool expr_equal(const struct tdm_expr *a, const struct tdm_expr *b)
{
        return a->kind == b->kind && a->a == b->a && a->b == b->b && a->c == b->c;
}

static int grow_slots(struct tdm_arena *arena, uint32_t n_slots)
{
        uint32_t *slots = calloc(n_slots, sizeof(*slots));

        if (!slots)
                return -ENOMEM;
        for (uint32_t i = 0; i < arena->n; i++) {
                uint32_t at = hash_expr(&arena->items[i]) & (n_slots - 1);

                while (slots[at])
                        at = (at + 1) & (n_slots - 1);
                slots[at] = i + 1;
        }
        free(arena->slots);
        arena->slots = slots;
        arena->n_slots = n_slots;
        return 0;
}

int tdm_arena_init(struct tdm_arena *arena, const struct tdm_arena *base, uint32_t limit)
{
        *arena = (struct tdm_arena){ .base = base, .limit = limit, .max_steps = UINT64_MAX };
        if (base) {
                arena->n_base = base->n;
                arena->n_base_sets = base->n_sets;
                arena->base_alive = calloc(1, base->n);
                if (!arena->base_alive)
                        return -ENOMEM;
        }
        if (grow_slots(arena, 256) < 0) {
                tdm_arena_deinit(arena);
                return -ENOMEM;
        }
        if (!base) {
                static const struct tdm_expr none = { .kind = TDM_EXPR_KIND_NONE, .flags = TDM_EXPR_DEAD };
                static const struct tdm_expr eps = { .kind = TDM_EXPR_KIND_EPS,
                                                     .flags = TDM_EXPR_NULLABLE | TDM_EXPR_ALIVE };

                arena->items = calloc(64, sizeof(*arena->items));
                if (!arena->items) {
                        tdm_arena_deinit(arena);
                        return -ENOMEM;
                }
                arena->capacity = 64;
                arena->items[arena->n++] = none;
                arena->items[arena->n++] = eps;
                (void)grow_slots(arena, arena->n_slots);
        }
        return 0;
}

void tdm_arena_deinit(struct tdm_arena *arena)
{
        free(arena->items);
        free(arena->slots);
        free(arena->sets);
        free(arena->base_alive);
        *arena = (struct tdm_arena){ 0 };
}

void tdm_arena_reset(struct tdm_arena *arena)
{
        arena->n = 0;
        memset(arena->slots, 0, arena->n_slots * sizeof(*arena->slots));
}

size_t tdm_arena_bytes(const struct tdm_arena *arena)
{
        return arena->capacity * sizeof(*arena->items) + arena->n_slots * sizeof(*arena->slots) +
               arena->sets_capacity * sizeof(*arena->sets) + (arena->base_alive ? arena->n_base : 0);
}

static uint32_t expr_find(const struct tdm_arena *arena, const struct tdm_expr *e, uint32_t hash)
{
        for (uint32_t at = hash & (arena->n_slots - 1); arena->slots[at]; at = (at + 1) & (arena->n_slots - 1))
                if (expr_equal(&arena->items[arena->slots[at] - 1], e))
                        return arena->slots[at];
        return 0;
}

static uint32_t expr_intern(struct tdm_arena *arena, struct tdm_expr e)
{
        uint32_t hash = hash_expr(&e), found;

        arena->steps++;
        if (arena->base) {
                found = expr_find(arena->base, &e, hash);
                if (found)
                        return found - 1;
        }
        found = expr_find(arena, &e, hash);
        if (found)
                return found - 1 + arena->n_base;
        if (arena->failed || arena->n >= arena->limit)
                goto fail;
        if (arena->n == arena->capacity) {
                uint32_t capacity = TDM_MAX(arena->capacity * 2, 64u);
                struct tdm_expr *items = realloc(arena->items, capacity * sizeof(*items));

                if (!items)
                        goto fail;
                arena->items = items;
                arena->capacity = capacity;
        }
        arena->items[arena->n++] = e;
        if (arena->n * 2 > arena->n_slots) {
                if (grow_slots(arena, arena->n_slots * 2) < 0) {
                        arena->n--;
                        goto fail;
                }
        } else {
                uint32_t at = hash & (arena->n_slots - 1);

                while (arena->slots[at])
                        at = (at + 1) & (arena->n_slots - 1);
                arena->slots[at] = arena->n;
        }
        return arena->n_base + arena->n - 1;
fail:
        arena->failed = true;
        return TDM_EXPR_NONE;
}

static uint32_t intern_set(struct tdm_arena *arena, const struct tdm_byte_set *set)
{
        uint32_t n = arena->n_base_sets + arena->n_sets;

        for (uint32_t i = 0; i < n; i++)
                if (memcmp(tdm_expr_set(arena, i), set, sizeof(*set)) == 0)
                        return i;
        arena->steps += n;
        if (arena->n_sets == arena->sets_capacity) {
                uint32_t capacity = TDM_MAX(arena->sets_capacity * 2, 32u);
                struct tdm_byte_set *sets = realloc(arena->sets, capacity * sizeof(*sets));

                if (!sets || capacity > 1u << 16) {
                        arena->failed = true;
                        if (sets)
                                arena->sets = sets;
                        return 0;
                }
                arena->sets = sets;
                arena->sets_capacity = capacity;
        }
        arena->sets[arena->n_sets++] = *set;
        return n;
}

uint32_t tdm_expr_bytes(struct tdm_arena *arena, const struct tdm_byte_set *set)
{
        if (!(set->bits[0] | set->bits[1] | set->bits[2] | set->bits[3]))
                return TDM_EXPR_NONE;
        return expr_intern(arena, (struct tdm_expr){ .kind = TDM_EXPR_KIND_SET, .a = intern_set(arena, set) });
}

uint32_t tdm_expr_range(struct tdm_arena *arena, uint8_t low, uint8_t high)
{
        struct tdm_byte_set set = { 0 };

        if (low <= high)
                tdm_byte_set_add(&set, low, high);
        return tdm_expr_bytes(arena, &set);
}

uint32_t tdm_expr_literal(struct tdm_arena *arena, const char *text, size_t size)
{
        uint32_t e = TDM_EXPR_EPS;

        while (size > 0) {
                uint8_t byte = (uint8_t)text[--size];

                e = tdm_expr_cat(arena, tdm_expr_range(arena, byte, byte), e);
        }
        return e;
}

uint32_t tdm_expr_text(struct tdm_arena *arena, const char *text)
{
        return tdm_expr_literal(arena, text, strlen(text));
}

static uint8_t flags_of(const struct tdm_arena *arena, uint32_t e)
{
        return tdm_expr_get(arena, e)->flags;
}

static uint32_t cat_one(struct tdm_arena *arena, uint32_t a, uint32_t b)
{
        uint8_t fa = flags_of(arena, a), fb = flags_of(arena, b);
        uint8_t flags = (fa | fb) & (TDM_EXPR_HAS_CALL | TDM_EXPR_HAS_BOOL);

        if (!(flags & TDM_EXPR_HAS_CALL))
                flags |= fa & fb & TDM_EXPR_NULLABLE;
        return expr_intern(arena, (struct tdm_expr){ .kind = TDM_EXPR_KIND_CAT, .flags = flags, .a = a, .b = b });
}

uint32_t tdm_expr_cat(struct tdm_arena *arena, uint32_t a, uint32_t b)
{
        uint32_t spine[64], n = 0;

        if (a == TDM_EXPR_NONE || b == TDM_EXPR_NONE)
                return TDM_EXPR_NONE;
        if (a == TDM_EXPR_EPS)
                return b;
        if (b == TDM_EXPR_EPS)
                return a;
        /* (h t) b is h (t b): the heads of a's spine are put before b, from the last. */
        while (n < TDM_ARRAY_SIZE(spine) && tdm_expr_get(arena, a)->kind == TDM_EXPR_KIND_CAT) {
                const struct tdm_expr *e = tdm_expr_get(arena, a);

                spine[n++] = e->a;
                a = e->b;
        }
        b = n == TDM_ARRAY_SIZE(spine) ? tdm_expr_cat(arena, a, b) : cat_one(arena, a, b);
        while (n > 0 && b != TDM_EXPR_NONE)
                b = cat_one(arena, spine[--n], b);
        return b;
}

uint32_t tdm_expr_cat3(struct tdm_arena *arena, uint32_t a, uint32_t b, uint32_t c)
{
        return tdm_expr_cat(arena, a, tdm_expr_cat(arena, b, c));
}

static bool is_everything(const struct tdm_arena *arena, uint32_t e)
{
        const struct tdm_expr *expr = tdm_expr_get(arena, e);

        return expr->kind == TDM_EXPR_KIND_NOT && expr->a == TDM_EXPR_NONE;
}

/* a and b as sorted chains merged into one, so that sets of alternatives are equal whatever their order was. */
static uint32_t merge(struct tdm_arena *arena, uint8_t kind, uint32_t a, uint32_t b)
{
        struct tdm_expr_list list = { 0 };
        uint32_t e;
        uint8_t flags, fa, fb;

        for (unsigned side = 0; side < 2; side++) {
                uint32_t at = side ? b : a;

                while (tdm_expr_get(arena, at)->kind == kind) {
                        tdm_expr_list_add(arena, &list, tdm_expr_get(arena, at)->a);
                        at = tdm_expr_get(arena, at)->b;
                }
                tdm_expr_list_add(arena, &list, at);
        }
        for (uint32_t i = 1; i < list.n; i++) { /* mostly sorted already */
                uint32_t x = list.items[i], k = i;

                for (; k > 0 && list.items[k - 1] > x; k--)
                        list.items[k] = list.items[k - 1];
                list.items[k] = x;
                arena->steps += i - k;
        }
        e = list.n > 0 ? list.items[list.n - 1] : TDM_EXPR_NONE;
        for (uint32_t i = list.n; i-- > 1;) {
                uint32_t x = list.items[i - 1];

                if (x == list.items[i])
                        continue;
                fa = flags_of(arena, x);
                fb = flags_of(arena, e);
                flags = (fa | fb) & (TDM_EXPR_HAS_CALL | TDM_EXPR_HAS_BOOL);
                if (kind == TDM_EXPR_KIND_AND)
                        flags |= TDM_EXPR_HAS_BOOL | (fa & fb & TDM_EXPR_NULLABLE);
                else if (!(flags & TDM_EXPR_HAS_CALL))
                        flags |= (fa | fb) & TDM_EXPR_NULLABLE;
                e = expr_intern(arena, (struct tdm_expr){ .kind = kind, .flags = flags, .a = x, .b = e });
        }
        tdm_expr_list_deinit(&list);
        return e;
}

uint32_t tdm_expr_alt(struct tdm_arena *arena, uint32_t a, uint32_t b)
{
        uint8_t fa, fb, flags;

        if (a == TDM_EXPR_NONE || a == b)
                return b;
        if (b == TDM_EXPR_NONE)
                return a;
        fa = flags_of(arena, a);
        fb = flags_of(arena, b);
        if (a == TDM_EXPR_EPS && (fb & TDM_EXPR_NULLABLE))
                return b;
        if (b == TDM_EXPR_EPS && (fa & TDM_EXPR_NULLABLE))
                return a;
        flags = (fa | fb) & (TDM_EXPR_HAS_CALL | TDM_EXPR_HAS_BOOL);
        if (!(flags & TDM_EXPR_HAS_CALL))
                flags |= (fa | fb) & TDM_EXPR_NULLABLE;
        return expr_intern(arena, (struct tdm_expr){ .kind = TDM_EXPR_KIND_ALT, .flags = flags, .a = a, .b = b });
}

/* The alternatives of a derivative under AND or NOT: in one order, or the states would not recur. */
static uint32_t alt_sorted(struct tdm_arena *arena, uint32_t a, uint32_t b)
{
        if (a == TDM_EXPR_NONE || a == b)
                return b;
        if (b == TDM_EXPR_NONE)
                return a;
        if (is_everything(arena, a))
                return a;
        if (is_everything(arena, b))
                return b;
        return merge(arena, TDM_EXPR_KIND_ALT, a, b);
}

uint32_t tdm_expr_and(struct tdm_arena *arena, uint32_t a, uint32_t b)
{
        if (a == TDM_EXPR_NONE || b == TDM_EXPR_NONE)
                return TDM_EXPR_NONE;
        if (a == b || is_everything(arena, b))
                return a;
        if (is_everything(arena, a))
                return b;
        if (a == TDM_EXPR_EPS)
                return tdm_expr_nullable(arena, b) ? a : TDM_EXPR_NONE;
        if (b == TDM_EXPR_EPS)
                return tdm_expr_nullable(arena, a) ? b : TDM_EXPR_NONE;
        return merge(arena, TDM_EXPR_KIND_AND, a, b);
}

uint32_t tdm_expr_not(struct tdm_arena *arena, uint32_t a)
{
        const struct tdm_expr *e = tdm_expr_get(arena, a);
        uint8_t flags = TDM_EXPR_HAS_BOOL | (e->flags & TDM_EXPR_NULLABLE ? 0 : TDM_EXPR_NULLABLE);

        if (e->kind == TDM_EXPR_KIND_NOT)
                return e->a;
        return expr_intern(arena, (struct tdm_expr){ .kind = TDM_EXPR_KIND_NOT, .flags = flags, .a = a });
}

uint32_t tdm_expr_rep(struct tdm_arena *arena, uint32_t a, uint32_t min, uint32_t max)
{
        const struct tdm_expr *e = tdm_expr_get(arena, a);
        uint8_t flags = e->flags & (TDM_EXPR_HAS_CALL | TDM_EXPR_HAS_BOOL);

        if (max == 0 || a == TDM_EXPR_EPS)
                return TDM_EXPR_EPS;
        if (a == TDM_EXPR_NONE)
                return min == 0 ? TDM_EXPR_EPS : TDM_EXPR_NONE;
        if (min == 1 && max == 1)
                return a;
        if (e->flags & TDM_EXPR_NULLABLE)
                min = 0;
        if (e->kind == TDM_EXPR_KIND_REP && e->b == 0 && e->c == TDM_EXPR_INF && max > 0)
                return a; /* (x*)* and (x*){m,n} with n > 0 */
        if (!(flags & TDM_EXPR_HAS_CALL) && min == 0)
                flags |= TDM_EXPR_NULLABLE;
        return expr_intern(arena,
                           (struct tdm_expr){ .kind = TDM_EXPR_KIND_REP, .flags = flags, .a = a, .b = min, .c = max });
}

uint32_t tdm_expr_call(struct tdm_arena *arena, uint32_t rule)
{
        return expr_intern(arena,
                           (struct tdm_expr){ .kind = TDM_EXPR_KIND_CALL, .flags = TDM_EXPR_HAS_CALL, .a = rule });
}

uint32_t tdm_expr_mod(struct tdm_arena *arena, uint32_t divisor, uint32_t rest)
{
        uint8_t flags = rest == 0 ? TDM_EXPR_NULLABLE : 0;

        return expr_intern(arena,
                           (struct tdm_expr){ .kind = TDM_EXPR_KIND_MOD, .flags = flags, .a = divisor, .b = rest });
}

void tdm_expr_list_add(struct tdm_arena *arena, struct tdm_expr_list *list, uint32_t e)
{
        if (list->n == list->capacity) {
                uint32_t capacity = TDM_MAX(list->capacity * 2, 16u);
                uint32_t *items = realloc(list->items, capacity * sizeof(*items));

                if (!items) {
                        arena->failed = true;
                        return;
                }
                list->items = items;
                list->capacity = capacity;
        }
        list->items[list->n++] = e;
}

void tdm_expr_list_deinit(struct tdm_expr_list *list)
{
        free(list->items);
        *list = (struct tdm_expr_list){ 0 };
}

/* ---- derivatives ---- */

static uint32_t less(uint32_t count)
{
        return count == 0 || count == TDM_EXPR_INF ? count : count - 1;
}

uint32_t tdm_expr_derive(struct tdm_arena *arena, uint32_t e, uint8_t byte)
{
        uint32_t result = TDM_EXPR_NONE;

        for (;;) {
                struct tdm_expr x = *tdm_expr_get(arena, e); /* a copy: items may move */
                uint32_t part = TDM_EXPR_NONE;

                if (arena->steps++ > arena->max_steps)
                        arena->failed = true;
                if (arena->failed)
                        return TDM_EXPR_NONE;
                switch (x.kind) {
                case TDM_EXPR_KIND_SET:
                        if (tdm_byte_set_has(tdm_expr_set(arena, x.a), byte))
                                part = TDM_EXPR_EPS;
                        break;
                case TDM_EXPR_KIND_CAT:
                        part = tdm_expr_cat(arena, tdm_expr_derive(arena, x.a, byte), x.b);
                        result = alt_sorted(arena, result, part);
                        if (!tdm_expr_nullable(arena, x.a))
                                return result;
                        e = x.b;
                        continue;
                case TDM_EXPR_KIND_ALT:
                        part = tdm_expr_derive(arena, x.a, byte);
                        result = alt_sorted(arena, result, part);
                        e = x.b;
                        continue;
                case TDM_EXPR_KIND_AND:
                        part = tdm_expr_derive(arena, x.a, byte);
                        if (part != TDM_EXPR_NONE)
                                part = tdm_expr_and(arena, part, tdm_expr_derive(arena, x.b, byte));
                        break;
                case TDM_EXPR_KIND_NOT:
                        part = tdm_expr_not(arena, tdm_expr_derive(arena, x.a, byte));
                        break;
                case TDM_EXPR_KIND_REP:
                        part = tdm_expr_derive(arena, x.a, byte);
                        if (part != TDM_EXPR_NONE)
                                part = tdm_expr_cat(arena, part, tdm_expr_rep(arena, x.a, less(x.b), less(x.c)));
                        break;
                case TDM_EXPR_KIND_MOD:
                        if (byte == '.')
                                part = e;
                        else if (byte >= '0' && byte <= '9')
                                part = tdm_expr_mod(arena, x.a, (uint32_t)((10u * (uint64_t)x.b + byte - '0') % x.a));
                        break;
                default:
                        break;
                }
                return alt_sorted(arena, result, part);
        }
}

void tdm_expr_derive_parts(struct tdm_arena *arena, uint32_t e, uint8_t byte, struct tdm_expr_list *list)
{
        for (;;) {
                struct tdm_expr x = *tdm_expr_get(arena, e);
                uint32_t start = list->n, rest;

                if (arena->steps++ > arena->max_steps)
                        arena->failed = true;
                if (arena->failed)
                        return;
                switch (x.kind) {
                case TDM_EXPR_KIND_SET:
                        if (tdm_byte_set_has(tdm_expr_set(arena, x.a), byte))
                                tdm_expr_list_add(arena, list, TDM_EXPR_EPS);
                        return;
                case TDM_EXPR_KIND_CAT:
                        tdm_expr_derive_parts(arena, x.a, byte, list);
                        for (uint32_t i = start; i < list->n; i++)
                                list->items[i] = tdm_expr_cat(arena, list->items[i], x.b);
                        if (tdm_expr_has_call(arena, x.a) || !tdm_expr_nullable(arena, x.a) ||
                            tdm_expr_has_call(arena, x.b))
                                return;
                        e = x.b;
                        continue;
                case TDM_EXPR_KIND_ALT:
                        tdm_expr_derive_parts(arena, x.a, byte, list);
                        e = x.b;
                        continue;
                case TDM_EXPR_KIND_REP:
                        tdm_expr_derive_parts(arena, x.a, byte, list);
                        if (list->n == start)
                                return;
                        rest = tdm_expr_rep(arena, x.a, less(x.b), less(x.c));
                        for (uint32_t i = start; i < list->n; i++)
                                list->items[i] = tdm_expr_cat(arena, list->items[i], rest);
                        return;
                case TDM_EXPR_KIND_AND:
                case TDM_EXPR_KIND_NOT:
                case TDM_EXPR_KIND_MOD:
                        rest = tdm_expr_derive(arena, e, byte);
                        if (rest != TDM_EXPR_NONE && tdm_expr_alive(arena, rest))
                                tdm_expr_list_add(arena, list, rest);
                        return;
                default:
                        return;
                }
        }
}

void tdm_expr_first(const struct tdm_arena *arena, uint32_t e, struct tdm_byte_set *set)
{
        for (;;) {
                const struct tdm_expr *x = tdm_expr_get(arena, e);
                struct tdm_byte_set one = { 0 }, other = { 0 };

                switch (x->kind) {
                case TDM_EXPR_KIND_SET:
                        for (unsigned i = 0; i < 4; i++)
                                set->bits[i] |= tdm_expr_set(arena, x->a)->bits[i];
                        return;
                case TDM_EXPR_KIND_CAT:
                        tdm_expr_first(arena, x->a, set);
                        if (!tdm_expr_nullable(arena, x->a))
                                return;
                        e = x->b;
                        continue;
                case TDM_EXPR_KIND_ALT:
                        tdm_expr_first(arena, x->a, set);
                        e = x->b;
                        continue;
                case TDM_EXPR_KIND_REP:
                        e = x->a;
                        continue;
                case TDM_EXPR_KIND_AND:
                        tdm_expr_first(arena, x->a, &one);
                        tdm_expr_first(arena, x->b, &other);
                        for (unsigned i = 0; i < 4; i++)
                                set->bits[i] |= one.bits[i] & other.bits[i];
                        return;
                case TDM_EXPR_KIND_MOD:
                        tdm_byte_set_add(set, '0', '9');
                        tdm_byte_set_add(set, '.', '.');
                        return;
                case TDM_EXPR_KIND_NONE:
                case TDM_EXPR_KIND_EPS:
                        return;
                default:
                        tdm_byte_set_add(set, 0, 255);
                        return;
                }
        }
}
