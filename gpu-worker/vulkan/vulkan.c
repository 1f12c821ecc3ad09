/* The vulkan device's table of functions, and what it says about itself. The work is done in the folders below: device/
 * (a GPU), memory/ (the cache), model/ (weights and what all share), program/ (what layers compute, and its buffers),
 * proof/ and kernels/ (which kernels), step/ (a step as shaders see it), record/ (command buffers), load/ (loading and
 * measuring). Each may include those before it. run.c runs blocks. */
#include "gpu-worker/vulkan/vulkan.h"

#include "gpu-worker/vulkan/kernels/kernels.h"
#include "gpu-worker/vulkan/load/load.h"
#include "gpu-worker/vulkan/run.h"

/* An eighth of the device's memory, between these bounds, is left to buffers for work. */
#define WORK_BYTES_MIN (UINT64_C(128) << 20)
#define WORK_BYTES_MAX (UINT64_C(1) << 30)

int tdm_vulkan_probe(const struct tdm_device_config *config, struct tdm_error *err)
{
        return tdm_vk_device_probe(config, err);
}

static int vulkan_open(struct tdm_device **ret, const struct tdm_device_config *config, struct tdm_error *err)
{
        struct tdm_vk_device *device;
        int r = tdm_vk_device_open(&device, config, tdm_vk_tuned_sane, err);

        if (r != 0)
                return r;
        device->public.ops = &tdm_vulkan_device_ops;
        *ret = &device->public;
        return 0;
}

static void vulkan_close(struct tdm_device *public)
{
        tdm_vk_device_close((struct tdm_vk_device *)public);
}

static const char *vulkan_describe(const struct tdm_device *device)
{
        return ((const struct tdm_vk_device *)device)->description;
}

/* A cache that is imported is one allocation. One that is not, or cannot be for its size, lies on the device, beside
 * what a model needs for its work. */
static void vulkan_memory(struct tdm_device *public, struct tdm_device_memory *ret)
{
        struct tdm_vk_device *device = (struct tdm_vk_device *)public;
        uint64_t left, total;

        tdm_vk_memory_left(device, &left, &total);
        left -= TDM_MIN(TDM_MIN(TDM_MAX(left / 8, WORK_BYTES_MIN), WORK_BYTES_MAX), left / 2);
        ret->holds_weights = !device->memory.import;
        ret->cache_bytes_max =
                TDM_MAX(device->memory.import ? TDM_MAX(device->memory.max_allocation, left) : left, UINT64_C(1));
}

static const char *vulkan_numerics_id(const struct tdm_device *device)
{
        return ((const struct tdm_vk_device *)device)->numerics_id;
}

static uint64_t vulkan_scratch_bytes(const struct tdm_device_model *public)
{
        return ((const struct tdm_vk_model *)public)->memory_bytes;
}

