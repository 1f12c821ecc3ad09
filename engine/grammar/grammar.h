/* Grammars that a generated text must follow: JSON Schema, any JSON value or object, GBNF, regular expressions.
 *
 * Three objects. A *grammar* is compiled once from its source; it is immutable, counted and used by any thread. A
 * *vocabulary* is the byte trie of one tokenizer's pieces with the slices that make masks cheap; immutable, counted,
 * any thread. A *matcher* is one text in the making: a state of the grammar's parser. It belongs to one thread at a
 * time. What a matcher allows depends on the grammar and on the bytes accepted so far, on nothing else: not on its
 * caches, on how the bytes were cut into tokens, or on what was tried and rolled back.
 *
 * A mask is a bitset over token ids, bit id % 64 of word id / 64. A token is allowed iff its bytes, appended to the
 * text, leave a beginning of some text of the grammar; tokens that end generation are allowed iff the text is whole.
 *
 * Errors: TDM_E_BAD_REQUEST where the source is malformed, TDM_E_UNSUPPORTED for what is well-formed and not held
 * (the message names it and its place: a JSON pointer, or an offset), or beyond the limits. -ENOMEM as everywhere. */
#ifndef TDM_ENGINE_GRAMMAR_H
#define TDM_ENGINE_GRAMMAR_H

#include "common/error.h"

struct tdm_tokenizer;
struct tdm_grammar;
struct tdm_vocabulary;
struct tdm_matcher;

/* What one grammar and one matcher may cost. */
struct tdm_grammar_limits {
        size_t max_source_bytes;  /* of a schema or grammar */
        uint32_t max_depth;       /* nesting of the source */
        uint32_t max_expressions; /* of the compiled grammar; about 28 bytes each */
        uint32_t max_rules;
        uint64_t max_compile_steps; /* some nanoseconds each */
        size_t max_matcher_bytes;   /* caches of one matcher: emptied when full, so that this costs time only */
        uint64_t max_mask_steps;    /* for one mask or one accepted text */
};
void tdm_grammar_limits_init(struct tdm_grammar_limits *limits);

enum tdm_grammar_flags {
        TDM_GRAMMAR_COMPACT = 1, /* JSON without white space between tokens; else as written below */
        TDM_GRAMMAR_OBJECT = 2,  /* objects only, whatever else the schema takes */
};

/* White space in JSON, unless compact: behind '{', '[', ',' and ':' and in front of '}' and ']' there may be one
 * space, or one line feed and up to 40 spaces or tabs. There is none elsewhere, nor in front of or behind the whole
 * text. */

/* limits NULL: the defaults. source need not end in NUL. */
int tdm_grammar_new_schema(struct tdm_grammar **ret, const char *source, size_t size, unsigned flags,
                           const struct tdm_grammar_limits *limits, struct tdm_error *err);
/* Any JSON object. */
int tdm_grammar_new_json_object(struct tdm_grammar **ret, unsigned flags, struct tdm_error *err);
/* llama.cpp's dialect; the rule `root` is the whole text. */
int tdm_grammar_new_gbnf(struct tdm_grammar **ret, const char *source, size_t size,
                         const struct tdm_grammar_limits *limits, struct tdm_error *err);
/* An ECMA regular expression; the whole text must match it. */
int tdm_grammar_new_regex(struct tdm_grammar **ret, const char *source, size_t size,
                          const struct tdm_grammar_limits *limits, struct tdm_error *err);
struct tdm_grammar *tdm_grammar_ref(struct tdm_grammar *grammar);
void tdm_grammar_unref(struct tdm_grammar *grammar);
void tdm_grammar_unrefp(struct tdm_grammar **grammar);
/* A matcher that ends may leave its tables to the next one of the grammar, which then knows their states. At most one
 * matcher's, and at most this many bytes, which count beside tdm_grammar_bytes(); 0, as at first: none. Any thread. */
void tdm_grammar_keep_tables(struct tdm_grammar *grammar, size_t max_bytes);
size_t tdm_grammar_bytes(const struct tdm_grammar *grammar); /* of memory */

/* piece(userdata, id, &data) gives the bytes of a token in running text and their number; 0 for tokens that may never
 * stand in a text under a grammar (control tokens). is_end(userdata, id): generation stops there. Takes some 100 ms and
 * 17 MB for 262,144 pieces: once per tokenizer. */
int tdm_vocabulary_new(struct tdm_vocabulary **ret, uint32_t n_vocab,
                       size_t (*piece)(void *userdata, uint32_t id, const char **ret_data),
                       bool (*is_end)(void *userdata, uint32_t id), void *userdata);
