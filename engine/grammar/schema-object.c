/* The objects of a case: declared members in the order in which the schemas first name them, then free ones. */
#include "engine/grammar/schema.h"
#include "common/fnv.h"
#include "engine/grammar/chars.h"

enum { PATTERNS_MAX = 6, NAMES_MAX = 5000, COUNTED_MAX = 100000 };

struct name {
        uint32_t at, size; /* of the JSON's text */
        bool required, forbidden;
        struct tdm_schema_nodes value; /* the schemas of its value */
};

struct objects {
        struct tdm_schema *s;
        const struct tdm_schema_case *c;
        struct name *names;
        uint32_t n_names, capacity;
        uint32_t *slots, n_slots; /* names by text: index + 1 */
        uint32_t patterns[PATTERNS_MAX], pattern_exprs[PATTERNS_MAX];
        unsigned n_patterns;
        uint32_t name_filter; /* propertyNames; UINT32_MAX: none */
        uint32_t min, max;
        bool impossible;
};

static uint32_t part_keyword(const struct objects *o, uint32_t part, const char *name)
{
        return tdm_json_deref(&o->s->json, tdm_json_member(&o->s->json, o->c->parts[part].node, name));
}

static uint32_t object_keyword(struct objects *o, uint32_t part, const char *name)
{
        uint32_t node = part_keyword(o, part, name);

        if (node != TDM_JSON_NONE && tdm_json_get(&o->s->json, node)->type != TDM_JSON_OBJECT) {
                (void)tdm_schema_fail(o->s, node, TDM_E_BAD_REQUEST, "%s must be an object", name);
                return TDM_JSON_NONE;
        }
        return node;
}

static uint32_t hash_text(const char *text, uint32_t size)
{
        uint32_t h = tdm_fnv32(size, text, size);

        return h ^ h >> 15;
}

/* The name's entry, made where there is none. NULL: no memory, or too many. */
static struct name *entry(struct objects *o, uint32_t at, uint32_t size)
{
        const char *text = o->s->json.text;
        uint32_t k;

        if (o->n_names * 2 >= o->n_slots) {
                uint32_t n_slots = TDM_MAX(o->n_slots * 2, 32u), *slots = calloc(n_slots, sizeof(*slots));

                if (!slots)
                        goto fail;
                for (uint32_t i = 0; i < o->n_names; i++) {
                        for (k = hash_text(text + o->names[i].at, o->names[i].size); slots[k & (n_slots - 1)]; k++)
                                ;
                        slots[k & (n_slots - 1)] = i + 1;
                }
                free(o->slots);
                o->slots = slots;
                o->n_slots = n_slots;
        }
        for (k = hash_text(text + at, size); o->slots[k & (o->n_slots - 1)]; k++) {
                struct name *n = &o->names[o->slots[k & (o->n_slots - 1)] - 1];

                if (n->size == size && memcmp(text + n->at, text + at, size) == 0)
                        return n;
        }
        if (o->n_names == NAMES_MAX) {
                (void)tdm_schema_fail(o->s, o->c->parts[0].node, TDM_E_UNSUPPORTED, "more than %d members are not held",
                                      NAMES_MAX);
                return NULL;
        }
        if (o->n_names == o->capacity) {
                uint32_t capacity = TDM_MAX(o->capacity * 2, 16u);
                struct name *names = realloc(o->names, capacity * sizeof(*names));

                if (!names)
                        goto fail;
                o->names = names;
                o->capacity = capacity;
        }
        o->names[o->n_names] = (struct name){ .at = at, .size = size };
        o->slots[k & (o->n_slots - 1)] = ++o->n_names;
        return &o->names[o->n_names - 1];
fail:
        o->s->error = o->s->error ? o->s->error : -ENOMEM;
        return NULL;
}

bool tdm_schema_is_within(const struct tdm_schema_case *c, uint32_t descendant, uint32_t ancestor)
{
        for (int32_t i = (int32_t)descendant; i >= 0; i = c->parts[i].parent)
                if (i == (int32_t)ancestor)
                        return true;
        return false;
}

/* Whether the text matches pattern k. */
static bool matches(struct objects *o, unsigned k, uint32_t at, uint32_t size)
{
        struct tdm_arena *arena = &o->s->g->arena;
        struct tdm_schema_text text = { o->s->json.text + at, size };
        uint32_t literal = tdm_schema_texts(o->s, &text, 1);

        return tdm_expr_alive(arena, tdm_expr_and(arena, o->pattern_exprs[k], literal));
}

