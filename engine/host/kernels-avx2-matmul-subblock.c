/* Matrix kernels for AVX2 and the types of engine/weights/subblock.h: see kernels-matmul-subblock.h. vpmaddubsw is
 * exact here, as quants are small: products of 5-bit quants fit 16 bits four groups of columns deep, those of 6-bit
 * ones two deep. Those of the table types are bytes of any size: taken signed, their sign is put upon x (which works
 * for x above -128 only), or split.
 *
 * A panel's 16 outputs are two halves of 8. */
#include "engine/host/kernels-fill.h"

#ifdef __x86_64__
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define MAX_TILE_ROWS 4u
#define V_BYTES 32u
#define VI __m256i
#define VF __m256

INLINE VI vi_load(const void *p)
{
        return _mm256_load_si256(p);
}

INLINE void vi_store(void *p, VI v)
{
        _mm256_store_si256(p, v);
}

INLINE VI vi_set8(int v)
{
        return _mm256_set1_epi8((char)v);
}

INLINE VI vi_set32(int v)
{
        return _mm256_set1_epi32(v);
}

INLINE VI vi_and(VI a, VI b)
{
        return _mm256_and_si256(a, b);
}

INLINE VI vi_or(VI a, VI b)
{
        return _mm256_or_si256(a, b);
}

INLINE VI vi_sub32(VI a, VI b)
{
        return _mm256_sub_epi32(a, b);
}

INLINE VI vi_sll16(VI v, const int n)
{
        return _mm256_slli_epi16(v, n);
}

INLINE VI vi_srl16(VI v, const int n)
{
        return _mm256_srli_epi16(v, n);
}

INLINE VI vi_sll32(VI v, const int n)
{
        return _mm256_slli_epi32(v, n);
}

INLINE VI vi_srl32(VI v, const int n)
{
        return _mm256_srli_epi32(v, n);
}

INLINE VI vi_sra32(VI v, const int n)
{
        return _mm256_srai_epi32(v, n);
}

INLINE VI vi_table(const uint8_t *bytes)
{
        return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)bytes));
}

INLINE VI vi_look_up(VI table, VI i)
{
        return _mm256_shuffle_epi8(table, i);
}

INLINE VI vi_u16(const uint8_t *p)
{
        return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
}

INLINE VF vf_f16(const uint8_t *p)
{
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

INLINE VF vf_e8(const uint8_t *p)
{
        __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)), 23);

        /* 2^(e - 127), of which 2^-127 has other bits than e alone; then exactly half of it */
        bits = _mm256_max_epi32(bits, _mm256_set1_epi32(1 << 22));
        return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0.5f));
}

INLINE VF vf_from_int(VI v)
{
        return _mm256_cvtepi32_ps(v);
}

INLINE void vf_store(float *p, VF v)
{
        _mm256_store_ps(p, v);
}

INLINE VF vf_mul(VF a, VF b)
{
        return _mm256_mul_ps(a, b);
}

INLINE VF vf_neg(VF v)
{
        return _mm256_xor_ps(v, _mm256_set1_ps(-0.0f));
}

INLINE void prefetch(const uint8_t *p)
{
        _mm_prefetch((const char *)p, _MM_HINT_T1);
}

#include "engine/host/kernels-matmul-subblock.h"

#define HALF V_LANES

/* ---- tiles ---- */

INLINE __m256i broadcast_4(const int8_t *p)
{
        int32_t v;

        memcpy(&v, p, sizeof(v));
        return _mm256_set1_epi32(v);
}

enum { DEPTH_SIGNED = 0, DEPTH_SPLIT = -1 };

/* isum[r] += one sub-block of one half, from group g. depth: how many groups' products a 16-bit lane holds;
 * DEPTH_SIGNED: bytes plus 128, and the sum is that of the bytes less 128, x never -128; DEPTH_SPLIT: any bytes, any x.
 */
