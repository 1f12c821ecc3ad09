/* JSON in and out: jansson with limits that it does not have itself, and text that may end within a character. */
#ifndef TDM_HTTP_JSON_H
#define TDM_HTTP_JSON_H

#include "http-gateway/buffer.h"
#include "http-gateway/errors.h"

#define JSON_MAX_DEPTH 64u
#define JSON_MAX_VALUES 300000u /* a context of ids fits; what each costs in memory is bounded by this */

/* An object, or NULL and a failure (400): not JSON, too deep, too many values, a member twice, bad UTF-8, a number that
 * no double or int64 holds, a NUL in a string that is not a message's text, anything but an object. */
json_t *json_read_object(const char *data, size_t size, struct failure *f);
/* Bytes as a string; what is not UTF-8 becomes U+FFFD. NULL: out of memory. */
json_t *json_text(const char *data, size_t size);
/* Appends a string, in quotes, as json_write() does. */
void json_write_text(struct buffer *b, const char *data, size_t size);
/* Appends the compact form; takes over json (NULL: b fails). */
void json_write(struct buffer *b, json_t *json);

/* Of a member that the parameter table has checked; missing and null give the default. */
double json_get_number(const json_t *object, const char *key, double otherwise);
json_int_t json_get_integer(const json_t *object, const char *key, json_int_t otherwise);
bool json_get_bool(const json_t *object, const char *key, bool otherwise);
const char *json_get_string(const json_t *object, const char *key, const char *otherwise);
/* NULL where it is missing or null. */
json_t *json_get(const json_t *object, const char *key);

#endif
