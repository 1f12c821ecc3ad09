/* Shared by the files of the interpreter.
 *
 * All memory of a parse or of a render belongs to one struct jinja_core, which is freed as a whole. So an error leaves
 * by longjmp() from wherever it is met, and loses nothing. */
#ifndef TDM_ENGINE_TEMPLATE_PRIVATE_H
#define TDM_ENGINE_TEMPLATE_PRIVATE_H

#include <setjmp.h>
#include "engine/chat/template/template.h"

/* How deep blocks and parentheses may nest, how high an expression's tree may be, and how deep evaluation may go.
 * They bound the C stack: 2,000 levels are at most 1 MiB. */
#define JINJA_MAX_NESTING 150u
#define JINJA_MAX_HEIGHT 600u
#define JINJA_MAX_DEPTH 2000u
/* How deep lists and dicts may nest where they are printed or compared. */
#define JINJA_MAX_VALUE_DEPTH 100u
/* jinja2's own limit for range(). */
#define JINJA_MAX_RANGE 100000
/* What raise_exception() may say. */
#define JINJA_MAX_REFUSAL 65536u

struct jinja_block;

/* Bytes that a step pays for. */
#define JINJA_COPIED 64u /* copied, compared, looked at many at a time */
#define JINJA_SEARCHED 16u
#define JINJA_READ 8u    /* looked at one by one */
#define JINJA_WRITTEN 4u /* one by one, each looked up in tables */
#define JINJA_STEP_PARTS 64u

struct jinja_core {
        jmp_buf out;
        int code; /* what longjmp() left with: a TDM_E_* or a negative errno */
        struct tdm_error *err;
        struct jinja_block *blocks;
        size_t bytes_left, bytes_used;
        uint64_t steps_left;
        unsigned debt;      /* of a step: what bytes have cost, in JINJA_STEP_PARTS */
        unsigned line;      /* of the node that is evaluated; 0: none */
        const char *source; /* while it is parsed; NULL */
        size_t at;          /* of the token that is parsed, in the source */
        const struct jinja_string *refusal;
        struct tdm_json json; /* of from_json, while it is read */
};

/* core.c */
void *tdm_jinja_alloc(struct jinja_core *core, size_t size); /* not cleared */
void *tdm_jinja_calloc(struct jinja_core *core, size_t size);
void tdm_jinja_free_all(struct jinja_core *core);
void tdm_jinja_spend(struct jinja_core *core, uint64_t steps);
/* For bytes, or other small things. What makes no whole step is kept, so many short texts cost what a long one does. */
void tdm_jinja_spend_bytes(struct jinja_core *core, size_t n, unsigned n_a_step);
_Noreturn void tdm_jinja_fail(struct jinja_core *core, const char *fmt, ...) _printf_(2, 3);
_Noreturn void tdm_jinja_fail_code(struct jinja_core *core, int code, const char *fmt, ...) _printf_(3, 4);
/* A larger array with the first n items of the old one. */
void *tdm_jinja_grow(struct jinja_core *core, const void *items, size_t n, size_t capacity, size_t item_size);

/* Strings: UTF-8, immutable, with where each byte comes from. A long one that was joined of two stays in two parts
 * until its bytes are wanted. */
struct jinja_origin {
        size_t end;
        bool is_template;
};

struct jinja_string {
        size_t size;
        const char *data; /* NULL: left and right, joined */
        const struct jinja_string *left, *right;
        const struct jinja_origin *origins; /* NULL: all of it is as is_template says */
        size_t n_origins;
        int64_t n_chars; /* -1: not counted yet */
        bool is_template;
        bool is_markup; /* it went through `safe`: what is added to it is escaped for HTML, as jinja2 does */
};

struct jinja_text { /* a string that is being written */
        struct jinja_core *core;
        char *data;
        size_t size, capacity;
        struct jinja_origin *origins;
        size_t n_origins, origins_capacity;
};

/* string.c */
struct jinja_string *tdm_jinja_string(struct jinja_core *core, const char *data, size_t size, bool is_template);
struct jinja_string *tdm_jinja_string_of(struct jinja_core *core, const char *text); /* a literal of the template's */
const char *tdm_jinja_bytes(struct jinja_core *core, const struct jinja_string *string);
struct jinja_string *tdm_jinja_join(struct jinja_core *core, const struct jinja_string *a,
                                    const struct jinja_string *b);
