/* The tokenizer against golden ids, against a slow version of itself, and against hostile vocabularies and texts. */
#include <ctype.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>
#include <cmocka.h>
#include "common/sigbus.h"
#include "engine/file/test-gguf-builder.h"
#include "engine/text/tokenizer-private.h"
#include "common/utf8.h"

#define BOTH (TDM_TOKENIZE_BOS | TDM_TOKENIZE_SPECIAL)

static struct tdm_tokenizer *tale, *small;

static struct tdm_tokenizer *tokenizer_of(int fd)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
        struct tdm_tokenizer *t = NULL;
        struct tdm_error err;

        if (tdm_gguf_open(&g, fd, "test.gguf", &err) || tdm_tokenizer_new(&t, g, &err))
                print_error("%s\n", err.message);
        close(fd);
        return t;
}

static struct tdm_tokenizer *small_tokenizer(void)
{
        struct gguf_builder b = { 0 };
        struct tdm_tokenizer *t;

        build_model(&b, &build_smallest, TDM_TYPE_Q4_0);
        t = tokenizer_of(build_fd(b.data, b.size));
        build_reset(&b);
        return t;
}

static int set_up(void **state)
{
        int fd = open("models/tale.gguf", O_RDONLY | O_CLOEXEC);

        tale = fd < 0 ? NULL : tokenizer_of(fd);
        small = small_tokenizer();
        return tale && small ? 0 : -1;
}

static int tear_down(void **state)
{
        tdm_tokenizer_destroy(tale);
        tdm_tokenizer_destroy(small);
        return 0;
}

/* ---- a reader for the golden file: objects in an array, strings, numbers, arrays of numbers ---- */

static char *read_file(const char *path, size_t *ret_size)
{
        _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
        struct stat st;
        char *text;

        assert_true(fd >= 0 && fstat(fd, &st) == 0);
        text = malloc((size_t)st.st_size + 1);
        assert_non_null(text);
        assert_int_equal(read(fd, text, (size_t)st.st_size), st.st_size);
        text[st.st_size] = 0;
        *ret_size = (size_t)st.st_size;
        return text;
}

static uint32_t read_escape(const char **at)
{
        char digits[5] = { 0 };

        memcpy(digits, *at, 4);
        *at += 4;
        return (uint32_t)strtoul(digits, NULL, 16);
}

static size_t put_utf8(char *out, uint32_t c)
{
        size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

        if (n == 1) {
                out[0] = (char)c;
                return 1;
        }
        for (size_t i = n - 1; i > 0; i--, c >>= 6)
                out[i] = (char)(0x80 | (c & 0x3f));
        out[0] = (char)((0xf00u >> n & 0xf0u) | c);
        return n;
}

static size_t read_json_string(const char **at, char *out)
{
        size_t n = 0;
        const char *p = *at;

        while (*p != '"') {
                uint32_t c;

                assert_true(*p != 0);
                if (*p != '\\') {
                        out[n++] = *p++;
                        continue;
                }
                p += 2;
                switch (p[-1]) {
                case 'n':
                        out[n++] = '\n';
                        break;
                case 't':
                        out[n++] = '\t';
                        break;
                case 'u':
                        c = read_escape(&p);
                        if (c >= 0xd800 && c < 0xdc00) {
                                p += 2;
                                c = 0x10000 + ((c - 0xd800) << 10) + (read_escape(&p) - 0xdc00);
                        }
                        n += put_utf8(out + n, c);
                        break;
                default:
                        out[n++] = p[-1];
                }
        }
        *at = p + 1;
        return n;
}

static void test_golden(void **state)
{
        size_t size;
        _cleanup_(freep) char *json = read_file("tests/golden/prompts.json", &size);
        _cleanup_(freep) char *text = malloc(size);
        const char *at = json;
        unsigned n_prompts = 0;

        assert_non_null(text);
        while ((at = strstr(at, "\"prompt\": \""))) {
                uint32_t wanted[4096], ids[4096];
                size_t text_size, n = 0;

                at += strlen("\"prompt\": \"");
                text_size = read_json_string(&at, text);
                at = strstr(at, "\"ids\": [");
                assert_non_null(at);
                at += strlen("\"ids\": [");
                for (char *end; *at != ']'; at = end + strspn(end, ", "))
                        wanted[n++] = (uint32_t)strtoul(at, &end, 10);
                assert_int_equal(tdm_tokenizer_encode(tale, text, text_size, BOTH, ids, 4096), n);
                assert_memory_equal(ids, wanted, n * sizeof(*ids));
                n_prompts++;
        }
        assert_int_equal(n_prompts, 6);
}

