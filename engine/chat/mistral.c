/* Mistral's templates with [INST]: v3 with the Tekken vocabulary, and v7 with a system's turn of its own. */
#include "engine/chat/private.h"

#define ID_BYTES 9u /* the template takes no other */

static int put_end(struct tdm_chat_writer *w)
{
        return tdm_chat_put_marker(w, "</s>");
}

static int mistral_put_tools(struct tdm_chat_writer *w)
{
        TDM_CHAT_TRY(tdm_chat_put_marker(w, "[AVAILABLE_TOOLS]"));
        TDM_CHAT_TRY(tdm_chat_put(w, "[", 1));
        for (uint32_t tool = w->tools.nodes[0].first; tool != TDM_JSON_NONE; tool = w->tools.nodes[tool].next) {
                if (tool != w->tools.nodes[0].first)
                        TDM_CHAT_TRY(tdm_chat_put(w, ", ", 2));
                TDM_CHAT_TRY(tdm_chat_put_string(w, "{\"type\": \"function\", \"function\": "));
                TDM_CHAT_TRY(tdm_chat_put_json(w, &w->tools, tdm_chat_function(w, tool), 0));
                TDM_CHAT_TRY(tdm_chat_put(w, "}", 1));
        }
        TDM_CHAT_TRY(tdm_chat_put(w, "]", 1));
        return tdm_chat_put_marker(w, "[/AVAILABLE_TOOLS]");
}

static int put_id(struct tdm_chat_writer *w, struct tdm_chat_text id)
{
        if (id.size != ID_BYTES)
                return tdm_chat_refuse(w,
                                       "the model's chat template wants the id of a tool call to have %u letters or "
                                       "digits, this one has %zu bytes",
                                       ID_BYTES, id.size);
        return tdm_chat_put_quoted(w, id);
}

static int put_calls(struct tdm_chat_writer *w, const struct tdm_chat_message *m)
{
        TDM_CHAT_TRY(tdm_chat_put_marker(w, "[TOOL_CALLS]"));
        TDM_CHAT_TRY(tdm_chat_put(w, "[", 1));
        for (size_t i = 0; i < m->n_calls; i++) {
                if (i > 0)
                        TDM_CHAT_TRY(tdm_chat_put(w, ", ", 2));
                TDM_CHAT_TRY(tdm_chat_put_string(w, "{\"name\": "));
                TDM_CHAT_TRY(tdm_chat_put_quoted(w, m->calls[i].name));
                TDM_CHAT_TRY(tdm_chat_put_string(w, ", \"arguments\": "));
                TDM_CHAT_TRY(tdm_chat_put_json_text(w, m->calls[i].arguments, TDM_JSON_OBJECT, "a call's arguments"));
                TDM_CHAT_TRY(tdm_chat_put_string(w, ", \"id\": "));
                TDM_CHAT_TRY(put_id(w, m->calls[i].id));
                TDM_CHAT_TRY(tdm_chat_put(w, "}", 1));
        }
        TDM_CHAT_TRY(tdm_chat_put(w, "]", 1));
        return put_end(w);
}

static int mistral_put_answer(struct tdm_chat_writer *w, const struct tdm_chat_message *m)
{
        TDM_CHAT_TRY(tdm_chat_put_marker(w, "[TOOL_RESULTS]"));
        TDM_CHAT_TRY(tdm_chat_put_string(w, "{\"content\": "));
        TDM_CHAT_TRY(tdm_chat_put_text(w, tdm_chat_content(m)));
        TDM_CHAT_TRY(tdm_chat_put_string(w, ", \"call_id\": "));
        TDM_CHAT_TRY(put_id(w, m->call_id));
        TDM_CHAT_TRY(tdm_chat_put(w, "}", 1));
        return tdm_chat_put_marker(w, "[/TOOL_RESULTS]");
}

/* Users and the assistant take turns; calls and answers of tools stand in between. */
static int check_turns(struct tdm_chat_writer *w, size_t from)
{
        size_t n = 0;

        for (size_t i = from; i < w->n_messages; i++) {
                const struct tdm_chat_message *m = &w->messages[i];

                if (m->role == TDM_CHAT_TOOL || m->n_calls > 0)
                        continue;
                if (m->role == TDM_CHAT_SYSTEM || (m->role == TDM_CHAT_USER) != (n++ % 2 == 0))
                        return tdm_chat_refuse(w,
                                               "message %zu: behind the first system message, the model's chat "
                                               "template wants user and assistant in turn",
                                               i + 1);
        }
        return 0;
}

int tdm_chat_render_mistral(struct tdm_chat_writer *w)
{
        bool has_system = w->messages[0].role == TDM_CHAT_SYSTEM, own_turn = w->row->system_turn;
        size_t last_user = SIZE_MAX;

        TDM_CHAT_TRY(check_turns(w, has_system));
        for (size_t i = has_system; i < w->n_messages; i++) {
                if (w->messages[i].role == TDM_CHAT_USER)
                        last_user = i;
        }
        if (has_system && own_turn) {
                TDM_CHAT_TRY(tdm_chat_put_marker(w, "[SYSTEM_PROMPT]"));
                TDM_CHAT_TRY(tdm_chat_put_text(w, tdm_chat_content(&w->messages[0])));
                TDM_CHAT_TRY(tdm_chat_put_marker(w, "[/SYSTEM_PROMPT]"));
        }
        for (size_t i = has_system; i < w->n_messages; i++) {
                const struct tdm_chat_message *m = &w->messages[i];

                if (m->n_calls > 0) {
                        TDM_CHAT_TRY(put_calls(w, m));
                } else if (m->role == TDM_CHAT_TOOL) {
                        TDM_CHAT_TRY(mistral_put_answer(w, m));
                } else if (m->role == TDM_CHAT_ASSISTANT) {
                        TDM_CHAT_TRY(tdm_chat_put_text(w, tdm_chat_content(m)));
                        TDM_CHAT_TRY(put_end(w));
                } else {
                        if (i == last_user && tdm_chat_has_tools(w))
                                TDM_CHAT_TRY(mistral_put_tools(w));
                        TDM_CHAT_TRY(tdm_chat_put_marker(w, "[INST]"));
                        if (has_system && !own_turn && i + 1 == w->n_messages) {
                                TDM_CHAT_TRY(tdm_chat_put_text(w, tdm_chat_content(&w->messages[0])));
                                TDM_CHAT_TRY(tdm_chat_put(w, "\n\n", 2));
                        }
                        TDM_CHAT_TRY(tdm_chat_put_text(w, tdm_chat_content(m)));
                        TDM_CHAT_TRY(tdm_chat_put_marker(w, "[/INST]"));
                }
        }
        return 0;
}
