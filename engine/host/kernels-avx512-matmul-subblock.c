/* Matrix kernels for AVX-512 with VNNI and the types of engine/weights/subblock.h: see kernels-matmul-subblock.h. A
 * vector is 4 columns of 16 outputs; quants are unsigned, so an integer sum starts at -offset * (sum of x). */
#include "engine/host/kernels-fill.h"

#ifdef __x86_64__
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define MAX_TILE_ROWS 6u
#define FEW_AHEAD_BYTES 4096  /* of each panel, for one or two rows */
#define SOME_AHEAD_BYTES 8192 /* for more rows, which pass over one panel at a time */
#define SOME_ROWS_MAX 32u
#define V_BYTES 64u
#define VI __m512i
#define VF __m512

INLINE VI vi_load(const void *p)
{
        return _mm512_load_si512(p);
}

INLINE void vi_store(void *p, VI v)
{
        _mm512_store_si512(p, v);
}

INLINE VI vi_set8(int v)
{
        return _mm512_set1_epi8((char)v);
}

INLINE VI vi_set32(int v)
{
        return _mm512_set1_epi32(v);
}

INLINE VI vi_and(VI a, VI b)
{
        return _mm512_and_si512(a, b);
}

INLINE VI vi_or(VI a, VI b)
{
        return _mm512_or_si512(a, b);
}

INLINE VI vi_sub32(VI a, VI b)
{
        return _mm512_sub_epi32(a, b);
}

INLINE VI vi_sll16(VI v, const int n)
{
        return _mm512_slli_epi16(v, (unsigned)n);
}

INLINE VI vi_srl16(VI v, const int n)
{
        return _mm512_srli_epi16(v, (unsigned)n);
}

INLINE VI vi_sll32(VI v, const int n)
{
        return _mm512_slli_epi32(v, (unsigned)n);
}

INLINE VI vi_srl32(VI v, const int n)
{
        return _mm512_srli_epi32(v, (unsigned)n);
}

INLINE VI vi_sra32(VI v, const int n)
{
        return _mm512_srai_epi32(v, (unsigned)n);
}

INLINE VI vi_table(const uint8_t *bytes)
{
        return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)bytes));
}

INLINE VI vi_look_up(VI table, VI i)
{
        return _mm512_shuffle_epi8(table, i);
}

INLINE VI vi_u16(const uint8_t *p)
{
        return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}

INLINE VF vf_f16(const uint8_t *p)
{
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE VF vf_e8(const uint8_t *p)
{
        __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)), 23);

        /* 2^(e - 127), of which 2^-127 has other bits than e alone; then exactly half of it */
        bits = _mm512_max_epi32(bits, _mm512_set1_epi32(1 << 22));
        return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0.5f));
}

INLINE VF vf_e4m3(const uint8_t *p, const unsigned i)
{
        __m256i pairs = _mm256_loadu_si256((const __m256i *)p);

        /* as f16 it has an exponent of 8 less */
        pairs = _mm256_and_si256(i ? _mm256_srli_epi16(pairs, 1) : _mm256_slli_epi16(pairs, 7),
                                 _mm256_set1_epi16(0x3f80));
        return _mm512_mul_ps(_mm512_cvtph_ps(pairs), _mm512_set1_ps(128));
}

INLINE VF vf_set(float v)
{
        return _mm512_set1_ps(v);
}

INLINE VF vf_from_int(VI v)
{
        return _mm512_cvtepi32_ps(v);
}

INLINE void vf_store(float *p, VF v)
{
        _mm512_store_ps(p, v);
}

INLINE VF vf_mul(VF a, VF b)
{
        return _mm512_mul_ps(a, b);
}

INLINE VF vf_neg(VF v)
{
        return _mm512_xor_ps(v, _mm512_set1_ps(-0.0f));
}

INLINE void prefetch(const uint8_t *p)
{
        _mm_prefetch((const char *)p, _MM_HINT_T1);
}

/* Stays behind the products before it: see kernels-avx512-matmul.c. */
INLINE void fetch_between(const uint8_t *line, __m512i *sum)
{
        __asm__("prefetcht0 %1" : "+v"(*sum) : "m"(*line));
}

#include "engine/host/kernels-matmul-subblock.h"

/* ---- tiles ---- */