/* ---- round trips ---- */

static uint64_t random_state = 42;

static uint32_t random_below(uint32_t n)
{
        random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (uint32_t)((random_state >> 33) % n);
}

static uint32_t random_character(void)
{
        uint32_t c;

        switch (random_below(10)) {
        case 0:
                return random_below(0x20); /* NUL too */
        case 1:
                return ' ';
        case 2:
                return 0xa0 + random_below(0x300); /* Latin, Greek; combining marks */
        case 3:
                return 0x4e00 + random_below(0x5000);
        case 4:
                return 0x1f300 + random_below(0x400);
        case 5:
                c = 0x2580 + random_below(4); /* U+2581 among them */
                return c;
        case 6:
                do {
                        c = random_below(0x110000);
                } while (c >= 0xd800 && c < 0xe000);
                return c;
        default:
                return 'a' + random_below(26);
        }
}

/* Bytes of the pieces, without a decoder in between. */
static size_t join_pieces(const struct tdm_tokenizer *t, const uint32_t *ids, size_t n, char *out)
{
        size_t size = 0;

        for (size_t i = 0; i < n; i++) {
                const char *data;
                size_t piece = tdm_tokenizer_piece(t, ids[i], true, &data);

                memcpy(out + size, data, piece);
                size += piece;
        }
        return size;
}

static size_t decode(const struct tdm_tokenizer *t, const uint32_t *ids, size_t n, char *out)
{
        struct tdm_decoder d;
        size_t size = 0;

        tdm_decoder_init(&d, t, true);
        for (size_t i = 0; i < n; i++) {
                _cleanup_(freep) char *room = malloc(TDM_DECODER_ROOM(t)); /* exact, for ASan */
                size_t got;

                assert_non_null(room);
                got = tdm_decoder_push(&d, ids[i], room, TDM_DECODER_ROOM(t));
                for (size_t k = 0; k < got;) { /* whole characters only, always */
                        int length = tdm_utf8_length((const uint8_t *)room + k, got - k);

                        assert_true(length > 0);
                        k += (size_t)length;
                }
                memcpy(out + size, room, got);
                size += got;
        }
        return size + tdm_decoder_finish(&d, out + size, TDM_DECODER_ROOM(t));
}

static void assert_round_trip(const struct tdm_tokenizer *t, const char *text, size_t size, bool is_utf8)
{
        _cleanup_(freep) uint32_t *ids = calloc(size + 1, sizeof(*ids));
        _cleanup_(freep) char *out = malloc(3 * size + 4096);
        ssize_t n;

        assert_true(ids && out);
        n = tdm_tokenizer_encode(t, text, size, 0, ids, size + 1);
        assert_true(n >= 0 && (size_t)n <= size);
        assert_int_equal(join_pieces(t, ids, (size_t)n, out), size);
        assert_memory_equal(out, text, size);
        if (!is_utf8)
                return;
        assert_int_equal(decode(t, ids, (size_t)n, out), size);
        assert_memory_equal(out, text, size);
}

static void test_round_trip(void **state)
{
        static const char *const texts[] = {
                "",
                " ",
                "  two  spaces ",
                "\xe2\x96\x81",
                "a\xe2\x96\x81"
                "b \xe2\x96\x81 c",
                "\xe2\x96\x81\xe2\x96\x81",
                "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7",
                "e\xcc\x81\xcc\xa7 \xe6\xbc\xa2\xe5\xad\x97\xe3\x81\x8b\xe3\x81\xaa",
                "<bos><eos><unk><start_of_turn>user\n<end_of_turn><0x41>",
                "\n\n\n\r\n\t\v",
                "\xef\xbf\xbd\xef\xbb\xbf\xf4\x8f\xbf\xbf",
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(texts); i++) {
                assert_round_trip(tale, texts[i], strlen(texts[i]), true);
                assert_round_trip(small, texts[i], strlen(texts[i]), true);
        }
        for (unsigned i = 0; i < 300; i++) {
                static char text[4 * 4096];
                size_t size = 0;

                for (unsigned n = i < 295 ? random_below(200) : 4096; n > 0; n--)
                        size += put_utf8(text + size, random_character());
                assert_round_trip(tale, text, size, true);
                assert_round_trip(small, text, size, true);
                for (size_t k = 0; k < size; k++) { /* and no UTF-8 at all */
                        if (random_below(3) == 0)
                                text[k] = (char)random_below(256);
                }
                assert_round_trip(tale, text, size, false);
                assert_round_trip(small, text, size, false);
        }
}

