/* A model's projector on this machine: the file with which it sees pictures. */
#ifndef TANDEM_CLI_PROJECTOR_FILE_H
#define TANDEM_CLI_PROJECTOR_FILE_H

#include "engine/model/model.h"

struct projector_file {
        char *path;
        int fd;
        uint64_t size_bytes;
        uint32_t n_rows; /* of a picture: so many tokens of the prompt */
};

#define PROJECTOR_FILE_NONE ((struct projector_file){ .fd = -1 })

/* Opens a file, and holds it against the model that gguf is. careful: as in model-file.h. The caller closes *ret.
 * TDM_E_*: it is none, or not this model's, with the reason; or a negative errno. */
int projector_file_open(struct projector_file *ret, const char *path, bool careful, const struct tdm_gguf *model,
                        struct tdm_error *err);
void projector_file_close(struct projector_file *projector);
/* The same for an open file; path is for messages. */
int projector_file_check(int fd, const char *path, const struct tdm_gguf *model, uint32_t *ret_rows,
                         struct tdm_error *err);
/* Whether the model would see with a projector that fits it. */
bool projector_file_is_wanted(const struct tdm_gguf *model);

/* Beside NAME.gguf, or a part of it, that is mmproj-NAME.gguf; the caller's, NULL without memory. */
char *projector_file_beside(const char *model_path);
/* The one projector in the model's folder that fits, whatever it is called; -ENOENT: there is none, or several do.
 * The caller closes *ret. */
int projector_file_search(struct projector_file *ret, const char *model_path, bool careful,
                          const struct tdm_gguf *model);

#endif
