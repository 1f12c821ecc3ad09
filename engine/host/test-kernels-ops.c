/* Norms, activation, rotation, KV rows and attention: every ISA against the C reference bit for bit, over random shapes
 * with odd tails, and the C reference against double precision within the bounds written here. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>

#include "engine/host/kernels-fill.h"

#define MAX_HEAD_DIM 256u

static struct tdm_kernels reference;
static struct tdm_kernels simd[2];
static unsigned n_simd;
/* Values come from the first, and how a table's call is cut from the second, so that values are the same whatever
 * tables a CPU has. A seed sets both. */
static uint64_t value_state, cut_state;

static uint32_t draw(uint64_t *state)
{
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        return (uint32_t)(*state >> 16);
}

static uint32_t rnd(void)
{
        return draw(&value_state);
}

static uint32_t below(uint32_t n)
{
        return rnd() % n;
}

static float uniform(float a, float b)
{
        return a + (b - a) * (float)(rnd() & 0xffffff) / 16777216.0f;
}

/* Mostly ordinary, now and then tiny, huge or zero. */
static float value(void)
{
        switch (below(16)) {
        case 0:
                return 0;
        case 1:
                return uniform(-1e-38f, 1e-38f);
        case 2:
                return uniform(-5e5f, 5e5f);
        default:
                return uniform(-3, 3);
        }
}

static void fill_values(float *x, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                x[i] = value();
}

static void *alloc(size_t bytes)
{
        void *p = aligned_alloc(64, TDM_ALIGN_UP(bytes, (size_t)64));

        assert_non_null(p);
        memset(p, 0xff, TDM_ALIGN_UP(bytes, (size_t)64)); /* NaN where nobody writes */
        return p;
}

static float ulp(double x)
{
        float f = fabsf((float)x);

        return f < FLT_MIN ? 0x1p-149f : nextafterf(f, INFINITY) - f;
}

static void test_exp(void **unused)
{
        enum { N = 4099 };
        float x[N], y[N], z[N];
        double worst = 0;

        for (int round = 0; round < 40; round++) {
                for (int i = 0; i < N; i++)
                        x[i] = round == 0 ? -110.0f + 0.05f * (float)i :
                               round == 1 ? uniform(-1e-3f, 1e-3f) :
                                            uniform(-106, 89.5f);
                x[0] = -INFINITY;
                x[1] = INFINITY;
                x[2] = FLT_MAX;
                x[3] = -FLT_MAX;
                x[4] = 0.0f;
                x[5] = -0.0f;
                x[6] = 88.7228f;
                x[7] = -103.9f;
                reference.exp_array(x, N, y);
                assert_true(y[0] == 0 && y[1] == INFINITY && y[2] == INFINITY && y[3] == 0 && y[4] == 1 && y[5] == 1);
                for (int i = 4; i < N; i++) {
                        double e = exp((double)x[i]);

                        if (e > FLT_MAX) {
                                assert_true(y[i] >= FLT_MAX);
                                continue;
                        }
                        worst = fmax(worst, fabs(y[i] - e) / ulp(e));
                }
                for (unsigned k = 0; k < n_simd; k++) {
                        uint32_t n = round ? N - draw(&cut_state) % 33 : N;

                        memset(z, 0, sizeof(z));
                        simd[k].exp_array(x, n, z);
                        assert_memory_equal(y, z, n * sizeof(float));
                        assert_true(n == N || z[n] == 0);
                }
        }
        print_message("exp: worst error %.3f ulp\n", worst);
        assert_true(worst <= 1.0);
}

static void test_rmsnorm(void **unused)
{
        for (int round = 0; round < 200; round++) {
                uint32_t n = 1 + below(700);
                float *x = alloc(n * 4), *gain = alloc(n * 4), *h = alloc(n * 4), *y = alloc(n * 4), *ha = alloc(n * 4);
                float *y2 = alloc(n * 4), *ha2 = alloc(n * 4);
                double sum = 0, scale;

                fill_values(x, n);
                fill_values(gain, n);
                fill_values(h, n);
                memcpy(ha, h, n * 4);
                reference.rmsnorm(x, gain, n, 1e-6f, y);
                reference.rmsnorm_add(x, gain, n, 1e-6f, ha);
                for (uint32_t i = 0; i < n; i++)
                        sum += (double)x[i] * x[i];
                scale = 1 / sqrt(sum / n + 1e-6);
                for (uint32_t i = 0; i < n; i++) {
                        double want = x[i] * scale * gain[i];

                        /* a sum of n/16 + 4 roundings, its square root, quotient and two products */
                        assert_true(fabs(y[i] - want) <=
                                    fabs(want) * (n / 32.0 + 8) * 0x1p-24 + (1 + fabs(gain[i])) * 1e-44);
                        assert_true(ha[i] == h[i] + y[i]);
                }
                for (unsigned k = 0; k < n_simd; k++) {
                        simd[k].rmsnorm(x, gain, n, 1e-6f, y2);
                        assert_memory_equal(y, y2, n * 4);
                        memcpy(ha2, h, n * 4);
                        simd[k].rmsnorm_add(x, gain, n, 1e-6f, ha2);
                        assert_memory_equal(ha, ha2, n * 4);
                        memcpy(y2, x, n * 4); /* in place */
                        simd[k].rmsnorm(y2, gain, n, 1e-6f, y2);
                        assert_memory_equal(y, y2, n * 4);
                }
                free(x), free(gain), free(h), free(y), free(ha), free(y2), free(ha2);
        }
}

