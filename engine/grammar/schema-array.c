/* The arrays of a case: a prefix with a schema for each item, then items that are all alike; contains counts along. */
#include "engine/grammar/schema.h"

enum { PREFIX_MAX = 2000, STATES_MAX = 20000 };

struct arrays {
        struct tdm_schema *s;
        const struct tdm_schema_case *c;
        uint32_t n_prefix, min, max;
        uint32_t contains; /* TDM_JSON_NONE: none */
        uint32_t n_low, n_high;
        bool unique;
};

static uint32_t keyword(const struct arrays *a, uint32_t part, const char *name)
{
        return tdm_json_deref(&a->s->json, tdm_json_member(&a->s->json, a->c->parts[part].node, name));
}

/* The array of schemas by position: prefixItems, or items as drafts up to 2019 wrote it. */
static uint32_t prefix_of(const struct arrays *a, uint32_t part)
{
        uint32_t node = keyword(a, part, "prefixItems");

        if (node == TDM_JSON_NONE) {
                node = keyword(a, part, "items");
                if (node != TDM_JSON_NONE && tdm_json_get(&a->s->json, node)->type != TDM_JSON_ARRAY)
                        node = TDM_JSON_NONE;
        }
        return node;
}

static uint32_t rest_of(const struct arrays *a, uint32_t part)
{
        uint32_t node = keyword(a, part, "items");

        if (node != TDM_JSON_NONE && tdm_json_get(&a->s->json, node)->type == TDM_JSON_ARRAY)
                return keyword(a, part, "additionalItems");
        return node;
}

static void gather(struct arrays *a)
{
        struct tdm_schema *s = a->s;
        uint32_t node, count;

        a->max = TDM_EXPR_INF;
        a->contains = TDM_JSON_NONE;
        a->n_low = 1;
        a->n_high = TDM_EXPR_INF;
        for (uint32_t i = 0; i < a->c->n && !s->error; i++) {
                node = prefix_of(a, i);
                if (node != TDM_JSON_NONE) {
                        if (tdm_json_get(&s->json, node)->type != TDM_JSON_ARRAY)
                                (void)tdm_schema_fail(s, node, TDM_E_BAD_REQUEST, "prefixItems must be an array");
                        a->n_prefix = TDM_MAX(a->n_prefix, tdm_json_get(&s->json, node)->n);
                }
                node = keyword(a, i, "minItems");
                if (node != TDM_JSON_NONE && tdm_schema_count(s, node, &count))
                        a->min = TDM_MAX(a->min, count);
                node = keyword(a, i, "maxItems");
                if (node != TDM_JSON_NONE && tdm_schema_count(s, node, &count))
                        a->max = TDM_MIN(a->max, count);
                node = keyword(a, i, "uniqueItems");
                if (node != TDM_JSON_NONE && tdm_json_get(&s->json, node)->type == TDM_JSON_TRUE)
                        a->unique = true;
                node = keyword(a, i, "contains");
                if (node == TDM_JSON_NONE)
                        continue;
                if (a->contains != TDM_JSON_NONE) {
                        (void)tdm_schema_fail(s, node, TDM_E_UNSUPPORTED, "two contains together are not held");
                        return;
                }
                a->contains = node;
                node = keyword(a, i, "minContains");
                if (node != TDM_JSON_NONE)
                        (void)tdm_schema_count(s, node, &a->n_low);
                node = keyword(a, i, "maxContains");
                if (node != TDM_JSON_NONE)
                        (void)tdm_schema_count(s, node, &a->n_high);
        }
        if (a->contains != TDM_JSON_NONE && a->n_low == 0 && a->n_high == TDM_EXPR_INF && !s->has_unevaluated)
                a->contains = TDM_JSON_NONE;
        if (a->n_prefix > PREFIX_MAX)
                (void)tdm_schema_fail(s, a->c->parts[0].node, TDM_E_UNSUPPORTED, "so long a prefixItems is not held");
}

/* Whether part k evaluates the item at `index`. own: for a part's own unevaluatedItems, which does not count. */
static bool evaluates(const struct arrays *a, uint32_t k, uint32_t index, bool own)
{
        uint32_t prefix = prefix_of(a, k);

        if (prefix != TDM_JSON_NONE && index < tdm_json_get(&a->s->json, prefix)->n)
                return true;
        return rest_of(a, k) != TDM_JSON_NONE || (!own && keyword(a, k, "unevaluatedItems") != TDM_JSON_NONE);
}

