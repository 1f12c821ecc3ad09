/* See format.h. */
#include "http-gateway/format.h"

#include "http-gateway/params.h"

#define ANY_OBJECT "{\"type\":\"object\"}"

static int take_schema(struct generation_request *r, const json_t *schema, const char *name, struct failure *f)
{
        struct buffer text = { 0 };

        if (!json_is_object(schema) && !json_is_boolean(schema))
                return failure_set(f, 400, schema ? "invalid_type" : "missing_required_parameter", name,
                                   "'%s' has to be a JSON Schema", name);
        /* Members stay in their order, which is the order of the answer's. */
        exact_write(&text, &r->numbers, schema);
        if (text.failed) {
                buffer_free(&text);
                return failure_set(f, 503, "no_memory", NULL, "no memory for this request");
        }
        r->schema = text.data;
        r->options.json_schema = r->schema;
        return 0;
}

/* A format by its type. inside: the member of it that holds the schema of "json_schema"; NULL: the format itself does.
 * llama.cpp's clients give "json_object" a schema too. */
static int take_typed(struct generation_request *r, const json_t *format, const char *name, const char *inside,
                      struct failure *f)
{
        static const char *const of_text[] = { "type", NULL }, *const of_object[] = { "type", "schema", NULL },
                                 *const of_holder[] = { "type", "json_schema", NULL },
                                 *const of_schema[] = { "schema", "name", "description", "strict", NULL },
                                 *const of_flat[] = { "type", "schema", "name", "description", "strict", NULL };
        const char *type = json_get_string(format, "type", NULL);
        const json_t *holder = format;
        char path[96];

        if (!json_is_object(format) || !type)
                return failure_set(f, 400, "invalid_value", name, "'%s' has to be an object with a \"type\"", name);
        if (strcmp(type, "text") == 0)
                return json_check_members(format, name, of_text, f);
        snprintf(path, sizeof(path), "%s.schema", name);
        if (strcmp(type, "json_object") == 0) {
                if (json_check_members(format, name, of_object, f) != 0)
                        return f->status;
                if (json_get(format, "schema"))
                        return take_schema(r, json_get(format, "schema"), path, f);
                r->options.json_schema = ANY_OBJECT;
                return 0;
        }
        if (strcmp(type, "json_schema") != 0)
                return failure_set(f, 400, "invalid_value", name,
                                   "'%s.type' has to be text, json_object or json_schema, not '%.40s'", name, type);
        snprintf(path, sizeof(path), "%s%s%s", name, inside ? "." : "", inside ? inside : "");
        if (inside && json_check_members(format, name, of_holder, f) != 0)
                return f->status;
        if (inside)
                holder = json_get(format, inside);
        if (!json_is_object(holder))
                return failure_set(f, 400, "missing_required_parameter", path, "'%s' is missing", path);
        if (json_check_members(holder, path, inside ? of_schema : of_flat, f) != 0)
                return f->status;
        snprintf(path + strlen(path), sizeof(path) - strlen(path), ".schema");
        return take_schema(r, json_get(holder, "schema"), path, f);
}

int request_take_response_format(struct generation_request *r, struct failure *f)
{
        const json_t *format = json_get(r->json, "response_format");

        return format ? take_typed(r, format, "response_format", "json_schema", f) : 0;
}

int request_take_flat_format(struct generation_request *r, const char *key, struct failure *f)
{
        const json_t *format = json_get(r->json, key);

        return format ? take_typed(r, format, key, NULL, f) : 0;
}

int request_take_nested_format(struct generation_request *r, const char *key, struct failure *f)
{
        const json_t *holder = json_get(r->json, key);
        const char *member;
        char path[64];
        json_t *value;

        if (!holder)
                return 0;
        json_object_foreach((json_t *)(uintptr_t)holder, member, value)
        {
                bool usual = strcmp(key, "text") == 0 && strcmp(member, "verbosity") == 0 && json_is_string(value);

                if (strcmp(key, "output_config") == 0 && strcmp(member, "effort") == 0)
                        continue; /* of thinking */

                if (strcmp(member, "format") != 0 && !json_is_null(value) && !usual)
                        return failure_set(f, 400, "unsupported_parameter", key,
                                           "'%s.%.40s' cannot be taken: no model has this", key, member);
        }
        snprintf(path, sizeof(path), "%s.format", key);
        return json_get(holder, "format") ? take_typed(r, json_get(holder, "format"), path, NULL, f) : 0;
}

int request_take_ollama_format(struct generation_request *r, struct failure *f)
{
        const json_t *format = json_get(r->json, "format");

        if (!format || (json_is_string(format) && json_string_length(format) == 0))
                return 0;
        if (json_is_string(format) && strcmp(json_string_value(format), "json") == 0) {
                r->options.json_schema = ANY_OBJECT;
                return 0;
        }
        if (!json_is_object(format))
                return failure_set(f, 400, "invalid_value", "format", "'format' has to be \"json\" or a JSON Schema");
        return take_schema(r, format, "format", f);
}

int request_take_grammar(struct generation_request *r, struct failure *f)
{
        static const char *const keys[] = { "grammar", "regex" };
        const char **const to[] = { &r->options.grammar, &r->options.regex };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(keys); i++) {
                const char *text = json_get_string(r->json, keys[i], "");

                if (!text[0])
                        continue;
                if (r->options.json_schema || r->options.grammar)
                        return failure_set(f, 400, "invalid_value", keys[i],
                                           "an answer follows one of response_format, grammar and regex, not several");
                *to[i] = text;
        }
        return 0;
}
