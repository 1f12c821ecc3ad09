/* A function's blocks: where they begin and end, which order they run in, and what is copied on the way from one to the
 * next. */
#include <stdlib.h>
#include <string.h>

#include "tests/spirv-executor/program.h"

struct raw_block {
        uint32_t label;
        size_t begin, end;    /* words, from behind the label to behind the branch */
        uint32_t merge, next; /* labels; 0: none */
        uint32_t order;       /* + 1; 0: not reached */
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

/* Blocks in the order in which they run: reversed, as a depth-first search leaves them. What comes behind a construct
 * is visited first and so comes last. With it each lane waits at the end of a construct for those that are still in
 * it. */
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
        struct insn *i = add_insn(m);

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
        return op == OP_BRANCH || op == OP_BRANCH_CONDITIONAL || op == OP_SWITCH || op == OP_RETURN ||
               op == OP_UNREACHABLE;
}

static bool least_words(struct making *m, const uint32_t *w)
{
        uint32_t op = w[0] & 0xffff, n = w[0] >> 16,
                 least = op == OP_LOAD || op == OP_ACCESS_CHAIN || op == OP_IN_BOUNDS_ACCESS_CHAIN ||
                                         op == OP_VARIABLE ?
                                 4 :
                         op == OP_LABEL || op == OP_BRANCH || op == OP_SELECTION_MERGE              ? 2 :
                         op == OP_STORE || op == OP_LOOP_MERGE || op == OP_SWITCH || has_result(op) ? 3 :
                         op == OP_BRANCH_CONDITIONAL || op == OP_CONTROL_BARRIER                    ? 4 :
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
                result->is = op == OP_VARIABLE || op == OP_ACCESS_CHAIN || op == OP_IN_BOUNDS_ACCESS_CHAIN ?
                                     ID_POINTER :
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
