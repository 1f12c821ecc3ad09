/* Masks against what is accepted, token by token, over random grammars and random vocabularies: runs of white space and
 * digits past every count, characters of one to four bytes and parts of them, quotes and what follows them.
 *
 *   test-grammar-masks [N [SEED]]       default 200 grammars, each followed for some tokens */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "engine/grammar/grammar.h"

enum { N_VOCAB = 700, N_TOKENS = 10, PIECE_MAX = 160, WORDS = (N_VOCAB + 63) / 64 };

static uint64_t random_state;
/* Two vocabularies: the second has short runs only. */
static char pieces[2][N_VOCAB][PIECE_MAX];
static uint32_t sizes[2][N_VOCAB];

static uint32_t rnd(uint32_t n)
{
        random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (uint32_t)(random_state >> 33) % n;
}

#define PICK(list) (list)[rnd(TDM_ARRAY_SIZE(list))]

static size_t piece_of(void *userdata, uint32_t id, const char **ret_data)
{
        unsigned set = *(const unsigned *)userdata;

        *ret_data = pieces[set][id];
        return sizes[set][id];
}

static bool piece_is_end(void *userdata, uint32_t id)
{
        return id == N_VOCAB - 1;
}

static void piece_add(unsigned set, uint32_t id, const char *data, size_t size)
{
        size = TDM_MIN(size, PIECE_MAX - sizes[set][id]);
        memcpy(pieces[set][id] + sizes[set][id], data, size);
        sizes[set][id] += (uint32_t)size;
}

/* A part of a piece: a run, or a few bytes of a kind. */
static void part_add(unsigned set, uint32_t id)
{
        static const char *const runs[] = { " ", "\t", " ", "0", "9", "a", "Z", "-", "\n", "\xc3\xa9" };
        static const char *const texts[] = {
                "\"",
                "\":",
                "\",",
                "\": ",
                "\"}",
                ", \"",
                "{",
                "}",
                "[",
                "]",
                ",",
                ":",
                "\n",
                "true",
                "null",
                "foo",
                "fo",
                "o",
                "b",
                "ba",
                "bar",
                "X_",
                "name",
                "na",
                "me",
                "\\n",
                "\\",
                "\\u",
                "00e9",
                "\\\"",
                "d83d",
                "1",
                "23",
                ".5",
                "e1",
                "-",
                "0",
                "aaa",
                "word",
                " word",
                "\xc3",
                "\xa9",
                "\xe2\x80\xa8",
                "\xe2\x80",
                "\xe2\x82\xac",
                "\xd0\xb6",
                "\xe4\xb8\xad",
                "\xf0\x9f\x98\x80",
                "\xf0\x9f",
                "\x98\x80",
                " bar",
                " foo",
                "\xed\xa0\x80",
                "\xff",
                "2024-01-02",
                "@",
        };
        const char *text = PICK(texts);

        if (rnd(4) > 0) {
                piece_add(set, id, text, strlen(text));
                return;
        }
        text = PICK(runs);
        for (uint32_t n = 1 + rnd(set ? 3 : rnd(3) ? 8 : 90); n > 0; n--)
                piece_add(set, id, text, strlen(text));
}

static int vocabulary_make(unsigned set, struct tdm_vocabulary **ret)
{
        for (uint32_t id = 0; id < N_VOCAB; id++) {
                sizes[set][id] = 0;
                if (id < 256)
                        piece_add(set, id, (const char[]){ (char)id }, 1);
                for (uint32_t n = id < 256 ? 0 : 1 + rnd(set ? 2 : 3); n > 0; n--)
                        part_add(set, id);
        }
        tdm_vocabulary_unref(*ret);
        *ret = NULL;
        return tdm_vocabulary_new(ret, N_VOCAB, piece_of, piece_is_end, &set);
}

/* ---- grammars ---- */

static char source[8192];
static size_t n_source;

static void _printf_(1, 2) put(const char *format, ...)
{
        va_list args;

        va_start(args, format);
        n_source += (size_t)vsnprintf(source + n_source, sizeof(source) - n_source, format, args);
        va_end(args);
        if (n_source >= sizeof(source))
                abort();
}

static const char *const patterns[] = {
        "f.*o",
        "a*",
        "aaa*",
        "[0-9]{2,}",
        "X_",
        "f.o",
        "^.*bar$",
        "^[a-z]+$",
        "^[0-9a-zA-Z_-]{1,20}$",
        "b",
        "^[^b]*$",
        "^\\\\p{L}+$",
        "o$",
        "^(foo|bar)?[0-9]{0,9}$",
        "^.{0,30}$",
        "\xc3\xa9",
};

