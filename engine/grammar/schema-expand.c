/* Taking a conjunction of schemas apart into cases: what is certain is added to the case, what is a choice is tried one
 * alternative after the other. All choices are brought to one form, an array of schemas of which one is taken. */
#include "engine/grammar/schema.h"
#include "engine/grammar/number.h"

enum { CASES_MAX = 20000, PARTS_MAX = 4000, SUBSETS_MAX = 6 };

struct choice {
        uint32_t alternatives; /* an array node */
        int32_t part;
};

struct expansion {
        struct tdm_schema *s;
        struct tdm_schema_case c;
        struct choice *choices;
        uint32_t n_choices, choices_capacity;
        unsigned depth;
        bool dead;
        void (*take)(void *userdata, const struct tdm_schema_case *c);
        void *userdata;
};

static void expansion_add(struct expansion *x, uint32_t node, int32_t parent);

static bool key_is(const struct tdm_schema *s, uint32_t node, const char *name)
{
        const struct tdm_json_node *n = tdm_json_get(&s->json, node);

        return n->key_size == strlen(name) && memcmp(tdm_json_key(&s->json, node), name, n->key_size) == 0;
}

static uint8_t type_named(const struct tdm_schema *s, uint32_t node)
{
        static const struct {
                const char *name;
                uint8_t types;
        } names[] = {
                { "null", TDM_SCHEMA_NULL },       { "boolean", TDM_SCHEMA_FALSE | TDM_SCHEMA_TRUE },
                { "integer", TDM_SCHEMA_INTEGER }, { "number", TDM_SCHEMA_INTEGER | TDM_SCHEMA_FRACTION },
                { "string", TDM_SCHEMA_STRING },   { "array", TDM_SCHEMA_ARRAY },
                { "object", TDM_SCHEMA_OBJECT },   { "\1fraction", TDM_SCHEMA_FRACTION },
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(names); i++)
                if (tdm_json_text_is(&s->json, node, names[i].name))
                        return names[i].types;
        return 0;
}

static uint8_t types_named(struct tdm_schema *s, uint32_t node)
{
        const struct tdm_json_node *n = tdm_json_get(&s->json, node);
        uint8_t types = type_named(s, node);

        if (n->type == TDM_JSON_ARRAY) {
                for (uint32_t i = n->first; i != TDM_JSON_NONE; i = tdm_json_get(&s->json, i)->next) {
                        uint8_t one = type_named(s, i);

                        if (!one)
                                (void)tdm_schema_fail(s, i, TDM_E_BAD_REQUEST, "there is no such type");
                        types |= one;
                }
        } else if (!types) {
                (void)tdm_schema_fail(s, node, TDM_E_BAD_REQUEST, "there is no such type");
        }
        return types;
}

static uint8_t type_of_value(const struct tdm_schema *s, uint32_t node)
{
        struct tdm_decimal d;

        node = tdm_json_deref(&s->json, node);
        switch (tdm_json_get(&s->json, node)->type) {
        case TDM_JSON_NULL:
                return TDM_SCHEMA_NULL;
        case TDM_JSON_FALSE:
                return TDM_SCHEMA_FALSE;
        case TDM_JSON_TRUE:
                return TDM_SCHEMA_TRUE;
        case TDM_JSON_NUMBER:
                if (!tdm_decimal_parse(&d, tdm_json_text(&s->json, node), tdm_json_get(&s->json, node)->text_size))
                        return TDM_SCHEMA_INTEGER | TDM_SCHEMA_FRACTION;
                return tdm_decimal_is_integer(&d) ? TDM_SCHEMA_INTEGER : TDM_SCHEMA_FRACTION;
        case TDM_JSON_STRING:
                return TDM_SCHEMA_STRING;
        case TDM_JSON_ARRAY:
                return TDM_SCHEMA_ARRAY;
        default:
                return TDM_SCHEMA_OBJECT;
        }
}

static void choose(struct expansion *x, uint32_t alternatives, int32_t part)
{
        if (x->n_choices == x->choices_capacity) {
                uint32_t capacity = TDM_MAX(x->choices_capacity * 2, 8u);
                struct choice *choices = realloc(x->choices, capacity * sizeof(*choices));

                if (!choices) {
                        x->s->error = x->s->error ? x->s->error : -ENOMEM;
                        return;
                }
                x->choices = choices;
                x->choices_capacity = capacity;
        }
        x->choices[x->n_choices++] = (struct choice){ alternatives, part };
}

