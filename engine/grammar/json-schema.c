/* JSON Schema into a grammar: conjunctions of schemas, each one rule. See schema.h. */
#include "engine/grammar/schema.h"
#include "engine/grammar/chars.h"

int tdm_schema_fail(struct tdm_schema *s, uint32_t node, int code, const char *fmt, ...)
{
        char pointer[256] = "#", what[400];
        va_list args;

        if (s->error)
                return s->error;
        va_start(args, fmt);
        vsnprintf(what, sizeof(what), fmt, args);
        va_end(args);
        if (node != TDM_JSON_NONE)
                (void)tdm_json_pointer(&s->json, node, pointer, sizeof(pointer));
        s->error = tdm_error_set(s->err, code, "schema, at %s: %s", pointer, what);
        return s->error;
}

bool tdm_schema_nodes_add(struct tdm_schema *s, struct tdm_schema_nodes *nodes, uint32_t node)
{
        if (nodes->n == nodes->capacity) {
                uint32_t capacity = TDM_MAX(nodes->capacity * 2, 8u);
                uint32_t *items = realloc(nodes->items, capacity * sizeof(*items));

                if (!items) {
                        s->error = s->error ? s->error : -ENOMEM;
                        return false;
                }
                nodes->items = items;
                nodes->capacity = capacity;
        }
        nodes->items[nodes->n++] = node;
        return true;
}

static int compare_numbers(const void *a, const void *b)
{
        uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

        return x < y ? -1 : x > y;
}

/* Into the one form of a conjunction. Returns false where nothing satisfies it. */
static bool conjunction_settle(struct tdm_schema *s, struct tdm_schema_nodes *nodes)
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < nodes->n; i++) {
                uint32_t node = tdm_schema_enter(s, tdm_json_deref(&s->json, nodes->items[i]));
                const struct tdm_json_node *x;

                if (s->error)
                        return false;
                x = tdm_json_get(&s->json, node);
                if (x->type == TDM_JSON_FALSE)
                        return false;
                if (x->type == TDM_JSON_TRUE || (x->type == TDM_JSON_OBJECT && x->n == 0))
                        continue;
                nodes->items[n++] = node;
        }
        nodes->n = n;
        if (n > 1)
                qsort(nodes->items, n, sizeof(*nodes->items), compare_numbers);
        for (uint32_t i = n = TDM_MIN(n, 1u); i < nodes->n; i++)
                if (nodes->items[i] != nodes->items[n - 1])
                        nodes->items[n++] = nodes->items[i];
        nodes->n = n;
        return true;
}

static uint32_t hash_nodes(const uint32_t *nodes, uint32_t n)
{
        uint64_t h = n;

        for (uint32_t i = 0; i < n; i++)
                h = (h ^ nodes[i]) * UINT64_C(0x9e3779b97f4a7c15), h ^= h >> 31;
        return (uint32_t)h;
}

/* The number of a settled conjunction, or UINT32_MAX. */
static uint32_t conjunction_intern(struct tdm_schema *s, const struct tdm_schema_nodes *nodes)
{
        uint32_t k, rule;

        if (s->n_conjunctions * 2 >= s->n_slots) {
                uint32_t n_slots = TDM_MAX(s->n_slots * 2, 64u), *slots = calloc(n_slots, sizeof(*slots));

                if (!slots)
                        goto fail;
                for (uint32_t i = 0; i < s->n_conjunctions; i++) {
                        const struct tdm_conjunction *c = &s->conjunctions[i];

                        for (k = hash_nodes(s->conjunction_nodes.items + c->at, c->n); slots[k & (n_slots - 1)]; k++)
                                ;
                        slots[k & (n_slots - 1)] = i + 1;
                }
                free(s->slots);
                s->slots = slots;
                s->n_slots = n_slots;
        }
        for (k = hash_nodes(nodes->items, nodes->n); s->slots[k & (s->n_slots - 1)]; k++) {
                uint32_t i = s->slots[k & (s->n_slots - 1)] - 1;
                const struct tdm_conjunction *c = &s->conjunctions[i];

                if (c->n == nodes->n && (c->n == 0 || memcmp(s->conjunction_nodes.items + c->at, nodes->items,
                                                             c->n * sizeof(uint32_t)) == 0))
                        return i;
        }
        if (s->n_conjunctions == s->conjunctions_capacity) {
                uint32_t capacity = TDM_MAX(s->conjunctions_capacity * 2, 32u);
                struct tdm_conjunction *conjunctions = realloc(s->conjunctions, capacity * sizeof(*conjunctions));

                if (!conjunctions)
                        goto fail;
                s->conjunctions = conjunctions;
                s->conjunctions_capacity = capacity;
        }
        rule = UINT32_MAX;
        s->conjunctions[s->n_conjunctions] = (struct tdm_conjunction){ s->conjunction_nodes.n, nodes->n, rule, 0 };
        s->g->arena.steps += nodes->n + 4;
        for (uint32_t i = 0; i < nodes->n; i++)
                if (!tdm_schema_nodes_add(s, &s->conjunction_nodes, nodes->items[i]))
                        return UINT32_MAX;
        s->slots[k & (s->n_slots - 1)] = ++s->n_conjunctions;
        return s->n_conjunctions - 1;
fail:
        s->error = s->error ? s->error : -ENOMEM;
        return UINT32_MAX;
}

