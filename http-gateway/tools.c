/* See tools.h. tandemd takes tools in OpenAI's form, so Anthropic's are rewritten; what it does not hold of a tool's
 * schema it refuses itself. */
#include "http-gateway/generation.h"
#include "http-gateway/messages.h"
#include "http-gateway/thinking.h"

#define MAX_CALLS 4096u /* of one answer */
#define MAX_TOOLS 1024u /* the daemon's limit; to read them costs time before it refuses them */
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
        json_decref(t->renamed);
}

static int no_memory(struct failure *f)
{
        return failure_set(f, 503, "no_memory", NULL, "no memory for this request");
}

/* ---- tools and choices ---- */

/* What the daemon gets: OpenAI's form, with each schema's numbers as the request has them. */
int request_finish_tools(struct generation_request *r, struct buffer *text, struct failure *f)
{
        buffer_add_text(text, "]");
        if (r->options.json_schema || r->options.grammar || r->options.regex) {
                buffer_free(text);
                return failure_set(f, 400, "unsupported_parameter", "tools",
                                   "'tools' cannot be combined with a format, a grammar or a regex");
        }
        if (text->failed) {
                buffer_free(text);
                return no_memory(f);
        }
        r->tools.json = text->data;
        r->options.tools = r->tools.json;
        return 0;
}

int request_check_n_tools(const json_t *given, struct failure *f)
{
        if (json_array_size(given) <= MAX_TOOLS)
                return 0;
        return failure_set(f, 400, "array_above_max_length", "tools", "'tools' has %zu tools; at most %u are taken",
                           json_array_size(given), MAX_TOOLS);
}

void request_write_tool(struct generation_request *r, struct buffer *to, const json_t *name, const json_t *description,
                        const json_t *schema)
{
        buffer_add_text(to, to->size > 0 ? ",{\"type\":\"function\",\"function\":{" :
                                           "[{\"type\":\"function\",\"function\":{");
        if (name) {
                buffer_add_text(to, "\"name\":");
                exact_write(to, &r->numbers, name);
        }
        if (description) {
                buffer_add_text(to, name ? ",\"description\":" : "\"description\":");
                exact_write(to, &r->numbers, description);
        }
        if (schema) {
                buffer_add_text(to, name || description ? ",\"parameters\":" : "\"parameters\":");
                exact_write(to, &r->numbers, schema);
        }
        buffer_add_text(to, "}}");
}

int request_set_tool_choice(struct generation_request *r, const char *choice, const char *name, struct failure *f)
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
        static const char *const names[] = { "type", "function", NULL }, *const of_function[] = { "name", NULL };
        const json_t *choice = json_get(r->json, "tool_choice"), *function = json_get(choice, "function");
        const char *text = json_string_value(choice);

        if (!choice)
                return 0;
        if (text && (strcmp(text, "auto") == 0 || strcmp(text, "none") == 0 || strcmp(text, "required") == 0))
                return request_set_tool_choice(r, text, NULL, f);
        text = json_get_string(function, "name", NULL);
        if (text && strcmp(json_get_string(choice, "type", ""), "function") == 0) {
                if (json_check_members(choice, "tool_choice", names, f) != 0 ||
                    json_check_members(function, "tool_choice.function", of_function, f) != 0)
                        return f->status;
                return request_set_tool_choice(r, NULL, text, f);
        }
        return failure_set(f, 400, "invalid_value", "tool_choice",
                           "'tool_choice' has to be auto, none, required or "
                           "{\"type\": \"function\", \"function\": {\"name\": …}}");
}

static int write_openai_tools(struct generation_request *r, const json_t *given, struct buffer *text, struct failure *f)
{
        if (request_check_n_tools(given, f) != 0)
                return f->status;
        for (size_t i = 0; i < json_array_size(given); i++) {
                const json_t *tool = json_array_get(given, i), *function = json_get(tool, "function");
                char where[48];

                snprintf(where, sizeof(where), "tools[%zu]", i);
                if (params_check_at(&params_tool, where, tool, &r->warnings, f) != 0)
                        return f->status;
                if (!json_is_object(function) || strcmp(json_get_string(tool, "type", ""), "function") != 0)
                        return failure_set(f, 400, "invalid_value", where,
                                           "'%s' is not {\"type\": \"function\", \"function\": {…}}; other tools are "
                                           "not known here",
                                           where);
                snprintf(where, sizeof(where), "tools[%zu].function", i);
                if (params_check_at(&params_function, where, function, &r->warnings, f) != 0)
                        return f->status;
                request_write_tool(r, text, json_get(function, "name"), json_get(function, "description"),
                                   json_get(function, "parameters"));
        }
        return 0;
}

