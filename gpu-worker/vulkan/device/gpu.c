/* The vulkan device: finds a GPU, makes a logical device with one queue, and says what it is.
 *
 * Which GPU: gpu-device (an index or a part of the name; for programs without a configuration TANDEM_VULKAN_DEVICE),
 * else a discrete one, then integrated, then virtual, then a CPU implementation, the one with the most memory first:
 * the last only because the device was asked for by name, since tdm_vulkan_probe() refuses it.
 * TANDEM_VULKAN_MEMORY=import|copy overrides whether memory counts as unified (tests run both ways). */
#include <dirent.h>

#include "gpu-worker/vulkan/device/gpu-private.h"
#include "gpu-worker/vulkan/device/heaps.h"

#define MAX_GPUS 16u

/* Counts in their order of preference. */
static int rank_of(VkPhysicalDeviceType type)
{
        switch (type) {
        case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
                return 4;
        case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
                return 3;
        case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
                return 2;
        case VK_PHYSICAL_DEVICE_TYPE_CPU:
                return 1;
        default:
                return 0;
        }
}

static const char *type_name(VkPhysicalDeviceType type)
{
        static const char *const names[] = { "other", "CPU implementation", "virtual GPU", "integrated GPU",
                                             "discrete GPU" };

        return names[rank_of(type)];
}

static void properties_of(struct tdm_vk *vk, VkPhysicalDevice gpu, VkPhysicalDeviceProperties *ret)
{
        VkPhysicalDeviceProperties2 properties = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2 };

        vk->GetPhysicalDeviceProperties2(gpu, &properties);
        *ret = properties.properties;
}

static bool is_wanted(const char *wanted, uint32_t index, const char *name)
{
        char *end;
        unsigned long n;

        if (!wanted || !*wanted)
                return true;
        n = strtoul(wanted, &end, 10);
        return *end == 0 ? n == index : strcasestr(name, wanted) != NULL;
}

/* Memory of its own that a device has. */
static uint64_t memory_of(struct tdm_vk *vk, VkPhysicalDevice gpu)
{
        VkPhysicalDeviceMemoryProperties2 properties = {
                .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2
        };
        uint64_t bytes = 0;

        vk->GetPhysicalDeviceMemoryProperties2(gpu, &properties);
        for (uint32_t i = 0; i < properties.memoryProperties.memoryHeapCount; i++)
                if (properties.memoryProperties.memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT)
                        bytes += properties.memoryProperties.memoryHeaps[i].size;
        return bytes;
}

/* The one that was named, else the first of the best type with the most memory. */
static int choose_gpu(struct tdm_vk *vk, const struct tdm_device_config *config, VkPhysicalDevice *ret,
                      VkPhysicalDeviceProperties *ret_properties, struct tdm_error *err)
{
        const char *wanted = config->device_name ? config->device_name : tdm_vk_switch(TDM_VK_SWITCH_DEVICE);
        VkPhysicalDevice gpus[MAX_GPUS];
        uint32_t n = MAX_GPUS;
        VkResult r = vk->EnumeratePhysicalDevices(vk->instance, &n, gpus);
        char seen[2048] = "";
        uint64_t most = 0;
        int best = 0;

        if (r != VK_SUCCESS && r != VK_INCOMPLETE)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "cannot list Vulkan devices: %s", tdm_vk_result_name(r));
        for (uint32_t i = 0; i < n; i++) {
                VkPhysicalDeviceProperties p;
                uint64_t bytes = memory_of(vk, gpus[i]);

                properties_of(vk, gpus[i], &p);
                snprintf(seen + strlen(seen), sizeof(seen) - strlen(seen), "%s%u: %.80s", i ? ", " : "", i,
                         p.deviceName);
                if (p.apiVersion < VK_API_VERSION_1_3 || !is_wanted(wanted, i, p.deviceName) ||
                    rank_of(p.deviceType) < best || (rank_of(p.deviceType) == best && bytes <= most))
                        continue;
                best = rank_of(p.deviceType);
                most = bytes;
                *ret = gpus[i];
                *ret_properties = p;
        }
        if (best)
                return 0;
        return tdm_error_set(err, TDM_E_UNSUPPORTED, "no Vulkan 1.3 device%s%s (there %s %s)",
                             wanted && *wanted ? " like " : "", wanted ? wanted : "", n == 1 ? "is" : "are",
                             n ? seen : "none");
}

