/* What of a job grows as its events come: text and ids. A daemon may send any number of them, so both have a cap. */
#include "client-lib/job.h"

int text_add(struct text_buf *buf, const void *data, size_t size)
{
        if (size > LIB_MAX_TEXT_BYTES - buf->size)
                return -E2BIG;
        if (buf->size + size + 1 > buf->capacity) {
                size_t capacity = TDM_MAX(TDM_MAX(buf->size + size + 1, buf->capacity * 2), (size_t)256);
                char *p = realloc(buf->data, capacity);

                if (!p)
                        return -ENOMEM;
                buf->data = p;
                buf->capacity = capacity;
        }
        if (size)
                memcpy(buf->data + buf->size, data, size);
        buf->size += size;
        buf->data[buf->size] = '\0';
        return 0;
}

int id_buf_add(struct id_buf *buf, const uint32_t *ids, size_t n)
{
        if (n > LIB_MAX_TOKENS - buf->n)
                return -E2BIG;
        if (buf->n + n > buf->capacity) {
                size_t capacity = TDM_MAX(TDM_MAX(buf->n + n, buf->capacity * 2), (size_t)64);
                uint32_t *p = realloc(buf->data, capacity * sizeof(*p));

                if (!p)
                        return -ENOMEM;
                buf->data = p;
                buf->capacity = capacity;
        }
        if (n)
                memcpy(buf->data + buf->n, ids, n * sizeof(*ids));
        buf->n += n;
        return 0;
}
