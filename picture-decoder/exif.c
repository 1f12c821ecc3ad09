/* The one field of Exif that changes pixels. Everything else of it is skipped. */
#include "picture-decoder/private.h"

#define ORIENTATION 0x0112u
#define SHORT 3u
#define ENTRY_BYTES 12u

struct tiff {
        const uint8_t *data;
        size_t size;
        bool big_endian;
};

static unsigned tiff_u16(const struct tiff *tiff, size_t at)
{
        const uint8_t *p = tiff->data + at;

        return tiff->big_endian ? p[0] * 256u + p[1] : p[1] * 256u + p[0];
}

unsigned picture_exif_orientation(const uint8_t *data, size_t size)
{
        struct tiff tiff = { .data = data, .size = size };
        size_t at;
        unsigned n;

        if (size >= 6 && memcmp(data, "Exif\0\0", 6) == 0) {
                tiff.data += 6;
                tiff.size -= 6;
        }
        if (tiff.size < 8)
                return 1;
        tiff.big_endian = memcmp(tiff.data, "MM\0*", 4) == 0;
        if (!tiff.big_endian && memcmp(tiff.data, "II*\0", 4) != 0)
                return 1;
        at = tiff.big_endian ? (size_t)tiff_u16(&tiff, 4) << 16 | tiff_u16(&tiff, 6) :
                               (size_t)tiff_u16(&tiff, 6) << 16 | tiff_u16(&tiff, 4);
        if (at > tiff.size - 2)
                return 1;
        n = tiff_u16(&tiff, at);
        at += 2;
        for (; n > 0 && tiff.size - at >= ENTRY_BYTES; n--, at += ENTRY_BYTES)
                if (tiff_u16(&tiff, at) == ORIENTATION) {
                        unsigned value = tiff_u16(&tiff, at + 8);

                        return tiff_u16(&tiff, at + 2) == SHORT && value >= 1 && value <= 8 ? value : 1;
                }
        return 1;
}