static bool has_node(const char *directory, const char *prefix)
{
        DIR *dir = opendir(directory);
        struct dirent *e;
        bool found = false;

        while (dir && !found && (e = readdir(dir)))
                found = strncmp(e->d_name, prefix, strlen(prefix)) == 0;
        if (dir)
                closedir(dir);
        return found;
}

int tdm_vk_device_probe(const struct tdm_device_config *config, struct tdm_error *err)
{
        VkPhysicalDeviceProperties properties;
        VkPhysicalDevice gpu;
        struct tdm_vk vk;
        int r;

        if (!has_node("/dev/dri", "renderD") && !has_node("/dev", "nvidia") && !has_node("/dev", "dxg"))
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "no GPU: neither /dev/dri/renderD* nor /dev/nvidia* nor /dev/dxg is there");
        r = tdm_vk_open(&vk, err);
        if (r != 0)
                return r;
        r = choose_gpu(&vk, config, &gpu, &properties, err);
        if (r == 0 && properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU)
                r = tdm_error_set(err, TDM_E_UNSUPPORTED,
                                  "the only Vulkan device is a CPU implementation (%s); TANDEM_GPU=vulkan takes it",
                                  properties.deviceName);
        tdm_vk_close(&vk);
        return r;
}

/* ---- opening ---- */

void tdm_vk_device_close(struct tdm_vk_device *device)
{
        struct tdm_vk *vk;

        if (!device)
                return;
        vk = &device->vk;
        if (vk->device && vk->DeviceWaitIdle) {
                if (!device->lost)
                        vk->DeviceWaitIdle(vk->device);
                tdm_vk_pipelines_deinit(device);
                tdm_vk_cache_close(device);
                for (unsigned i = 0; i < TDM_VK_STAGES; i++) {
                        tdm_vk_buffer_deinit(device, &device->stages[i]);
                        if (device->stage_fences[i])
                                vk->DestroyFence(vk->device, device->stage_fences[i], NULL);
                }
                for (unsigned i = 0; i < TDM_VK_IN_FLIGHT; i++)
                        if (device->fences[i])
                                vk->DestroyFence(vk->device, device->fences[i], NULL);
                if (device->queries)
                        vk->DestroyQueryPool(vk->device, device->queries, NULL);
                if (device->pool)
                        vk->DestroyCommandPool(vk->device, device->pool, NULL);
                if (device->layout)
                        vk->DestroyPipelineLayout(vk->device, device->layout, NULL);
        }
        tdm_vk_close(vk);
        tdm_pool_destroy(device->threads);
        free(device);
}

static bool has_extension(const VkExtensionProperties *extensions, uint32_t n, const char *name)
{
        for (uint32_t i = 0; i < n; i++)
                if (strcmp(extensions[i].extensionName, name) == 0)
                        return true;
        return false;
}

/* A queue family that computes; one without graphics is the quieter one. */
static int choose_queue(struct tdm_vk_device *device)
{
        VkQueueFamilyProperties families[16];
        uint32_t n = TDM_ARRAY_SIZE(families);
        int found = -1;

        device->vk.GetPhysicalDeviceQueueFamilyProperties(device->physical, &n, families);
        for (uint32_t i = 0; i < n; i++)
                if (families[i].queueFlags & VK_QUEUE_COMPUTE_BIT &&
                    (found < 0 || !(families[i].queueFlags & VK_QUEUE_GRAPHICS_BIT)))
                        found = (int)i;
        return found;
}

#define ANY_SUBGROUP 32u /* of MATMUL_INT8_ANY */

/* Whether subgroups of 32 can be had: all are, or the device lets a kernel ask for them. */
static uint32_t any_units(const struct tdm_vk_device *device, const VkPhysicalDeviceVulkan13Features *features)
{
        VkPhysicalDeviceVulkan13Properties p13 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES };
        VkPhysicalDeviceProperties2 p = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &p13 };

        device->vk.GetPhysicalDeviceProperties2(device->physical, &p);
        if (!features->subgroupSizeControl || !features->computeFullSubgroups || p13.minSubgroupSize > ANY_SUBGROUP ||
            p13.maxSubgroupSize < ANY_SUBGROUP || !(p13.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT) ||
            p.properties.limits.maxComputeSharedMemorySize < 48 << 10 ||
            tdm_vk_switch_is(TDM_VK_SWITCH_MATRICES, "off"))
                return 0;
        return tdm_vk_matrix_units_any(device, ANY_SUBGROUP);
}

