/* ECMA regular expressions: a tree first, since anchors decide what stands around it, then expressions. */
#include "engine/grammar/regex.h"
#include "engine/grammar/grammar-private.h"

enum { DEPTH_MAX = 100, NODES_MAX = 50000 };

enum kind { CHARS, CAT, ALT, REPEAT, BEGIN, END, AHEAD, NOT_AHEAD, EMPTY };

struct node {
        uint8_t kind;
        bool anchored;     /* contains BEGIN, END or a look-ahead */
        uint32_t a, b;     /* children; NO_NODE: none */
        uint32_t min, max; /* REPEAT */
        uint32_t expr;     /* CHARS */
        uint32_t min_chars, max_chars;
};

#define NO_NODE UINT32_MAX

struct regex {
        struct tdm_arena *arena;
        const char *text;
        size_t size, at;
        enum tdm_text_form form;
        struct node *nodes;
        uint32_t n_nodes, capacity;
        unsigned depth;
        struct tdm_error *err;
        int error;
        uint32_t any; /* expression: any character */
};

static uint32_t regex_fail(struct regex *r, int code, const char *what)
{
        if (!r->error)
                r->error = tdm_error_set(r->err, code, "regular expression, at character %zu: %s", r->at + 1, what);
        return NO_NODE;
}

static uint32_t add_times(uint32_t a, uint32_t b)
{
        return a == TDM_EXPR_INF || b == TDM_EXPR_INF || a > UINT32_MAX - 1 - b ? TDM_EXPR_INF : a + b;
}

static uint32_t multiply_capped(uint32_t a, uint32_t b)
{
        uint64_t product;

        if (a == 0 || b == 0)
                return 0;
        product = (uint64_t)a * b;
        return a == TDM_EXPR_INF || b == TDM_EXPR_INF || product >= TDM_EXPR_INF ? TDM_EXPR_INF : (uint32_t)product;
}

static uint32_t regex_add_node(struct regex *r, struct node node)
{
        const struct node *a, *b;

        if (r->error)
                return NO_NODE;
        if (r->n_nodes >= NODES_MAX)
                return regex_fail(r, TDM_E_UNSUPPORTED, "it is too long");
        if (r->n_nodes == r->capacity) {
                uint32_t capacity = TDM_MAX(r->capacity * 2, 32u);
                struct node *nodes = realloc(r->nodes, capacity * sizeof(*nodes));

                if (!nodes) {
                        r->error = -ENOMEM;
                        return NO_NODE;
                }
                r->nodes = nodes;
                r->capacity = capacity;
        }
        a = node.a != NO_NODE ? &r->nodes[node.a] : NULL;
        b = node.b != NO_NODE ? &r->nodes[node.b] : NULL;
        node.anchored = (node.kind >= BEGIN && node.kind <= NOT_AHEAD) || (a && a->anchored) || (b && b->anchored);
        switch (node.kind) {
        case CHARS:
                node.min_chars = node.max_chars = 1;
                break;
        case CAT:
                node.min_chars = add_times(a->min_chars, b->min_chars);
                node.max_chars = add_times(a->max_chars, b->max_chars);
                break;
        case ALT:
                node.min_chars = TDM_MIN(a->min_chars, b->min_chars);
                node.max_chars = TDM_MAX(a->max_chars, b->max_chars);
                break;
        case REPEAT:
                node.min_chars = multiply_capped(a->min_chars, node.min);
                node.max_chars = multiply_capped(a->max_chars, node.max);
                break;
        default:
                break;
        }
        r->nodes[r->n_nodes] = node;
        return r->n_nodes++;
}

static uint32_t regex_join_nodes(struct regex *r, uint8_t kind, uint32_t a, uint32_t b)
{
        if (r->error)
                return NO_NODE;
        if (kind == CAT && r->nodes[a].kind == EMPTY)
                return b;
        if (kind == CAT && r->nodes[b].kind == EMPTY)
                return a;
        return regex_add_node(r, (struct node){ .kind = kind, .a = a, .b = b });
}

static uint32_t add_chars(struct regex *r, struct tdm_chars *chars)
{
        uint32_t e;

        tdm_chars_sort(chars);
        e = tdm_chars_expr(r->arena, chars, r->form);
        return regex_add_node(r, (struct node){ .kind = CHARS, .a = NO_NODE, .b = NO_NODE, .expr = e });
}

static bool more(const struct regex *r)
{
        return r->at < r->size;
}

