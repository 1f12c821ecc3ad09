/* The first difference of two vocabularies: against a comparison of all pieces, and in a small part of its time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "engine/file/test-gguf-builder.h"
#include "engine/text/tokenizer-private.h"

#define N_BYTES 256u

/* n pieces "piece N" behind the byte pieces. Of odd ones the text or the type is another. */
static struct tdm_tokenizer *vocabulary(uint32_t n, const uint32_t *odd, unsigned n_odd, bool by_type)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
        _cleanup_(closep) int fd = -1;
        struct gguf_builder b = { 0 };
        struct tdm_tokenizer *t = NULL;
        uint8_t *types = malloc(n);
        struct tdm_error err = { 0 };
        char text[64];

        assert_non_null(types);
        build_header(&b, 0, 4);
        build_key_string(&b, "tokenizer.ggml.model", "llama");
        build_array(&b, "tokenizer.ggml.tokens", VALUE_STRING, n);
        for (uint32_t i = 0; i < n; i++) {
                bool is_odd = false;

                for (unsigned k = 0; k < n_odd; k++)
                        is_odd |= odd[k] == i;
                types[i] = i < N_BYTES ? TDM_PIECE_BYTE : is_odd && by_type ? TDM_PIECE_CONTROL : TDM_PIECE_NORMAL;
                if (i < N_BYTES)
                        snprintf(text, sizeof(text), "<0x%02X>", i);
                else
                        snprintf(text, sizeof(text), "piece %u%s", i, is_odd && !by_type ? "!" : "");
                build_string(&b, text);
        }
        build_array(&b, "tokenizer.ggml.scores", VALUE_U8, n);
        for (uint32_t i = 0; i < n; i++)
                build_bytes(&b, "", 1);
        build_array(&b, "tokenizer.ggml.token_type", VALUE_U8, n);
        build_bytes(&b, types, n);
        fd = build_fd(b.data, b.size);
        build_reset(&b);
        free(types);
        assert_int_equal(tdm_gguf_open(&g, fd, "compare", &err), 0);
        if (tdm_tokenizer_new(&t, g, &err) != 0)
                fail_msg("%s", err.message);
        return t;
}

static void assert_first(const struct tdm_tokenizer *a, const struct tdm_tokenizer *b, uint32_t n, uint32_t want)
{
        assert_int_equal(tdm_tokenizer_first_difference(a, b, n), want);
        assert_int_equal(tdm_tokenizer_first_difference(b, a, n), want);
}

static void test_one_piece(void **state)
{
        static const uint32_t sizes[] = { 257, 1023, 1024, 1025, 5000 };

        for (unsigned s = 0; s < TDM_ARRAY_SIZE(sizes); s++) {
                uint32_t n = sizes[s], at[] = { 256, 257, 1022, 1023, 1024, 2047, 2048, 3000, 4095, 4096, 4999, n - 1 };
                struct tdm_tokenizer *a = vocabulary(n, NULL, 0, false), *same = vocabulary(n, NULL, 0, false);

                assert_first(a, a, n, n);
                assert_first(a, same, n, n);
                assert_first(a, same, n + 100, n + 100); /* what no vocabulary has is the same */
                for (unsigned i = 0; i < TDM_ARRAY_SIZE(at); i++) {
                        for (int by_type = 0; by_type < 2 && at[i] < n; by_type++) {
                                struct tdm_tokenizer *b = vocabulary(n, &at[i], 1, by_type);

                                assert_first(a, b, n, at[i]);
                                assert_first(a, b, at[i] + 1, at[i]);
                                assert_first(a, b, at[i], at[i]); /* behind what is looked at */
                                tdm_tokenizer_destroy(b);
                        }
                }
                tdm_tokenizer_destroy(a);
                tdm_tokenizer_destroy(same);
        }
}

static void test_the_first_of_many(void **state)
{
        struct tdm_tokenizer *a = vocabulary(9000, NULL, 0, false);

        srand(5);
        for (int round = 0; round < 30; round++) {
                uint32_t odd[3], first = UINT32_MAX;
                struct tdm_tokenizer *b;

                for (unsigned k = 0; k < 3; k++) {
                        odd[k] = N_BYTES + (uint32_t)rand() % (9000 - N_BYTES);
                        first = TDM_MIN(first, odd[k]);
                }
                b = vocabulary(9000, odd, 3, round % 2);
                assert_first(a, b, 9000, first);
                tdm_tokenizer_destroy(b);
        }
        tdm_tokenizer_destroy(a);
}

static void test_a_prefix(void **state)
{
        struct tdm_tokenizer *whole = vocabulary(5000, NULL, 0, false);

        for (uint32_t n = 1000; n < 5000; n += 524) {
                struct tdm_tokenizer *part = vocabulary(n, NULL, 0, false);

                assert_first(whole, part, n, n);
                assert_first(whole, part, n + 1, n); /* a piece that only one has */
                assert_first(whole, part, 5000, n);
                tdm_tokenizer_destroy(part);
        }
        tdm_tokenizer_destroy(whole);
}

static uint64_t cpu_ns(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
        return (uint64_t)ts.tv_sec * TDM_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

/* Two drafts in turn are compared on the event loop, for each job. */
static void test_time(void **state)
{
        const uint32_t n = 262144, last = n - 1;
        struct tdm_tokenizer *a = vocabulary(n, NULL, 0, false), *same = vocabulary(n, NULL, 0, false);
        struct tdm_tokenizer *b = vocabulary(n, &last, 1, false);
        uint64_t begin = cpu_ns(), took;

        for (int i = 0; i < 500; i++) {
                assert_first(a, same, n, n);
                assert_first(a, b, n, last);
        }
        took = cpu_ns() - begin;
        print_message("2,000 comparisons of %u pieces: %.1f ms\n", n, (double)took / 1e6);
        assert_true(took < TDM_NSEC_PER_SEC);
        tdm_tokenizer_destroy(a);
        tdm_tokenizer_destroy(same);
        tdm_tokenizer_destroy(b);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_one_piece),
                cmocka_unit_test(test_the_first_of_many),
                cmocka_unit_test(test_a_prefix),
                cmocka_unit_test(test_time),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
