/* Which texts a model may write where it has tools: a grammar for each form of calls. See tools.h. */
#include "engine/chat/private.h"
#include "engine/chat/tools-private.h"
#include "engine/grammar/compose.h"

size_t tdm_chat_mark_bytes(const struct tdm_tokenizer *tokenizer, const char *mark, char *to, size_t capacity)
{
        const char *text;
        uint32_t id;

        if (tdm_tokenizer_find_marker(tokenizer, mark, &id) == 0 &&
            tdm_tokenizer_piece(tokenizer, id, false, &text) == 0)
                return tdm_vocabulary_marker(tokenizer, id, to, capacity);
        if (strlen(mark) >= capacity)
                return 0;
        memcpy(to, mark, strlen(mark));
        return strlen(mark);
}

struct builder {
        struct tdm_composer *c;
        const struct tdm_tokenizer *tokenizer;
        const struct tdm_chat_template *template;
        const struct tdm_chat_tool_use *use;
        struct tdm_json tools;
        struct tool {
                struct tdm_chat_text name;
                uint32_t arguments; /* part */
        } * wanted;
        size_t n_wanted;
        struct tdm_error *err;
};

static bool is_name(const char *text, size_t size)
{
        for (size_t i = 0; i < size; i++) {
                char c = text[i];

                if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                      c == '-' || c == '.'))
                        return false;
        }
        return size > 0 && size <= TDM_CHAT_TOOL_NAME_MAX;
}

static bool is_same(struct tdm_chat_text a, struct tdm_chat_text b)
{
        return a.size == b.size && memcmp(a.data, b.data, a.size) == 0;
}

static int tools_refuse(struct builder *b, const char *what)
{
        return tdm_error_set(b->err, TDM_E_BAD_REQUEST, "tools: %s", what);
}

static uint32_t member(const struct builder *b, uint32_t object, const char *name)
{
        if (object == TDM_JSON_NONE || tdm_json_get(&b->tools, object)->type != TDM_JSON_OBJECT)
                return TDM_JSON_NONE;
        return tdm_json_member(&b->tools, object, name);
}

/* A tool without parameters takes none. */
static int add_arguments(struct builder *b, uint32_t function, struct tool *tool)
{
        static const char nothing[] = "{\"type\":\"object\",\"additionalProperties\":false}";
        uint32_t parameters = member(b, function, "parameters");
        struct tdm_json_buffer source = { 0 };
        struct tdm_error why = { 0 };
        int r;

        if (parameters == TDM_JSON_NONE || tdm_json_get(&b->tools, parameters)->type == TDM_JSON_NULL)
                tdm_json_write(&source, nothing, sizeof(nothing) - 1);
        else
                tdm_json_print(&b->tools, parameters, &source);
        r = source.failed ? -ENOMEM : tdm_composer_object(b->c, source.data, source.size, &tool->arguments, &why);
        free(source.data);
        if (r > 0)
                return tdm_error_set(b->err, r, "tools: parameters of %.*s: %s", (int)tool->name.size, tool->name.data,
                                     why.message);
        return r;
}

/* The tools that may be called. */
static int read_tools(struct builder *b)
{
        const struct tdm_chat_tool_use *use = b->use;
        struct tdm_error why = { 0 };
        struct tdm_chat_text *names;
        size_t n_names = 0;
        int r = tdm_json_parse(&b->tools, use->tools.data ? use->tools.data : "", use->tools.size, 64, &why);

        if (r != 0)
                return r < 0 ? r : tools_refuse(b, why.message);
        if (tdm_json_get(&b->tools, 0)->type != TDM_JSON_ARRAY || tdm_json_get(&b->tools, 0)->n == 0)
                return tools_refuse(b, "not a JSON array with at least one tool");
        b->wanted = calloc(tdm_json_get(&b->tools, 0)->n, sizeof(*b->wanted));
        names = calloc(tdm_json_get(&b->tools, 0)->n, sizeof(*names));
        if (!b->wanted || !names)
                r = -ENOMEM;
        for (uint32_t at = tdm_json_get(&b->tools, 0)->first; at != TDM_JSON_NONE && r == 0;
             at = tdm_json_get(&b->tools, at)->next) {
                uint32_t function = member(b, at, "function"), name;
                struct tool *tool = &b->wanted[b->n_wanted];

                function = function == TDM_JSON_NONE ? at : function;
                name = member(b, function, "name");
                if (name == TDM_JSON_NONE || tdm_json_get(&b->tools, name)->type != TDM_JSON_STRING) {
                        r = tools_refuse(b, "a tool is not {\"type\": \"function\", \"function\": {\"name\": …}}");
                        break;
                }
                tool->name.data = tdm_json_text(&b->tools, name);
                tool->name.size = tdm_json_get(&b->tools, name)->text_size;
                if (!is_name(tool->name.data, tool->name.size)) {
                        r = tools_refuse(b, "a tool's name has 1 to 64 letters, digits, '_', '-' and '.'");
                        break;
                }
                for (size_t i = 0; i < n_names && r == 0; i++)
                        if (is_same(names[i], tool->name))
                                r = tools_refuse(b, "two have the same name");
                names[n_names++] = tool->name;
                if (r != 0 || use->choice == TDM_CHAT_CHOICE_NONE ||
                    (use->choice == TDM_CHAT_CHOICE_NAMED && !is_same(tool->name, use->name)))
                        continue;
                r = add_arguments(b, function, tool);
                b->n_wanted++;
        }
        free(names);
        if (r == 0 && use->choice == TDM_CHAT_CHOICE_NAMED && b->n_wanted == 0)
                return tdm_error_set(b->err, TDM_E_BAD_REQUEST, "tool-choice: %.*s is none of the tools",
                                     (int)TDM_MIN(use->name.size, (size_t)TDM_CHAT_TOOL_NAME_MAX), use->name.data);
        return r;
}

