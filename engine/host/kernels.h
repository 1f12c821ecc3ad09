/* The host device's table of kernels: the C reference fills it, AVX2 and AVX-512 override upward, callers only see the
 * table. One ISA per file, its flags on that file only. TANDEM_CPU=c|avx2|avx512 in the environment forces a lower one.
 *
 * All three give the same bits: each float result is made by one sequence of operations that is written beside the C
 * version (lanes are outputs, or a fixed number of partial sums folded in a fixed tree; fused multiply-adds only where
 * the reference says fmaf; no contraction by the compiler). Tests compare for equality, not for closeness. */
#ifndef TDM_ENGINE_HOST_KERNELS_H
#define TDM_ENGINE_HOST_KERNELS_H

#include "engine/step/kv.h"
#include "engine/weights/subblock.h"

/* ---- activations as matrix kernels read them ----
 *
 * I8:  per block of 32: scale d = amax / 127, q = rint(x / d) in [-127, 127].
 * I16: per block of 32: d = amax / 32512, q = rint(x / d); q = 256 hi + lo, lo in [-128, 127], hi in [-127, 127], so
 * that two int8 passes over the same weights give the exact integer sum: twice int8's work, no second weight format.
 * start is -8 times the block's sum of q: where the integer sum of weights that are stored plus 8 has to begin (of
 * other offsets, a multiple or a fraction of it). sum is d times the sum of q, for weights with a minimum; sum_16 are
 * the sums of q of 16 columns each, for weights whose scales are of 16. F32: the row itself. */
struct tdm_act_row {
        const float *x;        /* [cols] */
        const int8_t *hi;      /* [cols] (I8: q itself) */
        const int8_t *lo;      /* [cols], I16 only */
        const float *scale;    /* [nb] */
        const int32_t *start;  /* [nb] */
        const float *sum;      /* [nb] */
        const int32_t *sum_16; /* [2 nb] */
};

/* Where quantising writes what belongs to blocks, as above. */
struct tdm_act_blocks {
        float *scale;
        int32_t *start;
        float *sum;
        int32_t *sum_16;
};

enum tdm_act { TDM_ACT_F32 = 0, TDM_ACT_I8 = 1, TDM_ACT_I16 = 2, TDM_N_ACTS = 3 };
#define TDM_N_MATMUL_TYPES (5 + TDM_N_SUBBLOCK_TYPES)

/* How a matrix lies (engine/weights/weights.h): kernels read panels, and panels.h makes them of the others. */
enum tdm_matrix_order { TDM_ORDER_PANELS = 0, TDM_ORDER_ROWS, TDM_ORDER_COLUMNS };

struct tdm_matrix {
        const uint8_t *data;
        uint64_t panel_bytes;
        uint32_t type;
        uint32_t rows; /* outputs; ceil(rows / 16) panels */
        uint32_t cols;
        enum tdm_matrix_order order;
};

/* Row-tile kernel: y[r][16 * n_panels outputs of panels first … first+n_panels-1] for n_rows rows.
 * ORDER (quantised): for each output, over blocks b = 0 … nb-1: acc = fmaf((float)isum_b, w_scale_b * x_scale_b, acc),
 * acc starts at 0; isum_b is the exact integer sum over the block's 32 products (I16: 256 * isum_hi + isum_lo, in
 * int32). ORDER (F32 activations): for k = 0 … cols-1: acc = fmaf(w[k], x[k], acc), w dequantised exactly: (float)q *
 * scale. Types of sub-blocks (engine/weights/subblock.h) say their order in kernels-c-matmul-subblock.c. y rows are
 * y_stride floats apart; outputs past matrix->rows are not written. */
typedef void (*tdm_matmul_fn)(const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t n_rows,
                              uint32_t first_panel, uint32_t n_panels, float *y, size_t y_stride);

/* One span of keys of one sequence, for queries that share the kv head: flash attention's inner step.
 *
 * ORDER, for each query: scores s_t = sum over d = 0 … head_dim-1 of fmaf(q[d], k_t[d], ·) from 0 (q8_0: by blocks,
 * with one fmaf for the scale each; its v_t[d] is (float)q * scale; both in kernels-c-ops.c); with a softcap c, s_t
 * becomes c (1 - 2 / (exp(s_t (2 / c)) + 1)), which is c tanh(s_t / c); m = max of s_t over lo ≤ t < hi; p_t = exp(s_t
 * - m); l = sum of p_t: 16 partial sums by t % 16 (t absolute), folded as rmsnorm's tree; o[d] = sum over t from lo to
 * hi-1 of fmaf(p_t, v_t[d], ·) from 0. Then merged into the running (M, L, O), spans going left to right: first span:
 * copied; else M' = max(M, m), a = exp(M - M'), b = exp(m - M'), L = fmaf(L, a, l * b), O = fmaf(O, a, o * b). Keys
 * outside [lo, hi) are never read for their value (a page may hold garbage there), not multiplied by zero. */
