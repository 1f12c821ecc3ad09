/* At most one stop text less one byte is held, so looking again from the front costs little. */
#include "http-gateway/stops.h"

int stops_add(struct stops *s, const char *text, size_t size, struct buffer *out)
{
        size_t first = SIZE_MAX, keep = 0;
        int found = -1;

        buffer_add(&s->held, text, size);
        if (s->held.failed) {
                out->failed = true;
                return -1;
        }
        for (size_t i = 0; i < s->n; i++) {
                const char *at = memmem(s->held.data, s->held.size, s->texts[i], strlen(s->texts[i]));

                if (at && (size_t)(at - s->held.data) < first) {
                        first = (size_t)(at - s->held.data);
                        found = (int)i;
                }
        }
        if (found >= 0) {
                buffer_add(out, s->held.data, first);
                s->held.size = 0;
                return found;
        }
        for (size_t i = 0; i < s->n; i++) {
                size_t len = strlen(s->texts[i]);

                for (size_t k = TDM_MIN(len - 1, s->held.size); k > keep; k--)
                        if (memcmp(s->held.data + s->held.size - k, s->texts[i], k) == 0)
                                keep = k;
        }
        buffer_add(out, s->held.data, s->held.size - keep);
        memmove(s->held.data, s->held.data + s->held.size - keep, keep);
        s->held.size = keep;
        return -1;
}

void stops_flush(struct stops *s, struct buffer *out)
{
        if (s->held.size > 0)
                buffer_add(out, s->held.data, s->held.size);
        s->held.size = 0;
}

void stops_free(struct stops *s)
{
        buffer_free(&s->held);
}
