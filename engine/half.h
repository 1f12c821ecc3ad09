/* 16-bit floats to f32, exactly, on any CPU. Kernels have their own instructions for it and agree with these. */
#ifndef TDM_ENGINE_HALF_H
#define TDM_ENGINE_HALF_H

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

#endif