/* ---- parts ---- */

static uint32_t cat(struct builder *b, uint32_t first, uint32_t second)
{
        return tdm_composer_cat(b->c, first, second);
}

static uint32_t text(struct builder *b, const char *string)
{
        return tdm_composer_string(b->c, string);
}

static uint32_t opt(struct builder *b, uint32_t part)
{
        return tdm_composer_rep(b->c, part, 0, 1);
}

static uint32_t mark(struct builder *b, const char *name)
{
        char bytes[TDM_CHAT_MARK_MAX];
        size_t size = tdm_chat_mark_bytes(b->tokenizer, name, bytes, sizeof(bytes));

        return size ? tdm_composer_text(b->c, bytes, size) : 0;
}

static bool is_control(struct builder *b, const char *name)
{
        char bytes[TDM_CHAT_MARK_MAX];

        return tdm_chat_mark_bytes(b->tokenizer, name, bytes, sizeof(bytes)) > 0 &&
               (uint8_t)bytes[0] == TDM_MARKER_BYTE;
}

static uint32_t spaced(struct builder *b, const char *string)
{
        return cat(b, text(b, string), tdm_composer_space(b->c));
}

/* {"name": NAME, KEY: ARGUMENTS tail} of one of the tools. */
static uint32_t call_object(struct builder *b, const char *key, uint32_t tail)
{
        char line[TDM_CHAT_TOOL_NAME_MAX + 8];
        uint32_t all = 0;

        for (size_t i = b->n_wanted; i-- > 0;) {
                const struct tool *tool = &b->wanted[i];
                uint32_t e = cat(b, tool->arguments, cat(b, tail, cat(b, tdm_composer_space(b->c), text(b, "}"))));

                snprintf(line, sizeof(line), "\"%s\":", key);
                e = cat(b, spaced(b, line), e);
                snprintf(line, sizeof(line), "\"%.*s\",", (int)tool->name.size, tool->name.data);
                e = cat(b, spaced(b, line), e);
                all = tdm_composer_alt(b->c, e, all);
        }
        return cat(b, spaced(b, "{"), cat(b, spaced(b, "\"name\":"), all));
}

/* Qwen: any number of <tool_call>\n…\n</tool_call>. */
static uint32_t tagged(struct builder *b)
{
        static const char *const open[] = { "<tool_call>" };
        bool must = b->use->choice >= TDM_CHAT_CHOICE_REQUIRED;
        uint32_t call, calls, free_text = tdm_composer_free_text(b->c, open, 1), before = free_text;

        call = cat(b, text(b, "\n"), cat(b, call_object(b, "arguments", text(b, "")), text(b, "\n")));
        call = cat(b, mark(b, "<tool_call>"), cat(b, call, mark(b, "</tool_call>")));
        calls = b->use->one_call ? call :
                                   cat(b, call, tdm_composer_rep(b->c, cat(b, text(b, "\n"), call), 0, UINT32_MAX));
        if (must)
                return b->use->thought_is_open ? cat(b, mark(b, "</think>"), cat(b, text(b, "\n\n"), calls)) : calls;
        /* Where these are plain pieces, the free text has them as any other. */
        if (b->template->splits_thinking && is_control(b, "</think>"))
                before = cat(b, cat(b, cat(b, opt(b, mark(b, "<think>")), free_text), opt(b, mark(b, "</think>"))),
                             free_text);
        return b->use->choice == TDM_CHAT_CHOICE_NONE ? before : cat(b, before, opt(b, calls));
}

/* Llama: the turn is one call, or it is text. */
static uint32_t whole(struct builder *b)
{
        static const char *const start[] = { "{", "\"name\"" };
        uint32_t call, free_text = tdm_composer_free_text_not_from(b->c, start, TDM_ARRAY_SIZE(start));

        if (b->use->choice == TDM_CHAT_CHOICE_NONE)
                return free_text;
        call = call_object(b, "parameters", text(b, ""));
        return b->use->choice == TDM_CHAT_CHOICE_AUTO ? tdm_composer_alt(b->c, call, free_text) : call;
}

