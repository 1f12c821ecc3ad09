/* Character sets, and UTF-8 ranges as byte ranges. */
#include "engine/grammar/chars.h"
#include "common/utf8.h"

void tdm_chars_add(struct tdm_chars *chars, uint32_t low, uint32_t high)
{
        if (chars->n == chars->capacity) {
                uint32_t capacity = TDM_MAX(chars->capacity * 2, 16u);
                struct tdm_char_range *ranges = realloc(chars->ranges, capacity * sizeof(*ranges));

                if (!ranges) {
                        chars->failed = true;
                        return;
                }
                chars->ranges = ranges;
                chars->capacity = capacity;
        }
        chars->ranges[chars->n++] = (struct tdm_char_range){ low, high };
}

void tdm_chars_add_all(struct tdm_chars *chars, const struct tdm_chars *other)
{
        for (uint32_t i = 0; i < other->n; i++)
                tdm_chars_add(chars, other->ranges[i].low, other->ranges[i].high);
        chars->failed |= other->failed;
}

static int range_compare(const void *a, const void *b)
{
        const struct tdm_char_range *x = a, *y = b;

        return x->low < y->low ? -1 : x->low > y->low;
}

void tdm_chars_sort(struct tdm_chars *chars)
{
        uint32_t n = 0;

        if (chars->n > 1)
                qsort(chars->ranges, chars->n, sizeof(*chars->ranges), range_compare);
        for (uint32_t i = 0; i < chars->n; i++) {
                struct tdm_char_range r = chars->ranges[i];

                if (n > 0 && r.low <= chars->ranges[n - 1].high + 1)
                        chars->ranges[n - 1].high = TDM_MAX(chars->ranges[n - 1].high, r.high);
                else
                        chars->ranges[n++] = r;
        }
        chars->n = n;
}

void tdm_chars_invert(struct tdm_chars *chars)
{
        struct tdm_chars result = { .failed = chars->failed };
        uint32_t next = 0;

        tdm_chars_sort(chars);
        for (uint32_t i = 0; i < chars->n; i++) {
                if (chars->ranges[i].low > next)
                        tdm_chars_add(&result, next, chars->ranges[i].low - 1);
                next = chars->ranges[i].high + 1;
        }
        if (next <= 0x10ffff)
                tdm_chars_add(&result, next, 0x10ffff);
        tdm_chars_deinit(chars);
        *chars = result;
}

void tdm_chars_deinit(struct tdm_chars *chars)
{
        free(chars->ranges);
        *chars = (struct tdm_chars){ 0 };
}

void tdm_chars_add_class(struct tdm_chars *chars, char letter)
{
        static const struct tdm_char_range space[] = {
                { 9, 13 },          { 32, 32 },         { 0xa0, 0xa0 },     { 0x1680, 0x1680 }, { 0x2000, 0x200a },
                { 0x2028, 0x2029 }, { 0x202f, 0x202f }, { 0x205f, 0x205f }, { 0x3000, 0x3000 }, { 0xfeff, 0xfeff },
        };
        struct tdm_chars set = { 0 };

        switch (letter) {
        case 'd':
        case 'D':
                tdm_chars_add(&set, '0', '9');
                break;
        case 'w':
        case 'W':
                tdm_chars_add(&set, '0', '9');
                tdm_chars_add(&set, 'A', 'Z');
                tdm_chars_add(&set, '_', '_');
                tdm_chars_add(&set, 'a', 'z');
                break;
        case '.':
                tdm_chars_add(&set, '\n', '\n');
                tdm_chars_add(&set, '\r', '\r');
                tdm_chars_add(&set, 0x2028, 0x2029);
                break;
        default:
                for (size_t i = 0; i < TDM_ARRAY_SIZE(space); i++)
                        tdm_chars_add(&set, space[i].low, space[i].high);
        }
        if (letter == 'D' || letter == 'W' || letter == 'S' || letter == '.')
                tdm_chars_invert(&set);
        tdm_chars_add_all(chars, &set);
        tdm_chars_deinit(&set);
}

size_t tdm_chars_decode(const char *text, size_t size, uint32_t *ret_char)
{
        const uint8_t *u = (const uint8_t *)text;
        int n = tdm_utf8_length(u, size);

        if (n <= 0)
                return 0;
        *ret_char = n == 1 ? u[0] : n == 2 ? u[0] & 0x1fu : n == 3 ? u[0] & 0xfu : u[0] & 7u;
        for (int i = 1; i < n; i++)
                *ret_char = *ret_char << 6 | (u[i] & 0x3fu);
        return (size_t)n;
}

