/* The SIMD versions of norms, activation and rotation, written once over a vector of 16 floats; those of KV rows and
 * attention follow in kernels-simd-attend.h.
 *
 * A file of one ISA defines `struct v16` and its operations, then includes this; so AVX2 (two registers) and AVX-512
 * (one) cannot differ in order, and both follow the C reference (kernels-c-ops.c) lane by lane. Tails are loaded with
 * zeros in the lanes past the end: a zero added to a partial sum changes no bit.
 *
 * Wanted: v16_zero, set1, load, load_n, store, store_n, add, sub, mul, div, fma (a b + c), fnma (c - a b), min, max
 * (both "a OP b ? a : b", so a NaN comes from b), pow2 (the two factors of 2^n from the bits of x + 1.5 · 2²³), keep
 * (lanes lo … hi-1 of one vector, the other's elsewhere), fold_add (i with i+8, +4, +2, +1), fold_max, count_above
 * (lanes whose magnitude is above, or NaN), finite_or_zero (NaN lanes become 0), load_f16, store_f16 (to nearest even),
 * load_i8, store_i8 (of integers -127 … 127, or rounded to nearest even), and the numbers V16_MAX_QUERIES (1 … 8
 * queries that share loads), V16_SCORE_GROUPS(n_queries) (times 16 keys) and V16_VALUE_VECTORS(n_queries). */
#include <float.h>
#include <math.h>

#include "engine/host/kernels-ops.h"

#define TDM_INLINE static inline __attribute__((always_inline))

TDM_INLINE struct v16 v16_exp(struct v16 x)
{
        struct v16 t, n, r, p, low, high;

        x = v16_min(v16_set1(TDM_EXP_MAX), x);
        x = v16_max(v16_set1(TDM_EXP_MIN), x);
        t = v16_fma(x, v16_set1(TDM_EXP_LOG2E), v16_set1(TDM_EXP_MAGIC));
        n = v16_sub(t, v16_set1(TDM_EXP_MAGIC));
        r = v16_fnma(n, v16_set1(TDM_EXP_LN2_HI), x);
        r = v16_fnma(n, v16_set1(TDM_EXP_LN2_LO), r);
        p = v16_fma(v16_set1(TDM_EXP_C6), r, v16_set1(TDM_EXP_C5));
        p = v16_fma(p, r, v16_set1(TDM_EXP_C4));
        p = v16_fma(p, r, v16_set1(TDM_EXP_C3));
        p = v16_fma(p, r, v16_set1(TDM_EXP_C2));
        p = v16_fma(p, r, v16_set1(1.0f));
        p = v16_fma(p, r, v16_set1(1.0f));
        v16_pow2(t, &low, &high);
        return v16_mul(v16_mul(p, low), high);
}

static void exp_array(const float *x, uint32_t n, float *y)
{
        uint32_t i = 0;

        for (; i + 16 <= n; i += 16)
                v16_store(y + i, v16_exp(v16_load(x + i)));
        if (i < n)
                v16_store_n(y + i, v16_exp(v16_load_n(x + i, n - i)), n - i);
}

TDM_INLINE float norm_scale(const float *x, uint32_t n, float eps)
{
        struct v16 s = v16_zero();
        uint32_t i = 0;

        for (; i + 16 <= n; i += 16)
                s = v16_fma(v16_load(x + i), v16_load(x + i), s);
        if (i < n) {
                struct v16 tail = v16_load_n(x + i, n - i);

                s = v16_fma(tail, tail, s);
        }
        return 1.0f / sqrtf(v16_fold_add(s) / (float)n + eps);
}

static void rmsnorm(const float *x, const float *gain, uint32_t n, float eps, float *y)
{
        struct v16 scale = v16_set1(norm_scale(x, n, eps));
        uint32_t i = 0;

        for (; i + 16 <= n; i += 16)
                v16_store(y + i, v16_mul(v16_mul(v16_load(x + i), scale), v16_load(gain + i)));
        if (i < n)
                v16_store_n(y + i, v16_mul(v16_mul(v16_load_n(x + i, n - i), scale), v16_load_n(gain + i, n - i)),
                            n - i);
}

static void rmsnorm_add(const float *y, const float *gain, uint32_t n, float eps, float *h)
{
        struct v16 scale = v16_set1(norm_scale(y, n, eps));
        uint32_t i = 0;

        for (; i + 16 <= n; i += 16)
                v16_store(h + i,
                          v16_add(v16_load(h + i), v16_mul(v16_mul(v16_load(y + i), scale), v16_load(gain + i))));
        if (i < n)
                v16_store_n(h + i,
                            v16_add(v16_load_n(h + i, n - i),
                                    v16_mul(v16_mul(v16_load_n(y + i, n - i), scale), v16_load_n(gain + i, n - i))),
                            n - i);
}

