/* The values of expressions. */
#include "engine/chat/template/private.h"
#include "common/utf8.h"

/* Arguments that a call may have. */
#define MAX_ARGUMENTS 1024u

static _Noreturn void undefined_used(struct jinja_render *r, struct jinja_value value)
{
        if (value.string)
                tdm_jinja_fail(&r->core, "\"%.*s\" is undefined",
                               TDM_UTF8_CUT(value.string->data, TDM_MIN(value.string->size, (size_t)80)));
        tdm_jinja_fail(&r->core, "a value is undefined");
}

/* Attributes and subscripts. */

static const struct jinja_builtin *method_find(struct jinja_value object, const struct jinja_string *name)
{
        switch (object.kind) {
        case JINJA_STRING:
                return tdm_jinja_find_string_method(name->data, name->size);
        case JINJA_DICT:
                return tdm_jinja_find_dict_method(name->data, name->size);
        case JINJA_LIST:
                return tdm_jinja_find_list_method(name->data, name->size);
        default:
                return NULL;
        }
}

/* JINJA_ABSENT: it has no such method. */
static struct jinja_value method_of(struct jinja_render *r, struct jinja_value object, const struct jinja_string *name)
{
        const struct jinja_builtin *builtin;
        struct jinja_method *method;

        tdm_jinja_bytes(&r->core, name);
        builtin = method_find(object, name);
        if (!builtin)
                return (struct jinja_value){ .kind = JINJA_ABSENT };
        method = tdm_jinja_alloc(&r->core, sizeof(*method));
        *method = (struct jinja_method){ object, builtin };
        return (struct jinja_value){ .kind = JINJA_METHOD, .method = method };
}

struct jinja_value tdm_jinja_attribute(struct jinja_render *r, struct jinja_value object,
                                       const struct jinja_string *name)
{
        const struct jinja_value *member = NULL;
        struct jinja_value method;

        if (object.kind == JINJA_UNDEFINED)
                undefined_used(r, object);
        if (name->size > 0 && tdm_jinja_bytes(&r->core, name)[0] == '_' && object.kind != JINJA_DICT &&
            object.kind != JINJA_NAMESPACE)
                tdm_jinja_fail(&r->core, "attributes that begin with an underscore are not allowed");
        if (object.kind == JINJA_LOOP)
                return tdm_jinja_loop_attribute(r, object.loop, name);
        method = method_of(r, object, name);
        if (method.kind != JINJA_ABSENT)
                return method;
        if (object.kind == JINJA_DICT || object.kind == JINJA_NAMESPACE)
                member = tdm_jinja_dict_get(&r->core, object.dict, tdm_jinja_text_value(name));
        return member ? *member : tdm_jinja_undefined(name);
}

static struct jinja_value list_item(const struct jinja_list *list, int64_t at)
{
        if (at < 0)
                at += (int64_t)list->n;
        if (at < 0 || (size_t)at >= list->n || list->shape == JINJA_SHAPE_GENERATOR || list->shape == JINJA_SHAPE_VIEW)
                return tdm_jinja_undefined(NULL);
        return list->items[at];
}

static struct jinja_value string_item(struct jinja_render *r, const struct jinja_string *string, int64_t at)
{
        int64_t n = tdm_jinja_n_chars(&r->core, string);
        size_t begin;

        if (at < 0)
                at += n;
        if (at < 0 || at >= n)
                return tdm_jinja_undefined(NULL);
        begin = tdm_jinja_char_at(&r->core, string, at);
        return tdm_jinja_text_value(tdm_jinja_slice(
                &r->core, string, begin, begin + (size_t)tdm_utf8_length((const uint8_t *)string->data + begin, 4)));
}

static bool can_be_key(struct jinja_value key)
{
        return key.kind != JINJA_DICT && (key.kind != JINJA_LIST || key.list->shape == JINJA_SHAPE_TUPLE);
}

