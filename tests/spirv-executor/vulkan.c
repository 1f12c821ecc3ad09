/* A libvulkan.so.1 whose one device is the executor: what Tandem's GPU worker calls of Vulkan (vk.h), and no more.
 * Tests put its folder into LD_LIBRARY_PATH. Then the worker's own code makes the buffers, records the dispatches and
 * proves the kernels for matrix units, as on a GPU, and the SPIR-V that ships is what runs.
 *
 * The device is a CPU implementation with subgroups of 32 and cooperative matrices as they are on a card of NVIDIA, or,
 * by TANDEM_EXECUTOR_UNITS=rdna3 or rdna4, as on AMD's (units.c). Addresses are the host's. A submission is done when
 * vkQueueSubmit() returns; one that a shader's fault ends is a lost device. Buffers and queues belong to one thread,
 * pipelines may be made by many. TANDEM_EXECUTOR_FAULT plants a fault in each shader for matrix units (faults.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "common/util.h"
#include "gpu-worker/vulkan/device/vk.h"
#include "tests/spirv-executor/faults.h"
#include "tests/spirv-executor/program.h"

#define MAX_BUFFERS 4096u
#define MAX_COMMANDS_GROWTH 64u
#define HEAP_BYTES (UINT64_C(16) << 30)
#define IMPORT_ALIGN 4096u
#define COOPERATIVE_EXTENSION "VK_KHR_cooperative_matrix"

/* As in the extension's specification; older headers do not have it. */
#define TYPE_COOPERATIVE_FEATURES ((VkStructureType)1000506000)
struct cooperative_features {
        VkStructureType type;
        void *next;
        VkBool32 matrix, robust;
};
struct cooperative_properties {
        VkStructureType type;
        void *next;
        uint32_t m, n, k, a, b, c, result;
        VkBool32 saturating;
        uint32_t scope;
};
enum component { FLOAT16 = 0, FLOAT32 = 1, SINT8 = 3, SINT32 = 5 };

struct memory_object {
        uint8_t *map;
        uint64_t bytes;
        bool imported;
};

struct buffer {
        uint64_t bytes, address; /* 0: not bound */
};

struct module {
        uint32_t *words;
        size_t n;
};

enum command_kind { DISPATCH, INDIRECT, FILL, COPY, TIME, RESET };
struct command {
        enum command_kind kind;
        const struct program *program;
        uint8_t push[PUSH_BYTES];
        uint32_t groups[3];
        uint8_t *to;
        const uint8_t *from;
        uint64_t bytes;
        uint32_t value;
        uint64_t *times;
};

struct commands {
        struct command *list;
        uint32_t n, room;
        const struct program *bound;
        uint8_t push[PUSH_BYTES];
};

struct fence {
        bool done;
};

static struct buffer *buffers[MAX_BUFFERS];
static uint32_t n_buffers;
static bool is_lost;

#define CALL(name) static VKAPI_ATTR VkResult VKAPI_CALL name
#define CALL_VOID(name) static VKAPI_ATTR void VKAPI_CALL name
#define HANDLE(type, pointer) ((type)(uintptr_t)(pointer))
#define OBJECT(type, handle) ((struct type *)(uintptr_t)(handle))
#pragma GCC diagnostic ignored "-Wunused-parameter"

static void *made(size_t bytes)
{
        void *p = calloc(1, bytes);

        if (!p)
                abort();
        return p;
}

/* ---- the instance and what the device says of itself ---- */

CALL(CreateInstance)(const VkInstanceCreateInfo *info, const VkAllocationCallbacks *a, VkInstance *ret)
{
        const char *wanted = getenv("TANDEM_EXECUTOR_UNITS");

        units = wanted && strcmp(wanted, "rdna3") == 0 ? UNITS_RDNA3 :
                wanted && strcmp(wanted, "rdna4") == 0 ? UNITS_RDNA4 :
                                                         UNITS_NVIDIA;
        *ret = HANDLE(VkInstance, 1);
        return VK_SUCCESS;
}

