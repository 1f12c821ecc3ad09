/* JSON that passes through keeps its numbers as they were written, of any length: arguments of calls, schemas, what is
 * echoed. jansson holds numbers as doubles and 64-bit integers, so the text of each number that these would change is
 * kept beside the values, by node. The same holds the other way round: a node may stand for a text that is written as
 * it is. */
#ifndef TDM_HTTP_EXACT_H
#define TDM_HTTP_EXACT_H

#include <jansson.h>
#include "http-gateway/buffer.h"

struct exact_slot;

struct exact {
        struct exact_slot *slots; /* a hash table */
        size_t n_slots, n;
        char *copy; /* of the numbers' text */
};

/* What a kept number takes beside a copy of its text. */
#define EXACT_NUMBER_BYTES 96u

/* Numbers of a text whose values jansson would change. Strings are skipped. bytes: of their text. */
void exact_count(const char *data, size_t size, size_t *ret_n, size_t *ret_bytes);
/* Parses. Numbers that jansson refuses are given to it as others of that size, so that a check of their range
 * sees them. NULL: *why, or no memory (why->text is "" then). Texts are copied. A byte that is part of no number
 * follows the text. */
json_t *exact_load(struct exact *e, const char *data, size_t size, json_error_t *why);
/* A node that is written as this text, which is borrowed. NULL: no memory. */
json_t *exact_text(struct exact *e, const char *text, size_t size);
/* Appends the compact form. NULL: b fails. json is borrowed; e may be NULL. */
void exact_write(struct buffer *b, const struct exact *e, const json_t *json);
void exact_free(struct exact *e);

#endif
