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

/* The processor time of this thread: what else the machine does must not count. */
static uint64_t processor_ns(void)
{
        struct timespec t;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return (uint64_t)t.tv_sec * TDM_NSEC_PER_SEC + (uint64_t)t.tv_nsec;
}

static double seconds_of(const struct tdm_tokenizer *t, const char *text, size_t size, uint32_t *ids)
{
        double best = 1e9;

        for (int round = 0; round < 1 + (size < 1 << 20); round++) {
                uint64_t start = processor_ns();
                struct tdm_encode_budget budget = { .steps = TDM_ENCODE_STEPS(size) };

                assert_true(tdm_tokenizer_encode_within(t, text, size, 0, &budget, ids, 3 * size) > 0);
                best = TDM_MIN(best, (double)(processor_ns() - start) * 1e-9);
        }
        return best;
}

/* A megabyte takes at most half a second, and at most 2.3 times what half of it takes. Caches may be busy with other
 * things, so this only fails on what comes near to a square: eight times the time. */
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

/* ---- bad files ---- */

struct file {
        const char *pre;
        const char *merges[4];
        bool lacks_byte;        /* the byte A */
        bool lacks_unused_byte; /* 0xff, which UTF-8 never has */
        const struct tdm_parse_limits *limits;
};

/* The bytes, "ab", "abc", "<|im_end|>", and merges. */
static int make(const struct file *f, struct tdm_tokenizer **ret, struct tdm_error *err)
{
        struct gguf_builder b = { 0 };
        struct tdm_gguf *g = NULL;
        uint8_t normal = 1;
        uint32_t n = 256 + 3 - (f->lacks_byte || f->lacks_unused_byte), n_merges = 0;
        char text[3];
        int fd, r;

        while (n_merges < TDM_ARRAY_SIZE(f->merges) && f->merges[n_merges])
                n_merges++;
        build_header(&b, 0, 4u + !!f->pre);
        build_key_string(&b, "tokenizer.ggml.model", "gpt2");
        if (f->pre)
                build_key_string(&b, "tokenizer.ggml.pre", f->pre);
        build_array(&b, "tokenizer.ggml.tokens", VALUE_STRING, n);
        for (unsigned i = 0; i < 256; i++) {
                test_byte_character(i, text);
                if (!(f->lacks_byte && i == 'A') && !(f->lacks_unused_byte && i == 0xff))
                        build_string(&b, text);
        }
        build_string(&b, "ab");
        build_string(&b, "abc");
        build_string(&b, "<|im_end|>");
        build_array(&b, "tokenizer.ggml.token_type", VALUE_U8, n);
        for (uint32_t i = 0; i < n; i++)
                build_bytes(&b, &normal, 1);
        build_array(&b, "tokenizer.ggml.merges", VALUE_STRING, n_merges);
        for (uint32_t i = 0; i < n_merges; i++)
                build_string(&b, f->merges[i]);
        fd = build_fd(b.data, b.size);
        build_reset(&b);
        assert_int_equal(tdm_gguf_open(&g, fd, "test.gguf", err), 0);
        close(fd);
        r = tdm_tokenizer_new_within(ret, g, f->limits, err);
        tdm_gguf_close(g);
        return r;
}

static void refuse(const struct file *f, int code, const char *why)
{
        struct tdm_tokenizer *t = NULL;
        struct tdm_error err = { 0 };
        int r = make(f, &t, &err);

        if (r != code || !strstr(err.message, why))
                fail_msg("wanted %d with \"%s\", got %d: %s", code, why, r, err.message);
}

static void test_bad_files(void **state)
{
        struct file f = { .pre = "gpt-5" };
        atomic_bool cancelled = true;
        struct tdm_parse_limits limits = { .cancelled = &cancelled };

        refuse(&f, TDM_E_UNSUPPORTED,
               "the way in which it cuts text into words, \"gpt-5\" (tokenizer.ggml.pre), is not");
        f.pre = NULL;
        refuse(&f, TDM_E_UNSUPPORTED, "the key tokenizer.ggml.pre is missing");
        f.pre = "gpt-2";
        f.merges[0] = "ab";
        refuse(&f, TDM_E_BAD_MODEL, "merge 0 is not two pieces with a space in between");
        f.merges[0] = "a ";
        refuse(&f, TDM_E_BAD_MODEL, "merge 0 is not two pieces");
        f.merges[0] = "b c";
        refuse(&f, TDM_E_BAD_MODEL, "merge 0 (\"b c\") makes no piece");
        f.merges[0] = "a b";
        f.merges[1] = "xy c";
        refuse(&f, TDM_E_BAD_MODEL, "merge 1 (\"xy c\") joins what is no piece");
        f.merges[1] = NULL;
        f.lacks_byte = true;
        refuse(&f, TDM_E_BAD_MODEL, "neither the piece <0x41> nor an unknown piece");
        f.lacks_byte = false;
        f.limits = &limits;
        refuse(&f, TDM_E_CANCELLED, "");
}

