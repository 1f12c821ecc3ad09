/* The weight types of subblock.h against the file formats, written down here once more, one value at a time: packing
 * and reading back give every value; lanes behind the last row are zero; scales that are not finite are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "engine/weights/subblock.h"

static const uint32_t types[] = { TDM_TYPE_Q4_1,   TDM_TYPE_Q5_0,   TDM_TYPE_Q5_1,      TDM_TYPE_Q2_K,
                                  TDM_TYPE_Q3_K,   TDM_TYPE_Q4_K,   TDM_TYPE_Q5_K,      TDM_TYPE_Q6_K,
                                  TDM_TYPE_IQ4_NL, TDM_TYPE_IQ4_XS, TDM_TYPE_MXFP4,     TDM_TYPE_NVFP4,
                                  TDM_TYPE_GRID1,  TDM_TYPE_GRID2,  TDM_TYPE_GRID3_XXS, TDM_TYPE_GRID3_S };

static uint64_t random_state = 1;

static uint32_t random_u32(void)
{
        random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (uint32_t)(random_state >> 32);
}

/* ---- formats, restated ---- */

static double f16_value(const uint8_t *p)
{
        unsigned h = p[0] | p[1] << 8, exponent = h >> 10 & 31, fraction = h & 1023;
        double v = exponent ? ldexp(1024 + fraction, (int)exponent - 25) : ldexp(fraction, -24);

        return h >> 15 ? -v : v;
}

static int bit(const uint8_t *bytes, uint32_t i)
{
        return bytes[i / 8] >> i % 8 & 1;
}

static const double e2m1[16] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6 };
static const int iq4[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };

/* Value k of a block of 32. */
static double small_value(uint32_t type, const uint8_t *p, uint32_t k)
{
        const uint8_t *quants = p + (type == TDM_TYPE_Q4_1  ? 4 :
                                     type == TDM_TYPE_Q5_0  ? 6 :
                                     type == TDM_TYPE_Q5_1  ? 8 :
                                     type == TDM_TYPE_MXFP4 ? 1 :
                                                              2);
        int q = k < 16 ? quants[k] % 16 : quants[k - 16] / 16;

        switch (type) {
        case TDM_TYPE_Q4_1:
                return f16_value(p) * q + f16_value(p + 2);
        case TDM_TYPE_Q5_0:
                return f16_value(p) * (q + 16 * bit(p + 2, k) - 16);
        case TDM_TYPE_Q5_1:
                return f16_value(p) * (q + 16 * bit(p + 4, k)) + f16_value(p + 2);
        case TDM_TYPE_MXFP4:
                return ldexp(e2m1[q], p[0] - 127);
        default:
                return f16_value(p) * iq4[q];
        }
}

/* Value k of a block of NVFP4: each 16 have a scale of 4 bits of exponent and 3 of fraction, and 8 bytes. */
static double nvfp4_value(const uint8_t *p, uint32_t k)
{
        int scale = p[k / 16], exponent = scale / 8, fraction = scale % 8, quants = p[4 + k / 16 * 8 + k % 8];

        return e2m1[k % 16 < 8 ? quants % 16 : quants / 16] *
               (exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9));
}

/* The j-th 6-bit scale (first = 0) or minimum (first = 4) of Q4_K and Q5_K: the first four lie in the low bits of bytes
 * first …, the last four have their low half in bytes 8 … and their high half in the top bits of bytes first …. */
static int six_bits(const uint8_t *s, int first, int j)
{
        if (j < 4)
                return s[first + j] % 64;
        return (first == 0 ? s[4 + j] % 16 : s[4 + j] / 16) + 16 * (s[first + j - 4] / 64);
}

/* Value k of a block of the types that IQ1, IQ2 and IQ3 are packed as: the group's sign, or what is added, is the
 * code's highest bit. */
static double grid_value(uint32_t type, const uint8_t *p, uint32_t k)
{
        static const int iq2[] = { 8, 25, 43, 0 }, iq3_xxs[] = { 4, 12, 20, 28, 36, 44, 52, 62 };
        bool is_four = type == TDM_TYPE_GRID3_XXS || type == TDM_TYPE_GRID3_S;
        uint32_t j = k / 32, l = k % 32, i = k / 16;
        int code = is_four ? p[8 + 16 * j + l % 16] >> l / 16 * 4 & 15 :
                             (p[32 + 32 * (k / 128) + l] >> 2 * (j % 4) & 3) + (p[l] >> j & 1) * 4;
        int s = (is_four ? p : p + 96)[i % 8] >> i / 8 * 4 & 15, sign = code & (is_four ? 8 : 4) ? -1 : 1;
        double d = f16_value(p + (is_four ? 136 : 104)) * (2 * s + 1);

        code &= is_four ? 7 : 3;
        if (type == TDM_TYPE_GRID1)
                return code == 3 ? 0 : d * (code - 1 + sign * 0.125);
        return d * sign *
               (type == TDM_TYPE_GRID2     ? iq2[code] / 8.0 :
                type == TDM_TYPE_GRID3_XXS ? iq3_xxs[code] / 4.0 :
                                             2 * code + 1);
}