int request_take_openai_tools(struct generation_request *r, struct failure *f)
{
        const json_t *given = json_get(r->json, "tools");
        struct buffer text = { 0 };

        if (json_array_size(given) > 0) {
                if (write_openai_tools(r, given, &text, f) != 0) {
                        buffer_free(&text);
                        return f->status;
                }
                if (request_finish_tools(r, &text, f) != 0)
                        return f->status;
                r->options.one_call = !json_get_bool(r->json, "parallel_tool_calls", true);
        }
        return take_openai_choice(r, f);
}

static int write_anthropic_tools(struct generation_request *r, const json_t *given, struct buffer *text,
                                 struct failure *f)
{
        if (request_check_n_tools(given, f) != 0)
                return f->status;
        for (size_t i = 0; i < json_array_size(given); i++) {
                const json_t *tool = json_array_get(given, i);
                const char *kind = json_get_string(tool, "type", "custom");
                char where[48];

                snprintf(where, sizeof(where), "tools[%zu]", i);
                if (strcmp(kind, "custom") == 0 &&
                    params_check_at(&params_anthropic_tool, where, tool, &r->warnings, f) != 0)
                        return f->status;
                if (strcmp(kind, "custom") != 0 || !json_is_object(json_get(tool, "input_schema")) ||
                    !json_is_string(json_get(tool, "name")))
                        return failure_set(
                                f, 400, "invalid_value", where,
                                "'%s' is not {\"name\": …, \"input_schema\": {…}}; tools of type '%.40s' are "
                                "not known here",
                                where, kind);
                request_write_tool(r, text, json_get(tool, "name"), json_get(tool, "description"),
                                   json_get(tool, "input_schema"));
        }
        return 0;
}

static int take_anthropic_choice(struct generation_request *r, const json_t *choice, struct failure *f)
{
        const char *type = json_get_string(choice, "type", "auto"), *name = NULL;

        if (params_check(&params_anthropic_choice, choice, &r->warnings, f) != 0)
                return f->status;
        if (strcmp(type, "tool") == 0)
                name = json_get_string(choice, "name", "");
        else if (strcmp(type, "any") == 0)
                type = "required";
        else if (strcmp(type, "auto") != 0 && strcmp(type, "none") != 0)
                return failure_set(f, 400, "invalid_value", "tool_choice",
                                   "'tool_choice.type' has to be auto, any, tool or none");
        return request_set_tool_choice(r, type, name, f);
}

int request_take_anthropic_tools(struct generation_request *r, struct failure *f)
{
        const json_t *given = json_get(r->json, "tools"), *choice = json_get(r->json, "tool_choice");
        struct buffer text = { 0 };

        if (json_array_size(given) > 0) {
                if (write_anthropic_tools(r, given, &text, f) != 0) {
                        buffer_free(&text);
                        return f->status;
                }
                if (request_finish_tools(r, &text, f) != 0)
                        return f->status;
                r->options.one_call = json_get_bool(choice, "disable_parallel_tool_use", false);
        }
        return choice ? take_anthropic_choice(r, choice, f) : 0;
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
static const char *text_keep(struct generation_request *r, char *text)
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

const char *request_keep_text(struct generation_request *r, struct buffer *text)
{
        char *data = text->data;

        if (text->failed) {
                buffer_free(text);
                return NULL;
        }
        *text = (struct buffer){ 0 };
        return text_keep(r, data);
}

/* Keeps the JSON of a value, with its numbers as the request has them. */
static const char *keep_json(struct generation_request *r, const json_t *value)
{
        struct buffer text = { 0 };

        exact_write(&text, &r->numbers, value);
        if (text.failed) {
                buffer_free(&text);
                return NULL;
        }
        return text_keep(r, text.data);
}

/* Ids of clients that have none: the nth call and the nth answer belong together. */
static const char *make_id(struct generation_request *r, unsigned n)
{
        char *id = malloc(ID_BYTES + 1);

        if (id)
                snprintf(id, ID_BYTES + 1, "call%05u", n % 100000);
        return text_keep(r, id);
}

int request_add_call(struct generation_request *r, const char *id, const char *name, const char *arguments,
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
                char inner[96], of_function[112];

                snprintf(inner, sizeof(inner), "%.60s.tool_calls[%zu]", where, i);
                snprintf(of_function, sizeof(of_function), "%s.function", inner);
                if (params_check_at(&params_call, inner, call, &r->warnings, f) != 0 ||
                    params_check_at(&params_call_function, of_function, function, &r->warnings, f) != 0)
                        return f->status;
                if (!name || (arguments && !text && !json_is_object(arguments)))
                        return failure_set(f, 400, "invalid_value", inner,
                                           "'%s' is not {\"function\": {\"name\": …, \"arguments\": …}}", inner);
                if (json_is_object(arguments))
                        text = keep_json(r, arguments);
                else if (!text || !*text)
                        text = "{}";
                if (request_add_call(r, id ? id : make_id(r, r->tools.n_named++), name, text, f) != 0)
                        return f->status;
        }
        return 0;
}

