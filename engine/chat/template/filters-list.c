/* Filters of lists and dicts. */
#include "engine/chat/template/private.h"
#include "common/utf8.h"

static bool is_given(struct jinja_value value)
{
        return value.kind != JINJA_ABSENT && value.kind != JINJA_NONE;
}

static bool flag_of(struct jinja_render *r, struct jinja_value value)
{
        return is_given(value) && tdm_jinja_truth(&r->core, value);
}

static struct jinja_list *generator_new(struct jinja_render *r)
{
        return tdm_jinja_list(&r->core, JINJA_SHAPE_GENERATOR, 0);
}

/* A member by a path such as "function.name" or 0. */
static struct jinja_value path_get(struct jinja_render *r, struct jinja_value value, struct jinja_value path)
{
        const struct jinja_string *string;
        const char *data;
        size_t from = 0;

        if (path.kind != JINJA_STRING)
                return tdm_jinja_item(r, value, path);
        string = path.string;
        data = tdm_jinja_bytes(&r->core, string);
        while (from <= string->size) {
                const char *dot = memchr(data + from, '.', string->size - from);
                size_t to = dot ? (size_t)(dot - data) : string->size, digits = from;
                struct jinja_value part = tdm_jinja_text_value(tdm_jinja_slice(&r->core, string, from, to));

                tdm_jinja_spend_bytes(&r->core, to - from + JINJA_READ, JINJA_READ);
                while (digits < to && data[digits] >= '0' && data[digits] <= '9')
                        digits++;
                if (to > from && digits == to)
                        part = tdm_jinja_parse_number(&r->core, data + from, to - from);
                value = tdm_jinja_item(r, value, part);
                from = to + 1;
        }
        return value;
}

static struct jinja_value filter_list(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        struct jinja_list *from = tdm_jinja_walk(&r->core, self);
        struct jinja_list *list = tdm_jinja_list(&r->core, JINJA_SHAPE_LIST, from->n);

        for (size_t i = 0; i < from->n; i++)
                tdm_jinja_list_add(&r->core, list, from->items[i]);
        list->is_own = true;
        return tdm_jinja_list_value(list);
}

static struct jinja_value filter_join(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        struct jinja_list *list = tdm_jinja_walk(&r->core, self);
        struct jinja_text text = { .core = &r->core };

        for (size_t i = 0; i < list->n; i++) {
                struct jinja_value item = list->items[i];

                tdm_jinja_spend(&r->core, 1);
                if (is_given(args[1]))
                        item = path_get(r, item, args[1]);
                if (i > 0 && is_given(args[0]))
                        tdm_jinja_print(&text, args[0]);
                tdm_jinja_print(&text, item);
        }
        return tdm_jinja_text_value(tdm_jinja_text_end(&text));
}

static struct jinja_value filter_first(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        struct jinja_list *list;

        if (self.kind == JINJA_LIST && self.list->shape == JINJA_SHAPE_GENERATOR) {
                /* One item is taken, the others stay. */
                struct jinja_value first = self.list->n > 0 ? self.list->items[0] : tdm_jinja_undefined(NULL);

                if (self.list->n > 0) {
                        self.list->items++;
                        self.list->n--;
                        self.list->capacity--;
                }
                return first;
        }
        list = tdm_jinja_walk(&r->core, self);
        return list->n > 0 ? list->items[0] : tdm_jinja_undefined(NULL);
}

static struct jinja_value filter_last(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        struct jinja_list *list;

        if (self.kind == JINJA_LIST && self.list->shape == JINJA_SHAPE_GENERATOR)
                tdm_jinja_fail(&r->core, "last of a generator");
        list = tdm_jinja_walk(&r->core, self);
        return list->n > 0 ? list->items[list->n - 1] : tdm_jinja_undefined(NULL);
}

