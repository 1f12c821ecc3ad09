/* tandem-gpu-worker: the process that owns the GPU; by default it runs embedding, FFN, head and sampling.
 * Today its only device is the host's CPU. A device that is asked for and not in this build is said to be missing, it is
 * never replaced silently. Everything else is the worker loop's (engine/worker/). */
#include "engine/worker/worker.h"

static const struct tdm_worker_device devices[] = {
        { .name = "vulkan" },
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