/* Value k of a block of 256. */
static double large_value(uint32_t type, const uint8_t *p, uint32_t k)
{
        uint32_t j = k / 32, half = k / 128, l = k % 32; /* j: 32s; half: the 128s of the 2-, 3- and 6-bit types */
        int q, s;

        switch (type) {
        case TDM_TYPE_Q2_K:
                q = p[16 + 32 * half + l] >> 2 * (j % 4) & 3;
                s = p[k / 16];
                return f16_value(p + 80) * (s % 16) * q - f16_value(p + 82) * (s / 16);
        case TDM_TYPE_Q3_K: {
                const uint8_t *scales = p + 96;
                uint32_t i = k / 16;

                q = (p[32 + 32 * half + l] >> 2 * (j % 4) & 3) - (p[l] >> j & 1 ? 0 : 4);
                s = (i < 8 ? scales[i] % 16 : scales[i - 8] / 16) + 16 * (scales[8 + i % 4] >> 2 * (i / 4) & 3);
                return f16_value(p + 108) * (s - 32) * q;
        }
        case TDM_TYPE_Q4_K:
        case TDM_TYPE_Q5_K: {
                const uint8_t *quants = p + (type == TDM_TYPE_Q4_K ? 16 : 48) + 32 * (j / 2);

                q = j % 2 ? quants[l] / 16 : quants[l] % 16;
                if (type == TDM_TYPE_Q5_K)
                        q += 16 * (p[16 + l] >> j & 1);
                return f16_value(p) * six_bits(p + 4, 0, (int)j) * q - f16_value(p + 2) * six_bits(p + 4, 4, (int)j);
        }
        case TDM_TYPE_Q6_K:
                q = p[64 * half + k % 64];
                q = j % 4 < 2 ? q % 16 : q / 16;
                q += 16 * (p[128 + 32 * half + l] >> 2 * (j % 4) & 3);
                return f16_value(p + 208) * (int8_t)p[192 + k / 16] * (q - 32);
        default: /* IQ4_XS */
                q = p[8 + 16 * j + l % 16];
                q = l < 16 ? q % 16 : q / 16;
                s = (j % 2 ? p[4 + j / 2] / 16 : p[4 + j / 2] % 16) + 16 * ((p[2] | p[3] << 8) >> 2 * j & 3);
                return f16_value(p) * (s - 32) * iq4[q];
        }
}

static double file_value(uint32_t type, const uint8_t *row, uint32_t col)
{
        const struct tdm_type_info *info = tdm_type_info(type);
        const uint8_t *block = row + col / info->block_values * info->block_bytes;

        if (type == TDM_TYPE_NVFP4)
                return nvfp4_value(block, col % 64);
        if (tdm_subblock_grid(type))
                return grid_value(type, block, col % 256);
        return info->block_values == 32 ? small_value(type, block, col % 32) : large_value(type, block, col % 256);
}

/* Places of the 16-bit floats of a block; -1: only one. */
static void float_places(uint32_t type, int at[2])
{
        at[0] = type == TDM_TYPE_Q2_K                            ? 80 :
                type == TDM_TYPE_Q3_K                            ? 108 :
                type == TDM_TYPE_Q6_K                            ? 208 :
                type == TDM_TYPE_GRID1 || type == TDM_TYPE_GRID2 ? 104 :
                tdm_subblock_grid(type)                          ? 136 :
                                                                   0;
        at[1] = type == TDM_TYPE_Q2_K                                                                            ? 82 :
                type == TDM_TYPE_Q4_1 || type == TDM_TYPE_Q5_1 || type == TDM_TYPE_Q4_K || type == TDM_TYPE_Q5_K ? 2 :
                                                                                                                   -1;
}

