/* What an answer has to look like: `response_format`, `text`, `output_config`, `format`. All become a JSON Schema for
 * the daemon, which says by name and place what it cannot hold of it. Each returns 0, or the status of the failure. */
#ifndef TDM_HTTP_FORMAT_H
#define TDM_HTTP_FORMAT_H

#include "http-gateway/generation.h"

/* {"type": "text" | "json_object" | "json_schema", "json_schema": {"name", "schema", …}} of /v1/chat/completions. */
int request_take_response_format(struct generation_request *r, struct failure *f);
/* {"format": {"type": …, "schema": …}} of /v1/responses (key "text") and of Anthropic (key "output_config"). */
int request_take_nested_format(struct generation_request *r, const char *key, struct failure *f);
/* {"type": "json_schema", "schema": …}: what Anthropic's `output_format` was. */
int request_take_flat_format(struct generation_request *r, const char *key, struct failure *f);
/* Ollama's: "json", or a schema. */
int request_take_ollama_format(struct generation_request *r, struct failure *f);
/* Extensions of OpenAI's endpoints: `grammar` (GBNF) and `regex`. */
int request_take_grammar(struct generation_request *r, struct failure *f);

#endif
