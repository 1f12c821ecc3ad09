/* The code behind emulated-units.h. */
#include "gpu-worker/vulkan/tests/emulated-units.h"

#include <stdlib.h>

#include "gpu-worker/vulkan/device/gpu.h"

static const uint32_t matvec[] =
#include "matvec-f16-emulated.inc"
        ;
static const uint32_t matmul[] =
#include "matmul-f16-emulated.inc"
        ;
static const uint32_t wide[] =
#include "matmul-f16-wide-emulated.inc"
        ;
static const uint32_t matvec_subblock[] =
#include "matvec-f16-subblock-emulated.inc"
        ;
static const uint32_t matmul_subblock[] =
#include "matmul-f16-subblock-emulated.inc"
        ;
static const uint32_t wide_subblock[] =
#include "matmul-f16-wide-subblock-emulated.inc"
        ;
static const uint32_t matvec_experts[] =
#include "matvec-f16-experts-emulated.inc"
        ;
static const uint32_t matvec_subblock_experts[] =
#include "matvec-f16-subblock-experts-emulated.inc"
        ;
static const uint32_t matmul_experts[] =
#include "matmul-f16-experts-emulated.inc"
        ;
static const uint32_t matmul_subblock_experts[] =
#include "matmul-f16-subblock-experts-emulated.inc"
        ;
static const uint32_t wide_experts[] =
#include "matmul-f16-wide-experts-emulated.inc"
        ;
static const uint32_t wide_subblock_experts[] =
#include "matmul-f16-wide-subblock-experts-emulated.inc"
        ;

static const uint32_t any[] =
#include "matmul-int8-any-emulated.inc"
        ;
static const uint32_t any_subblock[] =
#include "matmul-int8-any-subblock-emulated.inc"
        ;

static struct tdm_vk_code code(enum tdm_vk_shader shader, bool subblock)
{
#define CODE(name)                                                                                                     \
        (struct tdm_vk_code)                                                                                           \
        {                                                                                                              \
                name, sizeof(name)                                                                                     \
        }
        switch (shader) {
        case TDM_VK_MATMUL_INT8_ANY:
                return subblock ? CODE(any_subblock) : CODE(any);
        case TDM_VK_MATVEC_F16:
                return subblock ? CODE(matvec_subblock) : CODE(matvec);
        case TDM_VK_MATMUL_F16:
                return subblock ? CODE(matmul_subblock) : CODE(matmul);
        case TDM_VK_MATVEC_F16_EXPERTS:
                return subblock ? CODE(matvec_subblock_experts) : CODE(matvec_experts);
        case TDM_VK_MATMUL_F16_EXPERTS:
                return subblock ? CODE(matmul_subblock_experts) : CODE(matmul_experts);
        case TDM_VK_MATMUL_F16_WIDE_EXPERTS:
                return subblock ? CODE(wide_subblock_experts) : CODE(wide_experts);
        default:
                return subblock ? CODE(wide_subblock) : CODE(wide);
        }
}

void emulate_units(void)
{
        if (!getenv("TANDEM_TEST_SHIPPED_KERNELS"))
                tdm_vk_emulated_code = code;
}