#define TDM_ATTENTION_SPAN 256u

struct tdm_attend_query {
        const float *q;  /* [head_dim], scaled, rotated */
        uint32_t lo, hi; /* keys seen within the span, 0 … 256; lo < hi */
        float *o;        /* [head_dim] running numerator */
        float *m;        /* running maximum; -INFINITY before the first span */
        float *l;        /* running denominator */
};

struct tdm_attend_span {
        const uint8_t *parts[TDM_ATTENTION_SPAN / TDM_KV_PAGE_TOKENS]; /* the span's pages, NULL where no query looks */
        enum tdm_kv_type type;
        uint32_t head_dim;
        const struct tdm_attend_query *queries;
        uint32_t n_queries;
        float softcap;  /* of scores; 0: none */
        float *scratch; /* [TDM_ATTEND_SCRATCH(head_dim)], 64-byte aligned, one per thread */
};
/* Weights of up to 8 queries, and the scales of a span of values (in C: one query's weights and sums). */
#define TDM_ATTEND_SCRATCH(head_dim)                                                                                   \
        (8u * TDM_ATTENTION_SPAN + ((head_dim) + 31u) / 32u * TDM_ATTENTION_SPAN + (head_dim))

/* Columns of one block of 32 of a matrix that lies column by column, and the row's numbers that meet them. Of Q8_0 a
 * column is signed bytes. Of Q4_0 it is nibbles, plus 8: in each 16 bytes rows 0 to 15 are low, rows 16 to 31 high. */
struct tdm_columns {
        uint32_t type;
        uint32_t n; /* 1 … 32 */
        const uint8_t *w[TDM_BLOCK_VALUES];
        int16_t q[TDM_BLOCK_VALUES];
        const uint16_t *scales; /* [n_rows] f16 */
        float x_scale;
};

/* Rows of one sequence through one head of a gated delta net (engine/model/recipe.h), one after the other. Its matrix
 * has size keys and size values, a multiple of 16. It lies in panels of 16 values: [size / 16][size keys][16 values],
 * so that a strip of it stays in the nearest cache for all rows.
 *
 * ORDER, for each value c: s = sum over i = 0 … size - 1 of fmaf(M[i][c], k[i], ·) from 0; e = beta fmaf(-decay, s,
 * v[c]); M[i][c] = fmaf(k[i], e, decay M[i][c]); out[c] = sum over i of fmaf(M[i][c], q[i], ·) from 0. So it does not
 * matter how many rows go together. */
struct tdm_delta_rows {
        const float *from;         /* the matrix before the rows; may be `to` */
        float *to;                 /* and behind them */
        const float *q, *k, *v;    /* [size] of the first row; those of the next lie `stride` floats on */
        const float *decay, *beta; /* of the first row; those of the next lie `numbers_stride` floats on */
        float *out;                /* [size], `out_stride` floats apart */
        size_t stride, numbers_stride, out_stride;
        uint32_t size, n_rows;
};
#define TDM_DELTA_PANEL 16u

struct tdm_kernels {
        const char *name;     /* "c", "avx2", "avx512" */
        const char *describe; /* "AVX-512 VNNI" */

        /* [activation form][tdm_kernels_type_index()]; NULL where the pair makes no sense. */
        tdm_matmul_fn matmul[TDM_N_ACTS][TDM_N_MATMUL_TYPES];

        /* One block's part of a matrix product for one row, of the columns that are not zero in it: ORDER as the matrix
         * kernels', y[r] = fmaf((float)isum_r, scale_r * x_scale, y[r]). n_rows is a multiple of 16, of Q4_0 of 32. */
        void (*add_columns)(const struct tdm_columns *columns, uint32_t n_rows, float *y);
        /* 16 rows as a panel. Each lies by itself: its quants, then its scales. */
        void (*interleave)(const uint8_t *const *rows, uint32_t n_blocks, uint32_t block_bytes, uint8_t *scales,
                           uint8_t *quants);
        /* The quants of n_panels panels, an even number and panel_bytes apart, of columns as struct tdm_columns has
         * them, column_bytes apart. w: the first column's piece of the panels' rows. */
        void (*turn_columns)(uint32_t type, const uint8_t *w, size_t column_bytes, uint32_t n_blocks, uint32_t n_panels,
                             uint8_t *quants, size_t panel_bytes);

