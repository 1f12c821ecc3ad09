/* See base64.h. One text has one meaning: also the bits that belong to no byte have to be zero. */
#include "http-gateway/base64.h"

#include "common/util.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_add(struct buffer *to, const void *data, size_t size)
{
        const uint8_t *bytes = data;
        char text[256];
        size_t at = 0;

        for (size_t i = 0; i < size; i += 3) {
                uint32_t group = (uint32_t)bytes[i] << 16;

                if (i + 1 < size)
                        group |= (uint32_t)bytes[i + 1] << 8;
                if (i + 2 < size)
                        group |= bytes[i + 2];
                for (unsigned k = 0; k < 4; k++)
                        text[at++] = i + k > size ? '=' : digits[group >> (18 - 6 * k) & 63];
                if (at == sizeof(text)) {
                        buffer_add(to, text, at);
                        at = 0;
                }
        }
        buffer_add(to, text, at);
}

/* -1: none of the 64. */
static int value_of(char c)
{
        if (c >= 'A' && c <= 'Z')
                return c - 'A';
        if (c >= 'a' && c <= 'z')
                return c - 'a' + 26;
        if (c >= '0' && c <= '9')
                return c - '0' + 52;
        return c == '+' ? 62 : c == '/' ? 63 : -1;
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
        size_t n_padding = 0, n = 0;
        uint32_t group = 0;
        uint8_t *bytes;

        while (n_padding < 2 && n_padding < size && text[size - n_padding - 1] == '=')
                n_padding++;
        for (size_t i = 0; i < size - n_padding; i++)
                if (value_of(text[i]) < 0)
                        return refuse_character(text, i, name, f);
        if (size % 4 != 0)
                return failure_set(f, 400, "invalid_value", name,
                                   "'%s' is no base64: it has %zu characters, which is no multiple of 4; was it cut "
                                   "off?",
                                   name, size);
        bytes = malloc(size / 4 * 3 + 1);
        if (!bytes)
                return failure_set(f, 503, "no_memory", NULL, "no memory for this request");
        for (size_t i = 0; i < size; i++) {
                group = group << 6 | (i < size - n_padding ? (uint32_t)value_of(text[i]) : 0);
                if (i % 4 != 3)
                        continue;
                for (unsigned k = 0; k < 3; k++)
                        bytes[n++] = (uint8_t)(group >> (16 - 8 * k));
                group = 0;
        }
        for (size_t i = n - n_padding; i < n; i++)
                if (bytes[i] != 0) {
                        free(bytes);
                        return failure_set(f, 400, "invalid_value", name,
                                           "'%s' is no base64: bits of its last character belong to no byte", name);
                }
        *ret = bytes;
        *ret_size = n - n_padding;
        return 0;
}
