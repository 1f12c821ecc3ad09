/* Shared by OpenAI's endpoints. */
#ifndef TDM_HTTP_OPENAI_H
#define TDM_HTTP_OPENAI_H

#include "http-gateway/messages.h"
#include "http-gateway/sse.h"

void openai_chat(struct exchange *x);
void openai_completions(struct exchange *x);
void openai_responses(struct exchange *x);
void openai_embeddings(struct exchange *x);
void openai_rerank(struct exchange *x);
void openai_classify(struct exchange *x);
void openai_predict(struct exchange *x);
/* How their bodies are read: for tests. */
extern const struct reader openai_chat_reader, openai_completions_reader, openai_responses_reader,
        openai_embeddings_reader, rerank_reader, classify_reader, predict_reader;

/* "stop", "length" */
const char *openai_finish_reason(const struct choice *c);
/* An event that brings text, and nothing else that is new. chunk: the endpoint's own; it takes logprobs over. */
typedef json_t *openai_chunk_fn(struct exchange *x, const struct choice *c, const char *text, size_t size,
                                json_t *logprobs);
void openai_add_text(struct exchange *x, struct choice *c, openai_chunk_fn *chunk, const char *text, size_t size);
/* {"prompt_tokens":…} of the whole generation */
json_t *openai_usage(const struct generation *g);
/* A stream's ends. */
void openai_stream_error(struct exchange *x, const struct failure *f);
void openai_ping(struct exchange *x);
void openai_recovering(struct exchange *x);
/* Adds `prompt_progress`, as llama-server has it, to a chunk. */
json_t *openai_with_progress(json_t *chunk, const struct choice *c);
/* Sampling as OpenAI documents it: temperature 1, nothing cut off. */
void openai_take_sampling(struct generation_request *r);
/* options.max_tokens, where the parameter is given; -1 is no limit, as other servers have it. 0, or a failure. */
int openai_take_limit(struct generation_request *r, const char *name, struct failure *f);
double openai_logprob(float logprob);

#endif
