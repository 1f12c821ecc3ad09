/* Which turns a model may write: thinking, text and calls in a form's marks. See turn.h. */
#include "engine/chat/forms/turn-private.h"
#include "engine/grammar/compose.h"

static uint32_t part_cat(struct tdm_form_builder *b, uint32_t first, uint32_t second)
{
        return tdm_composer_cat(b->c, first, second);
}

static uint32_t part_cat3(struct tdm_form_builder *b, uint32_t first, uint32_t second, uint32_t third)
{
        return part_cat(b, first, part_cat(b, second, third));
}

static uint32_t part_opt(struct tdm_form_builder *b, uint32_t part)
{
        return tdm_composer_rep(b->c, part, 0, 1);
}

static uint32_t part_nothing(struct tdm_form_builder *b)
{
        return tdm_composer_text(b->c, "", 0);
}

static uint32_t slot_part(struct tdm_form_builder *b, uint8_t slot, const char *name, const char *key)
{
        switch (slot) {
        case TDM_FORM_ID:
                return tdm_composer_alphanumerics(b->c, TDM_FORM_ID_BYTES);
        case TDM_FORM_INDEX:
                return tdm_composer_digits(b->c, 3);
        case TDM_FORM_NAME:
                return tdm_composer_string(b->c, name ? name : "");
        default:
                return tdm_composer_string(b->c, key ? key : "");
        }
}

/* Where JSON may have white space: behind {, [, comma and colon, where a value or a name follows, and in front of what
 * closes the call. */
static bool is_json_space(const char *mark, const char *at)
{
        const char *next = at;

        if (at == mark)
                return *at == '}' || *at == ']'; /* behind the arguments */
        if (!memchr("{[,:", at[-1], 4))
                return false;
        while (tdm_form_is_blank(*next))
                next++;
        return *next == '"' || *next == '{' || *next == '[' || *next == '\0';
}

uint32_t tdm_form_literal(struct tdm_form_builder *b, const char *mark, const char *name, const char *key)
{
        uint32_t all = part_nothing(b);
        const char *at = mark ? mark : "";
        bool has_json = b->form->calls != TDM_FORM_CALLS_TAGGED && b->form->marks.between &&
                        strchr(b->form->marks.between, '"');

        while (*at) {
                const char *from = at;

                if (has_json && is_json_space(mark, at)) {
                        uint32_t space = tdm_composer_space(b->c);

                        while (tdm_form_is_blank(*at))
                                at++;
                        if (at - from > 1) /* as the mark has it, too */
                                space = tdm_composer_alt(b->c, space,
                                                         tdm_composer_text(b->c, from, (size_t)(at - from)));
                        all = part_cat(b, all, space);
                        from = at;
                } else if (has_json && at > mark && memchr("]>", at[-1], 2) &&
                           strchr(*at == ' ' ? at + 1 : at, '[') == (*at == ' ' ? at + 1 : at)) {
                        all = part_cat(b, all, part_opt(b, tdm_composer_string(b->c, " ")));
                        at += *at == ' ';
                        from = at;
                }
                if ((uint8_t)*at >= TDM_FORM_NAME && (uint8_t)*at <= TDM_FORM_ARGUMENTS) {
                        all = part_cat(b, all, slot_part(b, (uint8_t)*at++, name, key));
                        continue;
                }
                if (*at)
                        at++;
                while (*at && ((uint8_t)*at < TDM_FORM_NAME || (uint8_t)*at > TDM_FORM_ARGUMENTS) &&
                       !(has_json && (is_json_space(mark, at) || memchr("]>", at[-1], 2))))
                        at++;
                all = part_cat(b, all, tdm_composer_text(b->c, from, (size_t)(at - from)));
        }
        return all;
}

/* ---- calls ---- */

static bool name_is_good(const char *text, size_t size)
{
        for (size_t i = 0; i < size; i++) {
                char c = text[i];

                if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                      c == '-' || c == '.'))
                        return false;
        }
        return size > 0 && size <= TDM_FORM_NAME_MAX;
}

static int tools_refuse(struct tdm_form_builder *b, const char *what)
{
        return tdm_error_set(b->err, TDM_E_BAD_REQUEST, "tools: %s", what);
}

