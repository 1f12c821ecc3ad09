/* Schemas that were made to explode: nested counts, alternations, recursion, patterns, many names, wide enumerations,
 * combined at random. Each is refused, or compiled and followed for some tokens, within bounds of time and memory.
 *
 *   test-grammar-hostile [N [SEED]]       default 300; the bounds of time are off under sanitizers
 *   test-grammar-hostile N SEED print     prints them, one a line */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include "engine/grammar/grammar.h"

/* As a job has them (daemon/jobs/constraint.c). */
#define MAX_EXPRESSIONS (UINT32_C(1) << 17)
#define MAX_MATCHER_BYTES ((size_t)4 << 20)
#define MAX_BYTES ((size_t)16 << 20)
#define MAX_MS 100.0
#define N_TOKENS 12
#define N_VOCAB 1025u

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW 1
#else
#define SLOW 0
#endif

static uint64_t state;

static uint32_t rnd(uint32_t n)
{
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (uint32_t)(state >> 33) % n;
}

struct text {
        char *data;
        size_t n, capacity;
};

static void _printf_(2, 3) put(struct text *t, const char *fmt, ...)
{
        va_list args;
        char piece[256];
        int n;

        va_start(args, fmt);
        n = vsnprintf(piece, sizeof(piece), fmt, args);
        va_end(args);
        if (t->n + (size_t)n + 1 > t->capacity) {
                t->capacity = 2 * (t->n + (size_t)n + 1);
                t->data = realloc(t->data, t->capacity);
                if (!t->data)
                        abort();
        }
        memcpy(t->data + t->n, piece, (size_t)n + 1);
        t->n += (size_t)n;
}

static uint32_t big(void)
{
        static const uint32_t some[] = { 0, 1, 2, 7, 40, 300, 5000, 70000, 1000000, 2000000000 };

        return some[rnd(TDM_ARRAY_SIZE(some))];
}

static void pattern(struct text *t, unsigned depth)
{
        static const char *const atoms[] = { "a",     "b",        ".",
                                             "[ab]",  "[^a]",     "\\\\d",
                                             "\\\\w", "(?:a|aa)", "[\\u0100-\\uffff]" };
        unsigned n = 1 + rnd(4);

        for (unsigned i = 0; i < n; i++) {
                if (depth > 0 && rnd(2)) {
                        put(t, "(");
                        pattern(t, depth - 1);
                        for (unsigned k = rnd(3); k > 0; k--) {
                                put(t, "|");
                                pattern(t, depth - 1);
                        }
                        put(t, ")");
                } else
                        put(t, "%s", atoms[rnd(TDM_ARRAY_SIZE(atoms))]);
                switch (rnd(6)) {
                case 0:
                        put(t, "*");
                        break;
                case 1:
                        put(t, "+");
                        break;
                case 2:
                        put(t, "{%u,%u}", rnd(50), 50 + big() % 100000);
                        break;
                case 3:
                        put(t, "?");
                        break;
                }
        }
}

static void schema(struct text *t, unsigned depth, unsigned width);
static bool scoped; /* the definitions are resources with dynamic anchors of a few names */

static void list(struct text *t, const char *name, unsigned depth, unsigned width)
{
        put(t, "\"%s\":[", name);
        for (unsigned i = 0, n = 1 + rnd(width); i < n; i++) {
                put(t, i ? "," : "");
                schema(t, depth - 1, width);
        }
        put(t, "],");
}

