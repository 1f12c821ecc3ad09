/* Grammars against the cases in tests/grammar: each text is taken or not byte by byte, cut into tokens in two ways, and
 * with every mask on its way compared to what is accepted. Then what a matcher promises: rollback, equal masks whatever
 * was tried before, caches within their cap; and hostile sources within bounds. */
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include "engine/grammar/grammar.h"
#include "engine/grammar/json.h"

enum { N_MORE = 400, N_VOCAB = 256 + N_MORE + 1 };

static char pieces[N_VOCAB][12];
static uint8_t sizes[N_VOCAB];
static struct tdm_vocabulary *vocabulary;

static size_t piece_of(void *userdata, uint32_t id, const char **ret_data)
{
        *ret_data = pieces[id];
        return sizes[id];
}

static bool is_end(void *userdata, uint32_t id)
{
        return id == N_VOCAB - 1;
}

static int setup(void **state)
{
        static const char alphabet[] = "\"\"\"{}[]:,, \n\\ntrufalse0123.-e+abcxyz\xc3\xa9\xf0\x9f\x98\x80_";
        uint32_t random = 1;

        for (unsigned id = 0; id < 256 + N_MORE; id++) {
                sizes[id] = 1;
                pieces[id][0] = (char)id;
                if (id < 256)
                        continue;
                sizes[id] = (uint8_t)(2 + id % 5);
                for (unsigned i = 0; i < sizes[id]; i++) {
                        random = random * 1664525 + 1013904223;
                        pieces[id][i] = alphabet[(random >> 16) % (sizeof(alphabet) - 1)];
                }
        }
        memcpy(pieces[300], pieces[299], sizes[300] = sizes[299]); /* two tokens with the same bytes */
        sizes[301] = 0;                                            /* and one that may never stand in a text */
        return tdm_vocabulary_new(&vocabulary, N_VOCAB, piece_of, is_end, NULL);
}

static int teardown(void **state)
{
        tdm_vocabulary_unref(vocabulary);
        return 0;
}

static void check_mask(struct tdm_matcher *m, const char *source)
{
        uint64_t mask[(N_VOCAB + 63) / 64];
        const uint64_t *words;

        assert_int_equal(tdm_matcher_mask(m, &words), 0);
        memcpy(mask, words, sizeof(mask));
        for (uint32_t id = 0; id < N_VOCAB; id++) {
                int r = tdm_matcher_accept(m, id);

                if (r != (int)(mask[id / 64] >> id % 64 & 1))
                        fail_msg("token %u '%.*s': mask %d, accepted %d, of %s", id, sizes[id], pieces[id], !r, r,
                                 source);
                if (r)
                        assert_int_equal(tdm_matcher_rollback(m, 1), 0);
        }
}

/* Whether the text is taken; masks are compared at each byte where masks is set. */
static bool takes(struct tdm_grammar *g, const char *text, size_t size, const char *source, bool masks)
{
        _cleanup_(tdm_matcher_destroyp) struct tdm_matcher *m = NULL;
        size_t at = 0;

        assert_int_equal(tdm_matcher_new(&m, g, vocabulary), 0);
        for (at = 0; at < size; at++) {
                if (masks)
                        check_mask(m, source);
                if (tdm_matcher_accept(m, (uint8_t)text[at]) != 1)
                        return false;
        }
        if (masks)
                check_mask(m, source);
        return tdm_matcher_is_whole(m);
}

static void check_text(struct tdm_grammar *g, const char *text, size_t size, bool wanted, const char *source)
{
        _cleanup_(tdm_matcher_destroyp) struct tdm_matcher *m = NULL;
        int r;

        if (takes(g, text, size, source, size < 24) != wanted)
                fail_msg("'%.*s' should %sbe taken by %s", (int)size, text, wanted ? "" : "not ", source);
        assert_int_equal(tdm_matcher_new(&m, g, NULL), 0);
        r = tdm_matcher_accept_bytes(m, text, size);
        assert_true(wanted ? r == 1 && tdm_matcher_is_whole(m) : r == 0 || !tdm_matcher_is_whole(m));
}

