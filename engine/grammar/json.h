/* A JSON text as a tree, for schemas and instances.
 *
 * Its own reader and not jansson's: numbers keep their digits (ranges are exact decimals, and 0.1 is no double),
 * members keep their order, strings may hold NUL, a node takes 44 bytes, and the compiler adds nodes of its own to
 * the tree. Strict: RFC 8259, UTF-8, no lone surrogates, no member twice. */
#ifndef TDM_ENGINE_GRAMMAR_JSON_H
#define TDM_ENGINE_GRAMMAR_JSON_H

#include "common/error.h"

enum tdm_json_type {
        TDM_JSON_NULL,
        TDM_JSON_FALSE,
        TDM_JSON_TRUE,
        TDM_JSON_NUMBER,
        TDM_JSON_STRING,
        TDM_JSON_ARRAY,
        TDM_JSON_OBJECT,
        TDM_JSON_ALIAS, /* made by tdm_json_append() only: stands for the node `first` */
};

#define TDM_JSON_NONE UINT32_MAX

struct tdm_json_node {
        uint8_t type;
        uint32_t parent, next;    /* TDM_JSON_NONE at the ends */
        uint32_t first, last, n;  /* of the children */
        uint32_t text, text_size; /* strings (unescaped) and numbers (as they stand) */
        uint32_t key, key_size;   /* of a member; the index of an item is key */
};

struct tdm_json {
        struct tdm_json_node *nodes;
        uint32_t n_nodes, capacity;
        char *text;
        uint32_t n_text, text_capacity;
        uint32_t *slots; /* members by parent and name: number + 1 */
        uint32_t n_slots, n_members;
        bool failed; /* no memory */
};

int tdm_json_parse(struct tdm_json *json, const char *source, size_t size, uint32_t max_depth, struct tdm_error *err);
void tdm_json_deinit(struct tdm_json *json);

static inline const struct tdm_json_node *tdm_json_get(const struct tdm_json *json, uint32_t node)
{
        return &json->nodes[node];
}
/* What an alias stands for. */
static inline uint32_t tdm_json_deref(const struct tdm_json *json, uint32_t node)
{
        while (node != TDM_JSON_NONE && json->nodes[node].type == TDM_JSON_ALIAS)
                node = json->nodes[node].first;
        return node;
}
static inline const char *tdm_json_text(const struct tdm_json *json, uint32_t node)
{
        return json->text + json->nodes[node].text;
}
static inline const char *tdm_json_key(const struct tdm_json *json, uint32_t node)
{
        return json->text + json->nodes[node].key;
}
/* The member of that name, or TDM_JSON_NONE. */
uint32_t tdm_json_find(const struct tdm_json *json, uint32_t object, const char *name, size_t size);
uint32_t tdm_json_member(const struct tdm_json *json, uint32_t object, const char *name);
bool tdm_json_text_is(const struct tdm_json *json, uint32_t node, const char *text);
/* Equality of values: of numbers by value, of objects whatever the order. */
bool tdm_json_equal(const struct tdm_json *json, uint32_t a, uint32_t b);
/* The JSON pointer of a node, cut to fit. Returns to. */
char *tdm_json_pointer(const struct tdm_json *json, uint32_t node, char *to, size_t size);

struct tdm_json_buffer {
        char *data;
        size_t size, capacity;
        bool failed; /* no memory */
};
void tdm_json_write(struct tdm_json_buffer *to, const char *text, size_t size);
void tdm_json_write_string(struct tdm_json_buffer *to, const char *text, size_t size);
/* The value without white space; characters are escaped only where JSON wants it. */
void tdm_json_print(const struct tdm_json *json, uint32_t node, struct tdm_json_buffer *to);

/* New nodes, for the compiler's rewritings. They return TDM_JSON_NONE and set failed without memory. at: where errors
 * about it point to. */
uint32_t tdm_json_add(struct tdm_json *json, enum tdm_json_type type, uint32_t at);
/* node as a member or item of parent: an alias of it where it has children. */
uint32_t tdm_json_append(struct tdm_json *json, uint32_t parent, const char *name, size_t size, uint32_t node);
/* The same under the name that the member `named` has. */
uint32_t tdm_json_append_as(struct tdm_json *json, uint32_t parent, uint32_t named, uint32_t node);
/* Copies the first n nodes, with the links among them, behind all others. Returns the first copy. */
uint32_t tdm_json_copy(struct tdm_json *json, uint32_t n);

#endif
