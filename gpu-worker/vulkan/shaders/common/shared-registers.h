/* What kernels for few registers have beside their other numbers, in C and in GLSL. Only where no kernel waits for
 * another (device/chain.c). */
#ifndef TDM_VULKAN_SHADERS_SHARED_REGISTERS_H
#define TDM_VULKAN_SHADERS_SHARED_REGISTERS_H

/* SHAPE of matvec.comp and matvec-gelu.comp: the loop over blocks stays a loop. In an unrolled one a compiler has more
 * blocks on their way than SHAPE says. */
#define TDM_VK_MATVEC_ROLLED (1u << 23)
/* ROWS of attend.comp: fewer keys and values on their way at once. */
#define TDM_VK_ATTEND_NARROW 512u

#endif