static int compile(struct tdm_grammar **ret, const struct tdm_json *json, char **ret_source, unsigned flags,
                   struct tdm_error *err)
{
        static const char *const names[] = { "schema", "gbnf", "regex" };
        struct tdm_json_buffer source = { 0 };
        uint32_t node = TDM_JSON_NONE;
        unsigned kind;
        int r;

        for (kind = 0; node == TDM_JSON_NONE; kind++)
                node = tdm_json_member(json, 0, names[kind]);
        if (kind == 1)
                tdm_json_print(json, node, &source);
        else
                tdm_json_write(&source, tdm_json_text(json, node), tdm_json_get(json, node)->text_size);
        r = kind == 1 ? tdm_grammar_new_schema(ret, source.data, source.size, flags, NULL, err) :
            kind == 2 ? tdm_grammar_new_gbnf(ret, source.data, source.size, NULL, err) :
                        tdm_grammar_new_regex(ret, source.data, source.size, NULL, err);
        tdm_json_write(&source, "", 1);
        *ret_source = source.data;
        return r;
}

static void run_case(const char *line, size_t size)
{
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *g = NULL;
        _cleanup_(freep) char *source = NULL;
        struct tdm_error err = { 0 };
        struct tdm_json json;
        uint32_t node;
        int r;

        assert_int_equal(tdm_json_parse(&json, line, size, 100, &err), 0);
        r = compile(&g, &json, &source, 0, &err);
        node = tdm_json_member(&json, 0, "unsupported");
        if (node != TDM_JSON_NONE) {
                _cleanup_(freep) char *part = strndup(tdm_json_text(&json, node), tdm_json_get(&json, node)->text_size);

                if (!r || !strstr(err.message, strcmp(part, "no value") == 0 ? "no value at all" : part))
                        fail_msg("%s: refused with '%s', which should name '%s'", source, err.message, part);
                assert_true(r == TDM_E_UNSUPPORTED || r == TDM_E_BAD_REQUEST);
        } else {
                if (r)
                        fail_msg("%s: %s", source, err.message);
                for (unsigned k = 0; k < 2; k++) {
                        node = tdm_json_member(&json, 0, k ? "accept" : "reject");
                        for (uint32_t i = tdm_json_get(&json, node)->first; i != TDM_JSON_NONE;
                             i = tdm_json_get(&json, i)->next)
                                check_text(g, tdm_json_text(&json, i), tdm_json_get(&json, i)->text_size, k, source);
                }
        }
        tdm_json_deinit(&json);
}

static void run_file(const char *path)
{
        _cleanup_(fclosep) FILE *f = fopen(path, "re");
        _cleanup_(freep) char *line = NULL;
        size_t capacity = 0;
        unsigned n = 0;
        ssize_t size;

        assert_non_null(f);
        while ((size = getline(&line, &capacity, f)) > 0) {
                run_case(line, (size_t)size);
                n++;
        }
        assert_true(n > 20);
}

static void test_schemas(void **state)
{
        run_file("tests/grammar/schemas.jsonl");
}

static void test_grammars(void **state)
{
        run_file("tests/grammar/grammars.jsonl");
}

static struct tdm_grammar *schema(const char *source, unsigned flags)
{
        struct tdm_grammar *g = NULL;
        struct tdm_error err;

        if (tdm_grammar_new_schema(&g, source, strlen(source), flags, NULL, &err))
                fail_msg("%s: %s", source, err.message);
        return g;
}

static void test_compact(void **state)
{
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *g = schema("{\"type\":\"object\"}", TDM_GRAMMAR_COMPACT);

        check_text(g, "{\"a\":[1,2]}", 11, true, "compact");
        check_text(g, "{\"a\": 1}", 8, false, "compact");
        tdm_grammar_unref(g);
        g = NULL;
        assert_int_equal(tdm_grammar_new_json_object(&g, 0, NULL), 0);
        check_text(g, "{\"a\": [1, {}]}", 14, true, "json_object");
        check_text(g, "[]", 2, false, "json_object");
}

