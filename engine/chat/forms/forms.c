/* A form's life, and what it says of itself. */
#include "engine/chat/forms/private.h"

#define MARK_MAX 256u /* bytes; those of known templates have less than half of it */

static void texts_free(char **texts, size_t n)
{
        for (size_t i = 0; i < n; i++)
                free(texts[i]);
}

static void marks_free(struct tdm_form_call_marks *m)
{
        texts_free((char *[]){ m->start, m->before, m->between, m->gap, m->after, m->open, m->next, m->value_end,
                               m->close_string, m->empty_gap, m->empty_after },
                   11);
        texts_free(m->as, TDM_FORM_N_TYPES);
        *m = (struct tdm_form_call_marks){ 0 };
}

void tdm_chat_form_destroy(struct tdm_chat_form *form)
{
        if (!form)
                return;
        marks_free(&form->marks);
        texts_free((char *[]){ form->think_begin, form->think_end, form->text_begin, form->text_end, form->thinking_key,
                               form->switch_variable, form->effort_variable },
                   7);
        texts_free(form->ends, TDM_ARRAY_SIZE(form->ends));
        free(form);
}

void tdm_chat_form_destroyp(struct tdm_chat_form **form)
{
        tdm_chat_form_destroy(*form);
}

/* A fenced JSON object: a model that was trained on no form has seen such fences. */
static int generic_set(struct tdm_chat_form *form)
{
        struct tdm_form_call_marks *m = &form->marks;

        marks_free(m);
        form->calls = TDM_FORM_CALLS_GENERIC;
        m->start = strdup(TDM_FORM_FENCE);
        m->before = strdup(TDM_FORM_FENCE "\n{\"name\": \"");
        m->between = strdup("\", \"arguments\": ");
        m->gap = strdup("}\n```\n" TDM_FORM_FENCE "\n{\"name\": \"");
        m->after = strdup("}\n```");
        return m->start && m->before && m->between && m->gap && m->after ? 0 : -ENOMEM;
}

int tdm_chat_form_new_generic(struct tdm_chat_form **ret, const char *why)
{
        _cleanup_(tdm_chat_form_destroyp) struct tdm_chat_form *form = calloc(1, sizeof(*form));

        if (!form || generic_set(form) < 0)
                return -ENOMEM;
        snprintf(form->why, sizeof(form->why), "%s", why);
        *ret = steal_ptr(&form);
        return 0;
}

static bool is_long(const char *mark)
{
        return mark && strlen(mark) > MARK_MAX;
}

/* The parser holds what may be a mark, and every job has copies of them. */
static int long_marks_drop(struct tdm_chat_form *form)
{
        const struct tdm_form_call_marks *m = &form->marks;
        const char *const marks[] = { m->start, m->before,    m->between,      m->gap,       m->after,      m->open,
                                      m->next,  m->value_end, m->close_string, m->empty_gap, m->empty_after };
        bool has_long = false;

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(marks); i++)
                has_long |= is_long(marks[i]);
        for (unsigned i = 0; i < TDM_FORM_N_TYPES; i++)
                has_long |= is_long(m->as[i]);
        if (has_long && form->calls != TDM_FORM_CALLS_GENERIC) {
                form->calls = TDM_FORM_CALLS_GENERIC;
                tdm_form_why(form, "a mark of its calls is too long");
        }
        if (is_long(form->think_begin) || is_long(form->think_end)) {
                free(steal_ptr(&form->think_begin));
                free(steal_ptr(&form->think_end));
                free(steal_ptr(&form->thinking_key));
                form->prompt_default = form->prompt_on = form->prompt_off = TDM_FORM_PROMPT_SILENT;
        }
        if (is_long(form->text_begin) || is_long(form->text_end)) {
                free(steal_ptr(&form->text_begin));
                free(steal_ptr(&form->text_end));
        }
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(form->ends); i++)
                if (is_long(form->ends[i]))
                        form->ends[i][MARK_MAX] = '\0';
        return form->calls == TDM_FORM_CALLS_GENERIC ? generic_set(form) : 0;
}

