/* Matrix kernels for AVX-512 with VNNI: one vector is 4 consecutive columns of 16 outputs, and vpdpbusd multiplies it
 * by 4 activations broadcast from memory. Quants are stored unsigned, so the integer sum starts at -offset * (sum of
 * the activations) and is exact at the block's end; then one conversion, one product of scales and one fused
 * multiply-add, which is the order of the C version.
 *
 * A tile is N_P panels times N_R rows; its sums stay in registers over the whole row (of 16-bit rows some may not), so
 * a tile reads its panels once. Few rows wait for memory, and four panels at once are four streams for the
 * prefetchers. Many rows are bound by the multipliers: 2 x 6 keeps 12 sums running where integers need a second set of
 * registers, 1 x 12 where they do not and each weight has to be widened. Which tiles a call is cut into changes no
 * result. */
#include <assert.h>
#include <float.h>
#include "engine/host/kernels-fill.h"

#ifdef __x86_64__
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define LANES TDM_PANEL_ROWS
#define BLOCK TDM_BLOCK_VALUES
#define MAX_TILE_ROWS 12u
#define FEW_ROWS 3u
#define PREFETCH_BYTES 1024
#define AHEAD_BYTES 6144u /* of quants, of all panels of a tile */
#define FEW_PARTS 3u      /* tiles on the same panels, which wait for memory */
#define ONE_PASS_SUMS 8u  /* of 16-bit activations, of their high and of their low bytes */

/* The lines that a tile fetches while it computes. The processor drops requests while it waits for many others, so
 * lines are asked for one by one.
 *
 * A tile that is the only one on its panels waits for memory in any case: it fetches its own panels, quants and scales
 * at one distance, and at their end the beginning of the next ones. Where several tiles share panels, the first one
 * would wait while the multipliers stand still. So they fetch the panels after their own. Two or three tiles wait for
 * memory too: each fetches a block of the next panels with every second or third of its own. More tiles are bound by
 * the multipliers, and to choose at each block would take their time: each has a part of the next panels and fetches it
 * evenly, line after line, into the second-level cache. */
struct ahead {
        uint32_t n_panels; /* after the tile's own; 0: nothing is fetched of them */
        uint32_t part, n_parts;
};

enum fetch {
        FETCH_BY_PANEL, /* with each line of quants one for the same panel */
        FETCH_EVENLY    /* with each line of the first panel's quants one of the part */
};

/* The lines that are fetched next. */
struct lines {
        const uint8_t *of[4]; /* FETCH_BY_PANEL: for each panel of the tile */
        const uint8_t *part;  /* FETCH_EVENLY: in the tile's part of the next panels */
        size_t step;          /* bytes, from one place in the code that fetches to the next; at most a line */
};

static_assert(AHEAD_BYTES % (4 * 512) == 0, "whole blocks of each panel");

INLINE size_t scales_bytes(const struct tdm_matrix *matrix)
{
        return TDM_ALIGN_UP((size_t)matrix->cols / BLOCK * LANES * 2, (size_t)64);
}

INLINE const uint8_t *panel_data(const struct tdm_matrix *matrix, uint32_t panel)
{
        return matrix->data + panel * matrix->panel_bytes;
}

/* Bytes of the quants of a block of a panel. */
INLINE size_t block_bytes(uint32_t type)
{
        return (type == TDM_TYPE_Q8_0 ? 32u : 16u) * LANES;
}

INLINE __m512i broadcast_4(const int8_t *p)
{
        int32_t v;

        memcpy(&v, p, sizeof(v));
        return _mm512_set1_epi32(v);
}

/* Outputs past the matrix's end are not written. */
INLINE void store_lanes(const struct tdm_matrix *matrix, uint32_t panel, __m512 acc, float *y)
{
        uint32_t n = matrix->rows - panel * LANES;

        if (n >= LANES)
                _mm512_storeu_ps(y, acc);
        else
                _mm512_mask_storeu_ps(y, (__mmask16)((1u << n) - 1), acc);
}

/* ---- quantised activations ---- */

