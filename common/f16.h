/* 16-bit floats to f32, exactly, and back, on any CPU. Kernels have their own instructions for it and agree with these.
 */
#ifndef TDM_COMMON_F16_H
#define TDM_COMMON_F16_H

#include "common/util.h"

static inline float tdm_bits_to_f32(uint32_t bits)
{
        float f;

        memcpy(&f, &bits, sizeof(f));
        return f;
}

static inline uint32_t tdm_f32_to_bits(float f)
{
        uint32_t bits;

        memcpy(&bits, &f, sizeof(bits));
        return bits;
}

static inline float tdm_bf16_to_f32(uint16_t h)
{
        return tdm_bits_to_f32((uint32_t)h << 16);
}

static inline float tdm_f16_to_f32(uint16_t h)
{
        uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff;

        if (magnitude >= 0x7c00) /* infinite or NaN */
                return tdm_bits_to_f32(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
        if (magnitude < 0x400) /* zero or subnormal: a multiple of 2^-24, and f32 holds it as a normal number */
                return tdm_bits_to_f32(sign | tdm_f32_to_bits((float)magnitude * 0x1p-24f));
        return tdm_bits_to_f32(sign | ((magnitude << 13) + ((127 - 15) << 23)));
}

/* To nearest, ties to even. |x| <= 65504. */
static inline uint16_t tdm_f32_to_f16(float x)
{
        uint32_t bits = tdm_f32_to_bits(x), magnitude = bits & 0x7fffffff;
        uint16_t sign = bits >> 16 & 0x8000;

        if (magnitude < 0x38800000) /* the f32 adder rounds at 2^-24, which is f16's last place down there */
                return sign | (uint16_t)(tdm_f32_to_bits(tdm_bits_to_f32(magnitude) + 0.5f) - tdm_f32_to_bits(0.5f));
        magnitude -= 0x38000000;
        return sign | (uint16_t)((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

#endif
