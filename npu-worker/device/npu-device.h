/* The NPU as a device of the worker (engine/device/device.h): "xrt" a real one, "emulated" the one of the tests.
 *
 * An attention block runs as two products on the NPU (q, k, v in one; output) with the host's arithmetic between them;
 * layers that do not fit the NPU's memory budget, and all other blocks, run on a host device inside. In precisions
 * other than the default nothing runs on the NPU: they promise more than bf16 holds. What a model's load decided, and
 * at its end what has run where, is logged; both are told to tandemd (plan(), counters) while it works.
 *
 * Settings come with struct tdm_device_config; where one is not set there, the environment is asked (tests):
 * TANDEM_NPU_FORMAT=bf16|int8|int4 (bf16), TANDEM_NPU_MEMORY_MB (a quarter of RAM), TANDEM_NPU_PROGRAMS (a directory
 * with a manifest). Each is checked when the device is opened. */
#ifndef TDM_NPU_WORKER_DEVICE_H
#define TDM_NPU_WORKER_DEVICE_H

#include "engine/device/device.h"
#include "npu-worker/npu/npu.h"

extern const struct tdm_device_ops tdm_xrt_device_ops;
extern const struct tdm_device_ops tdm_emulated_device_ops;
/* What auto takes: the NPU, and where it cannot be opened the host device, whose reason() then says why. */
extern const struct tdm_device_ops tdm_npu_auto_device_ops;
/* The host device, because there is no NPU on this machine: says so. */
extern const struct tdm_device_ops tdm_npu_no_device_ops;
/* NULL: there may be an NPU; else what is missing. */
const char *tdm_npu_missing(void);
const char *tdm_npu_missing_at(const char *nodes); /* a pattern: for tests */

/* How the newest model of one of the two devices above is shared out. For tests. */
struct tdm_npu_share {
        uint32_t n_layers, n_npu_layers;
        uint64_t npu_macs, host_macs; /* of attention blocks: on the NPU; on the CPU, scores and values included */
        struct tdm_npu_counters counters;
};
void tdm_npu_device_share(const struct tdm_device_model *model, struct tdm_npu_share *ret);

#endif