/* A tile of quantised weights: what it reads, and its sums. */
struct tile {
        const uint8_t *scales[4], *quants[4]; /* by panel */
        const int8_t *hi[MAX_TILE_ROWS], *lo[MAX_TILE_ROWS];
        const float *x_scale[MAX_TILE_ROWS];
        const int32_t *start[MAX_TILE_ROWS];
        __m512 acc[4][MAX_TILE_ROWS];
};

/* A fetch that stays behind the products before it: the compiler would put all fetches of a block at its beginning. The
 * sum is named for that alone. Into the first-level cache: from the second one the products would wait again. */
INLINE void fetch_between(const uint8_t *line, __m512i *sum)
{
        __asm__("prefetcht0 %1" : "+v"(*sum) : "m"(*line));
}

INLINE void fetch_part(struct lines *lines)
{
        _mm_prefetch(lines->part, _MM_HINT_T1);
        lines->part += lines->step;
}

/* isum[i] += 32 columns of N_P panels times N_R rows of int8 at x[i], for i < N_X. By panel, lines are fetched for
 * panels first_fetched … */
INLINE void block_dot(const unsigned N_P, const unsigned N_R, const unsigned N_X, const uint32_t type,
                      const uint8_t *const *quants, const int8_t *const *const *x, size_t k,
                      __m512i (*isum)[4][MAX_TILE_ROWS], const enum fetch FETCH, struct lines *lines,
                      const unsigned first_fetched, const unsigned end_fetched)
{
        const __m512i nibble = _mm512_set1_epi8(15);
        const unsigned n_v = type == TDM_TYPE_Q8_0 ? 8 : 4;

        UNROLL for (unsigned v = 0; v < n_v; v++)
        {
                __m512i w[4], w_high[4];

                UNROLL for (unsigned p = 0; p < N_P; p++)
                {
                        w[p] = _mm512_load_si512(quants[p] + 64 * v);
                        if (FETCH == FETCH_BY_PANEL && p >= first_fetched && p < end_fetched)
                                fetch_between(lines->of[p] + 64 * v, &isum[0][p][0]);
                        if (FETCH == FETCH_EVENLY && first_fetched == 0 && p == 0)
                                fetch_part(lines);
                        if (type == TDM_TYPE_Q4_0) {
                                w_high[p] = _mm512_and_si512(_mm512_srli_epi16(w[p], 4), nibble);
                                w[p] = _mm512_and_si512(w[p], nibble);
                        }
                }
                UNROLL for (unsigned r = 0; r < N_R; r++) UNROLL for (unsigned i = 0; i < N_X; i++)
                {
                        __m512i a = broadcast_4(x[i][r] + k + 4 * v), a_high;

                        UNROLL for (unsigned p = 0; p < N_P; p++) isum[i][p][r] =
                                _mm512_dpbusd_epi32(isum[i][p][r], w[p], a);
                        if (type != TDM_TYPE_Q4_0)
                                continue;
                        a_high = broadcast_4(x[i][r] + k + 4 * v + 16);
                        UNROLL for (unsigned p = 0; p < N_P; p++) isum[i][p][r] =
                                _mm512_dpbusd_epi32(isum[i][p][r], w_high[p], a_high);
                }
        }
}

