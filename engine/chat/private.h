/* Shared by the sources of engine/chat: chat.c (the object, rendering), conversation.c (the input of a template),
 * probe.c (what a template takes), tools.c and calls.c (the forms of calls). */
#ifndef TDM_ENGINE_CHAT_PRIVATE_H
#define TDM_ENGINE_CHAT_PRIVATE_H

#include "engine/chat/chat.h"
#include "engine/chat/forms/turn.h"
#include "engine/chat/template/template.h"
#include "engine/grammar/json.h"

/* One of a file's templates, and what rendering with it showed. */
struct tdm_chat_template {
        struct tdm_template *template; /* NULL: it has none, or it cannot be parsed */
        struct tdm_error why;          /* which */
        struct tdm_chat_form *form;    /* NULL: it has none that works */
};

static inline enum tdm_form_role tdm_chat_form_role(enum tdm_chat_role role)
{
        static const enum tdm_form_role roles[] = { [TDM_CHAT_SYSTEM] = TDM_FORM_SYSTEM_ROLE,
                                                    [TDM_CHAT_USER] = TDM_FORM_USER_ROLE,
                                                    [TDM_CHAT_ASSISTANT] = TDM_FORM_ASSISTANT_ROLE,
                                                    [TDM_CHAT_TOOL] = TDM_FORM_TOOL_ROLE };

        return roles[role];
}

/* Whether what the model writes may begin with a thought that can be told from the answer. */
static inline bool tdm_chat_template_thinks(const struct tdm_chat_template *t)
{
        return t->form && t->form->think_begin;
}

struct tdm_chat {
        const struct tdm_tokenizer *tokenizer;
        char *bos, *eos; /* as the templates see them */
        struct tdm_chat_template plain;
        struct tdm_chat_template tools; /* where tools are given; no template: the plain one then too */
        bool is_missing;                /* the file has no template */
        char refusal[TDM_ERROR_MESSAGE_MAX + 64];
};

/* The template that renders conversations with these options. */
const struct tdm_chat_template *tdm_chat_template_for(const struct tdm_chat *chat, bool with_tools);

/* The conversation as the JSON object whose members a template sees. The caller frees the buffer, in any case. */
int tdm_chat_write_input(const struct tdm_chat_template *t, const struct tdm_chat_message *messages, size_t n_messages,
                         const struct tdm_chat_options *options, struct tdm_json_buffer *to, struct tdm_error *err);

/* flat.c: a conversation as the template can show it, with tools, calls and results in texts. */
struct tdm_chat_flat {
        struct tdm_chat_message *messages; /* [n] */
        struct tdm_json_buffer *texts;     /* [n] */
        size_t n;
};
/* Whether there are tools and the template does not show them, or not how they are called. */
bool tdm_chat_explains_tools(const struct tdm_chat_template *t, const struct tdm_chat_options *options);
/* Whether the conversation has what the template does not show. */
bool tdm_chat_is_flat(const struct tdm_chat_template *t, const struct tdm_chat_message *messages, size_t n,
                      const struct tdm_chat_options *options);
/* ret, which is zeroed, borrows from messages; it wants tdm_chat_flat_deinit() in any case. */
int tdm_chat_flatten(const struct tdm_chat_template *t, const struct tdm_chat_message *messages, size_t n,
                     const struct tdm_chat_options *options, struct tdm_chat_flat *ret, struct tdm_error *err);
void tdm_chat_flat_deinit(struct tdm_chat_flat *flat);

/* Renders such an object. now may be NULL: the clock's. ret wants tdm_template_result_deinit() in any case. */
int tdm_chat_render_input(const struct tdm_chat *chat, const struct tdm_chat_template *t, const char *input,
                          size_t size, const struct tdm_template_limits *limits, const struct tm *now,
                          bool continue_final, struct tdm_template_result *ret, struct tdm_error *err);

/* Finds the form. -ENOMEM. */
int tdm_chat_probe(const struct tdm_chat *chat, struct tdm_chat_template *t);

#endif
