/* Negation of schemas, keyword by keyword: a value fails a schema where it fails one of its keywords. What is made are
 * schemas again, in the same tree, so that the compiler needs no second way. Their own keywords begin with \1. */
#include "engine/grammar/schema.h"

enum { DEPTH_MAX = 12, BRANCHES_MAX = 64 };

uint32_t tdm_schema_object(struct tdm_schema *s, uint32_t at)
{
        return tdm_json_add(&s->json, TDM_JSON_OBJECT, at);
}

uint32_t tdm_schema_array(struct tdm_schema *s, uint32_t at)
{
        return tdm_json_add(&s->json, TDM_JSON_ARRAY, at);
}

static uint32_t with_text(struct tdm_schema *s, enum tdm_json_type type, const char *text, uint32_t at)
{
        uint32_t node = tdm_json_add(&s->json, type, at), holder = tdm_json_add(&s->json, TDM_JSON_OBJECT, at), copy;

        /* The text is kept as a member's name is. */
        copy = tdm_json_append(&s->json, holder, text, strlen(text), node);
        if (copy == TDM_JSON_NONE)
                return copy;
        s->json.nodes[node].text = s->json.nodes[copy].key;
        s->json.nodes[node].text_size = s->json.nodes[copy].key_size;
        return node;
}

uint32_t tdm_schema_string(struct tdm_schema *s, const char *text, uint32_t at)
{
        return with_text(s, TDM_JSON_STRING, text, at);
}

uint32_t tdm_schema_number(struct tdm_schema *s, uint64_t number, uint32_t at)
{
        char text[24];

        snprintf(text, sizeof(text), "%llu", (unsigned long long)number);
        return with_text(s, TDM_JSON_NUMBER, text, at);
}

/* Returns object, for the one that makes a schema of one keyword. */
uint32_t tdm_schema_put(struct tdm_schema *s, uint32_t object, const char *name, uint32_t value)
{
        if (object == TDM_JSON_NONE || tdm_json_append(&s->json, object, name, strlen(name), value) == TDM_JSON_NONE)
                s->json.failed = true;
        return object;
}

uint32_t tdm_schema_push(struct tdm_schema *s, uint32_t array, uint32_t value)
{
        if (array == TDM_JSON_NONE || tdm_json_append(&s->json, array, NULL, 0, value) == TDM_JSON_NONE)
                s->json.failed = true;
        return array;
}

static uint32_t typed(struct tdm_schema *s, uint32_t at, const char *type)
{
        return tdm_schema_put(s, tdm_schema_object(s, at), "type", tdm_schema_string(s, type, at));
}

/* {"type": type, name: value} */
static uint32_t typed_keyword(struct tdm_schema *s, uint32_t at, const char *type, const char *name, uint32_t value)
{
        return tdm_schema_put(s, typed(s, at, type), name, value);
}

static uint32_t falsehood(struct tdm_schema *s, uint32_t at)
{
        return tdm_json_add(&s->json, TDM_JSON_FALSE, at);
}

static uint32_t not_type(struct tdm_schema *s, uint32_t at, uint32_t value)
{
        static const char *const names[] = { "null", "boolean", "integer", "\1fraction", "string", "array", "object" };
        uint32_t types = tdm_schema_array(s, at);
        bool array = tdm_json_get(&s->json, value)->type == TDM_JSON_ARRAY, any = false;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(names); i++) {
                uint32_t k = array ? tdm_json_get(&s->json, value)->first : value;
                bool named = false;

                for (; k != TDM_JSON_NONE; k = array ? tdm_json_get(&s->json, k)->next : TDM_JSON_NONE)
                        named |= tdm_json_text_is(&s->json, k, names[i]) ||
                                 ((i == 2 || i == 3) && tdm_json_text_is(&s->json, k, "number"));
                if (named)
                        continue;
                (void)tdm_schema_push(s, types, tdm_schema_string(s, names[i], at));
                any = true;
        }
        return any ? tdm_schema_put(s, tdm_schema_object(s, at), "type", types) : falsehood(s, at);
}

