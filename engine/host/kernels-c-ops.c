/* The C reference of norms, activation, rotation, KV rows and attention: it says in which order every float result is
 * made. The SIMD files (kernels-simd-ops.h) do the same operations on 16 lanes; tests compare them bit for bit. Written
 * to be read, not to be fast: fmaf is a call here where the target has no such instruction by default. */
#include <float.h>
#include <math.h>

#include "common/f16.h"
#include "engine/host/kernels-fill.h"
#include "engine/host/kernels-ops.h"

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

static float mean_square(const float *x, uint32_t n)
{
        float s[16] = {};

        for (uint32_t i = 0; i < n; i++)
                s[i % 16] = fmaf(x[i], x[i], s[i % 16]);
        return fold16(s) / (float)n;
}

static void layernorm(const float *x, const float *gain, const float *bias, uint32_t n, float eps, float *y)
{
        float s[16] = {}, squares[16] = {}, mean, scale;

        for (uint32_t i = 0; i < n; i++)
                s[i % 16] += x[i];
        mean = fold16(s) / (float)n;
        for (uint32_t i = 0; i < n; i++)
                squares[i % 16] = fmaf(x[i] - mean, x[i] - mean, squares[i % 16]);
        scale = 1.0f / sqrtf(fold16(squares) / (float)n + eps);
        for (uint32_t i = 0; i < n; i++)
                y[i] = fmaf((x[i] - mean) * scale, gain[i], bias[i]);
}

static void cut_below(float *x, uint32_t n, float scale)
{
        float s[16] = {}, squares[16] = {}, mean, cut;

        for (uint32_t i = 0; i < n; i++)
                s[i % 16] += x[i];
        mean = fold16(s) / (float)n;
        for (uint32_t i = 0; i < n; i++)
                squares[i % 16] = fmaf(x[i] - mean, x[i] - mean, squares[i % 16]);
        cut = fmaf(scale, sqrtf(fold16(squares) / (float)n), mean);
        for (uint32_t i = 0; i < n; i++)
                x[i] = x[i] - cut > 0 ? x[i] - cut : 0;
}

/* ORDER: c = 0.044715 (g g); t = fmaf(c, g, g); e = exp(2 sqrt(2/pi) t); y = (0.5 g (2 - 2 / (e + 1))) up, cut to
 * ±FLT_MAX. g³ may be infinite: e is then 0 or infinite and the quotient 2 or 0, never NaN. */
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

/* ORDER: a = max(x, -x), z = a sqrt(1/2), t = 1 / fmaf(P, z, 1), p by Horner with fmaf, c = p t exp(-(z z)); y =
 * fmaf(-(a / 2), c, max(x, 0)). */
static void gelu_erf(const float *x, uint32_t n, float *y)
{
        for (uint32_t i = 0; i < n; i++) {
                float a = x[i] > -0.0f - x[i] ? x[i] : -0.0f - x[i];
                float z = a * TDM_SQRT_HALF, t = 1.0f / fmaf(TDM_ERFC_P, z, 1.0f);
                float p = fmaf(TDM_ERFC_C5, t, TDM_ERFC_C4);

                p = fmaf(p, t, TDM_ERFC_C3);
                p = fmaf(p, t, TDM_ERFC_C2);
                p = fmaf(p, t, TDM_ERFC_C1);
                p = p * t * exp_one(-0.0f - z * z);
                y[i] = fmaf(-(a * 0.5f), p, x[i] > 0.0f ? x[i] : 0.0f);
        }
}

/* ORDER: y = (g / (exp(-g) + 1)) up, cut to ±FLT_MAX. exp may be infinite: the quotient is then 0. */
static void silu_mul(const float *gate, const float *up, uint32_t n, float *y)
{
        for (uint32_t i = 0; i < n; i++) {
                float v = gate[i] / (exp_one(-gate[i]) + 1.0f) * up[i];

                v = FLT_MAX < v ? FLT_MAX : v;
                y[i] = -FLT_MAX > v ? -FLT_MAX : v;
        }
}

