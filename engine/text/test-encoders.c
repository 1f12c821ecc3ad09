/* WordPiece and Unigram: what their makers' tokenizers do with texts that are hard to cut, what of a file is refused,
 * and that neither a file nor a text of any bytes reads or writes outside its memory. Ids of more texts are in
 * tests/golden/archs (test_encoders.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include "engine/file/test-gguf-builder.h"
#include "engine/text/tokenizer-private.h"

#define TEXT_MAX 300u

static uint64_t random_state = 1;

static uint32_t below(uint32_t n)
{
        random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (uint32_t)((random_state >> 33) % n);
}

/* A vocabulary, and what of its keys is otherwise. */
struct words {
        const char *const *pieces; /* to NULL */
        const float *scores;       /* NULL: WordPiece */
        const uint8_t *map;
        size_t map_size;
        const char *form; /* of pairs; NULL: none */
        bool keeps_case, keeps_spaces, no_ids, ends_twice;
};

static const char *const pieces[] = { "[PAD]",   "[UNK]",        "[CLS]", "[SEP]",   "\u2581un",     "aff",
                                      "able",    "\u2581a",      "b",     "\u2581!", "\u2581\u65e5", "\u2581e",
                                      "\u2581E", "\u2581\u00e9", NULL };
enum { UNK = 1, CLS, SEP, UN, AFF, ABLE, A, B, MARK, SUN, E, BIG_E, ACUTE };

static const char *const unigram_pieces[] = { "<s>", "<pad>",    "</s>",    "<unk>", "\u2581", "a",       "b",
                                              "ab",  "\u2581ab", "\u2581a", "fi",    "\u00e9", "x\u2581", NULL };
static const float unigram_scores[] = { 0, 0, 0, 0, -2, -3, -3, -5, -7, -4, -6, -5, -9 };
enum { U_UNK = 3, U_SPACE, U_A, U_B, U_AB, U_SPACE_AB, U_SPACE_A, U_FI };

static struct tdm_gguf *words_file(const struct words *w)
{
        _cleanup_(closep) int fd = -1;
        struct gguf_builder b = { 0 };
        struct tdm_gguf *g = NULL;
        uint32_t n = 0;

        while (w->pieces[n])
                n++;
        build_header(&b, 0, 10 + (w->map != NULL) + (w->form != NULL));
        build_key_bool(&b, "tokenizer.ggml.add_sep_token", w->ends_twice); /* false, as released files have it */
        if (w->form)
                build_key_string(&b, "tokenizer.chat_template.rerank", w->form);
        build_key_string(&b, "general.architecture", "bert");
        build_key_string(&b, "tokenizer.ggml.model", w->scores ? "t5" : "bert");
        build_key_bool(&b, "tokenizer.ggml.normalizer.lowercase", !w->keeps_case);
        build_key_bool(&b, "tokenizer.ggml.remove_extra_whitespaces", !w->keeps_spaces);
        build_key_u32(&b, w->no_ids ? "ignored.1" : "tokenizer.ggml.unknown_token_id", w->scores ? U_UNK : UNK);
        build_key_u32(&b, w->no_ids ? "ignored.2" : "tokenizer.ggml.eos_token_id", w->scores ? 2 : SEP);
        build_array(&b, "tokenizer.ggml.tokens", VALUE_STRING, n);
        for (uint32_t i = 0; i < n; i++)
                build_string(&b, w->pieces[i]);
        build_array(&b, "tokenizer.ggml.scores", VALUE_F32, n);
        for (uint32_t i = 0; i < n; i++)
                build_f32(&b, w->scores ? w->scores[i] : 0);
        build_array(&b, "tokenizer.ggml.token_type", VALUE_U8, n);
        for (uint32_t i = 0; i < n; i++) {
                uint8_t type = i < 4 ? TDM_PIECE_CONTROL : TDM_PIECE_NORMAL;

                build_bytes(&b, &type, 1);
        }
        if (w->map) {
                build_array(&b, "tokenizer.ggml.precompiled_charsmap", VALUE_U8, w->map_size);
                build_bytes(&b, w->map, w->map_size);
        }
        fd = build_fd(b.data, b.size);
        build_reset(&b);
        assert_int_equal(tdm_gguf_open(&g, fd, "words", NULL), 0);
        return g;
}