static void schema(struct text *t, unsigned depth, unsigned width)
{
        static const char *const lists[] = { "anyOf", "anyOf", "prefixItems", "prefixItems", "allOf", "oneOf" };
        static const char *const singles[] = {
                "items", "additionalProperties",  "propertyNames",   "contains", "not", "if", "then",
                "else",  "unevaluatedProperties", "unevaluatedItems"
        };
        static const char *const numbers[] = { "maxLength",   "maxItems", "maxProperties", "maximum",
                                               "minLength",   "minItems", "minProperties", "minContains",
                                               "maxContains", "minimum" };

        if (depth == 0) {
                if (scoped && rnd(2))
                        put(t, "{\"$dynamicRef\":\"http://h/d%u#n%u\"}", rnd(4), rnd(3));
                else
                        put(t, "{\"$ref\":\"%s#/$defs/d%u\"}", scoped ? "http://h/r" : "", rnd(4));
                return;
        }
        put(t, "{");
        for (unsigned i = 0, n = 1 + rnd(rnd(4) ? 2 : 5); i < n; i++)
                switch (rnd(10)) {
                case 0:
                case 1:
                        list(t, lists[rnd(TDM_ARRAY_SIZE(lists))], depth, width);
                        break;
                case 2:
                case 3:
                        put(t, "\"%s\":", singles[rnd(rnd(5) ? 4 : TDM_ARRAY_SIZE(singles))]);
                        schema(t, depth - 1, width);
                        put(t, ",");
                        break;
                case 4:
                        put(t, "\"%s\":%u,", numbers[rnd(rnd(4) ? 4 : TDM_ARRAY_SIZE(numbers))], big());
                        break;
                case 5:
                        put(t, "\"pattern\":\"");
                        pattern(t, rnd(4));
                        put(t, "\",");
                        break;
                case 6:
                        put(t, "\"properties\":{");
                        for (unsigned k = 0, m = 1 + rnd(rnd(20) ? width : 2000); k < m; k++) {
                                put(t, "%s\"p%u\":", k ? "," : "", k);
                                if (k < 4)
                                        schema(t, depth - 1, width);
                                else
                                        put(t, "{\"type\":\"string\",\"maxLength\":%u}", big());
                        }
                        put(t, "},");
                        break;
                case 7:
                        put(t, "\"patternProperties\":{\"");
                        pattern(t, 2);
                        put(t, "\":");
                        schema(t, depth - 1, width);
                        put(t, "},");
                        break;
                case 8:
                        put(t, "\"enum\":[");
                        for (unsigned k = 0, m = 1 + (rnd(20) ? rnd(8) : rnd(5000)); k < m; k++)
                                put(t, "%s\"%u%s\"", k ? "," : "", rnd(1000000), "aaaaaaaaaaaaaaaa" + rnd(16));
                        put(t, "],");
                        break;
                case 9:
                        put(t, "\"uniqueItems\":true,\"maxItems\":%u,\"items\":{\"enum\":[", 1 + rnd(12));
                        for (unsigned k = 0, m = 1 + rnd(rnd(4) ? 11 : 64); k < m; k++)
                                put(t, "%s%u", k ? "," : "", rnd(100));
                        put(t, "]},");
                        break;
                }
        put(t, "\"title\":\"\"}");
}

static void whole(struct text *t)
{
        t->n = 0;
        scoped = rnd(4) == 0;
        put(t, "{%s\"$defs\":{", scoped ? "\"$id\":\"http://h/r\"," : "");
        for (unsigned i = 0; i < 4; i++) {
                put(t, "%s\"d%u\":", i ? "," : "", i);
                if (scoped) {
                        put(t, "{\"$id\":\"http://h/d%u\",\"$defs\":{", i);
                        for (unsigned k = 0; k < 3; k++) {
                                put(t, "%s\"n%u\":{\"$dynamicAnchor\":\"n%u\",\"allOf\":[", k ? "," : "", k, k);
                                schema(t, 1 + rnd(2), 1 + rnd(3));
                                put(t, "]}");
                        }
                        put(t, "},\"anyOf\":[");
                }
                schema(t, 1 + rnd(3), 1 + rnd(4));
                put(t, "%s", scoped ? "]}" : "");
        }
        put(t, "},\"allOf\":[");
        schema(t, 1 + rnd(5), 1 + rnd(5));
        put(t, "]}");
}

static char bytes[N_VOCAB][4];

static size_t piece(void *userdata, uint32_t id, const char **ret_data)
{
        static const char more[] = "\"{}[]:, ab01p\\-.";

        if (id >= 256)
                for (unsigned i = 0; i < 3; i++)
                        bytes[id][i] = more[(id * 7 + id / 16 * (i + 1) * 5 + i) % (sizeof(more) - 1)];
        else
                bytes[id][0] = (char)id;
        *ret_data = bytes[id];
        return id == N_VOCAB - 1 ? 0 : id < 256 ? 1 : 3;
}

