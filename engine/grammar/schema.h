/* The compiler of JSON Schema, inside this folder.
 *
 * A rule of the grammar is a *conjunction*: a set of schemas that one value must satisfy all. The rule of a
 * conjunction is made once, which is what makes recursion end. A conjunction is taken apart into *cases*: references
 * and allOf add schemas to the set, and anyOf, oneOf, not and if each choose one alternative; what a case leaves are
 * the schemas' own keywords, which are merged by type: one expression for strings, one for numbers, one for objects
 * and one for arrays. */
#ifndef TDM_ENGINE_GRAMMAR_SCHEMA_H
#define TDM_ENGINE_GRAMMAR_SCHEMA_H

#include "engine/grammar/grammar-private.h"
#include "engine/grammar/json.h"

enum tdm_schema_type {
        TDM_SCHEMA_NULL = 1,
        TDM_SCHEMA_FALSE = 2,
        TDM_SCHEMA_TRUE = 4,
        TDM_SCHEMA_INTEGER = 8,
        TDM_SCHEMA_FRACTION = 16, /* numbers that are not whole */
        TDM_SCHEMA_STRING = 32,
        TDM_SCHEMA_ARRAY = 64,
        TDM_SCHEMA_OBJECT = 128,
        TDM_SCHEMA_ALL = 255,
};

struct tdm_schema_nodes {
        uint32_t *items;
        uint32_t n, capacity;
};

/* One schema of a case. parent: the index of the schema of the case that it stands in (in place), or -1. It tells which
 * members and items a schema with unevaluated… has seen evaluated. */
struct tdm_schema_part {
        uint32_t node;
        int32_t parent;
};

struct tdm_schema_case {
        struct tdm_schema_part *parts;
        uint32_t n, capacity;
        uint8_t types;
};

struct tdm_schema {
        struct tdm_grammar *g;
        struct tdm_json json;
        struct tdm_error *err;
        int error; /* the first one */
        struct tdm_conjunction {
                uint32_t at, n; /* of conjunction_nodes, sorted */
                uint32_t rule;
                uint8_t empty; /* 0 not known, 1 being looked at, 2 no value at all, 3 some, as far as was looked */
        } * conjunctions;
        uint32_t n_conjunctions, conjunctions_capacity;
        struct tdm_schema_nodes conjunction_nodes;
        uint32_t *slots, n_slots;
        uint32_t space, comma, colon; /* expressions: white space, and the marks with the space behind them */
        bool has_unevaluated;
        bool lone_refs;              /* drafts up to 7: nothing beside $ref counts */
        bool contains_marks_nothing; /* draft 2019-09: to unevaluatedItems */
        unsigned depth;
        uint32_t n_cases;
        /* schema-refs.c */
        struct tdm_schema_uri {
                uint32_t at, size, node; /* of uri_text */
        } * uris;
        uint32_t n_uris, uris_capacity;
        char *uri_text;
        uint32_t n_uri_text, uri_text_capacity;
        uint32_t *base_of; /* per parsed node: index + 1 of the URI in uris that its references are relative to */
        uint32_t n_base_of;
        struct tdm_schema_scopes *scopes; /* schema-scope.c; NULL: no $dynamicRef has a choice */
        /* The string stands by itself: it has no quotes and no escapes, and it satisfies the filter too. */
        bool bare;
        uint32_t bare_filter, bare_char;
        /* Per parsed node, number + 1: its negation, and what its alternatives were rewritten to. */
        uint32_t *negation_of, *choice_of;
};

/* json-schema.c */
int tdm_schema_fail(struct tdm_schema *s, uint32_t node, int code, const char *fmt, ...) _printf_(4, 5);
bool tdm_schema_nodes_add(struct tdm_schema *s, struct tdm_schema_nodes *nodes, uint32_t node);
/* The rule of these schemas together, as an expression: NONE where one of them is `false`. */
uint32_t tdm_schema_call(struct tdm_schema *s, const struct tdm_schema_nodes *nodes);
/* Whether no value satisfies them, as far as a look at types, constants and required members tells. */
bool tdm_schema_is_empty(struct tdm_schema *s, const struct tdm_schema_nodes *nodes);
/* The texts of a set of names or string constants, inside the quotes: letters shared from the left. Sorts them. */
struct tdm_schema_text {
        const char *data;
        size_t size;
};
uint32_t tdm_schema_texts(struct tdm_schema *s, struct tdm_schema_text *texts, size_t n);

