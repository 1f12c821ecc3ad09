/* Matrix kernels for AVX-512. */
#include "engine/host/kernels-fill.h"
#ifdef __x86_64__
void tdm_kernels_avx512_matmul_fill(struct tdm_kernels *kernels)
{
}
#endif