/* Asked for when a model is loaded; the cache may come later, and says for itself why not. */
static const char *vulkan_plan(const struct tdm_device_model *public)
{
        struct tdm_vk_model *m = (struct tdm_vk_model *)public;
        const struct tdm_vk_device *device = m->device;
        unsigned tried = 0, proven = 0;
        char no_dmabuf[96] = "", few_rows[64];

        tdm_vk_few_rows_describe(m, few_rows, sizeof(few_rows));
        if (m->activations.no_dmabuf)
                snprintf(no_dmabuf, sizeof(no_dmabuf), ", no dma-buf: %s", m->activations.no_dmabuf);
        for (unsigned i = 0; i < device->n_pipelines; i++) {
                tried += device->pipelines[i].tried;
                proven += device->pipelines[i].proven;
        }
        snprintf(
                m->plan, sizeof(m->plan),
                "weights %s, rows %s%s%s, cache %s, hidden rows %s%s; %.1f MiB on the device in %llu allocations of at "
                "most %.0f MiB; "
                "%llu kernels, %zu KiB of them from disk, one after the other %s; %u of %u with matrix units exact, "
                "so in use",
                m->regions.are_imported ? "imported in place" : "copied to the device",
                m->attention.is_f16                  ? "of f16 (in attention too" :
                m->f16_rows                          ? "of f16" :
                m->layers[0].q.act == TDM_VK_ACT_F32 ? "of f32" :
                m->layers[0].q.act == TDM_VK_ACT_I16 ? "of 15 bits" :
                                                       "of 8 and 15 bits",
                m->attention.is_f16 ? few_rows : "", m->attention.is_f16 ? ")" : "",
                m->cache.imported || (!m->cache.n_buffers && device->memory.import) ?
                        "imported in place" :
                        "on the device, written behind into its segment",
                m->activations.dmabuf        ? "imported in place (dma-buf)" :
                m->activations.buffer.buffer ? "imported in place (host pointer)" :
                                               "copied where another worker follows",
                no_dmabuf, (double)m->memory_bytes / 0x1p20, (unsigned long long)device->counters.allocations,
                (double)device->memory.max_allocation / 0x1p20, (unsigned long long)device->counters.pipelines,
                device->kept.loaded_bytes >> 10, device->chained ? "without barriers" : "by barriers", proven, tried);
        return m->plan;
}

static uint64_t vulkan_n_saturated(const struct tdm_device_model *public)
{
        return *(const volatile uint32_t *)((const struct tdm_vk_model *)public)->counters.map;
}

void tdm_vulkan_counters(const struct tdm_device *device, struct tdm_vulkan_counters *ret)
{
        const struct tdm_vk_counters *counters = &((const struct tdm_vk_device *)device)->counters;

        *ret = (struct tdm_vulkan_counters){ .allocations = counters->allocations,
                                             .pipelines = counters->pipelines,
                                             .recordings = counters->recordings,
                                             .submissions = counters->submissions,
                                             .hidden_copies = counters->hidden_copies,
                                             .logit_blocks = counters->logit_blocks,
                                             .kv_restored_bytes = counters->kv_restored_bytes,
                                             .rows_spared = counters->rows_spared };
}

void tdm_vulkan_profile(struct tdm_device *device, bool on)
{
        ((struct tdm_vk_device *)device)->profiling = on;
}

unsigned tdm_vulkan_profile_take(struct tdm_device *public, struct tdm_vulkan_profile ret[TDM_VULKAN_PROFILE_MAX])
{
        struct tdm_vk_device *device = (struct tdm_vk_device *)public;
        unsigned n = 0;

        for (unsigned i = 0; i < device->n_pipelines && n < TDM_VULKAN_PROFILE_MAX; i++) {
                struct tdm_vk_pipeline *p = &device->pipelines[i];

                if (p->profile_n)
                        ret[n++] = (struct tdm_vulkan_profile){ p->name, p->profile_n, p->profile_ns };
                p->profile_n = p->profile_ns = 0;
        }
        return n;
}

const struct tdm_device_ops tdm_vulkan_device_ops = {
        .name = "vulkan",
        /* It computes the features of all devices and no others (load/load.c). */
        .left_to_host = { .features = TDM_HOST_FEATURES, .types = UINT64_C(1) << TDM_TYPE_NVFP4 },
        .open = vulkan_open,
        .close = vulkan_close,
        .describe = vulkan_describe,
        .numerics_id = vulkan_numerics_id,
        .memory = vulkan_memory,
        .model_load = tdm_vk_model_load,
        .load_begin = tdm_vk_model_begin,
        .load_weights = tdm_vk_model_weights,
        .load_end = tdm_vk_model_end,
        .model_unload = tdm_vk_model_unload,
        .set_kv = tdm_vk_model_set_kv,
        .model_scratch_bytes = vulkan_scratch_bytes,
        .run = tdm_vk_run,
        .plan = vulkan_plan,
        .n_saturated = vulkan_n_saturated,
};