static bool is_end(void *userdata, uint32_t id)
{
        return id == N_VOCAB - 1;
}

static double now_ms(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
        return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

struct worst {
        double compile_ms, mask_ms;
        size_t bytes;
        unsigned n_compiled, n_masks, n_over;
};

static void try_one(const struct text *t, unsigned number, struct tdm_vocabulary *v, struct worst *worst)
{
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *g = NULL;
        _cleanup_(tdm_matcher_destroyp) struct tdm_matcher *m = NULL;
        struct tdm_grammar_limits limits;
        struct tdm_error err = { 0 };
        double from = now_ms(), ms;
        const uint64_t *words;
        int r;

        tdm_grammar_limits_init(&limits);
        limits.max_expressions = MAX_EXPRESSIONS;
        limits.max_matcher_bytes = MAX_MATCHER_BYTES;
        r = tdm_grammar_new_schema(&g, t->data, t->n, 0, &limits, &err);
        ms = now_ms() - from;
        worst->compile_ms = TDM_MAX(worst->compile_ms, ms);
        if (ms > MAX_MS) {
                printf("schema %u: %.1f ms to compile (%s)\n", number, ms, r ? err.message : "taken");
                worst->n_over++;
        }
        if (r != 0 && r != TDM_E_UNSUPPORTED && r != TDM_E_BAD_REQUEST) {
                printf("schema %u: error %d\n", number, r);
                abort();
        }
        if (r != 0 || tdm_matcher_new(&m, g, v) != 0)
                return;
        worst->n_compiled++;
        for (unsigned i = 0; i < N_TOKENS; i++) {
                uint32_t id;

                from = now_ms();
                r = tdm_matcher_mask(m, &words);
                ms = now_ms() - from;
                worst->n_masks++;
                worst->mask_ms = TDM_MAX(worst->mask_ms, ms);
                if (ms > MAX_MS) {
                        printf("schema %u: %.1f ms for mask %u (%d)\n", number, ms, i, r);
                        worst->n_over++;
                }
                if (r != 0)
                        break;
                id = rnd(N_VOCAB);
                for (unsigned k = 0; k < N_VOCAB && !(words[id / 64] >> id % 64 & 1); k++)
                        id = (id + 1) % N_VOCAB;
                if (!(words[id / 64] >> id % 64 & 1) || tdm_matcher_accept(m, id) != 1)
                        break;
        }
        worst->bytes = TDM_MAX(worst->bytes, tdm_matcher_bytes(m) + tdm_grammar_bytes(g));
        if (tdm_matcher_bytes(m) + tdm_grammar_bytes(g) > MAX_BYTES) {
                printf("schema %u: %zu bytes\n", number, tdm_matcher_bytes(m) + tdm_grammar_bytes(g));
                worst->n_over++;
        }
}

int main(int argc, char **argv)
{
        unsigned n = argc > 1 ? (unsigned)atoi(argv[1]) : 300;
        uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
        struct tdm_vocabulary *v;
        struct worst worst = { 0 };
        struct text t = { 0 };

        if (tdm_vocabulary_new(&v, N_VOCAB, piece, is_end, NULL) != 0)
                return 1;
        for (unsigned i = 0; i < n; i++) {
                state = seed * 1000003 + i;
                (void)rnd(2);
                whole(&t);
                if (argc > 3) {
                        puts(t.data);
                        continue;
                }
                try_one(&t, i, v, &worst);
        }
        if (argc <= 3)
                printf("%u schemas, %u compiled, %u masks; at most %.1f ms to compile, %.1f ms for a mask, %.2f MiB; "
                       "%u over\n",
                       n, worst.n_compiled, worst.n_masks, worst.compile_ms, worst.mask_ms,
                       (double)worst.bytes / (1 << 20), worst.n_over);
        free(t.data);
        tdm_vocabulary_unref(v);
        return worst.n_over > 0 && !SLOW ? 1 : 0;
}
