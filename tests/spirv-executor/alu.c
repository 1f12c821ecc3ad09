/* Instructions that only compute: each lane by itself. Floats are rounded to nearest after each operation; an fma is
 * rounded once, f16's too. */
#include <math.h>

#include "tests/spirv-executor/half.h"
#include "tests/spirv-executor/program.h"

typedef float __attribute__((may_alias)) f32_lanes;

/* For each of the mask's lanes of each scalar: all lanes is what nearly always is meant. */
#define EACH_LANE(...)                                                                                                 \
        if (mask == ALL_LANES) {                                                                                       \
                for (uint32_t l = 0; l < LANES; l++) {                                                                 \
                        __VA_ARGS__                                                                                    \
                }                                                                                                      \
        } else {                                                                                                       \
                for (uint32_t l = 0; l < LANES; l++)                                                                   \
                        if (mask >> l & 1) {                                                                           \
                                __VA_ARGS__                                                                            \
                        }                                                                                              \
        }

/* d, a, b, c: the slots of the result's and the operands' scalars. Of 64 bits two each. */
#define STEP(width) ((width) == 64 ? 2u : 1u)

static const struct slot zeros;

static const struct slot *operand(ref at, struct slot *own, struct slot *consts)
{
        return at == NO_REF ? &zeros : slot_at(at, own, consts);
}

static inline uint64_t long_of(const struct slot *a, uint32_t l)
{
        return a[0].v[l] | (uint64_t)a[1].v[l] << 32;
}

static inline void put_long(struct slot *d, uint32_t l, uint64_t x)
{
        d[0].v[l] = (uint32_t)x;
        d[1].v[l] = (uint32_t)(x >> 32);
}

static inline uint32_t kept(uint32_t width)
{
        return width >= 32 ? UINT32_MAX : (1u << width) - 1;
}

static inline int32_t signed_of(uint32_t x, uint32_t width)
{
        return (int32_t)(x << (32 - width)) >> (32 - width);
}

static inline float float_of(uint32_t bits, uint32_t width)
{
        return width == 16 ? half_values[bits & 0xffff] : tdm_bits_to_f32(bits);
}

static inline uint32_t bits_of(float x, uint32_t width)
{
        return width == 16 ? half_of(x) : tdm_f32_to_bits(x);
}

/* ---- integers ---- */

#define WORDS(expression)                                                                                              \
        for (uint32_t k = 0; k < i->n; k++, d += 1, a += 1, b += b_step) {                                             \
                EACH_LANE(uint32_t x = a->v[l], y = b->v[l]; (void)y; d->v[l] = (expression)&keeps;)                   \
        }                                                                                                              \
        return true;
#define LONGS(expression)                                                                                              \
        for (uint32_t k = 0; k < i->n; k++, d += 2, a += 2, b += b_step) {                                             \
                EACH_LANE(uint64_t x = long_of(a, l), y = b_step == 2 ? long_of(b, l) : b->v[l]; (void)y;              \
                          put_long(d, l, expression);)                                                                 \
        }                                                                                                              \
        return true;

/* Twice: the loops over lanes are what a wider vector unit is for. */
#if defined(__x86_64__) && !defined(TANDEM_SANITIZED)
#define FOR_VECTORS __attribute__((target_clones("default", "avx2")))
#else
#define FOR_VECTORS
#endif

static bool longs(const struct insn *i, struct slot *own, struct slot *consts, uint32_t mask)
{
        struct slot *d = slot_at(i->dst, own, consts);
        const struct slot *a = operand(i->a, own, consts), *b = operand(i->b, own, consts);
        uint32_t b_step = i->b == NO_REF ? 0 : i->sub != 0 && i->sub < 64 ? 1 : 2;

        switch (i->op) {
        case OP_S_NEGATE:
                LONGS(-x)
        case OP_I_ADD:
                LONGS(x + y)
        case OP_I_SUB:
                LONGS(x - y)
        case OP_I_MUL:
                LONGS(x * y)
        case OP_U_DIV:
                LONGS(y ? x / y : 0)
        case OP_U_MOD:
                LONGS(y ? x % y : 0)
        case OP_SHIFT_LEFT:
                LONGS(x << (y & 63))
        case OP_SHIFT_RIGHT_LOGICAL:
                LONGS(x >> (y & 63))
        case OP_SHIFT_RIGHT_ARITHMETIC:
                LONGS((uint64_t)((int64_t)x >> (y & 63)))
        case OP_BIT_OR:
                LONGS(x | y)
        case OP_BIT_XOR:
                LONGS(x ^ y)
        case OP_BIT_AND:
                LONGS(x & y)
        case OP_BIT_NOT:
                LONGS(~x)
        default:
                return false;
        }
}

