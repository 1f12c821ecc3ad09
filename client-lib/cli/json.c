/* See json.h. A hundred lines instead of a library: the CLI writes flat objects and reads one array. */
#include "client-lib/cli/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include "common/grow.h"

void buf_free(struct buf *buf)
{
        free(buf->data);
        *buf = (struct buf){ 0 };
}

void buf_freep(struct buf *buf)
{
        buf_free(buf);
}

void buf_add(struct buf *buf, const void *data, size_t size)
{
        if (buf->failed)
                return;
        if (tdm_grow(&buf->data, &buf->capacity, buf->size + size + 1, 256, 1) < 0) {
                buf->failed = true;
                return;
        }
        if (size)
                memcpy(buf->data + buf->size, data, size);
        buf->size += size;
        buf->data[buf->size] = '\0';
}

void buf_puts(struct buf *buf, const char *text)
{
        buf_add(buf, text, strlen(text));
}

void buf_printf(struct buf *buf, const char *fmt, ...)
{
        char small[256], *text = small;
        va_list args;
        int n;

        va_start(args, fmt);
        n = vsnprintf(small, sizeof(small), fmt, args);
        va_end(args);
        if (n < 0)
                return;
        if ((size_t)n >= sizeof(small)) {
                va_start(args, fmt);
                n = vasprintf(&text, fmt, args);
                va_end(args);
                if (n < 0) {
                        buf->failed = true;
                        return;
                }
        }
        buf_add(buf, text, (size_t)n);
        if (text != small)
                free(text);
}

size_t utf8_char_bytes(const unsigned char *s, size_t size)
{
        size_t n;
        uint32_t c;

        if (size == 0)
                return 0;
        if (s[0] < 0x80)
                return 1;
        if (s[0] >= 0xc2 && s[0] < 0xe0)
                n = 2, c = s[0] & 0x1f;
        else if (s[0] >= 0xe0 && s[0] < 0xf0)
                n = 3, c = s[0] & 0x0f;
        else if (s[0] >= 0xf0 && s[0] < 0xf5)
                n = 4, c = s[0] & 0x07;
        else
                return 0;
        if (size < n)
                return 0;
        for (size_t i = 1; i < n; i++) {
                if ((s[i] & 0xc0) != 0x80)
                        return 0;
                c = c << 6 | (s[i] & 0x3f);
        }
        if ((n == 3 && (c < 0x800 || (c >= 0xd800 && c < 0xe000))) || (n == 4 && (c < 0x10000 || c > 0x10ffff)))
                return 0;
        return n;
}

void json_text(struct buf *buf, const char *text, size_t size)
{
        const unsigned char *s = (const unsigned char *)text;

        buf_puts(buf, "\"");
        for (size_t i = 0; i < size;) {
                size_t n = utf8_char_bytes(s + i, size - i);

                if (n == 0) {
                        buf_puts(buf, "\xef\xbf\xbd");
                        n = 1;
                } else if (s[i] == '"' || s[i] == '\\') {
                        buf_printf(buf, "\\%c", s[i]);
                } else if (s[i] == '\n') {
                        buf_puts(buf, "\\n");
                } else if (s[i] == '\t') {
                        buf_puts(buf, "\\t");
                } else if (s[i] == '\r') {
                        buf_puts(buf, "\\r");
                } else if (s[i] < 0x20 || s[i] == 0x7f) {
                        buf_printf(buf, "\\u%04x", s[i]);
                } else {
                        buf_add(buf, s + i, n);
                }
                i += n;
        }
        buf_puts(buf, "\"");
}

void json_number(struct buf *buf, double value)
{
        if (isfinite(value))
                buf_printf(buf, "%.9g", value);
        else
                buf_puts(buf, "null");
}

void json_key(struct buf *buf, const char *name)
{
        char last = buf->size ? buf->data[buf->size - 1] : '{';

        if (last != '{' && last != '[')
                buf_puts(buf, ",");
        json_text(buf, name, strlen(name));
        buf_puts(buf, ":");
}

void json_field_string(struct buf *buf, const char *name, const char *value)
{
        json_key(buf, name);
        json_text(buf, value, strlen(value));
}

void json_field_u64(struct buf *buf, const char *name, uint64_t value)
{
        json_key(buf, name);
        buf_printf(buf, "%" PRIu64, value);
}

void json_field_number(struct buf *buf, const char *name, double value)
{
        json_key(buf, name);
        json_number(buf, value);
}

void json_field_bool(struct buf *buf, const char *name, bool value)
{
        json_key(buf, name);
        buf_puts(buf, value ? "true" : "false");
}

void json_ids(struct buf *buf, const uint32_t *ids, size_t n)
{
        buf_puts(buf, "[");
        for (size_t i = 0; i < n; i++)
                buf_printf(buf, "%s%" PRIu32, i ? "," : "", ids[i]);
        buf_puts(buf, "]");
}

static size_t skip_json_space(const char *text, size_t size, size_t i)
{
        while (i < size && (text[i] == ' ' || text[i] == '\t' || text[i] == '\n' || text[i] == '\r'))
                i++;
        return i;
}

const char *json_parse_ids(const char *text, size_t size, uint32_t **ret_ids, size_t *ret_n, size_t *ret_at)
{
        _cleanup_(freep) uint32_t *ids = NULL;
        size_t n = 0, capacity = 0, i = skip_json_space(text, size, 0);

        *ret_at = i;
        if (i == size)
                return "there is nothing; a JSON array of token ids was expected";
        if (text[i] != '[')
                return "a JSON array of token ids has to begin with '['";
        i = skip_json_space(text, size, i + 1);
        if (i < size && text[i] == ']') {
                i++;
                goto end;
        }
        for (;;) {
                uint64_t id = 0;
                size_t start = i;

                *ret_at = i;
                while (i < size && text[i] >= '0' && text[i] <= '9' && id <= UINT32_MAX)
                        id = id * 10 + (uint64_t)(text[i++] - '0');
                if (i == start)
                        return i == size      ? "the text ends where a token id was expected" :
                               text[i] == '-' ? "a token id cannot be negative" :
                                                "a token id (a whole number) was expected";
                if (id > UINT32_MAX)
                        return "this number is too large for a token id";
                if (text[start] == '0' && i > start + 1)
                        return "a JSON number cannot begin with 0";
                *ret_at = i;
                if (i < size && (text[i] == '.' || text[i] == 'e' || text[i] == 'E'))
                        return "a token id has to be a whole number, without fraction or exponent";
                if (tdm_grow(&ids, &capacity, n + 1, 256, sizeof(*ids)) < 0)
                        return "there are more ids than fit into memory";
                ids[n++] = (uint32_t)id;
                i = skip_json_space(text, size, i);
                *ret_at = i;
                if (i == size)
                        return "the text ends where ',' or ']' was expected";
                if (text[i] == ']') {
                        i++;
                        break;
                }
                if (text[i] != ',')
                        return "',' or ']' was expected";
                i = skip_json_space(text, size, i + 1);
        }
end:
        i = skip_json_space(text, size, i);
        *ret_at = i;
        if (i != size)
                return "something stands behind the array";
        *ret_ids = steal_ptr(&ids);
        *ret_n = n;
        return NULL;
}