static bool is_array(struct expansion *x, uint32_t node)
{
        const struct tdm_json_node *n = tdm_json_get(&x->s->json, node);

        if (n->type == TDM_JSON_ARRAY &&
            (n->n > 0 || !tdm_schema_is_parsed(x->s, node))) /* the compiler's own may be empty */
                return true;
        (void)tdm_schema_fail(x->s, node, TDM_E_BAD_REQUEST, "must be an array of schemas, and not an empty one");
        return false;
}

/* ---- rewriting choices ---- */

static uint32_t cached(const struct tdm_schema *s, uint32_t node)
{
        return node < s->n_base_of && s->choice_of[node] ? s->choice_of[node] - 1 : TDM_JSON_NONE;
}

static uint32_t expansion_keep(struct tdm_schema *s, uint32_t node, uint32_t made)
{
        if (node < s->n_base_of)
                s->choice_of[node] = made + 1;
        return made;
}

/* {"allOf": […]} with one member. */
static uint32_t all_of(struct tdm_schema *s, uint32_t at, uint32_t *ret_list)
{
        uint32_t object = tdm_schema_object(s, at);

        *ret_list = tdm_schema_array(s, at);
        return tdm_schema_put(s, object, "allOf", *ret_list);
}

/* anyOf where it matters which of them hold (unevaluated…): one alternative for each set of schemas. */
static uint32_t any_subsets(struct tdm_schema *s, uint32_t node)
{
        const struct tdm_json_node *n = tdm_json_get(&s->json, node);
        uint32_t found = cached(s, node), result, size = n->n;

        if (found != TDM_JSON_NONE)
                return found;
        if (size > SUBSETS_MAX) {
                (void)tdm_schema_fail(s, node, TDM_E_UNSUPPORTED,
                                      "more than %d alternatives together with unevaluated… are not held", SUBSETS_MAX);
                return node;
        }
        result = tdm_schema_array(s, node);
        for (uint32_t set = 1; set < 1u << size; set++) {
                uint32_t list, object = all_of(s, node, &list), k = 0;

                for (uint32_t i = tdm_json_get(&s->json, node)->first; i != TDM_JSON_NONE;
                     i = tdm_json_get(&s->json, i)->next, k++)
                        if (set >> k & 1)
                                (void)tdm_schema_push(s, list, i);
                (void)tdm_schema_push(s, result, object);
        }
        return expansion_keep(s, node, result);
}

/* The schema that `node`, a oneOf, stands in, without it: what both of two branches have to satisfy as well. */
static uint32_t surroundings(struct tdm_schema *s, uint32_t node)
{
        uint32_t owner = tdm_json_get(&s->json, node)->parent, object = tdm_schema_object(s, node);

        for (uint32_t i = tdm_json_get(&s->json, owner)->first; i != TDM_JSON_NONE;
             i = tdm_json_get(&s->json, i)->next) {
                if (key_is(s, i, "type") || key_is(s, i, "properties") || key_is(s, i, "required") ||
                    key_is(s, i, "additionalProperties"))
                        (void)tdm_json_append_as(&s->json, object, i, i);
        }
        return object;
}

/* oneOf: branches of which no two can hold together are taken as they are; of those that may, each with the negation of
 * the others. */