static float mean_square(const float *x, uint32_t n)
{
        struct v16 s = v16_zero();
        uint32_t i = 0;

        for (; i + 16 <= n; i += 16)
                s = v16_fma(v16_load(x + i), v16_load(x + i), s);
        if (i < n) {
                struct v16 tail = v16_load_n(x + i, n - i);

                s = v16_fma(tail, tail, s);
        }
        return v16_fold_add(s) / (float)n;
}

/* The sum of (x - mean)². Lanes past the end: mean - mean. */
TDM_INLINE float sum_of_squares(const float *x, struct v16 mean, uint32_t n)
{
        struct v16 s = v16_zero();
        uint32_t i = 0;

        for (; i + 16 <= n; i += 16) {
                struct v16 difference = v16_sub(v16_load(x + i), mean);

                s = v16_fma(difference, difference, s);
        }
        if (i < n) {
                struct v16 difference = v16_sub(v16_keep(v16_load_n(x + i, n - i), mean, 0, 0, n - i), mean);

                s = v16_fma(difference, difference, s);
        }
        return v16_fold_add(s);
}

static void layernorm(const float *x, const float *gain, const float *bias, uint32_t n, float eps, float *y)
{
        struct v16 s = v16_zero(), mean, scale;
        uint32_t i = 0;

        for (; i + 16 <= n; i += 16)
                s = v16_add(s, v16_load(x + i));
        if (i < n)
                s = v16_add(s, v16_load_n(x + i, n - i));
        mean = v16_set1(v16_fold_add(s) / (float)n);
        scale = v16_set1(1.0f / sqrtf(sum_of_squares(x, mean, n) / (float)n + eps));
        for (i = 0; i + 16 <= n; i += 16)
                v16_store(y + i, v16_fma(v16_mul(v16_sub(v16_load(x + i), mean), scale), v16_load(gain + i),
                                         v16_load(bias + i)));
        if (i < n)
                v16_store_n(y + i,
                            v16_fma(v16_mul(v16_sub(v16_load_n(x + i, n - i), mean), scale),
                                    v16_load_n(gain + i, n - i), v16_load_n(bias + i, n - i)),
                            n - i);
}

static void cut_below(float *x, uint32_t n, float scale)
{
        struct v16 s = v16_zero(), mean, cut;
        uint32_t i = 0;
        float m;

        for (; i + 16 <= n; i += 16)
                s = v16_add(s, v16_load(x + i));
        if (i < n)
                s = v16_add(s, v16_load_n(x + i, n - i));
        m = v16_fold_add(s) / (float)n;
        mean = v16_set1(m);
        cut = v16_set1(fmaf(scale, sqrtf(sum_of_squares(x, mean, n) / (float)n), m));
        for (i = 0; i + 16 <= n; i += 16)
                v16_store(x + i, v16_max(v16_sub(v16_load(x + i), cut), v16_zero()));
        if (i < n)
                v16_store_n(x + i, v16_max(v16_sub(v16_load_n(x + i, n - i), cut), v16_zero()), n - i);
}

TDM_INLINE struct v16 gelu_one(struct v16 g, struct v16 up)
{
        struct v16 t = v16_fma(v16_mul(v16_mul(g, g), v16_set1(TDM_GELU_CUBE)), g, g);
        struct v16 e = v16_exp(v16_mul(t, v16_set1(TDM_GELU_TWO_SQRT_2_PI)));
        struct v16 v = v16_sub(v16_set1(2.0f), v16_div(v16_set1(2.0f), v16_add(e, v16_set1(1.0f))));

        v = v16_mul(v16_mul(v16_mul(g, v16_set1(0.5f)), v), up);
        return v16_max(v16_set1(-FLT_MAX), v16_min(v16_set1(FLT_MAX), v));
}

static void gelu_mul(const float *gate, const float *up, uint32_t n, float *y)
{
        uint32_t i = 0;

        for (; i + 16 <= n; i += 16)
                v16_store(y + i, gelu_one(v16_load(gate + i), v16_load(up + i)));
        if (i < n)
                v16_store_n(y + i, gelu_one(v16_load_n(gate + i, n - i), v16_load_n(up + i, n - i)), n - i);
}