/* Merges that come before those that make their parts, twice, or that would make a marker. */
static void test_odd_files(void **state)
{
        const struct file f = { .pre = "gpt-2", .merges = { "ab c", "a b", "a b", "<|im_end| >" } };
        const struct file lacking = { .pre = "gpt-2", .lacks_unused_byte = true };
        struct tdm_tokenizer *t = NULL;
        struct tdm_error err;
        uint32_t ids[64];

        assert_int_equal(make(&f, &t, &err), 0);
        assert_int_equal(tdm_tokenizer_encode(t, "abc", 3, 0, ids, 64), 1);
        assert_int_equal(ids[0], 257);
        assert_int_equal(tdm_tokenizer_encode(t, "abab", 4, 0, ids, 64), 2);
        assert_int_equal(ids[0], 256);
        assert_int_equal(tdm_tokenizer_encode(t, "<|im_end|>", 10, 0, ids, 64), 10);
        assert_int_equal(tdm_tokenizer_encode(t, "<|im_end|>", 10, TDM_TOKENIZE_SPECIAL, ids, 64), 1);
        assert_true(tdm_tokenizer_is_end(t, 258));
        tdm_tokenizer_destroy(t);
        assert_int_equal(make(&lacking, &t, &err), 0);
        assert_int_equal(tdm_tokenizer_encode(t, "a\xff", 2, 0, ids, 64), 4); /* U+FFFD */
        assert_int_equal(ids[1], 0xef);
        tdm_tokenizer_destroy(t);
}

static void test_counted(void **state)
{
        struct test_vocabulary v = test_vocabulary_read(golden_files[0]);
        struct tdm_gguf *g = test_vocabulary_gguf(&v, NULL);
        _Atomic uint64_t n_bytes = 0;
        struct tdm_parse_limits limits = { .n_bytes = &n_bytes };
        struct tdm_tokenizer *t = NULL;
        struct tdm_error err;
        uint64_t held;

        assert_int_equal(tdm_tokenizer_new_within(&t, g, &limits, &err), 0);
        held = tdm_tokenizer_memory(t);
        assert_int_equal(n_bytes, held);
        assert_true(held < 4096 + sizeof(*t) + v.n * 60 + v.n_merges * 36);
        tdm_tokenizer_destroy(t);
        n_bytes = 0;
        limits.max_bytes = held - 1;
        assert_int_equal(tdm_tokenizer_new_within(&t, g, &limits, &err), TDM_E_NO_MEMORY);
        assert_int_equal(n_bytes, 0);
        tdm_gguf_close(g);
        test_vocabulary_free(&v);
}

/* The budget ends a text of any kind within a few thousand steps of where it is spent, and so does cancelling. */
static void test_budget(void **state)
{
        static const char *const patterns[] = { "a", " ", "\xcc\x81", "Hello 12! ", "\xff", "\xf0\x9d\x85\xa0" };
        size_t size = 1 << 17;
        _cleanup_(freep) char *text = malloc(size);
        struct test_vocabulary v = test_vocabulary_read(golden_files[1]);
        struct tdm_tokenizer *t = test_vocabulary_tokenizer(&v);
        atomic_bool cancelled = true;

        for (size_t k = 0; k < TDM_ARRAY_SIZE(patterns); k++) {
                struct tdm_encode_budget budget = { .steps = TDM_ENCODE_STEPS(size) };
                uint64_t used;

                for (size_t i = 0; i < size; i++)
                        text[i] = patterns[k][i % strlen(patterns[k])];
                assert_true(tdm_tokenizer_encode_within(t, text, size, 0, &budget, NULL, 0) > 0);
                used = TDM_ENCODE_STEPS(size) - budget.steps;
                assert_true(used >= size);
                budget.steps = used - 1;
                assert_int_equal(tdm_tokenizer_encode_within(t, text, size, 0, &budget, NULL, 0), -ETIME);
                assert_int_equal(budget.steps, 0);
                budget = (struct tdm_encode_budget){ UINT64_MAX, &cancelled };
                assert_int_equal(tdm_tokenizer_encode_within(t, text, size, 0, &budget, NULL, 0), -ECANCELED);
                assert_true(UINT64_MAX - budget.steps <= size + 8192);
        }
        tdm_tokenizer_destroy(t);
        test_vocabulary_free(&v);
}

/* A character that comes in several tokens is shown when it is whole. */
static void test_decoder(void **state)
{
        static const char text[] = "a\xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd \xe6\xbc\xa2 \xff b";
        struct test_vocabulary v = test_vocabulary_read(golden_files[0]);
        struct tdm_tokenizer *t = test_vocabulary_tokenizer(&v);
        char out[256], *room = malloc(TDM_DECODER_ROOM(t));
        size_t size = 0;
        struct tdm_decoder d;

        tdm_decoder_init(&d, t, false);
        for (size_t i = 0; i < sizeof(text) - 1; i++) { /* the worst case: each byte is a token */
                size_t n = tdm_decoder_push(&d, t->byte_ids[(uint8_t)text[i]], room, TDM_DECODER_ROOM(t));

                assert_true(n == 0 || tdm_utf8_length((uint8_t *)room, n) > 0);
                memcpy(out + size, room, n);
                size += n;
        }
        size += tdm_decoder_finish(&d, out + size, sizeof(out) - size);
        out[size] = 0;
        assert_string_equal(out, "a\xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd \xe6\xbc\xa2 \xef\xbf\xbd b");
        free(room);
        tdm_tokenizer_destroy(t);
        test_vocabulary_free(&v);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_golden),    cmocka_unit_test(test_comes_back), cmocka_unit_test(test_bad_files),
                cmocka_unit_test(test_odd_files), cmocka_unit_test(test_counted),    cmocka_unit_test(test_budget),
                cmocka_unit_test(test_decoder),   cmocka_unit_test(test_long_texts),
        };

        if (tdm_sigbus_init() < 0)
                return 1;
        return cmocka_run_group_tests(tests, NULL, NULL);
}