/* {"not": {"const": value}} */
static uint32_t not_const(struct tdm_schema *s, uint32_t at, uint32_t value)
{
        uint32_t constant = tdm_schema_put(s, tdm_schema_object(s, at), "const", value);

        return tdm_schema_put(s, tdm_schema_object(s, at), "not", constant);
}

/* Everything that differs from an array: another type, fewer or more items, or one of them differs. */
static uint32_t not_array(struct tdm_schema *s, uint32_t at, uint32_t value)
{
        uint32_t out = tdm_schema_array(s, at), n = tdm_json_get(&s->json, value)->n, index = 0;

        (void)tdm_schema_push(s, out, not_type(s, at, tdm_schema_string(s, "array", at)));
        (void)tdm_schema_push(s, out, typed_keyword(s, at, "array", "minItems", tdm_schema_number(s, n + 1, at)));
        if (n > 0)
                (void)tdm_schema_push(s, out,
                                      typed_keyword(s, at, "array", "maxItems", tdm_schema_number(s, n - 1, at)));
        for (uint32_t i = tdm_json_get(&s->json, value)->first; i != TDM_JSON_NONE && !s->json.failed;
             i = tdm_json_get(&s->json, i)->next, index++) {
                uint32_t items = tdm_schema_array(s, at), made;

                s->g->arena.steps += index;
                for (uint32_t k = 0; k < index; k++)
                        (void)tdm_schema_push(s, items, tdm_json_add(&s->json, TDM_JSON_TRUE, at));
                (void)tdm_schema_push(s, items, not_const(s, at, i));
                made = typed_keyword(s, at, "array", "prefixItems", items);
                (void)tdm_schema_push(s, out, tdm_schema_put(s, made, "minItems", tdm_schema_number(s, index + 1, at)));
        }
        return tdm_schema_put(s, tdm_schema_object(s, at), "anyOf", out);
}

/* Everything that differs from an object: another type, a member that is missing, one more, or one that differs. */
static uint32_t not_object(struct tdm_schema *s, uint32_t at, uint32_t value)
{
        uint32_t out = tdm_schema_array(s, at), n = tdm_json_get(&s->json, value)->n;
        uint32_t names = tdm_schema_array(s, at), order = tdm_schema_object(s, at), made;

        (void)tdm_schema_push(s, out, not_type(s, at, tdm_schema_string(s, "object", at)));
        for (uint32_t i = tdm_json_get(&s->json, value)->first; i != TDM_JSON_NONE && !s->json.failed;
             i = tdm_json_get(&s->json, i)->next) {
                uint32_t missing = tdm_schema_object(s, at), other = tdm_schema_object(s, at);
                uint32_t name = tdm_schema_push(s, tdm_schema_array(s, at), tdm_schema_name_of(s, i));

                (void)tdm_json_append_as(&s->json, missing, i, falsehood(s, at));
                (void)tdm_schema_push(s, out, typed_keyword(s, at, "object", "properties", missing));
                (void)tdm_json_append_as(&s->json, other, i, not_const(s, at, i));
                made = typed_keyword(s, at, "object", "properties", other);
                (void)tdm_schema_push(s, out, tdm_schema_put(s, made, "required", name));
                (void)tdm_schema_push(s, names, tdm_schema_name_of(s, i));
                (void)tdm_json_append_as(&s->json, order, i, tdm_json_add(&s->json, TDM_JSON_TRUE, at));
        }
        made = typed_keyword(s, at, "object", "minProperties", tdm_schema_number(s, n + 1, at));
        (void)tdm_schema_push(s, out, tdm_schema_put(s, made, "required", names));
        made = tdm_schema_put(s, tdm_schema_object(s, at), "properties", order); /* the members' order in a text */
        return tdm_schema_put(s, made, "anyOf", out);
}

