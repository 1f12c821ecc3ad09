/* Where text is cut, against what the original expressions say, and NFC against what Unicode says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "engine/text/test-vocabulary.h"

#include "engine/text/unicode.h"

static const char *golden_file = "tests/golden/tokens/pretokenizers.cuts";

static size_t n_lines_of[64]; /* by pre-tokenizer: how many golden lines it had */

static void check_cuts(const char *name, const uint8_t *text, size_t size, char *numbers)
{
        _cleanup_(freep) uint16_t *marks = calloc(size + 1, sizeof(*marks));
        _cleanup_(freep) uint32_t *wanted = NULL;
        const struct tdm_pretokenizer *p = tdm_pretokenizer_find(name, strlen(name));
        size_t n_wanted, n = 0, start = 0;

        if (!p)
                fail_msg("no pre-tokenizer %s", name);
        for (size_t i = 0; tdm_pretokenizer_at(i); i++)
                n_lines_of[i] += tdm_pretokenizer_at(i) == p;
        wanted = test_numbers(numbers, &n_wanted);
        assert_int_equal(tdm_pretokenize(p, text, size, NULL, marks), 0);
        for (size_t at = 1; at <= size; at++) {
                if (at < size && !(marks[at] & TDM_MARK_START))
                        continue;
                if (n >= n_wanted || at - start != wanted[n])
                        fail_msg("%s cuts \"%.*s\" behind byte %zu, wanted%s", name, (int)size, text, at, numbers);
                start = at;
                n++;
        }
        assert_int_equal(n, n_wanted);
}

static void check_nfc(const uint8_t *text, size_t size, const uint8_t *wanted, size_t wanted_size)
{
        _cleanup_(freep) uint8_t *normal = NULL;
        size_t n;

        assert_int_equal(tdm_unicode_nfc(text, size, NULL, &normal, &n), 0);
        if (n != wanted_size || memcmp(normal ? normal : text, wanted, n) != 0)
                fail_msg("form C of \"%.*s\" is \"%.*s\"", (int)size, text, (int)n, normal ? normal : text);
}

static void test_cuts(void **state)
{
        char *line = NULL, text[4096], normal[8192];
        size_t capacity = 0, size = 0, n_normal = 0;
        FILE *f = fopen(golden_file, "re");
        bool has_text = false, has_normal = false;
        ssize_t n;

        assert_non_null(f);
        while ((n = getline(&line, &capacity, f)) > 0) {
                char *rest;

                line[n - 1] = 0;
                if (line[0] == '#' || !(rest = strchr(line, ' ')))
                        continue;
                *rest++ = 0;
                if (strcmp(line, "text") == 0) {
                        if (has_text && !has_normal) /* of the text before: it is its own form C */
                                check_nfc((uint8_t *)text, size, (uint8_t *)text, size);
                        assert_true((size_t)n < sizeof(text));
                        size = test_unescape(rest);
                        memcpy(text, rest, size);
                        has_text = true;
                        has_normal = false;
                } else if (strcmp(line, "nfc") == 0) {
                        n_normal = test_unescape(rest);
                        memcpy(normal, rest, n_normal);
                        check_nfc((uint8_t *)text, size, (uint8_t *)normal, n_normal);
                        has_normal = true;
                } else
                        check_cuts(line, (uint8_t *)text, size, rest);
        }
        free(line);
        fclose(f);
        for (size_t i = 0; tdm_pretokenizer_at(i); i++) /* each has a golden of its own */
                assert_true(n_lines_of[i] > 200);
}

/* Bytes that are not UTF-8 stay where they are, and count as symbols. */
static void test_stray_bytes(void **state)
{
        static const uint8_t text[] = "e\xcc\x81\xff\xcc\x81"
                                      "e\xcc\x81\xe2\x82\xf0\x9f";
        static const uint8_t wanted[] = "\xc3\xa9\xff\xcc\x81\xc3\xa9\xe2\x82\xf0\x9f";
        static const uint8_t cut[] = "ab\xff\xfe"
                                     "cd";
        const struct tdm_pretokenizer *p = tdm_pretokenizer_find("gpt-2", 5);
        uint16_t marks[sizeof(cut)];

        check_nfc(text, sizeof(text) - 1, wanted, sizeof(wanted) - 1);
        assert_int_equal(tdm_pretokenize(p, cut, sizeof(cut) - 1, NULL, marks), 0);
        for (size_t i = 0; i < sizeof(cut) - 1; i++)
                assert_int_equal(!!(marks[i] & TDM_MARK_START), i % 2 == 0);
}

/* Linear in the text, whatever it is made of. */
static void test_long_texts(void **state)
{
        static const char *const patterns[] = { "a",
                                                "A",
                                                " ",
                                                "\n",
                                                " \n",
                                                "1",
                                                "'",
                                                "\xcc\x81",
                                                "\xcc\x81\xcc\xa3",
                                                "!",
                                                "\xe6\xbc\xa2",
                                                "\xff",
                                                "a ",
                                                "\xe1\x84\x80\xe1\x85\xa1",
                                                "\xf0\x9d\x85\xa0" };
        size_t size = 1 << 20;
        _cleanup_(freep) uint8_t *text = malloc(size);
        _cleanup_(freep) uint16_t *marks = malloc(3 * size * sizeof(*marks));

        for (size_t k = 0; k < TDM_ARRAY_SIZE(patterns); k++) {
                size_t n = strlen(patterns[k]);

                for (size_t i = 0; i < size; i++)
                        text[i] = (uint8_t)patterns[k][i % n];
                text[size - 1] = 'b';
                for (size_t i = 0; tdm_pretokenizer_at(i); i++) {
                        const struct tdm_pretokenizer *p = tdm_pretokenizer_at(i);
                        _cleanup_(freep) uint8_t *normal = NULL;
                        size_t n_normal = size;
                        uint64_t start = tdm_now_ns(), taken;

                        if (p->nfc)
                                assert_int_equal(tdm_unicode_nfc(text, size, NULL, &normal, &n_normal), 0);
                        assert_int_equal(tdm_pretokenize(p, normal ? normal : text, n_normal, NULL, marks), 0);
                        taken = tdm_now_ns() - start;
                        /* A hundred times what it takes; a square would take hours. */
                        if (taken > UINT64_C(20000000000))
                                fail_msg("%s: a megabyte of \"%s\" took %.1f s", p->names[0], patterns[k],
                                         (double)taken * 1e-9);
                }
        }
}

static void test_names(void **state)
{
        assert_non_null(tdm_pretokenizer_find("llama-bpe", 9));
        assert_ptr_equal(tdm_pretokenizer_find("deepseek-r1-qwen", 16), tdm_pretokenizer_find("qwen2", 5));
        assert_null(tdm_pretokenizer_find("llama", 5));
        assert_null(tdm_pretokenizer_find("qwen2x", 6));
        assert_null(tdm_pretokenizer_find("", 0));
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_cuts),
                cmocka_unit_test(test_stray_bytes),
                cmocka_unit_test(test_long_texts),
                cmocka_unit_test(test_names),
        };

        if (argc > 1) /* another file, with more random texts */
                golden_file = argv[1];
        return cmocka_run_group_tests(tests, NULL, NULL);
}
