/* Which tokens may come next: the vocabulary's tries walked with the parser's states.
 *
 * Inside a JSON string the parser's state does not change with plain characters. There the plain pieces are all
 * allowed, as one precomputed slice, and of the other pieces only their tails are walked. Elsewhere all tries are
 * walked, but for the groups of plain pieces that the state is open for: it may go on with any of their characters.
 * Where most ways lead to states that are open (the first letters of a free member name), the walk begins with the
 * group's slice and takes out what is not allowed. */
#include "engine/grammar/mask.h"

struct walk {
        struct tdm_parser *parser;
        const struct tdm_vocabulary *vocabulary;
        uint64_t *words;
        uint32_t *states; /* [max depth + 1] */
        uint32_t n_visited;
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

enum { OPEN_KNOWN = 1 << 15 };

/* For which groups the state is open: any piece of the group may follow it. */
static uint16_t open_groups(struct tdm_parser *p, const struct tdm_vocabulary *v, uint32_t state)
{
        struct tdm_state s = p->states[state];
        uint16_t open = OPEN_KNOWN;

        if (s.open)
                return s.open;
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
                        bool all = x.c >= group->max_chars && (wide || !group->wide);

                        for (unsigned k = 0; k < 2; k++)
                                all = all && !(group->bytes.bits[k] & ~bytes.bits[k]);
                        if (all)
                                open |= (uint16_t)(1u << g);
                }
        }
        p->states[state].open = open;
        return open;
}

static void walk(struct walk *w, const struct tdm_trie *trie, uint32_t state)
{
        uint32_t i = 1;

        w->states[0] = state;
        while (i < trie->n_nodes && goes_on(w)) {
                const struct tdm_trie_node *node = &trie->nodes[i];
                uint32_t next = tdm_parser_step(w->parser, w->states[node->depth - 1], node->byte);

                if (next == TDM_STATE_DEAD) {
                        i = node->end;
                        continue;
                }
                w->states[node->depth] = next;
                for (uint32_t k = node->ids; k < node[1].ids; k++)
                        w->words[trie->ids[k] / 64] |= UINT64_C(1) << trie->ids[k] % 64;
                i++;
        }
}

/* The plain pieces of a group from a state that is not open for it. */
static void walk_group(struct walk *w, unsigned g, uint32_t state)
{
        const struct tdm_vocabulary *v = w->vocabulary;
        const struct tdm_trie *trie = &v->groups[g].trie;
        uint32_t n_open = 0, i, next;
        bool all;

        for (i = 1; i < trie->n_nodes; i = trie->nodes[i].end) {
                next = tdm_parser_step(w->parser, state, trie->nodes[i].byte);
                if (next != TDM_STATE_DEAD && open_groups(w->parser, v, next) >> g & 1)
                        n_open += trie->nodes[trie->nodes[i].end].ids - trie->nodes[i].ids;
        }
        all = n_open > trie->n_ids / 2;
        for (i = 0; all && i < v->n_words; i++)
                w->words[i] |= v->groups[g].slice[i];
        w->states[0] = state;
        i = 1;
        while (i < trie->n_nodes && goes_on(w)) {
                const struct tdm_trie_node *node = &trie->nodes[i];

                next = tdm_parser_step(w->parser, w->states[node->depth - 1], node->byte);
                if (next == TDM_STATE_DEAD) {
                        if (all)
                                clear_ids(w->words, trie->ids + node->ids, trie->nodes[node->end].ids - node->ids);
                        i = node->end;
                        continue;
                }
                w->states[node->depth] = next;
                if (node->end > i + 1 && open_groups(w->parser, v, next) >> g & 1) {
                        if (!all)
                                set_ids(w->words, trie->ids + node->ids, trie->nodes[node->end].ids - node->ids);
                        i = node->end;
                        continue;
                }
                if (!all)
                        set_ids(w->words, trie->ids + node->ids, node[1].ids - node->ids);
                i++;
        }
}

static void walk_plain(struct walk *w, uint32_t state)
{
        const struct tdm_vocabulary *v = w->vocabulary;
        uint16_t open = open_groups(w->parser, v, state);

        for (unsigned g = 0; g < TDM_GROUPS; g++) {
                if (open >> g & 1)
                        for (uint32_t i = 0; i < v->n_words; i++)
                                w->words[i] |= v->groups[g].slice[i];
                else
                        walk_group(w, g, state);
        }
}

int tdm_mask_fill(struct tdm_parser *parser, const struct tdm_vocabulary *vocabulary, uint32_t state, uint32_t *states,
                  uint64_t *words)
{
        struct walk w = { parser, vocabulary, words, states, 0 };
        bool stable;
        uint32_t room = plain_room(parser, state, vocabulary->max_plain_chars, &stable);
        size_t bytes = vocabulary->n_words * sizeof(*words);

        if (stable) {
                memcpy(words, tdm_vocabulary_slice(vocabulary, UINT32_MAX), bytes);
                walk(&w, &vocabulary->tails, state);
        } else if (room > 0 && (room <= TDM_SLICES || room >= vocabulary->max_plain_chars)) {
                memcpy(words, tdm_vocabulary_slice(vocabulary, room), bytes);
                walk(&w, &vocabulary->other, state);
        } else {
                memset(words, 0, bytes);
                walk_plain(&w, state);
                walk(&w, &vocabulary->other, state);
        }
        if (parser->states[state].whole)
                set_ids(words, vocabulary->ends, vocabulary->n_ends);
        return parser->arena.failed ? -E2BIG : 0;
}