struct jinja_string *tdm_jinja_slice(struct jinja_core *core, const struct jinja_string *string, size_t from,
                                     size_t to);
struct jinja_string *tdm_jinja_as_markup(struct jinja_core *core, const struct jinja_string *string);
int64_t tdm_jinja_n_chars(struct jinja_core *core, const struct jinja_string *string);
size_t tdm_jinja_char_at(struct jinja_core *core, const struct jinja_string *string, int64_t n); /* its first byte */
bool tdm_jinja_string_equal(struct jinja_core *core, const struct jinja_string *a, const struct jinja_string *b);
int tdm_jinja_string_compare(struct jinja_core *core, const struct jinja_string *a, const struct jinja_string *b);
bool tdm_jinja_string_is(struct jinja_core *core, const struct jinja_string *a, const char *text);
/* The first (or last) place of what in string, from byte `from` on; SIZE_MAX: none. */
size_t tdm_jinja_find(struct jinja_core *core, const struct jinja_string *string, const struct jinja_string *what,
                      size_t from);
size_t tdm_jinja_find_last(struct jinja_core *core, const struct jinja_string *string, const struct jinja_string *what);
void tdm_jinja_text_add(struct jinja_text *text, const char *data, size_t size, bool is_template);
void tdm_jinja_text_puts(struct jinja_text *text, const char *data); /* the template's */
void tdm_jinja_text_char(struct jinja_text *text, uint32_t character, bool is_template);
void tdm_jinja_text_add_string(struct jinja_text *text, const struct jinja_string *string);
void tdm_jinja_text_add_slice(struct jinja_text *text, const struct jinja_string *string, size_t from, size_t to);
struct jinja_string *tdm_jinja_text_end(struct jinja_text *text);
/* Whether byte `at` of a flat string is the template's own. */
bool tdm_jinja_is_template_at(const struct jinja_string *string, size_t at);
uint32_t tdm_jinja_char(const char *data, size_t size, size_t *ret_length);
bool tdm_jinja_is_space(uint32_t character); /* as Python's str.isspace() */

/* case.c: as Python's str methods do */
enum jinja_case { JINJA_UPPER, JINJA_LOWER, JINJA_TITLE, JINJA_CAPITALIZE };
struct jinja_string *tdm_jinja_change_case(struct jinja_core *core, const struct jinja_string *string,
                                           enum jinja_case to);
bool tdm_jinja_is_alphabetic(uint32_t character);

enum jinja_kind {
        JINJA_ABSENT, /* an argument that was not given */
        JINJA_UNDEFINED,
        JINJA_NONE,
        JINJA_BOOL,
        JINJA_INT,
        JINJA_BIG, /* an integer of the input beyond 64 bits: its digits */
        JINJA_FLOAT,
        JINJA_STRING,
        JINJA_LIST,
        JINJA_DICT,
        JINJA_NAMESPACE,
        JINJA_LOOP,
        JINJA_MACRO,
        JINJA_BUILTIN,
        JINJA_METHOD,
};

struct jinja_list;
struct jinja_dict;
struct jinja_loop;
struct jinja_macro;
struct jinja_method;
struct jinja_builtin;
struct jinja_render;

struct jinja_value {
        enum jinja_kind kind;
        union {
                bool truth;
                int64_t integer;
                double number;
                const struct jinja_string *string; /* STRING, BIG; UNDEFINED: its name, or NULL */
                struct jinja_list *list;
                struct jinja_dict *dict; /* DICT, NAMESPACE */
                struct jinja_loop *loop;
                struct jinja_macro *macro;
                const struct jinja_builtin *builtin;
                struct jinja_method *method;
        };
};

/* What Python would have in a list's place: they print and behave differently. */
enum jinja_shape {
        JINJA_SHAPE_LIST,
        JINJA_SHAPE_TUPLE,
        JINJA_SHAPE_RANGE,
        JINJA_SHAPE_VIEW,      /* of a dict's keys, values or items */
        JINJA_SHAPE_GENERATOR, /* what filters give: it has no length and is empty after one walk */
};

struct jinja_list {
        enum jinja_shape shape;
        bool is_own;          /* made by the template: it may be appended to */
        unsigned walked;      /* loops that are under way over it */
        const int64_t *range; /* RANGE: start, stop, step */
        size_t n, capacity;
        struct jinja_value *items;
};

