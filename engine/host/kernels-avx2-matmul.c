/* Matrix kernels for AVX2. */
#include "engine/host/kernels-fill.h"
#ifdef __x86_64__
void tdm_kernels_avx2_matmul_fill(struct tdm_kernels *kernels)
{
}
#endif