/* Block b of the tile. */
INLINE void tile_block(const unsigned N_P, const unsigned N_R, const uint32_t type, const enum tdm_act act,
                       const enum fetch FETCH, struct tile *t, size_t b, struct lines *lines)
{
        const unsigned shift = type == TDM_TYPE_Q8_0 ? 4 : 0; /* weights are stored plus 128 or 8 */
        const unsigned half = N_R == 1 ? N_P : (N_P + 1) / 2; /* of the panels: fetched in the first of two passes */
        const bool one_pass = act == TDM_ACT_I8 || N_P * N_R <= ONE_PASS_SUMS;
        const int8_t *const *x[2] = { one_pass && act == TDM_ACT_I16 ? t->lo : t->hi, t->hi };
        __m512i isum[2][4][MAX_TILE_ROWS];
        __m512 w_scale[4];

        UNROLL for (unsigned r = 0; r < N_R; r++) UNROLL for (unsigned p = 0; p < N_P; p++)
        {
                isum[0][p][r] =
                        one_pass ? _mm512_slli_epi32(_mm512_set1_epi32(t->start[r][b]), shift) : _mm512_setzero_si512();
                isum[1][p][r] = _mm512_setzero_si512();
        }
        if (act == TDM_ACT_I8) {
                block_dot(N_P, N_R, 1, type, t->quants, x, b * BLOCK, isum, FETCH, lines, 0, N_P);
        } else if (one_pass) {
                block_dot(N_P, N_R, 2, type, t->quants, x, b * BLOCK, isum, FETCH, lines, 0, N_P);
                UNROLL for (unsigned r = 0; r < N_R; r++) UNROLL for (unsigned p = 0; p < N_P; p++) isum[0][p][r] =
                        _mm512_add_epi32(isum[0][p][r], _mm512_slli_epi32(isum[1][p][r], 8));
        } else {
                block_dot(N_P, N_R, 1, type, t->quants, x, b * BLOCK, isum, FETCH, lines, 0, half);
                UNROLL for (unsigned r = 0; r < N_R; r++) UNROLL for (unsigned p = 0; p < N_P; p++) isum[0][p][r] =
                        _mm512_add_epi32(_mm512_slli_epi32(isum[0][p][r], 8),
                                         _mm512_slli_epi32(_mm512_set1_epi32(t->start[r][b]), shift));
                /* Else the compiler keeps the unpacked weights of the first pass, and sums go to memory for them. */
                UNROLL for (unsigned p = 0; p < N_P; p++) __asm__("" : "+r"(t->quants[p]));
                x[0] = t->lo;
                block_dot(N_P, N_R, 1, type, t->quants, x, b * BLOCK, isum, FETCH, lines, half, N_P);
        }
        UNROLL for (unsigned p = 0; p < N_P; p++)
        {
                w_scale[p] = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(t->scales[p] + b * LANES * 2)));
                t->quants[p] += block_bytes(type);
        }
        UNROLL for (unsigned r = 0; r < N_R; r++)
        {
                __m512 scale = _mm512_set1_ps(t->x_scale[r][b]);

                UNROLL for (unsigned p = 0; p < N_P; p++) t->acc[p][r] = _mm512_fmadd_ps(
                        _mm512_cvtepi32_ps(isum[0][p][r]), _mm512_mul_ps(w_scale[p], scale), t->acc[p][r]);
        }
}

INLINE void tile_begin(const unsigned N_P, const unsigned N_R, const struct tdm_matrix *matrix,
                       const struct tdm_act_row *rows, uint32_t first_panel, struct tile *ret)
{
        UNROLL for (unsigned p = 0; p < N_P; p++)
        {
                ret->scales[p] = panel_data(matrix, first_panel + p);
                ret->quants[p] = ret->scales[p] + scales_bytes(matrix);
                UNROLL for (unsigned r = 0; r < N_R; r++) ret->acc[p][r] = _mm512_setzero_ps();
        }
        UNROLL for (unsigned r = 0; r < N_R; r++)
        {
                ret->hi[r] = rows[r].hi;
                ret->x_scale[r] = rows[r].scale;
                ret->start[r] = rows[r].start;
                ret->lo[r] = rows[r].lo;
        }
}

INLINE void tile_end(const unsigned N_P, const unsigned N_R, const struct tdm_matrix *matrix, uint32_t first_panel,
                     const struct tile *t, float *y, size_t y_stride)
{
        UNROLL for (unsigned p = 0; p < N_P; p++) UNROLL for (unsigned r = 0; r < N_R; r++)
                store_lanes(matrix, first_panel + p, t->acc[p][r], y + r * y_stride + p * LANES);
}

