/* The C reference of norms, activation, rotation, KV rows and attention: it says in which order every float result is made.
 * The SIMD files (kernels-simd-ops.h) do the same operations on 16 lanes; tests compare them bit for bit. Written to be
 * read, not to be fast: fmaf is a call here where the target has no such instruction by default. */
#include <float.h>
#include <math.h>

#include "engine/half.h"
#include "engine/host/kernels-fill.h"
#include "engine/host/kernels-ops.h"

/* To nearest, ties to even. |x| <= TDM_F16_MAX. */
static uint16_t f32_to_f16(float x)
{
        uint32_t bits = tdm_f32_to_bits(x);
        uint16_t sign = bits >> 16 & 0x8000;
        float magnitude = fabsf(x);

        if (magnitude < 0x1p-14f) /* the f32 adder rounds at 2^-24, which is f16's last place down there */
                return sign | (uint16_t)(tdm_f32_to_bits(magnitude + 0.5f) - tdm_f32_to_bits(0.5f));
        bits = tdm_f32_to_bits(magnitude) - 0x38000000;
        return sign | (uint16_t)((bits + 0xfff + (bits >> 13 & 1)) >> 13);
}

static float exp_one(float x)
{
        float t, n, r, p;
        uint32_t i, half;

        x = TDM_EXP_MAX < x ? TDM_EXP_MAX : x;
        x = TDM_EXP_MIN > x ? TDM_EXP_MIN : x;
        t = fmaf(x, TDM_EXP_LOG2E, TDM_EXP_MAGIC);
        n = t - TDM_EXP_MAGIC;
        r = fmaf(-n, TDM_EXP_LN2_HI, x);
        r = fmaf(-n, TDM_EXP_LN2_LO, r);
        p = fmaf(TDM_EXP_C6, r, TDM_EXP_C5);
        p = fmaf(p, r, TDM_EXP_C4);
        p = fmaf(p, r, TDM_EXP_C3);
        p = fmaf(p, r, TDM_EXP_C2);
        p = fmaf(p, r, 1.0f);
        p = fmaf(p, r, 1.0f);
        i = tdm_f32_to_bits(t) - TDM_EXP_MAGIC_BITS;
        half = (uint32_t)((int32_t)i >> 1);
        return p * tdm_bits_to_f32((half + 127) << 23) * tdm_bits_to_f32((i - half + 127) << 23);
}

static void exp_array(const float *x, uint32_t n, float *y)
{
        for (uint32_t i = 0; i < n; i++)
                y[i] = exp_one(x[i]);
}

static float fold16(const float *s)
{
        float t[8];

        for (int i = 0; i < 8; i++)
                t[i] = s[i] + s[i + 8];
        for (int i = 0; i < 4; i++)
                t[i] += t[i + 4];
        return (t[0] + t[2]) + (t[1] + t[3]);
}

static float norm_scale(const float *x, uint32_t n, float eps)
{
        float s[16] = {};

        for (uint32_t i = 0; i < n; i++)
                s[i % 16] = fmaf(x[i], x[i], s[i % 16]);
        return 1.0f / sqrtf(fold16(s) / (float)n + eps);
}

static void rmsnorm(const float *x, const float *gain, uint32_t n, float eps, float *y)
{
        float scale = norm_scale(x, n, eps);

        for (uint32_t i = 0; i < n; i++)
                y[i] = x[i] * scale * gain[i];
}

static void rmsnorm_add(const float *y, const float *gain, uint32_t n, float eps, float *h)
{
        float scale = norm_scale(y, n, eps);

        for (uint32_t i = 0; i < n; i++)
                h[i] = h[i] + y[i] * scale * gain[i];
}

/* ORDER: c = 0.044715 (g g); t = fmaf(c, g, g); e = exp(2 sqrt(2/pi) t); y = (0.5 g (2 - 2 / (e + 1))) up, cut to ±FLT_MAX.
 * g³ may be infinite: e is then 0 or infinite and the quotient 2 or 0, never NaN. */
static void gelu_mul(const float *gate, const float *up, uint32_t n, float *y)
{
        for (uint32_t i = 0; i < n; i++) {
                float g = gate[i];
                float t = fmaf(g * g * TDM_GELU_CUBE, g, g);
                float e = exp_one(t * TDM_GELU_TWO_SQRT_2_PI);
                float v = g * 0.5f * (2.0f - 2.0f / (e + 1.0f)) * up[i];

                v = FLT_MAX < v ? FLT_MAX : v;
                y[i] = -FLT_MAX > v ? -FLT_MAX : v;
        }
}