int request_add_answer(struct generation_request *r, const char *id, const char *name, struct failure *f)
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
        const char *role = json_get_string(message, "role", ""), *named = json_get_string(message, "name", "");
        const json_t *calls = json_get(message, "tool_calls"), *thinking = json_get(message, "reasoning_content");

        if (*named && strcmp(role, "tool") != 0)
                return failure_set(f, 400, "unsupported_parameter", name,
                                   "'%s.name' cannot be taken: no chat template takes names of speakers", name);
        if (strcmp(role, "tool") == 0) {
                const char *tool = json_get_string(message, "tool_name", *named ? named : NULL);

                return request_add_answer(r, json_get_string(message, "tool_call_id", NULL), tool, f);
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

/* The blocks of thoughts, which belong to the last message. */
static int take_thoughts(struct generation_request *r, const char *role, const json_t *blocks, const char *where,
                         struct failure *f)
{
        struct buffer thoughts = { 0 };
        json_t *block;
        size_t i;

        if (strcmp(role, "assistant") != 0)
                return failure_set(f, 400, "invalid_value", where, "'%s' has thoughts and is not the assistant's",
                                   where);
        json_array_foreach((json_t *)(uintptr_t)blocks, i, block)
        {
                const char *text;
                char inner[96];

                if (strcmp(json_get_string(block, "type", ""), "thinking") != 0)
                        continue;
                snprintf(inner, sizeof(inner), "%.60s[%zu]", where, i);
                if (request_take_thinking_block(r, block, inner, &text, f) != 0) {
                        buffer_free(&thoughts);
                        return f->status;
                }
                thinking_join(&thoughts, text);
        }
        return request_add_thinking(r, &thoughts, f);
}

/* A block tool_result, which becomes a message of its own. */
static int take_result_block(struct generation_request *r, const json_t *block, const char *where, struct failure *f)
{
        const char *id = json_get_string(block, "tool_use_id", NULL);
        char inner[112];

        if (params_check_at(&params_tool_result, where, block, &r->warnings, f) != 0)
                return f->status;
        if (!id)
                return failure_set(f, 400, "invalid_value", where, "'%s' answers no tool_use_id", where);
        snprintf(inner, sizeof(inner), "%.95s.content", where);
        if (request_add_message(r, "tool", json_get(block, "content"), "\n", inner, f) != 0)
                return f->status;
        return request_add_answer(r, id, NULL, f);
}

/* A block tool_use, which is a call of the last message. */
static int take_use_block(struct generation_request *r, const json_t *block, const char *where, struct failure *f)
{
        const char *id = json_get_string(block, "id", NULL), *name = json_get_string(block, "name", NULL),
                   *input = "{}";

        if (params_check_at(&params_tool_use, where, block, &r->warnings, f) != 0)
                return f->status;
        if (!id || !name)
                return failure_set(f, 400, "invalid_value", where, "'%s' is a tool_use without id or name", where);
        if (json_is_object(json_get(block, "input")))
                input = keep_json(r, json_get(block, "input"));
        return request_add_call(r, id, name, input, f);
}

enum block_kind { BLOCK_TEXT, BLOCK_RESULT, BLOCK_USE, BLOCK_THOUGHT, BLOCK_SECRET };

static enum block_kind block_kind(const char *role, const json_t *block)
{
        const char *type = json_get_string(block, "type", "");

        if (strcmp(type, "tool_result") == 0 && strcmp(role, "user") == 0)
                return BLOCK_RESULT;
        if (strcmp(type, "tool_use") == 0 && strcmp(role, "assistant") == 0)
                return BLOCK_USE;
        if (strcmp(type, "thinking") == 0)
                return BLOCK_THOUGHT;
        return strcmp(type, "redacted_thinking") == 0 ? BLOCK_SECRET : BLOCK_TEXT;
}

/* A message's blocks: answers become messages in front of them, those of text are joined, calls belong to what they
 * make. In the list of texts others leave an empty one, so that each has its own index. */
static int take_blocks(struct generation_request *r, const char *role, const json_t *blocks, const char *where,
                       struct failure *f)
{
        json_t *texts = json_array(), *nothing = json_pack("{s:s, s:s}", "type", "text", "text", ""), *block;
        bool has[BLOCK_SECRET + 1] = { false };
        int status = texts && nothing ? 0 : no_memory(f);
        char inner[96];
        size_t i;

        json_array_foreach((json_t *)(uintptr_t)blocks, i, block)
        {
                enum block_kind kind = block_kind(role, block);

                has[kind] = true;
                json_array_append(texts, kind == BLOCK_TEXT ? block : nothing);
                snprintf(inner, sizeof(inner), "%.60s[%zu]", where, i);
                if (kind == BLOCK_RESULT && status == 0)
                        status = take_result_block(r, block, inner, f);
        }
        if (status == 0 && (has[BLOCK_TEXT] || has[BLOCK_USE] || has[BLOCK_THOUGHT] || json_array_size(blocks) == 0))
                status = request_add_message(r, role, texts, "", where, f);
        if (status == 0 && has[BLOCK_THOUGHT])
                status = take_thoughts(r, role, blocks, where, f);
        json_array_foreach((json_t *)(uintptr_t)blocks, i, block)
        {
                snprintf(inner, sizeof(inner), "%.60s[%zu]", where, i);
                if (status == 0 && block_kind(role, block) == BLOCK_USE)
                        status = take_use_block(r, block, inner, f);
        }
        json_decref(texts);
        json_decref(nothing);
        return status;
}

/* What an agent says as the system in the midst of a conversation. Most templates take a system's words in front alone,
 * and there they would make every later prompt begin differently: so these are the user's, in one message with what is
 * before them where that is the user's too. */
static int take_late_system(struct generation_request *r, const json_t *content, const char *where, struct failure *f)
{
        struct tandem_message *last, *before;
        size_t gap, size, room = 64;
        char *text;

        if (request_add_message(r, "user", content, "\n", where, f) != 0)
                return f->status;
        last = &r->messages[r->n_messages - 1];
        before = last - 1;
        if (strcmp(before->role, "user") != 0)
                return 0;
        gap = before->size > 0 ? 2 : 0;
        size = before->size + gap + last->size;
        while (room <= size) /* the same for many additions, so that not each of them copies all that came before */
                room *= 2;
        text = realloc((char *)(uintptr_t)before->text, room);
        if (!text)
                return no_memory(f);
        memcpy(text + before->size, "\n\n", gap);
        memcpy(text + before->size + gap, last->text, last->size + 1);
        free((char *)(uintptr_t)last->text);
        before->text = text;
        request_pictures_join(r, before->size + gap);
        before->size = size;
        r->n_messages--;
        return 0;
}

static int take_anthropic_content(struct generation_request *r, const char *role, const json_t *content,
                                  const char *where, struct failure *f)
{
        if (strcmp(role, "system") == 0 && r->n_messages > 0)
                return take_late_system(r, content, where, f);
        return json_is_array(content) ? take_blocks(r, role, content, where, f) :
                                        request_add_message(r, role, content, "", where, f);
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
                if (params_check_at(table, where, message, &r->warnings, f) != 0)
                        return f->status;
                role = json_get_string(message, "role", "");
                role = strcmp(role, "developer") == 0 ? "system" : role;
                content = json_get(message, "content");
                if (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 && strcmp(role, "system") != 0)
                        return failure_set(f, 400, "invalid_value", where,
                                           "'%s.role' is '%.40s'; system, user and assistant are known", where, role);
                snprintf(where, sizeof(where), "messages[%zu].content", i);
                if (take_anthropic_content(r, role, content, where, f) != 0)
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

json_t *choice_call_arguments(const struct choice_call *call, struct exact *texts)
{
        _cleanup_(exact_free) struct exact numbers = { 0 };
        json_error_t why;
        json_t *json = exact_load(&numbers, call->arguments.data, call->arguments.size, &why);
        bool whole = json_is_object(json);

        json_decref(json);
        return whole ? exact_text(texts, call->arguments.data, call->arguments.size) : NULL;
}
