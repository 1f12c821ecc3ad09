/* Tools for models whose template shows none: a text that explains them; calls and results of earlier turns as text.
 *
 * The text stands in a system message, or in front of the first user's where the template takes none. A call is written
 * in the form's marks, so the grammar and the parser of the form (turn.h) fit. */
#ifndef TDM_ENGINE_CHAT_GENERIC_H
#define TDM_ENGINE_CHAT_GENERIC_H

#include "engine/chat/forms/forms.h"

/* tools: a JSON array as in struct tdm_form_use; NULL: the template shows them, and calls alone are explained. *ret
 * ends with a NUL and is the caller's. TDM_E_BAD_REQUEST: no such array. TDM_E_UNSUPPORTED: calls of the form cannot be
 * explained. -ENOMEM. */
int tdm_form_instruct(const struct tdm_chat_form *form, const char *tools, size_t size, char **ret,
                      struct tdm_error *err);

struct tdm_form_call {
        const char *name, *arguments; /* a JSON object */
        size_t name_size, arguments_size;
};
/* The calls of one turn, behind its text. Nothing where there are none. */
void tdm_form_write_calls(const struct tdm_chat_form *form, const struct tdm_form_call *calls, size_t n,
                          struct tdm_json_buffer *to);
/* A tool's result, as a part of a user's message; name may be empty. */
void tdm_form_write_result(const char *name, size_t name_size, const char *text, size_t size,
                           struct tdm_json_buffer *to);

#endif