CALL_VOID(DestroyInstance)(VkInstance instance, const VkAllocationCallbacks *a)
{
}

CALL(EnumerateInstanceVersion)(uint32_t *ret)
{
        *ret = VK_API_VERSION_1_3;
        return VK_SUCCESS;
}

CALL(EnumeratePhysicalDevices)(VkInstance instance, uint32_t *n, VkPhysicalDevice *ret)
{
        if (ret && *n > 0)
                ret[0] = HANDLE(VkPhysicalDevice, 1);
        *n = 1;
        return VK_SUCCESS;
}

CALL_VOID(GetPhysicalDeviceProperties2)(VkPhysicalDevice gpu, VkPhysicalDeviceProperties2 *p)
{
        static const char *const names[] = { "SPIR-V executor, units as NVIDIA's", "SPIR-V executor, units as RDNA 3's",
                                             "SPIR-V executor, units as RDNA 4's" };
        VkPhysicalDeviceLimits limits = { .maxComputeSharedMemorySize = SHARED_BYTES_MAX,
                                          .maxComputeWorkGroupCount = { 0x7fffffff, 65535, 65535 },
                                          .maxComputeWorkGroupInvocations = 1024,
                                          .maxComputeWorkGroupSize = { 1024, 1024, 64 },
                                          .maxPushConstantsSize = PUSH_BYTES,
                                          .timestampPeriod = 1,
                                          .timestampComputeAndGraphics = VK_TRUE,
                                          .nonCoherentAtomSize = 1 };

        p->properties = (VkPhysicalDeviceProperties){ .apiVersion = VK_API_VERSION_1_3,
                                                      .driverVersion = 1,
                                                      .deviceType = VK_PHYSICAL_DEVICE_TYPE_CPU,
                                                      .limits = limits };
        snprintf(p->properties.deviceName, sizeof(p->properties.deviceName), "%s", names[units]);
        memcpy(p->properties.pipelineCacheUUID, "spirv-executor", 14);
        for (VkBaseOutStructure *s = p->pNext; s; s = s->pNext) {
                if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES) {
                        VkPhysicalDeviceVulkan11Properties *p11 = (void *)s;

                        p11->subgroupSize = LANES;
                        p11->subgroupSupportedStages = VK_SHADER_STAGE_COMPUTE_BIT;
                        p11->subgroupSupportedOperations =
                                VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_ARITHMETIC_BIT |
                                VK_SUBGROUP_FEATURE_BALLOT_BIT | VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
                        p11->maxMemoryAllocationSize = UINT64_C(2) << 30;
                } else if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES) {
                        VkPhysicalDeviceVulkan12Properties *p12 = (void *)s;

                        p12->shaderDenormPreserveFloat16 = p12->shaderDenormPreserveFloat32 = VK_TRUE;
                        snprintf(p12->driverName, sizeof(p12->driverName), "spirv-executor");
                        snprintf(p12->driverInfo, sizeof(p12->driverInfo), "for tests");
                } else if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES) {
                        VkPhysicalDeviceVulkan13Properties *p13 = (void *)s;

                        p13->minSubgroupSize = LANES;
                        p13->maxSubgroupSize = units == UNITS_NVIDIA ? LANES : 2 * LANES;
                        p13->requiredSubgroupSizeStages = VK_SHADER_STAGE_COMPUTE_BIT;
                        p13->maxComputeWorkgroupSubgroups = 1024 / LANES;
                } else if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT) {
                        ((VkPhysicalDeviceExternalMemoryHostPropertiesEXT *)s)->minImportedHostPointerAlignment =
                                IMPORT_ALIGN;
                }
        }
}

