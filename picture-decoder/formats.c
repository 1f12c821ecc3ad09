/* Which reader a file's bytes ask for, the limits, and the turn at the end; see formats.h. */
#include "picture-decoder/private.h"

#include <inttypes.h>

#define CHANNELS 3u

int picture_check_size(const struct picture_file *file, uint64_t width, uint64_t height, struct tdm_error *err)
{
        const struct tdm_picture_limits *limits = file->limits;

        if (width == 0 || height == 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "the picture has a side of no pixels: it is damaged");
        if (width > limits->most_side || height > limits->most_side || width * height > limits->most_pixels)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "the picture has %" PRIu64 " x %" PRIu64 " pixels; at most %" PRIu64
                                     " in all and %u on a side are allowed: make it smaller",
                                     width, height, limits->most_pixels, limits->most_side);
        return 0;
}

/* Where pixel x, y of the turned picture lies in one of this size. */
static size_t turned_from(struct tdm_image_size size, unsigned orientation, uint32_t x, uint32_t y)
{
        uint32_t right = size.width - 1, bottom = size.height - 1, from_x = x, from_y = y;

        switch (orientation) {
        case 2:
                from_x = right - x;
                break;
        case 3:
                from_x = right - x;
                from_y = bottom - y;
                break;
        case 4:
                from_y = bottom - y;
                break;
        case 5:
                from_x = y;
                from_y = x;
                break;
        case 6:
                from_x = y;
                from_y = bottom - x;
                break;
        case 7:
                from_x = right - y;
                from_y = bottom - x;
                break;
        case 8:
                from_x = right - y;
                from_y = x;
                break;
        }
        return (size_t)from_y * size.width + from_x;
}

static int picture_turn(const struct picture_read *read, uint8_t *rgb, struct tdm_image_size *ret,
                        struct tdm_error *err)
{
        struct tdm_image_size turned = read->size;
        size_t bytes = (size_t)read->size.width * read->size.height * CHANNELS;
        _cleanup_(freep) uint8_t *copy = NULL;

        if (read->orientation > 1) {
                copy = malloc(bytes);
                if (!copy)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "the picture needs more memory than a picture may have: make it smaller");
                memcpy(copy, rgb, bytes);
        }
        if (read->orientation >= 5)
                turned = (struct tdm_image_size){ .width = read->size.height, .height = read->size.width };
        for (uint32_t y = 0; copy && y < turned.height; y++)
                for (uint32_t x = 0; x < turned.width; x++, rgb += CHANNELS)
                        memcpy(rgb, copy + turned_from(read->size, read->orientation, x, y) * CHANNELS, CHANNELS);
        *ret = turned;
        return 0;
}

static bool begins_with(const struct picture_file *file, size_t at, const char *bytes, size_t n)
{
        return file->size >= at + n && memcmp(file->data + at, bytes, n) == 0;
}

static int read_by_format(const struct picture_file *file, struct picture_read *ret, struct tdm_error *err)
{
        if (file->size == 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "the picture is empty");
        if (begins_with(file, 0, "\x89PNG\r\n\x1a\n", 8))
                return picture_read_png(file, ret, err);
        if (begins_with(file, 0, "\xff\xd8\xff", 3))
                return picture_read_jpeg(file, ret, err);
        if (begins_with(file, 0, "RIFF", 4) && begins_with(file, 8, "WEBP", 4))
                return picture_read_webp(file, ret, err);
        if (begins_with(file, 0, "GIF8", 4))
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "the picture is a GIF, which is not decoded: send PNG, JPEG or WebP");
        return tdm_error_set(err, TDM_E_BAD_REQUEST, "the bytes are no picture in PNG, JPEG or WebP");
}

int tdm_picture_read(const uint8_t *data, size_t size, const struct tdm_picture_limits *limits, uint8_t *rgb,
                     struct tdm_image_size *ret, struct tdm_error *err)
{
        const struct picture_file file = { .data = data, .size = size, .limits = limits, .rgb = rgb };
        struct picture_read read = { .orientation = 1 };
        int r = read_by_format(&file, &read, err);

        return r == 0 ? picture_turn(&read, rgb, ret, err) : r;
}
