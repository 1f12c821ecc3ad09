/* Methods of dicts and lists, and the functions that every template has. What changes a value works on lists and dicts
 * that the template made itself, never on the conversation, and never on what a loop walks over. */
#include "engine/chat/template/private.h"
#include "common/utf8.h"

static struct jinja_value dict_items(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        struct jinja_list *list = tdm_jinja_list(&r->core, JINJA_SHAPE_VIEW, self.dict->n);

        for (size_t i = 0; i < self.dict->n; i++) {
                struct jinja_list *pair = tdm_jinja_list(&r->core, JINJA_SHAPE_TUPLE, 2);

                tdm_jinja_list_add(&r->core, pair, self.dict->entries[i].key);
                tdm_jinja_list_add(&r->core, pair, self.dict->entries[i].value);
                tdm_jinja_list_add(&r->core, list, tdm_jinja_list_value(pair));
        }
        return tdm_jinja_list_value(list);
}

static struct jinja_value dict_keys(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        struct jinja_list *list = tdm_jinja_walk(&r->core, self);

        list->shape = JINJA_SHAPE_VIEW;
        return tdm_jinja_list_value(list);
}

static struct jinja_value dict_values(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        struct jinja_list *list = tdm_jinja_list(&r->core, JINJA_SHAPE_VIEW, self.dict->n);

        for (size_t i = 0; i < self.dict->n; i++)
                tdm_jinja_list_add(&r->core, list, self.dict->entries[i].value);
        return tdm_jinja_list_value(list);
}

static struct jinja_value dict_get(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        const struct jinja_value *value = tdm_jinja_dict_get(&r->core, self.dict, args[0]);

        if (value)
                return *value;
        return args[1].kind == JINJA_ABSENT ? tdm_jinja_none() : args[1];
}

static struct jinja_value dict_copy(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        struct jinja_dict *copy = tdm_jinja_dict(&r->core);

        for (size_t i = 0; i < self.dict->n; i++)
                tdm_jinja_dict_set(&r->core, copy, self.dict->entries[i].key, self.dict->entries[i].value);
        return (struct jinja_value){ .kind = JINJA_DICT, .dict = copy };
}

static struct jinja_value changing_refused(struct jinja_render *r, struct jinja_value self,
                                           const struct jinja_arguments *args)
{
        tdm_jinja_fail(&r->core, "a %s is changed, which templates may not do", tdm_jinja_type_name(self));
}

static const struct jinja_builtin dict_methods[] = {
        { "items", dict_items, "", 0, NULL },
        { "keys", dict_keys, "", 0, NULL },
        { "values", dict_values, "", 0, NULL },
        { "get", dict_get, "key default", 1, NULL },
        { "copy", dict_copy, "", 0, NULL },
        { "pop", NULL, "", 0, changing_refused },
        { "popitem", NULL, "", 0, changing_refused },
        { "update", NULL, "", 0, changing_refused },
        { "setdefault", NULL, "", 0, changing_refused },
        { "clear", NULL, "", 0, changing_refused },
};

static struct jinja_list *list_to_change(struct jinja_render *r, struct jinja_value self)
{
        if (!self.list->is_own || self.list->walked > 0 || self.list->shape != JINJA_SHAPE_LIST)
                changing_refused(r, self, NULL);
        return self.list;
}

/* transformers refuses append() and pop(), but released templates use them (Kimi K2's), and other programs allow it. */
static struct jinja_value list_append(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        tdm_jinja_list_add(&r->core, list_to_change(r, self), args[0]);
        return tdm_jinja_none();
}

static struct jinja_value list_pop(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        struct jinja_list *list = list_to_change(r, self);
        int64_t at = args[0].kind == JINJA_ABSENT ? -1 : tdm_jinja_want_int(&r->core, args[0], "an index");
        struct jinja_value value;

        if (at < 0)
                at += (int64_t)list->n;
        if (at < 0 || (size_t)at >= list->n)
                tdm_jinja_fail(&r->core, "pop() takes what a list does not have");
        value = list->items[at];
        tdm_jinja_spend(&r->core, list->n - (size_t)at);
        memmove(&list->items[at], &list->items[at + 1], (list->n - (size_t)at - 1) * sizeof(*list->items));
        list->n--;
        return value;
}