/* Means, and what is cut below mean and deviation: against doubles, and the same bits everywhere. A row of equal
 * numbers has no deviation, so that all of it is at the cut. */
static void test_cut(void **unused)
{
        for (int round = 0; round < 200; round++) {
                uint32_t n = 1 + below(700), n_live = 0;
                float *x = alloc(n * 4), *y = alloc(n * 4), *z = alloc(n * 4), scale = (float)below(300) / 100 - 1;
                double sum = 0, squares = 0, size = 0, cut;

                for (uint32_t i = 0; i < n; i++) {
                        x[i] = round % 20 == 0 ? 0.625f : (float)((int)below(20001) - 10000) / 3000;
                        sum += (double)x[i];
                        size += (double)x[i] * x[i];
                }
                for (uint32_t i = 0; i < n; i++)
                        squares += (x[i] - sum / n) * (x[i] - sum / n);
                cut = sum / n + scale * sqrt(squares / n);
                assert_true(fabs(reference.mean_square(x, n) - size / n) <= size / n * (n / 32.0 + 8) * 0x1p-24);
                memcpy(y, x, n * 4);
                reference.cut_below(y, n, scale);
                for (uint32_t i = 0; i < n; i++) {
                        assert_true(fabs(y[i] - fmax(x[i] - cut, 0)) <= 1e-4);
                        n_live += y[i] > 0;
                }
                assert_true(round % 20 != 0 || n_live == 0);
                for (unsigned k = 0; k < n_simd; k++) {
                        float a = reference.mean_square(x, n), b = simd[k].mean_square(x, n);

                        assert_memory_equal(&a, &b, sizeof(a));
                        memcpy(z, x, n * 4);
                        simd[k].cut_below(z, n, scale);
                        assert_memory_equal(y, z, n * 4);
                }
                free(x), free(y), free(z);
        }
}

/* Half the numbers 1, half -1: mean 0 and deviation 1, exactly. What is at the cut is dead. */
static void test_cut_edges(void **unused)
{
        static const struct {
                float scale, high, low; /* what 1 and -1 become */
        } ways[] = { { 1, 0, 0 },       { 2, 0, 0 },  { 1 - 0x1p-24f, 0x1p-24f, 0 },
                     { 0.5f, 0.5f, 0 }, { -1, 2, 0 }, { -2, 3, 1 } };
        float x[96];

        for (unsigned k = 0; k <= n_simd; k++) {
                const struct tdm_kernels *kernels = k < n_simd ? &simd[k] : &reference;

                for (unsigned way = 0; way < TDM_ARRAY_SIZE(ways); way++) {
                        for (uint32_t i = 0; i < TDM_ARRAY_SIZE(x); i++)
                                x[i] = i % 3 == 0 || i % 6 == 1 ? 1 : -1;
                        kernels->cut_below(x, TDM_ARRAY_SIZE(x), ways[way].scale);
                        for (uint32_t i = 0; i < TDM_ARRAY_SIZE(x); i++)
                                assert_true(x[i] == (i % 3 == 0 || i % 6 == 1 ? ways[way].high : ways[way].low));
                }
                for (uint32_t live = 0; live < TDM_ARRAY_SIZE(x); live++) { /* one alone, in every lane */
                        memset(x, 0, sizeof(x));
                        x[live] = 96;
                        kernels->cut_below(x, TDM_ARRAY_SIZE(x), 1.6448533535003662f);
                        for (uint32_t i = 0; i < TDM_ARRAY_SIZE(x); i++)
                                assert_true(i == live ? x[i] > 0 : x[i] == 0);
                }
        }
}