/* None of the list's values: \1notEnum knows those that are no arrays and objects. */
static uint32_t not_values(struct tdm_schema *s, uint32_t at, uint32_t list)
{
        uint32_t all, scalars;
        bool compound = false;

        for (uint32_t i = tdm_json_get(&s->json, list)->first; i != TDM_JSON_NONE; i = tdm_json_get(&s->json, i)->next)
                compound |= tdm_json_get(&s->json, tdm_json_deref(&s->json, i))->type >= TDM_JSON_ARRAY;
        if (!compound)
                return tdm_schema_put(s, tdm_schema_object(s, at), "\1notEnum", list);
        all = tdm_schema_array(s, at);
        scalars = tdm_schema_array(s, at);
        for (uint32_t i = tdm_json_get(&s->json, list)->first; i != TDM_JSON_NONE && !s->json.failed;
             i = tdm_json_get(&s->json, i)->next) {
                uint32_t value = tdm_json_deref(&s->json, i);
                uint8_t type = tdm_json_get(&s->json, value)->type;

                s->g->arena.steps += 16;
                if (type == TDM_JSON_ARRAY)
                        (void)tdm_schema_push(s, all, not_array(s, at, value));
                else if (type == TDM_JSON_OBJECT)
                        (void)tdm_schema_push(s, all, not_object(s, at, value));
                else
                        (void)tdm_schema_push(s, scalars, value);
        }
        if (s->json.failed)
                return TDM_JSON_NONE;
        if (tdm_json_get(&s->json, scalars)->n > 0)
                (void)tdm_schema_push(s, all, tdm_schema_put(s, tdm_schema_object(s, at), "\1notEnum", scalars));
        return tdm_schema_put(s, tdm_schema_object(s, at), "allOf", all);
}

static uint32_t not_count(struct tdm_schema *s, uint32_t node, const char *type, const char *opposite, bool is_min)
{
        uint32_t count;

        if (!tdm_schema_count(s, node, &count))
                return TDM_JSON_NONE;
        if (is_min && count == 0)
                return falsehood(s, node);
        return typed_keyword(s, node, type, opposite,
                             tdm_schema_number(s, is_min ? count - 1 : (uint64_t)count + 1, node));
}

static uint32_t not_all(struct tdm_schema *s, uint32_t at, uint32_t list, const char *name)
{
        uint32_t result = tdm_schema_array(s, at);

        for (uint32_t i = tdm_json_get(&s->json, list)->first; i != TDM_JSON_NONE;
             i = tdm_json_get(&s->json, i)->next) {
                uint32_t negation = tdm_schema_negate(s, i);

                if (negation == TDM_JSON_NONE)
                        return TDM_JSON_NONE;
                (void)tdm_schema_push(s, result, negation);
        }
        return tdm_schema_put(s, tdm_schema_object(s, at), name, result);
}

/* Whether nothing fails the keyword: its schema, or all of its schemas, are `true`. */
static bool takes_all(const struct tdm_schema *s, const char *name, uint32_t value)
{
        static const char *const schemas[] = { "additionalProperties", "unevaluatedProperties", "unevaluatedItems",
                                               "additionalItems",      "propertyNames",         "items" };
        const struct tdm_json_node *n = tdm_json_get(&s->json, value);

        for (size_t i = 0; i < TDM_ARRAY_SIZE(schemas); i++)
                if (strcmp(name, schemas[i]) == 0)
                        return n->type == TDM_JSON_TRUE || (n->type == TDM_JSON_OBJECT && n->n == 0);
        if (n->type != TDM_JSON_OBJECT ||
            (strcmp(name, "patternProperties") != 0 && strcmp(name, "dependentSchemas") != 0))
                return false;
        for (uint32_t i = n->first; i != TDM_JSON_NONE; i = tdm_json_get(&s->json, i)->next)
                if (tdm_json_get(&s->json, i)->type != TDM_JSON_TRUE)
                        return false;
        return true;
}

