#include "common/base64.h"

#include <stdint.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void tdm_base64_write(const void *data, size_t size, char *to)
{
        const uint8_t *bytes = data;

        for (size_t i = 0; i < size; i += 3) {
                uint32_t group = (uint32_t)bytes[i] << 16;

                if (i + 1 < size)
                        group |= (uint32_t)bytes[i + 1] << 8;
                if (i + 2 < size)
                        group |= bytes[i + 2];
                for (unsigned k = 0; k < 4; k++)
                        *to++ = i + k > size ? '=' : digits[group >> (18 - 6 * k) & 63];
        }
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

enum tdm_base64_fault tdm_base64_read(const char *text, size_t size, void *to, size_t *ret_size, size_t *ret_at)
{
        size_t n_padding = 0, n = 0;
        uint32_t group = 0;
        uint8_t *bytes = to;

        while (n_padding < 2 && n_padding < size && text[size - n_padding - 1] == '=')
                n_padding++;
        for (size_t i = 0; i < size - n_padding; i++)
                if (value_of(text[i]) < 0) {
                        *ret_at = i;
                        return TDM_BASE64_CHARACTER;
                }
        if (size % 4 != 0)
                return TDM_BASE64_LENGTH;
        for (size_t i = 0; i < size; i++) {
                group = group << 6 | (i < size - n_padding ? (uint32_t)value_of(text[i]) : 0);
                if (i % 4 != 3)
                        continue;
                for (unsigned k = 0; k < 3; k++)
                        bytes[n++] = (uint8_t)(group >> (16 - 8 * k));
                group = 0;
        }
        for (size_t i = n - n_padding; i < n; i++)
                if (bytes[i] != 0)
                        return TDM_BASE64_BITS;
        *ret_size = n - n_padding;
        return TDM_BASE64_OK;
}