INLINE __m512i broadcast_4(const int8_t *p)
{
        int32_t v;

        memcpy(&v, p, sizeof(v));
        return _mm512_set1_epi32(v);
}

/* From a row's start, which is for an offset of 8, to that of a type: offsets are 0, where it is not looked at, or
 * powers of two. */
INLINE __m128i start_shift(int32_t offset)
{
        return _mm_cvtsi32_si128(offset > 8 ? __builtin_ctz((unsigned)offset) - 3 : 0);
}

/* isum += one sub-block, from group g. */
INLINE void sub_dot(const unsigned N_R, const unsigned n_groups, const struct chunk *chunks, unsigned g,
                    const int8_t *const *x, __m512i (*isum)[MAX_TILE_ROWS])
{
        UNROLL for (unsigned i = 0; i < n_groups; i++)
        {
                __m512i w[PANELS];

                UNROLL for (unsigned p = 0; p < PANELS; p++) w[p] = _mm512_load_si512(chunks[p].q[g + i]);
                UNROLL for (unsigned r = 0; r < N_R; r++)
                {
                        __m512i a = broadcast_4(x[r] + 4 * (g + i));

                        UNROLL for (unsigned p = 0; p < PANELS; p++) isum[p][r] =
                                _mm512_dpbusd_epi32(isum[p][r], w[p], a);
                }
        }
}

INLINE void tile_int(const unsigned N_R, const unsigned sub_values, const bool has_min, const enum tdm_act act,
                     TILE_ARGS)
{
        const __m128i shift = start_shift(offset);
        const int8_t *hi[MAX_TILE_ROWS], *lo[MAX_TILE_ROWS];
        const int32_t *start[MAX_TILE_ROWS];
        const float *x_scale[MAX_TILE_ROWS], *x_sum[MAX_TILE_ROWS];
        struct row_info info[sub_values == BLOCK ? 1 : MAX_TILE_ROWS];
        __m512 sum[PANELS][MAX_TILE_ROWS];

        UNROLL for (unsigned r = 0; r < N_R; r++)
        {
                if (sub_values == BLOCK) {
                        start[r] = rows[r].start + first_block;
                        x_sum[r] = rows[r].sum + first_block;
                } else {
                        row_info_block16(has_min, &rows[r], first_block, n_blocks, offset, &info[r]);
                        start[r] = info[r].start;
                        x_sum[r] = info[r].sum;
                }
                x_scale[r] = rows[r].scale + first_block;
                hi[r] = rows[r].hi + (size_t)first_block * BLOCK;
                lo[r] = act == TDM_ACT_I16 ? rows[r].lo + (size_t)first_block * BLOCK : NULL;
                UNROLL for (unsigned p = 0; p < PANELS; p++) sum[p][r] = _mm512_load_ps(acc[r][p]);
        }
        for (unsigned s = 0; s < n_blocks * (BLOCK / sub_values); s++) {
                __m512i isum[PANELS][MAX_TILE_ROWS], begin[MAX_TILE_ROWS];

                UNROLL for (unsigned r = 0; r < N_R; r++)
                {
                        /* Types with a minimum have no offset. */
                        begin[r] = has_min ? _mm512_setzero_si512() : _mm512_set1_epi32(start[r][s]);
                        if (!has_min && sub_values == BLOCK)
                                begin[r] = _mm512_sll_epi32(begin[r], shift);
                        UNROLL for (unsigned p = 0; p < PANELS; p++) isum[p][r] =
                                act == TDM_ACT_I16 ? _mm512_setzero_si512() : begin[r];
                }
                sub_dot(N_R, sub_values / 4, chunks, s * (sub_values / 4), hi, isum);
                if (act == TDM_ACT_I16) {
                        UNROLL for (unsigned r = 0; r < N_R; r++) UNROLL for (unsigned p = 0; p < PANELS; p++)
                                isum[p][r] = _mm512_add_epi32(_mm512_slli_epi32(isum[p][r], 8), begin[r]);
                        sub_dot(N_R, sub_values / 4, chunks, s * (sub_values / 4), lo, isum);
                }
                UNROLL for (unsigned p = 0; p < PANELS; p++)
                {
                        __m512 scale = _mm512_load_ps(chunks[p].scale[s]);

                        UNROLL for (unsigned r = 0; r < N_R; r++) sum[p][r] = _mm512_fmadd_ps(
                                _mm512_cvtepi32_ps(isum[p][r]),
                                _mm512_mul_ps(scale, _mm512_set1_ps(x_scale[r][s * sub_values / BLOCK])), sum[p][r]);
                        if (!has_min)
                                continue;
                        scale = _mm512_load_ps(chunks[p].min[s]);
                        UNROLL for (unsigned r = 0; r < N_R; r++) sum[p][r] =
                                _mm512_fmadd_ps(scale, _mm512_set1_ps(x_sum[r][s]), sum[p][r]);
                }
        }
        UNROLL for (unsigned r = 0; r < N_R; r++) UNROLL for (unsigned p = 0; p < PANELS; p++)
                _mm512_store_ps(acc[r][p], sum[p][r]);
}

