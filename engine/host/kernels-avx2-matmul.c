/* Matrix kernels for AVX2. One vector is 4 consecutive columns of 8 outputs, half a panel, and meets 4 activations
 * broadcast from memory. The integer sums are exact, and what follows a block is the order of the C version.
 *
 * Nibbles meet bytes in vpmaddubsw, whose sums of 16 bits hold all of a block; activations of 16 bits are two numbers
 * of 8 bits. Where weights are bytes, two products do not fit 16 bits, so both are widened for vpmaddwd: the even and
 * the odd columns of 4, each a pair of 16 bits that belongs to one output. There activations of 8 and of 16 bits cost
 * the same.
 *
 * A tile is a panel times N_R rows. A block's integer sums stay in registers, float sums in the first-level cache. */
#include <float.h>
#include "engine/host/kernels-fill.h"

#ifdef __x86_64__
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define LANES TDM_PANEL_ROWS
#define BLOCK TDM_BLOCK_VALUES
#define HALF 8u
#define MAX_TILE_ROWS 4u
#define MAX_NUMBERS 4u /* rows of 8-bit numbers of a tile of nibbles */
#define AHEAD_BYTES 2048u

INLINE size_t scales_bytes(const struct tdm_matrix *matrix)
{
        return TDM_ALIGN_UP((size_t)matrix->cols / BLOCK * LANES * 2, (size_t)64);
}

/* Outputs past the matrix's end are not written. */
INLINE void store_lanes(const struct tdm_matrix *matrix, uint32_t panel, const __m256 *acc, float *y)
{
        uint32_t n = matrix->rows - panel * LANES;
        float tail[LANES];

        if (n >= LANES) {
                _mm256_storeu_ps(y, acc[0]);
                _mm256_storeu_ps(y + HALF, acc[1]);
                return;
        }
        _mm256_storeu_ps(tail, acc[0]);
        _mm256_storeu_ps(tail + HALF, acc[1]);
        memcpy(y, tail, n * sizeof(float));
}

/* ---- what a tile fetches while it computes ----
 *
 * A tile that is the only one on its panel fetches what follows in memory, at least AHEAD_BYTES ahead: the rest of the
 * panel, then scales and quants of the next. Where several tiles share a panel, each fetches its part of the next
 * panel. Behind the last panel there may be nothing: such fetches do no harm. */
struct ahead {
        const uint8_t *at, *until;
        size_t step; /* bytes, with each block of 32 columns */
};

INLINE void fetch(struct ahead *ahead)
{
        ahead->until += ahead->step;
        for (; ahead->at < ahead->until; ahead->at += 64)
                _mm_prefetch((const char *)ahead->at, _MM_HINT_T0);
}

static struct ahead fetch_from(const struct tdm_matrix *matrix, uint32_t panel, uint32_t tile, uint32_t n_tiles)
{
        const uint8_t *data = matrix->data + panel * matrix->panel_bytes;
        size_t part = matrix->panel_bytes / n_tiles;
        bool has_scales = matrix->type == TDM_TYPE_Q8_0 || matrix->type == TDM_TYPE_Q4_0;
        const uint8_t *at = n_tiles == 1 ? data + (has_scales ? scales_bytes(matrix) : 0) + AHEAD_BYTES :
                                           data + matrix->panel_bytes + part * tile;

        return (struct ahead){ at, at, part / TDM_DIV_UP(matrix->cols, BLOCK) };
}

/* ---- quantised activations ---- */

/* The rows that a tile of quantised weights reads. Numbers of 16 bits are two numbers of 8 bits: 256 hi + lo. */
struct tile {
        const struct tdm_act_row *rows;
        const int8_t *x[MAX_NUMBERS]; /* of nibbles: hi of each row, and behind it lo where there is one */
};

INLINE __m256i broadcast_4(const int8_t *p)
{
        int32_t four;

        memcpy(&four, p, sizeof(four));
        return _mm256_set1_epi32(four);
}

/* Sums of 16 bits, two for each of 8 outputs, of 4 columns k … k + 3 with w0 and with w1: nibbles, [8][4] bytes. Eight
 * such products of nibbles fit: 8 * 2 * 15 * 128 < 32768. */
