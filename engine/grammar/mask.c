/* Which tokens may come next: the vocabulary's tries walked with the parser's states.
 *
 * Inside a JSON string the parser's state does not change with plain characters. There the plain pieces are all allowed,
 * as one precomputed slice, and of the other pieces only their tails are walked. Elsewhere both tries are walked; where
 * most ways lead into a string (the first letters of a free member name), the walk begins with all plain pieces allowed
 * and takes out those that are not. */
#include "engine/grammar/mask.h"

struct walk {
        struct tdm_parser *parser;
        const struct tdm_vocabulary *vocabulary;
        uint64_t *words;
        uint32_t *states; /* [max depth + 1] */
};

static const struct tdm_byte_set plain_starts = { { 0xfffffffb00000000u, 0xffffffffefffffffu, 0, 0xffffffffffffffffu } };

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

/* Whether the state stands inside a string: the most plain characters that may follow and be followed by more of the
 * string's other bytes. UINT32_MAX: any number of them, and they change nothing. 0: it is no such state. */
static uint32_t plain_room(struct tdm_parser *p, uint32_t state, uint32_t max_chars)
{
        const struct tdm_grammar *g = p->grammar;
        struct tdm_state *s = &p->states[state];
        uint32_t room = 0;
        bool stable = true;

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
        return stable && room > 0 ? UINT32_MAX : room;
}

static bool is_stable(struct tdm_parser *p, uint32_t state, uint32_t max_chars)
{
        if (p->states[state].plain == 0)
                p->states[state].plain = plain_room(p, state, max_chars) == UINT32_MAX ? 2 : 1;
        return p->states[state].plain == 2;
}

static void walk(struct walk *w, const struct tdm_trie *trie, uint32_t state)
{
        uint32_t i = 1;

        w->states[0] = state;
        while (i < trie->n_nodes) {
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

/* Plain pieces from a state outside of strings. */
static void walk_plain(struct walk *w, uint32_t state)
{
        const struct tdm_trie *trie = &w->vocabulary->plain;
        uint32_t max_chars = w->vocabulary->max_plain_chars, n_stable = 0, i, next;
        bool all;

        for (i = 1; i < trie->n_nodes; i = trie->nodes[i].end) {
                next = tdm_parser_step(w->parser, state, trie->nodes[i].byte);
                if (next != TDM_STATE_DEAD && is_stable(w->parser, next, max_chars))
                        n_stable += trie->nodes[trie->nodes[i].end].ids - trie->nodes[i].ids;
        }
        all = n_stable > trie->n_ids / 2;
        if (all)
                memcpy(w->words, tdm_vocabulary_slice(w->vocabulary, UINT32_MAX),
                       w->vocabulary->n_words * sizeof(*w->words));
        w->states[0] = state;
        i = 1;
        while (i < trie->n_nodes) {
                const struct tdm_trie_node *node = &trie->nodes[i];

                next = tdm_parser_step(w->parser, w->states[node->depth - 1], node->byte);
                if (next == TDM_STATE_DEAD) {
                        if (all)
                                clear_ids(w->words, trie->ids + node->ids, trie->nodes[node->end].ids - node->ids);
                        i = node->end;
                        continue;
                }
                w->states[node->depth] = next;
                if (is_stable(w->parser, next, max_chars)) {
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

int tdm_mask_fill(struct tdm_parser *parser, const struct tdm_vocabulary *vocabulary, uint32_t state, uint32_t *states,
                  uint64_t *words)
{
        struct walk w = { parser, vocabulary, words, states };
        uint32_t room = plain_room(parser, state, vocabulary->max_plain_chars);
        size_t bytes = vocabulary->n_words * sizeof(*words);

        if (room == UINT32_MAX) {
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
