/* The `vulkan` device of the GPU worker: all blocks of a model on one GPU, through compute shaders and nothing else of
 * Vulkan.
 *
 * Exactness: the order of every sum follows from a matrix's shape or from absolute positions (docs/exactness.md,
 * shaders/common/shared.h). One row and many take the same order. Bits differ from driver to driver, so the numerics id
 * names device and driver. Not thread-safe: one thread opens, loads, runs and closes. */
#ifndef TDM_GPU_WORKER_VULKAN_VULKAN_H
#define TDM_GPU_WORKER_VULKAN_VULKAN_H

#include "engine/device/device.h"

extern const struct tdm_device_ops tdm_vulkan_device_ops;

/* For a device that was not asked for by name: 0 where there is a GPU (never a CPU implementation), else a TDM_E_* or
 * -errno with the reason. Looks for device nodes first, so that a machine without a GPU never loads a driver. */
int tdm_vulkan_probe(const struct tdm_device_config *config, struct tdm_error *err);

/* Counters of a device since it was opened: allocations, pipelines and recordings stay as they are while steps run
 * again and again. */
struct tdm_vulkan_counters {
        uint64_t allocations; /* of device memory, imports too */
        uint64_t pipelines;   /* compiled */
        uint64_t recordings;  /* of command buffers */
        uint64_t submissions;
        uint64_t hidden_copies; /* of hidden rows between the step's memory and the device's */
        uint64_t logit_blocks;  /* of TDM_SAMPLE_MAX_BLOCK, that were chosen to come to the host for the sampler */
        uint64_t kv_restored_bytes;
        uint64_t rows_spared; /* of the blocks that rows without logits do not need, summed over blocks */
};
void tdm_vulkan_counters(const struct tdm_device *device, struct tdm_vulkan_counters *ret);

/* Time on the device by kernel, for benchmarks: off until asked for (it costs some time itself). ret: names and sums
 * since the last call. */
#define TDM_VULKAN_PROFILE_MAX 32u
struct tdm_vulkan_profile {
        const char *name;
        uint64_t n, ns;
};
void tdm_vulkan_profile(struct tdm_device *device, bool on);
unsigned tdm_vulkan_profile_take(struct tdm_device *device, struct tdm_vulkan_profile ret[TDM_VULKAN_PROFILE_MAX]);

/* One line: the device, and how fast its memory is. Takes a fraction of a second and half a gigabyte of its memory. */
int tdm_vulkan_measure(char *ret, size_t size, struct tdm_error *err);

#endif
