/* `'…' % values` and `'…'.format(values)`. What templates use of them is supported; widths are bounded, and the rest is
 * refused by name. */
#include <math.h>
#include "engine/chat/template/private.h"
#include "common/utf8.h"

#define MAX_WIDTH 1000

struct format_spec {
        bool left, zeros, plus;
        int64_t width, precision; /* precision -1: none */
};

static void spec_pad(struct jinja_text *text, const struct format_spec *spec, const struct jinja_string *string,
                     bool zeros)
{
        int64_t n = spec->width - tdm_jinja_n_chars(text->core, string);

        if (spec->left)
                tdm_jinja_text_add_string(text, string);
        for (; n > 0; n--)
                tdm_jinja_text_puts(text, zeros && !spec->left ? "0" : " ");
        if (!spec->left)
                tdm_jinja_text_add_string(text, string);
}

static int64_t spec_number(struct jinja_core *core, const char **at, const char *end)
{
        int64_t n = 0;

        for (; *at < end && **at >= '0' && **at <= '9'; (*at)++) {
                n = n * 10 + (**at - '0');
                if (n > MAX_WIDTH)
                        tdm_jinja_fail(core, "a format has a width over %d", MAX_WIDTH);
        }
        return n;
}

static void spec_take(struct jinja_core *core, struct format_spec *spec, const char **at, const char *end)
{
        *spec = (struct format_spec){ .precision = -1 };
        for (; *at < end && **at && strchr("-0+ #", **at); (*at)++) {
                spec->left |= **at == '-';
                spec->zeros |= **at == '0';
                spec->plus |= **at == '+';
        }
        spec->width = spec_number(core, at, end);
        if (*at < end && **at == '.') {
                (*at)++;
                spec->precision = spec_number(core, at, end);
        }
}

static struct jinja_string *number_text(struct jinja_core *core, const struct format_spec *spec, char kind,
                                        struct jinja_value value)
{
        struct jinja_text text = { .core = core };
        char digits[400];

        if (value.kind == JINJA_BIG && (kind == 'd' || kind == 'i'))
                return (struct jinja_string *)(uintptr_t)value.string;
        tdm_jinja_spend(core, kind == 'f' ? 64 : 8);
        if (!tdm_jinja_is_number(value))
                tdm_jinja_fail(core, "%%%c wants a number, not a %s", kind, tdm_jinja_type_name(value));
        if (kind == 'd' || kind == 'i') {
                if (value.kind == JINJA_FLOAT && !(fabs(value.number) < 9.2e18))
                        tdm_jinja_fail(core, "an integer is beyond 64 bits");
                snprintf(digits, sizeof(digits), spec->plus ? "%+lld" : "%lld",
                         (long long)(value.kind == JINJA_FLOAT ? (int64_t)value.number :
                                                                 tdm_jinja_want_int(core, value, "it")));
        } else if (kind == 'x') {
                snprintf(digits, sizeof(digits), "%llx",
                         (unsigned long long)tdm_jinja_want_int(core, value, "what %x writes"));
        } else {
                double number =
                        value.kind == JINJA_FLOAT ? value.number : (double)tdm_jinja_want_int(core, value, "it");
                int64_t precision = spec->precision < 0 ? 6 : TDM_MIN(spec->precision, (int64_t)60);

                snprintf(digits, sizeof(digits), spec->plus ? "%+.*f" : "%.*f", (int)precision, number);
        }
        tdm_jinja_text_puts(&text, digits);
        return tdm_jinja_text_end(&text);
}

static void percent_one(struct jinja_render *r, struct jinja_text *text, const struct format_spec *spec, char kind,
                        struct jinja_value value)
{
        struct jinja_text repr = { .core = &r->core };
        const struct jinja_string *string;
        bool is_number = false;

        switch (kind) {
        case 's':
                string = tdm_jinja_str(&r->core, value);
                break;
        case 'r':
                tdm_jinja_repr(&repr, value);
                string = tdm_jinja_text_end(&repr);
                break;
        case 'd':
        case 'i':
        case 'f':
        case 'x':
                is_number = true;
                string = number_text(&r->core, spec, kind, value);
                break;
        default:
                tdm_jinja_fail(&r->core, "the format %%%c is not supported", kind > ' ' ? kind : '?');
        }
        if (!is_number && spec->precision >= 0 && spec->precision < tdm_jinja_n_chars(&r->core, string))
                string = tdm_jinja_slice(&r->core, string, 0, tdm_jinja_char_at(&r->core, string, spec->precision));
        spec_pad(text, spec, string, is_number && spec->zeros);
}