/* From how far ahead of a place in a panel, `left` bytes before its end, memory is fetched: the panels of a pair are
 * read side by side, so behind the end of one come those of the next pair. */
INLINE size_t few_ahead(const struct tdm_matrix *matrix, size_t left)
{
        return FEW_AHEAD_BYTES + (FEW_AHEAD_BYTES < left ? 0 : (PANELS - 1) * matrix->panel_bytes);
}

/* PANELS panels times a few rows, over all columns: what tile_int computes, in the same order. */
INLINE void few_rows(const unsigned N_R, const uint32_t type, const enum tdm_act act, const struct tdm_matrix *matrix,
                     const struct tdm_act_row *rows, uint32_t panel, float *y, size_t y_stride)
{
        const struct tdm_subblock_info t = tdm_subblock_info(type);
        const unsigned n_subs = BLOCK / t.sub_values;
        float scale[PANELS][CHUNK_SUBS][LANES] __attribute__((aligned(64)));
        float min[PANELS][CHUNK_SUBS][LANES] __attribute__((aligned(64)));
        const uint8_t *front[PANELS], *body[PANELS];
        __m512 sum[PANELS][FEW_ROWS];
        uint32_t nb = matrix->cols / BLOCK;
        size_t left =
                matrix->panel_bytes - tdm_subblock_front_bytes(&t, matrix->cols); /* of the panels, from body on */

        UNROLL for (unsigned p = 0; p < PANELS; p++)
        {
                front[p] = matrix->data + (panel + p) * matrix->panel_bytes;
                body[p] = front[p] + tdm_subblock_front_bytes(&t, matrix->cols);
                UNROLL for (unsigned r = 0; r < N_R; r++) sum[p][r] = _mm512_setzero_ps();
        }
        for (uint32_t first = 0; first < nb; first += CHUNK_BLOCKS) {
                uint32_t n_blocks = TDM_MIN(nb - first, CHUNK_BLOCKS);
                struct row_info info[FEW_ROWS];

                UNROLL for (unsigned r = 0; r < N_R; r++)
                {
                        if (n_subs == 2)
                                row_info_block16(t.has_min, &rows[r], first, n_blocks, t.offset, &info[r]);
                        else
                                row_info_block32(&rows[r], first, n_blocks, t.offset, &info[r]);
                }
                UNROLL for (unsigned p = 0; p < PANELS; p++)
                {
                        if (t.unit_values == BLOCK)
                                continue;
                        unpack_scales(type, front[p], body[p], scale[p], min[p]);
                        UNROLL for (unsigned at = 0; at < t.scale_bytes; at += 64)
                                prefetch(body[p] + at + few_ahead(matrix, left));
                        front[p] += tdm_subblock_unit_front_bytes(&t);
                        body[p] += t.scale_bytes;
                }
                left -= t.scale_bytes;
                for (uint32_t b = 0; b < n_blocks; b++) {
                        size_t k = (first + b) * BLOCK, ahead = few_ahead(matrix, left);

                        left -= t.block_bytes;
                        UNROLL for (unsigned p = 0; p < PANELS; p++)
                        {
                                __m512i w[8], hi[2][FEW_ROWS], lo[2][FEW_ROWS]; /* [half of the groups] */
                                const uint8_t *fetched = body[p] + ahead;

                                block_groups(type, body[p], w);
                                body[p] += t.block_bytes;
                                UNROLL for (unsigned r = 0; r < N_R; r++)
                                {
                                        UNROLL for (unsigned h = 0; h < 2; h++)
                                        {
                                                __m512i start =
                                                        n_subs == 2 || h == 0 ?
                                                                _mm512_set1_epi32(info[r].start[b * n_subs + h]) :
                                                                _mm512_setzero_si512();

                                                hi[h][r] = act == TDM_ACT_I16 ? _mm512_setzero_si512() : start;
                                                lo[h][r] = start;
                                        }
                                        UNROLL for (unsigned g = 0; g < 4; g++) UNROLL for (unsigned h = 0; h < 2; h++)
                                        {
                                                size_t at = k + 16 * h + 4 * g;
                                                unsigned line = 64 * (2 * g + h);

                                                if (r == 0 && line < t.block_bytes)
                                                        fetch_between(fetched + line, &hi[h][r]);
                                                hi[h][r] = _mm512_dpbusd_epi32(hi[h][r], w[4 * h + g],
                                                                               broadcast_4(rows[r].hi + at));
                                                if (act == TDM_ACT_I16)
                                                        lo[h][r] = _mm512_dpbusd_epi32(lo[h][r], w[4 * h + g],
                                                                                       broadcast_4(rows[r].lo + at));
                                        }
                                        UNROLL for (unsigned h = 0; act == TDM_ACT_I16 && h < 2; h++) hi[h][r] =
                                                _mm512_add_epi32(_mm512_slli_epi32(hi[h][r], 8), lo[h][r]);
                                        if (n_subs == 1)
                                                hi[0][r] = _mm512_add_epi32(hi[0][r], hi[1][r]);
                                }
                                UNROLL for (unsigned h = 0; h < n_subs; h++)
                                {
                                        unsigned s = b * n_subs + h;
                                        __m512 w_scale = t.unit_values == BLOCK ? unit_scale(type, front[p], 0, h) :
                                                                                  _mm512_load_ps(scale[p][s]);
                                        __m512 w_min = !t.has_min             ? _mm512_setzero_ps() :
                                                       t.unit_values == BLOCK ? vf_f16(front[p] + 2 * LANES) :
                                                                                _mm512_load_ps(min[p][s]);

                                        UNROLL for (unsigned r = 0; r < N_R; r++)
                                        {
                                                sum[p][r] = _mm512_fmadd_ps(
                                                        _mm512_cvtepi32_ps(hi[h][r]),
                                                        _mm512_mul_ps(w_scale, _mm512_set1_ps(info[r].scale[b])),
                                                        sum[p][r]);
                                                if (t.has_min)
                                                        sum[p][r] = _mm512_fmadd_ps(
                                                                w_min, _mm512_set1_ps(info[r].sum[s]), sum[p][r]);
                                        }
                                }
                                if (t.unit_values == BLOCK)
                                        front[p] += tdm_subblock_unit_front_bytes(&t);
                        }
                }
        }
        UNROLL for (unsigned p = 0; p < PANELS; p++)
        {
                uint32_t n = TDM_MIN(matrix->rows - (panel + p) * LANES, LANES);

                UNROLL for (unsigned r = 0; r < N_R; r++)
                        _mm512_mask_storeu_ps(y + r * y_stride + p * LANES, (__mmask16)((1u << n) - 1), sum[p][r]);
        }
}

