/* tandem-gpu-worker: the process that owns the GPU; by default it runs embedding, FFN, head and sampling.
 * Its devices: a GPU through Vulkan, where this build has it, and the host's CPU. "auto" takes Vulkan on a real GPU
 * only. A device that is asked for and not there is said to be missing, it is never replaced silently. Everything else
 * is the worker loop's (engine/worker/). */
#include "engine/worker/worker.h"
#ifdef TANDEM_VULKAN
#include "gpu-worker/vulkan/vulkan.h"
#endif

static const struct tdm_worker_device devices[] = {
#ifdef TANDEM_VULKAN
        { .name = "vulkan",
          .ops = &tdm_vulkan_device_ops,
          .needs_files = true,
          .makes_code = true,
          .probe = tdm_vulkan_probe },
#else
        { .name = "vulkan" },
#endif
        { .name = "host", .ops = &tdm_host_device_ops },
};

int main(int argc, char **argv)
{
        static const struct tdm_worker_program program = {
                .name = "tandem-gpu-worker",
                .index = TDM_WORKER_GPU,
                .devices = devices,
                .n_devices = TDM_ARRAY_SIZE(devices),
        };

        return tdm_worker_main(&program, argc, argv);
}
