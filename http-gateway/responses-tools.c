/* See responses.h. The model is told of functions alone. A tool that takes a text is a function with the argument
 * `input`, and a function of a namespace has the namespace's name in front. Tools that the provider itself would run
 * are not here, so the model is not told of them, and the answer's head says so. */
#include "http-gateway/responses.h"

#include "http-gateway/params.h"

/* What the provider runs, when the model wants it. */
static const char *const hosted[] = { "web_search", "web_search_preview", "image_generation", "tool_search" };

static bool is_hosted(const char *type)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(hosted); i++)
                if (strcmp(hosted[i], type) == 0)
                        return true;
        return false;
}

/* "mcp__files__" and "read" are "mcp__files__read", as are "mcp__files" and "read". */
void responses_join_name(const char *space, const char *name, char to[RESPONSES_NAME_BYTES])
{
        size_t n = strlen(space);
        const char *between = n == 0 || (n > 2 && strcmp(space + n - 2, "__") == 0) ? "" : "__";

        snprintf(to, RESPONSES_NAME_BYTES, "%.*s%s%.*s", (int)RESPONSES_NAME_PART, space, between,
                 (int)RESPONSES_NAME_PART, name);
}

/* ---- tools ---- */

struct tools_writer {
        struct generation_request *r;
        struct buffer text;
};

/* told: what the client has to be told of a call, which is more than its name; taken over. NULL: nothing. */
static void tool_write(struct tools_writer *w, const char *name, const json_t *description, const json_t *schema,
                       json_t *told)
{
        struct request_tools *t = &w->r->tools;
        json_t *text = json_string(name);

        request_write_tool(w->r, &w->text, text, description, schema);
        json_decref(text);
        if (told && !t->renamed)
                t->renamed = json_object();
        if (told && json_object_set_new(t->renamed, name, told) != 0)
                w->text.failed = true;
}

static int function_take(struct tools_writer *w, const json_t *space, const json_t *tool, const char *where,
                         struct failure *f)
{
        const char *space_name = json_get_string(space, "name", ""), *own_name = json_get_string(tool, "name", "");
        char name[RESPONSES_NAME_BYTES];
        json_t *told = NULL;

        if (params_check_at(&params_response_function, where, tool, &w->r->warnings, f) != 0)
                return f->status;
        if (strlen(space_name) > RESPONSES_NAME_PART || strlen(own_name) > RESPONSES_NAME_PART)
                return failure_set(f, 400, "invalid_value", where,
                                   "'%s' has a name of more than %u bytes, or its namespace has", where,
                                   RESPONSES_NAME_PART);
        responses_join_name(space_name, own_name, name);
        if (space)
                told = json_pack("{s:O, s:O}", "name", json_get(tool, "name"), "namespace", json_get(space, "name"));
        tool_write(w, name, json_get(tool, "description"), json_get(tool, "parameters"), told);
        return 0;
}

/* The description tells of the form, which nothing enforces. */
static int custom_take(struct tools_writer *w, const json_t *tool, const char *where, struct failure *f)
{
        static const char *const names[] = { "type", "syntax", "definition", NULL };
        const json_t *format = json_get(tool, "format");
        const char *type = json_get_string(format, "type", "text");
        json_t *schema = json_pack("{s:s, s:{s:{s:s}}, s:[s], s:b}", "type", "object", "properties", "input", "type",
                                   "string", "required", "input", "additionalProperties", 0);
        struct buffer words = { 0 };
        json_t *description;
        char inner[96];

        snprintf(inner, sizeof(inner), "%.80s.format", where);
        if (params_check_at(&params_response_custom, where, tool, &w->r->warnings, f) != 0 ||
            json_check_members(format, inner, names, f) != 0) {
                json_decref(schema);
                return f->status;
        }
        buffer_add_text(&words, json_get_string(tool, "description", ""));
        if (strcmp(type, "text") != 0) {
                params_warn(&w->r->warnings, "the format of a custom tool is told to the model, and not enforced");
                buffer_add_text(&words, "\n\nThe input follows this grammar (");
                buffer_add_text(&words, json_get_string(format, "syntax", type));
                buffer_add_text(&words, "):\n");
                buffer_add_text(&words, json_get_string(format, "definition", ""));
        }
        description = words.failed ? NULL : json_text(words.size > 0 ? words.data : "", words.size);
        tool_write(w, json_get_string(tool, "name", ""), description, schema, json_true());
        json_decref(description);
        json_decref(schema);
        buffer_free(&words);
        return 0;
}

