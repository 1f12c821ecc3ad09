/* For tests that change the bytes of PNG files. */
#ifndef TDM_PICTURE_DECODER_TEST_PNG_SUMS_H
#define TDM_PICTURE_DECODER_TEST_PNG_SUMS_H

#include "common/util.h"

/* Gives the chunks of a PNG the checksums of what they hold now, so that the reader goes on behind a change. */
static inline void mend_png_checksums(uint8_t *bytes, size_t size)
{
        size_t at = 8;

        while (size - at >= 12) {
                size_t n = (size_t)bytes[at] << 24 | (size_t)bytes[at + 1] << 16 | (size_t)bytes[at + 2] << 8 |
                           bytes[at + 3];
                uint32_t crc = UINT32_MAX;

                if (n > size - at - 12)
                        return;
                for (size_t i = at + 4; i < at + 8 + n; i++) {
                        crc ^= bytes[i];
                        for (unsigned bit = 0; bit < 8; bit++)
                                crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0xedb88320) : 0);
                }
                for (unsigned i = 0; i < 4; i++)
                        bytes[at + 8 + n + i] = (uint8_t)(~crc >> (24 - 8 * i));
                at += 12 + n;
        }
}

#endif
