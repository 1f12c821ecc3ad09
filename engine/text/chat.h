/* Chat templates: the families of Gemma, ChatML and Llama 3, recognised from the file's own template by its markers.
 * No Jinja is run: a template nobody recognises is TDM_E_UNSUPPORTED with what was seen, and --raw still works.
 * User text can never become a control token: content is tokenized without special pieces (tdm_chat_encode). */
#ifndef TDM_ENGINE_CHAT_H
#define TDM_ENGINE_CHAT_H

#include "engine/text/tokenizer.h"

enum tdm_chat_family { TDM_CHAT_NONE, TDM_CHAT_GEMMA, TDM_CHAT_CHATML, TDM_CHAT_LLAMA3 };

enum tdm_chat_role { TDM_CHAT_SYSTEM, TDM_CHAT_USER, TDM_CHAT_ASSISTANT };

struct tdm_chat_message {
        enum tdm_chat_role role;
        const char *text; /* UTF-8 */
        size_t size;
};

enum tdm_chat_family tdm_chat_family_of(const struct tdm_gguf *gguf, const struct tdm_tokenizer *tokenizer);
const char *tdm_chat_family_name(enum tdm_chat_family family);

/* The prompt for the assistant's next turn: BOS, all messages in the family's form, the opening of the model's turn.
 * Markers are encoded as special, contents not. Same return as tdm_tokenizer_encode; -EINVAL: no messages, last is the
 * assistant's, or TDM_CHAT_NONE. Gemma has no system role: system text goes in front of the first user turn. */
ssize_t tdm_chat_encode(enum tdm_chat_family family, const struct tdm_tokenizer *tokenizer,
                        const struct tdm_chat_message *messages, size_t n_messages, uint32_t *ids, size_t capacity);
/* The same with a budget for all of its text; also -ECANCELED and -ETIME. Each message adds at most 64 bytes. */
ssize_t tdm_chat_encode_within(enum tdm_chat_family family, const struct tdm_tokenizer *tokenizer,
                               const struct tdm_chat_message *messages, size_t n_messages,
                               struct tdm_encode_budget *budget, uint32_t *ids, size_t capacity);

#endif
