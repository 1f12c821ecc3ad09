/* For which groups of pieces a state is open: any piece of the group may follow it.
 *
 * Two ways to know. A way of the state repeats a class of characters that holds all of the group's, often enough. Or
 * the states that the group's characters lead to are few and all alive: so it is inside a string whose pattern is not
 * anchored, or where a name must not match one. */
#include "engine/grammar/mask.h"

/* Where the bytes of a character beyond ASCII stand. U+2028 and U+2029 are left out, as in the groups. */
enum {
        PLACE_START,
        ONE_LEFT,
        TWO_LEFT,
        THREE_LEFT,
        BEHIND_E0,
        BEHIND_ED,
        BEHIND_F0,
        BEHIND_F4,
        BEHIND_E2,
        BEHIND_E280
};

static const struct {
        uint8_t place, low, high, next;
} utf8_edges[] = {
        { PLACE_START, 0xc2, 0xdf, ONE_LEFT },    { PLACE_START, 0xe0, 0xe0, BEHIND_E0 },
        { PLACE_START, 0xe1, 0xe1, TWO_LEFT },    { PLACE_START, 0xe2, 0xe2, BEHIND_E2 },
        { PLACE_START, 0xe3, 0xec, TWO_LEFT },    { PLACE_START, 0xed, 0xed, BEHIND_ED },
        { PLACE_START, 0xee, 0xef, TWO_LEFT },    { PLACE_START, 0xf0, 0xf0, BEHIND_F0 },
        { PLACE_START, 0xf1, 0xf3, THREE_LEFT },  { PLACE_START, 0xf4, 0xf4, BEHIND_F4 },
        { ONE_LEFT, 0x80, 0xbf, PLACE_START },    { TWO_LEFT, 0x80, 0xbf, ONE_LEFT },
        { THREE_LEFT, 0x80, 0xbf, TWO_LEFT },     { BEHIND_E0, 0xa0, 0xbf, ONE_LEFT },
        { BEHIND_ED, 0x80, 0x9f, ONE_LEFT },      { BEHIND_F0, 0x90, 0xbf, TWO_LEFT },
        { BEHIND_F4, 0x80, 0x8f, TWO_LEFT },      { BEHIND_E2, 0x80, 0x80, BEHIND_E280 },
        { BEHIND_E2, 0x81, 0xbf, ONE_LEFT },      { BEHIND_E280, 0x80, 0xa7, PLACE_START },
        { BEHIND_E280, 0xaa, 0xbf, PLACE_START },
};

enum { STARTS_MAX = 12, PLACES_MAX = 128 };

/* The states that characters of a group lead to. */
struct reach {
        struct tdm_parser *parser;
        struct {
                uint32_t state;
                uint8_t place;
        } items[PLACES_MAX];
        unsigned n, n_starts;
        bool closed; /* so far: none is dead, and they are few */
};

static void reach_add(struct reach *r, uint32_t state, uint8_t place)
{
        for (unsigned i = 0; i < r->n; i++)
                if (r->items[i].state == state && r->items[i].place == place)
                        return;
        r->n_starts += place == PLACE_START;
        r->closed = state != TDM_STATE_DEAD && r->n < PLACES_MAX && r->n_starts <= STARTS_MAX;
        if (!r->closed)
                return;
        r->items[r->n].state = state;
        r->items[r->n++].place = place;
}

static void reach_bytes(struct reach *r, uint32_t state, const struct tdm_byte_set *bytes, uint8_t place)
{
        uint32_t last = TDM_STATE_UNKNOWN;

        for (unsigned i = 0; i < 4; i++) {
                for (uint64_t left = bytes->bits[i]; left && r->closed; left &= left - 1) {
                        uint8_t byte = (uint8_t)(i * 64 + (unsigned)__builtin_ctzll(left));
                        uint32_t next = tdm_parser_step(r->parser, state, byte);

                        if (next != last)
                                reach_add(r, next, place);
                        last = next;
                }
        }
}

static void reach_from(struct reach *r, uint32_t state, uint8_t place, const struct tdm_group *group)
{
        r->parser->arena.steps += 4;
        if (place == PLACE_START)
                reach_bytes(r, state, &group->bytes, place);
        for (unsigned k = 0; group->wide && k < TDM_ARRAY_SIZE(utf8_edges) && r->closed; k++) {
                struct tdm_byte_set bytes = { 0 };

                if (utf8_edges[k].place != place)
                        continue;
                tdm_byte_set_add(&bytes, utf8_edges[k].low, utf8_edges[k].high);
                reach_bytes(r, state, &bytes, utf8_edges[k].next);
        }
}