static char regex_peek(const struct regex *r)
{
        return r->at < r->size ? r->text[r->at] : 0;
}

static bool skip(struct regex *r, const char *text)
{
        size_t n = strlen(text);

        if (r->size - r->at < n || memcmp(r->text + r->at, text, n) != 0)
                return false;
        r->at += n;
        return true;
}

static bool hex_digits(struct regex *r, unsigned n, uint32_t *ret)
{
        uint32_t value = 0;

        if (r->size - r->at < n)
                return false;
        for (unsigned i = 0; i < n; i++) {
                char c = r->text[r->at + i];
                uint32_t digit = c >= '0' && c <= '9' ? (uint32_t)(c - '0') :
                                 c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10) :
                                 c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10) :
                                                        16;

                if (digit == 16)
                        return false;
                value = value << 4 | digit;
        }
        r->at += n;
        *ret = value;
        return true;
}

/* Behind \u: four digits, a pair of them for what needs two, or {…}. */
static bool unicode_escape(struct regex *r, uint32_t *ret)
{
        uint32_t low;
        size_t before;

        if (skip(r, "{")) {
                unsigned n = 0;

                while (r->at + n < r->size && r->text[r->at + n] != '}')
                        n++;
                return n >= 1 && n <= 6 && hex_digits(r, n, ret) && *ret <= 0x10ffff && skip(r, "}");
        }
        if (!hex_digits(r, 4, ret))
                return false;
        before = r->at;
        if (*ret >= 0xd800 && *ret < 0xdc00 && skip(r, "\\u")) {
                if (hex_digits(r, 4, &low) && low >= 0xdc00 && low < 0xe000)
                        *ret = 0x10000 + ((*ret - 0xd800) << 10) + (low - 0xdc00);
                else
                        r->at = before;
        }
        return true;
}

/* \p{…} and \P{…}. */
static bool property(struct regex *r, struct tdm_chars *chars)
{
        struct tdm_chars taken = { 0 };
        bool inverted = regex_peek(r) == 'P';
        const char *name = r->text + r->at + 2;
        size_t size = 0;

        r->at++;
        if (regex_peek(r) != '{')
                return regex_fail(r, TDM_E_BAD_REQUEST, "\\p needs a name in braces"), false;
        while (r->at + 1 + size < r->size && name[size] != '}')
                size++;
        if (r->at + 1 + size >= r->size)
                return regex_fail(r, TDM_E_BAD_REQUEST, "\\p needs a name in braces"), false;
        if (!tdm_chars_add_property(&taken, name, size)) {
                (void)regex_fail(r, TDM_E_UNSUPPORTED, "this Unicode property is not held");
                tdm_chars_deinit(&taken);
                return false;
        }
        r->at += size + 2;
        tdm_chars_sort(&taken);
        if (inverted)
                tdm_chars_invert(&taken);
        tdm_chars_add_all(chars, &taken);
        chars->failed |= taken.failed;
        tdm_chars_deinit(&taken);
        return true;
}

/* Behind a backslash: a character, or a class that is added to chars (true with *ret_char = UINT32_MAX). */
static bool escape(struct regex *r, struct tdm_chars *chars, bool in_class, uint32_t *ret_char)
{
        char c = regex_peek(r);
        uint32_t value;

        *ret_char = UINT32_MAX;
        if (!more(r))
                return regex_fail(r, TDM_E_BAD_REQUEST, "a backslash ends it"), false;
        if (strchr("dDwWsS", c)) {
                r->at++;
                tdm_chars_add_class(chars, c);
                return true;
        }
        if (c == 'b' && in_class) {
                r->at++;
                *ret_char = '\b';
                return true;
        }
        if (c == 'b' || c == 'B')
                return regex_fail(r, TDM_E_UNSUPPORTED, "word boundaries (\\b, \\B) are not held"), false;
        if (c == 'p' || c == 'P')
                return property(r, chars);
        if (c >= '1' && c <= '9')
                return regex_fail(r, TDM_E_UNSUPPORTED, "back references are not regular"), false;
        if (c == 'k')
                return regex_fail(r, TDM_E_UNSUPPORTED, "back references are not regular"), false;
        r->at++;
        switch (c) {
        case 'n':
                *ret_char = '\n';
                return true;
        case 'r':
                *ret_char = '\r';
                return true;
        case 't':
                *ret_char = '\t';
                return true;
        case 'f':
                *ret_char = '\f';
                return true;
        case 'v':
                *ret_char = '\v';
                return true;
        case '0':
                if (regex_peek(r) >= '0' && regex_peek(r) <= '9')
                        return regex_fail(r, TDM_E_UNSUPPORTED, "octal escapes are not held"), false;
                *ret_char = 0;
                return true;
        case 'c':
                if ((regex_peek(r) | 0x20) < 'a' || (regex_peek(r) | 0x20) > 'z')
                        return regex_fail(r, TDM_E_BAD_REQUEST, "\\c needs a letter"), false;
                *ret_char = (uint32_t)(regex_peek(r) & 0x1f);
                r->at++;
                return true;
        case 'x':
                if (!hex_digits(r, 2, &value))
                        return regex_fail(r, TDM_E_BAD_REQUEST, "\\x needs two hexadecimal digits"), false;
                *ret_char = value;
                return true;
        case 'u':
                if (!unicode_escape(r, &value))
                        return regex_fail(r, TDM_E_BAD_REQUEST, "\\u needs four hexadecimal digits"), false;
                *ret_char = value;
                return true;
        default:
                r->at--;
                if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
                        return regex_fail(r, TDM_E_UNSUPPORTED, "there is no such escape"), false;
                r->at += tdm_chars_decode(r->text + r->at, r->size - r->at, ret_char);
                return true;
        }
}