struct jinja_value tdm_jinja_item(struct jinja_render *r, struct jinja_value object, struct jinja_value key)
{
        bool is_index = key.kind == JINJA_INT || key.kind == JINJA_BOOL;
        const struct jinja_value *member;
        struct jinja_value method;

        if (object.kind == JINJA_UNDEFINED)
                undefined_used(r, object);
        if (object.kind == JINJA_DICT && can_be_key(key)) {
                member = tdm_jinja_dict_get(&r->core, object.dict, key);
                if (member)
                        return *member;
        } else if (object.kind == JINJA_LIST && is_index) {
                return list_item(object.list, tdm_jinja_want_int(&r->core, key, "an index"));
        } else if (object.kind == JINJA_STRING && is_index) {
                return string_item(r, object.string, tdm_jinja_want_int(&r->core, key, "an index"));
        }
        if (key.kind != JINJA_STRING)
                return tdm_jinja_undefined(NULL);
        if (object.kind == JINJA_LOOP || object.kind == JINJA_NAMESPACE)
                return tdm_jinja_attribute(r, object, key.string);
        method = method_of(r, object, key.string);
        return method.kind != JINJA_ABSENT ? method : tdm_jinja_undefined(key.string);
}

/* A bound of a slice, as Python brings it into range. given: none was. */
static int64_t slice_bound(struct jinja_render *r, const struct jinja_node *node, int64_t n, int64_t step,
                           int64_t given)
{
        int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n, at;
        struct jinja_value value;

        if (!node)
                return given;
        value = tdm_jinja_eval(r, node);
        if (value.kind == JINJA_NONE)
                return given;
        if (value.kind == JINJA_BIG)
                return tdm_jinja_bytes(&r->core, value.string)[0] == '-' ? low : high;
        at = tdm_jinja_want_int(&r->core, value, "the bound of a slice");
        if (at < 0)
                at = at < -n ? low : at + n;
        return TDM_MAX(low, TDM_MIN(at, high));
}

static struct jinja_value slice_list(struct jinja_render *r, const struct jinja_list *list, int64_t start, int64_t step,
                                     int64_t n)
{
        struct jinja_list *result;

        if (list->shape == JINJA_SHAPE_RANGE)
                tdm_jinja_fail(&r->core, "slices of range() are not supported");
        result = tdm_jinja_list(&r->core, list->shape, (size_t)n);
        for (; n > 0; n--, start += step)
                tdm_jinja_list_add(&r->core, result, list->items[start]);
        result->is_own = true;
        return tdm_jinja_list_value(result);
}

static struct jinja_value slice_string(struct jinja_render *r, const struct jinja_string *string, int64_t start,
                                       int64_t step, int64_t n)
{
        struct jinja_text text = { .core = &r->core };
        struct jinja_string *result;

        if (n <= 0)
                return tdm_jinja_text_value(tdm_jinja_string_of(&r->core, ""));
        if (step == 1)
                return tdm_jinja_text_value(tdm_jinja_slice(&r->core, string,
                                                            tdm_jinja_char_at(&r->core, string, start),
                                                            tdm_jinja_char_at(&r->core, string, start + n)));
        for (; n > 0; n--, start += step) {
                struct jinja_value item = string_item(r, string, start);

                tdm_jinja_spend(&r->core, 1);
                tdm_jinja_text_add_string(&text, item.string);
        }
        result = tdm_jinja_text_end(&text);
        result->is_markup = string->is_markup;
        return tdm_jinja_text_value(result);
}

static struct jinja_value slice_eval(struct jinja_render *r, struct jinja_value object, const struct jinja_node *node)
{
        int64_t n, step = 1, start, stop, count;
        struct jinja_value value;

