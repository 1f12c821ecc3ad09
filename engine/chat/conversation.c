/* A conversation as a template sees it: messages, tools and options in JSON, as OpenAI's API and transformers have
 * them. */
#include "engine/chat/private.h"
#include "common/utf8.h"

/* How deep tools and arguments may nest. */
#define JSON_DEPTH 64u

static const char *const roles[] = { "system", "user", "assistant", "tool" };

static void put(struct tdm_json_buffer *to, const char *text)
{
        tdm_json_write(to, text, strlen(text));
}

/* Bytes that are not UTF-8 become U+FFFD. */
static void put_mended(struct tdm_json_buffer *to, const char *text, size_t size)
{
        struct tdm_json_buffer mended = { 0 };

        for (size_t i = 0; i < size;) {
                int n = tdm_utf8_length((const uint8_t *)text + i, size - i);

                if (n > 0)
                        tdm_json_write(&mended, text + i, (size_t)n);
                else
                        tdm_json_write(&mended, "\xef\xbf\xbd", 3);
                i += n > 0 ? (size_t)n : 1;
        }
        if (!mended.failed)
                tdm_json_write_string(to, mended.data ? mended.data : "", mended.size);
        to->failed |= mended.failed;
        free(mended.data);
}

static void put_text(struct tdm_json_buffer *to, const char *text, size_t size)
{
        if (tdm_utf8_is_valid(text, size))
                tdm_json_write_string(to, text, size);
        else
                put_mended(to, text, size);
}

/* A member with a text; none where the text is empty. before: a comma where others stand before it. */
static void put_member(struct tdm_json_buffer *to, const char *before, const char *name, struct tdm_chat_text text)
{
        if (text.size == 0)
                return;
        put(to, before);
        put(to, name);
        put_text(to, text.data, text.size);
}

static int json_read(struct tdm_json *json, struct tdm_chat_text text, enum tdm_json_type type, const char *what,
                     const char *not_that, struct tdm_error *err)
{
        struct tdm_error why = { 0 };
        int r = tdm_json_parse(json, text.data ? text.data : "", text.size, JSON_DEPTH, &why);

        if (r > 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s: %s", what, why.message);
        if (r == 0 && tdm_json_get(json, 0)->type != type)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s %s", what, not_that);
        return r;
}

/* The tool, in the form that templates want. */
static int put_tool(const struct tdm_json *json, uint32_t tool, unsigned i, struct tdm_json_buffer *to,
                    struct tdm_error *err)
{
        bool is_object = tdm_json_get(json, tool)->type == TDM_JSON_OBJECT;
        uint32_t inner = is_object ? tdm_json_member(json, tool, "function") : TDM_JSON_NONE;
        uint32_t function = inner == TDM_JSON_NONE ? tool : inner, name = TDM_JSON_NONE;

        if (tdm_json_get(json, function)->type == TDM_JSON_OBJECT)
                name = tdm_json_member(json, function, "name");
        if (name == TDM_JSON_NONE || tdm_json_get(json, name)->type != TDM_JSON_STRING)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "tools: the one at index %u is not {\"type\": \"function\", \"function\": "
                                     "{\"name\": …}}",
                                     i);
        if (inner == TDM_JSON_NONE)
                put(to, "{\"type\":\"function\",\"function\":");
        tdm_json_print(json, tool, to);
        if (inner == TDM_JSON_NONE)
                put(to, "}");
        return 0;
}

static int put_tools(struct tdm_chat_text tools, struct tdm_json_buffer *to, struct tdm_error *err)
{
        struct tdm_json json = { 0 };
        unsigned i = 0;
        int r = json_read(&json, tools, TDM_JSON_ARRAY, "the tools", "are not a JSON array", err);

        if (r == 0)
                r = tdm_form_check_tools(tdm_json_get(&json, 0)->n, err);
        put(to, ",\"tools\":[");
        for (uint32_t tool = r == 0 ? tdm_json_get(&json, 0)->first : TDM_JSON_NONE; tool != TDM_JSON_NONE && r == 0;
             tool = tdm_json_get(&json, tool)->next) {
                if (i > 0)
                        put(to, ",");
                r = put_tool(&json, tool, i++, to, err);
        }
        put(to, "]");
        tdm_json_deinit(&json);
        return r;
}

