/* Which instruction set's passes over logits are taken. */
#include "engine/sampling/lanes-table.h"

const struct tdm_lanes_table *tdm_lanes(void)
{
#ifdef __x86_64__
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
                return &tdm_lanes_avx512;
        if (__builtin_cpu_supports("avx2"))
                return &tdm_lanes_avx2;
#endif
        return &tdm_lanes_plain;
}
