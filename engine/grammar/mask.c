/* Which tokens may come next: the vocabulary's tries walked with the parser's states.
 *
 * Inside a JSON string the parser's state does not change with plain characters. There the plain pieces are all
 * allowed, as one precomputed slice, and of the other pieces only their tails are walked. Elsewhere a walk begins with
 * the first bytes that the state allows, and passes over the groups of plain pieces that a state is open for: it may go
 * on with any of their characters.
 *
 * Where most ways lead into a string (the first letters of a free member name, which may still become a known one), the
 * mask is that of the string but for the pieces on whose way the two states differ. */
#include "engine/grammar/mask.h"

struct walk {
        struct tdm_parser *parser;
        const struct tdm_vocabulary *vocabulary;
        uint64_t *words;
        struct tdm_mask_level *levels; /* [max depth + 1] */
        uint32_t n_visited;
        unsigned base; /* what the mask may best be kept by */
};

/* Nodes are looked at quickly, and this many count as a step of the parser. */
#define NODES_PER_STEP 16u
#define NODES_PER_CHECK 256u

/* Before each node: false where the walk takes more steps than are left. */
static bool goes_on(struct walk *w)
{
        struct tdm_arena *arena = &w->parser->arena;

        if (++w->n_visited % NODES_PER_CHECK == 0) {
                arena->steps += NODES_PER_CHECK / NODES_PER_STEP;
                arena->failed = arena->failed || arena->steps > arena->max_steps;
        }
        return !arena->failed;
}

static const struct tdm_byte_set plain_starts = { { 0xfffffffb00000000u, 0xffffffffefffffffu, 0,
                                                    0xffffffffffffffffu } };

static void set_ids(uint64_t *words, const uint32_t *ids, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                words[ids[i] / 64] |= UINT64_C(1) << ids[i] % 64;
}

static void clear_ids(uint64_t *words, const uint32_t *ids, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                words[ids[i] / 64] &= ~(UINT64_C(1) << ids[i] % 64);
}

static bool starts_plain(const struct tdm_arena *arena, uint32_t e)
{
        struct tdm_byte_set set = { 0 };

        tdm_expr_first(arena, e, &set);
        for (unsigned i = 0; i < 4; i++)
                if (set.bits[i] & plain_starts.bits[i])
                        return true;
        return false;
}

/* Whether the state stands inside a string: how many plain characters may follow at most. 0: it is no such state.
 * *ret_stable: they change nothing, as far as a piece is long. */
static uint32_t plain_room(struct tdm_parser *p, uint32_t state, uint32_t max_chars, bool *ret_stable)
{
        const struct tdm_grammar *g = p->grammar;
        struct tdm_state *s = &p->states[state];
        uint32_t room = 0;
        bool stable = true;

        *ret_stable = false;
        if (s->n > 8)
                return 0;
        for (uint32_t i = 0; i < s->n; i++) {
                uint32_t e = p->pairs.items[s->at + i].e, rest = TDM_EXPR_EPS;
                struct tdm_expr x = *tdm_expr_get(&p->arena, e);

                if (x.kind == TDM_EXPR_KIND_CAT) {
                        rest = x.b;
                        x = *tdm_expr_get(&p->arena, x.a);
                }
                if (x.kind != TDM_EXPR_KIND_REP || x.a == 0 || (x.a != g->any_char[0] && x.a != g->any_char[1])) {
                        if (starts_plain(&p->arena, e))
                                return 0;
                        continue;
                }
                if (rest == TDM_EXPR_EPS || starts_plain(&p->arena, rest))
                        return 0;
                room = TDM_MAX(room, x.c);
                stable = stable && (x.b == 0 || x.b > max_chars) && x.c > max_chars;
        }
        *ret_stable = stable && room > 0;
        return room;
}

/* ---- runs: where only a count changes ---- */

enum { RUN_NONE = 1, RUN_LEAST = 4, RUN_WAYS_MAX = 64 };

static const struct tdm_expr *way_front(const struct tdm_parser *p, uint32_t way)
{
        const struct tdm_expr *x = tdm_expr_get(&p->arena, p->pairs.items[way].e);

        return x->kind == TDM_EXPR_KIND_CAT ? tdm_expr_get(&p->arena, x->a) : x;
}

