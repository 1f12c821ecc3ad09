/* Matrix kernels for AVX2 and the types of engine/weights/subblock.h: see kernels-matmul-subblock.h. vpmaddubsw is
 * exact here, as quants are small: products of 4-bit quants fit 16 bits eight groups of columns deep
 * (8 * 2 * 15 * 128 = 30720), of 5-bit ones four (31744), of 6-bit ones two (32256). Those of the table types are
 * bytes of any size: taken signed, their sign is put upon x (which works for x above -128 only), or split.
 *
 * A panel's 16 outputs are two halves of 8. */
#include "engine/host/kernels-fill.h"

#ifdef __x86_64__
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define MAX_TILE_ROWS 4u
#define SOME_AHEAD_BYTES 4096u
#define SOME_ROWS_MAX 12u
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

INLINE VF vf_e4m3(const uint8_t *p, const unsigned i)
{
        __m128i pairs = _mm_loadu_si128((const __m128i *)p);

        /* as f16 it has an exponent of 8 less */
        pairs = _mm_and_si128(i ? _mm_srli_epi16(pairs, 1) : _mm_slli_epi16(pairs, 7), _mm_set1_epi16(0x3f80));
        return _mm256_mul_ps(_mm256_cvtph_ps(pairs), _mm256_set1_ps(128));
}

INLINE VF vf_set(float v)
{
        return _mm256_set1_ps(v);
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

INLINE void fetch(const uint8_t *p)
{
        _mm_prefetch((const char *)p + SOME_AHEAD_BYTES, _MM_HINT_T0);
}

INLINE __m256i broadcast_4(const int8_t *p)
{
        int32_t v;

        memcpy(&v, p, sizeof(v));
        return _mm256_set1_epi32(v);
}

/* How many groups' products a 16-bit lane holds. DEPTH_SIGNED: bytes are a number plus 128, and the sum is that of the
 * numbers, x never -128; DEPTH_SPLIT: any bytes, any x. */
enum { DEPTH_SIGNED = 0, DEPTH_SPLIT = -1 };

/* The bytes of groups as they are multiplied. */
INLINE __m256i as_multiplied(const int depth, __m256i w)
{
        return depth == DEPTH_SIGNED ? _mm256_xor_si256(w, _mm256_set1_epi8(-128)) : w;
}

/* The dot product of as many groups as depth says with x, times the factor, which is the same in all lanes. */
INLINE __m256i groups_dot(const int depth, const __m256i *w, const int8_t *x, __m256i factor)
{
        const __m256i seven = _mm256_set1_epi8(127);
        __m256i a = broadcast_4(x), part;

        if (depth == DEPTH_SIGNED)
                return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_sign_epi8(w[0], w[0]), _mm256_sign_epi8(a, w[0])),
                                         factor);
        if (depth == DEPTH_SPLIT) {
                part = _mm256_maddubs_epi16(_mm256_subs_epu8(w[0], seven), a);
                return _mm256_add_epi32(
                        _mm256_madd_epi16(part, factor),
                        _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_min_epu8(w[0], seven), a), factor));
        }
        part = _mm256_maddubs_epi16(w[0], a);
        UNROLL for (int j = 1; j < depth; j++) part =
                _mm256_add_epi16(part, _mm256_maddubs_epi16(w[j], broadcast_4(x + 4 * j)));
        return _mm256_madd_epi16(part, factor);
}

