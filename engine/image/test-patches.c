/* Bands of patches against the definition: the resized picture as a whole, each number by itself in double. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/image/patches.h"

static void fill_noise(uint8_t *bytes, size_t n)
{
        uint32_t x = 7;

        for (size_t i = 0; i < n; i++) {
                x = x * UINT32_C(1664525) + UINT32_C(1013904223);
                bytes[i] = (uint8_t)(x >> 24);
        }
}

static void check_recipe(const struct tdm_image_recipe *recipe, struct tdm_image_size picture)
{
        struct tdm_image_patches *patches = NULL;
        struct tdm_resize *resize = NULL;
        struct tdm_image_size fitted, grid;
        size_t numbers = (size_t)recipe->patch * recipe->patch * 3, stride = numbers + 5;
        uint8_t *rgb = malloc((size_t)picture.width * picture.height * 3), *whole;
        float *band;

        assert_non_null(rgb);
        fill_noise(rgb, (size_t)picture.width * picture.height * 3);
        assert_int_equal(tdm_image_patches_new(&patches, recipe, picture, NULL), 0);
        fitted = tdm_image_patches_fitted(patches);
        grid = tdm_image_patches_grid(patches);
        assert_int_equal(grid.width * recipe->patch, fitted.width);
        assert_int_equal(grid.height * recipe->patch, fitted.height);
        whole = malloc((size_t)fitted.width * fitted.height * 3);
        band = calloc(grid.width * stride, sizeof(*band));
        assert_true(whole && band);
        assert_int_equal(tdm_resize_new(&resize, recipe->filter, picture, fitted), 0);
        for (uint32_t y = 0; y < fitted.height; y++)
                tdm_resize_next(resize, rgb, whole + (size_t)y * fitted.width * 3);
        for (uint32_t row = 0; row < grid.height; row++) {
                tdm_image_patches_next(patches, rgb, band, stride);
                assert_memory_equal(tdm_image_patches_bytes(patches),
                                    whole + (size_t)row * recipe->patch * fitted.width * 3,
                                    (size_t)recipe->patch * fitted.width * 3);
                for (size_t i = 0; i < grid.width * numbers; i++) {
                        size_t column = i / numbers, c = i % numbers / recipe->patch / recipe->patch;
                        size_t y = row * recipe->patch + i % numbers / recipe->patch % recipe->patch;
                        size_t x = column * recipe->patch + i % recipe->patch;
                        double want = whole[(y * fitted.width + x) * 3 + c] / 255.0;

                        want = (want - recipe->mean[c]) / recipe->std[c];
                        want = recipe->doubled ? 2 * want - 1 : want;
                        assert_true(fabs(band[column * stride + i % numbers] - want) < 2e-7);
                }
                for (uint32_t column = 0; column < grid.width; column++)
                        assert_true(band[column * stride + numbers] == 0);
        }
        tdm_resize_destroy(resize);
        tdm_image_patches_destroy(patches);
        free(rgb);
        free(whole);
        free(band);
}

static void test_recipes(void **state)
{
        static const struct tdm_image_recipe recipes[] = {
                { .rule = TDM_IMAGE_STRETCH,
                  .filter = TDM_RESIZE_BILINEAR,
                  .side = 112,
                  .patch = 14,
                  .merge = 2,
                  .mean = { 0.5, 0.5, 0.5 },
                  .std = { 0.5, 0.5, 0.5 } },
                { .rule = TDM_IMAGE_BUDGET,
                  .filter = TDM_RESIZE_BICUBIC,
                  .patch = 16,
                  .merge = 3,
                  .budget = 12,
                  .std = { 1, 1, 1 },
                  .doubled = true },
                { .rule = TDM_IMAGE_NEAREST,
                  .filter = TDM_RESIZE_BICUBIC,
                  .patch = 16,
                  .merge = 2,
                  .least_pixels = 9000,
                  .most_pixels = 20000,
                  .mean = { 0.4, 0.5, 0.6 },
                  .std = { 0.25, 0.5, 0.75 } },
        };
        static const struct tdm_image_size sizes[] = { { 37, 61 }, { 210, 150 }, { 112, 112 }, { 3, 2 } };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(recipes); i++)
                for (size_t k = 0; k < TDM_ARRAY_SIZE(sizes); k++)
                        check_recipe(&recipes[i], sizes[k]);
}

/* A side that no patch divides is a mistake of the recipe's maker. */
static void test_refused(void **state)
{
        struct tdm_image_recipe recipe = {
                .rule = TDM_IMAGE_STRETCH, .filter = TDM_RESIZE_BILINEAR, .side = 100, .patch = 14, .merge = 1
        };
        struct tdm_image_patches *patches = NULL;

        assert_int_equal(tdm_image_patches_new(&patches, &recipe, (struct tdm_image_size){ 5, 5 }, NULL), -EINVAL);
        recipe.side = 112;
        assert_int_equal(tdm_image_patches_new(&patches, &recipe, (struct tdm_image_size){ 0, 5 }, NULL),
                         TDM_E_BAD_REQUEST);
        assert_null(patches);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_recipes), cmocka_unit_test(test_refused) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
