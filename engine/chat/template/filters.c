/* Filters of single values. Those of lists are in filters-list.c. */
#include <math.h>
#include "engine/chat/template/private.h"
#include "common/utf8.h"

static bool is_given(struct jinja_value value)
{
        return value.kind != JINJA_ABSENT;
}

static bool flag_of(struct jinja_render *r, struct jinja_value value)
{
        return is_given(value) && tdm_jinja_truth(&r->core, value);
}

static struct jinja_value filter_trim(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        return tdm_jinja_text_value(tdm_jinja_strip(&r->core, tdm_jinja_str(&r->core, self), args[0], true, true));
}

static struct jinja_value filter_length(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        return tdm_jinja_int(tdm_jinja_length(&r->core, self));
}

static struct jinja_value filter_string(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        return tdm_jinja_text_value(tdm_jinja_str(&r->core, self));
}

static struct jinja_value filter_safe(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        return tdm_jinja_text_value(tdm_jinja_as_markup(&r->core, tdm_jinja_str(&r->core, self)));
}

static struct jinja_value filter_escape(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        const struct jinja_string *string = tdm_jinja_str(&r->core, self);
        struct jinja_text text = { .core = &r->core };

        if (string->is_markup)
                return tdm_jinja_text_value(string);
        tdm_jinja_escape_html(&text, string);
        return tdm_jinja_text_value(tdm_jinja_as_markup(&r->core, tdm_jinja_text_end(&text)));
}

static struct jinja_value case_filter(struct jinja_render *r, struct jinja_value self, enum jinja_case to)
{
        return tdm_jinja_text_value(tdm_jinja_change_case(&r->core, tdm_jinja_str(&r->core, self), to));
}

static struct jinja_value filter_upper(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        return case_filter(r, self, JINJA_UPPER);
}

static struct jinja_value filter_lower(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        return case_filter(r, self, JINJA_LOWER);
}

static struct jinja_value filter_capitalize(struct jinja_render *r, struct jinja_value self,
                                            const struct jinja_value *args)
{
        return case_filter(r, self, JINJA_CAPITALIZE);
}

static void title_piece(struct jinja_text *text, const struct jinja_string *string, size_t from, size_t to)
{
        struct jinja_core *core = text->core;
        size_t length;

        if (to == from)
                return;
        tdm_jinja_spend(core, 4);
        tdm_jinja_char(string->data + from, to - from, &length);
        tdm_jinja_text_add_string(
                text, tdm_jinja_change_case(core, tdm_jinja_slice(core, string, from, from + length), JINJA_UPPER));
        tdm_jinja_text_add_string(
                text, tdm_jinja_change_case(core, tdm_jinja_slice(core, string, from + length, to), JINJA_LOWER));
}

/* Unlike str.title(), jinja2's begins a word only behind white space, a hyphen or an opening bracket. */
static struct jinja_value filter_title(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        const struct jinja_string *string = tdm_jinja_str(&r->core, self);
        const char *data = tdm_jinja_bytes(&r->core, string);
        struct jinja_text text = { .core = &r->core };
        size_t from = 0, length;

        tdm_jinja_spend_bytes(&r->core, string->size, JINJA_READ);
        for (size_t at = 0; at < string->size; at += length) {
                uint32_t c = tdm_jinja_char(data + at, string->size - at, &length);

                if (!tdm_jinja_is_space(c) && (c >= 0x80 || c == 0 || !strchr("-({[<", (int)c)))
                        continue;
                title_piece(&text, string, from, at);
                tdm_jinja_text_add_slice(&text, string, at, at + length);
                from = at + length;
        }
        title_piece(&text, string, from, string->size);
        return tdm_jinja_text_value(tdm_jinja_text_end(&text));
}

static struct jinja_value filter_default(struct jinja_render *r, struct jinja_value self,
                                         const struct jinja_value *args)
{
        if (self.kind == JINJA_UNDEFINED || (flag_of(r, args[1]) && !tdm_jinja_truth(&r->core, self)))
                return is_given(args[0]) ? args[0] : tdm_jinja_text_value(tdm_jinja_string_of(&r->core, ""));
        return self;
}

static struct jinja_value filter_replace(struct jinja_render *r, struct jinja_value self,
                                         const struct jinja_value *args)
{
        int64_t count =
                is_given(args[2]) && args[2].kind != JINJA_NONE ? tdm_jinja_want_int(&r->core, args[2], "a count") : -1;

        return tdm_jinja_text_value(tdm_jinja_replace(&r->core, tdm_jinja_str(&r->core, self),
                                                      tdm_jinja_str(&r->core, args[0]),
                                                      tdm_jinja_str(&r->core, args[1]), count));
}

