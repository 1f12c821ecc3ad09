/* What of a job grows as its events come: text and ids. A daemon may send any number of them, so both have a cap. */
#include "client-lib/job.h"

#include "common/grow.h"

int text_add(struct text_buf *buf, const void *data, size_t size)
{
        if (size > LIB_MAX_TEXT_BYTES - buf->size)
                return -E2BIG;
        if (tdm_grow(&buf->data, &buf->capacity, buf->size + size + 1, 256, 1) < 0)
                return -ENOMEM;
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
        if (tdm_grow(&buf->data, &buf->capacity, buf->n + n, 64, sizeof(*buf->data)) < 0)
                return -ENOMEM;
        if (n)
                memcpy(buf->data + buf->n, ids, n * sizeof(*ids));
        buf->n += n;
        return 0;
}
