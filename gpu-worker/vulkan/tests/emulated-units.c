/* The code behind emulated-units.h. */
#include "gpu-worker/vulkan/tests/emulated-units.h"

#include <stdlib.h>

#include "gpu-worker/vulkan/device/gpu.h"
#include "spirv-emulated.h"

static struct tdm_vk_code code(enum tdm_vk_shader shader, bool subblock)
{
#define CODE(symbol)                                                                                                   \
        (struct tdm_vk_code)                                                                                           \
        {                                                                                                              \
                tdm_spirv_##symbol##_emulated, (size_t)((const char *)tdm_spirv_##symbol##_emulated_end -              \
                                                        (const char *)tdm_spirv_##symbol##_emulated)                   \
        }
        switch (shader) {
        case TDM_VK_MATMUL_INT8_ANY:
                return subblock ? CODE(matmul_int8_any_subblock) : CODE(matmul_int8_any);
        case TDM_VK_MATVEC_F16:
                return subblock ? CODE(matvec_f16_subblock) : CODE(matvec_f16);
        case TDM_VK_MATMUL_F16:
                return subblock ? CODE(matmul_f16_subblock) : CODE(matmul_f16);
        case TDM_VK_MATVEC_F16_EXPERTS:
                return subblock ? CODE(matvec_f16_subblock_experts) : CODE(matvec_f16_experts);
        case TDM_VK_MATMUL_F16_EXPERTS:
                return subblock ? CODE(matmul_f16_subblock_experts) : CODE(matmul_f16_experts);
        case TDM_VK_MATMUL_F16_WIDE_EXPERTS:
                return subblock ? CODE(matmul_f16_wide_subblock_experts) : CODE(matmul_f16_wide_experts);
        default:
                return subblock ? CODE(matmul_f16_wide_subblock) : CODE(matmul_f16_wide);
        }
}

void emulate_units(void)
{
        if (!getenv("TANDEM_TEST_SHIPPED_KERNELS"))
                tdm_vk_emulated_code = code;
}
