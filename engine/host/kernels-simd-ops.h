/* The SIMD versions of norms, activation, rotation, KV rows and attention, written once over a vector of 16 floats.
 *
 * A file of one ISA defines `struct v16` and its operations, then includes this; so AVX2 (two registers) and AVX-512 (one)
 * cannot differ in order, and both follow the C reference (kernels-c-ops.c) lane by lane. Tails are loaded with zeros in
 * the lanes past the end: a zero added to a partial sum changes no bit.
 *
 * Wanted: v16_zero, set1, load, load_n, store, store_n, add, sub, mul, div, fma (a b + c), fnma (c - a b), min, max (both
 * "a OP b ? a : b", so a NaN comes from b), pow2 (the two factors of 2^n from the bits of x + 1.5 · 2²³), keep (lanes
 * lo … hi-1 of one vector, the other's elsewhere), fold_add (i with i+8, +4, +2, +1), fold_max, count_above (lanes whose
 * magnitude is above, or NaN), finite_or_zero (NaN lanes become 0), load_f16, store_f16 (to nearest even), and the numbers
 * V16_MAX_QUERIES (1 … 8 queries that share loads) and V16_VALUE_VECTORS(n_queries). */
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
                v16_store_n(y + i, v16_mul(v16_mul(v16_load_n(x + i, n - i), scale), v16_load_n(gain + i, n - i)), n - i);
}