size_t tdm_chars_encode(uint32_t c, char *text)
{
        if (c < 0x80) {
                text[0] = (char)c;
                return 1;
        }
        if (c < 0x800) {
                text[0] = (char)(0xc0 | c >> 6);
                text[1] = (char)(0x80 | (c & 0x3f));
                return 2;
        }
        if (c < 0x10000) {
                text[0] = (char)(0xe0 | c >> 12);
                text[1] = (char)(0x80 | (c >> 6 & 0x3f));
                text[2] = (char)(0x80 | (c & 0x3f));
                return 3;
        }
        text[0] = (char)(0xf0 | c >> 18);
        text[1] = (char)(0x80 | (c >> 12 & 0x3f));
        text[2] = (char)(0x80 | (c >> 6 & 0x3f));
        text[3] = (char)(0x80 | (c & 0x3f));
        return 4;
}

/* The characters low to high, which have equally many bytes each. Where all tails of a leading byte are in the
 * range, the leading bytes form one byte range; else the range is cut at the next such edge. */
static uint32_t utf8_range(struct tdm_arena *arena, uint32_t low, uint32_t high, unsigned n)
{
        char a[4], b[4];
        unsigned i;

        for (i = 1; i < n; i++) {
                uint32_t mask = (1u << 6 * i) - 1; /* of the last i bytes */

                if ((low & ~mask) == (high & ~mask))
                        continue;
                if (low & mask)
                        return tdm_expr_alt(arena, utf8_range(arena, low, low | mask, n),
                                            utf8_range(arena, (low | mask) + 1, high, n));
                if ((high & mask) != mask)
                        return tdm_expr_alt(arena, utf8_range(arena, low, (high & ~mask) - 1, n),
                                            utf8_range(arena, high & ~mask, high, n));
        }
        (void)tdm_chars_encode(low, a);
        (void)tdm_chars_encode(high, b);
        {
                uint32_t e = TDM_EXPR_EPS;

                for (i = n; i-- > 0;)
                        e = tdm_expr_cat(arena, tdm_expr_range(arena, (uint8_t)a[i], (uint8_t)b[i]), e);
                return e;
        }
}

static uint32_t raw_range(struct tdm_arena *arena, uint32_t low, uint32_t high)
{
        static const struct tdm_char_range lengths[] = {
                { 0x80, 0x7ff },
                { 0x800, 0xd7ff },
                { 0xe000, 0xffff },
                { 0x10000, 0x10ffff },
        };
        static const uint8_t n_bytes[] = { 2, 3, 3, 4 };
        uint32_t e = TDM_EXPR_NONE;

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(lengths); i++) {
                uint32_t from = TDM_MAX(low, lengths[i].low), to = TDM_MIN(high, lengths[i].high);

                if (from <= to)
                        e = tdm_expr_alt(arena, utf8_range(arena, from, to, n_bytes[i]), e);
        }
        return e;
}

static char short_escape(uint32_t c)
{
        switch (c) {
        case '"':
        case '\\':
                return (char)c;
        case '\b':
                return 'b';
        case '\f':
                return 'f';
        case '\n':
                return 'n';
        case '\r':
                return 'r';
        case '\t':
                return 't';
        default:
                return 0;
        }
}