struct jinja_value tdm_jinja_percent(struct jinja_render *r, const struct jinja_string *format,
                                     const struct jinja_value *values, size_t n)
{
        const char *data = tdm_jinja_bytes(&r->core, format), *at = data, *end = data + format->size;
        struct jinja_text text = { .core = &r->core };
        size_t used = 0;

        while (at < end) {
                const char *sign = memchr(at, '%', (size_t)(end - at));
                struct format_spec spec;

                tdm_jinja_spend(&r->core, 1);
                tdm_jinja_text_add_slice(&text, format, (size_t)(at - data), (size_t)((sign ? sign : end) - data));
                if (!sign)
                        break;
                at = sign + 1;
                spec_take(&r->core, &spec, &at, end);
                if (at == end)
                        tdm_jinja_fail(&r->core, "a format ends behind its %%");
                if (*at != '%') {
                        if (used == n)
                                tdm_jinja_fail(&r->core, "a format has too few values");
                        percent_one(r, &text, &spec, *at, values[used++]);
                } else {
                        tdm_jinja_text_puts(&text, "%");
                }
                at++;
        }
        if (used < n && !(n == 1 && values[0].kind == JINJA_DICT))
                tdm_jinja_fail(&r->core, "a format has too many values");
        return tdm_jinja_text_value(tdm_jinja_text_end(&text));
}

/* What {} , {0} or {name} stands for. */
static struct jinja_value field_value(struct jinja_render *r, const struct jinja_arguments *args, const char *name,
                                      size_t size, size_t *next)
{
        size_t at = 0;

        if (size == 0) {
                at = (*next)++;
        } else if (name[0] >= '0' && name[0] <= '9') {
                for (size_t i = 0; i < size; i++) {
                        if (name[i] < '0' || name[i] > '9' || at > 1000)
                                tdm_jinja_fail(&r->core, "format() with \"{%.*s}\" is not supported",
                                               TDM_UTF8_CUT(name, TDM_MIN(size, (size_t)40)));
                        at = at * 10 + (size_t)(name[i] - '0');
                }
        } else {
                tdm_jinja_spend_bytes(&r->core, args->n_named, JINJA_READ);
                for (size_t i = 0; i < args->n_named; i++)
                        if (args->named[i].name->size == size &&
                            memcmp(tdm_jinja_bytes(&r->core, args->named[i].name), name, size) == 0)
                                return args->named[i].value;
                tdm_jinja_fail(&r->core, "format() has no value \"%.*s\"",
                               TDM_UTF8_CUT(name, TDM_MIN(size, (size_t)40)));
        }
        if (at >= args->n)
                tdm_jinja_fail(&r->core, "format() has too few values");
        return args->values[at];
}

static struct jinja_value format_call(struct jinja_render *r, struct jinja_value self,
                                      const struct jinja_arguments *args)
{
        const char *data = tdm_jinja_bytes(&r->core, self.string);
        size_t size = self.string->size, at = 0, next = 0;
        struct jinja_text text = { .core = &r->core };

        tdm_jinja_spend_bytes(&r->core, size, JINJA_READ);
        while (at < size) {
                size_t from = at;
                const char *close;

                while (at < size && data[at] != '{' && data[at] != '}')
                        at++;
                tdm_jinja_text_add_slice(&text, self.string, from, at);
                if (at == size)
                        break;
                tdm_jinja_spend(&r->core, 1);
                if (at + 1 < size && data[at + 1] == data[at]) { /* doubled: itself */
                        tdm_jinja_text_add_slice(&text, self.string, at, at + 1);
                        at += 2;
                        continue;
                }
                close = data[at] == '{' ? memchr(data + at, '}', size - at) : NULL;
                if (!close)
                        tdm_jinja_fail(&r->core, "format() meets a single brace");
                from = at + 1;
                at = (size_t)(close - data) + 1;
                if (memchr(data + from, ':', at - 1 - from) || memchr(data + from, '!', at - 1 - from) ||
                    memchr(data + from, '.', at - 1 - from) || memchr(data + from, '[', at - 1 - from))
                        tdm_jinja_fail(&r->core, "format() with \"{%.*s}\" is not supported",
                                       TDM_UTF8_CUT(data + from, TDM_MIN(at - 1 - from, (size_t)40)));
                tdm_jinja_print(&text, field_value(r, args, data + from, at - 1 - from, &next));
        }
        return tdm_jinja_text_value(tdm_jinja_text_end(&text));
}

const struct jinja_builtin tdm_jinja_format_method = { "format", NULL, "", 0, format_call };