static const struct jinja_string *blanks_of(struct jinja_render *r, int64_t n)
{
        struct jinja_text blanks = { .core = &r->core };

        for (; n > 0; n--) {
                tdm_jinja_spend(&r->core, 1);
                tdm_jinja_text_puts(&blanks, " ");
        }
        return tdm_jinja_text_end(&blanks);
}

/* Lines are those of splitlines(), and only they: a line end at the end of the text is the start of an empty one. */
static struct jinja_value filter_indent(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        const struct jinja_string *string = tdm_jinja_want_string(&r->core, self, "what is indented"), *indent;
        bool first = flag_of(r, args[1]), blank = flag_of(r, args[2]);
        struct jinja_text text = { .core = &r->core };
        struct jinja_value ended =
                tdm_jinja_text_value(tdm_jinja_join(&r->core, string, tdm_jinja_string_of(&r->core, "\n")));
        struct jinja_list *lines =
                tdm_jinja_find_string_method("splitlines", 10)->call(r, ended, &(struct jinja_value){ 0 }).list;
        struct jinja_string *result;

        if (is_given(args[0]) && args[0].kind == JINJA_STRING)
                indent = args[0].string;
        else
                indent = blanks_of(r, is_given(args[0]) ? tdm_jinja_want_int(&r->core, args[0], "an indent") : 4);
        for (size_t i = 0; i < lines->n; i++) {
                if (i > 0)
                        tdm_jinja_text_puts(&text, "\n");
                if (i > 0 ? blank || lines->items[i].string->size > 0 : first)
                        tdm_jinja_text_add_string(&text, indent);
                tdm_jinja_text_add_string(&text, lines->items[i].string);
        }
        result = tdm_jinja_text_end(&text);
        result->is_markup = string->is_markup;
        return tdm_jinja_text_value(result);
}

/* A text as int() reads it; UNDEFINED: it is no number. */
static struct jinja_value text_as_int(struct jinja_render *r, const struct jinja_string *string, int64_t base)
{
        const struct jinja_string *bare = tdm_jinja_strip(&r->core, string, tdm_jinja_none(), true, true);
        const char *data = tdm_jinja_bytes(&r->core, bare);
        char digits[80], *end;
        long long value;

        if (bare->size == 0 || bare->size >= sizeof(digits) || memchr(data, '\0', bare->size))
                return tdm_jinja_undefined(NULL);
        memcpy(digits, data, bare->size);
        digits[bare->size] = '\0';
        errno = 0;
        value = strtoll(digits, &end, (int)base);
        if (*end != '\0' || tdm_jinja_is_space((uint8_t)digits[0]))
                return tdm_jinja_undefined(NULL);
        if (errno == ERANGE)
                tdm_jinja_fail(&r->core, "an integer is beyond 64 bits");
        return tdm_jinja_int(value);
}

/* UNDEFINED: it is no number. */
static struct jinja_value text_as_float(struct jinja_render *r, const struct jinja_string *string)
{
        const struct jinja_string *bare = tdm_jinja_strip(&r->core, string, tdm_jinja_none(), true, true);
        const char *data = tdm_jinja_bytes(&r->core, bare);
        char digits[400], *end;
        double value;

        if (bare->size == 0 || bare->size >= sizeof(digits) || memchr(data, '\0', bare->size) ||
            memchr(data, 'x', bare->size) || memchr(data, 'X', bare->size))
                return tdm_jinja_undefined(NULL);
        memcpy(digits, data, bare->size);
        digits[bare->size] = '\0';
        value = strtod(digits, &end);
        return *end == '\0' ? tdm_jinja_float(value) : tdm_jinja_undefined(NULL);
}

static struct jinja_value float_as_int(struct jinja_render *r, double number, struct jinja_value otherwise)
{
        if (isnan(number) || isinf(number))
                return otherwise;
        if (fabs(number) >= 9.2e18)
                tdm_jinja_fail(&r->core, "an integer is beyond 64 bits");
        return tdm_jinja_int((int64_t)number);
}

