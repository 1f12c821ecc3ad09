/* Anthropic's endpoints. */
#ifndef TDM_HTTP_ANTHROPIC_H
#define TDM_HTTP_ANTHROPIC_H

#include "http-gateway/exchange.h"

void anthropic_messages(struct exchange *x);
void anthropic_count_tokens(struct exchange *x);

#endif
