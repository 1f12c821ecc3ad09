/* Faults in a shader's words, each what a slip of the pen in its source would make of all of its kind:
 *   weights   two elements of a thread's fragment of A have each other's place (g, c + 8 and g + 8, c)
 *   rows      the same of B (columns c and c + 8)
 *   sums      the same of a result (a row's neighbour and the eighth output)
 *   quad      a thread takes t % 2 where it should take t % 4
 *   chunk     where a chunk of K lies: c * 32 of what should be c * 64
 *   layout    what is loaded from shared memory has rows for columns
 * In matmul-int8-any.comp, whose matrices all come from shared memory and go there:
 *   fragment  the pieces of weights along K have each other's place
 *   offset    each piece of rows along K is the first one
 *   scales    the weights' scales and minima are those of the first block that is there
 *   row-scales  the same of the rows'
 *   result    a result is stored with rows for columns
 * With "attend:" before it only in attention, whose shaders are those that have exponentials. */
#include <stdlib.h>
#include <string.h>

#include "tests/spirv-executor/faults.h"
#include "tests/spirv-executor/spirv.h"

struct look {
        uint32_t bound;
        const uint32_t **by_id; /* the instruction that makes it */
};

static const uint32_t *made_by(const struct look *k, uint32_t id)
{
        static const uint32_t nothing[8];

        return id < k->bound && k->by_id[id] ? k->by_id[id] : nothing;
}

static uint32_t op_of(const uint32_t *w)
{
        return w[0] & 0xffff;
}

/* A constant's value; -1: it is none. */
static int64_t value_of(const struct look *k, uint32_t id)
{
        const uint32_t *w = made_by(k, id);

        return op_of(w) == OP_CONSTANT ? (int64_t)w[3] : -1;
}

/* The matrix type that `type` is or is an array of; NULL: none. */
static const uint32_t *matrix_in(const struct look *k, uint32_t type)
{
        const uint32_t *w = made_by(k, type);

        while (op_of(w) == OP_TYPE_ARRAY)
                w = made_by(k, w[2]);
        return op_of(w) == OP_TYPE_MATRIX ? w : NULL;
}

static uint32_t constant_of(const struct look *k, uint32_t type, uint32_t value)
{
        for (uint32_t id = 0; id < k->bound; id++) {
                const uint32_t *w = made_by(k, id);

                if (op_of(w) == OP_CONSTANT && w[1] == type && w[3] == value)
                        return id;
        }
        return 0;
}

/* Elements a and b of all matrices of one use change places. */
static bool swap_elements(const struct look *k, uint32_t *w, uint32_t use, uint32_t a, uint32_t b)
{
        uint32_t op = op_of(w), n = w[0] >> 16, other;
        const uint32_t *base, *pointer, *matrix, *result;
        int64_t index;

        if (op == OP_COMPOSITE_EXTRACT) {
                matrix = matrix_in(k, made_by(k, w[3])[1]);
                if (!matrix || op_of(made_by(k, made_by(k, w[3])[1])) != OP_TYPE_MATRIX ||
                    value_of(k, matrix[6]) != use || (w[4] != a && w[4] != b))
                        return false;
                w[4] = w[4] == a ? b : a;
                return true;
        }
        if (op != OP_ACCESS_CHAIN || n < 5)
                return false;
        base = made_by(k, w[3]);
        pointer = made_by(k, base[1]);
        result = made_by(k, w[1]);
        matrix = op_of(pointer) == OP_TYPE_POINTER ? matrix_in(k, pointer[3]) : NULL;
        index = value_of(k, w[n - 1]);
        if (!matrix || value_of(k, matrix[6]) != use || result[3] != matrix[2] || (index != a && index != b))
                return false;
        other = constant_of(k, made_by(k, w[n - 1])[1], index == a ? b : a);
        w[n - 1] = other ? other : w[n - 1];
        return other != 0;
}

/* K / 16: by how much a piece of K lies behind the one before it, of what has 16 bytes a place. */
static bool is_step(const struct look *k, uint32_t id)
{
        const uint32_t *w = made_by(k, id);

        return op_of(w) == OP_SPEC_CONSTANT_OP && w[3] == OP_U_DIV && value_of(k, w[5]) == 16;
}

/* Which of the blocks that are there: a rest, by a mask. */
static bool is_block(const struct look *k, uint32_t id)
{
        return op_of(made_by(k, id)) == OP_BIT_AND;
}

/* In an index that is a sum: the product with a factor of which `is` holds; NULL: there is none. */
static const uint32_t *product_in(const struct look *k, uint32_t index, bool (*is)(const struct look *, uint32_t))
{
        const uint32_t *w = made_by(k, index), *found;

        if (op_of(w) == OP_I_MUL)
                return is(k, w[3]) || is(k, w[4]) ? w : NULL;
        if (op_of(w) != OP_I_ADD)
                return NULL;
        found = product_in(k, w[3], is);
        return found ? found : product_in(k, w[4], is);
}

