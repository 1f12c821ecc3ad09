/* Shared by the tokenizer's sources: tokenizer.c (building), tokenizer-specials.c, bpe-build.c, unigram-build.c, the
 * encoders (encode-private.h), decoder.c. */
#ifndef TDM_ENGINE_TOKENIZER_PRIVATE_H
#define TDM_ENGINE_TOKENIZER_PRIVATE_H

#include "engine/file/notes.h"
#include "engine/text/pretokenize.h"
#include "engine/text/tokenizer.h"

/* As stored in files. */
enum tdm_piece_type {
        TDM_PIECE_NORMAL = 1,
        TDM_PIECE_UNKNOWN = 2,
        TDM_PIECE_CONTROL = 3,
        TDM_PIECE_USER_DEFINED = 4,
        TDM_PIECE_UNUSED = 5,
        TDM_PIECE_BYTE = 6,
};

#define TDM_NO_PIECE UINT32_MAX
#define TDM_PIECES_MAX (1u << 21)
#define TDM_MAX_ENDS 24u
#define TDM_PIECE_BYTES_MAX 1024u /* Gemma's longest run of spaces has 93 */
/* Bytes of special pieces, shared endings counted once: Gemma 3 has about 80,000. 26 MiB of memory. */
#define TDM_SPECIAL_STATES_MAX (1u << 21)

/* The text is what a piece stands for: of merged pieces with U+2581 already a space, of byte pieces their byte. */
struct tdm_piece {
        uint32_t start; /* in pool */
        uint16_t size;
        uint8_t type;
        bool mergeable : 1; /* stands in the table that merges look into */
        bool guarded : 1;   /* user-defined, but plain text does not form it */
        bool is_made : 1;   /* by a merge (mark_added() in tokenizer.c) */
        float score;
};

/* The longest special piece that starts somewhere: of all, and of those that match in any text. TDM_NO_PIECE: none. */
struct tdm_special_match {
        uint32_t any, user_defined;
};

/* The automaton of tokenizer-specials.c. State 0 is the root, match 0 is none. */
struct tdm_specials {
        uint32_t n_states, n_matches;
        size_t max_bytes; /* of the longest special piece */
        bool has_user_defined;
        uint32_t *first;    /* [n_states + 1]: the children of state x are first[x] .. first[x + 1] */
        uint32_t *links;    /* [n_states]: where to go on when no child has the next byte */
        uint32_t *match_of; /* [n_states]: index into matches */
        uint8_t *bytes;     /* [n_states]: the byte that leads there */
        struct tdm_special_match *matches;
        uint32_t roots[256]; /* children of the root by byte; 0: none */
};
#define TDM_SPECIAL_STATE_BYTES (3 * sizeof(uint32_t) + 1)

/* `tokenizer.ggml.model`. */
enum tdm_tokenizer_kind {
        TDM_TOKENIZER_SPM,       /* llama: SentencePiece, merges by score */
        TDM_TOKENIZER_BYTES,     /* gpt2: merges of bytes within words */
        TDM_TOKENIZER_GEMMA4,    /* gemma4: merges of characters within lines */
        TDM_TOKENIZER_WORDPIECE, /* bert: the longest pieces of words */
        TDM_TOKENIZER_UNIGRAM,   /* t5: the pieces with the largest sum of scores */
};

/* Merges by the two pieces that they join: open addressing, never more than half full. A slot is left << 43 | right <<
 * 22 | rank, or TDM_NO_MERGE_SLOT. */
struct tdm_merges {
        uint32_t n, slot_mask;
        uint64_t *slots;
        uint32_t *ids; /* [n]: what the merge of a rank makes */
};
#define TDM_MERGES_MAX (1u << 21)
#define TDM_NO_MERGE UINT32_MAX
#define TDM_NO_MERGE_SLOT UINT64_MAX

/* What WordPiece does to text first. */
struct tdm_wordpiece {
        bool lowers, strips_accents;
};

/* Unigram (unigram-build.c). Node 0 of the tree is the root. */
struct tdm_unigram {
        uint32_t n_nodes;
        uint32_t *first;      /* [n_nodes + 1]: the children of node x are first[x] .. first[x + 1] */
        uint32_t *ids;        /* [n_nodes]: the piece that ends there, or TDM_NO_PIECE */
        uint8_t *bytes;       /* [n_nodes]: the byte that leads there */
        uint32_t roots[256];  /* children of the root by byte; 0: none */
        double unknown_score; /* of the unknown piece, for each character */
        bool joins_spaces;    /* `remove_extra_whitespaces` */
        uint8_t *map;         /* [map_bytes]: 4 bytes, then n_units of 4 bytes, then texts; NULL: none */
        uint32_t map_bytes, n_units;
        uint32_t texts; /* where they begin in the map */
};
/* How a query and a document are put together. Of the form, [0, ends[0]) is before the first of them, and so on. */
struct tdm_pair_form {
        char *text; /* [ends[2]]; NULL: the file has none */
        size_t ends[3];
        bool query_is_second;
        bool ends_twice; /* without a form: the end of the query stands twice, as RoBERTa's kinds have it */
};
#define TDM_PAIR_FORM_BYTES_MAX 65536u /* a real one has 400 */

#define TDM_UNIGRAM_PIECE_MAX 256u /* bytes; real ones have up to 64 */

