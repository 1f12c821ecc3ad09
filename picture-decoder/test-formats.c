/* Pictures in tests/golden/images: those of lossless formats give the bytes that another program gave, the refused ones
 * their message, and mutated ones an error or a picture, never a crash. Lossy ones are compared with the libraries' own
 * tools by tests/integration/test_pictures.py.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/fnv.h"
#include "picture-decoder/formats.h"
#include "picture-decoder/test-png-sums.h"

#define FOLDER "tests/golden/images/"
#define FILE_MAX (64u << 10)
#define MOST_PIXELS (1u << 17)
#define N_MUTATED 10000u

static const struct tdm_picture_limits small = { .most_side = 1024, .most_pixels = MOST_PIXELS };

static size_t load(const char *folder, const char *name, uint8_t *bytes)
{
        char path[256];
        FILE *f;
        size_t n;

        snprintf(path, sizeof(path), FOLDER "%s/%s", folder, name);
        f = fopen(path, "re");
        assert_non_null(f);
        n = fread(bytes, 1, FILE_MAX, f);
        assert_true(n < FILE_MAX);
        fclose(f);
        return n;
}

/* As long as the limits say and not longer, so that a sanitizer sees what is written behind it. */
static uint8_t *pixels(const struct tdm_picture_limits *limits)
{
        uint8_t *rgb = malloc(limits->most_pixels * 3);

        assert_non_null(rgb);
        return rgb;
}

static void test_decoded(void **state)
{
        static uint8_t bytes[FILE_MAX];
        uint8_t *rgb = pixels(&small);
        FILE *f = fopen(FOLDER "decoded.txt", "re");
        struct tdm_image_size want, got;
        unsigned long long hash;
        unsigned n = 0;
        char name[64];

        assert_non_null(f);
        while (fscanf(f, "%63s %u %u %llx", name, &want.width, &want.height, &hash) == 4) {
                struct tdm_error err = { 0 };
                size_t size = load("pictures", name, bytes);

                if (tdm_picture_read(bytes, size, &small, rgb, &got, &err) != 0)
                        fail_msg("%s: %s", name, err.message);
                if (got.width != want.width || got.height != want.height ||
                    tdm_fnv64(TDM_FNV64_BEGIN, rgb, (size_t)got.width * got.height * 3) != hash)
                        fail_msg("%s: %u x %u and other bytes than it has", name, got.width, got.height);
                n++;
        }
        fclose(f);
        free(rgb);
        assert_int_equal(n, 17);
}

static void test_refused(void **state)
{
        static const struct {
                const char *name, *says;
        } files[] = {
                { "animated.webp", "animated" },
                { "arithmetic.jpg", "arithmetic coding" },
                { "bomb-body.png", "30000 x 30000 pixels" },
                { "bomb.jpg", "65500 x 65500" },
                { "bomb.png", "30000 x 30000 pixels" },
                { "crc.png", "IDAT" },
                { "cut.jpg", "remature end" },
                { "cut.png", "ends early" },
                { "cut.webp", "ends early" },
                { "depth.png", "damaged PNG" },
                { "empty.png", "empty" },
                { "filter.png", "filter" },
                { "header.png", "no head" },
                { "index.png", "a colour that its palette lacks" },
                { "negative.png", "2147483649 x 8 pixels" },
                { "nopalette.png", "PLTE" },
                { "picture.gif", "a GIF" },
                { "picture.svg", "no picture" },
                { "short.png", "Not enough image data" },
                { "text.png", "no picture" },
                { "twelve.jpg", "JPEG" },
                { "zero.jpg", "JPEG" },
                { "zero.png", "no pixels" },
        };
        static uint8_t bytes[FILE_MAX];
        uint8_t *rgb = pixels(&small);

        for (size_t i = 0; i < TDM_ARRAY_SIZE(files); i++) {
                struct tdm_image_size got = { 0 };
                struct tdm_error err = { 0 };
                size_t size = load("refused", files[i].name, bytes);

                assert_int_equal(tdm_picture_read(bytes, size, &small, rgb, &got, &err), TDM_E_BAD_REQUEST);
                if (!strstr(err.message, files[i].says))
                        fail_msg("%s is refused with other words: %s", files[i].name, err.message);
                assert_int_equal(got.width, 0);
        }
        free(rgb);
}

