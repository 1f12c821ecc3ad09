/* GBNF as llama.cpp writes it: rules `name ::= …` of literals, classes, names and groups, with | * + ? {m,n};
 * comments begin with #. A rule ends with its line, unless a group is open or a | stands at the end. Left recursion
 * is refused, as it is there. */
#include "engine/grammar/chars.h"
#include "engine/grammar/grammar-private.h"

enum { DEPTH_MAX = 100, REPEAT_MAX = 100000 };

struct name {
        const char *text;
        size_t size;
        uint32_t rule;
        bool defined;
};

struct gbnf {
        struct tdm_grammar *g;
        const char *text;
        size_t size, at;
        struct name *names;
        uint32_t n_names, capacity;
        unsigned depth;
        struct tdm_error *err;
        int error;
};

static uint32_t gbnf_fail(struct gbnf *p, int code, const char *what)
{
        size_t line = 1;

        for (size_t i = 0; i < p->at && i < p->size; i++)
                line += p->text[i] == '\n';
        if (!p->error)
                p->error = tdm_error_set(p->err, code, "grammar, line %zu: %s", line, what);
        return TDM_EXPR_NONE;
}

static char gbnf_peek(const struct gbnf *p)
{
        return p->at < p->size ? p->text[p->at] : 0;
}

static void gbnf_skip_space(struct gbnf *p, bool newlines)
{
        while (p->at < p->size) {
                char c = p->text[p->at];

                if (c == '#')
                        while (p->at < p->size && p->text[p->at] != '\n')
                                p->at++;
                else if (c == ' ' || c == '\t' || (newlines && (c == '\n' || c == '\r')))
                        p->at++;
                else
                        return;
        }
}

static bool is_word(char c)
{
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static uint32_t rule_named(struct gbnf *p, const char *text, size_t size, bool define)
{
        for (uint32_t i = 0; i < p->n_names; i++) {
                struct name *n = &p->names[i];

                if (n->size != size || memcmp(n->text, text, size) != 0)
                        continue;
                if (define && n->defined)
                        (void)gbnf_fail(p, TDM_E_BAD_REQUEST, "a rule is defined twice");
                n->defined |= define;
                return n->rule;
        }
        p->g->arena.steps += p->n_names;
        if (p->n_names == p->capacity) {
                uint32_t capacity = TDM_MAX(p->capacity * 2, 32u);
                struct name *names = realloc(p->names, capacity * sizeof(*names));

                if (!names) {
                        p->error = p->error ? p->error : -ENOMEM;
                        return 0;
                }
                p->names = names;
                p->capacity = capacity;
        }
        p->names[p->n_names++] = (struct name){ text, size, tdm_grammar_add_rule(p->g), define };
        return p->names[p->n_names - 1].rule;
}

static bool hex_digits(struct gbnf *p, unsigned n, uint32_t *ret)
{
        *ret = 0;
        for (unsigned i = 0; i < n; i++) {
                char c = gbnf_peek(p);
                uint32_t digit = c >= '0' && c <= '9' ? (uint32_t)(c - '0') :
                                 c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10) :
                                 c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10) :
                                                        16;

                if (digit == 16)
                        return false;
                *ret = *ret << 4 | digit;
                p->at++;
        }
        return *ret <= 0x10ffff;
}

/* One character of a literal or class. */
static bool character(struct gbnf *p, uint32_t *ret)
{
        static const char from[] = "nrt\\\"[]-^", to[] = "\n\r\t\\\"[]-^";
        const char *found;
        size_t n;
        char c;

        if (gbnf_peek(p) != '\\') {
                n = tdm_chars_decode(p->text + p->at, p->size - p->at, ret);
                p->at += n;
                if (n == 0)
                        (void)gbnf_fail(p, TDM_E_BAD_REQUEST, "it is not UTF-8, or a literal or class has no end");
                return n > 0;
        }
        p->at++;
        c = gbnf_peek(p);
        found = c ? strchr(from, c) : NULL;
        p->at++;
        if (found) {
                *ret = (uint8_t)to[found - from];
                return true;
        }
        if ((c == 'x' && hex_digits(p, 2, ret)) || (c == 'u' && hex_digits(p, 4, ret)) ||
            (c == 'U' && hex_digits(p, 8, ret)))
                return true;
        (void)gbnf_fail(p, TDM_E_BAD_REQUEST, "there is no such escape");
        return false;
}

