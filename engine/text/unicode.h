/* What tokenizers need of Unicode: what kind of character one is, its small letter, and normalization form C.
 *
 * The tables (unicode-tables.def) are of Unicode 15.0 whatever the machine has, so a text has the same ids everywhere.
 * Any thread. */
#ifndef TDM_ENGINE_UNICODE_H
#define TDM_ENGINE_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Kinds exclude each other: the first nine come from the general category and White_Space, the others are ASCII
 * characters that some regular expression names. */
enum tdm_unicode_kind {
        TDM_UNICODE_OTHER,  /* C, and what no character is assigned to */
        TDM_UNICODE_UPPER,  /* Lu, Lt */
        TDM_UNICODE_LOWER,  /* Ll */
        TDM_UNICODE_LETTER, /* Lm, Lo */
        TDM_UNICODE_MARK,   /* M */
        TDM_UNICODE_NUMBER, /* N */
        TDM_UNICODE_WHITE,  /* White_Space, whatever its category */
        TDM_UNICODE_PUNCT,  /* P */
        TDM_UNICODE_SYMBOL, /* S */
        TDM_ASCII_UPPER,
        TDM_ASCII_LOWER,
        TDM_ASCII_DIGIT,
        TDM_ASCII_SPACE,
        TDM_ASCII_CR,
        TDM_ASCII_LF,
        TDM_ASCII_SLASH,
        TDM_ASCII_PUNCT,
        TDM_ASCII_SYMBOL,
        TDM_UNICODE_N_KINDS,
};

enum tdm_unicode_kind tdm_unicode_kind(uint32_t character);

/* The character of a well-formed sequence of 1 to 4 bytes. */
uint32_t tdm_unicode_character(const uint8_t *text, int length);
/* Writes a character in UTF-8: at most 4 bytes, and returns how many. */
size_t tdm_unicode_put(uint8_t *text, uint32_t character);

/* What WordPiece does with a character. The numbers are those of tools/make-unicode.py. */
enum tdm_wordpiece_kind {
        TDM_WORDPIECE_PLAIN,     /* a part of a word */
        TDM_WORDPIECE_WHITE,     /* ends a word */
        TDM_WORDPIECE_DROP,      /* is left out */
        TDM_WORDPIECE_PUNCT,     /* is a word */
        TDM_WORDPIECE_ACCENT,    /* is left out where accents are */
        TDM_WORDPIECE_IDEOGRAPH, /* is a word */
};
enum tdm_wordpiece_kind tdm_unicode_wordpiece_kind(uint32_t character);
/* The small letter of a character, where that is a single one; else the character. */
uint32_t tdm_unicode_lower(uint32_t character);
/* The canonical decomposition of one character. Returns of how many characters it consists. */
#define TDM_UNICODE_PARTS_MAX 4u
size_t tdm_unicode_take_apart(uint32_t character, uint32_t ret_parts[static TDM_UNICODE_PARTS_MAX]);

/* Asked every TDM_TEXT_WATCH_BYTES of text whether to go on; later within one word, or one stretch of marks. What is
 * not 0 is handed up. */
struct tdm_text_watch {
        int (*check)(void *user);
        void *user;
};
#define TDM_TEXT_WATCH_BYTES 16384u

/* Text in normalization form C. Bytes that are not UTF-8 stay as they are, and nothing joins across them. Where text is
 * in that form already, *ret is NULL and *ret_size is size; otherwise the caller frees *ret. The result has at most 3
 * times the bytes. O(n) time; 16 bytes of memory for each byte of a stretch that may change. watch may be NULL.
 * -ENOMEM. */
int tdm_unicode_nfc(const uint8_t *text, size_t size, const struct tdm_text_watch *watch, uint8_t **ret,
                    size_t *ret_size);

#endif
