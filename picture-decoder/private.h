/* Shared by the files of picture-decoder: one reader for each format. */
#ifndef TDM_PICTURE_DECODER_PRIVATE_H
#define TDM_PICTURE_DECODER_PRIVATE_H

#include "picture-decoder/formats.h"

/* A file that is being read. */
struct picture_file {
        const uint8_t *data;
        size_t size;
        const struct tdm_picture_limits *limits;
        uint8_t *rgb; /* [limits->most_pixels][3] */
};

/* How the file's pixels lie, before its orientation is applied. */
struct picture_read {
        struct tdm_image_size size;
        unsigned orientation; /* Exif's, 1 … 8 */
};

/* TDM_E_BAD_REQUEST unless the sides are within the limits. Every reader calls it before it takes memory for pixels. */
int picture_check_size(const struct picture_file *file, uint64_t width, uint64_t height, struct tdm_error *err);

int picture_read_png(const struct picture_file *file, struct picture_read *ret, struct tdm_error *err);
int picture_read_jpeg(const struct picture_file *file, struct picture_read *ret, struct tdm_error *err);
int picture_read_webp(const struct picture_file *file, struct picture_read *ret, struct tdm_error *err);

/* The orientation of a TIFF head as Exif has it, with or without "Exif" before it; 1 where it states none. */
unsigned picture_exif_orientation(const uint8_t *data, size_t size);

#endif
