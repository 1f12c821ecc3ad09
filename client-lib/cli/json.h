/* JSON out, into a growing buffer, and one kind of JSON in: an array of token ids. What is written is always valid:
 * strings are escaped, bytes that are no UTF-8 become U+FFFD, and a number that JSON cannot say becomes null. */
#ifndef TANDEM_CLI_JSON_H
#define TANDEM_CLI_JSON_H

#include "common/util.h"

/* Once memory is short, failed is set and the rest is dropped; the owner looks once, at the end. */
struct buf {
        char *data;
        size_t size, capacity;
        bool failed;
};

void buf_free(struct buf *buf);
void buf_freep(struct buf *buf);
void buf_add(struct buf *buf, const void *data, size_t size);
void buf_puts(struct buf *buf, const char *text);
void buf_printf(struct buf *buf, const char *fmt, ...) _printf_(2, 3);

void json_text(struct buf *buf, const char *text, size_t size);
void json_number(struct buf *buf, double value); /* 9 significant digits, enough for any float */

/* `"name":value`, with a comma in front unless it is the first in its object or array. */
void json_key(struct buf *buf, const char *name);
void json_field_string(struct buf *buf, const char *name, const char *value);
void json_field_u64(struct buf *buf, const char *name, uint64_t value);
void json_field_number(struct buf *buf, const char *name, double value);
void json_field_bool(struct buf *buf, const char *name, bool value);
void json_ids(struct buf *buf, const uint32_t *ids, size_t n); /* "[1,2]" */

/* Strict. Returns NULL and the ids (the caller's, free()), or what is wrong; then *ret_at is the byte where. */
const char *json_parse_ids(const char *text, size_t size, uint32_t **ret_ids, size_t *ret_n, size_t *ret_at);

/* Bytes of the valid UTF-8 character at text, or 0. */
size_t utf8_char_bytes(const unsigned char *text, size_t size);

#endif