/* Not exactly one: none of them, or two of them. */
static bool not_one(struct tdm_schema *s, uint32_t at, uint32_t list, uint32_t out)
{
        struct tdm_schema_nodes pair = { 0 };
        uint32_t none = not_all(s, at, list, "allOf"), both;

        if (none == TDM_JSON_NONE)
                return false;
        (void)tdm_schema_push(s, out, none);
        for (uint32_t i = tdm_json_get(&s->json, list)->first; i != TDM_JSON_NONE;
             i = tdm_json_get(&s->json, i)->next) {
                for (uint32_t k = tdm_json_get(&s->json, i)->next; k != TDM_JSON_NONE;
                     k = tdm_json_get(&s->json, k)->next) {
                        pair.n = 0;
                        s->g->arena.steps += 16;
                        if (s->g->arena.steps > s->g->arena.max_steps || !tdm_schema_nodes_add(s, &pair, i) ||
                            !tdm_schema_nodes_add(s, &pair, k)) {
                                free(pair.items);
                                return false;
                        }
                        if (tdm_schema_is_empty(s, &pair))
                                continue;
                        both = tdm_schema_push(s, tdm_schema_push(s, tdm_schema_array(s, at), i), k);
                        (void)tdm_schema_push(s, out, tdm_schema_put(s, tdm_schema_object(s, at), "allOf", both));
                }
        }
        free(pair.items);
        return !s->error;
}

/* One item of the prefix is there and fails its schema. */
static bool not_prefix(struct tdm_schema *s, uint32_t at, uint32_t list, uint32_t out)
{
        uint32_t index = 0;

        if (tdm_json_get(&s->json, list)->type != TDM_JSON_ARRAY)
                return false;
        for (uint32_t i = tdm_json_get(&s->json, list)->first; i != TDM_JSON_NONE;
             i = tdm_json_get(&s->json, i)->next, index++) {
                uint32_t negation = tdm_schema_negate(s, i), items = tdm_schema_array(s, at), made;

                if (negation == TDM_JSON_NONE || index > BRANCHES_MAX)
                        return false;
                for (uint32_t k = 0; k < index; k++)
                        (void)tdm_schema_push(s, items, tdm_json_add(&s->json, TDM_JSON_TRUE, at));
                (void)tdm_schema_push(s, items, negation);
                made = typed_keyword(s, at, "array", "prefixItems", items);
                (void)tdm_schema_push(s, out, tdm_schema_put(s, made, "minItems", tdm_schema_number(s, index + 1, at)));
        }
        return true;
}

/* One of the names is missing. */
static bool not_required(struct tdm_schema *s, uint32_t at, uint32_t names, uint32_t out)
{
        if (tdm_json_get(&s->json, names)->type != TDM_JSON_ARRAY)
                return false;
        for (uint32_t i = tdm_json_get(&s->json, names)->first; i != TDM_JSON_NONE;
             i = tdm_json_get(&s->json, i)->next) {
                uint32_t object, never, member;

                if (tdm_json_get(&s->json, i)->type != TDM_JSON_STRING)
                        return false;
                object = tdm_schema_object(s, at);
                never = falsehood(s, at);
                member = falsehood(s, at);
                if (member == TDM_JSON_NONE)
                        return false;
                s->json.nodes[member].key = tdm_json_get(&s->json, i)->text;
                s->json.nodes[member].key_size = tdm_json_get(&s->json, i)->text_size;
                (void)tdm_json_append_as(&s->json, object, member, never);
                (void)tdm_schema_push(s, out, typed_keyword(s, at, "object", "properties", object));
        }
        return true;
}

/* One of the members is there and fails its schema. */
static bool not_properties(struct tdm_schema *s, uint32_t at, uint32_t members, uint32_t out)
{
        if (tdm_json_get(&s->json, members)->type != TDM_JSON_OBJECT)
                return false;
        for (uint32_t i = tdm_json_get(&s->json, members)->first; i != TDM_JSON_NONE;
             i = tdm_json_get(&s->json, i)->next) {
                uint32_t negation = tdm_schema_negate(s, i), object, made, name;

                if (negation == TDM_JSON_NONE)
                        return false;
                object = tdm_schema_object(s, at);
                (void)tdm_json_append_as(&s->json, object, i, negation);
                made = typed_keyword(s, at, "object", "properties", object);
                name = tdm_json_add(&s->json, TDM_JSON_STRING, at);
                if (name == TDM_JSON_NONE)
                        return false;
                s->json.nodes[name].text = tdm_json_get(&s->json, i)->key;
                s->json.nodes[name].text_size = tdm_json_get(&s->json, i)->key_size;
                name = tdm_schema_push(s, tdm_schema_array(s, at), name);
                (void)tdm_schema_push(s, out, tdm_schema_put(s, made, "required", name));
        }
        return true;
}

