/* Turns: an account that has had its time waits in line, and others do not. Each gets its own by and by, and nothing is
 * lost when one who waits goes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "daemon/accounts/turns.h"

#define MS TDM_NSEC_PER_MSEC

/* A client with pieces of work that take a while each, which is told to turns.c and not waited for. */
struct worker {
        struct tdm_account *account;
        struct tdm_waiter waiter;
        unsigned left, done;
        uint64_t piece_ns;
        struct worker *destroys; /* with its first piece */
};

static struct tdm_loop *loop;
static struct tdm_turns *turns;
static struct tdm_accounts *accounts;
static char order[256]; /* the users whose work was done, one letter each */
static size_t n_order;

static int setup(void **state)
{
        struct tdm_resource_limit limits[TDM_N_RESOURCES];

        for (unsigned r = 0; r < TDM_N_RESOURCES; r++)
                limits[r] = (struct tdm_resource_limit){ 100, 10, 1, 50 };
        n_order = 0;
        return tdm_loop_new(&loop, NULL) || tdm_turns_new(&turns, loop) || tdm_accounts_new(&accounts, limits);
}

static int teardown(void **state)
{
        tdm_turns_destroyp(&turns);
        tdm_accounts_destroyp(&accounts);
        tdm_loop_destroyp(&loop);
        return 0;
}

static void work(struct worker *w)
{
        while (w->left > 0) {
                if (!tdm_turns_may(turns, w->account)) {
                        tdm_turns_wait(turns, w->account, &w->waiter);
                        return;
                }
                w->left--;
                w->done++;
                if (n_order + 1 < sizeof(order))
                        order[n_order++] = (char)('a' + w->account->uid);
                if (w->destroys)
                        tdm_turns_forget(&w->destroys->waiter);
                tdm_turns_took(turns, w->account, w->piece_ns);
        }
}

static void go_on(struct tdm_waiter *waiter)
{
        work(tdm_container_of(waiter, struct worker, waiter));
}

static void make(struct worker *w, uid_t uid, unsigned n, uint64_t piece_ns)
{
        *w = (struct worker){ .account = tdm_accounts_get(accounts, uid), .left = n, .piece_ns = piece_ns };
        tdm_waiter_init(&w->waiter, go_on);
}

static void drop(struct worker *w)
{
        tdm_turns_forget(&w->waiter);
        tdm_account_unref(w->account);
}

static void run_until_done(struct worker *w, unsigned n_turns)
{
        while (w->left > 0 && n_turns-- > 0)
                assert_int_equal(tdm_loop_turn(loop, 20 * MS), 0);
        assert_int_equal(w->left, 0);
}

static void test_little_never_waits(void **state)
{
        struct worker w;

        make(&w, 1, 4, 1 * MS);
        for (int i = 0; i < 20; i++) {
                w.left = 4;
                work(&w);
                assert_int_equal(w.left, 0);
                assert_int_equal(tdm_loop_turn(loop, 0), 0);
        }
        drop(&w);
}

static void test_much_waits_and_others_do_not(void **state)
{
        struct worker greedy, other;

        make(&greedy, 1, 30, 1 * MS);
        make(&other, 2, 1, 1 * MS);
        work(&greedy);
        assert_int_equal(greedy.done, TDM_TURN_NS / MS);
        work(&other);
        assert_int_equal(other.left, 0);
        /* Each round does no more than an account's time, however long the queue is. */
        for (unsigned before = greedy.done; greedy.left > 0; before = greedy.done) {
                other.left = 1;
                assert_int_equal(tdm_loop_turn(loop, 20 * MS), 0);
                assert_true(greedy.done - before <= TDM_TURN_NS / MS);
                work(&other);
                assert_int_equal(other.left, 0);
        }
        drop(&greedy);
        drop(&other);
}

/* Many clients of one user are one in the line. */
static void test_accounts_take_turns(void **state)
{
        struct worker many[8], one;

        for (unsigned i = 0; i < 8; i++) {
                make(&many[i], 1, 6, 2 * MS);
                work(&many[i]);
        }
        make(&one, 2, 12, 2 * MS);
        work(&one);
        run_until_done(&one, 200);
        /* 2 ms a piece: three in each turn. */
        order[n_order] = '\0';
        assert_int_equal(strncmp(order, "bbbcccbbbcccbbbcccbbbccc", 24), 0);
        for (unsigned i = 0; i < 8; i++)
                run_until_done(&many[i], 200);
        assert_int_equal(n_order, 8 * 6 + 12);
        for (unsigned i = 0; i < 8; i++)
                drop(&many[i]);
        drop(&one);
}

static void test_first_come_first_served(void **state)
{
        struct worker first, second;

        make(&first, 1, 4, 6 * MS);
        make(&second, 1, 2, 6 * MS);
        work(&first);
        work(&second);
        assert_int_equal(first.done, 1);
        assert_int_equal(second.done, 0); /* the time is used up */
        while (second.done == 0)
                assert_int_equal(tdm_loop_turn(loop, 20 * MS), 0);
        assert_int_equal(first.done, 2); /* one each, in turns */
        run_until_done(&first, 200);
        run_until_done(&second, 200);
        drop(&first);
        drop(&second);
}

/* What comes new in a later turn is behind what waits. */
static void test_new_ones_are_last(void **state)
{
        struct worker first, second;

        make(&first, 1, 3, 6 * MS);
        make(&second, 1, 1, 6 * MS);
        work(&first);
        assert_int_equal(tdm_loop_turn(loop, 0), 0);
        work(&second);
        assert_int_equal(second.done, 0);
        run_until_done(&second, 200);
        assert_int_equal(first.done, 2);
        run_until_done(&first, 200);
        drop(&first);
        drop(&second);
}

static void test_those_who_leave(void **state)
{
        struct worker w[3];

        for (unsigned i = 0; i < 3; i++) {
                make(&w[i], 1, 2, 6 * MS);
                work(&w[i]);
        }
        w[0].destroys = &w[1];
        run_until_done(&w[2], 200);
        assert_int_equal(w[1].done, 0);
        for (unsigned i = 0; i < 3; i++)
                drop(&w[i]);
        /* An account whose last one leaves while it is in line is not served, and not touched. */
        make(&w[0], 2, 2, 6 * MS);
        work(&w[0]);
        drop(&w[0]);
        assert_true(tdm_list_empty(tdm_accounts_list(accounts)));
        for (int i = 0; i < 3; i++)
                assert_int_equal(tdm_loop_turn(loop, 10 * MS), 0);
        make(&w[0], 1, 3, 6 * MS);
        work(&w[0]);
        run_until_done(&w[0], 200);
        drop(&w[0]);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_little_never_waits, setup, teardown),
                cmocka_unit_test_setup_teardown(test_much_waits_and_others_do_not, setup, teardown),
                cmocka_unit_test_setup_teardown(test_accounts_take_turns, setup, teardown),
                cmocka_unit_test_setup_teardown(test_first_come_first_served, setup, teardown),
                cmocka_unit_test_setup_teardown(test_new_ones_are_last, setup, teardown),
                cmocka_unit_test_setup_teardown(test_those_who_leave, setup, teardown),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
