/* A Vulkan device that computes nothing: see dry-device.h. */
#include <pthread.h>

#include "gpu-worker/vulkan/model/model.h"
#include "gpu-worker/vulkan/tests/dry-device.h"
#include "gpu-worker/vulkan/vulkan.h"

#define MAX_BUFFERS 4096u
#define MAX_RECORDINGS 2048u
#define PROBE_DISPATCHES 60u /* of device/chain.c */

struct listed_buffer {
        VkBuffer buffer;
        uint64_t bytes, address;
};

struct recording {
        VkCommandBuffer commands;
        FILE *text;
        char *chars;
        size_t n_chars;
        VkPipeline bound;
        uint32_t push[TDM_VK_PUSH_BYTES / 4], push_words;
        uint32_t n_dispatches, groups[PROBE_DISPATCHES];
};

static struct tdm_vk_device *device;
static struct tdm_vk_model *model;
static void (*on_begin)(VkCommandBuffer commands);
static struct tdm_vk real;
static struct listed_buffer buffers[MAX_BUFFERS];
static unsigned n_buffers;
static struct recording recordings[MAX_RECORDINGS];
static unsigned n_recordings;
static bool is_listing;
static _Atomic uintptr_t n_pipelines;

static _Noreturn void die(const char *what)
{
        fprintf(stderr, "dry device: %s\n", what);
        exit(1);
}

/* ---- buffers ---- */

static VKAPI_ATTR VkResult VKAPI_CALL create_buffer(VkDevice d, const VkBufferCreateInfo *info,
                                                    const VkAllocationCallbacks *a, VkBuffer *ret)
{
        VkResult r = real.CreateBuffer(d, info, a, ret);

        if (n_buffers == MAX_BUFFERS)
                die("too many buffers");
        if (r == VK_SUCCESS)
                buffers[n_buffers++] = (struct listed_buffer){ .buffer = *ret, .bytes = info->size };
        return r;
}

static VKAPI_ATTR VkDeviceAddress VKAPI_CALL get_address(VkDevice d, const VkBufferDeviceAddressInfo *info)
{
        VkDeviceAddress address = real.GetBufferDeviceAddress(d, info);

        for (unsigned i = n_buffers; i-- > 0;)
                if (buffers[i].buffer == info->buffer) {
                        buffers[i].address = address;
                        break;
                }
        return address;
}

/* The last that is bound there: those before are destroyed. */
static bool print_address(FILE *text, uint64_t address)
{
        for (unsigned i = n_buffers; i-- > 0;)
                if (buffers[i].address && address - buffers[i].address < buffers[i].bytes) {
                        fprintf(text, " b%u+%llx", i, (unsigned long long)(address - buffers[i].address));
                        return true;
                }
        return false;
}

static unsigned buffer_index(VkBuffer buffer)
{
        for (unsigned i = n_buffers; i-- > 0;)
                if (buffers[i].buffer == buffer)
                        return i;
        return MAX_BUFFERS;
}

/* ---- kernels ---- */

