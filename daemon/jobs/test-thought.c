/* The thought before an answer: when its end is due, and where a bound answer begins. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "daemon/jobs/thought.h"

#define OPEN 7
#define CLOSE 8
#define GAP 9

static const struct tdm_chat_thought silent = { .open = OPEN, .end = { CLOSE, GAP }, .n_end = 2, .n_close = 1 };
static const struct tdm_chat_thought begun = {
        .is_begun = true, .open = -1, .end = { CLOSE, GAP }, .n_end = 2, .n_close = 1
};

static void take(struct tdm_thought *t, uint32_t *index, enum tdm_chat_place place, unsigned n)
{
        for (unsigned i = 0; i < n; i++)
                tdm_thought_take(t, (*index)++, place, false);
}

static void test_budget(void **state)
{
        struct tdm_thought t;
        uint32_t index = 0;

        tdm_thought_begin(&t, &begun, 3, false);
        assert_int_equal(tdm_thought_left(&t), 3);
        take(&t, &index, TDM_CHAT_IN_THOUGHT, 2);
        assert_int_equal(t.phase, TDM_THOUGHT_OPEN);
        assert_int_equal(tdm_thought_left(&t), 1);
        take(&t, &index, TDM_CHAT_IN_THOUGHT, 1);
        assert_int_equal(t.phase, TDM_THOUGHT_ENDING);
        assert_int_equal(tdm_thought_left(&t), 0);
        assert_int_equal(tdm_thought_due(&t), CLOSE);
        take(&t, &index, TDM_CHAT_IN_ANSWER, 1);
        assert_int_equal(tdm_thought_due(&t), GAP);
        take(&t, &index, TDM_CHAT_IN_ANSWER, 1);
        assert_int_equal(t.phase, TDM_THOUGHT_OVER);
        assert_int_equal(t.answer_from, 5);
        /* Another thought in a free answer has no budget left: its end is due with its first token. */
        take(&t, &index, TDM_CHAT_IN_ANSWER, 4);
        assert_int_equal(tdm_thought_left(&t), 1);
        take(&t, &index, TDM_CHAT_IN_THOUGHT, 1);
        assert_int_equal(t.phase, TDM_THOUGHT_ENDING);
}

/* The budget is over where no end may come: it is due as soon as one may. */
static void test_budget_waits(void **state)
{
        struct tdm_thought t;
        uint32_t index = 0;

        tdm_thought_begin(&t, &begun, 3, false);
        take(&t, &index, TDM_CHAT_IN_THOUGHT, 2);
        tdm_thought_take(&t, index++, TDM_CHAT_IN_THOUGHT, true);
        tdm_thought_take(&t, index++, TDM_CHAT_IN_THOUGHT, true);
        assert_int_equal(t.phase, TDM_THOUGHT_OPEN);
        assert_int_equal(tdm_thought_left(&t), 1);
        take(&t, &index, TDM_CHAT_IN_THOUGHT, 1);
        assert_int_equal(t.phase, TDM_THOUGHT_ENDING);
        assert_int_equal(t.n_tokens, 5);
}

static void test_bound_answer(void **state)
{
        struct tdm_thought t;
        uint32_t index = 0;

        /* It thinks and ends it by itself: what templates write behind it is due before the answer. */
        tdm_thought_begin(&t, &silent, 0, true);
        assert_int_equal(t.phase, TDM_THOUGHT_MAYBE);
        take(&t, &index, TDM_CHAT_IN_THOUGHT, 5);
        assert_int_equal(t.phase, TDM_THOUGHT_OPEN);
        take(&t, &index, TDM_CHAT_IN_ANSWER, 1);
        assert_int_equal(t.phase, TDM_THOUGHT_ENDING);
        assert_int_equal(tdm_thought_due(&t), GAP);
        take(&t, &index, TDM_CHAT_IN_ANSWER, 1);
        assert_int_equal(t.phase, TDM_THOUGHT_OVER);
        assert_int_equal(t.answer_from, 7);

        /* It does not think: the answer begins with the first token. */
        index = 0;
        tdm_thought_begin(&t, &silent, 2, true);
        take(&t, &index, TDM_CHAT_IN_ANSWER, 1);
        assert_int_equal(t.phase, TDM_THOUGHT_OVER);
        assert_int_equal(t.answer_from, 0);
        take(&t, &index, TDM_CHAT_IN_THOUGHT, 9); /* letters of the answer that look so */
        assert_int_equal(t.phase, TDM_THOUGHT_OVER);
}

/* A header is not cut in two: the end is due where the thought's text is. */
static void test_headers(void **state)
{
        struct tdm_thought t;
        uint32_t index = 0;

        tdm_thought_begin(&t, &begun, 2, false);
        take(&t, &index, TDM_CHAT_BEFORE_ANSWER, 5);
        assert_int_equal(t.phase, TDM_THOUGHT_OPEN);
        assert_int_equal(tdm_thought_left(&t), 1);
        take(&t, &index, TDM_CHAT_IN_THOUGHT, 1);
        assert_int_equal(t.phase, TDM_THOUGHT_ENDING);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_budget),
                cmocka_unit_test(test_budget_waits),
                cmocka_unit_test(test_bound_answer),
                cmocka_unit_test(test_headers),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