/* One panel times n_rows <= N_R rows, over all columns: weights are unpacked into registers and all rows pass over them
 * there, which for some rows is less work than unpacking into memory for all. What tile_int computes, in the same
 * order. */
INLINE void some_rows(const unsigned N_R, const uint32_t type, const enum tdm_act act, const struct tdm_matrix *matrix,
                      const struct tdm_act_row *rows, uint32_t n_rows, uint32_t panel, float *y, size_t y_stride)
{
        const struct tdm_subblock_info t = tdm_subblock_info(type);
        const unsigned n_subs = BLOCK / t.sub_values, n_groups = t.sub_values / 4;
        const __m128i shift = start_shift(t.offset);
        float scale[CHUNK_SUBS][LANES] __attribute__((aligned(64))),
                min[CHUNK_SUBS][LANES] __attribute__((aligned(64)));
        const uint8_t *front = matrix->data + panel * matrix->panel_bytes,
                      *body = front + tdm_subblock_front_bytes(&t, matrix->cols);
        const struct tdm_act_row *row[SOME_ROWS];
        uint32_t nb = matrix->cols / BLOCK, n_outputs = TDM_MIN(matrix->rows - panel * LANES, LANES);
        __m512 sum[SOME_ROWS];

        UNROLL for (unsigned r = 0; r < N_R; r++)
        {
                row[r] = &rows[TDM_MIN(r, n_rows - 1)];
                sum[r] = _mm512_setzero_ps();
        }
        for (uint32_t first = 0; first < nb; first += CHUNK_BLOCKS) {
                uint32_t n_blocks = TDM_MIN(nb - first, CHUNK_BLOCKS);
                struct row_info info[SOME_ROWS];

                if (n_subs == 2)
                        for (unsigned r = 0; r < N_R; r++)
                                row_info_block16(t.has_min, row[r], first, n_blocks, t.offset, &info[r]);
                if (t.unit_values != BLOCK) {
                        unpack_scales(type, front, body, scale, min);
                        UNROLL for (unsigned at = 0; at < t.scale_bytes; at += 64)
                                prefetch(body + at + SOME_AHEAD_BYTES);
                        front += tdm_subblock_unit_front_bytes(&t);
                        body += t.scale_bytes;
                }
                for (uint32_t b = 0; b < n_blocks; b++) {
                        size_t k = (first + b) * BLOCK;
                        const uint8_t *fetched = body + SOME_AHEAD_BYTES;
                        __m512i w[8];

                        block_groups(type, body, w);
                        body += t.block_bytes;
                        UNROLL for (unsigned h = 0; h < n_subs; h++)
                        {
                                unsigned s = b * n_subs + h;
                                __m512 w_scale = t.unit_values == BLOCK ? unit_scale(type, front, 0, h) :
                                                                          _mm512_load_ps(scale[s]);
                                __m512 w_min = !t.has_min             ? _mm512_setzero_ps() :
                                               t.unit_values == BLOCK ? vf_f16(front + 2 * LANES) :
                                                                        _mm512_load_ps(min[s]);
                                __m512i isum[SOME_ROWS], begin[SOME_ROWS];

                                UNROLL for (unsigned r = 0; r < N_R; r++)
                                {
                                        begin[r] = t.has_min ?
                                                           _mm512_setzero_si512() /* no offset */
                                                   :
                                                   n_subs == 2 ?
                                                           _mm512_set1_epi32(info[r].start[s]) :
                                                           _mm512_sll_epi32(_mm512_set1_epi32(row[r]->start[first + b]),
                                                                            shift);
                                        isum[r] = act == TDM_ACT_I16 ? _mm512_setzero_si512() : begin[r];
                                }
                                UNROLL for (unsigned g = 0; g < n_groups; g++)
                                {
                                        unsigned group = n_groups * h + g;

                                        if (64 * group < t.block_bytes)
                                                fetch_between(fetched + 64 * group, &isum[0]);
                                        UNROLL for (unsigned r = 0; r < N_R; r++) isum[r] = _mm512_dpbusd_epi32(
                                                isum[r], w[group], broadcast_4(row[r]->hi + k + 4 * group));
                                }
                                if (act == TDM_ACT_I16) {
                                        UNROLL for (unsigned r = 0; r < N_R; r++) isum[r] =
                                                _mm512_add_epi32(_mm512_slli_epi32(isum[r], 8), begin[r]);
                                        UNROLL for (unsigned g = 0; g < n_groups; g++)
                                                UNROLL for (unsigned r = 0; r < N_R; r++) isum[r] = _mm512_dpbusd_epi32(
                                                        isum[r], w[n_groups * h + g],
                                                        broadcast_4(row[r]->lo + k + 4 * (n_groups * h + g)));
                                }
                                UNROLL for (unsigned r = 0; r < N_R; r++)
                                {
                                        __m512 x_scale = _mm512_set1_ps(row[r]->scale[first + b]);

                                        sum[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum[r]),
                                                                 _mm512_mul_ps(w_scale, x_scale), sum[r]);
                                        if (t.has_min)
                                                sum[r] = _mm512_fmadd_ps(w_min,
                                                                         _mm512_set1_ps(n_subs == 2 ?
                                                                                                info[r].sum[s] :
                                                                                                row[r]->sum[first + b]),
                                                                         sum[r]);
                                }
                        }
                        if (t.unit_values == BLOCK)
                                front += tdm_subblock_unit_front_bytes(&t);
                }
        }
        UNROLL for (unsigned r = 0; r < N_R; r++) if (r < n_rows)
                _mm512_mask_storeu_ps(y + r * y_stride, (__mmask16)((1u << n_outputs) - 1), sum[r]);
}

