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

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_angles) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
