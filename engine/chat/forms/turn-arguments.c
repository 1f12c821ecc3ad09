/* Arguments that have marks of their own, as parts of a grammar: each property of the tool's schema in its order,
 * those that are not required may be left out. No others are written, whatever the schema says of others. */
#include "engine/chat/forms/turn-private.h"
#include "engine/grammar/compose.h"

#define DEPTH_MAX 5u         /* of arrays and objects between marks */
#define WORK_MAX (64u << 20) /* bytes of all schemas, which are read again for each property */

static const char *const type_names[] = {
        [TDM_FORM_STRING] = "string", [TDM_FORM_NUMBER] = "number", [TDM_FORM_BOOLEAN] = "boolean",
        [TDM_FORM_NULL] = "null",     [TDM_FORM_ARRAY] = "array",   [TDM_FORM_OBJECT] = "object"
};

/* A place in a tool's schema. */
struct site {
        const char *path[TDM_FORM_PATH_MAX + 2 * DEPTH_MAX + 2];
        unsigned n_path;
        uint32_t node;
};

struct work {
        struct tdm_form_builder *b;
        const struct tdm_form_tool *tool;
        const char *source; /* the tool's schema */
        size_t size;
        struct tdm_error *err;
};

static uint32_t part_cat(struct work *w, uint32_t first, uint32_t second)
{
        return tdm_composer_cat(w->b->c, first, second);
}

static int schema_refuse(struct work *w, const char *what)
{
        return tdm_error_set(w->err, TDM_E_UNSUPPORTED, "%s cannot be held in the marks of this model's calls", what);
}

/* A value of these types at a site: 0 where there is none. */
static int value_part(struct work *w, const struct site *at, const char *const *types, unsigned n_types, bool bare,
                      bool no_json, uint32_t *ret)
{
        const struct tdm_composer_value value = { .path = at->path,
                                                  .n_path = at->n_path,
                                                  .types = types,
                                                  .n_types = n_types,
                                                  .bare = bare,
                                                  .no_json = no_json,
                                                  .without = w->b->form->marks.value_end };

        w->b->spent += w->size;
        if (w->b->spent > WORK_MAX)
                return tdm_error_set(w->err, TDM_E_UNSUPPORTED,
                                     "the schemas have too many properties for their sizes: bytes times properties, of "
                                     "all tools together, are more than %u million",
                                     WORK_MAX >> 20);
        return tdm_composer_value(w->b->c, w->source, w->size, &value, ret, w->err);
}

static void mark_put(struct work *w, const char *mark, const char *key, uint32_t value, uint32_t *to)
{
        if (value != 0)
                *to = tdm_composer_alt(w->b->c, part_cat(w, tdm_form_literal(w->b, mark, w->tool->name, key), value),
                                       *to);
}

/* ---- values between marks (Gemma 4): keys are bare, strings stand between marks ---- */

static int marked_value(struct work *w, const struct site *at, unsigned depth, uint32_t *ret);

static bool site_enter(const struct site *at, const char *name, uint32_t node, struct site *ret)
{
        *ret = *at;
        if (node == TDM_JSON_NONE || at->n_path == TDM_ARRAY_SIZE(at->path))
                return false;
        ret->path[ret->n_path++] = name;
        ret->node = node;
        return true;
}

static int marked_array(struct work *w, const struct site *at, unsigned depth, uint32_t *ret)
{
        struct tdm_composer *c = w->b->c;
        struct site items;
        uint32_t item = 0, list;
        int r;

        if (tdm_form_member(&w->b->tools, at->node, "minItems") != TDM_JSON_NONE ||
            tdm_form_member(&w->b->tools, at->node, "maxItems") != TDM_JSON_NONE ||
            tdm_form_member(&w->b->tools, at->node, "uniqueItems") != TDM_JSON_NONE ||
            tdm_form_member(&w->b->tools, at->node, "contains") != TDM_JSON_NONE ||
            !site_enter(at, "items", tdm_form_member(&w->b->tools, at->node, "items"), &items))
                return schema_refuse(w, "an array without \"items\", or with limits,");
        r = marked_value(w, &items, depth + 1, &item);
        if (r != 0)
                return r;
        list = part_cat(w, tdm_composer_string(c, ","), tdm_composer_rep(c, tdm_composer_string(c, " "), 0, 1));
        list = tdm_composer_rep(c, part_cat(w, list, item), 0, UINT32_MAX);
        list = tdm_composer_rep(c, part_cat(w, item, list), 0, 1);
        *ret = part_cat(w, tdm_composer_string(c, "["), part_cat(w, list, tdm_composer_string(c, "]")));
        return 0;
}

