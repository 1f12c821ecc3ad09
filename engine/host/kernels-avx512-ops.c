/* Norms, activation, rotation, KV rows and attention for AVX-512: the bodies are in kernels-simd-ops.h, here is what 16
 * floats in one register can do. */
#include "engine/host/kernels-fill.h"
#include "engine/host/kernels-ops.h"

#ifdef __x86_64__
#include <immintrin.h>

struct v16 {
        __m512 v;
};

#define OP static inline __attribute__((always_inline))

OP __mmask16 lanes(uint32_t n)
{
        return (__mmask16)((1u << n) - 1);
}
OP struct v16 v16_zero(void)
{
        return (struct v16){ _mm512_setzero_ps() };
}
OP struct v16 v16_set1(float x)
{
        return (struct v16){ _mm512_set1_ps(x) };
}
OP struct v16 v16_load(const float *x)
{
        return (struct v16){ _mm512_loadu_ps(x) };
}
OP struct v16 v16_load_n(const float *x, uint32_t n)
{
        return (struct v16){ _mm512_maskz_loadu_ps(lanes(n), x) };
}
OP void v16_store(float *x, struct v16 a)
{
        _mm512_storeu_ps(x, a.v);
}
OP void v16_store_n(float *x, struct v16 a, uint32_t n)
{
        _mm512_mask_storeu_ps(x, lanes(n), a.v);
}
OP struct v16 v16_add(struct v16 a, struct v16 b)
{
        return (struct v16){ _mm512_add_ps(a.v, b.v) };
}
OP struct v16 v16_sub(struct v16 a, struct v16 b)
{
        return (struct v16){ _mm512_sub_ps(a.v, b.v) };
}
OP struct v16 v16_mul(struct v16 a, struct v16 b)
{
        return (struct v16){ _mm512_mul_ps(a.v, b.v) };
}
OP struct v16 v16_div(struct v16 a, struct v16 b)
{
        return (struct v16){ _mm512_div_ps(a.v, b.v) };
}
OP struct v16 v16_fma(struct v16 a, struct v16 b, struct v16 c)
{
        return (struct v16){ _mm512_fmadd_ps(a.v, b.v, c.v) };
}
OP struct v16 v16_fnma(struct v16 a, struct v16 b, struct v16 c)
{
        return (struct v16){ _mm512_fnmadd_ps(a.v, b.v, c.v) };
}
OP struct v16 v16_min(struct v16 a, struct v16 b)
{
        return (struct v16){ _mm512_min_ps(a.v, b.v) };
}
OP struct v16 v16_max(struct v16 a, struct v16 b)
{
        return (struct v16){ _mm512_max_ps(a.v, b.v) };
}
OP void v16_pow2(struct v16 t, struct v16 *low, struct v16 *high)
{
        __m512i n = _mm512_sub_epi32(_mm512_castps_si512(t.v), _mm512_set1_epi32(TDM_EXP_MAGIC_BITS));
        __m512i half = _mm512_srai_epi32(n, 1), bias = _mm512_set1_epi32(127);

        low->v = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23));
        high->v = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(n, half), bias), 23));
}
OP struct v16 v16_keep(struct v16 a, struct v16 other, uint32_t t, uint32_t lo, uint32_t hi)
{
        uint32_t first = lo > t ? lo - t : 0, end = hi - t < 16 ? hi - t : 16;

        return (struct v16){ _mm512_mask_mov_ps(other.v, lanes(end) & (__mmask16)~lanes(first), a.v) };
}
OP float v16_fold_add(struct v16 a)
{
        __m256 s = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
        __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));

        t = _mm_add_ps(t, _mm_movehl_ps(t, t));
        return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}
OP float v16_fold_max(struct v16 a)
{
        return _mm512_reduce_max_ps(a.v);
}
OP uint32_t v16_count_above(struct v16 a, float limit)
{
        return (uint32_t)__builtin_popcount(_mm512_cmp_ps_mask(_mm512_abs_ps(a.v), _mm512_set1_ps(limit), _CMP_NLE_UQ));
}
OP struct v16 v16_finite_or_zero(struct v16 a)
{
        return (struct v16){ _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, a.v, _CMP_ORD_Q), a.v) };
}
OP struct v16 v16_load_f16(const uint16_t *x)
{
        return (struct v16){ _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)x)) };
}
OP void v16_store_f16(uint16_t *x, struct v16 a)
{
        _mm256_storeu_si256((__m256i *)x, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

OP struct v16 v16_load_i8(const int8_t *x)
{
        return (struct v16){ _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)x))) };
}
OP void v16_store_i8(int8_t *x, struct v16 a)
{
        _mm_storeu_si128((__m128i *)x, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

struct v16i {
        __m512i v;
};

OP struct v16i v16i_set1(int32_t x)
{
        return (struct v16i){ _mm512_set1_epi32(x) };
}
OP struct v16i v16i_load_u8(const uint8_t *x)
{
        return (struct v16i){ _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)x)) };
}
OP struct v16i v16i_load_i8(const int8_t *x)
{
        return (struct v16i){ _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)x)) };
}
OP struct v16i v16i_and(struct v16i a, struct v16i b)
{
        return (struct v16i){ _mm512_and_si512(a.v, b.v) };
}
OP struct v16i v16i_right(struct v16i a, unsigned bits)
{
        return (struct v16i){ _mm512_srli_epi32(a.v, bits) };
}
OP struct v16i v16i_add_product(struct v16i c, struct v16i a, struct v16i b)
{
        return (struct v16i){ _mm512_dpwssd_epi32(c.v, a.v, b.v) };
}
OP struct v16 v16i_to_float(struct v16i a)
{
        return (struct v16){ _mm512_cvtepi32_ps(a.v) };
}

/* At most 16 of the 32 registers hold sums, and at least 8, so that the adders' latency is hidden. */
#define V16_MAX_QUERIES 8
#define V16_SCORE_GROUPS(n) ((n) >= 4 ? 2 : (n) == 2 ? 4 : 8)
#define V16_VALUE_VECTORS(n) ((n) == 8 ? 2 : 4)
#include "engine/host/kernels-simd-ops.h"

void tdm_kernels_avx512_ops_fill(struct tdm_kernels *kernels)
{
        fill(kernels);
}
#endif
