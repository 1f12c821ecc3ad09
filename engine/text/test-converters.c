/* Tokenizers as converters other than llama.cpp's write them, and files with numbers of pieces that there are not: the
 * ids of texts, and where generation ends. */
#include <fcntl.h>
#include <sys/stat.h>
#include "engine/text/test-vocabulary.h"
#include "common/sigbus.h"

/* A copy of the released demo model, whose metadata a test edits. */
struct copy {
        uint8_t *data;
        size_t size;
};

static struct copy copy_tale(void)
{
        _cleanup_(closep) int fd = open("models/tale.gguf", O_RDONLY | O_CLOEXEC);
        struct copy c;
        struct stat st;

        assert_true(fd >= 0 && fstat(fd, &st) == 0);
        c.size = (size_t)st.st_size;
        c.data = malloc(c.size);
        assert_non_null(c.data);
        for (size_t n = 0; n < c.size;) {
                ssize_t r = read(fd, c.data + n, c.size - n);

                assert_true(r > 0);
                n += (size_t)r;
        }
        return c;
}

/* Where a key stands. */
static uint8_t *key_of(const struct copy *c, const char *key)
{
        uint8_t *at = memmem(c->data, c->size, key, strlen(key));

        assert_non_null(at);
        return at;
}

/* As if the file had no such key. */
static void drop_key(const struct copy *c, const char *key)
{
        key_of(c, key)[strlen(key) - 1] = 'X';
}

/* The value of a key whose type is u32; -1 is written as an i32. */
static void set_number(const struct copy *c, const char *key, uint32_t value)
{
        uint8_t *at = key_of(c, key) + strlen(key);
        uint32_t type = value == UINT32_MAX ? VALUE_I32 : VALUE_U32;

        memcpy(at, &type, sizeof(type));
        memcpy(at + sizeof(type), &value, sizeof(value));
}

/* Frees the copy. */
static struct tdm_tokenizer *tokenizer_of(struct copy *c)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
        _cleanup_(closep) int fd = build_fd(c->data, c->size);
        struct tdm_tokenizer *t = NULL;
        struct tdm_error err;

        free(c->data);
        c->data = NULL;
        if (tdm_gguf_open(&g, fd, "test.gguf", &err) || tdm_tokenizer_new(&t, g, &err))
                fail_msg("%s", err.message);
        return t;
}

#define ASSERT_IDS(t, text, ...)                                                                                       \
        do {                                                                                                           \
                static const uint32_t wanted[] = { __VA_ARGS__ };                                                      \
                uint32_t ids[64];                                                                                      \
                                                                                                                       \
                assert_int_equal(tdm_tokenizer_encode(t, text, strlen(text), TDM_TOKENIZE_BOS, ids, 64),               \
                                 TDM_ARRAY_SIZE(wanted));                                                              \
                assert_memory_equal(ids, wanted, sizeof(wanted));                                                      \
        } while (0)

/* Gemma's tokenizers put no space in front of a text, whether the file says so or not. */
static void test_no_space_prefix_key(void **state)
{
        static const char architecture[] = "general.architecture";
        struct copy c = copy_tale();
        _cleanup_(tdm_tokenizer_destroyp) struct tdm_tokenizer *gemma = NULL, *other = NULL;

        drop_key(&c, "tokenizer.ggml.add_space_prefix");
        gemma = tokenizer_of(&c);
        ASSERT_IDS(gemma, "Once upon a time", 2, 3007, 667, 265, 538);

        c = copy_tale();
        drop_key(&c, "tokenizer.ggml.add_space_prefix");
        memcpy(key_of(&c, architecture) + strlen(architecture) + 4 + 8, "llama3", 6); /* any other family */
        other = tokenizer_of(&c);
        ASSERT_IDS(other, "Once upon a time", 2, 4250, 667, 265, 538);
}

/* The piece that ends turns is an end whichever piece the key names. */
static void test_end_by_text(void **state)
{
        struct copy c = copy_tale();
        _cleanup_(tdm_tokenizer_destroyp) struct tdm_tokenizer *t = NULL;

        set_number(&c, "tokenizer.ggml.eot_token_id", 4);
        t = tokenizer_of(&c);
        assert_true(tdm_tokenizer_is_end(t, 1) && tdm_tokenizer_is_end(t, 4) && tdm_tokenizer_is_end(t, 5));
        assert_string_equal(tdm_tokenizer_notes(t), "");
}

