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
#include <string.h>

#include "tests/spirv-executor/half.h"
#include "tests/spirv-executor/program.h"

#define SIDE_MAX 64u

enum units units = UNITS_NVIDIA;

float half_values[65536];

__attribute__((constructor)) static void make_half_values(void)
{
        for (uint32_t i = 0; i < 65536; i++)
                half_values[i] = tdm_f16_to_f32((uint16_t)i);
}

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

/* Of RDNA3 both halves of a subgroup must have the same. */
static bool halves_agree(const struct type *t, const struct slot *from)
{
        if (units != UNITS_RDNA3 || t->use == MATRIX_SUM)
                return true;
        for (uint32_t i = 0; i < t->n; i++)
                if (memcmp(from[i].v, from[i].v + 16, 16 * sizeof(uint32_t)) != 0)
                        return false;
        return true;
}

/* Each element at row * cols + col. */
static void gather_floats(const struct type *t, const struct slot *from, float *to)
{
        for (uint32_t k = 0; k < t->n; k++)
                for (uint32_t l = 0; l < LANES; l++)
                        to[t->places[k * LANES + l]] =
                                t->width == 16 ? half_values[from[k].v[l] & 0xffff] : tdm_bits_to_f32(from[k].v[l]);
}

static void gather_whole(const struct type *t, const struct slot *from, bool is_signed, int32_t *to)
{
        uint32_t up = is_signed ? 32 - t->width : 0;

        for (uint32_t k = 0; k < t->n; k++)
                for (uint32_t l = 0; l < LANES; l++)
                        to[t->places[k * LANES + l]] = (int32_t)(from[k].v[l] << up) >> up;
}

const char *matrix_multiply(const struct insn *i, struct slot *own, struct slot *consts)
{
        const struct type *ta = i->type_a, *tb = i->type_b, *tc = i->type;
        const struct slot *a = slot_at(i->a, own, consts), *b = slot_at(i->b, own, consts),
                          *c = slot_at(i->c, own, consts);
        const uint32_t rows = tc->rows, cols = tc->cols, depth = ta->cols;
        union {
                float f[SIDE_MAX * SIDE_MAX];
                int32_t w[SIDE_MAX * SIDE_MAX];
        } ma, mb, mc;
        struct slot *d = slot_at(i->dst, own, consts);

        if (!halves_agree(ta, a) || !halves_agree(tb, b))
                return "the halves of a subgroup have different matrices";
        if (ta->width >= 16) {
                gather_floats(ta, a, ma.f);
                gather_floats(tb, b, mb.f);
                gather_floats(tc, c, mc.f);
                for (uint32_t m = 0; m < rows; m++)
                        for (uint32_t k = 0; k < depth; k++)
                                for (uint32_t n = 0; n < cols; n += 8)
                                        for (uint32_t e = 0; e < 8; e++)
                                                mc.f[m * cols + n + e] += ma.f[m * depth + k] * mb.f[k * cols + n + e];
        } else {
                gather_whole(ta, a, i->sub & 1, ma.w);
                gather_whole(tb, b, i->sub & 2, mb.w);
                gather_whole(tc, c, false, mc.w);
                for (uint32_t m = 0; m < rows; m++)
                        for (uint32_t k = 0; k < depth; k++)
                                for (uint32_t n = 0; n < cols; n++)
                                        mc.w[m * cols + n] =
                                                (int32_t)((uint32_t)mc.w[m * cols + n] +
                                                          (uint32_t)(ma.w[m * depth + k] * mb.w[k * cols + n]));
        }
        for (uint32_t k = 0; k < tc->n; k++)
                for (uint32_t l = 0; l < LANES; l++) {
                        uint32_t at = tc->places[k * LANES + l];

                        d[k].v[l] = ta->width < 16  ? (uint32_t)mc.w[at] :
                                    tc->width == 16 ? half_of(mc.f[at]) :
                                                      tdm_f32_to_bits(mc.f[at]);
                }
        return NULL;
}