CALL_VOID(GetPhysicalDeviceFeatures2)(VkPhysicalDevice gpu, VkPhysicalDeviceFeatures2 *f)
{
        f->features = (VkPhysicalDeviceFeatures){ .shaderInt64 = VK_TRUE, .shaderInt16 = VK_TRUE };
        for (VkBaseOutStructure *s = f->pNext; s; s = s->pNext) {
                if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES) {
                        ((VkPhysicalDeviceVulkan11Features *)s)->storageBuffer16BitAccess = VK_TRUE;
                } else if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES) {
                        VkPhysicalDeviceVulkan12Features *f12 = (void *)s;

                        f12->storageBuffer8BitAccess = f12->shaderInt8 = f12->shaderFloat16 = VK_TRUE;
                        f12->bufferDeviceAddress = VK_TRUE;
                        f12->vulkanMemoryModel = f12->vulkanMemoryModelDeviceScope = VK_TRUE;
                } else if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES) {
                        VkPhysicalDeviceVulkan13Features *f13 = (void *)s;

                        f13->shaderIntegerDotProduct = f13->maintenance4 = VK_TRUE;
                        f13->subgroupSizeControl = f13->computeFullSubgroups = VK_TRUE;
                } else if (s->sType == TYPE_COOPERATIVE_FEATURES) {
                        ((struct cooperative_features *)s)->matrix = VK_TRUE;
                }
        }
}

CALL_VOID(GetPhysicalDeviceMemoryProperties2)(VkPhysicalDevice gpu, VkPhysicalDeviceMemoryProperties2 *p)
{
        p->memoryProperties = (VkPhysicalDeviceMemoryProperties){ .memoryTypeCount = 1, .memoryHeapCount = 1 };
        p->memoryProperties.memoryTypes[0].propertyFlags =
                VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                VK_MEMORY_PROPERTY_HOST_COHERENT_BIT | VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
        p->memoryProperties.memoryHeaps[0] = (VkMemoryHeap){ HEAP_BYTES, VK_MEMORY_HEAP_DEVICE_LOCAL_BIT };
}

CALL_VOID(GetPhysicalDeviceQueueFamilyProperties)(VkPhysicalDevice gpu, uint32_t *n, VkQueueFamilyProperties *ret)
{
        if (ret && *n > 0)
                ret[0] = (VkQueueFamilyProperties){ .queueFlags = VK_QUEUE_COMPUTE_BIT | VK_QUEUE_TRANSFER_BIT,
                                                    .queueCount = 1,
                                                    .timestampValidBits = 64 };
        *n = 1;
}

CALL_VOID(GetPhysicalDeviceExternalBufferProperties)
(VkPhysicalDevice gpu, const VkPhysicalDeviceExternalBufferInfo *info, VkExternalBufferProperties *ret)
{
        ret->externalMemoryProperties = (VkExternalMemoryProperties){ 0 };
}

CALL(EnumerateDeviceExtensionProperties)
(VkPhysicalDevice gpu, const char *layer, uint32_t *n, VkExtensionProperties *ret)
{
        static const char *const names[] = { COOPERATIVE_EXTENSION, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME };

        for (uint32_t i = 0; ret && i < *n && i < TDM_ARRAY_SIZE(names); i++) {
                ret[i] = (VkExtensionProperties){ .specVersion = 1 };
                snprintf(ret[i].extensionName, sizeof(ret[i].extensionName), "%s", names[i]);
        }
        *n = TDM_ARRAY_SIZE(names);
        return VK_SUCCESS;
}

