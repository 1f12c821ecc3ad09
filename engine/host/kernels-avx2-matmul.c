/* Matrix kernels for AVX2. Bytes are widened to 16 bits and multiplied by vpmaddwd, because vpmaddubsw saturates where
 * two products of 255 * 127 meet; so int8 and int16 activations cost the same here, as both are 16 bits by then. The
 * integer sums are exact, and what follows a block is the order of the C version.
 *
 * A panel's 16 outputs are two halves of 8. Activations of a block are widened once and kept on the stack; a half's
 * sums stay in registers over the block, the float sums of a tile in the first-level cache. */
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
#define PREFETCH_BYTES 1024

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

/* ---- quantised activations ---- */

/* One block of a row as 16-bit numbers, and what the weights' offset adds to its integer sums. */
INLINE void widen_block(const enum tdm_act act, const struct tdm_act_row *row, size_t b, int32_t offset, int16_t *x,
                        int32_t *excess)
{
        UNROLL for (unsigned i = 0; i < BLOCK; i += 16)
        {
                __m256i v = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(row->hi + b * BLOCK + i)));

                if (act == TDM_ACT_I16)
                        v = _mm256_add_epi16(
                                _mm256_slli_epi16(v, 8),
                                _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(row->lo + b * BLOCK + i))));
                _mm256_store_si256((__m256i *)(x + i), v);
        }
        *excess = row->start[b] / -8 * offset;
}

/* isum[r] += 4 columns of 8 outputs, w [8][4] bytes. Lanes of isum[r][0] belong to outputs 0 0 1 1 4 4 5 5, of
 * isum[r][1] to 2 2 3 3 6 6 7 7. */
INLINE void group_dot(const unsigned N_R, __m256i w, const int16_t (*x)[BLOCK], unsigned k, __m256i (*isum)[2])
{
        __m256i w0 = _mm256_unpacklo_epi8(w, _mm256_setzero_si256()),
                w1 = _mm256_unpackhi_epi8(w, _mm256_setzero_si256());

        UNROLL for (unsigned r = 0; r < N_R; r++)
        {
                int64_t four;
                __m256i a;

                memcpy(&four, &x[r][k], sizeof(four));
                a = _mm256_set1_epi64x(four);
                isum[r][0] = _mm256_add_epi32(isum[r][0], _mm256_madd_epi16(w0, a));
                isum[r][1] = _mm256_add_epi32(isum[r][1], _mm256_madd_epi16(w1, a));
        }
}

INLINE void tile_quantised(const unsigned N_R, const uint32_t type, const enum tdm_act act,
                           const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t panel, float *y,
                           size_t y_stride)
{
        const uint8_t *scales = matrix->data + panel * matrix->panel_bytes, *quants = scales + scales_bytes(matrix);
        const __m256i nibble = _mm256_set1_epi8(15);
        const unsigned n_v = type == TDM_TYPE_Q8_0 ? 8 : 4;
        uint32_t nb = matrix->cols / BLOCK;
        __m256 acc[MAX_TILE_ROWS][2];

        UNROLL for (unsigned r = 0; r < N_R; r++) acc[r][0] = acc[r][1] = _mm256_setzero_ps();
        for (size_t b = 0; b < nb; b++) {
                _Alignas(32) int16_t x[MAX_TILE_ROWS][BLOCK];
                int32_t excess[MAX_TILE_ROWS];

                UNROLL for (unsigned r = 0; r < N_R; r++)
                        widen_block(act, &rows[r], b, type == TDM_TYPE_Q8_0 ? 128 : 8, x[r], &excess[r]);
                for (unsigned h = 0; h < 2; h++) {
                        const uint8_t *q = quants + 32 * h;
                        __m256 w_scale =
                                _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(scales + (b * LANES + h * HALF) * 2)));
                        __m256i isum[MAX_TILE_ROWS][2];

                        /* Broadcasts are loads, made where they are used: else the compiler makes them of shuffles, or
                         * makes them all before the loop and then spills them. */
                        __asm__("" : "+m"(x));
                        UNROLL for (unsigned r = 0; r < N_R; r++) isum[r][0] = isum[r][1] = _mm256_setzero_si256();
                        /* Not unrolled: the compiler would turn the integer sums into trees that spill. */
                        _Pragma("GCC unroll 1") for (unsigned v = 0; v < n_v; v++)
                        {
                                __m256i w = _mm256_load_si256((const __m256i *)(q + 64 * v));

                                if (N_R == 1 && h == 0)
                                        _mm_prefetch((const char *)q + 64 * v + PREFETCH_BYTES, _MM_HINT_T0);
                                if (type == TDM_TYPE_Q8_0) {
                                        group_dot(N_R, w, x, 4 * v, isum);
                                        continue;
                                }
                                group_dot(N_R, _mm256_and_si256(w, nibble), x, 4 * v, isum);
                                group_dot(N_R, _mm256_and_si256(_mm256_srli_epi16(w, 4), nibble), x, 4 * v + 16, isum);
                        }
                        UNROLL for (unsigned r = 0; r < N_R; r++)
                        {
                                __m256i sum = _mm256_sub_epi32(_mm256_hadd_epi32(isum[r][0], isum[r][1]),
                                                               _mm256_set1_epi32(excess[r]));

                                acc[r][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum),
                                                            _mm256_mul_ps(w_scale, _mm256_set1_ps(rows[r].scale[b])),
                                                            acc[r][h]);
                        }
                }
                quants += type == TDM_TYPE_Q8_0 ? 512 : 256;
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
                       const struct tdm_act_row *rows, uint32_t panel, float *y, size_t y_stride)
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

                        if (N_R == 1)
                                _mm_prefetch((const char *)at + PREFETCH_BYTES, _MM_HINT_T0);
                        fma_column(N_R, load_16bit(type, at), load_16bit(type, at + HALF * bytes), rows, k, acc);
                }
        }
        UNROLL for (unsigned r = 0; r < N_R; r++) store_lanes(matrix, panel, acc[r], y + r * y_stride);
}

