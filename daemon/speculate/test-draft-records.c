/* What is counted of a draft's guesses, and what follows for the next burst. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "daemon/speculate/private.h"

/* What the outlook says of `left` more guesses, by going through all of them. */
static void go_through(const struct tdm_draft_records *r, float least, uint32_t left, float share, float chance,
                       float *ret_drawn, float *ret_checked, float *ret_right)
{
        float n_seen = 0, surest = 0;

        for (uint32_t c = 0; c < TDM_CERTAINTIES; c++) {
                n_seen += r->seen[c];
                surest = TDM_MAX(surest, tdm_guess_chance(&r->certain[c]));
        }
        if (left > 0 && chance * surest >= least)
                ret_drawn[0] += share;
        for (uint32_t c = 0; left > 0 && c < TDM_CERTAINTIES; c++) {
                float next = chance * tdm_guess_chance(&r->certain[c]), so = share * r->seen[c] / n_seen;

                if (next < least)
                        continue;
                ret_checked[0] += so;
                ret_right[0] += so * next;
                go_through(r, least, left - 1, so, next, ret_drawn + 1, ret_checked + 1, ret_right + 1);
        }
}

/* Guesses that are counted by how sure the draft was of them, and what follows for the next burst. */
static void test_certainty(void **state)
{
        static const float truth[TDM_CERTAINTIES] = { 0.05f, 0.1f, 0.3f, 0.3f, 0.5f, 0.8f, 0.9f, 0.97f };
        struct tdm_draft_records none = { 0 }, r = { 0 };
        struct tdm_guesses g = { .drafted = true, .n_found = 1 };
        uint32_t bits = 7;

        assert_int_equal(tdm_step_certainty(-20), 0);
        assert_int_equal(tdm_step_certainty(logf(0.099f)), 0);
        assert_int_equal(tdm_step_certainty(logf(0.55f)), 4);
        assert_int_equal(tdm_step_certainty(0), TDM_CERTAINTIES - 1);
        tdm_draft_records_expect(&r, &none, 1);
        for (unsigned i = 0; i < 4000; i++) {
                bits = bits * 1664525 + 1013904223;
                g.certainty[0] = (uint8_t)(bits >> 16 & 7);
                bits = bits * 1664525 + 1013904223;
                tdm_draft_records_count(&r, &g, (float)(bits >> 8) < truth[g.certainty[0]] * (1 << 24), 1);
        }
        for (uint32_t c = 0; c < TDM_CERTAINTIES; c++)
                assert_true(fabsf(tdm_guess_chance(&r.certain[c]) - truth[c]) < 0.2f);
        for (float least = 0.03f; least < 0.5f; least *= 1.7f) {
                float drawn[4], checked[4], right[4], want_drawn[5] = { 0 }, want_checked[5] = { 0 },
                                                      want_right[5] = { 0 };
                float all[4] = { least, least, least, least };

                tdm_draft_records_outlook(&r, all, all, 4, drawn, checked, right);
                go_through(&r, least, 4, 1, 1, want_drawn, want_checked, want_right);
                for (unsigned k = 0; k < 4; k++) {
                        assert_true(fabsf(drawn[k] - want_drawn[k]) < 0.13f);
                        assert_true(fabsf(checked[k] - want_checked[k]) < 0.13f);
                        assert_true(fabsf(right[k] - want_right[k]) < 0.03f);
                }
        }
        /* A job that ends with such counts tells the next one. */
        tdm_draft_records_keep(&none, &r);
        r = (struct tdm_draft_records){ 0 };
        tdm_draft_records_expect(&r, &none, 1);
        for (uint32_t c = 0; c < TDM_CERTAINTIES; c++)
                assert_true(fabsf(tdm_guess_chance(&r.certain[c]) - truth[c]) < 0.25f);
        /* First guesses that are all wrong are believed before the classes. */
        for (unsigned i = 0; i < 30; i++)
                tdm_draft_records_count(
                        &r, &(struct tdm_guesses){ .drafted = true, .n_found = 1, .certainty = { (uint8_t)(i % 8) } },
                        0, 1);
        {
                float drawn[1], checked[1], right[1];

                tdm_draft_records_outlook(&r, &(float){ 0.1f }, &(float){ 0.1f }, 1, drawn, checked, right);
                assert_true(right[0] < 0.15f);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_certainty),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
