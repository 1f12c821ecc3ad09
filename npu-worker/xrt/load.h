/* Finding and loading what XRT consists of, and looking at an xclbin before XRT does. */
#ifndef TDM_NPU_XRT_LOAD_H
#define TDM_NPU_XRT_LOAD_H

#include "common/error.h"
#include "npu-worker/xrt/front.h"

#define TDM_XCLBIN_MAX_BYTES (UINT64_C(256) << 20)

/* Loads tandem-xrt.so from beside the program (or from where the build puts it). With emulated, XRT is pointed at the
 * emulated NPU first, so this must come before anything else has loaded XRT. Stays loaded until the process ends: XRT's
 * threads and destructors live in it. TDM_E_UNSUPPORTED says what is missing and what to install. */
int tdm_xrt_load(bool emulated, const struct tdm_xrt_front **ret, struct tdm_error *err);

/* Directory of the running program, and a path relative to it. -ENAMETOOLONG. */
int tdm_xrt_program_path(const char *relative, char *ret, size_t size);

/* Magic, lengths and sections within the file: XRT trusts them. */
int tdm_xclbin_check(const void *image, uint64_t size_bytes, const char *path, struct tdm_error *err);
/* Reads a file of at most max_bytes. The caller frees. */
int tdm_npu_read_file(const char *path, uint64_t max_bytes, void **ret, size_t *ret_size, struct tdm_error *err);

#endif
