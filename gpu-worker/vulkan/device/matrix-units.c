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

#define LIST_MAX 64u

static uint32_t list_units(const struct tdm_vk_device *device, struct cooperative_properties ret[LIST_MAX])
{
        cooperative_properties_fn list = (cooperative_properties_fn)device->vk.GetInstanceProcAddr(
                device->vk.instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
        uint32_t n = LIST_MAX;

        for (uint32_t i = 0; i < n; i++)
                ret[i] = (struct cooperative_properties){ .sType = STRUCTURE_TYPE_PROPERTIES };
        return list && list(device->physical, &n, ret) >= 0 ? n : 0;
}

/* Whether two matrices of one type are multiplied by whole subgroups and added to one of the other. */
static bool units_take(const struct cooperative_properties *p, uint32_t input, uint32_t output)
{
        return p->a == input && p->b == input && p->c == output && p->result == output && p->scope == SCOPE_SUBGROUP &&
               !p->saturating;
}

bool tdm_vk_matrix_units(const struct tdm_vk_device *device, enum tdm_vk_units units)
{
        bool f16 = units == TDM_VK_UNITS_F16;
        uint32_t k = f16 ? 16 : 32, input = f16 ? COMPONENT_FLOAT16 : COMPONENT_SINT8,
                 output = f16 ? COMPONENT_FLOAT32 : COMPONENT_SINT32;
        struct cooperative_properties list[LIST_MAX];
        uint32_t n = list_units(device, list);

        for (uint32_t i = 0; i < n; i++)
                if (list[i].m == 16 && list[i].n == 8 && list[i].k == k && units_take(&list[i], input, output))
                        return true;
        return false;
}

uint32_t tdm_vk_matrix_units_any(const struct tdm_vk_device *device, uint32_t subgroup)
{
        struct cooperative_properties list[LIST_MAX];
        uint32_t n = list_units(device, list), best = 0, most = 0;

        for (uint32_t i = 0; i < n; i++) {
                const struct cooperative_properties *p = &list[i];
                uint32_t product = p->m * p->n * p->k;

                /* A tile of outputs is a panel, and a subgroup stores a result by 16 bytes. Units of 8 rows are
                 * Intel's, whose registers have no room for these tiles (docs/gpu-compilers.md). */
                if (!units_take(p, COMPONENT_SINT8, COMPONENT_SINT32) || p->m != 16 || p->n != 16 ||
                    (p->k != 16 && p->k != 32) || p->m * p->n / 4 % subgroup != 0 || product <= most)
                        continue;
                most = product;
                best = TDM_VK_TILES_UNIT(p->m, p->n, p->k, subgroup);
        }
        return best;
}

const char *tdm_vk_matrix_feature(struct tdm_vk_matrix_features *features)
{
        *features = (struct tdm_vk_matrix_features){ .type = STRUCTURE_TYPE_FEATURES, .cooperative_matrix = VK_TRUE };
        return COOPERATIVE_MATRIX_EXTENSION;
}
