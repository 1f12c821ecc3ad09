/* Buffers: allocated at load, addressed by device address, imported from the host's memory where that is unified; and
 * the ring of staging buffers through which weights get onto a GPU of its own. There is no sub-allocator: a model is a
 * few dozen buffers, and big ones want memory of their own. */
#include <fcntl.h>

#include "gpu-worker/vulkan/device/gpu-private.h"
#include "gpu-worker/vulkan/device/heaps.h"

#define USAGE                                                                                                          \
        (VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |                              \
         VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT)
#define COPY_BYTES (UINT64_C(1) << 20) /* of a thread at a time */

void tdm_vk_memory_left(struct tdm_vk_device *device, uint64_t *ret_left, uint64_t *ret_total)
{
        VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {
                .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT
        };
        VkPhysicalDeviceMemoryProperties2 properties = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2,
                                                         .pNext = device->memory.has_budget ? &budget : NULL };

        device->vk.GetPhysicalDeviceMemoryProperties2(device->physical, &properties);
        *ret_total = *ret_left = tdm_vk_heaps_bytes(&properties.memoryProperties, device->memory.heaps);
        /* The memory that the driver would still give, or less where the admin says so (gpu-memory). */
        if (device->memory.has_budget)
                *ret_left = tdm_vk_heaps_left(&budget, device->memory.heaps);
        if (device->memory.limit_bytes)
                *ret_left = TDM_MIN(*ret_left, device->memory.limit_bytes -
                                                       TDM_MIN(device->memory.used_bytes, device->memory.limit_bytes));
}

/* If the device shares the machine's memory, there may be room although its own heap is full. */
static int own_type(const struct tdm_vk_device *device, uint32_t allowed, uint32_t without)
{
        return device->memory.is_shared ? tdm_vk_memory_type(&device->memory.properties, allowed, 0,
                                                             VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, without) :
                                          tdm_vk_memory_type(&device->memory.properties, allowed,
                                                             VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0, without);
}

static int choose_type(const struct tdm_vk_device *device, uint32_t allowed, enum tdm_vk_place place, uint32_t without)
{
        const VkMemoryPropertyFlags mapped = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;

        switch (place) {
        case TDM_VK_DEVICE_MEMORY:
                return own_type(device, allowed, without);
        case TDM_VK_SHARED_MEMORY:
                return tdm_vk_memory_type(&device->memory.properties, allowed, mapped,
                                          VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, without);
        default:
                return tdm_vk_memory_type(&device->memory.properties, allowed, mapped,
                                          VK_MEMORY_PROPERTY_HOST_CACHED_BIT, without);
        }
}

/* handle_types: what its memory is imported from; 0: it is not. */
static VkResult create_buffer(struct tdm_vk_device *device, struct tdm_vk_buffer *buffer, uint64_t size_bytes,
                              VkExternalMemoryHandleTypeFlags handle_types)
{
        const VkExternalMemoryBufferCreateInfo external = {
                .sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                .handleTypes = handle_types,
        };
        const VkBufferCreateInfo info = { .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                          .pNext = handle_types ? &external : NULL,
                                          .size = size_bytes,
                                          .usage = USAGE };

        *buffer = (struct tdm_vk_buffer){ .size_bytes = size_bytes };
        return device->vk.CreateBuffer(device->vk.device, &info, NULL, &buffer->buffer);
}

/* Binds what is allocated, and asks for the address. */
static VkResult bind_buffer(struct tdm_vk_device *device, struct tdm_vk_buffer *buffer)
{
        const VkBufferDeviceAddressInfo info = { .sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
                                                 .buffer = buffer->buffer };
        VkResult r = device->vk.BindBufferMemory(device->vk.device, buffer->buffer, buffer->memory, 0);

        if (r != VK_SUCCESS)
                return r;
        buffer->address = device->vk.GetBufferDeviceAddress(device->vk.device, &info);
        device->counters.allocations++;
        return VK_SUCCESS;
}