static bool copy_nodes(struct tdm_schema *s, struct tdm_schema_nodes *to, const uint32_t *items, uint32_t n)
{
        *to = (struct tdm_schema_nodes){ 0 };
        for (uint32_t i = 0; i < n; i++)
                if (!tdm_schema_nodes_add(s, to, items[i])) {
                        free(to->items);
                        return false;
                }
        return true;
}

uint32_t tdm_schema_call(struct tdm_schema *s, const struct tdm_schema_nodes *nodes)
{
        struct tdm_schema_nodes copy;
        uint32_t i, e = TDM_EXPR_NONE;

        if (s->error || !copy_nodes(s, &copy, nodes->items, nodes->n))
                return TDM_EXPR_NONE;
        if (conjunction_settle(s, &copy)) {
                i = conjunction_intern(s, &copy);
                if (i != UINT32_MAX && s->conjunctions[i].rule == UINT32_MAX)
                        s->conjunctions[i].rule = tdm_grammar_add_rule(s->g);
                if (i != UINT32_MAX && s->conjunctions[i].rule != UINT32_MAX)
                        e = tdm_expr_call(&s->g->arena, s->conjunctions[i].rule);
        }
        free(copy.items);
        return e;
}

struct emptiness {
        struct tdm_schema *s;
        bool found;
};

static void look_at_case(void *userdata, const struct tdm_schema_case *c)
{
        struct emptiness *x = userdata;

        if (x->found || x->s->error)
                return;
        if (tdm_schema_scalars(x->s, c) != TDM_EXPR_NONE)
                x->found = true;
        else if ((c->types & TDM_SCHEMA_OBJECT) && tdm_schema_objects(x->s, c, true) != TDM_EXPR_NONE)
                x->found = true;
        else if ((c->types & TDM_SCHEMA_ARRAY) && tdm_schema_arrays(x->s, c, true) != TDM_EXPR_NONE)
                x->found = true;
}

bool tdm_schema_is_empty(struct tdm_schema *s, const struct tdm_schema_nodes *nodes)
{
        struct emptiness x = { .s = s };
        struct tdm_schema_nodes copy;
        bool empty = false;
        uint32_t i;

        if (s->error || s->depth > 16 || !copy_nodes(s, &copy, nodes->items, nodes->n))
                return false;
        if (!conjunction_settle(s, &copy)) {
                empty = true;
        } else if (copy.n > 0 && (i = conjunction_intern(s, &copy)) != UINT32_MAX && s->conjunctions[i].empty != 1) {
                if (s->conjunctions[i].empty == 0) {
                        s->conjunctions[i].empty = 1;
                        s->depth++;
                        tdm_schema_expand(s, &copy, look_at_case, &x);
                        s->depth--;
                        s->conjunctions[i].empty = x.found || s->error ? 3 : 2;
                }
                empty = s->conjunctions[i].empty == 2;
        }
        free(copy.items);
        return empty && !s->error;
}

struct body {
        struct tdm_schema *s;
        struct tdm_expr_list cases;
};

