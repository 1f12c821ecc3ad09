/* Runs a program. A workgroup's subgroups run one after the other, each until the next barrier of the workgroup; the
 * lanes of a subgroup run in lockstep. Lanes whose ways part wait at the first block that comes behind all of them
 * (decode.c's order), so they are together again where SPIR-V says that they are.
 *
 * What a device would do as it likes is an error here: memory beyond every buffer or at another address than a multiple
 * of what was promised, an index out of its array, a barrier or a product of matrices to which not all lanes come.
 * What nobody wrote is NaN. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/f16.h"
#include "tests/spirv-executor/program.h"

#define NEVER UINT32_MAX
#define BRANCHES_MAX (1u << 26) /* of a workgroup: it would not end */

struct subgroup {
        struct slot *own;
        uint32_t *waiting; /* lanes, of each block */
        uint64_t *blocks;  /* bits: that some wait for */
        uint32_t live;     /* lanes that have not returned */
        uint32_t mask, at; /* those that run, and their next instruction */
        bool stopped;      /* at a barrier; not: done */
};

struct run {
        const struct program *program;
        const uint8_t *push;
        const struct memory *memory;
        uint32_t n_memory, n_blocks_words;
        struct memory last; /* that was accessed */
        uint8_t *shared;
        struct slot *temporary;
        uint32_t n_branches; /* of a workgroup */
        bool failed;
        uint64_t nowhere[32]; /* what is accessed in place of what may not be */
};

