/* Which bytes a state tells apart.
 *
 * A step derives each way of the state by the byte, and that tests the byte against the sets at the fronts of the ways,
 * against nothing else. So bytes that no such set tells apart lead to the same state: inside a string all letters do,
 * and where names are known, all letters that begin none of them. One of them is stepped, and the others are linked to
 * it. What no way can begin with is dead without a step. */
#include <assert.h>
#include "engine/grammar/parser.h"

static_assert(TDM_STATE_DEAD == 0, "rows of steps are cleared to it");

/* More than so many bytes are looked at together. */
enum { FEW_BYTES = 6 };

struct spread {
        struct tdm_arena *arena;
        unsigned n_parts;
        struct tdm_byte_set parts[256]; /* apart; together all bytes */
};

/* The bytes of a part that are in the set become a part of their own, unless all are. */
static void parts_split(struct spread *s, const struct tdm_byte_set *set)
{
        unsigned n = s->n_parts;

        s->arena->steps += n / 8;
        for (unsigned p = 0; p < n; p++) {
                struct tdm_byte_set *part = &s->parts[p], inside, outside;
                uint64_t any_inside = 0, any_outside = 0;

                for (unsigned i = 0; i < 4; i++) {
                        inside.bits[i] = part->bits[i] & set->bits[i];
                        outside.bits[i] = part->bits[i] & ~set->bits[i];
                        any_inside |= inside.bits[i];
                        any_outside |= outside.bits[i];
                }
                if (any_inside && any_outside) {
                        *part = outside;
                        s->parts[s->n_parts++] = inside;
                }
        }
}

/* By all sets that a derivative of e tests. */
static void parts_split_fronts(struct spread *s, uint32_t e)
{
        for (;;) {
                struct tdm_expr x = *tdm_expr_get(s->arena, e);

                if (s->arena->steps++ > s->arena->max_steps)
                        s->arena->failed = true;
                if (s->arena->failed)
                        return;
                switch (x.kind) {
                case TDM_EXPR_KIND_SET:
                        parts_split(s, tdm_expr_set(s->arena, x.a));
                        return;
                case TDM_EXPR_KIND_CAT:
                        parts_split_fronts(s, x.a);
                        if (!tdm_expr_nullable(s->arena, x.a))
                                return;
                        e = x.b;
                        continue;
                case TDM_EXPR_KIND_ALT:
                case TDM_EXPR_KIND_AND:
                        parts_split_fronts(s, x.a);
                        e = x.b;
                        continue;
                case TDM_EXPR_KIND_NOT:
                case TDM_EXPR_KIND_REP:
                        e = x.a;
                        continue;
                case TDM_EXPR_KIND_MOD:
                        for (unsigned i = 0; i < 11; i++) {
                                struct tdm_byte_set one = { 0 };
                                uint8_t byte = (uint8_t) "0123456789."[i];

                                tdm_byte_set_add(&one, byte, byte);
                                parts_split(s, &one);
                        }
                        return;
                default:
                        return;
                }
        }
}

static uint32_t way_head(const struct tdm_arena *arena, uint32_t e)
{
        const struct tdm_expr *x = tdm_expr_get(arena, e);

        return x->kind == TDM_EXPR_KIND_CAT ? x->a : e;
}

void tdm_parser_first(const struct tdm_parser *p, uint32_t state, struct tdm_byte_set *set)
{
        struct tdm_state s = p->states[state];

        for (uint32_t i = 0; i < s.n; i++)
                tdm_expr_first(&p->arena, way_head(&p->arena, p->pairs.items[s.at + i].e), set);
}

/* Links the bytes of each part. */
static void row_link(struct tdm_parser *p, uint32_t state, const struct tdm_byte_set *first)
{
        const struct tdm_grammar *g = p->grammar;
        struct spread s = { .arena = &p->arena };
        uint32_t *row = p->steps + (size_t)state * g->n_classes;

        s.n_parts = 1;
        s.parts[0] = *first;
        for (uint32_t i = 0; i < p->states[state].n; i++)
                parts_split_fronts(&s, way_head(&p->arena, p->pairs.items[p->states[state].at + i].e));
        for (unsigned k = 0; k < s.n_parts; k++) {
                uint32_t leader = TDM_STATE_UNKNOWN;

                for (unsigned i = 0; i < 4; i++) {
                        for (uint64_t left = s.parts[k].bits[i]; left; left &= left - 1) {
                                uint32_t c = g->class_of[i * 64 + (unsigned)__builtin_ctzll(left)];

                                if (leader == TDM_STATE_UNKNOWN)
                                        leader = c;
                                else if (c != leader)
                                        row[c] = TDM_STATE_LINK | leader;
                        }
                }
        }
}

void tdm_parser_spread(struct tdm_parser *p, uint32_t state)
{
        const struct tdm_grammar *g = p->grammar;
        struct tdm_byte_set first = { 0 };
        uint32_t *row = p->steps + (size_t)state * g->n_classes;
        unsigned n = 0;
        uint8_t byte = 0;

        p->states[state].spread = true;
        tdm_parser_first(p, state, &first);
        p->arena.steps += p->states[state].n;
        memset(row, 0, g->n_classes * sizeof(*row));
        for (unsigned i = 0; i < 4; i++) {
                for (uint64_t left = first.bits[i]; left; left &= left - 1, n++) {
                        byte = (uint8_t)(i * 64 + (unsigned)__builtin_ctzll(left));
                        row[g->class_of[byte]] = TDM_STATE_UNKNOWN;
                }
        }
        p->states[state].only = n == 1 ? byte : 256;
        if (n > FEW_BYTES)
                row_link(p, state, &first);
        if (p->arena.failed) { /* too much work for now: another time */
                p->states[state].spread = false;
                memset(row, 0xff, g->n_classes * sizeof(*row));
        }
}