static struct jinja_value filter_reverse(struct jinja_render *r, struct jinja_value self,
                                         const struct jinja_value *args)
{
        bool is_generator = self.kind == JINJA_LIST && self.list->shape == JINJA_SHAPE_GENERATOR;
        struct jinja_list *list = tdm_jinja_walk(&r->core, self), *reversed = generator_new(r);
        struct jinja_text text = { .core = &r->core };

        if (is_generator) /* what cannot be walked backwards becomes a list */
                reversed->shape = JINJA_SHAPE_LIST;

        for (size_t i = list->n; i-- > 0;)
                if (self.kind == JINJA_STRING)
                        tdm_jinja_text_add_string(&text, list->items[i].string);
                else
                        tdm_jinja_list_add(&r->core, reversed, list->items[i]);
        return self.kind == JINJA_STRING ? tdm_jinja_text_value(tdm_jinja_text_end(&text)) :
                                           tdm_jinja_list_value(reversed);
}

/* The arguments from number `from` on. */
static struct jinja_arguments arguments_from(const struct jinja_arguments *args, size_t from)
{
        struct jinja_arguments rest = *args;

        from = TDM_MIN(from, args->n);
        if (from > 0)
                rest.values += from;
        rest.n -= from;
        return rest;
}

/* The question of select and its like: the test that the arguments name, or truth. */
static bool test_holds(struct jinja_render *r, struct jinja_value value, const struct jinja_arguments *args)
{
        const struct jinja_builtin *builtin;
        const struct jinja_string *name;
        struct jinja_arguments rest;

        if (args->n == 0)
                return tdm_jinja_truth(&r->core, value);
        name = tdm_jinja_want_string(&r->core, args->values[0], "the name of a test");
        builtin = tdm_jinja_find_test(tdm_jinja_bytes(&r->core, name), name->size);
        if (!builtin)
                tdm_jinja_fail(&r->core, "there is no test \"%.*s\"",
                               TDM_UTF8_CUT(name->data, TDM_MIN(name->size, (size_t)40)));
        rest = arguments_from(args, 1);
        return tdm_jinja_truth(&r->core, tdm_jinja_call_builtin(r, builtin, value, &rest));
}

static struct jinja_value items_choose(struct jinja_render *r, struct jinja_value self,
                                       const struct jinja_arguments *args, bool by_member, bool want)
{
        struct jinja_list *list, *chosen = generator_new(r);
        struct jinja_arguments test = arguments_from(args, by_member);

        if (!tdm_jinja_truth(&r->core, self)) /* None too */
                return tdm_jinja_list_value(chosen);
        list = tdm_jinja_walk(&r->core, self);
        if (by_member && args->n == 0)
                tdm_jinja_fail(&r->core, "selectattr and rejectattr want the name of an attribute");
        for (size_t i = 0; i < list->n; i++) {
                struct jinja_value value = by_member ? path_get(r, list->items[i], args->values[0]) : list->items[i];

                tdm_jinja_spend(&r->core, 1);
                if (test_holds(r, value, &test) == want)
                        tdm_jinja_list_add(&r->core, chosen, list->items[i]);
        }
        return tdm_jinja_list_value(chosen);
}

static struct jinja_value filter_select(struct jinja_render *r, struct jinja_value self,
                                        const struct jinja_arguments *args)
{
        return items_choose(r, self, args, false, true);
}

static struct jinja_value filter_reject(struct jinja_render *r, struct jinja_value self,
                                        const struct jinja_arguments *args)
{
        return items_choose(r, self, args, false, false);
}

static struct jinja_value filter_selectattr(struct jinja_render *r, struct jinja_value self,
                                            const struct jinja_arguments *args)
{
        return items_choose(r, self, args, true, true);
}

static struct jinja_value filter_rejectattr(struct jinja_render *r, struct jinja_value self,
                                            const struct jinja_arguments *args)
{
        return items_choose(r, self, args, true, false);
}

/* A named argument; ABSENT: it is not there. */
static struct jinja_value named_argument(struct jinja_render *r, const struct jinja_arguments *args, const char *name)
{
        for (size_t i = 0; i < args->n_named; i++)
                if (tdm_jinja_string_is(&r->core, args->named[i].name, name))
                        return args->named[i].value;
        return (struct jinja_value){ .kind = JINJA_ABSENT };
}

