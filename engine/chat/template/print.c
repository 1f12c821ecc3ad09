/* Values as texts: Python's str() and repr(). */
#include <math.h>
#include "engine/chat/template/private.h"
#include "engine/text/unicode.h"

#define FLOAT_COST 16u /* steps for a number with a fraction */

/* Drops the last zeros of a mantissa with a point, which ends at `end`. Returns the new end. */
static char *zeros_drop(char *digits, char *end)
{
        while (end[-1] == '0' && end - digits > 1 && memchr(digits, '.', (size_t)(end - digits)))
                end--;
        return end[-1] == '.' ? end - 1 : end;
}

void tdm_jinja_print_float(struct jinja_text *text, double number)
{
        char digits[40], *e, *point;
        int exponent;

        if (isnan(number) || isinf(number)) {
                tdm_jinja_text_puts(text, isnan(number) ? "nan" : number > 0 ? "inf" : "-inf");
                return;
        }
        tdm_jinja_spend(text->core, FLOAT_COST);
        /* The fewest digits that are this number. 15 are always kept, so a number that has fewer ends in zeros. */
        for (int precision = 14; precision < 17; precision++) {
                snprintf(digits, sizeof(digits), "%.*e", precision, number);
                if (strtod(digits, NULL) == number)
                        break;
        }
        e = strchr(digits, 'e');
        exponent = atoi(e + 1);
        e = zeros_drop(digits, e);
        *e = '\0';
        if (exponent < -4 || exponent >= 16) {
                tdm_jinja_text_puts(text, digits);
                snprintf(digits, sizeof(digits), "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
                tdm_jinja_text_puts(text, digits);
                return;
        }
        point = strchr(digits, '.');
        exponent = (point ? (int)(e - point) - 1 : 0) - exponent; /* digits behind the point */
        snprintf(digits, sizeof(digits), "%.*f", exponent > 0 ? exponent : 1, number);
        tdm_jinja_text_puts(text, digits);
}

void tdm_jinja_escape_html(struct jinja_text *text, const struct jinja_string *string)
{
        static const char signs[] = "&<>'\"";
        static const char *const names[] = { "&amp;", "&lt;", "&gt;", "&#39;", "&#34;" };
        const char *data = tdm_jinja_bytes(text->core, string);
        size_t from = 0;

        tdm_jinja_spend_bytes(text->core, string->size, JINJA_READ);
        for (size_t i = 0; i < string->size; i++) {
                const char *sign = data[i] ? strchr(signs, data[i]) : NULL;

                if (!sign)
                        continue;
                tdm_jinja_text_add_slice(text, string, from, i);
                tdm_jinja_text_puts(text, names[sign - signs]);
                from = i + 1;
        }
        tdm_jinja_text_add_slice(text, string, from, string->size);
}

static bool is_printable(uint32_t c)
{
        enum tdm_unicode_kind kind;

        if (c < 0x80)
                return c >= 0x20 && c < 0x7f;
        kind = tdm_unicode_kind(c);
        return kind != TDM_UNICODE_OTHER && kind != TDM_UNICODE_WHITE;
}

static void escape_repr(struct jinja_text *text, uint32_t c, char quote, bool is_template)
{
        static const char plain[] = "\n\r\t\\", names[] = "nrt\\";
        char escape[12];

        if (c == (uint8_t)quote)
                snprintf(escape, sizeof(escape), "\\%c", quote);
        else if (c != 0 && c < 0x80 && strchr(plain, (int)c))
                snprintf(escape, sizeof(escape), "\\%c", names[strchr(plain, (int)c) - plain]);
        else if (is_printable(c)) {
                tdm_jinja_text_char(text, c, is_template);
                return;
        } else
                snprintf(escape, sizeof(escape), c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        tdm_jinja_text_add(text, escape, strlen(escape), is_template);
}

static void string_repr(struct jinja_text *text, const struct jinja_string *string)
{
        const char *data = tdm_jinja_bytes(text->core, string);
        bool has_single = memchr(data, '\'', string->size), has_double = memchr(data, '"', string->size);
        char quote[2] = { has_single && !has_double ? '"' : '\'', '\0' };
        size_t length;

        if (string->is_markup)
                tdm_jinja_text_puts(text, "Markup(");
        tdm_jinja_text_puts(text, quote);
        tdm_jinja_spend_bytes(text->core, string->size, JINJA_READ);
        for (size_t at = 0; at < string->size; at += length) {
                uint32_t c = tdm_jinja_char(data + at, string->size - at, &length);

                escape_repr(text, c, quote[0], tdm_jinja_is_template_at(string, at));
        }
        tdm_jinja_text_puts(text, quote);
        if (string->is_markup)
                tdm_jinja_text_puts(text, ")");
}

static void repr_within(struct jinja_text *text, struct jinja_value value, unsigned depth);

static void items_repr(struct jinja_text *text, const struct jinja_list *list, unsigned depth)
{
        for (size_t i = 0; i < list->n; i++) {
                if (i > 0)
                        tdm_jinja_text_puts(text, ", ");
                repr_within(text, list->items[i], depth + 1);
        }
}

static void range_repr(struct jinja_text *text, const int64_t *range)
{
        char out[80];

        if (range[2] == 1)
                snprintf(out, sizeof(out), "range(%lld, %lld)", (long long)range[0], (long long)range[1]);
        else
                snprintf(out, sizeof(out), "range(%lld, %lld, %lld)", (long long)range[0], (long long)range[1],
                         (long long)range[2]);
        tdm_jinja_text_puts(text, out);
}

static void list_repr(struct jinja_text *text, const struct jinja_list *list, unsigned depth)
{
        static const char *const open[] = { "[", "(", "", "dict_view([", "" };
        static const char *const close[] = { "]", ")", "", "])", "" };

        if (list->shape == JINJA_SHAPE_GENERATOR)
                tdm_jinja_fail(text->core, "a generator is printed; |list or |join makes a text of it");
        if (list->shape == JINJA_SHAPE_RANGE) {
                range_repr(text, list->range);
                return;
        }
        tdm_jinja_text_puts(text, open[list->shape]);
        items_repr(text, list, depth);
        if (list->shape == JINJA_SHAPE_TUPLE && list->n == 1)
                tdm_jinja_text_puts(text, ",");
        tdm_jinja_text_puts(text, close[list->shape]);
}

static void dict_repr(struct jinja_text *text, const struct jinja_dict *dict, unsigned depth)
{
        tdm_jinja_text_puts(text, "{");
        for (size_t i = 0; i < dict->n; i++) {
                if (i > 0)
                        tdm_jinja_text_puts(text, ", ");
                repr_within(text, dict->entries[i].key, depth + 1);
                tdm_jinja_text_puts(text, ": ");
                repr_within(text, dict->entries[i].value, depth + 1);
        }
        tdm_jinja_text_puts(text, "}");
}

static void repr_within(struct jinja_text *text, struct jinja_value value, unsigned depth)
{
        char number[24];

        tdm_jinja_spend(text->core, 1);
        if (depth > JINJA_MAX_VALUE_DEPTH)
                tdm_jinja_fail(text->core, "a value that is printed is nested too deeply");
        switch (value.kind) {
        case JINJA_ABSENT:
        case JINJA_UNDEFINED:
                tdm_jinja_text_puts(text, depth > 0 ? "Undefined" : "");
                break;
        case JINJA_NONE:
                tdm_jinja_text_puts(text, "None");
                break;
        case JINJA_BOOL:
                tdm_jinja_text_puts(text, value.truth ? "True" : "False");
                break;
        case JINJA_INT:
                snprintf(number, sizeof(number), "%lld", (long long)value.integer);
                tdm_jinja_text_puts(text, number);
                break;
        case JINJA_BIG:
                tdm_jinja_text_add_string(text, value.string);
                break;
        case JINJA_FLOAT:
                tdm_jinja_print_float(text, value.number);
                break;
        case JINJA_STRING:
                string_repr(text, value.string);
                break;
        case JINJA_LIST:
                list_repr(text, value.list, depth);
                break;
        case JINJA_DICT:
                dict_repr(text, value.dict, depth);
                break;
        default:
                tdm_jinja_fail(text->core, "a %s is printed", tdm_jinja_type_name(value));
        }
}

void tdm_jinja_repr(struct jinja_text *text, struct jinja_value value)
{
        repr_within(text, value, 0);
}

void tdm_jinja_print(struct jinja_text *text, struct jinja_value value)
{
        if (value.kind == JINJA_STRING)
                tdm_jinja_text_add_string(text, value.string);
        else
                repr_within(text, value, 0);
}

const struct jinja_string *tdm_jinja_str(struct jinja_core *core, struct jinja_value value)
{
        struct jinja_text text = { .core = core };

        if (value.kind == JINJA_STRING)
                return value.string;
        repr_within(&text, value, 0);
        return tdm_jinja_text_end(&text);
}