static unsigned pattern_index(const struct objects *o, uint32_t member)
{
        const struct tdm_json *json = &o->s->json;

        for (unsigned k = 0; k < o->n_patterns; k++)
                if (tdm_json_get(json, member)->key_size == tdm_json_get(json, o->patterns[k])->key_size &&
                    memcmp(tdm_json_key(json, member), tdm_json_key(json, o->patterns[k]),
                           tdm_json_get(json, member)->key_size) == 0)
                        return k;
        return PATTERNS_MAX;
}

/* What part i says of a member: by its name (size UINT32_MAX: one that no properties name) and the patterns that
 * match it. Adds to value; returns whether it is evaluated. */
static bool apply(struct objects *o, uint32_t i, uint32_t at, uint32_t size, unsigned matched,
                  struct tdm_schema_nodes *value, bool evaluated_only)
{
        struct tdm_schema *s = o->s;
        uint32_t properties = object_keyword(o, i, "properties"), patterns = object_keyword(o, i, "patternProperties");
        uint32_t rest = part_keyword(o, i, "additionalProperties"), member;
        bool found = false;

        if (properties != TDM_JSON_NONE && size != UINT32_MAX) {
                member = tdm_json_find(&s->json, properties, s->json.text + at, size);
                if (member != TDM_JSON_NONE) {
                        found = true;
                        if (!evaluated_only)
                                (void)tdm_schema_nodes_add(s, value, member);
                }
        }
        for (member = patterns == TDM_JSON_NONE ? patterns : tdm_json_get(&s->json, patterns)->first;
             member != TDM_JSON_NONE; member = tdm_json_get(&s->json, member)->next) {
                unsigned k = pattern_index(o, member);

                if (k == PATTERNS_MAX || !(matched >> k & 1))
                        continue;
                found = true;
                if (!evaluated_only)
                        (void)tdm_schema_nodes_add(s, value, member);
        }
        if (!found && rest != TDM_JSON_NONE) {
                found = true;
                if (!evaluated_only)
                        (void)tdm_schema_nodes_add(s, value, rest);
        }
        return found || part_keyword(o, i, "unevaluatedProperties") != TDM_JSON_NONE;
}

static void member_value(struct objects *o, uint32_t at, uint32_t size, unsigned matched,
                         struct tdm_schema_nodes *value)
{
        struct tdm_schema *s = o->s;

        value->n = 0;
        for (uint32_t i = 0; i < o->c->n && !s->error; i++)
                (void)apply(o, i, at, size, matched, value, false);
        for (uint32_t i = 0; i < o->c->n && s->has_unevaluated && !s->error; i++) {
                uint32_t rest = part_keyword(o, i, "unevaluatedProperties");
                bool evaluated = false;

                if (rest == TDM_JSON_NONE)
                        continue;
                for (uint32_t k = 0; k < o->c->n && !evaluated; k++) {
                        if (!tdm_schema_is_within(o->c, k, i))
                                continue;
                        if (k == i) { /* its own keywords, but not unevaluatedProperties itself */
                                struct tdm_schema_nodes none = { 0 };
                                uint32_t n = value->n;

                                (void)apply(o, k, at, size, matched, &none, false);
                                evaluated = none.n > 0;
                                free(none.items);
                                value->n = n;
                        } else {
                                evaluated = apply(o, k, at, size, matched, NULL, true);
                        }
                }
                if (!evaluated)
                        (void)tdm_schema_nodes_add(s, value, rest);
        }
}

static void take_content(void *userdata, const struct tdm_schema_case *c)
{
        struct objects *o = userdata;

        if (c->types & TDM_SCHEMA_STRING) {
                uint32_t e = TDM_EXPR_NONE;

                /* With constants, the string is among them. */
                e = tdm_schema_scalars(o->s,
                                       &(struct tdm_schema_case){ c->parts, c->n, c->capacity, TDM_SCHEMA_STRING });
                o->name_filter = tdm_expr_alt(&o->s->g->arena, o->name_filter, e);
        }
}

/* propertyNames: what the names themselves may be, with their quotes. */
static void filter_names(struct objects *o)
{
        struct tdm_schema_nodes nodes = { 0 };
        struct tdm_arena *arena = &o->s->g->arena;

        for (uint32_t i = 0; i < o->c->n; i++) {
                uint32_t node = part_keyword(o, i, "propertyNames");

                if (node != TDM_JSON_NONE)
                        (void)tdm_schema_nodes_add(o->s, &nodes, node);
        }
        o->name_filter = UINT32_MAX;
        if (nodes.n > 0) {
                uint32_t quote = tdm_expr_text(arena, "\"");

                o->name_filter = TDM_EXPR_NONE;
                tdm_schema_expand(o->s, &nodes, take_content, o);
                /* In one form each, since names are compared as texts. */
                o->name_filter = tdm_expr_and(
                        arena, o->name_filter,
                        tdm_expr_cat3(arena, quote, tdm_expr_rep(arena, o->s->g->any_char[1], 0, TDM_EXPR_INF), quote));
                if (!tdm_expr_alive(arena, o->name_filter))
                        o->name_filter = TDM_EXPR_NONE;
        }
        free(nodes.items);
}

