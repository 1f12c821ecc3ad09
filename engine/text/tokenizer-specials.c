/* Where special pieces match: an Aho-Corasick automaton over their texts, read backwards.
 *
 * The automaton walks the text from its end to its start. The state behind byte i then stands for the longest stretch
 * from i on that ends like some special piece read backwards, and the longest whole piece in it is the longest piece
 * that starts at i: what the encoder asks for, found at every byte in time linear in the text whatever the pieces are.
 * A walk forwards would look at up to a piece's length for each byte.
 *
 * Pieces with the same text end in the same state, so duplicates cost nothing after loading. States are numbered level
 * by level: the children of one stand side by side, sorted by byte, and a link always leads to a lower number. */
#include "engine/text/byte-tree-private.h"

#include <inttypes.h>

#define CHECK_EVERY 4096u /* states between two looks at the flag */

struct builder {
        struct tdm_tokenizer *t;
        uint32_t *order, *scratch;          /* special pieces; those of one state stand side by side */
        struct tdm_byte_tree_range *ranges; /* of each state, in order */
        uint32_t capacity;                  /* states */
};

static bool is_special(const struct tdm_piece *p)
{
        return p->size > 0 &&
               (p->type == TDM_PIECE_USER_DEFINED || p->type == TDM_PIECE_CONTROL || p->type == TDM_PIECE_UNKNOWN);
}

/* 0 for a piece that ends at this depth, else 1 + its byte there, counted from its end. */
static unsigned key_of(const struct tdm_tokenizer *t, uint32_t id, size_t depth)
{
        const struct tdm_piece *p = &t->pieces[id];

        return p->size == depth ? 0 : 1u + tdm_piece_text(t, id)[p->size - 1 - depth];
}

/* The next state when byte follows; each step along a link is paid for by a step that went deeper. */
static inline uint32_t step(const struct tdm_specials *s, uint32_t state, uint8_t byte)
{
        for (;;) {
                uint32_t next = tdm_byte_tree_child(s->first, s->bytes, s->roots, state, byte);

                if (next != 0 || state == 0)
                        return next;
                state = s->links[state];
        }
}

/* Pieces of one text that end in this state: the one with the lowest id counts, of all and of the user-defined. Returns
 * how many there are. */
static uint32_t take_ends(struct builder *b, uint32_t state, size_t depth)
{
        struct tdm_specials *s = &b->t->specials;
        struct tdm_byte_tree_range range = b->ranges[state];
        struct tdm_special_match match = { TDM_NO_PIECE, TDM_NO_PIECE };
        uint32_t n = 0;

        for (; range.low + n < range.high; n++) {
                uint32_t id = b->order[range.low + n];

                if (key_of(b->t, id, depth) != 0)
                        break;
                match.any = TDM_MIN(match.any, id);
                if (b->t->pieces[id].type == TDM_PIECE_USER_DEFINED && !b->t->pieces[id].guarded)
                        match.user_defined = TDM_MIN(match.user_defined, id);
        }
        s->match_of[state] = s->match_of[s->links[state]];
        if (n == 0 || depth == 0)
                return n;
        if (match.user_defined == TDM_NO_PIECE)
                match.user_defined = s->matches[s->match_of[state]].user_defined;
        s->matches[s->n_matches] = match;
        s->match_of[state] = s->n_matches++;
        return n;
}

static int add_children(struct builder *b, uint32_t state, size_t depth, struct tdm_error *err)
{
        struct tdm_specials *s = &b->t->specials;
        struct tdm_byte_tree_range range = b->ranges[state];
        uint32_t at;

        tdm_byte_tree_sort(b->t, b->order + range.low, range.high - range.low, b->scratch, key_of, depth);
        s->first[state] = s->n_states;
        for (at = range.low + take_ends(b, state, depth); at < range.high;) {
                unsigned key = key_of(b->t, b->order[at], depth);
                uint32_t child = s->n_states, end = at + 1;

                while (end < range.high && key_of(b->t, b->order[end], depth) == key)
                        end++;
                if (child == b->capacity)
                        return tdm_error_set(err, TDM_E_BAD_MODEL,
                                             "its special pieces have more than %u bytes of text, shared endings "
                                             "counted once",
                                             TDM_SPECIAL_STATES_MAX);
                b->ranges[child] = (struct tdm_byte_tree_range){ at, end };
                s->bytes[child] = (uint8_t)(key - 1);
                s->n_states++;
                at = end;
        }
        s->first[state + 1] = s->n_states;
        for (uint32_t child = s->first[state]; child < s->n_states; child++) {
                if (state == 0)
                        s->roots[s->bytes[child]] = child;
                s->links[child] = state == 0 ? 0 : step(s, s->links[state], s->bytes[child]);
        }
        return 0;
}