/* Subgroups are always of 32. */
static bool is_fixed_at_32(const struct tdm_vk_device *device)
{
        VkPhysicalDeviceVulkan13Properties p13 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES };
        VkPhysicalDeviceProperties2 p = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &p13 };

        device->vk.GetPhysicalDeviceProperties2(device->physical, &p);
        return p13.minSubgroupSize == 32 && p13.maxSubgroupSize == 32 &&
               !tdm_vk_switch_is(TDM_VK_SWITCH_MATRICES, "off") && !tdm_vk_switch_is(TDM_VK_SWITCH_MATRICES, "any") &&
               p.properties.limits.maxComputeSharedMemorySize >= 48 << 10;
}

/* F16 below 2^-14 stays what it is: weights for f16 units are made of such (shaders/common/f16.glsl). */
static bool keeps_small_f16(const struct tdm_vk_device *device)
{
        VkPhysicalDeviceVulkan12Properties p12 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES };
        VkPhysicalDeviceProperties2 p = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &p12 };

        device->vk.GetPhysicalDeviceProperties2(device->physical, &p);
        return p12.shaderDenormPreserveFloat16;
}

static bool adds_in_subgroups(const struct tdm_vk_device *device)
{
        VkPhysicalDeviceVulkan11Properties p11 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES };
        VkPhysicalDeviceProperties2 p = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &p11 };

        device->vk.GetPhysicalDeviceProperties2(device->physical, &p);
        return p11.subgroupSupportedOperations & VK_SUBGROUP_FEATURE_ARITHMETIC_BIT &&
               p11.subgroupSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT;
}

/* Whether a queue can be asked to come after others'. */
static bool is_offered_low(const VkPhysicalDeviceProperties *properties, const VkExtensionProperties *extensions,
                           uint32_t n)
{
        return has_extension(extensions, n, VK_KHR_GLOBAL_PRIORITY_EXTENSION_NAME) &&
               properties->vendorID != TDM_VK_VENDOR_NVIDIA;
}