/* The schemas of the item at index; index n_prefix stands for all behind the prefix. */
static void item_value(struct arrays *a, uint32_t index, struct tdm_schema_nodes *value)
{
        struct tdm_schema *s = a->s;

        value->n = 0;
        for (uint32_t i = 0; i < a->c->n && !s->error; i++) {
                uint32_t prefix = prefix_of(a, i), node = rest_of(a, i);

                if (prefix != TDM_JSON_NONE && index < tdm_json_get(&s->json, prefix)->n) {
                        node = tdm_json_get(&s->json, prefix)->first;
                        for (uint32_t k = 0; k < index; k++)
                                node = tdm_json_get(&s->json, node)->next;
                        s->g->arena.steps += index / 8;
                }
                if (node != TDM_JSON_NONE)
                        (void)tdm_schema_nodes_add(s, value, node);
        }
        for (uint32_t i = 0; i < a->c->n && s->has_unevaluated && !s->error; i++) {
                uint32_t rest = keyword(a, i, "unevaluatedItems");
                bool evaluated = false;

                if (rest == TDM_JSON_NONE)
                        continue;
                if (a->contains != TDM_JSON_NONE) {
                        (void)tdm_schema_fail(s, rest, TDM_E_UNSUPPORTED, "unevaluatedItems with contains is not held");
                        return;
                }
                for (uint32_t k = 0; k < a->c->n && !evaluated; k++)
                        if (tdm_schema_is_within(a->c, k, i))
                                evaluated = evaluates(a, k, index, k == i);
                if (!evaluated)
                        (void)tdm_schema_nodes_add(s, value, rest);
        }
}

/* What one item may be: any, one that contains' schema takes, and one that it does not take (where that is needed). */
struct item {
        uint32_t any, taken, other;
};

static bool make_item(struct arrays *a, uint32_t index, struct item *item)
{
        struct tdm_schema *s = a->s;
        struct tdm_schema_nodes value = { 0 };
        uint32_t negation;

        item_value(a, index, &value);
        item->any = tdm_schema_call(s, &value);
        item->taken = item->other = TDM_EXPR_NONE;
        if (a->contains != TDM_JSON_NONE && !s->error) {
                (void)tdm_schema_nodes_add(s, &value, a->contains);
                item->taken = tdm_schema_call(s, &value);
                item->other = item->any;
                if (a->n_high != TDM_EXPR_INF) {
                        negation = tdm_schema_negate(s, a->contains);
                        if (negation == TDM_JSON_NONE)
                                (void)tdm_schema_fail(s, a->contains, TDM_E_UNSUPPORTED,
                                                      "maxContains is not held here");
                        else {
                                value.n--;
                                (void)tdm_schema_nodes_add(s, &value, negation);
                                item->other = tdm_schema_call(s, &value);
                        }
                }
        }
        free(value.items);
        return !s->error;
}

/* Behind the prefix, with no contains: the items up to the end. */
static uint32_t alike(struct arrays *a, uint32_t index, uint32_t any, bool first)
{
        struct tdm_schema *s = a->s;
        struct tdm_arena *arena = &s->g->arena;
        uint32_t close = tdm_expr_text(arena, "]"), spaced = tdm_expr_cat(arena, s->space, close), e;
        uint32_t low = a->min > index ? a->min - index : 0, high = a->max == TDM_EXPR_INF ? a->max : a->max - index;

        if (any == TDM_EXPR_NONE || high == 0)
                return low > 0 ? TDM_EXPR_NONE : first ? close : spaced;
        e = tdm_expr_cat(arena, s->comma, any);
        if (!first)
                return tdm_expr_cat(arena, tdm_expr_rep(arena, e, low, high), spaced);
        e = tdm_expr_rep(arena, e, low > 0 ? low - 1 : 0, high == TDM_EXPR_INF ? high : high - 1);
        e = tdm_expr_cat3(arena, any, e, spaced);
        return low > 0 ? e : tdm_expr_alt(arena, e, close);
}

