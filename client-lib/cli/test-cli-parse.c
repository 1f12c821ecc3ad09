/* The command's parsers and writers: numbers, options, JSON in and out. */
#include <setjmp.h>
#include <stdarg.h>

#include "client-lib/cli/cli.h"
#include "client-lib/cli/table.h"
#include "client-lib/cli/wrap.h"
#include "client-lib/cli/json.h"

#include <cmocka.h>
#include <locale.h>
#include <math.h>

static void test_numbers(void **state)
{
        static const char *const bad[] = { "",   " 1", "1 ", "+1", "-1", "0x10", "1e3", "1.0", "18446744073709551616",
                                           "1a", "٣" };
        static const char *const bad_real[] = { "",   "nan", "inf",   "1e999", "0x1p3", "1 ",
                                                " 1", "--1", "1.2.3", "e",     ".",     "1,5" };
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
        assert_true(parse_real("0.5", &d));
        assert_true(parse_real("1e-3", &d));
        assert_true(parse_real(".5", &d));
        assert_true(parse_real("-0", &d));
        for (size_t i = 0; i < TDM_ARRAY_SIZE(bad_real); i++)
                assert_false(parse_real(bad_real[i], &d));
}

struct parsed {
        bool flag, given;
        const char *text;
        struct arg_list list;
        uint32_t n;
        float t;
        uint32_t choice;
        struct arg_u32_list batch;
        const char *positional[2];
        unsigned n_positional;
};

static const char *const colors[] = { "red", "green", NULL };
static const struct arg table[] = {
        { .letter = 'f', .name = "flag", .at = offsetof(struct parsed, flag) },
        { .name = "text", .range.type = TDM_VALUE_TEXT, .at = offsetof(struct parsed, text) },
        { .name = "word", .range = { TDM_VALUE_TEXT, .min = 1, .max = 4 }, .at = offsetof(struct parsed, text) },
        { .name = "stop", .range.type = TDM_VALUE_TEXTS, .at = offsetof(struct parsed, list) },
        { .letter = 'n',
          .name = "max",
          .range = { TDM_VALUE_U32, .max = 1000 },
          .at = offsetof(struct parsed, n),
          .default_value = 7,
          .given_at = offsetof(struct parsed, given) },
        { .name = "temp", .range = { TDM_VALUE_REAL, .max = 2 }, .at = offsetof(struct parsed, t) },
        { .name = "below",
          .range = { TDM_VALUE_REAL, .min = 0.5, .max = 1, .below_max = true, .or_zero = true },
          .at = offsetof(struct parsed, t) },
        { .name = "color", .range = { TDM_VALUE_CHOICE, .choices = colors }, .at = offsetof(struct parsed, choice) },
        { .name = "name", .range = { TDM_VALUE_NAME, .choices = colors }, .at = offsetof(struct parsed, text) },
        { .letter = 'b',
          .name = "batch",
          .range = { TDM_VALUE_U32_LIST, .min = 1, .max = 64 },
          .at = offsetof(struct parsed, batch) },
};

static int parse(struct parsed *p, int argc, const char *const *words)
{
        const struct arg_group group = { table, TDM_ARRAY_SIZE(table), p };
        char *argv[16];

        argv[0] = (char *)(uintptr_t) "cmd";
        for (int i = 0; i < argc; i++)
                argv[i + 1] = (char *)(uintptr_t)words[i];
        *p = (struct parsed){ 0 };
        args_set_defaults(&group);
        return args_parse(&group, 1, argc + 1, argv, p->positional, 2, &p->n_positional);
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
        assert_int_equal(PARSE(&p, "--name", "green", "--below", "0"), ARGS_OK);
        assert_string_equal(p.text, "green");
        assert_false(p.given);
        assert_int_equal(p.n, 7);
        assert_int_equal(PARSE(&p, "--below", "0.5"), ARGS_OK);
        assert_int_equal(PARSE(&p, "--below", "0.4"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "--below", "1"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "--word", "four"), ARGS_OK);
        assert_int_equal(PARSE(&p, "--word", "seven"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "--word", ""), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "--name", "blue"), ARGS_USAGE);

        assert_int_equal(PARSE(&p, "-n"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "-n", "1001"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "-n", "-1"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "--nope"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "--fla"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "--flag=1"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "-fn"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "--color", "blue"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "--temp", "nan"), ARGS_USAGE);
        assert_int_equal(PARSE(&p, "--temp", "2.5"), ARGS_USAGE);
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

        json_text(&b, text, size);
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

static void test_users(void **state)
{
        assert_string_equal(name_users("asked for by user 0"), "asked for by user root");
        assert_string_equal(name_users("user 0 has 3 jobs, user 4123456789 none"),
                            "user root has 3 jobs, user 4123456789 none");
        assert_string_equal(name_users("user 0x, user, user  0, superuser 0"),
                            "user 0x, user, user  0, superuser root");
        assert_string_equal(name_users("user 99999999999999999999 user 4294967295"),
                            "user 99999999999999999999 user 4294967295");
}

static void assert_wrapped(const char *line, unsigned width, unsigned indent, const char *expected)
{
        struct buf b = { 0 };

        wrap_line(&b, line, strlen(line), width, indent);
        buf_add(&b, "", 1);
        assert_false(b.failed);
        assert_string_equal(b.data, expected);
        buf_free(&b);
}

