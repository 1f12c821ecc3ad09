/* Tokenizers with merges against golden ids, round trips, hostile files and time. */
#include "engine/text/test-vocabulary.h"

#include "common/sigbus.h"
#include "common/utf8.h"
#include "engine/text/unicode.h"

static const char *const golden_files[] = {
        "tests/golden/tokens/llama-bpe.tokens",
        "tests/golden/tokens/qwen2.tokens",
        "tests/golden/tokens/gpt-4o.tokens",
        "tests/golden/tokens/gemma4.tokens",
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

/* All ids' pieces are the text again. */
static void assert_comes_back(const struct tdm_tokenizer *t, const uint8_t *text, size_t size, bool is_normal)
{
        _cleanup_(freep) uint32_t *ids = malloc((3 * size + 1) * sizeof(*ids));
        struct tdm_encode_budget budget = { .steps = TDM_ENCODE_STEPS(size) };
        ssize_t n = tdm_tokenizer_encode_within(t, (const char *)text, size, 0, &budget, ids, 3 * size + 1);
        size_t at = 0;

        assert_true(n >= 0 && (size_t)n <= 3 * size + 1);
        for (ssize_t i = 0; is_normal && i < n; i++) {
                const char *piece;
                size_t n_piece = tdm_tokenizer_piece(t, ids[i], true, &piece);

                assert_true(n_piece > 0 && n_piece <= size - at && memcmp(piece, text + at, n_piece) == 0);
                at += n_piece;
        }
        assert_true(!is_normal || at == size);
}

/* Random bytes, and random characters, of which many are no characters at all. */
static void test_comes_back(void **state)
{
        static const uint8_t pool[] = "ab \n'\xcc\x81\xe2\x82\xac\xf0\x9f\x98\x80\xc0\xc1\xf5\xff\xed\xa0\x80 1";
        unsigned seed = 1;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(golden_files); i++) {
                struct test_vocabulary v = test_vocabulary_read(golden_files[i]);
                struct tdm_tokenizer *t = test_vocabulary_tokenizer(&v);
                uint8_t text[300];

                for (unsigned k = 0; k < 2000; k++) {
                        size_t size = (size_t)rand_r(&seed) % sizeof(text);

                        for (size_t b = 0; b < size; b++)
                                text[b] = k % 2 ? (uint8_t)rand_r(&seed) :
                                                  pool[(size_t)rand_r(&seed) % (sizeof(pool) - 1)];
                        assert_comes_back(t, text, size, !t->pretokenizer || !t->pretokenizer->nfc);
                }
                tdm_tokenizer_destroy(t);
                test_vocabulary_free(&v);
        }
}

static double seconds_of(const struct tdm_tokenizer *t, const char *text, size_t size, uint32_t *ids)
{
        double best = 1e9;

        for (int round = 0; round < 3; round++) {
                uint64_t start = tdm_now_ns();
                struct tdm_encode_budget budget = { .steps = TDM_ENCODE_STEPS(size) };

                assert_true(tdm_tokenizer_encode_within(t, text, size, 0, &budget, ids, 3 * size) > 0);
                best = TDM_MIN(best, (double)(tdm_now_ns() - start) * 1e-9);
        }
        return best;
}

/* A megabyte takes at most half a second, and at most 2.3 times what half of it takes. The machine may be busy with
 * other things, so this only fails on what comes near to a square: eight times the time. */
static void test_long_texts(void **state)
{
        static const char *const patterns[] = { "a",
                                                "the",
                                                " ",
                                                "\n",
                                                "\xcc\x81",
                                                "\xcc\x81\xcc\xa3",
                                                "1",
                                                "!",
                                                "\xff",
                                                "\xe6\xbc\xa2\xe5\xad\x97",
                                                "Hello, world! 12\n",
                                                NULL };
        size_t size = 1 << 20;
        _cleanup_(freep) char *text = malloc(size);
        _cleanup_(freep) uint32_t *ids = malloc(3 * size * sizeof(*ids));
        unsigned seed = 5;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(golden_files); i++) {
                struct test_vocabulary v = test_vocabulary_read(golden_files[i]);
                struct tdm_tokenizer *t = test_vocabulary_tokenizer(&v);

                for (size_t k = 0; k < TDM_ARRAY_SIZE(patterns); k++) {
                        const char *p = patterns[k];
                        double half, whole;

                        for (size_t b = 0; b < size; b++)
                                text[b] = p ? p[b % strlen(p)] : (char)('a' + rand_r(&seed) % 26);
                        half = seconds_of(t, text, size / 2, ids);
                        whole = seconds_of(t, text, size, ids);
                        print_message("%s, 1 MiB of \"%s\": %.3f s, %.2f times the half\n", v.pre[0] ? v.pre : v.model,
                                      !p           ? "random letters" :
                                      p[0] == '\n' ? "\\n" :
                                                     p,
                                      whole, whole / half);
                        assert_true(whole < 8 * half + 0.05);
                }
                tdm_tokenizer_destroy(t);
                test_vocabulary_free(&v);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_golden),
                cmocka_unit_test(test_comes_back),
                cmocka_unit_test(test_long_texts),
        };

        if (tdm_sigbus_init() < 0)
                return 1;
        return cmocka_run_group_tests(tests, NULL, NULL);
}
