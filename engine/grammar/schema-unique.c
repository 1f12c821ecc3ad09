/* Arrays with uniqueItems whose items are of a finite list of values: enum, const, booleans and null. What may follow
 * depends on the set of values that stand already. An expression stands for each set, so the number of sets is
 * bounded. */
#include "engine/grammar/schema-array.h"

enum { VALUES_MAX = 64, EDGES_MAX = 12000, REFERENCES_MAX = 8 };

struct values {
        uint32_t nodes[VALUES_MAX];
        unsigned n;
        bool too_many;
};

static void add_value(struct tdm_schema *s, struct values *v, uint32_t node)
{
        node = tdm_json_deref(&s->json, node);
        for (unsigned i = 0; i < v->n; i++) {
                s->g->arena.steps += 4;
                if (tdm_json_equal(&s->json, v->nodes[i], node))
                        return;
        }
        if (v->n == VALUES_MAX)
                v->too_many = true;
        else
                v->nodes[v->n++] = node;
}

/* Adds every value that the schema may take. Returns false where its keywords name no finite list. */
static bool list_values(struct tdm_schema *s, struct values *v, uint32_t schema, unsigned depth)
{
        uint32_t node, type;

        schema = tdm_json_deref(&s->json, schema);
        if (depth > REFERENCES_MAX || s->error || tdm_json_get(&s->json, schema)->type != TDM_JSON_OBJECT)
                return false;
        node = tdm_json_member(&s->json, schema, "$ref");
        if (node != TDM_JSON_NONE) {
                node = tdm_schema_resolve(s, node);
                if (s->error)
                        return false;
                if (list_values(s, v, node, depth + 1))
                        return true;
                if (s->lone_refs) /* nothing beside it counts */
                        return false;
        }
        node = tdm_json_member(&s->json, schema, "const");
        if (node != TDM_JSON_NONE) {
                add_value(s, v, node);
                return true;
        }
        node = tdm_json_deref(&s->json, tdm_json_member(&s->json, schema, "enum"));
        if (node != TDM_JSON_NONE && tdm_json_get(&s->json, node)->type == TDM_JSON_ARRAY) {
                for (uint32_t i = tdm_json_get(&s->json, node)->first; i != TDM_JSON_NONE && !v->too_many;
                     i = tdm_json_get(&s->json, i)->next)
                        add_value(s, v, i);
                return true;
        }
        type = tdm_json_deref(&s->json, tdm_json_member(&s->json, schema, "type"));
        if (type == TDM_JSON_NONE)
                return false;
        if (tdm_json_text_is(&s->json, type, "boolean")) {
                add_value(s, v, tdm_json_add(&s->json, TDM_JSON_FALSE, schema));
                add_value(s, v, tdm_json_add(&s->json, TDM_JSON_TRUE, schema));
                return !s->json.failed;
        }
        if (tdm_json_text_is(&s->json, type, "null")) {
                add_value(s, v, tdm_json_add(&s->json, TDM_JSON_NULL, schema));
                return !s->json.failed;
        }
        return false;
}

/* The values of the items at all indices. Returns how many indices there are before the array must end, or 0 where an
 * item may be of too many values. */
static uint32_t gather_values(struct arrays *a, struct values *v)
{
        struct tdm_schema *s = a->s;
        struct tdm_schema_nodes value = { 0 };
        uint32_t end = a->max == TDM_EXPR_INF ? VALUES_MAX : a->max, index = 0;

        for (; index < TDM_MIN(end, a->n_prefix + 1) && !s->error; index++) {
                bool finite = false;

                tdm_schema_item(a, index, 0, &value);
                if (tdm_schema_call(s, &value) == TDM_EXPR_NONE) {
                        end = index;
                        break;
                }
                for (uint32_t i = 0; i < value.n && !finite && !s->json.failed; i++)
                        finite = list_values(s, v, value.items[i], 0);
                if (!finite || v->too_many) {
                        end = 0;
                        break;
                }
        }
        free(value.items);
        return s->error || s->json.failed ? 0 : TDM_MIN(end, v->n);
}

/* The item at index with this value: a rule that takes nothing where its schemas forbid the value. */
static uint32_t item(struct arrays *a, uint32_t index, uint32_t constant)
{
        struct tdm_schema *s = a->s;
        struct tdm_schema_nodes value = { 0 };
        uint32_t e;

        tdm_schema_item(a, TDM_MIN(index, a->n_prefix), 0, &value);
        (void)tdm_schema_nodes_add(s, &value, constant);
        e = tdm_schema_call(s, &value);
        free(value.items);
        return e;
}