INLINE void nibbles_dot(const unsigned N_X, const bool is_first, const struct tile *t, __m256i w0, __m256i w1, size_t k,
                        __m256i (*sums)[2])
{
        UNROLL for (unsigned i = 0; i < N_X; i++)
        {
                __m256i a = broadcast_4(t->x[i] + k), p0 = _mm256_maddubs_epi16(w0, a),
                        p1 = _mm256_maddubs_epi16(w1, a);

                sums[i][0] = is_first ? p0 : _mm256_add_epi16(sums[i][0], p0);
                sums[i][1] = is_first ? p1 : _mm256_add_epi16(sums[i][1], p1);
                /* One after the other: there are no registers for the trees that the compiler would make of them. */
                __asm__("" : "+x"(sums[i][0]), "+x"(sums[i][1]));
        }
}

/* acc += a block's integer sum times the scales. */
INLINE void add_block(const unsigned h, __m256i isum, const struct tdm_act_row *row, size_t b, __m256 w_scale,
                      __m256 *acc)
{
        acc[h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum), _mm256_mul_ps(w_scale, _mm256_set1_ps(row->scale[b])),
                                 acc[h]);
}

INLINE __m256i times(__m256i sums, int16_t by)
{
        return _mm256_madd_epi16(sums, _mm256_set1_epi16(by));
}

INLINE __m256 scales_of(const uint8_t *scales, size_t b, unsigned h)
{
        return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(scales + (b * LANES + h * HALF) * 2)));
}

INLINE void block_q4_0(const unsigned N_R, const enum tdm_act act, const struct tile *t, const uint8_t *scales,
                       const uint8_t *q, size_t b, __m256 (*acc)[2])
{
        const unsigned n_x = act == TDM_ACT_I16 ? 2 * N_R : N_R;
        const __m256i nibble = _mm256_set1_epi8(15);
        __m256i sums[MAX_NUMBERS][2];

        UNROLL for (unsigned v = 0; v < 4; v++)
        {
                __m256i w0 = _mm256_load_si256((const __m256i *)(q + 64 * v)),
                        w1 = _mm256_load_si256((const __m256i *)(q + 64 * v + 32));

                nibbles_dot(n_x, v == 0, t, _mm256_and_si256(w0, nibble), _mm256_and_si256(w1, nibble),
                            b * BLOCK + 4 * v, sums);
                nibbles_dot(n_x, false, t, _mm256_and_si256(_mm256_srli_epi16(w0, 4), nibble),
                            _mm256_and_si256(_mm256_srli_epi16(w1, 4), nibble), b * BLOCK + 4 * v + 16, sums);
        }
        UNROLL for (unsigned h = 0; h < 2; h++)
        {
                __m256 w_scale = scales_of(scales, b, h);

                UNROLL for (unsigned r = 0; r < N_R; r++)
                {
                        __m256i isum = act == TDM_ACT_I16 ? _mm256_add_epi32(times(sums[2 * r][h], 256),
                                                                             times(sums[2 * r + 1][h], 1)) :
                                                            times(sums[r][h], 1);

                        isum = _mm256_add_epi32(isum, _mm256_set1_epi32(t->rows[r].start[b]));
                        add_block(h, isum, &t->rows[r], b, w_scale, acc[r]);
                }
        }
}

/* The numbers of a block in 16 bits, those of even columns apart from those of odd ones: [2][16]. */
INLINE void widen_block(const enum tdm_act act, const struct tdm_act_row *row, size_t b, int16_t (*x)[BLOCK / 2])
{
        __m256i hi = _mm256_loadu_si256((const __m256i *)(row->hi + b * BLOCK)), even = _mm256_slli_epi16(hi, 8), odd;

        if (act == TDM_ACT_I16) {
                __m256i lo = _mm256_loadu_si256((const __m256i *)(row->lo + b * BLOCK));

                even = _mm256_add_epi16(even, _mm256_srai_epi16(_mm256_slli_epi16(lo, 8), 8));
                odd = _mm256_add_epi16(_mm256_sub_epi16(hi, _mm256_and_si256(hi, _mm256_set1_epi16(255))),
                                       _mm256_srai_epi16(lo, 8));
        } else {
                even = _mm256_srai_epi16(even, 8);
                odd = _mm256_srai_epi16(hi, 8);
        }
        _mm256_store_si256((__m256i *)x[0], even);
        _mm256_store_si256((__m256i *)x[1], odd);
}

