/* A template's text as tokens, with jinja2's rules for white space under trim_blocks and lstrip_blocks:
 *
 * - behind a tag or a comment one line end goes; before it, blanks at the start of a line go;
 * - a minus strips all white space on its side, a plus switches these two off for its side;
 * - `{{ }}` knows the minus alone. */
#include "engine/chat/template/private.h"
#include "common/utf8.h"

#define MAX_BRACKETS 256u

struct lexer {
        struct jinja_core *core;
        const char *source;
        size_t size, at;
        uint32_t line;
        bool at_line_start; /* what was read last ended with a line end */
        struct jinja_tokens *out;
        size_t capacity;
};

static struct jinja_token *token_add(struct lexer *l, enum jinja_token_kind kind, size_t at, size_t size)
{
        struct jinja_tokens *out = l->out;

        if (out->n == l->capacity) {
                l->capacity = TDM_MAX(l->capacity * 2, (size_t)64);
                out->tokens = tdm_jinja_grow(l->core, out->tokens, out->n, l->capacity, sizeof(*out->tokens));
        }
        out->tokens[out->n] =
                (struct jinja_token){ .kind = kind, .line = l->line, .at = (uint32_t)at, .size = (uint32_t)size };
        return &out->tokens[out->n++];
}

static bool source_has(const struct lexer *l, size_t at, const char *text)
{
        size_t size = strlen(text);

        return l->size - at >= size && memcmp(l->source + at, text, size) == 0;
}

/* The byte behind the white space that begins at `at`. */
static size_t white_end(const struct lexer *l, size_t at)
{
        size_t length;

        while (at < l->size && tdm_jinja_is_space(tdm_jinja_char(l->source + at, l->size - at, &length)))
                at += length;
        return at;
}

/* The first byte of the white space that ends at `end`, not before `begin`. */
static size_t white_begin(const struct lexer *l, size_t begin, size_t end)
{
        while (end > begin) {
                size_t at = end - 1, length;

                while (at > begin && (l->source[at] & 0xc0) == 0x80)
                        at--;
                if (!tdm_jinja_is_space(tdm_jinja_char(l->source + at, end - at, &length)))
                        break;
                end = at;
        }
        return end;
}

static void lexer_move(struct lexer *l, size_t to)
{
        for (const char *p = l->source + l->at, *end = l->source + to; (p = memchr(p, '\n', (size_t)(end - p))); p++)
                l->line++;
        if (to > l->at)
                l->at_line_start = l->source[to - 1] == '\n';
        l->at = to;
}

static _Noreturn void lexer_fail(struct lexer *l, const char *what)
{
        l->core->line = l->line;
        l->core->at = l->at;
        tdm_jinja_fail_code(l->core, TDM_E_UNSUPPORTED, "%s", what);
}

/* The end of text before a tag, when the tag's sign and kind are known. */
static size_t data_end(const struct lexer *l, size_t begin, size_t end, char sign, bool is_print)
{
        size_t white, line;

        if (sign == '-')
                return white_begin(l, begin, end);
        if (sign == '+' || is_print)
                return end;
        white = white_begin(l, begin, end);
        for (line = end; line > white && l->source[line - 1] != '\n'; line--)
                ;
        /* Blanks alone stand between the start of the line and the tag. */
        if (line > begin ? l->source[line - 1] == '\n' : l->at_line_start)
                return line;
        return end;
}

/* The end of a closing `%}` or `#}`, with the white space that goes with it. at: the place of its sign, or of itself.
 */
static size_t tag_end(const struct lexer *l, size_t at)
{
        if (l->source[at] == '-')
                return white_end(l, at + 3);
        if (l->source[at] == '+')
                return at + 3;
        at += 2;
        return at < l->size && l->source[at] == '\n' ? at + 1 : at;
}

static void comment_skip(struct lexer *l, size_t begin)
{
        for (size_t at = begin; at + 1 < l->size; at++) {
                if (l->source[at] != '#' || l->source[at + 1] != '}')
                        continue;
                if (at > begin && (l->source[at - 1] == '-' || l->source[at - 1] == '+'))
                        at--;
                lexer_move(l, tag_end(l, at));
                return;
        }
        lexer_fail(l, "a comment has no end");
}

/* The end of `raw %}` behind a tag's opening, or 0 where it is another tag. */
static size_t raw_opening(const struct lexer *l, size_t at)
{
        at = white_end(l, at);
        if (!source_has(l, at, "raw"))
                return 0;
        at = white_end(l, at + 3);
        if (source_has(l, at, "-%}"))
                return white_end(l, at + 3);
        return source_has(l, at, "%}") ? at + 2 : 0;
}