/* The only tile on its panels. Past the last panel there may be nothing: fetching harms nothing. */
INLINE void tile_alone(const unsigned N_P, const unsigned N_R, const uint32_t type, const enum tdm_act act,
                       const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t first_panel, float *y,
                       size_t y_stride, const struct ahead *ahead)
{
        const size_t nb = matrix->cols / BLOCK;
        struct lines lines;
        struct tile t;

        tile_begin(N_P, N_R, matrix, rows, first_panel, &t);
        UNROLL for (unsigned p = 0; p < N_P; p++) lines.of[p] = t.quants[p] + AHEAD_BYTES / N_P;
        for (size_t b = 0; b < nb; b++) {
                /* The block whose quants are fetched with this one's. */
                size_t next = b + AHEAD_BYTES / N_P / block_bytes(type);
                size_t at = next < nb ? next * LANES * 2 : N_P * matrix->panel_bytes + (next - nb) * LANES * 2;

                if (b % 2 == 0) /* the scales of two blocks are a line */
                        UNROLL for (unsigned p = 0; p < N_P; p++) _mm_prefetch(t.scales[p] + at, _MM_HINT_T0);
                if (next == nb && ahead->n_panels > 0)
                        UNROLL for (unsigned p = 0; p < N_P; p++) lines.of[p] =
                                t.scales[p] + N_P * matrix->panel_bytes + scales_bytes(matrix);
                tile_block(N_P, N_R, type, act, FETCH_BY_PANEL, &t, b, &lines);
                UNROLL for (unsigned p = 0; p < N_P; p++) lines.of[p] += block_bytes(type);
        }
        tile_end(N_P, N_R, matrix, first_panel, &t, y, y_stride);
}

/* One of two or three on the same panels. */
INLINE void tile_of_few(const unsigned N_P, const unsigned N_R, const uint32_t type, const enum tdm_act act,
                        const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t first_panel, float *y,
                        size_t y_stride, const struct ahead *ahead)
{
        const size_t nb = matrix->cols / BLOCK;
        size_t mine = ahead->n_panels > 0 ? ahead->part : nb; /* the next block with which one is fetched */
        struct lines lines;
        struct tile t;

        tile_begin(N_P, N_R, matrix, rows, first_panel, &t);
        for (size_t b = 0; b < nb; b++) {
                bool fetches = b == mine;

                mine += fetches ? ahead->n_parts : 0;
                UNROLL for (unsigned p = 0; p < N_P; p++)
                {
                        const uint8_t *next = t.scales[p] + N_P * matrix->panel_bytes;

                        lines.of[p] = fetches ? next + scales_bytes(matrix) + b * block_bytes(type) : t.quants[p];
                        _mm_prefetch(fetches ? next + b * LANES * 2 : t.quants[p], _MM_HINT_T1);
                }
                tile_block(N_P, N_R, type, act, FETCH_BY_PANEL, &t, b, &lines);
        }
        tile_end(N_P, N_R, matrix, first_panel, &t, y, y_stride);
}

/* One of many on the same panels. */
INLINE void tile_of_many(const unsigned N_P, const unsigned N_R, const uint32_t type, const enum tdm_act act,
                         const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t first_panel,
                         float *y, size_t y_stride, const struct ahead *ahead)
{
        const size_t nb = matrix->cols / BLOCK;
        const size_t bytes = ahead->n_panels * matrix->panel_bytes / ahead->n_parts;
        const size_t n_places = nb * (1 + block_bytes(type) / 64);
        struct tile t;
        struct lines lines = {
                .part = panel_data(matrix, first_panel) + N_P * matrix->panel_bytes + ahead->part * bytes,
                .step = TDM_DIV_UP(bytes, TDM_MAX(n_places, (size_t)1)),
        };

        tile_begin(N_P, N_R, matrix, rows, first_panel, &t);
        for (size_t b = 0; b < nb; b++) {
                fetch_part(&lines);
                tile_block(N_P, N_R, type, act, FETCH_EVENLY, &t, b, &lines);
        }
        tile_end(N_P, N_R, matrix, first_panel, &t, y, y_stride);
}

/* ---- f32 activations ---- */

INLINE void fma_column(const unsigned N_P, const unsigned N_R, const __m512 *w, const float *const *x, size_t k,
                       __m512 (*acc)[MAX_TILE_ROWS])
{
        UNROLL for (unsigned r = 0; r < N_R; r++)
        {
                __m512 a = _mm512_set1_ps(x[r][k]);

                UNROLL for (unsigned p = 0; p < N_P; p++) acc[p][r] = _mm512_fmadd_ps(w[p], a, acc[p][r]);
        }
}

/* Byte i of every lane, less the offset, times the scale: exact. */
INLINE __m512 dequantise(__m512i v, unsigned shift, int mask, int offset, __m512 scale)
{
        __m512i q = _mm512_and_si512(_mm512_srli_epi32(v, shift), _mm512_set1_epi32(mask));

        return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(q, _mm512_set1_epi32(offset))), scale);
}

