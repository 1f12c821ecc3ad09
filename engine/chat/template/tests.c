/* Tests: what stands behind `is`. */
#include <math.h>
#include "engine/chat/template/private.h"

#define TEST(name)                                                                                                     \
        static struct jinja_value test_##name(struct jinja_render *r, struct jinja_value self,                         \
                                              const struct jinja_value *args)

TEST(defined)
{
        return tdm_jinja_bool(self.kind != JINJA_UNDEFINED);
}

TEST(undefined)
{
        return tdm_jinja_bool(self.kind == JINJA_UNDEFINED);
}

TEST(none)
{
        return tdm_jinja_bool(self.kind == JINJA_NONE);
}

TEST(string)
{
        return tdm_jinja_bool(self.kind == JINJA_STRING);
}

TEST(mapping)
{
        return tdm_jinja_bool(self.kind == JINJA_DICT);
}

/* jinja2 asks whether it has a length and subscripts; views and generators lack one of them. */
TEST(sequence)
{
        return tdm_jinja_bool(self.kind == JINJA_STRING || self.kind == JINJA_DICT || self.kind == JINJA_UNDEFINED ||
                              (self.kind == JINJA_LIST && self.list->shape <= JINJA_SHAPE_RANGE));
}

TEST(iterable)
{
        return tdm_jinja_bool(self.kind == JINJA_STRING || self.kind == JINJA_DICT || self.kind == JINJA_UNDEFINED ||
                              self.kind == JINJA_LIST || self.kind == JINJA_LOOP);
}

TEST(boolean)
{
        return tdm_jinja_bool(self.kind == JINJA_BOOL);
}

TEST(true)
{
        return tdm_jinja_bool(self.kind == JINJA_BOOL && self.truth);
}

TEST(false)
{
        return tdm_jinja_bool(self.kind == JINJA_BOOL && !self.truth);
}

TEST(number)
{
        return tdm_jinja_bool(tdm_jinja_is_number(self) || self.kind == JINJA_BIG);
}

TEST(integer)
{
        return tdm_jinja_bool(self.kind == JINJA_INT || self.kind == JINJA_BIG);
}

TEST(float)
{
        return tdm_jinja_bool(self.kind == JINJA_FLOAT);
}

TEST(callable)
{
        return tdm_jinja_bool(self.kind >= JINJA_MACRO || self.kind == JINJA_LOOP || self.kind == JINJA_UNDEFINED);
}

TEST(divisibleby)
{
        struct jinja_value rest = tdm_jinja_arithmetic(&r->core, '%', self, args[0]);

        return tdm_jinja_bool(!tdm_jinja_truth(&r->core, rest));
}

TEST(odd)
{
        struct jinja_value rest = tdm_jinja_arithmetic(&r->core, '%', self, tdm_jinja_int(2));

        return tdm_jinja_bool(tdm_jinja_equal(&r->core, rest, tdm_jinja_int(1)));
}

TEST(even)
{
        struct jinja_value rest = tdm_jinja_arithmetic(&r->core, '%', self, tdm_jinja_int(2));

        return tdm_jinja_bool(!tdm_jinja_truth(&r->core, rest));
}

TEST(eq)
{
        return tdm_jinja_bool(tdm_jinja_equal(&r->core, self, args[0]));
}

TEST(ne)
{
        return tdm_jinja_bool(!tdm_jinja_equal(&r->core, self, args[0]));
}

static int test_order(struct jinja_render *r, struct jinja_value a, struct jinja_value b)
{
        if (a.kind == JINJA_UNDEFINED || b.kind == JINJA_UNDEFINED)
                tdm_jinja_fail(&r->core, "an undefined value has no order");
        return tdm_jinja_compare(&r->core, a, b);
}

TEST(lt)
{
        return tdm_jinja_bool(test_order(r, self, args[0]) < 0);
}

TEST(le)
{
        return tdm_jinja_bool(test_order(r, self, args[0]) <= 0);
}

TEST(gt)
{
        return tdm_jinja_bool(test_order(r, self, args[0]) == 1);
}