/* sums += 2 columns of 16 outputs, in 16 bits. */
INLINE void bytes_dot(__m256i w0, __m256i w1, const int16_t *x, __m256i *sums)
{
        int32_t two;
        __m256i a;

        memcpy(&two, x, sizeof(two));
        a = _mm256_set1_epi32(two);
        sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(w0, a));
        sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(w1, a));
        __asm__("" : "+x"(sums[0]), "+x"(sums[1])); /* as above */
}

INLINE void block_q8_0(const unsigned N_R, const enum tdm_act act, const struct tile *t, const uint8_t *scales,
                       const uint8_t *q, size_t b, __m256 (*acc)[2])
{
        const __m256i low_byte = _mm256_set1_epi16(255);
        _Alignas(32) int16_t x[MAX_TILE_ROWS][2][BLOCK / 2];
        __m256i sums[MAX_TILE_ROWS][2];

        UNROLL for (unsigned r = 0; r < N_R; r++)
        {
                widen_block(act, &t->rows[r], b, x[r]);
                sums[r][0] = sums[r][1] = _mm256_set1_epi32(t->rows[r].start[b] * 16);
        }
        __asm__("" : "+m"(x)); /* broadcasts are loads then, not shuffles */
        UNROLL for (unsigned v = 0; v < 8; v++)
        {
                __m256i w0 = _mm256_load_si256((const __m256i *)(q + 64 * v)),
                        w1 = _mm256_load_si256((const __m256i *)(q + 64 * v + 32));
                __m256i even0 = _mm256_and_si256(w0, low_byte), even1 = _mm256_and_si256(w1, low_byte);

                UNROLL for (unsigned r = 0; r < N_R; r++) bytes_dot(even0, even1, &x[r][0][2 * v], sums[r]);
                w0 = _mm256_srli_epi16(w0, 8);
                w1 = _mm256_srli_epi16(w1, 8);
                UNROLL for (unsigned r = 0; r < N_R; r++) bytes_dot(w0, w1, &x[r][1][2 * v], sums[r]);
        }
        UNROLL for (unsigned h = 0; h < 2; h++)
        {
                __m256 w_scale = scales_of(scales, b, h);

                UNROLL for (unsigned r = 0; r < N_R; r++) add_block(h, sums[r][h], &t->rows[r], b, w_scale, acc[r]);
        }
}

INLINE void tile_quantised(const unsigned N_R, const uint32_t type, const enum tdm_act act,
                           const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t panel, float *y,
                           size_t y_stride, struct ahead ahead)
{
        const uint8_t *scales = matrix->data + panel * matrix->panel_bytes, *quants = scales + scales_bytes(matrix);
        uint32_t nb = matrix->cols / BLOCK;
        struct tile t = { .rows = rows };
        __m256 acc[MAX_TILE_ROWS][2];

        UNROLL for (unsigned r = 0; r < N_R; r++)
        {
                acc[r][0] = acc[r][1] = _mm256_setzero_ps();
                if (type == TDM_TYPE_Q4_0 && act == TDM_ACT_I16) {
                        t.x[2 * r] = rows[r].hi;
                        t.x[2 * r + 1] = rows[r].lo;
                } else if (type == TDM_TYPE_Q4_0) {
                        t.x[r] = rows[r].hi;
                }
        }
        for (size_t b = 0; b < nb; b++) {
                fetch(&ahead);
                if (type == TDM_TYPE_Q8_0)
                        block_q8_0(N_R, act, &t, scales, quants + b * 512, b, acc);
                else
                        block_q4_0(N_R, act, &t, scales, quants + b * 256, b, acc);
        }
        UNROLL for (unsigned r = 0; r < N_R; r++) store_lanes(matrix, panel, acc[r], y + r * y_stride);
}