struct layer {
        uint64_t *sets; /* ascending */
        uint32_t *after;
        uint32_t n;
};

static void layer_deinit(struct layer *layer)
{
        free(layer->sets);
        free(layer->after);
}

/* All n_sets sets of `size` values, as bits. */
static bool layer_fill(struct layer *layer, unsigned size, uint64_t n_sets)
{
        uint64_t set = size == 0 ? 0 : size == 64 ? UINT64_MAX : (UINT64_C(1) << size) - 1;

        layer->n = (uint32_t)n_sets;
        layer->sets = malloc(n_sets * sizeof(*layer->sets));
        layer->after = malloc(n_sets * sizeof(*layer->after));
        if (!layer->sets || !layer->after)
                return false;
        for (uint64_t i = 0; i < n_sets; i++) {
                uint64_t low = set & -set, ripple = set + low;

                layer->sets[i] = set;
                if (i + 1 < n_sets) /* the next number with as many bits */
                        set = ripple | ((set ^ ripple) / low) >> 2;
        }
        return true;
}

static uint32_t layer_find(const struct layer *layer, uint64_t set)
{
        uint32_t low = 0, high = layer->n;

        while (low + 1 < high) {
                uint32_t middle = low + (high - low) / 2;

                if (layer->sets[middle] <= set)
                        low = middle;
                else
                        high = middle;
        }
        return layer->after[low];
}

/* The layer of the arrays with `size` items, from that with one more (or NULL). */
static bool make_layer(struct arrays *a, const struct values *v, const uint32_t *constants, uint32_t size,
                       struct layer *layer, const struct layer *more)
{
        struct tdm_schema *s = a->s;
        struct tdm_arena *arena = &s->g->arena;
        uint32_t close = tdm_expr_text(arena, "]"), items[VALUES_MAX];

        if (size > 0)
                close = tdm_expr_cat(arena, s->space, close);
        for (unsigned k = 0; more && k < v->n; k++)
                items[k] = item(a, size, constants[k]);
        for (uint32_t i = 0; i < layer->n && !s->error && !arena->failed; i++) {
                uint32_t e = size >= a->min ? close : TDM_EXPR_NONE;

                arena->steps += 4 * v->n;
                for (unsigned k = v->n; more && k-- > 0;) {
                        if (layer->sets[i] >> k & 1)
                                continue;
                        e = tdm_expr_alt(arena,
                                         tdm_expr_cat3(arena, size > 0 ? s->comma : TDM_EXPR_EPS, items[k],
                                                       layer_find(more, layer->sets[i] | UINT64_C(1) << k)),
                                         e);
                }
                layer->after[i] = e;
        }
        return !s->error && !arena->failed;
}

uint32_t tdm_schema_unique(struct arrays *a)
{
        struct tdm_schema *s = a->s;
        struct values v = { .n = 0 };
        struct layer layer = { 0 }, more = { 0 };
        uint32_t n = a->n_contains == 0 ? gather_values(a, &v) : 0, constants[VALUES_MAX], e = TDM_EXPR_NONE;
        uint64_t n_sets[VALUES_MAX + 1] = { 1 }, n_edges = 0;

        for (uint32_t size = 0; size < n && n_edges <= EDGES_MAX; size++) {
                n_edges += n_sets[size] * (v.n - size);
                n_sets[size + 1] = n_sets[size] * (v.n - size) / (size + 1);
        }
        if (!s->error && (n == 0 || n_edges > EDGES_MAX))
                (void)tdm_schema_fail(s, a->c->parts[0].node, TDM_E_UNSUPPORTED,
                                      "uniqueItems is not held but for items of few values (enum, const, boolean)");
        if (s->error)
                return TDM_EXPR_NONE;
        for (unsigned k = 0; k < v.n; k++)
                constants[k] = tdm_schema_put(s, tdm_schema_object(s, a->c->parts[0].node), "const", v.nodes[k]);
        for (uint32_t size = n + 1; size-- > 0 && !s->error;) {
                layer_deinit(&more);
                more = layer;
                layer = (struct layer){ 0 };
                if (!layer_fill(&layer, size, n_sets[size]))
                        s->error = -ENOMEM;
                else if (!make_layer(a, &v, constants, size, &layer, size < n ? &more : NULL))
                        break;
                else
                        e = layer.after[0];
        }
        layer_deinit(&layer);
        layer_deinit(&more);
        return s->error ? TDM_EXPR_NONE : tdm_expr_cat3(&s->g->arena, tdm_expr_text(&s->g->arena, "["), s->space, e);
}
