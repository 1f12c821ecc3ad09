/* See base64.h. */
#include "http-gateway/base64.h"

#include "common/base64.h"
#include "common/util.h"

void base64_add(struct buffer *to, const void *data, size_t size)
{
        char text[256];

        for (size_t at = 0, n; at < size; at += n) {
                n = TDM_MIN(size - at, sizeof(text) / 4 * 3);
                tdm_base64_write((const char *)data + at, n, text);
                buffer_add(to, text, tdm_base64_length(n));
        }
}

/* Says what is wrong with a character, which is no digit. */
static int refuse_character(const char *text, size_t at, const char *name, struct failure *f)
{
        const char *hint = strchr("-_", text[at])      ? "; base64 for URLs is not taken" :
                           strchr(" \t\r\n", text[at]) ? "; it has to be one line without spaces" :
                           text[at] == '='             ? "; padding stands at the end" :
                                                         "";

        return failure_set(f, 400, "invalid_value", name,
                           "'%s' is no base64: its character %zu is none of A-Z, a-z, 0-9, + and /%s", name, at + 1,
                           text[at] ? hint : "");
}

int base64_read(const char *text, size_t size, const char *name, void **ret, size_t *ret_size, struct failure *f)
{
        _cleanup_(freep) void *bytes = malloc(size / 4 * 3 + 1);
        size_t at;

        if (!bytes)
                return failure_set(f, 503, "no_memory", NULL, "no memory for this request");
        switch (tdm_base64_read(text, size, bytes, ret_size, &at)) {
        case TDM_BASE64_CHARACTER:
                return refuse_character(text, at, name, f);
        case TDM_BASE64_LENGTH:
                return failure_set(f, 400, "invalid_value", name,
                                   "'%s' is no base64: it has %zu characters, which is no multiple of 4; was it cut "
                                   "off?",
                                   name, size);
        case TDM_BASE64_BITS:
                return failure_set(f, 400, "invalid_value", name,
                                   "'%s' is no base64: bits of its last character belong to no byte", name);
        case TDM_BASE64_OK:
                break;
        }
        *ret = steal_ptr(&bytes);
        return 0;
}
