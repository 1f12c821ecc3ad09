/* Sets of Unicode characters, and their texts as expressions over bytes. */
#ifndef TDM_ENGINE_GRAMMAR_CHARS_H
#define TDM_ENGINE_GRAMMAR_CHARS_H

#include "engine/grammar/expr.h"

struct tdm_chars {
        struct tdm_char_range {
                uint32_t low, high; /* inclusive */
        } * ranges;
        uint32_t n, capacity;
        bool failed; /* no memory */
};

void tdm_chars_add(struct tdm_chars *chars, uint32_t low, uint32_t high);
void tdm_chars_add_all(struct tdm_chars *chars, const struct tdm_chars *other);
void tdm_chars_sort(struct tdm_chars *chars); /* sorted, apart, merged */
void tdm_chars_invert(struct tdm_chars *chars);
void tdm_chars_deinit(struct tdm_chars *chars);

/* \d \w \s and the dot of ECMA regular expressions, by the letter ('.' for the dot); capitals are the complements. */
void tdm_chars_add_class(struct tdm_chars *chars, char letter);

/* The characters of a Unicode property, named as in \p{…}. False for one that is not held. */
bool tdm_chars_add_property(struct tdm_chars *chars, const char *name, size_t size);

enum tdm_text_form {
        TDM_TEXT_RAW, /* UTF-8 */
        /* Inside a JSON string, each character in one form only: as it is, or where JSON wants it escaped, \" \\ \b \f
         * \n \r \t and \u00xx in small letters. */
        TDM_TEXT_JSON,
};

/* One character of a sorted set. Surrogates are none. */
uint32_t tdm_chars_expr(struct tdm_arena *arena, const struct tdm_chars *chars, enum tdm_text_form form);
/* Any character in a JSON string: in its one form, or (free_form) in any form that JSON has. */
uint32_t tdm_chars_any_json(struct tdm_arena *arena, bool free_form);
/* UTF-8 text inside a JSON string. */
uint32_t tdm_chars_json_literal(struct tdm_arena *arena, const char *text, size_t size);

/* Decodes one character of well-formed UTF-8; returns its bytes. */
size_t tdm_chars_decode(const char *text, size_t size, uint32_t *ret_char);
size_t tdm_chars_encode(uint32_t c, char *text); /* room for 4 */

#endif
