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

#endif
