/* tandem-npu-worker: the process that owns the NPU. Under the placement `split` it runs attention.
 * What auto means depends on the machine and is found out here, before the sandbox: with no NPU in sight it is the host
 * device, which needs no files and gets the whole sandbox. A device that is asked for by name and cannot be had is said
 * to be missing, it is never replaced silently. Everything else is the worker loop's (engine/worker/). */
#include "engine/worker/worker.h"
#include "npu-worker/device/npu-device.h"

int main(int argc, char **argv)
{
        const struct tdm_worker_device automatic = {
                .name = "auto", .ops = &tdm_npu_auto_device_ops, .needs_files = true, .makes_code = true
        };
        const struct tdm_worker_device nothing = { .name = "auto", .ops = &tdm_npu_no_device_ops };
        const struct tdm_worker_device devices[] = {
                tdm_npu_missing() ? nothing : automatic,
                { .name = "xrt",
                  .ops = &tdm_xrt_device_ops,
                  .needs_files = true,
                  .makes_code = true,
                  .is_accelerator = true },
                { .name = "emulated",
                  .ops = &tdm_emulated_device_ops,
                  .needs_files = true,
#ifdef TDM_NPU_EMULATED_KERNEL /* AMD's driver library works on */
                  .makes_code = true
#endif
                },
                { .name = "host", .ops = &tdm_host_device_ops },
        };
        const struct tdm_worker_program program = {
                .name = "tandem-npu-worker",
                .index = TDM_WORKER_NPU,
                .devices = devices,
                .n_devices = TDM_ARRAY_SIZE(devices),
        };

        return tdm_worker_main(&program, argc, argv);
}
