/* Vocabularies that nobody trained: random ones against the definition, and ones made to be slow. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "common/utf8.h"
#include "engine/file/test-gguf-builder.h"
#include "engine/text/tokenizer-private.h"

#define TEXT_BYTES 65536u

#define ORDINARY_BYTES 4096u

/* How much longer a byte may take than one of an ordinary text. It is about 3, with sanitizers 4. What grows with a
 * piece's length or with the text's is far above. */
#define TIMES_ORDINARY 8u

/* ---- vocabularies ---- */

struct vocabulary {
        uint32_t n, capacity;
        struct raw_piece {
                uint8_t *text;
                uint32_t size;
                uint8_t type;
                float score;
        } * pieces;
        bool space_prefix;
};

static void add(struct vocabulary *v, const void *text, size_t size, uint8_t type, float score)
{
        if (v->n == v->capacity) {
                v->capacity = 2 * v->capacity + 64;
                v->pieces = realloc(v->pieces, v->capacity * sizeof(*v->pieces));
                assert_non_null(v->pieces);
        }
        v->pieces[v->n] = (struct raw_piece){ malloc(size + 1), (uint32_t)size, type, score };
        assert_non_null(v->pieces[v->n].text);
        if (size > 0)
                memcpy(v->pieces[v->n].text, text, size);
        v->n++;
}

static void add_bytes(struct vocabulary *v)
{
        char byte[8];

        for (unsigned i = 0; i < 256; i++)
                add(v, byte, (size_t)snprintf(byte, sizeof(byte), "<0x%02X>", i & 255u), TDM_PIECE_BYTE, 0);
}

/* n times the letter, then the tail. */
static void add_run(struct vocabulary *v, char letter, uint32_t n, const char *tail, uint8_t type, float score)
{
        char text[TDM_PIECE_BYTES_MAX + 1];

        memset(text, letter, n);
        memcpy(text + n, tail, strlen(tail));
        add(v, text, n + strlen(tail), type, score);
}

static struct tdm_tokenizer *tokenizer_of(const struct vocabulary *v)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
        _cleanup_(closep) int fd = -1;
        struct tdm_tokenizer *t = NULL;
        struct gguf_builder b = { 0 };
        struct tdm_error err;

        build_header(&b, 0, 5);
        build_key_string(&b, "tokenizer.ggml.model", "llama");
        build_key_bool(&b, "tokenizer.ggml.add_space_prefix", v->space_prefix);
        build_array(&b, "tokenizer.ggml.tokens", VALUE_STRING, v->n);
        for (uint32_t i = 0; i < v->n; i++) {
                build_u64(&b, v->pieces[i].size);
                build_bytes(&b, v->pieces[i].text, v->pieces[i].size);
        }
        build_array(&b, "tokenizer.ggml.scores", VALUE_F32, v->n);
        for (uint32_t i = 0; i < v->n; i++)
                build_f32(&b, v->pieces[i].score);
        build_array(&b, "tokenizer.ggml.token_type", VALUE_U8, v->n);
        for (uint32_t i = 0; i < v->n; i++)
                build_bytes(&b, &v->pieces[i].type, 1);
        fd = build_fd(b.data, b.size);
        build_reset(&b);
        if (tdm_gguf_open(&g, fd, "hostile", &err) || tdm_tokenizer_new(&t, g, &err))
                fail_msg("%s", err.message);
        return t;
}

static void vocabulary_reset(struct vocabulary *v)
{
        for (uint32_t i = 0; i < v->n; i++)
                free(v->pieces[i].text);
        free(v->pieces);
        *v = (struct vocabulary){ 0 };
}

/* ---- the definition, as slow as it reads ---- */

struct naive {
        const struct vocabulary *v;
        uint32_t ids[4096];
        size_t n_ids;
};

/* Pieces as they stand in running text: U+2581 is a space. Returns the id, or -1. */
static int64_t naive_find(const struct vocabulary *v, const uint8_t *text, size_t size)
{
        for (uint32_t id = 0; id < v->n; id++) {
                const struct raw_piece *p = &v->pieces[id];
                size_t at = 0, k = 0;

                if (p->size == 0 || (p->type != TDM_PIECE_NORMAL && p->type != TDM_PIECE_UNUSED))
                        continue;
                if (memchr(p->text, ' ', p->size))
                        continue;
                while (k < p->size && at < size) {
                        if (p->size - k >= 3 && memcmp(p->text + k, "\xe2\x96\x81", 3) == 0) {
                                if (text[at] != ' ')
                                        break;
                                k += 3;
                        } else if (p->text[k++] != text[at])
                                break;
                        at++;
                }
                if (k == p->size && at == size)
                        return id;
        }
        return -1;
}