static uint32_t literal(struct gbnf *p)
{
        struct tdm_expr_list list = { 0 };
        uint32_t e = TDM_EXPR_EPS, c;
        char utf8[4];

        p->at++;
        while (!p->error && gbnf_peek(p) != '"')
                if (character(p, &c))
                        tdm_expr_list_add(&p->g->arena, &list, c);
        p->at++;
        for (uint32_t i = list.n; i-- > 0 && !p->error;) {
                size_t n = tdm_chars_encode(list.items[i], utf8);

                e = tdm_expr_cat(&p->g->arena, tdm_expr_literal(&p->g->arena, utf8, n), e);
        }
        tdm_expr_list_deinit(&list);
        return e;
}

static uint32_t char_class(struct gbnf *p)
{
        struct tdm_chars chars = { 0 };
        bool inverted;
        uint32_t low, high, e = TDM_EXPR_NONE;

        p->at++;
        inverted = gbnf_peek(p) == '^';
        p->at += inverted;
        while (!p->error && gbnf_peek(p) != ']') {
                if (!character(p, &low))
                        break;
                high = low;
                if (gbnf_peek(p) == '-' && p->at + 1 < p->size && p->text[p->at + 1] != ']') {
                        p->at++;
                        if (!character(p, &high))
                                break;
                }
                if (low > high)
                        (void)gbnf_fail(p, TDM_E_BAD_REQUEST, "a range in a class runs backwards");
                tdm_chars_add(&chars, low, high);
        }
        p->at++;
        if (inverted)
                tdm_chars_invert(&chars);
        tdm_chars_sort(&chars);
        if (!p->error)
                e = tdm_chars_expr(&p->g->arena, &chars, TDM_TEXT_RAW);
        tdm_chars_deinit(&chars);
        return e;
}

static bool gbnf_read_count(struct gbnf *p, uint32_t *ret)
{
        size_t start = p->at;

        for (*ret = 0; gbnf_peek(p) >= '0' && gbnf_peek(p) <= '9'; p->at++)
                *ret = TDM_MIN(*ret * 10 + (uint32_t)(gbnf_peek(p) - '0'), (uint32_t)REPEAT_MAX + 1);
        return p->at > start;
}

static uint32_t repeated(struct gbnf *p, uint32_t e, bool nested)
{
        uint32_t min, max;

        for (;;) {
                gbnf_skip_space(p, nested);
                switch (gbnf_peek(p)) {
                case '*':
                        min = 0;
                        max = TDM_EXPR_INF;
                        break;
                case '+':
                        min = 1;
                        max = TDM_EXPR_INF;
                        break;
                case '?':
                        min = 0;
                        max = 1;
                        break;
                case '{':
                        p->at++;
                        gbnf_skip_space(p, nested);
                        if (!gbnf_read_count(p, &min))
                                return gbnf_fail(p, TDM_E_BAD_REQUEST, "a repetition needs a number");
                        max = min;
                        gbnf_skip_space(p, nested);
                        if (gbnf_peek(p) == ',') {
                                p->at++;
                                gbnf_skip_space(p, nested);
                                if (!gbnf_read_count(p, &max))
                                        max = TDM_EXPR_INF;
                                gbnf_skip_space(p, nested);
                        }
                        if (gbnf_peek(p) != '}')
                                return gbnf_fail(p, TDM_E_BAD_REQUEST, "a repetition without its }");
                        if (min > max)
                                return gbnf_fail(p, TDM_E_BAD_REQUEST, "a repetition's bounds are the wrong way round");
                        if (min > REPEAT_MAX || (max > REPEAT_MAX && max != TDM_EXPR_INF))
                                return gbnf_fail(p, TDM_E_UNSUPPORTED, "so many repetitions are not held");
                        break;
                default:
                        return e;
                }
                p->at++;
                e = tdm_expr_rep(&p->g->arena, e, min, max);
        }
}

static uint32_t alternatives(struct gbnf *p, bool nested);