static bool class_atom(struct regex *r, struct tdm_chars *chars, uint32_t *ret_char)
{
        size_t n;

        if (skip(r, "\\"))
                return escape(r, chars, true, ret_char);
        n = tdm_chars_decode(r->text + r->at, r->size - r->at, ret_char);
        r->at += n;
        return n > 0;
}

static uint32_t parse_class(struct regex *r)
{
        struct tdm_chars chars = { 0 };
        bool inverted = skip(r, "^");
        uint32_t low, high, node = NO_NODE;

        while (more(r) && regex_peek(r) != ']') {
                if (!class_atom(r, &chars, &low))
                        goto out;
                if (regex_peek(r) == '-' && r->at + 1 < r->size && r->text[r->at + 1] != ']') {
                        r->at++;
                        if (!class_atom(r, &chars, &high))
                                goto out;
                        if (low == UINT32_MAX || high == UINT32_MAX) { /* a class at one end: the dash is a dash */
                                tdm_chars_add(&chars, '-', '-');
                                if (low != UINT32_MAX)
                                        tdm_chars_add(&chars, low, low);
                                if (high != UINT32_MAX)
                                        tdm_chars_add(&chars, high, high);
                                continue;
                        }
                        if (low > high) {
                                (void)regex_fail(r, TDM_E_BAD_REQUEST, "a range in a class runs backwards");
                                goto out;
                        }
                        tdm_chars_add(&chars, low, high);
                } else if (low != UINT32_MAX) {
                        tdm_chars_add(&chars, low, low);
                }
        }
        if (!skip(r, "]")) {
                (void)regex_fail(r, TDM_E_BAD_REQUEST, "a class without its ]");
                goto out;
        }
        if (inverted)
                tdm_chars_invert(&chars);
        node = add_chars(r, &chars);
out:
        tdm_chars_deinit(&chars);
        return node;
}

static uint32_t parse_alternatives(struct regex *r);

static uint32_t parse_group(struct regex *r)
{
        uint8_t kind = EMPTY;
        uint32_t node;

        if (skip(r, "?=")) {
                kind = AHEAD;
        } else if (skip(r, "?!")) {
                kind = NOT_AHEAD;
        } else if (skip(r, "?<=") || skip(r, "?<!")) {
                return regex_fail(r, TDM_E_UNSUPPORTED, "look-behind is not held");
        } else if (skip(r, "?<")) {
                while (more(r) && regex_peek(r) != '>')
                        r->at++;
                if (!skip(r, ">"))
                        return regex_fail(r, TDM_E_BAD_REQUEST, "a group's name has no end");
        } else if (!skip(r, "?:") && regex_peek(r) == '?') {
                return regex_fail(r, TDM_E_UNSUPPORTED, "there is no such group");
        }
        if (++r->depth > DEPTH_MAX)
                return regex_fail(r, TDM_E_UNSUPPORTED, "groups are nested too deeply");
        node = parse_alternatives(r);
        r->depth--;
        if (r->error)
                return NO_NODE;
        if (!skip(r, ")"))
                return regex_fail(r, TDM_E_BAD_REQUEST, "a group without its )");
        if (kind != EMPTY)
                return regex_add_node(r, (struct node){ .kind = kind, .a = node, .b = NO_NODE });
        return node;
}