/* ---- merges against the definition ---- */

/* All adjacent pairs are looked at again after every merge: O(n^2), and obviously right. */
static size_t slow_merge(const struct tdm_tokenizer *t, const uint8_t *text, size_t size, uint32_t *ids)
{
        size_t starts[256], n = 0, n_ids = 0;

        for (size_t at = 0; at < size; at += (size_t)tdm_utf8_length(text + at, size - at))
                starts[n++] = at;
        starts[n] = size;
        for (;;) {
                size_t best = 0;
                float score = 0.0f;

                for (size_t i = 0; i + 1 < n; i++) {
                        uint32_t id = tdm_tokenizer_find(t, text + starts[i], starts[i + 2] - starts[i]);

                        if (id != TDM_NO_PIECE && (!best || t->pieces[id].score > score)) {
                                best = i + 1;
                                score = t->pieces[id].score;
                        }
                }
                if (!best)
                        break;
                memmove(starts + best, starts + best + 1, (n - best) * sizeof(*starts));
                n--;
        }
        for (size_t i = 0; i < n; i++) {
                uint32_t id = tdm_tokenizer_find(t, text + starts[i], starts[i + 1] - starts[i]);

                if (id != TDM_NO_PIECE) {
                        ids[n_ids++] = id;
                        continue;
                }
                for (size_t k = starts[i]; k < starts[i + 1]; k++)
                        ids[n_ids++] = t->byte_ids[text[k]];
        }
        return n_ids;
}

static void test_merges(void **state)
{
        static const char *const words[] = { "the",   " ",  "an",           "d", "\xc3\xa9", "ing", " a", "e",   "ss",
                                             " king", "zz", "\xe2\x98\x83", ",", "th",       " of", "er", "aaa", "in",
                                             "o",     "1" };

        for (unsigned i = 0; i < 3000; i++) {
                uint8_t text[256];
                size_t size = 0, n;
                uint32_t ids[256], wanted[256];

                for (unsigned k = 1 + random_below(25); k > 0; k--) {
                        const char *word = words[random_below(TDM_ARRAY_SIZE(words))];

                        memcpy(text + size, word, strlen(word));
                        size += strlen(word);
                }
                n = slow_merge(tale, text, size, wanted);
                assert_int_equal(tdm_tokenizer_encode(tale, (char *)text, size, 0, ids, 256), n);
                assert_memory_equal(ids, wanted, n * sizeof(*ids));
        }
}