/* ---- f32 activations ---- */

INLINE void fma_column(const unsigned N_R, __m256 w0, __m256 w1, const struct tdm_act_row *rows, size_t k,
                       __m256 (*acc)[2])
{
        UNROLL for (unsigned r = 0; r < N_R; r++)
        {
                __m256 a = _mm256_set1_ps(rows[r].x[k]);

                acc[r][0] = _mm256_fmadd_ps(w0, a, acc[r][0]);
                acc[r][1] = _mm256_fmadd_ps(w1, a, acc[r][1]);
        }
}

/* 8 elements of the matrix's type, at p. */
INLINE __m256 load_16bit(const uint32_t type, const uint8_t *p)
{
        if (type == TDM_TYPE_F32)
                return _mm256_load_ps((const float *)(const void *)p);
        if (type == TDM_TYPE_F16)
                return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)p));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_load_si128((const __m128i *)p)), 16));
}

/* Bits shift … of every lane, less the offset, times the scale: exact. */
INLINE __m256 dequantise(__m256i v, int shift, int mask, int offset, __m256 scale)
{
        __m256i q = _mm256_and_si256(_mm256_srl_epi32(v, _mm_cvtsi32_si128(shift)), _mm256_set1_epi32(mask));

        return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(q, _mm256_set1_epi32(offset))), scale);
}

INLINE void tile_float(const unsigned N_R, const uint32_t type, const struct tdm_matrix *matrix,
                       const struct tdm_act_row *rows, uint32_t panel, float *y, size_t y_stride, struct ahead ahead)
{
        const uint8_t *data = matrix->data + panel * matrix->panel_bytes;
        const bool is_q8 = type == TDM_TYPE_Q8_0;
        __m256 acc[MAX_TILE_ROWS][2];

        UNROLL for (unsigned r = 0; r < N_R; r++) acc[r][0] = acc[r][1] = _mm256_setzero_ps();
        if (is_q8 || type == TDM_TYPE_Q4_0) {
                const uint8_t *quants = data + scales_bytes(matrix);

                for (size_t b = 0; b < matrix->cols / BLOCK; b++) {
                        __m256 s0 = load_16bit(TDM_TYPE_F16, data + b * LANES * 2);
                        __m256 s1 = load_16bit(TDM_TYPE_F16, data + b * LANES * 2 + 16);

                        fetch(&ahead);
                        for (unsigned k = 0; k < BLOCK; k++) {
                                unsigned g = k / 4;
                                const __m256i *q =
                                        (const __m256i *)(quants + (is_q8 ? b * 512 + g * 64 : b * 256 + g % 4 * 64));
                                int shift = (int)(8 * (k % 4) + (is_q8 ? 0 : g / 4 * 4));
                                int mask = is_q8 ? 255 : 15, offset = is_q8 ? 128 : 8;

                                fma_column(N_R, dequantise(_mm256_load_si256(q), shift, mask, offset, s0),
                                           dequantise(_mm256_load_si256(q + 1), shift, mask, offset, s1), rows,
                                           b * BLOCK + k, acc);
                        }
                }
        } else {
                const size_t bytes = type == TDM_TYPE_F32 ? 4 : 2;

                for (size_t k = 0; k < matrix->cols; k++) {
                        const uint8_t *at = data + k * LANES * bytes;

                        if (k % BLOCK == 0)
                                fetch(&ahead);
                        fma_column(N_R, load_16bit(type, at), load_16bit(type, at + HALF * bytes), rows, k, acc);
                }
        }
        UNROLL for (unsigned r = 0; r < N_R; r++) store_lanes(matrix, panel, acc[r], y + r * y_stride);
}

/* ---- tiles and calls ---- */

#define TILE_ARGS                                                                                                      \
        const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t panel, float *y, size_t y_stride,    \
                struct ahead ahead