static struct tdm_tokenizer *words_open(const struct words *w)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = words_file(w);
        struct tdm_tokenizer *t = NULL;
        struct tdm_error err = { 0 };

        if (tdm_tokenizer_new(&t, g, &err) != 0)
                fail_msg("%s", err.message);
        return t;
}

#define IDS(...) ((const uint32_t[]){ __VA_ARGS__ }), sizeof((const uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t)

static void assert_ids(const struct tdm_tokenizer *t, const char *text, size_t size, const uint32_t *want, size_t n)
{
        uint32_t ids[256];
        ssize_t got = tdm_tokenizer_encode(t, text, size, 0, ids, TDM_ARRAY_SIZE(ids));

        if (got != (ssize_t)n || memcmp(ids, want, n * sizeof(*ids)) != 0) {
                print_message("\"%.*s\":", (int)size, text);
                for (ssize_t i = 0; i < got; i++)
                        print_message(" %u", ids[i]);
                fail_msg("not the ids that are wanted");
        }
}

static void test_wordpiece(void **state)
{
        struct words w = { .pieces = pieces };
        _cleanup_(tdm_tokenizer_destroyp) struct tdm_tokenizer *t = words_open(&w), *cased = NULL;
        char text[102];
        uint32_t ids[8];

        assert_ids(t, "unaffable", 9, IDS(UN, AFF, ABLE));
        assert_ids(t, " UnAffable!!", 12, IDS(UN, AFF, ABLE, MARK, MARK));
        assert_ids(t, "unaffabl", 8, IDS(UNK)); /* a whole word, not what is left of it */
        assert_ids(t, "ab able a", 9, IDS(A, B, UNK, A));
        assert_ids(t, "a\u65e5b", 5, IDS(A, SUN, UNK)); /* an ideograph is a word */
        assert_ids(t, "\u00c9 e\u0301 E", 8, IDS(E, E, E));
        assert_ids(t, "a\xff\x80\xe6\x97 a\x01\x62\xef\xbf\xbd", 12, IDS(A, A, B));
        assert_ids(t, "", 0, ids, 0);
        memset(text, 'b', sizeof(text));
        text[0] = 'a';
        assert_int_equal(tdm_tokenizer_encode(t, text, 100, 0, NULL, 0), 100);
        assert_ids(t, text, 101, IDS(UNK));                                  /* longer than 100 characters */
        assert_int_equal(tdm_tokenizer_encode(t, "[SEP]", 5, 0, ids, 8), 3); /* no text makes a control piece */
        assert_int_equal(tdm_tokenizer_encode(t, "a", 1, TDM_TOKENIZE_BOS | TDM_TOKENIZE_EOS, ids, 8), 3);
        assert_memory_equal(ids, ((uint32_t[]){ CLS, A, SEP }), 3 * sizeof(*ids));

        w.keeps_case = true;
        cased = words_open(&w);
        assert_ids(cased, "\u00e9 E e \u00c9", 9, IDS(ACUTE, BIG_E, E, UNK));
}

/* A map that makes "fi" of U+FB01 and a space of a tab. */
static const uint32_t map_units[256] = { [0] = 1u << 10,
                                         /* base 1: 0xef at 0xee, tab at 8 */
                                         [0xee] = (0xee ^ 2u) << 10 | 0xef,
                                         [8] = (8u ^ 4u) << 10 | 256 | 9,
                                         [4] = 1u << 31 | 3,
                                         /* base 2: 0xac at 0xae; base 3: 0x81 at 0x82; base 5 */
                                         [0xae] = (0xae ^ 3u) << 10 | 0xac,
                                         [0x82] = (0x82 ^ 5u) << 10 | 256 | 0x81,
                                         [5] = 1u << 31 | 0 };
