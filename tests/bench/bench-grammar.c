/* How long masks and compiling take: over JSON Schemas and instances, byte by byte as a model would write them, cut
 * into the longest pieces of the vocabulary.
 *
 *   bench-grammar [-v VOCABULARY] [-n SCHEMAS_MAX] [-s] [-p] [FILE…]
 *
 * FILE: JSON lines {"schema": …, "instance": …} (as `tandem schema-check` takes them); without one, a few built in.
 * A vocabulary has 262,144 pieces unless -v says otherwise: the bytes, words of letters with and without a space,
 * numbers, runs of spaces, punctuation of JSON and code, and pieces of other scripts, made from a fixed seed. Prints
 * p50 and p99 of a mask and of compiling, in microseconds of processor time. Only fresh matchers count, so that each
 * mask is made as in a first run. -s: prints each mask that took more than 400 us. -p: prints the vocabulary, a piece a
 * line in hexadecimal, and ends; to measure other engines with it. */
#include <getopt.h>
#include "engine/grammar/grammar.h"
#include "engine/grammar/json.h"

struct piece {
        char text[32];
        uint8_t size;
};

static struct piece *pieces;
static uint32_t n_pieces, n_wanted = 262144;
static uint64_t random_state = 1;

static uint32_t draw(uint32_t n)
{
        random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
        return (uint32_t)((random_state >> 33) % n);
}

static void add(const char *text, size_t size)
{
        if (n_pieces == n_wanted || size == 0 || size > sizeof(pieces->text))
                return;
        memcpy(pieces[n_pieces].text, text, size);
        pieces[n_pieces++].size = (uint8_t)size;
}

static void make_pieces(void)
{
        static const char *const marks[] = {
                "\":",  "\": ",  "\",",    "\", \"", "\",\"", "{\"",    "[{\"",   "\"}",   "\"},",  "\"}]",  "}}",
                "]}",   "\"]",   "[]",     "{}",     "\":\"", "\": \"", "\":{\"", "\": {", "\": [", "\",\n", "},\n",
                "{\n",  "[\n",   "\n\n",   "\n}",    "\"\n",  "\\n",    "\\\"",   "\\u",   "\\t",   "true",  "false",
                "null", " true", " false", " null",  "();",   ");",     "()",     "=\"",   "('",    "':",    "',",
                "//",   "/*",    "*/",     "->",     "==",    "!=",     "<=",     ">=",    "&&",    "||",    "++",
                "--",   "...",   "\r\n",   "\t\t",   ";\n",   "{\r\n",  ">\n",    "</",    "/>",    "\"/>",  "\">",
        };
        static const char letters[] = "etaoinshrdlcumwfgypbvkjxqz";
        char text[40];

        for (unsigned b = 0; b < 256; b++)
                add((const char[]){ (char)b }, 1);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(marks); i++)
                add(marks[i], strlen(marks[i]));
        for (unsigned n = 2; n <= 31; n++) {
                memset(text, ' ', n);
                add(text, n);
                text[0] = '\n';
                add(text, n);
                memset(text, '\t', n);
                add(text, n);
        }
        for (unsigned n = 0; n < 1000; n++)
                add(text, (size_t)snprintf(text, sizeof(text), "%u", n));
        while (n_pieces < n_wanted) {
                uint32_t kind = draw(100), n = 0, length = 2 + draw(9);

                if (kind < 55 && draw(2))
                        text[n++] = ' ';
                if (kind < 85) { /* words, some of them capital, some with a mark at their end */
                        for (uint32_t i = 0; i < length; i++)
                                text[n++] = letters[TDM_MIN(draw(26), draw(26))];
                        if (draw(3) == 0)
                                text[text[0] == ' '] = (char)(text[text[0] == ' '] - 'a' + 'A');
                        if (kind >= 80)
                                n += (uint32_t)snprintf(text + n, 8, "%s", marks[draw(TDM_ARRAY_SIZE(marks))]);
                } else { /* characters of two and three bytes */
                        for (uint32_t i = 0; i < 1 + length / 3; i++) {
                                uint32_t c = draw(2) ? 0x400 + draw(0x60) : 0x4e00 + draw(0x2000);

                                if (c >= 0x800) {
                                        text[n++] = (char)(0xe0 | c >> 12);
                                        text[n++] = (char)(0x80 | (c >> 6 & 0x3f));
                                } else {
                                        text[n++] = (char)(0xc0 | c >> 6);
                                }
                                text[n++] = (char)(0x80 | (c & 0x3f));
                        }
                }
                add(text, n);
        }
}

