/* Base64 as RFC 4648 has it in section 4: the alphabet with + and /, padding, and nothing else between or behind. One
 * text has one meaning: also the bits that belong to no byte have to be zero. */
#ifndef TDM_BASE64_H
#define TDM_BASE64_H

#include <stddef.h>

enum tdm_base64_fault {
        TDM_BASE64_OK,
        TDM_BASE64_CHARACTER, /* none of the alphabet */
        TDM_BASE64_LENGTH,    /* no multiple of 4 */
        TDM_BASE64_BITS,      /* the last character has bits that belong to no byte */
};

/* Characters of so many bytes. */
static inline size_t tdm_base64_length(size_t size)
{
        return (size + 2) / 3 * 4;
}

/* Writes tdm_base64_length(size) characters, without a NUL. */
void tdm_base64_write(const void *data, size_t size, char *to);
/* Writes less than size / 4 * 3 + 1 bytes. *ret_at: the character that is none of the alphabet. */
enum tdm_base64_fault tdm_base64_read(const char *text, size_t size, void *to, size_t *ret_size, size_t *ret_at);

#endif