CALL(GetPhysicalDeviceCooperativeMatrixPropertiesKHR)
(VkPhysicalDevice gpu, uint32_t *n, struct cooperative_properties *ret)
{
        static const uint32_t nvidia[][7] = { { 16, 16, 16, FLOAT16, FLOAT16, FLOAT16, FLOAT16 },
                                              { 16, 16, 16, FLOAT16, FLOAT16, FLOAT32, FLOAT32 },
                                              { 16, 8, 16, FLOAT16, FLOAT16, FLOAT32, FLOAT32 },
                                              { 16, 8, 32, SINT8, SINT8, SINT32, SINT32 } },
                              amd[][7] = { { 16, 16, 16, FLOAT16, FLOAT16, FLOAT16, FLOAT16 },
                                           { 16, 16, 16, FLOAT16, FLOAT16, FLOAT32, FLOAT32 },
                                           { 16, 16, 16, SINT8, SINT8, SINT32, SINT32 } };
        const uint32_t(*list)[7] = units == UNITS_NVIDIA ? nvidia : amd;
        uint32_t has = units == UNITS_NVIDIA ? TDM_ARRAY_SIZE(nvidia) : TDM_ARRAY_SIZE(amd);

        for (uint32_t i = 0; ret && i < *n && i < has; i++) {
                memcpy(&ret[i].m, list[i], sizeof(list[i]));
                ret[i].saturating = VK_FALSE;
                ret[i].scope = SCOPE_SUBGROUP;
        }
        *n = has;
        return VK_SUCCESS;
}

CALL(CreateDevice)(VkPhysicalDevice gpu, const VkDeviceCreateInfo *info, const VkAllocationCallbacks *a, VkDevice *ret)
{
        *ret = HANDLE(VkDevice, 1);
        return VK_SUCCESS;
}

CALL_VOID(DestroyDevice)(VkDevice device, const VkAllocationCallbacks *a)
{
}

CALL_VOID(GetDeviceQueue)(VkDevice device, uint32_t family, uint32_t index, VkQueue *ret)
{
        *ret = HANDLE(VkQueue, 1);
}

CALL(DeviceWaitIdle)(VkDevice device)
{
        return is_lost ? VK_ERROR_DEVICE_LOST : VK_SUCCESS;
}

/* ---- buffers ---- */

CALL(CreateBuffer)(VkDevice device, const VkBufferCreateInfo *info, const VkAllocationCallbacks *a, VkBuffer *ret)
{
        struct buffer *b;

        if (n_buffers == MAX_BUFFERS)
                return VK_ERROR_OUT_OF_HOST_MEMORY;
        b = made(sizeof(*b));
        b->bytes = info->size;
        buffers[n_buffers++] = b;
        *ret = HANDLE(VkBuffer, b);
        return VK_SUCCESS;
}

CALL_VOID(DestroyBuffer)(VkDevice device, VkBuffer buffer, const VkAllocationCallbacks *a)
{
        struct buffer *b = OBJECT(buffer, buffer);

        for (uint32_t i = 0; i < n_buffers; i++)
                if (buffers[i] == b)
                        buffers[i--] = buffers[--n_buffers];
        free(b);
}

CALL_VOID(GetBufferMemoryRequirements)(VkDevice device, VkBuffer buffer, VkMemoryRequirements *ret)
{
        *ret = (VkMemoryRequirements){ .size = OBJECT(buffer, buffer)->bytes, .alignment = 256, .memoryTypeBits = 1 };
}

static VKAPI_ATTR VkDeviceAddress VKAPI_CALL GetBufferDeviceAddress(VkDevice device,
                                                                    const VkBufferDeviceAddressInfo *info)
{
        return OBJECT(buffer, info->buffer)->address;
}

CALL(AllocateMemory)
(VkDevice device, const VkMemoryAllocateInfo *info, const VkAllocationCallbacks *a, VkDeviceMemory *ret)
{
        struct memory_object *m = made(sizeof(*m));

        m->bytes = info->allocationSize;
        for (const VkBaseInStructure *s = info->pNext; s; s = s->pNext)
                if (s->sType == VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT) {
                        m->map = ((const VkImportMemoryHostPointerInfoEXT *)s)->pHostPointer;
                        m->imported = true;
                }
        if (!m->imported) {
                m->map = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                              0);
                if (m->map == MAP_FAILED) {
                        free(m);
                        return VK_ERROR_OUT_OF_DEVICE_MEMORY;
                }
        }
        *ret = HANDLE(VkDeviceMemory, m);
        return VK_SUCCESS;
}