static size_t piece_of(void *userdata, uint32_t id, const char **ret_data)
{
        *ret_data = pieces[id].text;
        return id == 1 ? 0 : pieces[id].size;
}

static bool is_end(void *userdata, uint32_t id)
{
        return id == 1;
}

struct times {
        double *us;
        size_t n, capacity;
};

/* The processor time of this thread: other work on the machine does not count. */
static uint64_t cpu_ns(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
        return (uint64_t)ts.tv_sec * TDM_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

static void keep(struct times *t, uint64_t ns)
{
        if (t->n == t->capacity) {
                t->capacity = TDM_MAX(t->capacity * 2, (size_t)1024);
                t->us = realloc(t->us, t->capacity * sizeof(*t->us));
                if (!t->us)
                        abort();
        }
        t->us[t->n++] = (double)ns / 1000;
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

static void report(const char *what, struct times *t)
{
        if (t->n == 0)
                return;
        qsort(t->us, t->n, sizeof(*t->us), compare);
        printf("%-8s %8zu  p50 %9.1f  p90 %9.1f  p99 %9.1f  p99.9 %9.1f  max %9.1f us\n", what, t->n, t->us[t->n / 2],
               t->us[t->n * 9 / 10], t->us[t->n * 99 / 100], t->us[t->n * 999 / 1000], t->us[t->n - 1]);
}

static struct times masks, compiles;
static size_t most_bytes;
static unsigned n_refused, n_stopped;
static bool verbose;

/* The longest piece that both the mask allows and the text goes on with. */
static uint32_t next_piece(const uint64_t *mask, const char *text, size_t size, uint32_t *by_first[256],
                           uint32_t *n_first)
{
        uint32_t best = UINT32_MAX;
        uint8_t first = (uint8_t)*text;

        for (uint32_t i = 0; i < n_first[first]; i++) {
                uint32_t id = by_first[first][i];

                if (pieces[id].size <= size && memcmp(pieces[id].text, text, pieces[id].size) == 0 &&
                    (mask[id / 64] >> id % 64 & 1) && (best == UINT32_MAX || pieces[id].size > pieces[best].size))
                        best = id;
        }
        return best;
}

static void run(struct tdm_vocabulary *v, const char *schema, size_t schema_size, const char *text, size_t size,
                uint32_t *by_first[256], uint32_t *n_first)
{
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *g = NULL;
        _cleanup_(tdm_matcher_destroyp) struct tdm_matcher *m = NULL;
        struct tdm_error err;
        const uint64_t *mask;
        uint64_t start = cpu_ns();

        if (tdm_grammar_new_schema(&g, schema, schema_size, 0, NULL, &err) || tdm_matcher_new(&m, g, v)) {
                n_refused++;
                return;
        }
        keep(&compiles, cpu_ns() - start);
        while (size > 0) {
                uint32_t id;

                start = cpu_ns();
                if (tdm_matcher_mask(m, &mask))
                        break;
                keep(&masks, cpu_ns() - start);
                if (verbose && masks.us[masks.n - 1] > 400)
                        printf("%8.1f us before '%.*s' of %.*s\n", masks.us[masks.n - 1], (int)TDM_MIN(size, 20u), text,
                               (int)TDM_MIN(schema_size, 60u), schema);
                id = next_piece(mask, text, size, by_first, n_first);
                if (id == UINT32_MAX || tdm_matcher_accept(m, id) != 1)
                        break;
                text += pieces[id].size;
                size -= pieces[id].size;
        }
        n_stopped += size > 0;
        most_bytes = TDM_MAX(most_bytes, tdm_matcher_bytes(m) + tdm_grammar_bytes(g));
}

static const char *const built_in[] = {
        "{\"schema\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\","
        "\"minimum\":0,\"maximum\":150},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":20}},"
        "\"kind\":"
        "{\"enum\":[\"human\",\"robot\",\"cat\"]}},\"required\":[\"name\",\"age\"],\"additionalProperties\":false},"
        "\"instance\":{\"name\":\"Ada Lovelace of "
        "London\",\"age\":36,\"tags\":[\"mathematics\",\"engines\"],\"kind\":\"human\"}}",
        "{\"schema\":{\"type\":\"object\"},\"instance\":{\"a key\":[1,2.5,true,null,{\"b\":\"some longer text in "
        "here\"}]}}",
        "{\"schema\":{\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"value\":{\"type\":\"string\","
        "\"pattern\":"
        "\"^[a-z]{2,12}$\"},\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/"
        "node\"},{\"type\":\"null\"}]}},\"required\":[\"value\","
        "\"next\"]}},\"$ref\":\"#/$defs/"
        "node\"},\"instance\":{\"value\":\"one\",\"next\":{\"value\":\"two\",\"next\":null}}}",
        "{\"schema\":{\"type\":\"object\",\"properties\":{\"when\":{\"type\":\"string\",\"format\":\"date-time\"},"
        "\"id\":{\"type\":"
        "\"string\",\"format\":\"uuid\"},\"score\":{\"type\":\"number\",\"minimum\":0,\"maximum\":1}}},\"instance\":{"
        "\"when\":"
        "\"2026-11-23T18:00:00Z\",\"id\":\"123e4567-e89b-12d3-a456-426614174000\",\"score\":0.875}}",
};

