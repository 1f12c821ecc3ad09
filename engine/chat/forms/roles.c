/* In which form a template takes the text of each role's message, and whether it shows it. */
#include "engine/chat/forms/private.h"

/* What one rendering says of a role's text. */
enum probe_answer { ANSWER_REFUSED, ANSWER_DROPPED, ANSWER_SHOWN };

/* A template may write texts in other letters (content | lower). */
static enum probe_answer answer_take(char *text, const char *word)
{
        enum probe_answer answer = !text ? ANSWER_REFUSED : strcasestr(text, word) ? ANSWER_SHOWN : ANSWER_DROPPED;

        free(text);
        return answer;
}

/* Some templates show the assistant's text only where another message follows, or where none does. */
static enum probe_answer assistant_ask(struct tdm_form_probe *p)
{
        struct tdm_form_turn turn = { .content = "\"" TDM_FORM_WORDS "\"", .ends_with_user = true };
        enum probe_answer first = answer_take(tdm_form_render(p, &turn), TDM_FORM_WORDS), second;

        if (first == ANSWER_SHOWN)
                return first;
        turn.ends_with_user = false;
        second = answer_take(tdm_form_render(p, &turn), TDM_FORM_WORDS);
        return TDM_MAX(first, second);
}

static enum probe_answer role_ask(struct tdm_form_probe *p, enum tdm_form_role role)
{
        if (role == TDM_FORM_ASSISTANT_ROLE)
                return assistant_ask(p);
        if (role == TDM_FORM_SYSTEM_ROLE)
                return answer_take(tdm_form_render_system(p), TDM_FORM_SYSTEM);
        return answer_take(tdm_form_render_prompt(p, NULL, false), TDM_FORM_ASKED);
}

/* A text goes as a string wherever the template shows it so: it is what most templates expect. */
static enum tdm_form_text_as text_as(enum probe_answer string, enum probe_answer parts)
{
        return string == ANSWER_SHOWN   ? TDM_FORM_TEXT_STRING :
               parts == ANSWER_SHOWN    ? TDM_FORM_TEXT_PARTS :
               string == ANSWER_DROPPED ? TDM_FORM_TEXT_DROPPED :
                                          TDM_FORM_TEXT_REFUSED;
}

void tdm_form_derive_texts(struct tdm_chat_form *form, struct tdm_form_probe *p)
{
        /* The user first: its message stands in the probes of the others. */
        static const enum tdm_form_role order[] = { TDM_FORM_USER_ROLE, TDM_FORM_SYSTEM_ROLE, TDM_FORM_ASSISTANT_ROLE };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(order); i++) {
                enum tdm_form_role role = order[i];
                enum probe_answer string = role_ask(p, role), parts = ANSWER_REFUSED;

                if (string != ANSWER_SHOWN) {
                        p->in_parts[role] = true;
                        parts = role_ask(p, role);
                }
                if (p->is_exhausted || p->failed)
                        string = parts = ANSWER_REFUSED; /* nothing is known */
                form->texts[role] = text_as(string, parts);
                p->in_parts[role] = form->texts[role] == TDM_FORM_TEXT_PARTS;
        }
}

void tdm_form_derive_results(struct tdm_chat_form *form, struct tdm_form_probe *p, struct tdm_form_turn turn)
{
        enum probe_answer string = answer_take(tdm_form_render(p, &turn), TDM_FORM_RESULT), parts = ANSWER_REFUSED;

        if (string != ANSWER_SHOWN) {
                p->in_parts[TDM_FORM_TOOL_ROLE] = true;
                parts = answer_take(tdm_form_render(p, &turn), TDM_FORM_RESULT);
        }
        if (p->is_exhausted || p->failed)
                string = parts = ANSWER_REFUSED;
        form->texts[TDM_FORM_TOOL_ROLE] = text_as(string, parts);
        p->in_parts[TDM_FORM_TOOL_ROLE] = form->texts[TDM_FORM_TOOL_ROLE] == TDM_FORM_TEXT_PARTS;
}
