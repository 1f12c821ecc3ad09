/* Llama 3, and 3.1 to 3.3 with tools and a date in the system's turn. Contents are trimmed. */
#include "engine/chat/private.h"

static const char format_hint[] =
        "Respond in the format {\"name\": function name, \"parameters\": dictionary of argument "
        "name and its value}.Do not use variables.\n\n";

static int llama3_open_turn(struct tdm_chat_writer *w, const char *role)
{
        TDM_CHAT_TRY(tdm_chat_put_marker(w, "<|start_header_id|>"));
        TDM_CHAT_TRY(tdm_chat_put_string(w, role));
        TDM_CHAT_TRY(tdm_chat_put_marker(w, "<|end_header_id|>"));
        return tdm_chat_put(w, "\n\n", 2);
}

static int put_turn(struct tdm_chat_writer *w, const struct tdm_chat_message *m)
{
        static const char *const roles[] = { "system", "user", "assistant", "tool" };

        TDM_CHAT_TRY(llama3_open_turn(w, roles[m->role]));
        TDM_CHAT_TRY(tdm_chat_put_text(w, tdm_chat_trim(tdm_chat_content(m))));
        return tdm_chat_put_marker(w, "<|eot_id|>");
}

int tdm_chat_render_llama3(struct tdm_chat_writer *w)
{
        for (size_t i = 0; i < w->n_messages; i++)
                TDM_CHAT_TRY(put_turn(w, &w->messages[i]));
        return llama3_open_turn(w, "assistant");
}

static int llama3_put_tools(struct tdm_chat_writer *w)
{
        TDM_CHAT_TRY(tdm_chat_put_string(w, format_hint));
        for (uint32_t tool = w->tools.nodes[0].first; tool != TDM_JSON_NONE; tool = w->tools.nodes[tool].next) {
                TDM_CHAT_TRY(tdm_chat_put_json(w, &w->tools, tool, 4));
                TDM_CHAT_TRY(tdm_chat_put(w, "\n\n", 2));
        }
        return 0;
}

static int llama3_put_system(struct tdm_chat_writer *w, bool has_system)
{
        TDM_CHAT_TRY(llama3_open_turn(w, "system"));
        if (tdm_chat_has_tools(w))
                TDM_CHAT_TRY(tdm_chat_put_string(w, "Environment: ipython\n"));
        TDM_CHAT_TRY(tdm_chat_put_string(w, "Cutting Knowledge Date: December 2023\nToday Date: "));
        TDM_CHAT_TRY(w->row->says_today ? tdm_chat_put_date(w, false) : tdm_chat_put_string(w, "26 Jul 2024"));
        TDM_CHAT_TRY(tdm_chat_put(w, "\n\n", 2));
        if (tdm_chat_has_tools(w) && w->options.tools_in_system) {
                TDM_CHAT_TRY(tdm_chat_put_string(w, "You have access to the following functions. To call a function, "
                                                    "please respond with JSON for a function call."));
                TDM_CHAT_TRY(llama3_put_tools(w));
        }
        if (has_system)
                TDM_CHAT_TRY(tdm_chat_put_text(w, tdm_chat_trim(tdm_chat_content(&w->messages[0]))));
        return tdm_chat_put_marker(w, "<|eot_id|>");
}

static int put_call(struct tdm_chat_writer *w, const struct tdm_chat_message *m)
{
        if (m->n_calls != 1)
                return tdm_chat_refuse(w, "the model's chat template takes one tool call in a message, not %zu",
                                       m->n_calls);
        TDM_CHAT_TRY(llama3_open_turn(w, "assistant"));
        TDM_CHAT_TRY(tdm_chat_put_string(w, "{\"name\": \""));
        TDM_CHAT_TRY(tdm_chat_put_text(w, m->calls[0].name));
        TDM_CHAT_TRY(tdm_chat_put_string(w, "\", \"parameters\": "));
        TDM_CHAT_TRY(tdm_chat_put_json_text(w, m->calls[0].arguments, TDM_JSON_OBJECT, "a call's arguments"));
        TDM_CHAT_TRY(tdm_chat_put(w, "}", 1));
        return tdm_chat_put_marker(w, "<|eot_id|>");
}

int tdm_chat_render_llama31(struct tdm_chat_writer *w)
{
        bool has_system = w->messages[0].role == TDM_CHAT_SYSTEM;
        size_t i = has_system;

        TDM_CHAT_TRY(llama3_put_system(w, has_system));
        if (tdm_chat_has_tools(w) && !w->options.tools_in_system) {
                if (i == w->n_messages)
                        return tdm_chat_refuse(w, "tools go into the first user message, and there is none");
                TDM_CHAT_TRY(llama3_open_turn(w, "user"));
                TDM_CHAT_TRY(tdm_chat_put_string(w, "Given the following functions, please respond with a JSON for a "
                                                    "function call with its proper arguments that best answers the "
                                                    "given prompt.\n\n"));
                TDM_CHAT_TRY(llama3_put_tools(w));
                TDM_CHAT_TRY(tdm_chat_put_text(w, tdm_chat_trim(tdm_chat_content(&w->messages[i++]))));
                TDM_CHAT_TRY(tdm_chat_put_marker(w, "<|eot_id|>"));
        }
        for (; i < w->n_messages; i++) {
                const struct tdm_chat_message *m = &w->messages[i];

                if (m->n_calls > 0)
                        TDM_CHAT_TRY(put_call(w, m));
                else if (m->role == TDM_CHAT_TOOL) {
                        TDM_CHAT_TRY(llama3_open_turn(w, "ipython"));
                        TDM_CHAT_TRY(tdm_chat_put_quoted(w, tdm_chat_content(m)));
                        TDM_CHAT_TRY(tdm_chat_put_marker(w, "<|eot_id|>"));
                } else
                        TDM_CHAT_TRY(put_turn(w, m));
        }
        return llama3_open_turn(w, "assistant");
}
