/* Finding and loading XRT. */
#ifndef TDM_NPU_XRT_LOAD_H
#define TDM_NPU_XRT_LOAD_H

#include "common/error.h"
#include "npu-worker/xrt/front.h"

/* Loads tandem-xrt.so from beside the program (or from where the build puts it). With emulated, XRT is pointed at the
 * emulated NPU first, so this must come before anything else has loaded XRT. Stays loaded until the process ends: XRT's
 * threads and destructors live in it. TDM_E_UNSUPPORTED says what is missing and what to install. */
int tdm_xrt_load(bool emulated, const struct tdm_xrt_front **ret, struct tdm_error *err);

/* Directory of the running program, and a path relative to it. -ENAMETOOLONG. */
int tdm_xrt_program_path(const char *relative, char *ret, size_t size);

#endif
