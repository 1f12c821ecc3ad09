/* A conversation as ids.
 *
 * A turn's markers are looked up as pieces; everything between two markers (the role's name, line ends, the content) is
 * one run of text and is encoded as one, without control pieces. That gives the ids that the template's text would
 * give, except where a content holds a marker's text: there it stays text.
 *
 * Contents lose ASCII white space at both ends where the family's published template trims (Gemma, Llama 3). */
#include "engine/text/chat.h"

struct family {
        const char *name;
        const char *marker; /* in the template */
        const char *turn;   /* opens a turn */
        const char *header; /* between the role's name and the content: a control piece, or NULL */
        const char *gap;    /* in front of the content */
        const char *end;    /* closes a turn: a control piece */
        const char *behind; /* text behind that */
        const char *roles[3];
        bool trim;
        bool system_in_user; /* no system turns: their text goes in front of the user's */
};

static const struct family families[] = {
        [TDM_CHAT_GEMMA] = { "gemma",
                             "<start_of_turn>",
                             "<start_of_turn>",
                             NULL,
                             "\n",
                             "<end_of_turn>",
                             "\n",
                             { "user", "user", "model" },
                             true,
                             true },
        [TDM_CHAT_CHATML] = { "chatml",
                              "<|im_start|>",
                              "<|im_start|>",
                              NULL,
                              "\n",
                              "<|im_end|>",
                              "\n",
                              { "system", "user", "assistant" },
                              false,
                              false },
        [TDM_CHAT_LLAMA3] = { "llama3",
                              "<|start_header_id|>",
                              "<|start_header_id|>",
                              "<|end_header_id|>",
                              "\n\n",
                              "<|eot_id|>",
                              "",
                              { "system", "user", "assistant" },
                              true,
                              false },
};

struct writer {
        const struct tdm_tokenizer *tokenizer;
        uint32_t *ids;
        size_t capacity;
        size_t n_ids;
        char *run; /* text since the last marker */
        size_t run_size, run_capacity;
        struct tdm_encode_budget *budget; /* or NULL */
};

const char *tdm_chat_family_name(enum tdm_chat_family family)
{
        return family > TDM_CHAT_NONE && (size_t)family < TDM_ARRAY_SIZE(families) ? families[family].name : "none";
}

/* The marker as one control piece. */
static int find_marker(const struct tdm_tokenizer *tokenizer, const char *marker, uint32_t *ret)
{
        uint32_t id;
        const char *text;
        size_t size = strlen(marker);

        if (tdm_tokenizer_encode(tokenizer, marker, size, TDM_TOKENIZE_SPECIAL, &id, 1) != 1)
                return -EINVAL;
        if (tdm_tokenizer_piece(tokenizer, id, true, &text) != size || memcmp(text, marker, size) != 0)
                return -EINVAL;
        if (tdm_tokenizer_piece(tokenizer, id, false, &text) != 0) /* shown in running text: no control piece */
                return -EINVAL;
        *ret = id;
        return 0;
}

enum tdm_chat_family tdm_chat_family_of(const struct tdm_gguf *gguf, const struct tdm_tokenizer *tokenizer)
{
        struct tdm_gguf_string template;
        uint32_t id;

        if (tdm_gguf_get_string(gguf, "tokenizer.chat_template", &template) < 0)
                return TDM_CHAT_NONE;
        for (size_t i = TDM_CHAT_GEMMA; i < TDM_ARRAY_SIZE(families); i++) {
                const struct family *f = &families[i];

                if (!memmem(template.data, template.size, f->marker, strlen(f->marker)))
                        continue;
                if (find_marker(tokenizer, f->turn, &id) == 0 && find_marker(tokenizer, f->end, &id) == 0 &&
                    (!f->header || find_marker(tokenizer, f->header, &id) == 0))
                        return (enum tdm_chat_family)i;
        }
        return TDM_CHAT_NONE;
}

static int put_text(struct writer *w, const char *text, size_t size)
{
        if (size > w->run_capacity - w->run_size) {
                size_t capacity;
                char *p;

                if (__builtin_add_overflow(w->run_size, size, &capacity) ||
                    __builtin_add_overflow(capacity, capacity / 2 + 64, &capacity))
                        return -E2BIG;
                p = realloc(w->run, capacity);
                if (!p)
                        return -ENOMEM;
                w->run = p;
                w->run_capacity = capacity;
        }
        if (size > 0)
                memcpy(w->run + w->run_size, text, size);
        w->run_size += size;
        return 0;
}

