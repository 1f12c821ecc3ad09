/* The emulated NPU seen from XRT's device layer: xrt.h's C functions, emulated-device.c implements them. A
 * header of its own, so that XRT's headers, which warn under our flags, are included in one place. */
#ifndef TDM_NPU_EMULATED_DEVICE_H
#define TDM_NPU_EMULATED_DEVICE_H

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wundef"
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#pragma GCC diagnostic ignored "-Wshadow"
#include <stdbool.h>
#include <xrt/xrt.h>
#include <xrt/ert.h>
#include <xrt/xclbin.h>
#pragma GCC diagnostic pop

#include "common/util.h"

#endif