        if (object.kind == JINJA_UNDEFINED)
                undefined_used(r, object);
        if (node->child[2]) {
                value = tdm_jinja_eval(r, node->child[2]);
                if (value.kind == JINJA_BIG)
                        tdm_jinja_fail(&r->core, "the step of a slice is beyond 64 bits");
                step = value.kind == JINJA_NONE ? 1 : tdm_jinja_want_int(&r->core, value, "the step of a slice");
        }
        if (step == 0)
                tdm_jinja_fail(&r->core, "the step of a slice is 0");
        if (object.kind != JINJA_STRING && (object.kind != JINJA_LIST || object.list->shape == JINJA_SHAPE_GENERATOR ||
                                            object.list->shape == JINJA_SHAPE_VIEW))
                tdm_jinja_fail(&r->core, "a %s is sliced", tdm_jinja_type_name(object));
        n = tdm_jinja_length(&r->core, object);
        start = slice_bound(r, node->child[0], n, step, step < 0 ? n - 1 : 0);
        stop = slice_bound(r, node->child[1], n, step, step < 0 ? -1 : n);
        if (step > 0)
                count = stop > start ? (int64_t)(((uint64_t)(stop - start) - 1) / (uint64_t)step) + 1 : 0;
        else
                count = start > stop ? (int64_t)(((uint64_t)(start - stop) - 1) / (0 - (uint64_t)step)) + 1 : 0;
        /* One item needs no step, and the smallest step has no negative. */
        if (count <= 1)
                step = 1;
        return object.kind == JINJA_LIST ? slice_list(r, object.list, start, step, count) :
                                           slice_string(r, object.string, start, step, count);
}

/* Calls. */

static void argument_spread(struct jinja_render *r, struct jinja_arguments *to, struct jinja_value *values,
                            struct jinja_named *named, const struct jinja_node *node)
{
        struct jinja_value value = tdm_jinja_eval(r, node->child[0]);

        if (node->op == '*') {
                struct jinja_list *list = tdm_jinja_walk(&r->core, value);

                for (size_t i = 0; i < list->n; i++) {
                        if (to->n == MAX_ARGUMENTS)
                                tdm_jinja_fail(&r->core, "a call has too many arguments");
                        values[to->n++] = list->items[i];
                }
        } else if (node->op) {
                if (value.kind != JINJA_DICT)
                        tdm_jinja_fail(&r->core, "a %s stands behind **", tdm_jinja_type_name(value));
                for (size_t i = 0; i < value.dict->n; i++) {
                        if (to->n_named == MAX_ARGUMENTS)
                                tdm_jinja_fail(&r->core, "a call has too many arguments");
                        named[to->n_named++] =
                                (struct jinja_named){ tdm_jinja_want_string(&r->core, value.dict->entries[i].key,
                                                                            "the name of an argument"),
                                                      value.dict->entries[i].value };
                }
        } else if (node->name) {
                named[to->n_named++] = (struct jinja_named){ node->name, value };
        } else {
                values[to->n++] = value;
        }
}

static struct jinja_arguments arguments_eval(struct jinja_render *r, const struct jinja_node *node)
{
        struct jinja_arguments args = { 0 };
        struct jinja_value *values;
        struct jinja_named *named;
        size_t n = 0;

        for (const struct jinja_node *a = node; a; a = a->next)
                n = a->op ? MAX_ARGUMENTS : n + 1;
        if (n == 0)
                return args;
        if (n > MAX_ARGUMENTS)
                tdm_jinja_fail(&r->core, "a call has too many arguments");
        values = tdm_jinja_alloc(&r->core, n * sizeof(*values));
        named = tdm_jinja_alloc(&r->core, n * sizeof(*named));
        args.values = values;
        args.named = named;
        for (; node; node = node->next)
                argument_spread(r, &args, values, named, node);
        return args;
}

/* Which parameter has this name; -1: none. */
static int parameter_find(const char *parameters, const char *name, size_t size)
{
        int i = 0;

        while (*parameters) {
                size_t length = strcspn(parameters, " ");

                if (length == size && memcmp(parameters, name, size) == 0)
                        return i;
                parameters += length + (parameters[length] == ' ');
                i++;
        }
        return -1;
}