static bool is_required(const struct tdm_json *json, uint32_t schema, uint32_t property)
{
        const struct tdm_json_node *n = tdm_json_get(json, property);
        uint32_t list = tdm_form_member(json, schema, "required");

        if (list == TDM_JSON_NONE || tdm_json_get(json, list)->type != TDM_JSON_ARRAY)
                return false;
        for (uint32_t i = tdm_json_get(json, list)->first; i != TDM_JSON_NONE; i = tdm_json_get(json, i)->next)
                if (tdm_json_get(json, i)->text_size == n->key_size &&
                    memcmp(tdm_json_text(json, i), tdm_json_key(json, property), n->key_size) == 0)
                        return true;
        return false;
}

/* What one argument may be, its name and marks included. */
static int argument_part(struct work *w, const struct site *at, const char *key, unsigned depth, uint32_t *ret);

/* Properties from the last one: sequences that begin with the first mark, and those that go on with the next one.
 * *ret_empty: none is required. */
static int properties_part(struct work *w, const struct site *at, const char *first, const char *next, unsigned depth,
                           uint32_t *ret, bool *ret_empty)
{
        const struct tdm_json *json = &w->b->tools;
        struct tdm_composer *c = w->b->c;
        uint32_t properties = tdm_form_member(json, at->node, "properties");
        uint32_t begun = tdm_composer_string(c, ""), fresh = 0, node;
        struct site in, property;
        int r;

        *ret_empty = true;
        *ret = 0;
        if (properties == TDM_JSON_NONE)
                return 0;
        if (tdm_json_get(json, properties)->type != TDM_JSON_OBJECT || !site_enter(at, "properties", properties, &in))
                return schema_refuse(w, "such \"properties\"");
        if (tdm_json_get(json, properties)->n > TDM_FORM_PROPERTIES_MAX)
                return tdm_error_set(w->err, TDM_E_UNSUPPORTED, "%u properties of one object; at most %u are taken",
                                     tdm_json_get(json, properties)->n, TDM_FORM_PROPERTIES_MAX);
        for (node = tdm_json_get(json, properties)->last; node != TDM_JSON_NONE;) {
                const struct tdm_json_node *n = tdm_json_get(json, node);
                _cleanup_(freep) char *key = strndup(tdm_json_key(json, node), n->key_size);
                bool required = is_required(json, at->node, node);
                uint32_t value = 0, with, previous = TDM_JSON_NONE;

                if (!key)
                        return -ENOMEM;
                if (strlen(key) != n->key_size || n->key_size == 0 || n->key_size > 128 ||
                    !site_enter(&in, key, node, &property))
                        return schema_refuse(w, "a property of such a name");
                r = argument_part(w, &property, key, depth, &value);
                if (r != 0)
                        return r;
                with = part_cat(w, value, begun);
                fresh = required ?
                                part_cat(w, tdm_form_literal(w->b, first, w->tool->name, key), with) :
                                tdm_composer_alt(
                                        c, part_cat(w, tdm_form_literal(w->b, first, w->tool->name, key), with), fresh);
                with = part_cat(w, tdm_form_literal(w->b, next, w->tool->name, key), with);
                begun = required ? with : tdm_composer_alt(c, with, begun);
                *ret_empty = *ret_empty && !required;
                for (uint32_t i = tdm_json_get(json, properties)->first; i != node; i = tdm_json_get(json, i)->next)
                        previous = i;
                node = previous;
        }
        *ret = fresh;
        return 0;
}

