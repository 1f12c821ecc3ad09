/* A model's chat template: conversations as text, and as ids.
 *
 * Made when the model is loaded, of the template in its file (template/: Jinja) and its tokenizer. A file without a
 * template, or with one that cannot be used, gives an object too: it says why, and refuses conversations. What a
 * template takes (arguments as objects or as text, a switch for thinking) is found by rendering short conversations.
 *
 * A prompt knows for each byte whether the template wrote it. Only the template's own text becomes control pieces, so a
 * message that spells a marker stays text (see tdm_tokenizer_may_form for the few that text may spell). Immutable, any
 * thread. */
#ifndef TDM_ENGINE_CHAT_H
#define TDM_ENGINE_CHAT_H

#include <time.h>
#include "engine/text/tokenizer.h"

struct tdm_chat;

enum tdm_chat_role { TDM_CHAT_SYSTEM, TDM_CHAT_USER, TDM_CHAT_ASSISTANT, TDM_CHAT_TOOL };

struct tdm_chat_text {
        const char *data; /* UTF-8 */
        size_t size;
};

/* A call of a tool in an assistant's message. */
struct tdm_chat_call {
        struct tdm_chat_text id, name;
        struct tdm_chat_text arguments; /* a JSON object */
};

/* Bytes that are not UTF-8 become U+FFFD. */
struct tdm_chat_message {
        enum tdm_chat_role role;
        const char *text; /* UTF-8 */
        size_t size;
        struct tdm_chat_text thinking; /* assistant: what it thought before the text; data NULL: not known */
        const uint32_t *pictures;      /* [n_pictures]: in front of which bytes of text one stands, in order */
        size_t n_pictures;
        const struct tdm_chat_call *calls; /* assistant */
        size_t n_calls;
        struct tdm_chat_text call_id; /* tool: the call that this answers */
        struct tdm_chat_text name;    /* tool: which one */
};

enum tdm_chat_thinking { TDM_CHAT_THINK_AS_TRAINED, TDM_CHAT_THINK_OFF, TDM_CHAT_THINK_ON };
enum tdm_chat_effort { TDM_CHAT_EFFORT_AS_TRAINED, TDM_CHAT_EFFORT_LOW, TDM_CHAT_EFFORT_MEDIUM, TDM_CHAT_EFFORT_HIGH };

struct tdm_chat_options {
        struct tdm_chat_text tools;      /* a JSON array of {"type": "function", "function": {…}}, or empty */
        bool tools_in_system;            /* Llama: not in the first user message */
        enum tdm_chat_thinking thinking; /* the variables enable_thinking and thinking */
        enum tdm_chat_effort effort;     /* the variable reasoning_effort */
        struct tdm_chat_text variables;  /* a JSON object with others, or empty */
        time_t now;                      /* for templates that say the date, in local time; 0: the clock's */
};

/* -ENOMEM. Borrows the tokenizer; the gguf may be closed afterwards. A template that takes more than max_bytes (0: any
 * number) when it is parsed cannot be used. */
int tdm_chat_new(struct tdm_chat **ret, const struct tdm_gguf *gguf, const struct tdm_tokenizer *tokenizer,
                 uint64_t max_bytes);
void tdm_chat_destroy(struct tdm_chat *chat);
void tdm_chat_destroyp(struct tdm_chat **chat);
/* Private memory that it holds. */
uint64_t tdm_chat_memory(const struct tdm_chat *chat);
const struct tdm_tokenizer *tdm_chat_tokenizer(const struct tdm_chat *chat);
/* Why it refuses all conversations; NULL: it does not. chat may be NULL. */
const char *tdm_chat_refusal(const struct tdm_chat *chat);
/* In a word or a sentence, for status: "jinja", "none", or why the template cannot be used. */
const char *tdm_chat_state(const struct tdm_chat *chat);
/* Whether a template reads a variable of this name: one that it does not read has no effect. */
bool tdm_chat_reads(const struct tdm_chat *chat, const char *name);
/* How a model thinks beside its text. */
enum tdm_chat_thoughts {
        TDM_CHAT_THOUGHTS_NONE,   /* its template has no form for them */
        TDM_CHAT_THOUGHTS_ALWAYS, /* it thinks as it likes, and cannot be told */
        TDM_CHAT_THOUGHTS_SWITCH, /* they can be switched off and on: the prompt differs */
        TDM_CHAT_THOUGHTS_EFFORT, /* it always thinks, with an effort that can be chosen */
};
enum tdm_chat_thoughts tdm_chat_thoughts_of(const struct tdm_chat *chat);
/* Whether the prompt ends with the start of a thought, where the model begins its answer. */
bool tdm_chat_opens_thought(const struct tdm_chat *chat, bool with_tools, enum tdm_chat_thinking thinking);
/* Whether tools can be given, and their calls read (tools.h). */
bool tdm_chat_has_tools(const struct tdm_chat *chat);

struct tdm_chat_prompt {
        char *text; /* with a NUL behind it; it may hold others */
        size_t size;
        struct tdm_text_span *spans; /* trusted: the template's own */
        size_t n_spans;
        bool lacks_bos; /* the template writes none at the start, so the file's add_bos_token counts */
};

/* Whether the last message is the assistant's and has a text, with which the model goes on. */
bool tdm_chat_goes_on(const struct tdm_chat_message *messages, size_t n_messages);
/* The prompt for the assistant's next turn. Where the model goes on with the last message, the prompt ends with its
 * text; an empty one is left out. options may be NULL. TDM_E_BAD_REQUEST, TDM_E_UNSUPPORTED: the conversation is
 * malformed, the template refuses it or has no place for what is in it. TDM_E_TOO_LONG: the template does too much.
 * -ENOMEM. err says which and why. ret is written on success only. */
int tdm_chat_render(const struct tdm_chat *chat, const struct tdm_chat_message *messages, size_t n_messages,
                    const struct tdm_chat_options *options, struct tdm_chat_prompt *ret, struct tdm_error *err);
void tdm_chat_prompt_deinit(struct tdm_chat_prompt *prompt);

/* Same return as tdm_tokenizer_encode_within. budget may be NULL; TDM_ENCODE_SPANS_STEPS(prompt->size) is enough. */
ssize_t tdm_chat_encode(const struct tdm_chat *chat, const struct tdm_chat_prompt *prompt,
                        struct tdm_encode_budget *budget, uint32_t *ids, size_t capacity);

#endif