static struct jinja_value filter_map(struct jinja_render *r, struct jinja_value self,
                                     const struct jinja_arguments *args)
{
        struct jinja_value attribute = named_argument(r, args, "attribute");
        struct jinja_value otherwise = named_argument(r, args, "default");
        struct jinja_list *list, *mapped = generator_new(r);
        const struct jinja_builtin *builtin = NULL;
        struct jinja_arguments rest = arguments_from(args, 1);

        if (!tdm_jinja_truth(&r->core, self)) /* None too */
                return tdm_jinja_list_value(mapped);
        list = tdm_jinja_walk(&r->core, self);
        if (args->n == 0 && attribute.kind == JINJA_ABSENT)
                tdm_jinja_fail(&r->core, "map wants the name of a filter, or an attribute");
        if (args->n > 0) {
                const struct jinja_string *name =
                        tdm_jinja_want_string(&r->core, args->values[0], "the name of a filter");

                builtin = tdm_jinja_find_filter(tdm_jinja_bytes(&r->core, name), name->size);
                if (!builtin)
                        tdm_jinja_fail(&r->core, "there is no filter \"%.*s\"",
                                       TDM_UTF8_CUT(name->data, TDM_MIN(name->size, (size_t)40)));
        }
        for (size_t i = 0; i < list->n; i++) {
                struct jinja_value value;

                tdm_jinja_spend(&r->core, 1);
                if (builtin)
                        value = tdm_jinja_call_builtin(r, builtin, list->items[i], &rest);
                else
                        value = path_get(r, list->items[i], attribute);
                if (value.kind == JINJA_UNDEFINED && otherwise.kind != JINJA_ABSENT)
                        value = otherwise;
                tdm_jinja_list_add(&r->core, mapped, value);
        }
        return tdm_jinja_list_value(mapped);
}

/* The key by which an item is compared: a member of it, without regard to case unless it is wanted. */
static struct jinja_value sort_key(struct jinja_render *r, struct jinja_value value, struct jinja_value attribute,
                                   bool case_sensitive)
{
        if (is_given(attribute))
                value = path_get(r, value, attribute);
        if (value.kind == JINJA_STRING && !case_sensitive)
                return tdm_jinja_text_value(tdm_jinja_change_case(&r->core, value.string, JINJA_LOWER));
        return value;
}

/* The same for sort, which takes several members with commas between: a list of them. Equal ones need no order. */
static struct jinja_value sort_keys(struct jinja_render *r, struct jinja_value value, struct jinja_value attribute,
                                    bool case_sensitive)
{
        struct jinja_list *keys = tdm_jinja_list(&r->core, JINJA_SHAPE_LIST, 1);
        const struct jinja_string *comma;
        size_t from = 0, at;

        if (!is_given(attribute))
                return sort_key(r, value, attribute, case_sensitive);
        if (attribute.kind != JINJA_STRING) {
                tdm_jinja_list_add(&r->core, keys, sort_key(r, value, attribute, case_sensitive));
                return tdm_jinja_list_value(keys);
        }
        comma = tdm_jinja_string_of(&r->core, ",");
        do {
                struct jinja_value one;

                at = tdm_jinja_find(&r->core, attribute.string, comma, from);
                one = tdm_jinja_text_value(tdm_jinja_slice(&r->core, attribute.string, from,
                                                           at == SIZE_MAX ? attribute.string->size : at));
                tdm_jinja_list_add(&r->core, keys, sort_key(r, value, one, case_sensitive));
                from = at + 1;
        } while (at != SIZE_MAX);
        return tdm_jinja_list_value(keys);
}

/* The order of keys, stable. Reversed it goes from the last to the first, and equal ones keep their order all the
 * same. */