struct jinja_entry {
        struct jinja_value key, value;
        uint32_t hash;
};

struct jinja_dict {
        size_t n, capacity;
        struct jinja_entry *entries;
        uint32_t *slots; /* number of the entry + 1; from JINJA_HASHED entries on */
        size_t n_slots;
};

struct jinja_loop {
        const struct jinja_list *list;
        size_t index0;
        unsigned depth;
        bool has_changed_before;
        struct jinja_value last_seen; /* for changed() */
};

struct jinja_method {
        struct jinja_value self;
        const struct jinja_builtin *builtin;
};

struct jinja_named {
        const struct jinja_string *name;
        struct jinja_value value;
};

struct jinja_arguments {
        const struct jinja_value *values;
        size_t n;
        const struct jinja_named *named;
        size_t n_named;
};

/* A filter, a test, a method or a function. */
struct jinja_builtin {
        const char *name;
        /* args[i] is the parameter i, JINJA_ABSENT where it was not given. */
        struct jinja_value (*call)(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args);
        const char *parameters; /* their names, separated by spaces */
        unsigned n_required;
        /* Instead of call: takes what stands there. */
        struct jinja_value (*call_raw)(struct jinja_render *r, struct jinja_value self,
                                       const struct jinja_arguments *args);
};
#define JINJA_MAX_PARAMETERS 6u

/* value.c */
static inline struct jinja_value tdm_jinja_none(void)
{
        return (struct jinja_value){ .kind = JINJA_NONE };
}
static inline struct jinja_value tdm_jinja_bool(bool truth)
{
        return (struct jinja_value){ .kind = JINJA_BOOL, .truth = truth };
}
static inline struct jinja_value tdm_jinja_int(int64_t integer)
{
        return (struct jinja_value){ .kind = JINJA_INT, .integer = integer };
}
static inline struct jinja_value tdm_jinja_float(double number)
{
        return (struct jinja_value){ .kind = JINJA_FLOAT, .number = number };
}
static inline struct jinja_value tdm_jinja_text_value(const struct jinja_string *string)
{
        return (struct jinja_value){ .kind = JINJA_STRING, .string = string };
}
static inline struct jinja_value tdm_jinja_undefined(const struct jinja_string *name)
{
        return (struct jinja_value){ .kind = JINJA_UNDEFINED, .string = name };
}
static inline struct jinja_value tdm_jinja_list_value(struct jinja_list *list)
{
        return (struct jinja_value){ .kind = JINJA_LIST, .list = list };
}
struct jinja_list *tdm_jinja_list(struct jinja_core *core, enum jinja_shape shape, size_t capacity);
void tdm_jinja_list_add(struct jinja_core *core, struct jinja_list *list, struct jinja_value value);
struct jinja_dict *tdm_jinja_dict(struct jinja_core *core);
/* NULL: there is none. A key that Python cannot hash is an error. */
const struct jinja_value *tdm_jinja_dict_get(struct jinja_core *core, const struct jinja_dict *dict,
                                             struct jinja_value key);
void tdm_jinja_dict_set(struct jinja_core *core, struct jinja_dict *dict, struct jinja_value key,
                        struct jinja_value value);
const char *tdm_jinja_type_name(struct jinja_value value); /* as Python's errors say it */
bool tdm_jinja_truth(struct jinja_core *core, struct jinja_value value);
bool tdm_jinja_equal(struct jinja_core *core, struct jinja_value a, struct jinja_value b);
/* -1, 0 or 1; 2: one is NaN, which has no order with anything; an error where Python has none. */
int tdm_jinja_compare(struct jinja_core *core, struct jinja_value a, struct jinja_value b);
bool tdm_jinja_contains(struct jinja_core *core, struct jinja_value in, struct jinja_value what);
bool tdm_jinja_is_number(struct jinja_value value); /* a bool is one */
/* The items of what can be walked over, as a list; an error for what cannot. A generator is used up by it. */
struct jinja_list *tdm_jinja_walk(struct jinja_core *core, struct jinja_value value);
int64_t tdm_jinja_length(struct jinja_core *core, struct jinja_value value);
/* An argument that has to be of a kind; what names it in the error. */
int64_t tdm_jinja_want_int(struct jinja_core *core, struct jinja_value value, const char *what);
const struct jinja_string *tdm_jinja_want_string(struct jinja_core *core, struct jinja_value value, const char *what);

