/* GGUF files that other programs have on this machine: Ollama, LM Studio, and Hugging Face's own tools. */
#ifndef TANDEM_STORE_ELSEWHERE_H
#define TANDEM_STORE_ELSEWHERE_H

#include "common/error.h"

/* A model that was found. The file is open: who uses it need not look for it again by its path. */
struct elsewhere_model {
        const char *name, *path;
        int fd; /* steal it, or it is closed; -1: err says why it cannot be used */
        const struct tdm_error *err;
};

/* fn gets each model. Returns their number; 0 with err set: nothing was found, with where it was looked for. program:
 * "ollama", "lmstudio" or "hf". What the other program's folders say is bounded, and files are opened as follow.h says:
 * those folders may be another user's. */
size_t elsewhere_each(const char *program, void (*fn)(struct elsewhere_model *model, void *userdata), void *userdata,
                      struct tdm_error *err);

extern const char *const elsewhere_programs[]; /* NULL at the end */

#endif