static struct jinja_value list_index(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        for (size_t i = 0; i < self.list->n; i++)
                if (tdm_jinja_equal(&r->core, self.list->items[i], args[0]))
                        return tdm_jinja_int((int64_t)i);
        tdm_jinja_fail(&r->core, "a value that index() looks for is not there");
}

static struct jinja_value list_count(struct jinja_render *r, struct jinja_value self, const struct jinja_value *args)
{
        int64_t n = 0;

        for (size_t i = 0; i < self.list->n; i++)
                n += tdm_jinja_equal(&r->core, self.list->items[i], args[0]);
        return tdm_jinja_int(n);
}

static const struct jinja_builtin list_methods[] = {
        { "append", list_append, "object", 1, NULL }, { "pop", list_pop, "index", 0, NULL },
        { "index", list_index, "value", 1, NULL },    { "count", list_count, "value", 1, NULL },
        { "extend", NULL, "", 0, changing_refused },  { "insert", NULL, "", 0, changing_refused },
        { "remove", NULL, "", 0, changing_refused },  { "reverse", NULL, "", 0, changing_refused },
        { "sort", NULL, "", 0, changing_refused },    { "clear", NULL, "", 0, changing_refused },
};

const struct jinja_builtin *tdm_jinja_find_dict_method(const char *name, size_t size)
{
        return tdm_jinja_table_find(dict_methods, TDM_ARRAY_SIZE(dict_methods), name, size);
}

const struct jinja_builtin *tdm_jinja_find_list_method(const char *name, size_t size)
{
        return tdm_jinja_table_find(list_methods, TDM_ARRAY_SIZE(list_methods), name, size);
}

/* Functions. */

static struct jinja_dict *dict_of(struct jinja_render *r, const struct jinja_arguments *args)
{
        struct jinja_dict *dict = tdm_jinja_dict(&r->core);

        for (size_t i = 0; i < args->n; i++) {
                if (args->values[i].kind != JINJA_DICT)
                        tdm_jinja_fail(&r->core, "a dict is made of a %s", tdm_jinja_type_name(args->values[i]));
                for (size_t k = 0; k < args->values[i].dict->n; k++)
                        tdm_jinja_dict_set(&r->core, dict, args->values[i].dict->entries[k].key,
                                           args->values[i].dict->entries[k].value);
        }
        for (size_t i = 0; i < args->n_named; i++)
                tdm_jinja_dict_set(&r->core, dict, tdm_jinja_text_value(args->named[i].name), args->named[i].value);
        return dict;
}

static struct jinja_value function_namespace(struct jinja_render *r, struct jinja_value self,
                                             const struct jinja_arguments *args)
{
        return (struct jinja_value){ .kind = JINJA_NAMESPACE, .dict = dict_of(r, args) };
}

static struct jinja_value function_dict(struct jinja_render *r, struct jinja_value self,
                                        const struct jinja_arguments *args)
{
        return (struct jinja_value){ .kind = JINJA_DICT, .dict = dict_of(r, args) };
}