/* Keywords that say of an object what cannot be said property by property. */
static int object_check(struct work *w, uint32_t node)
{
        static const char *const keywords[] = { "$ref",
                                                "$dynamicRef",
                                                "allOf",
                                                "anyOf",
                                                "oneOf",
                                                "not",
                                                "if",
                                                "dependencies",
                                                "dependentRequired",
                                                "dependentSchemas",
                                                "minProperties",
                                                "maxProperties",
                                                "enum",
                                                "const",
                                                "propertyNames" };
        const struct tdm_json *json = &w->b->tools;
        uint32_t list = tdm_form_member(json, node, "required"), properties = tdm_form_member(json, node, "properties");

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(keywords); i++)
                if (tdm_form_member(json, node, keywords[i]) != TDM_JSON_NONE)
                        return schema_refuse(w, keywords[i]);
        if (list == TDM_JSON_NONE || tdm_json_get(json, list)->type != TDM_JSON_ARRAY)
                return 0;
        if (tdm_json_get(json, list)->n > (properties == TDM_JSON_NONE ? 0 : tdm_json_get(json, properties)->n))
                return schema_refuse(w, "\"required\" with more names than there are properties");
        for (uint32_t i = tdm_json_get(json, list)->first; i != TDM_JSON_NONE; i = tdm_json_get(json, i)->next)
                if (properties == TDM_JSON_NONE || tdm_json_get(json, i)->type != TDM_JSON_STRING ||
                    tdm_json_find(json, properties, tdm_json_text(json, i), tdm_json_get(json, i)->text_size) ==
                            TDM_JSON_NONE)
                        return schema_refuse(w, "\"required\" of a name that is no property");
        return 0;
}

static int marked_object(struct work *w, const struct site *at, unsigned depth, uint32_t *ret)
{
        struct tdm_composer *c = w->b->c;
        static const char first[] = { (char)TDM_FORM_KEY, '\0' }, next[] = { ',', (char)TDM_FORM_KEY, '\0' };
        uint32_t inside;
        bool empty;
        int r = object_check(w, at->node);

        if (r == 0)
                r = properties_part(w, at, first, next, depth + 1, &inside, &empty);
        if (r != 0)
                return r;
        if (empty)
                inside = tdm_composer_alt(c, inside, tdm_composer_string(c, ""));
        *ret = part_cat(w, tdm_composer_string(c, "{"), part_cat(w, inside, tdm_composer_string(c, "}")));
        return 0;
}

static int marked_value(struct work *w, const struct site *at, unsigned depth, uint32_t *ret)
{
        static const char *const strings[] = { "string" }, *const scalars[] = { "number", "boolean", "null" };
        const struct tdm_json *json = &w->b->tools;
        const struct tdm_form_call_marks *m = &w->b->marks.calls;
        uint32_t type = tdm_form_member(json, at->node, "type"), value = 0, quote;
        int r;

        *ret = 0;
        if (depth > DEPTH_MAX)
                return schema_refuse(w, "so deep a value");
        if (type != TDM_JSON_NONE && tdm_json_text_is(json, type, "array"))
                return marked_array(w, at, depth, ret);
        if (type != TDM_JSON_NONE && tdm_json_text_is(json, type, "object"))
                return marked_object(w, at, depth, ret);
        if (tdm_form_values_of(json, w->tool->parameters, at->node) == TDM_FORM_VALUES_MIXED && type == TDM_JSON_NONE)
                return schema_refuse(w, "a value without \"type\"");
        r = value_part(w, at, strings, 1, true, false, &value);
        if (r != 0)
                return r;
        quote = tdm_composer_string(w->b->c, m->close_string);
        if (value != 0)
                *ret = part_cat(w, quote, part_cat(w, value, quote));
        r = value_part(w, at, scalars, TDM_ARRAY_SIZE(scalars), false, false, &value);
        *ret = tdm_composer_alt(w->b->c, value, *ret);
        return r;
}

/* ---- arguments ---- */