static uint32_t exactly_one(struct tdm_schema *s, uint32_t node)
{
        struct tdm_schema_nodes branches = { 0 }, pair = { 0 };
        uint32_t result = cached(s, node), around, n;

        if (result != TDM_JSON_NONE)
                return result;
        for (uint32_t i = tdm_json_get(&s->json, node)->first; i != TDM_JSON_NONE; i = tdm_json_get(&s->json, i)->next)
                (void)tdm_schema_nodes_add(s, &branches, i);
        n = branches.n;
        around = n > 1 && tdm_json_get(&s->json, node)->parent != TDM_JSON_NONE ? surroundings(s, node) : TDM_JSON_NONE;
        result = tdm_schema_array(s, node);
        for (uint32_t i = 0; i < n && !s->error; i++) {
                uint32_t list, object = all_of(s, node, &list);

                (void)tdm_schema_push(s, list, branches.items[i]);
                for (uint32_t k = 0; k < n && !s->error; k++) {
                        uint32_t wrapped, negation;

                        s->g->arena.steps += 16;
                        if (s->g->arena.steps > s->g->arena.max_steps) {
                                s->error = tdm_grammar_too_large(s->g, s->err);
                                break;
                        }
                        if (k == i)
                                continue;
                        pair.n = 0;
                        (void)tdm_schema_nodes_add(s, &pair, branches.items[TDM_MIN(i, k)]);
                        (void)tdm_schema_nodes_add(s, &pair, branches.items[TDM_MAX(i, k)]);
                        if (around != TDM_JSON_NONE)
                                (void)tdm_schema_nodes_add(s, &pair, around);
                        if (tdm_schema_is_empty(s, &pair))
                                continue;
                        negation = s->error ? TDM_JSON_NONE : tdm_schema_negate(s, branches.items[k]);
                        if (negation == TDM_JSON_NONE) {
                                (void)tdm_schema_fail(s, node, TDM_E_UNSUPPORTED,
                                                      "oneOf whose schemas %u and %u may hold together is not held",
                                                      TDM_MIN(i, k), TDM_MAX(i, k));
                                break;
                        }
                        wrapped = tdm_schema_object(s, node);
                        (void)tdm_schema_put(s, wrapped, "\1detached", negation);
                        (void)tdm_schema_push(s, list, wrapped);
                }
                (void)tdm_schema_push(s, result, object);
        }
        free(branches.items);
        free(pair.items);
        return expansion_keep(s, node, result);
}

static uint32_t if_then_else(struct tdm_schema *s, uint32_t condition)
{
        uint32_t owner = tdm_json_get(&s->json, condition)->parent, result = cached(s, condition), list, object,
                 negation;
        uint32_t yes = tdm_json_member(&s->json, owner, "then"), no = tdm_json_member(&s->json, owner, "else");

        if (result != TDM_JSON_NONE)
                return result;
        negation = tdm_schema_negate(s, condition);
        if (s->error)
                return condition;
        if (negation == TDM_JSON_NONE) {
                (void)tdm_schema_fail(s, condition, TDM_E_UNSUPPORTED, "an if that cannot be negated is not held");
                return condition;
        }
        result = tdm_schema_array(s, condition);
        object = all_of(s, condition, &list);
        (void)tdm_schema_push(s, list, condition);
        if (yes != TDM_JSON_NONE)
                (void)tdm_schema_push(s, list, yes);
        (void)tdm_schema_push(s, result, object);
        object = all_of(s, condition, &list);
        (void)tdm_schema_put(s, object, "\1detached", negation);
        if (no != TDM_JSON_NONE)
                (void)tdm_schema_push(s, list, no);
        (void)tdm_schema_push(s, result, object);
        return expansion_keep(s, condition, result);
}

uint32_t tdm_schema_name_of(struct tdm_schema *s, uint32_t member)
{
        uint32_t text = tdm_json_add(&s->json, TDM_JSON_STRING, member);

        if (text != TDM_JSON_NONE) {
                s->json.nodes[text].text = tdm_json_get(&s->json, member)->key;
                s->json.nodes[text].text_size = tdm_json_get(&s->json, member)->key_size;
        }
        return text;
}

/* One entry of dependentSchemas, dependentRequired or dependencies: without the member, or with it and what it
 * needs. */
static uint32_t depends(struct tdm_schema *s, uint32_t entry)
{
        uint32_t result = cached(s, entry), absent, present, object, list, value = tdm_json_deref(&s->json, entry);

        if (result != TDM_JSON_NONE)
                return result;
        result = tdm_schema_array(s, entry);
        absent = tdm_schema_object(s, entry);
        object = tdm_schema_object(s, entry);
        (void)tdm_json_append_as(&s->json, object, entry, tdm_json_add(&s->json, TDM_JSON_FALSE, entry));
        (void)tdm_schema_put(s, absent, "properties", object);
        (void)tdm_schema_push(s, result, absent);
        present = all_of(s, entry, &list);
        object = tdm_schema_array(s, entry);
        (void)tdm_schema_push(s, object, tdm_schema_name_of(s, entry));
        (void)tdm_schema_put(s, present, "required", object);
        (void)tdm_schema_put(s, present, "type", tdm_schema_string(s, "object", entry));
        if (tdm_json_get(&s->json, value)->type == TDM_JSON_ARRAY) {
                object = tdm_schema_object(s, entry);
                (void)tdm_schema_put(s, object, "required", value);
        } else if (tdm_json_get(&s->json, value)->type == TDM_JSON_STRING) { /* draft 3 */
                uint32_t names = tdm_schema_array(s, entry);

                object = tdm_schema_object(s, entry);
                (void)tdm_schema_push(s, names, value);
                (void)tdm_schema_put(s, object, "required", names);
        } else {
                object = value;
        }
        (void)tdm_schema_push(s, list, object);
        (void)tdm_schema_push(s, result, present);
        return expansion_keep(s, entry, result);
}