static void test_wrapping(void **state)
{
        setlocale(LC_CTYPE, "C.UTF-8");
        assert_wrapped("one two three", 0, 2, "one two three");
        assert_wrapped("one two three", 13, 2, "one two three");
        assert_wrapped("one two three", 12, 2, "one two\n  three");
        assert_wrapped("", 10, 2, "");
        assert_wrapped("  one two three", 8, 2, "  one two three"); /* a command */
        /* Below the last column; wide characters take two columns and escape sequences none. */
        assert_wrapped("ok  CPU  fast and good", 22, 2, "ok  CPU  fast and good");
        assert_wrapped("ok  CPU  fast and good", 18, 2, "ok  CPU  fast and\n         good");
        assert_wrapped("\033[32mok\033[39m  CPU  fast and good", 18, 2,
                       "\033[32mok\033[39m  CPU  fast and\n         good");
        assert_wrapped("日本  語語 語語", 14, 2, "日本  語語\n      語語");
        assert_wrapped("ab  cd ef gh", 7, 2, "ab  cd\n  ef gh"); /* too narrow for the column */
        assert_wrapped("a /a/very/long/path b", 10, 2, "a\n  /a/very/long/path\n  b");
        assert_wrapped("\xff\xff \xff", 3, 1, "\xff\xff\n \xff"); /* not UTF-8 */
}

static void assert_reading(struct run_progress *show, uint64_t done, uint64_t now_s, const char *expected)
{
        char text[160];

        run_describe_reading(show, done, 8000, (now_s + 1000) * TDM_NSEC_PER_SEC, text, sizeof(text));
        assert_string_equal(text, expected);
}

/* What was known of a prompt before takes no time, and says nothing of how long the rest takes. */
static void test_reading(void **state)
{
        struct run_progress show = { 0 };
        char text[32];

        format_count(text, sizeof(text), 999);
        assert_string_equal(text, "999");
        format_count(text, sizeof(text), UINT64_C(1234567));
        assert_string_equal(text, "1,234,567");
        format_count(text, sizeof(text), UINT64_MAX);
        assert_string_equal(text, "18,446,744,073,709,551,615");
        assert_reading(&show, 4000, 0, "reading the prompt: 4,000 of 8,000 tokens (50%)");
        assert_reading(&show, 4000, 9, "reading the prompt: 4,000 of 8,000 tokens (50%)");
        assert_reading(&show, 5000, 10, "reading the prompt: 5,000 of 8,000 tokens (62%), 30 s left");
        assert_reading(&show, 7999, 10, "reading the prompt: 7,999 of 8,000 tokens (99%), 1 s left");
        assert_reading(&show, 1000, 20, "reading the prompt: 1,000 of 8,000 tokens (12%)"); /* once more */
        assert_reading(&show, 2000, 50, "reading the prompt: 2,000 of 8,000 tokens (25%), 3 min left");
}

static void assert_table(const struct table *shown, unsigned width, const char *expected)
{
        struct buf b = { 0 };

        table_write(shown, width, &b);
        buf_add(&b, "", 1);
        assert_false(b.failed);
        assert_string_equal(b.data, expected);
        buf_free(&b);
}

/* A text is cut before a column goes, and what may neither be cut nor go stays. */
static void test_tables(void **state)
{
        static const struct table_column columns[] = {
                { "N", .right = true },
                { "MODEL", .shrinks_to = 6 },
                { "AGE", .right = true, .leaves = 1 },
                { "WHY", .leaves = 2 },
        };
        struct table t = { .columns = columns, .n_columns = TDM_ARRAY_SIZE(columns) };

        setlocale(LC_CTYPE, "C.UTF-8");
        assert_table(&t, 0, "N  MODEL  AGE  WHY\n");
        table_add(&t, (const char *const[]){ "7", "a-long-name", "8.3 s", "no" });
        table_add(&t, (const char *const[]){ "12", "日本語日本語", "1 s", "" });
        assert_table(&t, 0,
                     " N  MODEL           AGE  WHY\n"
                     " 7  a-long-name   8.3 s  no\n"
                     "12  日本語日本語    1 s  \n");
        assert_table(&t, 27,
                     " N MODEL          AGE WHY\n"
                     " 7 a-long-name  8.3 s no\n"
                     "12 日本語日本語   1 s \n");
        assert_table(&t, 20,
                     " N MODEL     AGE WHY\n"
                     " 7 a-long… 8.3 s no\n"
                     "12 日本語…   1 s \n");
        assert_table(&t, 18,
                     " N MODEL       AGE\n"
                     " 7 a-long-n… 8.3 s\n"
                     "12 日本語日…   1 s\n");
        assert_table(&t, 9, " N MODEL\n 7 a-lon…\n12 日本…\n");
        table_free(&t);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_numbers),     cmocka_unit_test(test_args),        cmocka_unit_test(test_ids_in),
                cmocka_unit_test(test_strings_out), cmocka_unit_test(test_numbers_out), cmocka_unit_test(test_users),
                cmocka_unit_test(test_wrapping),    cmocka_unit_test(test_tables),      cmocka_unit_test(test_reading),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