/* One pixel more than allowed, in all and on a side; the limit itself is fine. */
static void test_limits(void **state)
{
        static const struct {
                struct tdm_picture_limits limits;
                int want;
        } cases[] = {
                { { 300, 300 * 180 }, 0 },
                { { 299, 300 * 180 }, TDM_E_BAD_REQUEST },
                { { 300, 300 * 180 - 1 }, TDM_E_BAD_REQUEST },
        };
        static uint8_t bytes[FILE_MAX];
        size_t size = load("pictures", "gradient.png", bytes);

        for (size_t i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                uint8_t *rgb = pixels(&cases[i].limits);
                struct tdm_image_size got;

                assert_int_equal(tdm_picture_read(bytes, size, &cases[i].limits, rgb, &got, NULL), cases[i].want);
                free(rgb);
        }
}

static uint32_t draw(uint32_t *seed, uint32_t n)
{
        *seed = *seed * UINT32_C(1664525) + UINT32_C(1013904223);
        return (uint32_t)((uint64_t)*seed * n >> 32);
}

/* A few bytes changed, some repeated, or the end cut off. */
static size_t mutate(uint8_t *bytes, size_t size, uint32_t *seed)
{
        unsigned n = 1 + draw(seed, 8);

        if (draw(seed, 8) == 0)
                size = 1 + draw(seed, (uint32_t)size);
        for (unsigned i = 0; i < n; i++) {
                uint32_t at = draw(seed, (uint32_t)(draw(seed, 2) ? size : TDM_MIN(size, (size_t)200)));

                switch (draw(seed, 4)) {
                case 0:
                        bytes[at] ^= (uint8_t)(1u << draw(seed, 8));
                        break;
                case 1:
                        bytes[at] = (uint8_t)(draw(seed, 2) ? 0xff : 0);
                        break;
                case 2:
                        bytes[at] = (uint8_t)draw(seed, 256);
                        break;
                default:
                        memmove(bytes + at, bytes + draw(seed, at + 1), TDM_MIN(size - at, (size_t)draw(seed, 64)));
                }
        }
        if (size > 8 && memcmp(bytes, "\x89PNG", 4) == 0 && draw(seed, 4) > 0)
                mend_png_checksums(bytes, size);
        return size;
}

static void test_mutated(void **state)
{
        static uint8_t whole[40][FILE_MAX], bytes[FILE_MAX];
        static size_t sizes[40];
        uint8_t *rgb = pixels(&small);
        unsigned n_files = 0, n_good = 0;
        uint32_t seed = 5;
        struct dirent **names;
        int n = scandir(FOLDER "pictures", &names, NULL, alphasort);

        assert_true(n > 20);
        for (int i = 0; i < n; i++) {
                if (names[i]->d_name[0] != '.' && n_files < TDM_ARRAY_SIZE(whole)) {
                        sizes[n_files] = load("pictures", names[i]->d_name, whole[n_files]);
                        n_files++;
                }
                free(names[i]);
        }
        free(names);
        for (unsigned i = 0; i < N_MUTATED; i++) {
                struct tdm_image_size got = { 0 };
                struct tdm_error err = { 0 };
                size_t size;
                int r;

                memcpy(bytes, whole[i % n_files], FILE_MAX);
                size = mutate(bytes, sizes[i % n_files], &seed);
                r = tdm_picture_read(bytes, size, &small, rgb, &got, &err);
                assert_true(r == 0 ? got.width > 0 && (uint64_t)got.width * got.height <= MOST_PIXELS :
                                     r == TDM_E_BAD_REQUEST && strlen(err.message) > 10);
                n_good += r == 0;
        }
        print_message("%u mutated files, %u of which are still pictures\n", N_MUTATED, n_good);
        assert_true(n_good > 0 && n_good < N_MUTATED);
        free(rgb);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_decoded),
                cmocka_unit_test(test_refused),
                cmocka_unit_test(test_limits),
                cmocka_unit_test(test_mutated),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