/* print.c */
const struct jinja_string *tdm_jinja_str(struct jinja_core *core, struct jinja_value value); /* Python's str() */
void tdm_jinja_print(struct jinja_text *text, struct jinja_value value);                     /* the same, appended */
void tdm_jinja_repr(struct jinja_text *text, struct jinja_value value);                      /* Python's repr() */
void tdm_jinja_print_float(struct jinja_text *text, double number);
void tdm_jinja_escape_html(struct jinja_text *text, const struct jinja_string *string);

/* tojson.c */
extern const struct jinja_builtin tdm_jinja_tojson;

/* number.c: Python's arithmetic on numbers, and int() and float() of texts */
struct jinja_value tdm_jinja_arithmetic(struct jinja_core *core, char op, struct jinja_value a, struct jinja_value b);
struct jinja_value tdm_jinja_parse_number(struct jinja_core *core, const char *text, size_t size);

/* lexer.c */
enum jinja_token_kind {
        JINJA_TOKEN_END,
        JINJA_TOKEN_DATA,
        JINJA_TOKEN_PRINT_BEGIN,
        JINJA_TOKEN_PRINT_END,
        JINJA_TOKEN_BLOCK_BEGIN,
        JINJA_TOKEN_BLOCK_END,
        JINJA_TOKEN_NAME,
        JINJA_TOKEN_STRING, /* with its quotes */
        JINJA_TOKEN_INT,
        JINJA_TOKEN_FLOAT,
        JINJA_TOKEN_OPERATOR, /* op: its first byte, or two of them: JINJA_OP2('=', '=') */
};
#define JINJA_OP2(a, b) ((uint16_t)(((uint8_t)(a) << 8) | (uint8_t)(b)))

struct jinja_token {
        uint8_t kind;
        uint16_t op;
        uint32_t line;
        uint32_t at, size; /* in the source */
};

struct jinja_tokens {
        const char *source; /* with line ends as \n */
        size_t source_size;
        struct jinja_token *tokens; /* the last one is an END */
        size_t n;
};
void tdm_jinja_lex(struct jinja_core *core, const char *source, size_t size, struct jinja_tokens *ret);

/* parser.c */
enum jinja_node_kind {
        JINJA_NODE_CONST,     /* value */
        JINJA_NODE_NAME,      /* name */
        JINJA_NODE_LIST,      /* [0] the first item */
        JINJA_NODE_TUPLE,     /* [0] the first item */
        JINJA_NODE_DICT,      /* [0] the first PAIR */
        JINJA_NODE_PAIR,      /* [0] key, [1] value */
        JINJA_NODE_ATTRIBUTE, /* [0] object, name */
        JINJA_NODE_ITEM,      /* [0] object, [1] subscript or SLICE */
        JINJA_NODE_SLICE,     /* [0] start, [1] stop, [2] step; each may be NULL */
        JINJA_NODE_CALL,      /* [0] function, [1] the first ARGUMENT */
        JINJA_NODE_ARGUMENT,  /* [0] value, name or NULL, op '*' or JINJA_OP2('*', '*') or 0 */
        JINJA_NODE_FILTER,    /* [0] input (NULL: of a filter block), [1] the first ARGUMENT, name, builtin or NULL */
        JINJA_NODE_TEST,      /* the same */
        JINJA_NODE_NOT,       /* [0] */
        JINJA_NODE_NEGATE,    /* [0] */
        JINJA_NODE_PLUS,      /* [0] */
        JINJA_NODE_BINARY,    /* [0] [1], op */
        JINJA_NODE_AND,       /* [0] [1] */
        JINJA_NODE_OR,        /* [0] [1] */
        JINJA_NODE_COMPARE,   /* [0] the first operand, [1] the first OPERAND */
        JINJA_NODE_OPERAND,   /* [0] value, op: a comparison, 'i' in, 'n' not in */
        JINJA_NODE_CONCAT,    /* [0] the first item */
        JINJA_NODE_CHOICE,    /* [0] condition, [1] then, [2] else or NULL */
        /* Statements. */
        JINJA_NODE_DATA,         /* value */
        JINJA_NODE_PRINT,        /* [0] */
        JINJA_NODE_IF,           /* [0] the first BRANCH */
        JINJA_NODE_BRANCH,       /* [0] condition (NULL: else), [1] body */
        JINJA_NODE_FOR,          /* [0] target, [1] what is walked over, [2] condition or NULL, [3] body, [4] else */
        JINJA_NODE_SET,          /* [0] target, [1] value */
        JINJA_NODE_SET_BLOCK,    /* [0] target, [1] filters or NULL, [2] body */
        JINJA_NODE_MEMBER,       /* target only: name is the namespace, [0] a NAME that is its member */
        JINJA_NODE_MACRO,        /* name, [0] the first PARAMETER, [1] body */
        JINJA_NODE_PARAMETER,    /* name, [0] default or NULL */
        JINJA_NODE_CALL_BLOCK,   /* [0] the CALL, [1] the first PARAMETER, [2] body */
        JINJA_NODE_FILTER_BLOCK, /* [0] filters, [1] body */
        JINJA_NODE_SCOPE,        /* [0] body; [1] the first SET of a `with`, or NULL */
        JINJA_NODE_BREAK,
        JINJA_NODE_CONTINUE,
};