/* With contains: one expression for each index (behind the last that matters all are one) and count. */
static uint32_t with_contains(struct arrays *a)
{
        struct tdm_schema *s = a->s;
        struct tdm_arena *arena = &s->g->arena;
        uint32_t n_index = TDM_MAX(a->n_prefix, TDM_MAX(a->min, a->max == TDM_EXPR_INF ? 0 : a->max)), n_count,
                 e = TDM_EXPR_NONE;
        uint32_t close = tdm_expr_cat(arena, s->space, tdm_expr_text(arena, "]")), *next, rule;
        struct item item = { 0 };

        n_count = a->n_high == TDM_EXPR_INF ? a->n_low : TDM_MAX(a->n_high, a->n_low);
        if (n_index > STATES_MAX || n_count > STATES_MAX || (uint64_t)(n_index + 1) * (n_count + 1) > STATES_MAX) {
                (void)tdm_schema_fail(s, a->contains, TDM_E_UNSUPPORTED, "contains with so large counts is not held");
                return e;
        }
        next = malloc((n_count + 2) * sizeof(*next));
        if (!next) {
                s->error = s->error ? s->error : -ENOMEM;
                return e;
        }
        /* next[k]: what follows k counted items. Behind the last index that matters it is a rule that calls itself. */
        if (!make_item(a, a->n_prefix, &item))
                goto out;
        for (uint32_t k = n_count + 1; k-- > 0 && !s->error;) {
                bool enough = k >= a->n_low, more = a->n_high == TDM_EXPR_INF || k < a->n_high;
                uint32_t body = enough ? close : TDM_EXPR_NONE, counted;

                if (a->max != TDM_EXPR_INF) { /* no item behind the last */
                        next[k] = body;
                        continue;
                }
                rule = tdm_grammar_add_rule(s->g);
                if (rule == UINT32_MAX)
                        goto out;
                next[k] = tdm_expr_call(arena, rule);
                counted = k < n_count ? next[k + 1] : next[k];
                if (more)
                        body = tdm_expr_alt(arena, tdm_expr_cat3(arena, s->comma, item.taken, counted), body);
                body = tdm_expr_alt(arena, tdm_expr_cat3(arena, s->comma, item.other, next[k]), body);
                s->g->rules[rule].body = body;
        }
        for (uint32_t i = n_index; i-- > 0 && !s->error && !arena->failed;) {
                if (i < a->n_prefix && !make_item(a, i, &item))
                        break;
                for (uint32_t k = 0; k <= n_count; k++) {
                        bool enough = k >= a->n_low && i >= a->min, more = a->n_high == TDM_EXPR_INF || k < a->n_high;
                        uint32_t comma = i == 0 ? TDM_EXPR_EPS : s->comma,
                                 counted = k < n_count ? next[k + 1] : next[k];

                        e = enough ? i == 0 ? tdm_expr_text(arena, "]") : close : TDM_EXPR_NONE;
                        if (more && i < a->max)
                                e = tdm_expr_alt(arena, tdm_expr_cat3(arena, comma, item.taken, counted), e);
                        if (i < a->max)
                                e = tdm_expr_alt(arena, tdm_expr_cat3(arena, comma, item.other, next[k]), e);
                        next[k] = e; /* upwards: next[k + 1] is still that of index i + 1 */
                }
        }
        if (n_index == 0) { /* the first item has no comma */
                e = a->n_low == 0 ? tdm_expr_text(arena, "]") : TDM_EXPR_NONE;
                if (a->n_high > 0 && a->max > 0)
                        e = tdm_expr_alt(arena, tdm_expr_cat(arena, item.taken, next[TDM_MIN(n_count, 1u)]), e);
                if (a->max > 0)
                        e = tdm_expr_alt(arena, tdm_expr_cat(arena, item.other, next[0]), e);
        } else {
                e = next[0];
        }
out:
        free(next);
        return s->error ? TDM_EXPR_NONE : tdm_expr_cat3(arena, tdm_expr_text(arena, "["), s->space, e);
}

static uint32_t build(struct arrays *a)
{
        struct tdm_schema *s = a->s;
        struct tdm_arena *arena = &s->g->arena;
        uint32_t n = TDM_MIN(a->n_prefix, a->max), after, first, close, spaced;
        struct item item;

        if (a->min > a->max)
                return TDM_EXPR_NONE;
        if (a->unique && a->max > 1) {
                struct tdm_schema_nodes value = { 0 };
                bool none;

                /* At most one item of a kind that there can be: nothing to tell apart. */
                item_value(a, TDM_MIN(1u, a->n_prefix), &value);
                none = tdm_schema_call(s, &value) == TDM_EXPR_NONE;
                free(value.items);
                if (!none)
                        (void)tdm_schema_fail(s, a->c->parts[0].node, TDM_E_UNSUPPORTED, "uniqueItems is not held");
                if (s->error)
                        return TDM_EXPR_NONE;
        }
        if (a->contains != TDM_JSON_NONE)
                return with_contains(a);
        if (!make_item(a, a->n_prefix, &item))
                return TDM_EXPR_NONE;
        close = tdm_expr_text(arena, "]");
        spaced = tdm_expr_cat(arena, s->space, close);
        first = n == 0 ? alike(a, 0, item.any, true) : TDM_EXPR_NONE;
        after = n == 0 ? TDM_EXPR_NONE : alike(a, n, item.any, false);
        for (uint32_t i = n; i-- > 0 && !s->error && !arena->failed;) {
                if (!make_item(a, i, &item))
                        break;
                first = tdm_expr_alt(arena, tdm_expr_cat(arena, item.any, after), i >= a->min ? close : TDM_EXPR_NONE);
                after = tdm_expr_alt(arena, tdm_expr_cat3(arena, s->comma, item.any, after),
                                     i >= a->min ? spaced : TDM_EXPR_NONE);
        }
        return tdm_expr_cat3(arena, tdm_expr_text(arena, "["), s->space, first);
}

uint32_t tdm_schema_arrays(struct tdm_schema *s, const struct tdm_schema_case *c, bool check)
{
        struct arrays a = { .s = s, .c = c };
        struct tdm_schema_nodes value = { 0 };
        uint32_t e = TDM_EXPR_EPS;

        gather(&a);
        if (s->error)
                return TDM_EXPR_NONE;
        if (!check)
                return build(&a);
        if (a.min > a.max)
                e = TDM_EXPR_NONE;
        for (uint32_t i = 0; i < TDM_MIN(a.min, a.n_prefix + 1) && e != TDM_EXPR_NONE && !s->error; i++) {
                item_value(&a, i, &value);
                if (value.n > 1 && tdm_schema_is_empty(s, &value))
                        e = TDM_EXPR_NONE;
        }
        free(value.items);
        return s->error ? TDM_EXPR_NONE : e;
}