struct tdm_tokenizer {
        enum tdm_tokenizer_kind kind;
        uint32_t n_pieces;
        int32_t bos, eos, unknown;
        bool add_bos, add_eos, add_space_prefix;
        bool has_plain_markers; /* the file calls every piece that was added to the vocabulary an ordinary one */
        bool lacks_added;       /* so does one of SentencePiece's (tokenizer-forms.c) */
        struct tdm_notes notes;
        uint32_t n_ends;
        uint32_t ends[TDM_MAX_ENDS];
        size_t max_piece_bytes;
        size_t max_merge_bytes;
        struct tdm_parse_account account;
        struct tdm_piece *pieces;
        uint8_t *pool;
        uint32_t byte_ids[256]; /* TDM_NO_PIECE where there is none */

        /* Text of mergeable pieces to id: open addressing, never more than half full. */
        uint64_t hash_seed;
        uint32_t slot_mask;
        struct tdm_piece_slot {
                uint32_t hash;
                uint32_t id; /* TDM_NO_PIECE: free */
        } * slots;

        const struct tdm_pretokenizer *pretokenizer; /* TDM_TOKENIZER_BYTES */
        struct tdm_merges merges;                    /* of kinds that have them */
        struct tdm_wordpiece wordpiece;              /* TDM_TOKENIZER_WORDPIECE */
        struct tdm_unigram unigram;                  /* TDM_TOKENIZER_UNIGRAM */
        struct tdm_pair_form pair;

        uint64_t *prints; /* tokenizer-compare.c: [n_pieces / 1024]; NULL where there are none */

        struct tdm_specials specials; /* user-defined, control and unknown pieces */

        /* Bit y of row x: some mergeable piece has byte y right behind byte x. Merges cannot cross any other border. */
        uint8_t joins[256][32];
};

static inline const uint8_t *tdm_piece_text(const struct tdm_tokenizer *t, uint32_t id)
{
        return t->pool + t->pieces[id].start;
}

static inline uint32_t tdm_map_u32(const uint8_t *at) /* of any alignment */
{
        return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* A mergeable piece with this text, or TDM_NO_PIECE. */
uint32_t tdm_tokenizer_find(const struct tdm_tokenizer *t, const uint8_t *text, size_t size);

/* ---- tokenizer-forms.c: what converters write otherwise ---- */

bool tdm_form_is_gemma(const struct tdm_gguf *g);
bool tdm_form_is_bert(const struct tdm_gguf *g);
/* The number of the first piece that the file writes so; -1: none. */
int32_t tdm_form_find_piece(const struct tdm_gguf *g, const char *text);
/* The name of the pre-tokenizer that a file means by this one; empty: it names none. */
struct tdm_gguf_string tdm_form_pre(const struct tdm_gguf *g, struct tdm_gguf_string pre);
/* Whether a vocabulary that has added pieces names none. Kind and number of pieces are known. */
bool tdm_form_lacks_added(const struct tdm_tokenizer *t, const struct tdm_gguf *g, const char *types_key);
/* The type that a piece has for which the file says `type`. */
uint64_t tdm_form_type(const struct tdm_tokenizer *t, struct tdm_gguf_string s, uint64_t type, double score);
/* How many of n pieces are used: those that the embedding has rows for. A note says how many are not. */
uint64_t tdm_form_n_pieces(struct tdm_tokenizer *t, const struct tdm_gguf *g, uint64_t n);

/* Reads what kind of tokenizer the file has: kind, pretokenizer, and what missing flags mean. */
int tdm_tokenizer_read_kind(struct tdm_tokenizer *t, const struct tdm_gguf *g, struct tdm_error *err);
/* One of the markers that are control pieces whatever the file says. */
bool tdm_tokenizer_is_control_text(const char *text, size_t size);
/* Turns GPT-2's characters back into bytes, in place. Returns the size, or -1 where there is another character. */
ssize_t tdm_bpe_to_bytes(uint8_t *text, size_t size);
int tdm_bpe_build(struct tdm_tokenizer *t, const struct tdm_gguf *g, struct tdm_error *err);
/* The rank of the merge of two pieces, or TDM_NO_MERGE. */
uint32_t tdm_bpe_find_merge(const struct tdm_tokenizer *t, uint32_t left, uint32_t right);

/* The special pieces that WordPiece puts around a text, and its flags. Behind the reading of the usual keys. */
int tdm_wordpiece_read(struct tdm_tokenizer *t, const struct tdm_gguf *g, struct tdm_error *err);
/* Behind the table of pieces. */
int tdm_unigram_build(struct tdm_tokenizer *t, const struct tdm_gguf *g, struct tdm_error *err);
void tdm_unigram_deinit(struct tdm_unigram *u);

/* pair.c; behind the reading of the usual keys */
int tdm_pair_read(struct tdm_tokenizer *t, const struct tdm_gguf *g, struct tdm_error *err);

int tdm_specials_build(struct tdm_tokenizer *t, struct tdm_error *err);
void tdm_specials_deinit(struct tdm_specials *s);
/* tokenizer-compare.c; behind all other parts */
int tdm_tokenizer_make_prints(struct tdm_tokenizer *t, struct tdm_error *err);
/* For each of the first n bytes of text: the longest user-defined piece (with controls: special piece) that starts
 * there, or TDM_NO_PIECE. Looks at text behind n as far as the longest one reaches. O(n + longest special piece). */
void tdm_tokenizer_match_specials(const struct tdm_tokenizer *t, const uint8_t *text, size_t size, size_t n,
                                  bool controls, uint32_t *ret_ids);

#endif