/* Mistral: [TOOL_CALLS] and an array. */
static uint32_t listed(struct builder *b)
{
        static const char *const open[] = { "[TOOL_CALLS]" };
        uint32_t id, call, calls, free_text = tdm_composer_free_text(b->c, open, 1);

        if (b->use->choice == TDM_CHAT_CHOICE_NONE)
                return free_text;
        id = cat(b, text(b, "\""), cat(b, tdm_composer_alphanumerics(b->c, TDM_CHAT_CALL_ID_BYTES), text(b, "\"")));
        id = cat(b, spaced(b, ","), cat(b, spaced(b, "\"id\":"), id));
        call = call_object(b, "arguments", opt(b, id));
        calls = cat(b, tdm_composer_space(b->c), text(b, "]"));
        if (!b->use->one_call)
                calls = cat(b, tdm_composer_rep(b->c, cat(b, spaced(b, ","), call), 0, UINT32_MAX), calls);
        calls = cat(b, spaced(b, "["), cat(b, call, calls));
        calls = cat(b, mark(b, "[TOOL_CALLS]"), cat(b, opt(b, text(b, " ")), calls));
        return b->use->choice == TDM_CHAT_CHOICE_AUTO ? cat(b, free_text, opt(b, calls)) : calls;
}

static uint32_t oss_call(struct builder *b)
{
        uint32_t channel = mark(b, "<|channel|>"), message = mark(b, "<|message|>"), all = 0;
        uint32_t constrain = cat(b, text(b, " "), cat(b, opt(b, mark(b, "<|constrain|>")), text(b, "json")));
        char line[TDM_CHAT_TOOL_NAME_MAX + 32];

        for (size_t i = b->n_wanted; i-- > 0;) {
                const struct tool *tool = &b->wanted[i];
                uint32_t body = cat(b, opt(b, constrain), cat(b, message, tool->arguments)), first, second;

                snprintf(line, sizeof(line), " to=functions.%.*s", (int)tool->name.size, tool->name.data);
                first = cat(b, text(b, line), cat(b, channel, text(b, "commentary")));
                second = cat(b, channel, cat(b, text(b, "commentary"), text(b, line)));
                all = tdm_composer_alt(b->c, cat(b, tdm_composer_alt(b->c, first, second), body), all);
        }
        return all;
}

/* gpt-oss: messages with a channel; the prompt has opened the first one. */
static uint32_t channelled(struct builder *b)
{
        static const char *const marks[] = { "<|channel|>", "<|message|>", "<|end|>",      "<|start|>",
                                             "<|call|>",    "<|return|>",  "<|constrain|>" };
        uint32_t channel = mark(b, "<|channel|>"), message = mark(b, "<|message|>"), last, next, before;
        uint32_t free_text = tdm_composer_free_text(b->c, marks, TDM_ARRAY_SIZE(marks));

        if (b->use->choice >= TDM_CHAT_CHOICE_REQUIRED)
                return oss_call(b);
        next = cat(b, mark(b, "<|end|>"), cat(b, mark(b, "<|start|>"), text(b, "assistant")));
        before = tdm_composer_alt(b->c, text(b, "analysis"), text(b, "commentary"));
        before = cat(b, channel, cat(b, before, cat(b, message, cat(b, free_text, next))));
        last = cat(b, channel, cat(b, text(b, "final"), cat(b, message, free_text)));
        if (b->use->choice == TDM_CHAT_CHOICE_AUTO)
                last = tdm_composer_alt(b->c, last, oss_call(b));
        return cat(b, tdm_composer_rep(b->c, before, 0, UINT32_MAX), last);
}

int tdm_chat_tools_grammar(struct tdm_grammar **ret, const struct tdm_chat *chat, const struct tdm_chat_tool_use *use,
                           const struct tdm_grammar_limits *limits, struct tdm_error *err)
{
        static uint32_t (*const forms[])(struct builder * b) = { [TDM_CHAT_CALLS_TAGGED] = tagged,
                                                                 [TDM_CHAT_CALLS_WHOLE] = whole,
                                                                 [TDM_CHAT_CALLS_LISTED] = listed,
                                                                 [TDM_CHAT_CALLS_CHANNELLED] = channelled };
        struct builder b = {
                .template = tdm_chat_template_for(chat, true), .tokenizer = chat->tokenizer, .use = use, .err = err
        };
        int r;

        if (chat->refusal[0])
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "tools: %s", chat->refusal);
        if (b.template->calls == TDM_CHAT_CALLS_NONE)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "tools have no form in the model's chat template");
        r = tdm_composer_new(&b.c, limits);
        if (r == 0)
                r = read_tools(&b);
        if (r == 0)
                r = tdm_composer_finish(b.c, forms[b.template->calls](&b), ret, err);
        tdm_composer_destroy(b.c);
        tdm_json_deinit(&b.tools);
        free(b.wanted);
        return r;
}
