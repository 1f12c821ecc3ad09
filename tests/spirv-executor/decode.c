/* Each instruction with its operands found: see blocks.c for what is around them. */
#include <stdlib.h>
#include <string.h>

#include "tests/spirv-executor/program.h"

/* ---- pointers ---- */

static bool pointer_of(struct making *m, uint32_t id, struct pointer *ret)
{
        const struct id *p = id_of(m, id);

        *ret = p->pointer;
        if (p->is == ID_POINTER)
                return true;
        *ret = (struct pointer){ .space = SPACE_PHYSICAL, .dynamic = p->at };
        return (p->is == ID_VALUE && type_of(m, p->type)->kind == KIND_POINTER &&
                type_of(m, p->type)->storage == STORAGE_PHYSICAL) ||
               refuse(m, "%u is no pointer", id);
}

static const struct type *pointee_of(struct making *m, uint32_t id)
{
        return type_of(m, type_of(m, id_of(m, id)->type)->element);
}

/* words of an OWN_ADDRESS */
struct step {
        int32_t at;
        int32_t stride;
        uint32_t width;
};

/* One index of a chain: what it adds to the pointer, or a step of the instruction. */
static bool index_by(struct making *m, const struct type **type, uint32_t index_id, struct pointer *p,
                     struct step *steps, uint32_t *n_steps, bool *ret_broken)
{
        const struct type *t = *type;
        const struct id *index = id_of(m, index_id);
        bool in_slots = p->space == SPACE_SLOTS;
        int64_t stride, value;

        if (index->is != ID_VALUE || (!index->known && t->kind == KIND_STRUCT))
                return refuse(m, "an index");
        value = (int64_t)index->value;
        if (type_of(m, index->type)->width == 32)
                value = (int32_t)index->value;
        if (t->kind == KIND_STRUCT) {
                if ((uint64_t)value >= t->n)
                        return refuse(m, "a member that is not there");
                for (int64_t i = 0; i < value && in_slots; i++)
                        p->at += type_of(m, t->members[i])->n_slots;
                if (!in_slots)
                        p->at += t->offsets[value];
                *type = type_of(m, t->members[value]);
                return true;
        }
        if (t->kind != KIND_ARRAY && t->kind != KIND_VECTOR && t->kind != KIND_MATRIX)
                return refuse(m, "an index into what has no parts");
        *type = type_of(m, t->element);
        stride = in_slots              ? (int64_t)(*type)->n_slots :
                 t->kind == KIND_ARRAY ? (int64_t)t->stride :
                                         (int64_t)(*type)->bytes;
        if (index->known) {
                *ret_broken |= t->n != 0 && (uint64_t)value >= t->n;
                p->at += value * stride;
                return true;
        }
        steps[(*n_steps)++] = (struct step){ index->at, (int32_t)stride, type_of(m, index->type)->width };
        return true;
}

/* Leaves no instruction where all indices are known. */
static bool decode_chain(struct making *m, const uint32_t *w, uint32_t n, struct insn *i, bool *ret_none)
{
        struct id *result = id_of(m, w[2]);
        const struct type *type;
        struct step steps[8];
        struct pointer p;
        uint32_t n_steps = 0;
        bool broken = false;

        if (n > 4 + 8 || !pointer_of(m, w[3], &p))
                return refuse(m, "a chain of too many indices");
        type = pointee_of(m, w[3]);
        for (uint32_t k = 4; k < n; k++)
                if (!index_by(m, &type, w[k], &p, steps, &n_steps, &broken))
                        return false;
        *ret_none = n_steps == 0 && !broken;
        *i = (struct insn){ .op = OWN_ADDRESS, .broken = broken, .a = p.dynamic, .n_words = n_steps * 3 };
        if (!*ret_none) {
                i->dst = (ref)m->program->n_slots;
                m->program->n_slots += 2;
                i->words = keep(m->program, sizeof(steps));
                memcpy((void *)(uintptr_t)i->words, steps, n_steps * sizeof(*steps));
                p.dynamic = i->dst;
        }
        result->is = ID_POINTER;
        result->type = w[1];
        result->pointer = p;
        return true;
}

/* ---- values ---- */

bool value_of(struct making *m, uint32_t id, ref *ret, const struct type **ret_type)
{
        const struct id *v = id_of(m, id);

        *ret = NO_REF;
        *ret_type = NULL;
        if (v->is != ID_VALUE)
                return refuse(m, "%u is no value here", id);
        *ret = v->at;
        *ret_type = type_of(m, v->type);
        return true;
}