static void build_case(void *userdata, const struct tdm_schema_case *c)
{
        struct body *b = userdata;
        struct tdm_arena *arena = &b->s->g->arena;

        tdm_expr_list_add(arena, &b->cases, tdm_schema_scalars(b->s, c));
        if (c->types & TDM_SCHEMA_ARRAY)
                tdm_expr_list_add(arena, &b->cases, tdm_schema_arrays(b->s, c, false));
        if (c->types & TDM_SCHEMA_OBJECT)
                tdm_expr_list_add(arena, &b->cases, tdm_schema_objects(b->s, c, false));
}

static void build_rule(struct tdm_schema *s, uint32_t conjunction)
{
        struct body b = { .s = s };
        struct tdm_schema_nodes nodes;
        uint32_t e = TDM_EXPR_NONE, at = s->conjunctions[conjunction].at, rule = s->conjunctions[conjunction].rule;

        if (!copy_nodes(s, &nodes, s->conjunction_nodes.items + at, s->conjunctions[conjunction].n))
                return;
        tdm_schema_expand(s, &nodes, build_case, &b);
        for (uint32_t i = b.cases.n; i-- > 0;)
                e = tdm_expr_alt(&s->g->arena, b.cases.items[i], e);
        s->g->rules[rule].body = e;
        tdm_expr_list_deinit(&b.cases);
        free(nodes.items);
}

static int compare_texts(const void *a, const void *b)
{
        const struct tdm_schema_text *x = a, *y = b;
        int r = x->size && y->size ? memcmp(x->data, y->data, TDM_MIN(x->size, y->size)) : 0;

        return r ? r : x->size < y->size ? -1 : x->size > y->size;
}

static uint32_t literal(struct tdm_schema *s, const char *text, size_t size)
{
        return s->bare ? tdm_expr_literal(&s->g->arena, text, size) : tdm_chars_json_literal(&s->g->arena, text, size);
}

/* texts are sorted and share their first `done` bytes. */
static uint32_t texts_from(struct tdm_schema *s, const struct tdm_schema_text *texts, size_t n, size_t done)
{
        struct tdm_arena *arena = &s->g->arena;
        uint32_t e = TDM_EXPR_NONE;
        size_t end = n, common;

        if (n == 1)
                return literal(s, texts[0].data + done, texts[0].size - done);
        common = done;
        while (common < texts[0].size && common < texts[n - 1].size &&
               texts[0].data[common] == texts[n - 1].data[common])
                common++;
        if (common > done)
                return tdm_expr_cat(arena, literal(s, texts[0].data + done, common - done),
                                    texts_from(s, texts, n, common));
        while (end > 0) { /* groups of the same next byte, from the last */
                size_t start = end - 1;

                if (texts[start].size == done) {
                        e = tdm_expr_alt(arena, TDM_EXPR_EPS, e);
                        end = start;
                        continue;
                }
                while (start > 0 && texts[start - 1].size > done &&
                       texts[start - 1].data[done] == texts[end - 1].data[done])
                        start--;
                e = tdm_expr_alt(arena, texts_from(s, texts + start, end - start, done), e);
                end = start;
        }
        return e;
}

uint32_t tdm_schema_texts(struct tdm_schema *s, struct tdm_schema_text *texts, size_t n)
{
        size_t unique = 0;

        if (n == 0)
                return TDM_EXPR_NONE;
        qsort(texts, n, sizeof(*texts), compare_texts);
        for (size_t i = 0; i < n; i++)
                if (unique == 0 || compare_texts(&texts[unique - 1], &texts[i]) != 0)
                        texts[unique++] = texts[i];
        return texts_from(s, texts, unique, 0);
}

uint32_t tdm_grammar_space(struct tdm_grammar *g)
{
        struct tdm_byte_set blank = { 0 };
        uint32_t line;

        tdm_byte_set_add(&blank, ' ', ' ');
        tdm_byte_set_add(&blank, '\t', '\t');
        line = tdm_expr_cat(&g->arena, tdm_expr_text(&g->arena, "\n"),
                            tdm_expr_rep(&g->arena, tdm_expr_bytes(&g->arena, &blank), 0, 40));
        return tdm_expr_opt(&g->arena, tdm_expr_alt(&g->arena, tdm_expr_text(&g->arena, " "), line));
}

