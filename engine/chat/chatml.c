/* ChatML, and Qwen's two forms of it with tools. */
#include "engine/chat/private.h"

static const char *role_name(enum tdm_chat_role role)
{
        return role == TDM_CHAT_SYSTEM ? "system" : role == TDM_CHAT_ASSISTANT ? "assistant" : "user";
}

static int chatml_open_turn(struct tdm_chat_writer *w, const char *role)
{
        TDM_CHAT_TRY(tdm_chat_put_marker(w, "<|im_start|>"));
        return tdm_chat_put_string(w, role);
}

static int close_turn(struct tdm_chat_writer *w)
{
        TDM_CHAT_TRY(tdm_chat_put_marker(w, "<|im_end|>"));
        return tdm_chat_put(w, "\n", 1);
}

static int put_turn(struct tdm_chat_writer *w, const char *role, struct tdm_chat_text text)
{
        TDM_CHAT_TRY(chatml_open_turn(w, role));
        TDM_CHAT_TRY(tdm_chat_put(w, "\n", 1));
        TDM_CHAT_TRY(tdm_chat_put_text(w, text));
        return close_turn(w);
}

/* What the template says where the conversation has no system message. */
static struct tdm_chat_text own_system(const struct tdm_chat_writer *w)
{
        const char *text = w->row->system ? w->row->system : "";

        return (struct tdm_chat_text){ text, strlen(text) };
}

int tdm_chat_render_chatml(struct tdm_chat_writer *w)
{
        if (w->row->system && w->messages[0].role != TDM_CHAT_SYSTEM)
                TDM_CHAT_TRY(put_turn(w, "system", own_system(w)));
        for (size_t i = 0; i < w->n_messages; i++)
                TDM_CHAT_TRY(put_turn(w, role_name(w->messages[i].role), tdm_chat_content(&w->messages[i])));
        TDM_CHAT_TRY(chatml_open_turn(w, "assistant"));
        return tdm_chat_put(w, "\n", 1);
}