static uint32_t dot(uint32_t x, uint32_t y)
{
        int32_t sum = 0;

        for (unsigned k = 0; k < 32; k += 8)
                sum += (int8_t)(x >> k) * (int8_t)(y >> k);
        return (uint32_t)sum;
}

FOR_VECTORS static bool words(const struct insn *i, struct slot *own, struct slot *consts, uint32_t mask)
{
        struct slot *d = slot_at(i->dst, own, consts);
        const struct slot *a = operand(i->a, own, consts), *b = i->b == NO_REF ? a : operand(i->b, own, consts);
        const uint32_t width = i->width, keeps = kept(width), b_step = i->op == OP_MATRIX_TIMES_SCALAR ? 0 : 1;

        switch (i->op) {
        case OP_S_NEGATE:
                WORDS(0u - x)
        case OP_I_ADD:
                WORDS(x + y)
        case OP_I_SUB:
                WORDS(x - y)
        case OP_I_MUL:
        case OP_MATRIX_TIMES_SCALAR: /* of integers */
                WORDS(x * y)
        case OP_U_DIV:
                WORDS(y ? x / y : 0)
        case OP_U_MOD:
                WORDS(y ? x % y : 0)
        case OP_S_DIV:
                WORDS((uint32_t)(y ? (int64_t)signed_of(x, width) / signed_of(y, width) : 0))
        case OP_S_REM:
                WORDS((uint32_t)(y ? (int64_t)signed_of(x, width) % signed_of(y, width) : 0))
        case OP_SHIFT_LEFT:
                WORDS(x << (y & 31))
        case OP_SHIFT_RIGHT_LOGICAL:
                WORDS(x >> (y & 31))
        case OP_SHIFT_RIGHT_ARITHMETIC:
                WORDS((uint32_t)(signed_of(x, width) >> (y & 31)))
        case OP_BIT_OR:
        case OP_LOGICAL_OR:
                WORDS(x | y)
        case OP_BIT_XOR:
        case OP_LOGICAL_NOT_EQUAL:
                WORDS(x ^ y)
        case OP_BIT_AND:
        case OP_LOGICAL_AND:
                WORDS(x & y)
        case OP_LOGICAL_EQUAL:
                WORDS(x == y)
        case OP_LOGICAL_NOT:
                WORDS(x ^ 1)
        case OP_BIT_NOT:
                WORDS(~x)
        case OP_BIT_COUNT:
                WORDS((uint32_t)__builtin_popcount(x))
        case OP_S_DOT:
                WORDS(dot(x, y))
        default:
                return false;
        }
}

/* ---- comparisons: a bool of each ---- */

#define COMPARED(expression)                                                                                           \
        if (width == 64) {                                                                                             \
                for (uint32_t k = 0; k < i->n; k++, d += 1, a += 2, b += 2) {                                          \
                        EACH_LANE(uint64_t x = long_of(a, l), y = long_of(b, l);                                       \
                                  int64_t sx = (int64_t)x, sy = (int64_t)y; (void)sx; (void)sy; (void)x; (void)y;      \
                                  d->v[l] = (expression);)                                                             \
                }                                                                                                      \
        } else {                                                                                                       \
                for (uint32_t k = 0; k < i->n; k++, d += 1, a += 1, b += 1) {                                          \
                        EACH_LANE(uint32_t x = a->v[l], y = b->v[l];                                                   \
                                  int32_t sx = signed_of(x, width), sy = signed_of(y, width); (void)sx; (void)sy;      \
                                  (void)x; (void)y; d->v[l] = (expression);)                                           \
                }                                                                                                      \
        }                                                                                                              \
        return true;
