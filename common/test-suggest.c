/* Which names are suggested for which, and for which none is. */
#include "common/suggest.h"
#include "common/util.h"

#include <setjmp.h>
#include <cmocka.h>

static const char *meant(const char *given, const char *const *names)
{
        static struct tdm_suggestion s;

        s = tdm_suggest_for(given);
        for (; *names; names++)
                tdm_suggest(&s, *names);
        return tdm_suggest_best(&s);
}

static void test_near(void **state)
{
        static const char *const names[] = { "generate", "chat", "status", "models", "score", "tokenize", NULL };

        assert_string_equal(meant("genrate", names), "generate");
        assert_string_equal(meant("generate ", names), "generate");
        assert_string_equal(meant("Status", names), "status");
        assert_string_equal(meant("caht", names), "chat"); /* neighbours swapped: one edit */
        assert_string_equal(meant("tok", names), "tokenize");
        assert_string_equal(meant("model", names), "models");
        assert_null(meant("launch", names));
        assert_null(meant("", names));
        assert_null(meant("xy", names));
}

static void test_long(void **state)
{
        char given[200], name[200], too_long[400];
        const char *names[] = { too_long, name, NULL };

        memset(given, 'a', sizeof(given));
        memset(name, 'A', sizeof(name));
        memset(too_long, 'a', sizeof(too_long));
        given[199] = name[199] = too_long[399] = '\0';
        assert_string_equal(meant(given, names), name);
        name[198] = 'b';
        assert_null(meant(given, names));
        /* The longest that is compared byte by byte. */
        given[TDM_SUGGEST_MAX] = name[TDM_SUGGEST_MAX] = '\0';
        name[3] = 'x';
        assert_string_equal(meant(given, names), name);
}

static void test_first_of_equals(void **state)
{
        static const char *const names[] = { "ba", "ca", NULL };

        assert_string_equal(meant("aa", names), "ba");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_near),
                cmocka_unit_test(test_long),
                cmocka_unit_test(test_first_of_equals),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