INLINE void tile_float(const unsigned N_P, const unsigned N_R, const uint32_t type, const struct tdm_matrix *matrix,
                       const struct tdm_act_row *rows, uint32_t first_panel, float *y, size_t y_stride,
                       const struct ahead *ahead)
{
        const uint8_t *data[4];
        const float *x[MAX_TILE_ROWS];
        __m512 acc[4][MAX_TILE_ROWS], w[4];

        UNROLL for (unsigned p = 0; p < N_P; p++)
        {
                data[p] = panel_data(matrix, first_panel + p);
                UNROLL for (unsigned r = 0; r < N_R; r++) acc[p][r] = _mm512_setzero_ps();
        }
        UNROLL for (unsigned r = 0; r < N_R; r++) x[r] = rows[r].x;

        if (type == TDM_TYPE_Q8_0 || type == TDM_TYPE_Q4_0) {
                size_t quants = scales_bytes(matrix);

                for (size_t b = 0; b < matrix->cols / BLOCK; b++) {
                        __m512 scale[4];

                        UNROLL for (unsigned p = 0; p < N_P; p++) scale[p] =
                                _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(data[p] + b * LANES * 2)));
                        for (unsigned g = 0; g < 8; g++) {
                                size_t at = quants + (type == TDM_TYPE_Q8_0 ? b * 512 + g * 64 : b * 256 + g % 4 * 64);

                                UNROLL for (unsigned i = 0; i < 4; i++)
                                {
                                        UNROLL for (unsigned p = 0; p < N_P; p++)
                                        {
                                                __m512i v = _mm512_load_si512(data[p] + at);

                                                w[p] = type == TDM_TYPE_Q8_0 ?
                                                               dequantise(v, 8 * i, 255, 128, scale[p]) :
                                                               dequantise(v, 8 * i + g / 4 * 4, 15, 8, scale[p]);
                                        }
                                        fma_column(N_P, N_R, w, x, b * BLOCK + g * 4 + i, acc);
                                }
                        }
                }
        } else {
                for (size_t k = 0; k < matrix->cols; k++) {
                        UNROLL for (unsigned p = 0; p < N_P; p++)
                        {
                                const uint8_t *at = data[p] + k * LANES * (type == TDM_TYPE_F32 ? 4 : 2);

                                if (N_R <= FEW_ROWS)
                                        _mm_prefetch(at + PREFETCH_BYTES, _MM_HINT_T1);
                                if (type == TDM_TYPE_F32)
                                        w[p] = _mm512_load_ps(at);
                                else if (type == TDM_TYPE_F16)
                                        w[p] = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)at));
                                else
                                        w[p] = _mm512_castsi512_ps(_mm512_slli_epi32(
                                                _mm512_cvtepu16_epi32(_mm256_load_si256((const __m256i *)at)), 16));
                        }
                        fma_column(N_P, N_R, w, x, k, acc);
                }
        }
        UNROLL for (unsigned p = 0; p < N_P; p++) UNROLL for (unsigned r = 0; r < N_R; r++)
                store_lanes(matrix, first_panel + p, acc[p][r], y + r * y_stride + p * LANES);
}

/* ---- tiles and calls ---- */

#define TILE_ARGS                                                                                                      \
        const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t first_panel, float *y,               \
                size_t y_stride, const struct ahead *ahead

typedef void (*tile_fn)(TILE_ARGS);

/* [rows]; NULL: not of this size. */
struct tiles {
        tile_fn one[MAX_TILE_ROWS + 1], two[MAX_TILE_ROWS + 1];
        tile_fn four[FEW_ROWS + 1]; /* panels: only few rows */
};

/* By how many tiles share their panels. */
struct tilings {
        uint32_t max_rows;
        struct tiles alone, few, many;
};

/* How many of the `step` panels that follow the step from `panel` on there are. */
static uint32_t panels_ahead(const struct tdm_matrix *matrix, uint32_t panel, uint32_t step)
{
        uint32_t end = TDM_DIV_UP(matrix->rows, LANES), next = panel + step;

        return next < end ? TDM_MIN(step, end - next) : 0;
}

