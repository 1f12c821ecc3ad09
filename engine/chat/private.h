/* What a family of templates is, and what its renderer writes with. A family is a row of the table in chat.c and a
 * function, in a file for families that are alike. */
#ifndef TDM_ENGINE_CHAT_PRIVATE_H
#define TDM_ENGINE_CHAT_PRIVATE_H

#include "engine/chat/chat.h"
#include "engine/grammar/json.h"

struct tdm_chat_row;

/* The conversation, and the ids so far. Functions return 0 or a negative errno; those that refuse set err. */
struct tdm_chat_writer {
        const struct tdm_chat_row *row;
        const struct tdm_tokenizer *tokenizer;
        const struct tdm_chat_message *messages;
        size_t n_messages;
        struct tdm_chat_options options;
        struct tdm_json tools; /* an array; no nodes: none */
        uint32_t *ids;
        size_t capacity;
        size_t n_ids;
        struct tdm_json_buffer run; /* text since the last marker */
        struct tdm_encode_budget *budget;
        struct tdm_error *err;
};

/* How a model writes calls of tools. */
enum tdm_chat_call_form {
        TDM_CHAT_CALLS_TAGGED,     /* <tool_call>, an object, </tool_call> */
        TDM_CHAT_CALLS_WHOLE,      /* an object that is the whole turn */
        TDM_CHAT_CALLS_LISTED,     /* [TOOL_CALLS] and an array of objects */
        TDM_CHAT_CALLS_CHANNELLED, /* a message to the tool, in a channel */
};

struct tdm_chat_row {
        const char *name;
        const char *with[4];    /* texts that the template has */
        const char *without[4]; /* and has not */
        const char *markers[5]; /* special pieces that the vocabulary has */
        bool tools;
        enum tdm_chat_call_form calls; /* where there are tools */
        bool thinking;                 /* can be asked for, or switched off */
        bool splits_thinking;          /* an earlier text may hold thoughts, which are left out */
        bool always_thinks;            /* the model's turn starts with a thought */
        bool empty_thought;            /* or, when it is not to think, with an empty one */
        bool says_today;
        bool system_turn;     /* Mistral: the system's text has a turn of its own */
        const char *system;   /* what the system says where the conversation does not */
        bool starts_with_bos; /* the template says so; otherwise the file does */
        int (*render)(struct tdm_chat_writer *w);
};

/* The special piece with this text. -EINVAL: the vocabulary has none. */
int tdm_chat_put_marker(struct tdm_chat_writer *w, const char *marker);
/* The same; plain text where the vocabulary has none. */
int tdm_chat_put_mark(struct tdm_chat_writer *w, const char *mark);
int tdm_chat_put(struct tdm_chat_writer *w, const char *text, size_t size);
int tdm_chat_put_string(struct tdm_chat_writer *w, const char *text);
static inline int tdm_chat_put_text(struct tdm_chat_writer *w, struct tdm_chat_text text)
{
        return tdm_chat_put(w, text.data, text.size);
}
/* JSON as Python's json.dumps writes it: ", " and ": " on one line, or, with indent > 0, a value a line. */
int tdm_chat_put_json(struct tdm_chat_writer *w, const struct tdm_json *json, uint32_t node, unsigned indent);
/* JSON text in that form, on one line. what says whose it is, for the error. */
int tdm_chat_put_json_text(struct tdm_chat_writer *w, struct tdm_chat_text text, enum tdm_json_type type,
                           const char *what);
/* A string in quotes. */
int tdm_chat_put_quoted(struct tdm_chat_writer *w, struct tdm_chat_text text);
/* The conversation's date: "23 Nov 2026", or, sorted, "2026-11-23". */
int tdm_chat_put_date(struct tdm_chat_writer *w, bool sorted);
/* Encodes what waits. */
int tdm_chat_flush(struct tdm_chat_writer *w, unsigned flags);
/* Sets err and returns -EINVAL. */
int tdm_chat_refuse(struct tdm_chat_writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline struct tdm_chat_text tdm_chat_content(const struct tdm_chat_message *m)
{
        return (struct tdm_chat_text){ m->text, m->size };
}
/* Without white space at both ends. */
struct tdm_chat_text tdm_chat_trim(struct tdm_chat_text text);
bool tdm_chat_has_tools(const struct tdm_chat_writer *w);
/* Tool i's "function", or the tool itself where it has none. */
uint32_t tdm_chat_function(const struct tdm_chat_writer *w, uint32_t tool);

/* The first of these that fails ends the function. */
#define TDM_CHAT_TRY(call)                                                                                             \
        do {                                                                                                           \
                int try_r = (call);                                                                                    \
                if (try_r < 0)                                                                                         \
                        return try_r;                                                                                  \
        } while (0)

/* NULL: none. */
const struct tdm_chat_row *tdm_chat_row_of(enum tdm_chat_family family);
/* Whether what it writes may begin with a thought that can be told from the answer. */
static inline bool tdm_chat_row_thinks(const struct tdm_chat_row *row)
{
        return row->splits_thinking || row->calls == TDM_CHAT_CALLS_CHANNELLED;
}

int tdm_chat_render_gemma(struct tdm_chat_writer *w);
int tdm_chat_render_gemma4(struct tdm_chat_writer *w);
int tdm_chat_render_chatml(struct tdm_chat_writer *w);
int tdm_chat_render_qwen25(struct tdm_chat_writer *w);
int tdm_chat_render_qwen3(struct tdm_chat_writer *w);
int tdm_chat_render_llama3(struct tdm_chat_writer *w);
int tdm_chat_render_llama31(struct tdm_chat_writer *w);
int tdm_chat_render_gpt_oss(struct tdm_chat_writer *w);
int tdm_chat_render_mistral(struct tdm_chat_writer *w);

#endif