/* Random bytes with finite floats. */
static uint8_t *random_rows(uint32_t type, uint32_t rows, uint32_t cols, size_t *ret_row_bytes)
{
        const struct tdm_type_info *info = tdm_type_info(type);
        size_t row_bytes = *ret_row_bytes = (size_t)cols / info->block_values * info->block_bytes;
        uint8_t *data = malloc(rows * row_bytes);
        int at[2];

        assert_non_null(data);
        float_places(type, at);
        for (size_t i = 0; i < rows * row_bytes; i++)
                data[i] = (uint8_t)random_u32();
        for (size_t i = 0; type == TDM_TYPE_MXFP4 && i < rows * row_bytes; i += info->block_bytes)
                data[i] %= 253;
        for (size_t i = 0; type == TDM_TYPE_NVFP4 && i < rows * row_bytes; i += info->block_bytes)
                for (unsigned h = 0; h < 4; h++)
                        data[i + h] %= 127;
        for (size_t i = 0; type != TDM_TYPE_MXFP4 && type != TDM_TYPE_NVFP4 && i < rows * row_bytes;
             i += info->block_bytes)
                for (unsigned h = 0; h < 2; h++)
                        if (at[h] >= 0) /* clears the exponent's top bit, or most of it */
                                data[i + (size_t)at[h] + 1] &= random_u32() % 8 ? 0xbf : 0x83;
        return data;
}

static uint8_t *pack(uint32_t type, const uint8_t *data, size_t row_bytes, struct tdm_weights_tensor *t,
                     bool *ret_finite)
{
        uint8_t *base;

        t->type = type;
        t->layout = TDM_LAYOUT_PANEL16;
        t->panel_bytes = tdm_weights_panel_bytes(type, t->cols);
        t->size_bytes = t->panel_bytes * TDM_DIV_UP(t->rows, TDM_PANEL_ROWS);
        base = aligned_alloc(64, t->size_bytes);
        assert_non_null(base);
        memset(base, 0x5a, t->size_bytes);
        *ret_finite = true;
        for (uint32_t row = 0; row < t->rows; row += TDM_PANEL_ROWS)
                *ret_finite &= tdm_subblock_pack_panel(type, base + row / TDM_PANEL_ROWS * t->panel_bytes,
                                                       data + row * row_bytes, row_bytes,
                                                       TDM_MIN(t->rows - row, TDM_PANEL_ROWS), t->cols);
        return base;
}

static void test_values(void **state)
{
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(types); i++)
                for (unsigned round = 0; round < 6; round++) {
                        uint32_t block = tdm_type_info(types[i])->block_values;
                        struct tdm_weights_tensor t = { .rows = 1 + random_u32() % 40,
                                                        .cols = block * (1 + random_u32() % 5) };
                        _cleanup_(freep) uint8_t *data = NULL, *base = NULL;
                        size_t row_bytes;
                        bool finite;
                        float y[256 * 5];

                        data = random_rows(types[i], t.rows, t.cols, &row_bytes);
                        base = pack(types[i], data, row_bytes, &t, &finite);
                        assert_true(finite);
                        for (uint32_t row = 0; row < t.rows; row++) {
                                tdm_weights_row(base, &t, row, y);
                                for (uint32_t col = 0; col < t.cols; col++) {
                                        /* the double is exact; f32 rounds it once */
                                        float want = (float)file_value(types[i], data + row * row_bytes, col);

                                        assert_true(y[col] == want);
                                        assert_true(tdm_weights_value(base, &t, row, col) == want);
                                }
                        }
                }
}

/* Lanes behind the last row are zero weights, and no more space is taken than the file takes, but for a line of
 * padding. */
static void test_padding_and_size(void **state)
{
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(types); i++) {
                struct tdm_weights_tensor t = { .rows = 5, .cols = 768 };
                _cleanup_(freep) uint8_t *data = NULL, *base = NULL;
                size_t row_bytes;
                bool finite;

                data = random_rows(types[i], t.rows, t.cols, &row_bytes);
                base = pack(types[i], data, row_bytes, &t, &finite);
                assert_true(t.panel_bytes >= row_bytes * 16 && t.panel_bytes <= row_bytes * 16 + 63);
                t.rows = 16;
                for (uint32_t row = 5; row < 16; row++)
                        for (uint32_t col = 0; col < t.cols; col++)
                                assert_true(tdm_weights_value(base, &t, row, col) == 0);
        }
}