static uint32_t quoted(struct tdm_arena *arena, uint32_t content)
{
        uint32_t quote = tdm_expr_text(arena, "\"");

        return tdm_expr_cat3(arena, quote, content, quote);
}

static bool name_allowed(struct objects *o, const struct name *n)
{
        struct tdm_arena *arena = &o->s->g->arena;
        struct tdm_schema_text text = { o->s->json.text + n->at, n->size };

        if (o->name_filter == UINT32_MAX)
                return true;
        return tdm_expr_alive(arena,
                              tdm_expr_and(arena, o->name_filter, quoted(arena, tdm_schema_texts(o->s, &text, 1))));
}

static void gather_patterns(struct objects *o, uint32_t patterns)
{
        struct tdm_schema *s = o->s;

        for (uint32_t m = tdm_json_get(&s->json, patterns)->first; m != TDM_JSON_NONE && !s->error;
             m = tdm_json_get(&s->json, m)->next) {
                if (pattern_index(o, m) != PATTERNS_MAX)
                        continue;
                if (o->n_patterns == PATTERNS_MAX) {
                        (void)tdm_schema_fail(s, m, TDM_E_UNSUPPORTED,
                                              "more than %d patterns of names together are not held", PATTERNS_MAX);
                        return;
                }
                o->patterns[o->n_patterns] = m;
                o->pattern_exprs[o->n_patterns++] =
                        tdm_schema_pattern(s, m, tdm_json_key(&s->json, m), tdm_json_get(&s->json, m)->key_size);
        }
}

static void gather(struct objects *o)
{
        struct tdm_schema *s = o->s;
        uint32_t node, k, count;

        o->max = UINT32_MAX;
        for (uint32_t i = 0; i < o->c->n && !s->error; i++) {
                node = object_keyword(o, i, "properties");
                for (k = node == TDM_JSON_NONE ? node : tdm_json_get(&s->json, node)->first;
                     k != TDM_JSON_NONE && !s->error; k = tdm_json_get(&s->json, k)->next)
                        (void)entry(o, tdm_json_get(&s->json, k)->key, tdm_json_get(&s->json, k)->key_size);
                node = object_keyword(o, i, "patternProperties");
                if (node != TDM_JSON_NONE)
                        gather_patterns(o, node);
                node = part_keyword(o, i, "minProperties");
                if (node != TDM_JSON_NONE && tdm_schema_count(s, node, &count))
                        o->min = TDM_MAX(o->min, count);
                node = part_keyword(o, i, "maxProperties");
                if (node != TDM_JSON_NONE && tdm_schema_count(s, node, &count))
                        o->max = TDM_MIN(o->max, count);
        }
        for (uint32_t i = 0; i < o->c->n && !s->error; i++) {
                node = part_keyword(o, i, "required");
                if (node == TDM_JSON_NONE)
                        continue;
                if (tdm_json_get(&s->json, node)->type != TDM_JSON_ARRAY) {
                        (void)tdm_schema_fail(s, node, TDM_E_UNSUPPORTED, "required must be an array of names");
                        return;
                }
                for (k = tdm_json_get(&s->json, node)->first; k != TDM_JSON_NONE && !s->error;
                     k = tdm_json_get(&s->json, k)->next) {
                        const struct tdm_json_node *n = tdm_json_get(&s->json, k);
                        struct name *name;

                        if (n->type != TDM_JSON_STRING) {
                                (void)tdm_schema_fail(s, k, TDM_E_BAD_REQUEST, "required must be an array of names");
                                return;
                        }
                        name = entry(o, n->text, n->text_size);
                        if (name)
                                name->required = true;
                }
        }
        if (!s->error)
                filter_names(o);
        for (uint32_t i = 0; i < o->n_names && !s->error; i++) {
                struct name *name = &o->names[i];
                unsigned matched = 0;

                for (unsigned p = 0; p < o->n_patterns; p++)
                        matched |= matches(o, p, name->at, name->size) ? 1u << p : 0;
                member_value(o, name->at, name->size, matched, &name->value);
                s->g->arena.steps += o->c->n * 4;
                for (k = 0; k < name->value.n; k++)
                        name->forbidden |=
                                tdm_json_get(&s->json, tdm_json_deref(&s->json, name->value.items[k]))->type ==
                                TDM_JSON_FALSE;
                name->forbidden = name->forbidden || !name_allowed(o, name);
                if (name->required && (name->forbidden || (name->value.n > 1 && tdm_schema_is_empty(s, &name->value))))
                        o->impossible = true;
        }
}

