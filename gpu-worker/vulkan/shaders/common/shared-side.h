/* What C and GLSL both know of side.comp: see shared.h. */
#ifndef TDM_VULKAN_SHADERS_SHARED_SIDE_H
#define TDM_VULKAN_SHADERS_SHARED_SIDE_H

#include "gpu-worker/vulkan/shaders/common/shared.h"

/* OP. Rows of x, y and other are f32; the first two leave rounded rows, n columns each. */
#define TDM_VK_SIDE_COPY 0  /* x, times gain where there is one */
#define TDM_VK_SIDE_GATED 1 /* gelu(x) * other */
/* y = (rmsnorm(y * factor) * gain + other * factor1) / sqrt 2 */
#define TDM_VK_SIDE_INPUT 2
/* y += rmsnorm(x) * gain, where x is not 0; then y is multiplied with the number at other, where that is not 0 */
#define TDM_VK_SIDE_ADD 3
/* y = rmsnorm(y) * gain + rmsnorm(x) * gain1 */
#define TDM_VK_SIDE_BOTH 4
#define TDM_VK_SIDE_NORM 5 /* y = rmsnorm(y) * gain */
struct tdm_vk_side_push {
        TDM_U64 x;
        TDM_U64 other;
        TDM_U64 y;
        TDM_U64 gain; /* [n]; 0: none */
        TDM_U64 gain1;
        TDM_U64 acts;
        TDM_U64 scale_sums; /* as in tdm_vk_norm_push */
        TDM_U32 n;
        TDM_U32 x_stride; /* in numbers, as the two below */
        TDM_U32 other_stride;
        TDM_U32 y_stride;
        TDM_U32 scale_sums_rows;
        TDM_F32 eps;
        TDM_F32 factor;
        TDM_F32 factor1;
        TDM_F32 act_scale;
        TDM_U32 pad0;
        TDM_VK_CHAIN
};

#endif
