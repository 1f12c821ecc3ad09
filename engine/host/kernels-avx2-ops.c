/* Norms, activation, rotation, KV rows and attention for AVX2 with FMA and F16C: the bodies are in kernels-simd-ops.h,
 * here is what 16 floats in two registers can do. */
#include "engine/host/kernels-fill.h"
#include "engine/host/kernels-ops.h"

#ifdef __x86_64__
#include <immintrin.h>

struct v16 {
        __m256 v[2];
};

#define OP static inline __attribute__((always_inline))
#define EACH(expression)                                                                                               \
        ({                                                                                                             \
                struct v16 each_;                                                                                      \
                _Pragma("GCC unroll 2") for (int j = 0; j < 2; j++) each_.v[j] = (expression);                         \
                each_;                                                                                                 \
        })

OP __m256i lanes(uint32_t first, uint32_t n) /* all ones where first + lane < n */
{
        return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n - (int)first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
OP struct v16 v16_zero(void)
{
        return EACH(_mm256_setzero_ps());
}
OP struct v16 v16_set1(float x)
{
        return EACH(_mm256_set1_ps(x));
}
OP struct v16 v16_load(const float *x)
{
        return EACH(_mm256_loadu_ps(x + 8 * j));
}
OP struct v16 v16_load_n(const float *x, uint32_t n)
{
        return EACH(_mm256_maskload_ps(x + 8 * j, lanes(8 * (uint32_t)j, n)));
}
OP void v16_store(float *x, struct v16 a)
{
        _mm256_storeu_ps(x, a.v[0]);
        _mm256_storeu_ps(x + 8, a.v[1]);
}
OP void v16_store_n(float *x, struct v16 a, uint32_t n)
{
        _mm256_maskstore_ps(x, lanes(0, n), a.v[0]);
        _mm256_maskstore_ps(x + 8, lanes(8, n), a.v[1]);
}
OP struct v16 v16_add(struct v16 a, struct v16 b)
{
        return EACH(_mm256_add_ps(a.v[j], b.v[j]));
}
OP struct v16 v16_sub(struct v16 a, struct v16 b)
{
        return EACH(_mm256_sub_ps(a.v[j], b.v[j]));
}
OP struct v16 v16_mul(struct v16 a, struct v16 b)
{
        return EACH(_mm256_mul_ps(a.v[j], b.v[j]));
}
OP struct v16 v16_div(struct v16 a, struct v16 b)
{
        return EACH(_mm256_div_ps(a.v[j], b.v[j]));
}
OP struct v16 v16_fma(struct v16 a, struct v16 b, struct v16 c)
{
        return EACH(_mm256_fmadd_ps(a.v[j], b.v[j], c.v[j]));
}
OP struct v16 v16_fnma(struct v16 a, struct v16 b, struct v16 c)
{
        return EACH(_mm256_fnmadd_ps(a.v[j], b.v[j], c.v[j]));
}
OP struct v16 v16_min(struct v16 a, struct v16 b)
{
        return EACH(_mm256_min_ps(a.v[j], b.v[j]));
}
OP struct v16 v16_max(struct v16 a, struct v16 b)
{
        return EACH(_mm256_max_ps(a.v[j], b.v[j]));
}
OP void v16_pow2(struct v16 t, struct v16 *low, struct v16 *high)
{
        for (int j = 0; j < 2; j++) {
                __m256i n = _mm256_sub_epi32(_mm256_castps_si256(t.v[j]), _mm256_set1_epi32(TDM_EXP_MAGIC_BITS));
                __m256i half = _mm256_srai_epi32(n, 1), bias = _mm256_set1_epi32(127);

                low->v[j] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
                high->v[j] =
                        _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias), 23));
        }
}
OP struct v16 v16_keep(struct v16 a, struct v16 other, uint32_t t, uint32_t lo, uint32_t hi)
{
        return EACH(_mm256_blendv_ps(other.v[j], a.v[j],
                                     _mm256_castsi256_ps(_mm256_andnot_si256(lanes(t + 8 * (uint32_t)j, lo),
                                                                             lanes(t + 8 * (uint32_t)j, hi)))));
}
OP float v16_fold_add(struct v16 a)
{
        __m256 s = _mm256_add_ps(a.v[0], a.v[1]);
        __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));

        t = _mm_add_ps(t, _mm_movehl_ps(t, t));
        return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}