static int add_states(struct builder *b, uint32_t n_pieces, struct tdm_error *err)
{
        struct tdm_specials *s = &b->t->specials;
        uint32_t level_end = 1;
        size_t depth = 0;
        int r;

        s->matches[0] = (struct tdm_special_match){ TDM_NO_PIECE, TDM_NO_PIECE };
        s->n_matches = 1;
        s->n_states = 1;
        b->ranges[0] = (struct tdm_byte_tree_range){ 0, n_pieces };
        for (uint32_t state = 0; state < s->n_states; state++) {
                if (state == level_end) {
                        depth++;
                        level_end = s->n_states;
                }
                if (state % CHECK_EVERY == 0 && (r = tdm_parse_check(&b->t->account, err)))
                        return r;
                r = add_children(b, state, depth, err);
                if (r)
                        return r;
        }
        return 0;
}

/* Gives back what was allocated for more states than there are. */
static void shrink(void **array, size_t size)
{
        void *p = realloc(*array, size);

        if (p)
                *array = p;
}

int tdm_specials_build(struct tdm_tokenizer *t, struct tdm_error *err)
{
        _cleanup_(freep) uint32_t *order = NULL, *scratch = NULL;
        _cleanup_(freep) struct tdm_byte_tree_range *ranges = NULL;
        struct tdm_specials *s = &t->specials;
        struct builder b = { .t = t };
        uint64_t n_bytes = 0, bytes, kept;
        uint32_t n = 0;
        int r;

        for (uint32_t id = 0; id < t->n_pieces; id++) {
                if (!is_special(&t->pieces[id]))
                        continue;
                n++;
                n_bytes += t->pieces[id].size;
                s->max_bytes = TDM_MAX(s->max_bytes, (size_t)t->pieces[id].size);
                s->has_user_defined |= t->pieces[id].type == TDM_PIECE_USER_DEFINED && !t->pieces[id].guarded;
        }
        b.capacity = (uint32_t)TDM_MIN(n_bytes + 1, (uint64_t)TDM_SPECIAL_STATES_MAX);
        bytes = b.capacity * (TDM_SPECIAL_STATE_BYTES + sizeof(*ranges)) +
                (n + UINT64_C(1)) * (sizeof(*s->matches) + sizeof(*order) + sizeof(*scratch));
        r = tdm_parse_charge(&t->account, bytes, err);
        if (r)
                return r;
        s->first = malloc((b.capacity + UINT64_C(1)) * sizeof(*s->first));
        s->links = calloc(b.capacity, sizeof(*s->links));
        s->match_of = calloc(b.capacity, sizeof(*s->match_of));
        s->bytes = calloc(b.capacity, sizeof(*s->bytes));
        s->matches = malloc((n + UINT64_C(1)) * sizeof(*s->matches));
        b.order = order = malloc(TDM_MAX(n, 1u) * sizeof(*order));
        b.scratch = scratch = malloc(TDM_MAX(n, 1u) * sizeof(*scratch));
        b.ranges = ranges = malloc(b.capacity * sizeof(*ranges));
        if (!s->first || !s->links || !s->match_of || !s->bytes || !s->matches || !order || !scratch || !ranges)
                return tdm_error_set(err, -ENOMEM, "out of memory for %u special pieces", n);
        n = 0;
        for (uint32_t id = 0; id < t->n_pieces; id++) {
                if (is_special(&t->pieces[id]))
                        order[n++] = id;
        }
        r = add_states(&b, n, err);
        if (r)
                return r;
        shrink((void **)&s->first, (s->n_states + UINT64_C(1)) * sizeof(*s->first));
        shrink((void **)&s->links, s->n_states * sizeof(*s->links));
        shrink((void **)&s->match_of, s->n_states * sizeof(*s->match_of));
        shrink((void **)&s->bytes, s->n_states * sizeof(*s->bytes));
        shrink((void **)&s->matches, s->n_matches * sizeof(*s->matches));
        kept = s->n_states * TDM_SPECIAL_STATE_BYTES + s->n_matches * sizeof(*s->matches);
        tdm_parse_uncharge(&t->account, bytes - kept);
        return 0;
}

void tdm_specials_deinit(struct tdm_specials *s)
{
        free(s->first);
        free(s->links);
        free(s->match_of);
        free(s->bytes);
        free(s->matches);
}

void tdm_tokenizer_match_specials(const struct tdm_tokenizer *t, const uint8_t *text, size_t size, size_t n,
                                  bool controls, uint32_t *ret_ids)
{
        const struct tdm_specials *s = &t->specials;
        size_t i = s->max_bytes == 0 ? n : TDM_MIN(size, n + s->max_bytes - 1);
        uint32_t state = 0;

        for (; i > n; i--)
                state = step(s, state, text[i - 1]);
        for (; i > 0; i--) {
                const struct tdm_special_match *match;

                state = state == 0 ? s->roots[text[i - 1]] : step(s, state, text[i - 1]);
                if (state == 0) { /* most of a text */
                        ret_ids[i - 1] = TDM_NO_PIECE;
                        continue;
                }
                match = &s->matches[s->match_of[state]];
                ret_ids[i - 1] = controls ? match->any : match->user_defined;
        }
}
