/* What C and GLSL both know of norm.comp alone: see shared.h. */
#ifndef TDM_VULKAN_SHADERS_SHARED_NORM_H
#define TDM_VULKAN_SHADERS_SHARED_NORM_H

/* FLAGS, beside those of shared.h: the norm before a block takes the mean off first. */
#define TDM_VK_NORM_CENTERED 64
/* With TDM_VK_NORM_ADD: the sum is left elsewhere than hidden is read. */
#define TDM_VK_NORM_ELSEWHERE 128
/* Of the push: how many numbers behind where hidden is read; a signed number. */
#define TDM_VK_NORM_LEAVES pad0

#endif