CALL_VOID(FreeMemory)(VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks *a)
{
        struct memory_object *m = OBJECT(memory_object, memory);

        if (!m->imported)
                munmap(m->map, m->bytes);
        free(m);
}

CALL(BindBufferMemory)(VkDevice device, VkBuffer buffer, VkDeviceMemory memory, VkDeviceSize offset)
{
        OBJECT(buffer, buffer)->address = (uint64_t)(uintptr_t)OBJECT(memory_object, memory)->map + offset;
        return VK_SUCCESS;
}

CALL(MapMemory)
(VkDevice device, VkDeviceMemory memory, VkDeviceSize offset, VkDeviceSize n, VkMemoryMapFlags flags, void **ret)
{
        *ret = OBJECT(memory_object, memory)->map + offset;
        return VK_SUCCESS;
}

CALL(GetMemoryHostPointerPropertiesEXT)
(VkDevice device, VkExternalMemoryHandleTypeFlagBits type, const void *pointer, VkMemoryHostPointerPropertiesEXT *ret)
{
        ret->memoryTypeBits = 1;
        return VK_SUCCESS;
}

/* ---- pipelines ---- */

CALL(CreateShaderModule)
(VkDevice device, const VkShaderModuleCreateInfo *info, const VkAllocationCallbacks *a, VkShaderModule *ret)
{
        struct module *m = made(sizeof(*m));
        const char *fault = getenv("TANDEM_EXECUTOR_FAULT");

        m->n = info->codeSize / 4;
        m->words = made(info->codeSize + 4);
        memcpy(m->words, info->pCode, info->codeSize);
        if (fault && *fault && !plant_fault(m->words, m->n, fault)) {
                free(m->words);
                free(m);
                return VK_ERROR_UNKNOWN;
        }
        *ret = HANDLE(VkShaderModule, m);
        return VK_SUCCESS;
}

CALL_VOID(DestroyShaderModule)(VkDevice device, VkShaderModule module, const VkAllocationCallbacks *a)
{
        free(OBJECT(module, module)->words);
        free(OBJECT(module, module));
}

CALL(CreatePipelineLayout)
(VkDevice device, const VkPipelineLayoutCreateInfo *info, const VkAllocationCallbacks *a, VkPipelineLayout *ret)
{
        *ret = HANDLE(VkPipelineLayout, 1);
        return VK_SUCCESS;
}

CALL_VOID(DestroyPipelineLayout)(VkDevice device, VkPipelineLayout layout, const VkAllocationCallbacks *a)
{
}

CALL(CreateComputePipelines)
(VkDevice device, VkPipelineCache cache, uint32_t n, const VkComputePipelineCreateInfo *infos,
 const VkAllocationCallbacks *a, VkPipeline *ret)
{
        const VkSpecializationInfo *s = infos[0].stage.pSpecializationInfo;
        const struct module *m = OBJECT(module, infos[0].stage.module);
        struct specialization special[64];
        uint32_t n_special = 0;
        struct program *p;

        ret[0] = VK_NULL_HANDLE;
        if (n != 1 || (s && s->mapEntryCount > TDM_ARRAY_SIZE(special)))
                return VK_ERROR_UNKNOWN;
        for (const VkBaseInStructure *i = infos[0].stage.pNext; i; i = i->pNext)
                if (i->sType == VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO &&
                    ((const VkPipelineShaderStageRequiredSubgroupSizeCreateInfo *)i)->requiredSubgroupSize != LANES)
                        return VK_ERROR_UNKNOWN;
        for (uint32_t i = 0; s && i < s->mapEntryCount; i++) {
                special[n_special].id = s->pMapEntries[i].constantID;
                memcpy(&special[n_special++].value, (const uint8_t *)s->pData + s->pMapEntries[i].offset, 4);
        }
        p = program_new(m->words, m->n, special, n_special);
        ret[0] = HANDLE(VkPipeline, p);
        return p ? VK_SUCCESS : VK_ERROR_UNKNOWN;
}