/* isum[r] += one sub-block of one half, from group g, times the factor. */
INLINE void sub_dot(const unsigned N_R, const int n_groups, const int depth, const struct chunk *chunk, unsigned h,
                    unsigned g, const int8_t *const *x, int16_t factor, __m256i *isum)
{
        const int deep = depth > 0 ? depth : 1;

        UNROLL for (int i = 0; i < n_groups; i += deep, g += (unsigned)deep)
        {
                __m256i w[8];

                UNROLL for (int j = 0; j < deep; j++) w[j] =
                        as_multiplied(depth, _mm256_load_si256((const __m256i *)&chunk->q[g + (unsigned)j][h][0]));
                UNROLL for (unsigned r = 0; r < N_R; r++) isum[r] =
                        _mm256_add_epi32(isum[r], groups_dot(depth, w, x[r] + 4 * g, _mm256_set1_epi16(factor)));
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
                        row_info_block16(has_min, &rows[r], first_block, n_blocks, offset, &info[r]);
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

                        UNROLL for (unsigned r = 0; r < N_R; r++) isum[r] = _mm256_set1_epi32(info[r].start[s]);
                        sub_dot(N_R, sub_values / 4, depth, chunk, h, s * (sub_values / 4), hi,
                                act == TDM_ACT_I16 ? 256 : 1, isum);
                        if (act == TDM_ACT_I16)
                                sub_dot(N_R, sub_values / 4, depth, chunk, h, s * (sub_values / 4), lo, 1, isum);
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

INLINE int depth_of(const uint32_t type, const enum tdm_act act)
{
        switch (type) {
        case TDM_TYPE_Q4_1:
        case TDM_TYPE_Q4_K:
                return 8;
        case TDM_TYPE_Q6_K:
        case TDM_TYPE_GRID3_XXS:
                return 2;
        case TDM_TYPE_GRID2:
                return 1;
        case TDM_TYPE_IQ4_NL:
        case TDM_TYPE_IQ4_XS:
                return act == TDM_ACT_I8 ? DEPTH_SIGNED : DEPTH_SPLIT;
        default: /* Q2_K, Q3_K, Q5_0, Q5_1, Q5_K, MXFP4, NVFP4, GRID1, GRID3_S: quants below 32 */
                return 4;
        }
}

/* A block of half a panel in registers: its groups as they are multiplied, scales and minima by sub-block. */
struct half_block {
        __m256i w[8];
        __m256 scale[2], min[2];
};

/* acc += the block times x, which are 32 numbers, or hi and lo of each. b: the block in its chunk. */
INLINE __m256 add_half_block(const uint32_t type, const enum tdm_act act, const struct half_block *half,
                             const int8_t *hi, const int8_t *lo, const struct row_info *info, uint32_t b, __m256 acc)
{
        const struct tdm_subblock_info t = tdm_subblock_info(type);
        const int depth = depth_of(type, act);
        const unsigned n_subs = BLOCK / t.sub_values, n_groups = 8 / n_subs, deep = depth > 0 ? (unsigned)depth : 1;
        const __m256i factor = _mm256_set1_epi16(act == TDM_ACT_I16 ? 256 : 1), one = _mm256_set1_epi16(1);

        UNROLL for (unsigned i = 0; i < n_subs; i++)
        {
                unsigned s = b * n_subs + i;
                /* Types with a minimum have no offset. */
                __m256i isum = t.has_min ? _mm256_setzero_si256() : _mm256_set1_epi32(info->start[s]);

                UNROLL for (unsigned g = i * n_groups; g < (i + 1) * n_groups; g += deep)
                {
                        isum = _mm256_add_epi32(isum, groups_dot(depth, &half->w[g], hi + 4 * g, factor));
                        if (act == TDM_ACT_I16)
                                isum = _mm256_add_epi32(isum, groups_dot(depth, &half->w[g], lo + 4 * g, one));
                }
                acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum),
                                      _mm256_mul_ps(half->scale[i], _mm256_set1_ps(info->scale[b])), acc);
                if (t.has_min)
                        acc = _mm256_fmadd_ps(half->min[i], _mm256_set1_ps(info->sum[s]), acc);
        }
        return acc;
}

/* One panel times n_rows <= SOME_ROWS rows, over all columns: a block of half a panel is unpacked into registers, and
 * all rows pass over it there. What tile_int computes, in the same order. */