static bool number(struct regex *r, uint32_t *ret)
{
        uint64_t value = 0;
        size_t start = r->at;

        for (; regex_peek(r) >= '0' && regex_peek(r) <= '9'; r->at++)
                value = TDM_MIN(value * 10 + (uint64_t)(regex_peek(r) - '0'), UINT64_C(1000000000));
        *ret = (uint32_t)value;
        return r->at > start;
}

/* {n} {n,} {n,m}; without the flag u, what is no such thing is text. */
static bool braces(struct regex *r, uint32_t *ret_min, uint32_t *ret_max)
{
        size_t start = r->at;

        if (!skip(r, "{") || !number(r, ret_min))
                goto no;
        *ret_max = *ret_min;
        if (skip(r, ",") && !number(r, ret_max))
                *ret_max = TDM_EXPR_INF;
        if (skip(r, "}"))
                return true;
no:
        r->at = start;
        return false;
}

static uint32_t parse_atom(struct regex *r)
{
        struct tdm_chars chars = { 0 };
        uint32_t c, node;
        size_t n;

        switch (regex_peek(r)) {
        case '(':
                r->at++;
                return parse_group(r);
        case '[':
                r->at++;
                return parse_class(r);
        case '^':
                r->at++;
                return regex_add_node(r, (struct node){ .kind = BEGIN, .a = NO_NODE, .b = NO_NODE });
        case '$':
                r->at++;
                return regex_add_node(r, (struct node){ .kind = END, .a = NO_NODE, .b = NO_NODE });
        case '*':
        case '+':
        case '?':
                return regex_fail(r, TDM_E_BAD_REQUEST, "there is nothing to repeat");
        case '.':
                r->at++;
                tdm_chars_add_class(&chars, '.');
                break;
        case '\\':
                r->at++;
                if (!escape(r, &chars, false, &c))
                        return tdm_chars_deinit(&chars), NO_NODE;
                if (c != UINT32_MAX)
                        tdm_chars_add(&chars, c, c);
                break;
        default:
                n = tdm_chars_decode(r->text + r->at, r->size - r->at, &c);
                if (n == 0)
                        return regex_fail(r, TDM_E_BAD_REQUEST, "it is not UTF-8");
                r->at += n;
                tdm_chars_add(&chars, c, c);
        }
        node = add_chars(r, &chars);
        tdm_chars_deinit(&chars);
        return node;
}

static uint32_t parse_term(struct regex *r)
{
        uint32_t node = parse_atom(r), min, max;

        while (!r->error && more(r)) {
                if (skip(r, "*"))
                        min = 0, max = TDM_EXPR_INF;
                else if (skip(r, "+"))
                        min = 1, max = TDM_EXPR_INF;
                else if (skip(r, "?"))
                        min = 0, max = 1;
                else if (!braces(r, &min, &max))
                        break;
                (void)skip(r, "?"); /* lazy: the same texts */
                if (min > max)
                        return regex_fail(r, TDM_E_BAD_REQUEST, "a repetition's bounds are the wrong way round");
                if (r->nodes[node].anchored)
                        return regex_fail(r, TDM_E_UNSUPPORTED, "an anchor or look-ahead that is repeated is not held");
                node = regex_add_node(r,
                                      (struct node){ .kind = REPEAT, .a = node, .b = NO_NODE, .min = min, .max = max });
                if (!r->error && (regex_peek(r) == '*' || regex_peek(r) == '+' || regex_peek(r) == '?'))
                        return regex_fail(r, TDM_E_BAD_REQUEST, "there is nothing to repeat");
        }
        return node;
}

/* Lists lean to the right, as expressions do: a list of all terms first, then joined from the last. */
static uint32_t fold(struct regex *r, uint8_t kind, struct tdm_expr_list *list)
{
        uint32_t node = NO_NODE;

        if (!r->error && list->n == 0)
                node = regex_add_node(r, (struct node){ .kind = EMPTY, .a = NO_NODE, .b = NO_NODE });
        for (uint32_t i = list->n; i-- > 0 && !r->error;)
                node = i + 1 == list->n ? list->items[i] : regex_join_nodes(r, kind, list->items[i], node);
        tdm_expr_list_deinit(list);
        return r->error ? NO_NODE : node;
}