/* JSON goes in as it was written, so numbers keep their digits. */
static int put_arguments(const struct tdm_chat_template *t, struct tdm_chat_text arguments, struct tdm_json_buffer *to,
                         struct tdm_error *err)
{
        struct tdm_json json = { 0 };
        int r;

        if (arguments.size == 0)
                arguments = (struct tdm_chat_text){ "{}", 2 };
        r = json_read(&json, arguments, TDM_JSON_OBJECT, "a call's arguments", "are not a JSON object", err);
        tdm_json_deinit(&json);
        if (r != 0)
                return r;
        put(to, ",\"arguments\":");
        if (t->form && t->form->renders_calls && !t->form->arguments_as_object)
                tdm_json_write_string(to, arguments.data, arguments.size);
        else
                tdm_json_write(to, arguments.data, arguments.size);
        return 0;
}

static int put_calls(const struct tdm_chat_template *t, const struct tdm_chat_message *m, struct tdm_json_buffer *to,
                     struct tdm_error *err)
{
        int r = 0;

        put(to, ",\"tool_calls\":[");
        for (size_t i = 0; i < m->n_calls && r == 0; i++) {
                const struct tdm_chat_call *call = &m->calls[i];

                put(to, i > 0 ? ",{\"type\":\"function\"" : "{\"type\":\"function\"");
                put_member(to, ",", "\"id\":", call->id);
                put(to, ",\"function\":{\"name\":");
                put_text(to, call->name.data ? call->name.data : "", call->name.size);
                r = put_arguments(t, call->arguments, to, err);
                put(to, "}}");
        }
        put(to, "]");
        return r;
}

/* Text and pictures in order. Where the template puts a picture is its own affair. */
static void put_text_and_pictures(const struct tdm_chat_message *m, struct tdm_json_buffer *to)
{
        const char *before = "";
        size_t from = 0;

        put(to, "[");
        for (size_t i = 0; i <= m->n_pictures; i++) {
                size_t end = i < m->n_pictures ? m->pictures[i] : m->size;

                if (end > from) {
                        put(to, before);
                        put(to, "{\"type\":\"text\",\"text\":");
                        put_text(to, m->text + from, end - from);
                        put(to, "}");
                        before = ",";
                }
                if (i < m->n_pictures) {
                        put(to, before);
                        put(to, "{\"type\":\"image\"}");
                        before = ",";
                }
                from = end;
        }
        put(to, "]");
}

/* A template that takes thoughts as a part of the content gets them so, but where the model goes on with the text. */
static void put_content(const struct tdm_chat_template *t, const struct tdm_chat_message *m, bool is_last,
                        struct tdm_json_buffer *to)
{
        const char *key = t->form ? t->form->thinking_key : NULL;
        bool in_parts = m->role == TDM_CHAT_ASSISTANT && m->thinking.size > 0 && key && strcmp(key, "content") == 0;

        if (m->n_pictures > 0) {
                put_text_and_pictures(m, to);
        } else if (m->n_calls > 0 && m->size == 0 && t->form && t->form->null_content) {
                put(to, "null");
        } else if (in_parts && !is_last) {
                put(to, "[{\"type\":\"thinking\"");
                put_member(to, ",", "\"thinking\":", m->thinking);
                put(to, "},{\"type\":\"text\",\"text\":");
                put_text(to, m->text ? m->text : "", m->size);
                put(to, "}]");
        } else {
                bool is_list = t->form && t->form->texts[tdm_chat_form_role(m->role)] == TDM_FORM_TEXT_PARTS;

                put(to, is_list ? "[{\"type\":\"text\",\"text\":" : "");
                put_text(to, m->text ? m->text : "", m->size);
                put(to, is_list ? "}]" : "");
        }
}

static int put_message(const struct tdm_chat_template *t, const struct tdm_chat_message *m, bool is_last,
                       struct tdm_json_buffer *to, struct tdm_error *err)
{
        const char *key = t->form ? t->form->thinking_key : NULL;
        int r = 0;

        put(to, "{\"role\":\"");
        put(to, roles[m->role]);
        put(to, "\",\"content\":");
        put_content(t, m, is_last, to);
        if (m->role == TDM_CHAT_ASSISTANT) {
                /* Which of these a template reads differs; the other one does nothing. */
                put_member(to, ",", "\"reasoning_content\":", m->thinking);
                put_member(to, ",", "\"thinking\":", m->thinking);
                if (key && strcmp(key, "reasoning") == 0)
                        put_member(to, ",", "\"reasoning\":", m->thinking);
        }
        if (m->n_calls > 0)
                r = put_calls(t, m, to, err);
        put_member(to, ",", "\"tool_call_id\":", m->call_id);
        put_member(to, ",", "\"name\":", m->name);
        put(to, "}");
        return r;
}