TEST(ge)
{
        int order = test_order(r, self, args[0]);

        return tdm_jinja_bool(order == 0 || order == 1);
}

TEST(in)
{
        return tdm_jinja_bool(tdm_jinja_contains(&r->core, args[0], self));
}

TEST(sameas)
{
        if (self.kind != args[0].kind)
                return tdm_jinja_bool(false);
        if (self.kind == JINJA_LIST)
                return tdm_jinja_bool(self.list == args[0].list);
        if (self.kind == JINJA_DICT)
                return tdm_jinja_bool(self.dict == args[0].dict);
        return tdm_jinja_bool(tdm_jinja_equal(&r->core, self, args[0]));
}

static struct jinja_value case_test(struct jinja_render *r, struct jinja_value self, const char *method)
{
        const struct jinja_builtin *builtin = tdm_jinja_find_string_method(method, strlen(method));

        return builtin->call(r, tdm_jinja_text_value(tdm_jinja_str(&r->core, self)), NULL);
}

TEST(upper)
{
        return case_test(r, self, "isupper");
}

TEST(lower)
{
        return case_test(r, self, "islower");
}

TEST(filter)
{
        const struct jinja_string *name = tdm_jinja_want_string(&r->core, self, "the name of a filter");

        return tdm_jinja_bool(tdm_jinja_find_filter(tdm_jinja_bytes(&r->core, name), name->size) != NULL);
}

TEST(test)
{
        const struct jinja_string *name = tdm_jinja_want_string(&r->core, self, "the name of a test");

        return tdm_jinja_bool(tdm_jinja_find_test(tdm_jinja_bytes(&r->core, name), name->size) != NULL);
}

TEST(escaped)
{
        return tdm_jinja_bool(self.kind == JINJA_STRING && self.string->is_markup);
}

static const struct jinja_builtin tests[] = {
        { "defined", test_defined, "", 0, NULL },
        { "undefined", test_undefined, "", 0, NULL },
        { "none", test_none, "", 0, NULL },
        { "string", test_string, "", 0, NULL },
        { "mapping", test_mapping, "", 0, NULL },
        { "sequence", test_sequence, "", 0, NULL },
        { "iterable", test_iterable, "", 0, NULL },
        { "boolean", test_boolean, "", 0, NULL },
        { "true", test_true, "", 0, NULL },
        { "false", test_false, "", 0, NULL },
        { "number", test_number, "", 0, NULL },
        { "integer", test_integer, "", 0, NULL },
        { "float", test_float, "", 0, NULL },
        { "callable", test_callable, "", 0, NULL },
        { "divisibleby", test_divisibleby, "num", 1, NULL },
        { "odd", test_odd, "", 0, NULL },
        { "even", test_even, "", 0, NULL },
        { "eq", test_eq, "other", 1, NULL },
        { "equalto", test_eq, "other", 1, NULL },
        { "==", test_eq, "other", 1, NULL },
        { "ne", test_ne, "other", 1, NULL },
        { "!=", test_ne, "other", 1, NULL },
        { "lt", test_lt, "other", 1, NULL },
        { "lessthan", test_lt, "other", 1, NULL },
        { "<", test_lt, "other", 1, NULL },
        { "le", test_le, "other", 1, NULL },
        { "<=", test_le, "other", 1, NULL },
        { "gt", test_gt, "other", 1, NULL },
        { "greaterthan", test_gt, "other", 1, NULL },
        { ">", test_gt, "other", 1, NULL },
        { "ge", test_ge, "other", 1, NULL },
        { ">=", test_ge, "other", 1, NULL },
        { "in", test_in, "seq", 1, NULL },
        { "sameas", test_sameas, "other", 1, NULL },
        { "upper", test_upper, "", 0, NULL },
        { "lower", test_lower, "", 0, NULL },
        { "filter", test_filter, "", 0, NULL },
        { "test", test_test, "", 0, NULL },
        { "escaped", test_escaped, "", 0, NULL },
};

const struct jinja_builtin *tdm_jinja_find_test(const char *name, size_t size)
{
        return tdm_jinja_table_find(tests, TDM_ARRAY_SIZE(tests), name, size);
}
