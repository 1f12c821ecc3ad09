/* What building a tokenizer and encoding may cost: budgets, cancelling, counting. */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "engine/file/test-gguf-builder.h"
#include "engine/text/tokenizer-private.h"

/* n pieces of this type, "<prefix><number>", in front of the byte pieces. */
static struct tdm_gguf *vocabulary(uint32_t n, uint8_t type, const char *prefix, uint64_t *ret_size)
{
        _cleanup_(closep) int fd = -1;
        struct gguf_builder b = { 0 };
        struct tdm_gguf *g = NULL;
        uint8_t byte_type = TDM_PIECE_BYTE;
        char text[TDM_PIECE_BYTES_MAX + 1];

        build_header(&b, 0, 5);
        build_key_string(&b, "tokenizer.ggml.model", "llama");
        build_key_bool(&b, "tokenizer.ggml.add_space_prefix", false);
        build_array(&b, "tokenizer.ggml.tokens", VALUE_STRING, n + 256);
        for (uint32_t i = 0; i < n + 256; i++) {
                if (i < n)
                        snprintf(text, sizeof(text), "%s%u", prefix, i);
                else
                        snprintf(text, sizeof(text), "<0x%02X>", (i - n) & 255);
                build_string(&b, text);
        }
        build_array(&b, "tokenizer.ggml.scores", VALUE_U8, n + 256);
        for (uint32_t i = 0; i < n + 256; i++)
                build_bytes(&b, "", 1);
        build_array(&b, "tokenizer.ggml.token_type", VALUE_U8, n + 256);
        for (uint32_t i = 0; i < n + 256; i++)
                build_bytes(&b, i < n ? &type : &byte_type, 1);
        fd = build_fd(b.data, b.size);
        *ret_size = b.size;
        build_reset(&b);
        assert_int_equal(tdm_gguf_open(&g, fd, "limits", NULL), 0);
        return g;
}

static void assert_counted(uint32_t n, uint8_t type, const char *prefix, uint64_t most)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
        _Atomic uint64_t n_bytes = 0;
        struct tdm_parse_limits limits = { .n_bytes = &n_bytes };
        struct tdm_tokenizer *t = NULL;
        uint64_t size, before, after, held;
        struct tdm_error err;

        g = vocabulary(n, type, prefix, &size);
        before = mallinfo2().uordblks + mallinfo2().hblkhd;
        assert_int_equal(tdm_tokenizer_new_within(&t, g, &limits, &err), 0);
        after = mallinfo2().uordblks + mallinfo2().hblkhd;
        held = tdm_tokenizer_memory(t);
        print_message("%u pieces, %llu bytes: %llu held\n", n, (unsigned long long)size, (unsigned long long)held);
        assert_int_equal(n_bytes, held);
        assert_true(held <= most);
#ifndef __SANITIZE_ADDRESS__ /* has its own allocator */
        assert_true(after - before > held / 10 * 9 && after - before < held / 10 * 11);
#endif
        tdm_tokenizer_destroy(t);
        t = NULL;
        n_bytes = 0;
        limits.max_bytes = held - 1;
        assert_int_equal(tdm_tokenizer_new_within(&t, g, &limits, &err), TDM_E_NO_MEMORY);
        assert_int_equal(n_bytes, 0);
        assert_null(t);
}

static void test_memory(void **state)
{
        uint64_t fixed = sizeof(struct tdm_tokenizer) + 4096 + 256 * 50;

        assert_counted(1, TDM_PIECE_NORMAL, "a", fixed);
        assert_counted(600000, TDM_PIECE_NORMAL, "", 600000 * UINT64_C(50) + fixed);
        assert_counted(600000, TDM_PIECE_NORMAL, "some text ", 600000 * UINT64_C(60) + fixed);
        assert_counted(100000, TDM_PIECE_CONTROL, "", 100000 * UINT64_C(44 + 8 + 14) + fixed);
}

static void test_too_many_specials(void **state)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
        char prefix[501] = { 0 };
        struct tdm_tokenizer *t = NULL;
        _Atomic uint64_t n_bytes = 0;
        struct tdm_parse_limits limits = { .n_bytes = &n_bytes };
        struct tdm_error err;
        uint64_t size;

        memset(prefix, 'x', 500);
        g = vocabulary(5000, TDM_PIECE_CONTROL, prefix, &size);
        assert_int_equal(tdm_tokenizer_new_within(&t, g, &limits, &err), TDM_E_BAD_MODEL);
        assert_non_null(strstr(err.message, "its special pieces have more than 2097152 bytes of text"));
        assert_int_equal(n_bytes, 0);
}