static uint32_t parse_sequence(struct regex *r)
{
        struct tdm_expr_list list = { 0 };

        while (!r->error && more(r) && regex_peek(r) != '|' && regex_peek(r) != ')')
                tdm_expr_list_add(r->arena, &list, parse_term(r));
        return fold(r, CAT, &list);
}

static uint32_t parse_alternatives(struct regex *r)
{
        struct tdm_expr_list list = { 0 };

        do
                tdm_expr_list_add(r->arena, &list, parse_sequence(r));
        while (!r->error && skip(r, "|"));
        return fold(r, ALT, &list);
}

/* ---- expressions ---- */

static uint32_t plain(struct regex *r, uint32_t at)
{
        struct tdm_expr_list list = { 0 };
        struct node n = r->nodes[at];
        uint8_t kind = n.kind;
        uint32_t e;

        switch (kind) {
        case CHARS:
                return n.expr;
        case REPEAT:
                return tdm_expr_rep(r->arena, plain(r, n.a), n.min, n.max);
        case EMPTY:
                return TDM_EXPR_EPS;
        case CAT:
        case ALT:
                break;
        default:
                (void)regex_fail(r, TDM_E_UNSUPPORTED, "an anchor or look-ahead inside of it is not held");
                return TDM_EXPR_NONE;
        }
        for (; r->nodes[at].kind == kind; at = r->nodes[at].b)
                tdm_expr_list_add(r->arena, &list, plain(r, r->nodes[at].a));
        e = plain(r, at);
        for (uint32_t i = list.n; i-- > 0;)
                e = kind == CAT ? tdm_expr_cat(r->arena, list.items[i], e) : tdm_expr_alt(r->arena, list.items[i], e);
        tdm_expr_list_deinit(&list);
        return e;
}

/* The expression of a match that begins at `at`. open_left, open_right: anything may stand on that side. */
static uint32_t placed(struct regex *r, uint32_t at, bool open_left, bool open_right, struct tdm_regex_info *info);

static uint32_t any_text(struct regex *r)
{
        return tdm_expr_rep(r->arena, r->any, 0, TDM_EXPR_INF);
}

static void widen(struct tdm_regex_info *info, uint32_t min, uint32_t max)
{
        info->min_chars = TDM_MIN(info->min_chars, min);
        info->max_chars = TDM_MAX(info->max_chars, max);
}

/* The last term of a sequence, without which is *ret_rest (NO_NODE: nothing). */
static uint32_t split_last(struct regex *r, uint32_t at, uint32_t *ret_rest)
{
        struct tdm_expr_list list = { 0 };
        uint32_t rest = NO_NODE;

        for (; r->nodes[at].kind == CAT; at = r->nodes[at].b)
                tdm_expr_list_add(r->arena, &list, r->nodes[at].a);
        for (uint32_t i = list.n; i-- > 0 && !r->error;)
                rest = rest == NO_NODE ? list.items[i] : regex_join_nodes(r, CAT, list.items[i], rest);
        tdm_expr_list_deinit(&list);
        *ret_rest = rest;
        return at;
}

static uint32_t sequence(struct regex *r, uint32_t first, uint32_t rest, bool open_left, bool open_right,
                         struct tdm_regex_info *info)
{
        struct tdm_regex_info ignored;
        uint32_t last, before, e, look;
        struct node n = r->nodes[first];

