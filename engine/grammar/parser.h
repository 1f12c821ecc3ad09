/* The parser: every way in which the text so far can go on, as one state.
 *
 * A way is a pair: an expression that is still to be read, and a frame, which says what follows it. A frame is a set
 * of such pairs again: all callers of a rule that began at the same byte share one frame (as the sets of Earley's
 * parser do), so ambiguity costs a polynomial and not an exponential. States and frames are shared by content, so
 * they recur, and the step from a state by a byte is remembered: a lazily built automaton whose states hold stacks.
 *
 * A parser belongs to one thread. Its memory is bounded by tdm_parser_compact(). */
#ifndef TDM_ENGINE_GRAMMAR_PARSER_H
#define TDM_ENGINE_GRAMMAR_PARSER_H

#include "engine/grammar/grammar-private.h"

#define TDM_STATE_DEAD 0u /* no text goes on like this */
#define TDM_STATE_UNKNOWN UINT32_MAX
#define TDM_STATE_LINK (UINT32_C(1) << 31) /* in steps: with a class of bytes, whose step is the same */
#define TDM_FRAME_BOTTOM 0u                /* below it the text ends */

struct tdm_pair {
        uint32_t e, frame;
};

struct tdm_pairs {
        struct tdm_pair *items;
        uint32_t n, capacity;
};

struct tdm_state {
        uint32_t at, n; /* of parser->pairs, sorted */
        bool whole;     /* the text may end here */
        bool spread;    /* parser-spread.c has linked its steps */
        uint32_t open;  /* mask-open.c: for which groups of pieces it is open, and what is known of that */
        uint16_t only;  /* where spread: the byte that alone can follow, or 256 */
        uint16_t run;   /* mask.c: how many bytes of run_set may follow that change nothing but this count */
        uint32_t run_set;
        uint32_t mask; /* mask-kept.c: 1 + which one is kept for it, or 0 */
};

/* Masks of states, by the words in which they differ from a base. */
struct tdm_kept_masks {
        struct tdm_kept_mask {
                uint32_t state;
                uint32_t base;  /* TDM_MASK_BASE_NONE or what tdm_mask_fill() says */
                uint32_t at, n; /* of places and words */
        } * items;
        uint32_t n, capacity;
        uint16_t *places; /* [n_words] */
        uint64_t *words;  /* [n_words] */
        uint32_t n_words, words_capacity;
};

struct tdm_frame {
        uint32_t at, n;
};

struct tdm_parser {
        const struct tdm_grammar *grammar;
        struct tdm_arena arena;
        struct tdm_pairs pairs; /* what states and frames consist of */
        struct tdm_state *states;
        uint32_t n_states, states_capacity;
        uint32_t *steps; /* [states_capacity][n_classes]: the state behind a byte, a link or TDM_STATE_UNKNOWN */
        struct tdm_frame *frames;
        uint32_t n_frames, frames_capacity;
        uint32_t *state_slots, *frame_slots, n_state_slots, n_frame_slots; /* open addressing: number + 1 */
        /* Work of one closure. */
        struct tdm_pairs work, out, content;
        struct tdm_pending {
                uint32_t rank, rule;
                struct tdm_pair to; /* what follows the call */
        } * pending;
        uint32_t n_pending, pending_capacity;
        struct tdm_pair *seen;
        uint32_t *seen_stamp, n_seen_slots, n_seen, stamp;
        struct tdm_expr_list parts;
        bool whole;
        uint32_t start;
        struct tdm_kept_masks masks;
        uint64_t opened_for; /* the vocabulary that states' `open` and the masks are about */
        uint64_t max_steps;  /* of one operation, where that is less than the grammar allows */
};

/* TDM_E_UNSUPPORTED: the state at the start alone takes more work or memory than the grammar's limits allow. */
int tdm_parser_init(struct tdm_parser *parser, const struct tdm_grammar *grammar);
void tdm_parser_deinit(struct tdm_parser *parser);
/* Gives back what its tables have beyond what they hold. */
void tdm_parser_shrink(struct tdm_parser *parser);
size_t tdm_parser_bytes(const struct tdm_parser *parser);

/* The state behind byte; TDM_STATE_DEAD also when parser->arena.failed. */
uint32_t tdm_parser_step_slow(struct tdm_parser *parser, uint32_t state, uint8_t byte);
static inline uint32_t tdm_parser_step(struct tdm_parser *parser, uint32_t state, uint8_t byte)
{
        const struct tdm_grammar *g = parser->grammar;
        uint32_t next = parser->steps[(size_t)state * g->n_classes + g->class_of[byte]];

        return next < TDM_STATE_LINK ? next : tdm_parser_step_slow(parser, state, byte);
}

/* A place in the midst of a known text, between states: a single byte can follow, and others behind it. */
struct tdm_literal {
        uint32_t e, frame, rest;
        uint8_t byte;
};
/* Whether the state is such a place. */
bool tdm_literal_begin(const struct tdm_parser *parser, uint32_t state, struct tdm_literal *ret);
/* Behind its byte; false where that is no such place. */
bool tdm_literal_next(const struct tdm_parser *parser, struct tdm_literal *literal);
/* The state there. */
uint32_t tdm_literal_state(struct tdm_parser *parser, const struct tdm_literal *literal);

/* mask-kept.c. */
void tdm_masks_deinit(struct tdm_kept_masks *masks);
size_t tdm_masks_bytes(const struct tdm_kept_masks *masks);
void tdm_masks_shrink(struct tdm_kept_masks *masks);
/* Forgets all, and keeps the memory. */
void tdm_masks_forget(struct tdm_parser *parser);

/* Before the first step from a state: settles which bytes are dead, and links those that it does not tell apart. */
void tdm_parser_spread(struct tdm_parser *parser, uint32_t state);
/* Adds the bytes that can follow, or more. */
void tdm_parser_first(const struct tdm_parser *parser, uint32_t state, struct tdm_byte_set *set);

/* Before an operation: gives it a fresh budget of steps, the grammar's or parser->max_steps where that is less. */
void tdm_parser_begin(struct tdm_parser *parser);
/* Whether the caches are full. */
bool tdm_parser_is_full(const struct tdm_parser *parser);
/* Forgets all but the given states and what they consist of; writes their new numbers over the old ones. parser->start
 * is kept too. */
int tdm_parser_compact(struct tdm_parser *parser, uint32_t *states, uint32_t n);

#endif
