/* Grammars that are put together from parts: literal text, free text, JSON schemas. For texts that are not JSON and
 * hold JSON, as a model's calls of tools do.
 *
 * A part is a number. A composer belongs to one thread. Its functions return part 0, which no text satisfies, where
 * memory or the limits are out; tdm_composer_finish() then fails.
 *
 * Markers: a vocabulary gives pieces of the kind "control" the bytes TDM_MARKER_BYTE and their text. No schema,
 * pattern or free text can hold that byte, since UTF-8 has none such, so a control piece is allowed only where a
 * grammar has it as a literal. */
#ifndef TDM_ENGINE_GRAMMAR_COMPOSE_H
#define TDM_ENGINE_GRAMMAR_COMPOSE_H

#include "engine/grammar/grammar.h"

#define TDM_MARKER_BYTE 0xffu
#define TDM_MARKER_MAX 64u /* bytes of its text; longer control pieces are in no grammar */

struct tdm_composer;

/* The bytes that a vocabulary gives a control piece; 0 where it gives none. */
size_t tdm_vocabulary_marker(const struct tdm_tokenizer *tokenizer, uint32_t id, char *to, size_t capacity);

/* limits NULL: the defaults. */
int tdm_composer_new(struct tdm_composer **ret, const struct tdm_grammar_limits *limits);
void tdm_composer_destroy(struct tdm_composer *composer);
void tdm_composer_destroyp(struct tdm_composer **composer);

uint32_t tdm_composer_text(struct tdm_composer *composer, const char *text, size_t size);
uint32_t tdm_composer_string(struct tdm_composer *composer, const char *text); /* that ends at NUL */
/* White space as JSON has it under a schema (grammar.h). */
uint32_t tdm_composer_space(struct tdm_composer *composer);
/* Any UTF-8 text in which none of these stands. */
uint32_t tdm_composer_free_text(struct tdm_composer *composer, const char *const *without, size_t n_without);
/* Any UTF-8 text that does not begin with these, white space being in front of each and between them. */
uint32_t tdm_composer_free_text_not_from(struct tdm_composer *composer, const char *const *marks, size_t n_marks);
/* n letters or digits. */
uint32_t tdm_composer_alphanumerics(struct tdm_composer *composer, uint32_t n);
uint32_t tdm_composer_cat(struct tdm_composer *composer, uint32_t a, uint32_t b);
uint32_t tdm_composer_alt(struct tdm_composer *composer, uint32_t a, uint32_t b);
/* part, min to max times; UINT32_MAX: any number. */
uint32_t tdm_composer_rep(struct tdm_composer *composer, uint32_t part, uint32_t min, uint32_t max);
/* A JSON object that satisfies the schema. Errors as of tdm_grammar_new_schema(). */
int tdm_composer_object(struct tdm_composer *composer, const char *source, size_t size, uint32_t *ret_part,
                        struct tdm_error *err);
/* A value of the schema that stands at the end of a path of members, of some types only: any JSON value, or a string
 * without quotes and escapes in which none of the texts `without` stands. *ret_part is 0 where there is none. */
struct tdm_composer_value {
        const char *const *path;
        unsigned n_path;
        const char *const *types; /* "string", "null" … */
        unsigned n_types;
        bool bare;           /* types is "string" alone */
        bool no_json;        /* bare: nor does it look like JSON of another type */
        const char *without; /* bare: a text that it does not hold; or NULL */
};
int tdm_composer_value(struct tdm_composer *composer, const char *source, size_t size,
                       const struct tdm_composer_value *value, uint32_t *ret_part, struct tdm_error *err);
/* Any JSON value that satisfies the schema; a text that matches an expression. */
int tdm_composer_schema(struct tdm_composer *composer, const char *source, size_t size, uint32_t *ret_part,
                        struct tdm_error *err);
int tdm_composer_regex(struct tdm_composer *composer, const char *source, size_t size, uint32_t *ret_part,
                       struct tdm_error *err);
/* n digits at most, one at least. */
uint32_t tdm_composer_digits(struct tdm_composer *composer, uint32_t n);
/* The grammar of root; the composer is empty then and can only be destroyed. */
int tdm_composer_finish(struct tdm_composer *composer, uint32_t root, struct tdm_grammar **ret, struct tdm_error *err);

#endif