/* Copies what it needs. n_vocab: the model's, so that its masks have a bit for each of its logits. The tokenizer may
 * have fewer pieces; an id without one is never allowed. */
int tdm_vocabulary_new_tokenizer(struct tdm_vocabulary **ret, const struct tdm_tokenizer *tokenizer, uint32_t n_vocab);
struct tdm_vocabulary *tdm_vocabulary_ref(struct tdm_vocabulary *vocabulary);
void tdm_vocabulary_unref(struct tdm_vocabulary *vocabulary);
void tdm_vocabulary_unrefp(struct tdm_vocabulary **vocabulary);
uint32_t tdm_vocabulary_n_words(const struct tdm_vocabulary *vocabulary); /* of a mask */
size_t tdm_vocabulary_bytes(const struct tdm_vocabulary *vocabulary);
/* The most that it takes: this much, and this much for each piece. */
#define TDM_VOCABULARY_BYTES (UINT64_C(1) << 20)
#define TDM_VOCABULARY_BYTES_PER_PIECE 168u

/* How many accepted tokens can be taken back. */
#define TDM_MATCHER_ROLLBACK_MAX 256u

/* vocabulary may be NULL for a matcher that takes bytes only. Holds references to both. TDM_E_UNSUPPORTED: to begin a
 * text takes more work than the limits allow. */
int tdm_matcher_new(struct tdm_matcher **ret, struct tdm_grammar *grammar, struct tdm_vocabulary *vocabulary);
void tdm_matcher_destroy(struct tdm_matcher *matcher);
void tdm_matcher_destroyp(struct tdm_matcher **matcher);
/* Back to the empty text; caches stay. */
void tdm_matcher_reset(struct tdm_matcher *matcher);

/* From now on, at most this many steps for one mask or one accepted text; UINT64_MAX: what the grammar's limits say.
 * What needs more returns -EAGAIN, and nothing has changed but the caches: to go on later costs what is left of the
 * work. */
void tdm_matcher_set_max_steps(struct tdm_matcher *matcher, uint64_t max_steps);
/* Makes masks of texts that may follow, in at most so many steps, where the tables know none. They change what a later
 * mask costs, and nothing of what it allows. */
int tdm_matcher_look_ahead(struct tdm_matcher *matcher, uint64_t max_steps);
/* Gives memory back: the caches are emptied. */
int tdm_matcher_trim(struct tdm_matcher *matcher);
/* The mask of the tokens allowed next: n_words words, valid until the next call on this matcher. TDM_E_UNSUPPORTED: it
 * takes more work than the limits allow. */
int tdm_matcher_mask(struct tdm_matcher *matcher, const uint64_t **ret_words);
/* Appends a token. Returns 1 when it was allowed, 0 (and nothing changes) when it was not, or an error. A token that
 * ends generation appends nothing. */
int tdm_matcher_accept(struct tdm_matcher *matcher, uint32_t id);
/* The same with bytes, as one token that tdm_matcher_rollback() counts. */
int tdm_matcher_accept_bytes(struct tdm_matcher *matcher, const char *data, size_t size);
/* Takes back the last n tokens. -ERANGE, and nothing changes, where there are fewer or n is past the maximum. */
int tdm_matcher_rollback(struct tdm_matcher *matcher, uint32_t n);
bool tdm_matcher_is_whole(const struct tdm_matcher *matcher); /* the text may end here */
/* Nothing but the end may follow. */
int tdm_matcher_is_final(struct tdm_matcher *matcher);
/* The bytes that must follow, at most capacity of them, as far as there is just one choice; returns how many. The text
 * does not change. */
int tdm_matcher_forced(struct tdm_matcher *matcher, char *data, size_t capacity);
size_t tdm_matcher_bytes(const struct tdm_matcher *matcher);

/* schema-check: whether the grammar of a schema has a text whose value is this JSON value. Object members are tried
 * in the orders that the schema gives; a number may stand as in the instance, or in another form of the same value.
 * Returns 1 or 0 (why, unless NULL, tells how far it got), or an error: TDM_E_BAD_REQUEST where the instance is no
 * JSON. */
int tdm_grammar_takes_instance(struct tdm_grammar *grammar, const char *instance, size_t size, char *why,
                               size_t why_size, struct tdm_error *err);

/* One line of `tandem schema-check`: {"id","schema","instance"} in, {"id","verdict","why"} out, without a line feed,
 * to be freed. The verdict is accept, reject or unsupported; what is no such line is unsupported too. Returns 0 or
 * -ENOMEM. */
int tdm_schema_check_line(const char *line, size_t size, char **ret_line);

#endif