static size_t *keys_order(struct jinja_render *r, const struct jinja_value *keys, size_t n, bool reverse)
{
        size_t *order = tdm_jinja_alloc(&r->core, (n + 1) * sizeof(*order));
        size_t *other = tdm_jinja_alloc(&r->core, (n + 1) * sizeof(*other));

        for (size_t i = 0; i < n; i++)
                order[i] = i;
        for (size_t width = 1; width < n; width *= 2) {
                size_t *swap = order;

                for (size_t at = 0; at < n; at += 2 * width) {
                        size_t a = at, a_end = TDM_MIN(at + width, n), b = a_end, end = TDM_MIN(at + 2 * width, n);

                        for (size_t k = at; k < end; k++) {
                                bool take_b = a == a_end;

                                if (a < a_end && b < end) {
                                        int c = tdm_jinja_compare(&r->core, keys[order[b]], keys[order[a]]);

                                        take_b = reverse ? c == 1 || c > 2 : c < 0;
                                }
                                other[k] = take_b ? order[b++] : order[a++];
                        }
                }
                order = other;
                other = swap;
        }
        return order;
}

static struct jinja_value filter_sort(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        struct jinja_list *from = tdm_jinja_walk(&r->core, self);
        struct jinja_list *sorted = tdm_jinja_list(&r->core, JINJA_SHAPE_LIST, from->n);
        struct jinja_value *keys = tdm_jinja_alloc(&r->core, (from->n + 1) * sizeof(*keys));
        size_t *order;

        for (size_t i = 0; i < from->n; i++)
                keys[i] = sort_keys(r, from->items[i], args[2], flag_of(r, args[1]));
        order = keys_order(r, keys, from->n, flag_of(r, args[0]));
        for (size_t i = 0; i < from->n; i++)
                tdm_jinja_list_add(&r->core, sorted, from->items[order[i]]);
        sorted->is_own = true;
        return tdm_jinja_list_value(sorted);
}

static struct jinja_value filter_dictsort(struct jinja_render *r, struct jinja_value self,
                                          const struct jinja_value *args)
{
        struct jinja_list *sorted;
        struct jinja_value *keys;
        bool by_value = false;
        size_t *order, n;

        if (self.kind != JINJA_DICT)
                tdm_jinja_fail(&r->core, "dictsort of a %s", tdm_jinja_type_name(self));
        n = self.dict->n;
        if (is_given(args[1])) {
                const struct jinja_string *by = tdm_jinja_want_string(&r->core, args[1], "what dictsort sorts by");

                by_value = tdm_jinja_string_is(&r->core, by, "value");
                if (!by_value && !tdm_jinja_string_is(&r->core, by, "key"))
                        tdm_jinja_fail(&r->core, "dictsort sorts by \"key\" or \"value\"");
        }
        keys = tdm_jinja_alloc(&r->core, (n + 1) * sizeof(*keys));
        for (size_t i = 0; i < n; i++)
                keys[i] = sort_key(r, by_value ? self.dict->entries[i].value : self.dict->entries[i].key,
                                   tdm_jinja_none(), flag_of(r, args[0]));
        order = keys_order(r, keys, n, flag_of(r, args[2]));
        sorted = tdm_jinja_list(&r->core, JINJA_SHAPE_LIST, n);
        for (size_t i = 0; i < n; i++) {
                struct jinja_list *pair = tdm_jinja_list(&r->core, JINJA_SHAPE_TUPLE, 2);

                tdm_jinja_list_add(&r->core, pair, self.dict->entries[order[i]].key);
                tdm_jinja_list_add(&r->core, pair, self.dict->entries[order[i]].value);
                tdm_jinja_list_add(&r->core, sorted, tdm_jinja_list_value(pair));
        }
        sorted->is_own = true;
        return tdm_jinja_list_value(sorted);
}

static struct jinja_value filter_unique(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        struct jinja_list *from = tdm_jinja_walk(&r->core, self), *unique = generator_new(r);
        struct jinja_dict *seen = tdm_jinja_dict(&r->core);

        for (size_t i = 0; i < from->n; i++) {
                struct jinja_value key = sort_key(r, from->items[i], args[1], flag_of(r, args[0]));

                if (tdm_jinja_dict_get(&r->core, seen, key))
                        continue;
                tdm_jinja_dict_set(&r->core, seen, key, tdm_jinja_none());
                tdm_jinja_list_add(&r->core, unique, from->items[i]);
        }
        return tdm_jinja_list_value(unique);
}

