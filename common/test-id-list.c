/* Lists of ids as text: which are some, and that what is written is read again. */
#include "common/id-list.h"
#include "common/util.h"

#include <setjmp.h>
#include <cmocka.h>

/* How many ids a list has; -1: it is none. */
static int n_read(const char *list, uint32_t *ids, size_t max)
{
        int n = 0;

        for (size_t i = 0; i < max && tdm_id_list_next(&list, &ids[i]); i++) {
                n++;
                if (!*list)
                        return n;
        }
        return -1;
}

static void test_lists(void **state)
{
        static const char *const wrong[] = { "",      " ",  ",",  "1,",  "1,,2",       "1 2",
                                             "x",     "-1", "+1", "1;2", "4294967296", "99999999999999999999",
                                             "1,0x2", "1, " };
        uint32_t ids[4];

        assert_int_equal(n_read("7", ids, 4), 1);
        assert_int_equal(ids[0], 7);
        assert_int_equal(n_read(" 0 ,\n4294967295,\t00012\r\n", ids, 4), 3);
        assert_int_equal(ids[0], 0);
        assert_int_equal(ids[1], UINT32_MAX);
        assert_int_equal(ids[2], 12);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(wrong); i++)
                assert_int_equal(n_read(wrong[i], ids, 4), -1);
        assert_int_equal(tdm_id_list_length(NULL), 0);
        assert_int_equal(tdm_id_list_length("5"), 1);
        assert_int_equal(tdm_id_list_length("5,6, 7"), 3);
}

static void test_written(void **state)
{
        static const uint32_t ids[] = { 4294967295u, 4294967295u, 0, 31 };
        char *none = tdm_id_list_format(ids, 0), *all = tdm_id_list_format(ids, 4);
        uint32_t again[4];

        assert_string_equal(none, "");
        assert_string_equal(all, "4294967295,4294967295,0,31");
        assert_int_equal(n_read(all, again, 4), 4);
        assert_memory_equal(again, ids, sizeof(ids));
        free(none);
        free(all);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_lists),
                cmocka_unit_test(test_written),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
