/* Anthropic's endpoints. */
#ifndef TDM_HTTP_ANTHROPIC_H
#define TDM_HTTP_ANTHROPIC_H

#include "http-gateway/reading.h"

void anthropic_messages(struct exchange *x);
void anthropic_count_tokens(struct exchange *x);
/* How their bodies are read: for tests. */
extern const struct reader anthropic_messages_reader, anthropic_count_reader;

#endif