INLINE void sub_dot(const unsigned N_R, const int n_groups, const int depth, const struct chunk *chunk, unsigned h,
                    unsigned g, const int8_t *const *x, __m256i *isum)
{
        const __m256i ones = _mm256_set1_epi16(1), seven = _mm256_set1_epi8(127);
        const int deep = depth > 0 ? depth : 1;

        UNROLL for (int i = 0; i < n_groups; i += deep, g += (unsigned)deep)
        {
                __m256i w[8];

                UNROLL for (int j = 0; j < deep; j++) w[j] =
                        _mm256_load_si256((const __m256i *)&chunk->q[g + (unsigned)j][h][0]);
                if (depth == DEPTH_SIGNED)
                        w[0] = _mm256_xor_si256(w[0], _mm256_set1_epi8(-128));
                UNROLL for (unsigned r = 0; r < N_R; r++)
                {
                        __m256i a = broadcast_4(x[r] + 4 * g), part;

                        if (depth == DEPTH_SIGNED) {
                                part = _mm256_maddubs_epi16(_mm256_sign_epi8(w[0], w[0]), _mm256_sign_epi8(a, w[0]));
                        } else if (depth == DEPTH_SPLIT) {
                                part = _mm256_maddubs_epi16(_mm256_subs_epu8(w[0], seven), a);
                                isum[r] = _mm256_add_epi32(isum[r], _mm256_madd_epi16(part, ones));
                                part = _mm256_maddubs_epi16(_mm256_min_epu8(w[0], seven), a);
                        } else {
                                part = _mm256_maddubs_epi16(w[0], a);
                                UNROLL for (int j = 1; j < deep; j++) part = _mm256_add_epi16(
                                        part, _mm256_maddubs_epi16(w[j], broadcast_4(x[r] + 4 * (g + (unsigned)j))));
                        }
                        isum[r] = _mm256_add_epi32(isum[r], _mm256_madd_epi16(part, ones));
                }
        }
}

INLINE void tile_int(const unsigned N_R, const unsigned sub_values, const bool has_min, const int depth,
                     const enum tdm_act act, TILE_ARGS)
{
        const int8_t *hi[MAX_TILE_ROWS], *lo[MAX_TILE_ROWS];
        struct row_info info[MAX_TILE_ROWS];

        UNROLL for (unsigned r = 0; r < N_R; r++)
        {
                if (sub_values == BLOCK)
                        row_info_block32(&rows[r], first_block, n_blocks, depth == DEPTH_SIGNED ? 0 : offset, &info[r]);
                else
                        row_info_block16(has_min, &rows[r], first_block, offset, &info[r]);
                hi[r] = rows[r].hi + (size_t)first_block * BLOCK;
                lo[r] = act == TDM_ACT_I16 ? rows[r].lo + (size_t)first_block * BLOCK : NULL;
        }
        for (unsigned ph = 0; ph < PANELS * 2; ph++) {
                const struct chunk *chunk = &chunks[ph / 2];
                unsigned h = ph % 2 * HALF;
                __m256 sum[MAX_TILE_ROWS];

                UNROLL for (unsigned r = 0; r < N_R; r++) sum[r] = _mm256_load_ps(acc[r][ph / 2] + h);
                for (unsigned s = 0; s < n_blocks * (BLOCK / sub_values); s++) {
                        __m256 scale = _mm256_load_ps(chunk->scale[s] + h);
                        __m256i isum[MAX_TILE_ROWS];

                        UNROLL for (unsigned r = 0; r < N_R; r++) isum[r] =
                                act == TDM_ACT_I16 ? _mm256_setzero_si256() : _mm256_set1_epi32(info[r].start[s]);
                        sub_dot(N_R, sub_values / 4, depth, chunk, h, s * (sub_values / 4), hi, isum);
                        if (act == TDM_ACT_I16) {
                                UNROLL for (unsigned r = 0; r < N_R; r++) isum[r] = _mm256_add_epi32(
                                        _mm256_slli_epi32(isum[r], 8), _mm256_set1_epi32(info[r].start[s]));
                                sub_dot(N_R, sub_values / 4, depth, chunk, h, s * (sub_values / 4), lo, isum);
                        }
                        UNROLL for (unsigned r = 0; r < N_R; r++)
                        {
                                sum[r] = _mm256_fmadd_ps(
                                        _mm256_cvtepi32_ps(isum[r]),
                                        _mm256_mul_ps(scale, _mm256_set1_ps(info[r].scale[s * sub_values / BLOCK])),
                                        sum[r]);
                                if (has_min)
                                        sum[r] = _mm256_fmadd_ps(_mm256_load_ps(chunk->min[s] + h),
                                                                 _mm256_set1_ps(info[r].sum[s]), sum[r]);
                        }
                }
                UNROLL for (unsigned r = 0; r < N_R; r++) _mm256_store_ps(acc[r][ph / 2] + h, sum[r]);
        }
}