static void test_forced(void **state)
{
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *g = schema(
                "{\"type\":\"object\",\"properties\":{\"name\":{\"enum\":[\"xa\",\"xb\"]}},\"required\":[\"name\"],"
                "\"additionalProperties\":false}",
                TDM_GRAMMAR_COMPACT);
        _cleanup_(tdm_matcher_destroyp) struct tdm_matcher *m = NULL;
        char data[64];

        assert_int_equal(tdm_matcher_new(&m, g, vocabulary), 0);
        assert_int_equal(tdm_matcher_forced(m, data, sizeof(data)), 10);
        assert_memory_equal(data, "{\"name\":\"x", 10);
        assert_int_equal(tdm_matcher_forced(m, data, 4), 4);
        assert_int_equal(tdm_matcher_accept_bytes(m, data, 10), 1);
        assert_int_equal(tdm_matcher_forced(m, data, sizeof(data)), 0);
        assert_int_equal(tdm_matcher_accept_bytes(m, "b", 1), 1);
        assert_int_equal(tdm_matcher_forced(m, data, sizeof(data)), 2);
        assert_memory_equal(data, "\"}", 2);
        assert_int_equal(tdm_matcher_is_final(m), 0);
        assert_int_equal(tdm_matcher_accept_bytes(m, "\"}", 2), 1);
        assert_int_equal(tdm_matcher_is_final(m), 1);
        assert_true(tdm_matcher_is_whole(m));
        assert_int_equal(tdm_matcher_rollback(m, 3), 0);
        assert_int_equal(tdm_matcher_rollback(m, 1), -ERANGE);
        assert_int_equal(tdm_matcher_forced(m, data, sizeof(data)), 10);
}

/* To begin takes more than the limits: that is the grammar's fault, and no lack of memory. */
static void test_too_much_at_the_start(void **state)
{
        static const char source[] = "root ::= r0{0,65554} [a-z0-9_.-] \"afoobar\"{2,}\n"
                                     "r0 ::= [a-zA-Z]{0,63} | [0-9]{4,20}\n";
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *g = NULL;
        _cleanup_(tdm_matcher_destroyp) struct tdm_matcher *m = NULL;
        struct tdm_error err = { 0 };

        assert_int_equal(tdm_grammar_new_gbnf(&g, source, strlen(source), NULL, &err), 0);
        assert_int_equal(tdm_matcher_new(&m, g, vocabulary), TDM_E_UNSUPPORTED);
        assert_int_equal(tdm_grammar_takes_instance(g, "1", 1, NULL, 0, &err), TDM_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "start"));
}