static VkResult allocate_memory(struct tdm_vk_device *device, struct tdm_vk_buffer *buffer, enum tdm_vk_place place)
{
        const VkMemoryAllocateFlagsInfo flags = { .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                                  .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT };
        VkMemoryAllocateInfo info = { .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &flags };
        VkMemoryRequirements need;
        VkResult r;

        device->vk.GetBufferMemoryRequirements(device->vk.device, buffer->buffer, &need);
        info.allocationSize = need.size;
        /* A heap may be full or small, as the window onto the device's memory: then the next one is tried. */
        for (uint32_t without = 0;;) {
                int type = choose_type(device, need.memoryTypeBits, place, without);

                if (type < 0)
                        return without ? VK_ERROR_OUT_OF_DEVICE_MEMORY : VK_ERROR_FEATURE_NOT_PRESENT;
                info.memoryTypeIndex = (uint32_t)type;
                r = device->vk.AllocateMemory(device->vk.device, &info, NULL, &buffer->memory);
                if (r != VK_ERROR_OUT_OF_DEVICE_MEMORY)
                        break;
                without |= 1u << device->memory.properties.memoryTypes[type].heapIndex;
        }
        if (r != VK_SUCCESS)
                return r;
        r = bind_buffer(device, buffer);
        if (r == VK_SUCCESS && place != TDM_VK_DEVICE_MEMORY)
                r = device->vk.MapMemory(device->vk.device, buffer->memory, 0, VK_WHOLE_SIZE, 0, (void **)&buffer->map);
        return r;
}

int tdm_vk_buffer_init(struct tdm_vk_device *device, struct tdm_vk_buffer *buffer, uint64_t size_bytes,
                       enum tdm_vk_place place, const char *what, struct tdm_error *err)
{
        struct tdm_vk_buffer b;
        uint64_t left, total;
        VkResult r;

        size_bytes = TDM_ALIGN_UP(TDM_MAX(size_bytes, UINT64_C(256)), UINT64_C(256));
        r = size_bytes > device->memory.max_allocation ? VK_ERROR_OUT_OF_DEVICE_MEMORY :
                                                         create_buffer(device, &b, size_bytes, 0);
        if (r == VK_SUCCESS) {
                r = allocate_memory(device, &b, place);
                if (r != VK_SUCCESS)
                        tdm_vk_buffer_deinit(device, &b);
        }
        if (r == VK_SUCCESS) {
                b.counted_bytes = place == TDM_VK_DEVICE_MEMORY ? size_bytes : 0;
                device->memory.used_bytes += b.counted_bytes;
                *buffer = b;
                return 0;
        }
        if (r == VK_ERROR_DEVICE_LOST)
                return tdm_vk_fault(device, "allocating memory", r, err);
        tdm_vk_memory_left(device, &left, &total);
        return tdm_error_set(
                err, TDM_E_NO_MEMORY,
                "cannot allocate %.1f MiB for %s: %s; %.1f of the GPU's %.1f MiB are free, one piece may have %.1f MiB",
                (double)size_bytes / 0x1p20, what, tdm_vk_result_name(r), (double)left / 0x1p20, (double)total / 0x1p20,
                (double)device->memory.max_allocation / 0x1p20);
}

/* Memory for the buffer out of what `import`, a link of the allocation's chain, describes: of coherent types only,
 * since others read and write it too. */
static bool import_memory(struct tdm_vk_device *device, struct tdm_vk_buffer *buffer, const void *import,
                          uint32_t types, VkMemoryPropertyFlags nice)
{
        const VkMemoryAllocateFlagsInfo flags = { .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                                  .pNext = import,
                                                  .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT };
        VkMemoryAllocateInfo info = { .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                      .pNext = &flags,
                                      .allocationSize = buffer->size_bytes };
        VkMemoryRequirements need;
        int type;

        device->vk.GetBufferMemoryRequirements(device->vk.device, buffer->buffer, &need);
        type = tdm_vk_memory_type(&device->memory.properties, need.memoryTypeBits & types,
                                  VK_MEMORY_PROPERTY_HOST_COHERENT_BIT, nice, 0);
        info.memoryTypeIndex = (uint32_t)type;
        if (type >= 0 && need.size <= buffer->size_bytes &&
            device->vk.AllocateMemory(device->vk.device, &info, NULL, &buffer->memory) == VK_SUCCESS)
                return true;
        buffer->memory = VK_NULL_HANDLE;
        return false;
}