static void schema_put(unsigned depth);

static void object_put(unsigned depth)
{
        static const char *const names[] = { "foo", "bar", "name", "na", "X_1", "\xc3\xa9" };
        static const char *const rests[] = { "true", "false", "{\"type\":\"integer\"}", "{\"type\":\"string\"}" };
        unsigned first = rnd(TDM_ARRAY_SIZE(names)), n = rnd(4);

        put("{\"type\":\"object\",\"properties\":{");
        for (unsigned i = 0; i < n; i++) {
                put("%s\"%s\":", i ? "," : "", names[(first + i) % TDM_ARRAY_SIZE(names)]);
                schema_put(depth + 1);
        }
        put("},\"additionalProperties\":%s", PICK(rests));
        if (n > 0 && rnd(2))
                put(",\"required\":[\"%s\"]", names[first]);
        if (rnd(2)) {
                put(",\"patternProperties\":{\"%s\":", PICK(patterns));
                schema_put(depth + 1);
                put("}");
        }
        put("}");
}

static void schema_put(unsigned depth)
{
        switch (rnd(depth > 1 ? 9 : 12)) {
        case 0:
                put("{\"type\":\"string\"}");
                break;
        case 1:
                put("{\"type\":\"string\",\"pattern\":\"%s\"}", PICK(patterns));
                break;
        case 2:
                put("{\"type\":\"string\",\"maxLength\":%u}", rnd(60));
                break;
        case 3:
                put("{\"type\":\"%s\"}", rnd(2) ? "number" : "integer");
                break;
        case 4:
                put("{\"type\":\"integer\",\"minimum\":%u,\"maximum\":%u}", rnd(5), 5 + rnd(100000));
                break;
        case 5:
                put("{\"multipleOf\":%u}", 1 + rnd(9));
                break;
        case 6:
                put("{\"enum\":[\"foo\",\"bar\",\"b\",1,23,null]}");
                break;
        case 7:
                put("%s", rnd(2) ? "true" : "{\"type\":\"boolean\"}");
                break;
        case 8:
                put("{\"type\":\"string\",\"format\":\"%s\"}", rnd(2) ? "date" : "email");
                break;
        case 9:
                put("{\"type\":\"array\",\"items\":");
                schema_put(depth + 1);
                put("}");
                break;
        default:
                object_put(depth);
        }
}

static void gbnf_put(void)
{
        static const char *const classes[] = { "[ ]", "[ \\t]", "[0-9]", "[a-z]", "[^b]", "[-Z]" };

        if (rnd(4) == 0) { /* where a run begins, and only there, another text may stand */
                put("root ::= a | b\na ::= \"bar\"\nb ::= [ ]{0,%u} \"foo\" [0-9]{0,9}", 4 + rnd(40));
                return;
        }
        put("root ::= ");
        if (rnd(2))
                put("(\"%s\" | %s{0,%u} \"foo\")? ", rnd(2) ? "bar" : "b", PICK(classes), 4 + rnd(40));
        for (unsigned n = 1 + rnd(4); n > 0; n--) {
                put("%s{%u,%u} ", PICK(classes), rnd(3), 3 + rnd(50));
                if (rnd(2))
                        put("(\"%s\" | %s{0,%u} \"foo\")? ", rnd(2) ? "bar" : ":", PICK(classes), 1 + rnd(40));
        }
}

static int grammar_make(struct tdm_grammar **ret)
{
        struct tdm_error err;

        n_source = 0;
        switch (rnd(6)) {
        case 0:
                gbnf_put();
                return tdm_grammar_new_gbnf(ret, source, n_source, NULL, &err);
        case 1:
                put("%s", PICK(patterns));
                return tdm_grammar_new_regex(ret, source, n_source, NULL, &err);
        default:
                schema_put(0);
                return tdm_grammar_new_schema(ret, source, n_source, 0, NULL, &err);
        }
}

/* ---- the comparison ---- */

static unsigned n_masks, n_allowed, n_over;

