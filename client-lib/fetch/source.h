/* What `tandem pull` may be given, and which files that means:
 *
 *   https://…/x.gguf       this file
 *   hf:OWNER/REPO[:QUANT]  of a repository of Hugging Face the files of one quantisation (Q4_K_M where none is said),
 *                          and the projector with which the model sees pictures, if one is there
 *   hf:OWNER/REPO/x.gguf   one file of it
 *   NAME                   one of a short list of well-known models (source_known) */
#ifndef TANDEM_FETCH_SOURCE_H
#define TANDEM_FETCH_SOURCE_H

#include "common/error.h"

#define SOURCE_MAX_FILES 64u

struct source_file {
        char *url, *name;    /* name: without .gguf */
        uint64_t size_bytes; /* 0: not known */
        char sha256[65];     /* "": not known */
};

struct source {
        struct source_file files[SOURCE_MAX_FILES];
        size_t n_files;               /* several: the parts of one model, in order */
        struct source_file projector; /* that lies beside them, under the name it has there; url NULL: none */
        const char *token;            /* for these urls' hosts; NULL: none */
};

/* Asks Hugging Face's list of files where it has to (HF_ENDPOINT: another server that speaks so; HF_TOKEN: who asks).
 * TDM_E_NO_MODEL: no file fits; the message lists those that there are. */
int source_find(const char *what, struct source *ret, struct tdm_error *err);
void source_free(struct source *source);

struct source_known {
        const char *name, *source, *about;
};
extern const struct source_known source_known[];
extern const size_t n_source_known;

#endif