static VKAPI_ATTR VkResult VKAPI_CALL create_pipelines(VkDevice d, VkPipelineCache cache, uint32_t n,
                                                       const VkComputePipelineCreateInfo *infos,
                                                       const VkAllocationCallbacks *a, VkPipeline *ret)
{
        (void)d, (void)cache, (void)infos, (void)a;
        for (uint32_t i = 0; i < n; i++)
                ret[i] = (VkPipeline)(uintptr_t)(++n_pipelines << 4);
        return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL destroy_pipeline(VkDevice d, VkPipeline pipeline, const VkAllocationCallbacks *a)
{
        (void)d, (void)pipeline, (void)a;
}

/* Called behind each compilation: before the proofs look for kernels that were not tried. */
static VKAPI_ATTR void VKAPI_CALL destroy_module(VkDevice d, VkShaderModule module, const VkAllocationCallbacks *a)
{
        static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

        real.DestroyShaderModule(d, module, a);
        pthread_mutex_lock(&lock);
        for (unsigned i = 0; i < device->n_pipelines; i++)
                if (tdm_vk_matrix_kernel(device->pipelines[i].shader))
                        device->pipelines[i].tried = device->pipelines[i].proven = true;
        pthread_mutex_unlock(&lock);
}

static const char *kernel_name(VkPipeline pipeline)
{
        for (unsigned i = 0; i < device->n_pipelines; i++)
                if (device->pipelines[i].pipeline == pipeline)
                        return device->pipelines[i].name;
        return "none";
}

/* ---- commands ---- */

static struct recording *recording_of(VkCommandBuffer commands)
{
        for (unsigned i = 0; i < n_recordings; i++)
                if (recordings[i].commands == commands)
                        return &recordings[i];
        if (n_recordings == MAX_RECORDINGS)
                die("too many command buffers");
        recordings[n_recordings] = (struct recording){ .commands = commands };
        return &recordings[n_recordings++];
}

static VKAPI_ATTR VkResult VKAPI_CALL begin(VkCommandBuffer commands, const VkCommandBufferBeginInfo *info)
{
        struct recording *r = recording_of(commands);

        (void)info;
        if (r->text)
                fclose(r->text);
        free(r->chars);
        *r = (struct recording){ .commands = commands };
        r->text = open_memstream(&r->chars, &r->n_chars);
        if (on_begin)
                on_begin(commands);
        return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL end(VkCommandBuffer commands)
{
        fflush(recording_of(commands)->text);
        return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL bind(VkCommandBuffer commands, VkPipelineBindPoint point, VkPipeline pipeline)
{
        (void)point;
        recording_of(commands)->bound = pipeline;
}

static VKAPI_ATTR void VKAPI_CALL push(VkCommandBuffer commands, VkPipelineLayout layout, VkShaderStageFlags stages,
                                       uint32_t offset, uint32_t n, const void *data)
{
        struct recording *r = recording_of(commands);

        (void)layout, (void)stages;
        if (offset != 0 || n > sizeof(r->push))
                die("push constants out of range");
        memcpy(r->push, data, n);
        r->push_words = n / 4;
}

static void print_dispatch(struct recording *r, const char *groups)
{
        fprintf(r->text, "%s %s", kernel_name(r->bound), groups);
        for (uint32_t i = 0; i < r->push_words; i++) {
                uint64_t both = 0;

                if (i % 2 == 0 && i + 1 < r->push_words)
                        memcpy(&both, &r->push[i], sizeof(both));
                if (both && print_address(r->text, both))
                        i++;
                else
                        fprintf(r->text, " %x", r->push[i]);
        }
        fputc('\n', r->text);
}

static VKAPI_ATTR void VKAPI_CALL dispatch(VkCommandBuffer commands, uint32_t x, uint32_t y, uint32_t z)
{
        struct recording *r = recording_of(commands);
        char groups[48];

        snprintf(groups, sizeof(groups), "%ux%ux%u", x, y, z);
        print_dispatch(r, groups);
        if (r->n_dispatches < PROBE_DISPATCHES)
                r->groups[r->n_dispatches] = x * y;
        r->n_dispatches++;
}

static VKAPI_ATTR void VKAPI_CALL dispatch_indirect(VkCommandBuffer commands, VkBuffer buffer, VkDeviceSize offset)
{
        char groups[48];

        snprintf(groups, sizeof(groups), "b%u+%llx", buffer_index(buffer), (unsigned long long)offset);
        print_dispatch(recording_of(commands), groups);
}

static VKAPI_ATTR void VKAPI_CALL barrier(VkCommandBuffer commands, VkPipelineStageFlags from, VkPipelineStageFlags to,
                                          VkDependencyFlags flags, uint32_t n_memory, const VkMemoryBarrier *memory,
                                          uint32_t n_buffer, const VkBufferMemoryBarrier *of_buffers, uint32_t n_image,
                                          const VkImageMemoryBarrier *images)
{
        (void)flags, (void)n_memory, (void)n_buffer, (void)of_buffers, (void)n_image, (void)images;
        fprintf(recording_of(commands)->text, "barrier %x %x %x %x\n", from, to, memory[0].srcAccessMask,
                memory[0].dstAccessMask);
}

static VKAPI_ATTR void VKAPI_CALL fill(VkCommandBuffer commands, VkBuffer buffer, VkDeviceSize offset, VkDeviceSize n,
                                       uint32_t value)
{
        fprintf(recording_of(commands)->text, "fill b%u+%llx %llx %x\n", buffer_index(buffer),
                (unsigned long long)offset, (unsigned long long)n, value);
}

static VKAPI_ATTR void VKAPI_CALL copy(VkCommandBuffer commands, VkBuffer from, VkBuffer to, uint32_t n,
                                       const VkBufferCopy *regions)
{
        for (uint32_t i = 0; i < n; i++)
                fprintf(recording_of(commands)->text, "copy b%u+%llx b%u+%llx %llx\n", buffer_index(from),
                        (unsigned long long)regions[i].srcOffset, buffer_index(to),
                        (unsigned long long)regions[i].dstOffset, (unsigned long long)regions[i].size);
}

static VKAPI_ATTR void VKAPI_CALL timestamp(VkCommandBuffer commands, VkPipelineStageFlagBits stage, VkQueryPool pool,
                                            uint32_t query)
{
        (void)stage, (void)pool, (void)query, (void)commands;
}

/* What tdm_vk_chain_try() of device/chain.c looks for: that each dispatch counted its workgroups. */
static void count_probe(const struct recording *r)
{
        uint32_t *words = (uint32_t *)device->stages[0].map;

        if (is_listing || r->n_dispatches != PROBE_DISPATCHES)
                return;
        words[0] = 0;
        memcpy(words + 1, r->groups, sizeof(r->groups));
}

/* What the sampler reads: one block of equal logits, as the kernels would have found it. */
static void find_logits(void)
{
        float *sums = (float *)model->logits.scan_host.map;
        uint32_t *found = (uint32_t *)(model->logits.scan_host.map + tdm_vk_scan_found(model));

        for (uint64_t i = 0; i < tdm_vk_scan_found(model) / sizeof(float); i++)
                sums[i] = 1;
        for (uint32_t i = 0; i < model->logits.rows; i++, found += model->logits.maxima_stride + 1) {
                found[0] = 1;
                found[1] = 0;
        }
}

static VKAPI_ATTR VkResult VKAPI_CALL submit(VkQueue queue, uint32_t n, const VkSubmitInfo *submits, VkFence fence)
{
        for (uint32_t i = 0; i < n; i++)
                for (uint32_t k = 0; k < submits[i].commandBufferCount; k++) {
                        const struct recording *r = recording_of(submits[i].pCommandBuffers[k]);

                        count_probe(r);
                        if (is_listing)
                                find_logits();
                        if (is_listing)
                                printf("-- submission\n%s", r->chars);
                }
        return real.QueueSubmit(queue, 0, NULL, fence);
}

static int open_listed(struct tdm_device **ret, const struct tdm_device_config *config, struct tdm_error *err)
{
        int r = tdm_vulkan_device_ops.open(ret, config, err);
        struct tdm_vk *vk;

        if (r != 0)
                return r;
        device = (struct tdm_vk_device *)*ret;
        vk = &device->vk;
        real = *vk;
        vk->CreateBuffer = create_buffer;
        vk->GetBufferDeviceAddress = get_address;
        vk->CreateComputePipelines = create_pipelines;
        vk->DestroyPipeline = destroy_pipeline;
        vk->DestroyShaderModule = destroy_module;
        vk->BeginCommandBuffer = begin;
        vk->EndCommandBuffer = end;
        vk->CmdBindPipeline = bind;
        vk->CmdPushConstants = push;
        vk->CmdDispatch = dispatch;
        vk->CmdDispatchIndirect = dispatch_indirect;
        vk->CmdPipelineBarrier = barrier;
        vk->CmdFillBuffer = fill;
        vk->CmdCopyBuffer = copy;
        vk->CmdWriteTimestamp = timestamp;
        vk->QueueSubmit = submit;
        return 0;
}

static int load_listed(struct tdm_device *opened, const struct tdm_device_model_config *config,
                       struct tdm_device_model **ret, struct tdm_error *err)
{
        int r = tdm_vulkan_device_ops.model_load(opened, config, ret, err);

        model = r == 0 ? (struct tdm_vk_model *)*ret : NULL;
        return r;
}

struct tdm_device_ops dry_device_ops(void)
{
        struct tdm_device_ops ops = tdm_vulkan_device_ops;

        n_buffers = n_recordings = 0;
        ops.open = open_listed;
        ops.model_load = load_listed;
        return ops;
}

void dry_device_list(bool on)
{
        is_listing = on;
}

void dry_device_list_all(void)
{
        for (unsigned i = 0; i < device->n_pipelines; i++)
                printf("kernel %s\n", device->pipelines[i].name);
        for (unsigned i = 0; i < n_buffers; i++)
                printf("buffer b%u of %llu bytes\n", i, (unsigned long long)buffers[i].bytes);
}

void dry_device_on_begin(void (*call)(VkCommandBuffer commands))
{
        on_begin = call;
}
