/* GGUF files that other programs have on this machine: Ollama, LM Studio, and Hugging Face's own tools. */
#ifndef TANDEM_STORE_ELSEWHERE_H
#define TANDEM_STORE_ELSEWHERE_H

#include "common/error.h"

/* fn gets a name for the model, its file, and the file's size. Returns the number of models; 0 with err set: nothing
 * was found, with where it was looked for. program: "ollama", "lmstudio" or "hf". */
size_t elsewhere_each(const char *program,
                      void (*fn)(const char *name, const char *path, uint64_t size_bytes, void *userdata),
                      void *userdata, struct tdm_error *err);

extern const char *const elsewhere_programs[]; /* NULL at the end */

#endif
