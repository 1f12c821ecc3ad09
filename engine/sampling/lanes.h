/* LANES lanes at once, written with the compilers' generic vectors. The file of an instruction set that includes this
 * says how many (lanes-table.h): as many as one of its registers has, since of wider ones the compiler compares lane by
 * lane. Contraction is off, so a function has the same bits whatever instructions it is made of. */
#ifndef TDM_ENGINE_SAMPLING_LANES_H
#define TDM_ENGINE_SAMPLING_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef float lanes_f __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t lanes_i __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t lanes_u __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define inline_always static inline __attribute__((always_inline))

/* v = e^v for v <= 0, relative error below 2e-7; 0 below -87. Split as 2^n e^r with |r| <= ln(2) / 2; the polynomial is
 * the Taylor series to degree 7, whose rest is below 2^-27 there. */
inline_always void exp_negative(lanes_f *v)
{
        lanes_i small = *v < -87.0f;
        lanes_f x = (lanes_f)(((lanes_i)*v & ~small) | ((lanes_i)(lanes_f){ 0 } & small));
        lanes_f shifted = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: rounds to a whole number */
        lanes_f n = shifted - 12582912.0f;
        lanes_f r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
        lanes_f p = r * (1.0f / 5040.0f) + 1.0f / 720.0f;

        p = p * r + 1.0f / 120.0f;
        p = p * r + 1.0f / 24.0f;
        p = p * r + 1.0f / 6.0f;
        p = p * r + 0.5f;
        p = p * r + 1.0f;
        p = p * r + 1.0f;
        p *= (lanes_f)(((lanes_u)shifted + 127) << 23); /* the low bits of shifted are n, in two's complement */
        *v = (lanes_f)((lanes_i)p & ~small);
}

/* The last, partial group of lanes, filled up with -inf. */
inline_always void load_lanes(lanes_f *v, const float *x, uint32_t n)
{
        if (n >= LANES) {
                *v = *(const lanes_f *)x;
                return;
        }
        for (uint32_t lane = 0; lane < LANES; lane++)
                (*v)[lane] = lane < n ? x[lane] : -INFINITY;
}

#endif
