/* Time without a CPU does not count, and other time does. */
#include "common/stint.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <unistd.h>
#include <cmocka.h>

#define PART_NS (50 * TDM_NSEC_PER_MSEC)
#define IN_VAIN_NS (120 * TDM_NSEC_PER_SEC)

static _Atomic bool over;

static void *spin(void *unused)
{
        while (!atomic_load(&over))
                ;
        return NULL;
}

/* All threads that are made from now on run on this CPU alone. */
static void bind_to_one_cpu(void)
{
        cpu_set_t one;

        CPU_ZERO(&one);
        CPU_SET((unsigned)sched_getcpu(), &one);
        assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
}

/* Another thread has the CPU for a part of the time, until that is plainly left out. */
static void without_a_cpu(void **state)
{
        uint64_t begin_ns, passed_ns, took_ns, all_ns;
        struct tdm_stint stint;
        cpu_set_t before;
        pthread_t other;

        if (access("/proc/thread-self/schedstat", R_OK) < 0)
                skip();
        assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
        bind_to_one_cpu();
        assert_int_equal(pthread_create(&other, NULL, spin, NULL), 0);
        begin_ns = tdm_now_ns();
        tdm_stint_begin(&stint);
        do {
                passed_ns = tdm_now_ns() - begin_ns;
                took_ns = tdm_stint_ns(&stint);
                all_ns = tdm_now_ns() - begin_ns;
                assert_true(took_ns <= all_ns);
        } while (passed_ns < took_ns + PART_NS && passed_ns < IN_VAIN_NS);
        atomic_store(&over, true);
        assert_int_equal(pthread_join(other, NULL), 0);
        assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
        assert_true(passed_ns >= took_ns + PART_NS);
}

/* A sleep is as a slow disk. */
static void at_rest(void **state)
{
        struct tdm_stint stint;

        tdm_stint_begin(&stint);
        assert_int_equal(usleep(PART_NS / 1000), 0);
        assert_true(tdm_stint_ns(&stint) >= PART_NS);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(without_a_cpu), cmocka_unit_test(at_rest) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
