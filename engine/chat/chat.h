/* Chat templates: conversations as ids, in the form that a model was trained on.
 *
 * A family is recognised from the file's own template by its text. No Jinja is run: a template that no row of the table
 * in chat.c fits is TDM_CHAT_NONE, and raw prompts still work. Markers become their pieces; contents are encoded
 * without control pieces, so a user's text never becomes a marker (see tdm_tokenizer_may_form for the few that text may
 * spell). Any thread. */
#ifndef TDM_ENGINE_CHAT_H
#define TDM_ENGINE_CHAT_H

#include <time.h>
#include "engine/text/tokenizer.h"

enum tdm_chat_family {
        TDM_CHAT_NONE,
        TDM_CHAT_GEMMA,  /* 2, 3 and 3n */
        TDM_CHAT_CHATML, /* without tools */
        TDM_CHAT_LLAMA3,
        TDM_CHAT_LLAMA31, /* and 3.3: with tools and a fixed date */
        TDM_CHAT_LLAMA32, /* with today's date */
        TDM_CHAT_QWEN25,
        TDM_CHAT_QWEN3,          /* thinks unless told not to */
        TDM_CHAT_QWEN3_THINKING, /* always thinks */
        TDM_CHAT_QWEN3_INSTRUCT, /* never thinks */
        TDM_CHAT_GPT_OSS,
        TDM_CHAT_MISTRAL,    /* v3 tekken: Nemo */
        TDM_CHAT_MISTRAL_V7, /* Small 2501 */
        TDM_CHAT_GEMMA4,
        TDM_CHAT_GEMMA4_LARGE, /* without thinking, starts with an empty thought */
        TDM_CHAT_QWEN2,        /* ChatML that says something where the system says nothing */
        TDM_CHAT_SMOLLM2,
};

enum tdm_chat_role { TDM_CHAT_SYSTEM, TDM_CHAT_USER, TDM_CHAT_ASSISTANT, TDM_CHAT_TOOL };

struct tdm_chat_text {
        const char *data; /* UTF-8 */
        size_t size;
};

/* What an assistant's message asks a tool to do. */
struct tdm_chat_call {
        struct tdm_chat_text id, name;
        struct tdm_chat_text arguments; /* a JSON object */
};

struct tdm_chat_message {
        enum tdm_chat_role role;
        const char *text; /* UTF-8 */
        size_t size;
        struct tdm_chat_text thinking;     /* assistant: what it thought before the text; data NULL: not known */
        const struct tdm_chat_call *calls; /* assistant */
        size_t n_calls;
        struct tdm_chat_text call_id; /* tool: the call that this answers */
        struct tdm_chat_text name;    /* tool: which one */
};

enum tdm_chat_thinking { TDM_CHAT_THINK_AS_TRAINED, TDM_CHAT_THINK_OFF, TDM_CHAT_THINK_ON };
enum tdm_chat_effort { TDM_CHAT_EFFORT_MEDIUM, TDM_CHAT_EFFORT_LOW, TDM_CHAT_EFFORT_HIGH };

struct tdm_chat_options {
        struct tdm_chat_text tools; /* a JSON array of {"type": "function", "function": {…}}, or empty */
        bool tools_in_system;       /* Llama: not in the first user message */
        enum tdm_chat_thinking thinking;
        enum tdm_chat_effort effort; /* gpt-oss */
        time_t now;                  /* for templates that say the date, in local time; 0: the clock's */
};

enum tdm_chat_family tdm_chat_family_of(const struct tdm_gguf *gguf, const struct tdm_tokenizer *tokenizer);
const char *tdm_chat_family_name(enum tdm_chat_family family);
/* TDM_CHAT_NONE: no such name. */
enum tdm_chat_family tdm_chat_family_by_name(const char *name);
/* Whether tools can be rendered; whether thinking can be asked for or switched off. */
bool tdm_chat_family_has_tools(enum tdm_chat_family family);
bool tdm_chat_family_can_think(enum tdm_chat_family family);
/* What thinking is, beside text, for a family. */
enum tdm_chat_thoughts {
        TDM_CHAT_THOUGHTS_NONE,   /* it has no form for them */
        TDM_CHAT_THOUGHTS_ALWAYS, /* the model always thinks */
        TDM_CHAT_THOUGHTS_SWITCH, /* they can be switched off and on */
        TDM_CHAT_THOUGHTS_EFFORT, /* the model always thinks, with an effort that can be chosen */
};
enum tdm_chat_thoughts tdm_chat_family_thoughts(enum tdm_chat_family family);

/* The prompt for the assistant's next turn: BOS, all messages in the family's form, the opening of the model's turn.
 * Same return as tdm_tokenizer_encode_within. -EINVAL where the messages do not fit the family, with err saying why: no
 * messages, the last is the assistant's, JSON that is none, tools that the family has no form for, an option that it
 * does not have. options and budget may be NULL. */
ssize_t tdm_chat_render(enum tdm_chat_family family, const struct tdm_tokenizer *tokenizer,
                        const struct tdm_chat_message *messages, size_t n_messages,
                        const struct tdm_chat_options *options, struct tdm_encode_budget *budget, uint32_t *ids,
                        size_t capacity, struct tdm_error *err);
/* A template adds at most this to a conversation, tools not counted, and this to each message. */
#define TDM_CHAT_FRAME_BYTES 512u
#define TDM_CHAT_MESSAGE_BYTES 128u

/* The same without options. */
ssize_t tdm_chat_encode(enum tdm_chat_family family, const struct tdm_tokenizer *tokenizer,
                        const struct tdm_chat_message *messages, size_t n_messages, uint32_t *ids, size_t capacity);
ssize_t tdm_chat_encode_within(enum tdm_chat_family family, const struct tdm_tokenizer *tokenizer,
                               const struct tdm_chat_message *messages, size_t n_messages,
                               struct tdm_encode_budget *budget, uint32_t *ids, size_t capacity);

#endif