static int64_t naive_special(const struct vocabulary *v, const uint8_t *text, size_t size, bool controls)
{
        int64_t best = -1;

        for (uint32_t id = 0; id < v->n; id++) {
                const struct raw_piece *p = &v->pieces[id];
                bool fits = p->type == TDM_PIECE_USER_DEFINED ||
                            (controls && (p->type == TDM_PIECE_CONTROL || p->type == TDM_PIECE_UNKNOWN));

                if (fits && p->size > 0 && p->size <= size && memcmp(p->text, text, p->size) == 0 &&
                    (best < 0 || p->size > v->pieces[best].size))
                        best = id;
        }
        return best;
}

static void naive_bytes(struct naive *e, const uint8_t *text, size_t size)
{
        for (size_t i = 0; i < size; i++)
                e->ids[e->n_ids++] = e->v->n - 256 + text[i]; /* byte pieces come last */
}

/* Merges the characters starts[0 .. n], then gives out what came of it; a piece that is not used is taken apart where
 * it was merged last: when[i] tells for the border in front of character i. */
static void naive_out(struct naive *e, const uint8_t *text, const size_t *starts, const unsigned *when, size_t from,
                      size_t to)
{
        int64_t id = naive_find(e->v, text + starts[from], starts[to] - starts[from]);
        size_t last = from + 1;

        if (id < 0) {
                naive_bytes(e, text + starts[from], starts[to] - starts[from]);
                return;
        }
        if (to - from == 1 || e->v->pieces[id].type != TDM_PIECE_UNUSED) {
                e->ids[e->n_ids++] = (uint32_t)id;
                return;
        }
        for (size_t i = from + 1; i < to; i++) {
                if (when[i] > when[last])
                        last = i;
        }
        naive_out(e, text, starts, when, from, last);
        naive_out(e, text, starts, when, last, to);
}

static void naive_merge(struct naive *e, const uint8_t *text, size_t size)
{
        size_t starts[260], parts[260], n = 0, n_parts;
        unsigned when[260] = { 0 };

        for (size_t at = 0; at < size; n++) {
                starts[n] = at;
                parts[n] = n;
                at += (size_t)tdm_utf8_length(text + at, size - at);
        }
        starts[n] = size;
        parts[n] = n;
        n_parts = n;
        for (unsigned time = 1;; time++) {
                size_t best = 0;
                float score = 0;

                for (size_t i = 0; i + 1 < n_parts; i++) {
                        int64_t id = naive_find(e->v, text + starts[parts[i]], starts[parts[i + 2]] - starts[parts[i]]);

                        if (id >= 0 && (!best || e->v->pieces[id].score > score)) {
                                best = i + 1;
                                score = e->v->pieces[id].score;
                        }
                }
                if (!best)
                        break;
                when[parts[best]] = time;
                memmove(parts + best, parts + best + 1, (n_parts - best) * sizeof(*parts));
                n_parts--;
        }
        for (size_t i = 0; i < n_parts; i++)
                naive_out(e, text, starts, when, parts[i], parts[i + 1]);
}

static void naive_run(struct naive *e, const uint8_t *text, size_t size, bool prefix)
{
        uint8_t copy[260];
        size_t start = 0, n = 0;

        if (size == 0)
                return;
        if (prefix)
                copy[n++] = ' ';
        memcpy(copy + n, text, size);
        n += size;
        for (size_t at = 0; at <= n;) {
                int length = at < n ? tdm_utf8_length(copy + at, n - at) : 0;

                if (length > 0) {
                        at += (size_t)length;
                        continue;
                }
                naive_merge(e, copy + start, at - start);
                if (at < n)
                        naive_bytes(e, copy + at, 1);
                start = ++at;
        }
}