/* Where a part lies, by literal indices. */
static bool part_of(struct making *m, const struct type *t, const uint32_t *indices, uint32_t n, uint32_t *ret_slot,
                    const struct type **ret_type)
{
        *ret_slot = 0;
        *ret_type = t;
        for (uint32_t k = 0; k < n; k++) {
                if (indices[k] >= t->n)
                        return refuse(m, "a part that is not there");
                if (t->kind == KIND_STRUCT) {
                        for (uint32_t i = 0; i < indices[k]; i++)
                                *ret_slot += type_of(m, t->members[i])->n_slots;
                        t = type_of(m, t->members[indices[k]]);
                } else if (t->kind == KIND_ARRAY || t->kind == KIND_VECTOR || t->kind == KIND_MATRIX) {
                        t = type_of(m, t->element);
                        *ret_slot += indices[k] * t->n_slots;
                } else {
                        return refuse(m, "a part of what has none");
                }
        }
        *ret_type = t;
        return true;
}

struct parts {
        uint32_t *words;
        uint32_t n;
};

static void add_part(struct parts *parts, ref at, uint32_t n)
{
        if (n == 0)
                return;
        parts->words[parts->n++] = (uint32_t)at;
        parts->words[parts->n++] = n;
}

static bool decode_shuffle(struct making *m, const uint32_t *w, uint32_t n, struct parts *parts)
{
        const struct type *a, *b, *part;
        uint32_t slot;
        ref a_at, b_at;

        if (!value_of(m, w[0], &a_at, &a) || !value_of(m, w[1], &b_at, &b))
                return false;
        for (uint32_t i = 2; i < n; i++) {
                uint32_t index = w[i] == UINT32_MAX ? 0 : w[i];
                bool second = index >= a->n;

                index -= second ? a->n : 0;
                if (!part_of(m, second ? b : a, &index, 1, &slot, &part))
                        return false;
                add_part(parts, ref_plus(second ? b_at : a_at, slot), part->n_slots);
        }
        return true;
}

/* What is put together from parts of others. */
static bool decode_parts(struct making *m, uint32_t op, const struct type *t, const uint32_t *w, uint32_t n,
                         struct insn *i)
{
        struct parts parts = { keep(m->program, (n + 4) * 2 * sizeof(uint32_t)), 0 };
        const struct type *whole, *part;
        uint32_t slot, done = 0;
        ref at, whole_at;

        i->op = OWN_COPIES;
        if (op == OP_COMPOSITE_CONSTRUCT && t->kind == KIND_MATRIX) {
                i->op = OWN_SPLAT;
                i->n = t->n;
                return n == 1 && value_of(m, w[0], &i->a, &part);
        }
        if (op == OP_COMPOSITE_CONSTRUCT) {
                for (uint32_t k = 0; k < n; k++) {
                        if (!value_of(m, w[k], &at, &part))
                                return false;
                        add_part(&parts, at, part->n_slots);
                }
        } else if (op == OP_VECTOR_SHUFFLE) {
                if (!decode_shuffle(m, w, n, &parts))
                        return false;
        } else { /* OP_COMPOSITE_INSERT: an object, into a whole */
                if (!value_of(m, w[0], &at, &part) || !value_of(m, w[1], &whole_at, &whole) ||
                    !part_of(m, whole, w + 2, n - 2, &slot, &part))
                        return false;
                add_part(&parts, whole_at, slot);
                add_part(&parts, at, part->n_slots);
                slot += part->n_slots;
                add_part(&parts, ref_plus(whole_at, slot), whole->n_slots - slot);
        }
        for (uint32_t k = 0; k < parts.n; k += 2)
                done += parts.words[k + 1];
        i->words = parts.words;
        i->n_words = parts.n;
        return done == t->n_slots || refuse(m, "parts that make no whole");
}

static bool decode_group(struct making *m, uint32_t op, const uint32_t *w, uint32_t n, struct insn *i)
{
        const struct type *t;
        bool reduces = op >= OP_GROUP_I_ADD && op <= OP_GROUP_F_MAX;

        if (n < (op == OP_GROUP_ELECT                                    ? 1u :
                 op == OP_GROUP_BROADCAST_FIRST || op == OP_GROUP_BALLOT ? 2u :
                                                                           3u) ||
            id_of(m, w[0])->value != SCOPE_SUBGROUP)
                return refuse(m, "a group operation of another scope");
        if (op == OP_GROUP_ELECT)
                return true;
        if (reduces)
                i->sub = (uint16_t)w[1];
        if (reduces && w[1] > 2)
                return refuse(m, "a clustered group operation");
        if (!value_of(m, w[reduces ? 2 : 1], &i->a, &t))
                return false;
        i->from = (uint8_t)scalar_of(m, t)->width;
        return reduces || op == OP_GROUP_BROADCAST_FIRST || op == OP_GROUP_BALLOT || value_of(m, w[2], &i->b, &t);
}