/* Row tiles of nearly equal size, so that 8 rows are 4 + 4, not 6 + 2. */
static void run_tiles(const struct tilings *tilings, const struct tdm_matrix *matrix, const struct tdm_act_row *rows,
                      uint32_t n_rows, uint32_t first_panel, uint32_t n_panels, float *y, size_t y_stride)
{
        uint32_t n_tiles = TDM_DIV_UP(n_rows, tilings->max_rows);
        const struct tiles *tiles = n_tiles <= 1         ? &tilings->alone :
                                    n_tiles <= FEW_PARTS ? &tilings->few :
                                                           &tilings->many;
        struct ahead ahead = { .n_parts = n_tiles };

        for (uint32_t p = 0, step; p < n_panels; p += step) {
                uint32_t left = n_panels - p;

                step = n_rows <= FEW_ROWS && left >= 4 ? 4 : tiles->two[tilings->max_rows] && left >= 2 ? 2 : 1;
                ahead.n_panels = panels_ahead(matrix, first_panel + p, step);
                for (uint32_t t = 0, r = 0; t < n_tiles; t++) {
                        uint32_t n = (n_rows - r) / (n_tiles - t);
                        tile_fn tile = step == 4 ? tiles->four[n] : step == 2 ? tiles->two[n] : tiles->one[n];

                        ahead.part = t;
                        tile(matrix, rows + r, first_panel + p, y + r * y_stride + p * LANES, y_stride, &ahead);
                        r += n;
                }
        }
}

#define TILE(name, n_p, n_r, call, ...)                                                                                \
        static void name##_##n_p##x##n_r(TILE_ARGS)                                                                    \
        {                                                                                                              \
                call(n_p, n_r, __VA_ARGS__, matrix, rows, first_panel, y, y_stride, ahead);                            \
        }
#define TILES_4(name, n_p, ...)                                                                                        \
        TILE(name, n_p, 3, __VA_ARGS__)                                                                                \
        TILE(name, n_p, 4, __VA_ARGS__)                                                                                \
        TILE(name, n_p, 5, __VA_ARGS__)                                                                                \
        TILE(name, n_p, 6, __VA_ARGS__)
#define TILES_6(name, n_p, ...)                                                                                        \
        TILE(name, n_p, 1, __VA_ARGS__)                                                                                \
        TILE(name, n_p, 2, __VA_ARGS__)                                                                                \
        TILES_4(name, n_p, __VA_ARGS__)
#define TILES_12(name, n_p, ...)                                                                                       \
        TILES_6(name, n_p, __VA_ARGS__)                                                                                \
        TILE(name, n_p, 7, __VA_ARGS__)                                                                                \
        TILE(name, n_p, 8, __VA_ARGS__)                                                                                \
        TILE(name, n_p, 9, __VA_ARGS__)                                                                                \
        TILE(name, n_p, 10, __VA_ARGS__)                                                                               \
        TILE(name, n_p, 11, __VA_ARGS__)                                                                               \
        TILE(name, n_p, 12, __VA_ARGS__)
#define TILES_FEW(name, ...)                                                                                           \
        TILE(name, 4, 1, __VA_ARGS__)                                                                                  \
        TILE(name, 4, 2, __VA_ARGS__)                                                                                  \
        TILE(name, 4, 3, __VA_ARGS__)