static uint32_t sequence(struct gbnf *p, bool nested)
{
        struct tdm_expr_list list = { 0 };
        struct tdm_chars all = { 0 };
        uint32_t e = TDM_EXPR_EPS;
        size_t start;

        while (!p->error) {
                gbnf_skip_space(p, nested);
                start = p->at;
                if (gbnf_peek(p) == '"') {
                        e = literal(p);
                } else if (gbnf_peek(p) == '[') {
                        e = char_class(p);
                } else if (gbnf_peek(p) == '.') {
                        p->at++;
                        tdm_chars_add(&all, 0, 0x10ffff);
                        e = tdm_chars_expr(&p->g->arena, &all, TDM_TEXT_RAW);
                        tdm_chars_deinit(&all);
                } else if (gbnf_peek(p) == '(') {
                        p->at++;
                        if (++p->depth > DEPTH_MAX) {
                                (void)gbnf_fail(p, TDM_E_UNSUPPORTED, "groups are nested too deeply");
                                break;
                        }
                        e = alternatives(p, true);
                        p->depth--;
                        if (!p->error && gbnf_peek(p) != ')')
                                (void)gbnf_fail(p, TDM_E_BAD_REQUEST, "a group without its )");
                        p->at++;
                } else if (is_word(gbnf_peek(p))) {
                        while (is_word(gbnf_peek(p)))
                                p->at++;
                        e = tdm_expr_call(&p->g->arena, rule_named(p, p->text + start, p->at - start, false));
                } else if (gbnf_peek(p) == '<' || gbnf_peek(p) == '!') {
                        (void)gbnf_fail(p, TDM_E_UNSUPPORTED, "tokens by name (<…>) are not held");
                        break;
                } else {
                        break;
                }
                if (!p->error)
                        tdm_expr_list_add(&p->g->arena, &list, repeated(p, e, nested));
        }
        e = TDM_EXPR_EPS;
        for (uint32_t i = list.n; i-- > 0 && !p->error;)
                e = tdm_expr_cat(&p->g->arena, list.items[i], e);
        tdm_expr_list_deinit(&list);
        return e;
}

static uint32_t alternatives(struct gbnf *p, bool nested)
{
        struct tdm_expr_list list = { 0 };
        uint32_t e = TDM_EXPR_NONE;

        for (;;) {
                tdm_expr_list_add(&p->g->arena, &list, sequence(p, nested));
                gbnf_skip_space(p, nested);
                if (p->error || gbnf_peek(p) != '|')
                        break;
                p->at++;
                gbnf_skip_space(p, true);
        }
        for (uint32_t i = list.n; i-- > 0 && !p->error;)
                e = tdm_expr_alt(&p->g->arena, list.items[i], e);
        tdm_expr_list_deinit(&list);
        return e;
}

static void parse_rule(struct gbnf *p)
{
        size_t start = p->at;
        uint32_t rule, body;

        while (is_word(gbnf_peek(p)))
                p->at++;
        if (p->at == start) {
                (void)gbnf_fail(p, TDM_E_BAD_REQUEST, "a rule's name is missing");
                return;
        }
        rule = rule_named(p, p->text + start, p->at - start, true);
        gbnf_skip_space(p, false);
        if (p->size - p->at < 3 || memcmp(p->text + p->at, "::=", 3) != 0) {
                (void)gbnf_fail(p, TDM_E_BAD_REQUEST, "::= is missing");
                return;
        }
        p->at += 3;
        gbnf_skip_space(p, true);
        body = alternatives(p, false);
        if (p->error || p->g->arena.failed)
                return;
        p->g->rules[rule].body = body;
        gbnf_skip_space(p, false);
        if (p->at < p->size && gbnf_peek(p) != '\n' && gbnf_peek(p) != '\r')
                (void)gbnf_fail(p, TDM_E_BAD_REQUEST, "a rule ends in something that is none of its parts");
}

int tdm_grammar_new_gbnf(struct tdm_grammar **ret, const char *source, size_t size,
                         const struct tdm_grammar_limits *limits, struct tdm_error *err)
{
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *g = NULL;
        struct gbnf p = { .text = source, .size = size, .err = err };
        int r = tdm_grammar_new(&g, limits);
        uint32_t root;

        if (r < 0)
                return r;
        if (size > g->limits.max_source_bytes)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "the grammar is longer than %zu bytes",
                                     g->limits.max_source_bytes);
        p.g = g;
        gbnf_skip_space(&p, true);
        while (!p.error && p.at < size && !g->arena.failed && g->arena.steps < g->arena.max_steps) {
                parse_rule(&p);
                gbnf_skip_space(&p, true);
        }
        root = rule_named(&p, "root", 4, false);
        for (uint32_t i = 0; i < p.n_names && !p.error && !g->arena.failed; i++)
                if (!p.names[i].defined)
                        p.error = tdm_error_set(err, TDM_E_BAD_REQUEST, "grammar: there is no rule '%.*s'",
                                                (int)TDM_MIN(p.names[i].size, (size_t)60), p.names[i].text);
        free(p.names);
        if (p.error)
                return p.error;
        g->root = tdm_expr_call(&g->arena, root);
        r = tdm_grammar_finish(g, err);
        if (r)
                return r;
        *ret = steal_ptr(&g);
        return 0;
}
