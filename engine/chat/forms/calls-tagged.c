/* Calls whose arguments have marks of their own, each around one value. */
#include "engine/chat/forms/private.h"

#define NUMBER "{\"zqka\":70917}"

struct argument {
        size_t key, value;
};

static bool argument_find(struct tdm_form_text text, size_t from, struct argument *ret)
{
        ret->key = tdm_form_find_slot(text, TDM_FORM_KEY, from);
        if (ret->key == SIZE_MAX)
                return false;
        ret->value = tdm_form_find_slot(text, TDM_FORM_VALUE, ret->key);
        return ret->value != SIZE_MAX;
}

static char *call_render(struct tdm_form_calls_probe *c, const char *first, const char *second)
{
        const char *arguments[] = { first, second };

        return tdm_form_calls_render(c, arguments, second ? 2 : 1);
}

/* One argument, a number: what stands in front of it, and behind it with the turn's end. */
static int number_take(struct tdm_form_calls_probe *c, char **ret_behind)
{
        struct tdm_form_call_marks *m = &c->form->marks;
        _cleanup_(freep) char *one = call_render(c, NUMBER, NULL);
        struct tdm_form_text text = tdm_form_string(one);
        size_t name = tdm_form_find_slot(text, TDM_FORM_NAME, 0);
        struct argument a;
        int r;

        if (name == SIZE_MAX || !argument_find(text, 0, &a) || a.key < name)
                return tdm_form_why(c->form, "a number is no argument that is shown");
        r = tdm_form_set(&m->before, tdm_form_cut(text, 0, name));
        if (r == 0)
                r = tdm_form_set(&m->open, tdm_form_cut(text, name + 1, a.key));
        if (r == 0)
                r = tdm_form_set(&m->as[TDM_FORM_NUMBER], tdm_form_cut(text, a.key + 1, a.value));
        if (r == 0)
                r = tdm_form_set(ret_behind, tdm_form_cut(text, a.value + 1, text.size));
        return r < 0 ? r : 1;
}

/* Two arguments, two calls, calls without arguments. */
static int gaps_take(struct tdm_form_calls_probe *c)
{
        struct tdm_form_call_marks *m = &c->form->marks;
        _cleanup_(freep) char *next = call_render(c, "{\"zqka\":70917,\"zqkb\":70918}", NULL);
        _cleanup_(freep) char *gap = call_render(c, NUMBER, NUMBER), *empty = call_render(c, "{}", NUMBER);
        struct tdm_form_text text = tdm_form_string(next);
        struct argument a, b;
        size_t name;
        int r = 0;

        if (!argument_find(text, 0, &a) || !argument_find(text, a.value + 1, &b))
                return tdm_form_why(c->form, "a call's second argument is not shown");
        r = tdm_form_set(&m->next, tdm_form_cut(text, a.value + 1, b.key));
        text = tdm_form_string(gap);
        if (r == 0 && argument_find(text, 0, &a) && argument_find(text, a.value + 1, &b)) {
                name = tdm_form_find_slot(text, TDM_FORM_NAME, a.value + 1);
                if (name == SIZE_MAX || name > b.key)
                        return tdm_form_why(c->form, "a turn's second call has no name");
                r = tdm_form_set(&m->gap, tdm_form_cut(text, a.value + 1, name));
                if (r == 0)
                        r = tdm_form_indexed(c->form, tdm_form_string(m->open), tdm_form_cut(text, name + 1, b.key),
                                             &m->open);
                if (r <= 0)
                        return r < 0 ? r : tdm_form_why(c->form, "a turn's second call is written in another way");
                r = 0;
        }
        text = tdm_form_string(empty);
        name = tdm_form_find_slot(text, TDM_FORM_NAME, 0);
        b.key = name == SIZE_MAX ? SIZE_MAX : tdm_form_find_slot(text, TDM_FORM_NAME, name + 1);
        if (r == 0 && b.key != SIZE_MAX)
                r = tdm_form_set(&m->empty_gap, tdm_form_cut(text, name + 1, b.key));
        return r < 0 ? r : 1;
}

/* A string's marks: bare, quoted, or between marks of their own. */
static int string_marks_take(struct tdm_form_calls_probe *c, const char *one, const char *behind)
{
        struct tdm_form_call_marks *m = &c->form->marks;
        struct tdm_form_text text = tdm_form_string(one), rest, as;
        struct argument a;
        int r;

        if (!argument_find(text, 0, &a))
                return tdm_form_why(c->form, "a string is no argument that is shown");
        rest = tdm_form_cut(text, a.value + 1, text.size);
        as = tdm_form_cut(text, a.key + 1, a.value);
        if (!tdm_form_ends_with(rest, tdm_form_string(behind)))
                return tdm_form_why(c->form, "what follows a string differs from what follows a number");
        rest = tdm_form_cut(rest, 0, rest.size - strlen(behind));
        c->form->strings = rest.size == 0                                 ? TDM_FORM_STRINGS_BARE :
                           rest.size == 1 && memchr("\"'", *rest.data, 2) ? TDM_FORM_STRINGS_JSON :
                                                                            TDM_FORM_STRINGS_MARKED;
        if (c->form->strings == TDM_FORM_STRINGS_JSON) {
                rest.size = 0;
                as.size -= as.size > 0;
        }
        r = tdm_form_set(&m->close_string, rest);
        return r < 0 ? r : tdm_form_set(&m->as[TDM_FORM_STRING], as) < 0 ? -ENOMEM : 1;
}