/* The same walk with tiny caches, with rollbacks on its way and by another cut of the text gives the same masks. */
static void test_masks_depend_on_the_text_alone(void **state)
{
        static const char source[] =
                "{\"type\":\"array\",\"items\":{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":"
                "\"string\",\"maxLength\":"
                "40},\"b\":{\"pattern\":\"^[a-z]+(-[a-z]+)*$\"},\"c\":{\"$ref\":\"#\"}}},{\"type\":\"string\"}]}}";
        static const char text[] =
                "[{\"a\": \"some text\", \"b\": \"ab-cd\", \"c\": [\"x\\n\", {\"zz\": [1.5e3, null]}]}, \"\xc3\xa9\"]";
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *big = schema(source, 0), *small = NULL;
        _cleanup_(tdm_matcher_destroyp) struct tdm_matcher *a = NULL, *b = NULL;
        struct tdm_grammar_limits limits;
        uint64_t copy[(N_VOCAB + 63) / 64];
        const uint64_t *mask;
        size_t most = 0;

        tdm_grammar_limits_init(&limits);
        limits.max_matcher_bytes = 200000;
        assert_int_equal(tdm_grammar_new_schema(&small, source, strlen(source), 0, &limits, NULL), 0);
        assert_int_equal(tdm_matcher_new(&a, big, vocabulary), 0);
        assert_int_equal(tdm_matcher_new(&b, small, vocabulary), 0);
        for (size_t i = 0; i < sizeof(text) - 1; i++) {
                assert_int_equal(tdm_matcher_mask(a, &mask), 0);
                memcpy(copy, mask, sizeof(copy));
                assert_int_equal(tdm_matcher_mask(b, &mask), 0);
                assert_memory_equal(copy, mask, sizeof(copy));
                for (unsigned id = 0; id < N_VOCAB; id += 7) /* what is tried and taken back leaves nothing */
                        if (tdm_matcher_accept(b, id) == 1)
                                assert_int_equal(tdm_matcher_rollback(b, 1), 0);
                assert_int_equal(tdm_matcher_accept_bytes(a, text + i, 1), 1);
                assert_int_equal(tdm_matcher_accept_bytes(b, text + i, 1), 1);
                most = TDM_MAX(most, tdm_matcher_bytes(b));
        }
        assert_true(tdm_matcher_is_whole(b));
        assert_true(most < 600000);
        assert_int_equal(tdm_matcher_rollback(b, 30), 0);
        assert_int_equal(tdm_matcher_accept_bytes(b, text + sizeof(text) - 31, 30), 1);
        assert_true(tdm_matcher_is_whole(b));
        tdm_matcher_reset(b);
        assert_int_equal(tdm_matcher_accept_bytes(b, text, sizeof(text) - 1), 1);
        assert_true(tdm_matcher_is_whole(b));
}

static void repeat(struct tdm_json_buffer *b, const char *text, unsigned n)
{
        while (n-- > 0)
                tdm_json_write(b, text, strlen(text));
}

/* Compiling, one mask and a few steps: each within limits that the defaults set. */
static void hostile(const char *what, struct tdm_json_buffer *b)
{
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *g = NULL;
        _cleanup_(tdm_matcher_destroyp) struct tdm_matcher *m = NULL;
        struct timespec from, to;
        struct tdm_error err = { 0 };
        const uint64_t *mask;
        double seconds;
        size_t bytes = 0;
        int r;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
        r = tdm_grammar_new_schema(&g, b->data, b->size, 0, NULL, &err);
        assert_true(r == 0 || r == TDM_E_UNSUPPORTED || r == TDM_E_BAD_REQUEST);
        if (r == 0 && tdm_matcher_new(&m, g, vocabulary) == 0) {
                for (unsigned i = 0; i < 20 && tdm_matcher_mask(m, &mask) == 0; i++)
                        for (unsigned id = 0; id < N_VOCAB - 1; id++)
                                if ((mask[id / 64] >> id % 64 & 1) &&
                                    tdm_matcher_accept(m, (id * 7 + i) % (N_VOCAB - 1)) == 1)
                                        break;
                bytes = tdm_matcher_bytes(m) + tdm_grammar_bytes(g);
        }
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
        seconds = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9;
        print_message("%-28s %7.1f ms %6.2f MiB %s\n", what, seconds * 1000, (double)bytes / (1 << 20), err.message);
        assert_true(bytes < (size_t)24 << 20);
        assert_true(seconds < 20); /* of a debug build under sanitizers */
        free(b->data);
        *b = (struct tdm_json_buffer){ 0 };
}