static struct jinja_value filter_int(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        struct jinja_value otherwise = is_given(args[0]) ? args[0] : tdm_jinja_int(0), value;
        int64_t base = is_given(args[1]) ? tdm_jinja_want_int(&r->core, args[1], "a base") : 10;

        switch (self.kind) {
        case JINJA_INT:
        case JINJA_BIG:
                return self;
        case JINJA_BOOL:
                return tdm_jinja_int(self.truth);
        case JINJA_FLOAT:
                return float_as_int(r, self.number, otherwise);
        case JINJA_UNDEFINED:
                tdm_jinja_fail(&r->core, "an undefined value is made a number");
        case JINJA_STRING:
                if (base < 2 || base > 36)
                        tdm_jinja_fail(&r->core, "numbers have a base from 2 to 36");
                value = text_as_int(r, self.string, base);
                if (value.kind == JINJA_UNDEFINED)
                        value = text_as_float(r, self.string);
                if (value.kind == JINJA_UNDEFINED)
                        return otherwise;
                return value.kind == JINJA_FLOAT ? float_as_int(r, value.number, otherwise) : value;
        default:
                return otherwise;
        }
}

static struct jinja_value filter_float(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        struct jinja_value otherwise = is_given(args[0]) ? args[0] : tdm_jinja_float(0), value;

        switch (self.kind) {
        case JINJA_INT:
        case JINJA_BOOL:
                return tdm_jinja_float((double)tdm_jinja_want_int(&r->core, self, "it"));
        case JINJA_FLOAT:
                return self;
        case JINJA_UNDEFINED:
                tdm_jinja_fail(&r->core, "an undefined value is made a number");
        case JINJA_STRING:
        case JINJA_BIG:
                value = text_as_float(r, self.string);
                return value.kind == JINJA_UNDEFINED ? otherwise : value;
        default:
                return otherwise;
        }
}

static struct jinja_value filter_abs(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        if (self.kind == JINJA_FLOAT)
                return tdm_jinja_float(fabs(self.number));
        if (!tdm_jinja_is_number(self))
                tdm_jinja_fail(&r->core, "abs of a %s", tdm_jinja_type_name(self));
        if (tdm_jinja_want_int(&r->core, self, "it") >= 0)
                return tdm_jinja_int(tdm_jinja_want_int(&r->core, self, "it"));
        return tdm_jinja_arithmetic(&r->core, '-', tdm_jinja_int(0), self);
}

static struct jinja_value filter_round(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        int64_t precision = is_given(args[0]) ? tdm_jinja_want_int(&r->core, args[0], "a precision") : 0;
        char digits[400];

        if (is_given(args[1]) &&
            !(args[1].kind == JINJA_STRING && tdm_jinja_string_is(&r->core, args[1].string, "common")))
                tdm_jinja_fail(&r->core, "round() by another method than \"common\" is not supported");
        if (precision < 0 || precision > 30)
                tdm_jinja_fail(&r->core, "round() takes a precision from 0 to 30");
        if (!tdm_jinja_is_number(self))
                tdm_jinja_fail(&r->core, "round() of a %s", tdm_jinja_type_name(self));
        if (self.kind != JINJA_FLOAT)
                return tdm_jinja_int(tdm_jinja_want_int(&r->core, self, "it"));
        /* printf rounds the exact value to even, as Python does. */
        if (!(fabs(self.number) < 0x1p53)) /* it has no fraction */
                return self;
        tdm_jinja_spend(&r->core, 32);
        snprintf(digits, sizeof(digits), "%.*f", (int)precision, self.number);
        return tdm_jinja_float(strtod(digits, NULL));
}

static struct jinja_value filter_items(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        struct jinja_value items;

        if (self.kind == JINJA_UNDEFINED)
                return tdm_jinja_list_value(tdm_jinja_list(&r->core, JINJA_SHAPE_GENERATOR, 0));
        if (self.kind != JINJA_DICT)
                tdm_jinja_fail(&r->core, "items of a %s", tdm_jinja_type_name(self));
        items = tdm_jinja_find_dict_method("items", 5)->call(r, self, NULL);
        items.list->shape = JINJA_SHAPE_GENERATOR;
        return items;
}