static void init_marks(struct tdm_schema *s, unsigned flags)
{
        struct tdm_arena *arena = &s->g->arena;

        s->g->any_char[0] = tdm_chars_any_json(arena, true);
        s->g->any_char[1] = tdm_chars_any_json(arena, false);
        s->g->compact = flags & TDM_GRAMMAR_COMPACT;
        s->space = s->g->compact ? TDM_EXPR_EPS : tdm_grammar_space(s->g);
        s->comma = tdm_expr_cat(arena, tdm_expr_text(arena, ","), s->space);
        s->colon = tdm_expr_cat(arena, tdm_expr_text(arena, ":"), s->space);
}

/* Finds the draft that $schema names: drafts before 2019-09 meant some keywords otherwise. */
static void find_draft(struct tdm_schema *s)
{
        static const char *const drafts[] = { "draft-03/", "draft-04/", "draft-06/", "draft-07/" };
        uint32_t node = tdm_json_member(&s->json, 0, "$schema");
        const struct tdm_json_node *n;

        if (node == TDM_JSON_NONE || tdm_json_get(&s->json, node)->type != TDM_JSON_STRING)
                return;
        n = tdm_json_get(&s->json, node);
        s->contains_marks_nothing = memmem(tdm_json_text(&s->json, node), n->text_size, "2019-09/", 8) != NULL;
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(drafts); i++) {
                if (!memmem(tdm_json_text(&s->json, node), n->text_size, drafts[i], strlen(drafts[i])))
                        continue;
                s->lone_refs = true;
                s->g->strict_integers = i < 2;
        }
}

/* A schema of its own beside the root's: values of other types are left out, whatever the root's says. */
static uint32_t any_object(struct tdm_schema *s)
{
        uint32_t object = tdm_schema_object(s, 0);

        return tdm_schema_put(s, object, "type", tdm_schema_string(s, "object", 0));
}

/* The same for any types. */
static uint32_t types_only(struct tdm_schema *s, const struct tdm_grammar_value *value)
{
        uint32_t object = tdm_schema_object(s, 0), types = tdm_json_add(&s->json, TDM_JSON_ARRAY, 0);

        for (unsigned i = 0; i < value->n_types; i++)
                (void)tdm_json_append(&s->json, types, NULL, 0, tdm_schema_string(s, value->types[i], 0));
        return tdm_schema_put(s, object, "type", types);
}

static uint32_t schema_place_of(const struct tdm_schema *s, const struct tdm_grammar_value *value)
{
        uint32_t node = s->json.n_nodes > 0 ? 0 : TDM_JSON_NONE;

        for (unsigned i = 0; value && i < value->n_path && node != TDM_JSON_NONE; i++)
                node = tdm_json_get(&s->json, node)->type == TDM_JSON_OBJECT ?
                               tdm_json_member(&s->json, node, value->path[i]) :
                               TDM_JSON_NONE;
        return node;
}

static void bare_init(struct tdm_schema *s, const struct tdm_grammar_value *value)
{
        struct tdm_chars all = { 0 };

        s->bare = value && value->bare;
        if (!s->bare)
                return;
        tdm_chars_add(&all, 0, 0x10ffff);
        s->bare_char = tdm_chars_expr(&s->g->arena, &all, TDM_TEXT_RAW);
        s->bare_filter = value->filter;
        s->json.failed |= all.failed;
        tdm_chars_deinit(&all);
}

