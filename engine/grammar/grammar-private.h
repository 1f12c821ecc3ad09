/* The compiled grammar: rules over one arena of expressions. Built by json-schema.c, gbnf.c and regex.c, finished by
 * grammar.c, read by parser.c. */
#ifndef TDM_ENGINE_GRAMMAR_PRIVATE_H
#define TDM_ENGINE_GRAMMAR_PRIVATE_H

#include <stdatomic.h>
#include "engine/grammar/expr.h"
#include "engine/grammar/grammar.h"

struct tdm_rule {
        uint32_t body;
        uint32_t rank; /* rules that can be called at the same place as this one's beginning have a higher rank */
        bool nullable, productive;
};

struct tdm_parser;

struct tdm_grammar {
        atomic_uint refs;
        _Atomic(struct tdm_parser *) spare; /* tables that a matcher left for the next one, or NULL */
        atomic_size_t max_spare_bytes;
        struct tdm_arena arena;
        struct tdm_rule *rules;
        uint32_t n_rules, rules_capacity;
        uint32_t root; /* expression */
        struct tdm_grammar_limits limits;
        uint8_t class_of[256], representatives[256];
        unsigned n_classes;
        uint32_t any_char[2]; /* expressions that take each plain character of JSON strings (chars.h), or 0 */
        uint32_t wide_char;   /* any character beyond ASCII but U+2028 and U+2029 */
        bool compact;
        bool strict_integers; /* draft 4 and before: 1.0 is no integer */
        bool nothing;         /* set where compiling failed because no text satisfies the grammar */
        /* For schema-check: the orders of object members that the grammar has. */
        struct tdm_order {
                uint32_t at, n; /* of names */
        } * orders;
        uint32_t n_orders, orders_capacity;
        struct tdm_name {
                uint32_t at, size; /* of name_bytes */
        } * names;
        uint32_t n_names, names_capacity;
        char *name_bytes;
        size_t n_name_bytes, name_bytes_capacity;
};

int tdm_grammar_new(struct tdm_grammar **ret, const struct tdm_grammar_limits *limits);
/* A rule without a body yet; UINT32_MAX and arena.failed beyond the limit. */
uint32_t tdm_grammar_add_rule(struct tdm_grammar *grammar);
/* Settles nullability, takes out what yields no text, orders the rules and classes the bytes. TDM_E_UNSUPPORTED
 * where the root yields no text, a rule calls itself at its own beginning, or the limits are passed. */
int tdm_grammar_finish(struct tdm_grammar *grammar, struct tdm_error *err);
/* Sets grammar->nothing too. */
int tdm_grammar_takes_nothing(struct tdm_grammar *grammar, struct tdm_error *err);
/* The white space that JSON may have where grammar.h says so. */
uint32_t tdm_grammar_space(struct tdm_grammar *grammar);
/* Adds the rules of a schema; ret_expr calls the root's. Several schemas may share a grammar. */
int tdm_grammar_add_schema(struct tdm_grammar *grammar, const char *source, size_t size, unsigned flags,
                           uint32_t *ret_expr, struct tdm_error *err);
/* A value of one place in a schema. */
struct tdm_grammar_value {
        const char *const *path; /* names of members, from the root's schema to the place's */
        unsigned n_path;
        const char *const *types; /* that the value may have, whatever the schema says */
        unsigned n_types;
        bool bare;       /* a string, without quotes and escapes */
        uint32_t filter; /* an expression without calls that it satisfies too, if bare */
};
/* Adds its rules. *ret_expr is TDM_EXPR_NONE where no value of these types satisfies the schema. */
int tdm_grammar_add_value(struct tdm_grammar *grammar, const char *source, size_t size,
                          const struct tdm_grammar_value *value, uint32_t *ret_expr, struct tdm_error *err);
/* As tdm_grammar_new_schema(); *ret_nothing tells whether it failed because no value satisfies the schema. */
int tdm_grammar_compile_schema(struct tdm_grammar **ret, const char *source, size_t size, unsigned flags,
                               const struct tdm_grammar_limits *limits, bool *ret_nothing, struct tdm_error *err);
/* matcher.c: frees the tables that a matcher left. */
void tdm_grammar_drop_spare(struct tdm_grammar *grammar);
/* The error of an arena that failed. */
int tdm_grammar_too_large(const struct tdm_grammar *grammar, struct tdm_error *err);

#endif
