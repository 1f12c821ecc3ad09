/* A model's file on this machine, all parts of it, without a daemon. */
#ifndef TANDEM_CLI_MODEL_FILE_H
#define TANDEM_CLI_MODEL_FILE_H

#include "engine/model/model.h"

#define MODEL_FILE_PARTS_MAX 65u

/* Opens a file and the parts beside it, and holds what it says of its tensors against the files' sizes. The caller
 * closes *ret. TDM_E_*: what is wrong. */
int model_file_open(const char *path, struct tdm_gguf **ret, uint32_t *ret_n_parts, uint64_t *ret_bytes,
                    struct tdm_error *err);
/* Where part i of n, from 1 on, of the model at path lies, which is any part's. The caller's; NULL: the name is not
 * that of a part of n, or there is no memory. */
char *model_file_part(const char *path, uint32_t i, uint32_t n);

#endif