/* The turn with the system's text and the tools. Returns through ret_from where the other messages start. */
static int chatml_put_system(struct tdm_chat_writer *w, size_t *ret_from)
{
        bool has_system = w->messages[0].role == TDM_CHAT_SYSTEM;
        struct tdm_chat_text text = has_system ? tdm_chat_content(&w->messages[0]) : own_system(w);

        *ret_from = has_system;
        if (!tdm_chat_has_tools(w))
                return has_system || w->row->system ? put_turn(w, "system", text) : 0;
        TDM_CHAT_TRY(chatml_open_turn(w, "system"));
        TDM_CHAT_TRY(tdm_chat_put(w, "\n", 1));
        if (has_system || w->row->system) {
                TDM_CHAT_TRY(tdm_chat_put_text(w, text));
                TDM_CHAT_TRY(tdm_chat_put(w, "\n\n", 2));
        }
        TDM_CHAT_TRY(tdm_chat_put_string(
                w, "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                   "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"));
        for (uint32_t tool = w->tools.nodes[0].first; tool != TDM_JSON_NONE; tool = w->tools.nodes[tool].next) {
                TDM_CHAT_TRY(tdm_chat_put(w, "\n", 1));
                TDM_CHAT_TRY(tdm_chat_put_json(w, &w->tools, tool, 0));
        }
        TDM_CHAT_TRY(tdm_chat_put_string(w, "\n</tools>\n\nFor each function call, return a json object with function "
                                            "name and arguments within "));
        TDM_CHAT_TRY(tdm_chat_put_mark(w, "<tool_call>"));
        TDM_CHAT_TRY(tdm_chat_put_mark(w, "</tool_call>"));
        TDM_CHAT_TRY(tdm_chat_put_string(w, " XML tags:\n"));
        TDM_CHAT_TRY(tdm_chat_put_mark(w, "<tool_call>"));
        TDM_CHAT_TRY(tdm_chat_put_string(w, "\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n"));
        TDM_CHAT_TRY(tdm_chat_put_mark(w, "</tool_call>"));
        return close_turn(w);
}

static int put_calls(struct tdm_chat_writer *w, const struct tdm_chat_message *m, bool line_before_first)
{
        for (size_t i = 0; i < m->n_calls; i++) {
                if (i > 0 || line_before_first)
                        TDM_CHAT_TRY(tdm_chat_put(w, "\n", 1));
                TDM_CHAT_TRY(tdm_chat_put_mark(w, "<tool_call>"));
                TDM_CHAT_TRY(tdm_chat_put_string(w, "\n{\"name\": \""));
                TDM_CHAT_TRY(tdm_chat_put_text(w, m->calls[i].name));
                TDM_CHAT_TRY(tdm_chat_put_string(w, "\", \"arguments\": "));
                TDM_CHAT_TRY(tdm_chat_put_json_text(w, m->calls[i].arguments, TDM_JSON_OBJECT, "a call's arguments"));
                TDM_CHAT_TRY(tdm_chat_put_string(w, "}\n"));
                TDM_CHAT_TRY(tdm_chat_put_mark(w, "</tool_call>"));
        }
        return 0;
}

/* Answers of tools in a row share a user's turn. */
static int chatml_put_answer(struct tdm_chat_writer *w, size_t i)
{
        if (i == 0 || w->messages[i - 1].role != TDM_CHAT_TOOL)
                TDM_CHAT_TRY(chatml_open_turn(w, "user"));
        TDM_CHAT_TRY(tdm_chat_put(w, "\n", 1));
        TDM_CHAT_TRY(tdm_chat_put_mark(w, "<tool_response>"));
        TDM_CHAT_TRY(tdm_chat_put(w, "\n", 1));
        TDM_CHAT_TRY(tdm_chat_put_text(w, tdm_chat_content(&w->messages[i])));
        TDM_CHAT_TRY(tdm_chat_put(w, "\n", 1));
        TDM_CHAT_TRY(tdm_chat_put_mark(w, "</tool_response>"));
        return i + 1 < w->n_messages && w->messages[i + 1].role == TDM_CHAT_TOOL ? 0 : close_turn(w);
}

int tdm_chat_render_qwen25(struct tdm_chat_writer *w)
{
        size_t i;

        TDM_CHAT_TRY(chatml_put_system(w, &i));
        for (; i < w->n_messages; i++) {
                const struct tdm_chat_message *m = &w->messages[i];

                if (m->role == TDM_CHAT_TOOL) {
                        TDM_CHAT_TRY(chatml_put_answer(w, i));
                        continue;
                }
                if (m->n_calls == 0) {
                        TDM_CHAT_TRY(put_turn(w, role_name(m->role), tdm_chat_content(m)));
                        continue;
                }
                TDM_CHAT_TRY(chatml_open_turn(w, "assistant"));
                if (m->size > 0) {
                        TDM_CHAT_TRY(tdm_chat_put(w, "\n", 1));
                        TDM_CHAT_TRY(tdm_chat_put_text(w, tdm_chat_content(m)));
                }
                TDM_CHAT_TRY(put_calls(w, m, true));
                TDM_CHAT_TRY(close_turn(w));
        }
        TDM_CHAT_TRY(chatml_open_turn(w, "assistant"));
        return tdm_chat_put(w, "\n", 1);
}

static struct tdm_chat_text strip_lines(struct tdm_chat_text t, bool left, bool right)
{
        while (left && t.size > 0 && t.data[0] == '\n') {
                t.data++;
                t.size--;
        }
        while (right && t.size > 0 && t.data[t.size - 1] == '\n')
                t.size--;
        return t;
}

/* The last place of text, or NULL. */
static const char *find_last(struct tdm_chat_text t, const char *text)
{
        size_t size = strlen(text);

        for (size_t at = t.size < size ? 0 : t.size - size + 1; at > 0; at--) {
                if (memcmp(t.data + at - 1, text, size) == 0)
                        return t.data + at - 1;
        }
        return NULL;
}

/* What the model thought, and what it said: a client may hand back both in one text. */
static void split_thinking(const struct tdm_chat_message *m, struct tdm_chat_text *thinking,
                           struct tdm_chat_text *content)
{
        static const char open[] = "<think>", close[] = "</think>";
        const char *first, *last;

        *content = tdm_chat_content(m);
        *thinking = m->thinking;
        if (m->thinking.data)
                return;
        first = content->size ? memmem(content->data, content->size, close, sizeof(close) - 1) : NULL;
        if (!first)
                return;
        last = find_last(*content, close);
        *thinking = strip_lines((struct tdm_chat_text){ content->data, (size_t)(first - content->data) }, false, true);
        content->size -= (size_t)(last + sizeof(close) - 1 - content->data);
        content->data = last + sizeof(close) - 1;
        *content = strip_lines(*content, true, false);
        last = find_last(*thinking, open);
        if (last) {
                thinking->size -= (size_t)(last + sizeof(open) - 1 - thinking->data);
                thinking->data = last + sizeof(open) - 1;
        }
        *thinking = strip_lines(*thinking, true, false);
}

static int put_thinking(struct tdm_chat_writer *w, struct tdm_chat_text thinking)
{
        TDM_CHAT_TRY(tdm_chat_put_mark(w, "<think>"));
        TDM_CHAT_TRY(tdm_chat_put(w, "\n", 1));
        TDM_CHAT_TRY(tdm_chat_put_text(w, strip_lines(thinking, true, true)));
        TDM_CHAT_TRY(tdm_chat_put(w, "\n", 1));
        TDM_CHAT_TRY(tdm_chat_put_mark(w, "</think>"));
        return tdm_chat_put(w, "\n\n", 2);
}

static bool is_wrapped(struct tdm_chat_text t, const char *from, const char *to)
{
        size_t n_from = strlen(from), n_to = strlen(to);

        return t.size >= n_from && t.size >= n_to && memcmp(t.data, from, n_from) == 0 &&
               memcmp(t.data + t.size - n_to, to, n_to) == 0;
}

/* Thoughts behind the last question are kept: the model goes on with them while it calls tools. */
static size_t last_question(const struct tdm_chat_writer *w)
{
        for (size_t i = w->n_messages; i > 0; i--) {
                const struct tdm_chat_message *m = &w->messages[i - 1];

                if (m->role == TDM_CHAT_USER && !is_wrapped(tdm_chat_content(m), "<tool_response>", "</tool_response>"))
                        return i - 1;
        }
        return w->n_messages - 1;
}

static int put_assistant(struct tdm_chat_writer *w, const struct tdm_chat_message *m, bool keep_thinking)
{
        struct tdm_chat_text thinking = { 0 }, content = tdm_chat_content(m);

        if (w->row->splits_thinking)
                split_thinking(m, &thinking, &content);
        TDM_CHAT_TRY(chatml_open_turn(w, "assistant"));
        TDM_CHAT_TRY(tdm_chat_put(w, "\n", 1));
        if (keep_thinking && thinking.size > 0) {
                TDM_CHAT_TRY(put_thinking(w, thinking));
                content = strip_lines(content, true, false);
        }
        TDM_CHAT_TRY(tdm_chat_put_text(w, content));
        TDM_CHAT_TRY(put_calls(w, m, content.size > 0));
        return close_turn(w);
}

int tdm_chat_render_qwen3(struct tdm_chat_writer *w)
{
        size_t i, question = last_question(w);

        TDM_CHAT_TRY(chatml_put_system(w, &i));
        for (; i < w->n_messages; i++) {
                const struct tdm_chat_message *m = &w->messages[i];

                if (m->role == TDM_CHAT_TOOL)
                        TDM_CHAT_TRY(chatml_put_answer(w, i));
                else if (m->role == TDM_CHAT_ASSISTANT)
                        TDM_CHAT_TRY(put_assistant(w, m, i > question));
                else
                        TDM_CHAT_TRY(put_turn(w, role_name(m->role), tdm_chat_content(m)));
        }
        TDM_CHAT_TRY(chatml_open_turn(w, "assistant"));
        TDM_CHAT_TRY(tdm_chat_put(w, "\n", 1));
        if (w->row->always_thinks) {
                TDM_CHAT_TRY(tdm_chat_put_mark(w, "<think>"));
                return tdm_chat_put(w, "\n", 1);
        }
        if (w->row->thinking && w->options.thinking == TDM_CHAT_THINK_OFF)
                return put_thinking(w, (struct tdm_chat_text){ "", 0 });
        return 0;
}