/* Whether the way may read bytes of a set, up to a count, before what follows. */
static bool way_counts(const struct tdm_parser *p, uint32_t way)
{
        const struct tdm_expr *x = way_front(p, way);

        return x->kind == TDM_EXPR_KIND_REP && x->b == 0 && x->c != TDM_EXPR_INF &&
               tdm_expr_get(&p->arena, x->a)->kind == TDM_EXPR_KIND_SET;
}

/* Whether all ways that count do so alike, and no other way begins with a byte of their set. */
static bool run_front(const struct tdm_parser *p, const struct tdm_state *s, struct tdm_expr *ret_front)
{
        const struct tdm_byte_set *set;
        struct tdm_byte_set others = { 0 };

        *ret_front = (struct tdm_expr){ 0 };
        for (uint32_t i = s->at; i < s->at + s->n; i++) {
                const struct tdm_expr *x = way_front(p, i);

                if (!way_counts(p, i))
                        continue;
                if (ret_front->kind == TDM_EXPR_KIND_NONE)
                        *ret_front = *x;
                else if (x->a != ret_front->a || x->c != ret_front->c)
                        return false;
        }
        if (ret_front->kind == TDM_EXPR_KIND_NONE || ret_front->c < RUN_LEAST)
                return false;
        for (uint32_t i = s->at; i < s->at + s->n; i++)
                if (!way_counts(p, i))
                        tdm_expr_first(&p->arena, p->pairs.items[i].e, &others);
        set = tdm_expr_set(&p->arena, tdm_expr_get(&p->arena, ret_front->a)->a);
        for (unsigned i = 0; i < 4; i++)
                if (set->bits[i] & others.bits[i])
                        return false;
        return true;
}

/* Whether the state t, one byte of the run behind s, has the ways of s with another count. */
static bool run_goes_on(const struct tdm_parser *p, const struct tdm_state *s, const struct tdm_state *t)
{
        const struct tdm_pair *pairs = p->pairs.items;
        uint32_t i = s->at, k = t->at;

        if (s->n != t->n || s->whole != t->whole)
                return false;
        for (;; i++, k++) { /* the others, which are sorted alike */
                while (i < s->at + s->n && way_counts(p, i))
                        i++;
                while (k < t->at + t->n && way_counts(p, k))
                        k++;
                if (i == s->at + s->n || k == t->at + t->n)
                        break;
                if (pairs[i].e != pairs[k].e || pairs[i].frame != pairs[k].frame)
                        return false;
        }
        if (i != s->at + s->n || k != t->at + t->n)
                return false;
        for (i = s->at; i < s->at + s->n; i++) {
                const struct tdm_expr *x = tdm_expr_get(&p->arena, pairs[i].e);
                uint32_t rest = x->kind == TDM_EXPR_KIND_CAT ? x->b : TDM_EXPR_EPS;

                for (k = t->at; way_counts(p, i) && k < t->at + t->n; k++) {
                        const struct tdm_expr *y = tdm_expr_get(&p->arena, pairs[k].e);

                        if (way_counts(p, k) && pairs[k].frame == pairs[i].frame &&
                            (y->kind == TDM_EXPR_KIND_CAT ? y->b : TDM_EXPR_EPS) == rest)
                                break;
                }
                if (k == t->at + t->n)
                        return false;
        }
        return true;
}

/* How many bytes of states[state].run_set may follow the state and change nothing but how many more may: RUN_NONE where
 * it is no such state. White space and bounded numbers are runs. A walk counts there and makes no states. */
static uint32_t run_of(struct tdm_parser *p, uint32_t state)
{
        struct tdm_state s = p->states[state], t;
        struct tdm_expr front;
        uint32_t set, next;
        uint8_t byte = 0;

        if (s.run > 0)
                return s.run;
        p->arena.steps += s.n;
        p->states[state].run = RUN_NONE;
        if (s.n > RUN_WAYS_MAX || !run_front(p, &s, &front))
                return RUN_NONE;
        set = tdm_expr_get(&p->arena, front.a)->a;
        while (!tdm_byte_set_has(tdm_expr_set(&p->arena, set), byte))
                byte++;
        next = tdm_parser_step(p, state, byte);
        if (p->arena.failed)
                p->states[state].run = 0;
        if (next == TDM_STATE_DEAD)
                return RUN_NONE;
        t = p->states[next];
        if (!run_goes_on(p, &s, &t))
                return RUN_NONE;
        p->states[state].run_set = set;
        p->states[state].run = (uint16_t)TDM_MIN(front.c, (uint32_t)UINT16_MAX);
        return p->states[state].run;
}