int tdm_chat_form_derive(struct tdm_chat_form **ret, const struct tdm_template *template, const char *bos,
                         const char *eos)
{
        struct tdm_form_probe p = { .template = template, .bos = bos, .eos = eos };
        _cleanup_(tdm_chat_form_destroyp) struct tdm_chat_form *form = NULL;
        int r;

        form = calloc(1, sizeof(*form));
        if (form)
                tdm_form_derive_texts(form, &p);
        r = form ? tdm_form_derive_thinking(form, &p) : -ENOMEM;
        if (r == 0)
                r = tdm_form_derive_calls(form, &p);
        if (r == 0)
                r = long_marks_drop(form);
        if (r < 0 || p.failed)
                return -ENOMEM;
        *ret = steal_ptr(&form);
        return 0;
}

/* ---- what it says ---- */

static void line_put(struct tdm_json_buffer *to, const char *name, const char *text)
{
        static const char *const slots[] = { "{NAME}", "{ID}", "{INDEX}", "{KEY}", "{VALUE}", "{ARGUMENTS}" };

        if (!text)
                return;
        tdm_json_write(to, name, strlen(name));
        tdm_json_write(to, ": ", 2);
        for (; *text; text++) {
                uint8_t c = (uint8_t)*text;

                if (c >= TDM_FORM_NAME && c <= TDM_FORM_ARGUMENTS)
                        tdm_json_write(to, slots[c - TDM_FORM_NAME], strlen(slots[c - TDM_FORM_NAME]));
                else if (c == '\n')
                        tdm_json_write(to, "\\n", 2);
                else
                        tdm_json_write(to, text, 1);
        }
        tdm_json_write(to, "\n", 1);
}

int tdm_chat_form_describe(const struct tdm_chat_form *form, char **ret)
{
        static const char *const calls[] = { "generic", "json", "tagged", "channelled" };
        static const char *const texts[] = { "system text", "user text", "assistant text", "tool text" };
        static const char *const strings[] = { "bare", "quoted", "marked" };
        static const char *const types[] = { "string", "number", "boolean", "null", "array", "object" };
        static const char *const prompts[] = { "silent", "open", "closed" };
        const struct tdm_form_call_marks *m = &form->marks;
        struct tdm_json_buffer to = { 0 };

        line_put(&to, "calls", calls[form->calls]);
        line_put(&to, "why", form->why[0] ? form->why : NULL);
        line_put(&to, "tools", form->renders_tools ? "shown" : "not shown");
        for (unsigned i = 0; i < TDM_FORM_N_ROLES; i++)
                line_put(&to, texts[i],
                         form->texts[i] == TDM_FORM_TEXT_PARTS   ? "parts" :
                         form->texts[i] == TDM_FORM_TEXT_DROPPED ? "dropped" :
                                                                   NULL);
        if (form->renders_calls)
                line_put(&to, "arguments", form->arguments_as_object ? "object" : "text");
        line_put(&to, "start", m->start);
        line_put(&to, "before", m->before);
        line_put(&to, "between", m->between);
        line_put(&to, "open", m->open);
        for (unsigned i = 0; i < TDM_FORM_N_TYPES; i++)
                if (i < 2 || (m->as[i] && strcmp(m->as[i], m->as[TDM_FORM_NUMBER]) != 0))
                        line_put(&to, types[i], m->as[i]);
        line_put(&to, "strings", m->as[0] ? strings[form->strings] : NULL);
        line_put(&to, "close string", m->close_string && m->close_string[0] ? m->close_string : NULL);
        line_put(&to, "value end", m->value_end);
        line_put(&to, "next", m->next);
        line_put(&to, "gap", m->gap);
        line_put(&to, "after", m->after);
        line_put(&to, "empty gap", m->empty_gap);
        line_put(&to, "empty after", m->empty_after);
        line_put(&to, "think", form->think_begin);
        line_put(&to, "think end", form->think_end);
        line_put(&to, "text", form->text_begin);
        line_put(&to, "text end", form->text_end);
        line_put(&to, "thinking key", form->thinking_key);
        line_put(&to, "switch", form->switch_variable);
        line_put(&to, "effort", form->effort_variable);
        if (form->think_begin) {
                line_put(&to, "prompt", prompts[form->prompt_default]);
                line_put(&to, "prompt on", prompts[form->prompt_on]);
                line_put(&to, "prompt off", prompts[form->prompt_off]);
        }
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(form->ends); i++)
                line_put(&to, "end", form->ends[i]);
        tdm_json_write(&to, "", 1);
        if (to.failed) {
                free(to.data);
                return -ENOMEM;
        }
        *ret = to.data;
        return 0;
}