/* ---- tiles and calls ---- */

#define TILE_ARGS                                                                                                      \
        const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t panel, float *y, size_t y_stride

/* Row tiles of nearly equal size, so that 5 rows are 3 + 2, not 4 + 1. */
static void run_tiles(void (*const *tiles)(TILE_ARGS), uint32_t max_rows, const struct tdm_matrix *matrix,
                      const struct tdm_act_row *rows, uint32_t n_rows, uint32_t first_panel, uint32_t n_panels,
                      float *y, size_t y_stride)
{
        uint32_t n_tiles = TDM_DIV_UP(n_rows, max_rows);

        for (uint32_t p = 0; p < n_panels; p++)
                for (uint32_t t = 0, r = 0; t < n_tiles; t++) {
                        uint32_t n = (n_rows - r) / (n_tiles - t);

                        tiles[n](matrix, rows + r, first_panel + p, y + r * y_stride + p * LANES, y_stride);
                        r += n;
                }
}

#define TILE(name, n_r, call, ...)                                                                                     \
        static void name##_##n_r(TILE_ARGS)                                                                            \
        {                                                                                                              \
                call(n_r, __VA_ARGS__, matrix, rows, panel, y, y_stride);                                              \
        }
#define TILES_3(name, ...)                                                                                             \
        TILE(name, 1, __VA_ARGS__)                                                                                     \
        TILE(name, 2, __VA_ARGS__)                                                                                     \
        TILE(name, 3, __VA_ARGS__)
#define CALL(name, max_rows, ...)                                                                                      \
        static void (*const name##_tiles[])(TILE_ARGS) = { NULL, name##_1, name##_2, name##_3, ##__VA_ARGS__ };        \
        static void name(const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t n_rows,             \
                         uint32_t first_panel, uint32_t n_panels, float *y, size_t y_stride)                           \
        {                                                                                                              \
                run_tiles(name##_tiles, max_rows, matrix, rows, n_rows, first_panel, n_panels, y, y_stride);           \
        }

/* As many rows as there are registers for their sums. */
#define MATMUL_QUANTISED(name, type, act)                                                                              \
        TILES_3(name, tile_quantised, type, act)                                                                       \
        CALL(name, 3)
#define MATMUL_FLOAT(name, type)                                                                                       \
        TILES_3(name, tile_float, type)                                                                                \
        TILE(name, 4, tile_float, type)                                                                                \
        CALL(name, 4, name##_4)

MATMUL_QUANTISED(matmul_i8_q8_0, TDM_TYPE_Q8_0, TDM_ACT_I8)
MATMUL_QUANTISED(matmul_i8_q4_0, TDM_TYPE_Q4_0, TDM_ACT_I8)
MATMUL_QUANTISED(matmul_i16_q8_0, TDM_TYPE_Q8_0, TDM_ACT_I16)
MATMUL_QUANTISED(matmul_i16_q4_0, TDM_TYPE_Q4_0, TDM_ACT_I16)
MATMUL_FLOAT(matmul_f32_f32, TDM_TYPE_F32)
MATMUL_FLOAT(matmul_f32_f16, TDM_TYPE_F16)
MATMUL_FLOAT(matmul_f32_bf16, TDM_TYPE_BF16)
MATMUL_FLOAT(matmul_f32_q8_0, TDM_TYPE_Q8_0)
MATMUL_FLOAT(matmul_f32_q4_0, TDM_TYPE_Q4_0)

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

/* What block b comes to, from its numbers. */
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

static void quantise_i8(const float *x, uint32_t cols, int8_t *q, const struct tdm_act_blocks *blocks)
{
        for (uint32_t b = 0; b < cols / BLOCK; b++) {
                __m256i v[4];

                quantise_block(x + b * BLOCK, 127, &blocks->scale[b], v);
                store_bytes(v, q + b * BLOCK);
                block_done(blocks, b, v);
        }
}

static void quantise_i16(const float *x, uint32_t cols, int8_t *hi, int8_t *lo, const struct tdm_act_blocks *blocks)
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
        kernels->quantise_i8 = quantise_i8;
        kernels->quantise_i16 = quantise_i16;
}

#endif
