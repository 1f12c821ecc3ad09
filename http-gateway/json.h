/* JSON in and out: jansson with limits that it does not have itself, and text that may end within a character. */
#ifndef TDM_HTTP_JSON_H
#define TDM_HTTP_JSON_H

#include "http-gateway/buffer.h"
#include "http-gateway/errors.h"
#include "http-gateway/exact.h"

#define JSON_MAX_DEPTH 64u
/* A prompt of token ids is a long array of numbers. Other values take more memory for each byte of their text: an empty
 * object takes some 230 bytes. 4,096 messages, half of them calls, have some 31,000 parts and 23,000 members. */
#define JSON_MAX_VALUES 300000u
#define JSON_MAX_PARTS 50000u   /* arrays, objects and texts */
#define JSON_MAX_MEMBERS 40000u /* of all objects together */

/* What the values of a text, and one copy of their texts, will take in memory at most. 0, or a failure (400): there is
 * no text, it is too deep, it has too many values. */
int json_count(const char *data, size_t size, size_t *ret_bytes, struct failure *f);
/* An object of a text that json_count() has passed, or NULL and a failure (400): not JSON, a member twice, bad UTF-8, a
 * NUL in a string that is not a message's text, anything but an object. numbers: see exact.h, also for what follows the
 * text. */
json_t *json_parse_object(const char *data, size_t size, struct exact *numbers, struct failure *f);
/* Both, where numbers are only read. */
json_t *json_read_object(const char *data, size_t size, struct failure *f);
/* Bytes as a string; what is not UTF-8 becomes U+FFFD. NULL: out of memory. */
json_t *json_text(const char *data, size_t size);
/* Appends a string, in quotes, as json_write() does. */
void json_write_text(struct buffer *b, const char *data, size_t size);
/* Appends the compact form; takes over json (NULL: b fails). */
void json_write(struct buffer *b, json_t *json);
/* The same of an object but for its last brace: members that are text already go behind it. */
void json_write_open(struct buffer *b, json_t *object);

/* Reads a member that the parameter table has checked. A member that is missing or null gives the default. */
double json_get_number(const json_t *object, const char *key, double otherwise);
json_int_t json_get_integer(const json_t *object, const char *key, json_int_t otherwise);
bool json_get_bool(const json_t *object, const char *key, bool otherwise);
const char *json_get_string(const json_t *object, const char *key, const char *otherwise);
/* NULL where it is missing or null. */
json_t *json_get(const json_t *object, const char *key);

/* 0 where each member that is not null is one of the names, of which the last is NULL. name: the object's, for the
 * failure. What is no object has no members. */
int json_check_members(const json_t *object, const char *name, const char *const *names, struct failure *f);

#endif
