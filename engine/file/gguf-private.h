/* Shared by gguf.c (opening) and gguf-get.c (looking up); nobody else includes it. */
#ifndef TDM_ENGINE_GGUF_PRIVATE_H
#define TDM_ENGINE_GGUF_PRIVATE_H

#include "engine/file/gguf.h"

#define TYPE_OF_FILES_MAX 59u /* what is above are types that weights are packed as */

/* As stored in files. */
enum value_type {
        VALUE_U8,
        VALUE_I8,
        VALUE_U16,
        VALUE_I16,
        VALUE_U32,
        VALUE_I32,
        VALUE_F32,
        VALUE_BOOL,
        VALUE_STRING,
        VALUE_ARRAY,
        VALUE_U64,
        VALUE_I64,
        VALUE_F64,
        N_VALUE_TYPES
};

/* 0 for strings and arrays. */
extern const uint8_t tdm_gguf_value_bytes[N_VALUE_TYPES];

struct entry {
        struct tdm_gguf_string key;
        uint32_t type;
        uint32_t element;    /* of arrays */
        uint64_t n;          /* elements of an array, bytes of a string */
        const uint8_t *data; /* in the private copy */
        uint32_t *marks;     /* of arrays of strings: where every TDM_GGUF_MARK_EVERY-th one stands, from data; owned */
};

/* A look-up by index walks at most this many strings. A table of all would double what an array of empty ones takes. */
#define TDM_GGUF_MARK_EVERY 64u

struct tdm_gguf {
        char *name;
        uint64_t file_size;
        const uint8_t *map; /* whole file, NULL after unmap_data() */
        uint8_t *meta;      /* private copy of the file's first meta_size bytes */
        size_t meta_size;
        struct tdm_parse_account account;
        struct entry *entries; /* sorted by key after open() */
        uint64_t n_entries;
        struct tdm_gguf_tensor *tensors;
        uint32_t *by_name; /* indices into tensors, sorted by name */
        uint64_t n_tensors;
        struct tdm_gguf **parts; /* [n_parts], owned: the second and later ones */
        uint32_t n_parts;
};

/* memcmp order, the shorter first. */
static inline int tdm_gguf_string_compare(const struct tdm_gguf_string *a, const char *b, size_t b_size)
{
        int r = memcmp(a->data, b, TDM_MIN(a->size, b_size));

        return r ? r : (a->size > b_size) - (a->size < b_size);
}

#endif