static bool marks_differ(const struct tdm_form_call_marks *m)
{
        for (unsigned i = TDM_FORM_BOOLEAN; i < TDM_FORM_N_TYPES; i++)
                if (strcmp(m->as[i], m->as[TDM_FORM_NUMBER]) != 0)
                        return true;
        return false;
}

static int others_part(struct work *w, const struct site *at, const char *key, uint32_t *ret)
{
        const struct tdm_form_call_marks *m = &w->b->marks.calls;
        const char *const *all = type_names + TDM_FORM_NUMBER;
        unsigned n = TDM_FORM_N_TYPES - TDM_FORM_NUMBER;
        uint32_t value = 0;
        int r = 0;

        if (w->b->form->strings == TDM_FORM_STRINGS_JSON) {
                all--;
                n++;
        }
        if (!marks_differ(m)) {
                r = value_part(w, at, all, n, false, false, &value);
                mark_put(w, m->as[TDM_FORM_NUMBER], key, value, ret);
                return r;
        }
        for (unsigned i = 0; i < n && r == 0; i++) {
                value = 0;
                r = value_part(w, at, all + i, 1, false, false, &value);
                mark_put(w, m->as[all + i - type_names], key, value, ret);
        }
        return r;
}

static int argument_part(struct work *w, const struct site *at, const char *key, unsigned depth, uint32_t *ret)
{
        const struct tdm_chat_form *form = w->b->form;
        const struct tdm_form_call_marks *m = &w->b->marks.calls;
        enum tdm_form_values values = tdm_form_values_of(&w->b->tools, w->tool->parameters, at->node);
        bool differ = strcmp(m->as[TDM_FORM_STRING], m->as[TDM_FORM_NUMBER]) != 0;
        uint32_t value = 0;
        int r = 0;

        if (form->strings == TDM_FORM_STRINGS_MARKED) {
                r = marked_value(w, at, depth, &value);
                mark_put(w, depth > 0 ? ":" : m->as[TDM_FORM_NUMBER], key, value, ret);
                return r;
        }
        if (form->strings == TDM_FORM_STRINGS_BARE && values != TDM_FORM_VALUES_OTHERS) {
                r = value_part(w, at, type_names, 1, true, values == TDM_FORM_VALUES_MIXED && !differ, &value);
                mark_put(w, m->as[TDM_FORM_STRING], key, value, ret);
        }
        if (r == 0 && (form->strings == TDM_FORM_STRINGS_JSON || values != TDM_FORM_VALUES_STRINGS))
                r = others_part(w, at, key, ret);
        return r;
}

int tdm_form_arguments(struct tdm_form_builder *b, struct tdm_form_tool *tool, const char *source, size_t size,
                       struct tdm_error *err)
{
        struct work w = { .b = b, .tool = tool, .source = source, .size = size, .err = err };
        _cleanup_(freep) char *open = NULL, *next = NULL;
        struct tdm_form_place place;
        struct site at = { 0 };
        int r;

        tool->takes_nothing = true;
        if (tool->parameters == TDM_JSON_NONE)
                return b->marks.calls.empty_after ? 0 : schema_refuse(&w, "a call without arguments");
        tdm_form_place_find(&b->tools, tool->parameters, &place);
        if (place.node == TDM_JSON_NONE || tdm_json_get(&b->tools, place.node)->type != TDM_JSON_OBJECT)
                return schema_refuse(&w, "a reference that is not to a member of the schema");
        memcpy(at.path, place.path, sizeof(place.path));
        at.n_path = place.n_path;
        at.node = place.node;
        if (asprintf(&open, "%s%c", b->marks.calls.open, TDM_FORM_KEY) < 0 ||
            asprintf(&next, "%s%c", b->marks.calls.next, TDM_FORM_KEY) < 0)
                return -ENOMEM;
        r = object_check(&w, at.node);
        if (r == 0)
                r = properties_part(&w, &at, open, next, 0, &tool->arguments, &tool->takes_nothing);
        if (r == 0 && tool->arguments == 0 && !b->marks.calls.empty_after)
                return schema_refuse(&w, "a call without arguments");
        return r;
}