struct jinja_node {
        uint8_t kind;
        uint16_t op, height;
        uint32_t line;
        struct jinja_node *next;
        struct jinja_node *child[5];
        union {
                struct jinja_value value;
                struct {
                        const struct jinja_string *name; /* the same pointer for the same name */
                        const struct jinja_builtin *builtin;
                };
        };
};

struct tdm_template {
        struct jinja_core core;
        struct jinja_node *body;
        const struct jinja_string **names; /* all names, by hash */
        size_t n_names, n_name_slots;
        uint32_t seed; /* of their hashes: no template knows which of its names meet */
        bool has_word_content;
};

struct jinja_parser {
        struct jinja_core *core;
        struct tdm_template *template;
        struct jinja_tokens tokens;
        size_t at;
        unsigned nesting, n_loops;
};

/* template.c */
const struct jinja_string *tdm_jinja_intern(struct tdm_template *template, const char *name, size_t size);
const struct jinja_string *tdm_jinja_interned(const struct tdm_template *template, const char *name, size_t size);

struct jinja_node *tdm_jinja_node(struct jinja_parser *p, enum jinja_node_kind kind);
/* Gives it a child, and the height that follows. */
void tdm_jinja_node_take(struct jinja_parser *p, struct jinja_node *node, unsigned i, struct jinja_node *child);
const struct jinja_token *tdm_jinja_peek(const struct jinja_parser *p, size_t ahead);
const struct jinja_token *tdm_jinja_next(struct jinja_parser *p);
bool tdm_jinja_is_name(const struct jinja_parser *p, const char *name);
bool tdm_jinja_take_name(struct jinja_parser *p, const char *name);
bool tdm_jinja_is_op(const struct jinja_parser *p, uint16_t op);
bool tdm_jinja_take_op(struct jinja_parser *p, uint16_t op);
void tdm_jinja_expect_op(struct jinja_parser *p, uint16_t op);
const struct jinja_string *tdm_jinja_expect_name(struct jinja_parser *p, const char *what);
_Noreturn void tdm_jinja_unexpected(struct jinja_parser *p, const char *wanted);
void tdm_jinja_enter(struct jinja_parser *p);
void tdm_jinja_leave(struct jinja_parser *p);
/* expressions.c */
struct jinja_node *tdm_jinja_parse_expression(struct jinja_parser *p, bool with_choice);
/* One expression, or several with commas: a tuple. ends: a name that ends it, or NULL. */
struct jinja_node *tdm_jinja_parse_tuple(struct jinja_parser *p, bool with_choice, const char *ends);
struct jinja_node *tdm_jinja_parse_unary(struct jinja_parser *p, bool with_filter);
struct jinja_node *tdm_jinja_parse_filters(struct jinja_parser *p, struct jinja_node *input, bool is_first);
struct jinja_node *tdm_jinja_parse_target(struct jinja_parser *p, const char *ends, bool with_member);
/* parser.c */
struct jinja_node *tdm_jinja_parse(struct jinja_parser *p);

/* Rendering. */
struct jinja_binding {
        const struct jinja_string *name;
        struct jinja_value value;
};
struct jinja_scope {
        struct jinja_scope *parent;
        struct jinja_binding *bindings;
        size_t n, capacity;
};