int tdm_vk_buffer_import(struct tdm_vk_device *device, struct tdm_vk_buffer *buffer, uint8_t *base, uint64_t size_bytes)
{
        VkMemoryHostPointerPropertiesEXT properties = { .sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT };
        const VkImportMemoryHostPointerInfoEXT import = {
                .sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
                .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT,
                .pHostPointer = base,
        };
        struct tdm_vk_buffer b;

        if (!device->memory.import_align || (uintptr_t)base % device->memory.import_align ||
            size_bytes % device->memory.import_align || size_bytes > device->memory.max_allocation)
                return -EOPNOTSUPP;
        if (device->vk.GetMemoryHostPointerPropertiesEXT(device->vk.device, import.handleType, base, &properties) !=
                    VK_SUCCESS ||
            create_buffer(device, &b, size_bytes, import.handleType) != VK_SUCCESS)
                return -EOPNOTSUPP;
        if (!import_memory(device, &b, &import, properties.memoryTypeBits, 0) ||
            bind_buffer(device, &b) != VK_SUCCESS) {
                tdm_vk_buffer_deinit(device, &b);
                return -EOPNOTSUPP;
        }
        *buffer = b;
        return 0;
}

/* Whether the driver imports dma-bufs as such buffers, and whether each wants memory of its own. */
static bool may_import_dmabuf(const struct tdm_vk_device *device, bool *ret_dedicated)
{
        const VkPhysicalDeviceExternalBufferInfo info = {
                .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO,
                .usage = USAGE,
                .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT,
        };
        VkExternalBufferProperties properties = { .sType = VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES };
        VkExternalMemoryFeatureFlags features;

        if (!device->memory.has_dmabuf || !device->vk.GetMemoryFdPropertiesKHR)
                return false;
        device->vk.GetPhysicalDeviceExternalBufferProperties(device->physical, &info, &properties);
        features = properties.externalMemoryProperties.externalMemoryFeatures;
        *ret_dedicated = features & VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT;
        return features & VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT;
}

/* Its pages are cached by the CPU: a type that is, too, where there is a choice. */
int tdm_vk_buffer_import_dmabuf(struct tdm_vk_device *device, struct tdm_vk_buffer *buffer, int fd, uint64_t size_bytes,
                                const char **ret_why)
{
        VkMemoryFdPropertiesKHR properties = { .sType = VK_STRUCTURE_TYPE_MEMORY_FD_PROPERTIES_KHR };
        VkMemoryDedicatedAllocateInfo dedicated = { .sType = VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO };
        VkImportMemoryFdInfoKHR import = {
                .sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR,
                .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT,
        };
        bool is_dedicated = false;
        struct tdm_vk_buffer b;

        *ret_why = "the driver imports none";
        if (!may_import_dmabuf(device, &is_dedicated))
                return -EOPNOTSUPP;
        *ret_why = "too large for one piece of the device's memory";
        if (size_bytes > device->memory.max_allocation)
                return -EOPNOTSUPP;
        *ret_why = "the driver refuses it";
        if (device->vk.GetMemoryFdPropertiesKHR(device->vk.device, import.handleType, fd, &properties) != VK_SUCCESS ||
            create_buffer(device, &b, size_bytes, import.handleType) != VK_SUCCESS)
                return -EOPNOTSUPP;
        if (is_dedicated) {
                dedicated.buffer = b.buffer;
                import.pNext = &dedicated;
        }
        import.fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        if (import.fd >= 0 &&
            !import_memory(device, &b, &import, properties.memoryTypeBits, VK_MEMORY_PROPERTY_HOST_CACHED_BIT))
                closep(&import.fd); /* else it is the memory's */
        if (import.fd < 0 || bind_buffer(device, &b) != VK_SUCCESS) {
                tdm_vk_buffer_deinit(device, &b);
                return -EOPNOTSUPP;
        }
        *ret_why = NULL;
        *buffer = b;
        return 0;
}

