/* See tools.h. tandemd takes tools in OpenAI's form, so Anthropic's are rewritten; what it does not hold of a tool's
 * schema it refuses itself. */
#include "http-gateway/generation.h"
#include "http-gateway/messages.h"

#define MAX_CALLS 4096u /* of one answer */
#define ID_BYTES 9u     /* letters and digits, which is what all chat templates take */

void request_tools_free(struct request_tools *t)
{
        for (size_t i = 0; i < t->n_details; i++) {
                if (t->details[i])
                        free((struct tandem_call *)(uintptr_t)t->details[i]->calls);
                free(t->details[i]);
        }
        for (size_t i = 0; i < t->n_texts; i++)
                free(t->texts[i]);
        free(t->details);
        free(t->texts);
        free(t->json);
}

static int no_memory(struct failure *f)
{
        return failure_set(f, 503, "no_memory", NULL, "no memory for this request");
}

/* ---- tools and choices ---- */

static int take_tools(struct generation_request *r, json_t *tools, struct failure *f)
{
        if (r->options.json_schema || r->options.grammar || r->options.regex) {
                json_decref(tools);
                return failure_set(f, 400, "unsupported_parameter", "tools",
                                   "'tools' cannot be combined with a format, a grammar or a regex");
        }
        r->tools.json = tools ? json_dumps(tools, JSON_COMPACT) : NULL;
        json_decref(tools);
        if (!r->tools.json)
                return no_memory(f);
        r->options.tools = r->tools.json;
        return 0;
}

static int set_choice(struct generation_request *r, const char *choice, const char *name, struct failure *f)
{
        if (!r->options.tools && (name || strcmp(choice, "required") == 0))
                return failure_set(f, 400, "invalid_value", "tool_choice",
                                   "'tool_choice' wants a call, and there are no "
                                   "tools");
        if (name && strlen(name) + sizeof("function:") > sizeof(r->tools.choice))
                return failure_set(f, 400, "invalid_value", "tool_choice", "'tool_choice' is none of the tools");
        snprintf(r->tools.choice, sizeof(r->tools.choice), "%s%s", name ? "function:" : choice, name ? name : "");
        if (r->options.tools)
                r->options.tool_choice = r->tools.choice;
        return 0;
}

static int take_openai_choice(struct generation_request *r, struct failure *f)
{
        const json_t *choice = json_get(r->json, "tool_choice");
        const char *text = json_string_value(choice);

        if (!choice)
                return 0;
        if (text && (strcmp(text, "auto") == 0 || strcmp(text, "none") == 0 || strcmp(text, "required") == 0))
                return set_choice(r, text, NULL, f);
        text = json_get_string(json_get(choice, "function"), "name", NULL);
        if (text && strcmp(json_get_string(choice, "type", ""), "function") == 0)
                return set_choice(r, NULL, text, f);
        return failure_set(f, 400, "invalid_value", "tool_choice",
                           "'tool_choice' has to be auto, none, required or "
                           "{\"type\": \"function\", \"function\": {\"name\": …}}");
}

int request_take_openai_tools(struct generation_request *r, struct failure *f)
{
        const json_t *given = json_get(r->json, "tools");
        json_t *tools;

        if (json_array_size(given) > 0) {
                tools = json_deep_copy(given);
                if (!tools)
                        return no_memory(f);
                for (size_t i = 0; i < json_array_size(tools); i++) {
                        json_t *function = json_object_get(json_array_get(tools, i), "function");

                        if (!json_is_object(function) ||
                            strcmp(json_get_string(json_array_get(tools, i), "type", ""), "function") != 0) {
                                json_decref(tools);
                                return failure_set(f, 400, "invalid_value", "tools",
                                                   "'tools[%zu]' is not {\"type\": \"function\", \"function\": {…}}; "
                                                   "other tools are not known here",
                                                   i);
                        }
                        json_object_del(function, "strict"); /* they always are */
                }
                if (take_tools(r, tools, f) != 0)
                        return f->status;
                r->options.one_call = !json_get_bool(r->json, "parallel_tool_calls", true);
        }
        return take_openai_choice(r, f);
}