static void naive_encode(struct naive *e, const uint8_t *text, size_t size, bool controls)
{
        bool prefix = e->v->space_prefix;
        size_t start = 0, at = 0;

        e->n_ids = 0;
        while (at < size) {
                int64_t id = naive_special(e->v, text + at, size - at, controls);
                int length = tdm_utf8_length(text + at, size - at);

                if (id < 0) {
                        at += length > 0 ? (size_t)length : 1;
                        continue;
                }
                naive_run(e, text + start, at - start, prefix);
                e->ids[e->n_ids++] = (uint32_t)id;
                prefix = e->v->space_prefix && e->v->pieces[id].type != TDM_PIECE_USER_DEFINED;
                at += e->v->pieces[id].size;
                start = at;
        }
        naive_run(e, text + start, size - start, prefix);
}

static uint64_t random_state = 7;

static uint32_t random_below(uint32_t n)
{
        random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (uint32_t)((random_state >> 33) % n);
}

/* Few letters, so that everything overlaps everything. */
static size_t random_text(uint8_t *text, unsigned n, bool of_piece)
{
        static const char *const letters[] = { "a", "a", "a", "b", "b", "c", "<", "\xc3\xa9", " " };
        size_t size = 0;

        while (n-- > 0) {
                const char *letter = letters[random_below(TDM_ARRAY_SIZE(letters))];

                if (random_below(40) == 0)
                        letter = of_piece ? "\xe2\x96\x81" : "\xe9";
                else if (of_piece && letter[0] == ' ' && random_below(4))
                        letter = "\xe2\x96\x81";
                memcpy(text + size, letter, strlen(letter));
                size += strlen(letter);
        }
        return size;
}

static void test_random_vocabularies(void **state)
{
        static struct naive naive;
        unsigned n_specials = 0, n_merged = 0;

        for (unsigned i = 0; i < 400; i++) {
                struct vocabulary v = { .space_prefix = random_below(2) };
                struct tdm_tokenizer *t;

                for (uint32_t n = 1 + random_below(60), k = 0; k < n; k++) {
                        static const uint8_t types[] = { 1, 1, 1, 1, 2, 3, 4, 4, 5, 5 };
                        uint8_t text[64];
                        size_t size = random_text(text, random_below(i % 2 ? 5 : 9), true);

                        add(&v, text, size, types[random_below(sizeof(types))], (float)random_below(6));
                }
                add_bytes(&v);
                t = tokenizer_of(&v);
                naive.v = &v;
                for (unsigned k = 0; k < 25; k++) {
                        uint8_t text[256];
                        uint32_t ids[600];
                        size_t size = random_text(text, random_below(60), false);
                        bool controls = k % 2;

                        naive_encode(&naive, text, size, controls);
                        assert_int_equal(tdm_tokenizer_encode(t, (char *)text, size,
                                                              controls ? TDM_TOKENIZE_SPECIAL : 0, ids, 600),
                                         naive.n_ids);
                        assert_memory_equal(ids, naive.ids, naive.n_ids * sizeof(*ids));
                        for (size_t j = 0; j < naive.n_ids; j++) {
                                uint8_t type = v.pieces[ids[j]].type;

                                n_specials += type >= TDM_PIECE_UNKNOWN && type <= TDM_PIECE_USER_DEFINED;
                                n_merged += type == TDM_PIECE_NORMAL && v.pieces[ids[j]].size > 1;
                        }
                }
                tdm_tokenizer_destroy(t);
                vocabulary_reset(&v);
        }
        assert_true(n_specials > 10000 && n_merged > 10000); /* it was about something */
}

/* A special piece that lies across the border of the window in which they are looked for, at every offset. */
static void test_across_windows(void **state)
{
        _cleanup_(freep) char *text = malloc(TEXT_BYTES);
        _cleanup_(freep) uint32_t *ids = malloc(TEXT_BYTES * sizeof(*ids));
        struct vocabulary v = { 0 };
        struct tdm_tokenizer *t;

        assert_true(text && ids);
        add(&v, "<user-defined>", 14, TDM_PIECE_USER_DEFINED, 0);
        add(&v, "<user", 5, TDM_PIECE_USER_DEFINED, 0);
        add_run(&v, '=', 1000, ">", TDM_PIECE_CONTROL, 0);
        add_bytes(&v);
        t = tokenizer_of(&v);
        for (size_t at = 16384 - 16; at <= 16384 + 2; at++) {
                memset(text, 'x', TEXT_BYTES);
                memcpy(text + at, "<user-defined>", 14);
                memcpy(text + at + 16384 + 14, "<user-define", 12);
                assert_int_equal(tdm_tokenizer_encode(t, text, TEXT_BYTES, 0, ids, TEXT_BYTES), TEXT_BYTES - 13 - 4);
                assert_int_equal(ids[at], 0);
                assert_int_equal(ids[at + 16384 + 1], 1);
        }
        memset(text, '=', TEXT_BYTES);
        for (size_t at = 16384 - 1001; at <= 16384; at += 77) {
                memset(text, 'x', TEXT_BYTES);
                memset(text + at, '=', 1000);
                text[at + 1000] = '>';
                assert_int_equal(tdm_tokenizer_encode(t, text, TEXT_BYTES, TDM_TOKENIZE_SPECIAL, ids, TEXT_BYTES),
                                 TEXT_BYTES - 1000);
                assert_int_equal(ids[at], 2);
        }
        tdm_tokenizer_destroy(t);
        vocabulary_reset(&v);
}