static void fail(struct run *r, const struct insn *i, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void fail(struct run *r, const struct insn *i, const char *format, ...)
{
        va_list args;

        if (!r->failed) {
                fprintf(stderr, "spirv-executor: instruction %td (operation %u): ", i - r->program->insns, i->op);
                va_start(args, format);
                vfprintf(stderr, format, args);
                va_end(args);
                fputc('\n', stderr);
        }
        r->failed = true;
}

/* ---- memory ---- */

static bool find_memory(struct run *r, uint64_t address, uint32_t bytes)
{
        uint32_t low = 0, high = r->n_memory;

        while (low < high) {
                uint32_t middle = (low + high) / 2;

                if (r->memory[middle].end <= address)
                        low = middle + 1;
                else
                        high = middle;
        }
        if (low == r->n_memory || address < r->memory[low].begin || bytes > r->memory[low].end - address)
                return false;
        r->last = r->memory[low];
        return true;
}

/* Where `at` further than what the pointer of lane l points to lies. */
static inline uint8_t *reach(struct run *r, const struct insn *i, const struct slot *dynamic, uint32_t l, uint32_t at,
                             uint32_t bytes)
{
        const struct pointer *p = &i->pointer;
        uint64_t address = (uint64_t)p->at + at + (dynamic ? dynamic[0].v[l] | (uint64_t)dynamic[1].v[l] << 32 : 0);

        if (p->space == SPACE_PHYSICAL) {
                if ((address >= r->last.begin && address <= r->last.end && bytes <= r->last.end - address) ||
                    find_memory(r, address, bytes))
                        return (uint8_t *)(uintptr_t)address;
                fail(r, i, "address 0x%" PRIx64 " of lane %u is in no buffer", address, l);
                return (uint8_t *)r->nowhere;
        }
        if (address < p->begin || address > p->end || bytes > p->end - address) {
                fail(r, i, "byte %" PRId64 " of a variable of %u", (int64_t)(address - p->begin), p->end - p->begin);
                return (uint8_t *)r->nowhere;
        }
        return p->space == SPACE_SHARED ? r->shared + address : (uint8_t *)(uintptr_t)r->push + address;
}

static inline void load_leaf(struct slot *d, uint32_t l, const uint8_t *from, uint32_t width)
{
        uint64_t x = 0;

        switch (width) {
        case 8:
                d->v[l] = *from;
                break;
        case 16:
                memcpy(&x, from, 2);
                d->v[l] = (uint32_t)x;
                break;
        case 32:
                memcpy(&d->v[l], from, 4);
                break;
        default:
                memcpy(&x, from, 8);
                d[0].v[l] = (uint32_t)x;
                d[1].v[l] = (uint32_t)(x >> 32);
        }
}

static inline void store_leaf(const struct slot *s, uint32_t l, uint8_t *to, uint32_t width)
{
        if (width == 64)
                memcpy(to + 4, &s[1].v[l], 4);
        memcpy(to, &s->v[l], width >= 32 ? 4 : width / 8);
}

static void access_memory(struct run *r, const struct insn *i, struct slot *own, uint32_t mask)
{
        struct slot *consts = r->program->consts, *value = slot_at(i->op == OWN_WRITE ? i->a : i->dst, own, consts);
        const struct slot *dynamic = i->pointer.dynamic == NO_REF ? NULL : slot_at(i->pointer.dynamic, own, consts);
        const struct type *t = i->type;
        uint32_t bytes = t->leaves[t->n_leaves - 1].at + t->leaves[t->n_leaves - 1].width / 8;
        bool words =
                (t->kind == KIND_VECTOR || t->kind == KIND_INT || t->kind == KIND_FLOAT) && t->leaves[0].width == 32;

        for (uint32_t l = 0; l < LANES; l++) {
                uint8_t *at;

                if (!(mask >> l & 1))
                        continue;
                at = reach(r, i, dynamic, l, 0, bytes);
                if (r->failed)
                        return;
                if ((uintptr_t)at % i->align && i->pointer.space == SPACE_PHYSICAL) {
                        fail(r, i, "address %p is no multiple of %u", (void *)at, i->align);
                        return;
                }
                if (i->op == OWN_READ && words) {
                        for (uint32_t k = 0; k < t->n_leaves; k++)
                                memcpy(&value[k].v[l], at + k * 4, 4);
                        continue;
                }
                for (uint32_t k = 0; k < t->n_leaves; k++) {
                        const struct leaf *leaf = &t->leaves[k];

                        if (i->op == OWN_READ)
                                load_leaf(value + leaf->slot, l, at + leaf->at, leaf->width);
                        else
                                store_leaf(value + leaf->slot, l, at + leaf->at, leaf->width);
                }
        }
}

static void access_slots(struct run *r, const struct insn *i, struct slot *own, uint32_t mask)
{
        struct slot *consts = r->program->consts, *value = slot_at(i->op == OWN_SCATTER ? i->a : i->dst, own, consts);
        const struct slot *dynamic = slot_at(i->pointer.dynamic, own, consts);

        for (uint32_t l = 0; l < LANES; l++) {
                int64_t at;

                if (!(mask >> l & 1))
                        continue;
                at = i->pointer.at + (int64_t)(dynamic[0].v[l] | (uint64_t)dynamic[1].v[l] << 32);
                if (at < i->pointer.begin || at + (int64_t)i->n > (int64_t)i->pointer.end) {
                        fail(r, i, "an index leads out of a variable");
                        return;
                }
                for (uint32_t k = 0; k < i->n; k++)
                        if (i->op == OWN_GATHER)
                                value[k].v[l] = own[at + k].v[l];
                        else
                                own[at + k].v[l] = value[k].v[l];
        }
}

static void make_address(struct run *r, const struct insn *i, struct slot *own, uint32_t mask)
{
        struct slot *consts = r->program->consts, *d = slot_at(i->dst, own, consts);
        const struct slot *base = i->a == NO_REF ? NULL : slot_at(i->a, own, consts);
        int64_t sums[LANES];

        for (uint32_t l = 0; l < LANES; l++)
                sums[l] = base ? (int64_t)(base[0].v[l] | (uint64_t)base[1].v[l] << 32) : 0;
        for (uint32_t k = 0; k < i->n_words; k += 3) {
                const struct slot *index = slot_at((ref)i->words[k], own, consts);
                int64_t stride = (int32_t)i->words[k + 1];

                if (i->words[k + 2] == 64)
                        for (uint32_t l = 0; l < LANES; l++)
                                sums[l] += (int64_t)(index[0].v[l] | (uint64_t)index[1].v[l] << 32) * stride;
                else
                        for (uint32_t l = 0; l < LANES; l++)
                                sums[l] += (int64_t)(int32_t)index->v[l] * stride;
        }
        for (uint32_t l = 0; l < LANES; l++)
                if (mask >> l & 1) {
                        d[0].v[l] = (uint32_t)sums[l];
                        d[1].v[l] = (uint32_t)((uint64_t)sums[l] >> 32);
                }
}

/* A matrix whose place is that of the first lane. */
static void access_matrix(struct run *r, const struct insn *i, struct slot *own)
{
        struct slot *consts = r->program->consts,
                    *value = slot_at(i->op == OP_MATRIX_STORE ? i->a : i->dst, own, consts);
        const struct slot *dynamic = i->pointer.dynamic == NO_REF ? NULL : slot_at(i->pointer.dynamic, own, consts),
                          *stride = slot_at(i->b, own, consts);
        const struct type *t = i->type;
        uint32_t bytes = t->width / 8;

        for (uint32_t l = 1; l < LANES; l++)
                if (stride->v[l] != stride->v[0] ||
                    (dynamic && (dynamic[0].v[l] != dynamic[0].v[0] || dynamic[1].v[l] != dynamic[1].v[0]))) {
                        fail(r, i, "lanes want different matrices");
                        return;
                }
        for (uint32_t l = 0; l < LANES; l++)
                for (uint32_t k = 0; k < t->n && !r->failed; k++) {
                        uint32_t row, col, line, in_line;
                        uint8_t *at;

                        matrix_place(t, l, k, &row, &col);
                        line = i->sub == LAYOUT_ROW_MAJOR ? row : col;
                        in_line = i->sub == LAYOUT_ROW_MAJOR ? col : row;
                        at = reach(r, i, dynamic, 0, line * stride->v[0] * i->type_a->bytes + in_line * bytes, bytes);
                        if (i->op == OP_MATRIX_LOAD)
                                load_leaf(value + k, l, at, t->width);
                        else
                                store_leaf(value + k, l, at, t->width);
                }
}

static void atomic(struct run *r, const struct insn *i, struct slot *own, uint32_t mask)
{
        struct slot *consts = r->program->consts, *d = i->dst == NO_REF ? NULL : slot_at(i->dst, own, consts);
        const struct slot *a = i->a == NO_REF ? NULL : slot_at(i->a, own, consts),
                          *b = i->b == NO_REF ? NULL : slot_at(i->b, own, consts),
                          *dynamic = i->pointer.dynamic == NO_REF ? NULL : slot_at(i->pointer.dynamic, own, consts);
        uint32_t bytes = i->width / 8;

        for (uint32_t l = 0; l < LANES; l++) {
                uint64_t old = 0, x = 0, y;
                uint8_t *at;

                if (!(mask >> l & 1))
                        continue;
                at = reach(r, i, dynamic, l, 0, bytes);
                memcpy(&old, at, bytes);
                if (a)
                        x = a[0].v[l] | (bytes == 8 ? (uint64_t)a[1].v[l] << 32 : 0);
                y = old;
                switch (i->op) {
                case OP_ATOMIC_LOAD:
                        break;
                case OP_ATOMIC_STORE:
                case OP_ATOMIC_EXCHANGE:
                        y = x;
                        break;
                case OP_ATOMIC_COMPARE_EXCHANGE:
                        if (old == (b[0].v[l] | (bytes == 8 ? (uint64_t)b[1].v[l] << 32 : 0)))
                                y = x;
                        break;
                case OP_ATOMIC_I_ADD:
                        y = old + x;
                        break;
                case OP_ATOMIC_U_MIN:
                        y = x < old ? x : old;
                        break;
                case OP_ATOMIC_U_MAX:
                        y = x > old ? x : old;
                        break;
                case OP_ATOMIC_AND:
                        y = old & x;
                        break;
                case OP_ATOMIC_OR:
                        y = old | x;
                        break;
                case OP_ATOMIC_XOR:
                        y = old ^ x;
                        break;
                default:
                        fail(r, i, "an atomic operation that is not known");
                }
                memcpy(at, &y, bytes);
                if (d) {
                        d[0].v[l] = (uint32_t)old;
                        if (bytes == 8)
                                d[1].v[l] = (uint32_t)(old >> 32);
                }
        }
}

/* ---- subgroups ---- */

static uint32_t combined(uint32_t op, uint32_t x, uint32_t y)
{
        float a = tdm_bits_to_f32(x), b = tdm_bits_to_f32(y);

        switch (op) {
        case OP_GROUP_I_ADD:
                return x + y;
        case OP_GROUP_F_ADD:
                return tdm_f32_to_bits(a + b);
        case OP_GROUP_U_MIN:
                return y < x ? y : x;
        case OP_GROUP_U_MAX:
                return x < y ? y : x;
        case OP_GROUP_F_MIN:
                return b < a ? y : x;
        default:
                return a < b ? y : x;
        }
}

/* Of one scalar; of 64 bits each half by itself, which none but what moves values may have. */
static void group(struct run *r, const struct insn *i, const struct slot *a, const struct slot *b, struct slot *d,
                  uint32_t mask)
{
        uint32_t first = (uint32_t)__builtin_ctz(mask), sum = 0, from;
        struct slot before = a ? *a : (struct slot){ { 0 } };
        bool begun = false;

        for (uint32_t l = 0; l < LANES; l++) {
                if (!(mask >> l & 1))
                        continue;
                switch (i->op) {
                case OP_GROUP_ELECT:
                        d->v[l] = l == first;
                        break;
                case OP_GROUP_BROADCAST_FIRST:
                        d->v[l] = before.v[first];
                        break;
                case OP_GROUP_BROADCAST:
                case OP_GROUP_SHUFFLE:
                case OP_GROUP_SHUFFLE_XOR:
                        from = i->op == OP_GROUP_SHUFFLE_XOR ? l ^ b->v[l] : b->v[l];
                        if (from >= LANES || !(mask >> from & 1))
                                fail(r, i, "lane %u asks lane %u, which is not there", l, from);
                        else
                                d->v[l] = before.v[from];
                        break;
                default: /* a sum: all of it (0), up to this lane (1), up to the one before (2) */
                        if (i->sub == 2 && !begun)
                                d->v[l] = 0; /* of sums alone: decode.c */
                        else if (i->sub == 2)
                                d->v[l] = sum;
                        sum = begun ? combined(i->op, sum, before.v[l]) : before.v[l];
                        begun = true;
                        if (i->sub == 1)
                                d->v[l] = sum;
                }
        }
        for (uint32_t l = 0; l < LANES && i->op >= OP_GROUP_I_ADD && i->sub == 0; l++)
                if (mask >> l & 1)
                        d->v[l] = sum;
}

static void ballot(const struct slot *a, struct slot *d, uint32_t mask)
{
        uint32_t bits = 0;

        for (uint32_t l = 0; l < LANES; l++)
                bits |= mask >> l & 1 && a->v[l] ? 1u << l : 0;
        for (uint32_t k = 0; k < 4; k++)
                for (uint32_t l = 0; l < LANES; l++)
                        if (mask >> l & 1)
                                d[k].v[l] = k == 0 ? bits : 0;
}

static void groups(struct run *r, const struct insn *i, struct slot *own, uint32_t mask)
{
        struct slot *consts = r->program->consts, *d = slot_at(i->dst, own, consts);
        const struct slot *a = i->a == NO_REF ? NULL : slot_at(i->a, own, consts),
                          *b = i->b == NO_REF ? NULL : slot_at(i->b, own, consts);

        if (i->op == OP_GROUP_BALLOT) {
                ballot(a, d, mask);
                return;
        }
        for (uint32_t k = 0; k < (i->op == OP_GROUP_ELECT ? 1 : i->type->n_slots); k++)
                group(r, i, a ? a + k : NULL, b, d + k, mask);
}

/* ---- instructions ---- */

static inline void copy(struct slot *d, const struct slot *s, uint32_t n, uint32_t mask)
{
        if (mask == ALL_LANES) {
                memmove(d, s, n * sizeof(*d));
                return;
        }
        for (uint32_t k = 0; k < n; k++)
                for (uint32_t l = 0; l < LANES; l++)
                        d[k].v[l] = mask >> l & 1 ? s[k].v[l] : d[k].v[l];
}

static void extract_dynamic(struct run *r, const struct insn *i, struct slot *own, uint32_t mask)
{
        struct slot *consts = r->program->consts, *d = slot_at(i->dst, own, consts);
        const struct slot *a = slot_at(i->a, own, consts), *index = slot_at(i->b, own, consts);
        uint32_t step = i->width == 64 ? 2 : 1;

        for (uint32_t l = 0; l < LANES; l++) {
                if (!(mask >> l & 1))
                        continue;
                if (index->v[l] >= i->n) {
                        fail(r, i, "component %u of %u", index->v[l], i->n);
                        return;
                }
                for (uint32_t k = 0; k < step; k++)
                        d[k].v[l] = a[index->v[l] * step + k].v[l];
        }
}

static void instruction(struct run *r, const struct insn *i, const struct subgroup *s)
{
        struct slot *own = s->own, *consts = r->program->consts, *d;
        const char *why;

        if (i->broken) {
                fail(r, i, "an index leads out of an array");
                return;
        }
        switch (i->op) {
        case OWN_COPY:
                copy(slot_at(i->dst, own, consts), slot_at(i->a, own, consts), i->n, s->mask);
                return;
        case OWN_COPIES:
                d = slot_at(i->dst, own, consts);
                for (uint32_t k = 0; k < i->n_words; d += i->words[k + 1], k += 2)
                        copy(d, slot_at((ref)i->words[k], own, consts), i->words[k + 1], s->mask);
                return;
        case OWN_SPLAT:
                for (uint32_t k = 0; k < i->n; k++)
                        copy(slot_at(i->dst, own, consts) + k, slot_at(i->a, own, consts), 1, s->mask);
                return;
        case OWN_ADDRESS:
                make_address(r, i, own, s->mask);
                return;
        case OWN_READ:
        case OWN_WRITE:
                access_memory(r, i, own, s->mask);
                return;
        case OWN_GATHER:
        case OWN_SCATTER:
                access_slots(r, i, own, s->mask);
                return;
        case OP_VECTOR_EXTRACT_DYNAMIC:
                extract_dynamic(r, i, own, s->mask);
                return;
        case OP_MATRIX_LOAD:
        case OP_MATRIX_STORE:
        case OP_MATRIX_MULTIPLY_ADD:
                if (s->mask != ALL_LANES) {
                        fail(r, i, "lanes 0x%x come to a matrix of a whole subgroup", s->mask);
                        return;
                }
                if (i->op != OP_MATRIX_MULTIPLY_ADD) {
                        access_matrix(r, i, own);
                        return;
                }
                why = matrix_multiply(i, own, consts);
                if (why)
                        fail(r, i, "%s", why);
                return;
        default:
                break;
        }
        if (i->op >= OP_ATOMIC_LOAD && i->op <= OP_ATOMIC_XOR)
                atomic(r, i, own, s->mask);
        else if (i->op >= OP_GROUP_ELECT && i->op <= OP_GROUP_F_MAX)
                groups(r, i, own, s->mask);
        else if (!compute(i, own, consts, s->mask))
                fail(r, i, "an operation that is not known");
}

/* ---- ways through a function ---- */

static void follow(struct run *r, struct subgroup *s, uint32_t edge, uint32_t mask)
{
        const struct edge *e = &r->program->edges[edge];
        struct slot *consts = r->program->consts, *t = r->temporary;

        for (uint32_t k = 0; k < e->n_copies && e->n_copies > 1; t += e->copies[k++].n)
                memcpy(t, slot_at(e->copies[k].src, s->own, consts), e->copies[k].n * sizeof(struct slot));
        t = r->temporary;
        for (uint32_t k = 0; k < e->n_copies; t += e->copies[k++].n)
                copy(slot_at(e->copies[k].dst, s->own, consts),
                     e->n_copies > 1 ? t : slot_at(e->copies[k].src, s->own, consts), e->copies[k].n, mask);
        s->waiting[e->block] |= mask;
        s->blocks[e->block / 64] |= UINT64_C(1) << e->block % 64;
}

/* Takes up the lanes of the first block that some wait for. */
static void next_block(struct run *r, struct subgroup *s)
{
        for (uint32_t i = 0; i < r->n_blocks_words; i++)
                if (s->blocks[i]) {
                        uint32_t block = i * 64 + (uint32_t)__builtin_ctzll(s->blocks[i]);

                        s->blocks[i] &= s->blocks[i] - 1;
                        s->mask = s->waiting[block];
                        s->waiting[block] = 0;
                        s->at = r->program->blocks[block].first;
                        return;
                }
        s->at = NEVER;
}

static void branch(struct run *r, struct subgroup *s, const struct insn *i)
{
        const struct slot *a = i->a == NO_REF ? NULL : slot_at(i->a, s->own, r->program->consts);
        uint32_t left = s->mask, taken;

        if (++r->n_branches > BRANCHES_MAX)
                fail(r, i, "a workgroup does not end");
        switch (i->op) {
        case OWN_BRANCH:
                follow(r, s, i->words[0], s->mask);
                break;
        case OWN_CHOOSE:
                taken = 0;
                for (uint32_t l = 0; l < LANES; l++)
                        taken |= (uint32_t)(a->v[l] != 0) << l;
                taken &= s->mask;
                if (taken)
                        follow(r, s, i->words[0], taken);
                if (taken != s->mask)
                        follow(r, s, i->words[1], s->mask & ~taken);
                break;
        case OWN_SWITCH:
                for (uint32_t k = 1; k + 1 < i->n_words && left; k += 2) {
                        taken = 0;
                        for (uint32_t l = 0; l < LANES; l++)
                                taken |= (uint32_t)(a->v[l] == i->words[k]) << l;
                        taken &= left;
                        if (taken)
                                follow(r, s, i->words[k + 1], taken);
                        left &= ~taken;
                }
                if (left)
                        follow(r, s, i->words[0], left);
                break;
        case OWN_RETURN:
                s->live &= ~s->mask;
                break;
        default:
                fail(r, i, "what cannot be reached was");
        }
        next_block(r, s);
}

/* Until the next barrier of the workgroup, or the end. */
static void run_subgroup(struct run *r, struct subgroup *s)
{
        const struct insn *insns = r->program->insns;

        s->stopped = false;
        while (s->at != NEVER && !r->failed) {
                const struct insn *i = &insns[s->at++];

                if (i->op >= OWN_BRANCH) {
                        branch(r, s, i);
                } else if (i->op == OP_CONTROL_BARRIER) {
                        if (s->mask != s->live)
                                fail(r, i, "lanes 0x%x of 0x%x come to a barrier", s->mask, s->live);
                        if (i->sub == SCOPE_WORKGROUP) {
                                s->stopped = true;
                                return;
                        }
                } else {
                        instruction(r, i, s);
                }
        }
}

static void put_input(struct slot *at, uint32_t k, uint32_t l, uint32_t value)
{
        at[k].v[l] = value;
}

/* Of a built-in of three numbers the k-th. */
static uint32_t one_of_three(const struct program *p, uint32_t built_in, uint32_t k, const uint32_t groups_n[3],
                             const uint32_t id[3], const uint32_t local[3])
{
        switch (built_in) {
        case BUILT_IN_NUM_WORKGROUPS:
                return groups_n[k];
        case BUILT_IN_WORKGROUP_ID:
                return id[k];
        case BUILT_IN_LOCAL_ID:
                return local[k];
        default:
                return id[k] * p->size[k] + local[k];
        }
}

static void begin_subgroup(struct run *r, struct subgroup *s, uint32_t index, uint32_t n_subgroups,
                           const uint32_t groups_n[3], const uint32_t id[3])
{
        const struct program *p = r->program;
        uint32_t n = p->size[0] * p->size[1] * p->size[2], left = n - index * LANES;

        s->live = left >= LANES ? ALL_LANES : (1u << left) - 1;
        memset(s->waiting, 0, p->n_blocks * sizeof(*s->waiting));
        memset(s->blocks, 0, r->n_blocks_words * sizeof(*s->blocks));
        s->mask = s->live;
        s->at = p->blocks[0].first;
        for (uint32_t i = 0; i < p->n_inputs; i++)
                for (uint32_t l = 0; l < LANES; l++) {
                        struct slot *at = s->own + p->inputs[i].at;
                        uint32_t local = index * LANES + l,
                                 xyz[3] = { local % p->size[0], local / p->size[0] % p->size[1],
                                            local / p->size[0] / p->size[1] };

                        switch (p->inputs[i].built_in) {
                        case BUILT_IN_SUBGROUP_SIZE:
                                put_input(at, 0, l, LANES);
                                break;
                        case BUILT_IN_NUM_SUBGROUPS:
                                put_input(at, 0, l, n_subgroups);
                                break;
                        case BUILT_IN_SUBGROUP_ID:
                                put_input(at, 0, l, index);
                                break;
                        case BUILT_IN_SUBGROUP_LANE:
                                put_input(at, 0, l, l);
                                break;
                        case BUILT_IN_LOCAL_INDEX:
                                put_input(at, 0, l, local);
                                break;
                        default:
                                for (uint32_t k = 0; k < 3; k++)
                                        put_input(at, k, l,
                                                  one_of_three(p, p->inputs[i].built_in, k, groups_n, id, xyz));
                        }
                }
}

static void run_workgroup(struct run *r, struct subgroup *subgroups, uint32_t n, const uint32_t groups_n[3],
                          const uint32_t id[3])
{
        uint32_t n_stopped, where;

        memset(r->shared, 0xff, r->program->shared_bytes);
        r->n_branches = 0;
        for (uint32_t i = 0; i < n; i++)
                begin_subgroup(r, &subgroups[i], i, n, groups_n, id);
        do {
                n_stopped = 0;
                where = NEVER;
                for (uint32_t i = 0; i < n && !r->failed; i++) {
                        if (subgroups[i].at == NEVER)
                                continue;
                        run_subgroup(r, &subgroups[i]);
                        if (!subgroups[i].stopped)
                                continue;
                        n_stopped++;
                        if (where != NEVER && subgroups[i].at != where)
                                fail(r, &r->program->insns[where - 1], "subgroups wait at different barriers");
                        where = subgroups[i].at;
                }
        } while (n_stopped && !r->failed);
}

bool run_program(const struct program *p, const uint8_t push[PUSH_BYTES], const uint32_t groups_n[3],
                 const struct memory *memory, uint32_t n_memory)
{
        uint32_t n = (p->size[0] * p->size[1] * p->size[2] + LANES - 1) / LANES, id[3],
                 n_words = (p->n_blocks + 63) / 64, most = 1;
        struct subgroup *subgroups = calloc(n, sizeof(*subgroups));
        struct slot *slots = aligned_alloc(64, ((size_t)n * p->n_slots + 1) * sizeof(struct slot));
        uint32_t *waiting = calloc((size_t)n * p->n_blocks, sizeof(*waiting));
        uint64_t *blocks = calloc((size_t)n * n_words, sizeof(*blocks));
        struct run r = { .program = p,
                         .push = push,
                         .memory = memory,
                         .n_memory = n_memory,
                         .n_blocks_words = n_words,
                         .shared = aligned_alloc(64, SHARED_BYTES_MAX) };

        for (uint32_t i = 0; i < p->n_edges; i++) {
                uint32_t sum = 0;

                for (uint32_t k = 0; k < p->edges[i].n_copies; k++)
                        sum += p->edges[i].copies[k].n;
                most = sum > most ? sum : most;
        }
        r.temporary = aligned_alloc(64, most * sizeof(struct slot));
        if (!subgroups || !slots || !waiting || !blocks || !r.shared || !r.temporary)
                abort();
        memset(slots, 0xff, (size_t)n * p->n_slots * sizeof(struct slot));
        for (uint32_t i = 0; i < n; i++) {
                subgroups[i].own = slots + (size_t)i * p->n_slots;
                subgroups[i].waiting = waiting + (size_t)i * p->n_blocks;
                subgroups[i].blocks = blocks + (size_t)i * n_words;
        }
        for (id[2] = 0; id[2] < groups_n[2]; id[2]++)
                for (id[1] = 0; id[1] < groups_n[1]; id[1]++)
                        for (id[0] = 0; id[0] < groups_n[0] && !r.failed; id[0]++)
                                run_workgroup(&r, subgroups, n, groups_n, id);
        free(subgroups);
        free(slots);
        free(waiting);
        free(blocks);
        free(r.shared);
        free(r.temporary);
        return !r.failed;
}
