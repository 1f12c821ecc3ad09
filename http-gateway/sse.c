/* Server-sent events: see sse.h. */
#include "http-gateway/sse.h"

void sse_add_exact(struct buffer *out, const char *event, json_t *json, const struct exact *numbers)
{
        if (event) {
                buffer_add_text(out, "event: ");
                buffer_add_text(out, event);
                buffer_add_text(out, "\n");
        }
        buffer_add_text(out, "data: ");
        if (numbers) {
                exact_write(out, numbers, json);
                json_decref(json);
        } else {
                json_write(out, json); /* compact: has no line ends */
        }
        buffer_add_text(out, "\n\n");
}

void sse_add(struct buffer *out, const char *event, json_t *json)
{
        sse_add_exact(out, event, json, NULL);
}

void sse_form_make(struct sse_form *form, const char *event, json_t *json)
{
        _cleanup_(buffer_free) struct buffer all = { 0 }, mark = { 0 };
        const char *at;

        sse_add(&all, event, json);
        json_write_text(&mark, SSE_FORM_TEXT, strlen(SSE_FORM_TEXT));
        at = all.failed || mark.failed ? NULL : memmem(all.data, all.size, mark.data, mark.size);
        if (!at) {
                form->before.failed = true;
                return;
        }
        buffer_add(&form->before, all.data, (size_t)(at - all.data));
        buffer_add_text(&form->behind, at + mark.size);
}

void sse_form_add(struct buffer *out, const struct sse_form *form, const char *text, size_t size)
{
        if (form->before.failed || form->behind.failed) {
                out->failed = true;
                return;
        }
        buffer_add(out, form->before.data, form->before.size);
        json_write_text(out, text, size);
        buffer_add(out, form->behind.data, form->behind.size);
}

void sse_form_free(struct sse_form *form)
{
        buffer_free(&form->before);
        buffer_free(&form->behind);
}

void sse_add_text(struct buffer *out, const char *text)
{
        buffer_add_text(out, "data: ");
        buffer_add_text(out, text);
        buffer_add_text(out, "\n\n");
}

void sse_add_comment(struct buffer *out, const char *text)
{
        buffer_add_text(out, ": ");
        buffer_add_text(out, text);
        buffer_add_text(out, "\n\n");
}