/* Weights are made as they are used, and sums are in memory: f32 activations are a test's mode. */
INLINE void tile_float(const unsigned sub_values, const bool has_min, TILE_ARGS)
{
        for (size_t k = 0; k < n_blocks * BLOCK; k++)
                for (unsigned ph = 0; ph < PANELS * 2; ph++) {
                        const struct chunk *chunk = &chunks[ph / 2];
                        unsigned h = ph % 2 * HALF;
                        __m256i q = _mm256_load_si256((const __m256i *)&chunk->q[k / 4][h][0]);
                        __m256 scale = _mm256_load_ps(chunk->scale[k / sub_values] + h), w;

                        q = _mm256_and_si256(_mm256_srl_epi32(q, _mm_cvtsi32_si128((int)(k % 4 * 8))),
                                             _mm256_set1_epi32(255));
                        w = _mm256_cvtepi32_ps(_mm256_sub_epi32(q, _mm256_set1_epi32(offset)));
                        w = has_min ? _mm256_fmadd_ps(w, scale, _mm256_load_ps(chunk->min[k / sub_values] + h)) :
                                      _mm256_mul_ps(w, scale);
                        for (unsigned r = 0; r < n_rows; r++) {
                                float *sum = acc[r][ph / 2] + h;

                                _mm256_store_ps(sum,
                                                _mm256_fmadd_ps(w, _mm256_set1_ps(rows[r].x[first_block * BLOCK + k]),
                                                                _mm256_load_ps(sum)));
                        }
                }
}

#define TILE_CALL chunks, rows, n_rows, first_block, n_blocks, offset, acc
#define TILE(name, n_r, call, ...)                                                                                     \
        static void name##_##n_r(TILE_ARGS)                                                                            \
        {                                                                                                              \
                call(n_r, __VA_ARGS__, TILE_CALL);                                                                     \
        }
#define TILES(name, ...)                                                                                               \
        TILE(name, 1, __VA_ARGS__)                                                                                     \
        TILE(name, 2, __VA_ARGS__)                                                                                     \
        TILE(name, 3, __VA_ARGS__)                                                                                     \
        TILE(name, 4, __VA_ARGS__)                                                                                     \
        static const tile_fn name[MAX_TILE_ROWS] = { name##_1, name##_2, name##_3, name##_4 };
#define TILES_OF(sub_values, suffix, has_min, depth_i8, depth_i16)                                                     \
        TILES(tiles_i8_##sub_values##suffix, tile_int, sub_values, has_min, depth_i8, TDM_ACT_I8)                      \
        TILES(tiles_i16_##sub_values##suffix, tile_int, sub_values, has_min, depth_i16, TDM_ACT_I16)                   \
        static void any_##sub_values##suffix(TILE_ARGS)                                                                \
        {                                                                                                              \
                tile_float(sub_values, has_min, TILE_CALL);                                                            \
        }                                                                                                              \
        static const tile_fn tiles_f32_##sub_values##suffix[MAX_TILE_ROWS] = {                                         \
                any_##sub_values##suffix,                                                                              \
                any_##sub_values##suffix,                                                                              \
                any_##sub_values##suffix,                                                                              \
                any_##sub_values##suffix,                                                                              \
        };

TILES_OF(32, , false, 4, 4)
TILES_OF(32, _min, true, 4, 4)
TILES_OF(32, _table, false, DEPTH_SIGNED, DEPTH_SPLIT)
TILES_OF(16, , false, 2, 2)
TILES_OF(16, _min, true, 4, 4)

#define KERNELS_FILL tdm_kernels_avx2_matmul_subblock_fill
#include "engine/host/kernels-matmul-subblock-table.h"

#endif
