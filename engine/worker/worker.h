/* A worker process: it owns one device, maps what tandemd hands it, and runs blocks of steps. The programs in
 * npu-worker/ and gpu-worker/ are a table of devices and a call of tdm_worker_main().
 *
 * Two threads: the executor (the main thread) is the only one that calls the device and that talks on the socket and
 * the rings; the control thread reads the socket, so that a message or the daemon's end is noticed in the middle of a
 * step. The worker keeps nothing that would be missed: it leaves at once when tandemd is gone. */
#ifndef TDM_ENGINE_WORKER_WORKER_H
#define TDM_ENGINE_WORKER_WORKER_H

#include "engine/device/device.h"

struct tdm_worker_device {
        const char *name;                 /* what TANDEM_NPU or TANDEM_GPU may ask for */
        const struct tdm_device_ops *ops; /* NULL: known by name, not in this build */
        bool needs_files;                 /* opens device nodes or libraries: no file sandbox before it is open */
        /* its driver goes on working once it is open: compiles, opens nodes, ioctl() */
        bool makes_code;
        bool is_accelerator; /* what "required" asks for: no CPU, and no CPU that plays an accelerator */
        /* Asked before "auto" or "required" takes the device: 0, or why not. NULL: always. */
        int (*probe)(const struct tdm_device_config *config, struct tdm_error *err);
};

struct tdm_worker_program {
        const char *name; /* "tandem-npu-worker" */
        enum tdm_worker_index index;
        /* "auto" takes the first that is in this build and fits this machine */
        const struct tdm_worker_device *devices;
        unsigned n_devices;
};

/* Never started by hand: without a control socket it says so and returns 2. */
int tdm_worker_main(const struct tdm_worker_program *program, int argc, char **argv);

#endif
