/* Thinking in the APIs: what a request asks for, and thoughts that it hands back. Each function that takes something
 * returns 0, or the status of the failure that it fills in. */
#ifndef TDM_HTTP_THINKING_H
#define TDM_HTTP_THINKING_H

#include "http-gateway/generation.h"

/* OpenAI's words: none, minimal, low, medium, high, xhigh. name: the parameter's, in messages. */
int request_take_effort(struct generation_request *r, const json_t *effort, const char *name, struct failure *f);
/* `reasoning_effort` and `reasoning`, which /v1/chat/completions and /v1/responses both take. */
int request_take_openai_effort(struct generation_request *r, struct failure *f);
/* The same, and `reasoning_budget`, of /v1/chat/completions. */
int request_take_chat_thinking(struct generation_request *r, struct failure *f);
/* `chat_template_kwargs`: the switch for thinking, and other variables of the template. Behind the above. */
int request_take_template_kwargs(struct generation_request *r, struct failure *f);
/* Anthropic's `thinking`: {"type": "enabled", "budget_tokens": N}, adaptive, disabled. */
int request_take_anthropic_thinking(struct generation_request *r, struct failure *f);
/* Ollama's `think`: true, false, or a level. */
int request_take_think(struct generation_request *r, struct failure *f);
/* A thought behind others, with a line end between them. */
void thinking_join(struct buffer *thoughts, const char *text);
/* Thoughts, which are taken over, in front of the last message, which is the assistant's; those that it has already
 * come first. */
int request_add_thinking(struct generation_request *r, struct buffer *thoughts, struct failure *f);
/* A block `thinking` of a message: its signature is that of its text. */
int request_take_thinking_block(struct generation_request *r, const json_t *block, const char *name,
                                const char **ret_text, struct failure *f);

/* Whether the model cannot think, and the request is none the worse for it: it is to be asked for once more, as it is
 * now. */
bool request_goes_without_thinking(struct generation_request *r, const struct tandem_error *err);
/* Names a thinking setting that the daemon refuses, by the name that the request has for it. */
void failure_name_thinking(struct failure *f, const struct generation_request *r);

/* The signature of a thought, as its text comes. It shows that the text was not changed; it is no secret. */
struct signature {
        uint64_t parts[2];
};
#define SIGNATURE_PREFIX "tandem1-"
#define SIGNATURE_BYTES 48u /* with NUL */
void signature_init(struct signature *s);
void signature_add(struct signature *s, const char *text, size_t size);
void signature_write(const struct signature *s, char text[SIGNATURE_BYTES]);

/* A thought as one text that a client hands back unread: its signature, a colon, and itself. It is no secret. */
json_t *thinking_seal(const char *text, size_t size);
/* False: it is none, or was changed. The text lies in sealed. */
bool thinking_unseal(const char *sealed, const char **ret_text);

#endif