static void rope(float *x, const float *cos, const float *sin, uint32_t head_dim)
{
        uint32_t half = head_dim / 2;

        for (uint32_t i = 0; i < half; i++) {
                float l = x[i], r = x[half + i];

                x[i] = fmaf(l, cos[i], -(r * sin[i]));
                x[half + i] = fmaf(r, cos[i], l * sin[i]);
        }
}

static size_t k_index(uint32_t head_dim, uint32_t t, uint32_t d)
{
        return ((size_t)(t / 16) * head_dim + d) * 16 + t % 16;
}

static size_t v_index(uint32_t head_dim, uint32_t t, uint32_t d)
{
        return (size_t)TDM_KV_PAGE_TOKENS * head_dim + (size_t)t * head_dim + d;
}

/* NaN counts as a value that does not fit and becomes 0. */
static uint16_t store_f16(float x, uint32_t *n_saturated)
{
        if (!(fabsf(x) <= TDM_F16_MAX)) {
                ++*n_saturated;
                x = x != x ? 0 : copysignf(TDM_F16_MAX, x);
        }
        return f32_to_f16(x);
}

static uint32_t kv_store(uint8_t *part, enum tdm_kv_type type, uint32_t head_dim, uint32_t t, const float *k, const float *v)
{
        uint32_t n_saturated = 0;

        for (uint32_t d = 0; d < head_dim; d++) {
                if (type == TDM_KV_F32) {
                        ((float *)part)[k_index(head_dim, t, d)] = k[d];
                        ((float *)part)[v_index(head_dim, t, d)] = v[d];
                } else {
                        ((uint16_t *)part)[k_index(head_dim, t, d)] = store_f16(k[d], &n_saturated);
                        ((uint16_t *)part)[v_index(head_dim, t, d)] = store_f16(v[d], &n_saturated);
                }
        }
        return n_saturated;
}

static float kv_load(const uint8_t *part, enum tdm_kv_type type, size_t index)
{
        return type == TDM_KV_F32 ? ((const float *)part)[index] : tdm_f16_to_f32(((const uint16_t *)part)[index]);
}

static void attend_merge(const struct tdm_attend_query *into, const struct tdm_attend_query *span, uint32_t head_dim)
{
        float m, a, b;

        if (*into->m == -INFINITY) {
                *into->m = *span->m;
                *into->l = *span->l;
                memcpy(into->o, span->o, head_dim * sizeof(float));
                return;
        }
        m = *into->m > *span->m ? *into->m : *span->m;
        a = exp_one(*into->m - m);
        b = exp_one(*span->m - m);
        *into->m = m;
        *into->l = fmaf(*into->l, a, *span->l * b);
        for (uint32_t d = 0; d < head_dim; d++)
                into->o[d] = fmaf(into->o[d], a, span->o[d] * b);
}

static void attend_span(const struct tdm_attend_span *span)
{
        uint32_t head_dim = span->head_dim;
        float *p = span->scratch;                      /* [TDM_ATTENTION_SPAN] */
        float *o = span->scratch + TDM_ATTENTION_SPAN; /* [head_dim] */

        for (uint32_t i = 0; i < span->n_queries; i++) {
                const struct tdm_attend_query *query = &span->queries[i];
                float m = -INFINITY, l, partial[16] = {};

                for (uint32_t t = query->lo; t < query->hi; t++) {
                        const uint8_t *part = span->parts[t / TDM_KV_PAGE_TOKENS];
                        float s = 0;

                        for (uint32_t d = 0; d < head_dim; d++)
                                s = fmaf(query->q[d], kv_load(part, span->type, k_index(head_dim, t % TDM_KV_PAGE_TOKENS, d)), s);
                        p[t] = s;
                        m = s > m ? s : m;
                }
                m += 0.0f; /* one zero, whichever came first */

                memset(o, 0, head_dim * sizeof(float));
                for (uint32_t t = query->lo; t < query->hi; t++) {
                        const uint8_t *part = span->parts[t / TDM_KV_PAGE_TOKENS];

                        p[t] = exp_one(p[t] - m);
                        partial[t % 16] += p[t];
                        for (uint32_t d = 0; d < head_dim; d++)
                                o[d] = fmaf(p[t], kv_load(part, span->type, v_index(head_dim, t % TDM_KV_PAGE_TOKENS, d)), o[d]);
                }
                l = fold16(partial);
                attend_merge(query, &(struct tdm_attend_query){ .o = o, .m = &m, .l = &l }, head_dim);
        }
}

void tdm_kernels_c_ops_fill(struct tdm_kernels *kernels)
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