static unsigned parameters_count(const char *parameters)
{
        unsigned n = *parameters != '\0';

        for (; *parameters; parameters++)
                n += *parameters == ' ';
        return n;
}

struct jinja_value tdm_jinja_call_builtin(struct jinja_render *r, const struct jinja_builtin *builtin,
                                          struct jinja_value self, const struct jinja_arguments *args)
{
        struct jinja_value given[JINJA_MAX_PARAMETERS] = { 0 };
        unsigned n;

        if (builtin->call_raw)
                return builtin->call_raw(r, self, args);
        n = parameters_count(builtin->parameters);
        if (args->n > n)
                tdm_jinja_fail(&r->core, "%s takes %u arguments, not %zu", builtin->name, n, args->n);
        for (size_t i = 0; i < args->n; i++)
                given[i] = args->values[i];
        for (size_t i = 0; i < args->n_named; i++) {
                const struct jinja_string *name = args->named[i].name;
                int k = parameter_find(builtin->parameters, tdm_jinja_bytes(&r->core, name), name->size);

                if (k < 0 || given[k].kind != JINJA_ABSENT)
                        tdm_jinja_fail(&r->core, "%s takes no argument \"%.*s\" here", builtin->name,
                                       TDM_UTF8_CUT(name->data, TDM_MIN(name->size, (size_t)40)));
                given[k] = args->named[i].value;
        }
        for (unsigned i = 0; i < builtin->n_required; i++)
                if (given[i].kind == JINJA_ABSENT)
                        tdm_jinja_fail(&r->core, "%s lacks an argument", builtin->name);
        return builtin->call(r, self, given);
}

struct jinja_value tdm_jinja_call(struct jinja_render *r, struct jinja_value function,
                                  const struct jinja_arguments *args)
{
        switch (function.kind) {
        case JINJA_MACRO:
                return tdm_jinja_call_macro(r, function.macro, args);
        case JINJA_BUILTIN:
                return tdm_jinja_call_builtin(r, function.builtin, tdm_jinja_none(), args);
        case JINJA_METHOD:
                return tdm_jinja_call_builtin(r, function.method->builtin, function.method->self, args);
        case JINJA_UNDEFINED:
                undefined_used(r, function);
        default:
                tdm_jinja_fail(&r->core, "a %s cannot be called", tdm_jinja_type_name(function));
        }
}

static struct jinja_value call_eval(struct jinja_render *r, const struct jinja_node *node)
{
        struct jinja_value function = tdm_jinja_eval(r, node->child[0]);
        struct jinja_arguments args = arguments_eval(r, node->child[1]);

        r->core.line = node->line;
        return tdm_jinja_call(r, function, &args);
}

static struct jinja_value filter_apply(struct jinja_render *r, const struct jinja_node *node, struct jinja_value input)
{
        struct jinja_arguments args;

        if (!node->builtin)
                tdm_jinja_fail(&r->core, "there is no %s \"%.*s\"", node->kind == JINJA_NODE_TEST ? "test" : "filter",
                               TDM_UTF8_CUT(node->name->data, TDM_MIN(node->name->size, (size_t)40)));
        args = arguments_eval(r, node->child[1]);
        r->core.line = node->line;
        return tdm_jinja_call_builtin(r, node->builtin, input, &args);
}

struct jinja_value tdm_jinja_eval_filters(struct jinja_render *r, const struct jinja_node *node,
                                          struct jinja_value input)
{
        if (node->child[0])
                input = tdm_jinja_eval_filters(r, node->child[0], input);
        return filter_apply(r, node, input);
}

/* Operators. */

static const struct jinja_string *escaped(struct jinja_core *core, const struct jinja_string *string)
{
        struct jinja_text text = { .core = core };

        if (string->is_markup)
                return string;
        tdm_jinja_escape_html(&text, string);
        return tdm_jinja_text_end(&text);
}