int request_take_anthropic_tools(struct generation_request *r, struct failure *f)
{
        const json_t *given = json_get(r->json, "tools"), *choice = json_get(r->json, "tool_choice");
        const char *type = json_get_string(choice, "type", "auto"), *name = NULL;
        json_t *tools;

        if (json_array_size(given) > 0) {
                tools = json_array();
                for (size_t i = 0; i < json_array_size(given); i++) {
                        const json_t *tool = json_array_get(given, i), *text = json_get(tool, "description");
                        const char *kind = json_get_string(tool, "type", "custom");

                        if (strcmp(kind, "custom") != 0 || !json_is_object(json_get(tool, "input_schema")) ||
                            !json_is_string(json_get(tool, "name"))) {
                                json_decref(tools);
                                return failure_set(f, 400, "invalid_value", "tools",
                                                   "'tools[%zu]' is not {\"name\": …, \"input_schema\": {…}}; tools of "
                                                   "type '%.40s' are not known here",
                                                   i, kind);
                        }
                        json_array_append_new(tools, json_pack("{s:s, s:{s:O, s:O?, s:O}}", "type", "function",
                                                               "function", "name", json_get(tool, "name"),
                                                               "description", json_is_string(text) ? text : NULL,
                                                               "parameters", json_get(tool, "input_schema")));
                }
                for (size_t i = 0; i < json_array_size(tools); i++) {
                        json_t *function = json_object_get(json_array_get(tools, i), "function");

                        if (!json_get(function, "description"))
                                json_object_del(function, "description");
                }
                if (take_tools(r, tools, f) != 0)
                        return f->status;
                r->options.one_call = json_get_bool(choice, "disable_parallel_tool_use", false);
        }
        if (!choice)
                return 0;
        if (strcmp(type, "tool") == 0)
                name = json_get_string(choice, "name", "");
        else if (strcmp(type, "any") == 0)
                type = "required";
        else if (strcmp(type, "auto") != 0 && strcmp(type, "none") != 0)
                return failure_set(f, 400, "invalid_value", "tool_choice",
                                   "'tool_choice.type' has to be auto, any, tool or none");
        return set_choice(r, type, name, f);
}

/* ---- messages ---- */

struct tandem_message_details *request_last_details(struct generation_request *r)
{
        struct request_tools *t = &r->tools;
        struct tandem_message_details **details;

        if (t->n_details < r->n_messages) {
                details = reallocarray(t->details, r->n_messages, sizeof(*details));
                if (!details)
                        return NULL;
                t->details = details;
                while (t->n_details < r->n_messages)
                        t->details[t->n_details++] = NULL;
        }
        details = &t->details[r->n_messages - 1];
        if (!*details) {
                *details = calloc(1, sizeof(**details));
                if (*details)
                        (*details)->struct_size = sizeof(**details);
        }
        return *details;
}

/* Takes the text over. */
static const char *keep(struct generation_request *r, char *text)
{
        struct request_tools *t = &r->tools;
        char **texts = text ? reallocarray(t->texts, t->n_texts + 1, sizeof(*texts)) : NULL;

        if (!texts) {
                free(text);
                return NULL;
        }
        t->texts = texts;
        t->texts[t->n_texts++] = text;
        return text;
}

/* Ids of clients that have none: the nth call and the nth answer belong together. */
static const char *make_id(struct generation_request *r, unsigned n)
{
        char *id = malloc(ID_BYTES + 1);

        if (id)
                snprintf(id, ID_BYTES + 1, "call%05u", n % 100000);
        return keep(r, id);
}

static int add_call(struct generation_request *r, const char *id, const char *name, const char *arguments,
                    struct failure *f)
{
        struct tandem_message_details *d = request_last_details(r);
        struct tandem_call *calls;

        calls = d ? reallocarray((void *)(uintptr_t)d->calls, d->n_calls + 1, sizeof(*calls)) : NULL;
        if (!calls || !id || !name || !arguments) {
                if (calls)
                        d->calls = calls;
                return no_memory(f);
        }
        calls[d->n_calls++] = (struct tandem_call){ id, name, arguments };
        d->calls = calls;
        return 0;
}

