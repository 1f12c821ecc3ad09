/* Files of pictures as RGB bytes: PNG, JPEG and WebP, by libpng, libjpeg-turbo and libwebp. Linked by the decoder's
 * program and by tests, never by a process that holds more than one person's picture.
 *
 * What comes out is what vision models were trained on: alpha is dropped and not blended, a palette is looked up and
 * its transparency ignored, grey is repeated, 1, 2 and 4 bits are spread over 0 … 255, of 16 bits the high byte is
 * taken, CMYK of Adobe's kind is turned around first, the orientation that Exif states is applied, gamma and colour
 * profiles are ignored. The format is what the bytes say. A damaged file is refused, also where its library would go
 * on. */
#ifndef TDM_PICTURE_DECODER_FORMATS_H
#define TDM_PICTURE_DECODER_FORMATS_H

#include "engine/image/resize.h"

struct tdm_picture_limits {
        uint32_t most_side;   /* pixels */
        uint64_t most_pixels; /* of the whole picture */
};

/* rgb: [most_pixels][3], filled from its start with [height][width][3]. Its contents are undefined on failure.
 * TDM_E_BAD_REQUEST: no picture, damaged, too large or of a kind that is not decoded; the text says which. */
int tdm_picture_read(const uint8_t *data, size_t size, const struct tdm_picture_limits *limits, uint8_t *rgb,
                     struct tdm_image_size *ret, struct tdm_error *err);

#endif