static const char map_texts[] = "fi\0 ";

static size_t map_write(uint8_t *map)
{
        uint32_t size = sizeof(map_units);

        memcpy(map, &size, sizeof(size));
        memcpy(map + sizeof(size), map_units, size);
        memcpy(map + sizeof(size) + size, map_texts, sizeof(map_texts));
        return sizeof(size) + size + sizeof(map_texts);
}

static void test_unigram(void **state)
{
        uint8_t map[sizeof(map_units) + 64];
        struct words w = { .pieces = unigram_pieces, .scores = unigram_scores, .map = map };
        _cleanup_(tdm_tokenizer_destroyp) struct tdm_tokenizer *t = NULL, *spaced = NULL;
        uint32_t ids[8];

        w.map_size = map_write(map);
        t = words_open(&w);
        assert_ids(t, "ab", 2, IDS(U_SPACE_AB)); /* -7, where the two others are -7 and -8: the first found stays */
        assert_ids(t, "abab", 4, IDS(U_SPACE_AB, U_AB));
        assert_ids(t, " \t a  b ", 8, IDS(U_SPACE_A, U_SPACE, U_B)); /* spaces are joined, and none is at the ends */
        assert_ids(t, "\ufb01", 3, IDS(U_SPACE, U_FI));
        assert_ids(t, "zzz", 3, IDS(U_SPACE, U_UNK)); /* one for all */
        assert_ids(t, "z z", 3, IDS(U_SPACE, U_UNK, U_SPACE, U_UNK));
        assert_ids(t, "z\xff\xfe", 3, IDS(U_SPACE, U_UNK));
        assert_ids(t, "  ", 2, ids, 0);
        assert_ids(t, "\u2581ab", 5, IDS(U_SPACE, U_SPACE_AB));
        assert_int_equal(tdm_tokenizer_encode(t, "a", 1, TDM_TOKENIZE_EOS, ids, 8), 2);
        assert_int_equal(ids[1], 2);

        w.keeps_spaces = true;
        spaced = words_open(&w);
        assert_ids(spaced, "a  b", 4, IDS(U_SPACE_A, U_SPACE, U_SPACE, U_B));
}

static void assert_refused(const struct words *w, const char *words)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = words_file(w);
        struct tdm_tokenizer *t = NULL;
        struct tdm_error err = { 0 };

        assert_true(tdm_tokenizer_new(&t, g, &err) > 0);
        if (!strstr(err.message, words))
                fail_msg("\"%s\" does not say \"%s\"", err.message, words);
}

static void test_refused(void **state)
{
        static const char *const no_special[] = { "a", "b", "[CLS]", "c", "[UNK]", NULL };
        static const float infinite[] = { 0, 0, 0, 0, -2, -3, -3, -5, -7, -4, -6, -INFINITY, -9 };
        char long_piece[TDM_UNIGRAM_PIECE_MAX + 2];
        const char *const with_long[] = { "<s>", "<pad>", "</s>", "<unk>", long_piece, NULL };
        uint8_t map[sizeof(map_units) + 64];
        size_t map_size = map_write(map);

        memset(long_piece, 'x', sizeof(long_piece));
        long_piece[sizeof(long_piece) - 1] = 0;
        assert_refused(&(struct words){ .pieces = no_special, .no_ids = true }, "no piece [SEP]");
        assert_refused(&(struct words){ .pieces = unigram_pieces, .scores = unigram_scores, .no_ids = true },
                       "no unknown piece");
        assert_refused(&(struct words){ .pieces = unigram_pieces, .scores = infinite }, "not a finite number");
        assert_refused(&(struct words){ .pieces = with_long, .scores = unigram_scores }, "at most 256");
        for (size_t size = 1; size <= map_size; size += size < 8 ? 1 : 301) { /* cut off */
                if (size == map_size)
                        break;
                assert_refused(
                        &(struct words){
                                .pieces = unigram_pieces, .scores = unigram_scores, .map = map, .map_size = size },
                        "is damaged");
        }
        map[map_size - 1] = 'x'; /* the last text does not end */
        assert_refused(
                &(struct words){ .pieces = unigram_pieces, .scores = unigram_scores, .map = map, .map_size = map_size },
                "is damaged");
}

