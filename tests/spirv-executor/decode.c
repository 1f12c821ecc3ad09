/* A function's blocks: which order they run in, and each instruction with its operands found. */
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
        stride = in_slots ? (int64_t)(*type)->n_slots : t->kind == KIND_ARRAY ? (int64_t)t->stride : (int64_t)(*type)->bytes;
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

static bool value_of(struct making *m, uint32_t id, ref *ret, const struct type **ret_type)
{
        const struct id *v = id_of(m, id);

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

        if (n < (op == OP_GROUP_ELECT ? 1u : op == OP_GROUP_BROADCAST_FIRST || op == OP_GROUP_BALLOT ? 2u : 3u) ||
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

bool decode_value(struct making *m, uint32_t op, uint32_t type, uint32_t result, const uint32_t *w, uint32_t n,
                  ref dst, struct insn *i)
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
                return (op == OP_COMPOSITE_CONSTRUCT ? n >= 1 : n >= 3) ?
                               decode_parts(m, op, t, w, n, i) :
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
        if (!value_of(m, w[first], &i->a, &a) || (n > first + 1 && op != OP_S_DOT && !value_of(m, w[first + 1], &i->b, &b)) ||
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
        } else if (op == OP_ANY || op == OP_ALL || op == OP_BITCAST) {
                i->n_words = a->n;
        }
        if (op == OP_VECTOR_EXTRACT_DYNAMIC)
                i->n = a->n;
        return true;
}

/* ---- instructions ---- */

static struct insn *add(struct making *m)
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

static bool decode_access(struct making *m, uint32_t pointer, uint32_t value_type, ref value,
                          bool stores, uint32_t align)
{
        const struct type *t = type_of(m, value_type);
        struct pointer p;
        struct insn *i;

        if (!pointer_of(m, pointer, &p))
                return false;
        if (t->n_slots > 4096)
                return refuse(m, "a value of too many slots is loaded or stored");
        i = add(m);
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

        if (n < at + (op == OP_ATOMIC_LOAD ? 3u : op == OP_ATOMIC_COMPARE_EXCHANGE ? 6u : 4u) || !pointer_of(m, w[at], &p))
                return refuse(m, "an atomic operation is cut short");
        if (p.space != SPACE_PHYSICAL && p.space != SPACE_SHARED)
                return refuse(m, "an atomic operation on what only one has");
        i = add(m);
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

        if (n < 4 || w[3] != STORAGE_FUNCTION || t->n_slots > 4096)
                return refuse(m, "a variable of a function");
        result->pointer =
                (struct pointer){ SPACE_SLOTS, p->n_slots, NO_REF, p->n_slots, p->n_slots + t->n_slots };
        p->n_slots += t->n_slots;
        if (n == 4)
                return true;
        i = add(m);
        i->op = OWN_COPY;
        i->dst = (ref)result->pointer.at;
        i->n = t->n_slots;
        return value_of(m, w[4], &i->a, &of_value);
}

/* ---- blocks ---- */

struct raw_block {
        uint32_t label;
        size_t begin, end; /* words, from behind the label to behind the branch */
        uint32_t merge, next; /* labels; 0: none */
        uint32_t order; /* + 1; 0: not reached */
};

struct function {
        struct raw_block *blocks;
        uint32_t n;
};

static struct raw_block *block_of(struct making *m, const struct function *f, uint32_t label)
{
        const struct id *id = id_of(m, label);

        if (id->is == ID_LABEL && id->block < f->n)
                return &f->blocks[id->block];
        refuse(m, "%u is no label", label);
        return &f->blocks[0];
}

/* The words of a block's last instruction. */
static const uint32_t *last_of(const struct making *m, const struct raw_block *b)
{
        size_t at = b->begin, last = at;

        while (at < b->end) {
                last = at;
                at += m->words[at] >> 16;
        }
        return m->words + last;
}

/* The k-th label that a branch names; 0: there is none. */
static uint32_t target(const uint32_t *w, uint32_t k)
{
        uint32_t op = w[0] & 0xffff, n = w[0] >> 16;

        if (op == OP_BRANCH)
                return k == 0 ? w[1] : 0;
        if (op == OP_BRANCH_CONDITIONAL)
                return k < 2 ? w[2 + k] : 0;
        if (op == OP_SWITCH)
                return k == 0 ? w[2] : 2 + k * 2 < n ? w[2 + k * 2] : 0;
        return 0;
}

/* Blocks in the order in which they run: reversed, as a depth-first search leaves them. What comes behind a construct is
 * visited first and so comes last; with it each lane waits at the end of a construct for those that are still in it. */
static bool put_in_order(struct making *m, struct function *f, uint32_t *n_ordered)
{
        struct {
                uint32_t block, next;
        } *stack = keep(m->program, (f->n + 1) * sizeof(*stack));
        uint8_t *seen = keep(m->program, f->n);
        uint32_t depth = 1, done = 0;

        stack[0].block = 0;
        seen[0] = 1;
        while (depth && !m->failed) {
                struct raw_block *b = &f->blocks[stack[depth - 1].block];
                uint32_t k = stack[depth - 1].next++, label = k == 0 ? b->merge : k == 1 ? b->next : 0;

                if (k >= 2) {
                        label = target(last_of(m, b), k - 2);
                        if (label == 0) {
                                b->order = ++done;
                                depth--;
                                continue;
                        }
                }
                if (label != 0) {
                        uint32_t to = (uint32_t)(block_of(m, f, label) - f->blocks);

                        if (!seen[to]) {
                                seen[to] = 1;
                                stack[depth].block = to;
                                stack[depth++].next = 0;
                        }
                }
        }
        for (uint32_t i = 0; i < f->n; i++)
                if (f->blocks[i].order)
                        f->blocks[i].order = done - f->blocks[i].order + 1;
        *n_ordered = done;
        return !m->failed;
}

static bool new_edge(struct making *m, const struct function *f, const struct raw_block *from, uint32_t label,
                     uint32_t *ret)
{
        const struct raw_block *to = block_of(m, f, label);
        struct program *p = m->program;
        struct edge e = { .block = to->order - 1 };

        for (int pass = 0; pass < 2; pass++) { /* counts, then notes */
                uint32_t k = 0;

                for (size_t at = to->begin; at < to->end; at += m->words[at] >> 16) {
                        const uint32_t *w = m->words + at;
                        uint32_t n = w[0] >> 16, i;

                        if ((w[0] & 0xffff) != OP_PHI)
                                continue;
                        for (i = 3; i + 1 < n && w[i + 1] != from->label; i += 2)
                                ;
                        if (i + 1 >= n)
                                return refuse(m, "a phi does not know where it is come from");
                        if (pass) {
                                const struct type *t;

                                e.copies[k].dst = id_of(m, w[2])->at;
                                e.copies[k].n = type_of(m, w[1])->n_slots;
                                if (!value_of(m, w[i], &e.copies[k].src, &t))
                                        return false;
                        }
                        k++;
                }
                if (!pass)
                        e.copies = keep(p, k * sizeof(*e.copies));
                e.n_copies = k;
        }
        if (p->n_edges == p->edges_room) {
                p->edges_room = p->edges_room * 2 + 64;
                p->edges = realloc(p->edges, p->edges_room * sizeof(*p->edges));
                if (!p->edges)
                        abort();
        }
        p->edges[p->n_edges] = e;
        *ret = p->n_edges++;
        return true;
}

static bool decode_branch(struct making *m, const struct function *f, const struct raw_block *b, const uint32_t *w)
{
        uint32_t op = w[0] & 0xffff, n = w[0] >> 16, n_words = op == OP_SWITCH ? n - 2 : op == OP_BRANCH ? 1 : 2;
        uint32_t *words = keep(m->program, (n + 2) * sizeof(*words));
        const struct type *t;
        struct insn *i = add(m);

        i->op = op == OP_BRANCH             ? OWN_BRANCH :
                op == OP_BRANCH_CONDITIONAL ? OWN_CHOOSE :
                op == OP_SWITCH             ? OWN_SWITCH :
                op == OP_RETURN             ? OWN_RETURN :
                                              OWN_NEVER;
        if (op != OP_BRANCH && op != OP_BRANCH_CONDITIONAL && op != OP_SWITCH)
                return true;
        i->words = words;
        i->n_words = n_words;
        if (op != OP_BRANCH && !value_of(m, w[1], &i->a, &t))
                return false;
        if (op == OP_SWITCH && t->width != 32)
                return refuse(m, "a switch by no word");
        for (uint32_t k = 0; target(w, k); k++) {
                uint32_t at = op == OP_SWITCH && k ? k * 2 : k;

                if (!new_edge(m, f, b, target(w, k), &words[at]))
                        return false;
                if (op == OP_SWITCH && k)
                        words[at - 1] = w[1 + k * 2];
        }
        return true;
}

/* Operations whose result is what they are given: the same slots. Returns false where that does not hold. */
static bool same_slots(struct making *m, uint32_t op, const uint32_t *w, uint32_t n, ref *ret)
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

static bool has_result(uint32_t op)
{
        switch (op) {
        case OP_NOP:
        case OP_STORE:
        case OP_CONTROL_BARRIER:
        case OP_MEMORY_BARRIER:
        case OP_ATOMIC_STORE:
        case OP_MATRIX_STORE:
        case OP_LOOP_MERGE:
        case OP_SELECTION_MERGE:
        case OP_LABEL:
        case OP_BRANCH:
        case OP_BRANCH_CONDITIONAL:
        case OP_SWITCH:
        case OP_RETURN:
        case OP_UNREACHABLE:
        case OP_FUNCTION_END:
                return false;
        default:
                return true;
        }
}

static bool is_end(uint32_t op)
{
        return op == OP_BRANCH || op == OP_BRANCH_CONDITIONAL || op == OP_SWITCH || op == OP_RETURN || op == OP_UNREACHABLE;
}

static bool least_words(struct making *m, const uint32_t *w)
{
        uint32_t op = w[0] & 0xffff, n = w[0] >> 16,
                 least = op == OP_LOAD || op == OP_ACCESS_CHAIN || op == OP_IN_BOUNDS_ACCESS_CHAIN || op == OP_VARIABLE ? 4 :
                         op == OP_LABEL || op == OP_BRANCH || op == OP_SELECTION_MERGE ? 2 :
                         op == OP_STORE || op == OP_LOOP_MERGE || op == OP_SWITCH || has_result(op) ? 3 :
                         op == OP_BRANCH_CONDITIONAL || op == OP_CONTROL_BARRIER ? 4 :
                                                                                   1;

        return n >= least || refuse(m, "instruction %u is cut short", op);
}

/* Where blocks begin and end, and a place for each result. */
static bool look(struct making *m, size_t at, struct function *f)
{
        struct program *p = m->program;
        struct raw_block *b = NULL;

        f->blocks = keep(p, (m->n_words - at) / 2 * sizeof(*f->blocks));
        for (; at < m->n_words; at += m->words[at] >> 16) {
                const uint32_t *w = m->words + at;
                uint32_t op = w[0] & 0xffff, n = w[0] >> 16;

                if (n == 0 || n > m->n_words - at)
                        return refuse(m, "an instruction is cut short");
                if (!least_words(m, w))
                        return false;
                if (op == OP_FUNCTION_END)
                        return (f->n > 0 && !b) || refuse(m, "a function without a last branch");
                if (op == OP_LABEL) {
                        if (b)
                                return refuse(m, "a block without a last branch");
                        b = &f->blocks[f->n];
                        *b = (struct raw_block){ .label = w[1], .begin = at + n };
                        id_of(m, w[1])->is = ID_LABEL;
                        id_of(m, w[1])->block = f->n++;
                        continue;
                }
                if (!b)
                        return refuse(m, "an instruction outside a block");
                if (op == OP_SELECTION_MERGE || op == OP_LOOP_MERGE)
                        b->merge = w[1];
                if (op == OP_LOOP_MERGE)
                        b->next = w[2];
                if (is_end(op)) {
                        b->end = at + n;
                        b = NULL;
                        continue;
                }
                if (!has_result(op))
                        continue;
                struct id *result = id_of(m, w[2]);
                uint32_t n_slots = type_of(m, w[1])->n_slots;

                result->type = w[1];
                result->is = op == OP_VARIABLE || op == OP_ACCESS_CHAIN || op == OP_IN_BOUNDS_ACCESS_CHAIN ? ID_POINTER :
                                                                                                             ID_VALUE;
                if (result->is == ID_POINTER || m->failed)
                        continue;
                if (n_slots > 4096 || p->n_slots > 1u << 22)
                        return refuse(m, "too many slots");
                if (same_slots(m, op, w, n, &result->at))
                        continue;
                result->at = (ref)p->n_slots;
                p->n_slots += n_slots;
        }
        return refuse(m, "a function without an end");
}

static bool decode_instruction(struct making *m, const uint32_t *w)
{
        uint32_t op = w[0] & 0xffff, n = w[0] >> 16;
        const struct type *t;
        struct insn decoded, *i;
        ref at;
        bool none;

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
                        *add(m) = decoded;
                return true;
        case OP_LOAD:
                return decode_access(m, w[3], w[1], id_of(m, w[2])->at, false, alignment(w + 4, n - 4));
        case OP_STORE:
                return value_of(m, w[2], &at, &t) && decode_access(m, w[1], id_of(m, w[2])->type, at, true,
                                                                   alignment(w + 3, n - 3));
        case OP_CONTROL_BARRIER:
                i = add(m);
                i->op = OP_CONTROL_BARRIER;
                i->sub = (uint16_t)id_of(m, w[1])->value;
                return i->sub == SCOPE_WORKGROUP || i->sub == SCOPE_SUBGROUP || refuse(m, "a barrier of another scope");
        case OP_MATRIX_STORE:
                decoded = (struct insn){ .op = OP_MATRIX_STORE };
                if (n < 5 || !decode_matrix_load(m, w + 1, n - 1, true, &decoded))
                        return false;
                *add(m) = decoded;
                return true;
        default:
                if (op >= OP_ATOMIC_LOAD && op <= OP_ATOMIC_XOR)
                        return decode_atomic(m, op, w, n);
                if (same_slots(m, op, w, n, &at) && !m->failed)
                        return true;
                if (!decode_value(m, op, w[1], w[2], w + 3, n - 3, id_of(m, w[2])->at, &decoded))
                        return false;
                *add(m) = decoded;
                return true;
        }
}

bool decode_function(struct making *m, size_t begin)
{
        struct program *p = m->program;
        struct function f = { 0 };
        uint32_t n_ordered;

        if (begin >= m->n_words || !look(m, begin + (m->words[begin] >> 16), &f) || !put_in_order(m, &f, &n_ordered))
                return refuse(m, "a module without a function");
        p->blocks = keep(p, n_ordered * sizeof(*p->blocks));
        p->n_blocks = n_ordered;
        for (uint32_t i = 0; i < f.n; i++) {
                const struct raw_block *b = &f.blocks[i];
                size_t at = b->begin;

                if (b->order == 0)
                        continue;
                p->blocks[b->order - 1].first = p->n_insns;
                for (; at < b->end && !is_end(m->words[at] & 0xffff); at += m->words[at] >> 16)
                        if (!decode_instruction(m, m->words + at))
                                return false;
                if (!decode_branch(m, &f, b, m->words + at))
                        return false;
        }
        return true;
}
