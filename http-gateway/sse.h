/* Server-sent events, as the APIs write them: one line of JSON each. */
#ifndef TDM_HTTP_SSE_H
#define TDM_HTTP_SSE_H

#include "http-gateway/json.h"

#define SSE_CONTENT_TYPE "text/event-stream; charset=utf-8"

/* event: NULL for none. Takes json over. */
void sse_add(struct buffer *out, const char *event, json_t *json);
void sse_add_text(struct buffer *out, const char *text); /* data: [DONE] */
void sse_add_comment(struct buffer *out);                /* parsers skip it; it shows that the server is there */

#endif