static struct jinja_value function_range(struct jinja_render *r, struct jinja_value self,
                                         const struct jinja_value *args)
{
        int64_t start = 0, stop = tdm_jinja_want_int(&r->core, args[0], "a bound of range()"), step = 1;
        struct jinja_list *list;
        uint64_t distance, n = 0;
        int64_t *range;

        if (args[1].kind != JINJA_ABSENT) {
                start = stop;
                stop = tdm_jinja_want_int(&r->core, args[1], "a bound of range()");
        }
        if (args[2].kind != JINJA_ABSENT)
                step = tdm_jinja_want_int(&r->core, args[2], "the step of range()");
        if (step == 0)
                tdm_jinja_fail(&r->core, "the step of range() is 0");
        if (step > 0 ? stop > start : start > stop) {
                distance = step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
                n = (distance - 1) / (step > 0 ? (uint64_t)step : 0 - (uint64_t)step) + 1;
        }
        if (n > JINJA_MAX_RANGE)
                tdm_jinja_fail(&r->core, "range() has more than %d items", JINJA_MAX_RANGE);
        list = tdm_jinja_list(&r->core, JINJA_SHAPE_RANGE, n);
        range = tdm_jinja_alloc(&r->core, 3 * sizeof(*range));
        range[0] = start;
        range[1] = stop;
        range[2] = step;
        list->range = range;
        for (uint64_t i = 0; i < n; i++)
                tdm_jinja_list_add(&r->core, list, tdm_jinja_int((int64_t)((uint64_t)start + i * (uint64_t)step)));
        return tdm_jinja_list_value(list);
}

static struct jinja_value function_raise(struct jinja_render *r, struct jinja_value self,
                                         const struct jinja_value *args)
{
        const struct jinja_string *message = tdm_jinja_str(&r->core, args[0]);

        if (message->size > JINJA_MAX_REFUSAL)
                tdm_jinja_fail(&r->core, "the message of raise_exception() has %zu bytes, %u are allowed",
                               message->size, JINJA_MAX_REFUSAL);
        tdm_jinja_bytes(&r->core, message);
        r->core.refusal = message;
        r->core.line = 0;
        tdm_jinja_fail(&r->core, "%.*s", TDM_UTF8_CUT(message->data, TDM_MIN(message->size, (size_t)400)));
}

/* One conversion of strftime(), or a stretch of other text. */
static void strftime_piece(struct jinja_render *r, struct jinja_text *text, const char *piece, size_t size)
{
        /* Not called directly: the compiler wants to see the format. */
        size_t (*const write)(char *, size_t, const char *, const struct tm *) = strftime;
        char format[8], out[128];

        if (piece[0] != '%' || size < 2 || size >= sizeof(format)) {
                tdm_jinja_text_add(text, piece, size, true);
                return;
        }
        memcpy(format, piece, size);
        format[size] = '\0';
        tdm_jinja_text_add(text, out, write(out, sizeof(out), format, r->input->now), true);
}

static struct jinja_value function_strftime_now(struct jinja_render *r, struct jinja_value self,
                                                const struct jinja_value *args)
{
        const struct jinja_string *format = tdm_jinja_want_string(&r->core, args[0], "the format of strftime_now()");
        const char *data = tdm_jinja_bytes(&r->core, format);
        struct jinja_text text = { .core = &r->core };
        size_t at = 0, size;

        if (!r->input->now)
                tdm_jinja_fail(&r->core, "strftime_now() is called and the time is not known");
        for (; at < format->size; at += size) {
                size = 1;
                if (data[at] == '%') {
                        /* A flag, then a letter. */
                        size += at + 1 < format->size && data[at + 1] && strchr("-_0^#EO", data[at + 1]);
                        size += at + size < format->size && data[at + size] > 0;
                } else {
                        while (at + size < format->size && data[at + size] != '%')
                                size++;
                }
                tdm_jinja_spend(&r->core, 8);
                strftime_piece(r, &text, data + at, size);
        }
        return tdm_jinja_text_value(tdm_jinja_text_end(&text));
}

static const struct jinja_builtin functions[] = {
        { "namespace", NULL, "", 0, function_namespace },
        { "dict", NULL, "", 0, function_dict },
        { "range", function_range, "start stop step", 1, NULL },
        { "raise_exception", function_raise, "message", 1, NULL },
        { "strftime_now", function_strftime_now, "format", 1, NULL },
};

const struct jinja_builtin *tdm_jinja_find_function(const char *name, size_t size)
{
        return tdm_jinja_table_find(functions, TDM_ARRAY_SIZE(functions), name, size);
}
