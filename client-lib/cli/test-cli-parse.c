/* The command's parsers and writers: numbers, options, JSON in and out. */
#include <setjmp.h>
#include <stdarg.h>

#include "client-lib/cli/args.h"
#include "client-lib/cli/json.h"

#include <cmocka.h>
#include <math.h>

static void test_numbers(void **state)
{
        static const char *const bad[] = { "",   " 1", "1 ", "+1", "-1", "0x10", "1e3", "1.0", "18446744073709551616",
                                           "1a", "٣" };
        static const char *const bad_double[] = { "",    "nan",   "inf", "1e999", "0x1p3", "1 ", " 1",
                                                  "--1", "1.2.3", "e",   ".",     "1,5",   "2.5" };
        uint64_t u = 0;
        double d = 0;

        assert_true(parse_u64("0", UINT64_MAX, &u));
        assert_true(parse_u64("18446744073709551615", UINT64_MAX, &u));
        assert_true(u == UINT64_MAX);
        assert_false(parse_u64("256", 255, &u));
        assert_true(parse_u64("255", 255, &u));
        for (size_t i = 0; i < TDM_ARRAY_SIZE(bad); i++)
                assert_false(parse_u64(bad[i], UINT64_MAX, &u));
        assert_int_equal(u, 255);
        assert_true(parse_double("0.5", 0, 2, &d));
        assert_true(parse_double("1e-3", 0, 2, &d));
        assert_true(parse_double(".5", 0, 2, &d));
        assert_true(parse_double("-0", 0, 2, &d));
        for (size_t i = 0; i < TDM_ARRAY_SIZE(bad_double); i++)
                assert_false(parse_double(bad_double[i], 0, 2, &d));
}

struct parsed {
        bool flag, given;
        const char *text;
        struct arg_list list;
        uint32_t n;
        float t;
        int choice;
        struct arg_u32_list batch;
        const char *positional[2];
        unsigned n_positional;
};

static int parse(struct parsed *p, int argc, const char *const *words)
{
        static const char *const choices[] = { "red", "green", NULL };
        const struct arg args[] = {
                { 'f', "flag", ARG_FLAG, &p->flag },
                { 0, "text", ARG_STRING, &p->text },
                { 0, "stop", ARG_LIST, &p->list },
                { 'n', "max", ARG_U32, &p->n, 0, 1000, .given = &p->given },
                { 0, "temp", ARG_F32, &p->t, 0, 2 },
                { 0, "color", ARG_CHOICE, &p->choice, .choices = choices },
                { 'b', "batch", ARG_U32_LIST, &p->batch, 1, 64 },
        };
        char *argv[16];

        argv[0] = (char *)(uintptr_t) "cmd";
        for (int i = 0; i < argc; i++)
                argv[i + 1] = (char *)(uintptr_t)words[i];
        *p = (struct parsed){ 0 };
        return args_parse(args, TDM_ARRAY_SIZE(args), argc + 1, argv, p->positional, 2, &p->n_positional);
}

#define PARSE(p, ...)                                                                                                  \
        parse((p), (int)TDM_ARRAY_SIZE(((const char *const[]){ __VA_ARGS__ })), (const char *const[]){ __VA_ARGS__ })

static void test_args(void **state)
{
        struct parsed p;

        assert_int_equal(PARSE(&p, "-f", "-n5", "hello", "--temp=0.5", "--color", "green", "-b", "1,8,32", "--", "-x"),
                         ARGS_OK);
        assert_true(p.flag);
        assert_true(p.given);
        assert_int_equal(p.n, 5);
        assert_float_equal(p.t, 0.5, 0);
        assert_int_equal(p.choice, 1);
        assert_int_equal(p.batch.n, 3);
        assert_int_equal(p.batch.items[2], 32);
        assert_int_equal(p.n_positional, 2);
        assert_string_equal(p.positional[0], "hello");
        assert_string_equal(p.positional[1], "-x");
        assert_int_equal(PARSE(&p, "--stop", "a", "--stop", "", "-"), ARGS_OK);
        assert_int_equal(p.list.n, 2);
        assert_string_equal(p.list.items[1], "");
        assert_string_equal(p.positional[0], "-");
        arg_list_free(&p.list);
        assert_int_equal(PARSE(&p, "--text", "--flag"), ARGS_OK);
        assert_string_equal(p.text, "--flag");
        assert_int_equal(PARSE(&p, "--help"), ARGS_HELP);

        assert_int_equal(PARSE(&p, "-n"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "-n", "1001"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "-n", "-1"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "--nope"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "--fla"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "--flag=1"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "-fn"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "--color", "blue"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "--temp", "nan"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "-b", "0"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "-b", "1,"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "a", "b", "c"), ARGS_USAGE);
}

