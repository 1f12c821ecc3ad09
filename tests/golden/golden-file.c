/* A reader of just the JSON that golden files are made of: arrays, objects, numbers, and strings that are skipped. */
#include "tests/golden/golden-file.h"

struct reader {
        const char *path, *text, *at;
};

static _Noreturn void fail(const struct reader *r, const char *what)
{
        fprintf(stderr, "%s: %s at byte %td\n", r->path, what, r->at - r->text);
        exit(1);
}

static void *grow(void *p, uint32_t n, size_t size)
{
        if (n & (n - 1)) /* full only at powers of two */
                return p;
        p = realloc(p, (n ? 2 * (size_t)n : 1) * size);
        if (!p)
                abort();
        return p;
}

/* The next character that is not space; taken when it is `c`. */
static bool accept(struct reader *r, char c)
{
        r->at += strspn(r->at, " \t\r\n");
        if (*r->at != c)
                return false;
        r->at++;
        return true;
}

static void expect(struct reader *r, char c)
{
        if (!accept(r, c))
                fail(r, "unexpected character");
}

static double number(struct reader *r)
{
        char *end;
        double value;

        r->at += strspn(r->at, " \t\r\n");
        value = strtod(r->at, &end);
        if (end == r->at)
                fail(r, "no number");
        r->at = end;
        return value;
}

/* Contents without the quotes; escapes are left as they are. */
static const char *string(struct reader *r, size_t *ret_size)
{
        const char *first;

        expect(r, '"');
        first = r->at;
        while (*r->at && *r->at != '"')
                r->at += r->at[0] == '\\' && r->at[1] ? 2 : 1;
        *ret_size = (size_t)(r->at - first);
        expect(r, '"');
        return first;
}

static void read_case(struct reader *r, struct golden_case *c)
{
        *c = (struct golden_case){ .prompt_len = 1 };
        expect(r, '{');
        do {
                size_t size;
                const char *key = string(r, &size);

                expect(r, ':');
                if (size == 10 && memcmp(key, "prompt_len", size) == 0) {
                        c->prompt_len = (uint32_t)number(r);
                        continue;
                }
                if (accept(r, '"')) {
                        r->at--;
                        string(r, &size);
                        continue;
                }
                expect(r, '[');
                do {
                        if (size == 3 && memcmp(key, "ids", size) == 0) {
                                c->ids = grow(c->ids, c->n_ids, sizeof(*c->ids));
                                c->ids[c->n_ids++] = (uint32_t)number(r);
                        } else if (size == 3 && memcmp(key, "nll", size) == 0) {
                                c->nll = grow(c->nll, c->n_nll, sizeof(*c->nll));
                                c->nll[c->n_nll++] = number(r);
                        } else if (size == 3 && memcmp(key, "gap", size) == 0) {
                                c->gap = grow(c->gap, c->n_gap, sizeof(*c->gap));
                                c->gap[c->n_gap++] = number(r);
                        } else if (size == 6 && memcmp(key, "vector", size) == 0) {
                                c->vector = grow(c->vector, c->n_vector, sizeof(*c->vector));
                                c->vector[c->n_vector++] = number(r);
                        } else if (size == 9 && memcmp(key, "truncated", size) == 0) {
                                number(r);
                        } else if (size == 3 && memcmp(key, "top", size) == 0) {
                                uint32_t n = 0;

                                c->top = grow(c->top, c->n_top, sizeof(*c->top));
                                expect(r, '[');
                                do {
                                        if (n == GOLDEN_TOP)
                                                fail(r, "more than ten alternatives");
                                        expect(r, '[');
                                        c->top[c->n_top][n].id = (uint32_t)number(r);
                                        expect(r, ',');
                                        c->top[c->n_top][n++].logprob = number(r);
                                        expect(r, ']');
                                } while (accept(r, ','));
                                expect(r, ']');
                                if (n != GOLDEN_TOP)
                                        fail(r, "fewer than ten alternatives");
                                c->n_top++;
                        } else {
                                fail(r, "unknown key");
                        }
                } while (accept(r, ','));
                expect(r, ']');
        } while (accept(r, ','));
        expect(r, '}');
        if (c->n_vector && c->n_ids && !c->n_nll && !c->n_top)
                return;
        if (c->n_ids < 2 || c->n_nll != c->n_ids - 1 || c->prompt_len < 1 || !c->n_top ||
            c->prompt_len - 1 + c->n_top > c->n_ids || (c->n_gap && c->n_gap != c->n_top))
                fail(r, "counts do not fit");
}

/* Up to the array of cases. */
static void open_cases(struct reader *r)
{
        const char *key;
        size_t size;

        if (accept(r, '[')) {
                r->at--;
                return;
        }
        expect(r, '{');
        while ((key = string(r, &size)) && (size != 5 || memcmp(key, "cases", size) != 0)) {
                expect(r, ':');
                if (accept(r, '"')) {
                        r->at--;
                        string(r, &size);
                } else {
                        number(r);
                }
                expect(r, ',');
        }
        expect(r, ':');
}

void golden_file_read(struct golden_file *ret, const char *path)
{
        _cleanup_(fclosep) FILE *f = fopen(path, "re");
        _cleanup_(freep) char *text = NULL;
        struct reader r = { .path = path };
        struct golden_file file = {};
        size_t capacity = 1 << 20, size = 0;

        if (!f) {
                fprintf(stderr, "%s: %s\n", path, strerror(errno));
                exit(1);
        }
        while ((text = realloc(text, capacity + 1)) && (size += fread(text + size, 1, capacity - size, f)) == capacity)
                capacity *= 2;
        if (!text)
                abort();
        text[size] = 0;

        r.text = r.at = text;
        open_cases(&r);
        expect(&r, '[');
        do {
                file.cases = grow(file.cases, file.n_cases, sizeof(*file.cases));
                read_case(&r, &file.cases[file.n_cases++]);
        } while (accept(&r, ','));
        expect(&r, ']');
        *ret = file;
}

void golden_file_deinit(struct golden_file *file)
{
        for (uint32_t i = 0; i < file->n_cases; i++) {
                free(file->cases[i].ids);
                free(file->cases[i].nll);
                free(file->cases[i].gap);
                free(file->cases[i].top);
                free(file->cases[i].vector);
        }
        free(file->cases);
}
