/* Resizing is Pillow's to the byte: small pictures with every byte of the answer (tests/golden/images/resize.vectors,
 * which another program computed), larger ones by a hash of what Pillow 9.4 gave. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/fnv.h"
#include "engine/image/resize.h"

#define VECTORS "tests/golden/images/resize.vectors"
#define N_VECTORS 16u

static void resize_whole(enum tdm_resize_filter filter, struct tdm_image_size from, struct tdm_image_size to,
                         const uint8_t *rgb, uint8_t *out)
{
        struct tdm_resize *resize = NULL;

        assert_int_equal(tdm_resize_new(&resize, filter, from, to), 0);
        for (uint32_t y = 0; y < to.height; y++)
                tdm_resize_next(resize, rgb, out + (size_t)y * to.width * 3);
        tdm_resize_destroy(resize);
}

static void *bytes_of_hex(const char *hex, size_t n)
{
        uint8_t *bytes = malloc(n);

        assert_non_null(bytes);
        assert_int_equal(strlen(hex), 2 * n);
        for (size_t i = 0; i < n; i++) {
                unsigned v;

                assert_int_equal(sscanf(hex + 2 * i, "%2x", &v), 1);
                bytes[i] = (uint8_t)v;
        }
        return bytes;
}

static void test_vectors(void **state)
{
        static char name[16], rgb_hex[1 << 16], want_hex[1 << 16];
        struct tdm_image_size from, to;
        FILE *f = fopen(VECTORS, "re");
        unsigned n = 0;

        assert_non_null(f);
        while (fscanf(f, "%15s %u %u %u %u %65535s %65535s", name, &from.width, &from.height, &to.width, &to.height,
                      rgb_hex, want_hex) == 7) {
                size_t bytes = (size_t)to.width * to.height * 3;
                uint8_t *rgb = bytes_of_hex(rgb_hex, (size_t)from.width * from.height * 3);
                uint8_t *want = bytes_of_hex(want_hex, bytes), *got = malloc(bytes);

                assert_non_null(got);
                resize_whole(strcmp(name, "bicubic") == 0 ? TDM_RESIZE_BICUBIC : TDM_RESIZE_BILINEAR, from, to, rgb,
                             got);
                assert_memory_equal(got, want, bytes);
                free(rgb);
                free(want);
                free(got);
                n++;
        }
        fclose(f);
        assert_int_equal(n, N_VECTORS);
}

static uint8_t *noise(struct tdm_image_size size)
{
        size_t n = (size_t)size.width * size.height * 3;
        uint8_t *bytes = malloc(n);
        uint32_t x = 1;

        assert_non_null(bytes);
        for (size_t i = 0; i < n; i++) {
                x = x * UINT32_C(1664525) + UINT32_C(1013904223);
                bytes[i] = (uint8_t)(x >> 24);
        }
        return bytes;
}

static void test_large(void **state)
{
        static const struct {
                enum tdm_resize_filter filter;
                struct tdm_image_size from, to;
                uint64_t hash;
        } cases[] = {
                { TDM_RESIZE_BILINEAR, { 301, 187 }, { 896, 896 }, UINT64_C(0x0f56a34f68377544) },
                { TDM_RESIZE_BICUBIC, { 301, 187 }, { 896, 896 }, UINT64_C(0xc5f1256bbde8e586) },
                { TDM_RESIZE_BILINEAR, { 1000, 700 }, { 96, 64 }, UINT64_C(0x1d1ee23f97c0ac55) },
                { TDM_RESIZE_BICUBIC, { 1000, 700 }, { 96, 64 }, UINT64_C(0xbc0596732fbffac3) },
                { TDM_RESIZE_BILINEAR, { 513, 2 }, { 48, 480 }, UINT64_C(0xd2e1823ae5991409) },
                { TDM_RESIZE_BICUBIC, { 513, 2 }, { 48, 480 }, UINT64_C(0xc13e2f9b5477a8fd) },
                { TDM_RESIZE_BILINEAR, { 640, 480 }, { 640, 112 }, UINT64_C(0x95ce647f94380937) },
                { TDM_RESIZE_BICUBIC, { 640, 480 }, { 640, 112 }, UINT64_C(0xe01e65a43bdee173) },
                { TDM_RESIZE_BILINEAR, { 640, 480 }, { 112, 480 }, UINT64_C(0xdf228c4f646d3d66) },
                { TDM_RESIZE_BICUBIC, { 640, 480 }, { 112, 480 }, UINT64_C(0xc14a5a3dc4b45ac9) },
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                size_t bytes = (size_t)cases[i].to.width * cases[i].to.height * 3;
                uint8_t *rgb = noise(cases[i].from), *got = malloc(bytes);

                assert_non_null(got);
                resize_whole(cases[i].filter, cases[i].from, cases[i].to, rgb, got);
                assert_int_equal(tdm_fnv64(TDM_FNV64_BEGIN, got, bytes), cases[i].hash);
                free(rgb);
                free(got);
        }
}

/* Equal sides leave all bytes, of one side those of the other pass alone: nothing is rounded twice. */
static void test_kept(void **state)
{
        const struct tdm_image_size size = { 37, 11 };
        uint8_t *rgb = noise(size), got[37 * 11 * 3];

        resize_whole(TDM_RESIZE_BICUBIC, size, size, rgb, got);
        assert_memory_equal(got, rgb, sizeof(got));
        free(rgb);
}

/* What is held does not grow with the picture's area: 16,384 x 16,384 pixels have 805 MB. */
static void test_bounded(void **state)
{
        static const struct tdm_image_size sizes[] = { { 16384, 16384 }, { 16384, 64 }, { 64, 16384 }, { 1, 1 } };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(sizes); i++) {
                struct tdm_resize *resize = NULL;

                assert_int_equal(
                        tdm_resize_new(&resize, TDM_RESIZE_BICUBIC, sizes[i], (struct tdm_image_size){ 896, 896 }), 0);
                assert_true(tdm_resize_memory(resize) < 1 << 20);
                tdm_resize_destroy(resize);
        }
}

static void test_refused(void **state)
{
        static const struct tdm_image_size good = { 8, 8 },
                                           bad[] = { { 0, 8 }, { 8, 0 }, { 65537, 8 }, { 8, UINT32_MAX } };
        struct tdm_resize *resize = NULL;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(bad); i++) {
                assert_int_equal(tdm_resize_new(&resize, TDM_RESIZE_BILINEAR, bad[i], good), -EINVAL);
                assert_int_equal(tdm_resize_new(&resize, TDM_RESIZE_BILINEAR, good, bad[i]), -EINVAL);
        }
        assert_null(resize);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_vectors), cmocka_unit_test(test_large),   cmocka_unit_test(test_kept),
                cmocka_unit_test(test_bounded), cmocka_unit_test(test_refused),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