/* Says the negation of a keyword that has an opposite, by that opposite. *found: it is such a keyword. NONE: its
 * negation cannot be said. */
static uint32_t opposite(struct tdm_schema *s, uint32_t owner, uint32_t node, const char *name, bool *found)
{
        static const struct {
                const char *name, *type, *opposite;
                enum { RENAMED, MINIMUM, MAXIMUM } kind; /* how the value changes: not, one less, one more */
        } opposites[] = {
                { "minLength", "string", "maxLength", MINIMUM },
                { "maxLength", "string", "minLength", MAXIMUM },
                { "minItems", "array", "maxItems", MINIMUM },
                { "maxItems", "array", "minItems", MAXIMUM },
                { "minProperties", "object", "maxProperties", MINIMUM },
                { "maxProperties", "object", "minProperties", MAXIMUM },
                { "minimum", "number", "exclusiveMaximum", RENAMED },
                { "maximum", "number", "exclusiveMinimum", RENAMED },
                { "exclusiveMinimum", "number", "maximum", RENAMED },
                { "exclusiveMaximum", "number", "minimum", RENAMED },
                { "pattern", "string", "\1notPattern", RENAMED },
                { "format", "string", "\1notFormat", RENAMED },
                { "\1notPattern", "string", "pattern", RENAMED },
                { "\1notFormat", "string", "format", RENAMED },
        };
        uint32_t value = tdm_json_deref(&s->json, node), exclusive;
        size_t i = 0;

        while (i < TDM_ARRAY_SIZE(opposites) && strcmp(name, opposites[i].name) != 0)
                i++;
        *found = i < TDM_ARRAY_SIZE(opposites);
        if (!*found)
                return TDM_JSON_NONE;
        if (opposites[i].kind != RENAMED)
                return not_count(s, node, opposites[i].type, opposites[i].opposite, opposites[i].kind == MINIMUM);
        if (tdm_json_get(&s->json, value)->type <= TDM_JSON_TRUE)
                return TDM_JSON_NONE; /* exclusiveMinimum: true of draft 4 */
        /* And a minimum beside one. */
        if (strcmp(name, "minimum") == 0 || strcmp(name, "maximum") == 0) {
                exclusive = tdm_json_member(&s->json, owner, name[1] == 'i' ? "exclusiveMinimum" : "exclusiveMaximum");
                if (exclusive != TDM_JSON_NONE && tdm_json_get(&s->json, exclusive)->type <= TDM_JSON_TRUE)
                        return TDM_JSON_NONE;
        }
        return typed_keyword(s, node, opposites[i].type, opposites[i].opposite, value);
}