/* A tool without parameters takes none. */
static int arguments_add(struct tdm_form_builder *b, uint32_t function, struct tdm_form_tool *tool)
{
        static const char nothing[] = "{\"type\":\"object\",\"additionalProperties\":false}";
        struct tdm_json_buffer source = { 0 };
        struct tdm_error why = { 0 };
        int r;

        tool->parameters = tdm_form_member(&b->tools, function, "parameters");
        if (tool->parameters != TDM_JSON_NONE && tdm_json_get(&b->tools, tool->parameters)->type == TDM_JSON_NULL)
                tool->parameters = TDM_JSON_NONE;
        if (tool->parameters == TDM_JSON_NONE)
                tdm_json_write(&source, nothing, sizeof(nothing) - 1);
        else
                tdm_json_print(&b->tools, tool->parameters, &source);
        if (source.failed)
                r = -ENOMEM;
        else if (b->form->calls == TDM_FORM_CALLS_TAGGED)
                r = tdm_form_arguments(b, tool, source.data, source.size, &why);
        else
                r = tdm_composer_object(b->c, source.data, source.size, &tool->arguments, &why);
        free(source.data);
        if (r > 0)
                return tdm_error_set(b->err, r, "tools: parameters of %s: %s", tool->name, why.message);
        return r;
}

static int tool_read(struct tdm_form_builder *b, uint32_t at)
{
        const struct tdm_form_use *use = b->use;
        uint32_t function = tdm_form_function(&b->tools, at), name = tdm_form_member(&b->tools, function, "name");
        struct tdm_form_tool *tool = &b->all[b->n_all];
        const char *text;
        size_t size;

        if (name == TDM_JSON_NONE || tdm_json_get(&b->tools, name)->type != TDM_JSON_STRING)
                return tdm_error_set(b->err, TDM_E_BAD_REQUEST,
                                     "tools: the one at index %zu is not {\"type\": \"function\", \"function\": "
                                     "{\"name\": …}}",
                                     b->n_all);
        text = tdm_json_text(&b->tools, name);
        size = tdm_json_get(&b->tools, name)->text_size;
        if (!name_is_good(text, size))
                return tdm_error_set(b->err, TDM_E_BAD_REQUEST,
                                     "tools: '%.*s' is no name of a tool; it has 1 to 64 letters, digits, '_', '-' and "
                                     "'.'",
                                     (int)TDM_MIN(size, (size_t)TDM_FORM_NAME_MAX), text);
        memcpy(tool->name, text, size);
        for (size_t i = 0; i < b->n_all; i++)
                if (strcmp(b->all[i].name, tool->name) == 0)
                        return tdm_error_set(b->err, TDM_E_BAD_REQUEST, "tools: two have the name %s", tool->name);
        b->n_all++;
        tool->is_wanted =
                use->choice != TDM_FORM_CHOICE_NONE &&
                (use->choice != TDM_FORM_CHOICE_NAMED ||
                 (strlen(tool->name) == use->name_size && memcmp(tool->name, use->name, use->name_size) == 0));
        if (!tool->is_wanted)
                return 0;
        b->n_wanted++;
        return arguments_add(b, function, tool);
}

/* The tools that may be called. */
static int tools_read(struct tdm_form_builder *b)
{
        const struct tdm_form_use *use = b->use;
        struct tdm_error why = { 0 };
        int r = tdm_json_parse(&b->tools, use->tools, use->tools_size, 64, &why);

        if (r != 0)
                return r < 0 ? r : tools_refuse(b, why.message);
        if (tdm_json_get(&b->tools, 0)->type != TDM_JSON_ARRAY || tdm_json_get(&b->tools, 0)->n == 0)
                return tools_refuse(b, "not a JSON array with at least one tool");
        r = tdm_form_check_tools(tdm_json_get(&b->tools, 0)->n, b->err);
        if (r != 0)
                return r;
        b->all = calloc(tdm_json_get(&b->tools, 0)->n, sizeof(*b->all));
        if (!b->all)
                return -ENOMEM;
        for (uint32_t at = tdm_json_get(&b->tools, 0)->first; at != TDM_JSON_NONE && r == 0;
             at = tdm_json_get(&b->tools, at)->next)
                r = tool_read(b, at);
        if (r == 0 && use->choice == TDM_FORM_CHOICE_NAMED && b->n_wanted == 0)
                return tdm_error_set(b->err, TDM_E_BAD_REQUEST, "tool-choice: %.*s is none of the tools",
                                     (int)TDM_MIN(use->name_size, (size_t)TDM_FORM_NAME_MAX), use->name);
        return r;
}

/* A mark that may come without its id. */
static uint32_t mark_part(struct tdm_form_builder *b, const char *mark, const char *name)
{
        char *without = NULL;
        uint32_t part = tdm_form_literal(b, mark, name, NULL);

        if (tdm_form_without_id(mark, &without) < 0)
                return 0;
        if (without)
                part = tdm_composer_alt(b->c, part, tdm_form_literal(b, without, name, NULL));
        free(without);
        return part;
}

