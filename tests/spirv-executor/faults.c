/* Faults in a shader's words, each what a slip of the pen in its source would make of all of its kind:
 *   weights   two elements of a thread's fragment of A have each other's place (g, c + 8 and g + 8, c)
 *   rows      the same of B (columns c and c + 8)
 *   sums      the same of a result (a row's neighbour and the eighth output)
 *   quad      a thread takes t % 2 where it should take t % 4
 *   chunk     where a chunk of K lies: c * 32 of what should be c * 64
 *   layout    what is loaded from shared memory has rows for columns */
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
        if (strcmp(fault, "layout") == 0 && op == OP_MATRIX_LOAD) {
                other = constant_of(k, made_by(k, w[4])[1], value_of(k, w[4]) == 0);
                w[4] = other ? other : w[4];
                return other != 0;
        }
        return false;
}

bool plant_fault(uint32_t *words, size_t n, const char *fault)
{
        struct look k = { .bound = n >= 5 ? words[3] : 0 };
        bool found = false, has_matrices = false;

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
                if (id > 0 && id < k.bound && !k.by_id[id])
                        k.by_id[id] = w;
        }
        for (size_t at = 5; has_matrices && at < n && words[at] >> 16; at += words[at] >> 16)
                found |= plant(&k, words, n, words + at, fault);
        free(k.by_id);
        return found || !has_matrices;
}