static void put_options(const struct tdm_chat_options *options, struct tdm_json_buffer *to)
{
        static const char *const efforts[] = { [TDM_CHAT_EFFORT_LOW] = ",\"reasoning_effort\":\"low\"",
                                               [TDM_CHAT_EFFORT_MEDIUM] = ",\"reasoning_effort\":\"medium\"",
                                               [TDM_CHAT_EFFORT_HIGH] = ",\"reasoning_effort\":\"high\"" };

        if (options->thinking == TDM_CHAT_THINK_ON)
                put(to, ",\"enable_thinking\":true,\"thinking\":true");
        else if (options->thinking == TDM_CHAT_THINK_OFF)
                put(to, ",\"enable_thinking\":false,\"thinking\":false");
        if (options->effort != TDM_CHAT_EFFORT_AS_TRAINED)
                put(to, efforts[options->effort]);
        if (options->tools_in_system)
                put(to, ",\"tools_in_user_message\":false");
}

/* The conversation's own, and those that an option says, since the answer is read by it. */
struct reserved_variable {
        const char *name, *option; /* NULL: the conversation's */
};

static const struct reserved_variable *find_reserved(const struct tdm_json *json, uint32_t node)
{
        static const struct reserved_variable reserved[] = {
                { "messages", NULL },
                { "tools", NULL },
                { "add_generation_prompt", NULL },
                { "bos_token", NULL },
                { "eos_token", NULL },
                { "continue_final_message", NULL },
                { "tools_in_user_message", NULL },
                { "thinking", "thinking" },
                { "enable_thinking", "thinking" },
                { "reasoning_effort", "thinking" },
        };
        size_t size = tdm_json_get(json, node)->key_size;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(reserved); i++)
                if (strlen(reserved[i].name) == size && memcmp(reserved[i].name, tdm_json_key(json, node), size) == 0)
                        return &reserved[i];
        return NULL;
}

static int refuse_reserved(const struct reserved_variable *variable, struct tdm_error *err)
{
        if (!variable->option)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "chat-variables: %s is not taken here; it is the conversation's", variable->name);
        return tdm_error_set(err, TDM_E_BAD_REQUEST, "chat-variables: %s is not taken here; the option %s says it",
                             variable->name, variable->option);
}

static int put_variables(struct tdm_chat_text variables, struct tdm_json_buffer *to, struct tdm_error *err)
{
        struct tdm_json json = { 0 };
        int r = json_read(&json, variables, TDM_JSON_OBJECT, "chat-variables:", "that is no JSON object", err);
        uint32_t node = r == 0 ? tdm_json_get(&json, 0)->first : TDM_JSON_NONE;

        for (; node != TDM_JSON_NONE && r == 0; node = tdm_json_get(&json, node)->next) {
                const struct reserved_variable *reserved = find_reserved(&json, node);

                if (reserved)
                        r = refuse_reserved(reserved, err);
                put(to, ",");
                tdm_json_write_string(to, tdm_json_key(&json, node), tdm_json_get(&json, node)->key_size);
                put(to, ":");
                tdm_json_print(&json, node, to);
        }
        tdm_json_deinit(&json);
        return r;
}

int tdm_chat_write_input(const struct tdm_chat_template *t, const struct tdm_chat_message *messages, size_t n_messages,
                         const struct tdm_chat_options *options, struct tdm_json_buffer *to, struct tdm_error *err)
{
        bool continues = tdm_chat_goes_on(messages, n_messages);
        int r = 0;

        put(to, "{\"messages\":[");
        for (size_t i = 0; i < n_messages && r == 0; i++) {
                if (i > 0)
                        put(to, ",");
                r = put_message(t, &messages[i], i + 1 == n_messages, to, err);
        }
        put(to, "]");
        if (r == 0 && options->tools.size > 0 && (!t->form || t->form->renders_tools))
                r = put_tools(options->tools, to, err);
        if (r == 0 && options->variables.size > 0)
                r = put_variables(options->variables, to, err);
        if (r != 0)
                return r;
        put_options(options, to);
        put(to, continues ? "}" : ",\"add_generation_prompt\":true}");
        return to->failed ? -ENOMEM : 0;
}