/* ---- made to be slow ---- */

static uint64_t cpu_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return (uint64_t)now.tv_sec * TDM_NSEC_PER_SEC + (uint64_t)now.tv_nsec;
}

/* A text of no bad intent: random letters, of which every pair is a piece. It is short, so a byte of a long text must
 * not take longer than one of a short text either. */
struct ordinary {
        struct tdm_tokenizer *t;
        char text[ORDINARY_BYTES];
};

static void ordinary_new(struct ordinary *o)
{
        struct vocabulary v = { 0 };

        for (unsigned i = 0; i < 26 * 27; i++) {
                char piece[2] = { (char)('a' + i % 26), (char)('a' + i / 26) };

                add(&v, piece, i < 26 * 26 ? 2 : 1, TDM_PIECE_NORMAL, (float)random_below(100));
        }
        add_bytes(&v);
        o->t = tokenizer_of(&v);
        vocabulary_reset(&v);
        for (uint32_t i = 0; i < ORDINARY_BYTES; i++)
                o->text[i] = (char)('a' + random_below(26));
}

/* Nanoseconds of `times` times the text. */
static double encode_ns(const struct tdm_tokenizer *t, const char *text, size_t size, unsigned times)
{
        uint64_t begin = cpu_ns();

        for (unsigned i = 0; i < times; i++)
                assert_true(tdm_tokenizer_encode(t, text, size, TDM_TOKENIZE_SPECIAL, NULL, 0) > 0);
        return (double)(cpu_ns() - begin);
}

/* Measured beside the ordinary text in the same moment, so that a slow machine matters little. */
static void assert_quick(const struct vocabulary *v, const char *text, size_t size, const char *what)
{
        struct tdm_tokenizer *t = tokenizer_of(v);
        double least = INFINITY, ordinary = INFINITY; /* of a byte */
        struct ordinary o;

        ordinary_new(&o);
        for (unsigned i = 0; i < 3 || (i < 30 && least > TIMES_ORDINARY * ordinary); i++) {
                least = fmin(least, encode_ns(t, text, size, 1) / (double)size);
                ordinary = fmin(ordinary, encode_ns(o.t, o.text, ORDINARY_BYTES, 8) / (8 * ORDINARY_BYTES));
        }
        tdm_tokenizer_destroy(o.t);
        tdm_tokenizer_destroy(t);
        print_message("%s: %.1f ns a byte, of an ordinary text: %.1f\n", what, least, ordinary);
        if (least > TIMES_ORDINARY * ordinary)
                fail_msg("%s: a byte of %zu took %.1f ns, %.1f times one of an ordinary text", what, size, least,
                         least / ordinary);
}

static char *text_of(char letter)
{
        char *text = malloc(TEXT_BYTES);

        assert_non_null(text);
        memset(text, letter, TEXT_BYTES);
        return text;
}

/* 2^21 control pieces that read the same: collapsed when they are loaded. */
static void test_same_controls(void **state)
{
        _cleanup_(freep) char *text = text_of('a');
        struct vocabulary v = { 0 };
        uint32_t ids[8];
        struct tdm_tokenizer *t;

        for (uint32_t i = 0; i < (1u << 21) - 257; i++)
                add(&v, "a", 1, TDM_PIECE_CONTROL, 0);
        add(&v, "aa", 2, TDM_PIECE_CONTROL, 0);
        add_bytes(&v);
        assert_quick(&v, text, 2500, "equal control pieces");
        t = tokenizer_of(&v);
        assert_int_equal(tdm_tokenizer_encode(t, text, 3, TDM_TOKENIZE_SPECIAL, ids, 8), 2);
        assert_true(ids[0] == (1u << 21) - 257 && ids[1] == 0);
        tdm_tokenizer_destroy(t);
        vocabulary_reset(&v);
}

