/* Types: how many slots their values have, and where their scalars lie in memory. */
#include <stdlib.h>
#include <string.h>

#include "tests/spirv-executor/program.h"

#define ALIGN_UP(x, to) (((x) + (to)-1) / (to) * (to))

const struct type *scalar_of(struct making *m, const struct type *type)
{
        while (type->kind == KIND_VECTOR || type->kind == KIND_MATRIX)
                type = type_of(m, type->element);
        return type;
}

static void scalar(struct type *t, enum kind kind, uint32_t width, struct program *program)
{
        t->kind = kind;
        t->width = width;
        t->n = 1;
        t->n_slots = width == 64 ? 2 : 1;
        t->bytes = t->align = width / 8;
        t->leaves = keep(program, sizeof(*t->leaves));
        t->leaves[0] = (struct leaf){ 0, 0, (uint8_t)width };
        t->n_leaves = 1;
}

/* Adds those of a part. */
static bool add_leaves(struct making *m, struct type *t, const struct type *part, uint32_t at)
{
        struct leaf *leaves = keep(m->program, (t->n_leaves + part->n_leaves + 1) * sizeof(*leaves));

        if (t->n_slots + part->n_slots > 4096)
                return refuse(m, "a value has more than 4096 slots");
        if (t->n_leaves)
                memcpy(leaves, t->leaves, t->n_leaves * sizeof(*leaves));
        for (uint32_t i = 0; i < part->n_leaves; i++)
                leaves[t->n_leaves + i] =
                        (struct leaf){ at + part->leaves[i].at, (uint16_t)(t->n_slots + part->leaves[i].slot),
                                       part->leaves[i].width };
        t->leaves = leaves;
        t->n_leaves += part->n_leaves;
        t->n_slots += part->n_slots;
        return true;
}

static bool make_array(struct making *m, struct type *t, uint32_t id, const uint32_t *w, bool has_length)
{
        const struct type *element = type_of(m, w[2]);
        const struct id *length = has_length ? id_of(m, w[3]) : NULL;

        if (length && (!length->known || length->value == 0 || length->value > 1u << 20))
                return refuse(m, "an array's length is no constant, or too large");
        t->kind = KIND_ARRAY;
        t->element = w[2];
        t->n = length ? (uint32_t)length->value : 0;
        t->align = element->align;
        t->stride =
                m->ids[id].stride ? m->ids[id].stride : ALIGN_UP(element->bytes, element->align ? element->align : 1);
        t->bytes = t->stride * t->n;
        if (t->n > 1024) { /* of shared memory, then: never a value */
                t->n_slots = UINT32_MAX;
                return true;
        }
        for (uint32_t i = 0; i < t->n; i++)
                if (!add_leaves(m, t, element, i * t->stride))
                        return false;
        return true;
}

static bool make_struct(struct making *m, struct type *t, uint32_t id, const uint32_t *w, uint32_t n)
{
        uint32_t at = 0;

        t->kind = KIND_STRUCT;
        t->n = n - 2;
        t->members = keep(m->program, (t->n + 1) * sizeof(*t->members));
        t->offsets = keep(m->program, (t->n + 1) * sizeof(*t->offsets));
        for (uint32_t i = 0; i < t->n; i++) {
                const struct type *member = type_of(m, w[2 + i]);

                t->members[i] = w[2 + i];
                at = ALIGN_UP(at, member->align ? member->align : 1);
                for (uint32_t k = 0; k < m->n_offsets; k++)
                        if (m->offsets[k].type == id && m->offsets[k].member == i)
                                at = m->offsets[k].offset;
                t->offsets[i] = at;
                at += member->bytes;
                t->align = member->align > t->align ? member->align : t->align;
                if (member->n_slots == UINT32_MAX || (member->kind == KIND_ARRAY && member->n == 0))
                        t->n_slots = UINT32_MAX; /* what has no value of its own */
                if (t->n_slots != UINT32_MAX && !add_leaves(m, t, member, t->offsets[i]))
                        return false;
        }
        t->bytes = at;
        return true;
}