static void test_not_finite(void **state)
{
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(types); i++)
                for (unsigned round = 0; round < 20; round++) {
                        const struct tdm_type_info *info = tdm_type_info(types[i]);
                        struct tdm_weights_tensor t = { .rows = 19, .cols = 512 };
                        _cleanup_(freep) uint8_t *data = NULL, *base = NULL;
                        size_t row_bytes, block;
                        bool finite;
                        int at[2];

                        data = random_rows(types[i], t.rows, t.cols, &row_bytes);
                        float_places(types[i], at);
                        block = random_u32() % (t.rows * row_bytes / info->block_bytes) * info->block_bytes;
                        if (types[i] == TDM_TYPE_MXFP4)
                                data[block] = (uint8_t)(253 + round % 3);
                        else if (types[i] == TDM_TYPE_NVFP4) /* no number, or one with a sign */
                                data[block + round % 4] = (uint8_t)(round % 8 < 4 ? 0x7f : 0x80 + round);
                        else
                                data[block + (size_t)(at[1] >= 0 && round % 2 ? at[1] : at[0]) + 1] =
                                        0x7c | (round & 0x83);
                        base = pack(types[i], data, row_bytes, &t, &finite);
                        assert_false(finite);
                }
}

/* Blocks of MXFP4 and their values, computed by another program: the two least exponents, every code, a large scale. */
static void test_mxfp4(void **state)
{
        static const struct {
                uint8_t block[17];
                float values[32];
        } known[] = {
                { { 0x00, 0xfa, 0x80, 0x3b, 0x8a, 0xc4, 0x22, 0x4e, 0x4e, 0xcc, 0x94, 0x66, 0xca, 0xf8, 0x26, 0xe5,
                    0x3a },
                  { -0x1.0000000000000p-127,
                    0,
                    -0x1.8000000000000p-127,
                    -0x1.0000000000000p-127,
                    0x1.0000000000000p-126,
                    0x1.0000000000000p-127,
                    -0x1.0000000000000p-125,
                    -0x1.0000000000000p-125,
                    -0x1.0000000000000p-126,
                    0x1.0000000000000p-126,
                    0x1.0000000000000p-125,
                    -0x1.0000000000000p-127,
                    0,
                    0x1.0000000000000p-125,
                    0x1.8000000000000p-126,
                    -0x1.0000000000000p-127,
                    -0x1.8000000000000p-125,
                    0,
                    0x1.8000000000000p-127,
                    0,
                    -0x1.0000000000000p-126,
                    0x1.0000000000000p-127,
                    0x1.0000000000000p-126,
                    0x1.0000000000000p-126,
                    -0x1.0000000000000p-126,
                    -0x1.0000000000000p-128,
                    0x1.0000000000000p-125,
                    -0x1.0000000000000p-126,
                    -0x1.8000000000000p-125,
                    0x1.0000000000000p-127,
                    -0x1.0000000000000p-125,
                    0x1.8000000000000p-127 } },
                { { 0x01, 0xa5, 0xf0, 0x66, 0xaa, 0x5c, 0xc3, 0x7d, 0xa8, 0x65, 0x36, 0xa2, 0x3b, 0x47, 0x39, 0xf6,
                    0x7b },
                  { 0x1.8000000000000p-125,  0,
                    0x1.0000000000000p-124,  -0x1.0000000000000p-126,
                    -0x1.0000000000000p-125, 0x1.8000000000000p-126,
                    -0x1.8000000000000p-125, 0,
                    0x1.8000000000000p-125,  0x1.0000000000000p-124,
                    0x1.0000000000000p-126,  -0x1.8000000000000p-126,
                    0x1.8000000000000p-124,  -0x1.0000000000000p-127,
                    0x1.0000000000000p-124,  -0x1.8000000000000p-126,
                    -0x1.0000000000000p-126, -0x1.8000000000000p-124,
                    0x1.0000000000000p-124,  -0x1.0000000000000p-126,
                    0x1.8000000000000p-125,  -0x1.0000000000000p-125,
                    0x1.8000000000000p-124,  -0x1.0000000000000p-126,
                    0x1.0000000000000p-124,  0x1.8000000000000p-126,
                    -0x1.0000000000000p-126, 0x1.8000000000000p-126,
                    0x1.0000000000000p-125,  0x1.8000000000000p-126,
                    -0x1.8000000000000p-124, 0x1.8000000000000p-124 } },
                { { 0x7f, 0xf0, 0xe1, 0xd2, 0xc3, 0xb4, 0xa5, 0x96, 0x87, 0x78, 0x69, 0x5a, 0x4b, 0x3c, 0x2d, 0x1e,
                    0x0f },
                  { 0,
                    0x1.0000000000000p-1,
                    1,
                    0x1.8000000000000p+0,
                    2,
                    3,
                    4,
                    6,
                    0,
                    -0x1.0000000000000p-1,
                    -1,
                    -0x1.8000000000000p+0,
                    -2,
                    -3,
                    -4,
                    -6,
                    -6,
                    -4,
                    -3,
                    -2,
                    -0x1.8000000000000p+0,
                    -1,
                    -0x1.0000000000000p-1,
                    0,
                    6,
                    4,
                    3,
                    2,
                    0x1.8000000000000p+0,
                    1,
                    0x1.0000000000000p-1,
                    0 } },
                { { 0x80, 0x17, 0x50, 0x07, 0xa9, 0xb6, 0x5d, 0xde, 0xcf, 0x7b, 0xc3, 0x36, 0xa7, 0xc4, 0xa0, 0xfc,
                    0xb0 },
                  { 12, 0, 12, -1, 8,  -6, -8, -12, -3, 3,  8, 12, 4,  0,  -4,  0,
                    1,  6, 0,  -2, -3, 6,  -6, -4,  12, -4, 3, -2, -4, -2, -12, -3 } },
        };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(known); i++) {
                struct tdm_weights_tensor t = { .rows = 1, .cols = 32 };
                _cleanup_(freep) uint8_t *base = NULL;
                bool finite;
                float y[32];

                base = pack(TDM_TYPE_MXFP4, known[i].block, sizeof(known[i].block), &t, &finite);
                assert_true(finite);
                tdm_weights_row(base, &t, 0, y);
                for (unsigned k = 0; k < 32; k++)
                        assert_true(y[k] == known[i].values[k]);
        }
}

