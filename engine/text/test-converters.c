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

/* Six keys of a vocabulary as Ollama's converter writes it: scores that only count, pieces of the type `from` called
 * `to`, a list of ends. */
static void build_other_vocabulary(struct gguf_builder *b, const struct test_vocabulary *v, const char *model,
                                   uint8_t from, uint8_t to, const int32_t *ends, uint32_t n_ends)
{
        build_key_string(b, "tokenizer.ggml.model", model);
        build_array(b, "tokenizer.ggml.tokens", VALUE_STRING, v->n);
        for (size_t i = 0; i < v->n; i++)
                build_string(b, v->texts[i]);
        build_array(b, "tokenizer.ggml.scores", VALUE_F32, v->n);
        for (size_t i = 0; i < v->n; i++)
                build_f32(b, (float)i);
        build_array(b, "tokenizer.ggml.token_type", VALUE_I32, v->n);
        for (size_t i = 0; i < v->n; i++)
                build_u32(b, v->types[i] == from ? to : v->types[i]);
        build_array(b, "tokenizer.ggml.merges", VALUE_STRING, v->n_merges);
        for (size_t i = 0; i < v->n_merges; i++)
                build_string(b, v->merges[i]);
        if (n_ends > 0)
                build_array(b, "tokenizer.ggml.eos_token_ids", VALUE_I32, n_ends);
        for (size_t i = 0; i < n_ends; i++)
                build_u32(b, (uint32_t)ends[i]);
}

/* Resets the builder. */
static struct tdm_tokenizer *tokenizer_built(struct gguf_builder *b)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
        _cleanup_(closep) int fd = build_fd(b->data, b->size);
        struct tdm_tokenizer *t = NULL;
        struct tdm_error err;

        build_reset(b);
        if (tdm_gguf_open(&g, fd, "test", &err) || tdm_tokenizer_new(&t, g, &err))
                fail_msg("%s", err.message);
        return t;
}

/* A vocabulary of Gemma 4's kind: SentencePiece by name, pieces that were added called ordinary ones. */
static struct tdm_tokenizer *gemma4_of_ollama(const struct test_vocabulary *v, const int32_t *ends, uint32_t n_ends)
{
        struct gguf_builder b = { 0 };

        build_header(&b, 0, 7);
        build_key_string(&b, "tokenizer.ggml.pre", "gemma4");
        build_other_vocabulary(&b, v, "llama", TDM_PIECE_USER_DEFINED, TDM_PIECE_NORMAL, ends, n_ends);
        return tokenizer_built(&b);
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

/* The text of a piece becomes another one of the same length, and type and score too. */
static void set_piece(const struct copy *c, uint32_t id, const char *text, uint32_t type, float score)
{
        static const char tokens_key[] = "tokenizer.ggml.tokens", types_key[] = "tokenizer.ggml.token_type",
                          scores_key[] = "tokenizer.ggml.scores";
        enum { ARRAY = 4 + 4 + 8 }; /* types and count */
        uint8_t *at = key_of(c, tokens_key) + strlen(tokens_key) + ARRAY;
        uint64_t size;

        for (uint32_t i = 0; i < id; i++) {
                memcpy(&size, at, sizeof(size));
                at += sizeof(size) + size;
        }
        memcpy(&size, at, sizeof(size));
        assert_int_equal(size, strlen(text));
        memcpy(at + sizeof(size), text, size);
        memcpy(key_of(c, types_key) + strlen(types_key) + ARRAY + sizeof(type) * id, &type, sizeof(type));
        memcpy(key_of(c, scores_key) + strlen(scores_key) + ARRAY + sizeof(score) * id, &score, sizeof(score));
}

/* The demo model with a few pieces more that were added, as llama.cpp's converter writes them, or as Ollama's does. */
static struct tdm_tokenizer *tale_with_added(bool by_ollama)
{
        static const struct {
                uint32_t id;
                const char *text;
        } added[] = { { 6, "\n" }, { 6073, "<table>" }, { 6069, "\xe2\x96\x81\xe2\x96\x81" } };
        struct copy c = copy_tale();

