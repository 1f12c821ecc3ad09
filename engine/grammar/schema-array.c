/* The arrays of a case: a prefix with a schema for each item, then items that are all alike; each contains counts
 * along. Items that are to be unique have few possible values (schema-unique.c). */
#include "engine/grammar/schema-array.h"

static uint32_t array_keyword(const struct arrays *a, uint32_t part, const char *name)
{
        return tdm_json_deref(&a->s->json, tdm_json_member(&a->s->json, a->c->parts[part].node, name));
}

/* The array of schemas by position: prefixItems, or items as drafts up to 2019 wrote it. */
static uint32_t prefix_of(const struct arrays *a, uint32_t part)
{
        uint32_t node = array_keyword(a, part, "prefixItems");

        if (node == TDM_JSON_NONE) {
                node = array_keyword(a, part, "items");
                if (node != TDM_JSON_NONE && tdm_json_get(&a->s->json, node)->type != TDM_JSON_ARRAY)
                        node = TDM_JSON_NONE;
        }
        return node;
}

static uint32_t rest_of(const struct arrays *a, uint32_t part)
{
        uint32_t node = array_keyword(a, part, "items");

        if (node != TDM_JSON_NONE && tdm_json_get(&a->s->json, node)->type == TDM_JSON_ARRAY)
                return array_keyword(a, part, "additionalItems");
        return node;
}

static void gather_contains(struct arrays *a, uint32_t part, uint32_t contains)
{
        struct contained k = { .node = contains, .part = part, .low = 1, .high = TDM_EXPR_INF };
        uint32_t node = array_keyword(a, part, "minContains");

        if (node != TDM_JSON_NONE)
                (void)tdm_schema_count(a->s, node, &k.low);
        node = array_keyword(a, part, "maxContains");
        if (node != TDM_JSON_NONE)
                (void)tdm_schema_count(a->s, node, &k.high);
        if (k.low > 0 || k.high != TDM_EXPR_INF || a->s->has_unevaluated)
                a->contains[a->n_contains++] = k;
}

static void gather(struct arrays *a)
{
        struct tdm_schema *s = a->s;
        uint32_t node, count;

        a->max = TDM_EXPR_INF;
        for (uint32_t i = 0; i < a->c->n && !s->error; i++) {
                node = prefix_of(a, i);
                if (node != TDM_JSON_NONE) {
                        if (tdm_json_get(&s->json, node)->type != TDM_JSON_ARRAY)
                                (void)tdm_schema_fail(s, node, TDM_E_BAD_REQUEST, "prefixItems must be an array");
                        a->n_prefix = TDM_MAX(a->n_prefix, tdm_json_get(&s->json, node)->n);
                }
                node = array_keyword(a, i, "minItems");
                if (node != TDM_JSON_NONE && tdm_schema_count(s, node, &count))
                        a->min = TDM_MAX(a->min, count);
                node = array_keyword(a, i, "maxItems");
                if (node != TDM_JSON_NONE && tdm_schema_count(s, node, &count))
                        a->max = TDM_MIN(a->max, count);
                node = array_keyword(a, i, "uniqueItems");
                if (node != TDM_JSON_NONE && tdm_json_get(&s->json, node)->type == TDM_JSON_TRUE)
                        a->unique = true;
                node = array_keyword(a, i, "contains");
                if (node == TDM_JSON_NONE)
                        continue;
                if (a->n_contains == CONTAINS_MAX) {
                        (void)tdm_schema_fail(s, node, TDM_E_UNSUPPORTED, "more than %d contains together are not held",
                                              CONTAINS_MAX);
                        return;
                }
                gather_contains(a, i, node);
        }
        if (a->n_prefix > PREFIX_MAX)
                (void)tdm_schema_fail(s, a->c->parts[0].node, TDM_E_UNSUPPORTED, "so long a prefixItems is not held");
}

/* Whether part k evaluates the item at `index`. own: for a part's own unevaluatedItems, which does not count. */
static bool evaluates(const struct arrays *a, uint32_t k, uint32_t index, bool own)
{
        uint32_t prefix = prefix_of(a, k);

        if (prefix != TDM_JSON_NONE && index < tdm_json_get(&a->s->json, prefix)->n)
                return true;
        return rest_of(a, k) != TDM_JSON_NONE || (!own && array_keyword(a, k, "unevaluatedItems") != TDM_JSON_NONE);
}

