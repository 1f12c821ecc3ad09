/* Rotation angles against the formula in long double, near and far, and independent of how long the context is. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/host/rope.h"

static void check(uint32_t head_dim, uint32_t n_positions, double base, double factor)
{
        struct tdm_rope rope, shorter;
        float c[128], s[128], c2[128], s2[128];

        const struct tdm_rope_recipe recipe = { .style = TDM_ROPE_HALVES,
                                                .n_dims = head_dim,
                                                .scaling = TDM_ROPE_LINEAR,
                                                .base = (float)base,
                                                .factor = (float)factor,
                                                .magnitude = 1 };

        assert_int_equal(tdm_rope_init(&rope, &recipe, n_positions, NULL), 0);
        assert_int_equal(tdm_rope_init(&shorter, &recipe, 1000, NULL), 0);
        for (uint32_t k = 0; k < 400; k++) {
                uint32_t position = k < 300 ? k * 3 : (uint32_t)((uint64_t)(n_positions - 1) * (k - 300) / 99);

                tdm_rope_row(&rope, position, c, s);
                for (uint32_t i = 0; i < head_dim / 2; i++) {
                        long double angle = (long double)position / factor * powl(base, -2.0L * i / head_dim);

                        /* half a place of f32, and what the angle's own rounding to double makes of a large one */
                        assert_true(fabsl(c[i] - cosl(angle)) <= 0x1.01p-25L + (long double)angle * 0x1p-50L);
                        assert_true(fabsl(s[i] - sinl(angle)) <= 0x1.01p-25L + (long double)angle * 0x1p-50L);
                }
                if (position < 1000) {
                        tdm_rope_row(&shorter, position, c2, s2);
                        assert_memory_equal(c, c2, head_dim / 2 * sizeof(float));
                        assert_memory_equal(s, s2, head_dim / 2 * sizeof(float));
                }
        }
        tdm_rope_deinit(&rope);
        tdm_rope_deinit(&shorter);
}

static void test_angles(void **unused)
{
        check(64, 4096, 10000, 1);
        check(256, 131072, 1e6, 8);
        check(16, 1 << 20, 10000, 1);
        check(96, 1025, 1e6, 1);
}

/* What a recipe says beyond base and factor, against numbers that other programs print. */
static void test_recipes(void **unused)
{
        struct tdm_rope_recipe recipe = { .style = TDM_ROPE_HALVES,
                                          .n_dims = 64,
                                          .scaling = TDM_ROPE_YARN,
                                          .base = 150000,
                                          .factor = 32,
                                          .magnitude = 1.34657f,
                                          .yarn_beta_fast = 32,
                                          .yarn_beta_slow = 1,
                                          .yarn_n_ctx = 4096 };
        const float divisors[] = { 1, 2, 8, 1, 1, 1, 1, 1 }, zero[] = { 1, 1, 1, 0, 1, 1, 1, 1 };
        struct tdm_rope rope;
        float c[32], s[32], plain = 0;

        /* gpt-oss: pairs up to 8.0928 turn as they did, those from 17.3980 on 32 times slower. */
        for (uint32_t rounded = 0; rounded < 2; rounded++) {
                double first = rounded ? 8 : 8.092779115512402, last = rounded ? 18 : 17.398024501588555;

                recipe.yarn_is_rounded = rounded;
                assert_int_equal(tdm_rope_init(&rope, &recipe, 100, NULL), 0);
                tdm_rope_row(&rope, 1, c, s);
                for (uint32_t i = 0; i < 32; i++) {
                        double kept = 1 - fmin(fmax((i - first) / (last - first), 0), 1),
                               f = pow(150000, -2.0 * i / 64);
                        double angle = f * kept + f / 32 * (1 - kept);

                        assert_true(fabs((double)c[i] - (double)recipe.magnitude * cos(angle)) < 1e-6);
                        assert_true(fabs((double)s[i] - (double)recipe.magnitude * sin(angle)) <
                                    1e-6 * fmax(angle, 1e-3));
                }
                assert_true(rounded == 0 || s[12] != plain); /* what is rounded shows */
                plain = s[12];
                tdm_rope_deinit(&rope);
        }

        recipe = (struct tdm_rope_recipe){ .style = TDM_ROPE_HALVES,
                                           .n_dims = 16,
                                           .scaling = TDM_ROPE_LINEAR,
                                           .has_divisors = 1,
                                           .base = 5e5f,
                                           .factor = 1,
                                           .magnitude = 1 };
        assert_int_equal(tdm_rope_init(&rope, &recipe, 100, divisors), 0);
        tdm_rope_row(&rope, 3, c, s);
        for (uint32_t i = 0; i < 8; i++)
                assert_true(fabs((double)s[i] - sin(3 * pow(5e5, -2.0 * i / 16) / (double)divisors[i])) < 1e-7);
        tdm_rope_deinit(&rope);
        assert_int_equal(tdm_rope_init(&rope, &recipe, 100, zero), -EDOM);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_angles), cmocka_unit_test(test_recipes) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