static const char *ids_error(const char *text)
{
        uint32_t *ids = NULL;
        size_t n, at;
        const char *wrong = json_parse_ids(text, strlen(text), &ids, &n, &at);

        free(ids);
        return wrong;
}

static void test_ids_in(void **state)
{
        static const char *const good[] = { "[]", " [ ] ", "[1]", "[0,4294967295]", "\n[1 ,\t2\r]\n" };
        static const char *const bad[] = {
                "",        " ",     "[",     "[1",    "[1,",  "[1,]",         "[,1]",
                "[1 2]",   "[-1]",  "[1.0]", "[1e2]", "[01]", "[4294967296]", "[99999999999999999999999]",
                "[\"1\"]", "[[1]]", "{}",    "1",     "[1]x", "[1][2]",       "[null]",
                "[true]",  "[+1]"
        };
        uint32_t *ids;
        size_t n, at;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(good); i++)
                assert_null(ids_error(good[i]));
        for (size_t i = 0; i < TDM_ARRAY_SIZE(bad); i++)
                assert_non_null(ids_error(bad[i]));
        assert_null(json_parse_ids("[5,4294967295, 7]", 17, &ids, &n, &at));
        assert_int_equal(n, 3);
        assert_int_equal(ids[1], 4294967295u);
        free(ids);
        assert_non_null(json_parse_ids("[1,2,x]", 7, &ids, &n, &at));
        assert_int_equal(at, 5);
        /* A NUL inside is no end. */
        assert_non_null(json_parse_ids("[1]\0", 4, &ids, &n, &at));
}

static void assert_json(const char *text, size_t size, const char *expected)
{
        struct buf b = { 0 };

        json_string(&b, text, size);
        assert_false(b.failed);
        assert_string_equal(b.data, expected);
        buf_free(&b);
}

static void test_strings_out(void **state)
{
        assert_json("", 0, "\"\"");
        assert_json("a\"\\\n\t\r\x01\x7f", 8, "\"a\\\"\\\\\\n\\t\\r\\u0001\\u007f\"");
        assert_json("gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80", 11, "\"gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80\"");
        assert_json("\0", 1, "\"\\u0000\"");
        /* Not UTF-8: alone, cut, overlong, a surrogate, beyond U+10FFFF. */
        assert_json("\xff", 1, "\"\xef\xbf\xbd\"");
        assert_json("\xc3", 1, "\"\xef\xbf\xbd\"");
        assert_json("\xc0\x80", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\"");
        assert_json("\xe0\x80\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
        assert_json("\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
        assert_json("\xf4\x90\x80\x80", 4, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
}

static void test_numbers_out(void **state)
{
        struct buf b = { 0 };

        buf_puts(&b, "{");
        json_field_number(&b, "a", 0.1f);
        json_field_number(&b, "b", NAN);
        json_field_number(&b, "c", -INFINITY);
        json_field_u64(&b, "d", UINT64_MAX);
        json_field_bool(&b, "e", false);
        buf_puts(&b, "}");
        assert_string_equal(b.data, "{\"a\":0.100000001,\"b\":null,\"c\":null,\"d\":18446744073709551615,\"e\":false}");
        buf_free(&b);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_numbers),     cmocka_unit_test(test_args),        cmocka_unit_test(test_ids_in),
                cmocka_unit_test(test_strings_out), cmocka_unit_test(test_numbers_out),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
