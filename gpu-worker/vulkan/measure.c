/* `tandem-gpu-worker --measure`: how fast the GPU's own memory is, for `tandem report`. Copies inside it, several
 * times, and the best counts: the clocks rise meanwhile. */
#include "gpu-worker/vulkan/device/gpu.h"
#include "gpu-worker/vulkan/vulkan.h"

enum { ROUNDS = 12, COPIES = 4 };
#define MEASURED_BYTES (UINT64_C(256) << 20)

static int measure_copies(struct tdm_vk_device *device, const struct tdm_vk_buffer *from,
                          const struct tdm_vk_buffer *to, uint64_t bytes, uint64_t *ret_ns, struct tdm_error *err)
{
        const VkBufferCopy copy = { .size = bytes };
        VkCommandBuffer commands;
        uint64_t begin;
        int r = tdm_vk_once_begin(device, &commands, "copying", err);

        if (r != 0)
                return r;
        for (int i = 0; i < COPIES; i++) {
                device->vk.CmdCopyBuffer(commands, from->buffer, to->buffer, 1, &copy);
                tdm_vk_barrier(device, commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                               VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT);
        }
        begin = tdm_now_ns();
        r = tdm_vk_once_end(device, "copying", err);
        *ret_ns = tdm_now_ns() - begin;
        return r;
}

int tdm_vulkan_measure(char *ret, size_t size, struct tdm_error *err)
{
        const struct tdm_device_config config = { .heartbeat = &(_Atomic uint64_t){ 0 } };
        struct tdm_vk_buffer from = { 0 }, to = { 0 };
        uint64_t left, total, bytes, ns, best = UINT64_MAX;
        struct tdm_vk_device *device;
        struct tdm_device *public;
        const char *asked = getenv("TANDEM_GPU");
        int r = asked && strcmp(asked, "vulkan") == 0 ? 0 : tdm_vulkan_probe(&config, err);

        if (r == 0)
                r = tdm_vulkan_device_ops.open(&public, &config, err);
        if (r != 0)
                return r;
        device = (struct tdm_vk_device *)public;
        tdm_vk_memory_left(device, &left, &total);
        bytes = TDM_MIN(MEASURED_BYTES, left / 4) & ~(UINT64_C(4095));
        r = bytes > 0 ? 0 : tdm_error_set(err, TDM_E_NO_MEMORY, "the GPU has no memory left");
        if (r == 0)
                r = tdm_vk_buffer_init(device, &from, bytes, TDM_VK_DEVICE_MEMORY, "copies", err);
        if (r == 0)
                r = tdm_vk_buffer_init(device, &to, bytes, TDM_VK_DEVICE_MEMORY, "copies", err);
        for (int i = 0; i < ROUNDS && r == 0; i++) {
                r = measure_copies(device, &from, &to, bytes, &ns, err);
                if (r == 0)
                        best = TDM_MIN(best, TDM_MAX(ns, 1u));
        }
        if (r == 0)
                snprintf(ret, size,
                         "%s: %.1f GB/s of its memory, read and written by copies inside it; %.1f GiB in all",
                         tdm_vulkan_device_ops.describe(public), 2.0 * COPIES * (double)bytes / (double)best,
                         (double)total / (double)(UINT64_C(1) << 30));
        tdm_vk_buffer_deinit(device, &to);
        tdm_vk_buffer_deinit(device, &from);
        tdm_vulkan_device_ops.close(public);
        return r;
}
