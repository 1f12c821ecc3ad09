/* Methods of texts, as Python's str has them. */
#include "engine/chat/template/private.h"
#include "common/utf8.h"
#include "engine/text/unicode.h"

static bool chars_have(const char *chars, size_t size, uint32_t c)
{
        size_t length;

        for (size_t at = 0; at < size; at += length)
                if (tdm_jinja_char(chars + at, size - at, &length) == c)
                        return true;
        return false;
}

struct jinja_string *tdm_jinja_strip(struct jinja_core *core, const struct jinja_string *string,
                                     struct jinja_value chars, bool left, bool right)
{
        const char *data = tdm_jinja_bytes(core, string), *set = NULL;
        size_t from = 0, to = string->size, set_size = 0, length;

        if (chars.kind != JINJA_ABSENT && chars.kind != JINJA_NONE) {
                set_size = tdm_jinja_want_string(core, chars, "what is stripped")->size;
                set = tdm_jinja_bytes(core, chars.string);
        }
        while (left && from < to) {
                uint32_t c = tdm_jinja_char(data + from, to - from, &length);

                tdm_jinja_spend_bytes(core, JINJA_READ + set_size, JINJA_READ);
                if (set ? !chars_have(set, set_size, c) : !tdm_jinja_is_space(c))
                        break;
                from += length;
        }
        while (right && to > from) {
                size_t at = to - 1;
                uint32_t c;

                while (at > from && (data[at] & 0xc0) == 0x80)
                        at--;
                c = tdm_jinja_char(data + at, to - at, &length);
                tdm_jinja_spend_bytes(core, JINJA_READ + set_size, JINJA_READ);
                if (set ? !chars_have(set, set_size, c) : !tdm_jinja_is_space(c))
                        break;
                to = at;
        }
        return tdm_jinja_slice(core, string, from, to);
}

struct jinja_string *tdm_jinja_replace(struct jinja_core *core, const struct jinja_string *string,
                                       const struct jinja_string *old, const struct jinja_string *new, int64_t count)
{
        struct jinja_text text = { .core = core };
        const char *data = tdm_jinja_bytes(core, string);
        size_t from = 0, at = 0, length;

        if (count < 0)
                count = INT64_MAX;
        while (count > 0 && (at = tdm_jinja_find(core, string, old, at)) != SIZE_MAX) {
                tdm_jinja_spend(core, 1);
                tdm_jinja_text_add_slice(&text, string, from, at);
                tdm_jinja_text_add_string(&text, new);
                from = at;
                at += old->size;
                if (old->size > 0) {
                        from = at;
                } else { /* between any two characters */
                        if (at == string->size)
                                break;
                        tdm_jinja_char(data + at, string->size - at, &length);
                        at += length;
                }
                count--;
        }
        tdm_jinja_text_add_slice(&text, string, from, string->size);
        return tdm_jinja_text_end(&text);
}

static struct jinja_value method_strip(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        return tdm_jinja_text_value(tdm_jinja_strip(&r->core, self.string, args[0], true, true));
}

static struct jinja_value method_lstrip(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        return tdm_jinja_text_value(tdm_jinja_strip(&r->core, self.string, args[0], true, false));
}

static struct jinja_value method_rstrip(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        return tdm_jinja_text_value(tdm_jinja_strip(&r->core, self.string, args[0], false, true));
}

static struct jinja_value method_upper(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        return tdm_jinja_text_value(tdm_jinja_change_case(&r->core, self.string, JINJA_UPPER));
}

static struct jinja_value method_lower(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        return tdm_jinja_text_value(tdm_jinja_change_case(&r->core, self.string, JINJA_LOWER));
}

static struct jinja_value method_title(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        return tdm_jinja_text_value(tdm_jinja_change_case(&r->core, self.string, JINJA_TITLE));
}

static struct jinja_value method_capitalize(struct jinja_render *r, struct jinja_value self,
                                            const struct jinja_value *args)
{
        return tdm_jinja_text_value(tdm_jinja_change_case(&r->core, self.string, JINJA_CAPITALIZE));
}

static struct jinja_value method_replace(struct jinja_render *r, struct jinja_value self,
                                         const struct jinja_value *args)
{
        int64_t count = args[2].kind == JINJA_ABSENT ? -1 : tdm_jinja_want_int(&r->core, args[2], "a count");

        return tdm_jinja_text_value(
                tdm_jinja_replace(&r->core, self.string, tdm_jinja_want_string(&r->core, args[0], "what is replaced"),
                                  tdm_jinja_want_string(&r->core, args[1], "the replacement"), count));
}