#define CALL(name)                                                                                                     \
        static void name(const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t n_rows,             \
                         uint32_t first_panel, uint32_t n_panels, float *y, size_t y_stride)                           \
        {                                                                                                              \
                run_tiles(&name##_tilings, matrix, rows, n_rows, first_panel, n_panels, y, y_stride);                  \
        }
#define ROWS_4(name, n_p) NULL, NULL, NULL, name##_##n_p##x3, name##_##n_p##x4, name##_##n_p##x5, name##_##n_p##x6
#define ROWS_6(name, n_p)                                                                                              \
        NULL, name##_##n_p##x1, name##_##n_p##x2, name##_##n_p##x3, name##_##n_p##x4, name##_##n_p##x5, name##_##n_p##x6
#define ROWS_FEW(name) NULL, name##_4x1, name##_4x2, name##_4x3

/* If several tiles share panels, each has 3 rows or more. */
#define MATMUL_QUANTISED(name, type, act)                                                                              \
        TILES_6(name, 1, tile_alone, type, act)                                                                        \
        TILES_6(name, 2, tile_alone, type, act)                                                                        \
        TILES_FEW(name, tile_alone, type, act)                                                                         \
        TILES_4(name##_few, 1, tile_of_few, type, act)                                                                 \
        TILES_4(name##_few, 2, tile_of_few, type, act)                                                                 \
        TILES_4(name##_many, 1, tile_of_many, type, act)                                                               \
        TILES_4(name##_many, 2, tile_of_many, type, act)                                                               \
        static const struct tilings name##_tilings = {                                                                 \
                .max_rows = 6,                                                                                         \
                .alone = { { ROWS_6(name, 1) }, { ROWS_6(name, 2) }, { ROWS_FEW(name) } },                             \
                .few = { { ROWS_4(name##_few, 1) }, { ROWS_4(name##_few, 2) }, { NULL } },                             \
                .many = { { ROWS_4(name##_many, 1) }, { ROWS_4(name##_many, 2) }, { NULL } },                          \
        };                                                                                                             \
        CALL(name)
#define ROWS_12(name) ROWS_6(name, 1), name##_1x7, name##_1x8, name##_1x9, name##_1x10, name##_1x11, name##_1x12
#define MATMUL_FLOAT(name, type)                                                                                       \
        TILES_12(name, 1, tile_float, type)                                                                            \
        TILES_FEW(name, tile_float, type)                                                                              \
        static const struct tilings name##_tilings = {                                                                 \
                .max_rows = 12,                                                                                        \
                .alone = { { ROWS_12(name) }, { NULL }, { ROWS_FEW(name) } },                                          \
                .few = { { ROWS_12(name) }, { NULL }, { NULL } },                                                      \
                .many = { { ROWS_12(name) }, { NULL }, { NULL } },                                                     \
        };                                                                                                             \
        CALL(name)

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
INLINE __m512 saturate(__m512 x)
{
        x = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x);
        return _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(FLT_MAX)), _mm512_set1_ps(-FLT_MAX));
}

/* Four blocks at a time: what is one number a block (the largest value, its scale, the sum) is one lane of four. */
#define AT_ONCE 4u

struct blocks {
        __m512 x[AT_ONCE][2];
        __m512i q[AT_ONCE][2];
};

INLINE __m512i fold_op(const bool largest, __m512i a, __m512i b)
{
        return largest ? _mm512_max_epi32(a, b) : _mm512_add_epi32(a, b);
}

/* Lane i: all 16 lanes of v[i] together, the largest or the sum. */
INLINE __m128i fold(const bool largest, const __m512i *v)
{
        __m512i a = fold_op(largest, _mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
        __m512i b = fold_op(largest, _mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));

        a = fold_op(largest, _mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
        a = fold_op(largest, a, _mm512_shuffle_i32x4(a, a, 0x4e));
        return _mm512_castsi512_si128(fold_op(largest, a, _mm512_shuffle_i32x4(a, a, 0xb1)));
}

/* q of n blocks, 1 … AT_ONCE, and what blocks b … come to. Past the n-th nothing is read or written. */
INLINE void quantise_blocks(const float *x, unsigned n, float q_max, const struct tdm_act_blocks *blocks, uint32_t b,
                            struct blocks *ret)
{
        const __mmask8 some = (__mmask8)((1u << n) - 1);
        __m512i v[AT_ONCE], right[AT_ONCE];
        __m128i s_left, s_right, s;
        __m128 d, inverse;
        __mmask8 fine;

        UNROLL for (unsigned i = 0; i < AT_ONCE; i++)
        {
                ret->x[i][0] = i < n ? saturate(_mm512_loadu_ps(x + i * BLOCK)) : _mm512_setzero_ps();
                ret->x[i][1] = i < n ? saturate(_mm512_loadu_ps(x + i * BLOCK + 16)) : _mm512_setzero_ps();
                /* Among finite numbers from 0 on, the larger number has the larger bits. */
                v[i] = _mm512_castps_si512(_mm512_max_ps(_mm512_abs_ps(ret->x[i][0]), _mm512_abs_ps(ret->x[i][1])));
        }
        d = _mm_div_ps(_mm_castsi128_ps(fold(true, v)), _mm_set1_ps(q_max));
        fine = _mm_cmp_ps_mask(d, _mm_set1_ps(FLT_MIN), _CMP_GE_OQ);
        inverse = _mm_maskz_div_ps(fine, _mm_set1_ps(1), d);
        d = _mm_maskz_mov_ps(fine, d);
        _mm_mask_storeu_ps(blocks->scale + b, some, d);
        UNROLL for (unsigned i = 0; i < AT_ONCE; i++)
        {
                __m512 by = _mm512_permutexvar_ps(_mm512_set1_epi32((int)i), _mm512_castps128_ps512(inverse));

                ret->q[i][0] = _mm512_cvtps_epi32(_mm512_mul_ps(ret->x[i][0], by));
                ret->q[i][1] = _mm512_cvtps_epi32(_mm512_mul_ps(ret->x[i][1], by));
                v[i] = ret->q[i][0];
                right[i] = ret->q[i][1];
        }
        s_left = fold(false, v);
        s_right = fold(false, right);
        s = _mm_add_epi32(s_left, s_right);
        _mm_mask_storeu_epi32(blocks->start + b, some, _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32(s, 3)));
        _mm_mask_storeu_ps(blocks->sum + b, some, _mm_mul_ps(d, _mm_cvtepi32_ps(s)));
        _mm256_mask_storeu_epi32(
                blocks->sum_16 + 2 * (size_t)b, (__mmask8)((1u << 2 * n) - 1),
                _mm256_set_m128i(_mm_unpackhi_epi32(s_left, s_right), _mm_unpacklo_epi32(s_left, s_right)));
}

/* The low bytes of 32 numbers. */
INLINE void store_bytes(int8_t *to, __m512i a, __m512i b)
{
        _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(a));
        _mm_storeu_si128((__m128i *)(to + 16), _mm512_cvtepi32_epi8(b));
}

INLINE void some_i8(const float *x, unsigned n, int8_t *q, const struct tdm_act_blocks *blocks, uint32_t b)
{
        struct blocks v;

        quantise_blocks(x + b * BLOCK, n, 127, blocks, b, &v);
        UNROLL for (unsigned i = 0; i < AT_ONCE; i++) if (i < n) store_bytes(q + (b + i) * BLOCK, v.q[i][0], v.q[i][1]);
}

static void quantise_i8_avx512(const float *x, uint32_t cols, int8_t *q, const struct tdm_act_blocks *blocks)
{
        uint32_t b = 0, nb = cols / BLOCK;

        for (; b + AT_ONCE <= nb; b += AT_ONCE)
                some_i8(x, AT_ONCE, q, blocks, b);
        if (b < nb)
                some_i8(x, nb - b, q, blocks, b);
}

INLINE void some_i16(const float *x, unsigned n, int8_t *hi, int8_t *lo, const struct tdm_act_blocks *blocks,
                     uint32_t b)
{
        const __m512i half = _mm512_set1_epi32(128);
        struct blocks v;

        quantise_blocks(x + b * BLOCK, n, 32512, blocks, b, &v);
        UNROLL for (unsigned i = 0; i < AT_ONCE; i++)
        {
                const __m512i *q = v.q[i];

                if (i >= n)
                        continue;
                store_bytes(hi + (b + i) * BLOCK, _mm512_srai_epi32(_mm512_add_epi32(q[0], half), 8),
                            _mm512_srai_epi32(_mm512_add_epi32(q[1], half), 8));
                store_bytes(lo + (b + i) * BLOCK, q[0], q[1]); /* the low byte of q: q = 256 hi + lo */
        }
}

static void quantise_i16_avx512(const float *x, uint32_t cols, int8_t *hi, int8_t *lo,
                                const struct tdm_act_blocks *blocks)
{
        uint32_t b = 0, nb = cols / BLOCK;

        for (; b + AT_ONCE <= nb; b += AT_ONCE)
                some_i16(x, AT_ONCE, hi, lo, blocks, b);
        if (b < nb)
                some_i16(x, nb - b, hi, lo, blocks, b);
}

void tdm_kernels_avx512_matmul_fill(struct tdm_kernels *kernels)
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
        kernels->quantise_i8 = quantise_i8_avx512;
        kernels->quantise_i16 = quantise_i16_avx512;
}

#endif