static void test_gelu(void **unused)
{
        static const float hard[] = { 0.0f,   -0.0f, 1e-30f, -1e-30f, 1e5f,     -1e5f,   1e13f,  -1e13f, 1e19f,
                                      -1e19f, 1e30f, -1e30f, FLT_MAX, -FLT_MAX, FLT_MIN, 1e-45f, -9.0f,  9.0f };

        for (int round = 0; round < 200; round++) {
                uint32_t n = 1 + below(300);
                float *g = alloc(n * 4), *up = alloc(n * 4), *y = alloc(n * 4), *y2 = alloc(n * 4);

                for (uint32_t i = 0; i < n; i++) {
                        g[i] = below(4) ? uniform(-8, 8) : hard[below(TDM_ARRAY_SIZE(hard))];
                        up[i] = below(4) ? uniform(-8, 8) : hard[below(TDM_ARRAY_SIZE(hard))];
                }
                reference.gelu_mul(g, up, n, y);
                for (uint32_t i = 0; i < n; i++) {
                        double x = g[i], want = 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));

                        assert_true(isfinite(y[i]));
                        /* 2 - 2 / (e + 1) is off by at most 3 · 2^-24 before the products */
                        assert_true(fabs(want * up[i]) > 1e38 ||
                                    fabs(y[i] - want * up[i]) <= (2 * fabs(x) + fabs(want)) * fabs(up[i]) * 0x1p-22 +
                                                                         (1 + fabs(up[i])) * 1e-44);
                }
                for (unsigned k = 0; k < n_simd; k++) {
                        simd[k].gelu_mul(g, up, n, y2);
                        assert_memory_equal(y, y2, n * 4);
                        memcpy(y2, up, n * 4);
                        simd[k].gelu_mul(g, y2, n, y2);
                        assert_memory_equal(y, y2, n * 4);
                }
                free(g), free(up), free(y), free(y2);
        }
}

/* The exact GELU against f64, and LayerNorm; the same bits of every instruction set, in place too. */
static void test_encoders(void **unused)
{
        static const float hard[] = { 0.0f, -0.0f, 1e-30f, -1e-30f, 1e19f, -1e19f, FLT_MAX, -FLT_MAX, 1e-45f, -6, 6 };

        for (int round = 0; round < 200; round++) {
                uint32_t n = 1 + below(300);
                float *x = alloc(n * 4), *gain = alloc(n * 4), *bias = alloc(n * 4), *y = alloc(n * 4),
                      *z = alloc(n * 4);
                double mean = 0, variance = 0;

                for (uint32_t i = 0; i < n; i++) {
                        x[i] = below(4) ? uniform(-8, 8) : hard[below(TDM_ARRAY_SIZE(hard))];
                        gain[i] = uniform(-2, 2);
                        bias[i] = uniform(-2, 2);
                }
                reference.gelu_erf(x, n, y);
                for (uint32_t i = 0; i < n; i++) {
                        double want = 0.5 * x[i] * (1 + erf(x[i] * sqrt(0.5)));

                        /* Of all numbers from 2^-7 to 9 the worst, 0x1.0fcbeep-5, is 3.08e-7 of itself off. The
                         * formula's part is 0.75e-7; the rest is rounded on the way. */
                        if (!isfinite(y[i]) || fabs(y[i] - want) > 3.5e-7 * fabs(x[i]) + 1e-44)
                                fail_msg("gelu_erf(%a): %a, wanted %a", (double)x[i], (double)y[i], want);
                }
                for (unsigned k = 0; k < n_simd; k++) {
                        memcpy(z, x, n * 4);
                        simd[k].gelu_erf(z, n, z);
                        assert_memory_equal(y, z, n * 4);
                }
                for (uint32_t i = 0; i < n; i++) {
                        x[i] = uniform(-4, 5);
                        mean += x[i] / (double)n;
                }
                for (uint32_t i = 0; i < n; i++)
                        variance += (x[i] - mean) * (x[i] - mean) / n;
                reference.layernorm(x, gain, bias, n, 1e-3f, y);
                for (uint32_t i = 0; i < n; i++)
                        assert_true(fabs(y[i] - ((x[i] - mean) / sqrt(variance + 1e-3) * gain[i] + bias[i])) <= 2e-4);
                for (unsigned k = 0; k < n_simd; k++) {
                        memcpy(z, x, n * 4);
                        simd[k].layernorm(z, gain, bias, n, 1e-3f, z);
                        assert_memory_equal(y, z, n * 4);
                }
                free(x), free(gain), free(bias), free(y), free(z);
        }
}