static bool string_has_at(struct jinja_render *r, const struct jinja_string *string, struct jinja_value part,
                          bool at_end)
{
        const struct jinja_string *affix = tdm_jinja_want_string(&r->core, part, "what a text begins or ends with");

        tdm_jinja_spend_bytes(&r->core, JINJA_SEARCHED, JINJA_COPIED);
        if (affix->size > string->size)
                return false;
        tdm_jinja_spend_bytes(&r->core, affix->size, JINJA_COPIED);
        return memcmp(tdm_jinja_bytes(&r->core, string) + (at_end ? string->size - affix->size : 0),
                      tdm_jinja_bytes(&r->core, affix), affix->size) == 0;
}

/* One text, or a tuple of several. */
static struct jinja_value affix_test(struct jinja_render *r, struct jinja_value self, struct jinja_value affix,
                                     bool at_end)
{
        if (affix.kind != JINJA_LIST || affix.list->shape != JINJA_SHAPE_TUPLE)
                return tdm_jinja_bool(string_has_at(r, self.string, affix, at_end));
        for (size_t i = 0; i < affix.list->n; i++)
                if (string_has_at(r, self.string, affix.list->items[i], at_end))
                        return tdm_jinja_bool(true);
        return tdm_jinja_bool(false);
}

static struct jinja_value method_startswith(struct jinja_render *r, struct jinja_value self,
                                            const struct jinja_value *args)
{
        return affix_test(r, self, args[0], false);
}

static struct jinja_value method_endswith(struct jinja_render *r, struct jinja_value self,
                                          const struct jinja_value *args)
{
        return affix_test(r, self, args[0], true);
}

static struct jinja_value method_removeprefix(struct jinja_render *r, struct jinja_value self,
                                              const struct jinja_value *args)
{
        if (!string_has_at(r, self.string, args[0], false))
                return self;
        return tdm_jinja_text_value(tdm_jinja_slice(&r->core, self.string, args[0].string->size, self.string->size));
}

static struct jinja_value method_removesuffix(struct jinja_render *r, struct jinja_value self,
                                              const struct jinja_value *args)
{
        if (!string_has_at(r, self.string, args[0], true))
                return self;
        return tdm_jinja_text_value(
                tdm_jinja_slice(&r->core, self.string, 0, self.string->size - args[0].string->size));
}

/* The place of a byte, counted in characters; -1 for none. */
static struct jinja_value place_of(struct jinja_render *r, const struct jinja_string *string, size_t at)
{
        if (at == SIZE_MAX)
                return tdm_jinja_int(-1);
        return tdm_jinja_int(tdm_jinja_n_chars(&r->core, tdm_jinja_slice(&r->core, string, 0, at)));
}

/* The piece of a text between two places, as find(), rfind() and count() take them. from: its first byte. */
static struct jinja_string *piece_of(struct jinja_render *r, const struct jinja_string *string,
                                     const struct jinja_value *bounds, size_t *ret_from)
{
        int64_t n = tdm_jinja_n_chars(&r->core, string), from = 0, to = n;

        if (bounds[0].kind != JINJA_ABSENT && bounds[0].kind != JINJA_NONE)
                from = tdm_jinja_want_int(&r->core, bounds[0], "a place");
        if (bounds[1].kind != JINJA_ABSENT && bounds[1].kind != JINJA_NONE)
                to = tdm_jinja_want_int(&r->core, bounds[1], "a place");
        from = from < -n ? 0 : from < 0 ? from + n : from;
        to = to < -n ? 0 : to < 0 ? to + n : TDM_MIN(to, n);
        if (from > to)
                return NULL;
        *ret_from = tdm_jinja_char_at(&r->core, string, from);
        return tdm_jinja_slice(&r->core, string, *ret_from, tdm_jinja_char_at(&r->core, string, to));
}

static struct jinja_value find_in(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args,
                                  bool last)
{
        const struct jinja_string *what = tdm_jinja_want_string(&r->core, args[0], "what is looked for");
        size_t from = 0, at;
        struct jinja_string *piece = piece_of(r, self.string, args + 1, &from);

        if (!piece)
                return tdm_jinja_int(-1);
        at = last ? tdm_jinja_find_last(&r->core, piece, what) : tdm_jinja_find(&r->core, piece, what, 0);
        return place_of(r, self.string, at == SIZE_MAX ? at : at + from);
}