#define COMPARED_FLOATS(expression)                                                                                    \
        for (uint32_t k = 0; k < i->n; k++, d += 1, a += 1, b += 1) {                                                  \
                EACH_LANE(float x = float_of(a->v[l], width), y = float_of(b->v[l], width); (void)y;                   \
                          d->v[l] = (expression);)                                                                     \
        }                                                                                                              \
        return true;

FOR_VECTORS static bool comparisons(const struct insn *i, struct slot *own, struct slot *consts, uint32_t mask)
{
        struct slot *d = slot_at(i->dst, own, consts);
        const struct slot *a = operand(i->a, own, consts), *b = i->b == NO_REF ? a : operand(i->b, own, consts);
        const uint32_t width = i->from;

        switch (i->op) {
        case OP_I_EQUAL:
                COMPARED(x == y)
        case OP_I_NOT_EQUAL:
                COMPARED(x != y)
        case OP_U_GREATER:
                COMPARED(x > y)
        case OP_U_GREATER_EQUAL:
                COMPARED(x >= y)
        case OP_U_LESS:
                COMPARED(x < y)
        case OP_U_LESS_EQUAL:
                COMPARED(x <= y)
        case OP_S_GREATER:
                COMPARED(sx > sy)
        case OP_S_GREATER_EQUAL:
                COMPARED(sx >= sy)
        case OP_S_LESS:
                COMPARED(sx < sy)
        case OP_S_LESS_EQUAL:
                COMPARED(sx <= sy)
        case OP_F_EQUAL:
                COMPARED_FLOATS(x == y)
        case OP_F_NOT_EQUAL:
                COMPARED_FLOATS(x < y || x > y)
        case OP_F_UNORD_NOT_EQUAL:
                COMPARED_FLOATS(x != y)
        case OP_F_UNORD_EQUAL:
                COMPARED_FLOATS(!(x < y || x > y))
        case OP_F_LESS:
                COMPARED_FLOATS(x < y)
        case OP_F_UNORD_LESS:
                COMPARED_FLOATS(!(x >= y))
        case OP_F_GREATER:
                COMPARED_FLOATS(x > y)
        case OP_F_UNORD_GREATER:
                COMPARED_FLOATS(!(x <= y))
        case OP_F_LESS_EQUAL:
                COMPARED_FLOATS(x <= y)
        case OP_F_UNORD_LESS_EQUAL:
                COMPARED_FLOATS(!(x > y))
        case OP_F_GREATER_EQUAL:
                COMPARED_FLOATS(x >= y)
        case OP_F_UNORD_GREATER_EQUAL:
                COMPARED_FLOATS(!(x < y))
        case OP_IS_NAN:
                COMPARED_FLOATS(x != x)
        case OP_IS_INF:
                COMPARED_FLOATS(isinf(x) != 0)
        default:
                return false;
        }
}

/* ---- floats ---- */

#define FLOATS(expression)                                                                                             \
        for (uint32_t k = 0; k < i->n; k++, d += 1, a += 1, b += b_step, c += 1) {                                     \
                if (width == 32) {                                                                                     \
                        EACH_LANE(float x = ((const f32_lanes *)a)[l], y = ((const f32_lanes *)b)[l],                  \
                                  z = ((const f32_lanes *)c)[l];                                                       \
                                  (void)x; (void)y; (void)z; ((f32_lanes *)d)[l] = (expression);)                      \
                } else {                                                                                               \
                        EACH_LANE(float x = float_of(a->v[l], 16), y = float_of(b->v[l], 16),                          \
                                  z = float_of(c->v[l], 16);                                                           \
                                  (void)x; (void)y; (void)z; d->v[l] = half_of(expression);)                           \
                }                                                                                                      \
        }                                                                                                              \
        return true;