/* ORDER: g = min(g, 7), u = max(min(u, 7), -7), y = (g / (exp(-1.702 g) + 1)) (u + 1). */
static void swiglu_clamped(const float *gate, const float *up, uint32_t n, float *y)
{
        for (uint32_t i = 0; i < n; i++) {
                float g = TDM_SWIGLU_LIMIT < gate[i] ? TDM_SWIGLU_LIMIT : gate[i];
                float u = TDM_SWIGLU_LIMIT < up[i] ? TDM_SWIGLU_LIMIT : up[i];

                u = -TDM_SWIGLU_LIMIT > u ? -TDM_SWIGLU_LIMIT : u;
                y[i] = g / (exp_one(-TDM_SWIGLU_ALPHA * g) + 1.0f) * (u + 1.0f);
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

/* Where element d of key t lies. Scales lie in the same order, with block d / 32 for d. */
static size_t k_index(uint32_t head_dim, uint32_t t, uint32_t d)
{
        return ((size_t)(t / 16) * head_dim + d) * 16 + t % 16;
}

/* NaN counts as a value that does not fit and becomes 0. */
static float saturate(float x, float limit, uint32_t *n_saturated)
{
        if (fabsf(x) <= limit)
                return x;
        ++*n_saturated;
        return x != x ? 0 : copysignf(limit, x);
}

/* One block of q8_0, elements stride apart. ORDER: values saturated to 127 * 65504; scale = f16(max |x| / 127), to
 * nearest; q = rint(x * (1 / scale) cut to ±127), 0 where the scale is 0. */
static uint16_t store_block(const float *x, uint32_t n, int8_t *q, size_t stride, uint32_t *n_saturated)
{
        float amax = 0, scale, inverse;
        uint16_t stored;

        for (uint32_t i = 0; i < n; i++) {
                float magnitude = fabsf(saturate(x[i], TDM_KV_Q8_MAX, n_saturated));

                amax = magnitude > amax ? magnitude : amax;
        }
        stored = tdm_f32_to_f16(amax / 127.0f);
        scale = tdm_f16_to_f32(stored);
        inverse = scale > 0 ? 1.0f / scale : 0;
        for (uint32_t i = 0; i < n; i++) {
                uint32_t ignored = 0;
                float y = saturate(x[i], TDM_KV_Q8_MAX, &ignored) * inverse;

                y = y < 127.0f ? y : 127.0f;
                q[i * stride] = (int8_t)rintf(y > -127.0f ? y : -127.0f);
        }
        return stored;
}

static uint32_t kv_store(uint8_t *part, enum tdm_kv_type type, uint32_t head_dim, uint32_t t, const float *k,
                         const float *v)
{
        uint8_t *values = part + tdm_kv_values_offset(type, head_dim);
        uint32_t n_blocks = tdm_kv_n_blocks(head_dim), n_saturated = 0;

        if (type == TDM_KV_Q8_0) {
                uint16_t *k_scales = (uint16_t *)(part + TDM_KV_PAGE_TOKENS * head_dim);
                uint16_t *v_scales = (uint16_t *)(values + TDM_KV_PAGE_TOKENS * head_dim);

                for (uint32_t b = 0; b < n_blocks; b++) {
                        uint32_t d = b * TDM_KV_BLOCK_DIMS, n = TDM_MIN(TDM_KV_BLOCK_DIMS, head_dim - d);

                        k_scales[k_index(n_blocks, t, b)] =
                                store_block(k + d, n, (int8_t *)part + k_index(head_dim, t, d), 16, &n_saturated);
                        v_scales[t * n_blocks + b] =
                                store_block(v + d, n, (int8_t *)values + t * head_dim + d, 1, &n_saturated);
                }
                return n_saturated;
        }
        for (uint32_t d = 0; d < head_dim; d++) {
                if (type == TDM_KV_F32) {
                        ((float *)part)[k_index(head_dim, t, d)] = k[d];
                        ((float *)values)[t * head_dim + d] = v[d];
                } else {
                        ((uint16_t *)part)[k_index(head_dim, t, d)] =
                                tdm_f32_to_f16(saturate(k[d], TDM_F16_MAX, &n_saturated));
                        ((uint16_t *)values)[t * head_dim + d] =
                                tdm_f32_to_f16(saturate(v[d], TDM_F16_MAX, &n_saturated));
                }
        }
        return n_saturated;
}

static float kv_load(const uint8_t *data, enum tdm_kv_type type, size_t index)
{
        return type == TDM_KV_F32 ? ((const float *)data)[index] :
               type == TDM_KV_F16 ? tdm_f16_to_f32(((const uint16_t *)data)[index]) :
                                    (float)((const int8_t *)data)[index];
}

/* The product with key t. Of q8_0: over blocks, s = fmaf(a, scale, s) where a is the sum over the block's dimensions d
 * of fmaf(q[d], (float)k[d], ·) from 0. */
static float score(const float *q, const uint8_t *part, enum tdm_kv_type type, uint32_t head_dim, uint32_t t)
{
        const uint8_t *scales = part + TDM_KV_PAGE_TOKENS * head_dim;
        uint32_t block = type == TDM_KV_Q8_0 ? TDM_KV_BLOCK_DIMS : head_dim;
        float s = 0;

        for (uint32_t first = 0; first < head_dim; first += block) {
                float a = 0;

                for (uint32_t d = first; d < head_dim && d < first + block; d++)
                        a = fmaf(q[d], kv_load(part, type, k_index(head_dim, t, d)), a);
                if (type != TDM_KV_Q8_0)
                        return a;
                s = fmaf(a, kv_load(scales, TDM_KV_F16, k_index(tdm_kv_n_blocks(head_dim), t, first / block)), s);
        }
        return s;
}

/* o += p v, v of q8_0 being (float)q * scale, rounded. */
static void add_value(float p, const uint8_t *part, enum tdm_kv_type type, uint32_t head_dim, uint32_t t, float *o)
{
        const uint8_t *values = part + tdm_kv_values_offset(type, head_dim),
                      *scales = values + TDM_KV_PAGE_TOKENS * head_dim;

        for (uint32_t d = 0; d < head_dim; d++) {
                float v = kv_load(values, type, t * head_dim + d);

                if (type == TDM_KV_Q8_0)
                        v *= kv_load(scales, TDM_KV_F16, t * tdm_kv_n_blocks(head_dim) + d / TDM_KV_BLOCK_DIMS);
                o[d] = fmaf(p, v, o[d]);
        }
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

static float capped_score(float s, float cap)
{
        return cap * (1.0f - 2.0f / (exp_one(s * (2.0f / cap)) + 1.0f));
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
                        float s = score(query->q, span->parts[t / TDM_KV_PAGE_TOKENS], span->type, head_dim,
                                        t % TDM_KV_PAGE_TOKENS);

                        if (span->softcap > 0)
                                s = capped_score(s, span->softcap);
                        p[t] = s;
                        m = s > m ? s : m;
                }
                m += 0.0f; /* one zero, whichever came first */

                memset(o, 0, head_dim * sizeof(float));
                for (uint32_t t = query->lo; t < query->hi; t++) {
                        p[t] = exp_one(p[t] - m);
                        partial[t % 16] += p[t];
                        add_value(p[t], span->parts[t / TDM_KV_PAGE_TOKENS], span->type, head_dim,
                                  t % TDM_KV_PAGE_TOKENS, o);
                }
                l = fold16(partial);
                attend_merge(query, &(struct tdm_attend_query){ .o = o, .m = &m, .l = &l }, head_dim);
        }
}

/* One value of a head: its column of the matrix. */
static void delta_value(const struct tdm_delta_rows *d, uint32_t c)
{
        size_t at = (size_t)(c / TDM_DELTA_PANEL) * d->size * TDM_DELTA_PANEL + c % TDM_DELTA_PANEL;
        const float *from = d->from + at;
        float *to = d->to + at;

        for (uint32_t r = 0; r < d->n_rows; r++) {
                const float *q = d->q + r * d->stride, *k = d->k + r * d->stride, *v = d->v + r * d->stride;
                float decay = d->decay[r * d->numbers_stride], s = 0, o = 0, e;

                for (uint32_t i = 0; i < d->size; i++)
                        s = fmaf(from[i * TDM_DELTA_PANEL], k[i], s);
                e = d->beta[r * d->numbers_stride] * fmaf(-decay, s, v[c]);
                for (uint32_t i = 0; i < d->size; i++) {
                        float m = fmaf(k[i], e, decay * from[i * TDM_DELTA_PANEL]);

                        to[i * TDM_DELTA_PANEL] = m;
                        o = fmaf(m, q[i], o);
                }
                d->out[r * d->out_stride + c] = o;
                from = to;
        }
}

static void delta_rows(const struct tdm_delta_rows *d)
{
        for (uint32_t c = 0; c < d->size; c++)
                delta_value(d, c);
}

void tdm_kernels_c_ops_fill(struct tdm_kernels *kernels)
{
        kernels->rmsnorm = rmsnorm;
        kernels->rmsnorm_add = rmsnorm_add;
        kernels->mean_square = mean_square;
        kernels->layernorm = layernorm;
        kernels->gelu_erf = gelu_erf;
        kernels->cut_below = cut_below;
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