/* Special pieces that share long beginnings with each other and with the text, but do not match. */
static void test_shared_prefixes(void **state)
{
        _cleanup_(freep) char *text = text_of('a');
        struct vocabulary v = { 0 };

        for (uint32_t n = 1; n < TDM_PIECE_BYTES_MAX; n++)
                add_run(&v, 'a', n, "b", TDM_PIECE_USER_DEFINED, 0);
        add_bytes(&v);
        assert_quick(&v, text, TEXT_BYTES, "special pieces with shared prefixes");
        vocabulary_reset(&v);
        /* And endings, which the automaton walks first. */
        for (uint32_t n = 1; n < TDM_PIECE_BYTES_MAX; n += 7) {
                char piece[TDM_PIECE_BYTES_MAX];

                memset(piece, 'a', sizeof(piece));
                piece[0] = 'b';
                add(&v, piece, n, TDM_PIECE_USER_DEFINED, 0);
                for (uint32_t i = n; i > 1; i /= 2)
                        piece[i - 1] = 'b';
                add(&v, piece, n, TDM_PIECE_CONTROL, 0);
        }
        add_bytes(&v);
        assert_quick(&v, text, TEXT_BYTES, "special pieces with shared endings");
        vocabulary_reset(&v);
}

/* Each merge adds one character, and each candidate is looked up by all its bytes. */
static void test_long_merges(void **state)
{
        _cleanup_(freep) char *text = text_of('a');

        for (int growing = 0; growing < 2; growing++) {
                struct vocabulary v = { 0 };

                for (uint32_t n = 1; n <= TDM_PIECE_BYTES_MAX; n++)
                        add_run(&v, 'a', n, "", TDM_PIECE_NORMAL, growing ? (float)n : -(float)n);
                add_bytes(&v);
                assert_quick(&v, text, TEXT_BYTES,
                             growing ? "merges, the longest first" : "merges, the shortest first");
                vocabulary_reset(&v);
        }
}

/* Everything that merges make has to be taken apart again. */
static void test_unused_pieces(void **state)
{
        _cleanup_(freep) char *text = text_of('a');

        for (int growing = 0; growing < 2; growing++) {
                struct vocabulary v = { 0 };
                struct tdm_tokenizer *t;

                for (uint32_t n = 1; n <= TDM_PIECE_BYTES_MAX; n++)
                        add_run(&v, 'a', n, "", n == 1 ? TDM_PIECE_NORMAL : TDM_PIECE_UNUSED,
                                growing ? (float)n : -(float)n);
                add_bytes(&v);
                assert_quick(&v, text, TEXT_BYTES, "unused pieces");
                t = tokenizer_of(&v);
                assert_int_equal(tdm_tokenizer_encode(t, text, TEXT_BYTES, 0, NULL, 0), TEXT_BYTES);
                tdm_tokenizer_destroy(t);
                vocabulary_reset(&v);
        }
}

/* A million different pieces take about as long to look up as a few. */
static void test_many_pieces(void **state)
{
        _cleanup_(freep) char *text = malloc(TEXT_BYTES);
        struct vocabulary v = { 0 };
        char piece[16];

        assert_non_null(text);
        for (uint32_t i = 0; i < 1000000; i++)
                add(&v, piece, (size_t)snprintf(piece, sizeof(piece), "%x", (unsigned)i), TDM_PIECE_NORMAL,
                    (float)(i % 1000));
        for (uint32_t i = 0; i < 100000; i++)
                add(&v, piece, (size_t)snprintf(piece, sizeof(piece), "<%x", (unsigned)i), TDM_PIECE_CONTROL, 0);
        add_bytes(&v);
        for (uint32_t i = 0; i < TEXT_BYTES; i++)
                text[i] = "0123456789abcdef<"[random_below(17)];
        assert_quick(&v, text, TEXT_BYTES, "a million pieces");
        vocabulary_reset(&v);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_random_vocabularies), cmocka_unit_test(test_across_windows),
                cmocka_unit_test(test_same_controls),       cmocka_unit_test(test_shared_prefixes),
                cmocka_unit_test(test_long_merges),         cmocka_unit_test(test_unused_pieces),
                cmocka_unit_test(test_many_pieces),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