FOR_VECTORS static bool floats(const struct insn *i, struct slot *own, struct slot *consts, uint32_t mask)
{
        struct slot *d = slot_at(i->dst, own, consts);
        const struct slot *a = operand(i->a, own, consts), *b = i->b == NO_REF ? a : operand(i->b, own, consts), *c = a;
        const uint32_t width = i->width,
                       b_step = i->op == OP_VECTOR_TIMES_SCALAR || i->op == OP_MATRIX_TIMES_SCALAR ? 0 : 1;

        switch (i->op) {
        case OP_F_NEGATE:
                for (uint32_t k = 0; k < i->n; k++)
                        EACH_LANE(d[k].v[l] = a[k].v[l] ^ (width == 16 ? 0x8000u : 0x80000000u);)
                return true;
        case OP_F_ADD:
                FLOATS(x + y)
        case OP_F_SUB:
                FLOATS(x - y)
        case OP_F_MUL:
        case OP_VECTOR_TIMES_SCALAR:
        case OP_MATRIX_TIMES_SCALAR:
                FLOATS(x * y)
        case OP_F_DIV:
                FLOATS(x / y)
        default:
                return false;
        }
}

static float rounded(float x, uint32_t how)
{
        return how == GLSL_TRUNC ? truncf(x) : how == GLSL_FLOOR ? floorf(x) : how == GLSL_CEIL ? ceilf(x) : rintf(x);
}

static float function(float x, uint32_t which)
{
        switch (which) {
        case GLSL_SIN:
                return sinf(x);
        case GLSL_COS:
                return cosf(x);
        case GLSL_TANH:
                return tanhf(x);
        case GLSL_EXP:
                return expf(x);
        case GLSL_LOG:
                return logf(x);
        case GLSL_EXP2:
                return exp2f(x);
        case GLSL_LOG2:
                return log2f(x);
        case GLSL_SQRT:
                return sqrtf(x);
        default:
                return 1 / sqrtf(x);
        }
}

static float fma_once(float x, float y, float z)
{
        return fmaf(x, y, z);
}

#define INTEGERS(expression)                                                                                           \
        for (uint32_t k = 0; k < i->n; k++, d += 1, a += 1, b += 1, c += 1) {                                          \
                EACH_LANE(uint32_t x = a->v[l], y = b->v[l], z = c->v[l];                                              \
                          int32_t sx = signed_of(x, width), sy = signed_of(y, width), sz = signed_of(z, width);        \
                          (void)y; (void)z; (void)sx; (void)sy; (void)sz; d->v[l] = (uint32_t)(expression);)           \
        }                                                                                                              \
        return true;
#define MIN(x, y) ((y) < (x) ? (y) : (x))
#define MAX(x, y) ((x) < (y) ? (y) : (x))