static struct jinja_value method_find(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        return find_in(r, self, args, false);
}

static struct jinja_value method_rfind(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        return find_in(r, self, args, true);
}

static struct jinja_value method_index(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        struct jinja_value at = find_in(r, self, args, false);

        if (at.integer < 0)
                tdm_jinja_fail(&r->core, "a text that index() looks for is not there");
        return at;
}

static struct jinja_value method_count(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        const struct jinja_string *what = tdm_jinja_want_string(&r->core, args[0], "what is counted");
        size_t from = 0, at = 0;
        struct jinja_string *piece = piece_of(r, self.string, args + 1, &from);
        int64_t n = 0;

        if (!piece)
                return tdm_jinja_int(0);
        if (what->size == 0)
                return tdm_jinja_int(tdm_jinja_n_chars(&r->core, piece) + 1);
        for (; (at = tdm_jinja_find(&r->core, piece, what, at)) != SIZE_MAX; at += what->size, n++)
                tdm_jinja_spend(&r->core, 1);
        return tdm_jinja_int(n);
}

static void list_add_slice(struct jinja_render *r, struct jinja_list *list, const struct jinja_string *string,
                           size_t from, size_t to)
{
        tdm_jinja_list_add(&r->core, list, tdm_jinja_text_value(tdm_jinja_slice(&r->core, string, from, to)));
}

/* Words, as split() without a separator gives them. What is behind the last cut stays one, without white space at its
 * start. */
static void words_split(struct jinja_render *r, struct jinja_list *list, const struct jinja_string *string, int64_t max)
{
        const char *data = tdm_jinja_bytes(&r->core, string);
        size_t at = 0, from = SIZE_MAX, length;

        tdm_jinja_spend_bytes(&r->core, string->size, JINJA_READ);
        for (; at < string->size; at += length) {
                bool is_space = tdm_jinja_is_space(tdm_jinja_char(data + at, string->size - at, &length));

                if (!is_space && from == SIZE_MAX) {
                        from = at;
                        if (max == 0)
                                break;
                } else if (is_space && from != SIZE_MAX) {
                        list_add_slice(r, list, string, from, at);
                        from = SIZE_MAX;
                        max--;
                }
        }
        if (from != SIZE_MAX)
                list_add_slice(r, list, string, from, string->size);
}

static struct jinja_value method_split(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        struct jinja_list *list = tdm_jinja_list(&r->core, JINJA_SHAPE_LIST, 0);
        int64_t max = args[1].kind == JINJA_ABSENT ? -1 : tdm_jinja_want_int(&r->core, args[1], "maxsplit");
        const struct jinja_string *separator;
        size_t from = 0, at;

        list->is_own = true;
        if (args[0].kind == JINJA_ABSENT || args[0].kind == JINJA_NONE) {
                words_split(r, list, self.string, max);
                return tdm_jinja_list_value(list);
        }
        separator = tdm_jinja_want_string(&r->core, args[0], "a separator");
        if (separator->size == 0)
                tdm_jinja_fail(&r->core, "a text is split at an empty separator");
        for (; max != 0 && (at = tdm_jinja_find(&r->core, self.string, separator, from)) != SIZE_MAX; max--) {
                list_add_slice(r, list, self.string, from, at);
                from = at + separator->size;
        }
        list_add_slice(r, list, self.string, from, self.string->size);
        return tdm_jinja_list_value(list);
}

static struct jinja_value method_rsplit(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        int64_t max = args[1].kind == JINJA_ABSENT ? -1 : tdm_jinja_want_int(&r->core, args[1], "maxsplit");
        struct jinja_value all[2] = { args[0], { .kind = JINJA_ABSENT } };
        struct jinja_list *list = method_split(r, self, all).list, *joined;
        size_t n_first, size = 0;

        if (max < 0 || (uint64_t)max >= list->n)
                return tdm_jinja_list_value(list);
        if (args[0].kind != JINJA_STRING)
                tdm_jinja_fail(&r->core, "rsplit() at white space with a limit is not supported");
        /* The first parts stay together. */
        n_first = list->n - (size_t)max;
        for (size_t i = 0; i < n_first; i++)
                size += list->items[i].string->size + (i > 0 ? args[0].string->size : 0);
        joined = tdm_jinja_list(&r->core, JINJA_SHAPE_LIST, (size_t)max + 1);
        list_add_slice(r, joined, self.string, 0, size);
        for (size_t i = n_first; i < list->n; i++)
                tdm_jinja_list_add(&r->core, joined, list->items[i]);
        joined->is_own = true;
        return tdm_jinja_list_value(joined);
}

