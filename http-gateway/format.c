/* See format.h. */
#include "http-gateway/format.h"

#include "http-gateway/params.h"

#define ANY_OBJECT "{\"type\":\"object\"}"
/* Digits with which a double is written. 15 give a decimal back that had at most as many, as `0.1` has. 17 tell all
 * doubles apart. */
#define DIGITS_SHORT 15
#define DIGITS_EXACT 17

/* Every number of it is the same when it is written with few digits. */
static bool is_short(const json_t *value)
{
        const char *key;
        char text[64];
        json_t *part;
        size_t i;

        if (json_is_real(value)) {
                snprintf(text, sizeof(text), "%.*g", DIGITS_SHORT, json_real_value(value));
                return strtod(text, NULL) == json_real_value(value);
        }
        json_array_foreach((json_t *)(uintptr_t)value, i, part)
        {
                if (!is_short(part))
                        return false;
        }
        json_object_foreach((json_t *)(uintptr_t)value, key, part)
        {
                if (!is_short(part))
                        return false;
        }
        return true;
}

static int take_schema(struct generation_request *r, const json_t *schema, const char *name, struct failure *f)
{
        if (!json_is_object(schema) && !json_is_boolean(schema))
                return failure_set(f, 400, schema ? "invalid_type" : "missing_required_parameter", name,
                                   "'%s' has to be a JSON Schema", name);
        /* Members stay in their order, which is the order of the answer's. */
        r->schema = json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY |
                                               JSON_REAL_PRECISION(is_short(schema) ? DIGITS_SHORT : DIGITS_EXACT));
        if (!r->schema)
                return failure_set(f, 503, "no_memory", NULL, "no memory for this request");
        r->options.json_schema = r->schema;
        return 0;
}

/* A format by its type. schema: where that of "json_schema" stands, in `inside` of the format or in the format itself.
 */
static int take_typed(struct generation_request *r, const json_t *format, const char *name, const char *inside,
                      struct failure *f)
{
        static const char *const harmless[] = { "name", "description", "strict" };
        const char *type = json_get_string(format, "type", NULL), *key;
        const json_t *holder = format;
        char path[96];
        json_t *value;

        if (!json_is_object(format) || !json_is_string(json_get(format, "type")))
                return failure_set(f, 400, "invalid_value", name, "'%s' has to be an object with a \"type\"", name);
        if (strcmp(type, "text") == 0)
                return 0;
        if (strcmp(type, "json_object") == 0) {
                r->options.json_schema = ANY_OBJECT;
                return 0;
        }
        if (strcmp(type, "json_schema") != 0)
                return failure_set(f, 400, "invalid_value", name,
                                   "'%s.type' has to be text, json_object or json_schema, not '%.40s'", name, type);
        snprintf(path, sizeof(path), "%s%s%s", name, inside ? "." : "", inside ? inside : "");
        if (inside)
                holder = json_get(format, inside);
        if (!json_is_object(holder))
                return failure_set(f, 400, "missing_required_parameter", path, "'%s' is missing", path);
        json_object_foreach((json_t *)(uintptr_t)holder, key, value)
        {
                bool known = strcmp(key, "schema") == 0 || (!inside && strcmp(key, "type") == 0);

                for (size_t i = 0; i < TDM_ARRAY_SIZE(harmless); i++)
                        known = known || strcmp(key, harmless[i]) == 0;
                if (!known)
                        return failure_set(f, 400, "unknown_parameter", path, "'%s.%.60s' is not known", path, key);
        }
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
                if (strcmp(member, "format") != 0 && !json_is_null(value))
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
