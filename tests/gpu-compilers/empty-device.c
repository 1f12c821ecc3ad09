/* A device that executes nothing: see empty-device.h. */
#include <dlfcn.h>
#include <sys/mman.h>

#include "tests/gpu-compilers/empty-device.h"

#define HEAP_BYTES (UINT64_C(64) << 30)
#define PAGE_BYTES UINT64_C(4096)
#define EXTENSIONS_MAX 32u
#define IMPORT VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME

VkPhysicalDeviceType empty_device_type = VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
void (*empty_device_destroys)(VkPipeline pipeline);
struct empty_device_functions empty_device_functions;

static PFN_vkGetInstanceProcAddr next_instance;
static PFN_vkGetDeviceProcAddr next_device;
static PFN_vkGetPhysicalDeviceProperties2 next_properties;
static PFN_vkEnumerateDeviceExtensionProperties next_extensions;
static bool drivers_import; /* the driver has IMPORT itself */
static PFN_vkCreateDevice next_create;
static PFN_vkCreateComputePipelines next_pipelines;
static PFN_vkDestroyPipeline next_destroy;

/* ---- what it says of itself ---- */

static VKAPI_ATTR void VKAPI_CALL properties(VkPhysicalDevice gpu, VkPhysicalDeviceProperties2 *ret)
{
        next_properties(gpu, ret);
        ret->properties.deviceType = empty_device_type;
        ret->properties.limits.timestampPeriod = 1;
        ret->properties.limits.timestampComputeAndGraphics = VK_TRUE;
        for (VkBaseOutStructure *s = ret->pNext; s; s = s->pNext)
                if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES)
                        ((VkPhysicalDeviceVulkan11Properties *)s)->maxMemoryAllocationSize = HEAP_BYTES;
                else if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT)
                        ((VkPhysicalDeviceExternalMemoryHostPropertiesEXT *)s)->minImportedHostPointerAlignment =
                                PAGE_BYTES;
}

/* With the import of the host's memory, which the kernel's driver offers, where there is one. Asked for as Tandem does:
 * once for their number, once with room for one more. */
static VKAPI_ATTR VkResult VKAPI_CALL extensions(VkPhysicalDevice gpu, const char *layer, uint32_t *n,
                                                 VkExtensionProperties *ret)
{
        VkResult r = next_extensions(gpu, layer, n, ret);

        drivers_import = false;
        for (uint32_t i = 0; ret && i < *n; i++)
                drivers_import |= strcmp(ret[i].extensionName, IMPORT) == 0;
        if (!ret || drivers_import || r != VK_SUCCESS)
                return r;
        memset(&ret[*n], 0, sizeof(ret[*n]));
        memcpy(ret[(*n)++].extensionName, IMPORT, sizeof(IMPORT));
        return r;
}

static VKAPI_ATTR void VKAPI_CALL memory(VkPhysicalDevice gpu, VkPhysicalDeviceMemoryProperties2 *ret)
{
        const VkMemoryPropertyFlags mapped = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
                                    own = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;

        (void)gpu;
        ret->memoryProperties = (VkPhysicalDeviceMemoryProperties){
                .memoryTypeCount = 4,
                .memoryTypes = { { own, 0 },
                                 { mapped, 1 },
                                 { own | mapped, 0 },
                                 { mapped | VK_MEMORY_PROPERTY_HOST_CACHED_BIT, 1 } },
                .memoryHeapCount = 2,
                .memoryHeaps = { { HEAP_BYTES, VK_MEMORY_HEAP_DEVICE_LOCAL_BIT }, { HEAP_BYTES, 0 } },
        };
        for (VkBaseOutStructure *s = ret->pNext; s; s = s->pNext)
                if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT)
                        for (unsigned i = 0; i < 2; i++)
                                ((VkPhysicalDeviceMemoryBudgetPropertiesEXT *)s)->heapBudget[i] = HEAP_BYTES;
}

/* ---- memory ---- */

struct allocation {
        uint8_t *base;
        size_t size_bytes;
        bool is_imported;
};