static void test_silu(void **unused)
{
        static const float hard[] = { 0.0f, -0.0f, 1e-30f, -1e-30f, 88.0f,   -88.0f,   90.0f,    -90.0f,
                                      -1e5, 1e5f,  1e30f,  -1e30f,  FLT_MAX, -FLT_MAX, -103.97f, 1e-45f };

        for (int round = 0; round < 200; round++) {
                uint32_t n = 1 + below(300);
                float *g = alloc(n * 4), *up = alloc(n * 4), *y = alloc(n * 4), *y2 = alloc(n * 4);

                for (uint32_t i = 0; i < n; i++) {
                        g[i] = below(4) ? uniform(-12, 12) : hard[below(TDM_ARRAY_SIZE(hard))];
                        up[i] = below(4) ? uniform(-8, 8) : hard[below(TDM_ARRAY_SIZE(hard))];
                }
                reference.silu_mul(g, up, n, y);
                for (uint32_t i = 0; i < n; i++) {
                        double want = (double)g[i] / (1 + exp(-(double)g[i])) * up[i];

                        assert_true(isfinite(y[i]));
                        /* Where exp overflows the quotient is 0: it was under 1e-34. */
                        assert_true(fabs(want) > 1e38 ||
                                    fabs(y[i] - want) <= fabs(want) * 0x1p-21 + (1 + fabs(up[i])) * 1e-34);
                }
                for (unsigned k = 0; k < n_simd; k++) {
                        simd[k].silu_mul(g, up, n, y2);
                        assert_memory_equal(y, y2, n * 4);
                        memcpy(y2, up, n * 4);
                        simd[k].silu_mul(g, y2, n, y2);
                        assert_memory_equal(y, y2, n * 4);
                }
                free(g), free(up), free(y), free(y2);
        }
}

static void test_swiglu(void **unused)
{
        static const float hard[] = { 0.0f,   -0.0f, 7.0f,   -7.0f,   7.5f,     -7.5f,   6.999f,  88.0f,
                                      -88.0f, 1e30f, -1e30f, FLT_MAX, -FLT_MAX, -103.9f, -1e-30f, 1e-45f };

        for (int round = 0; round < 200; round++) {
                uint32_t n = 1 + below(300);
                float *g = alloc(n * 4), *up = alloc(n * 4), *y = alloc(n * 4), *y2 = alloc(n * 4);

                for (uint32_t i = 0; i < n; i++) {
                        g[i] = below(4) ? uniform(-12, 12) : hard[below(TDM_ARRAY_SIZE(hard))];
                        up[i] = below(4) ? uniform(-12, 12) : hard[below(TDM_ARRAY_SIZE(hard))];
                }
                reference.swiglu_clamped(g, up, n, y);
                for (uint32_t i = 0; i < n; i++) {
                        double l = fmin((double)g[i], 7), r = fmax(fmin((double)up[i], 7), -7);
                        double want = l / (1 + exp(-1.702 * l)) * (r + 1);

                        /* 1.702 g is rounded before the exponential, and u + 1 once */
                        assert_true(fabs(y[i] - want) <= fabs(want) * 0x1p-18 + fabs(l) * 0x1p-22 + 1e-30);
                }
                for (unsigned k = 0; k < n_simd; k++) {
                        simd[k].swiglu_clamped(g, up, n, y2);
                        assert_memory_equal(y, y2, n * 4);
                        memcpy(y2, up, n * 4);
                        simd[k].swiglu_clamped(g, y2, n, y2);
                        assert_memory_equal(y, y2, n * 4);
                }
                free(g), free(up), free(y), free(y2);
        }
}

static void test_rope(void **unused)
{
        for (uint32_t head_dim = 16; head_dim <= MAX_HEAD_DIM; head_dim += 16) {
                float x[MAX_HEAD_DIM], y[MAX_HEAD_DIM], z[MAX_HEAD_DIM], c[MAX_HEAD_DIM / 2], s[MAX_HEAD_DIM / 2];
                uint32_t half = head_dim / 2;

                fill_values(x, head_dim);
                for (uint32_t i = 0; i < half; i++) {
                        float angle = uniform(-4, 4);

                        c[i] = cosf(angle);
                        s[i] = i % 5 ? sinf(angle) : 0;
                }
                memcpy(y, x, sizeof(x));
                reference.rope(y, c, s, head_dim);
                for (uint32_t i = 0; i < half; i++) {
                        double size = fabs(x[i]) + fabs(x[half + i]);

                        assert_true(fabs(y[i] - ((double)x[i] * c[i] - (double)x[half + i] * s[i])) <=
                                    size * 0x1p-23 + 1e-44);
                        assert_true(fabs(y[half + i] - ((double)x[half + i] * c[i] + (double)x[i] * s[i])) <=
                                    size * 0x1p-23 + 1e-44);
                }
                for (unsigned k = 0; k < n_simd; k++) {
                        memcpy(z, x, sizeof(x));
                        simd[k].rope(z, c, s, head_dim);
                        assert_memory_equal(y, z, head_dim * 4);
                }
        }
}