        for (size_t i = 0; i < TDM_ARRAY_SIZE(added); i++)
                set_piece(&c, added[i].id, added[i].text, by_ollama ? TDM_PIECE_NORMAL : TDM_PIECE_USER_DEFINED,
                          by_ollama ? 0 : -1000);
        /* One of those for which there is no use yet: a control piece, or an ordinary one. */
        set_piece(&c, 6049, "<unused5>", by_ollama ? TDM_PIECE_NORMAL : TDM_PIECE_CONTROL, by_ollama ? 0 : -1000);
        return tokenizer_of(&c);
}

static void test_added_pieces(void **state)
{
        static const char *const texts[] = { "Once upon a time", " Once  upon\n\n\na   time\n",
                                             "<start_of_turn>user\n<end_of_turn>",
                                             "  \n  \t\t\xf0\x9f\xa6\x8a <unused5> [multimodal]",
                                             "a<table><tr></table>\n\n\n\n\n\n\n\n\n" };
        _cleanup_(tdm_tokenizer_destroyp) struct tdm_tokenizer *want = tale_with_added(false),
                                                               *got = tale_with_added(true);

        for (size_t i = 0; i < TDM_ARRAY_SIZE(texts); i++)
                for (unsigned flags = 0; flags <= TDM_TOKENIZE_SPECIAL; flags += TDM_TOKENIZE_SPECIAL) {
                        uint32_t a[128], b[128];
                        ssize_t n = tdm_tokenizer_encode(want, texts[i], strlen(texts[i]), flags, a, 128);

                        assert_int_equal(tdm_tokenizer_encode(got, texts[i], strlen(texts[i]), flags, b, 128), n);
                        assert_memory_equal(a, b, (size_t)n * sizeof(*a));
                }
        for (uint32_t id = 0; id < 6144; id++)
                assert_int_equal(tdm_tokenizer_is_end(got, id), tdm_tokenizer_is_end(want, id));
}

/* gpt-oss, whose words Ollama's converter lets be cut by "default", and whose vocabulary it fills up otherwise. */
static void test_gpt_oss(void **state)
{
        struct test_vocabulary v = test_vocabulary_read("tests/golden/tokens/gpt-4o.tokens");
        struct tdm_tokenizer *t;
        struct gguf_builder b = { 0 };
        uint32_t n_padding = 0, ids[64];
        char padding[16];

        build_header(&b, 0, 7);
        build_key_string(&b, "general.architecture", "gptoss");
        build_key_string(&b, "tokenizer.ggml.pre", "default");
        build_other_vocabulary(&b, &v, "gpt2", TDM_PIECE_UNUSED, TDM_PIECE_USER_DEFINED, NULL, 0);
        t = tokenizer_built(&b);
        check_cases(t, &v);
        for (size_t i = 0; i < v.n; i++)
                n_padding += v.types[i] == TDM_PIECE_UNUSED;
        assert_true(n_padding > 0);
        snprintf(padding, sizeof(padding), "%s", v.texts[v.n - 1]);
        assert_true(strncmp(padding, "[PAD", 4) == 0);
        assert_true(tdm_tokenizer_encode(t, padding, strlen(padding), TDM_TOKENIZE_SPECIAL, ids, 64) > 1);
        tdm_tokenizer_destroy(t);
        test_vocabulary_free(&v);
}

/* Llama 3, whose first files call its way of cutting words "default", or do not name it. */
static void test_llama3(void **state)
{
        struct test_vocabulary v = test_vocabulary_read("tests/golden/tokens/llama-bpe.tokens");

        for (unsigned i = 0; i < 2; i++) {
                struct gguf_builder b = { 0 };
                struct tdm_tokenizer *t;
                uint32_t end;

                build_header(&b, 0, i ? 6 : 7);
                build_key_string(&b, "general.architecture", "llama");
                if (i == 0)
                        build_key_string(&b, "tokenizer.ggml.pre", "default");
                build_other_vocabulary(&b, &v, "gpt2", 0, 0, NULL, 0);
                t = tokenizer_built(&b);
                check_cases(t, &v);
                assert_int_equal(tdm_tokenizer_find_marker(t, "<|eot_id|>", &end), 0);
                assert_true(tdm_tokenizer_is_end(t, end));
                tdm_tokenizer_destroy(t);
        }
        test_vocabulary_free(&v);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_no_space_prefix_key),
                cmocka_unit_test(test_end_by_text),
                cmocka_unit_test(test_ids_out_of_range),
                cmocka_unit_test(test_gemma4),
                cmocka_unit_test(test_added_pieces),
                cmocka_unit_test(test_gpt_oss),
                cmocka_unit_test(test_llama3),
        };

        if (tdm_sigbus_init() < 0)
                return 1;
        return cmocka_run_group_tests(tests, NULL, NULL);
}