static void assert_ids(const struct tdm_tokenizer *t, const char *text, unsigned flags, const uint32_t *wanted,
                       size_t n)
{
        uint32_t ids[64];

        assert_int_equal(tdm_tokenizer_encode(t, text, strlen(text), flags, ids, 64), n);
        assert_memory_equal(ids, wanted, n * sizeof(*ids));
}
#define ASSERT_IDS(t, text, flags, ...)                                                                                \
        assert_ids(t, text, flags, (uint32_t[]){ __VA_ARGS__ }, sizeof((uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t))

#define BYTE(b) (uint32_t)(TDM_ARRAY_SIZE(build_pieces) + (b))

static void test_small(void **state)
{
        /* 6 "\n", 7 "  ", 8 " ", 9 a, 10 b, 11 c, 12 " a", 13 ab, 14 bc, 15 abc, 16 " abc", 17 é, 18 caa, 19 ca unused
         */
        ASSERT_IDS(small, "a", 0, 9);
        ASSERT_IDS(small, "a", BOTH, 2, 9);
        ASSERT_IDS(small, "", BOTH, 2);
        ASSERT_IDS(small, " a", 0, 12);
        ASSERT_IDS(small, "ab", 0, 13);
        ASSERT_IDS(small, "abc", 0, 15);
        ASSERT_IDS(small, " abc", 0, 16); /* by way of " a" and "bc" */
        ASSERT_IDS(small, "abab", 0, 13, 13);
        ASSERT_IDS(small, "aabc", 0, 9, 15);
        ASSERT_IDS(small, "\n", 0, 6);
        ASSERT_IDS(small, "   a", 0, 7, 12); /* two real spaces first, then a marked one */
        ASSERT_IDS(small, "\xc3\xa9", 0, 17);
        ASSERT_IDS(small, "\xc3\xa8", 0, BYTE(0xc3), BYTE(0xa8));
        ASSERT_IDS(small,
                   "a\xc3"
                   "a",
                   0, 9, BYTE(0xc3), 9);
        ASSERT_IDS(small,
                   "\xe2\x96\x81"
                   "a",
                   0, BYTE(0xe2), BYTE(0x96), BYTE(0x81), 9);
        ASSERT_IDS(small, "<bos>", TDM_TOKENIZE_SPECIAL, 2);
        ASSERT_IDS(small, "a<end_of_turn>b<unk>", TDM_TOKENIZE_SPECIAL, 9, 5, 10, 3);
        ASSERT_IDS(small, "<bos>", 0, BYTE('<'), 10, BYTE('o'), BYTE('s'), BYTE('>'));
        ASSERT_IDS(small, "<bos", TDM_TOKENIZE_SPECIAL, BYTE('<'), 10, BYTE('o'), BYTE('s'));
        /* An unused piece is formed on the way, and taken apart where it stays. */
        ASSERT_IDS(small, "ca", 0, 11, 9);
        ASSERT_IDS(small, "cab", 0, 11, 13);
        ASSERT_IDS(small, "caa", 0, 18);
        /* Bytes that look like a piece are not one. */
        ASSERT_IDS(small, "<0x41>", TDM_TOKENIZE_SPECIAL, BYTE('<'), BYTE('0'), BYTE('x'), BYTE('4'), BYTE('1'),
                   BYTE('>'));
}

static void test_invalid_utf8(void **state)
{
        static const char *const texts[] = {
                "\x80",         "\xc0\x80",         "\xc1\xbf",         "\xe0\x80\x80",     "\xe0\x9f\xbf",
                "\xed\xa0\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff\xfe",
                "\xe2\x82",     "\xf0\x9f\x98"
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(texts); i++) {
                uint32_t ids[8];
                size_t n = strlen(texts[i]);

                assert_int_equal(tdm_tokenizer_encode(small, texts[i], n, 0, ids, 8), n);
                for (size_t k = 0; k < n; k++)
                        assert_int_equal(ids[k], BYTE((uint8_t)texts[i][k]));
        }
        assert_int_equal(tdm_utf8_length((const uint8_t *)"\xf4\x8f\xbf\xbf", 4), 4);
        assert_int_equal(tdm_utf8_length((const uint8_t *)"\xed\x9f\xbf", 3), 3);
        assert_int_equal(tdm_utf8_length((const uint8_t *)"\xee\x80\x80", 3), 3);
        assert_int_equal(tdm_utf8_length((const uint8_t *)"\xe2\x82", 2), -1);
        assert_int_equal(tdm_utf8_length((const uint8_t *)"\xe2\x28", 2), 0);
}

static void test_capacity(void **state)
{
        uint32_t ids[4] = { 77, 77, 77, 77 };

        assert_int_equal(tdm_tokenizer_encode(small, "aaaaaa", 6, TDM_TOKENIZE_BOS, NULL, 0), 7);
        assert_int_equal(tdm_tokenizer_encode(small, "aaaaaa", 6, TDM_TOKENIZE_BOS, ids, 3), 7);
        assert_true(ids[0] == 2 && ids[1] == 9 && ids[2] == 9 && ids[3] == 77);
        assert_int_equal(tdm_tokenizer_encode(small, "a", 1, 8, ids, 3), -EINVAL);
        assert_int_equal(tdm_tokenizer_encode(small, "a", SIZE_MAX, 0, ids, 3), -E2BIG);
}

static void test_pieces(void **state)
{
        const char *data;

        assert_int_equal(tdm_tokenizer_n_vocab(tale), 6144);
        assert_int_equal(tdm_tokenizer_bos(tale), 2);
        assert_int_equal(tdm_tokenizer_eos(tale), 1);
        assert_true(tdm_tokenizer_add_bos(tale));
        assert_true(tdm_tokenizer_is_end(tale, 1) && tdm_tokenizer_is_end(tale, 5));
        assert_false(tdm_tokenizer_is_end(tale, 4) || tdm_tokenizer_is_end(tale, UINT32_MAX));
        assert_true(tdm_tokenizer_is_end(small, 1) && tdm_tokenizer_is_end(small, 5)); /* by its text */
        assert_false(tdm_tokenizer_is_end(small, 2));
        assert_int_equal(tdm_tokenizer_piece(small, 12, false, &data), 2);
        assert_memory_equal(data, " a", 2);
        assert_int_equal(tdm_tokenizer_piece(small, BYTE(0xc3), false, &data), 1);
        assert_int_equal((uint8_t)data[0], 0xc3);
        assert_int_equal(tdm_tokenizer_piece(small, 5, false, &data), 0);
        assert_int_equal(tdm_tokenizer_piece(small, 5, true, &data), 13);
        assert_int_equal(tdm_tokenizer_piece(small, 19, false, &data), 2);
        assert_int_equal(tdm_tokenizer_piece(small, BUILD_N_PIECES, true, &data), 0);
        assert_int_equal(tdm_tokenizer_piece(small, UINT32_MAX, true, &data), 0);
}

static size_t push(struct tdm_decoder *d, uint32_t id, char *out)
{
        size_t n = tdm_decoder_push(d, id, out, TDM_DECODER_ROOM(d->tokenizer));

        out[n] = 0;
        return n;
}

static void test_decoder(void **state)
{
        struct tdm_decoder d;
        char out[512];

        assert_true(TDM_DECODER_ROOM(small) < sizeof(out));
        tdm_decoder_init(&d, small, false);
        assert_int_equal(push(&d, 2, out), 0); /* control */
        assert_int_equal(push(&d, BYTE(0xf0), out), 0);
        assert_int_equal(push(&d, BYTE(0x9f), out), 0);
        assert_int_equal(push(&d, BYTE(0xa6), out), 0);
        assert_int_equal(push(&d, BYTE(0x8a), out), 4);
        assert_string_equal(out, "\xf0\x9f\xa6\x8a");
        /* An unfinished character followed by something else. */
        assert_int_equal(push(&d, BYTE(0xe2), out), 0);
        assert_int_equal(push(&d, BYTE(0x98), out), 0);
        assert_int_equal(push(&d, 9, out), 7);
        assert_string_equal(out, "\xef\xbf\xbd\xef\xbf\xbd"
                                 "a");
        assert_int_equal(push(&d, BYTE(0xff), out), 3);
        assert_string_equal(out, "\xef\xbf\xbd");
        /* The second lead byte begins anew. */
        assert_int_equal(push(&d, BYTE(0xe2), out), 0);
        assert_int_equal(push(&d, BYTE(0xc3), out), 3);
        assert_int_equal(push(&d, BYTE(0xa9), out), 2);
        assert_string_equal(out, "\xc3\xa9");
        assert_int_equal(tdm_decoder_finish(&d, out, sizeof(out)), 0);
        assert_int_equal(push(&d, BYTE(0xf0), out), 0);
        assert_int_equal(push(&d, BYTE(0x9f), out), 0);
        assert_int_equal(tdm_decoder_finish(&d, out, sizeof(out)), 6);
        assert_int_equal(tdm_decoder_finish(&d, out, sizeof(out)), 0);
        tdm_decoder_init(&d, small, true);
        assert_int_equal(push(&d, 2, out), 5);
        assert_string_equal(out, "<bos>");
}

/* ---- other vocabularies ---- */

struct vocabulary {
        const char *pieces[16];
        int32_t types[16];
        uint32_t n;
        bool space_prefix;
        int32_t unknown; /* -1: none */
        const char *model;
        float score;
};

static int tokenizer_from(const struct vocabulary *v, struct tdm_tokenizer **ret, struct tdm_error *err)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
        _cleanup_(closep) int fd = -1;
        struct gguf_builder b = { 0 };
        int r;

        build_header(&b, 0, 5u + (v->unknown >= 0));
        build_key_string(&b, "tokenizer.ggml.model", v->model ? v->model : "llama");
        build_array(&b, "tokenizer.ggml.tokens", VALUE_STRING, v->n);
        for (uint32_t i = 0; i < v->n; i++)
                build_string(&b, v->pieces[i]);
        build_array(&b, "tokenizer.ggml.scores", VALUE_F32, v->n);
        for (uint32_t i = 0; i < v->n; i++)
                build_f32(&b, v->score != 0.0f ? v->score : -(float)i);
        build_array(&b, "tokenizer.ggml.token_type", VALUE_I32, v->n);
        for (uint32_t i = 0; i < v->n; i++)
                build_u32(&b, (uint32_t)v->types[i]);
        build_key_bool(&b, "tokenizer.ggml.add_space_prefix", v->space_prefix);
        if (v->unknown >= 0)
                build_key_u32(&b, "tokenizer.ggml.unknown_token_id", (uint32_t)v->unknown);
        fd = build_fd(b.data, b.size);
        build_reset(&b);
        assert_int_equal(tdm_gguf_open(&g, fd, "test.gguf", err), 0);
        r = tdm_tokenizer_new(ret, g, err);
        return r;
}