static bool byte_set_covers(const struct tdm_byte_set *set, const struct tdm_byte_set *other)
{
        for (unsigned i = 0; i < 4; i++)
                if (other->bits[i] & ~set->bits[i])
                        return false;
        return true;
}

/* Bits of state.open: the groups; who were looked for; and this. */
#define OPEN_BY_COUNT (1u << 31)
#define LOOKED_FOR(group) (1u << (TDM_GROUPS + (group)))

/* Marks the group where its characters lead to few states and none is dead; then it is open to all of them. */
static void open_by_reach(struct tdm_parser *p, const struct tdm_vocabulary *v, uint32_t state, unsigned g)
{
        const struct tdm_group *group = &v->groups[g];
        struct tdm_byte_set first = { 0 };
        struct reach r;

        p->states[state].open |= LOOKED_FOR(g);
        tdm_parser_first(p, state, &first);
        if (!byte_set_covers(&first, &group->bytes))
                return;
        r.parser = p;
        r.n = r.n_starts = 0;
        r.closed = true;
        reach_add(&r, state, PLACE_START);
        for (unsigned i = 0; i < r.n && r.closed; i++)
                reach_from(&r, r.items[i].state, r.items[i].place, group);
        if (p->arena.failed) { /* another time */
                p->states[state].open &= ~LOOKED_FOR(g);
                return;
        }
        for (unsigned i = 0; i < r.n && r.closed; i++)
                if (r.items[i].place == PLACE_START)
                        p->states[r.items[i].state].open |= 1u << g;
}

/* The single bytes that are a text of e, and whether each wide character is one. */
static void chars_taken(struct tdm_parser *p, uint32_t e, struct tdm_byte_set *bytes, bool *wide)
{
        uint32_t rest, at = e;
        struct tdm_expr x;

        for (;;) {
                x = *tdm_expr_get(&p->arena, at);
                if (x.kind == TDM_EXPR_KIND_ALT) {
                        struct tdm_expr branch = *tdm_expr_get(&p->arena, x.a);

                        if (branch.kind == TDM_EXPR_KIND_SET)
                                tdm_expr_first(&p->arena, x.a, bytes);
                        at = x.b;
                        continue;
                }
                if (x.kind == TDM_EXPR_KIND_SET)
                        tdm_expr_first(&p->arena, at, bytes);
                break;
        }
        rest = tdm_expr_and(&p->arena, p->grammar->wide_char, tdm_expr_not(&p->arena, e));
        *wide = !tdm_expr_alive(&p->arena, rest) && !p->arena.failed;
}

/* Marks the groups whose characters a way repeats. */
static void open_by_count(struct tdm_parser *p, const struct tdm_vocabulary *v, uint32_t state)
{
        struct tdm_state s = p->states[state];
        uint32_t open = OPEN_BY_COUNT;

        for (uint32_t i = 0; i < s.n && i < 16; i++) {
                struct tdm_expr x = *tdm_expr_get(&p->arena, p->pairs.items[s.at + i].e);
                struct tdm_byte_set bytes = { 0 };
                bool wide;

                if (x.kind == TDM_EXPR_KIND_CAT)
                        x = *tdm_expr_get(&p->arena, x.a);
                if (x.kind != TDM_EXPR_KIND_REP || x.flags & TDM_EXPR_HAS_CALL)
                        continue;
                chars_taken(p, x.a, &bytes, &wide);
                for (unsigned g = 0; g < TDM_GROUPS; g++) {
                        const struct tdm_group *group = &v->groups[g];

                        if (x.c >= group->max_chars && (wide || !group->wide) && byte_set_covers(&bytes, &group->bytes))
                                open |= 1u << g;
                }
        }
        p->states[state].open |= open;
}

bool tdm_mask_is_open(struct tdm_parser *p, const struct tdm_vocabulary *v, uint32_t state, unsigned group)
{
        if (p->states[state].spread && p->states[state].only <= 255)
                return false;
        if (!(p->states[state].open & OPEN_BY_COUNT))
                open_by_count(p, v, state);
        if (!(p->states[state].open & (1u << group | LOOKED_FOR(group))))
                open_by_reach(p, v, state, group);
        return p->states[state].open >> group & 1 && !p->arena.failed;
}