static size_t part_bytes(enum tdm_kv_type type, uint32_t head_dim)
{
        size_t n_blocks = (head_dim + 31) / 32;

        return 2 * 32 *
               (type == TDM_KV_F32 ? head_dim * 4 :
                type == TDM_KV_F16 ? head_dim * 2 :
                                     head_dim + 2 * n_blocks);
}

static float f16_value(const uint8_t *at)
{
        uint16_t h;

        memcpy(&h, at, 2);
        return (h & 0x8000 ? -1.0f : 1.0f) *
               (h & 0x7c00 ? ldexpf((float)(h & 0x3ff) + 1024, (h >> 10 & 31) - 25) : ldexpf((float)(h & 0x3ff), -24));
}

/* Each value read back by the layout that engine/step/kv.h describes: within half a step of its block, and no step is
 * larger than the block needs (a scale is off by 2^-11, or by 2^-25 where it is tiny, in which case values at the end
 * are cut). */
static void check_q8(const uint8_t *part, uint32_t head_dim, uint32_t t, const float *k, const float *v)
{
        uint32_t n_blocks = (head_dim + 31) / 32;
        const uint8_t *k_scales = part + 32 * head_dim, *values = k_scales + 64 * n_blocks,
                      *v_scales = values + 32 * head_dim;

        for (uint32_t d = 0; d < head_dim; d++) {
                uint32_t first = d / 32 * 32, end = TDM_MIN(first + 32, head_dim), b = d / 32;
                float scales[2] = { f16_value(k_scales + 2 * (t / 16 * n_blocks * 16 + b * 16 + t % 16)),
                                    f16_value(v_scales + 2 * (t * n_blocks + b)) };
                int8_t q[2] = { (int8_t)part[(t / 16 * head_dim + d) * 16 + t % 16], (int8_t)values[t * head_dim + d] };

                for (int i = 0; i < 2; i++) {
                        const float *x = i ? v : k;
                        double amax = 0, want = isnan(x[d]) ? 0 : fmax(fmin(x[d], 127 * 65504.0), -127 * 65504.0);

                        for (uint32_t e = first; e < end; e++)
                                amax = fmax(amax, fmin(isnan(x[e]) ? 0 : fabs(x[e]), 127 * 65504.0));
                        assert_true(fabs(scales[i] - amax / 127) <= fmax(amax / 127 * 0x1p-11, 0x1p-25) * (1 + 1e-6));
                        assert_true(fabs(q[i] * (double)scales[i] - want) <=
                                    fmax(scales[i] * 0.5625, 127 * 0x1p-25) * (1 + 1e-5));
                }
        }
}

static void test_kv_store(void **unused)
{
        static const float hard[] = { 65504,        65519,        65520,    -65520,   70000,      -1e9f,
                                      INFINITY,     -INFINITY,    0x1p-24f, 0x1p-25f, 0x1.8p-25f, -0x1.8p-24f,
                                      0x1.ffcp-15f, 0x1.fffp-15f, 1e-45f,   -0.0f,    2049,       2051,
                                      8e6f,         9e6f,         -1e30f };

        for (int round = 0; round < 400; round++) {
                enum tdm_kv_type type = round % 4 == 0 ? TDM_KV_F32 : round % 4 < 3 ? TDM_KV_Q8_0 : TDM_KV_F16;
                float limit = type == TDM_KV_F16 ? 65504 : 127 * 65504.0f;
                uint32_t head_dim = 16 + 4 * below(61), t = below(TDM_KV_PAGE_TOKENS), n, want = 0;
                size_t bytes = part_bytes(type, head_dim);
                float k[MAX_HEAD_DIM], v[MAX_HEAD_DIM];
                uint8_t *a = alloc(bytes), *b = alloc(bytes);

                for (uint32_t d = 0; d < head_dim; d++) {
                        k[d] = below(3) ? value() : hard[below(TDM_ARRAY_SIZE(hard))];
                        v[d] = below(3) ? value() : hard[below(TDM_ARRAY_SIZE(hard))];
                        if (round % 25 == 3 && d == 5)
                                v[d] = NAN;
                        if (round % 7 == 2) { /* a quiet row */
                                k[d] = uniform(-1e-6f, 1e-6f);
                                v[d] = uniform(-1e-5f, 1e-5f);
                        }
                        want += !(fabsf(k[d]) <= limit) + !(fabsf(v[d]) <= limit);
                }
                n = reference.kv_store(a, type, head_dim, t, k, v);
                assert_int_equal(n, type == TDM_KV_F32 ? 0 : want);
                if (type == TDM_KV_Q8_0)
                        check_q8(a, head_dim, t, k, v);
                for (unsigned i = 0; i < n_simd; i++) {
                        memset(b, 0xff, bytes);
                        assert_int_equal(simd[i].kv_store(b, type, head_dim, t, k, v), n);
                        assert_memory_equal(a, b, bytes);
                }
                free(a), free(b);
        }
}

