/* f16 as the executor computes with it: every value, infinities and NaN too, one rounding. */
#ifndef TDM_TESTS_SPIRV_EXECUTOR_HALF_H
#define TDM_TESTS_SPIRV_EXECUTOR_HALF_H

#include <math.h>

#include "common/f16.h"

/* The value of each f16. */
extern float half_values[65536];

/* To nearest, ties to even. */
static inline uint32_t half_of(float x)
{
        uint32_t bits = tdm_f32_to_bits(x), magnitude = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;

        if (magnitude >= 0x477ff000) /* 65520: from there on */
                return sign | (magnitude > 0x7f800000 ? 0x7e00 : 0x7c00);
        return tdm_f32_to_f16(x);
}

/* The same of a double: f32's odd neighbour keeps what rounding must know. */
static inline uint32_t half_of_double(double x)
{
        float f = (float)x;
        uint32_t bits = tdm_f32_to_bits(f);

        if ((double)f != x && !(bits & 1) && f == f && !isinf(f))
                f = tdm_bits_to_f32(((double)f > x) == (f > 0) ? bits - 1 : bits + 1);
        return half_of(f);
}

#endif
