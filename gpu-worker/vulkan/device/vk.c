/* Opening the Vulkan loader: see vk.h. */
#include <dlfcn.h>

#include "gpu-worker/vulkan/device/vk.h"

#define LIBRARY "libvulkan.so.1"

const char *tdm_vk_result_name(VkResult result)
{
        switch (result) {
        case VK_SUCCESS:
                return "success";
        case VK_TIMEOUT:
                return "timeout";
        case VK_ERROR_OUT_OF_HOST_MEMORY:
                return "out of host memory";
        case VK_ERROR_OUT_OF_DEVICE_MEMORY:
                return "out of device memory";
        case VK_ERROR_INITIALIZATION_FAILED:
                return "initialization failed";
        case VK_ERROR_DEVICE_LOST:
                return "device lost";
        case VK_ERROR_LAYER_NOT_PRESENT:
                return "layer not present";
        case VK_ERROR_EXTENSION_NOT_PRESENT:
                return "extension not present";
        case VK_ERROR_FEATURE_NOT_PRESENT:
                return "feature not present";
        case VK_ERROR_INCOMPATIBLE_DRIVER:
                return "incompatible driver";
        case VK_ERROR_INVALID_EXTERNAL_HANDLE:
                return "memory that cannot be imported";
        default:
                return "unexpected result";
        }
}

/* The part of every tdm_vk that the process has once; instance NULL: not there yet. */
static struct tdm_vk shared;

static void close_all(struct tdm_vk *vk)
{
        if (vk->instance && vk->DestroyInstance)
                vk->DestroyInstance(vk->instance, NULL);
        if (vk->library)
                dlclose(vk->library);
        *vk = (struct tdm_vk){};
}

int tdm_vk_open(struct tdm_vk *vk, struct tdm_error *err)
{
        const VkApplicationInfo application = { .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                                .pApplicationName = "tandem",
                                                .apiVersion = VK_API_VERSION_1_3 };
        const VkInstanceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                            .pApplicationInfo = &application };
        uint32_t version = 0;
        VkResult r;

        if (shared.instance) {
                *vk = shared;
                return 0;
        }
        *vk = (struct tdm_vk){ .library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) };
        if (!vk->library)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "cannot load %s (%s): install the Vulkan loader (Debian: libvulkan1) "
                                     "and a driver",
                                     LIBRARY, dlerror());
        *(void **)&vk->GetInstanceProcAddr = dlsym(vk->library, "vkGetInstanceProcAddr");
        if (!vk->GetInstanceProcAddr) {
                close_all(vk);
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "%s is no Vulkan loader", LIBRARY);
        }
#define LOAD_GLOBAL(name) vk->name = (PFN_vk##name)vk->GetInstanceProcAddr(NULL, "vk" #name);
        TDM_VK_GLOBAL_FUNCTIONS(LOAD_GLOBAL)
        if (!vk->CreateInstance || !vk->EnumerateInstanceVersion ||
            vk->EnumerateInstanceVersion(&version) != VK_SUCCESS || version < VK_API_VERSION_1_3) {
                close_all(vk);
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "the Vulkan loader speaks version %u.%u, needed is 1.3",
                                     VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version));
        }
        r = vk->CreateInstance(&info, NULL, &vk->instance);
        if (r != VK_SUCCESS) {
                vk->instance = VK_NULL_HANDLE;
                close_all(vk);
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "cannot start Vulkan: %s (no driver installed?)",
                                     tdm_vk_result_name(r));
        }
#define LOAD_INSTANCE(name) vk->name = (PFN_vk##name)vk->GetInstanceProcAddr(vk->instance, "vk" #name);
        TDM_VK_INSTANCE_FUNCTIONS(LOAD_INSTANCE)
#define CHECK_INSTANCE(name) || !vk->name
        if (false TDM_VK_INSTANCE_FUNCTIONS(CHECK_INSTANCE)) {
                close_all(vk);
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "the Vulkan loader lacks a function of version 1.3");
        }
        shared = *vk;
        return 0;
}

int tdm_vk_open_device(struct tdm_vk *vk, struct tdm_error *err)
{
#define LOAD_DEVICE(name) vk->name = (PFN_vk##name)vk->GetDeviceProcAddr(vk->device, "vk" #name);
        TDM_VK_DEVICE_FUNCTIONS(LOAD_DEVICE)
#define CHECK_DEVICE(name) || !vk->name
        if (false TDM_VK_DEVICE_FUNCTIONS(CHECK_DEVICE))
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "the Vulkan driver lacks a function of version 1.3");
        vk->GetMemoryHostPointerPropertiesEXT = (PFN_vkGetMemoryHostPointerPropertiesEXT)vk->GetDeviceProcAddr(
                vk->device, "vkGetMemoryHostPointerPropertiesEXT");
        vk->GetMemoryFdPropertiesKHR =
                (PFN_vkGetMemoryFdPropertiesKHR)vk->GetDeviceProcAddr(vk->device, "vkGetMemoryFdPropertiesKHR");
        return 0;
}

void tdm_vk_close(struct tdm_vk *vk)
{
        if (vk->device && vk->DestroyDevice)
                vk->DestroyDevice(vk->device, NULL);
        *vk = (struct tdm_vk){};
}
