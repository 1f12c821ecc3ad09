/* Ollama's endpoints. */
#ifndef TDM_HTTP_OLLAMA_H
#define TDM_HTTP_OLLAMA_H

#include "http-gateway/questions.h"

void ollama_version(struct exchange *x);
void ollama_tags(struct exchange *x);
void ollama_show(struct exchange *x);
void ollama_ps(struct exchange *x);
void ollama_chat(struct exchange *x);
void ollama_generate(struct exchange *x);
void ollama_embed(struct exchange *x);
void ollama_manage(struct exchange *x); /* pull, push, create, copy, delete: refused */

/* How their bodies are read: for tests. */
extern const struct reader ollama_chat_reader, ollama_generate_reader, ollama_embed_reader, ollama_show_reader;

#endif
