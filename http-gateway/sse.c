#include "http-gateway/sse.h"

void sse_add(struct buffer *out, const char *event, json_t *json)
{
        if (event) {
                buffer_add_text(out, "event: ");
                buffer_add_text(out, event);
                buffer_add_text(out, "\n");
        }
        buffer_add_text(out, "data: ");
        json_write(out, json); /* compact: has no line ends */
        buffer_add_text(out, "\n\n");
}

void sse_add_text(struct buffer *out, const char *text)
{
        buffer_add_text(out, "data: ");
        buffer_add_text(out, text);
        buffer_add_text(out, "\n\n");
}

void sse_add_comment(struct buffer *out)
{
        buffer_add_text(out, ": wait\n\n");
}
