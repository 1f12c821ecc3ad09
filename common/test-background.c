/* The pool: users take turns, of one user one task runs at a time and in order, and done is called for every task. */
#include "common/background.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <cmocka.h>

#define N_TASKS 40

static struct tdm_loop *loop;
static atomic_int n_running[2], most_running[2], sequence;
static atomic_bool held; /* no task goes on until all are added, however long that takes */
static int task_ms;
static int n_done, n_ran;
/* So many of the second user's tasks are to begin before the first user's tenth ends, however late a thread runs. */
static int n_awaited;
static atomic_int n_of_second;

struct task {
        int user, number;
        int began; /* its place among all that ran */
};

static bool must_wait(const struct task *t)
{
        return t->user == 0 && t->number == 9 && atomic_load(&n_of_second) < n_awaited;
}

static void run(void *userdata)
{
        struct task *t = userdata;
        int now = atomic_fetch_add(&n_running[t->user], 1) + 1;

        if (now > atomic_load(&most_running[t->user]))
                atomic_store(&most_running[t->user], now);
        t->began = atomic_fetch_add(&sequence, 1);
        atomic_fetch_add(&n_of_second, t->user == 1);
        for (int i = 0; i == 0 || atomic_load(&held) || (i < 5000 && must_wait(t)); i++)
                nanosleep(&(struct timespec){ .tv_nsec = task_ms * 1000 * 1000 }, NULL);
        atomic_fetch_sub(&n_running[t->user], 1);
}

static void done(void *userdata, bool ran)
{
        n_done++;
        n_ran += ran;
        if (n_done == N_TASKS + 2)
                tdm_loop_exit(loop, 0);
}

static void begin(struct tdm_background **b, unsigned n_threads)
{
        struct tdm_error e;

        atomic_store(&sequence, 0);
        atomic_store(&held, true);
        atomic_store(&n_of_second, 0);
        n_awaited = 0;
        task_ms = 2;
        n_done = n_ran = 0;
        for (int i = 0; i < 2; i++)
                atomic_store(&most_running[i], 0);
        assert_int_equal(tdm_loop_new(&loop, &e), 0);
        assert_int_equal(tdm_background_new_pool(b, loop, n_threads), 0);
}

/* The second user's tasks come last, and are not the last to run. */
static void test_turns(void **state)
{
        struct tdm_background *b;
        struct task tasks[N_TASKS + 2];

        for (unsigned n_threads = 1; n_threads <= 4; n_threads += 3) {
                begin(&b, n_threads);
                n_awaited = 2;
                for (int i = 0; i < N_TASKS + 2; i++) {
                        tasks[i] = (struct task){ .user = i >= N_TASKS, .number = i };
                        assert_int_equal(tdm_background_add_for(b, (uint64_t)tasks[i].user, run, done, &tasks[i]), 0);
                }
                atomic_store(&held, false);
                assert_int_equal(tdm_loop_run(loop), 0);
                assert_int_equal(n_ran, N_TASKS + 2);
                for (int i = 1; i < N_TASKS; i++)
                        assert_true(tasks[i].began > tasks[i - 1].began);
                assert_true(tasks[N_TASKS].began < N_TASKS / 2);
                assert_true(tasks[N_TASKS + 1].began < N_TASKS / 2);
                for (int i = 0; i < 2; i++)
                        assert_int_equal(atomic_load(&most_running[i]), 1);
                tdm_background_destroyp(&b);
                tdm_loop_destroyp(&loop);
        }
}

static unsigned count_threads(void)
{
        DIR *dir = opendir("/proc/self/task");
        unsigned n = 0;

        assert_non_null(dir);
        for (struct dirent *entry; (entry = readdir(dir));)
                n += entry->d_name[0] != '.';
        closedir(dir);
        return n;
}

/* One task of a user runs at a time. So a second thread would have nothing to do until a second user comes. The first
 * of the tests: the kernel lists a thread for a moment after it was joined. */
static void test_threads(void **state)
{
        unsigned before = count_threads();
        struct tdm_background *b;
        struct task tasks[N_TASKS + 2];

        begin(&b, 4);
        for (int i = 0; i < N_TASKS + 2; i++) {
                tasks[i] = (struct task){ .user = i > N_TASKS, .number = i };
                assert_int_equal(tdm_background_add_for(b, (uint64_t)tasks[i].user, run, done, &tasks[i]), 0);
                assert_int_equal(count_threads(), before + 1 + (i > N_TASKS));
        }
        atomic_store(&held, false);
        assert_int_equal(tdm_loop_run(loop), 0);
        assert_int_equal(n_ran, N_TASKS + 2);
        tdm_background_destroyp(&b);
        tdm_loop_destroyp(&loop);
}

static void test_end(void **state)
{
        struct tdm_background *b;
        struct task tasks[N_TASKS];

        begin(&b, 2);
        task_ms = 500; /* all of them would take ten seconds */
        for (int i = 0; i < N_TASKS; i++) {
                tasks[i] = (struct task){ .user = i % 2, .number = i };
                assert_int_equal(tdm_background_add_for(b, (uint64_t)tasks[i].user, run, done, &tasks[i]), 0);
        }
        atomic_store(&held, false);
        tdm_background_destroyp(&b);
        assert_int_equal(n_done, N_TASKS);
        assert_true(n_ran < N_TASKS);
        tdm_loop_destroyp(&loop);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_threads),
                cmocka_unit_test(test_turns),
                cmocka_unit_test(test_end),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