static bool has_children(const struct tdm_trie *trie, uint32_t node)
{
        return trie->nodes[node].children < trie->nodes[node + 1].children;
}

#define ROOM_UNKNOWN UINT32_MAX

/* The node's children, as far as the state may go on with them. */
static struct tdm_mask_level level_of(struct walk *w, const struct tdm_trie *trie, uint32_t node, uint32_t state,
                                      uint32_t room)
{
        struct tdm_mask_level l = { .state = state,
                                    .at = trie->nodes[node].children,
                                    .end = trie->nodes[node + 1].children };
        const uint8_t *found;

        if (l.at == l.end)
                return l;
        if (!w->parser->states[state].spread)
                tdm_parser_spread(w->parser, state);
        if (w->parser->states[state].only <= 255) {
                found = memchr(trie->child_bytes + l.at, w->parser->states[state].only, l.end - l.at);
                l.at = found ? (uint32_t)(found - trie->child_bytes) : l.end;
                l.end = found ? l.at + 1 : l.end;
        }
        l.room = room;
        if (room == ROOM_UNKNOWN) /* where one byte can follow, it need not be known whether it runs */
                l.room = w->parser->states[state].only > 255 ? run_of(w->parser, state) : w->parser->states[state].run;
        return l;
}

/* The state behind a byte, or the same one, where a run goes on. *ret_room: what is left of the run. */
static inline uint32_t level_step(struct walk *w, const struct tdm_mask_level *l, uint8_t byte, uint32_t *ret_room)
{
        struct tdm_parser *p = w->parser;
        const struct tdm_state *s = &p->states[l->state];

        *ret_room = ROOM_UNKNOWN;
        if (s->run <= RUN_NONE || !tdm_byte_set_has(tdm_expr_set(&p->arena, s->run_set), byte))
                return tdm_parser_step(p, l->state, byte);
        if (l->room == 0)
                return TDM_STATE_DEAD;
        *ret_room = l->room - 1;
        return l->state;
}

/* To the next child on the way: false where the walk is over, or takes too many steps. */
static inline bool walk_next(struct walk *w, struct tdm_mask_level **level, uint32_t *ret_at)
{
        struct tdm_mask_level *l = *level;

        while (l->at == l->end)
                if (l-- == w->levels)
                        return false;
        *level = l;
        *ret_at = l->at++;
        return goes_on(w);
}

#define NO_GROUP TDM_GROUPS

/* Adds the pieces of a node that state stands behind, with room in its run. Subtrees of a group that the state is open
 * for need no look: of the group that holds all below the node, else of the trie's. Returns whether the children are
 * still to be looked at. */
static bool node_add(struct walk *w, const struct tdm_trie *trie, unsigned group, uint32_t at, uint32_t state,
                     uint32_t room)
{
        const struct tdm_trie_node *node = &trie->nodes[at];
        bool all = has_children(trie, at);

        if (trie->below[at] < TDM_GROUPS)
                group = trie->below[at];
        all = all && group != NO_GROUP && room >= w->vocabulary->groups[group].max_chars &&
              tdm_mask_is_open(w->parser, w->vocabulary, state, group);
        set_ids(w->words, trie->ids + node->ids, (all ? trie->nodes[node->end].ids : node[1].ids) - node->ids);
        return !all && has_children(trie, at);
}

/* In the midst of a known text there is one way down. It is followed without states up to where the text or the way
 * ends. False: nothing is left below. */
