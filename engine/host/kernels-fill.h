/* How the table of kernels is assembled: each file fills what it has, the C reference first, then every ISA above it
 * that the CPU knows. For kernels.c and the tests of single files; callers use tdm_kernels_choose(). */
#ifndef TDM_ENGINE_HOST_KERNELS_FILL_H
#define TDM_ENGINE_HOST_KERNELS_FILL_H

#include "engine/host/kernels.h"

void tdm_kernels_c_matmul_fill(struct tdm_kernels *kernels);
void tdm_kernels_c_matmul_subblock_fill(struct tdm_kernels *kernels);
void tdm_kernels_c_ops_fill(struct tdm_kernels *kernels);
#ifdef __x86_64__
void tdm_kernels_avx2_matmul_fill(struct tdm_kernels *kernels);
void tdm_kernels_avx2_matmul_subblock_fill(struct tdm_kernels *kernels);
void tdm_kernels_avx2_ops_fill(struct tdm_kernels *kernels);
void tdm_kernels_avx512_matmul_fill(struct tdm_kernels *kernels);
void tdm_kernels_avx512_matmul_subblock_fill(struct tdm_kernels *kernels);
void tdm_kernels_avx512_ops_fill(struct tdm_kernels *kernels);
#endif

#endif