struct jinja_macro {
        const struct jinja_node *node; /* a MACRO or a CALL_BLOCK */
        const struct jinja_node *parameters, *body;
        const struct jinja_string *name;
        struct jinja_scope *scope; /* where it was defined */
        struct jinja_value caller; /* ABSENT: none */
};

struct jinja_render {
        struct jinja_core core;
        const struct tdm_template *template;
        const struct tdm_template_input *input;
        struct jinja_scope *scope;
        struct jinja_text *out;
        unsigned depth, loop_depth;
};

/* input.c */
/* JSON as values; copy: its texts too, since the tree goes before the values do. Roles that chats have count as the
 * template's own words: templates build markers of them. */
struct jinja_value tdm_jinja_from_json(struct jinja_core *core, const struct tdm_json *json, uint32_t node, bool copy);

/* scope.c */
struct jinja_scope *tdm_jinja_scope(struct jinja_render *r, struct jinja_scope *parent);
void tdm_jinja_bind(struct jinja_render *r, struct jinja_scope *scope, const struct jinja_string *name,
                    struct jinja_value value);
const struct jinja_value *tdm_jinja_lookup(struct jinja_render *r, const struct jinja_string *name);

/* eval.c */
struct jinja_value tdm_jinja_eval(struct jinja_render *r, const struct jinja_node *node);
/* Filters of a block: the innermost one's input is given. */
struct jinja_value tdm_jinja_eval_filters(struct jinja_render *r, const struct jinja_node *node,
                                          struct jinja_value input);
struct jinja_value tdm_jinja_attribute(struct jinja_render *r, struct jinja_value object,
                                       const struct jinja_string *name);
struct jinja_value tdm_jinja_item(struct jinja_render *r, struct jinja_value object, struct jinja_value key);
struct jinja_value tdm_jinja_add(struct jinja_render *r, struct jinja_value a, struct jinja_value b);
struct jinja_value tdm_jinja_call_builtin(struct jinja_render *r, const struct jinja_builtin *builtin,
                                          struct jinja_value self, const struct jinja_arguments *args);
struct jinja_value tdm_jinja_call(struct jinja_render *r, struct jinja_value function,
                                  const struct jinja_arguments *args);

/* run.c */
enum jinja_flow { JINJA_FLOW_ON, JINJA_FLOW_BREAK, JINJA_FLOW_CONTINUE };
enum jinja_flow tdm_jinja_run(struct jinja_render *r, const struct jinja_node *body);
struct jinja_value tdm_jinja_call_macro(struct jinja_render *r, const struct jinja_macro *macro,
                                        const struct jinja_arguments *args);
struct jinja_value tdm_jinja_loop_attribute(struct jinja_render *r, struct jinja_loop *loop,
                                            const struct jinja_string *name);

/* The tables. NULL: there is none of this name. */
const struct jinja_builtin *tdm_jinja_find_filter(const char *name, size_t size);
const struct jinja_builtin *tdm_jinja_find_test(const char *name, size_t size);
const struct jinja_builtin *tdm_jinja_find_function(const char *name, size_t size);
const struct jinja_builtin *tdm_jinja_find_string_method(const char *name, size_t size);
const struct jinja_builtin *tdm_jinja_find_dict_method(const char *name, size_t size);
const struct jinja_builtin *tdm_jinja_find_list_method(const char *name, size_t size);
const struct jinja_builtin *tdm_jinja_table_find(const struct jinja_builtin *table, size_t n, const char *name,
                                                 size_t size);
/* format.c: what `'…' % x` and `'…'.format(x)` write */
struct jinja_value tdm_jinja_percent(struct jinja_render *r, const struct jinja_string *format,
                                     const struct jinja_value *values, size_t n);
extern const struct jinja_builtin tdm_jinja_format_method;
/* filters-list.c */
extern const struct jinja_builtin tdm_jinja_list_filters[];
extern const size_t tdm_jinja_n_list_filters;
/* string-methods.c: what filters and methods share */
struct jinja_string *tdm_jinja_strip(struct jinja_core *core, const struct jinja_string *string,
                                     struct jinja_value chars, bool left, bool right);
struct jinja_string *tdm_jinja_replace(struct jinja_core *core, const struct jinja_string *string,
                                       const struct jinja_string *old, const struct jinja_string *new, int64_t count);

#endif