static bool literal_add(struct walk *w, const struct tdm_trie *trie, uint32_t *at, uint32_t *state)
{
        struct tdm_literal l;
        bool more = tdm_literal_begin(w->parser, *state, &l);

        if (!more)
                return true;
        while (more) {
                const struct tdm_trie_node *node = &trie->nodes[*at];
                const uint8_t *found =
                        memchr(trie->child_bytes + node->children, l.byte, node[1].children - node->children);

                if (!found || !goes_on(w))
                        return false;
                *at = trie->child_nodes[found - trie->child_bytes];
                node = &trie->nodes[*at];
                set_ids(w->words, trie->ids + node->ids, node[1].ids - node->ids);
                if (!has_children(trie, *at))
                        return false;
                more = tdm_literal_next(w->parser, &l);
        }
        *state = tdm_literal_state(w->parser, &l);
        return !w->parser->arena.failed;
}

/* The pieces behind a node that state stands behind, with room in its run. */
static void walk_below(struct walk *w, const struct tdm_trie *trie, unsigned group, uint32_t at, uint32_t state,
                       uint32_t room)
{
        struct tdm_mask_level *l = w->levels;

        *l = level_of(w, trie, at, state, room);
        while (walk_next(w, &l, &at)) {
                uint32_t next = level_step(w, l, trie->child_bytes[at], &room);

                if (next == TDM_STATE_DEAD)
                        continue;
                at = trie->child_nodes[at];
                if (node_add(w, trie, group, at, next, room) && literal_add(w, trie, &at, &next))
                        *++l = level_of(w, trie, at, next, room);
        }
}

static void walk(struct walk *w, const struct tdm_trie *trie, uint32_t state)
{
        walk_below(w, trie, NO_GROUP, 0, state, ROOM_UNKNOWN);
}

static const struct tdm_trie *trie_of(const struct tdm_vocabulary *v, unsigned t)
{
        return t < TDM_GROUPS ? &v->groups[t].trie : &v->other;
}

/* All pieces that begin with one of these bytes. */
static void walk_starts(struct walk *w, uint32_t state, const struct tdm_byte_set *bytes)
{
        const struct tdm_vocabulary *v = w->vocabulary;
        struct tdm_mask_level l = { .state = state, .room = run_of(w->parser, state) };

        for (unsigned i = 0; i < 4; i++) {
                for (uint64_t left = bytes->bits[i]; left; left &= left - 1) {
                        uint8_t byte = (uint8_t)(i * 64 + (unsigned)__builtin_ctzll(left));
                        uint32_t room, next = level_step(w, &l, byte, &room);

                        for (unsigned t = 0; t <= TDM_GROUPS && next != TDM_STATE_DEAD; t++) {
                                uint32_t node = v->starts[byte][t], behind = next;

                                if (node && node_add(w, trie_of(v, t), t, node, next, room) &&
                                    literal_add(w, trie_of(v, t), &node, &behind))
                                        walk_below(w, trie_of(v, t), t, node, behind, room);
                        }
                }
        }
}

static void walk_plain(struct walk *w, uint32_t state)
{
        const struct tdm_vocabulary *v = w->vocabulary;

        for (unsigned g = 0; g < TDM_GROUPS; g++) {
                if (tdm_mask_is_open(w->parser, v, state, g)) {
                        w->base = 1 + g;
                        for (uint32_t i = 0; i < v->n_words; i++)
                                w->words[i] |= v->groups[g].slice[i];
                } else {
                        walk_below(w, &v->groups[g].trie, g, 0, state, ROOM_UNKNOWN);
                }
        }
}

/* The words are those of the state `other`; what differs is set right. Where both have come to the same state, or to
 * none, nothing does. */
static void walk_differing(struct walk *w, const struct tdm_trie *trie, uint32_t state, uint32_t other)
{
        struct tdm_mask_level *l = w->levels;
        uint32_t at;

        *l = (struct tdm_mask_level){ state, other, trie->nodes[0].children, trie->nodes[1].children, 0 };
        while (walk_next(w, &l, &at)) {
                const struct tdm_trie_node *node;
                uint32_t next, next_other;

                next = tdm_parser_step(w->parser, l->state, trie->child_bytes[at]);
                next_other = l->other == TDM_STATE_DEAD ? l->other :
                                                          tdm_parser_step(w->parser, l->other, trie->child_bytes[at]);
                if (next == next_other)
                        continue;
                at = trie->child_nodes[at];
                node = &trie->nodes[at];
                if (next == TDM_STATE_DEAD) {
                        clear_ids(w->words, trie->ids + node->ids, trie->nodes[node->end].ids - node->ids);
                        continue;
                }
                set_ids(w->words, trie->ids + node->ids, node[1].ids - node->ids);
                *++l = (struct tdm_mask_level){ next, next_other, node->children, node[1].children, 0 };
        }
}

