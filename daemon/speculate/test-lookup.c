/* Guesses from a text of its own: which place they come from, long texts, and copies with changed tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "daemon/jobs/job.h"
#include "daemon/speculate/lookup.h"

static void test_lookup(void **state)
{
        const uint32_t ids[] = { 1, 2, 3, 4, 5, 6, 7, 2, 3, 4, 9, 8, 1, 2, 3, 4 };
        uint32_t guesses[8], n;
        struct tdm_lookup_match match;
        struct tdm_lookup *lookup;

        assert_int_equal(tdm_lookup_new(&lookup), 0);
        n = tdm_lookup_guess(lookup, ids, 7, 8, guesses, &match);
        assert_int_equal(n, 0);
        /* Behind 2 3 4 stood 5. */
        n = tdm_lookup_guess(lookup, ids, 10, 3, guesses, &match);
        assert_int_equal(n, 3);
        assert_int_equal(match.length, 3);
        assert_memory_equal(guesses, &ids[4], 3 * sizeof(ids[0]));
        /* 1 2 3 4 agrees further back than 2 3 4, though that stands later. */
        n = tdm_lookup_guess(lookup, ids, 16, 8, guesses, &match);
        assert_int_equal(n, 8);
        assert_int_equal(match.length, 4);
        assert_false(match.behind_changed);
        assert_memory_equal(guesses, &ids[4], 8 * sizeof(ids[0]));
        tdm_lookup_destroy(lookup);
}

/* A text that repeats is guessed on beyond its end; one that is long is read a piece a call. */
static void test_lookup_repeats(void **state)
{
        uint32_t ids[9000], guesses[8], n = 0;
        struct tdm_lookup_match match;
        struct tdm_lookup *lookup;

        for (uint32_t i = 0; i < TDM_ARRAY_SIZE(ids); i++)
                ids[i] = i % 5;
        assert_int_equal(tdm_lookup_new(&lookup), 0);
        for (unsigned i = 0; i < 3; i++) {
                assert_int_equal(n, 0);
                n = tdm_lookup_guess(lookup, ids, TDM_ARRAY_SIZE(ids), 8, guesses, &match);
        }
        assert_int_equal(n, 8);
        assert_int_equal(match.length, TDM_LOOKUP_MOST);
        for (uint32_t i = 0; i < n; i++)
                assert_int_equal(guesses[i], i % 5);
        tdm_lookup_destroy(lookup);
}

/* A text and its copy, in which some tokens are changed. */
static uint32_t make_copy(uint32_t *ids, uint32_t n_text, uint32_t n_copied, uint32_t change_every)
{
        for (uint32_t i = 0; i < n_text; i++)
                ids[i] = 1000 + i;
        for (uint32_t i = 0; i < n_copied; i++)
                ids[n_text + i] = i % change_every == change_every - 1 ? 5000 + i : ids[i];
        return n_text + n_copied;
}

static uint32_t guess_once(struct tdm_lookup *lookup, const uint32_t *ids, uint32_t n_ids, uint32_t *ret,
                           struct tdm_lookup_match *match)
{
        return tdm_lookup_guess(lookup, ids, n_ids, TDM_MAX_GUESSES, ret, match);
}

/* Behind a changed token the copy goes on where it stood, also while too few tokens stand behind it to be found. */
static void test_lookup_behind_changed(void **state)
{
        uint32_t ids[400], guesses[TDM_MAX_GUESSES], n_text = 100;
        struct tdm_lookup_match match;
        struct tdm_lookup *lookup;

        make_copy(ids, n_text, 60, 16);
        assert_int_equal(tdm_lookup_new(&lookup), 0);
        for (uint32_t n_copied = 1; n_copied <= 60; n_copied++) {
                uint32_t n = guess_once(lookup, ids, n_text + n_copied, guesses, &match);
                uint32_t behind = n_copied % 16; /* tokens behind the last change */

                if (n_copied < TDM_LOOKUP_LEAST) {
                        assert_int_equal(n, 0);
                        continue;
                }
                assert_int_equal(n, TDM_MAX_GUESSES);
                assert_memory_equal(guesses, &ids[n_copied], n * sizeof(*ids));
                assert_int_equal(match.behind_changed, behind == 0);
                /* Those before the change count as far as the one before that; where there is none, all do. */
                assert_int_equal(match.length, n_copied < 16 ? n_copied : 15 + behind);
        }
        tdm_lookup_destroy(lookup);
}

/* Where two changes are close, and where little agreed before, nothing is gone on with. */
static void test_lookup_gives_up(void **state)
{
        uint32_t guesses[TDM_MAX_GUESSES];
        struct tdm_lookup_match match;

        for (uint32_t every = 2; every <= 16; every++) {
                uint32_t ids[400], n_text = 100, n_ids = make_copy(ids, n_text, every, every), n = 0;
                struct tdm_lookup *lookup;

                assert_int_equal(tdm_lookup_new(&lookup), 0);
                for (uint32_t i = n_text; i <= n_ids; i++)
                        n = guess_once(lookup, ids, i, guesses, &match);
                assert_int_equal(n, every > TDM_LOOKUP_BEFORE_CHANGE ? TDM_MAX_GUESSES : 0);
                ids[n_ids] = 6000;
                assert_int_equal(guess_once(lookup, ids, n_ids + 1, guesses, &match), 0);
                tdm_lookup_destroy(lookup);
        }
}

/* Steps of a copy of 240 tokens in which every 16th is changed, as the benchmark has it. */
static void test_lookup_steps(void **state)
{
        uint32_t ids[500], guesses[TDM_MAX_GUESSES], n_text = 240, n_steps = 0, n_ids = make_copy(ids, n_text, 240, 16);
        struct tdm_lookup_match match;
        struct tdm_lookup *lookup;

        assert_int_equal(tdm_lookup_new(&lookup), 0);
        for (uint32_t at = n_text + 1; at < n_ids; n_steps++) {
                uint32_t n = guess_once(lookup, ids, at, guesses, &match), right = 0;

                while (right < n && at + right + 1 < n_ids && guesses[right] == ids[at + right])
                        right++;
                at += right + 1;
        }
        /* Two before anything is found, then one for each change. */
        assert_int_equal(n_steps, 17);
        tdm_lookup_destroy(lookup);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_lookup),
                cmocka_unit_test(test_lookup_repeats),
                cmocka_unit_test(test_lookup_behind_changed),
                cmocka_unit_test(test_lookup_gives_up),
                cmocka_unit_test(test_lookup_steps),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