INLINE void some_rows(const uint32_t type, const enum tdm_act act, const struct tdm_matrix *matrix,
                      const struct tdm_act_row *rows, uint32_t n_rows, uint32_t panel, float *y, size_t y_stride)
{
        const struct tdm_subblock_info t = tdm_subblock_info(type);
        const int depth = depth_of(type, act);
        const unsigned n_subs = BLOCK / t.sub_values;
        const bool own_scales = t.unit_values == BLOCK; /* each block; others have them unpacked by chunk */
        float scale[CHUNK_SUBS][LANES] __attribute__((aligned(64)));
        float min[CHUNK_SUBS][LANES] __attribute__((aligned(64)));
        float sum[SOME_ROWS][LANES] __attribute__((aligned(64)));
        const uint8_t *front = matrix->data + panel * matrix->panel_bytes,
                      *body = front + tdm_subblock_front_bytes(&t, matrix->cols);
        uint32_t nb = matrix->cols / BLOCK, n_outputs = TDM_MIN(matrix->rows - panel * LANES, LANES);

        memset(sum, 0, n_rows * sizeof(sum[0]));
        for (uint32_t first = 0; first < nb; first += CHUNK_BLOCKS) {
                uint32_t n_blocks = TDM_MIN(nb - first, CHUNK_BLOCKS);
                int32_t offset = depth == DEPTH_SIGNED ? 0 : t.offset;
                struct row_info info[SOME_ROWS];

                for (unsigned r = 0; r < n_rows; r++) {
                        if (n_subs == 2)
                                row_info_block16(t.has_min, &rows[r], first, n_blocks, offset, &info[r]);
                        else
                                row_info_block32(&rows[r], first, n_blocks, offset, &info[r]);
                }
                if (!own_scales) {
                        UNROLL for (unsigned h = 0; h < LANES; h += HALF)
                                unpack_scales(type, front + 2 * h, body + 4 * h, (float(*)[LANES])(void *)&scale[0][h],
                                              (float(*)[LANES])(void *)&min[0][h]);
                        UNROLL for (unsigned at = 0; at < t.scale_bytes; at += 64) fetch(body + at);
                        front += tdm_subblock_unit_front_bytes(&t);
                        body += t.scale_bytes;
                }
                for (uint32_t b = 0; b < n_blocks; b++) {
                        size_t k = (size_t)(first + b) * BLOCK;

                        UNROLL for (unsigned at = 0; at < t.block_bytes; at += 64) fetch(body + at);
                        UNROLL for (unsigned h = 0; h < LANES; h += HALF)
                        {
                                struct half_block half;

                                block_groups(type, body + 4 * h, half.w);
                                UNROLL for (unsigned g = 0; g < 8; g++) half.w[g] = as_multiplied(depth, half.w[g]);
                                UNROLL for (unsigned i = 0; i < n_subs; i++)
                                {
                                        half.scale[i] = own_scales ? unit_scale(type, front, h, i) :
                                                                     _mm256_load_ps(&scale[b * n_subs + i][h]);
                                        if (t.has_min)
                                                half.min[i] = own_scales ? vf_f16(front + 2 * (LANES + h)) :
                                                                           _mm256_load_ps(&min[b * n_subs + i][h]);
                                }
                                for (unsigned r = 0; r < n_rows; r++) {
                                        const int8_t *lo = act == TDM_ACT_I16 ? rows[r].lo + k : NULL;

                                        _mm256_store_ps(&sum[r][h],
                                                        add_half_block(type, act, &half, rows[r].hi + k, lo, &info[r],
                                                                       b, _mm256_load_ps(&sum[r][h])));
                                }
                        }
                        body += t.block_bytes;
                        if (own_scales)
                                front += tdm_subblock_unit_front_bytes(&t);
                }
        }
        for (unsigned r = 0; r < n_rows; r++)
                memcpy(y + r * y_stride, sum[r], n_outputs * sizeof(float));
}

#define SOME(name, type, act)                                                                                          \
        static void name(const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t n_rows,             \
                         uint32_t panel, float *y, size_t y_stride)                                                    \
        {                                                                                                              \
                some_rows(type, act, matrix, rows, n_rows, panel, y, y_stride);                                        \
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
TILES_OF(16, _table, false, 1, 1)
TILES_OF(16, _min, true, 4, 4)

#define KERNELS_FILL tdm_kernels_avx2_matmul_subblock_fill
#include "engine/host/kernels-matmul-subblock-table.h"

#endif