static struct jinja_value extreme_of(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args,
                                     int sign)
{
        struct jinja_list *list = tdm_jinja_walk(&r->core, self);
        struct jinja_value best = tdm_jinja_undefined(NULL), best_key = best;

        for (size_t i = 0; i < list->n; i++) {
                struct jinja_value key = sort_key(r, list->items[i], args[1], flag_of(r, args[0]));
                int order = i == 0 ? 0 : tdm_jinja_compare(&r->core, key, best_key);

                if (i > 0 && (sign < 0 ? order >= 0 : order <= 0 || order == 2))
                        continue;
                best = list->items[i];
                best_key = key;
        }
        return best;
}

static struct jinja_value filter_min(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        return extreme_of(r, self, args, -1);
}

static struct jinja_value filter_max(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        return extreme_of(r, self, args, 1);
}

static struct jinja_value filter_sum(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        struct jinja_list *list = tdm_jinja_walk(&r->core, self);
        struct jinja_value sum = is_given(args[1]) ? args[1] : tdm_jinja_int(0);

        for (size_t i = 0; i < list->n; i++)
                sum = tdm_jinja_arithmetic(&r->core, '+', sum,
                                           is_given(args[0]) ? path_get(r, list->items[i], args[0]) : list->items[i]);
        return sum;
}

static struct jinja_value filter_groupby(struct jinja_render *r, struct jinja_value self,
                                         const struct jinja_value *args)
{
        struct jinja_list *from = tdm_jinja_walk(&r->core, self), *groups, *group = NULL;
        struct jinja_value *keys = tdm_jinja_alloc(&r->core, (from->n + 1) * sizeof(*keys));
        size_t *order;

        for (size_t i = 0; i < from->n; i++) {
                keys[i] = sort_key(r, from->items[i], args[0], flag_of(r, args[2]));
                if (keys[i].kind == JINJA_UNDEFINED && is_given(args[1]))
                        keys[i] = args[1];
        }
        order = keys_order(r, keys, from->n, false);
        groups = tdm_jinja_list(&r->core, JINJA_SHAPE_LIST, 0);
        for (size_t i = 0; i < from->n; i++) {
                if (i == 0 || !tdm_jinja_equal(&r->core, keys[order[i]], keys[order[i - 1]])) {
                        struct jinja_list *pair = tdm_jinja_list(&r->core, JINJA_SHAPE_TUPLE, 2);

                        group = tdm_jinja_list(&r->core, JINJA_SHAPE_LIST, 0);
                        tdm_jinja_list_add(&r->core, pair, path_get(r, from->items[order[i]], args[0]));
                        tdm_jinja_list_add(&r->core, pair, tdm_jinja_list_value(group));
                        tdm_jinja_list_add(&r->core, groups, tdm_jinja_list_value(pair));
                }
                tdm_jinja_list_add(&r->core, group, from->items[order[i]]);
        }
        return tdm_jinja_list_value(groups);
}

const struct jinja_builtin tdm_jinja_list_filters[] = {
        { "list", filter_list, "", 0, NULL },
        { "join", filter_join, "d attribute", 0, NULL },
        { "first", filter_first, "", 0, NULL },
        { "last", filter_last, "", 0, NULL },
        { "reverse", filter_reverse, "", 0, NULL },
        { "select", NULL, "", 0, filter_select },
        { "reject", NULL, "", 0, filter_reject },
        { "selectattr", NULL, "", 0, filter_selectattr },
        { "rejectattr", NULL, "", 0, filter_rejectattr },
        { "map", NULL, "", 0, filter_map },
        { "sort", filter_sort, "reverse case_sensitive attribute", 0, NULL },
        { "dictsort", filter_dictsort, "case_sensitive by reverse", 0, NULL },
        { "unique", filter_unique, "case_sensitive attribute", 0, NULL },
        { "min", filter_min, "case_sensitive attribute", 0, NULL },
        { "max", filter_max, "case_sensitive attribute", 0, NULL },
        { "sum", filter_sum, "attribute start", 0, NULL },
        { "groupby", filter_groupby, "attribute default case_sensitive", 1, NULL },
};
const size_t tdm_jinja_n_list_filters = TDM_ARRAY_SIZE(tdm_jinja_list_filters);
