/* Shared by the encoders of all kinds of tokenizers: tokenizer-encode.c splits text at special pieces; spm.c, bpe.c,
 * wordpiece.c and unigram.c encode what lies between. */
#ifndef TDM_ENGINE_ENCODE_PRIVATE_H
#define TDM_ENGINE_ENCODE_PRIVATE_H

#include "engine/text/tokenizer-private.h"

#include "common/utf8.h"

#define TDM_NO_SYMBOL UINT32_MAX
#define TDM_ENCODE_CHECK_STEPS 4096u /* between two looks at the budget */

struct tdm_spm_symbol {
        uint32_t start, size; /* bytes of the word; size 0: merged into the one before */
        uint32_t prev, next;  /* indices or TDM_NO_SYMBOL; of a merged symbol next is when that happened */
        uint32_t id;
};

/* Two neighbours that could become the piece id. Stale when either has changed size since. */
struct tdm_spm_pair {
        float score;
        uint32_t left;
        uint32_t size;
        uint32_t id;
};

struct tdm_bpe_symbol {
        uint32_t id;
        uint32_t prev, next; /* indices or TDM_NO_SYMBOL */
        uint32_t rank;       /* of the merge with the next one; TDM_NO_MERGE: none, or merged into the one before */
};

/* The best way from the start of a stretch to one of its bytes. */
struct tdm_unigram_best {
        double score;  /* the sum of the pieces' scores; -INFINITY: no way leads here */
        uint32_t from; /* where the last piece begins */
        uint32_t to;   /* where the next one ends, on the best way to the stretch's end */
        uint32_t id;   /* the last piece */
};

struct tdm_encoder {
        const struct tdm_tokenizer *t;
        uint32_t *ids;
        size_t capacity;
        size_t n_ids;
        struct tdm_encode_budget *budget; /* or NULL */
        uint64_t steps;                   /* taken since the budget was last looked at */
        struct {
                struct tdm_spm_symbol *symbols;
                size_t symbols_capacity;
                struct tdm_spm_pair *pairs; /* a heap */
                size_t n_pairs, pairs_capacity;
        } spm;
        struct {
                struct tdm_bpe_symbol *symbols;
                size_t symbols_capacity;
                uint64_t *pairs; /* a heap of rank << 32 | left symbol */
                size_t n_pairs, pairs_capacity;
        } bpe;
        struct {
                uint8_t *text; /* normalized, of the stretch */
                size_t size, text_capacity;
                struct tdm_unigram_best *best;
                size_t best_capacity;
                bool was_unknown; /* the last piece */
        } unigram;
};

/* Looks at the budget: -ECANCELED, -ETIME. */
int tdm_encoder_settle(struct tdm_encoder *e);
/* One character (or one stray byte) without a piece. */
void tdm_encoder_emit_bytes(struct tdm_encoder *e, const uint8_t *text, size_t size);
/* Makes room for element n of an array. */
int tdm_encoder_grow(void **array, size_t *capacity, size_t n, size_t element);

static inline int tdm_encoder_spend(struct tdm_encoder *e, uint64_t steps)
{
        e->steps += steps;
        return e->steps < TDM_ENCODE_CHECK_STEPS ? 0 : tdm_encoder_settle(e);
}

static inline void tdm_encoder_emit(struct tdm_encoder *e, uint32_t id)
{
        if (e->n_ids < e->capacity)
                e->ids[e->n_ids] = id;
        e->n_ids++;
}

/* As tdm_utf8_length(); most characters are ASCII. */
static inline int tdm_character_length(const uint8_t *text, size_t size)
{
        return text[0] < 0x80 ? 1 : tdm_utf8_length(text, size);
}

/* Text without special pieces, never empty. prefix: a space goes in front of it. */
int tdm_spm_encode_run(struct tdm_encoder *e, const uint8_t *text, size_t size, bool prefix);
int tdm_bpe_encode_run(struct tdm_encoder *e, const uint8_t *text, size_t size);
int tdm_wordpiece_encode_run(struct tdm_encoder *e, const uint8_t *text, size_t size);
int tdm_unigram_encode_run(struct tdm_encoder *e, const uint8_t *text, size_t size, bool prefix);

/* BOS, a text, EOS once or twice, a text, EOS; each where the file says so. *ret_second: where the second text begins.
 * The sizes together are at most INT32_MAX. Otherwise as tdm_tokenizer_encode_within(). */
ssize_t tdm_tokenizer_encode_two(const struct tdm_tokenizer *tokenizer, const char *first, size_t first_size,
                                 const char *second, size_t second_size, bool ends_twice,
                                 struct tdm_encode_budget *budget, uint32_t *ids, size_t capacity,
                                 uint32_t *ret_second);

#endif
