/* Turns text from outside into UTF-8 that every peer accepts. */
#include "common/utf8.h"

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