/* A call of one of the tools and what follows it. */
static uint32_t calls_then(struct tdm_form_builder *b, const char *mark, const char *empty_mark)
{
        const struct tdm_form_call_marks *m = &b->marks.calls;
        uint32_t all = 0;

        for (size_t i = b->n_all; i-- > 0;) {
                const struct tdm_form_tool *tool = &b->all[i];
                uint32_t e;

                if (!tool->is_wanted)
                        continue;
                e = part_cat(b, tool->arguments, mark_part(b, mark, tool->name));
                if (b->form->calls != TDM_FORM_CALLS_TAGGED)
                        e = part_cat(b, tdm_form_literal(b, m->between, tool->name, NULL), e);
                else if (tool->takes_nothing && empty_mark)
                        e = tdm_composer_alt(b->c, e, tdm_form_literal(b, empty_mark, tool->name, NULL));
                all = tdm_composer_alt(b->c, part_cat(b, tdm_composer_string(b->c, tool->name), e), all);
        }
        return all;
}

/* Where a call has to come, one is enough unless the model was trained on several. */
static bool calls_repeat(const struct tdm_form_builder *b)
{
        enum tdm_form_choice choice = b->use->choice;

        return b->marks.calls.gap && !b->use->one_call && choice != TDM_FORM_CHOICE_NAMED &&
               (choice != TDM_FORM_CHOICE_REQUIRED || b->form->calls != TDM_FORM_CALLS_GENERIC);
}

static uint32_t calls_part(struct tdm_form_builder *b)
{
        const struct tdm_form_call_marks *m = &b->marks.calls;
        uint32_t last = calls_then(b, m->after, m->empty_after);

        if (calls_repeat(b))
                last = part_cat(b, tdm_composer_rep(b->c, calls_then(b, m->gap, m->empty_gap), 0, UINT32_MAX), last);
        return part_cat(b, tdm_form_literal(b, m->before, NULL, NULL), last);
}

/* ---- the turn ---- */

static uint32_t blanks_part(struct tdm_form_builder *b)
{
        return tdm_composer_rep(
                b->c, tdm_composer_alt(b->c, tdm_composer_string(b->c, "\n"), tdm_composer_string(b->c, " ")), 0, 4);
}

static uint32_t thinking_part(struct tdm_form_builder *b)
{
        const char *const without[] = { b->form->think_end };
        bool must = b->use->choice >= TDM_FORM_CHOICE_REQUIRED;
        uint32_t body, end;

        if (!b->marks.think_end || b->use->prompt == TDM_FORM_PROMPT_CLOSED ||
            (must && b->use->prompt == TDM_FORM_PROMPT_SILENT))
                return part_nothing(b);
        end = part_cat(b, tdm_form_literal(b, b->marks.think_end, NULL, NULL), blanks_part(b));
        if (must)
                return end;
        body = part_cat(b, tdm_composer_free_text(b->c, without, 1), end);
        if (b->use->prompt == TDM_FORM_PROMPT_OPEN)
                return body;
        return part_opt(b, part_cat(b, tdm_form_literal(b, b->marks.think_begin, NULL, NULL), body));
}

/* The first words of a call that is the whole turn: a text may not begin with them. */
static uint32_t text_not_a_call(struct tdm_form_builder *b)
{
        const char *at = b->form->marks.before;
        char words[4][32];
        const char *list[4];
        unsigned n = 0;

        while (n < TDM_ARRAY_SIZE(words) && *at) {
                size_t size = 1;

                if (tdm_form_is_blank(*at)) {
                        at++;
                        continue;
                }
                if (*at == ':' || (n > 0 && words[n - 1][0] == '"'))
                        break;
                if (*at == '"')
                        size = strcspn(at + 1, "\"") + 2;
                if (size >= sizeof(words[0]) || size > strlen(at))
                        break;
                memcpy(words[n], at, size);
                words[n][size] = '\0';
                list[n] = words[n];
                n++;
                at += size;
        }
        return tdm_composer_free_text_not_from(b->c, list, n);
}

/* What people read: any text, or what the schema says. */
static int text_part(struct tdm_form_builder *b, bool has_calls, uint32_t *ret)
{
        const char *const start[] = { b->form->marks.start };
        uint32_t e, marked;

        if (b->use->schema) {
                int r = tdm_composer_schema(b->c, b->use->schema, b->use->schema_size, &e, b->err);

                if (r != 0)
                        return r;
        } else if (has_calls && !b->form->marks.start) {
                e = text_not_a_call(b);
        } else {
                e = tdm_composer_free_text(b->c, start, b->use->tools && b->form->marks.start ? 1 : 0);
        }
        *ret = e;
        if (!b->marks.text_begin)
                return 0;
        marked = part_cat(b, tdm_form_literal(b, b->marks.text_begin, NULL, NULL), e);
        if (b->marks.text_end)
                marked = part_cat(b, marked, part_opt(b, tdm_form_literal(b, b->marks.text_end, NULL, NULL)));
        *ret = tdm_composer_alt(b->c, e, marked);
        return 0;
}

