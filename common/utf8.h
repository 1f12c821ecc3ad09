/* Well-formed UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing past U+10FFFF.
 *
 * Strings of protobuf and D-Bus must be UTF-8, and neither protobuf-c nor a file system checks that. So text from
 * outside that is shown again (a name, a path, a message of a worker) is mended where it is stored. */
#ifndef TDM_COMMON_UTF8_H
#define TDM_COMMON_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the well-formed sequence at data, 1 to 4. 0: malformed. -1: not malformed so far, but cut off by the end. */
static inline int tdm_utf8_length(const uint8_t *data, size_t size)
{
        uint8_t low = 0x80, high = 0xbf; /* of the second byte */
        size_t n;

        if (size == 0)
                return -1;
        if (data[0] < 0x80)
                return 1;
        if (data[0] < 0xc2 || data[0] > 0xf4)
                return 0;
        n = data[0] < 0xe0 ? 2 : data[0] < 0xf0 ? 3 : 4;
        if (data[0] == 0xe0)
                low = 0xa0;
        else if (data[0] == 0xed)
                high = 0x9f;
        else if (data[0] == 0xf0)
                low = 0x90;
        else if (data[0] == 0xf4)
                high = 0x8f;
        for (size_t i = 1; i < n; i++) {
                if (i >= size)
                        return -1;
                if (data[i] < low || data[i] > high)
                        return 0;
                low = 0x80;
                high = 0xbf;
        }
        return (int)n;
}

/* Whether all of it is. */
bool tdm_utf8_is_valid(const char *text, size_t size);
/* Each byte of text that is not part of a well-formed sequence becomes a question mark. Returns text. */
char *tdm_utf8_mend(char *text);
/* Copies as much of from as fits into size bytes (1 or more, with the NUL), mended, never cut within a character. */
void tdm_utf8_copy(char *to, size_t size, const char *from);

#endif