/* A sequence of a few spans behind a scattered set of parts; queries as a prefill chunk of a window layer would send
 * them. */
struct case_ {
        uint32_t head_dim, n_spans, n_queries;
        enum tdm_kv_type type;
        float softcap;
        uint8_t *pages; /* [n_spans * 8] parts */
        float *q;       /* [n_queries][head_dim] */
        uint32_t *first, *end;
        float *k, *v; /* [n_spans * 256][head_dim] as stored */
};

static void case_init(struct case_ *c)
{
        size_t bytes;

        c->type = (enum tdm_kv_type)(1 + below(3));
        /* of q8_0 every block has the number that its scale is made of: the 8th of 16 */
        c->head_dim = c->type == TDM_KV_Q8_0 ? 16 + 8 * below(15) : 16 + 4 * below(29);
        c->softcap = below(2) ? 0 : uniform(0.5f, 60);
        c->n_spans = 1 + below(3);
        c->n_queries = 1 + below(19);
        bytes = part_bytes(c->type, c->head_dim);
        c->pages = alloc(bytes * c->n_spans * 8);
        c->q = alloc((size_t)c->n_queries * c->head_dim * 4);
        c->first = alloc(c->n_queries * 4);
        c->end = alloc(c->n_queries * 4);
        c->k = alloc((size_t)c->n_spans * 256 * c->head_dim * 4);
        c->v = alloc((size_t)c->n_spans * 256 * c->head_dim * 4);
        for (uint32_t i = 0; i < c->n_queries * c->head_dim; i++)
                c->q[i] = uniform(-1, 1);
        for (uint32_t i = 0; i < c->n_queries; i++) {
                c->end[i] = 1 + below(c->n_spans * 256);
                c->first[i] = below(2) ? 0 : below(c->end[i]);
        }
        for (uint32_t t = 0; t < c->n_spans * 256; t++) {
                float *k = c->k + (size_t)t * c->head_dim, *v = c->v + (size_t)t * c->head_dim;
                bool seen = false;

                for (uint32_t i = 0; i < c->n_queries; i++)
                        seen |= t >= c->first[i] && t < c->end[i];
                for (uint32_t d = 0; d < c->head_dim; d++) {
                        /* small multiples of 2^-6: f16 holds them, so that the double reference sees what is stored */
                        k[d] = (float)((int)below(257) - 128) / 64;
                        v[d] = (float)((int)below(257) - 128) / 64;
                }
                /* the same, when each block's scale is 1/32 or 1/64, differing among keys */
                if (c->type == TDM_KV_Q8_0)
                        for (uint32_t d = 0; d < c->head_dim; d++) {
                                float scale = (d / 32 + t) % 3 ? 0x1p-5f : 0x1p-6f;

                                k[d] = (float)(d % 16 == 3 ? 127 : (int)below(255) - 127) * scale / 2;
                                v[d] = (float)(d % 16 == 5 ? -127 : (int)below(255) - 127) * scale / 2;
                        }
                if (seen) /* what nobody sees stays NaN */
                        reference.kv_store(c->pages + bytes * (t / 32), c->type, c->head_dim, t % 32, k, v);
        }
}

static void case_deinit(struct case_ *c)
{
        free(c->pages), free(c->q), free(c->first), free(c->end), free(c->k), free(c->v);
}

/* Runs queries [from, to) together; with `apart`, every span by itself, merged afterwards. out [n][head_dim + 2]. */
static void attend(const struct tdm_kernels *kernels, const struct case_ *c, uint32_t from, uint32_t to, bool apart,
                   float *out)
{
        size_t bytes = part_bytes(c->type, c->head_dim), width = c->head_dim + 2;
        float *scratch = alloc(TDM_ATTEND_SCRATCH(c->head_dim) * 4), *partial = alloc(32 * width * 4);

        for (uint32_t i = from; i < to; i++)
                out[i * width] = -INFINITY;
        for (uint32_t s = 0; s < c->n_spans; s++) {
                struct tdm_attend_query queries[32], into[32];
                struct tdm_attend_span span = { .type = c->type,
                                                .head_dim = c->head_dim,
                                                .queries = queries,
                                                .softcap = c->softcap,
                                                .scratch = scratch };

                for (uint32_t i = from; i < to; i++) {
                        uint32_t lo = TDM_MAX(c->first[i], s * 256) - s * 256;
                        uint32_t hi = TDM_MIN(TDM_MAX(c->end[i], s * 256) - s * 256, 256u);
                        float *o = out + i * width, *x = partial + span.n_queries * width;

                        if (lo >= hi)
                                continue;
                        for (uint32_t page = lo / 32; page <= (hi - 1) / 32; page++)
                                span.parts[page] = c->pages + bytes * (s * 8 + page);
                        into[span.n_queries] =
                                (struct tdm_attend_query){ c->q + i * c->head_dim, lo, hi, o + 2, o, o + 1 };
                        x[0] = -INFINITY;
                        queries[span.n_queries] = into[span.n_queries];
                        if (apart)
                                queries[span.n_queries] =
                                        (struct tdm_attend_query){ c->q + i * c->head_dim, lo, hi, x + 2, x, x + 1 };
                        span.n_queries++;
                }
                if (!span.n_queries)
                        continue;
                kernels->attend_span(&span);
                for (uint32_t i = 0; apart && i < span.n_queries; i++)
                        kernels->attend_merge(&into[i], &queries[i], c->head_dim);
        }
        free(scratch), free(partial);
}