/* A piece that does not exist is not used, and a note says so. */
static void test_ids_out_of_range(void **state)
{
        static const struct {
                const char *key;
                uint32_t value;
        } cases[] = {
                { "tokenizer.ggml.eos_token_id", UINT32_MAX }, { "tokenizer.ggml.eos_token_id", 1u << 30 },
                { "tokenizer.ggml.bos_token_id", UINT32_MAX }, { "tokenizer.ggml.bos_token_id", 1u << 30 },
                { "tokenizer.ggml.eot_token_id", UINT32_MAX }, { "tokenizer.ggml.eot_token_id", 1u << 30 },
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                struct copy c = copy_tale();
                _cleanup_(tdm_tokenizer_destroyp) struct tdm_tokenizer *t = NULL;

                set_number(&c, cases[i].key, cases[i].value);
                t = tokenizer_of(&c);
                assert_non_null(strstr(tdm_tokenizer_notes(t), cases[i].key));
                assert_non_null(strstr(tdm_tokenizer_notes(t), "is not used"));
                assert_int_equal(tdm_tokenizer_bos(t), strstr(cases[i].key, "bos") ? -1 : 2);
                assert_int_equal(tdm_tokenizer_eos(t), strstr(cases[i].key, "eos") ? -1 : 1);
                assert_true(tdm_tokenizer_is_end(t, 5)); /* by its text */
                if (strstr(cases[i].key, "bos"))
                        ASSERT_IDS(t, "Once upon a time", 3007, 667, 265, 538);
        }
}

/* A vocabulary of Gemma 4's kind as Ollama's converter writes it: SentencePiece by name, scores that only count, pieces
 * that were added called ordinary ones. */
static struct tdm_tokenizer *gemma4_of_ollama(const struct test_vocabulary *v, const int32_t *ends, uint32_t n_ends)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
        _cleanup_(closep) int fd = -1;
        struct tdm_tokenizer *t = NULL;
        struct gguf_builder b = { 0 };
        struct tdm_error err;

        build_header(&b, 0, 7);
        build_key_string(&b, "tokenizer.ggml.model", "llama");
        build_key_string(&b, "tokenizer.ggml.pre", "gemma4");
        build_array(&b, "tokenizer.ggml.tokens", VALUE_STRING, v->n);
        for (size_t i = 0; i < v->n; i++)
                build_string(&b, v->texts[i]);
        build_array(&b, "tokenizer.ggml.scores", VALUE_F32, v->n);
        for (size_t i = 0; i < v->n; i++)
                build_f32(&b, (float)i);
        build_array(&b, "tokenizer.ggml.token_type", VALUE_I32, v->n);
        for (size_t i = 0; i < v->n; i++)
                build_u32(&b, v->types[i] == TDM_PIECE_USER_DEFINED ? TDM_PIECE_NORMAL : v->types[i]);
        build_array(&b, "tokenizer.ggml.merges", VALUE_STRING, v->n_merges);
        for (size_t i = 0; i < v->n_merges; i++)
                build_string(&b, v->merges[i]);
        build_array(&b, "tokenizer.ggml.eos_token_ids", VALUE_I32, n_ends);
        for (size_t i = 0; i < n_ends; i++)
                build_u32(&b, (uint32_t)ends[i]);
        fd = build_fd(b.data, b.size);
        build_reset(&b);
        if (tdm_gguf_open(&g, fd, "test", &err) || tdm_tokenizer_new(&t, g, &err))
                fail_msg("%s", err.message);
        return t;
}

static void check_cases(const struct tdm_tokenizer *t, const struct test_vocabulary *v)
{
        for (size_t i = 0; i < v->n_cases; i++) {
                const struct test_case *c = &v->cases[i];
                uint32_t ids[8192];
                ssize_t n = tdm_tokenizer_encode(t, c->text, c->size, TDM_TOKENIZE_SPECIAL, ids, 8192);

                if (n != (ssize_t)c->n_ids || memcmp(ids, c->ids, c->n_ids * sizeof(*ids)) != 0)
                        fail_msg("case %zu: other ids than as Gemma 4's own kind", i);
        }
}

static void test_gemma4(void **state)
{
        struct test_vocabulary v = test_vocabulary_read("tests/golden/tokens/gemma4.tokens");
        const int32_t ends[] = { 1, -1, 105, 1 << 30 };
        struct tdm_tokenizer *t;
        uint32_t turn, plain[64];

        test_add_piece(&v, "<turn|>", TDM_PIECE_USER_DEFINED);
        test_add_piece(&v, "<table>", TDM_PIECE_USER_DEFINED);
        t = gemma4_of_ollama(&v, ends, 4);
        check_cases(t, &v);
        assert_true(tdm_tokenizer_is_end(t, 1) && tdm_tokenizer_is_end(t, 105));
        assert_int_equal(tdm_tokenizer_find_marker(t, "<turn|>", &turn), 0);
        assert_true(tdm_tokenizer_is_end(t, turn));
        assert_non_null(strstr(tdm_tokenizer_notes(t), "eos_token_ids has -1"));
        assert_non_null(strstr(tdm_tokenizer_notes(t), "eos_token_ids has 1073741824"));
        /* what a text spells ends no turn */
        assert_true(tdm_tokenizer_encode(t, "<turn|>", 7, 0, plain, 64) > 1);
        assert_int_equal(tdm_tokenizer_encode(t, "<table>", 7, 0, plain, 64), 1);
        assert_int_equal(plain[0], turn + 1);
        tdm_tokenizer_destroy(t);
        test_vocabulary_free(&v);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_no_space_prefix_key),
                cmocka_unit_test(test_end_by_text),
                cmocka_unit_test(test_ids_out_of_range),
                cmocka_unit_test(test_gemma4),
        };

        if (tdm_sigbus_init() < 0)
                return 1;
        return cmocka_run_group_tests(tests, NULL, NULL);
}