static bool glsl(const struct insn *i, struct slot *own, struct slot *consts, uint32_t mask)
{
        struct slot *d = slot_at(i->dst, own, consts);
        const struct slot *a = operand(i->a, own, consts), *b = i->b == NO_REF ? a : operand(i->b, own, consts),
                          *c = i->c == NO_REF ? a : operand(i->c, own, consts);
        const uint32_t width = i->width, b_step = 1, which = i->sub;

        switch (which) {
        case GLSL_PACK_HALF:
                EACH_LANE(d->v[l] = half_of(tdm_bits_to_f32(a->v[l])) | half_of(tdm_bits_to_f32(a[1].v[l])) << 16;)
                return true;
        case GLSL_UNPACK_HALF:
                EACH_LANE(uint32_t x = a->v[l]; d->v[l] = tdm_f32_to_bits(float_of(x & 0xffff, 16));
                          d[1].v[l] = tdm_f32_to_bits(float_of(x >> 16, 16));)
                return true;
        case GLSL_FMA:
                if (width == 16) {
                        for (uint32_t k = 0; k < i->n; k++)
                                EACH_LANE(d[k].v[l] = half_of_double((double)float_of(a[k].v[l], 16) *
                                                                             (double)float_of(b[k].v[l], 16) +
                                                                     (double)float_of(c[k].v[l], 16));)
                        return true;
                }
                FLOATS(fma_once(x, y, z))
        case GLSL_F_ABS:
                FLOATS(fabsf(x))
        case GLSL_ROUND:
        case GLSL_ROUND_EVEN:
        case GLSL_TRUNC:
        case GLSL_FLOOR:
        case GLSL_CEIL:
                FLOATS(rounded(x, which))
        case GLSL_SIN:
        case GLSL_COS:
        case GLSL_TANH:
        case GLSL_EXP:
        case GLSL_LOG:
        case GLSL_EXP2:
        case GLSL_LOG2:
        case GLSL_SQRT:
        case GLSL_INVERSE_SQRT:
                FLOATS(function(x, which))
        case GLSL_POW:
                FLOATS(powf(x, y))
        case GLSL_F_MIN:
                FLOATS(MIN(x, y))
        case GLSL_F_MAX:
                FLOATS(MAX(x, y))
        case GLSL_F_CLAMP:
                FLOATS(MIN(MAX(x, y), z))
        case GLSL_F_MIX:
                FLOATS(x * (1 - z) + y * z)
        case GLSL_LDEXP:
                for (uint32_t k = 0; k < i->n; k++)
                        EACH_LANE(d[k].v[l] = bits_of(ldexpf(float_of(a[k].v[l], width), (int32_t)b[k].v[l]), width);)
                return true;
        default:
                break;
        }
        if (width == 64)
                return false;
        switch (which) {
        case GLSL_S_ABS:
                INTEGERS((uint32_t)(sx < 0 ? 0u - (uint32_t)sx : (uint32_t)sx) & kept(width))
        case GLSL_U_MIN:
                INTEGERS(MIN(x, y))
        case GLSL_U_MAX:
                INTEGERS(MAX(x, y))
        case GLSL_U_CLAMP:
                INTEGERS(MIN(MAX(x, y), z))
        case GLSL_S_MIN:
                INTEGERS((uint32_t)MIN(sx, sy) & kept(width))
        case GLSL_S_MAX:
                INTEGERS((uint32_t)MAX(sx, sy) & kept(width))
        case GLSL_S_CLAMP:
                INTEGERS((uint32_t)MIN(MAX(sx, sy), sz) & kept(width))
        case GLSL_FIND_I_LSB:
                INTEGERS(x ? __builtin_ctz(x) : -1)
        case GLSL_FIND_U_MSB:
                INTEGERS(x ? 31 - __builtin_clz(x) : -1)
        default:
                return false;
        }
}

/* ---- conversions ---- */

static uint64_t whole(const struct slot *a, uint32_t l, uint32_t width)
{
        return width == 64 ? long_of(a, l) : a->v[l];
}

static void put_whole(struct slot *d, uint32_t l, uint32_t width, uint64_t x)
{
        if (width == 64)
                put_long(d, l, x);
        else
                d->v[l] = (uint32_t)x & kept(width);
}

/* What does not fit is undefined in SPIR-V: the nearest that does. */
static int64_t truncated(float x)
{
        return x != x ? 0 : x >= 0x1p63f ? INT64_MAX : x <= -0x1p63f ? INT64_MIN : (int64_t)x;
}

static uint64_t signed_whole(uint64_t x, uint32_t width)
{
        return width == 64 ? x : (uint64_t)(int64_t)signed_of((uint32_t)x, width);
}

FOR_VECTORS static bool conversions(const struct insn *i, struct slot *own, struct slot *consts, uint32_t mask)
{
        struct slot *d = slot_at(i->dst, own, consts);
        const struct slot *a = operand(i->a, own, consts);
        const uint32_t to = i->width, from = i->from, d_step = STEP(to), a_step = STEP(from);

        for (uint32_t k = 0; k < i->n; k++, d += d_step, a += a_step)
                switch (i->op) {
                case OP_CONVERT_F_TO_U:
                case OP_CONVERT_F_TO_S:
                        EACH_LANE(put_whole(d, l, to, (uint64_t)truncated(float_of(a->v[l], from)));)
                        break;
                case OP_CONVERT_S_TO_F:
                        EACH_LANE(d->v[l] = bits_of((float)(int64_t)signed_whole(whole(a, l, from), from), to);)
                        break;
                case OP_CONVERT_U_TO_F:
                        EACH_LANE(d->v[l] = bits_of((float)whole(a, l, from), to);)
                        break;
                case OP_U_CONVERT:
                        EACH_LANE(put_whole(d, l, to, whole(a, l, from));)
                        break;
                case OP_S_CONVERT:
                        EACH_LANE(put_whole(d, l, to, signed_whole(whole(a, l, from), from));)
                        break;
                case OP_F_CONVERT:
                        EACH_LANE(d->v[l] = bits_of(float_of(a->v[l], from), to);)
                        break;
                default:
                        return false;
                }
        return true;
}