/* An array or object as a constant: the schema that takes just it. */
static uint32_t exactly(struct tdm_schema *s, uint32_t value)
{
        uint32_t object = tdm_schema_object(s, value), inner, names, one;
        uint32_t child;

        value = tdm_json_deref(&s->json, value);
        if (tdm_json_get(&s->json, value)->type == TDM_JSON_ARRAY) {
                inner = tdm_schema_array(s, value);
                for (child = tdm_json_get(&s->json, value)->first; child != TDM_JSON_NONE;
                     child = tdm_json_get(&s->json, child)->next) {
                        one = tdm_schema_object(s, value);
                        (void)tdm_schema_put(s, one, "const", child);
                        (void)tdm_schema_push(s, inner, one);
                }
                (void)tdm_schema_put(s, object, "type", tdm_schema_string(s, "array", value));
                (void)tdm_schema_put(s, object, "prefixItems", inner);
                (void)tdm_schema_put(s, object, "items", tdm_json_add(&s->json, TDM_JSON_FALSE, value));
                (void)tdm_schema_put(s, object, "minItems",
                                     tdm_schema_number(s, tdm_json_get(&s->json, value)->n, value));
                return object;
        }
        inner = tdm_schema_object(s, value);
        names = tdm_schema_array(s, value);
        for (child = tdm_json_get(&s->json, value)->first; child != TDM_JSON_NONE && !s->json.failed;
             child = tdm_json_get(&s->json, child)->next) {
                one = tdm_schema_object(s, value);
                (void)tdm_schema_put(s, one, "const", child);
                (void)tdm_schema_push(s, names, tdm_schema_name_of(s, child));
                (void)tdm_json_append_as(&s->json, inner, child, one);
        }
        (void)tdm_schema_put(s, object, "type", tdm_schema_string(s, "object", value));
        (void)tdm_schema_put(s, object, "properties", inner);
        (void)tdm_schema_put(s, object, "required", names);
        (void)tdm_schema_put(s, object, "additionalProperties", tdm_json_add(&s->json, TDM_JSON_FALSE, value));
        return object;
}

/* enum or const with arrays or objects among its values: those become schemas. */
static uint32_t compound_values(struct tdm_schema *s, uint32_t node)
{
        uint32_t result = cached(s, node), value = tdm_json_deref(&s->json, node), scalars, one;
        bool is_const = key_is(s, node, "const");

        if (result != TDM_JSON_NONE)
                return result;
        result = tdm_schema_array(s, node);
        if (is_const) {
                (void)tdm_schema_push(s, result, exactly(s, value));
                return expansion_keep(s, node, result);
        }
        scalars = tdm_schema_array(s, node);
        for (uint32_t i = tdm_json_get(&s->json, value)->first; i != TDM_JSON_NONE;
             i = tdm_json_get(&s->json, i)->next) {
                if (type_of_value(s, i) & (TDM_SCHEMA_ARRAY | TDM_SCHEMA_OBJECT))
                        (void)tdm_schema_push(s, result, exactly(s, i));
                else
                        (void)tdm_schema_push(s, scalars, i);
        }
        one = tdm_schema_object(s, node);
        (void)tdm_schema_put(s, one, "enum", scalars);
        if (scalars != TDM_JSON_NONE && tdm_json_get(&s->json, scalars)->n > 0)
                (void)tdm_schema_push(s, result, one);
        return expansion_keep(s, node, result);
}