static void test_hostile(void **state)
{
        static const char *const patterns[] = {
                "(a*)*b",
                "(a|aa)+$",
                "((a{1,1000}){1,1000}){1,1000}",
                "(.*a){200}",
                "(a?){500}a{500}",
                "^(?!(a|b)*c.{40}).*$",
                "(x+x+)+y",
                "[ab]*a[ab]{300}",
                "(((((((((a|b)*)*)*)*)*)*)*)*)*",
                "(a{0,100000}){0,100000}",
        };
        struct tdm_json_buffer b = { 0 };
        char text[256];

        for (size_t i = 0; i < TDM_ARRAY_SIZE(patterns); i++) {
                snprintf(text, sizeof(text),
                         "{\"type\":\"string\",\"maxLength\":5000,\"minLength\":100,\"pattern\":\"%s\"}", patterns[i]);
                repeat(&b, text, 1);
                hostile(patterns[i], &b);
        }
        repeat(&b, "{\"items\":", 5000);
        hostile("deep", &b);
        repeat(&b, "{\"items\":", 150);
        repeat(&b, "true", 1);
        repeat(&b, "}", 150);
        hostile("150 deep", &b);
        repeat(&b, "{\"enum\":[\"x\"", 1);
        for (unsigned i = 0; i < 40000; i++) {
                snprintf(text, sizeof(text), ",\"value %u\"", i);
                repeat(&b, text, 1);
        }
        repeat(&b, "]}", 1);
        hostile("enum of 40000", &b);
        repeat(&b, "{\"properties\":{\"x\":{}", 1);
        for (unsigned i = 0; i < 4000; i++) {
                snprintf(text, sizeof(text), ",\"member%u\":{\"type\":\"string\"}", i);
                repeat(&b, text, 1);
        }
        repeat(&b, "}}", 1);
        hostile("4000 members", &b);
        repeat(&b, "{\"allOf\":[true", 1);
        for (unsigned i = 0; i < 30; i++) {
                snprintf(text, sizeof(text),
                         ",{\"anyOf\":[{\"minLength\":%u},{\"pattern\":\"a{%u}\"},{\"maxLength\":%u}]}", i, i, i);
                repeat(&b, text, 1);
        }
        repeat(&b, "]}", 1);
        hostile("3^30 alternatives", &b);
        repeat(&b, "{\"oneOf\":[{\"minimum\":1}", 1);
        repeat(&b, ",{\"minimum\":2}", 300);
        repeat(&b, "]}", 1);
        hostile("oneOf of 300", &b);
        repeat(&b, "{\"$defs\":{\"a0\":{\"type\":\"null\"}", 1);
        for (unsigned i = 1; i < 60; i++) {
                snprintf(text, sizeof(text),
                         ",\"a%u\":{\"allOf\":[{\"$ref\":\"#/$defs/a%u\"},{\"$ref\":\"#/$defs/a%u\"}]}", i, i - 1,
                         i - 1);
                repeat(&b, text, 1);
        }
        repeat(&b, "},\"$ref\":\"#/$defs/a59\"}", 1);
        hostile("2^60 references", &b);
        repeat(&b, "{\"not\":", 150);
        repeat(&b, "{\"type\":\"string\"}", 1);
        repeat(&b, "}", 150);
        hostile("150 nots", &b);
        repeat(&b,
               "{\"type\":\"array\",\"minItems\":4000000000,\"items\":{\"type\":\"array\",\"minItems\":4000000000}}",
               1);
        hostile("huge counts", &b);
        repeat(&b, "{\"patternProperties\":{\"a\":{},\"b\":{},\"c\":{},\"d\":{},\"e\":{},\".*f.{30}\":{}}}", 1);
        hostile("six patterns", &b);
        repeat(&b, "{\"type\":\"object\",\"minProperties\":300,\"properties\":{\"x\":{}", 1);
        for (unsigned i = 0; i < 310; i++) {
                snprintf(text, sizeof(text), ",\"m%u\":{\"type\":\"object\",\"minProperties\":1}", i);
                repeat(&b, text, 1);
        }
        repeat(&b, "},\"additionalProperties\":false}", 1);
        hostile("counted members", &b);
        repeat(&b,
               "{\"type\":\"integer\",\"multipleOf\":19997,\"allOf\":[{\"multipleOf\":19993},{\"multipleOf\":19991}]}",
               1);
        hostile("multiples", &b);
}

/* Pieces of this many letters, all of them different ones. */
struct long_pieces {
        uint32_t size;
        char text[4096];
};

static size_t long_piece(void *userdata, uint32_t id, const char **ret_data)
{
        struct long_pieces *p = userdata;
        uint32_t random = id;

        for (uint32_t i = 0; i < p->size; i++) {
                random = random * 1664525 + 1013904223;
                p->text[i] = (char)('a' + (random >> 16) % 26);
        }
        *ret_data = p->text;
        return p->size;
}