        if (n.kind == ALT && n.anchored) { /* (^a|b)c: each alternative with what follows */
                e = placed(r, rest == NO_NODE ? n.b : regex_join_nodes(r, CAT, n.b, rest), open_left, open_right, info);
                if (r->error)
                        return TDM_EXPR_NONE;
                return tdm_expr_alt(r->arena,
                                    placed(r, rest == NO_NODE ? n.a : regex_join_nodes(r, CAT, n.a, rest), open_left,
                                           open_right, info),
                                    e);
        }
        if (n.kind == CAT)
                return placed(
                        r, regex_join_nodes(r, CAT, n.a, rest == NO_NODE ? n.b : regex_join_nodes(r, CAT, n.b, rest)),
                        open_left, open_right, info);
        if (rest == NO_NODE)
                rest = regex_add_node(r, (struct node){ .kind = EMPTY, .a = NO_NODE, .b = NO_NODE });
        if (r->error)
                return TDM_EXPR_NONE;
        if (n.kind == BEGIN)
                return placed(r, rest, false, open_right, info);
        if ((n.kind == AHEAD || n.kind == NOT_AHEAD) && !open_left) {
                look = placed(r, n.a, false, true, &ignored);
                e = placed(r, rest, false, open_right, info);
                info->min_chars = 0; /* unknown */
                info->max_chars = TDM_EXPR_INF;
                return r->error ? TDM_EXPR_NONE :
                                  tdm_expr_and(r->arena, e, n.kind == AHEAD ? look : tdm_expr_not(r->arena, look));
        }
        /* No anchor at the beginning; now the end. */
        rest = regex_join_nodes(r, CAT, first, rest);
        if (r->error)
                return TDM_EXPR_NONE;
        if (!r->nodes[rest].anchored) {
                widen(info, r->nodes[rest].min_chars,
                      open_left || open_right ? TDM_EXPR_INF : r->nodes[rest].max_chars);
                e = plain(r, rest);
                if (open_right)
                        e = tdm_expr_cat(r->arena, e, any_text(r));
                return open_left ? tdm_expr_cat(r->arena, any_text(r), e) : e;
        }
        last = split_last(r, rest, &before);
        if (r->error)
                return TDM_EXPR_NONE;
        if (before == NO_NODE)
                before = regex_add_node(r, (struct node){ .kind = EMPTY, .a = NO_NODE, .b = NO_NODE });
        n = r->nodes[last];
        if (n.kind == END)
                return placed(r, before, open_left, false, info);
        if (n.kind == ALT && n.anchored) {
                e = placed(r, regex_join_nodes(r, CAT, before, n.b), open_left, open_right, info);
                if (r->error)
                        return TDM_EXPR_NONE;
                return tdm_expr_alt(r->arena,
                                    placed(r, regex_join_nodes(r, CAT, before, n.a), open_left, open_right, info), e);
        }
        if (n.kind == AHEAD || n.kind == NOT_AHEAD)
                (void)regex_fail(r, TDM_E_UNSUPPORTED, "look-ahead that is not at the beginning is not held");
        else
                (void)regex_fail(r, TDM_E_UNSUPPORTED, "an anchor inside of it is not held");
        return TDM_EXPR_NONE;
}

static uint32_t placed(struct regex *r, uint32_t at, bool open_left, bool open_right, struct tdm_regex_info *info)
{
        struct node n;
        uint32_t e;

        r->arena->steps += 4;
        if (!r->error && (r->arena->failed || r->arena->steps > r->arena->max_steps || ++r->depth > 20 * DEPTH_MAX))
                (void)regex_fail(r, TDM_E_UNSUPPORTED, "it is too large");
        if (r->error)
                return TDM_EXPR_NONE;
        n = r->nodes[at];
        e = n.kind == CAT ? sequence(r, n.a, n.b, open_left, open_right, info) :
                            sequence(r, at, NO_NODE, open_left, open_right, info);
        r->depth--;
        return e;
}

int tdm_regex_expr(struct tdm_arena *arena, const char *pattern, size_t size, enum tdm_text_form form, bool search,
                   uint32_t *ret, struct tdm_regex_info *ret_info, struct tdm_error *err)
{
        struct regex r = { .arena = arena, .text = pattern, .size = size, .form = form, .err = err };
        struct tdm_regex_info info = { TDM_EXPR_INF, 0 };
        struct tdm_chars all = { 0 };
        uint32_t root, e = TDM_EXPR_NONE;

        tdm_chars_add(&all, 0, 0x10ffff);
        r.any = tdm_chars_expr(arena, &all, form);
        tdm_chars_deinit(&all);
        root = parse_alternatives(&r);
        if (!r.error && more(&r))
                (void)regex_fail(&r, TDM_E_BAD_REQUEST, "a ) without its group");
        if (!r.error)
                e = placed(&r, root, search, search, &info);
        free(r.nodes);
        if (r.error)
                return r.error;
        *ret = e;
        if (ret_info)
                *ret_info = info;
        return 0;
}

int tdm_grammar_new_regex(struct tdm_grammar **ret, const char *source, size_t size,
                          const struct tdm_grammar_limits *limits, struct tdm_error *err)
{
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *g = NULL;
        int r = tdm_grammar_new(&g, limits);

        if (r < 0)
                return r;
        if (size > g->limits.max_source_bytes)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "the regular expression is longer than %zu bytes",
                                     g->limits.max_source_bytes);
        r = tdm_regex_expr(&g->arena, source, size, TDM_TEXT_RAW, false, &g->root, NULL, err);
        if (r == 0)
                r = tdm_grammar_finish(g, err);
        if (r)
                return r;
        *ret = steal_ptr(&g);
        return 0;
}