/* ---- texts ---- */

/* One free member: name and value. NONE where there can be none. */
static uint32_t free_member(struct objects *o)
{
        struct tdm_schema *s = o->s;
        struct tdm_arena *arena = &s->g->arena;
        uint32_t e = TDM_EXPR_NONE, any = tdm_expr_rep(arena, s->g->any_char[1], 0, TDM_EXPR_INF),
                 names = TDM_EXPR_NONE;
        struct tdm_schema_text *texts = malloc((o->n_names + 1) * sizeof(*texts));
        struct tdm_schema_nodes value = { 0 };

        if (!texts) {
                s->error = s->error ? s->error : -ENOMEM;
                return e;
        }
        for (uint32_t i = 0; i < o->n_names; i++)
                texts[i] = (struct tdm_schema_text){ s->json.text + o->names[i].at, o->names[i].size };
        for (unsigned set = 0; set < 1u << o->n_patterns && !s->error && !arena->failed; set++) {
                uint32_t key = any, call;

                member_value(o, 0, UINT32_MAX, set, &value);
                call = tdm_schema_call(s, &value);
                if (call == TDM_EXPR_NONE)
                        continue;
                if (o->n_names > 0 && names == TDM_EXPR_NONE)
                        names = tdm_expr_not(arena, tdm_schema_texts(s, texts, o->n_names));
                if (o->n_names > 0)
                        key = tdm_expr_and(arena, key, names);
                for (unsigned k = 0; k < o->n_patterns; k++)
                        key = tdm_expr_and(arena, key,
                                           set >> k & 1 ? o->pattern_exprs[k] :
                                                          tdm_expr_not(arena, o->pattern_exprs[k]));
                key = quoted(arena, key);
                if (o->name_filter != UINT32_MAX)
                        key = tdm_expr_and(arena, key, o->name_filter);
                if (!tdm_expr_alive(arena, key))
                        continue;
                e = tdm_expr_alt(arena, tdm_expr_cat3(arena, key, s->colon, call), e);
        }
        free(texts);
        free(value.items);
        return e;
}

static void keep_order(struct objects *o)
{
        struct tdm_grammar *g = o->s->g;
        uint32_t n = o->n_names;

        if (n == 0)
                return;
        if (g->n_orders == g->orders_capacity) {
                uint32_t capacity = TDM_MAX(g->orders_capacity * 2, 16u);
                struct tdm_order *orders = realloc(g->orders, capacity * sizeof(*orders));

                if (!orders)
                        goto fail;
                g->orders = orders;
                g->orders_capacity = capacity;
        }
        g->orders[g->n_orders] = (struct tdm_order){ g->n_names, n };
        for (uint32_t i = 0; i < n; i++) {
                if (g->n_names == g->names_capacity) {
                        uint32_t capacity = TDM_MAX(g->names_capacity * 2, 64u);
                        struct tdm_name *names = realloc(g->names, capacity * sizeof(*names));

                        if (!names)
                                goto fail;
                        g->names = names;
                        g->names_capacity = capacity;
                }
                if (!g->name_bytes || o->names[i].size > g->name_bytes_capacity - g->n_name_bytes) {
                        size_t capacity = TDM_MAX(g->name_bytes_capacity * 2, g->n_name_bytes + o->names[i].size + 256);
                        char *bytes = realloc(g->name_bytes, capacity);

                        if (!bytes)
                                goto fail;
                        g->name_bytes = bytes;
                        g->name_bytes_capacity = capacity;
                }
                memcpy(g->name_bytes + g->n_name_bytes, o->s->json.text + o->names[i].at, o->names[i].size);
                g->names[g->n_names++] = (struct tdm_name){ (uint32_t)g->n_name_bytes, o->names[i].size };
                g->n_name_bytes += o->names[i].size;
        }
        g->n_orders++;
        return;
fail:
        o->s->error = o->s->error ? o->s->error : -ENOMEM;
}