static void test_cancelled(void **state)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
        _cleanup_(tdm_tokenizer_destroyp) struct tdm_tokenizer *t = NULL;
        atomic_bool cancelled = true;
        struct tdm_parse_limits limits = { .cancelled = &cancelled };
        struct tdm_encode_budget budget = { .steps = UINT64_MAX, .cancelled = &cancelled };
        struct tdm_error err;
        uint64_t size;

        g = vocabulary(10, TDM_PIECE_NORMAL, "", &size);
        assert_int_equal(tdm_tokenizer_new_within(&t, g, &limits, &err), TDM_E_CANCELLED);
        assert_null(t);
        cancelled = false;
        assert_int_equal(tdm_tokenizer_new_within(&t, g, &limits, &err), 0);
        assert_int_equal(tdm_tokenizer_encode_within(t, "12", 2, 0, &budget, NULL, 0), 2);
        cancelled = true;
        assert_int_equal(tdm_tokenizer_encode_within(t, "12", 2, 0, &budget, NULL, 0), -ECANCELED);
}

/* Each kind of text takes the steps that it is said to take, is stopped when they are fewer, and is looked at within a
 * few thousand of them. */
static void test_budget(void **state)
{
        static char text[65536];
        static const char *const patterns[] = { "1", "12", "1 ", "x", "\xff", "<c>0", "<c>012345678901" };

        for (int special = 0; special < 2; special++) {
                _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
                _cleanup_(tdm_tokenizer_destroyp) struct tdm_tokenizer *t = NULL;
                uint64_t size;

                g = vocabulary(3000, special ? TDM_PIECE_CONTROL : TDM_PIECE_NORMAL, special ? "<c>" : "", &size);
                assert_int_equal(tdm_tokenizer_new(&t, g, NULL), 0);
                for (size_t i = 0; i < TDM_ARRAY_SIZE(patterns); i++) {
                        struct tdm_encode_budget budget = { .steps = TDM_ENCODE_STEPS(sizeof(text)) };
                        uint64_t used;
                        ssize_t n;

                        for (size_t at = 0; at < sizeof(text); at++)
                                text[at] = patterns[i][at % strlen(patterns[i])];
                        n = tdm_tokenizer_encode_within(t, text, sizeof(text), TDM_TOKENIZE_SPECIAL, &budget, NULL, 0);
                        assert_true(n > 0);
                        assert_int_equal(tdm_tokenizer_encode(t, text, sizeof(text), TDM_TOKENIZE_SPECIAL, NULL, 0), n);
                        used = TDM_ENCODE_STEPS(sizeof(text)) - budget.steps;
                        assert_true(used >= sizeof(text));
                        budget.steps = used;
                        assert_int_equal(tdm_tokenizer_encode_within(t, text, sizeof(text), TDM_TOKENIZE_SPECIAL,
                                                                     &budget, NULL, 0),
                                         n);
                        assert_int_equal(budget.steps, 0);
                        budget.steps = used - 1;
                        assert_int_equal(tdm_tokenizer_encode_within(t, text, sizeof(text), TDM_TOKENIZE_SPECIAL,
                                                                     &budget, NULL, 0),
                                         -ETIME);
                        budget.steps = 1000;
                        assert_int_equal(tdm_tokenizer_encode_within(t, text, sizeof(text), TDM_TOKENIZE_SPECIAL,
                                                                     &budget, NULL, 0),
                                         -ETIME);
                        assert_int_equal(budget.steps, 0);
                }
        }
}

/* A text in spans, of which some hold special pieces. */
static void test_spans_budget(void **state)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
        _cleanup_(tdm_tokenizer_destroyp) struct tdm_tokenizer *t = NULL;
        _cleanup_(closep) int fd = -1;
        static char text[60000];
        static struct tdm_text_span spans[sizeof(text) / 30];
        struct tdm_encode_budget budget = { .steps = TDM_ENCODE_SPANS_STEPS(sizeof(text)) };
        atomic_bool cancelled = true;
        struct gguf_builder b = { 0 };
        ssize_t n;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(spans); i++) {
                memcpy(text + 30 * i, "<end_of_turn>aa<end_of_turn>aa", 30);
                spans[i] = (struct tdm_text_span){ 30 * (i + 1), i % 2 };
        }
        build_model(&b, &build_smallest, TDM_TYPE_Q4_0);
        fd = build_fd(b.data, b.size);
        build_reset(&b);
        assert_int_equal(tdm_gguf_open(&g, fd, "chat", NULL), 0);
        assert_int_equal(tdm_tokenizer_new(&t, g, NULL), 0);
#define ENCODE tdm_tokenizer_encode_spans(t, text, sizeof(text), spans, TDM_ARRAY_SIZE(spans), &budget, NULL, 0)
        n = ENCODE;
        assert_true(n > 0);
        budget.steps = sizeof(text) / 2;
        assert_int_equal(ENCODE, -ETIME);
        budget = (struct tdm_encode_budget){ UINT64_MAX, &cancelled };
        assert_int_equal(ENCODE, -ECANCELED);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_memory),       cmocka_unit_test(test_too_many_specials),
                cmocka_unit_test(test_cancelled),    cmocka_unit_test(test_budget),
                cmocka_unit_test(test_spans_budget),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