static int create_device(struct tdm_vk_device *device, const VkPhysicalDeviceProperties *properties,
                         struct tdm_error *err)
{
        VkPhysicalDeviceVulkan13Features f13 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES };
        VkPhysicalDeviceVulkan12Features f12 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                                                 .pNext = &f13 };
        VkPhysicalDeviceVulkan11Features f11 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
                                                 .pNext = &f12 };
        VkPhysicalDeviceFeatures2 features = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &f11 };
        const float priority = 1;
        const VkDeviceQueueGlobalPriorityCreateInfoKHR low = {
                .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_GLOBAL_PRIORITY_CREATE_INFO_KHR,
                .globalPriority = VK_QUEUE_GLOBAL_PRIORITY_LOW_KHR,
        };
        VkDeviceQueueCreateInfo queue = { .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                          .queueFamilyIndex = device->queue_family,
                                          .queueCount = 1,
                                          .pQueuePriorities = &priority };
        _cleanup_(freep) VkExtensionProperties *extensions = NULL;
        struct tdm_vk_matrix_features matrix_features;
        bool has_memory_model, has_f16, has_matrices, emulates;
        uint32_t units;
        const char *names[7];
        VkDeviceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                    .pNext = &features,
                                    .queueCreateInfoCount = 1,
                                    .pQueueCreateInfos = &queue,
                                    .ppEnabledExtensionNames = names };
        uint32_t n = 0;
        VkResult r;

        device->vk.EnumerateDeviceExtensionProperties(device->physical, NULL, &n, NULL);
        extensions = calloc(n + 1, sizeof(*extensions));
        if (!extensions || device->vk.EnumerateDeviceExtensionProperties(device->physical, NULL, &n, extensions) < 0)
                return tdm_error_set(err, -ENOMEM, "cannot list the extensions of %s", properties->deviceName);
        if (has_extension(extensions, n, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME)) {
                VkPhysicalDeviceExternalMemoryHostPropertiesEXT host = {
                        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT,
                };
                VkPhysicalDeviceProperties2 p = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                                  .pNext = &host };

                device->vk.GetPhysicalDeviceProperties2(device->physical, &p);
                device->memory.import_align = host.minImportedHostPointerAlignment;
                names[info.enabledExtensionCount++] = VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME;
        }
        if (has_extension(extensions, n, VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME) &&
            has_extension(extensions, n, VK_EXT_EXTERNAL_MEMORY_DMA_BUF_EXTENSION_NAME)) {
                device->memory.has_dmabuf = true;
                names[info.enabledExtensionCount++] = VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME;
                names[info.enabledExtensionCount++] = VK_EXT_EXTERNAL_MEMORY_DMA_BUF_EXTENSION_NAME;
        }
        if (has_extension(extensions, n, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME)) {
                device->memory.has_budget = true;
                names[info.enabledExtensionCount++] = VK_EXT_MEMORY_BUDGET_EXTENSION_NAME;
        }

        device->vk.GetPhysicalDeviceFeatures2(device->physical, &features);
        if (!features.features.shaderInt64 || !features.features.shaderInt16 || !f11.storageBuffer16BitAccess ||
            !f12.storageBuffer8BitAccess || !f12.shaderInt8 || !f12.bufferDeviceAddress ||
            !f13.shaderIntegerDotProduct || !f13.maintenance4 || !adds_in_subgroups(device))
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "%s lacks one of shaderInt64, shaderInt16, shaderInt8, "
                                     "storageBuffer16BitAccess, storageBuffer8BitAccess, bufferDeviceAddress, "
                                     "shaderIntegerDotProduct, maintenance4, arithmetic in subgroups",
                                     properties->deviceName);
        has_f16 = f12.shaderFloat16 && keeps_small_f16(device);
        emulates = tdm_vk_emulated_code && f12.shaderFloat16;
        has_memory_model = f12.vulkanMemoryModel && f12.vulkanMemoryModelDeviceScope;
        names[info.enabledExtensionCount] = tdm_vk_matrix_feature(&matrix_features);
        has_matrices = has_memory_model && has_extension(extensions, n, names[info.enabledExtensionCount]);
        units = has_matrices ? any_units(device, &f13) : 0;
        /* Only what is used: a feature may cost. */
        features.features = (VkPhysicalDeviceFeatures){ .shaderInt64 = VK_TRUE, .shaderInt16 = VK_TRUE };
        f11 = (VkPhysicalDeviceVulkan11Features){ .sType = f11.sType,
                                                  .pNext = &f12,
                                                  .storageBuffer16BitAccess = VK_TRUE };
        f12 = (VkPhysicalDeviceVulkan12Features){ .sType = f12.sType,
                                                  .pNext = &f13,
                                                  .bufferDeviceAddress = VK_TRUE,
                                                  .shaderInt8 = VK_TRUE,
                                                  .storageBuffer8BitAccess = VK_TRUE };
        f13 = (VkPhysicalDeviceVulkan13Features){ .sType = f13.sType,
                                                  .shaderIntegerDotProduct = VK_TRUE,
                                                  .maintenance4 = VK_TRUE };
        device->units.int8 = has_matrices && is_fixed_at_32(device) && tdm_vk_matrix_units(device, TDM_VK_UNITS_INT8);
        device->units.any = device->units.int8 ? 0 : units;
        device->units.f16 = device->units.int8 && has_f16 && tdm_vk_matrix_units(device, TDM_VK_UNITS_F16);
        device->units.emulated = emulates && !device->units.f16;
        if (device->units.emulated) {
                device->units.f16 = true;
                device->units.any = TDM_VK_TILES_UNIT(16, 16, 16, ANY_SUBGROUP);
                f12.shaderFloat16 = VK_TRUE;
        }
        if (device->units.any && !device->units.emulated)
                f13.subgroupSizeControl = f13.computeFullSubgroups = VK_TRUE;
        if (device->units.int8 || (device->units.any && !device->units.emulated)) {
                info.enabledExtensionCount++;
                f13.pNext = &matrix_features;
                f12.shaderFloat16 = device->units.f16;
                f12.vulkanMemoryModel = f12.vulkanMemoryModelDeviceScope = VK_TRUE;
        }
        /* Programs that draw the screen go first. NVIDIA's GPUs are left as they were measured. */
        if (is_offered_low(properties, extensions, n)) {
                names[info.enabledExtensionCount++] = VK_KHR_GLOBAL_PRIORITY_EXTENSION_NAME;
                queue.pNext = &low;
        }
        r = device->vk.CreateDevice(device->physical, &info, NULL, &device->vk.device);
        if (r != VK_SUCCESS && queue.pNext) {
                info.enabledExtensionCount--;
                queue.pNext = NULL;
                r = device->vk.CreateDevice(device->physical, &info, NULL, &device->vk.device);
        }
        if (r != VK_SUCCESS) {
                device->vk.device = VK_NULL_HANDLE;
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "cannot open %s: %s", properties->deviceName,
                                     tdm_vk_result_name(r));
        }
        return tdm_vk_open_device(&device->vk, err);
}

