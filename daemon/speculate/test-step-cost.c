/* What steps and bursts take: on a busy machine, in company, and after disturbed measurements. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "daemon/speculate/private.h"

static uint64_t cost_seed;

/* 0.9 to 1.1, and sometimes twice as much. */
static double disturbed(void)
{
        double x;

        cost_seed = cost_seed * UINT64_C(6364136223846793005) + 1;
        x = (double)(cost_seed >> 40) / (1 << 24);
        return (0.9 + 0.2 * x) * (x > 0.97 ? 2 : 1);
}

/* A step of few rows takes 4 % more for each. The machine becomes three times as slow meanwhile, and steps are
 * disturbed. What rows add is found all the same. */
static void test_costs_on_a_busy_machine(void **state)
{
        struct tdm_step_costs *c = calloc(1, sizeof(*c));
        float one;

        assert_non_null(c);
        for (uint32_t run = 0; run < 20; run++) {
                uint32_t n_plain = 0;

                memset(c, 0, sizeof(*c));
                cost_seed = run;
                for (uint32_t i = 0; i < 200; i++) {
                        double speed = 1 + 2 * (double)i / 200;
                        bool plain_step = tdm_step_costs_expect(c, 1, 1) == 0;
                        uint32_t n_rows = plain_step ? 1 : 2 + (i * 7 + i / 5) % 5;

                        n_plain += plain_step;

                        tdm_step_costs_note(c, n_rows, (uint64_t)(1e7 * speed * (0.96 + 0.04 * n_rows) * disturbed()));
                }
                assert_true(n_plain >= 1 && n_plain <= 12);
                one = tdm_step_costs_expect(c, 1, 1);
                for (uint32_t n = 2; n <= 6; n++) {
                        float part = tdm_step_costs_expect(c, n, 1) / one;

                        assert_true(part < 1.3f * (0.96f + 0.04f * (float)n));
                        assert_true(part > 0.8f * (0.96f + 0.04f * (float)n));
                }
        }
        free(c);
}

/* More rows take half as long again, which was seen once. A job alone soon tries it again. Where eight would have to
 * wait for the try, it is believed for longer. */
static void test_costs_in_company(void **state)
{
        static const struct {
                uint32_t n, n_known, n_forgotten; /* sequences; this many steps later */
        } cases[] = { { 1, 10, 30 }, { 8, 500, 1100 } };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                struct tdm_step_costs *c = calloc(1, sizeof(*c));
                uint32_t n = cases[i].n, steps = 0;

                assert_non_null(c);
                tdm_step_costs_note(c, n, 6000000);
                tdm_step_costs_note(c, n + n / 2 + 1, 9000000);
                for (; steps < cases[i].n_known; steps++)
                        tdm_step_costs_note(c, n, 6000000);
                assert_true(tdm_step_costs_expect(c, n + n / 2 + 1, n) > 1.4f * tdm_step_costs_expect(c, n, n));
                for (; steps < cases[i].n_forgotten; steps++)
                        tdm_step_costs_note(c, n, 6000000);
                assert_true(tdm_step_costs_expect(c, n + n / 2 + 1, n) < 1.1f * tdm_step_costs_expect(c, n, n));
                free(c);
        }
}

/* Eight together, one of them with a guess. The only step without guesses that was measured was disturbed, so the row
 * more seems to cost nothing, while it takes a quarter of the step. Seven texts do not wait for it for long. */
static void test_a_disturbed_base_in_company(void **state)
{
        struct tdm_step_costs *c = calloc(1, sizeof(*c));
        uint32_t n_slow = 0;

        assert_non_null(c);
        tdm_step_costs_note(c, 8, 7500000);
        for (uint32_t i = 0; i < 1000; i++) {
                float base = tdm_step_costs_expect(c, 8, 8), ns = tdm_step_costs_expect(c, 9, 8);
                bool guesses = base > 0 && !tdm_step_costs_others_wait(c, 9, ns, base);

                n_slow += guesses;
                tdm_step_costs_note(c, guesses ? 9 : 8, guesses ? 7500000 : 6000000);
        }
        assert_true(n_slow >= 1 && n_slow <= 100);
        free(c);
}

/* A trip and a time for each pass, or all in proportion where all bursts are of one length. */
static void test_costs_of_bursts(void **state)
{
        struct tdm_draft_costs *c = calloc(1, sizeof(*c));

        assert_non_null(c);
        assert_true(tdm_draft_costs_expect(c, 1, 3) == 0);
        for (uint32_t i = 0; i < 10; i++)
                tdm_draft_costs_note_burst(c, 1, 2, 200000);
        assert_true(fabsf(tdm_draft_costs_expect(c, 1, 4) - 400000) < 1000);
        assert_true(tdm_draft_costs_expect(c, 2, 4) == 0);
        for (uint32_t i = 0; i < 100; i++) {
                uint32_t n = 1 + i % 5;

                tdm_draft_costs_note_burst(c, 1, n, (uint64_t)((150000 + 25000 * n) * disturbed()));
        }
        assert_true(fabsf(tdm_draft_costs_expect(c, 1, 1) - 175000) < 35000);
        assert_true(fabsf(tdm_draft_costs_expect(c, 1, 8) - 350000) < 70000);
        tdm_draft_costs_forget(c, 1);
        assert_true(tdm_draft_costs_expect(c, 1, 1) == 0);
        free(c);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_costs_on_a_busy_machine),
                cmocka_unit_test(test_costs_of_bursts),
                cmocka_unit_test(test_costs_in_company),
                cmocka_unit_test(test_a_disturbed_base_in_company),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
