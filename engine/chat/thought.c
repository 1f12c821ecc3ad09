/* How a thought in front of an answer begins and ends, as ids. See tools.h. */
#include "engine/chat/private.h"
#include "engine/chat/tools.h"

/* Appends the ids of one mark, or of plain text. */
static int append(const struct tdm_tokenizer *tokenizer, const char *text, struct tdm_chat_thought *thought)
{
        uint32_t *to = thought->end + thought->n_end;
        size_t room = TDM_CHAT_THOUGHT_END_MAX - thought->n_end;
        ssize_t n = 1;

        if (room == 0)
                return -ENOENT;
        if (tdm_tokenizer_find_marker(tokenizer, text, to) < 0)
                n = tdm_tokenizer_encode(tokenizer, text, strlen(text), 0, to, room);
        if (n <= 0 || (size_t)n > room)
                return -ENOENT;
        thought->n_end += (uint32_t)n;
        return 0;
}

/* White space that is not written as itself, as where a vocabulary puts a space in front of all text, is left out. */
static void append_gap(const struct tdm_tokenizer *tokenizer, const char *gap, struct tdm_chat_thought *thought)
{
        uint32_t from = thought->n_end;
        size_t at = 0, size = strlen(gap);
        bool same = append(tokenizer, gap, thought) == 0;

        for (uint32_t i = from; same && i < thought->n_end; i++) {
                const char *piece;
                size_t n = tdm_tokenizer_piece(tokenizer, thought->end[i], false, &piece);

                same = at + n <= size && memcmp(piece, gap + at, n) == 0;
                at += n;
        }
        if (!same || at != size)
                thought->n_end = from;
}

/* Where a longer mark begins as this one does, the parser knows it only by what follows. */
static char last_byte_of(const struct tdm_chat_form *form)
{
        const char *begin = form->think_begin;
        const char *const others[] = { form->marks.before, form->text_begin, form->text_end, form->think_end };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(others); i++)
                if (others[i] && strncmp(others[i], begin, strlen(begin)) == 0)
                        return '\0';
        return begin[strlen(begin) - 1];
}

int tdm_chat_thought_of(const struct tdm_chat *chat, bool is_open, struct tdm_chat_thought *ret)
{
        static const char *const to_answer[] = { "<|end|>",     "<|start|>", "assistant",
                                                 "<|channel|>", "final",     "<|message|>" };
        const struct tdm_tokenizer *tokenizer = chat->tokenizer;
        const struct tdm_chat_template *t = &chat->plain;
        struct tdm_chat_thought thought = { .open = -1 };
        uint32_t id;
        int r = 0;

        if (!tdm_chat_template_thinks(t))
                return -EOPNOTSUPP;
        if (t->form->calls == TDM_FORM_CALLS_CHANNELLED) {
                thought.is_begun = true;
                thought.last = '>'; /* of the mark behind a header */
                for (size_t i = 0; i < TDM_ARRAY_SIZE(to_answer) && r == 0; i++)
                        r = append(tokenizer, to_answer[i], &thought);
                thought.n_close = thought.n_end;
        } else {
                thought.is_begun = is_open;
                thought.last = last_byte_of(t->form);
                if (!thought.is_begun && tdm_tokenizer_find_marker(tokenizer, t->form->think_begin, &id) == 0)
                        thought.open = id;
                r = append(tokenizer, t->form->think_end, &thought);
                thought.n_close = thought.n_end;
                if (r == 0)
                        append_gap(tokenizer, "\n\n", &thought);
        }
        if (r == 0)
                *ret = thought;
        return r;
}