static void slice_copy(struct walk *w, uint32_t slice)
{
        const struct tdm_vocabulary *v = w->vocabulary;

        memcpy(w->words, tdm_vocabulary_slice(v, slice), v->n_words * sizeof(*w->words));
        w->base = TDM_GROUPS + slice;
}

static void fill_stable(struct walk *w, uint32_t state)
{
        slice_copy(w, TDM_SLICE_STRING);
        walk(w, &w->vocabulary->tails, state);
}

/* The state inside a string that most letters lead to, or TDM_STATE_DEAD. */
static uint32_t string_behind(struct walk *w, uint32_t state)
{
        uint32_t most = TDM_STATE_DEAD, n = 0;
        bool stable;

        for (uint8_t letter = 'a'; letter <= 'z'; letter++) {
                uint32_t next = tdm_parser_step(w->parser, state, letter);

                if (n == 0)
                        most = next;
                n += next == most ? 1u : -1u;
        }
        if (most == TDM_STATE_DEAD)
                return most;
        (void)plain_room(w->parser, most, w->vocabulary->max_plain_chars, &stable);
        return stable ? most : TDM_STATE_DEAD;
}

/* A string with room for so many characters. */
static void fill_room(struct walk *w, uint32_t state, uint32_t room)
{
        const struct tdm_vocabulary *v = w->vocabulary;
        uint32_t slice = room < v->max_plain_chars ? TDM_MIN(room, TDM_SLICES) : TDM_SLICE_PLAIN;

        slice_copy(w, slice);
        for (uint32_t i = 0; slice == TDM_SLICES && i < v->n_long_pieces && v->long_pieces[i].n_chars <= room; i++)
                set_ids(w->words, &v->long_pieces[i].id, 1);
        walk(w, &v->other, state);
}

static unsigned byte_set_count(const struct tdm_byte_set *set)
{
        unsigned n = 0;

        for (unsigned i = 0; i < 4; i++)
                n += (unsigned)__builtin_popcountll(set->bits[i]);
        return n;
}

/* Few first bytes are looked up, more are met on a walk. Most are what a text or a name can begin with. */
enum { FEW_BYTES = 32, MOST_BYTES = 64 };

static void fill_elsewhere(struct walk *w, uint32_t state)
{
        const struct tdm_vocabulary *v = w->vocabulary;
        struct tdm_byte_set first = { 0 };
        uint32_t string = TDM_STATE_DEAD;
        unsigned n;

        tdm_parser_first(w->parser, state, &first);
        n = byte_set_count(&first);
        if (n > MOST_BYTES)
                string = string_behind(w, state);
        if (string != TDM_STATE_DEAD) {
                fill_stable(w, string);
                for (unsigned t = 0; t <= TDM_GROUPS; t++)
                        walk_differing(w, trie_of(v, t), state, string);
                return;
        }
        memset(w->words, 0, v->n_words * sizeof(*w->words));
        if (n <= FEW_BYTES) {
                walk_starts(w, state, &first);
                return;
        }
        walk_plain(w, state);
        walk(w, &v->other, state);
}

int tdm_mask_fill(struct tdm_parser *parser, const struct tdm_vocabulary *vocabulary, uint32_t state,
                  struct tdm_mask_level *levels, uint64_t *words, unsigned *ret_base)
{
        struct walk w = { parser, vocabulary, words, levels, 0, TDM_MASK_BASE_NONE };
        bool stable;
        uint32_t room = plain_room(parser, state, vocabulary->max_plain_chars, &stable);

        if (stable) {
                fill_stable(&w, state);
        } else if (room > 0) {
                fill_room(&w, state, room);
        } else {
                fill_elsewhere(&w, state);
        }
        if (parser->states[state].whole)
                set_ids(words, vocabulary->ends, vocabulary->n_ends);
        *ret_base = w.base;
        return parser->arena.failed ? -E2BIG : 0;
}