static void check_attention(const struct case_ *c, const float *out)
{
        size_t width = c->head_dim + 2;

        for (uint32_t i = 0; i < c->n_queries; i++) {
                double m = -INFINITY, l = 0, o[MAX_HEAD_DIM] = {}, s[3 * 256], size = 0;

                for (uint32_t t = c->first[i]; t < c->end[i]; t++) {
                        s[t] = 0;
                        for (uint32_t d = 0; d < c->head_dim; d++)
                                s[t] += (double)c->q[i * c->head_dim + d] * c->k[t * c->head_dim + d];
                        size = fmax(size, fabs(s[t]));
                        if (c->softcap > 0)
                                s[t] = c->softcap * tanh(s[t] / c->softcap);
                        m = fmax(m, s[t]);
                }
                for (uint32_t t = c->first[i]; t < c->end[i]; t++) {
                        double p = exp(s[t] - m);

                        l += p;
                        for (uint32_t d = 0; d < c->head_dim; d++)
                                o[d] += p * c->v[t * c->head_dim + d];
                }
                /* a score is off by head_dim roundings of sums as large as 2 head_dim; |v| <= 2 */
                for (uint32_t d = 0; d < c->head_dim; d++)
                        assert_true(fabs(out[i * width + 2 + d] / out[i * width + 1] - o[d] / l) <=
                                    4 * (c->head_dim * (size + 4)) * 0x1p-24);
        }
}

static void test_attention(void **unused)
{
        for (int round = 0; round < 60; round++) {
                struct case_ c;
                size_t bytes;
                float *a, *b;

                case_init(&c);
                bytes = (size_t)c.n_queries * (c.head_dim + 2) * 4;
                a = alloc(bytes);
                b = alloc(bytes);
                for (uint32_t i = 0; i < c.n_queries; i++)
                        attend(&reference, &c, i, i + 1, false, a);
                check_attention(&c, a);
                attend(&reference, &c, 0, c.n_queries, true, b);
                assert_memory_equal(a, b, bytes);
                for (unsigned k = 0; k < n_simd; k++) {
                        memset(b, 0, bytes);
                        attend(&simd[k], &c, 0, c.n_queries, false, b);
                        assert_memory_equal(a, b, bytes);
                        memset(b, 0, bytes);
                        attend(&simd[k], &c, 0, c.n_queries, true, b);
                        assert_memory_equal(a, b, bytes);
                        memset(b, 0, bytes);
                        for (uint32_t i = 0, n; i < c.n_queries; i += n) {
                                n = 1 + draw(&cut_state) % 5;
                                n = TDM_MIN(n, c.n_queries - i);
                                attend(&simd[k], &c, i, i + n, false, b);
                        }
                        assert_memory_equal(a, b, bytes);
                }
                case_deinit(&c);
                free(a), free(b);
        }
}

/* In double precision, one row after the other. */
static void delta_in_double(const struct tdm_delta_rows *d, double *m, double *out, double *magnitude)
{
        uint32_t size = d->size;

        for (uint32_t r = 0; r < d->n_rows; r++)
                for (uint32_t c = 0; c < size; c++) {
                        double s = 0, e, g = d->decay[r * d->numbers_stride];

                        for (uint32_t i = 0; i < size; i++)
                                s += m[i * size + c] * d->k[r * d->stride + i];
                        e = d->beta[r * d->numbers_stride] * (d->v[r * d->stride + c] - g * s);
                        out[r * size + c] = 0;
                        for (uint32_t i = 0; i < size; i++) {
                                m[i * size + c] = g * m[i * size + c] + d->k[r * d->stride + i] * e;
                                out[r * size + c] += m[i * size + c] * d->q[r * d->stride + i];
                                *magnitude = fmax(*magnitude, fabs(m[i * size + c]));
                        }
                }
}