/* other has the same text as m, and has made no mask; set: their vocabulary. *ret_over: it is past the limits. */
static bool mask_is_right(unsigned set, struct tdm_matcher *m, struct tdm_matcher *other, uint64_t *ret_mask,
                          bool *ret_over)
{
        const uint64_t *words;
        int r = tdm_matcher_mask(m, &words);

        *ret_over = r == TDM_E_UNSUPPORTED;
        if (r != 0)
                return *ret_over;
        memcpy(ret_mask, words, WORDS * sizeof(*words));
        for (uint32_t id = 0; id < N_VOCAB; id++) {
                int wanted = tdm_matcher_accept(other, id), is = (int)(ret_mask[id / 64] >> id % 64 & 1);

                if (wanted == 1 && tdm_matcher_rollback(other, 1) != 0)
                        return false;
                n_allowed += wanted == 1;
                if (wanted != is) {
                        printf("token %u '%.*s' is %s, and %s by %s\n", id, (int)sizes[set][id], pieces[set][id],
                               is ? "in the mask" : "not in the mask", wanted ? "taken" : "not taken", source);
                        return false;
                }
        }
        n_masks++;
        return true;
}

/* The masks of a text are the same ones again, whatever the tables know by now. */
static bool is_repeated(struct tdm_grammar *g, struct tdm_vocabulary *v, const uint32_t *ids, uint64_t masks[][WORDS],
                        unsigned n)
{
        _cleanup_(tdm_matcher_destroyp) struct tdm_matcher *m = NULL;
        const uint64_t *words;

        if (tdm_matcher_new(&m, g, v) != 0)
                return false;
        for (unsigned i = 0; i < n; i++) {
                int r = tdm_matcher_mask(m, &words);

                if (r == TDM_E_UNSUPPORTED) /* with emptier tables it may be past the limits */
                        return true;
                if (r != 0 || memcmp(words, masks[i], sizeof(masks[i])) != 0) {
                        printf("mask %u is another one the second time, by %s\n", i, source);
                        return false;
                }
                if (i + 1 < n && tdm_matcher_accept(m, ids[i]) != 1)
                        return false;
        }
        return true;
}

static bool follow(struct tdm_grammar *g, unsigned set, struct tdm_vocabulary *v)
{
        _cleanup_(tdm_matcher_destroyp) struct tdm_matcher *m = NULL, *other = NULL;
        uint64_t masks[N_TOKENS][WORDS];
        uint32_t ids[N_TOKENS];
        unsigned n = 0;
        bool over;

        if (tdm_matcher_new(&m, g, v) != 0 || tdm_matcher_new(&other, g, v) != 0)
                return false;
        if (rnd(2) && tdm_matcher_look_ahead(m, 1 + rnd(20000)) != 0)
                return false;
        while (n < N_TOKENS) {
                uint32_t id = rnd(N_VOCAB - 1), tries = 0;

                if (!mask_is_right(set, m, other, masks[n], &over))
                        return false;
                if (over) {
                        n_over++;
                        return true;
                }
                for (; tries < N_VOCAB && (id == N_VOCAB - 1 || !(masks[n][id / 64] >> id % 64 & 1)); tries++)
                        id = (id + 1) % N_VOCAB;
                ids[n++] = id;
                if (tries == N_VOCAB)
                        break;
                if (tdm_matcher_accept(m, id) != 1 || tdm_matcher_accept(other, id) != 1)
                        return false;
        }
        tdm_matcher_destroy(m); /* its tables are left, where they are kept */
        m = NULL;
        return is_repeated(g, v, ids, masks, n);
}

int main(int argc, char **argv)
{
        unsigned n = argc > 1 ? (unsigned)atoi(argv[1]) : 200, n_compiled = 0;
        struct tdm_vocabulary *v[2] = { NULL };

        random_state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
        for (unsigned i = 0; i < n; i++) {
                _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *g = NULL;

                for (unsigned set = 0; set < 2 && i % 10 == 0; set++)
                        if (vocabulary_make(set, &v[set]) != 0)
                                return 1;
                if (grammar_make(&g) != 0)
                        continue;
                n_compiled++;
                tdm_grammar_keep_tables(g, i % 2 ? 0 : SIZE_MAX); /* from text to text, and between vocabularies */
                for (unsigned k = 1; k < 5; k++)
                        if (!follow(g, k % 2, v[k % 2]))
                                return 1;
        }
        tdm_vocabulary_unref(v[0]);
        tdm_vocabulary_unref(v[1]);
        printf("%u grammars, %u compiled, %u texts past the limits, %u masks, %u tokens allowed\n", n, n_compiled,
               n_over, n_masks, n_allowed);
        return n_compiled * 2 < n || n_over * 20 > n;
}
