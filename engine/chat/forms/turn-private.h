/* A form's marks as bytes of a turn, and tools as grammar and parser read them. */
#ifndef TDM_ENGINE_CHAT_FORMS_TURN_PRIVATE_H
#define TDM_ENGINE_CHAT_FORMS_TURN_PRIVATE_H

#include "engine/chat/forms/private.h"
#include "engine/chat/forms/turn.h"

/* Marks where special pieces of the kind "control" are the bytes that a vocabulary gives them. */
struct tdm_form_marks {
        struct tdm_form_call_marks calls;
        char *think_begin, *think_end, *text_begin, *text_end, *message;
};
int tdm_form_marks_init(struct tdm_form_marks *ret, const struct tdm_chat_form *form,
                        const struct tdm_tokenizer *tokenizer);
void tdm_form_marks_deinit(struct tdm_form_marks *marks);
/* One text with its control pieces; NULL for NULL. 0 or -ENOMEM. */
int tdm_form_bind(const struct tdm_tokenizer *tokenizer, const char *text, char **ret);

/* How values of an argument are written, as its schema says. */
enum tdm_form_values {
        TDM_FORM_VALUES_MIXED,   /* strings and others, or not known */
        TDM_FORM_VALUES_STRINGS, /* strings only */
        TDM_FORM_VALUES_OTHERS,  /* no strings */
};

/* Whether it is a number, or true, false or null, also as Python writes them. */
bool tdm_form_is_json_word(const char *text, size_t size);

#define TDM_FORM_PATH_MAX 8u
/* Where the schema of a tool's arguments says its properties: behind local references. */
struct tdm_form_place {
        uint32_t node;                       /* of the schema with properties, or TDM_JSON_NONE */
        const char *path[TDM_FORM_PATH_MAX]; /* to it, from parameters; NUL-terminated, valid as long as the place */
        unsigned n_path;
        char names[256];
};
void tdm_form_place_find(const struct tdm_json *json, uint32_t parameters, struct tdm_form_place *ret);
enum tdm_form_values tdm_form_values_of(const struct tdm_json *json, uint32_t root, uint32_t schema);
/* What the schema of the tool of this name says of the argument key [size]. */
enum tdm_form_values tdm_form_values_find(const struct tdm_json *json, const char *tool, const char *key, size_t size);
/* A tool's object with name and parameters. */
uint32_t tdm_form_function(const struct tdm_json *json, uint32_t tool);
uint32_t tdm_form_member(const struct tdm_json *json, uint32_t object, const char *name);

/* The part of a mark that is a call's id and may be left out: *ret is the mark without it, or NULL. 0 or -ENOMEM. */
int tdm_form_without_id(const char *mark, char **ret);

/* A new id of a call, with NUL. */
void tdm_form_id_make(char *id);

/* ---- turn-parts.c: what goes out of a turn ---- */

struct tdm_form_parts {
        struct tdm_json_buffer texts; /* of the parts of one push */
        struct tdm_form_kept *kept;   /* [capacity], n of them in use */
        struct tdm_form_part *given;  /* [capacity] */
        size_t n, capacity;
        uint32_t n_calls; /* of the turn */
        bool failed;
};
void tdm_form_parts_begin(struct tdm_form_parts *parts); /* of a push */
/* Goes on with the last part if it is of this kind. */
void tdm_form_parts_give(struct tdm_form_parts *parts, enum tdm_form_part_kind kind, const char *data, size_t size);
void tdm_form_parts_give_call(struct tdm_form_parts *parts, const char *name, size_t size);
/* A character of a string in arguments, as JSON writes it. */
void tdm_form_parts_give_escaped(struct tdm_form_parts *parts, char c);
/* Texts at the end are not given out. */
void tdm_form_parts_drop_text(struct tdm_form_parts *parts);
/* *ret_parts: [*ret_n], valid until the next push. 0 or -ENOMEM. */
int tdm_form_parts_hand_out(struct tdm_form_parts *parts, const struct tdm_form_part **ret_parts, size_t *ret_n);
void tdm_form_parts_deinit(struct tdm_form_parts *parts);

/* ---- building a grammar ---- */

struct tdm_composer;

struct tdm_form_tool {
        char name[TDM_FORM_NAME_MAX + 1];
        bool is_wanted, takes_nothing; /* it may be called; with tagged arguments: and without any */
        uint32_t parameters;           /* node of its schema, or TDM_JSON_NONE */
        uint32_t arguments;            /* part; 0 with takes_nothing: it has none */
};

struct tdm_form_builder {
        struct tdm_composer *c;
        const struct tdm_chat_form *form;
        const struct tdm_tokenizer *tokenizer;
        struct tdm_form_marks marks;
        const struct tdm_form_use *use;
        struct tdm_json tools;
        struct tdm_form_tool *all;
        size_t n_all, n_wanted, spent; /* spent: bytes of schemas that were read again */
        struct tdm_error *err;
};

/* A mark, its slots filled in. */
uint32_t tdm_form_literal(struct tdm_form_builder *b, const char *mark, const char *name, const char *key);
/* turn-arguments.c: the part of a tool's tagged arguments. */
int tdm_form_arguments(struct tdm_form_builder *b, struct tdm_form_tool *tool, const char *source, size_t size,
                       struct tdm_error *err);

#endif