static bool decode_matrix_load(struct making *m, const uint32_t *w, uint32_t n, bool stores, struct insn *i)
{
        const struct type *t, *stride;
        uint32_t at = stores ? 2 : 1;

        if (n < at + 2 || !pointer_of(m, w[0], &i->pointer) || !value_of(m, w[at + 1], &i->b, &stride))
                return refuse(m, "a matrix is loaded or stored without a stride");
        i->type_a = pointee_of(m, w[0]);
        i->sub = (uint16_t)id_of(m, w[at])->value;
        i->from = (uint8_t)stride->width;
        if (i->pointer.space == SPACE_SLOTS)
                return refuse(m, "a matrix is loaded from a function's own variable");
        if (!stores)
                return true;
        if (!value_of(m, w[1], &i->a, &t) || t->kind != KIND_MATRIX)
                return refuse(m, "what is stored is no matrix");
        i->type = t;
        return true;
}

static bool decode_multiply(struct making *m, const uint32_t *w, uint32_t n, struct insn *i)
{
        const struct type *c;

        if (n < 3 || !value_of(m, w[0], &i->a, &i->type_a) || !value_of(m, w[1], &i->b, &i->type_b) ||
            !value_of(m, w[2], &i->c, &c))
                return false;
        i->sub = n > 3 ? (uint16_t)w[3] : 0;
        if (i->type_a->kind != KIND_MATRIX || i->type_b->kind != KIND_MATRIX || c != i->type ||
            i->type_a->use != MATRIX_A || i->type_b->use != MATRIX_B || c->use != MATRIX_SUM ||
            i->type_a->rows != c->rows || i->type_a->cols != i->type_b->rows || i->type_b->cols != c->cols)
                return refuse(m, "matrices that do not fit each other");
        return true;
}

bool decode_value(struct making *m, uint32_t op, uint32_t type, uint32_t result, const uint32_t *w, uint32_t n, ref dst,
                  struct insn *i)
{
        const struct type *t = type_of(m, type), *own = scalar_of(m, t), *a = NULL, *b = NULL, *c = NULL;
        uint32_t slot, first = 0;

        (void)result;
        *i = (struct insn){ .op = (uint16_t)op,
                            .width = (uint8_t)own->width,
                            .n = t->kind == KIND_VECTOR || t->kind == KIND_MATRIX ? t->n : 1,
                            .dst = dst,
                            .a = NO_REF,
                            .b = NO_REF,
                            .c = NO_REF,
                            .type = t };
        switch (op) {
        case OP_COMPOSITE_CONSTRUCT:
        case OP_VECTOR_SHUFFLE:
        case OP_COMPOSITE_INSERT:
                return (op == OP_COMPOSITE_CONSTRUCT ? n >= 1 : n >= 3) ? decode_parts(m, op, t, w, n, i) :
                                                                          refuse(m, "too few parts");
        case OP_COMPOSITE_EXTRACT:
                i->op = OWN_COPY;
                i->n = t->n_slots;
                if (n < 2 || !value_of(m, w[0], &i->a, &a) || !part_of(m, a, w + 1, n - 1, &slot, &b))
                        return refuse(m, "a part");
                i->a = ref_plus(i->a, slot);
                return true;
        case OP_COPY_OBJECT:
        case OP_COPY_LOGICAL:
                i->op = OWN_COPY;
                i->n = t->n_slots;
                return n >= 1 && value_of(m, w[0], &i->a, &a);
        case OP_MATRIX_LENGTH:
                refuse(m, "a matrix's length is asked for");
                return false;
        case OP_MATRIX_MULTIPLY_ADD:
                return decode_multiply(m, w, n, i);
        case OP_MATRIX_LOAD:
                return decode_matrix_load(m, w, n, false, i);
        case OP_EXT_INST:
                if (n < 3 || w[0] != m->glsl || w[1] > 0xffff)
                        return refuse(m, "an instruction of an unknown set");
                i->sub = (uint16_t)w[1];
                first = 2;
                break;
        default:
                if (op >= OP_GROUP_ELECT && op <= OP_GROUP_F_MAX)
                        return decode_group(m, op, w, n, i);
        }
        if (n <= first)
                return refuse(m, "operation %u without an operand", op);
        if (!value_of(m, w[first], &i->a, &a) ||
            (n > first + 1 && op != OP_S_DOT && !value_of(m, w[first + 1], &i->b, &b)) ||
            (n > first + 2 && op != OP_S_DOT && !value_of(m, w[first + 2], &i->c, &c)))
                return false;
        if (op == OP_S_DOT && (n < 3 || !value_of(m, w[1], &i->b, &b) || a->kind != KIND_INT || w[2] != 0))
                return refuse(m, "a dot product of another form than four bytes in a word");
        i->from = (uint8_t)scalar_of(m, a)->width;
        i->type_a = a;
        if (op == OP_SELECT) {
                bool one = a->kind == KIND_BOOL;

                i->sub = one;
                i->n = one ? t->n_slots : t->n;
                i->width = one ? 32 : (uint8_t)own->width;
        } else if (op == OP_SHIFT_LEFT || op == OP_SHIFT_RIGHT_LOGICAL || op == OP_SHIFT_RIGHT_ARITHMETIC ||
                   op == OP_VECTOR_EXTRACT_DYNAMIC) {
                if (!b)
                        return refuse(m, "a shift or index by nothing");
                i->sub = (uint16_t)scalar_of(m, b)->width;
        } else if (op == OP_MATRIX_TIMES_SCALAR) {
                i->sub = own->kind == KIND_INT;
        } else if (op == OP_ANY || op == OP_ALL || op == OP_BITCAST) {
                i->n_words = a->n;
        }
        if (op == OP_VECTOR_EXTRACT_DYNAMIC)
                i->n = a->n;
        return true;
}