/* Adds what fails one keyword to the alternatives. Returns false where that is not held. */
static bool fails(struct tdm_schema *s, uint32_t owner, uint32_t node, uint32_t out)
{
        static const char *const unsupported[] = {
                "multipleOf",       "patternProperties", "additionalProperties", "unevaluatedProperties",
                "unevaluatedItems", "additionalItems",   "uniqueItems",          "propertyNames",
                "dependentSchemas", "dependentRequired", "dependencies",         "if",
                "minContains",      "maxContains",       "$dynamicRef",          "$recursiveRef",
                "extends",          "disallow",
        };
        const struct tdm_json_node *n = tdm_json_get(&s->json, node);
        uint32_t value = tdm_json_deref(&s->json, node), made, list;
        char name[24] = "";
        bool found;

        if (n->key_size >= sizeof(name))
                return true; /* no keyword that counts has a name this long */
        memcpy(name, tdm_json_key(&s->json, node), n->key_size);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(unsupported); i++)
                if (strcmp(name, unsupported[i]) == 0)
                        return takes_all(s, name, value);
        made = opposite(s, owner, node, name, &found);
        if (found) {
                /* made is all */
        } else if (strcmp(name, "type") == 0) {
                made = not_type(s, node, value);
        } else if (strcmp(name, "const") == 0) {
                list = tdm_schema_push(s, tdm_schema_array(s, node), value);
                made = not_values(s, node, list);
        } else if (strcmp(name, "enum") == 0) {
                made = not_values(s, node, value);
        } else if (strcmp(name, "\1notEnum") == 0) {
                made = tdm_schema_put(s, tdm_schema_object(s, node), "enum", value);
        } else if (strcmp(name, "required") == 0) {
                return not_required(s, node, value, out);
        } else if (strcmp(name, "properties") == 0) {
                return not_properties(s, node, value, out);
        } else if (strcmp(name, "items") == 0) {
                if (tdm_json_get(&s->json, value)->type == TDM_JSON_ARRAY ||
                    tdm_json_member(&s->json, owner, "prefixItems") != TDM_JSON_NONE)
                        return takes_all(s, name, value);
                made = tdm_schema_negate(s, value);
                if (made != TDM_JSON_NONE)
                        made = typed_keyword(s, node, "array", "contains", made);
        } else if (strcmp(name, "contains") == 0) {
                made = tdm_schema_negate(s, value);
                if (made != TDM_JSON_NONE)
                        made = typed_keyword(s, node, "array", "items", made);
        } else if (strcmp(name, "allOf") == 0) {
                made = not_all(s, node, value, "anyOf");
        } else if (strcmp(name, "anyOf") == 0) {
                made = not_all(s, node, value, "allOf");
        } else if (strcmp(name, "oneOf") == 0) {
                return not_one(s, node, value, out);
        } else if (strcmp(name, "prefixItems") == 0) {
                return not_prefix(s, node, value, out);
        } else if (strcmp(name, "not") == 0) {
                made = value;
        } else if (strcmp(name, "\1detached") == 0) {
                made = tdm_schema_negate(s, value);
        } else if (strcmp(name, "$ref") == 0) {
                made = tdm_schema_resolve(s, node);
                made = s->error ? TDM_JSON_NONE : tdm_schema_negate(s, made);
        } else {
                return true; /* a remark: nothing fails it */
        }
        if (made == TDM_JSON_NONE)
                return false;
        (void)tdm_schema_push(s, out, made);
        return true;
}

uint32_t tdm_schema_negate(struct tdm_schema *s, uint32_t node)
{
        const struct tdm_json_node *n;
        uint32_t out, result;

        node = tdm_schema_enter(s, tdm_json_deref(&s->json, node));
        if (node == TDM_JSON_NONE)
                return node;
        n = tdm_json_get(&s->json, node);
        s->g->arena.steps += 16;
        if (s->error || s->json.failed || s->depth > DEPTH_MAX || s->g->arena.steps > s->g->arena.max_steps)
                return TDM_JSON_NONE;
        if (n->type == TDM_JSON_TRUE)
                return falsehood(s, node);
        if (n->type == TDM_JSON_FALSE)
                return tdm_json_add(&s->json, TDM_JSON_TRUE, node);
        if (n->type != TDM_JSON_OBJECT)
                return TDM_JSON_NONE;
        if (node < s->n_base_of && s->negation_of[node])
                return s->negation_of[node] - 1;
        if (s->lone_refs && tdm_json_member(&s->json, node, "$ref") != TDM_JSON_NONE) {
                s->depth++;
                result = tdm_schema_resolve(s, tdm_json_member(&s->json, node, "$ref"));
                result = s->error ? TDM_JSON_NONE : tdm_schema_negate(s, result);
                s->depth--;
                return result;
        }
        out = tdm_schema_array(s, node);
        s->depth++;
        /* Making nodes may move all of them: n is not to be used from here on. */
        for (uint32_t i = tdm_json_get(&s->json, node)->first; i != TDM_JSON_NONE;
             i = tdm_json_get(&s->json, i)->next) {
                if (!fails(s, node, i, out)) {
                        s->depth--;
                        return TDM_JSON_NONE;
                }
        }
        s->depth--;
        if (out == TDM_JSON_NONE || s->json.failed)
                return TDM_JSON_NONE;
        if (tdm_json_get(&s->json, out)->n == 0)
                result = falsehood(s, node);
        else if (tdm_json_get(&s->json, out)->n > BRANCHES_MAX)
                return TDM_JSON_NONE;
        else
                result = tdm_schema_put(s, tdm_schema_object(s, node), "anyOf", out);
        if (node < s->n_base_of)
                s->negation_of[node] = result + 1;
        return result;
}