static struct jinja_value partition_at(struct jinja_render *r, struct jinja_value self, struct jinja_value separator,
                                       bool last)
{
        struct jinja_list *list = tdm_jinja_list(&r->core, JINJA_SHAPE_TUPLE, 3);
        const struct jinja_string *what = tdm_jinja_want_string(&r->core, separator, "a separator");
        size_t at, size = self.string->size;

        if (what->size == 0)
                tdm_jinja_fail(&r->core, "a text is split at an empty separator");
        at = last ? tdm_jinja_find_last(&r->core, self.string, what) : tdm_jinja_find(&r->core, self.string, what, 0);
        if (at == SIZE_MAX) {
                list_add_slice(r, list, self.string, 0, last ? 0 : size);
                list_add_slice(r, list, self.string, 0, 0);
                list_add_slice(r, list, self.string, last ? 0 : size, size);
        } else {
                list_add_slice(r, list, self.string, 0, at);
                list_add_slice(r, list, self.string, at, at + what->size);
                list_add_slice(r, list, self.string, at + what->size, size);
        }
        return tdm_jinja_list_value(list);
}

static struct jinja_value method_partition(struct jinja_render *r, struct jinja_value self,
                                           const struct jinja_value *args)
{
        return partition_at(r, self, args[0], false);
}

static struct jinja_value method_rpartition(struct jinja_render *r, struct jinja_value self,
                                            const struct jinja_value *args)
{
        return partition_at(r, self, args[0], true);
}

static struct jinja_value method_splitlines(struct jinja_render *r, struct jinja_value self,
                                            const struct jinja_value *args)
{
        struct jinja_list *list = tdm_jinja_list(&r->core, JINJA_SHAPE_LIST, 0);
        bool keep = args[0].kind != JINJA_ABSENT && tdm_jinja_truth(&r->core, args[0]);
        const char *data = tdm_jinja_bytes(&r->core, self.string);
        size_t from = 0, at = 0, size = self.string->size, length;

        tdm_jinja_spend_bytes(&r->core, size, JINJA_READ);
        while (at < size) {
                uint32_t c = tdm_jinja_char(data + at, size - at, &length);
                size_t end = at;

                at += length;
                if (!(c >= '\n' && c <= '\r') && !(c >= 0x1c && c <= 0x1e) && c != 0x85 && c != 0x2028 && c != 0x2029)
                        continue;
                if (c == '\r' && at < size && data[at] == '\n')
                        at++;
                list_add_slice(r, list, self.string, from, keep ? at : end);
                from = at;
        }
        if (from < size)
                list_add_slice(r, list, self.string, from, size);
        list->is_own = true;
        return tdm_jinja_list_value(list);
}

static struct jinja_value method_join(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        struct jinja_list *list = tdm_jinja_walk(&r->core, args[0]);
        struct jinja_text text = { .core = &r->core };

        for (size_t i = 0; i < list->n; i++) {
                if (i > 0)
                        tdm_jinja_text_add_string(&text, self.string);
                tdm_jinja_spend(&r->core, 1);
                tdm_jinja_text_add_string(&text, tdm_jinja_want_string(&r->core, list->items[i], "what is joined"));
        }
        return tdm_jinja_text_value(tdm_jinja_text_end(&text));
}

/* Whether all of a text that is not empty is of a kind. */
static struct jinja_value all_chars(struct jinja_render *r, struct jinja_value self, bool (*is)(uint32_t))
{
        const char *data = tdm_jinja_bytes(&r->core, self.string);
        size_t length;

        tdm_jinja_spend_bytes(&r->core, self.string->size, JINJA_WRITTEN);
        for (size_t at = 0; at < self.string->size; at += length)
                if (!is(tdm_jinja_char(data + at, self.string->size - at, &length)))
                        return tdm_jinja_bool(false);
        return tdm_jinja_bool(self.string->size > 0);
}

static bool is_ascii_digit(uint32_t c)
{
        return c >= '0' && c <= '9';
}