static void add_values(struct expansion *x, uint32_t node, int32_t part)
{
        struct tdm_schema *s = x->s;
        bool is_const = key_is(s, node, "const");
        uint32_t value = tdm_json_deref(&s->json, node);
        uint8_t types = 0;

        if (is_const) {
                types = type_of_value(s, value);
        } else if (tdm_json_get(&s->json, value)->type == TDM_JSON_ARRAY) {
                for (uint32_t i = tdm_json_get(&s->json, value)->first; i != TDM_JSON_NONE;
                     i = tdm_json_get(&s->json, i)->next)
                        types |= type_of_value(s, i);
        } else {
                (void)tdm_schema_fail(s, node, TDM_E_BAD_REQUEST, "enum must be an array");
        }
        x->c.types &= types;
        if (types & (TDM_SCHEMA_ARRAY | TDM_SCHEMA_OBJECT))
                choose(x, compound_values(s, node), part);
}

/* ---- one schema's keywords ---- */

/* Whether it matters to an unevaluated… what the schemas at part evaluate. */
static bool is_watched(const struct expansion *x, int32_t part)
{
        const struct tdm_json *json = &x->s->json;

        for (int32_t i = x->s->has_unevaluated ? part : -1; i >= 0; i = x->c.parts[i].parent)
                if (tdm_json_member(json, x->c.parts[i].node, "unevaluatedProperties") != TDM_JSON_NONE ||
                    tdm_json_member(json, x->c.parts[i].node, "unevaluatedItems") != TDM_JSON_NONE)
                        return true;
        return false;
}

static const char *const not_held[] = { "extends", "disallow", "divisibleBy", "$recursiveAnchor" };

static void add_keyword(struct expansion *x, uint32_t node, int32_t part)
{
        struct tdm_schema *s = x->s;
        uint32_t value = tdm_json_deref(&s->json, node), i;

        if (key_is(s, node, "type")) {
                x->c.types &= types_named(s, value);
        } else if (key_is(s, node, "enum") || key_is(s, node, "const")) {
                add_values(x, node, part);
        } else if (key_is(s, node, "$ref") || key_is(s, node, "$dynamicRef") || key_is(s, node, "$recursiveRef")) {
                i = tdm_schema_resolve(s, node);
                if (!s->error)
                        expansion_add(x, i, part);
        } else if (key_is(s, node, "allOf")) {
                if (!is_array(x, value))
                        return;
                for (i = tdm_json_get(&s->json, value)->first; i != TDM_JSON_NONE && !s->error && !x->dead;
                     i = tdm_json_get(&s->json, i)->next)
                        expansion_add(x, i, part);
        } else if (key_is(s, node, "anyOf")) {
                if (is_array(x, value))
                        choose(x, is_watched(x, part) ? any_subsets(s, value) : value, part);
        } else if (key_is(s, node, "oneOf")) {
                if (is_array(x, value))
                        choose(x, exactly_one(s, value), part);
        } else if (key_is(s, node, "not")) {
                i = tdm_schema_negate(s, value);
                if (i == TDM_JSON_NONE)
                        (void)tdm_schema_fail(s, node, TDM_E_UNSUPPORTED, "this not is not held");
                else if (!s->error)
                        expansion_add(x, i, -1);
        } else if (key_is(s, node, "\1detached")) {
                expansion_add(x, value, -1);
        } else if (key_is(s, node, "if")) {
                i = tdm_json_get(&s->json, node)->parent;
                if (tdm_json_member(&s->json, i, "then") != TDM_JSON_NONE ||
                    tdm_json_member(&s->json, i, "else") != TDM_JSON_NONE || is_watched(x, part))
                        choose(x, if_then_else(s, node), part);
        } else if (key_is(s, node, "dependentSchemas") || key_is(s, node, "dependentRequired") ||
                   key_is(s, node, "dependencies")) {
                if (tdm_json_get(&s->json, value)->type != TDM_JSON_OBJECT) {
                        (void)tdm_schema_fail(s, node, TDM_E_BAD_REQUEST, "must be an object");
                        return;
                }
                for (i = tdm_json_get(&s->json, value)->first; i != TDM_JSON_NONE && !s->error;
                     i = tdm_json_get(&s->json, i)->next)
                        choose(x, depends(s, i), part);
        } else {
                for (i = 0; i < TDM_ARRAY_SIZE(not_held); i++)
                        if (key_is(s, node, not_held[i]))
                                (void)tdm_schema_fail(s, node, TDM_E_UNSUPPORTED, "'%s' is not held", not_held[i]);
        }
}