/* Where a matrix is loaded from: of those of one use and layout. */
static bool misplace(const struct look *k, uint32_t *words, const uint32_t *load, const char *fault)
{
        bool fragment = strcmp(fault, "fragment") == 0, offset = strcmp(fault, "offset") == 0,
             scales = strcmp(fault, "scales") == 0;
        const uint32_t *matrix = made_by(k, load[1]), *from = made_by(k, load[3]), *product;
        uint32_t use = fragment ? MATRIX_B : offset ? MATRIX_A : MATRIX_SUM, zero, *w;
        bool (*is)(const struct look *, uint32_t) = use == MATRIX_SUM ? is_block : is_step;

        if (op_of(matrix) != OP_TYPE_MATRIX || value_of(k, matrix[6]) != use || op_of(from) != OP_ACCESS_CHAIN ||
            (use == MATRIX_SUM && value_of(k, load[4]) != !scales))
                return false;
        product = product_in(k, from[(from[0] >> 16) - 1], is);
        if (!product)
                return false;
        w = words + (product - words);
        if (fragment) { /* k ^ 1, where K is 16 */
                w[0] = (w[0] & ~0xffffu) | OP_BIT_XOR;
                return true;
        }
        zero = constant_of(k, w[1], 0);
        w[is(k, w[3]) ? 3 : 4] = zero;
        return zero != 0;
}

static bool turn(const struct look *k, uint32_t *layout)
{
        uint32_t other = constant_of(k, made_by(k, *layout)[1], value_of(k, *layout) == 0);

        *layout = other ? other : *layout;
        return other != 0;
}

static bool is_lane(const struct look *k, const uint32_t *words, size_t n, uint32_t id)
{
        const uint32_t *w = made_by(k, id);

        if (op_of(w) != OP_LOAD)
                return false;
        for (size_t at = 5; at < n; at += words[at] >> 16)
                if (op_of(words + at) == OP_DECORATE && words[at + 1] == w[3] && words[at + 2] == DECORATION_BUILT_IN)
                        return words[at + 3] == BUILT_IN_SUBGROUP_LANE;
        return false;
}

static bool plant(const struct look *k, uint32_t *words, size_t n, uint32_t *w, const char *fault)
{
        uint32_t op = op_of(w), other;

        if (strcmp(fault, "weights") == 0)
                return swap_elements(k, w, MATRIX_A, 2, 4);
        if (strcmp(fault, "rows") == 0)
                return swap_elements(k, w, MATRIX_B, 0, 2);
        if (strcmp(fault, "sums") == 0)
                return swap_elements(k, w, MATRIX_SUM, 1, 2);
        if (strcmp(fault, "quad") == 0 && op == OP_U_MOD && value_of(k, w[4]) == 4 && is_lane(k, words, n, w[3])) {
                other = constant_of(k, made_by(k, w[4])[1], 2);
                w[4] = other ? other : w[4];
                return other != 0;
        }
        if (strcmp(fault, "chunk") == 0 && op == OP_I_MUL && value_of(k, w[4]) == 64) {
                other = constant_of(k, made_by(k, w[4])[1], 32);
                w[4] = other ? other : w[4];
                return other != 0;
        }
        if (strcmp(fault, "layout") == 0)
                return op == OP_MATRIX_LOAD && turn(k, &w[4]);
        if (strcmp(fault, "result") == 0)
                return op == OP_MATRIX_STORE && turn(k, &w[3]);
        if (op == OP_MATRIX_LOAD && (strcmp(fault, "fragment") == 0 || strcmp(fault, "offset") == 0 ||
                                     strcmp(fault, "scales") == 0 || strcmp(fault, "row-scales") == 0))
                return misplace(k, words, w, fault);
        return false;
}

bool plant_fault(uint32_t *words, size_t n, const char *fault)
{
        struct look k = { .bound = n >= 5 ? words[3] : 0 };
        bool found = false, has_matrices = false, has_exponentials = false, attends = strncmp(fault, "attend:", 7) == 0;

        if (k.bound == 0 || k.bound > 1u << 20)
                return false;
        k.by_id = calloc(k.bound, sizeof(*k.by_id));
        if (!k.by_id)
                abort();
        for (size_t at = 5; at < n && words[at] >> 16; at += words[at] >> 16) {
                const uint32_t *w = words + at;
                uint32_t op = op_of(w), id = op == OP_TYPE_MATRIX || (op >= OP_TYPE_VOID && op <= OP_TYPE_FUNCTION) ?
                                                     w[1] :
                                             op == OP_STORE || op == OP_DECORATE || op == OP_MEMBER_DECORATE ||
                                                             op < OP_CONSTANT_TRUE || w[0] >> 16 < 3 ?
                                                     0 :
                                                     w[2];

                has_matrices |= op == OP_TYPE_MATRIX;
                has_exponentials |= op == OP_EXT_INST && w[4] == GLSL_EXP2;
                if (id > 0 && id < k.bound && !k.by_id[id])
                        k.by_id[id] = w;
        }
        has_matrices = has_matrices && (!attends || has_exponentials);
        fault += attends ? 7 : 0;
        for (size_t at = 5; has_matrices && at < n && words[at] >> 16; at += words[at] >> 16)
                found |= plant(&k, words, n, words + at, fault);
        free(k.by_id);
        return found || !has_matrices;
}