/* ---- instructions ---- */

struct insn *add_insn(struct making *m)
{
        struct program *p = m->program;

        if (p->n_insns == p->insns_room) {
                p->insns_room = p->insns_room * 2 + 1024;
                p->insns = realloc(p->insns, p->insns_room * sizeof(*p->insns));
                if (!p->insns)
                        abort();
        }
        p->insns[p->n_insns] = (struct insn){ .a = NO_REF, .b = NO_REF, .c = NO_REF };
        return &p->insns[p->n_insns++];
}

static uint32_t alignment(const uint32_t *w, uint32_t n)
{
        return n >= 2 && w[0] & MEMORY_ALIGNED && w[1] != 0 && (w[1] & (w[1] - 1)) == 0 ? w[1] : 1;
}

static bool decode_access(struct making *m, uint32_t pointer, uint32_t value_type, ref value, bool stores,
                          uint32_t align)
{
        const struct type *t = type_of(m, value_type);
        struct pointer p;
        struct insn *i;

        if (!pointer_of(m, pointer, &p))
                return false;
        if (t->n_slots > SLOTS_MAX)
                return refuse(m, "a value of too many slots is loaded or stored");
        i = add_insn(m);
        i->pointer = p;
        i->type = t;
        i->n = t->n_slots;
        i->align = align;
        if (p.space == SPACE_PUSH && stores)
                return refuse(m, "push constants are written");
        if (p.space == SPACE_SLOTS && p.dynamic == NO_REF) {
                i->op = OWN_COPY;
                i->broken = p.at < p.begin || p.at + (int64_t)t->n_slots > (int64_t)p.end;
                i->dst = stores ? (ref)p.at : value;
                i->a = stores ? value : (ref)p.at;
        } else if (p.space == SPACE_SLOTS) {
                i->op = stores ? OWN_SCATTER : OWN_GATHER;
                *(stores ? &i->a : &i->dst) = value;
        } else {
                i->op = stores ? OWN_WRITE : OWN_READ;
                *(stores ? &i->a : &i->dst) = value;
        }
        return true;
}

static bool decode_atomic(struct making *m, uint32_t op, const uint32_t *w, uint32_t n)
{
        const struct type *t;
        bool stores = op == OP_ATOMIC_STORE;
        uint32_t at = stores ? 1 : 3;
        struct insn *i;
        struct pointer p;

        if (n < at + (op == OP_ATOMIC_LOAD             ? 3u :
                      op == OP_ATOMIC_COMPARE_EXCHANGE ? 6u :
                                                         4u) ||
            !pointer_of(m, w[at], &p))
                return refuse(m, "an atomic operation is cut short");
        if (p.space != SPACE_PHYSICAL && p.space != SPACE_SHARED)
                return refuse(m, "an atomic operation on what only one has");
        i = add_insn(m);
        i->op = (uint16_t)op;
        i->pointer = p;
        i->type = pointee_of(m, w[at]);
        i->width = (uint8_t)i->type->width;
        i->dst = stores ? NO_REF : id_of(m, w[2])->at;
        if (i->type->kind != KIND_INT || i->width < 32)
                return refuse(m, "an atomic operation on no word");
        if (op == OP_ATOMIC_COMPARE_EXCHANGE)
                return value_of(m, w[7], &i->a, &t) && value_of(m, w[8], &i->b, &t);
        return op == OP_ATOMIC_LOAD || value_of(m, w[at + 3], &i->a, &t);
}