/* The mark of another type: what stands between key and value. A value in no known form has a number's. */
static int type_take(struct tdm_form_calls_probe *c, enum tdm_form_type type, const char *behind)
{
        static const struct {
                const char *arguments, *words[3];
        } types[] = {
                [TDM_FORM_BOOLEAN] = { "{\"zqka\":true}", { "true", "True" } },
                [TDM_FORM_NULL] = { "{\"zqka\":null}", { "null", "None" } },
                [TDM_FORM_ARRAY] = { "{\"zqka\":[70916]}", { "[70916]" } },
                [TDM_FORM_OBJECT] = { "{\"zqka\":{\"zqkc\":70916}}", { "{\"zqkc\": 70916}", "{\"zqkc\":70916}" } },
        };
        struct tdm_form_call_marks *m = &c->form->marks;
        _cleanup_(freep) char *one = call_render(c, types[type].arguments, NULL);
        struct tdm_form_text text = tdm_form_string(one), end = tdm_form_string(behind);
        size_t key = tdm_form_find_slot(text, TDM_FORM_KEY, 0);

        if (key != SIZE_MAX && tdm_form_ends_with(text, end)) {
                text = tdm_form_cut(text, key + 1, TDM_MAX(text.size - end.size, key + 1));
                for (unsigned i = 0; i < TDM_ARRAY_SIZE(types[type].words) && types[type].words[i]; i++) {
                        struct tdm_form_text word = tdm_form_string(types[type].words[i]);

                        if (!tdm_form_ends_with(text, word))
                                continue;
                        c->form->python_words |= word.data[0] == 'T' || word.data[0] == 'N';
                        return tdm_form_set(&m->as[type], tdm_form_cut(text, 0, text.size - word.size));
                }
        }
        return tdm_form_set(&m->as[type], tdm_form_string(m->as[TDM_FORM_NUMBER]));
}

static int value_end_take(struct tdm_form_calls_probe *c)
{
        struct tdm_form_call_marks *m = &c->form->marks;
        struct tdm_form_text end = tdm_form_string(m->next), after = tdm_form_string(m->after);

        if (c->form->strings == TDM_FORM_STRINGS_JSON)
                return 0;
        if (c->form->strings == TDM_FORM_STRINGS_MARKED)
                return tdm_form_set(&m->value_end, tdm_form_string(m->close_string));
        end.size = tdm_form_common_start(end, after);
        end = tdm_form_trim(end);
        if (end.size > 0 && memchr("<[", end.data[0], 2))
                end.size = tdm_form_first_mark(end);
        if (end.size < 3)
                return tdm_form_why(c->form, "nothing marks the end of a value");
        return tdm_form_set(&m->value_end, end);
}

/* The calls' numbers stand where they stand in front of a first key. */
static void index_copy(const char *open, char *empty)
{
        size_t same = empty ? tdm_form_common_start(tdm_form_string(open), tdm_form_string(empty)) : 0;

        if (empty && (uint8_t)open[same] == TDM_FORM_INDEX && (empty[same] == '0' || empty[same] == '1'))
                empty[same] = (char)TDM_FORM_INDEX;
}

/* NULL values mean no gap; a call without arguments then ends as the template writes it, or cannot be written. */
static int empty_take(struct tdm_form_calls_probe *c)
{
        struct tdm_form_call_marks *m = &c->form->marks;
        _cleanup_(freep) char *empty = call_render(c, "{}", NULL);
        struct tdm_form_text text = tdm_form_string(empty);
        size_t name = tdm_form_find_slot(text, TDM_FORM_NAME, 0);

        if (name == SIZE_MAX)
                return 0;
        return tdm_form_set(&m->empty_after,
                            tdm_form_calls_behind(c, tdm_form_cut(text, name + 1, text.size), m->empty_gap));
}

int tdm_form_derive_tagged(struct tdm_form_calls_probe *c, const char *one)
{
        struct tdm_form_call_marks *m = &c->form->marks;
        _cleanup_(freep) char *behind = NULL;
        int r = number_take(c, &behind);

        if (r > 0)
                r = gaps_take(c);
        if (r > 0)
                r = string_marks_take(c, one, behind);
        if (r <= 0)
                return r;
        r = tdm_form_set(&m->after, tdm_form_calls_behind(c, tdm_form_string(behind), m->gap));
        for (unsigned type = TDM_FORM_BOOLEAN; type < TDM_FORM_N_TYPES && r == 0; type++)
                r = type_take(c, (enum tdm_form_type)type, behind);
        if (r == 0)
                r = empty_take(c);
        if (r == 0)
                r = value_end_take(c);
        index_copy(m->open, m->empty_gap);
        index_copy(m->open, m->empty_after);
        if (r < 0 || c->form->why[0])
                return r;
        if (m->before[0] == '\0' || m->open[0] == '\0')
                return tdm_form_why(c->form, "nothing marks the beginning of a call");
        c->form->calls = TDM_FORM_CALLS_TAGGED;
        return 0;
}