void tdm_schema_item(struct arrays *a, uint32_t index, unsigned set, struct tdm_schema_nodes *value)
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
                uint32_t rest = array_keyword(a, i, "unevaluatedItems");
                bool evaluated = false;

                if (rest == TDM_JSON_NONE)
                        continue;
                if (a->n_contains > 0 && s->contains_marks_nothing) {
                        (void)tdm_schema_fail(s, rest, TDM_E_UNSUPPORTED,
                                              "unevaluatedItems with contains is not held in draft 2019-09");
                        return;
                }
                for (unsigned k = 0; k < a->n_contains; k++)
                        evaluated |= (set >> k & 1) && tdm_schema_is_within(a->c, a->contains[k].part, i);
                for (uint32_t k = 0; k < a->c->n && !evaluated; k++)
                        if (tdm_schema_is_within(a->c, k, i))
                                evaluated = evaluates(a, k, index, k == i);
                if (!evaluated)
                        (void)tdm_schema_nodes_add(s, value, rest);
        }
}

/* Makes what one item may be, for each set of contains that count it. An item that a contains does not count may still
 * match its schema, unless that contains has a maximum. */
static bool make_items(struct arrays *a, uint32_t index, uint32_t *items)
{
        struct tdm_schema *s = a->s;
        struct tdm_schema_nodes value = { 0 };

        for (unsigned set = 0; set < 1u << a->n_contains && !s->error; set++) {
                tdm_schema_item(a, index, set, &value);
                for (unsigned k = 0; k < a->n_contains && !s->error; k++) {
                        uint32_t node = a->contains[k].node;

                        if (!(set >> k & 1)) {
                                if (a->contains[k].high == TDM_EXPR_INF)
                                        continue;
                                node = tdm_schema_negate(s, node);
                        }
                        if (node == TDM_JSON_NONE)
                                (void)tdm_schema_fail(s, a->contains[k].node, TDM_E_UNSUPPORTED,
                                                      "maxContains is not held here");
                        else
                                (void)tdm_schema_nodes_add(s, &value, node);
                }
                items[set] = tdm_schema_call(s, &value);
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

/* The counts behind an item that the contains of `set` count; UINT32_MAX where one has its maximum already. */
static uint32_t count_item(const struct arrays *a, uint32_t counts, unsigned set)
{
        for (unsigned k = 0; k < a->n_contains; k++) {
                const struct contained *c = &a->contains[k];
                uint32_t n = counts / c->stride % (c->n_count + 1);

                if (!(set >> k & 1))
                        continue;
                if (c->high != TDM_EXPR_INF && n >= c->high)
                        return UINT32_MAX;
                if (n < c->n_count)
                        counts += c->stride;
        }
        return counts;
}

static bool enough(const struct arrays *a, uint32_t counts)
{
        for (unsigned k = 0; k < a->n_contains; k++)
                if (counts / a->contains[k].stride % (a->contains[k].n_count + 1) < a->contains[k].low)
                        return false;
        return true;
}

/* One item of any set, then what follows it; or e. */
static uint32_t any_item(struct arrays *a, uint32_t counts, uint32_t comma, const uint32_t *items, const uint32_t *next,
                         uint32_t e)
{
        struct tdm_arena *arena = &a->s->g->arena;

        for (unsigned set = 1u << a->n_contains; set-- > 0;) {
                uint32_t counted = count_item(a, counts, set);

                if (counted != UINT32_MAX)
                        e = tdm_expr_alt(arena, tdm_expr_cat3(arena, comma, items[set], next[counted]), e);
        }
        return e;
}

/* With contains: one expression for each index (behind the last that matters all are one) and for all counts. */
static uint32_t with_contains(struct arrays *a)
{
        struct tdm_schema *s = a->s;
        struct tdm_arena *arena = &s->g->arena;
        uint32_t n_index = TDM_MAX(a->n_prefix, TDM_MAX(a->min, a->max == TDM_EXPR_INF ? 0 : a->max));
        uint32_t close = tdm_expr_cat(arena, s->space, tdm_expr_text(arena, "]")), first = tdm_expr_text(arena, "]");
        uint32_t items[1 << CONTAINS_MAX] = { 0 }, e = TDM_EXPR_NONE, *next;
        uint64_t n_counts = 1;

        for (unsigned k = 0; k < a->n_contains; k++) {
                struct contained *c = &a->contains[k];

                c->n_count = c->high == TDM_EXPR_INF ? c->low : TDM_MAX(c->high, c->low);
                c->stride = (uint32_t)n_counts;
                n_counts = n_counts > STATES_MAX ? n_counts : n_counts * ((uint64_t)c->n_count + 1);
        }
        if (n_index > STATES_MAX || n_counts > STATES_MAX ||
            ((n_index + 1) * (n_counts + 1)) << (a->n_contains - 1) > STATES_MAX) {
                (void)tdm_schema_fail(s, a->contains[0].node, TDM_E_UNSUPPORTED,
                                      "contains with so large counts is not held");
                return e;
        }
        next = malloc(n_counts * sizeof(*next));
        if (!next) {
                s->error = s->error ? s->error : -ENOMEM;
                return e;
        }
        /* next[k]: what follows with the counts k. Behind the last index that matters it is a rule that calls itself.
         * An item never lowers a count. */
        if (!make_items(a, a->n_prefix, items))
                goto out;
        for (uint32_t k = (uint32_t)n_counts; k-- > 0 && !s->error;) {
                uint32_t body = enough(a, k) ? close : TDM_EXPR_NONE, rule;

                if (a->max != TDM_EXPR_INF) { /* no item behind the last */
                        next[k] = body;
                        continue;
                }
                rule = tdm_grammar_add_rule(s->g);
                if (rule == UINT32_MAX)
                        goto out;
                next[k] = tdm_expr_call(arena, rule);
                body = any_item(a, k, s->comma, items, next, body);
                s->g->rules[rule].body = body;
        }
        if (n_index == 0) /* the first item has no comma */
                e = enough(a, 0) ? first : TDM_EXPR_NONE;
        if (n_index == 0 && a->max > 0)
                e = any_item(a, 0, TDM_EXPR_EPS, items, next, e);
        for (uint32_t i = n_index; i-- > 0 && !s->error && !arena->failed;) {
                if (i < a->n_prefix && !make_items(a, i, items))
                        break;
                arena->steps += n_counts << a->n_contains;
                for (uint32_t k = 0; k < n_counts; k++) { /* upwards: next[k + 1] is still that of index i + 1 */
                        e = enough(a, k) && i >= a->min ? i == 0 ? first : close : TDM_EXPR_NONE;
                        if (i < a->max)
                                e = any_item(a, k, i == 0 ? TDM_EXPR_EPS : s->comma, items, next, e);
                        next[k] = e;
                }
        }
        if (n_index > 0)
                e = next[0];
out:
        free(next);
        return s->error ? TDM_EXPR_NONE : tdm_expr_cat3(arena, tdm_expr_text(arena, "["), s->space, e);
}

static uint32_t array_build(struct arrays *a)
{
        struct tdm_schema *s = a->s;
        struct tdm_arena *arena = &s->g->arena;
        uint32_t n = TDM_MIN(a->n_prefix, a->max), after, first, close, spaced;
        uint32_t item = TDM_EXPR_NONE;

        if (a->min > a->max)
                return TDM_EXPR_NONE;
        if (a->unique && a->max > 1) {
                struct tdm_schema_nodes value = { 0 };
                bool none;

                /* At most one item of a kind that there can be: nothing to tell apart. */
                tdm_schema_item(a, TDM_MIN(1u, a->n_prefix), 0, &value);
                none = tdm_schema_call(s, &value) == TDM_EXPR_NONE;
                free(value.items);
                if (s->error)
                        return TDM_EXPR_NONE;
                if (!none)
                        return tdm_schema_unique(a);
        }
        if (a->n_contains > 0)
                return with_contains(a);
        if (!make_items(a, a->n_prefix, &item))
                return TDM_EXPR_NONE;
        close = tdm_expr_text(arena, "]");
        spaced = tdm_expr_cat(arena, s->space, close);
        first = n == 0 ? alike(a, 0, item, true) : TDM_EXPR_NONE;
        after = n == 0 ? TDM_EXPR_NONE : alike(a, n, item, false);
        for (uint32_t i = n; i-- > 0 && !s->error && !arena->failed;) {
                if (!make_items(a, i, &item))
                        break;
                first = tdm_expr_alt(arena, tdm_expr_cat(arena, item, after), i >= a->min ? close : TDM_EXPR_NONE);
                after = tdm_expr_alt(arena, tdm_expr_cat3(arena, s->comma, item, after),
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
                return array_build(&a);
        if (a.min > a.max)
                e = TDM_EXPR_NONE;
        for (uint32_t i = 0; i < TDM_MIN(a.min, a.n_prefix + 1) && e != TDM_EXPR_NONE && !s->error; i++) {
                tdm_schema_item(&a, i, (1u << a.n_contains) - 1, &value);
                if (value.n > 1 && tdm_schema_is_empty(s, &value))
                        e = TDM_EXPR_NONE;
        }
        free(value.items);
        return s->error ? TDM_EXPR_NONE : e;
}