static bool is_alphanumeric(uint32_t c)
{
        return tdm_jinja_is_alphabetic(c) || is_ascii_digit(c) || tdm_unicode_kind(c) == TDM_UNICODE_NUMBER;
}

static struct jinja_value method_isdigit(struct jinja_render *r, struct jinja_value self,
                                         const struct jinja_value *args)
{
        return all_chars(r, self, is_ascii_digit);
}

static struct jinja_value method_isalpha(struct jinja_render *r, struct jinja_value self,
                                         const struct jinja_value *args)
{
        return all_chars(r, self, tdm_jinja_is_alphabetic);
}

static struct jinja_value method_isalnum(struct jinja_render *r, struct jinja_value self,
                                         const struct jinja_value *args)
{
        return all_chars(r, self, is_alphanumeric);
}

static struct jinja_value method_isspace(struct jinja_render *r, struct jinja_value self,
                                         const struct jinja_value *args)
{
        return all_chars(r, self, tdm_jinja_is_space);
}

static struct jinja_value case_is(struct jinja_render *r, struct jinja_value self, enum jinja_case to)
{
        enum jinja_case other = to == JINJA_UPPER ? JINJA_LOWER : JINJA_UPPER;
        struct jinja_string *same = tdm_jinja_change_case(&r->core, self.string, to);
        struct jinja_string *changed = tdm_jinja_change_case(&r->core, self.string, other);

        return tdm_jinja_bool(tdm_jinja_string_equal(&r->core, same, self.string) &&
                              !tdm_jinja_string_equal(&r->core, changed, self.string));
}

static struct jinja_value method_isupper(struct jinja_render *r, struct jinja_value self,
                                         const struct jinja_value *args)
{
        return case_is(r, self, JINJA_UPPER);
}

static struct jinja_value method_islower(struct jinja_render *r, struct jinja_value self,
                                         const struct jinja_value *args)
{
        return case_is(r, self, JINJA_LOWER);
}

static const struct jinja_builtin string_methods[] = {
        { "strip", method_strip, "chars", 0, NULL },
        { "lstrip", method_lstrip, "chars", 0, NULL },
        { "rstrip", method_rstrip, "chars", 0, NULL },
        { "split", method_split, "sep maxsplit", 0, NULL },
        { "rsplit", method_rsplit, "sep maxsplit", 0, NULL },
        { "startswith", method_startswith, "prefix", 1, NULL },
        { "endswith", method_endswith, "suffix", 1, NULL },
        { "replace", method_replace, "old new count", 2, NULL },
        { "upper", method_upper, "", 0, NULL },
        { "lower", method_lower, "", 0, NULL },
        { "title", method_title, "", 0, NULL },
        { "capitalize", method_capitalize, "", 0, NULL },
        { "find", method_find, "sub start end", 1, NULL },
        { "rfind", method_rfind, "sub start end", 1, NULL },
        { "index", method_index, "sub start end", 1, NULL },
        { "count", method_count, "sub start end", 1, NULL },
        { "join", method_join, "iterable", 1, NULL },
        { "splitlines", method_splitlines, "keepends", 0, NULL },
        { "partition", method_partition, "sep", 1, NULL },
        { "rpartition", method_rpartition, "sep", 1, NULL },
        { "removeprefix", method_removeprefix, "prefix", 1, NULL },
        { "removesuffix", method_removesuffix, "suffix", 1, NULL },
        { "isdigit", method_isdigit, "", 0, NULL },
        { "isalpha", method_isalpha, "", 0, NULL },
        { "isalnum", method_isalnum, "", 0, NULL },
        { "isspace", method_isspace, "", 0, NULL },
        { "isupper", method_isupper, "", 0, NULL },
        { "islower", method_islower, "", 0, NULL },
};

const struct jinja_builtin *tdm_jinja_table_find(const struct jinja_builtin *table, size_t n, const char *name,
                                                 size_t size)
{
        for (size_t i = 0; i < n; i++)
                if (strlen(table[i].name) == size && memcmp(table[i].name, name, size) == 0)
                        return &table[i];
        return NULL;
}

const struct jinja_builtin *tdm_jinja_find_string_method(const char *name, size_t size)
{
        if (size == 6 && memcmp(name, "format", 6) == 0)
                return &tdm_jinja_format_method;
        return tdm_jinja_table_find(string_methods, TDM_ARRAY_SIZE(string_methods), name, size);
}
