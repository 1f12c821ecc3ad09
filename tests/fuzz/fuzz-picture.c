/* Any bytes as a picture's file: PNG, JPEG, WebP and the orientation of Exif. A PNG is read a second time with the
 * checksums of its chunks mended, since libpng reads little behind a wrong one.
 *
 * What is taken is within the limits, and every byte of it was written: a second reading over other memory gives the
 * same. */
#include <assert.h>
#include "picture-decoder/private.h"
#include "picture-decoder/test-png-sums.h"
#include "tests/fuzz/fuzz-time.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define INPUT_MAX 65536u
#define CHANNELS 3u

static const struct tdm_picture_limits limits = { .most_side = 512, .most_pixels = UINT32_C(1) << 16 };

/* As long as the limits say, on the heap, so that a sanitizer sees what is written behind it. */
static uint8_t *pixels(uint8_t fill)
{
        uint8_t *rgb = malloc(limits.most_pixels * CHANNELS);

        assert(rgb);
        memset(rgb, fill, limits.most_pixels * CHANNELS);
        return rgb;
}

static void read_picture(const uint8_t *data, size_t size)
{
        uint8_t *rgb = pixels(0x55), *again = pixels(0xaa);
        struct tdm_image_size got = { 0 }, same = { 0 };
        struct tdm_error err = { 0 };
        int r = tdm_picture_read(data, size, &limits, rgb, &got, &err);

        if (r == 0) {
                assert(got.width - 1 < limits.most_side && got.height - 1 < limits.most_side);
                assert((uint64_t)got.width * got.height <= limits.most_pixels);
                assert(tdm_picture_read(data, size, &limits, again, &same, &err) == 0);
                assert(same.width == got.width && same.height == got.height);
                assert(memcmp(rgb, again, (size_t)got.width * got.height * CHANNELS) == 0);
        } else
                assert(r == TDM_E_BAD_REQUEST && err.code == r && err.message[0]);
        free(rgb);
        free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        uint64_t start = fuzz_now_ns();
        unsigned orientation;

        if (size > INPUT_MAX)
                return 0;
        orientation = picture_exif_orientation(data, size);
        assert(orientation >= 1 && orientation <= 8);
        read_picture(data, size);
        if (size > 8 && memcmp(data, "\x89PNG", 4) == 0) {
                uint8_t *mended = malloc(size);

                assert(mended);
                memcpy(mended, data, size);
                mend_png_checksums(mended, size);
                read_picture(mended, size);
                free(mended);
        }
        fuzz_check_time(start);
        return 0;
}