CALL_VOID(DestroyPipeline)(VkDevice device, VkPipeline pipeline, const VkAllocationCallbacks *a)
{
        program_destroy(OBJECT(program, pipeline));
}

CALL(CreatePipelineCache)
(VkDevice device, const VkPipelineCacheCreateInfo *info, const VkAllocationCallbacks *a, VkPipelineCache *ret)
{
        *ret = HANDLE(VkPipelineCache, 1);
        return VK_SUCCESS;
}

CALL_VOID(DestroyPipelineCache)(VkDevice device, VkPipelineCache cache, const VkAllocationCallbacks *a)
{
}

CALL(GetPipelineCacheData)(VkDevice device, VkPipelineCache cache, size_t *n, void *data)
{
        *n = 0;
        return VK_SUCCESS;
}

/* ---- commands ---- */

CALL(CreateCommandPool)
(VkDevice device, const VkCommandPoolCreateInfo *info, const VkAllocationCallbacks *a, VkCommandPool *ret)
{
        *ret = HANDLE(VkCommandPool, 1);
        return VK_SUCCESS;
}

CALL_VOID(FreeCommandBuffers)(VkDevice device, VkCommandPool pool, uint32_t n, const VkCommandBuffer *list)
{
        for (uint32_t i = 0; i < n; i++)
                if (list[i]) {
                        free(OBJECT(commands, list[i])->list);
                        free(OBJECT(commands, list[i]));
                }
}

/* Those that were not freed one by one are the pool's in Vulkan; here a process keeps them. */
CALL_VOID(DestroyCommandPool)(VkDevice device, VkCommandPool pool, const VkAllocationCallbacks *a)
{
}

CALL(AllocateCommandBuffers)(VkDevice device, const VkCommandBufferAllocateInfo *info, VkCommandBuffer *ret)
{
        for (uint32_t i = 0; i < info->commandBufferCount; i++)
                ret[i] = HANDLE(VkCommandBuffer, made(sizeof(struct commands)));
        return VK_SUCCESS;
}

CALL(BeginCommandBuffer)(VkCommandBuffer commands, const VkCommandBufferBeginInfo *info)
{
        OBJECT(commands, commands)->n = 0;
        OBJECT(commands, commands)->bound = NULL;
        return VK_SUCCESS;
}

CALL(EndCommandBuffer)(VkCommandBuffer commands)
{
        return VK_SUCCESS;
}

CALL_VOID(CmdBindPipeline)(VkCommandBuffer commands, VkPipelineBindPoint point, VkPipeline pipeline)
{
        OBJECT(commands, commands)->bound = OBJECT(program, pipeline);
}

CALL_VOID(CmdPushConstants)
(VkCommandBuffer commands, VkPipelineLayout layout, VkShaderStageFlags stages, uint32_t offset, uint32_t n,
 const void *data)
{
        if (offset <= PUSH_BYTES && n <= PUSH_BYTES - offset)
                memcpy(OBJECT(commands, commands)->push + offset, data, n);
}

static struct command *add(VkCommandBuffer commands, enum command_kind kind)
{
        struct commands *c = OBJECT(commands, commands);

        if (c->n == c->room) {
                c->room = c->room * 2 + MAX_COMMANDS_GROWTH;
                c->list = realloc(c->list, c->room * sizeof(*c->list));
                if (!c->list)
                        abort();
        }
        c->list[c->n] = (struct command){ .kind = kind, .program = c->bound };
        memcpy(c->list[c->n].push, c->push, sizeof(c->push));
        return &c->list[c->n++];
}

