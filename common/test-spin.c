/* How long to spin is learned: an answer brings the full length, none halves it down to nothing, and then one of 64
 * waits is tried. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "common/spin.h"

#define MAX_NS UINT64_C(300000)

static uint64_t wait_once(struct tdm_spin *s, bool answered)
{
        uint64_t ns = tdm_spin_next(s, MAX_NS);

        tdm_spin_learn(s, MAX_NS, ns, answered);
        return ns;
}

static void learns(void **state)
{
        struct tdm_spin s = { 0 };
        unsigned n_tried = 0;

        for (uint64_t ns = MAX_NS; ns >= TDM_SPIN_MIN_NS; ns /= 2)
                assert_int_equal(wait_once(&s, false), ns);
        for (unsigned i = 0; i < 10 * TDM_SPIN_TRY_EVERY && n_tried < 3; i++) {
                uint64_t ns = tdm_spin_next(&s, MAX_NS);

                assert_true(ns == 0 || ns == MAX_NS);
                n_tried += ns != 0;
                assert_true(n_tried * TDM_SPIN_TRY_EVERY <= i + TDM_SPIN_TRY_EVERY);
        }
        assert_int_equal(n_tried, 3);
        tdm_spin_learn(&s, MAX_NS, MAX_NS, true);
        assert_int_equal(wait_once(&s, false), MAX_NS);
        assert_int_equal(wait_once(&s, true), MAX_NS / 2);
        assert_int_equal(wait_once(&s, true), MAX_NS);
}

/* A wait without a spin says nothing about spinning. */
static void not_spun(void **state)
{
        struct tdm_spin s = { .n_waits = 1 };

        assert_int_equal(wait_once(&s, true), 0);
        assert_int_equal(wait_once(&s, false), 0);
        assert_int_equal(s.ns, 0);
        s = (struct tdm_spin){ .ns = 5000, .n_waits = TDM_SPIN_TRY_EVERY };
        assert_int_equal(tdm_spin_next(&s, MAX_NS), 5000); /* only a learner that does not spin tries */
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(learns), cmocka_unit_test(not_spun) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
