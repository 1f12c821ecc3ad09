/* Byte tries of a vocabulary's pieces.
 *
 * A trie is its nodes in preorder, so that the tokens of a subtree are neighbours in `ids`.
 *
 * Pieces are told apart into *plain* ones, whole characters that stand for themselves inside a JSON string (no
 * quote, backslash or control character), and the others. Plain pieces form groups by the characters that they
 * consist of (letters, letters and digits, …); where a state may be followed by any characters of a group, the
 * group's slice is allowed without a look at its pieces. The others are also kept by their *tail*, what follows
 * their leading plain characters: many pieces share one, and inside a string only the tail decides. Where that is the
 * beginning of a character the piece may stand in any string, and is in a slice instead. */
#ifndef TDM_ENGINE_GRAMMAR_TRIE_H
#define TDM_ENGINE_GRAMMAR_TRIE_H

#include <stdatomic.h>
#include "engine/grammar/expr.h"
#include "engine/grammar/grammar.h"

struct tdm_trie_node {
        uint32_t end;      /* the node behind this one's subtree */
        uint32_t ids;      /* index of the first token at or behind this node: its own are up to the next node's */
        uint32_t children; /* of child_bytes: up to the next node's */
};

struct tdm_trie {
        struct tdm_trie_node *nodes; /* [n_nodes + 1]: the root first, a sentinel last */
        uint32_t n_nodes;
        /* The bytes of all nodes but the root, and their numbers: the children of each node together. So a walk looks
         * at neighbouring bytes, and touches the nodes of allowed ones only. */
        uint8_t *child_bytes;
        uint32_t *child_nodes;
        uint8_t *below; /* of each node: the narrowest group of ASCII that holds all bytes below it, or TDM_GROUPS */
        uint32_t *ids;
        uint32_t n_ids;
        uint16_t max_depth;
};

#define TDM_GROUPS 8u

struct tdm_group {
        struct tdm_trie trie;
        uint64_t *slice;           /* [n_words] */
        struct tdm_byte_set bytes; /* the ASCII characters of its pieces */
        bool wide;                 /* its pieces hold others too, but not U+2028 and U+2029 */
        uint32_t max_chars;        /* of its pieces, and of what is below nodes that say so */
};

/* Pieces of at most this many plain characters have a slice each. */
#define TDM_SLICES 24u

struct tdm_vocabulary {
        atomic_uint refs;
        uint64_t number; /* no other vocabulary has it */
        uint32_t n_vocab, n_words, max_plain_chars;
        struct tdm_group groups[TDM_GROUPS];
        struct tdm_trie other, tails;
        uint32_t starts[256][TDM_GROUPS + 1]; /* the first byte's node in the groups' tries and in `other`, or 0 */
        uint16_t max_depth;                   /* of all tries */
        size_t n_nodes;                       /* likewise */
        /* [TDM_SLICES + 2][n_words]: plain pieces of at most 1, 2, … characters; all of them; at last those too that
         * end within a character behind plain ones. */
        uint64_t *slices;
        /* Longer ones, by their characters. */
        struct tdm_long_piece {
                uint32_t id, n_chars;
        } * long_pieces;
        uint32_t n_long_pieces;
        uint32_t *ends;
        uint32_t n_ends;
        uint32_t *piece_at; /* [n_vocab + 1], of bytes */
        char *bytes;
};

/* The slices that hold more than those of so many characters. */
#define TDM_SLICE_PLAIN (TDM_SLICES + 1)
#define TDM_SLICE_STRING (TDM_SLICES + 2)

static inline uint64_t *tdm_vocabulary_slice(const struct tdm_vocabulary *v, uint32_t slice)
{
        return v->slices + (size_t)(slice - 1) * v->n_words;
}

#endif