static bool no_end(void *userdata, uint32_t id)
{
        return false;
}

/* A vocabulary takes no more than a user is charged for it, and a walk over its nodes counts as work. */
static void test_long_pieces(void **state)
{
        enum { N = 20000 };
        static const char pairs[] = "([a-z][a-y])*"; /* so that some pieces are not allowed */
        _cleanup_(tdm_vocabulary_unrefp) struct tdm_vocabulary *v = NULL;
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *g = NULL;
        _cleanup_(tdm_matcher_destroyp) struct tdm_matcher *m = NULL;
        struct long_pieces p = { .size = 1000 };
        struct tdm_error err = { 0 };
        const uint64_t *words;

        assert_int_equal(tdm_vocabulary_new(&v, N, long_piece, no_end, &p), -E2BIG);
        p.size = 8;
        assert_int_equal(tdm_vocabulary_new(&v, N, long_piece, no_end, &p), 0);
        assert_true(tdm_vocabulary_bytes(v) < TDM_VOCABULARY_BYTES + (uint64_t)N * TDM_VOCABULARY_BYTES_PER_PIECE);
        assert_int_equal(tdm_grammar_new_regex(&g, pairs, sizeof(pairs) - 1, NULL, &err), 0);
        assert_int_equal(tdm_matcher_new(&m, g, v), 0);
        tdm_matcher_set_max_steps(m, 2000);
        assert_int_equal(tdm_matcher_mask(m, &words), -EAGAIN);
        tdm_matcher_set_max_steps(m, UINT64_MAX);
        assert_int_equal(tdm_matcher_mask(m, &words), 0);
}

/* Pieces of many characters, and of beginnings of names with what follows them. */
enum { N_WORDS = 1200 };
static char words[N_WORDS][80];

static size_t word_piece(void *userdata, uint32_t id, const char **ret_data)
{
        *ret_data = words[id];
        return id < 256 ? 1 : strlen(words[id]);
}

static bool word_is_end(void *userdata, uint32_t id)
{
        return id == N_WORDS - 1;
}

static void words_make(void)
{
        static const char *const parts[] = { "name", "names", "na",   "age",          "x",  "é",  "日",     "\xf0\x9f",
                                             "0",    "7",     " ",    "\":",          "\"", ", ", "\": \"", "\\n",
                                             "\\",   "}",     "\n  ", "\xe2\x80\xa8", "zz" };
        uint32_t random = 7;

        for (unsigned id = 0; id < N_WORDS; id++) {
                words[id][0] = (char)id;
                if (id < 256)
                        continue;
                if (id < 330) { /* plain characters: 1 to 70 */
                        memset(words[id], id % 2 ? 'a' : 'n', TDM_MIN(id - 255, 70u));
                        continue;
                }
                if (id == 330) { /* more plain characters than any plain piece has */
                        memset(words[id], 'a', 75);
                        words[id][75] = '"';
                        continue;
                }
                words[id][0] = 0;
                for (unsigned n = 1 + id % 6; n > 0; n--) {
                        random = random * 1664525 + 1013904223;
                        strcat(words[id], parts[(random >> 16) % TDM_ARRAY_SIZE(parts)]);
                }
        }
}

/* The mask against its definition: bytes are appended one by one, and taken back. */
static void words_check(struct tdm_matcher *m, const char *source, size_t at)
{
        uint64_t mask[(N_WORDS + 63) / 64];
        const uint64_t *got;

        assert_int_equal(tdm_matcher_mask(m, &got), 0);
        memcpy(mask, got, sizeof(mask));
        for (uint32_t id = 0; id < N_WORDS - 1; id++) {
                size_t size = id < 256 ? 1 : strlen(words[id]), n = 0;

                while (n < size && tdm_matcher_accept_bytes(m, words[id] + n, 1) == 1)
                        n++;
                if ((n == size && size > 0) != (mask[id / 64] >> id % 64 & 1))
                        fail_msg("piece %u '%s' at %zu of %s: mask says %d", id, words[id], at, source, n < size);
                assert_int_equal(tdm_matcher_rollback(m, (uint32_t)n), 0);
        }
        assert_int_equal(tdm_matcher_is_whole(m), mask[(N_WORDS - 1) / 64] >> (N_WORDS - 1) % 64 & 1);
}

