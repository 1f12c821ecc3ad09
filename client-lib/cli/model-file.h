/* A model's file on this machine, all parts of it, without a daemon. */
#ifndef TANDEM_CLI_MODEL_FILE_H
#define TANDEM_CLI_MODEL_FILE_H

#include "engine/model/model.h"

#define MODEL_FILE_PARTS_MAX 65u

/* The open files of one model. Each is opened once: what is checked is what is read afterwards. */
struct model_files {
        uint32_t n;
        int fd[MODEL_FILE_PARTS_MAX];
        char *path[MODEL_FILE_PARTS_MAX];
        uint64_t size_bytes[MODEL_FILE_PARTS_MAX];
};

/* Opens a file and the parts beside it. fd: the first one, taken, if it is open already, else -1. careful: the files
 * are to be copied, so that what other users own on the way to them is looked at (client-lib/store/follow.h).
 * TDM_E_*: what is wrong. */
int model_files_open(struct model_files *ret, const char *path, int fd, bool careful, struct tdm_error *err);
void model_files_close(struct model_files *files);
/* Reads what open files of a model, all of its n parts, say of their tensors, and holds it against their sizes. name:
 * for messages. The caller closes *ret. */
int model_files_read(const int *fds, char *const *names, uint32_t n, struct tdm_gguf **ret, struct tdm_error *err);

/* Both. The caller closes *ret. TDM_E_*: what is wrong. */
int model_file_open(const char *path, struct tdm_gguf **ret, uint32_t *ret_n_parts, uint64_t *ret_bytes,
                    struct tdm_error *err);
/* Where part i of n, from 1 on, of the model at path lies, which is any part's. The caller's; NULL: the name is not
 * that of a part of n, or there is no memory. */
char *model_file_part(const char *path, uint32_t i, uint32_t n);

#endif
