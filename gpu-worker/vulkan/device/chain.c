/* Dispatches that follow each other without a barrier. A barrier between two kernels lets the whole device run empty
 * for two to three microseconds. A single row has ten kernels a layer, so that is a third of its time. Here a kernel's
 * workgroups start while the last ones of the kernel before still run. They load what does not depend on those
 * (weights, gains, page tables). Then they wait until all workgroups of the kernel before have counted themselves done,
 * in a word of device memory that each dispatch has for itself (common.glsl). Each dispatch waits for the one before,
 * so all before that are done too.
 *
 * This needs a device that starts the workgroups of one dispatch before those of the next. Vulkan does not promise it:
 * elsewhere a waiting kernel could keep the one that it waits for from starting. So chaining is used only on devices of
 * a vendor where it was measured (NVIDIA), and only after a probe when a model is loaded. Waiting is bounded. A kernel
 * that gives up sets a word; the submission is then a fault of the device, the worker is restarted, and its jobs go on.
 * TANDEM_VULKAN_CHAIN=on|off overrides the choice in tests.
 *
 * A single row's kernels leave little for the next one. A fence, then the count, then the row would be three trips to
 * memory. So there the row's words are flagged: each 32 bits travel with the index of the dispatch that wrote them, as
 * one word of 64 bits, which these GPUs write and read whole where it is aligned. A reader that sees the index has the
 * bits too, and needs neither fence nor count (as in the "LL" protocol of collective communication libraries). All
 * flagged words are cleared before a submission's first kernel, so an index names one dispatch. What a later kernel
 * than the next one reads (hidden rows, the cache) is counted and waited for as above. Each workgroup of a waiting
 * kernel polls a few words of the row, and loads all of it only when those are there.
 *
 * A kernel that waits uses the time. Norms and attention of a single row run their instructions once without effect
 * (norm.comp, attend-f16.comp): a multiprocessor that has to fetch instructions runs at a fifth of its speed, and in
 * small kernels every instruction runs once. Within attention, items of a row wait for each other in the same way: the
 * last one merges what the others leave, flagged with the step's serial and the layer. That needs a device that starts
 * a dispatch's workgroups in order. */
#include "gpu-worker/vulkan/device/gpu-private.h"

bool tdm_vk_chain_wanted(const struct tdm_vk_device *device)
{
        if (tdm_vk_switch(TDM_VK_SWITCH_CHAIN))
                return !tdm_vk_switch_is(TDM_VK_SWITCH_CHAIN, "off");
        return !device->is_cpu && device->properties.vendorID == TDM_VK_VENDOR_NVIDIA;
}

/* Workgroups of the probe's dispatches: more than a device holds at once, one alone, and between. */
static const uint32_t probe_groups[] = { 20000, 1, 500, 1, 20000, 20000, 64, 1, 3000, 1 };
#define PROBE_DISPATCHES 60u

static uint32_t probe_size(const struct tdm_vk_device *device, uint32_t i)
{
        uint32_t n = probe_groups[i % TDM_ARRAY_SIZE(probe_groups)];

        return device->is_cpu ? TDM_MIN(n, 16u) : n;
}

int tdm_vk_chain_try(struct tdm_vk_device *device, const struct tdm_vk_pipeline *gelu,
                     const struct tdm_vk_buffer *words, struct tdm_error *err)
{
        const VkBufferCopy copy = { .size = TDM_VK_CHAIN_WORDS * sizeof(uint32_t) };
        const uint32_t *seen = (const uint32_t *)device->stages[0].map;
        const char *what = "trying chained dispatches";
        struct tdm_vk *vk = &device->vk;
        VkCommandBuffer commands;
        int r = tdm_vk_once_begin(device, &commands, what, err);

        if (r != 0)
                return r;
        vk->CmdFillBuffer(commands, words->buffer, 0, copy.size, 0);
        tdm_vk_barrier(device, commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                       VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
        vk->CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, gelu->pipeline);
        for (uint32_t i = 0; i < PROBE_DISPATCHES; i++) {
                /* No values: nothing is read or written but the words. */
                const struct tdm_vk_gelu_push push = { .chain = words->address,
                                                       .chain_index = i + 1,
                                                       .chain_wait = i ? probe_size(device, i - 1) : 0 };

                vk->CmdPushConstants(commands, device->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(push), &push);
                vk->CmdDispatch(commands, probe_size(device, i), 1, 1);
        }
        tdm_vk_barrier(device, commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
                       VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT);
        vk->CmdCopyBuffer(commands, words->buffer, device->stages[0].buffer, 1, &copy);
        tdm_vk_barrier(device, commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                       VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT);
        r = tdm_vk_once_end(device, what, err);

        device->chained = r == 0 && seen[0] == 0;
        for (uint32_t i = 0; i < PROBE_DISPATCHES && device->chained; i++)
                device->chained = seen[i + 1] == probe_size(device, i);
        return r;
}

int tdm_vk_chain_check(struct tdm_vk_device *device, const volatile uint32_t *gave_up, struct tdm_error *err)
{
        if (!*gave_up)
                return 0;
        device->lost = true;
        return tdm_error_set(err, TDM_E_DEVICE_FAULT,
                             "vulkan device: a kernel waited in vain for the one before it; the worker must be "
                             "restarted (TANDEM_VULKAN_CHAIN=off does without)");
}