uint32_t tdm_chars_expr(struct tdm_arena *arena, const struct tdm_chars *chars, enum tdm_text_form form)
{
        struct tdm_byte_set ascii = { 0 }, escaped = { 0 };
        uint32_t e = TDM_EXPR_NONE, controls = TDM_EXPR_NONE;
        char text[8];

        if (chars->failed)
                arena->failed = true;
        for (uint32_t i = 0; i < chars->n; i++) {
                for (uint32_t c = chars->ranges[i].low; c <= TDM_MIN(chars->ranges[i].high, 0x7fu); c++) {
                        if (form == TDM_TEXT_RAW || (c >= 0x20 && c != '"' && c != '\\')) {
                                tdm_byte_set_add(&ascii, (uint8_t)c, (uint8_t)c);
                        } else if (short_escape(c)) {
                                tdm_byte_set_add(&escaped, (uint8_t)short_escape(c), (uint8_t)short_escape(c));
                        } else {
                                snprintf(text, sizeof(text), "u00%02x", c & 0xffu);
                                controls = tdm_expr_alt(arena, tdm_expr_text(arena, text), controls);
                        }
                }
        }
        for (uint32_t i = chars->n; i-- > 0;)
                if (chars->ranges[i].high >= 0x80)
                        e = tdm_expr_alt(arena, raw_range(arena, chars->ranges[i].low, chars->ranges[i].high), e);
        controls = tdm_expr_alt(arena, tdm_expr_bytes(arena, &escaped), controls);
        e = tdm_expr_alt(arena, tdm_expr_cat(arena, tdm_expr_range(arena, '\\', '\\'), controls), e);
        return tdm_expr_alt(arena, tdm_expr_bytes(arena, &ascii), e);
}

static uint32_t hex_number(struct tdm_arena *arena, const char *digits)
{
        struct tdm_byte_set set = { 0 };

        for (; *digits; digits++)
                tdm_byte_set_add(&set, (uint8_t)*digits, (uint8_t)*digits);
        return tdm_expr_bytes(arena, &set);
}

uint32_t tdm_chars_any_json(struct tdm_arena *arena, bool free_form)
{
        struct tdm_chars all = { 0 };
        struct tdm_byte_set set = { 0 };
        uint32_t e, any, low, unicode, escapes;

        tdm_chars_add(&all, 0, 0x10ffff);
        e = tdm_chars_expr(arena, &all, free_form ? TDM_TEXT_RAW : TDM_TEXT_JSON);
        if (!free_form) {
                tdm_chars_deinit(&all);
                return e;
        }
        all.n = 0;
        tdm_chars_add(&all, 0x20, 0x21);
        tdm_chars_add(&all, 0x23, 0x5b);
        tdm_chars_add(&all, 0x5d, 0x10ffff);
        e = tdm_chars_expr(arena, &all, TDM_TEXT_RAW);
        tdm_chars_deinit(&all);
        any = hex_number(arena, "0123456789abcdefABCDEF");
        /* \uD800 to \uDBFF only in front of \uDC00 to \uDFFF. */
        unicode = tdm_expr_cat3(arena, hex_number(arena, "0123456789abcefABCEF"), any, tdm_expr_cat(arena, any, any));
        unicode = tdm_expr_alt(arena, unicode,
                               tdm_expr_cat3(arena, hex_number(arena, "dD"), hex_number(arena, "01234567"),
                                             tdm_expr_cat(arena, any, any)));
        low = tdm_expr_cat3(arena, hex_number(arena, "dD"), hex_number(arena, "cdefCDEF"),
                            tdm_expr_cat(arena, any, any));
        low = tdm_expr_cat3(arena, tdm_expr_cat(arena, any, any), tdm_expr_text(arena, "\\u"), low);
        low = tdm_expr_cat3(arena, hex_number(arena, "dD"), hex_number(arena, "89abAB"), low);
        unicode = tdm_expr_cat(arena, tdm_expr_text(arena, "u"), tdm_expr_alt(arena, unicode, low));
        for (const char *c = "\"\\/bfnrt"; *c; c++)
                tdm_byte_set_add(&set, (uint8_t)*c, (uint8_t)*c);
        escapes = tdm_expr_alt(arena, tdm_expr_bytes(arena, &set), unicode);
        return tdm_expr_alt(arena, e, tdm_expr_cat(arena, tdm_expr_text(arena, "\\"), escapes));
}

uint32_t tdm_chars_json_literal(struct tdm_arena *arena, const char *text, size_t size)
{
        uint32_t e = TDM_EXPR_EPS;
        char escape[8];

        while (size > 0) {
                uint8_t c = (uint8_t)text[--size];
                uint32_t one;

                if (short_escape(c)) {
                        escape[0] = '\\';
                        escape[1] = short_escape(c);
                        one = tdm_expr_literal(arena, escape, 2);
                } else if (c < 0x20) {
                        snprintf(escape, sizeof(escape), "\\u00%02x", c & 0xffu);
                        one = tdm_expr_text(arena, escape);
                } else {
                        one = tdm_expr_range(arena, c, c);
                }
                e = tdm_expr_cat(arena, one, e);
        }
        return e;
}
