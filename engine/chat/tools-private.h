/* How tools.c and calls.c see a family's marks. */
#ifndef TDM_ENGINE_CHAT_TOOLS_PRIVATE_H
#define TDM_ENGINE_CHAT_TOOLS_PRIVATE_H

#include "engine/chat/tools.h"

#define TDM_CHAT_MARK_MAX 24u

/* A mark as it stands in the stream of bytes: a control piece as tdm_vocabulary_marker() gives it, anything else as its
 * text. */
size_t tdm_chat_mark_bytes(const struct tdm_tokenizer *tokenizer, const char *mark, char *to, size_t capacity);

#endif
