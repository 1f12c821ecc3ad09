/* Gemma 2, 3 and 3n, and Gemma 4. Neither renders tools here.
 *
 * Gemma 3 has no system turns: their text goes in front of the next user's, with an empty line behind. Gemma 4 has, and
 * a thought of its own form, which is cut from earlier turns. */
#include "engine/chat/private.h"

static int gemma_open_turn(struct tdm_chat_writer *w, const char *turn, const char *role)
{
        TDM_CHAT_TRY(tdm_chat_put_marker(w, turn));
        TDM_CHAT_TRY(tdm_chat_put_string(w, role));
        return tdm_chat_put(w, "\n", 1);
}

static int close_turn(struct tdm_chat_writer *w, const char *end)
{
        TDM_CHAT_TRY(tdm_chat_put_marker(w, end));
        return tdm_chat_put(w, "\n", 1);
}

/* System messages [first, end) that wait for a user turn. */
static int put_waiting(struct tdm_chat_writer *w, size_t first, size_t end)
{
        for (size_t i = first; i < end; i++) {
                if (w->messages[i].role != TDM_CHAT_SYSTEM)
                        continue;
                TDM_CHAT_TRY(tdm_chat_put_text(w, tdm_chat_content(&w->messages[i])));
                TDM_CHAT_TRY(tdm_chat_put(w, "\n\n", 2));
        }
        return 0;
}

int tdm_chat_render_gemma(struct tdm_chat_writer *w)
{
        static const char turn[] = "<start_of_turn>", end[] = "<end_of_turn>";
        size_t waiting = 0; /* system messages from here on are not written yet */

        for (size_t i = 0; i < w->n_messages; i++) {
                const struct tdm_chat_message *m = &w->messages[i];

                if (m->role == TDM_CHAT_SYSTEM && i + 1 < w->n_messages)
                        continue;
                TDM_CHAT_TRY(gemma_open_turn(w, turn, m->role == TDM_CHAT_ASSISTANT ? "model" : "user"));
                if (m->role != TDM_CHAT_ASSISTANT) {
                        TDM_CHAT_TRY(put_waiting(w, waiting, i));
                        waiting = i + 1;
                }
                TDM_CHAT_TRY(tdm_chat_put_text(w, tdm_chat_trim(tdm_chat_content(m))));
                TDM_CHAT_TRY(close_turn(w, end));
        }
        return gemma_open_turn(w, turn, "model");
}

/* The model's earlier text without its thoughts, <|channel>…<channel|>. */
static int put_without_thoughts(struct tdm_chat_writer *w, struct tdm_chat_text text)
{
        static const char opening[] = "<|channel>", closing[] = "<channel|>";
        struct tdm_json_buffer kept = { 0 };
        struct tdm_chat_text result;
        int r;

        while (text.size > 0) {
                const char *close = memmem(text.data, text.size, closing, sizeof(closing) - 1);
                size_t part = close ? (size_t)(close - text.data) : text.size;
                const char *open = memmem(text.data, part, opening, sizeof(opening) - 1);
                size_t next = close ? part + sizeof(closing) - 1 : part;

                tdm_json_write(&kept, text.data, open ? (size_t)(open - text.data) : part);
                text.data += next;
                text.size -= next;
        }
        result = tdm_chat_trim((struct tdm_chat_text){ kept.data, kept.size });
        r = kept.failed ? -ENOMEM : tdm_chat_put(w, result.data ? result.data : "", result.size);
        free(kept.data);
        return r;
}

int tdm_chat_render_gemma4(struct tdm_chat_writer *w)
{
        static const char turn[] = "<|turn>", end[] = "<turn|>";
        bool think = w->options.thinking == TDM_CHAT_THINK_ON, system = w->messages[0].role == TDM_CHAT_SYSTEM;

        if (think || system) {
                TDM_CHAT_TRY(gemma_open_turn(w, turn, "system"));
                if (think) {
                        TDM_CHAT_TRY(tdm_chat_put_mark(w, "<|think|>"));
                        TDM_CHAT_TRY(tdm_chat_put(w, "\n", 1));
                }
                if (system)
                        TDM_CHAT_TRY(tdm_chat_put_text(w, tdm_chat_trim(tdm_chat_content(&w->messages[0]))));
                TDM_CHAT_TRY(close_turn(w, end));
        }
        for (size_t i = system; i < w->n_messages; i++) {
                const struct tdm_chat_message *m = &w->messages[i];

                TDM_CHAT_TRY(gemma_open_turn(w, turn,
                                             m->role == TDM_CHAT_ASSISTANT ? "model" :
                                             m->role == TDM_CHAT_SYSTEM    ? "system" :
                                                                             "user"));
                if (m->role == TDM_CHAT_ASSISTANT)
                        TDM_CHAT_TRY(put_without_thoughts(w, tdm_chat_content(m)));
                else
                        TDM_CHAT_TRY(tdm_chat_put_text(w, tdm_chat_trim(tdm_chat_content(m))));
                TDM_CHAT_TRY(close_turn(w, end));
        }
        TDM_CHAT_TRY(gemma_open_turn(w, turn, "model"));
        if (think || !w->row->empty_thought)
                return 0;
        TDM_CHAT_TRY(tdm_chat_put_mark(w, "<|channel>"));
        TDM_CHAT_TRY(tdm_chat_put_string(w, "thought\n"));
        return tdm_chat_put_mark(w, "<channel|>");
}