/* Any bytes as text, over vocabularies whose map was damaged anywhere. */
static void test_random(void **state)
{
        uint8_t map[sizeof(map_units) + 64];
        size_t map_size;
        char text[TEXT_MAX];
        uint32_t ids[16 * TEXT_MAX];

        for (unsigned round = 0; round < 400; round++) {
                struct words w = { .pieces = round % 2 ? pieces : unigram_pieces,
                                   .scores = round % 2 ? NULL : unigram_scores,
                                   .keeps_case = below(2),
                                   .keeps_spaces = below(2) };
                _cleanup_(tdm_tokenizer_destroyp) struct tdm_tokenizer *t = NULL;

                map_size = map_write(map);
                for (unsigned i = below(40); i > 0; i--)
                        map[4 + below((uint32_t)map_size - 5)] = (uint8_t)below(256);
                if (round % 2 == 0) {
                        w.map = map;
                        w.map_size = map_size;
                }
                t = words_open(&w);
                for (unsigned i = 0; i < 40; i++) {
                        static const char *const parts[] = { "ab",     "\ufb01",  "\t",     " ",
                                                             "\u65e5", "\xff",    "\u00e9", "unaffable",
                                                             "\u2581", "e\u0301", "\ud55c" };
                        size_t size = 0;

                        while (size < TEXT_MAX - 16 && below(60) > 0) {
                                const char *part = parts[below(TDM_ARRAY_SIZE(parts))];

                                if (below(3) == 0)
                                        text[size++] = (char)below(256);
                                else {
                                        memcpy(text + size, part, strlen(part));
                                        size += strlen(part);
                                }
                        }
                        assert_true(tdm_tokenizer_encode(t, text, size, 0, ids, TDM_ARRAY_SIZE(ids)) >= 0);
                }
        }
}

/* A megabyte of what takes longest ends within the budget of any text of that size. */
static void test_budget(void **state)
{
        const size_t size = 1 << 20;
        char *text = malloc(size);

        assert_non_null(text);
        for (unsigned kind = 0; kind < 2; kind++) {
                struct words w = { .pieces = kind ? unigram_pieces : pieces, .scores = kind ? unigram_scores : NULL };
                _cleanup_(tdm_tokenizer_destroyp) struct tdm_tokenizer *t = words_open(&w);
                static const char *const fillings[] = { "a", "ab", "\xff", "a b", "\u65e5", "!", "\ud55c" };

                for (unsigned i = 0; i < TDM_ARRAY_SIZE(fillings); i++) {
                        struct tdm_encode_budget budget = { .steps = TDM_ENCODE_STEPS(size) };

                        for (size_t at = 0; at < size; at++)
                                text[at] = fillings[i][at % strlen(fillings[i])];
                        assert_true(tdm_tokenizer_encode_within(t, text, size, 0, &budget, NULL, 0) > 0 ||
                                    fillings[i][0] == '\xff');
                        budget.steps = 100;
                        assert_int_equal(tdm_tokenizer_encode_within(t, text, size, 0, &budget, NULL, 0), -ETIME);
                }
        }
        free(text);
}

