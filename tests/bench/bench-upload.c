/* What bounds the loading of a model onto a GPU of its own: how fast its memory takes copies from staging buffers that
 * are full already (that is PCIe alone), and how fast weights come through them, which the CPUs copy there
 * (gpu-worker/vulkan/device/buffer.c).
 *
 * usage: bench-upload [MIB]   1024 without; prints two lines of GB/s, medians of five */
#include <sys/mman.h>

#include "gpu-worker/vulkan/device/gpu.h"
#include "gpu-worker/vulkan/vulkan.h"

#define ROUNDS 5

static int compare(const void *a, const void *b)
{
        return *(const double *)a < *(const double *)b ? -1 : *(const double *)a > *(const double *)b;
}

static double median(double *x)
{
        qsort(x, ROUNDS, sizeof(*x), compare);
        return x[ROUNDS / 2];
}

static int copies_alone(struct tdm_vk_device *device, struct tdm_vk_buffer *to, struct tdm_error *err)
{
        VkCommandBuffer commands;
        int r = tdm_vk_once_begin(device, &commands, "copying", err);

        for (uint64_t at = 0; r == 0 && at < to->size_bytes; at += TDM_VK_STAGE_BYTES) {
                const VkBufferCopy copy = { .dstOffset = at, .size = TDM_MIN(TDM_VK_STAGE_BYTES, to->size_bytes - at) };

                device->vk.CmdCopyBuffer(commands,
                                         device->stages[1 + at / TDM_VK_STAGE_BYTES % (TDM_VK_STAGES - 1)].buffer,
                                         to->buffer, 1, &copy);
        }
        return r == 0 ? tdm_vk_once_end(device, "copying", err) : r;
}

static int upload(struct tdm_vk_device *device, struct tdm_vk_buffer *to, const uint8_t *from, struct tdm_error *err)
{
        VkCommandBuffer commands;
        int r = tdm_vk_upload(device, to, 0, from, to->size_bytes, err);

        if (r == 0) /* whoever comes after the copies waits for them */
                r = tdm_vk_once_begin(device, &commands, "waiting", err);
        return r == 0 ? tdm_vk_once_end(device, "waiting", err) : r;
}

int main(int argc, char **argv)
{
        uint64_t bytes = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1024) << 20;
        const struct tdm_device_config config = { .heartbeat = &(_Atomic uint64_t){ 0 } };
        double alone[ROUNDS], through[ROUNDS];
        struct tdm_vk_buffer to = { 0 };
        struct tdm_device *public;
        struct tdm_vk_device *device;
        struct tdm_error err = { 0 };
        uint8_t *from = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        int r = bytes == 0 || from == MAP_FAILED ?
                        tdm_error_set(&err, -ENOMEM, "no memory of %llu bytes", (unsigned long long)bytes) :
                        0;

        if (r == 0)
                r = tdm_vulkan_device_ops.open(&public, &config, &err);
        if (r != 0) {
                fprintf(stderr, "bench-upload: %s\n", err.message);
                return 1;
        }
        device = (struct tdm_vk_device *)public;
        (void)madvise(from, bytes, MADV_HUGEPAGE);
        for (uint64_t i = 0; i < bytes; i += sizeof(i))
                memcpy(from + i, &(uint64_t){ i * UINT64_C(0x9e3779b97f4a7c15) }, sizeof(i));
        r = tdm_vk_buffer_init(device, &to, bytes, TDM_VK_DEVICE_MEMORY, "the copies", &err);
        for (int i = -1; i < ROUNDS && r == 0; i++) { /* the first one warms up */
                uint64_t t0 = tdm_now_ns(), t1, t2;

                r = copies_alone(device, &to, &err);
                t1 = tdm_now_ns();
                if (r == 0)
                        r = upload(device, &to, from, &err);
                t2 = tdm_now_ns();
                alone[TDM_MAX(i, 0)] = (double)bytes / (double)(t1 - t0);
                through[TDM_MAX(i, 0)] = (double)bytes / (double)(t2 - t1);
        }
        if (r != 0)
                fprintf(stderr, "bench-upload: %s\n", err.message);
        else
                printf("%s\ncopies alone %.1f GB/s\nthrough the staging ring %.1f GB/s\n",
                       tdm_vulkan_device_ops.describe(public), median(alone), median(through));
        tdm_vk_buffer_deinit(device, &to);
        tdm_vulkan_device_ops.close(public);
        return r != 0;
}