static int compile(struct tdm_schema *s, unsigned flags, const struct tdm_grammar_value *value, uint32_t *ret_expr)
{
        struct tdm_schema_nodes root = { 0 };
        bool is_object = flags & TDM_GRAMMAR_OBJECT;
        uint32_t e = TDM_EXPR_NONE;
        int r;

        init_marks(s, flags);
        find_draft(s);
        bare_init(s, value);
        r = tdm_schema_index(s);
        if (r)
                return r;
        /* A first entry that no conjunction has, so that there is an array to point into. */
        if (tdm_schema_nodes_add(s, &s->conjunction_nodes, 0) &&
            tdm_schema_nodes_add(s, &root, schema_place_of(s, value)) &&
            (!is_object || tdm_schema_nodes_add(s, &root, any_object(s))) &&
            (!value || tdm_schema_nodes_add(s, &root, types_only(s, value))))
                e = tdm_schema_call(s, &root);
        if ((is_object || value) && !s->error && tdm_schema_is_empty(s, &root))
                e = TDM_EXPR_NONE;
        free(root.items);
        if (!s->error && e == TDM_EXPR_NONE)
                return tdm_grammar_takes_nothing(s->g, s->err);
        for (bool again = true; again && !s->error;) { /* building rules asks for more rules */
                again = false;
                for (uint32_t i = 0; i < s->n_conjunctions && !s->error; i++) {
                        uint32_t rule = s->conjunctions[i].rule;

                        if (rule == UINT32_MAX || s->g->rules[rule].rank)
                                continue;
                        s->g->rules[rule].rank = 1; /* made; tdm_grammar_finish() sets the rank */
                        build_rule(s, i);
                        again = true;
                        if (s->g->arena.failed || s->g->arena.steps > s->g->arena.max_steps || s->json.failed)
                                return s->error ? s->error : tdm_grammar_too_large(s->g, s->err);
                }
        }
        if (s->error)
                return s->error;
        *ret_expr = e;
        return 0;
}

/* Schemas begin at node 0: the reader makes the root's node before its children. */
static int schema_add(struct tdm_grammar *g, const char *source, size_t size, unsigned flags,
                      const struct tdm_grammar_value *value, uint32_t *ret_expr, struct tdm_error *err)
{
        struct tdm_error ignored;
        struct tdm_schema s = { .err = err ? err : &ignored, .g = g };
        int r;

        if (size > g->limits.max_source_bytes)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "the schema is longer than %zu bytes",
                                     g->limits.max_source_bytes);
        r = tdm_json_parse(&s.json, source, size, g->limits.max_depth, s.err);
        if (r) {
                if (r > 0)
                        (void)tdm_error_prefix(s.err, "schema");
                return r;
        }
        r = compile(&s, flags, value, ret_expr);
        tdm_json_deinit(&s.json);
        tdm_schema_refs_deinit(&s);
        free(s.conjunctions);
        free(s.conjunction_nodes.items);
        free(s.negation_of);
        free(s.choice_of);
        free(s.slots);
        return r;
}

int tdm_grammar_add_schema(struct tdm_grammar *g, const char *source, size_t size, unsigned flags, uint32_t *ret_expr,
                           struct tdm_error *err)
{
        return schema_add(g, source, size, flags, NULL, ret_expr, err);
}

int tdm_grammar_add_value(struct tdm_grammar *g, const char *source, size_t size, const struct tdm_grammar_value *value,
                          uint32_t *ret_expr, struct tdm_error *err)
{
        int r = schema_add(g, source, size, 0, value, ret_expr, err);

        if (r <= 0 || !g->nothing)
                return r;
        g->nothing = false;
        *ret_expr = TDM_EXPR_NONE;
        return 0;
}

int tdm_grammar_compile_schema(struct tdm_grammar **ret, const char *source, size_t size, unsigned flags,
                               const struct tdm_grammar_limits *limits, bool *ret_nothing, struct tdm_error *err)
{
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *g = NULL;
        int r = tdm_grammar_new(&g, limits);

        *ret_nothing = false;
        if (r < 0)
                return r;
        r = tdm_grammar_add_schema(g, source, size, flags, &g->root, err);
        if (r == 0) {
                r = tdm_grammar_finish(g, err);
                if (r > 0 && err)
                        (void)tdm_error_prefix(err, "schema");
        }
        *ret_nothing = g->nothing;
        if (r == 0)
                *ret = steal_ptr(&g);
        return r;
}

int tdm_grammar_new_schema(struct tdm_grammar **ret, const char *source, size_t size, unsigned flags,
                           const struct tdm_grammar_limits *limits, struct tdm_error *err)
{
        bool nothing;

        return tdm_grammar_compile_schema(ret, source, size, flags, limits, &nothing, err);
}

int tdm_grammar_new_json_object(struct tdm_grammar **ret, unsigned flags, struct tdm_error *err)
{
        static const char source[] = "{\"type\":\"object\"}";

        return tdm_grammar_new_schema(ret, source, sizeof(source) - 1, flags, NULL, err);
}