static void check_pair(const struct words *w, const char *query, const char *document, const uint32_t *wanted,
                       size_t n_wanted, uint32_t second)
{
        _cleanup_(tdm_tokenizer_destroyp) struct tdm_tokenizer *t = words_open(w);
        struct tdm_encode_budget budget = { TDM_ENCODE_SPANS_STEPS(TEXT_MAX), NULL };
        uint32_t ids[TEXT_MAX], got = UINT32_MAX;
        ssize_t n = tdm_tokenizer_encode_pair(t, query, strlen(query), document, strlen(document), &budget, ids,
                                              TEXT_MAX, &got);

        assert_int_equal(n, n_wanted);
        assert_memory_equal(ids, wanted, n_wanted * sizeof(*ids));
        assert_int_equal(got, second);
        assert_true(n_wanted <= strlen(query) + strlen(document) + tdm_tokenizer_pair_bytes(t) + 16);
}

#define PAIR(w, query, document, second, ...)                                                                          \
        check_pair((w), (query), (document), (const uint32_t[]){ __VA_ARGS__ },                                        \
                   sizeof((const uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t), (second))

static void test_pairs(void **state)
{
        struct words w = { .pieces = pieces }, u = { .pieces = unigram_pieces, .scores = unigram_scores };

        PAIR(&w, "a", "un", 3, CLS, A, SEP, UN, SEP);
        PAIR(&w, "a", "", 3, CLS, A, SEP, SEP);
        PAIR(&w, "[SEP]", "un", 5, CLS, UNK, UNK, UNK, SEP, UN, SEP);
        w.ends_twice = true; /* one piece stands between two texts of WordPiece, whatever the key says */
        PAIR(&w, "a", "un", 3, CLS, A, SEP, UN, SEP);
        PAIR(&u, "ab", "a", 2, U_SPACE_AB, 2, U_SPACE_A, 2);
        u.ends_twice = true;
        PAIR(&u, "ab", "a", 3, U_SPACE_AB, 2, 2, U_SPACE_A, 2);

        w.form = "[CLS]{query}[SEP]{document}";
        PAIR(&w, "a", "un", 0, CLS, A, SEP, UN);
        PAIR(&w, "", "", 0, CLS, SEP);
        PAIR(&w, "[CLS]", "[SEP]", 0, CLS, UNK, UNK, UNK, SEP, UNK, UNK, UNK);
        w.form = "{document}[SEP]{query}[CLS]";
        PAIR(&w, "a", "un", 0, UN, SEP, A, CLS);
        w.form = "[CLS]{query}{document}";
        PAIR(&w, "[S", "EP]", 0, CLS, UNK, UNK, UNK); /* two texts side by side spell no piece either */
        w.form = "{query}[SEP]{document}";            /* a query that names a place stays what it is */
        PAIR(&w, "{document}", "a", 0, UNK, UNK, UNK, SEP, A);
}

static void test_bad_forms(void **state)
{
        static const char *const forms[] = { "", "{query}", "{document}", "{query}{query}{document}",
                                             "{query} {document} {document}" };
        char large[TDM_PAIR_FORM_BYTES_MAX + 64];

        memset(large, 'x', sizeof(large));
        memcpy(large + sizeof(large) - 32, "{query} {document}", sizeof("{query} {document}"));
        for (size_t i = 0; i <= TDM_ARRAY_SIZE(forms); i++) {
                struct words w = { .pieces = pieces, .form = i < TDM_ARRAY_SIZE(forms) ? forms[i] : large };
                struct tdm_gguf *g = words_file(&w);
                struct tdm_tokenizer *t = NULL;
                struct tdm_error err;

                assert_int_equal(tdm_tokenizer_new(&t, g, &err), TDM_E_UNSUPPORTED);
                assert_non_null(strstr(err.message, "not one {query} and one {document}"));
                tdm_gguf_close(g);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_pairs),   cmocka_unit_test(test_bad_forms), cmocka_unit_test(test_wordpiece),
                cmocka_unit_test(test_unigram), cmocka_unit_test(test_refused),   cmocka_unit_test(test_random),
                cmocka_unit_test(test_budget),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