static void run_line(struct tdm_vocabulary *v, const char *line, size_t size, uint32_t *by_first[256],
                     uint32_t *n_first)
{
        struct tdm_json json;
        struct tdm_json_buffer schema = { 0 }, instance = { 0 };
        uint32_t s, i;

        if (tdm_json_parse(&json, line, size, 500, NULL))
                return;
        s = tdm_json_member(&json, 0, "schema");
        i = tdm_json_member(&json, 0, "instance");
        if (s != TDM_JSON_NONE && i != TDM_JSON_NONE) {
                tdm_json_print(&json, s, &schema);
                tdm_json_print(&json, i, &instance);
                run(v, schema.data, schema.size, instance.data, instance.size, by_first, n_first);
        }
        free(schema.data);
        free(instance.data);
        tdm_json_deinit(&json);
}

int main(int argc, char **argv)
{
        static uint32_t *by_first[256], n_first[256];
        struct tdm_vocabulary *v;
        char *line = NULL;
        size_t capacity = 0;
        unsigned n_max = UINT32_MAX;
        bool print = false;
        ssize_t size;
        uint64_t start;
        int c;

        while ((c = getopt(argc, argv, "v:n:sp")) != -1) {
                if (c == 'v')
                        n_wanted = (uint32_t)strtoul(optarg, NULL, 10);
                else if (c == 'n')
                        n_max = (unsigned)strtoul(optarg, NULL, 10);
                else if (c == 's')
                        verbose = true;
                else if (c == 'p')
                        print = true;
                else
                        return 2;
        }
        pieces = calloc(n_wanted, sizeof(*pieces));
        if (!pieces || n_wanted < 2048)
                return 2;
        make_pieces();
        for (uint32_t id = 0; print && id < n_pieces; id++, putchar('\n'))
                for (unsigned i = 0; i < pieces[id].size; i++)
                        printf("%02x", (uint8_t)pieces[id].text[i]);
        if (print)
                return 0;
        for (uint32_t id = 0; id < n_pieces; id++)
                n_first[(uint8_t)pieces[id].text[0]]++;
        for (unsigned b = 0; b < 256; b++) {
                by_first[b] = malloc((n_first[b] + 1) * sizeof(uint32_t));
                if (!by_first[b])
                        return 1;
                n_first[b] = 0;
        }
        for (uint32_t id = 0; id < n_pieces; id++)
                by_first[(uint8_t)pieces[id].text[0]][n_first[(uint8_t)pieces[id].text[0]]++] = id;
        start = cpu_ns();
        if (tdm_vocabulary_new(&v, n_pieces, piece_of, is_end, NULL))
                return 1;
        printf("vocabulary of %u pieces: %.0f ms, %.1f MiB\n", n_pieces, (double)(cpu_ns() - start) / 1e6,
               (double)tdm_vocabulary_bytes(v) / (1 << 20));
        for (size_t i = 0; optind == argc && i < TDM_ARRAY_SIZE(built_in); i++)
                run_line(v, built_in[i], strlen(built_in[i]), by_first, n_first);
        for (int i = optind; i < argc; i++) {
                FILE *f = fopen(argv[i], "re");

                if (!f)
                        return 1;
                while (n_max-- > 0 && (size = getline(&line, &capacity, f)) > 0)
                        run_line(v, line, (size_t)size, by_first, n_first);
                fclose(f);
        }
        report("mask", &masks);
        report("compile", &compiles);
        printf("%u refused, %u stopped before the end, at most %.1f MiB a grammar with its matcher\n", n_refused,
               n_stopped, (double)most_bytes / (1 << 20));
        return 0;
}