static int flush_run(struct writer *w, unsigned flags)
{
        size_t room = w->n_ids < w->capacity ? w->capacity - w->n_ids : 0;
        ssize_t n;

        n = tdm_tokenizer_encode_within(w->tokenizer, w->run ? w->run : "", w->run_size, flags, w->budget,
                                        room ? w->ids + w->n_ids : NULL, room);
        if (n < 0)
                return (int)n;
        w->n_ids += (size_t)n;
        w->run_size = 0;
        return 0;
}

static int put_marker(struct writer *w, const char *marker)
{
        uint32_t id;
        int r;

        r = find_marker(w->tokenizer, marker, &id);
        if (r < 0)
                return r;
        r = flush_run(w, 0);
        if (r < 0)
                return r;
        if (w->n_ids < w->capacity)
                w->ids[w->n_ids] = id;
        w->n_ids++;
        return 0;
}

static bool is_white(char c)
{
        return c == ' ' || (c >= '\t' && c <= '\r');
}

static int put_content(struct writer *w, const struct tdm_chat_message *m, bool trim)
{
        const char *text = m->text;
        size_t size = m->size;

        while (trim && size > 0 && is_white(text[0])) {
                text++;
                size--;
        }
        while (trim && size > 0 && is_white(text[size - 1]))
                size--;
        return put_text(w, text, size);
}

static int open_turn(struct writer *w, const struct family *f, enum tdm_chat_role role)
{
        int r;

        if ((r = put_marker(w, f->turn)) < 0 || (r = put_text(w, f->roles[role], strlen(f->roles[role]))) < 0)
                return r;
        if (f->header && (r = put_marker(w, f->header)) < 0)
                return r;
        return put_text(w, f->gap, strlen(f->gap));
}

static int close_turn(struct writer *w, const struct family *f)
{
        int r = put_marker(w, f->end);

        return r < 0 ? r : put_text(w, f->behind, strlen(f->behind));
}

/* System messages [first, end) that wait for a user turn, each with an empty line behind it. */
static int put_waiting(struct writer *w, const struct tdm_chat_message *messages, size_t first, size_t end)
{
        int r;

        for (size_t i = first; i < end; i++) {
                if (messages[i].role != TDM_CHAT_SYSTEM)
                        continue;
                if ((r = put_text(w, messages[i].text, messages[i].size)) < 0 || (r = put_text(w, "\n\n", 2)) < 0)
                        return r;
        }
        return 0;
}

static int put_messages(struct writer *w, const struct family *f, const struct tdm_chat_message *messages, size_t n)
{
        size_t waiting = 0; /* system messages from here on are not written yet */
        int r;

        for (size_t i = 0; i < n; i++) {
                const struct tdm_chat_message *m = &messages[i];
                bool last = i + 1 == n, folded = f->system_in_user && m->role == TDM_CHAT_SYSTEM;

                if (folded && !last)
                        continue;
                if ((r = open_turn(w, f, m->role)) < 0)
                        return r;
                if (f->system_in_user && m->role != TDM_CHAT_ASSISTANT) {
                        if ((r = put_waiting(w, messages, waiting, i)) < 0)
                                return r;
                        waiting = i + 1;
                }
                if ((r = put_content(w, m, f->trim)) < 0 || (r = close_turn(w, f)) < 0)
                        return r;
        }
        r = open_turn(w, f, TDM_CHAT_ASSISTANT);
        return r < 0 ? r : flush_run(w, 0);
}

ssize_t tdm_chat_encode_within(enum tdm_chat_family family, const struct tdm_tokenizer *tokenizer,
                               const struct tdm_chat_message *messages, size_t n_messages,
                               struct tdm_encode_budget *budget, uint32_t *ids, size_t capacity)
{
        struct writer w = { .tokenizer = tokenizer, .ids = ids, .capacity = capacity, .budget = budget };
        int r;

        if (family <= TDM_CHAT_NONE || (size_t)family >= TDM_ARRAY_SIZE(families) || n_messages == 0)
                return -EINVAL;
        for (size_t i = 0; i < n_messages; i++) {
                if ((unsigned)messages[i].role > TDM_CHAT_ASSISTANT)
                        return -EINVAL;
        }
        if (messages[n_messages - 1].role == TDM_CHAT_ASSISTANT)
                return -EINVAL;
        r = flush_run(&w, TDM_TOKENIZE_BOS); /* no text yet: BOS alone */
        if (r == 0)
                r = put_messages(&w, &families[family], messages, n_messages);
        free(w.run);
        return r < 0 ? r : (ssize_t)w.n_ids;
}

ssize_t tdm_chat_encode(enum tdm_chat_family family, const struct tdm_tokenizer *tokenizer,
                        const struct tdm_chat_message *messages, size_t n_messages, uint32_t *ids, size_t capacity)
{
        return tdm_chat_encode_within(family, tokenizer, messages, n_messages, NULL, ids, capacity);
}