static bool make_matrix(struct making *m, struct type *t, const uint32_t *w)
{
        const struct type *component = type_of(m, w[2]);
        uint16_t *places;
        uint32_t row, col;

        t->kind = KIND_MATRIX;
        t->element = w[2];
        t->width = component->width;
        t->rows = (uint32_t)id_of(m, w[4])->value;
        t->cols = (uint32_t)id_of(m, w[5])->value;
        t->use = (uint32_t)id_of(m, w[6])->value;
        if (id_of(m, w[3])->value != SCOPE_SUBGROUP || t->width == 64)
                return refuse(m, "a matrix of another scope than a subgroup, or of 64 bits");
        t->n = t->n_slots = matrix_length(t->rows, t->cols, t->use, t->width);
        if (t->n == 0)
                return refuse(m, "a matrix of %u by %u, use %u, of %u bits", t->rows, t->cols, t->use, t->width);
        places = keep(m->program, t->n * LANES * sizeof(*places));
        for (uint32_t i = 0; i < t->n; i++)
                for (uint32_t l = 0; l < LANES; l++) {
                        matrix_place(t, l, i, &row, &col);
                        places[i * LANES + l] = (uint16_t)(row * t->cols + col);
                }
        t->places = places;
        return true;
}

bool make_type(struct making *m, uint32_t op, const uint32_t *w, uint32_t n)
{
        static const uint32_t least[] = {
                [OP_TYPE_INT - OP_TYPE_VOID] = 4,           [OP_TYPE_FLOAT - OP_TYPE_VOID] = 3,
                [OP_TYPE_VECTOR - OP_TYPE_VOID] = 4,        [OP_TYPE_ARRAY - OP_TYPE_VOID] = 4,
                [OP_TYPE_RUNTIME_ARRAY - OP_TYPE_VOID] = 3, [OP_TYPE_POINTER - OP_TYPE_VOID] = 4
        };
        uint32_t id = w[1];
        struct type *t;

        if (n < 2 || id >= m->bound ||
            n < (op == OP_TYPE_MATRIX                                 ? 7 :
                 op - OP_TYPE_VOID < sizeof(least) / sizeof(least[0]) ? least[op - OP_TYPE_VOID] :
                                                                        0))
                return refuse(m, "a type is cut short");
        t = &m->program->types[id];
        switch (op) {
        case OP_TYPE_VOID:
                t->kind = KIND_VOID;
                return true;
        case OP_TYPE_FUNCTION:
                t->kind = KIND_FUNCTION;
                return true;
        case OP_TYPE_BOOL:
                scalar(t, KIND_BOOL, 32, m->program);
                return true;
        case OP_TYPE_INT:
        case OP_TYPE_FLOAT:
                if (w[2] != 32 && w[2] != 16 && (op == OP_TYPE_FLOAT || (w[2] != 8 && w[2] != 64)))
                        return refuse(m, "a scalar of %u bits", w[2]);
                scalar(t, op == OP_TYPE_INT ? KIND_INT : KIND_FLOAT, w[2], m->program);
                return true;
        case OP_TYPE_VECTOR:
                t->kind = KIND_VECTOR;
                t->element = w[2];
                t->n = w[3];
                t->width = type_of(m, w[2])->width;
                if (t->n < 2 || t->n > 4)
                        return refuse(m, "a vector of %u", t->n);
                t->align = type_of(m, w[2])->align;
                t->bytes = t->n * type_of(m, w[2])->bytes;
                for (uint32_t i = 0; i < t->n; i++)
                        if (!add_leaves(m, t, type_of(m, w[2]), i * type_of(m, w[2])->bytes))
                                return false;
                return true;
        case OP_TYPE_ARRAY:
        case OP_TYPE_RUNTIME_ARRAY:
                return make_array(m, t, id, w, op == OP_TYPE_ARRAY);
        case OP_TYPE_STRUCT:
                return make_struct(m, t, id, w, n);
        case OP_TYPE_POINTER:
                scalar(t, KIND_POINTER, 64, m->program);
                t->storage = w[2];
                t->element = w[3];
                return true;
        case OP_TYPE_FORWARD_POINTER:
                scalar(t, KIND_POINTER, 64, m->program);
                return true;
        case OP_TYPE_MATRIX:
                return make_matrix(m, t, w);
        default:
                return refuse(m, "no type: %u", op);
        }
}