/* Weights are made as they are used, and sums are in memory: f32 activations are a test's mode. */
INLINE void tile_float(const unsigned sub_values, const bool has_min, TILE_ARGS)
{
        for (size_t k = 0; k < n_blocks * BLOCK; k++)
                UNROLL for (unsigned p = 0; p < PANELS; p++)
                {
                        __m512i q =
                                _mm512_srlv_epi32(_mm512_load_si512(chunks[p].q[k / 4]), _mm512_set1_epi32(k % 4 * 8));
                        __m512 scale = _mm512_load_ps(chunks[p].scale[k / sub_values]), w;

                        q = _mm512_sub_epi32(_mm512_and_si512(q, _mm512_set1_epi32(255)), _mm512_set1_epi32(offset));
                        w = has_min ? _mm512_fmadd_ps(_mm512_cvtepi32_ps(q), scale,
                                                      _mm512_load_ps(chunks[p].min[k / sub_values])) :
                                      _mm512_mul_ps(_mm512_cvtepi32_ps(q), scale);
                        for (unsigned r = 0; r < n_rows; r++)
                                _mm512_store_ps(acc[r][p],
                                                _mm512_fmadd_ps(w, _mm512_set1_ps(rows[r].x[first_block * BLOCK + k]),
                                                                _mm512_load_ps(acc[r][p])));
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
        TILE(name, 5, __VA_ARGS__)                                                                                     \
        TILE(name, 6, __VA_ARGS__)                                                                                     \
        static const tile_fn name[MAX_TILE_ROWS] = { name##_1, name##_2, name##_3, name##_4, name##_5, name##_6 };
#define TILES_OF(sub_values, min, has_min)                                                                             \
        TILES(tiles_i8_##sub_values##min, tile_int, sub_values, has_min, TDM_ACT_I8)                                   \
        TILES(tiles_i16_##sub_values##min, tile_int, sub_values, has_min, TDM_ACT_I16)                                 \
        static void any_##sub_values##min(TILE_ARGS)                                                                   \
        {                                                                                                              \
                tile_float(sub_values, has_min, TILE_CALL);                                                            \
        }                                                                                                              \
        static const tile_fn tiles_f32_##sub_values##min[MAX_TILE_ROWS] = {                                            \
                any_##sub_values##min, any_##sub_values##min, any_##sub_values##min,                                   \
                any_##sub_values##min, any_##sub_values##min, any_##sub_values##min,                                   \
        };

TILES_OF(32, , false)
TILES_OF(32, _min, true)
TILES_OF(16, , false)
TILES_OF(16, _min, true)

#define tiles_i8_32_table tiles_i8_32
#define tiles_i16_32_table tiles_i16_32
#define tiles_f32_32_table tiles_f32_32
#define tiles_i8_16_table tiles_i8_16
#define tiles_i16_16_table tiles_i16_16
#define tiles_f32_16_table tiles_f32_16

#define FEW(name, type, act_)                                                                                          \
        static void name(const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t n_rows,             \
                         uint32_t panel, float *y, size_t y_stride)                                                    \
        {                                                                                                              \
                if (n_rows == 1)                                                                                       \
                        few_rows(1, type, act_, matrix, rows, panel, y, y_stride);                                     \
                else                                                                                                   \
                        few_rows(2, type, act_, matrix, rows, panel, y, y_stride);                                     \
        }
#define SOME(name, type, act_)                                                                                         \
        static void name(const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t n_rows,             \
                         uint32_t panel, float *y, size_t y_stride)                                                    \
        {                                                                                                              \
                if (n_rows <= 4)                                                                                       \
                        some_rows(4, type, act_, matrix, rows, n_rows, panel, y, y_stride);                            \
                else if (n_rows <= 6)                                                                                  \
                        some_rows(6, type, act_, matrix, rows, n_rows, panel, y, y_stride);                            \
                else                                                                                                   \
                        some_rows(SOME_ROWS, type, act_, matrix, rows, n_rows, panel, y, y_stride);                    \
        }

#define KERNELS_FILL tdm_kernels_avx512_matmul_subblock_fill
#include "engine/host/kernels-matmul-subblock-table.h"

#endif