        /* Quantise one row of cols values (a multiple of 32). Non-finite input saturates: NaN → 0, inf → amax FLT_MAX.
         */
        void (*quantise_i8)(const float *x, uint32_t cols, int8_t *q, const struct tdm_act_blocks *blocks);
        void (*quantise_i16)(const float *x, uint32_t cols, int8_t *hi, int8_t *lo,
                             const struct tdm_act_blocks *blocks);

        /* y = x * gain / sqrt(mean(x²) + eps). ORDER: 16 partial sums, element i goes to partial i % 16 by fmaf, folded
         * as a tree (i with i+8, +4, +2, +1); then scale = 1 / sqrtf(sum / n + eps); y = (x * scale) * gain. x may be
         * y. */
        void (*rmsnorm)(const float *x, const float *gain, uint32_t n, float eps, float *y);
        /* h += rmsnorm(y) in the same order; y is not changed. */
        void (*rmsnorm_add)(const float *y, const float *gain, uint32_t n, float eps, float *h);
        /* mean(x²), in the norm's order. */
        float (*mean_square)(const float *x, uint32_t n);
        /* y = (x - mean) / sqrt(variance + eps) * gain + bias. ORDER: partial sums and tree as rmsnorm's; the mean is
         * the sum by n; the variance is the mean of (x - mean)², which is a second pass; scale = 1 / sqrtf(variance +
         * eps); y = fmaf((x - mean) * scale, gain, bias). x may be y. */
        void (*layernorm)(const float *x, const float *gain, const float *bias, uint32_t n, float eps, float *y);
        /* y[i] = x (1 + erf(x / sqrt(2))) / 2, within 3.2e-7 |x| (kernels-ops.h); finite for every finite input. y
         * may be x. */
        void (*gelu_erf)(const float *x, uint32_t n, float *y);
        /* x[i] = max(x[i] - (mean + scale * deviation), 0). ORDER: partial sums and tree as rmsnorm's; the mean is the
         * sum by n; the deviation is the root of the mean of (x - mean)², which is a second pass. */
        void (*cut_below)(float *x, uint32_t n, float scale);
        /* y[i] = gelu_tanh(gate[i]) * up[i], gelu as 0.5 g (2 - 2 / (exp(2z) + 1)), z = sqrt(2/pi) (g + 0.044715 g³);
         * finite for every finite input. y may be gate or up. */
        void (*gelu_mul)(const float *gate, const float *up, uint32_t n, float *y);
        /* y[i] = silu(gate[i]) * up[i], silu as g / (exp(-g) + 1); finite for every finite input. y may be gate or up.
         */
        void (*silu_mul)(const float *gate, const float *up, uint32_t n, float *y);
        /* y[i] = g sigmoid(1.702 g) (u + 1), g = min(gate[i], 7), u = up[i] clamped to ±7 (gpt-oss); finite for every
         * finite input. y may be gate or up. */
        void (*swiglu_clamped)(const float *gate, const float *up, uint32_t n, float *y);
        /* Half-split (NeoX) rotation in place: x [head_dim], cos/sin [head_dim / 2]. l' = l c - r s, r' = r c + l s,
         * each as fmaf(l, c, -(r * s)) and fmaf(r, c, l * s). */
        void (*rope)(float *x, const float *cos, const float *sin, uint32_t head_dim);
        /* Stores one key/value row at position t of a part (engine/step/kv.h). f16: round to nearest even, saturate to
         * 65504; q8_0: kernels-c-ops.c says how. Returns how many values had to be saturated. What is stored depends on
         * the row alone. */
        uint32_t (*kv_store)(uint8_t *part, enum tdm_kv_type type, uint32_t head_dim, uint32_t t, const float *k,
                             const float *v);
        /* Attention of n_q queries (rows of one kv head's group and/or of several positions; each with its own key
         * range) over the keys of one span of TDM_ATTENTION_SPAN positions. See host/attention.h for the order. */
        void (*attend_span)(const struct tdm_attend_span *span);
        /* The merge of attend_span's ORDER alone: a span's own (o, m, l), computed apart, into the running one on its
         * left. */
        void (*attend_merge)(const struct tdm_attend_query *into, const struct tdm_attend_query *span,
                             uint32_t head_dim);
        void (*delta_rows)(const struct tdm_delta_rows *rows);
        /* exp as all kernels use it (elementwise, same bits everywhere): for tests. */
        void (*exp_array)(const float *x, uint32_t n, float *y);
};

/* Chosen once: best the CPU has, lowered by TANDEM_CPU (unknown or unavailable value: error text, NULL). */
const struct tdm_kernels *tdm_kernels_choose(struct tdm_error *err);
/* A given one, NULL when this CPU lacks it: tests run all that exist. */
const struct tdm_kernels *tdm_kernels_get(const char *name);
int tdm_kernels_type_index(uint32_t type); /* -1: no kernel */

#endif