static void raw_take(struct lexer *l)
{
        for (size_t at = l->at; at + 1 < l->size; at++) {
                size_t name, end;
                char sign;

                if (l->source[at] != '{' || l->source[at + 1] != '%')
                        continue;
                sign = at + 2 < l->size ? l->source[at + 2] : '\0';
                name = white_end(l, at + 2 + (sign == '-' || sign == '+'));
                if (!source_has(l, name, "endraw"))
                        continue;
                end = white_end(l, name + 6);
                if (!source_has(l, end, "%}") && !source_has(l, end, "-%}") && !source_has(l, end, "+%}"))
                        continue;
                name = data_end(l, l->at, at, sign, false);
                if (name > l->at)
                        token_add(l, JINJA_TOKEN_DATA, l->at, name - l->at);
                lexer_move(l, tag_end(l, end));
                return;
        }
        lexer_fail(l, "raw has no endraw");
}

/* Names, numbers, texts. */

static bool is_name_byte(char c)
{
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || (c & 0x80);
}

static bool is_digit(char c)
{
        return c >= '0' && c <= '9';
}

static size_t digits_end(const struct lexer *l, size_t at)
{
        while (at < l->size &&
               (is_digit(l->source[at]) || (l->source[at] == '_' && at + 1 < l->size && is_digit(l->source[at + 1]))))
                at++;
        return at;
}

static void number_take(struct lexer *l)
{
        size_t at = digits_end(l, l->at), exponent;
        bool is_float = false;
        /* In a.0.5 both numbers are subscripts. */
        bool may_be_float = l->at == 0 || l->source[l->at - 1] != '.';

        if (at + 1 < l->size && l->source[l->at] == '0' && at == l->at + 1 && strchr("bBoOxX", l->source[at]) &&
            is_name_byte(l->source[at + 1])) {
                for (at++; at < l->size && is_name_byte(l->source[at]) && !(l->source[at] & 0x80); at++)
                        ;
                token_add(l, JINJA_TOKEN_INT, l->at, at - l->at);
                lexer_move(l, at);
                return;
        }
        if (may_be_float && at + 1 < l->size && l->source[at] == '.' && is_digit(l->source[at + 1])) {
                is_float = true;
                at = digits_end(l, at + 1);
        }
        exponent = at + 1;
        if (may_be_float && exponent < l->size && (l->source[at] == 'e' || l->source[at] == 'E')) {
                exponent += l->source[exponent] == '+' || l->source[exponent] == '-';
                if (exponent < l->size && is_digit(l->source[exponent])) {
                        is_float = true;
                        at = digits_end(l, exponent);
                }
        }
        token_add(l, is_float ? JINJA_TOKEN_FLOAT : JINJA_TOKEN_INT, l->at, at - l->at);
        lexer_move(l, at);
}

static void string_take(struct lexer *l)
{
        char quote = l->source[l->at];
        size_t at = l->at + 1;

        while (at < l->size && l->source[at] != quote)
                at += l->source[at] == '\\' ? 2 : 1;
        if (at >= l->size)
                lexer_fail(l, "a text in quotes has no end");
        token_add(l, JINJA_TOKEN_STRING, l->at, at + 1 - l->at);
        lexer_move(l, at + 1);
}

static void operator_take(struct lexer *l, char *brackets, size_t *n_brackets)
{
        static const char pairs[][3] = { "**", "//", "==", "!=", ">=", "<=" };
        static const char openings[] = "([{", closings[] = ")]}";
        char c = l->source[l->at];
        struct jinja_token *token;
        const char *known;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(pairs); i++)
                if (source_has(l, l->at, pairs[i])) {
                        token_add(l, JINJA_TOKEN_OPERATOR, l->at, 2)->op = JINJA_OP2(c, pairs[i][1]);
                        lexer_move(l, l->at + 2);
                        return;
                }
        if (c == '\0' || !strchr("+-/*%~[](){}><=.:|,;", c))
                lexer_fail(l, "a sign stands in a tag that has no meaning there");
        if ((known = strchr(openings, c))) {
                if (*n_brackets == MAX_BRACKETS)
                        lexer_fail(l, "brackets are nested too deeply");
                brackets[(*n_brackets)++] = closings[known - openings];
        } else if (strchr(closings, c)) {
                if (*n_brackets == 0 || brackets[--*n_brackets] != c)
                        lexer_fail(l, "a closing bracket has no opening one");
        }
        token = token_add(l, JINJA_TOKEN_OPERATOR, l->at, 1);
        token->op = (uint8_t)c;
        lexer_move(l, l->at + 1);
}

