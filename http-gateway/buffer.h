/* Bytes that grow at the end and are taken from the front: request bodies, answers, streams on their way out. An
 * allocation that fails sets `failed`, once for all; who sends or parses looks at it. */
#ifndef TDM_HTTP_BUFFER_H
#define TDM_HTTP_BUFFER_H

#include "common/util.h"

struct buffer {
        char *data; /* NUL after size bytes, once there is any */
        size_t size, capacity;
        size_t start; /* bytes taken already */
        bool failed;
};

void buffer_add(struct buffer *b, const void *data, size_t size);
void buffer_add_text(struct buffer *b, const char *text);
/* Moves what `from` has to the end of b; from is empty then. */
void buffer_move(struct buffer *b, struct buffer *from);
void buffer_printf(struct buffer *b, const char *fmt, ...) _printf_(2, 3);
/* Copies at most size bytes out and drops them here. */
size_t buffer_take(struct buffer *b, void *to, size_t size);
size_t buffer_left(const struct buffer *b);
void buffer_free(struct buffer *b);

#endif
