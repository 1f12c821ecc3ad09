/* How many blocks a worker gives its device at once: whatever the device's speed, it settles, where a run() is neither
 * short nor long, or has all blocks, or no fewer can be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/worker/run-length.h"

/* A device that takes `fixed` for a run() and `each` for a block. */
static uint64_t run_ns(uint32_t n, uint32_t n_blocks, uint64_t fixed, uint64_t each)
{
        return fixed + TDM_MIN(n, n_blocks) * each;
}

static void settles(void **state)
{
        static const uint32_t models[] = { 4, 53, 125, 1000 };

        for (unsigned m = 0; m < TDM_ARRAY_SIZE(models); m++)
                for (unsigned size = 0; size < TDM_RUN_SIZES; size++)
                        for (uint64_t each = 100; each < 200 * TDM_NSEC_PER_MSEC; each += each / 7 + 1)
                                for (uint64_t fixed = 0; fixed <= 1000000; fixed += 250000) {
                                        uint32_t n = tdm_run_first_guess(size), settled;
                                        uint64_t ns;

                                        for (unsigned i = 0; i < 20; i++)
                                                tdm_run_learn(&n, run_ns(n, models[m], fixed, each), models[m]);
                                        settled = n;
                                        ns = run_ns(n, models[m], fixed, each);
                                        for (unsigned i = 0; i < 20; i++) {
                                                tdm_run_learn(&n, ns, models[m]);
                                                assert_int_equal(n, settled);
                                        }
                                        assert_true(n >= TDM_RUN_BLOCKS_MIN &&
                                                    (n < 2 * models[m] || n <= TDM_RUN_BLOCKS_OF_FEW));
                                        assert_true(ns >= TDM_RUN_SHORT_NS || n >= models[m]);
                                        assert_true(ns <= TDM_RUN_LONG_NS || n == TDM_RUN_BLOCKS_MIN);
                                }
}

/* A device that becomes slower (another takes its memory, its clock falls) gets fewer, and more when it is itself
 * again. */
static void follows(void **state)
{
        uint32_t n = tdm_run_first_guess(tdm_run_size_of(1)), fast;

        for (unsigned i = 0; i < 20; i++)
                tdm_run_learn(&n, run_ns(n, 125, 100000, 50000), 125);
        fast = n;
        for (unsigned i = 0; i < 20; i++)
                tdm_run_learn(&n, run_ns(n, 125, 100000, 2 * TDM_NSEC_PER_MSEC), 125);
        assert_true(n < fast && run_ns(n, 125, 100000, 2 * TDM_NSEC_PER_MSEC) <= TDM_RUN_LONG_NS);
        for (unsigned i = 0; i < 20; i++)
                tdm_run_learn(&n, run_ns(n, 125, 100000, 50000), 125);
        assert_true(n >= 125 || run_ns(n, 125, 100000, 50000) >= TDM_RUN_SHORT_NS);
}

static void sizes(void **state)
{
        unsigned last = 0;

        for (uint32_t rows = 1; rows < 5000; rows++) {
                unsigned size = tdm_run_size_of(rows);

                assert_true(size < TDM_RUN_SIZES && size >= last);
                last = size;
        }
        assert_int_equal(last, TDM_RUN_SIZES - 1);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(settles),
                cmocka_unit_test(follows),
                cmocka_unit_test(sizes),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