static VkResult create_objects(struct tdm_vk_device *device)
{
        struct tdm_vk *vk = &device->vk;
        const VkCommandPoolCreateInfo pool = { .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                               .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                               .queueFamilyIndex = device->queue_family };
        const VkPushConstantRange range = { VK_SHADER_STAGE_COMPUTE_BIT, 0, TDM_VK_PUSH_BYTES };
        const VkPipelineLayoutCreateInfo layout = { .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                                    .pushConstantRangeCount = 1,
                                                    .pPushConstantRanges = &range };
        const VkQueryPoolCreateInfo queries = { .sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                                .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                                .queryCount = TDM_VK_MAX_QUERIES };
        const VkFenceCreateInfo fence = { .sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO };
        VkCommandBufferAllocateInfo commands = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                 .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                 .commandBufferCount = TDM_VK_STAGES };
        VkResult r;

        vk->GetDeviceQueue(vk->device, device->queue_family, 0, &device->queue);
        if ((r = vk->CreateCommandPool(vk->device, &pool, NULL, &device->pool)) != VK_SUCCESS ||
            (r = vk->CreatePipelineLayout(vk->device, &layout, NULL, &device->layout)) != VK_SUCCESS ||
            (r = vk->CreateQueryPool(vk->device, &queries, NULL, &device->queries)) != VK_SUCCESS)
                return r;
        commands.commandPool = device->pool;
        for (unsigned i = 0; i < TDM_VK_IN_FLIGHT && r == VK_SUCCESS; i++)
                r = vk->CreateFence(vk->device, &fence, NULL, &device->fences[i]);
        for (unsigned i = 0; i < TDM_VK_STAGES && r == VK_SUCCESS; i++)
                r = vk->CreateFence(vk->device, &fence, NULL, &device->stage_fences[i]);
        return r == VK_SUCCESS ? vk->AllocateCommandBuffers(vk->device, &commands, device->stage_commands) : r;
}

/* Whether memory is unified, and which heaps count. */
static int look_at_memory(struct tdm_vk_device *device, VkPhysicalDeviceType type, struct tdm_error *err)
{
        VkPhysicalDeviceMemoryProperties2 properties = {
                .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2
        };
        const char *forced = tdm_vk_switch(TDM_VK_SWITCH_MEMORY);

        device->vk.GetPhysicalDeviceMemoryProperties2(device->physical, &properties);
        device->memory.properties = properties.memoryProperties;
        device->memory.unified = type == VK_PHYSICAL_DEVICE_TYPE_CPU || type == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
        device->memory.is_shared = device->memory.unified;
        device->memory.heaps = tdm_vk_heaps_counted(&device->memory.properties, device->memory.is_shared);
        device->memory.import = device->memory.import_align != 0 && device->memory.unified;
        if (!forced || strcmp(forced, "auto") == 0)
                return 0;
        if (strcmp(forced, "copy") != 0 && (strcmp(forced, "import") != 0 || !device->memory.import_align))
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "TANDEM_VULKAN_MEMORY=%s: known are auto, copy and, where the driver imports "
                                     "host memory, import",
                                     forced);
        device->memory.import = device->memory.unified = forced[0] == 'i';
        return 0;
}

