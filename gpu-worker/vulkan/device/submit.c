/* Submissions: command buffers go to the device's one queue and are waited for, with a limit. A GPU is polled for some
 * milliseconds first, since to be woken takes longer than most submissions; a CPU implementation needs the cores
 * itself. */
#include "gpu-worker/vulkan/device/gpu-private.h"

#define WAIT_SLICE_NS (UINT64_C(100) * TDM_NSEC_PER_MSEC)
#define WAIT_MAX_NS (UINT64_C(10) * TDM_NSEC_PER_SEC) /* the longest submission is far below a second */
/* a kernel is compiled when it first runs, in an emulator too */
#define WAIT_CPU_MAX_NS (UINT64_C(300) * TDM_NSEC_PER_SEC)
#define SPIN_NS (UINT64_C(20) * TDM_NSEC_PER_MSEC)

int tdm_vk_fault(struct tdm_vk_device *device, const char *what, VkResult result, struct tdm_error *err)
{
        device->lost = true;
        return tdm_error_set(err, TDM_E_DEVICE_FAULT, "vulkan device: %s failed: %s; the worker must be restarted",
                             what, tdm_vk_result_name(result));
}

int tdm_vk_wait(struct tdm_vk_device *device, VkFence fence, struct tdm_error *err)
{
        uint64_t begin_ns = tdm_now_ns(), waited_ns;
        VkResult r;

        if (!device->is_cpu)
                do {
                        r = device->vk.GetFenceStatus(device->vk.device, fence);
                        if (r == VK_SUCCESS)
                                return 0;
                } while (r == VK_NOT_READY && tdm_now_ns() - begin_ns < SPIN_NS);
        do {
                r = device->vk.WaitForFences(device->vk.device, 1, &fence, VK_TRUE, WAIT_SLICE_NS);
                waited_ns = tdm_now_ns() - begin_ns;
                /* The wait is bounded, by more than what tandemd takes for a hang. */
                atomic_fetch_add_explicit(device->heartbeat, 1, memory_order_relaxed);
        } while (r == VK_TIMEOUT && waited_ns < (device->is_cpu ? WAIT_CPU_MAX_NS : WAIT_MAX_NS));
        if (r == VK_SUCCESS)
                return 0;
        return tdm_vk_fault(device, r == VK_TIMEOUT ? "waiting for one submission (hung?)" : "waiting for the GPU", r,
                            err);
}

int tdm_vk_submit(struct tdm_vk_device *device, VkCommandBuffer commands, struct tdm_error *err)
{
        int r = tdm_vk_submit_begin(device, 0, commands, err);

        return r == 0 ? tdm_vk_submit_end(device, 0, err) : r;
}

int tdm_vk_once_begin(struct tdm_vk_device *device, VkCommandBuffer *ret, const char *what, struct tdm_error *err)
{
        const VkCommandBufferBeginInfo begin = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                                 .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT };
        VkResult r = device->vk.BeginCommandBuffer(device->stage_commands[0], &begin);

        if (r != VK_SUCCESS)
                return tdm_vk_fault(device, what, r, err);
        *ret = device->stage_commands[0];
        return 0;
}

int tdm_vk_once_end(struct tdm_vk_device *device, const char *what, struct tdm_error *err)
{
        VkResult r = device->vk.EndCommandBuffer(device->stage_commands[0]);

        return r == VK_SUCCESS ? tdm_vk_submit(device, device->stage_commands[0], err) :
                                 tdm_vk_fault(device, what, r, err);
}

int tdm_vk_once_dispatch(struct tdm_vk_device *device, const struct tdm_vk_pipeline *pipeline, const void *push,
                         uint32_t push_bytes, uint32_t x, uint32_t y, const char *what, struct tdm_error *err)
{
        struct tdm_vk *vk = &device->vk;
        VkCommandBuffer commands = VK_NULL_HANDLE;
        int r = tdm_vk_once_begin(device, &commands, what, err);

        if (r != 0)
                return r;
        vk->CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->pipeline);
        vk->CmdPushConstants(commands, device->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, push_bytes, push);
        vk->CmdDispatch(commands, x, y, 1);
        tdm_vk_barrier(device, commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
                       VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT);
        return tdm_vk_once_end(device, what, err);
}

void tdm_vk_barrier(struct tdm_vk_device *device, VkCommandBuffer commands, VkPipelineStageFlags from,
                    VkAccessFlags written, VkPipelineStageFlags to, VkAccessFlags wanted)
{
        const VkMemoryBarrier memory = { .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                         .srcAccessMask = written,
                                         .dstAccessMask = wanted };

        device->vk.CmdPipelineBarrier(commands, from, to, 0, 1, &memory, 0, NULL, 0, NULL);
}

int tdm_vk_submit_begin(struct tdm_vk_device *device, unsigned which, VkCommandBuffer commands, struct tdm_error *err)
{
        const VkSubmitInfo submit = { .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                      .commandBufferCount = 1,
                                      .pCommandBuffers = &commands };
        VkResult r = device->vk.QueueSubmit(device->queue, 1, &submit, device->fences[which]);

        if (r != VK_SUCCESS)
                return tdm_vk_fault(device, "submitting work", r, err);
        device->counters.submissions++;
        return 0;
}

int tdm_vk_submit_end(struct tdm_vk_device *device, unsigned which, struct tdm_error *err)
{
        int ret = tdm_vk_wait(device, device->fences[which], err);
        VkResult r;

        if (ret != 0)
                return ret;
        r = device->vk.ResetFences(device->vk.device, 1, &device->fences[which]);
        if (r != VK_SUCCESS)
                return tdm_vk_fault(device, "submitting work", r, err);
        atomic_fetch_add_explicit(device->heartbeat, 1, memory_order_relaxed);
        return 0;
}