static struct jinja_value filter_attr(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        const struct jinja_string *name = tdm_jinja_want_string(&r->core, args[0], "the name of an attribute");
        const struct jinja_builtin *method = NULL;

        if (name->size > 0 && tdm_jinja_bytes(&r->core, name)[0] == '_')
                tdm_jinja_fail(&r->core, "attributes that begin with an underscore are not allowed");
        /* Unlike a dot it never looks for a key. */
        if (self.kind == JINJA_DICT)
                method = tdm_jinja_find_dict_method(name->data, name->size);
        if (self.kind == JINJA_DICT && !method)
                return tdm_jinja_undefined(name);
        return tdm_jinja_attribute(r, self, name);
}

static struct jinja_value filter_format(struct jinja_render *r, struct jinja_value self,
                                        const struct jinja_arguments *args)
{
        if (args->n_named > 0)
                tdm_jinja_fail(&r->core, "format by names is not supported");
        return tdm_jinja_percent(r, tdm_jinja_str(&r->core, self), args->values, args->n);
}

static struct jinja_value filter_wordcount(struct jinja_render *r, struct jinja_value self,
                                           const struct jinja_value *args)
{
        const struct jinja_string *string = tdm_jinja_str(&r->core, self);
        const char *data = tdm_jinja_bytes(&r->core, string);
        bool within = false;
        int64_t n = 0;
        size_t length;

        tdm_jinja_spend_bytes(&r->core, string->size, JINJA_WRITTEN);
        for (size_t at = 0; at < string->size; at += length) {
                uint32_t c = tdm_jinja_char(data + at, string->size - at, &length);
                bool is_word = tdm_jinja_is_alphabetic(c) || (c >= '0' && c <= '9') || c == '_';

                n += is_word && !within;
                within = is_word;
        }
        return tdm_jinja_int(n);
}

/* Not jinja2's, but some templates want it. */
static struct jinja_value filter_from_json(struct jinja_render *r, struct jinja_value self,
                                           const struct jinja_value *args)
{
        const struct jinja_string *string = tdm_jinja_want_string(&r->core, self, "JSON");
        struct jinja_value value;
        struct tdm_error err;

        tdm_jinja_spend_bytes(&r->core, string->size, JINJA_WRITTEN);
        /* The reader's tree is outside of the core's bytes: at most 44 for each byte of text. */
        if (string->size > r->core.bytes_left / 64)
                tdm_jinja_fail_code(&r->core, TDM_E_TOO_LONG, "JSON is longer than a template may read");
        if (tdm_json_parse(&r->core.json, tdm_jinja_bytes(&r->core, string), string->size, 64, &err))
                tdm_jinja_fail(&r->core, "from_json: %.300s", err.message);
        value = tdm_jinja_from_json(&r->core, &r->core.json, 0, true);
        tdm_json_deinit(&r->core.json);
        return value;
}

static const struct jinja_builtin filters[] = {
        { "trim", filter_trim, "chars", 0, NULL },
        { "length", filter_length, "", 0, NULL },
        { "count", filter_length, "", 0, NULL },
        { "string", filter_string, "", 0, NULL },
        { "safe", filter_safe, "", 0, NULL },
        { "escape", filter_escape, "", 0, NULL },
        { "e", filter_escape, "", 0, NULL },
        { "upper", filter_upper, "", 0, NULL },
        { "lower", filter_lower, "", 0, NULL },
        { "title", filter_title, "", 0, NULL },
        { "capitalize", filter_capitalize, "", 0, NULL },
        { "default", filter_default, "default_value boolean", 0, NULL },
        { "d", filter_default, "default_value boolean", 0, NULL },
        { "replace", filter_replace, "old new count", 2, NULL },
        { "indent", filter_indent, "width first blank", 0, NULL },
        { "int", filter_int, "default base", 0, NULL },
        { "float", filter_float, "default", 0, NULL },
        { "abs", filter_abs, "", 0, NULL },
        { "round", filter_round, "precision method", 0, NULL },
        { "items", filter_items, "", 0, NULL },
        { "attr", filter_attr, "name", 1, NULL },
        { "format", NULL, "", 0, filter_format },
        { "wordcount", filter_wordcount, "", 0, NULL },
        { "from_json", filter_from_json, "", 0, NULL },
};

const struct jinja_builtin *tdm_jinja_find_filter(const char *name, size_t size)
{
        const struct jinja_builtin *found = tdm_jinja_table_find(filters, TDM_ARRAY_SIZE(filters), name, size);

        if (!found && size == 6 && memcmp(name, "tojson", 6) == 0)
                return &tdm_jinja_tojson;
        return found ? found : tdm_jinja_table_find(tdm_jinja_list_filters, tdm_jinja_n_list_filters, name, size);
}