static void expansion_add(struct expansion *x, uint32_t node, int32_t parent)
{
        struct tdm_schema *s = x->s;
        const struct tdm_json_node *n;
        int32_t part;

        node = tdm_schema_enter(s, tdm_json_deref(&s->json, node));
        if (x->dead || s->error || node == TDM_JSON_NONE)
                return;
        n = tdm_json_get(&s->json, node);
        s->g->arena.steps += 8;
        if (n->type == TDM_JSON_TRUE)
                return;
        if (n->type == TDM_JSON_FALSE) {
                x->dead = true;
                return;
        }
        if (n->type != TDM_JSON_OBJECT) {
                (void)tdm_schema_fail(s, node, TDM_E_BAD_REQUEST, "a schema is an object or a boolean");
                return;
        }
        for (int32_t i = parent; i >= 0; i = x->c.parts[i].parent) {
                if (x->c.parts[i].node == node) {
                        (void)tdm_schema_fail(s, node, TDM_E_UNSUPPORTED, "its references lead back to itself");
                        return;
                }
        }
        for (uint32_t i = 0; i < x->c.n && !s->has_unevaluated; i++)
                if (x->c.parts[i].node == node)
                        return;
        if (x->c.n == x->c.capacity) {
                uint32_t capacity = TDM_MAX(x->c.capacity * 2, 16u);
                struct tdm_schema_part *parts = realloc(x->c.parts, capacity * sizeof(*parts));

                if (!parts || capacity > PARTS_MAX || x->depth > 100) {
                        if (parts)
                                x->c.parts = parts;
                        (void)tdm_schema_fail(s, node, TDM_E_UNSUPPORTED, "too many schemas apply at the same place");
                        return;
                }
                x->c.parts = parts;
                x->c.capacity = capacity;
        }
        if (s->lone_refs) {
                uint32_t ref = tdm_json_member(&s->json, node, "$ref");

                if (ref != TDM_JSON_NONE && tdm_json_get(&s->json, ref)->type == TDM_JSON_STRING) {
                        uint32_t target = tdm_schema_resolve(s, ref);

                        x->depth++;
                        if (x->depth > 100)
                                (void)tdm_schema_fail(s, node, TDM_E_UNSUPPORTED, "its references lead back to itself");
                        if (!s->error)
                                expansion_add(x, target, parent);
                        x->depth--;
                        return;
                }
        }
        part = (int32_t)x->c.n;
        x->c.parts[x->c.n++] = (struct tdm_schema_part){ node, parent };
        x->depth++;
        for (uint32_t i = n->first; i != TDM_JSON_NONE && !s->error && !x->dead; i = tdm_json_get(&s->json, i)->next)
                add_keyword(x, i, part);
        x->depth--;
        if (x->c.types == 0)
                x->dead = true;
}

static void take_choices(struct expansion *x, uint32_t from)
{
        struct tdm_schema *s = x->s;
        uint32_t n_parts = x->c.n, n_choices = x->n_choices;
        uint8_t types = x->c.types;
        struct choice choice;

        if (x->dead || s->error)
                return;
        if (++s->n_cases > CASES_MAX || s->g->arena.steps > s->g->arena.max_steps || s->json.failed) {
                if (!s->error)
                        s->error = tdm_error_set(s->err, TDM_E_UNSUPPORTED,
                                                 "schema: its alternatives multiply to more than %d cases", CASES_MAX);
                return;
        }
        if (from == x->n_choices) {
                x->take(x->userdata, &x->c);
                return;
        }
        choice = x->choices[from];
        for (uint32_t i = tdm_json_get(&s->json, choice.alternatives)->first; i != TDM_JSON_NONE && !s->error;
             i = tdm_json_get(&s->json, i)->next) {
                expansion_add(x, i, choice.part);
                take_choices(x, from + 1);
                x->dead = false;
                x->c.n = n_parts;
                x->c.types = types;
                x->n_choices = n_choices;
        }
}

void tdm_schema_expand(struct tdm_schema *s, const struct tdm_schema_nodes *nodes,
                       void (*take)(void *userdata, const struct tdm_schema_case *c), void *userdata)
{
        struct expansion x = { .s = s, .c.types = TDM_SCHEMA_ALL, .take = take, .userdata = userdata };

        for (uint32_t i = 0; i < nodes->n; i++)
                expansion_add(&x, nodes->items[i], -1);
        take_choices(&x, 0);
        free(x.c.parts);
        free(x.choices);
}