static bool decode_variable(struct making *m, const uint32_t *w, uint32_t n)
{
        struct program *p = m->program;
        struct id *result = id_of(m, w[2]);
        const struct type *t = pointee_of(m, w[2]), *of_value;
        struct insn *i;

        if (n < 4 || w[3] != STORAGE_FUNCTION || t->n_slots > SLOTS_MAX)
                return refuse(m, "a variable of a function");
        result->pointer = (struct pointer){ SPACE_SLOTS, p->n_slots, NO_REF, p->n_slots, p->n_slots + t->n_slots };
        p->n_slots += t->n_slots;
        if (n == 4)
                return true;
        i = add_insn(m);
        i->op = OWN_COPY;
        i->dst = (ref)result->pointer.at;
        i->n = t->n_slots;
        return value_of(m, w[4], &i->a, &of_value);
}

bool same_slots(struct making *m, uint32_t op, const uint32_t *w, uint32_t n, ref *ret)
{
        const struct type *t = type_of(m, w[1]), *a;
        const struct id *operand = n > 3 ? id_of(m, w[3]) : NULL;
        uint32_t slot;

        if (!operand || operand->is != ID_VALUE)
                return false;
        a = type_of(m, operand->type);
        *ret = operand->at;
        switch (op) {
        case OP_COPY_OBJECT:
        case OP_COPY_LOGICAL:
        case OP_CONVERT_PTR_TO_U:
        case OP_CONVERT_U_TO_PTR:
                return t->n_slots == a->n_slots;
        case OP_BITCAST:
                return scalar_of(m, t)->width == scalar_of(m, a)->width;
        case OP_COMPOSITE_EXTRACT:
                if (n < 5 || !part_of(m, a, w + 4, n - 4, &slot, &a))
                        return false;
                *ret = ref_plus(operand->at, slot);
                return true;
        default:
                return false;
        }
}

bool decode_instruction(struct making *m, const uint32_t *w)
{
        uint32_t op = w[0] & 0xffff, n = w[0] >> 16;
        const struct type *t;
        struct insn decoded, *i;
        ref at;
        bool none = false;

        switch (op) {
        case OP_NOP:
        case OP_PHI:
        case OP_LOOP_MERGE:
        case OP_SELECTION_MERGE:
        case OP_MEMORY_BARRIER: /* one workgroup runs at a time, and memory is the host's */
                return true;
        case OP_UNDEF:
                return true;
        case OP_VARIABLE:
                return decode_variable(m, w, n);
        case OP_ACCESS_CHAIN:
        case OP_IN_BOUNDS_ACCESS_CHAIN:
                if (!decode_chain(m, w, n, &decoded, &none))
                        return false;
                if (!none)
                        *add_insn(m) = decoded;
                return true;
        case OP_LOAD:
                return decode_access(m, w[3], w[1], id_of(m, w[2])->at, false, alignment(w + 4, n - 4));
        case OP_STORE:
                return value_of(m, w[2], &at, &t) &&
                       decode_access(m, w[1], id_of(m, w[2])->type, at, true, alignment(w + 3, n - 3));
        case OP_CONTROL_BARRIER:
                i = add_insn(m);
                i->op = OP_CONTROL_BARRIER;
                i->sub = (uint16_t)id_of(m, w[1])->value;
                return i->sub == SCOPE_WORKGROUP || i->sub == SCOPE_SUBGROUP || refuse(m, "a barrier of another scope");
        case OP_MATRIX_STORE:
                decoded = (struct insn){ .op = OP_MATRIX_STORE };
                if (n < 5 || !decode_matrix_load(m, w + 1, n - 1, true, &decoded))
                        return false;
                *add_insn(m) = decoded;
                return true;
        default:
                if (op >= OP_ATOMIC_LOAD && op <= OP_ATOMIC_XOR)
                        return decode_atomic(m, op, w, n);
                if (same_slots(m, op, w, n, &at) && !m->failed)
                        return true;
                if (!decode_value(m, op, w[1], w[2], w + 3, n - 3, id_of(m, w[2])->at, &decoded))
                        return false;
                *add_insn(m) = decoded;
                return true;
        }
}