static void delta_check(const struct tdm_delta_rows *d, const float *out)
{
        uint32_t size = d->size;
        double *m = alloc(size * size * sizeof(*m)), *want = alloc(d->n_rows * size * sizeof(*want)), magnitude = 1;

        for (uint32_t i = 0; i < size; i++)
                for (uint32_t c = 0; c < size; c++)
                        m[i * size + c] = d->from[((size_t)(c / 16) * size + i) * 16 + c % 16];
        delta_in_double(d, m, want, &magnitude);
        for (uint32_t i = 0; i < d->n_rows * size; i++)
                assert_true(fabs(out[i] - want[i]) <= magnitude * size * d->n_rows * 0x1p-23);
        free(m), free(want);
}

/* Any number of rows, and any cut of them, in place or not: the same bits. */
static void test_delta(void **unused)
{
        for (int round = 0; round < 60; round++) {
                uint32_t size = 16 * (1 + below(16)), n_rows = 1 + below(9), stride = 3 * size + below(3),
                         heads = 1 + below(5);
                size_t bytes = (size_t)size * size * sizeof(float), out_bytes = (size_t)n_rows * size * sizeof(float);
                float *rows = alloc((size_t)n_rows * stride * 4), *numbers = alloc((size_t)2 * n_rows * heads * 4);
                float *before = alloc(bytes), *m = alloc(bytes), *m2 = alloc(bytes), *out = alloc(out_bytes),
                      *out2 = alloc(out_bytes);
                struct tdm_delta_rows d = {
                        before, m,     rows, rows + size, rows + 2 * size, numbers, numbers + n_rows * heads, out,
                        stride, heads, size, size,        n_rows
                };

                for (uint32_t i = 0; i < n_rows * stride; i++)
                        rows[i] = i % stride < 2 * size ? uniform(-1, 1) / sqrtf((float)size) : uniform(-3, 3);
                for (uint32_t i = 0; i < 2 * n_rows * heads; i++)
                        numbers[i] = below(8) ? uniform(0, 1) : (float)below(2);
                for (uint32_t i = 0; i < size * size; i++)
                        before[i] = uniform(-2, 2);
                reference.delta_rows(&d);
                delta_check(&d, out);
                for (unsigned k = 0; k < n_simd; k++) {
                        struct tdm_delta_rows part = d;
                        uint32_t first = 1 + draw(&cut_state) % n_rows;

                        memcpy(m2, before, bytes);
                        part.from = part.to = m2;
                        part.out = out2;
                        part.n_rows = first;
                        simd[k].delta_rows(&part);
                        part.q += first * stride, part.k += first * stride, part.v += first * stride;
                        part.decay += first * heads, part.beta += first * heads, part.out += first * size;
                        part.n_rows = n_rows - first;
                        if (part.n_rows > 0)
                                simd[k].delta_rows(&part);
                        assert_memory_equal(out, out2, out_bytes);
                        assert_memory_equal(m, m2, bytes);
                        d.to = m2;
                        simd[k].delta_rows(&d);
                        assert_memory_equal(m, m2, bytes);
                        d.to = m;
                }
                free(rows), free(numbers), free(before), free(m), free(m2), free(out), free(out2);
        }
}

static void random_begin(void)
{
        const char *wanted = getenv("TANDEM_TEST_SEED");
        uint64_t seed = wanted && *wanted ? strtoull(wanted, NULL, 10) : (uint64_t)time(NULL);

        print_message("seed %" PRIu64 " (TANDEM_TEST_SEED)\n", seed);
        value_state = cut_state = seed ^ 88172645463325252u; /* which is not 0 for any time */
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_exp),       cmocka_unit_test(test_rmsnorm),   cmocka_unit_test(test_cut),
                cmocka_unit_test(test_cut_edges), cmocka_unit_test(test_gelu),      cmocka_unit_test(test_rope),
                cmocka_unit_test(test_kv_store),  cmocka_unit_test(test_attention), cmocka_unit_test(test_silu),
                cmocka_unit_test(test_swiglu),    cmocka_unit_test(test_delta),     cmocka_unit_test(test_encoders),
        };

        random_begin();
        tdm_kernels_c_ops_fill(&reference);
#ifdef __x86_64__
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
                tdm_kernels_avx2_ops_fill(&simd[n_simd++]);
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512bw"))
                tdm_kernels_avx512_ops_fill(&simd[n_simd++]);
#endif
        print_message("comparing %u SIMD versions with the C reference\n", n_simd);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
