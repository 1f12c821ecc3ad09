/* Reading the files of a set of NPU programs, and looking at its xclbin before XRT does.
 *
 * The layout of an xclbin's head is written down in files.c and not taken from XRT's headers, so that builds without
 * them check it too. */
#ifndef TDM_NPU_FILES_H
#define TDM_NPU_FILES_H

#include "common/error.h"

#define TDM_XCLBIN_MAX_BYTES (UINT64_C(256) << 20)

/* Magic, lengths and sections within the file: XRT trusts them. */
int tdm_xclbin_check(const void *image, uint64_t size_bytes, const char *path, struct tdm_error *err);
/* Reads a file of at most max_bytes. The caller frees. */
int tdm_npu_read_file(const char *path, uint64_t max_bytes, void **ret, size_t *ret_size, struct tdm_error *err);

#endif