static void refuse_vocabulary(const struct vocabulary *v, int code, const char *text)
{
        struct tdm_tokenizer *t = NULL;
        struct tdm_error err = { 0 };
        int r = tokenizer_from(v, &t, &err);

        if (r != code || !strstr(err.message, text))
                fail_msg("wanted %d with \"%s\", got %d: %s", code, text, r, err.message);
        assert_null(t);
}

static void test_bad_vocabularies(void **state)
{
        char longest[1100] = { 0 };
        struct vocabulary v = { { "<unk>", "a", "b" }, { 2, 1, 1 }, 3, false, 0, NULL, 0.0f };

        v.model = "rwkv";
        refuse_vocabulary(&v, TDM_E_UNSUPPORTED, "its tokenizer is \"rwkv\"");
        v.model = "gpt2";
        refuse_vocabulary(&v, TDM_E_UNSUPPORTED, "the key tokenizer.ggml.pre is missing");
        v.model = "gemma4";
        refuse_vocabulary(&v, TDM_E_BAD_MODEL, "the key tokenizer.ggml.merges is missing");
        v.model = NULL;
        v.types[1] = 7;
        refuse_vocabulary(&v, TDM_E_BAD_MODEL, "piece 1 has the type 7");
        v.types[1] = 0;
        refuse_vocabulary(&v, TDM_E_BAD_MODEL, "piece 1 has the type 0");
        v.types[1] = -1;
        refuse_vocabulary(&v, TDM_E_BAD_MODEL, "no type for piece 1");
        v.types[1] = 6;
        refuse_vocabulary(&v, TDM_E_BAD_MODEL, "piece 1 is a byte");
        v.types[1] = 1;
        v.unknown = 3; /* is none of the pieces: as if there were none */
        refuse_vocabulary(&v, TDM_E_BAD_MODEL, "neither the piece <0x00> nor an unknown piece");
        v.unknown = -1;
        refuse_vocabulary(&v, TDM_E_BAD_MODEL, "neither the piece <0x00> nor an unknown piece");
        v.unknown = 0;
        v.score = __builtin_nanf("");
        refuse_vocabulary(&v, TDM_E_BAD_MODEL, "no score for piece 0");
        v.score = 0.0f;
        memset(longest, 'x', 1025);
        v.pieces[2] = longest;
        refuse_vocabulary(&v, TDM_E_BAD_MODEL, "piece 2 has 1025 bytes");
        v.n = 0;
        refuse_vocabulary(&v, TDM_E_BAD_MODEL, "missing or empty");
}