static int take_calls(struct generation_request *r, const json_t *given, const char *where, struct failure *f)
{
        for (size_t i = 0; i < json_array_size(given); i++) {
                const json_t *call = json_array_get(given, i), *function = json_get(call, "function");
                const json_t *arguments = json_get(function, "arguments");
                const char *id = json_get_string(call, "id", NULL), *name = json_get_string(function, "name", NULL);
                const char *text = json_string_value(arguments);

                if (!name || (arguments && !text && !json_is_object(arguments)))
                        return failure_set(
                                f, 400, "invalid_value", where,
                                "'%s.tool_calls[%zu]' is not {\"function\": {\"name\": …, \"arguments\": …}}", where,
                                i);
                if (json_is_object(arguments))
                        text = keep(r, json_dumps(arguments, JSON_COMPACT));
                else if (!text || !*text)
                        text = "{}";
                if (add_call(r, id ? id : make_id(r, r->tools.n_named++), name, text, f) != 0)
                        return f->status;
        }
        return 0;
}

static int take_answer(struct generation_request *r, const char *id, const char *name, struct failure *f)
{
        struct tandem_message_details *d = request_last_details(r);

        if (d && !id)
                id = make_id(r, r->tools.n_answered++);
        if (!d || !id)
                return no_memory(f);
        d->call_id = id;
        d->name = name;
        return 0;
}

int request_take_message_tools(struct generation_request *r, const json_t *message, const char *name, struct failure *f)
{
        const char *role = json_get_string(message, "role", "");
        const json_t *calls = json_get(message, "tool_calls"), *thinking = json_get(message, "reasoning_content");

        if (strcmp(role, "tool") == 0) {
                const char *tool = json_get_string(message, "tool_name", NULL);

                return take_answer(r, json_get_string(message, "tool_call_id", NULL), tool, f);
        }
        if (strcmp(role, "assistant") != 0)
                return json_array_size(calls) == 0 ?
                               0 :
                               failure_set(f, 400, "invalid_value", name,
                                           "'%s' has tool_calls and is not the assistant's", name);
        thinking = thinking ? thinking : json_get(message, "thinking");
        if (json_is_string(thinking) && json_string_length(thinking) > 0) {
                struct tandem_message_details *d = request_last_details(r);

                if (!d)
                        return no_memory(f);
                d->thinking = json_string_value(thinking);
        }
        return take_calls(r, calls, name, f);
}

/* A message's blocks: those of text are collected, answers become messages in front of them, calls belong to it. */
static int take_blocks(struct generation_request *r, const char *role, const json_t *blocks, const char *where,
                       struct failure *f)
{
        json_t *texts = json_array();
        bool calls = false;
        int status = texts ? 0 : no_memory(f);
        json_t *block;
        size_t i;

        json_array_foreach((json_t *)(uintptr_t)blocks, i, block)
        {
                const char *type = json_get_string(block, "type", "");

                if (status == 0 && strcmp(type, "tool_result") == 0 && strcmp(role, "user") == 0) {
                        const char *id = json_get_string(block, "tool_use_id", NULL);

                        status = id ? request_add_message(r, "tool", json_get(block, "content"), "\n", where, f) :
                                      failure_set(f, 400, "invalid_value", where, "'%s' answers no tool_use_id", where);
                        if (status == 0)
                                status = take_answer(r, id, NULL, f);
                } else if (strcmp(type, "tool_use") == 0 && strcmp(role, "assistant") == 0) {
                        calls = true;
                } else if (strcmp(type, "thinking") != 0 && strcmp(type, "redacted_thinking") != 0) {
                        json_array_append(texts, block);
                }
        }
        if (status == 0 && (json_array_size(texts) > 0 || calls || json_array_size(blocks) == 0))
                status = request_add_message(r, role, texts, "", where, f);
        json_array_foreach((json_t *)(uintptr_t)blocks, i, block)
        {
                const char *input;

                if (status != 0 || !calls || strcmp(json_get_string(block, "type", ""), "tool_use") != 0)
                        continue;
                input = json_is_object(json_get(block, "input")) ?
                                keep(r, json_dumps(json_get(block, "input"), JSON_COMPACT)) :
                                "{}";
                if (!json_get_string(block, "id", NULL) || !json_get_string(block, "name", NULL))
                        status = failure_set(f, 400, "invalid_value", where, "'%s' has a tool_use without id or name",
                                             where);
                else
                        status = add_call(r, json_get_string(block, "id", NULL), json_get_string(block, "name", NULL),
                                          input, f);
        }
        json_decref(texts);
        return status;
}

