/* What tokenizer.c (building), tokenizer-encode.c and decoder.c share; nobody else includes it. */
#ifndef TDM_ENGINE_TOKENIZER_PRIVATE_H
#define TDM_ENGINE_TOKENIZER_PRIVATE_H

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
#define TDM_MAX_ENDS 8u

/* The text is what a piece stands for: of merged pieces with U+2581 already a space, of byte pieces their byte. */
struct tdm_piece {
        uint32_t start; /* in pool */
        uint16_t size;
        uint8_t type;
        bool mergeable; /* stands in the table that merges look into */
        float score;
};

struct tdm_tokenizer {
        uint32_t n_pieces;
        int32_t bos, eos, unknown;
        bool add_bos, add_space_prefix;
        uint32_t n_ends;
        uint32_t ends[TDM_MAX_ENDS];
        size_t max_piece_bytes;
        size_t max_merge_bytes;
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

        /* User-defined, control and unknown pieces, sorted by text, then id; those starting with byte b are
         * special_of[b] .. special_of[b + 1]. */
        uint32_t *specials;
        uint32_t n_specials;
        uint32_t special_of[257];

        /* Bit y of row x: some mergeable piece has byte y right behind byte x. Merges cannot cross any other border. */
        uint8_t joins[256][32];
};

static inline const uint8_t *tdm_piece_text(const struct tdm_tokenizer *t, uint32_t id)
{
        return t->pool + t->pieces[id].start;
}

/* A mergeable piece with this text, or TDM_NO_PIECE. */
uint32_t tdm_tokenizer_find(const struct tdm_tokenizer *t, const uint8_t *text, size_t size);
/* The longest user-defined piece (with controls: of all special pieces) that the text starts with, or TDM_NO_PIECE. */
uint32_t tdm_tokenizer_match_special(const struct tdm_tokenizer *t, const uint8_t *text, size_t size, bool controls);

#endif