/* Blocks of NVFP4 and their values times 1024, computed by another program: the largest scale, the least ones and zero,
 * every code. */
static void test_nvfp4(void **state)
{
        static const struct {
                uint8_t block[36];
                int32_t values[64];
        } known[] = {
                { { 0x7e, 0x03, 0x00, 0x35, 0xa8, 0x15, 0x5f, 0xb1, 0xfe, 0xcf, 0x42, 0xf1,
                    0xcc, 0x2a, 0x8f, 0xb0, 0x1b, 0xef, 0x76, 0xe2, 0x07, 0x3e, 0x60, 0x19,
                    0xb7, 0xcd, 0x37, 0x73, 0x2e, 0x85, 0x3e, 0x88, 0xfc, 0xa6, 0xe0, 0x34 },
                  { 0,       1376256,  -2752512, 229376, -1835008, -2752512, 458752, 229376, -458752, 229376, 1376256,
                    -688128, -2752512, -917504,  917504, -2752512, -12,      -6,     -36,    0,       -9,     -36,
                    24,      6,        -12,      6,      0,        -9,       3,      -24,    36,      -24,    0,
                    0,       0,        0,        0,      0,        0,        0,      0,      0,       0,      0,
                    0,       0,        0,        0,      -3328,    2496,     -3328,  0,      -1664,   3328,   0,
                    1664,    832,      0,        1248,   0,        -4992,    -832,   -3328,  1248 } },
                { { 0x08, 0x07, 0x38, 0x01, 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe,
                    0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01, 0x2b, 0x71, 0xd7, 0xae,
                    0xb8, 0x2b, 0x99, 0xf7, 0xa4, 0xdb, 0x7e, 0x17, 0x49, 0x01, 0xac, 0xeb },
                  { 0,     16,  32,   64,    0,  -16,   -32,  -64,  8,    24,   48,    96,    -8,    -24,  -48,  -96,
                    -84,   -42, -21,  -7,    84, 42,    21,   7,    -56,  -28,  -14,   0,     56,    28,   14,   0,
                    -1536, 512, 6144, -4096, 0,  -1536, -512, 6144, 1024, 6144, -3072, -1024, -1536, 1024, -512, -6144,
                    4,     -3,  -8,   12,    -1, 1,     -4,   -3,   -2,   -6,   12,    1,     4,     0,    -2,   -8 } },
        };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(known); i++) {
                struct tdm_weights_tensor t = { .rows = 1, .cols = 64 };
                _cleanup_(freep) uint8_t *base = NULL;
                bool finite;
                float y[64];

                base = pack(TDM_TYPE_NVFP4, known[i].block, sizeof(known[i].block), &t, &finite);
                assert_true(finite);
                tdm_weights_row(base, &t, 0, y);
                for (unsigned k = 0; k < 64; k++)
                        assert_true(y[k] * 1024 == (float)known[i].values[k]);
        }
}

static void test_supported(void **state)
{
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(types); i++) {
                assert_true(tdm_weights_type_supported(types[i]));
                assert_true(tdm_weights_type_quantised(types[i]));
        }
        assert_false(tdm_weights_type_quantised(TDM_TYPE_F16));
        assert_false(tdm_weights_type_supported(15));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_values),     cmocka_unit_test(test_padding_and_size),
                cmocka_unit_test(test_not_finite), cmocka_unit_test(test_mxfp4),
                cmocka_unit_test(test_nvfp4),      cmocka_unit_test(test_supported),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
