/* Doubling growth. What was taken from the front is given back when all of it was, or when it is the larger half. */
#include "http-gateway/buffer.h"

#include <stdarg.h>

static bool make_room(struct buffer *b, size_t size)
{
        size_t capacity;
        char *data;

        if (b->failed)
                return false;
        if (b->start > 0 && b->start >= b->size - b->start) {
                memmove(b->data, b->data + b->start, b->size - b->start);
                b->size -= b->start;
                b->start = 0;
        }
        if (b->capacity > b->size && b->capacity - b->size > size)
                return true;
        capacity = TDM_MAX(TDM_MAX(b->capacity * 2, b->size + size + 1), (size_t)256);
        data = realloc(b->data, capacity);
        if (!data) {
                b->failed = true;
                return false;
        }
        b->data = data;
        b->capacity = capacity;
        return true;
}

void buffer_add(struct buffer *b, const void *data, size_t size)
{
        if (!make_room(b, size))
                return;
        if (size > 0)
                memcpy(b->data + b->size, data, size);
        b->size += size;
        b->data[b->size] = '\0';
}

void buffer_add_text(struct buffer *b, const char *text)
{
        buffer_add(b, text, strlen(text));
}

void buffer_move(struct buffer *b, struct buffer *from)
{
        if (from->failed)
                b->failed = true;
        buffer_add(b, from->data ? from->data + from->start : "", buffer_left(from));
        buffer_free(from);
}

void buffer_printf(struct buffer *b, const char *fmt, ...)
{
        va_list args;
        char *text;
        int n;

        va_start(args, fmt);
        n = vasprintf(&text, fmt, args);
        va_end(args);
        if (n < 0) {
                b->failed = true;
                return;
        }
        buffer_add(b, text, (size_t)n);
        free(text);
}

size_t buffer_left(const struct buffer *b)
{
        return b->size - b->start;
}

size_t buffer_take(struct buffer *b, void *to, size_t size)
{
        size_t n = TDM_MIN(size, buffer_left(b));

        if (n > 0)
                memcpy(to, b->data + b->start, n);
        b->start += n;
        if (b->start == b->size)
                b->start = b->size = 0;
        return n;
}

void buffer_free(struct buffer *b)
{
        free(b->data);
        *b = (struct buffer){ 0 };
}
