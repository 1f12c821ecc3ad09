/* When a worker says that a step will be done soon: with the last batch of blocks that comes early enough, of a step of
 * as many rows as the one that it was learned from. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/worker/early-wake.h"

#define US UINT64_C(1000)

/* A step of ten blocks in three batches, 0 … 3, 4 … 7, 8 and 9, told at those times, in microseconds, and done at
 * `done`. Returns the block that it was said with; 10: none. */
static uint32_t run_step(struct tdm_early_wake *s, uint32_t n_rows, const uint64_t batches[3], uint64_t done)
{
        uint32_t said = 10;

        tdm_early_wake_begin(s);
        for (uint32_t block = 0; block < 10; block++)
                if (tdm_early_wake_block(s, n_rows, block, (1000000 + batches[block / 4] + block % 4) * US)) {
                        assert_int_equal(said, 10); /* once */
                        said = block;
                }
        tdm_early_wake_end(s, n_rows, (1000000 + done) * US);
        return said;
}

/* Drawing takes long: with the last batch. It does not: with the one before. Both too early: not at all. */
static void learns(void **state)
{
        static const uint64_t batches[3] = { 1000, 2000, 2200 }, far[3] = { 1000, 2000, 3000 };
        struct tdm_early_wake s = { 0 };

        assert_int_equal(run_step(&s, 32, batches, 2280), 10);
        assert_int_equal(run_step(&s, 32, batches, 2280), 8);
        assert_int_equal(run_step(&s, 32, batches, 2206), 8); /* as the one before was */
        assert_int_equal(run_step(&s, 32, batches, 2206), 4);
        assert_int_equal(run_step(&s, 32, far, 3006), 4);
        assert_int_equal(run_step(&s, 32, far, 3006), 10);
        assert_int_equal(run_step(&s, 32, far, 3600), 10);
        assert_int_equal(run_step(&s, 32, far, 3600), 10);
}

/* A step of other rows takes another time. */
static void other_rows(void **state)
{
        static const uint64_t batches[3] = { 1000, 2000, 2200 };
        struct tdm_early_wake s = { 0 };

        assert_int_equal(run_step(&s, 32, batches, 2280), 10);
        assert_int_equal(run_step(&s, 512, batches, 2280), 10);
        assert_int_equal(run_step(&s, 32, batches, 2280), 10);
        assert_int_equal(run_step(&s, 32, batches, 2280), 8);
}

/* All blocks at once, or none told: nothing to say it with, and nothing is left of the step before. */
static void one_batch(void **state)
{
        static const uint64_t batches[3] = { 1000, 2000, 2200 }, once[3] = { 1000, 1004, 1008 };
        struct tdm_early_wake s = { 0 };

        assert_int_equal(run_step(&s, 1, batches, 2206), 10);
        assert_int_equal(run_step(&s, 1, once, 1010), 4);
        assert_int_equal(run_step(&s, 1, once, 1010), 10);
        tdm_early_wake_begin(&s);
        tdm_early_wake_end(&s, 1, 5000 * US);
        assert_int_equal(run_step(&s, 1, once, 1010), 10);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(learns),
                cmocka_unit_test(other_rows),
                cmocka_unit_test(one_batch),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