CALL_VOID(CmdDispatch)(VkCommandBuffer commands, uint32_t x, uint32_t y, uint32_t z)
{
        struct command *c = add(commands, DISPATCH);

        c->groups[0] = x;
        c->groups[1] = y;
        c->groups[2] = z;
}

static uint8_t *at(VkBuffer buffer, uint64_t offset)
{
        return (uint8_t *)(uintptr_t)(OBJECT(buffer, buffer)->address + offset);
}

CALL_VOID(CmdDispatchIndirect)(VkCommandBuffer commands, VkBuffer buffer, VkDeviceSize offset)
{
        add(commands, INDIRECT)->from = at(buffer, offset);
}

CALL_VOID(CmdPipelineBarrier)
(VkCommandBuffer commands, VkPipelineStageFlags from, VkPipelineStageFlags to, VkDependencyFlags flags,
 uint32_t n_memory, const VkMemoryBarrier *memory, uint32_t n_buffer, const VkBufferMemoryBarrier *buffer,
 uint32_t n_image, const VkImageMemoryBarrier *image)
{
}

CALL_VOID(CmdFillBuffer)(VkCommandBuffer commands, VkBuffer buffer, VkDeviceSize offset, VkDeviceSize n, uint32_t value)
{
        struct command *c = add(commands, FILL);

        c->to = at(buffer, offset);
        c->bytes = n == VK_WHOLE_SIZE ? OBJECT(buffer, buffer)->bytes - offset : n;
        c->value = value;
}

CALL_VOID(CmdCopyBuffer)(VkCommandBuffer commands, VkBuffer from, VkBuffer to, uint32_t n, const VkBufferCopy *regions)
{
        for (uint32_t i = 0; i < n; i++) {
                struct command *c = add(commands, COPY);

                c->to = at(to, regions[i].dstOffset);
                c->from = at(from, regions[i].srcOffset);
                c->bytes = regions[i].size;
        }
}

CALL(CreateQueryPool)
(VkDevice device, const VkQueryPoolCreateInfo *info, const VkAllocationCallbacks *a, VkQueryPool *ret)
{
        *ret = HANDLE(VkQueryPool, made(info->queryCount * sizeof(uint64_t)));
        return VK_SUCCESS;
}

CALL_VOID(DestroyQueryPool)(VkDevice device, VkQueryPool pool, const VkAllocationCallbacks *a)
{
        free((void *)(uintptr_t)pool);
}

CALL_VOID(CmdWriteTimestamp)(VkCommandBuffer commands, VkPipelineStageFlagBits stage, VkQueryPool pool, uint32_t query)
{
        add(commands, TIME)->times = (uint64_t *)(uintptr_t)pool + query;
}

CALL_VOID(CmdResetQueryPool)(VkCommandBuffer commands, VkQueryPool pool, uint32_t first, uint32_t n)
{
}

CALL(GetQueryPoolResults)
(VkDevice device, VkQueryPool pool, uint32_t first, uint32_t n, size_t bytes, void *data, VkDeviceSize stride,
 VkQueryResultFlags flags)
{
        if (!(flags & VK_QUERY_RESULT_64_BIT) || stride != 8 || bytes < n * sizeof(uint64_t))
                return VK_ERROR_UNKNOWN;
        memcpy(data, (uint64_t *)(uintptr_t)pool + first, n * sizeof(uint64_t));
        return VK_SUCCESS;
}

/* ---- running ---- */