static void rmsnorm_add(const float *y, const float *gain, uint32_t n, float eps, float *h)
{
        struct v16 scale = v16_set1(norm_scale(y, n, eps));
        uint32_t i = 0;

        for (; i + 16 <= n; i += 16)
                v16_store(h + i, v16_add(v16_load(h + i), v16_mul(v16_mul(v16_load(y + i), scale), v16_load(gain + i))));
        if (i < n)
                v16_store_n(h + i, v16_add(v16_load_n(h + i, n - i), v16_mul(v16_mul(v16_load_n(y + i, n - i), scale),
                                                                             v16_load_n(gain + i, n - i))), n - i);
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

TDM_INLINE uint32_t saturate(struct v16 *x)
{
        uint32_t n = v16_count_above(*x, TDM_F16_MAX);

        if (n)
                *x = v16_max(v16_set1(-TDM_F16_MAX), v16_min(v16_set1(TDM_F16_MAX), v16_finite_or_zero(*x)));
        return n;
}

static uint32_t kv_store(uint8_t *part, enum tdm_kv_type type, uint32_t head_dim, uint32_t t, const float *k, const float *v)
{
        size_t k_first = (size_t)(t / 16) * head_dim * 16 + t % 16, v_first = (size_t)(TDM_KV_PAGE_TOKENS + t) * head_dim;
        uint32_t n_saturated = 0;

        if (type == TDM_KV_F32) {
                float *to = (float *)part;

                for (uint32_t d = 0; d < head_dim; d++)
                        to[k_first + (size_t)d * 16] = k[d];
                memcpy(to + v_first, v, head_dim * sizeof(float));
                return 0;
        }
        for (uint32_t d = 0; d < head_dim; d += 16) {
                uint16_t *to = (uint16_t *)part, column[16];
                struct v16 x = v16_load(k + d), y = v16_load(v + d);

                n_saturated += saturate(&x) + saturate(&y);
                v16_store_f16(column, x);
                for (uint32_t i = 0; i < 16; i++)
                        to[k_first + (size_t)(d + i) * 16] = column[i];
                v16_store_f16(to + v_first + d, y);
        }
        return n_saturated;
}

static void attend_merge(const struct tdm_attend_query *into, const struct tdm_attend_query *span, uint32_t head_dim)
{
        struct v16 a, b;
        float m, ab[2];

        if (*into->m == -INFINITY) {
                *into->m = *span->m;
                *into->l = *span->l;
                memcpy(into->o, span->o, head_dim * sizeof(float));
                return;
        }
        m = *into->m > *span->m ? *into->m : *span->m;
        ab[0] = *into->m - m;
        ab[1] = *span->m - m;
        exp_array(ab, 2, ab);
        *into->m = m;
        *into->l = fmaf(*into->l, ab[0], *span->l * ab[1]);
        a = v16_set1(ab[0]);
        b = v16_set1(ab[1]);
        for (uint32_t d = 0; d < head_dim; d += 16)
                v16_store(into->o + d, v16_fma(v16_load(into->o + d), a, v16_mul(v16_load(span->o + d), b)));
}

/* ---- attention over a span: tiles of 1 … V16_MAX_QUERIES queries share each load of a key or value ----
 *
 * The functions below are inlined with constant n_queries, n_pages, n_vectors and f16, so that the sums of a tile stay in
 * registers; each sum is still one lane's chain of fused multiply-adds in the reference's order. */

struct attend_tile {
        const struct tdm_attend_span *span;
        const struct tdm_attend_query *queries;
        float *p;                   /* [queries of the tile][TDM_ATTENTION_SPAN] */
        uint32_t lo, hi;            /* keys that any query looks at */
        uint32_t all_lo, all_hi;    /* keys that every query looks at; empty when all_lo >= all_hi */
        float a[8], b[8];           /* the merge's factors */
        bool first[8];
};

TDM_INLINE struct v16 kv_vector(const uint8_t *part, size_t index, bool f16)
{
        return f16 ? v16_load_f16((const uint16_t *)part + index) : v16_load((const float *)part + index);
}

TDM_INLINE void attend_scores_pages(const struct attend_tile *tile, const uint32_t *pages, unsigned n_pages, unsigned n_queries,
                                    bool f16)
{
        uint32_t head_dim = tile->span->head_dim;
        struct v16 s[8][8];
        const uint8_t *parts[4];

#pragma GCC unroll 4
        for (unsigned g = 0; g < n_pages; g++)
                parts[g] = tile->span->parts[pages[g]];
#pragma GCC unroll 8
        for (unsigned i = 0; i < n_queries; i++)
#pragma GCC unroll 8
                for (unsigned g = 0; g < 2 * n_pages; g++)
                        s[i][g] = v16_zero();
        for (uint32_t d = 0; d < head_dim; d++) {
                struct v16 k[8];

#pragma GCC unroll 8
                for (unsigned g = 0; g < 2 * n_pages; g++)
                        k[g] = kv_vector(parts[g / 2], ((size_t)(g % 2) * head_dim + d) * 16, f16);
#pragma GCC unroll 8
                for (unsigned i = 0; i < n_queries; i++) {
                        struct v16 q = v16_set1(tile->queries[i].q[d]);

#pragma GCC unroll 8
                        for (unsigned g = 0; g < 2 * n_pages; g++)
                                s[i][g] = v16_fma(q, k[g], s[i][g]);
                }
        }
#pragma GCC unroll 8
        for (unsigned i = 0; i < n_queries; i++)
#pragma GCC unroll 8
                for (unsigned g = 0; g < 2 * n_pages; g++)
                        v16_store(tile->p + i * TDM_ATTENTION_SPAN + pages[g / 2] * TDM_KV_PAGE_TOKENS + g % 2 * 16, s[i][g]);
}

TDM_INLINE void attend_scores(const struct attend_tile *tile, unsigned n_queries, unsigned n_pages_at_once, bool f16)
{
        uint32_t pages[TDM_ATTENTION_SPAN / TDM_KV_PAGE_TOKENS], n = 0, i = 0;

        for (uint32_t page = tile->lo / TDM_KV_PAGE_TOKENS; page <= (tile->hi - 1) / TDM_KV_PAGE_TOKENS; page++)
                if (tile->span->parts[page])
                        pages[n++] = page;
        for (; i + n_pages_at_once <= n; i += n_pages_at_once)
                attend_scores_pages(tile, pages + i, n_pages_at_once, n_queries, f16);
        for (; i < n; i++)
                attend_scores_pages(tile, pages + i, 1, n_queries, f16);
}

/* Scores to weights: the maximum, exp, the denominator; and the merge's part that is not the numerator. */
TDM_INLINE void attend_softmax(struct attend_tile *tile, unsigned n_queries)
{
        for (unsigned i = 0; i < n_queries; i++) {
                const struct tdm_attend_query *query = &tile->queries[i];
                float *p = tile->p + i * TDM_ATTENTION_SPAN;
                uint32_t begin = query->lo & ~15u;
                struct v16 max = v16_set1(-INFINITY), sum = v16_zero();
                float m, l, ab[2], merged;

                for (uint32_t t = begin; t < query->hi; t += 16)
                        max = v16_max(v16_keep(v16_load(p + t), v16_set1(-INFINITY), t, query->lo, query->hi), max);
                m = v16_fold_max(max) + 0.0f;
                for (uint32_t t = begin; t < query->hi; t += 16) {
                        struct v16 e = v16_exp(v16_sub(v16_load(p + t), v16_set1(m)));

                        e = v16_keep(e, v16_zero(), t, query->lo, query->hi);
                        v16_store(p + t, e);
                        sum = v16_add(sum, e);
                }
                l = v16_fold_add(sum);
                tile->first[i] = *query->m == -INFINITY;
                if (tile->first[i]) {
                        *query->m = m;
                        *query->l = l;
                        continue;
                }
                merged = *query->m > m ? *query->m : m;
                ab[0] = *query->m - merged;
                ab[1] = m - merged;
                exp_array(ab, 2, ab);
                tile->a[i] = ab[0];
                tile->b[i] = ab[1];
                *query->m = merged;
                *query->l = fmaf(*query->l, ab[0], l * ab[1]);
        }
}

TDM_INLINE void attend_values_at(const struct attend_tile *tile, uint32_t first_d, unsigned n_queries, unsigned n_vectors, bool f16)
{
        uint32_t head_dim = tile->span->head_dim;
        struct v16 o[8][8];

#pragma GCC unroll 8
        for (unsigned i = 0; i < n_queries; i++)
#pragma GCC unroll 8
                for (unsigned c = 0; c < n_vectors; c++)
                        o[i][c] = v16_zero();
        for (uint32_t t = tile->lo; t < tile->hi; t++) {
                const uint8_t *part = tile->span->parts[t / TDM_KV_PAGE_TOKENS];
                bool all = t >= tile->all_lo && t < tile->all_hi;
                struct v16 v[8];

                if (!all && !part)
                        continue;
#pragma GCC unroll 8
                for (unsigned c = 0; c < n_vectors; c++)
                        v[c] = kv_vector(part, (size_t)(TDM_KV_PAGE_TOKENS + t % TDM_KV_PAGE_TOKENS) * head_dim + first_d + c * 16, f16);
#pragma GCC unroll 8
                for (unsigned i = 0; i < n_queries; i++) {
                        struct v16 p = v16_set1(tile->p[i * TDM_ATTENTION_SPAN + t]);

                        if (all || (t >= tile->queries[i].lo && t < tile->queries[i].hi))
#pragma GCC unroll 8
                                for (unsigned c = 0; c < n_vectors; c++)
                                        o[i][c] = v16_fma(p, v[c], o[i][c]);
                }
        }
#pragma GCC unroll 8
        for (unsigned i = 0; i < n_queries; i++) {
                float *to = tile->queries[i].o + first_d;
                struct v16 a = v16_set1(tile->a[i]), b = v16_set1(tile->b[i]);

#pragma GCC unroll 8
                for (unsigned c = 0; c < n_vectors; c++)
                        v16_store(to + c * 16, tile->first[i] ? o[i][c]
                                                              : v16_fma(v16_load(to + c * 16), a, v16_mul(o[i][c], b)));
        }
}

TDM_INLINE void attend_values(const struct attend_tile *tile, unsigned n_queries, unsigned n_vectors, bool f16)
{
        uint32_t d = 0;

        for (; d + n_vectors * 16 <= tile->span->head_dim; d += n_vectors * 16)
                attend_values_at(tile, d, n_queries, n_vectors, f16);
        for (; d < tile->span->head_dim; d += 16)
                attend_values_at(tile, d, n_queries, 1, f16);
}

#define DEFINE_ATTEND_TILE(n, f16)                                                                                            \
        static __attribute__((noinline)) void attend_tile_##n##_##f16(struct attend_tile *tile)                               \
        {                                                                                                                     \
                attend_scores(tile, n, V16_SCORE_PAGES(n), f16);                                                              \
                attend_softmax(tile, n);                                                                                      \
                attend_values(tile, n, V16_VALUE_VECTORS(n), f16);                                                            \
        }
DEFINE_ATTEND_TILE(1, true)
DEFINE_ATTEND_TILE(1, false)
DEFINE_ATTEND_TILE(2, true)
DEFINE_ATTEND_TILE(2, false)
#if V16_MAX_QUERIES >= 4
DEFINE_ATTEND_TILE(4, true)
DEFINE_ATTEND_TILE(4, false)
#endif
#if V16_MAX_QUERIES >= 8
DEFINE_ATTEND_TILE(8, true)
DEFINE_ATTEND_TILE(8, false)
#endif

static void attend_span(const struct tdm_attend_span *span)
{
        bool f16 = span->type == TDM_KV_F16;

        for (uint32_t i = 0, n; i < span->n_queries; i += n) {
                struct attend_tile tile = { .span = span, .queries = span->queries + i, .p = span->scratch,
                                            .lo = TDM_ATTENTION_SPAN, .all_hi = TDM_ATTENTION_SPAN };

                for (n = V16_MAX_QUERIES; n > span->n_queries - i; n /= 2)
                        ;
                for (uint32_t j = 0; j < n; j++) {
                        tile.lo = TDM_MIN(tile.lo, tile.queries[j].lo);
                        tile.hi = TDM_MAX(tile.hi, tile.queries[j].hi);
                        tile.all_lo = TDM_MAX(tile.all_lo, tile.queries[j].lo);
                        tile.all_hi = TDM_MIN(tile.all_hi, tile.queries[j].hi);
                }
#if V16_MAX_QUERIES >= 8
                if (n == 8)
                        (f16 ? attend_tile_8_true : attend_tile_8_false)(&tile);
#endif
#if V16_MAX_QUERIES >= 4
                if (n == 4)
                        (f16 ? attend_tile_4_true : attend_tile_4_false)(&tile);
#endif
                if (n == 2)
                        (f16 ? attend_tile_2_true : attend_tile_2_false)(&tile);
                if (n == 1)
                        (f16 ? attend_tile_1_true : attend_tile_1_false)(&tile);
        }
}

static void fill(struct tdm_kernels *kernels)
{
        kernels->rmsnorm = rmsnorm;
        kernels->rmsnorm_add = rmsnorm_add;
        kernels->gelu_mul = gelu_mul;
        kernels->rope = rope;
        kernels->kv_store = kv_store;
        kernels->attend_span = attend_span;
        kernels->attend_merge = attend_merge;
        kernels->exp_array = exp_array;
}