/* Between scalars of different sizes: as they would lie in memory. */
FOR_VECTORS static void bitcast(const struct insn *i, struct slot *own, struct slot *consts, uint32_t mask)
{
        struct slot *d = slot_at(i->dst, own, consts);
        const struct slot *a = operand(i->a, own, consts);
        const uint32_t to = i->width, from = i->from, n_from = i->n_words;

        if (from == 32 && to == 16) { /* these two are what nearly all are */
                for (uint32_t k = 0; k < n_from; k++)
                        EACH_LANE(d[k * 2].v[l] = a[k].v[l] & 0xffff; d[k * 2 + 1].v[l] = a[k].v[l] >> 16;)
                return;
        }
        if (from == 16 && to == 32) {
                for (uint32_t k = 0; k < i->n; k++)
                        EACH_LANE(d[k].v[l] = a[k * 2].v[l] | a[k * 2 + 1].v[l] << 16;)
                return;
        }
        EACH_LANE(
                uint8_t bytes[64] = { 0 }; for (uint32_t k = 0; k < n_from; k++) {
                        uint64_t x = whole(a + k * STEP(from), l, from);

                        memcpy(bytes + k * (from / 8), &x, from / 8);
                } for (uint32_t k = 0; k < i->n; k++) {
                        uint64_t x = 0;

                        memcpy(&x, bytes + k * (to / 8), to / 8);
                        put_whole(d + k * STEP(to), l, to, x);
                })
}

/* ---- the rest ---- */

FOR_VECTORS static void select_one(const struct insn *i, struct slot *own, struct slot *consts, uint32_t mask)
{
        const struct slot *a = operand(i->a, own, consts), *b = operand(i->b, own, consts),
                          *c = operand(i->c, own, consts);
        struct slot *d = slot_at(i->dst, own, consts);
        const uint32_t step = STEP(i->width), a_step = i->sub ? 0 : 1;

        for (uint32_t k = 0; k < i->n; k++, d += step, a += a_step, b += step, c += step)
                if (step == 1) {
                        EACH_LANE(d->v[l] = a->v[l] ? b->v[l] : c->v[l];)
                } else {
                        EACH_LANE(put_long(d, l, a->v[l] ? long_of(b, l) : long_of(c, l));)
                }
}

bool compute(const struct insn *i, struct slot *own, struct slot *consts, uint32_t mask)
{
        struct slot *d;
        const struct slot *a;

        switch (i->op) {
        case OP_SELECT:
                select_one(i, own, consts, mask);
                return true;
        case OP_BITCAST:
                bitcast(i, own, consts, mask);
                return true;
        case OP_ANY:
        case OP_ALL:
                d = slot_at(i->dst, own, consts);
                a = operand(i->a, own, consts);
                EACH_LANE(uint32_t n = 0; for (uint32_t k = 0; k < i->n_words; k++) n += a[k].v[l];
                          d->v[l] = i->op == OP_ANY ? n != 0 : n == i->n_words;)
                return true;
        case OP_EXT_INST:
                return glsl(i, own, consts, mask);
        default:
                break;
        }
        if (i->op >= OP_I_EQUAL && i->op <= OP_F_UNORD_GREATER_EQUAL)
                return comparisons(i, own, consts, mask);
        if (i->op == OP_IS_NAN || i->op == OP_IS_INF)
                return comparisons(i, own, consts, mask);
        if (i->op >= OP_CONVERT_F_TO_U && i->op <= OP_F_CONVERT)
                return conversions(i, own, consts, mask);
        if (!(i->op == OP_MATRIX_TIMES_SCALAR && i->sub) && floats(i, own, consts, mask))
                return true;
        return i->width == 64 ? longs(i, own, consts, mask) : words(i, own, consts, mask);
}
