/* Conversations with tools for templates that show none: tools are explained in a text, calls and results stand as text
 * in the messages (forms/generic.h). */
#include "engine/chat/private.h"
#include "engine/chat/forms/generic.h"

/* A model that is shown tools and not how it has to call them writes what nobody can read. */
bool tdm_chat_explains_tools(const struct tdm_chat_template *t, const struct tdm_chat_options *options)
{
        return options->tools.size > 0 && t->form &&
               (!t->form->renders_tools || t->form->calls == TDM_FORM_CALLS_GENERIC);
}

static bool calls_are_text(const struct tdm_chat_template *t)
{
        return t->form && (!t->form->renders_calls || t->form->calls == TDM_FORM_CALLS_GENERIC ||
                           t->form->texts[TDM_FORM_TOOL_ROLE] == TDM_FORM_TEXT_DROPPED);
}

bool tdm_chat_is_flat(const struct tdm_chat_template *t, const struct tdm_chat_message *messages, size_t n,
                      const struct tdm_chat_options *options)
{
        if (tdm_chat_explains_tools(t, options))
                return true;
        for (size_t i = 0; i < n && calls_are_text(t); i++)
                if (messages[i].role == TDM_CHAT_TOOL || messages[i].n_calls > 0)
                        return true;
        return false;
}

void tdm_chat_flat_deinit(struct tdm_chat_flat *flat)
{
        for (size_t i = 0; i < flat->n; i++)
                free(flat->texts[i].data);
        free(flat->messages);
        free(flat->texts);
        *flat = (struct tdm_chat_flat){ 0 };
}

static void text_add(struct tdm_json_buffer *to, const char *text, size_t size)
{
        if (to->size > 0 && size > 0)
                tdm_json_write(to, "\n\n", 2);
        if (size > 0)
                tdm_json_write(to, text, size);
}

/* A new message, or the last one where that has the same role. */
static struct tdm_json_buffer *message_add(struct tdm_chat_flat *flat, const struct tdm_chat_message *like,
                                           enum tdm_chat_role role, bool joins)
{
        if (!joins || flat->n == 0 || flat->messages[flat->n - 1].role != role) {
                flat->messages[flat->n] = *like;
                flat->messages[flat->n++].role = role;
        }
        return &flat->texts[flat->n - 1];
}

static int calls_add(const struct tdm_chat_template *t, const struct tdm_chat_message *m, struct tdm_json_buffer *to)
{
        struct tdm_form_call *calls = calloc(m->n_calls, sizeof(*calls));

        if (!calls)
                return -ENOMEM;
        for (size_t i = 0; i < m->n_calls; i++) {
                const struct tdm_chat_call *c = &m->calls[i];
                bool none = c->arguments.size == 0;

                calls[i] = (struct tdm_form_call){ c->name.data ? c->name.data : "", none ? "{}" : c->arguments.data,
                                                   c->name.size, none ? 2 : c->arguments.size };
        }
        if (to->size > 0)
                tdm_json_write(to, "\n", 1);
        tdm_form_write_calls(t->form, calls, m->n_calls, to);
        free(calls);
        return 0;
}

static int message_flatten(const struct tdm_chat_template *t, const struct tdm_chat_message *m, bool follows_result,
                           struct tdm_chat_flat *flat)
{
        bool as_text = calls_are_text(t), is_result = as_text && m->role == TDM_CHAT_TOOL;
        struct tdm_json_buffer *to = message_add(flat, m, is_result ? TDM_CHAT_USER : m->role,
                                                 is_result || (follows_result && m->role == TDM_CHAT_USER));
        struct tdm_json_buffer result = { 0 };

        if (!is_result) {
                text_add(to, m->text ? m->text : "", m->size);
                if (m->n_calls == 0 || !as_text)
                        return 0;
                flat->messages[flat->n - 1].n_calls = 0;
                return calls_add(t, m, to);
        }
        flat->messages[flat->n - 1].call_id.size = flat->messages[flat->n - 1].name.size = 0;
        tdm_form_write_result(m->name.data ? m->name.data : "", m->name.size, m->text ? m->text : "", m->size, &result);
        text_add(to, result.data, result.size);
        to->failed |= result.failed;
        free(result.data);
        return 0;
}

/* To the system's text, or one of its own; in front of the first user's where the template takes no system. */
static int tools_explain(const struct tdm_chat_template *t, const struct tdm_chat_message *messages, size_t n,
                         const struct tdm_chat_options *options, struct tdm_chat_flat *flat, struct tdm_error *err)
{
        static const struct tdm_chat_message system = { .role = TDM_CHAT_SYSTEM };
        bool has_system = n > 0 && messages[0].role == TDM_CHAT_SYSTEM;
        _cleanup_(freep) char *text = NULL;
        struct tdm_json_buffer *to;
        int r = tdm_form_instruct(t->form, t->form->renders_tools ? NULL : options->tools.data, options->tools.size,
                                  &text, err);

        if (r != 0)
                return r;
        if (has_system)
                to = message_add(flat, &messages[0], TDM_CHAT_SYSTEM, false);
        else if (t->form->texts[TDM_FORM_SYSTEM_ROLE] >= TDM_FORM_TEXT_STRING)
                to = message_add(flat, &system, TDM_CHAT_SYSTEM, false);
        else
                to = message_add(flat, &(struct tdm_chat_message){ .role = TDM_CHAT_USER }, TDM_CHAT_USER, false);
        if (has_system)
                text_add(to, messages[0].text ? messages[0].text : "", messages[0].size);
        text_add(to, text, strlen(text));
        return 0;
}

int tdm_chat_flatten(const struct tdm_chat_template *t, const struct tdm_chat_message *messages, size_t n,
                     const struct tdm_chat_options *options, struct tdm_chat_flat *ret, struct tdm_error *err)
{
        bool explains = tdm_chat_explains_tools(t, options), joins;
        size_t from = 0;
        int r = 0;

        ret->messages = calloc(n + 1, sizeof(*ret->messages));
        ret->texts = calloc(n + 1, sizeof(*ret->texts));
        if (!ret->messages || !ret->texts)
                return -ENOMEM;
        if (explains) {
                r = tools_explain(t, messages, n, options, ret, err);
                from = messages[0].role == TDM_CHAT_SYSTEM;
        }
        joins = explains && from == 0 && r == 0 && ret->messages[0].role == TDM_CHAT_USER;
        for (size_t i = from; i < n && r == 0; i++) {
                r = message_flatten(t, &messages[i], joins, ret);
                joins = calls_are_text(t) && messages[i].role == TDM_CHAT_TOOL;
        }
        for (size_t i = 0; i < ret->n && r == 0; i++) {
                ret->messages[i].text = ret->texts[i].data;
                ret->messages[i].size = ret->texts[i].size;
                r = ret->texts[i].failed ? -ENOMEM : 0;
        }
        return r;
}