/* schema-expand.c: calls take(userdata, case) for each case of these schemas. */
void tdm_schema_expand(struct tdm_schema *s, const struct tdm_schema_nodes *nodes,
                       void (*take)(void *userdata, const struct tdm_schema_case *c), void *userdata);
/* A string: the name of a member. */
uint32_t tdm_schema_name_of(struct tdm_schema *s, uint32_t member);

/* schema-negate.c: a schema that takes what node does not, or TDM_JSON_NONE (without an error) where that is not
 * held. */
uint32_t tdm_schema_negate(struct tdm_schema *s, uint32_t node);
uint32_t tdm_schema_object(struct tdm_schema *s, uint32_t at);
uint32_t tdm_schema_array(struct tdm_schema *s, uint32_t at);
uint32_t tdm_schema_string(struct tdm_schema *s, const char *text, uint32_t at);
uint32_t tdm_schema_put(struct tdm_schema *s, uint32_t object, const char *name, uint32_t value);
uint32_t tdm_schema_push(struct tdm_schema *s, uint32_t array, uint32_t value);
uint32_t tdm_schema_number(struct tdm_schema *s, uint64_t number, uint32_t at);

/* schema-refs.c */
int tdm_schema_index(struct tdm_schema *s);
void tdm_schema_refs_deinit(struct tdm_schema *s);
/* What a $ref (or $dynamicRef) member points to, or TDM_JSON_NONE with the error set. */
uint32_t tdm_schema_resolve(struct tdm_schema *s, uint32_t ref);

/* schema-scope.c */
int tdm_schema_scopes_find(struct tdm_schema *s);
void tdm_schema_scopes_free(struct tdm_schema *s);
/* The same schema with what its resource adds to the dynamic scope that the node stands in. */
uint32_t tdm_schema_enter(struct tdm_schema *s, uint32_t node);
/* The parsed node that `target` is a copy of, in the scope of `from`. */
uint32_t tdm_schema_in_scope(struct tdm_schema *s, uint32_t target, uint32_t from);
/* What the dynamic scope of node has for a $dynamicAnchor, or TDM_JSON_NONE. */
uint32_t tdm_schema_dynamic(struct tdm_schema *s, uint32_t node, const char *name, size_t size);
/* Whether the source has the node, or it is a copy of one that the source has. */
bool tdm_schema_is_parsed(const struct tdm_schema *s, uint32_t node);

/* schema-scalar.c: null, booleans, numbers and strings of a case, constants among them. */
uint32_t tdm_schema_scalars(struct tdm_schema *s, const struct tdm_schema_case *c);
/* What may stand inside the quotes, each character in its one form; NONE where that is nothing. For member names. */
uint32_t tdm_schema_string_content(struct tdm_schema *s, const struct tdm_schema_case *c);
uint32_t tdm_schema_pattern(struct tdm_schema *s, uint32_t node, const char *pattern, size_t size);
/* A whole number of 0 or more; false with the error set. Beyond 32 bits it is UINT32_MAX. */
bool tdm_schema_count(struct tdm_schema *s, uint32_t node, uint32_t *ret);

/* schema-object.c, schema-array.c: the objects and arrays of a case. check: only whether there are any (then EPS). */
uint32_t tdm_schema_objects(struct tdm_schema *s, const struct tdm_schema_case *c, bool check);
uint32_t tdm_schema_arrays(struct tdm_schema *s, const struct tdm_schema_case *c, bool check);
/* Whether part `descendant` stands in place inside of part `ancestor`, or is it. */
bool tdm_schema_is_within(const struct tdm_schema_case *c, uint32_t descendant, uint32_t ancestor);

/* formats.c: the pattern of a format that the standard names; NULL for one it does not name (a remark). *ret_held
 * false: the standard names it, and it is not held. */
const char *tdm_format_pattern(const char *name, size_t size, bool *ret_held);

#endif