/* Row tiles of nearly equal size, so that 5 rows are 3 + 2, not 4 + 1. */
static void run_tiles(void (*const *tiles)(TILE_ARGS), uint32_t max_rows, const struct tdm_matrix *matrix,
                      const struct tdm_act_row *rows, uint32_t n_rows, uint32_t first_panel, uint32_t n_panels,
                      float *y, size_t y_stride)
{
        uint32_t n_tiles = TDM_DIV_UP(n_rows, max_rows);

        for (uint32_t p = 0; p < n_panels; p++)
                for (uint32_t t = 0, r = 0; t < n_tiles; t++) {
                        uint32_t n = (n_rows - r) / (n_tiles - t);

                        tiles[n](matrix, rows + r, first_panel + p, y + r * y_stride + p * LANES, y_stride,
                                 fetch_from(matrix, first_panel + p, t, n_tiles));
                        r += n;
                }
}

#define TILE(name, n_r, call, ...)                                                                                     \
        static void name##_##n_r(TILE_ARGS)                                                                            \
        {                                                                                                              \
                call(n_r, __VA_ARGS__, matrix, rows, panel, y, y_stride, ahead);                                       \
        }
#define CALL(name, max_rows, ...)                                                                                      \
        static void (*const name##_tiles[])(TILE_ARGS) = { NULL, name##_1, name##_2, ##__VA_ARGS__ };                  \
        static void name(const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t n_rows,             \
                         uint32_t first_panel, uint32_t n_panels, float *y, size_t y_stride)                           \
        {                                                                                                              \
                run_tiles(name##_tiles, max_rows, matrix, rows, n_rows, first_panel, n_panels, y, y_stride);           \
        }

/* A tile has at most as many rows as there are registers for their sums. */
#define MATMUL_OF_2(name, ...)                                                                                         \
        TILE(name, 1, __VA_ARGS__)                                                                                     \
        TILE(name, 2, __VA_ARGS__)                                                                                     \
        CALL(name, 2)
#define MATMUL_OF_4(name, ...)                                                                                         \
        TILE(name, 1, __VA_ARGS__)                                                                                     \
        TILE(name, 2, __VA_ARGS__)                                                                                     \
        TILE(name, 3, __VA_ARGS__)                                                                                     \
        TILE(name, 4, __VA_ARGS__)                                                                                     \
        CALL(name, 4, name##_3, name##_4)

MATMUL_OF_4(matmul_i8_q8_0, tile_quantised, TDM_TYPE_Q8_0, TDM_ACT_I8)
MATMUL_OF_4(matmul_i8_q4_0, tile_quantised, TDM_TYPE_Q4_0, TDM_ACT_I8)
MATMUL_OF_4(matmul_i16_q8_0, tile_quantised, TDM_TYPE_Q8_0, TDM_ACT_I16)
MATMUL_OF_2(matmul_i16_q4_0, tile_quantised, TDM_TYPE_Q4_0, TDM_ACT_I16)
MATMUL_OF_4(matmul_f32_f32, tile_float, TDM_TYPE_F32)
MATMUL_OF_4(matmul_f32_f16, tile_float, TDM_TYPE_F16)
MATMUL_OF_4(matmul_f32_bf16, tile_float, TDM_TYPE_BF16)
MATMUL_OF_4(matmul_f32_q8_0, tile_float, TDM_TYPE_Q8_0)
MATMUL_OF_4(matmul_f32_q4_0, tile_float, TDM_TYPE_Q4_0)

/* ---- quantising: see the C version ---- */

/* NaN becomes 0, infinities the largest finite number. */
INLINE __m256 saturate(__m256 x)
{
        x = _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q));
        return _mm256_max_ps(_mm256_min_ps(x, _mm256_set1_ps(FLT_MAX)), _mm256_set1_ps(-FLT_MAX));
}

INLINE float max_lane(__m256 v)
{
        __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

        m = _mm_max_ps(m, _mm_movehl_ps(m, m));
        return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

INLINE int32_t sum_lanes(__m256i v)
{
        __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
        return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

/* Four vectors of numbers that fit 8 bits, stored as 32 bytes in order. */
INLINE void store_bytes(const __m256i *q, int8_t *to)
{
        __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));

        bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256((__m256i *)to, bytes);
}

/* Finishes block b: its sums, from its numbers. */
INLINE void block_done(const struct tdm_act_blocks *blocks, uint32_t b, const __m256i *q)
{
        int32_t left = sum_lanes(_mm256_add_epi32(q[0], q[1])), right = sum_lanes(_mm256_add_epi32(q[2], q[3]));

        blocks->sum_16[2 * b] = left;
        blocks->sum_16[2 * b + 1] = right;
        blocks->start[b] = -8 * (left + right);
        blocks->sum[b] = blocks->scale[b] * (float)(left + right);
}

INLINE void quantise_block(const float *x, float q_max, float *scale, __m256i *q)
{
        const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
        __m256 v[4], m = _mm256_setzero_ps(), inverse;
        float d;

        UNROLL for (unsigned i = 0; i < 4; i++)
        {
                v[i] = saturate(_mm256_loadu_ps(x + i * HALF));
                m = _mm256_max_ps(m, _mm256_and_ps(v[i], magnitude));
        }
        d = max_lane(m) / q_max;
        *scale = d < FLT_MIN ? 0 : d;
        inverse = _mm256_set1_ps(d < FLT_MIN ? 0 : 1 / d);
        UNROLL for (unsigned i = 0; i < 4; i++) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
}

static void quantise_i8_avx2(const float *x, uint32_t cols, int8_t *q, const struct tdm_act_blocks *blocks)
{
        for (uint32_t b = 0; b < cols / BLOCK; b++) {
                __m256i v[4];

                quantise_block(x + b * BLOCK, 127, &blocks->scale[b], v);
                store_bytes(v, q + b * BLOCK);
                block_done(blocks, b, v);
        }
}

static void quantise_i16_avx2(const float *x, uint32_t cols, int8_t *hi, int8_t *lo,
                              const struct tdm_act_blocks *blocks)
{
        for (uint32_t b = 0; b < cols / BLOCK; b++) {
                __m256i v[4], high[4];

                quantise_block(x + b * BLOCK, 32512, &blocks->scale[b], v);
                block_done(blocks, b, v);
                UNROLL for (unsigned i = 0; i < 4; i++)
                {
                        high[i] = _mm256_srai_epi32(_mm256_add_epi32(v[i], _mm256_set1_epi32(128)), 8);
                        v[i] = _mm256_sub_epi32(v[i], _mm256_slli_epi32(high[i], 8));
                }
                store_bytes(high, hi + b * BLOCK);
                store_bytes(v, lo + b * BLOCK);
        }
}

void tdm_kernels_avx2_matmul_fill(struct tdm_kernels *kernels)
{
        tdm_matmul_fn *f32 = kernels->matmul[TDM_ACT_F32], *i8 = kernels->matmul[TDM_ACT_I8],
                      *i16 = kernels->matmul[TDM_ACT_I16];

        f32[tdm_kernels_type_index(TDM_TYPE_F32)] = matmul_f32_f32;
        f32[tdm_kernels_type_index(TDM_TYPE_F16)] = matmul_f32_f16;
        f32[tdm_kernels_type_index(TDM_TYPE_BF16)] = matmul_f32_bf16;
        f32[tdm_kernels_type_index(TDM_TYPE_Q8_0)] = matmul_f32_q8_0;
        f32[tdm_kernels_type_index(TDM_TYPE_Q4_0)] = matmul_f32_q4_0;
        i8[tdm_kernels_type_index(TDM_TYPE_Q8_0)] = matmul_i8_q8_0;
        i8[tdm_kernels_type_index(TDM_TYPE_Q4_0)] = matmul_i8_q4_0;
        i16[tdm_kernels_type_index(TDM_TYPE_Q8_0)] = matmul_i16_q8_0;
        i16[tdm_kernels_type_index(TDM_TYPE_Q4_0)] = matmul_i16_q4_0;
        kernels->quantise_i8 = quantise_i8_avx2;
        kernels->quantise_i16 = quantise_i16_avx2;
}

#endif