/* Masks are what their definition says, in strings of every room, in names that may become known ones, and in
 * between. */
static void test_masks_of_long_pieces(void **state)
{
        static const char *const schemas[][2] = {
                { "{\"type\":\"string\"}", "\"aé\"" },
                { "{\"type\":\"string\",\"maxLength\":3}", "\"nna\"" },
                { "{\"type\":\"string\",\"maxLength\":40}", "\"naaaé\"" },
                { "{\"type\":\"string\",\"maxLength\":74}", "\"n" },
                { "{\"type\":\"string\",\"minLength\":74}", "\"n" },
                { "{\"type\":\"string\",\"minLength\":2,\"maxLength\":24}", "\"aa\"" },
                { "{\"type\":\"string\",\"minLength\":90,\"maxLength\":200}", "\"aa" },
                { "{\"type\":\"string\",\"pattern\":\"^[a-y]{2,50}$\"}", "\"name" },
                { "{\"type\":\"string\",\"pattern\":\"^(na|n.me)*7?$\"}", "\"namena7\"" },
                { "{\"enum\":[\"name\",\"names\",\"nana\",\"n\",7]}", "\"names\"" },
                { "{\"type\":\"object\"}", "{\"name\": \"a\", \"na\": 7}" },
                { "{\"properties\":{\"name\":{\"type\":\"string\"},\"names\":{\"type\":\"integer\"},\"é\":{}},"
                  "\"type\":\"object\",\"required\":[\"name\"],\"additionalProperties\":{\"type\":\"null\"}}",
                  "{\"name\": \"a\", \"nam\": null,\n  \"日\": null}" },
                { "{\"type\":\"object\",\"patternProperties\":{\"^na\":{\"type\":\"number\"}},\"propertyNames\":"
                  "{\"maxLength\":30}}",
                  "{\"name\": 7.0, \"x\": [\"a\", {}]}" },
                { "{\"type\":\"number\",\"multipleOf\":0.07}", "0.7" },
        };
        _cleanup_(tdm_vocabulary_unrefp) struct tdm_vocabulary *v = NULL;

        words_make();
        assert_int_equal(tdm_vocabulary_new(&v, N_WORDS, word_piece, word_is_end, NULL), 0);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(schemas); i++) {
                _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *g = NULL;
                _cleanup_(tdm_matcher_destroyp) struct tdm_matcher *m = NULL;
                struct tdm_error err = { 0 };

                assert_int_equal(tdm_grammar_new_schema(&g, schemas[i][0], strlen(schemas[i][0]), 0, NULL, &err), 0);
                assert_int_equal(tdm_matcher_new(&m, g, v), 0);
                for (const char *c = schemas[i][1]; *c; c++) {
                        words_check(m, schemas[i][0], (size_t)(c - schemas[i][1]));
                        if (tdm_matcher_accept_bytes(m, c, 1) != 1)
                                fail_msg("'%s' is not taken of %s", c, schemas[i][0]);
                }
                words_check(m, schemas[i][0], strlen(schemas[i][1]));
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_schemas),
                cmocka_unit_test(test_grammars),
                cmocka_unit_test(test_compact),
                cmocka_unit_test(test_forced),
                cmocka_unit_test(test_too_much_at_the_start),
                cmocka_unit_test(test_masks_depend_on_the_text_alone),
                cmocka_unit_test(test_hostile),
                cmocka_unit_test(test_long_pieces),
                cmocka_unit_test(test_masks_of_long_pieces),
        };

        return cmocka_run_group_tests(tests, setup, teardown);
}
