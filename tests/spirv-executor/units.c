/* Cooperative matrices: where their elements lie in a subgroup's registers, and their product.
 *
 * Where an implementation keeps an element is its own business, but kernels that fill registers themselves take it for
 * granted. Here it is as the devices have it:
 *   NVIDIA  as fragments.glsl has found it on its cards (an H100's driver proves it at each load): thread t has of A,
 *           for each eight rows, row t / 4 of them and, for each 16 bytes of columns, columns t % 4 * 2 and the next
 *           (of bytes: * 4 and the next three), columns first; of B the same with rows and columns the other way round;
 *           of sums, for each eight columns, columns t % 4 * 2 and the next, for each eight rows row t / 4. This is how
 *           PTX describes mma.m16n8k16 and its fragments, but for the order in which A's four pairs come.
 *   RDNA3   "WMMA" in AMD's description of RDNA 3's instruction set: thread t has all of row t % 16 of A, all of column
 *           t % 16 of B, so each half of a subgroup has both; of sums rows t / 16, t / 16 + 2, … of column t % 16
 *   RDNA4   the same of RDNA 4: thread t has eight neighbours of row (column) t % 16, from t / 16 * 8 on; of sums rows
 *           t / 16 * 8 … of column t % 16
 *
 * A product's sums are in f32, or in integers of 32 bits: of each element K in order, one rounding for each product and
 * one for each sum. Units round otherwise, within the bounds that kernels are held to. */
#include <stdio.h>
#include <string.h>

#include "tests/spirv-executor/half.h"
#include "tests/spirv-executor/program.h"

#define SIDE_MAX 64u

enum units units = UNITS_NVIDIA;

uint32_t matrix_length(uint32_t rows, uint32_t cols, uint32_t use, uint32_t width)
{
        if (units == UNITS_NVIDIA) {
                uint32_t k = 16 / (width / 8); /* of A's rows, B's columns */
                bool fits = use == MATRIX_A   ? rows % 8 == 0 && width < 32 && cols % (k / 2) == 0 :
                            use == MATRIX_B   ? cols % 8 == 0 && width < 32 && rows % (k / 2) == 0 :
                            use == MATRIX_SUM ? rows % 8 == 0 && cols % 8 == 0 :
                                                false;

                return fits && rows <= SIDE_MAX && cols <= SIDE_MAX ? rows * cols / LANES : 0;
        }
        if (rows != 16 || cols != 16 || use > MATRIX_SUM || (use != MATRIX_SUM && width == 32))
                return 0;
        return units == UNITS_RDNA3 && use != MATRIX_SUM ? 16 : 8;
}

void matrix_place(const struct type *t, uint32_t lane, uint32_t i, uint32_t *ret_row, uint32_t *ret_col)
{
        uint32_t per, pieces, a, b;

        if (units == UNITS_NVIDIA && t->use == MATRIX_SUM) {
                pieces = t->rows / 8;
                *ret_row = lane / 4 + i / 2 % pieces * 8;
                *ret_col = lane % 4 * 2 + i % 2 + i / (2 * pieces) * 8;
                return;
        }
        if (units == UNITS_NVIDIA) {
                per = 4 / (t->width / 8); /* neighbours along K */
                pieces = (t->use == MATRIX_A ? t->cols : t->rows) / (4 * per);
                a = lane / 4 + i / (per * pieces) * 8;
                b = lane % 4 * per + i % per + i / per % pieces * (4 * per);
        } else if (t->use == MATRIX_SUM) {
                *ret_row = units == UNITS_RDNA3 ? lane / 16 + i * 2 : lane / 16 * 8 + i;
                *ret_col = lane % 16;
                return;
        } else {
                a = lane % 16;
                b = units == UNITS_RDNA3 ? i : lane / 16 * 8 + i;
        }
        *ret_row = t->use == MATRIX_A ? a : b;
        *ret_col = t->use == MATRIX_A ? b : a;
}

static float float_at(uint32_t bits, uint32_t width)
{
        return width == 16 ? tdm_f16_to_f32((uint16_t)bits) : tdm_bits_to_f32(bits);
}

static int32_t whole_at(uint32_t bits, uint32_t width, bool is_signed)
{
        return width == 32 || !is_signed ? (int32_t)bits : (int32_t)(bits << (32 - width)) >> (32 - width);
}

/* Of RDNA3 both halves of a subgroup must have the same. */
static bool halves_agree(const struct type *t, const slot *from)
{
        if (units != UNITS_RDNA3 || t->use == MATRIX_SUM)
                return true;
        for (uint32_t i = 0; i < t->n; i++)
                if (memcmp(from[i].v, from[i].v + 16, 16 * sizeof(uint32_t)) != 0)
                        return false;
        return true;
}

const char *matrix_multiply(const struct insn *i, slot *own, slot *consts)
{
        const struct type *ta = i->type_a, *tb = i->type_b, *tc = i->type;
        const slot *a = slot_at(i->a, own, consts), *b = slot_at(i->b, own, consts), *c = slot_at(i->c, own, consts);
        bool is_float = ta->width == 16 || ta->width == 32;
        union {
                float f[SIDE_MAX][SIDE_MAX];
                int32_t w[SIDE_MAX][SIDE_MAX];
        } ma, mb, mc;
        uint32_t row, col;
        slot *d = slot_at(i->dst, own, consts);

        if (!halves_agree(ta, a) || !halves_agree(tb, b))
                return "the halves of a subgroup have different matrices";
        for (uint32_t k = 0; k < ta->n; k++)
                for (uint32_t l = 0; l < LANES; l++) {
                        matrix_place(ta, l, k, &row, &col);
                        if (is_float)
                                ma.f[row][col] = float_at(a[k].v[l], ta->width);
                        else
                                ma.w[row][col] = whole_at(a[k].v[l], ta->width, i->sub & 1);
                }
        for (uint32_t k = 0; k < tb->n; k++)
                for (uint32_t l = 0; l < LANES; l++) {
                        matrix_place(tb, l, k, &row, &col);
                        if (is_float)
                                mb.f[row][col] = float_at(b[k].v[l], tb->width);
                        else
                                mb.w[row][col] = whole_at(b[k].v[l], tb->width, i->sub & 2);
                }
        for (uint32_t k = 0; k < tc->n; k++)
                for (uint32_t l = 0; l < LANES; l++) {
                        matrix_place(tc, l, k, &row, &col);
                        if (is_float)
                                mc.f[row][col] = float_at(c[k].v[l], tc->width);
                        else
                                mc.w[row][col] = (int32_t)c[k].v[l];
                }
        for (uint32_t m = 0; m < tc->rows; m++)
                for (uint32_t k = 0; k < ta->cols; k++) {
                        if (is_float)
                                for (uint32_t n = 0; n < tc->cols; n++)
                                        mc.f[m][n] += ma.f[m][k] * mb.f[k][n];
                        else
                                for (uint32_t n = 0; n < tc->cols; n++)
                                        mc.w[m][n] = (int32_t)((uint32_t)mc.w[m][n] + (uint32_t)(ma.w[m][k] * mb.w[k][n]));
                }
        for (uint32_t k = 0; k < tc->n; k++)
                for (uint32_t l = 0; l < LANES; l++) {
                        matrix_place(tc, l, k, &row, &col);
                        d[k].v[l] = !is_float        ? (uint32_t)mc.w[row][col] :
                                    tc->width == 16 ? half_of(mc.f[row][col]) :
                                                      tdm_f32_to_bits(mc.f[row][col]);
                }
        return NULL;
}
