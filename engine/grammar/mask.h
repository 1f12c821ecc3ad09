/* One mask, from a parser's state and a vocabulary. See grammar.h for what it means. */
#ifndef TDM_ENGINE_GRAMMAR_MASK_H
#define TDM_ENGINE_GRAMMAR_MASK_H

#include "engine/grammar/parser.h"
#include "engine/grammar/trie.h"

/* A node of a trie on the way of a walk. */
struct tdm_mask_level {
        uint32_t state, other; /* of the parser; other: the one that is compared with */
        uint32_t at, end;      /* children that are still to be looked at */
        uint32_t room;         /* of the state's run: bytes that are left of it */
};

/* Whether any piece of the group may follow the state. False too where parser->arena.failed. */
bool tdm_mask_is_open(struct tdm_parser *parser, const struct tdm_vocabulary *vocabulary, uint32_t state,
                      unsigned group);

/* What most masks are nearly: no piece at all, or a slice of the vocabulary (of a group, then by length). */
#define TDM_MASK_BASE_NONE 0u

/* levels: room for the deepest trie's depth + 1. words: [vocabulary->n_words]. -E2BIG when the parser ran out of
 * steps or memory; words are garbage then. *ret_base: what the mask may best be kept by. */
int tdm_mask_fill(struct tdm_parser *parser, const struct tdm_vocabulary *vocabulary, uint32_t state,
                  struct tdm_mask_level *levels, uint64_t *words, unsigned *ret_base);
/* mask-kept.c: the parser may keep the mask of the state. */
void tdm_mask_keep(struct tdm_parser *parser, const struct tdm_vocabulary *vocabulary, uint32_t state, unsigned base,
                   const uint64_t *words);
/* False: it has none of this state. */
bool tdm_mask_recall(const struct tdm_parser *parser, const struct tdm_vocabulary *vocabulary, uint32_t state,
                     uint64_t *words);
/* How many words of a kept mask differ from its base, 0 where none is kept, and the tokens that they have beyond it. */
uint32_t tdm_mask_n_differing(const struct tdm_parser *parser, uint32_t state);
uint64_t tdm_mask_differing(const struct tdm_parser *parser, const struct tdm_vocabulary *vocabulary, uint32_t state,
                            uint32_t i, uint32_t *ret_place);

#endif