static int by_begin(const void *a, const void *b)
{
        const struct memory *x = a, *y = b;

        return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static bool run_command(const struct command *c, const struct memory *memory, uint32_t n_memory)
{
        struct timespec now;
        uint32_t groups[3];

        switch (c->kind) {
        case DISPATCH:
        case INDIRECT:
                memcpy(groups, c->kind == DISPATCH ? (const uint8_t *)c->groups : c->from, sizeof(groups));
                return c->program && run_program(c->program, c->push, groups, memory, n_memory);
        case FILL:
                for (uint64_t i = 0; i + 4 <= c->bytes; i += 4)
                        memcpy(c->to + i, &c->value, 4);
                return true;
        case COPY:
                memmove(c->to, c->from, c->bytes);
                return true;
        case TIME:
                clock_gettime(CLOCK_MONOTONIC, &now);
                *c->times = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
                return true;
        default:
                return true;
        }
}

CALL(QueueSubmit)(VkQueue queue, uint32_t n, const VkSubmitInfo *submits, VkFence fence)
{
        struct memory *memory = made((n_buffers + 1) * sizeof(*memory));
        uint32_t n_memory = 0;

        for (uint32_t i = 0; i < n_buffers; i++)
                if (buffers[i]->address)
                        memory[n_memory++] =
                                (struct memory){ buffers[i]->address, buffers[i]->address + buffers[i]->bytes };
        qsort(memory, n_memory, sizeof(*memory), by_begin);
        for (uint32_t i = 0; i < n; i++)
                for (uint32_t k = 0; k < submits[i].commandBufferCount; k++) {
                        const struct commands *c = OBJECT(commands, submits[i].pCommandBuffers[k]);

                        for (uint32_t j = 0; j < c->n && !is_lost; j++)
                                is_lost = !run_command(&c->list[j], memory, n_memory);
                }
        free(memory);
        if (is_lost)
                return VK_ERROR_DEVICE_LOST;
        if (fence)
                OBJECT(fence, fence)->done = true;
        return VK_SUCCESS;
}

CALL(CreateFence)(VkDevice device, const VkFenceCreateInfo *info, const VkAllocationCallbacks *a, VkFence *ret)
{
        struct fence *f = made(sizeof(*f));

        f->done = info->flags & VK_FENCE_CREATE_SIGNALED_BIT;
        *ret = HANDLE(VkFence, f);
        return VK_SUCCESS;
}

CALL_VOID(DestroyFence)(VkDevice device, VkFence fence, const VkAllocationCallbacks *a)
{
        free(OBJECT(fence, fence));
}

CALL(ResetFences)(VkDevice device, uint32_t n, const VkFence *fences)
{
        for (uint32_t i = 0; i < n; i++)
                OBJECT(fence, fences[i])->done = false;
        return VK_SUCCESS;
}

CALL(GetFenceStatus)(VkDevice device, VkFence fence)
{
        return OBJECT(fence, fence)->done ? VK_SUCCESS : VK_NOT_READY;
}

CALL(WaitForFences)(VkDevice device, uint32_t n, const VkFence *fences, VkBool32 all, uint64_t timeout)
{
        for (uint32_t i = 0; i < n; i++)
                if (!OBJECT(fence, fences[i])->done)
                        return VK_TIMEOUT;
        return VK_SUCCESS;
}

/* ---- finding them ---- */

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL GetDeviceProcAddr(VkDevice device, const char *name);

#define ROW(name) { "vk" #name, (PFN_vkVoidFunction)name },
static const struct {
        const char *name;
        PFN_vkVoidFunction function;
} functions[] = { TDM_VK_GLOBAL_FUNCTIONS(ROW) TDM_VK_INSTANCE_FUNCTIONS(ROW) TDM_VK_DEVICE_FUNCTIONS(ROW)
                          ROW(GetPhysicalDeviceCooperativeMatrixPropertiesKHR) ROW(GetMemoryHostPointerPropertiesEXT) };

static PFN_vkVoidFunction find(const char *name)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(functions); i++)
                if (strcmp(functions[i].name, name) == 0)
                        return functions[i].function;
        return NULL;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL GetDeviceProcAddr(VkDevice device, const char *name)
{
        return find(name);
}

#define EXPORTED __attribute__((visibility("default"))) VKAPI_ATTR
EXPORTED PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance instance, const char *name);
EXPORTED PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance instance, const char *name)
{
        return find(name);
}
