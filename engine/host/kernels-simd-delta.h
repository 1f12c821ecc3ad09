/* The SIMD versions of a gated delta net's recurrence, written once for AVX2 and AVX-512. Lanes are values, so the
 * order of sums is the reference's.
 *
 * A row reads the matrix as the row before it has left it. So the pass that writes it for one row also makes the sum s
 * of the next one: the matrix is read and written once for each row. Two panels go together, or each fmaf would wait
 * for the one before. */
#include "engine/host/kernels.h"

TDM_INLINE void delta_first_sums(const struct tdm_delta_rows *d, const float *from, const uint32_t n, struct v16 *s)
{
        for (uint32_t p = 0; p < n; p++)
                s[p] = v16_zero();
        for (uint32_t i = 0; i < d->size; i++) {
                struct v16 k = v16_set1(d->k[i]);

#pragma GCC unroll 2
                for (uint32_t p = 0; p < n; p++)
                        s[p] = v16_fma(v16_load(from + (p * d->size + i) * TDM_DELTA_PANEL), k, s[p]);
        }
}

/* One row. next: the keys of the one behind it, whose sums s has afterwards; NULL: there is none. */
TDM_INLINE void delta_row(const struct tdm_delta_rows *d, const float *from, float *to, size_t r, size_t c,
                          const uint32_t n, const float *next, struct v16 *s)
{
        const float *q = d->q + r * d->stride, *k = d->k + r * d->stride, *v = d->v + r * d->stride + c;
        const float decay_of_row = d->decay[r * d->numbers_stride];
        const struct v16 decay = v16_set1(decay_of_row), minus = v16_set1(-decay_of_row),
                         beta = v16_set1(d->beta[r * d->numbers_stride]);
        struct v16 e[2], o[2];

        for (uint32_t p = 0; p < n; p++) {
                e[p] = v16_mul(beta, v16_fma(minus, s[p], v16_load(v + p * TDM_DELTA_PANEL)));
                s[p] = o[p] = v16_zero();
        }
        for (uint32_t i = 0; i < d->size; i++) {
                struct v16 ki = v16_set1(k[i]), qi = v16_set1(q[i]), ni = next ? v16_set1(next[i]) : v16_zero();

#pragma GCC unroll 2
                for (uint32_t p = 0; p < n; p++) {
                        size_t at = (p * d->size + i) * TDM_DELTA_PANEL;
                        struct v16 m = v16_fma(ki, e[p], v16_mul(decay, v16_load(from + at)));

                        v16_store(to + at, m);
                        o[p] = v16_fma(m, qi, o[p]);
                        if (next)
                                s[p] = v16_fma(m, ni, s[p]);
                }
        }
        for (uint32_t p = 0; p < n; p++)
                v16_store(d->out + r * d->out_stride + c + p * TDM_DELTA_PANEL, o[p]);
}

TDM_INLINE void delta_panels(const struct tdm_delta_rows *d, uint32_t panel, const uint32_t n)
{
        size_t c = (size_t)panel * TDM_DELTA_PANEL;
        const float *from = d->from + c * d->size;
        float *to = d->to + c * d->size;
        struct v16 s[2];

        delta_first_sums(d, from, n, s);
        for (size_t r = 0; r + 1 < d->n_rows; r++) {
                delta_row(d, from, to, r, c, n, d->k + (r + 1) * d->stride, s);
                from = to;
        }
        delta_row(d, from, to, d->n_rows - 1, c, n, NULL, s);
}

static void delta_rows(const struct tdm_delta_rows *d)
{
        uint32_t panel = 0, n = d->size / TDM_DELTA_PANEL;

        for (; panel + 2 <= n; panel += 2)
                delta_panels(d, panel, 2);
        if (panel < n)
                delta_panels(d, panel, 1);
}