int request_take_anthropic_messages(struct generation_request *r, const json_t *messages,
                                    const struct param_table *table, struct failure *f)
{
        if (json_array_size(messages) > MAX_MESSAGES)
                return failure_set(f, 400, "invalid_value", "messages", "'messages' has more than %u messages",
                                   MAX_MESSAGES);
        for (size_t i = 0; i < json_array_size(messages); i++) {
                const json_t *message = json_array_get(messages, i), *content;
                const char *role;
                char where[64];

                snprintf(where, sizeof(where), "messages[%zu]", i);
                if (!json_is_object(message))
                        return failure_set(f, 400, "invalid_type", where, "'%s' has to be an object", where);
                if (params_check(table, message, f) != 0)
                        return f->status;
                role = json_get_string(message, "role", "");
                role = strcmp(role, "developer") == 0 ? "system" : role;
                content = json_get(message, "content");
                if (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 && strcmp(role, "system") != 0)
                        return failure_set(f, 400, "invalid_value", where,
                                           "'%s.role' is '%.40s'; system, user and assistant are known", where, role);
                snprintf(where, sizeof(where), "messages[%zu].content", i);
                if ((json_is_array(content) ? take_blocks(r, role, content, where, f) :
                                              request_add_message(r, role, content, "", where, f)) != 0)
                        return f->status;
        }
        return 0;
}

const struct tandem_message_details *const *request_details(struct generation_request *r)
{
        if (r->tools.n_details == 0 || (r->tools.n_details < r->n_messages && !request_last_details(r)))
                return NULL;
        return (const struct tandem_message_details *const *)r->tools.details;
}

/* ---- answers ---- */

bool choice_calls_fit(const struct choice_calls *calls, const struct tandem_token *token)
{
        size_t n = calls->n;

        for (size_t i = 0; i < token->n_calls; i++) {
                const struct tandem_call_delta *delta = token->calls[i];

                if (delta->call == n && delta->name[0] && n < MAX_CALLS)
                        n++;
                else if (delta->call >= n || delta->name[0])
                        return false;
        }
        return true;
}

void choice_calls_add(struct choice_calls *calls, const struct tandem_token *token)
{
        if (!choice_calls_fit(calls, token)) {
                calls->failed = true;
                return;
        }
        for (size_t i = 0; i < token->n_calls && !calls->failed; i++) {
                const struct tandem_call_delta *delta = token->calls[i];
                struct choice_call *items;

                if (delta->call == calls->n) { /* libtandem gives them in order */
                        items = reallocarray(calls->items, calls->n + 1, sizeof(*items));
                        calls->failed = !items;
                        if (!items)
                                return;
                        calls->items = items;
                        items[calls->n++] = (struct choice_call){ strdup(delta->id), strdup(delta->name), { 0 } };
                        buffer_add(&items[calls->n - 1].arguments, "", 0);
                        calls->bytes += sizeof(*items) + items[calls->n - 1].arguments.capacity + strlen(delta->id) +
                                        strlen(delta->name);
                }
                calls->bytes += delta->arguments_size;
                buffer_add(&calls->items[delta->call].arguments, delta->arguments, delta->arguments_size);
                calls->failed = calls->items[delta->call].arguments.failed || !calls->items[delta->call].id ||
                                !calls->items[delta->call].name;
        }
}

void choice_calls_free(struct choice_calls *calls)
{
        for (size_t i = 0; i < calls->n; i++) {
                free(calls->items[i].id);
                free(calls->items[i].name);
                buffer_free(&calls->items[i].arguments);
        }
        free(calls->items);
}

json_t *choice_call_arguments(const struct choice_call *call)
{
        return json_loadb(call->arguments.data, call->arguments.size, JSON_ALLOW_NUL, NULL);
}