static VKAPI_ATTR VkResult VKAPI_CALL allocate(VkDevice d, const VkMemoryAllocateInfo *info,
                                               const VkAllocationCallbacks *a, VkDeviceMemory *ret)
{
        struct allocation *m = calloc(1, sizeof(*m));

        (void)d, (void)a;
        if (!m)
                return VK_ERROR_OUT_OF_HOST_MEMORY;
        m->size_bytes = info->allocationSize;
        for (const VkBaseInStructure *s = info->pNext; s; s = s->pNext)
                if (s->sType == VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT) {
                        m->base = ((const VkImportMemoryHostPointerInfoEXT *)s)->pHostPointer;
                        m->is_imported = true;
                }
        if (!m->is_imported)
                m->base = mmap(NULL, m->size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                               -1, 0);
        if (m->base == MAP_FAILED) {
                free(m);
                return VK_ERROR_OUT_OF_DEVICE_MEMORY;
        }
        *ret = (VkDeviceMemory)m;
        return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL free_memory(VkDevice d, VkDeviceMemory memory, const VkAllocationCallbacks *a)
{
        struct allocation *m = (struct allocation *)memory;

        (void)d, (void)a;
        if (m && !m->is_imported)
                munmap(m->base, m->size_bytes);
        free(m);
}

static VKAPI_ATTR VkResult VKAPI_CALL map(VkDevice d, VkDeviceMemory memory, VkDeviceSize offset, VkDeviceSize n,
                                          VkMemoryMapFlags flags, void **ret)
{
        (void)d, (void)n, (void)flags;
        *ret = ((struct allocation *)memory)->base + offset;
        return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL host_pointer(VkDevice d, VkExternalMemoryHandleTypeFlagBits type, const void *p,
                                                   VkMemoryHostPointerPropertiesEXT *ret)
{
        (void)d, (void)type, (void)p;
        ret->memoryTypeBits = 15;
        return VK_SUCCESS;
}

struct buffer {
        uint64_t size_bytes, address;
};

static VKAPI_ATTR VkResult VKAPI_CALL create_buffer(VkDevice d, const VkBufferCreateInfo *info,
                                                    const VkAllocationCallbacks *a, VkBuffer *ret)
{
        static uint64_t next_address = UINT64_C(1) << 32;
        struct buffer *b = calloc(1, sizeof(*b));

        (void)d, (void)a;
        if (!b)
                return VK_ERROR_OUT_OF_HOST_MEMORY;
        *b = (struct buffer){ info->size, next_address };
        next_address += (info->size + PAGE_BYTES) & ~(PAGE_BYTES - 1);
        *ret = (VkBuffer)b;
        return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL destroy_buffer(VkDevice d, VkBuffer buffer, const VkAllocationCallbacks *a)
{
        (void)d, (void)a;
        free((struct buffer *)buffer);
}

static VKAPI_ATTR void VKAPI_CALL requirements(VkDevice d, VkBuffer buffer, VkMemoryRequirements *ret)
{
        uint64_t size_bytes = ((struct buffer *)buffer)->size_bytes;

        (void)d;
        *ret = (VkMemoryRequirements){ (size_bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1), PAGE_BYTES, 15 };
}

static VKAPI_ATTR VkDeviceAddress VKAPI_CALL address(VkDevice d, const VkBufferDeviceAddressInfo *info)
{
        (void)d;
        return ((struct buffer *)info->buffer)->address;
}

/* ---- objects that nothing is in ---- */

/* Handles of one number after another; no two are equal, none is 0. */
static uint64_t next_handle(void)
{
        static uint64_t last;

        return ++last;
}

#define EMPTY_OBJECT(name)                                                                                             \
        static VKAPI_ATTR VkResult VKAPI_CALL create_##name(VkDevice d, const Vk##name##CreateInfo *info,              \
                                                            const VkAllocationCallbacks *a, Vk##name *ret)             \
        {                                                                                                              \
                (void)d, (void)info, (void)a;                                                                          \
                *ret = (Vk##name)next_handle();                                                                        \
                return VK_SUCCESS;                                                                                     \
        }                                                                                                              \
        static VKAPI_ATTR void VKAPI_CALL destroy_##name(VkDevice d, Vk##name object, const VkAllocationCallbacks *a)  \
        {                                                                                                              \
                (void)d, (void)object, (void)a;                                                                        \
        }
EMPTY_OBJECT(CommandPool)
EMPTY_OBJECT(QueryPool)
EMPTY_OBJECT(Fence)

/* Without a cache the driver compiles each kernel. */
static VKAPI_ATTR VkResult VKAPI_CALL no_cache(VkDevice d, const VkPipelineCacheCreateInfo *info,
                                               const VkAllocationCallbacks *a, VkPipelineCache *ret)
{
        (void)d, (void)info, (void)a, (void)ret;
        return VK_ERROR_OUT_OF_HOST_MEMORY;
}

static VKAPI_ATTR void VKAPI_CALL get_queue(VkDevice d, uint32_t family, uint32_t index, VkQueue *ret)
{
        (void)d, (void)family, (void)index;
        *ret = (VkQueue)next_handle();
}

static VKAPI_ATTR VkResult VKAPI_CALL command_buffers(VkDevice d, const VkCommandBufferAllocateInfo *info,
                                                      VkCommandBuffer *ret)
{
        (void)d;
        for (uint32_t i = 0; i < info->commandBufferCount; i++)
                ret[i] = (VkCommandBuffer)next_handle();
        return VK_SUCCESS;
}

/* A clock by which everything takes as long. */
static VKAPI_ATTR VkResult VKAPI_CALL query(VkDevice d, VkQueryPool pool, uint32_t first, uint32_t n, size_t bytes,
                                            void *data, VkDeviceSize stride, VkQueryResultFlags flags)
{
        static uint64_t now;

        (void)d, (void)pool, (void)first, (void)bytes, (void)flags;
        for (uint32_t i = 0; i < n; i++)
                *(uint64_t *)((uint8_t *)data + i * stride) = now += 1000;
        return VK_SUCCESS;
}

/* The rest is done by not doing it. Whatever arguments there are, the caller cleans up after them on every machine that
 * these drivers run on. */
static VKAPI_ATTR VkResult VKAPI_CALL succeed(void)
{
        return VK_SUCCESS;
}

/* ---- kernels ---- */

static VKAPI_ATTR VkResult VKAPI_CALL create_pipelines(VkDevice d, VkPipelineCache cache, uint32_t n,
                                                       const VkComputePipelineCreateInfo *infos,
                                                       const VkAllocationCallbacks *a, VkPipeline *ret)
{
        VkResult r = VK_SUCCESS;

        (void)cache;
        for (uint32_t i = 0; i < n && r == VK_SUCCESS; i++) {
                VkComputePipelineCreateInfo info = infos[i];

                info.flags |= VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR |
                              VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR;
                r = next_pipelines(d, VK_NULL_HANDLE, 1, &info, a, &ret[i]);
        }
        return r;
}

static VKAPI_ATTR void VKAPI_CALL destroy_pipeline(VkDevice d, VkPipeline pipeline, const VkAllocationCallbacks *a)
{
        if (empty_device_destroys)
                empty_device_destroys(pipeline);
        next_destroy(d, pipeline, a);
}

/* ---- who does what ---- */

static const struct {
        const char *name;
        PFN_vkVoidFunction function; /* NULL: the driver's own */
} functions[] = {
#define OWN(name, function)                                                                                            \
        {                                                                                                              \
                "vk" name, (PFN_vkVoidFunction)(function)                                                              \
        }
#define DRIVERS(name) OWN(name, NULL)
#define NOTHING_DONE(name) OWN(name, succeed)
        DRIVERS("DestroyDevice"),
        DRIVERS("CreateShaderModule"),
        DRIVERS("DestroyShaderModule"),
        DRIVERS("CreatePipelineLayout"),
        DRIVERS("DestroyPipelineLayout"),
        OWN("CreateComputePipelines", create_pipelines),
        OWN("DestroyPipeline", destroy_pipeline),
        OWN("CreatePipelineCache", no_cache),
        NOTHING_DONE("DestroyPipelineCache"),
        NOTHING_DONE("GetPipelineCacheData"),
        OWN("GetDeviceQueue", get_queue),
        NOTHING_DONE("DeviceWaitIdle"),
        NOTHING_DONE("QueueSubmit"),
        OWN("CreateBuffer", create_buffer),
        OWN("DestroyBuffer", destroy_buffer),
        OWN("GetBufferMemoryRequirements", requirements),
        OWN("GetBufferDeviceAddress", address),
        OWN("AllocateMemory", allocate),
        OWN("FreeMemory", free_memory),
        NOTHING_DONE("BindBufferMemory"),
        OWN("MapMemory", map),
        OWN("GetMemoryHostPointerPropertiesEXT", host_pointer),
        OWN("CreateCommandPool", create_CommandPool),
        OWN("DestroyCommandPool", destroy_CommandPool),
        OWN("AllocateCommandBuffers", command_buffers),
        NOTHING_DONE("BeginCommandBuffer"),
        NOTHING_DONE("EndCommandBuffer"),
        NOTHING_DONE("CmdBindPipeline"),
        NOTHING_DONE("CmdPushConstants"),
        NOTHING_DONE("CmdDispatch"),
        NOTHING_DONE("CmdDispatchIndirect"),
        NOTHING_DONE("CmdPipelineBarrier"),
        NOTHING_DONE("CmdFillBuffer"),
        NOTHING_DONE("CmdCopyBuffer"),
        NOTHING_DONE("CmdWriteTimestamp"),
        OWN("CreateQueryPool", create_QueryPool),
        OWN("DestroyQueryPool", destroy_QueryPool),
        OWN("GetQueryPoolResults", query),
        OWN("CreateFence", create_Fence),
        OWN("DestroyFence", destroy_Fence),
        NOTHING_DONE("GetFenceStatus"),
        NOTHING_DONE("WaitForFences"),
        NOTHING_DONE("FreeCommandBuffers"),
        NOTHING_DONE("CmdResetQueryPool"),
        NOTHING_DONE("ResetFences"),
};

/* What has no row here is not there: nothing that executes can slip through. */
static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_function(VkDevice d, const char *name)
{
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(functions); i++)
                if (strcmp(functions[i].name, name) == 0)
                        return functions[i].function ? functions[i].function : next_device(d, name);
        return NULL;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice gpu, const VkDeviceCreateInfo *info,
                                                    const VkAllocationCallbacks *a, VkDevice *ret)
{
        VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR wanted = {
                .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR,
                .pNext = (void *)info->pNext,
                .pipelineExecutableInfo = VK_TRUE,
        };
        const char *names[EXTENSIONS_MAX + 1];
        VkDeviceCreateInfo with = *info;
        VkResult r;

        if (info->enabledExtensionCount > EXTENSIONS_MAX)
                return VK_ERROR_EXTENSION_NOT_PRESENT;
        with.enabledExtensionCount = 0;
        for (uint32_t i = 0; i < info->enabledExtensionCount; i++)
                if (drivers_import || strcmp(info->ppEnabledExtensionNames[i], IMPORT) != 0)
                        names[with.enabledExtensionCount++] = info->ppEnabledExtensionNames[i];
        names[with.enabledExtensionCount++] = VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME;
        with.ppEnabledExtensionNames = names;
        with.pNext = &wanted;
        r = next_create(gpu, &with, a, ret);
        if (r != VK_SUCCESS)
                return r;
        next_pipelines = (PFN_vkCreateComputePipelines)next_device(*ret, "vkCreateComputePipelines");
        next_destroy = (PFN_vkDestroyPipeline)next_device(*ret, "vkDestroyPipeline");
        empty_device_functions = (struct empty_device_functions){
                .device = *ret,
                .properties = (PFN_vkGetPipelineExecutablePropertiesKHR)next_device(
                        *ret, "vkGetPipelineExecutablePropertiesKHR"),
                .statistics = (PFN_vkGetPipelineExecutableStatisticsKHR)next_device(
                        *ret, "vkGetPipelineExecutableStatisticsKHR"),
                .representations = (PFN_vkGetPipelineExecutableInternalRepresentationsKHR)next_device(
                        *ret, "vkGetPipelineExecutableInternalRepresentationsKHR"),
        };
        return VK_SUCCESS;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_function(VkInstance instance, const char *name)
{
        PFN_vkVoidFunction next = next_instance(instance, name);

        if (!next || !instance)
                return next;
        if (strcmp(name, "vkGetPhysicalDeviceProperties2") == 0) {
                next_properties = (PFN_vkGetPhysicalDeviceProperties2)next;
                return (PFN_vkVoidFunction)properties;
        }
        if (strcmp(name, "vkGetPhysicalDeviceMemoryProperties2") == 0)
                return (PFN_vkVoidFunction)memory;
        if (strcmp(name, "vkEnumerateDeviceExtensionProperties") == 0) {
                next_extensions = (PFN_vkEnumerateDeviceExtensionProperties)next;
                return (PFN_vkVoidFunction)extensions;
        }
        if (strcmp(name, "vkCreateDevice") == 0) {
                next_create = (PFN_vkCreateDevice)next;
                return (PFN_vkVoidFunction)create_device;
        }
        if (strcmp(name, "vkGetDeviceProcAddr") == 0) {
                next_device = (PFN_vkGetDeviceProcAddr)next;
                return (PFN_vkVoidFunction)device_function;
        }
        return next;
}

void *__real_dlsym(void *library, const char *name); // NOLINT: the linker's name
void *__wrap_dlsym(void *library, const char *name); // NOLINT

/* device/vk.c looks one function of the loader up, and all others by that. */
void *__wrap_dlsym(void *library, const char *name)
{
        void *found = __real_dlsym(library, name);

        if (!found || strcmp(name, "vkGetInstanceProcAddr") != 0)
                return found;
        *(void **)&next_instance = found;
        return (void *)instance_function;
}