static int open_gpu(struct tdm_vk_device *device, const struct tdm_device_config *config,
                    bool (*sane)(const struct tdm_vk_tuned *tuned), struct tdm_error *err)
{
        VkPhysicalDeviceVulkan12Properties p12 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES };
        VkPhysicalDeviceVulkan11Properties p11 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES,
                                                   .pNext = &p12 };
        VkPhysicalDeviceProperties2 p = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &p11 };
        bool few_registers;
        VkPhysicalDeviceProperties properties;
        VkResult result;
        int r = choose_gpu(&device->vk, config, &device->physical, &properties, err), queue;

        if (r != 0)
                return r;
        device->vk.GetPhysicalDeviceProperties2(device->physical, &p);
        queue = choose_queue(device);
        if (queue < 0)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "%s has no queue that computes", properties.deviceName);
        device->queue_family = (uint32_t)queue;
        r = create_device(device, &properties, err);
        if (r == 0)
                r = look_at_memory(device, properties.deviceType, err);
        if (r != 0)
                return r;
        result = create_objects(device);
        if (result != VK_SUCCESS)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "cannot open %s: %s", properties.deviceName,
                                     tdm_vk_result_name(result));
        device->memory.max_allocation = p11.maxMemoryAllocationSize;
        device->max_groups_x = properties.limits.maxComputeWorkGroupCount[0];
        device->ns_per_tick = properties.limits.timestampPeriod;
        device->is_cpu = properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
        few_registers = tdm_vk_switch_is(TDM_VK_SWITCH_KERNELS, "few-registers");
        device->few_kernels = device->is_cpu && !few_registers && !tdm_vk_switch_is(TDM_VK_SWITCH_KERNELS, "all");
        snprintf(device->numerics_id, sizeof(device->numerics_id), "vulkan-9/%.80s/%.40s/%.60s", properties.deviceName,
                 p12.driverName, p12.driverInfo);
        device->properties = properties;
        device->few_registers =
                (properties.vendorID == TDM_VK_VENDOR_INTEL || few_registers) && !tdm_vk_chain_wanted(device);
        tdm_vk_cache_open(device, sane);
        /* A driver loads its compiler with the first kernel: that must happen before files are out of reach. */
        r = tdm_vk_pipeline_need(device, TDM_VK_NORM, (const uint32_t[]){ 0, TDM_VK_ACT_I8, 1, 0 }, err);
        for (unsigned i = 0; i < TDM_VK_STAGES && r == 0; i++)
                r = tdm_vk_buffer_init(device, &device->stages[i], TDM_VK_STAGE_BYTES, TDM_VK_HOST_MEMORY, "staging",
                                       err);
        if (r != 0)
                return r;
        tdm_vk_cache_save(device);
        snprintf(device->description, sizeof(device->description),
                 "%.60s, %s, memory %s, %.1f GiB, subgroups of %u%s, %.40s", properties.deviceName,
                 type_name(properties.deviceType), device->memory.import ? "imported" : "copied",
                 (double)tdm_vk_heaps_bytes(&device->memory.properties, device->memory.heaps) / 0x1p30,
                 p11.subgroupSize,
                 device->units.f16                       ? ", int8 and f16 matrices" :
                 device->units.int8 || device->units.any ? ", int8 matrices" :
                                                           "",
                 p12.driverInfo);
        return 0;
}

int tdm_vk_device_open(struct tdm_vk_device **ret, const struct tdm_device_config *config,
                       bool (*sane)(const struct tdm_vk_tuned *tuned), struct tdm_error *err)
{
        struct tdm_vk_device *device = calloc(1, sizeof(*device));
        int r;

        if (!device)
                return tdm_error_set(err, -ENOMEM, "vulkan device: no memory");
        device->next_stage = 1;
        device->kept.fd = -1;
        device->heartbeat = config->heartbeat;
        device->memory.limit_bytes = config->memory_bytes;
        r = tdm_pool_new(&device->threads, config->n_threads, config->heartbeat);
        if (r < 0)
                tdm_error_set(err, r, "vulkan device: cannot start threads: %s", strerror(-r));
        else
                r = tdm_vk_open(&device->vk, err);
        if (r == 0)
                r = open_gpu(device, config, sane, err);
        if (r != 0) {
                tdm_vk_device_close(device);
                return r;
        }
        *ret = device;
        return 0;
}
