/* Which size a picture gets: tables that another program computed by the makers' formulas. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/image/fit.h"

struct fitted {
        struct tdm_image_size picture, want; /* want 0: refused */
};

static void check_table(const struct tdm_image_recipe *recipe, const struct fitted *table, size_t n)
{
        for (size_t i = 0; i < n; i++) {
                struct tdm_image_size got = { 0 };
                struct tdm_error err = { 0 };
                int r = tdm_image_fit(recipe, table[i].picture, &got, &err);

                if (table[i].want.width == 0) {
                        assert_int_equal(r, TDM_E_BAD_REQUEST);
                        assert_true(strlen(err.message) > 0);
                        continue;
                }
                assert_int_equal(r, 0);
                assert_int_equal(got.width, table[i].want.width);
                assert_int_equal(got.height, table[i].want.height);
        }
}

static void test_stretch(void **state)
{
        static const struct tdm_image_recipe recipe = {
                .rule = TDM_IMAGE_STRETCH, .side = 896, .patch = 14, .merge = 4
        };
        static const struct fitted table[] = {
                { { 1, 1 }, { 896, 896 } }, { { 1000, 1 }, { 896, 896 } }, { { 16384, 9 }, { 896, 896 } },
                { { 0, 9 }, { 0, 0 } },     { { 9, 65537 }, { 0, 0 } },
        };

        check_table(&recipe, table, TDM_ARRAY_SIZE(table));
        assert_int_equal(tdm_image_rows(&recipe, (struct tdm_image_size){ 896, 896 }), 256);
}

static void test_budget(void **state)
{
        static const struct tdm_image_recipe small = {
                .rule = TDM_IMAGE_BUDGET, .patch = 16, .merge = 3, .budget = 70
        };
        static const struct tdm_image_recipe usual = {
                .rule = TDM_IMAGE_BUDGET, .patch = 16, .merge = 3, .budget = 280
        };
        static const struct fitted of_70[] = {
                { { 1, 1 }, { 384, 384 } },       { { 1, 1000 }, { 48, 3360 } },    { { 1000, 1 }, { 3360, 48 } },
                { { 300, 180 }, { 480, 288 } },   { { 48, 48 }, { 384, 384 } },     { { 80, 112 }, { 336, 432 } },
                { { 1920, 1080 }, { 528, 288 } }, { { 4000, 3000 }, { 432, 336 } }, { { 16384, 64 }, { 3360, 48 } },
                { { 64, 16384 }, { 48, 3360 } },  { { 210, 150 }, { 432, 336 } },   { { 16384, 4096 }, { 768, 192 } },
                { { 5, 6 }, { 336, 432 } },       { { 336, 480 }, { 336, 480 } },
        };
        static const struct fitted of_280[] = {
                { { 1, 1 }, { 768, 768 } },       { { 1, 1000 }, { 48, 13440 } },    { { 300, 180 }, { 1008, 576 } },
                { { 80, 112 }, { 672, 912 } },    { { 1920, 1080 }, { 1056, 576 } }, { { 4000, 3000 }, { 912, 672 } },
                { { 16384, 64 }, { 12816, 48 } }, { { 64, 16384 }, { 48, 12816 } },  { { 16384, 4096 }, { 1584, 384 } },
                { { 5, 6 }, { 720, 864 } },       { { 336, 480 }, { 672, 960 } },
        };

        check_table(&small, of_70, TDM_ARRAY_SIZE(of_70));
        check_table(&usual, of_280, TDM_ARRAY_SIZE(of_280));
        assert_int_equal(tdm_image_rows(&usual, (struct tdm_image_size){ 672, 960 }), 280);
}

static void test_nearest(void **state)
{
        static const struct tdm_image_recipe recipe = {
                .rule = TDM_IMAGE_NEAREST, .patch = 16, .merge = 2, .least_pixels = 65536, .most_pixels = 16777216
        };
        static const struct fitted table[] = {
                { { 1, 1 }, { 256, 256 } },
                { { 1, 1000 }, { 0, 0 } },
                { { 1000, 1 }, { 0, 0 } },
                { { 300, 180 }, { 352, 224 } },
                { { 48, 48 }, { 256, 256 } },
                { { 80, 4096 }, { 64, 4096 } },
                { { 112, 112 }, { 256, 256 } },
                { { 1920, 1080 }, { 1920, 1088 } },
                { { 16384, 64 }, { 0, 0 } },
                { { 210, 150 }, { 320, 224 } },
                { { 16384, 4096 }, { 8192, 2048 } },
                { { 5, 6 }, { 256, 288 } },
                { { 16, 3200 }, { 32, 3648 } },
                { { 16, 3216 }, { 0, 0 } },
                { { 48, 4096 }, { 64, 4096 } },
                { { 8192, 8192 }, { 4096, 4096 } },
                { { 16384, 16384 }, { 4096, 4096 } },
                { { 256, 256 }, { 256, 256 } },
                { { 272, 368 }, { 256, 384 } },
        };

        check_table(&recipe, table, TDM_ARRAY_SIZE(table));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_stretch),
                cmocka_unit_test(test_budget),
                cmocka_unit_test(test_nearest),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