static uint32_t end_of(struct objects *o, uint32_t free, bool first, uint32_t count)
{
        struct tdm_schema *s = o->s;
        struct tdm_arena *arena = &s->g->arena;
        uint32_t close = tdm_expr_text(arena, "}"), spaced = tdm_expr_cat(arena, s->space, close), e;
        uint32_t low = count < o->min ? o->min - count : 0, high = o->max == UINT32_MAX ? TDM_EXPR_INF : o->max - count;

        if (free == TDM_EXPR_NONE || high == 0)
                return low > 0 ? TDM_EXPR_NONE : first ? close : spaced;
        e = tdm_expr_cat(arena, s->comma, free);
        if (!first)
                return tdm_expr_cat(arena, tdm_expr_rep(arena, e, low, high), spaced);
        e = tdm_expr_rep(arena, e, low > 0 ? low - 1 : 0, high == TDM_EXPR_INF ? high : high - 1);
        e = tdm_expr_cat3(arena, free, e, spaced);
        return low > 0 ? e : tdm_expr_alt(arena, e, close);
}

static uint32_t object_build(struct objects *o)
{
        struct tdm_schema *s = o->s;
        struct tdm_arena *arena = &s->g->arena;
        uint32_t free_e = free_member(o), n_possible = 0, n_required = 0, n_counts = 1, e;
        bool counted;
        uint32_t *after, *first;

        for (uint32_t i = 0; i < o->n_names; i++) {
                n_possible += !o->names[i].forbidden;
                n_required += o->names[i].required;
        }
        if (o->min <= n_required)
                o->min = 0;
        if (free_e == TDM_EXPR_NONE && o->max >= n_possible)
                o->max = UINT32_MAX;
        if (o->min > o->max || n_required > o->max || (free_e == TDM_EXPR_NONE && o->min > n_possible))
                return TDM_EXPR_NONE;
        if (o->min > n_required + 1 && free_e != TDM_EXPR_NONE) {
                (void)tdm_schema_fail(s, o->c->parts[0].node, TDM_E_UNSUPPORTED,
                                      "minProperties that asks for more than one member of a free name is not held");
                return TDM_EXPR_NONE;
        }
        counted = o->min > 0 || o->max != UINT32_MAX;
        if (counted)
                n_counts = o->n_names + 1;
        if ((uint64_t)n_counts * (o->n_names + 1) > COUNTED_MAX) {
                (void)tdm_schema_fail(s, o->c->parts[0].node, TDM_E_UNSUPPORTED,
                                      "minProperties or maxProperties over so many members is not held");
                return TDM_EXPR_NONE;
        }
        after = malloc(2 * (size_t)(n_counts + 1) * sizeof(*after));
        if (!after) {
                s->error = s->error ? s->error : -ENOMEM;
                return TDM_EXPR_NONE;
        }
        first = after + n_counts + 1;
        for (uint32_t k = 0; k < n_counts; k++) {
                after[k] = k > o->max ? TDM_EXPR_NONE : end_of(o, free_e, false, k);
                first[k] = k > 0 ? TDM_EXPR_NONE : end_of(o, free_e, true, 0);
        }
        after[n_counts] = first[n_counts] = TDM_EXPR_NONE;
        for (uint32_t i = o->n_names; i-- > 0 && !s->error && !arena->failed;) {
                struct name *name = &o->names[i];
                struct tdm_schema_text text = { s->json.text + name->at, name->size };
                uint32_t member;

                if (name->forbidden)
                        continue;
                member = tdm_expr_cat3(arena, quoted(arena, tdm_schema_texts(s, &text, 1)), s->colon,
                                       tdm_schema_call(s, &name->value));
                arena->steps += n_counts;
                for (uint32_t k = 0; k < n_counts; k++) { /* upwards: after[k + 1] is still that of member i + 1 */
                        e = tdm_expr_cat(arena, member, after[counted ? k + 1 : k]);
                        if (k == 0)
                                first[0] = tdm_expr_alt(arena, e, name->required ? TDM_EXPR_NONE : first[0]);
                        e = tdm_expr_cat(arena, s->comma, e);
                        after[k] = tdm_expr_alt(arena, e, name->required ? TDM_EXPR_NONE : after[k]);
                }
        }
        e = tdm_expr_cat3(arena, tdm_expr_text(arena, "{"), s->space, first[0]);
        free(after);
        keep_order(o);
        return e;
}

uint32_t tdm_schema_objects(struct tdm_schema *s, const struct tdm_schema_case *c, bool check)
{
        struct objects o = { .s = s, .c = c };
        uint32_t e = TDM_EXPR_NONE;

        gather(&o);
        if (!s->error && !o.impossible)
                e = check ? TDM_EXPR_EPS : object_build(&o);
        for (uint32_t i = 0; i < o.n_names; i++)
                free(o.names[i].value.items);
        free(o.names);
        free(o.slots);
        return s->error ? TDM_EXPR_NONE : e;
}
