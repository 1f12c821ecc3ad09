/* Cooperative matrices: whether the device has the shapes that the kernels for matrix units are written for. */
#include "gpu-worker/vulkan/device/gpu-private.h"

/* As in the extension's specification; older headers do not have it. */
#define COOPERATIVE_MATRIX_EXTENSION "VK_KHR_cooperative_matrix"
#define STRUCTURE_TYPE_FEATURES ((VkStructureType)1000506000)
#define STRUCTURE_TYPE_PROPERTIES ((VkStructureType)1000506001)
#define COMPONENT_FLOAT16 0
#define COMPONENT_FLOAT32 1
#define COMPONENT_SINT8 3
#define COMPONENT_SINT32 5
#define SCOPE_SUBGROUP 3

struct cooperative_properties {
        VkStructureType sType;
        void *pNext;
        uint32_t m, n, k;
        uint32_t a, b, c, result;
        VkBool32 saturating;
        uint32_t scope;
};
typedef VkResult(VKAPI_PTR *cooperative_properties_fn)(VkPhysicalDevice, uint32_t *, struct cooperative_properties *);

bool tdm_vk_matrix_units(const struct tdm_vk_device *device, enum tdm_vk_units units)
{
        bool f16 = units == TDM_VK_UNITS_F16;
        uint32_t k = f16 ? 16 : 32, input = f16 ? COMPONENT_FLOAT16 : COMPONENT_SINT8,
                 output = f16 ? COMPONENT_FLOAT32 : COMPONENT_SINT32;
        cooperative_properties_fn list = (cooperative_properties_fn)device->vk.GetInstanceProcAddr(
                device->vk.instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
        struct cooperative_properties properties[64];
        uint32_t n = TDM_ARRAY_SIZE(properties);

        for (uint32_t i = 0; i < n; i++)
                properties[i] = (struct cooperative_properties){ .sType = STRUCTURE_TYPE_PROPERTIES };
        if (!list || list(device->physical, &n, properties) < 0)
                return false;
        for (uint32_t i = 0; i < n; i++) {
                const struct cooperative_properties *p = &properties[i];

                if (p->m == 16 && p->n == 8 && p->k == k && p->a == input && p->b == input && p->c == output &&
                    p->result == output && p->scope == SCOPE_SUBGROUP && !p->saturating)
                        return true;
        }
        return false;
}

const char *tdm_vk_matrix_feature(struct tdm_vk_matrix_features *features)
{
        *features = (struct tdm_vk_matrix_features){ .type = STRUCTURE_TYPE_FEATURES, .cooperative_matrix = VK_TRUE };
        return COOPERATIVE_MATRIX_EXTENSION;
}
