/* Lists of CPUs: what is taken, what it means, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "common/util.h"
#include "common/cpus.h"

static void test_lists(void **state)
{
        static const struct {
                const char *text, *back;
                int count;
        } good[] = {
                { "0", "0", 1 },         { "3,1", "1,3", 2 },   { "0,2-5", "0,2-5", 5 }, { "1-1", "1", 1 },
                { "0-3,2-6", "0-6", 7 }, { "1023", "1023", 1 }, { "7,7,7", "7", 1 },     { "0-1023", "0-1023", 1024 },
        };
        char text[128], why[128];
        cpu_set_t set;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(good); i++) {
                assert_int_equal(tdm_cpus_parse(good[i].text, &set, why, sizeof(why)), 0);
                assert_int_equal(CPU_COUNT(&set), good[i].count);
                tdm_cpus_format(&set, text, sizeof(text));
                assert_string_equal(text, good[i].back);
        }
}

static void test_refused(void **state)
{
        static const char *const bad[] = { "",     ",",      "0,",  ",0",   "a",    "1-",          "-1",  "3-1",
                                           "1024", "0-1024", "0 1", "0, 1", "1--2", "99999999999", "0x1", "1;2" };
        char why[128];
        cpu_set_t set;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(bad); i++)
                if (tdm_cpus_parse(bad[i], &set, why, sizeof(why)) != -EINVAL)
                        fail_msg("\"%s\" was taken", bad[i]);
}

static void test_short_buffer(void **state)
{
        char text[6], why[128];
        cpu_set_t set;

        assert_int_equal(tdm_cpus_parse("10,12,14,16", &set, why, sizeof(why)), 0);
        tdm_cpus_format(&set, text, sizeof(text));
        assert_int_equal(strlen(text), 5);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_lists),
                cmocka_unit_test(test_refused),
                cmocka_unit_test(test_short_buffer),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