OP float v16_fold_max(struct v16 a)
{
        __m256 s = _mm256_max_ps(a.v[0], a.v[1]);
        __m128 t = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));

        t = _mm_max_ps(t, _mm_movehl_ps(t, t));
        return _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
}
OP uint32_t v16_count_above(struct v16 a, float limit)
{
        uint32_t n = 0;

        for (int j = 0; j < 2; j++) {
                __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v[j]);

                n += (uint32_t)__builtin_popcount(
                        (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(magnitude, _mm256_set1_ps(limit), _CMP_NLE_UQ)));
        }
        return n;
}
OP struct v16 v16_finite_or_zero(struct v16 a)
{
        return EACH(_mm256_and_ps(a.v[j], _mm256_cmp_ps(a.v[j], a.v[j], _CMP_ORD_Q)));
}
OP struct v16 v16_load_f16(const uint16_t *x)
{
        return EACH(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + 8 * j))));
}
OP void v16_store_f16(uint16_t *x, struct v16 a)
{
        _mm_storeu_si128((__m128i *)x, _mm256_cvtps_ph(a.v[0], _MM_FROUND_TO_NEAREST_INT));
        _mm_storeu_si128((__m128i *)(x + 8), _mm256_cvtps_ph(a.v[1], _MM_FROUND_TO_NEAREST_INT));
}

OP struct v16 v16_load_i8(const int8_t *x)
{
        return EACH(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(x + 8 * j)))));
}
OP void v16_store_i8(int8_t *x, struct v16 a)
{
        /* 4 4 | 4 4, crosswise */
        __m256i pairs = _mm256_packs_epi32(_mm256_cvtps_epi32(a.v[0]), _mm256_cvtps_epi32(a.v[1]));

        pairs = _mm256_permute4x64_epi64(pairs, 0xd8);
        _mm_storeu_si128((__m128i *)x,
                         _mm_packs_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1)));
}

struct v16i {
        __m256i v[2];
};

#define EACH_I(expression)                                                                                             \
        ({                                                                                                             \
                struct v16i each_;                                                                                     \
                _Pragma("GCC unroll 2") for (int j = 0; j < 2; j++) each_.v[j] = (expression);                         \
                each_;                                                                                                 \
        })

OP struct v16i v16i_set1(int32_t x)
{
        return EACH_I(_mm256_set1_epi32(x));
}
OP struct v16i v16i_load_u8(const uint8_t *x)
{
        return EACH_I(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(x + 8 * j))));
}
OP struct v16i v16i_load_i8(const int8_t *x)
{
        return EACH_I(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(x + 8 * j))));
}
OP struct v16i v16i_and(struct v16i a, struct v16i b)
{
        return EACH_I(_mm256_and_si256(a.v[j], b.v[j]));
}
OP struct v16i v16i_right(struct v16i a, unsigned bits)
{
        return EACH_I(_mm256_srli_epi32(a.v[j], (int)bits));
}
OP struct v16i v16i_add_product(struct v16i c, struct v16i a, struct v16i b)
{
        return EACH_I(_mm256_add_epi32(c.v[j], _mm256_madd_epi16(a.v[j], b.v[j])));
}
OP struct v16 v16i_to_float(struct v16i a)
{
        return EACH(_mm256_cvtepi32_ps(a.v[j]));
}

/* 16 registers: at most 8 of sums, 4 of keys or values. */
#define V16_MAX_QUERIES 4
#define V16_SCORE_GROUPS(n) ((n) == 4 ? 1 : 2)
#define V16_VALUE_VECTORS(n) ((n) == 1 ? 4 : (n) == 2 ? 2 : 1)
#include "engine/host/kernels-simd-ops.h"

void tdm_kernels_avx2_ops_fill(struct tdm_kernels *kernels)
{
        fill(kernels);
}
#endif