static struct jinja_value strings_add(struct jinja_render *r, const struct jinja_string *a,
                                      const struct jinja_string *b)
{
        if (!a->is_markup && !b->is_markup)
                return tdm_jinja_text_value(tdm_jinja_join(&r->core, a, b));
        return tdm_jinja_text_value(
                tdm_jinja_as_markup(&r->core, tdm_jinja_join(&r->core, escaped(&r->core, a), escaped(&r->core, b))));
}

struct jinja_value tdm_jinja_add(struct jinja_render *r, struct jinja_value a, struct jinja_value b)
{
        if (a.kind == JINJA_STRING && b.kind == JINJA_STRING)
                return strings_add(r, a.string, b.string);
        if (a.kind == JINJA_UNDEFINED || b.kind == JINJA_UNDEFINED)
                undefined_used(r, a.kind == JINJA_UNDEFINED ? a : b);
        if (a.kind == JINJA_LIST && b.kind == JINJA_LIST && a.list->shape == b.list->shape &&
            a.list->shape <= JINJA_SHAPE_TUPLE) {
                struct jinja_list *sum = tdm_jinja_list(&r->core, a.list->shape, a.list->n + b.list->n);

                for (size_t i = 0; i < a.list->n + b.list->n; i++)
                        tdm_jinja_list_add(&r->core, sum,
                                           i < a.list->n ? a.list->items[i] : b.list->items[i - a.list->n]);
                sum->is_own = true;
                return tdm_jinja_list_value(sum);
        }
        return tdm_jinja_arithmetic(&r->core, '+', a, b);
}

static struct jinja_value value_repeat(struct jinja_render *r, struct jinja_value value, int64_t times)
{
        times = TDM_MAX(times, (int64_t)0);
        if (value.kind == JINJA_STRING) {
                struct jinja_text text = { .core = &r->core };

                for (; times > 0 && value.string->size > 0; times--) {
                        tdm_jinja_spend(&r->core, 1);
                        tdm_jinja_text_add_string(&text, value.string);
                }
                return tdm_jinja_text_value(tdm_jinja_text_end(&text));
        } else {
                struct jinja_list *list = tdm_jinja_list(&r->core, value.list->shape, 0);

                for (; times > 0 && value.list->n > 0; times--)
                        for (size_t i = 0; i < value.list->n; i++)
                                tdm_jinja_list_add(&r->core, list, value.list->items[i]);
                list->is_own = true;
                return tdm_jinja_list_value(list);
        }
}

static bool can_repeat(struct jinja_value value)
{
        return value.kind == JINJA_STRING || (value.kind == JINJA_LIST && value.list->shape <= JINJA_SHAPE_TUPLE);
}

static struct jinja_value binary_eval(struct jinja_render *r, const struct jinja_node *node)
{
        struct jinja_value a = tdm_jinja_eval(r, node->child[0]), b = tdm_jinja_eval(r, node->child[1]);
        char op = node->op == JINJA_OP2('/', '/') ? 'd' : node->op == JINJA_OP2('*', '*') ? 'p' : (char)node->op;

        r->core.line = node->line;
        if (op == '+')
                return tdm_jinja_add(r, a, b);
        if (op == '%' && a.kind == JINJA_STRING)
                return b.kind == JINJA_LIST && b.list->shape == JINJA_SHAPE_TUPLE ?
                               tdm_jinja_percent(r, a.string, b.list->items, b.list->n) :
                               tdm_jinja_percent(r, a.string, &b, 1);
        if (a.kind == JINJA_UNDEFINED || b.kind == JINJA_UNDEFINED)
                undefined_used(r, a.kind == JINJA_UNDEFINED ? a : b);
        if (op == '*' && can_repeat(a) && b.kind != JINJA_STRING)
                return value_repeat(r, a, tdm_jinja_want_int(&r->core, b, "how often it is repeated"));
        if (op == '*' && can_repeat(b) && a.kind != JINJA_STRING)
                return value_repeat(r, b, tdm_jinja_want_int(&r->core, a, "how often it is repeated"));
        return tdm_jinja_arithmetic(&r->core, op, a, b);
}

