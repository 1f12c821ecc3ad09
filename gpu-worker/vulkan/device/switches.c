/* The environment's switches, for tests and comparisons: see docs/gpu.md. All names stand here, and nothing else of the
 * Vulkan device reads the environment for them. */
#include "gpu-worker/vulkan/device/gpu.h"

static const char *const names[TDM_VK_N_SWITCHES] = {
        [TDM_VK_SWITCH_DEVICE] = "TANDEM_VULKAN_DEVICE",       [TDM_VK_SWITCH_MEMORY] = "TANDEM_VULKAN_MEMORY",
        [TDM_VK_SWITCH_KERNELS] = "TANDEM_VULKAN_KERNELS",     [TDM_VK_SWITCH_MATRICES] = "TANDEM_VULKAN_MATRICES",
        [TDM_VK_SWITCH_CHAIN] = "TANDEM_VULKAN_CHAIN",         [TDM_VK_SWITCH_TUNE] = "TANDEM_VULKAN_TUNE",
        [TDM_VK_SWITCH_HALVES] = "TANDEM_VULKAN_HALVES",       [TDM_VK_SWITCH_ROWS] = "TANDEM_VULKAN_ROWS",
        [TDM_VK_SWITCH_LOGITS] = "TANDEM_VULKAN_LOGITS",       [TDM_VK_SWITCH_SUBMISSION] = "TANDEM_VULKAN_SUBMISSION",
        [TDM_VK_SWITCH_PIECE_KIB] = "TANDEM_VULKAN_PIECE_KIB",
};

const char *tdm_vk_switch_name(enum tdm_vk_switch which)
{
        return names[which];
}

const char *tdm_vk_switch(enum tdm_vk_switch which)
{
        const char *value = getenv(names[which]);

        return value && *value ? value : NULL;
}

bool tdm_vk_switch_is(enum tdm_vk_switch which, const char *word)
{
        const char *value = tdm_vk_switch(which);

        return value && strcmp(value, word) == 0;
}
