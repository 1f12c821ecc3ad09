/* tojson as Hugging Face sets it up, which is Python's json.dumps(), and from_json, which some templates want. */
#include <math.h>
#include "engine/chat/template/private.h"

struct json_writer {
        struct jinja_text text;
        const struct jinja_string *indent; /* NULL: all on one line */
        const struct jinja_string *item_separator, *key_separator;
        bool ascii, sort_keys;
};

static void json_value(struct json_writer *w, struct jinja_value value, unsigned depth);

static void json_char(struct json_writer *w, uint32_t c, bool is_template)
{
        static const char plain[] = "\"\\\n\r\t\f\b", names[] = "\"\\nrtfb";
        char escape[16];

        if (c != 0 && c < 0x80 && strchr(plain, (int)c))
                snprintf(escape, sizeof(escape), "\\%c", names[strchr(plain, (int)c) - plain]);
        else if (c < 0x20 || (w->ascii && c >= 0x7f && c < 0x10000 && c != 0x7f))
                snprintf(escape, sizeof(escape), "\\u%04x", c);
        else if (w->ascii && c >= 0x10000)
                snprintf(escape, sizeof(escape), "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                         0xdc00 + ((c - 0x10000) & 0x3ff));
        else {
                tdm_jinja_text_char(&w->text, c, is_template);
                return;
        }
        tdm_jinja_text_add(&w->text, escape, strlen(escape), is_template);
}

static bool char_is_plain(const struct json_writer *w, uint8_t c)
{
        return c >= 0x20 && c != '"' && c != '\\' && !(w->ascii && c >= 0x7f);
}

static void json_string(struct json_writer *w, const struct jinja_string *string)
{
        const char *data = tdm_jinja_bytes(w->text.core, string);
        size_t at = 0, length;

        tdm_jinja_text_puts(&w->text, "\"");
        tdm_jinja_spend_bytes(w->text.core, string->size, JINJA_SEARCHED);
        while (at < string->size) {
                size_t from = at;

                while (at < string->size && char_is_plain(w, (uint8_t)data[at]))
                        at++;
                tdm_jinja_text_add_slice(&w->text, string, from, at);
                if (at == string->size)
                        break;
                tdm_jinja_spend(w->text.core, 1);
                json_char(w, tdm_jinja_char(data + at, string->size - at, &length),
                          tdm_jinja_is_template_at(string, at));
                at += length;
        }
        tdm_jinja_text_puts(&w->text, "\"");
}

static void json_break(struct json_writer *w, unsigned depth)
{
        if (!w->indent)
                return;
        tdm_jinja_text_puts(&w->text, "\n");
        tdm_jinja_spend_bytes(w->text.core, depth, JINJA_READ);
        for (unsigned i = 0; i < depth; i++)
                tdm_jinja_text_add_string(&w->text, w->indent);
}

static void json_list(struct json_writer *w, const struct jinja_list *list, unsigned depth)
{
        tdm_jinja_text_puts(&w->text, "[");
        for (size_t i = 0; i < list->n; i++) {
                if (i > 0)
                        tdm_jinja_text_add_string(&w->text, w->item_separator);
                json_break(w, depth + 1);
                json_value(w, list->items[i], depth + 1);
        }
        if (list->n > 0)
                json_break(w, depth);
        tdm_jinja_text_puts(&w->text, "]");
}

/* json.dumps makes texts of keys that are none. */
static void json_key(struct json_writer *w, struct jinja_value key)
{
        static const char *const quotes = "\"";

        if (key.kind == JINJA_STRING) {
                json_string(w, key.string);
                return;
        }
        if (key.kind == JINJA_LIST || key.kind > JINJA_STRING || key.kind == JINJA_UNDEFINED)
                tdm_jinja_fail(w->text.core, "a %s cannot be a key of JSON", tdm_jinja_type_name(key));
        tdm_jinja_text_puts(&w->text, quotes);
        json_value(w, key, 0);
        tdm_jinja_text_puts(&w->text, quotes);
}

/* The entries by their keys, as json.dumps(sort_keys=True) orders them. */
static const struct jinja_entry *entries_sorted(struct json_writer *w, const struct jinja_dict *dict)
{
        struct jinja_entry *sorted =
                tdm_jinja_grow(w->text.core, dict->entries, dict->n, TDM_MAX(dict->n, (size_t)1), sizeof(*sorted));

        for (size_t width = 1; width < dict->n; width *= 2) { /* merged from below: stable */
                struct jinja_entry *to = tdm_jinja_alloc(w->text.core, dict->n * sizeof(*to));

                for (size_t at = 0; at < dict->n; at += 2 * width) {
                        size_t a = at, a_end = TDM_MIN(at + width, dict->n), b = a_end;
                        size_t b_end = TDM_MIN(at + 2 * width, dict->n);

                        for (size_t k = at; k < b_end; k++)
                                to[k] = a < a_end && (b == b_end || tdm_jinja_compare(w->text.core, sorted[a].key,
                                                                                      sorted[b].key) <= 0) ?
                                                sorted[a++] :
                                                sorted[b++];
                }
                sorted = to;
        }
        return sorted;
}

static void json_dict(struct json_writer *w, const struct jinja_dict *dict, unsigned depth)
{
        const struct jinja_entry *entries = w->sort_keys ? entries_sorted(w, dict) : dict->entries;

        tdm_jinja_text_puts(&w->text, "{");
        for (size_t i = 0; i < dict->n; i++) {
                if (i > 0)
                        tdm_jinja_text_add_string(&w->text, w->item_separator);
                json_break(w, depth + 1);
                json_key(w, entries[i].key);
                tdm_jinja_text_add_string(&w->text, w->key_separator);
                json_value(w, entries[i].value, depth + 1);
        }
        if (dict->n > 0)
                json_break(w, depth);
        tdm_jinja_text_puts(&w->text, "}");
}

static void json_value(struct json_writer *w, struct jinja_value value, unsigned depth)
{
        tdm_jinja_spend(w->text.core, 1);
        if (depth > JINJA_MAX_VALUE_DEPTH)
                tdm_jinja_fail(w->text.core, "a value is nested too deeply for JSON");
        switch (value.kind) {
        case JINJA_NONE:
                tdm_jinja_text_puts(&w->text, "null");
                break;
        case JINJA_BOOL:
                tdm_jinja_text_puts(&w->text, value.truth ? "true" : "false");
                break;
        case JINJA_FLOAT:
                if (isnan(value.number) || isinf(value.number))
                        tdm_jinja_text_puts(&w->text, isnan(value.number) ? "NaN" :
                                                      value.number > 0    ? "Infinity" :
                                                                            "-Infinity");
                else
                        tdm_jinja_print_float(&w->text, value.number);
                break;
        case JINJA_INT:
        case JINJA_BIG:
                tdm_jinja_repr(&w->text, value);
                break;
        case JINJA_STRING:
                json_string(w, value.string);
                break;
        case JINJA_DICT:
                json_dict(w, value.dict, depth);
                break;
        case JINJA_LIST:
                if (value.list->shape <= JINJA_SHAPE_TUPLE) {
                        json_list(w, value.list, depth);
                        break;
                }
                /* fall through */
        default:
                if (value.kind == JINJA_UNDEFINED && value.string)
                        tdm_jinja_fail(w->text.core, "\"%.*s\" is undefined and cannot become JSON",
                                       (int)TDM_MIN(value.string->size, (size_t)80), value.string->data);
                tdm_jinja_fail(w->text.core, "a %s cannot become JSON", tdm_jinja_type_name(value));
        }
}

static void separators_take(struct json_writer *w, struct jinja_value separators)
{
        struct jinja_core *core = w->text.core;

        if (separators.kind == JINJA_ABSENT || separators.kind == JINJA_NONE) {
                w->item_separator = tdm_jinja_string_of(core, w->indent ? "," : ", ");
                w->key_separator = tdm_jinja_string_of(core, ": ");
                return;
        }
        if (separators.kind != JINJA_LIST || separators.list->n != 2)
                tdm_jinja_fail(core, "separators of tojson are two texts");
        w->item_separator = tdm_jinja_want_string(core, separators.list->items[0], "a separator");
        w->key_separator = tdm_jinja_want_string(core, separators.list->items[1], "a separator");
}

/* A number of blanks, or what is written for each level. */
static void indent_take(struct json_writer *w, struct jinja_value indent)
{
        struct jinja_text blanks = { .core = w->text.core };

        if (indent.kind == JINJA_ABSENT || indent.kind == JINJA_NONE)
                return;
        if (indent.kind == JINJA_STRING) {
                w->indent = indent.string;
                return;
        }
        for (int64_t i = tdm_jinja_want_int(w->text.core, indent, "the indent of tojson"); i > 0; i--) {
                tdm_jinja_spend(w->text.core, 1);
                tdm_jinja_text_puts(&blanks, " ");
        }
        w->indent = tdm_jinja_text_end(&blanks);
}

static struct jinja_value tojson_call(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        struct json_writer w = { .text = { .core = &r->core } };

        w.ascii = args[0].kind != JINJA_ABSENT && tdm_jinja_truth(&r->core, args[0]);
        indent_take(&w, args[1]);
        separators_take(&w, args[2]);
        w.sort_keys = args[3].kind != JINJA_ABSENT && tdm_jinja_truth(&r->core, args[3]);
        json_value(&w, self, 0);
        return tdm_jinja_text_value(tdm_jinja_text_end(&w.text));
}

const struct jinja_builtin tdm_jinja_tojson = { "tojson", tojson_call, "ensure_ascii indent separators sort_keys", 0,
                                                NULL };