static bool operand_holds(struct jinja_render *r, uint16_t op, struct jinja_value a, struct jinja_value b)
{
        int order;

        switch (op) {
        case JINJA_OP2('=', '='):
                return tdm_jinja_equal(&r->core, a, b);
        case JINJA_OP2('!', '='):
                return !tdm_jinja_equal(&r->core, a, b);
        case 'i':
                return tdm_jinja_contains(&r->core, b, a);
        case 'n':
                return !tdm_jinja_contains(&r->core, b, a);
        default:
                break;
        }
        if (a.kind == JINJA_UNDEFINED || b.kind == JINJA_UNDEFINED)
                undefined_used(r, a.kind == JINJA_UNDEFINED ? a : b);
        order = tdm_jinja_compare(&r->core, a, b);
        if (order == 2) /* with NaN nothing holds */
                return false;
        switch (op) {
        case '<':
                return order < 0;
        case '>':
                return order > 0;
        case JINJA_OP2('<', '='):
                return order <= 0;
        default:
                return order >= 0;
        }
}

static struct jinja_value compare_eval(struct jinja_render *r, const struct jinja_node *node)
{
        struct jinja_value left = tdm_jinja_eval(r, node->child[0]);

        for (const struct jinja_node *operand = node->child[1]; operand; operand = operand->next) {
                struct jinja_value right = tdm_jinja_eval(r, operand->child[0]);

                r->core.line = node->line;
                if (!operand_holds(r, operand->op, left, right))
                        return tdm_jinja_bool(false);
                left = right;
        }
        return tdm_jinja_bool(true);
}

static struct jinja_value concat_eval(struct jinja_render *r, const struct jinja_node *node)
{
        struct jinja_text text = { .core = &r->core };

        for (const struct jinja_node *item = node->child[0]; item; item = item->next)
                tdm_jinja_print(&text, tdm_jinja_eval(r, item));
        return tdm_jinja_text_value(tdm_jinja_text_end(&text));
}

static struct jinja_value list_eval(struct jinja_render *r, const struct jinja_node *node)
{
        struct jinja_list *list =
                tdm_jinja_list(&r->core, node->kind == JINJA_NODE_TUPLE ? JINJA_SHAPE_TUPLE : JINJA_SHAPE_LIST, 0);

        for (const struct jinja_node *item = node->child[0]; item; item = item->next)
                tdm_jinja_list_add(&r->core, list, tdm_jinja_eval(r, item));
        list->is_own = true;
        return tdm_jinja_list_value(list);
}

static struct jinja_value dict_eval(struct jinja_render *r, const struct jinja_node *node)
{
        struct jinja_dict *dict = tdm_jinja_dict(&r->core);

        for (const struct jinja_node *pair = node->child[0]; pair; pair = pair->next) {
                struct jinja_value key = tdm_jinja_eval(r, pair->child[0]);

                tdm_jinja_dict_set(&r->core, dict, key, tdm_jinja_eval(r, pair->child[1]));
        }
        return (struct jinja_value){ .kind = JINJA_DICT, .dict = dict };
}

static struct jinja_value name_eval(struct jinja_render *r, const struct jinja_node *node)
{
        const struct jinja_value *value = tdm_jinja_lookup(r, node->name);
        const struct jinja_builtin *builtin;

        if (value)
                return *value;
        builtin = tdm_jinja_find_function(node->name->data, node->name->size);
        if (builtin)
                return (struct jinja_value){ .kind = JINJA_BUILTIN, .builtin = builtin };
        return tdm_jinja_undefined(node->name);
}

static struct jinja_value negate_eval(struct jinja_render *r, const struct jinja_node *node)
{
        struct jinja_value value = tdm_jinja_eval(r, node->child[0]);