static void test_odd_vocabularies(void **state)
{
        /* No byte pieces, pieces twice, special pieces inside of others, a normal piece with a real space, markers that
         * the file calls normal or user-defined. */
        static const struct vocabulary v = {
                { "<unk>", "a", "a", "aa", "<x>", "<x><y>", "<y>", "a b", "<start_of_turn>", "<end_of_turn>", "",
                  "\xe2\x96\x81",
                  "\xe2\x96\x81"
                  "a",
                  "<|im_end|>" },
                { 2, 1, 1, 1, 4, 4, 4, 1, 1, 4, 1, 1, 1, 1 },
                14,
                true,
                0,
                NULL,
                0.0f,
        };
        _cleanup_(tdm_tokenizer_destroyp) struct tdm_tokenizer *t = NULL;
        struct tdm_decoder d;
        struct tdm_error err;
        const char *data;
        char out[256];

        assert_int_equal(tokenizer_from(&v, &t, &err), 0);
        ASSERT_IDS(t, "a", 0, 12);
        ASSERT_IDS(t, "aaa", 0, 11, 3, 1);   /* the first of two equal texts; " a" would score less than "aa" */
        ASSERT_IDS(t, "<x>a", 0, 4, 1);      /* no space behind a user-defined piece */
        ASSERT_IDS(t, "<x><y><x>", 0, 5, 4); /* the longest */
        ASSERT_IDS(t, "a b", 0, 12, 11, 0);  /* "a b" cannot be formed; b is unknown */
        ASSERT_IDS(t, "\xc3\xa9", 0, 11, 0); /* one unknown for the character */
        ASSERT_IDS(t, "\xc3", 0, 11, 0);
        ASSERT_IDS(t, "<start_of_turn>", TDM_TOKENIZE_SPECIAL, 8);
        ASSERT_IDS(t, "<start_of_turn>a", TDM_TOKENIZE_SPECIAL, 8, 12);
        assert_int_equal(tdm_tokenizer_encode(t, "<end_of_turn>", 13, 0, NULL, 0), 14); /* text, not a marker */
        assert_int_equal(tdm_tokenizer_piece(t, 9, false, &data), 0);
        assert_true(tdm_tokenizer_is_end(t, 9) && tdm_tokenizer_is_end(t, 13));
        assert_int_equal(tdm_tokenizer_bos(t), -1);
        assert_int_equal(tdm_tokenizer_eos(t), -1);
        tdm_decoder_init(&d, t, false);
        assert_int_equal(push(&d, 12, out), 1); /* the space that encoding put in front */
        assert_int_equal(push(&d, 12, out), 2);
}

