/* Tokenizers with merges against golden ids, round trips, hostile files and time. */
#include "engine/text/test-vocabulary.h"

#include "common/sigbus.h"
#include "common/utf8.h"
#include "engine/text/unicode.h"

static const char *const golden_files[] = {
        "tests/golden/tokens/llama-bpe.tokens",
        "tests/golden/tokens/qwen2.tokens",
        "tests/golden/tokens/gpt-4o.tokens",
};

static void assert_ids(const struct tdm_tokenizer *t, const struct test_case *c, unsigned flags)
{
        const uint32_t *wanted = flags ? c->ids : c->plain;
        size_t n_wanted = flags ? c->n_ids : c->n_plain;
        uint32_t ids[512];
        ssize_t n = tdm_tokenizer_encode(t, c->text, c->size, flags, ids, 512);

        if (n == (ssize_t)n_wanted && memcmp(ids, wanted, n_wanted * sizeof(*ids)) == 0)
                return;
        print_message("\"%.*s\":", (int)c->size, c->text);
        for (ssize_t i = 0; i < n; i++)
                print_message(" %u", ids[i]);
        print_message("; wanted:");
        for (size_t i = 0; i < n_wanted; i++)
                print_message(" %u", wanted[i]);
        print_message("\n");
        fail();
}

static void test_golden(void **state)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(golden_files); i++) {
                struct test_vocabulary v = test_vocabulary_read(golden_files[i]);
                struct tdm_tokenizer *t = test_vocabulary_tokenizer(&v);

                assert_true(v.n_cases > 100);
                for (size_t k = 0; k < v.n_cases; k++) {
                        assert_ids(t, &v.cases[k], TDM_TOKENIZE_SPECIAL);
                        assert_ids(t, &v.cases[k], 0);
                }
                tdm_tokenizer_destroy(t);
                test_vocabulary_free(&v);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_golden),
        };

        if (tdm_sigbus_init() < 0)
                return 1;
        return cmocka_run_group_tests(tests, NULL, NULL);
}