        if (value.kind == JINJA_UNDEFINED)
                undefined_used(r, value);
        if (node->kind == JINJA_NODE_NEGATE && value.kind == JINJA_FLOAT)
                return tdm_jinja_float(-value.number);
        return tdm_jinja_arithmetic(&r->core, node->kind == JINJA_NODE_NEGATE ? '-' : '+', tdm_jinja_int(0), value);
}

static struct jinja_value item_eval(struct jinja_render *r, const struct jinja_node *node)
{
        struct jinja_value object = tdm_jinja_eval(r, node->child[0]);

        r->core.line = node->line;
        if (node->child[1]->kind == JINJA_NODE_SLICE)
                return slice_eval(r, object, node->child[1]);
        return tdm_jinja_item(r, object, tdm_jinja_eval(r, node->child[1]));
}

static struct jinja_value attribute_eval(struct jinja_render *r, const struct jinja_node *node)
{
        struct jinja_value object = tdm_jinja_eval(r, node->child[0]);

        r->core.line = node->line;
        return tdm_jinja_attribute(r, object, node->name);
}

static struct jinja_value choice_eval(struct jinja_render *r, const struct jinja_node *node)
{
        if (tdm_jinja_truth(&r->core, tdm_jinja_eval(r, node->child[0])))
                return tdm_jinja_eval(r, node->child[1]);
        return node->child[2] ? tdm_jinja_eval(r, node->child[2]) : tdm_jinja_undefined(NULL);
}

static struct jinja_value and_or_eval(struct jinja_render *r, const struct jinja_node *node)
{
        struct jinja_value left = tdm_jinja_eval(r, node->child[0]);

        if (tdm_jinja_truth(&r->core, left) == (node->kind == JINJA_NODE_OR))
                return left;
        return tdm_jinja_eval(r, node->child[1]);
}

static struct jinja_value node_eval(struct jinja_render *r, const struct jinja_node *node)
{
        switch (node->kind) {
        case JINJA_NODE_CONST:
                return node->value;
        case JINJA_NODE_NAME:
                return name_eval(r, node);
        case JINJA_NODE_LIST:
        case JINJA_NODE_TUPLE:
                return list_eval(r, node);
        case JINJA_NODE_DICT:
                return dict_eval(r, node);
        case JINJA_NODE_ATTRIBUTE:
                return attribute_eval(r, node);
        case JINJA_NODE_ITEM:
                return item_eval(r, node);
        case JINJA_NODE_CALL:
                return call_eval(r, node);
        case JINJA_NODE_FILTER:
        case JINJA_NODE_TEST:
                return filter_apply(r, node, tdm_jinja_eval(r, node->child[0]));
        case JINJA_NODE_NOT:
                return tdm_jinja_bool(!tdm_jinja_truth(&r->core, tdm_jinja_eval(r, node->child[0])));
        case JINJA_NODE_NEGATE:
        case JINJA_NODE_PLUS:
                return negate_eval(r, node);
        case JINJA_NODE_BINARY:
                return binary_eval(r, node);
        case JINJA_NODE_AND:
        case JINJA_NODE_OR:
                return and_or_eval(r, node);
        case JINJA_NODE_COMPARE:
                return compare_eval(r, node);
        case JINJA_NODE_CONCAT:
                return concat_eval(r, node);
        case JINJA_NODE_CHOICE:
                return choice_eval(r, node);
        default:
                tdm_jinja_fail(&r->core, "a node of kind %d is no expression", node->kind);
        }
}

struct jinja_value tdm_jinja_eval(struct jinja_render *r, const struct jinja_node *node)
{
        struct jinja_value value;

        tdm_jinja_spend(&r->core, 1);
        if (++r->depth > JINJA_MAX_DEPTH)
                tdm_jinja_fail_code(&r->core, TDM_E_TOO_LONG, "calls are nested too deeply");
        value = node_eval(r, node);
        r->depth--;
        return value;
}