/* Equal scores: the leftmost pair first. */
static void test_ties(void **state)
{
        static const struct vocabulary v = { { "<unk>", "a", "aa", "aaa" }, { 2, 1, 1, 1 }, 4, false, 0, NULL, -1.0f };
        _cleanup_(tdm_tokenizer_destroyp) struct tdm_tokenizer *t = NULL;
        struct tdm_error err;

        assert_int_equal(tokenizer_from(&v, &t, &err), 0);
        ASSERT_IDS(t, "aaaa", 0, 3, 1);
        ASSERT_IDS(t, "aaaaa", 0, 3, 2);
}

/* n log n: a megabyte without a border. */
static void test_long(void **state)
{
        size_t size = 1 << 20;
        _cleanup_(freep) char *text = malloc(size);
        uint64_t start = tdm_now_ns();

        assert_non_null(text);
        memset(text, 'a', size);
        assert_true(tdm_tokenizer_encode(tale, text, size, 0, NULL, 0) > 0);
        memset(text, '\n', size);
        assert_int_equal(tdm_tokenizer_encode(tale, text, size, 0, NULL, 0), size);
        memset(text, ' ', size);
        assert_true(tdm_tokenizer_encode(tale, text, size, BOTH, NULL, 0) > 0);
        assert_true(tdm_now_ns() - start < 20 * TDM_NSEC_PER_SEC); /* quadratic would take hours */
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_golden),       cmocka_unit_test(test_round_trip),
                cmocka_unit_test(test_merges),       cmocka_unit_test(test_small),
                cmocka_unit_test(test_invalid_utf8), cmocka_unit_test(test_capacity),
                cmocka_unit_test(test_pieces),       cmocka_unit_test(test_decoder),
                cmocka_unit_test(test_ties),         cmocka_unit_test(test_bad_vocabularies),
                cmocka_unit_test(test_long),         cmocka_unit_test(test_odd_vocabularies),
        };

        if (tdm_sigbus_init() < 0)
                return 1;
        return cmocka_run_group_tests(tests, set_up, tear_down);
}