static int turn_part(struct tdm_form_builder *b, uint32_t *ret)
{
        bool has_calls = b->n_wanted > 0, is_whole = !b->form->marks.start;
        uint32_t calls = has_calls ? calls_part(b) : 0, text, e;
        int r;

        if (b->use->choice >= TDM_FORM_CHOICE_REQUIRED) {
                *ret = part_cat(b, thinking_part(b), calls);
                return 0;
        }
        r = text_part(b, b->use->tools, &text);
        if (r != 0)
                return r;
        if (!has_calls)
                e = text;
        else if (is_whole || b->use->schema)
                e = tdm_composer_alt(b->c, calls, text);
        else
                e = part_cat(b, text, part_opt(b, calls));
        *ret = part_cat(b, thinking_part(b), e);
        return 0;
}

/* ---- gpt-oss: messages with a channel; the prompt has opened the first one ---- */

static uint32_t bound_part(struct tdm_form_builder *b, const char *text)
{
        _cleanup_(freep) char *bytes = NULL;

        if (tdm_form_bind(b->tokenizer, text, &bytes) < 0)
                return 0;
        return tdm_composer_string(b->c, bytes);
}

static uint32_t channel_calls(struct tdm_form_builder *b)
{
        uint32_t channel = bound_part(b, "<|channel|>commentary"), message = bound_part(b, "<|message|>"), all = 0;
        uint32_t json = tdm_composer_alt(b->c, bound_part(b, " <|constrain|>json"), tdm_composer_string(b->c, " json"));
        char line[TDM_FORM_NAME_MAX + 32];

        for (size_t i = b->n_all; i-- > 0;) {
                const struct tdm_form_tool *tool = &b->all[i];
                uint32_t body, to;

                if (!tool->is_wanted)
                        continue;
                body = part_cat3(b, part_opt(b, json), message, tool->arguments);
                snprintf(line, sizeof(line), " to=functions.%s", tool->name);
                to = tdm_composer_string(b->c, line);
                to = tdm_composer_alt(b->c, part_cat(b, to, channel), part_cat(b, channel, to));
                all = tdm_composer_alt(b->c, part_cat(b, to, body), all);
        }
        return all;
}

static int channelled_part(struct tdm_form_builder *b, uint32_t *ret)
{
        static const char *const marks[] = { "<|channel|>", "<|message|>", "<|end|>",      "<|start|>",
                                             "<|call|>",    "<|return|>",  "<|constrain|>" };
        uint32_t free_text = tdm_composer_free_text(b->c, marks, TDM_ARRAY_SIZE(marks)), before, last, text = free_text;
        uint32_t next = bound_part(b, "<|end|><|start|>assistant"), analysis;

        if (b->use->schema) {
                int r = tdm_composer_schema(b->c, b->use->schema, b->use->schema_size, &text, b->err);

                if (r != 0)
                        return r;
        }
        analysis = part_cat3(b, bound_part(b, "<|channel|>analysis<|message|>"), free_text, next);
        before = part_cat3(b, bound_part(b, "<|channel|>commentary<|message|>"), free_text, next);
        before = tdm_composer_rep(b->c, tdm_composer_alt(b->c, analysis, before), 0, UINT32_MAX);
        analysis = tdm_composer_rep(b->c, analysis, 0, UINT32_MAX);
        last = part_cat(b, bound_part(b, "<|channel|>final<|message|>"), text);
        if (b->use->choice >= TDM_FORM_CHOICE_REQUIRED)
                *ret = channel_calls(b);
        else if (b->n_wanted > 0)
                *ret = part_cat(b, b->use->schema ? analysis : before, tdm_composer_alt(b->c, last, channel_calls(b)));
        else
                *ret = part_cat(b, b->use->schema ? analysis : before, last);
        return 0;
}

int tdm_form_grammar(struct tdm_grammar **ret, const struct tdm_chat_form *form, const struct tdm_tokenizer *tokenizer,
                     const struct tdm_form_use *use, const struct tdm_grammar_limits *limits, struct tdm_error *err)
{
        struct tdm_form_builder b = { .form = form, .tokenizer = tokenizer, .use = use, .err = err };
        uint32_t root = 0;
        int r = tdm_form_marks_init(&b.marks, form, tokenizer);

        if (r == 0)
                r = tdm_composer_new(&b.c, limits);
        if (r == 0 && use->tools)
                r = tools_read(&b);
        if (r == 0)
                r = form->calls == TDM_FORM_CALLS_CHANNELLED ? channelled_part(&b, &root) : turn_part(&b, &root);
        if (r == 0)
                r = tdm_composer_finish(b.c, root, ret, err);
        tdm_composer_destroy(b.c);
        tdm_form_marks_deinit(&b.marks);
        tdm_json_deinit(&b.tools);
        free(b.all);
        return r;
}