static int tool_take(struct tools_writer *w, const json_t *space, const json_t *tool, const char *where,
                     struct failure *f);

static int namespace_take(struct tools_writer *w, const json_t *space, const char *where, struct failure *f)
{
        const json_t *tools = json_get(space, "tools");

        if (params_check_at(&params_response_namespace, where, space, &w->r->warnings, f) != 0)
                return f->status;
        for (size_t i = 0; i < json_array_size(tools); i++) {
                char inner[96];

                snprintf(inner, sizeof(inner), "%s.tools[%zu]", where, i);
                if (tool_take(w, space, json_array_get(tools, i), inner, f) != 0)
                        return f->status;
        }
        return 0;
}

static int tool_take(struct tools_writer *w, const json_t *space, const json_t *tool, const char *where,
                     struct failure *f)
{
        const char *type = json_get_string(tool, "type", "");
        char words[96], member[96];

        snprintf(member, sizeof(member), "%s.type", where);
        if (!space && is_hosted(type)) {
                snprintf(words, sizeof(words), "tools of type %s are not used here", type);
                if (!strstr(w->r->warnings.text, words))
                        params_warn(&w->r->warnings, words);
                return 0;
        }
        if (strcmp(type, "function") != 0 && (space || (strcmp(type, "custom") != 0 && strcmp(type, "namespace") != 0)))
                return failure_set(f, 400, "unsupported_parameter", member,
                                   "'%s' is a tool of type '%.40s', which cannot be taken; there are: function, "
                                   "custom, namespace",
                                   where, type);
        snprintf(member, sizeof(member), "%s.name", where);
        if (json_string_length(json_get(tool, "name")) == 0)
                return failure_set(f, 400, "missing_required_parameter", member, "'%s' is missing or no text%s", member,
                                   json_get(tool, "function") ? " (name stands beside type here, not in function)" :
                                                                "");
        if (strcmp(type, "custom") == 0)
                return custom_take(w, tool, where, f);
        if (strcmp(type, "namespace") == 0)
                return namespace_take(w, tool, where, f);
        return function_take(w, space, tool, where, f);
}

/* ---- choice ---- */

static int choice_take(struct generation_request *r, struct failure *f)
{
        static const char *const names[] = { "type", "name", "namespace", NULL };
        const json_t *choice = json_get(r->json, "tool_choice");
        const char *text = json_string_value(choice), *type = json_get_string(choice, "type", ""),
                   *name = json_get_string(choice, "name", NULL);
        char joined[RESPONSES_NAME_BYTES];

        if (!choice)
                return 0;
        if (text && (strcmp(text, "auto") == 0 || strcmp(text, "none") == 0 || strcmp(text, "required") == 0))
                return request_set_tool_choice(r, text, NULL, f);
        if (!name || (strcmp(type, "function") != 0 && strcmp(type, "custom") != 0))
                return failure_set(f, 400, "invalid_value", "tool_choice",
                                   "'tool_choice' has to be auto, none, required or {\"type\": \"function\", "
                                   "\"name\": …}");
        if (json_check_members(choice, "tool_choice", names, f) != 0)
                return f->status;
        if (json_get(choice, "namespace")) {
                responses_join_name(json_get_string(choice, "namespace", ""), name, joined);
                name = joined;
        }
        return request_set_tool_choice(r, NULL, name, f);
}

int responses_take_tools(struct generation_request *r, struct failure *f)
{
        const json_t *given = json_get(r->json, "tools");
        struct tools_writer w = { .r = r };

        if (request_check_n_tools(given, f) != 0)
                return f->status;
        for (size_t i = 0; i < json_array_size(given); i++) {
                char where[64];

                snprintf(where, sizeof(where), "tools[%zu]", i);
                if (tool_take(&w, NULL, json_array_get(given, i), where, f) != 0) {
                        buffer_free(&w.text);
                        return f->status;
                }
        }
        if (w.text.size > 0 || w.text.failed) {
                if (request_finish_tools(r, &w.text, f) != 0)
                        return f->status;
                r->options.one_call = !json_get_bool(r->json, "parallel_tool_calls", true);
        }
        return choice_take(r, f);
}

struct responses_tool responses_find_tool(const struct generation_request *r, const char *name)
{
        const json_t *told = json_object_get(r->tools.renamed, name);

        return (struct responses_tool){ json_get_string(told, "name", name), json_get_string(told, "namespace", NULL),
                                        json_is_true(told) };
}
