/* What OpenAI's endpoints share. */
#ifndef TDM_HTTP_OPENAI_H
#define TDM_HTTP_OPENAI_H

#include "http-gateway/messages.h"
#include "http-gateway/sse.h"

void openai_chat(struct exchange *x);
void openai_completions(struct exchange *x);
void openai_responses(struct exchange *x);
void openai_embeddings(struct exchange *x);

/* "stop", "length" */
const char *openai_finish_reason(const struct choice *c);
/* {"prompt_tokens":…} of the whole generation */
json_t *openai_usage(const struct generation *g);
/* A stream's ends. */
void openai_stream_error(struct exchange *x, const struct failure *f);
void openai_ping(struct exchange *x);
/* Sampling as OpenAI documents it: temperature 1, nothing cut off. */
void openai_take_sampling(struct generation_request *r);
double openai_logprob(float logprob);

#endif
