/* Cutting text into the words within which a byte-level tokenizer merges (`tokenizer.ggml.pre`).
 *
 * Each name stands for the regular expressions of the original tokenizer.json, written here as rows of a table
 * (pretokenizers.c). They follow those, not llama.cpp's adaptations, where the two differ. Any thread. */
#ifndef TDM_ENGINE_PRETOKENIZE_H
#define TDM_ENGINE_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "engine/text/unicode.h"

#define TDM_PATTERN_STEPS_MAX 5u
#define TDM_PATTERN_ALTERNATIVES_MAX 9u
#define TDM_PATTERN_STAGES_MAX 6u
#define TDM_PATTERN_MANY UINT32_MAX

enum tdm_pattern_look {
        TDM_LOOK_ANYWHERE,
        TDM_LOOK_NO_TEXT, /* (?!\S) behind it: gives white space back until none or white space follows */
        TDM_LOOK_END,     /* $ behind it: white space up to the end */
};

enum tdm_contraction {
        TDM_CONTRACTION_NONE,
        TDM_CONTRACTION,          /* 's|'t|'re|'ve|'m|'ll|'d */
        TDM_CONTRACTION_ANY_CASE, /* (?i:'s|'t|'re|'ve|'m|'ll|'d), in which U+017F is an s */
};

/* [class]{min,max}, as many as there are: of these kinds (a bit for each enum tdm_unicode_kind) or with one of these
 * properties (see tdm_pretokenizer). Or a contraction, min or max times. */
struct tdm_pattern_step {
        uint32_t kinds;
        uint16_t properties;
        uint8_t contraction;
        uint32_t min, max;
};

/* Steps one behind the other. A step gives back what a later one needs. */
struct tdm_pattern {
        struct tdm_pattern_step steps[TDM_PATTERN_STEPS_MAX]; /* max 0: no more */
        enum tdm_pattern_look look;
};

/* One expression: the first alternative that matches at a place is taken. What matches and what lies between two
 * matches are words. */
struct tdm_pattern_stage {
        struct tdm_pattern alternatives[TDM_PATTERN_ALTERNATIVES_MAX];
};

struct tdm_pretokenizer {
        const char *const *names; /* of `tokenizer.ggml.pre`, the last is NULL */
        bool nfc;                 /* text is brought to normalization form C first */
        bool whole_words;         /* a word that is a piece is that piece, whatever the merges say */
        bool add_bos;             /* where the file does not say */
        /* Further classes of this expression, as bits 0 to 7; NULL: none. */
        uint8_t (*properties)(uint32_t character);
        const struct tdm_pattern_stage *stages[TDM_PATTERN_STAGES_MAX]; /* each cuts the words of the one before */
};

/* NULL: no such name. */
const struct tdm_pretokenizer *tdm_pretokenizer_find(const char *name, size_t size);
/* The i-th one, for tests; NULL past the end. */
const struct tdm_pretokenizer *tdm_pretokenizer_at(size_t i);

/* Set in marks[i]: a word starts at byte i. */
#define TDM_MARK_START UINT16_C(0x8000)
/* marks has room for one element a byte. A byte that is not UTF-8 counts as a symbol, as U+FFFD does. O(size). watch
 * may be NULL. */
int tdm_pretokenize(const struct tdm_pretokenizer *p, const uint8_t *text, size_t size,
                    const struct tdm_text_watch *watch, uint16_t *marks);

#endif
