/* Server-sent events, as the APIs write them: one line of JSON each. */
#ifndef TDM_HTTP_SSE_H
#define TDM_HTTP_SSE_H

#include "http-gateway/json.h"

#define SSE_CONTENT_TYPE "text/event-stream; charset=utf-8"

/* event: NULL for none. Takes json over. */
void sse_add(struct buffer *out, const char *event, json_t *json);
/* The same with numbers as they were written: exact.h. */
void sse_add_exact(struct buffer *out, const char *event, json_t *json, const struct exact *numbers);
/* Most events of a stream differ in one text alone. The form is an event whose text is SSE_FORM_TEXT. It is made once,
 * since making JSON out of parts takes longer than writing the text between two halves. */
#define SSE_FORM_TEXT "\x01the text\x02"
struct sse_form {
        struct buffer before, behind;
};
void sse_form_make(struct sse_form *form, const char *event, json_t *json); /* takes json over */
void sse_form_add(struct buffer *out, const struct sse_form *form, const char *text, size_t size);
void sse_form_free(struct sse_form *form);
void sse_add_text(struct buffer *out, const char *text);    /* data: [DONE] */
void sse_add_comment(struct buffer *out, const char *text); /* parsers skip it: a sign of life */

#endif