TDM_INLINE struct v16 gelu_erf_one(struct v16 x)
{
        const struct v16 one = v16_set1(1.0f);
        struct v16 a = v16_max(x, v16_sub(v16_set1(-0.0f), x)), z = v16_mul(a, v16_set1(TDM_SQRT_HALF));
        struct v16 t = v16_div(one, v16_fma(v16_set1(TDM_ERFC_P), z, one));
        struct v16 p = v16_fma(v16_set1(TDM_ERFC_C5), t, v16_set1(TDM_ERFC_C4));

        p = v16_fma(p, t, v16_set1(TDM_ERFC_C3));
        p = v16_fma(p, t, v16_set1(TDM_ERFC_C2));
        p = v16_fma(p, t, v16_set1(TDM_ERFC_C1));
        p = v16_mul(v16_mul(p, t), v16_exp(v16_sub(v16_set1(-0.0f), v16_mul(z, z))));
        return v16_fnma(v16_mul(a, v16_set1(0.5f)), p, v16_max(x, v16_zero()));
}

static void gelu_erf(const float *x, uint32_t n, float *y)
{
        uint32_t i = 0;

        for (; i + 16 <= n; i += 16)
                v16_store(y + i, gelu_erf_one(v16_load(x + i)));
        if (i < n)
                v16_store_n(y + i, gelu_erf_one(v16_load_n(x + i, n - i)), n - i);
}

TDM_INLINE struct v16 silu_one(struct v16 g, struct v16 up)
{
        struct v16 e = v16_exp(v16_sub(v16_set1(-0.0f), g)); /* -0 - x: exactly -x */
        struct v16 v = v16_mul(v16_div(g, v16_add(e, v16_set1(1.0f))), up);

        return v16_max(v16_set1(-FLT_MAX), v16_min(v16_set1(FLT_MAX), v));
}

static void silu_mul(const float *gate, const float *up, uint32_t n, float *y)
{
        uint32_t i = 0;

        for (; i + 16 <= n; i += 16)
                v16_store(y + i, silu_one(v16_load(gate + i), v16_load(up + i)));
        if (i < n)
                v16_store_n(y + i, silu_one(v16_load_n(gate + i, n - i), v16_load_n(up + i, n - i)), n - i);
}

TDM_INLINE struct v16 swiglu_one(struct v16 g, struct v16 u)
{
        const struct v16 limit = v16_set1(TDM_SWIGLU_LIMIT), one = v16_set1(1.0f);

        g = v16_min(limit, g);
        u = v16_max(v16_set1(-TDM_SWIGLU_LIMIT), v16_min(limit, u));
        return v16_mul(v16_div(g, v16_add(v16_exp(v16_mul(v16_set1(-TDM_SWIGLU_ALPHA), g)), one)), v16_add(u, one));
}

static void swiglu_clamped(const float *gate, const float *up, uint32_t n, float *y)
{
        uint32_t i = 0;

        for (; i + 16 <= n; i += 16)
                v16_store(y + i, swiglu_one(v16_load(gate + i), v16_load(up + i)));
        if (i < n)
                v16_store_n(y + i, swiglu_one(v16_load_n(gate + i, n - i), v16_load_n(up + i, n - i)), n - i);
}

TDM_INLINE void rope_step(float *left, float *right, const float *cos, const float *sin, uint32_t n)
{
        struct v16 l = v16_load_n(left, n), r = v16_load_n(right, n);
        struct v16 c = v16_load_n(cos, n), s = v16_load_n(sin, n);
        struct v16 minus_rs = v16_sub(v16_set1(-0.0f), v16_mul(r, s)); /* -0 - x: exactly -x, also of zeros */

        v16_store_n(left, v16_fma(l, c, minus_rs), n);
        v16_store_n(right, v16_fma(r, c, v16_mul(l, s)), n);
}

static void rope(float *x, const float *cos, const float *sin, uint32_t head_dim)
{
        uint32_t half = head_dim / 2, i = 0;

        for (; i + 16 <= half; i += 16)
                rope_step(x + i, x + half + i, cos + i, sin + i, 16);
        if (i < half)
                rope_step(x + i, x + half + i, cos + i, sin + i, half - i);
}

#include "engine/host/kernels-simd-attend.h"
#include "engine/host/kernels-simd-delta.h"
#include "engine/host/kernels-simd-sparse.h"

static void fill(struct tdm_kernels *kernels)
{
        kernels->rmsnorm = rmsnorm;
        kernels->rmsnorm_add = rmsnorm_add;
        kernels->mean_square = mean_square;
        kernels->layernorm = layernorm;
        kernels->gelu_erf = gelu_erf;
        kernels->cut_below = cut_below;
        kernels->add_columns = add_columns;
        kernels->interleave = interleave;
        kernels->turn_columns = turn_columns;
        kernels->gelu_mul = gelu_mul;
        kernels->silu_mul = silu_mul;
        kernels->swiglu_clamped = swiglu_clamped;
        kernels->rope = rope;
        kernels->kv_store = kv_store;
        kernels->attend_span = attend_span;
        kernels->attend_merge = attend_merge;
        kernels->delta_rows = delta_rows;
        kernels->exp_array = exp_array;
}