/* Whether the tag ends here. */
static bool tag_ends(struct lexer *l, bool is_print)
{
        size_t at = l->at;

        if (is_print) {
                if (!source_has(l, at, "-}}") && !source_has(l, at, "}}"))
                        return false;
                token_add(l, JINJA_TOKEN_PRINT_END, at, 0);
                lexer_move(l, l->source[at] == '-' ? white_end(l, at + 3) : at + 2);
                return true;
        }
        if (!source_has(l, at, "-%}") && !source_has(l, at, "+%}") && !source_has(l, at, "%}"))
                return false;
        token_add(l, JINJA_TOKEN_BLOCK_END, at, 0);
        lexer_move(l, tag_end(l, at));
        return true;
}

static void tag_take(struct lexer *l, bool is_print)
{
        char brackets[MAX_BRACKETS];
        size_t n_brackets = 0;

        token_add(l, is_print ? JINJA_TOKEN_PRINT_BEGIN : JINJA_TOKEN_BLOCK_BEGIN, l->at, 0);
        for (;;) {
                lexer_move(l, white_end(l, l->at));
                if (l->at >= l->size)
                        lexer_fail(l, "the template ends within a tag");
                if (n_brackets == 0 && tag_ends(l, is_print))
                        return;
                if (is_digit(l->source[l->at])) {
                        number_take(l);
                } else if (is_name_byte(l->source[l->at])) {
                        size_t at = l->at;

                        while (at < l->size && is_name_byte(l->source[at]))
                                at++;
                        token_add(l, JINJA_TOKEN_NAME, l->at, at - l->at);
                        lexer_move(l, at);
                } else if (l->source[l->at] == '"' || l->source[l->at] == '\'') {
                        string_take(l);
                } else {
                        operator_take(l, brackets, &n_brackets);
                }
        }
}

/* The place of the next `{{`, `{%` or `{#`; the size where there is none. */
static size_t opening_find(const struct lexer *l, size_t at)
{
        for (;; at++) {
                const char *found = at + 1 < l->size ? memchr(l->source + at, '{', l->size - at - 1) : NULL;

                if (!found)
                        return l->size;
                at = (size_t)(found - l->source);
                if (strchr("{%#", found[1]) && found[1])
                        return at;
        }
}

static void text_take(struct lexer *l)
{
        size_t opening = opening_find(l, l->at), end, raw;
        char kind, sign;

        if (opening == l->size) {
                if (l->at < l->size)
                        token_add(l, JINJA_TOKEN_DATA, l->at, l->size - l->at);
                lexer_move(l, l->size);
                return;
        }
        kind = l->source[opening + 1];
        sign = opening + 2 < l->size ? l->source[opening + 2] : '\0';
        if (sign != '-' && sign != '+')
                sign = '\0';
        end = data_end(l, l->at, opening, sign, kind == '{');
        if (end > l->at)
                token_add(l, JINJA_TOKEN_DATA, l->at, end - l->at);
        lexer_move(l, opening + 2 + (sign != '\0'));
        if (kind == '#') {
                comment_skip(l, l->at);
        } else if (kind == '%' && (raw = raw_opening(l, l->at))) {
                lexer_move(l, raw);
                raw_take(l);
        } else {
                tag_take(l, kind == '{');
        }
}

/* CR LF and CR as LF; the last line end of all is dropped. */
static void source_take(struct lexer *l, const char *source, size_t size)
{
        char *copy = tdm_jinja_alloc(l->core, size + 1);
        size_t n = 0;

        for (size_t i = 0; i < size; i++) {
                copy[n++] = source[i] == '\r' ? '\n' : source[i];
                if (source[i] == '\r' && i + 1 < size && source[i + 1] == '\n')
                        i++;
        }
        if (n > 0 && copy[n - 1] == '\n')
                n--;
        copy[n] = '\0';
        l->source = copy;
        l->size = n;
}

void tdm_jinja_lex(struct jinja_core *core, const char *source, size_t size, struct jinja_tokens *ret)
{
        struct lexer l = { .core = core, .line = 1, .at_line_start = true, .out = ret };

        *ret = (struct jinja_tokens){ 0 };
        if (size > UINT32_MAX / 2)
                tdm_jinja_fail_code(core, TDM_E_UNSUPPORTED, "it is too long");
        if (!tdm_utf8_is_valid(source, size))
                tdm_jinja_fail_code(core, TDM_E_UNSUPPORTED, "it is not UTF-8");
        source_take(&l, source, size);
        core->source = ret->source = l.source;
        ret->source_size = l.size;
        while (l.at < l.size)
                text_take(&l);
        token_add(&l, JINJA_TOKEN_END, l.size, 0);
}