void tdm_vk_buffer_deinit(struct tdm_vk_device *device, struct tdm_vk_buffer *buffer)
{
        if (buffer->buffer)
                device->vk.DestroyBuffer(device->vk.device, buffer->buffer, NULL);
        if (buffer->memory)
                device->vk.FreeMemory(device->vk.device, buffer->memory, NULL);
        device->memory.used_bytes -= buffer->counted_bytes;
        *buffer = (struct tdm_vk_buffer){};
}

/* ---- upload ---- */

struct copy_job {
        uint8_t *to;
        const uint8_t *from;
        uint64_t n;
};

static void copy_chunk(void *arg, unsigned chunk, unsigned thread)
{
        const struct copy_job *job = arg;
        uint64_t at = chunk * COPY_BYTES;

        memcpy(job->to + at, job->from + at, TDM_MIN(COPY_BYTES, job->n - at));
}

static int stage_free(struct tdm_vk_device *device, unsigned i, struct tdm_error *err)
{
        VkResult result;
        int r;

        if (!device->stage_busy[i])
                return 0;
        r = tdm_vk_wait(device, device->stage_fences[i], err);
        if (r != 0)
                return r;
        result = device->vk.ResetFences(device->vk.device, 1, &device->stage_fences[i]);
        if (result != VK_SUCCESS)
                return tdm_vk_fault(device, "uploading", result, err);
        device->stage_busy[i] = false;
        return 0;
}

static int stage_send(struct tdm_vk_device *device, unsigned i, struct tdm_vk_buffer *to, uint64_t offset, uint64_t n,
                      struct tdm_error *err)
{
        const VkCommandBufferBeginInfo begin = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                                 .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT };
        const VkBufferCopy copy = { .dstOffset = offset, .size = n };
        const VkSubmitInfo submit = { .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                      .commandBufferCount = 1,
                                      .pCommandBuffers = &device->stage_commands[i] };
        VkCommandBuffer commands = device->stage_commands[i];
        VkResult r = device->vk.BeginCommandBuffer(commands, &begin);

        if (r == VK_SUCCESS) {
                device->vk.CmdCopyBuffer(commands, device->stages[i].buffer, to->buffer, 1, &copy);
                tdm_vk_barrier(device, commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                               VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                               VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
                r = device->vk.EndCommandBuffer(commands);
        }
        if (r == VK_SUCCESS)
                r = device->vk.QueueSubmit(device->queue, 1, &submit, device->stage_fences[i]);
        if (r != VK_SUCCESS)
                return tdm_vk_fault(device, "uploading", r, err);
        device->stage_busy[i] = true;
        return 0;
}

int tdm_vk_upload(struct tdm_vk_device *device, struct tdm_vk_buffer *to, uint64_t offset, const uint8_t *from,
                  uint64_t n, struct tdm_error *err)
{
        int r = 0;

        for (uint64_t at = 0, part; at < n && r == 0; at += part) {
                unsigned i = device->next_stage;
                struct copy_job job;

                device->next_stage = i + 1 < TDM_VK_STAGES ? i + 1 : 1;
                part = TDM_MIN(n - at, TDM_VK_STAGE_BYTES);
                r = stage_free(device, i, err);
                if (r != 0)
                        break;
                job = (struct copy_job){ device->stages[i].map, from + at, part };
                tdm_pool_run(device->threads, (unsigned)TDM_DIV_UP(part, COPY_BYTES), copy_chunk, &job);
                r = stage_send(device, i, to, offset + at, part, err);
        }
        return r;
}
