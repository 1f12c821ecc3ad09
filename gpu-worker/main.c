/* tandem-gpu-worker: the process that owns the GPU. Under the placement `split` it runs embedding, FFN, head and
 * sampling.
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
          .is_accelerator = true,
          .probe = tdm_vulkan_probe },
#else
        { .name = "vulkan", .is_accelerator = true },
#endif
        { .name = "host", .ops = &tdm_host_device_ops },
};

/* For `tandem report`: one line, and 1 where there is no GPU. */
static int measure_gpu(void)
{
        char text[512];
        struct tdm_error err = { 0 };
        int r = -ENOTSUP;

#ifdef TANDEM_VULKAN
        r = tdm_vulkan_measure(text, sizeof(text), &err);
#else
        (void)tdm_error_set(&err, r, "built without Vulkan");
#endif
        puts(r == 0 ? text : err.message);
        return r == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
        static const struct tdm_worker_program program = {
                .name = "tandem-gpu-worker",
                .index = TDM_WORKER_GPU,
                .devices = devices,
                .n_devices = TDM_ARRAY_SIZE(devices),
        };

        if (argc == 2 && strcmp(argv[1], "--measure") == 0)
                return measure_gpu();
        return tdm_worker_main(&program, argc, argv);
}
