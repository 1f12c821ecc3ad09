/* The SHAPE of matmul-int8-any.comp, which C and GLSL both know: what a subgroup makes, in tiles of the device's matrix
 * units, how many subgroups of a workgroup have rows of their own, how many blocks of 32 columns lie in shared memory
 * at once, and what the device's units are: m rows by n outputs by k columns, in a subgroup of so many. The last four
 * are multiples of 8. */
#ifndef TDM_VULKAN_SHADERS_SHARED_TILES_H
#define TDM_VULKAN_SHADERS_SHARED_TILES_H

#define TDM_VK_TILES(row_tiles, out_tiles, row_groups, blocks)                                                         \
        ((row_tiles) | (out_tiles) << 4 | (row_groups) << 8 | (blocks) << 12)
#define TDM_VK_TILES_UNIT(m, n, k, subgroup) ((m) / 8 << 16 | (n) / 8 << 20 | (k) / 8 << 24 | (subgroup) / 8 << 28)
#define TDM_VK_TILES_ROWS(shape) ((shape)&15u)
#define TDM_VK_TILES_OUTS(shape) ((shape) >> 4 & 15u)
#define TDM_VK_TILES_ROW_GROUPS(shape) ((shape) >> 8 & 15u)
#define TDM_VK_TILES_BLOCKS(shape) ((shape) >> 12 & 15u)
#define TDM_VK_TILES_M(shape) (((shape) >> 16 & 15u) * 8u)
#define TDM_VK_TILES_N(shape) (((shape) >> 20 & 15u) * 8u)
#define TDM_VK_TILES_K(shape) (((shape) >> 24 & 15u) * 8u)
#define TDM_VK_TILES_SUBGROUP(shape) (((shape) >> 28) * 8u)

#endif
