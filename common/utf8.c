/* Turns text from outside into UTF-8 that every peer accepts. */
#include "common/utf8.h"

#include <stdio.h>

#include <string.h>

bool tdm_utf8_is_valid(const char *text, size_t size)
{
        for (size_t i = 0; i < size;) {
                int n = tdm_utf8_length((const uint8_t *)text + i, size - i);

                if (n <= 0)
                        return false;
                i += (size_t)n;
        }
        return true;
}

char *tdm_utf8_mend(char *text)
{
        uint8_t *p = (uint8_t *)text;
        size_t left = strlen(text);

        while (left > 0) {
                int n = tdm_utf8_length(p, left);

                if (n <= 0) {
                        *p = '?';
                        n = 1;
                }
                p += n;
                left -= (size_t)n;
        }
        return text;
}

void tdm_utf8_copy(char *to, size_t size, const char *from)
{
        size_t n = 0, left = strlen(from);

        while (left > 0) {
                int length = tdm_utf8_length((const uint8_t *)from, left);
                size_t used = length > 0 ? (size_t)length : 1;

                if (used >= size - n)
                        break;
                memcpy(to + n, length > 0 ? from : "?", used);
                n += used;
                from += used;
                left -= used;
        }
        to[n] = 0;
}

size_t tdm_utf8_cut(const char *text, size_t size)
{
        size_t n = strnlen(text, size + 1);

        if (n <= size)
                return n;
        n = size;
        /* Back over a character that goes on behind the cut; what is malformed has no characters. */
        for (size_t back = 0; back < 4 && back < n; back++) {
                int length = tdm_utf8_length((const uint8_t *)text + n - back, 4);

                if (length > 0 && (size_t)length > back)
                        return n - back;
        }
        return n;
}

bool tdm_utf8_escape(char *to, size_t size, const char *from)
{
        size_t n = 0, left = strlen(from);

        while (left > 0) {
                int length = tdm_utf8_length((const uint8_t *)from, left);
                size_t used = length > 0 ? (size_t)length : 1;
                unsigned char c = (unsigned char)from[0];
                bool c1 = used == 2 && c == 0xc2 && (unsigned char)from[1] < 0xa0;
                char escaped[8];

                if (c < 0x20 || c == 0x7f || c1)
                        snprintf(escaped, sizeof(escaped), "\\x%02x", c1 ? (unsigned char)from[1] : c);
                else {
                        memcpy(escaped, from, used);
                        escaped[used] = '\0';
                }
                if (strlen(escaped) >= size - n)
                        break;
                memcpy(to + n, escaped, strlen(escaped));
                n += strlen(escaped);
                from += used;
                left -= used;
        }
        to[n] = '\0';
        return left == 0;
}
