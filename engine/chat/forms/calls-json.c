/* Calls whose arguments are one JSON object; the name stands in JSON too, or in a mark. */
#include "engine/chat/forms/private.h"

#define ONE_ARGUMENT "{\"zqka\":\"zqva\"}"
#define ONE_ARGUMENT_TEXT "\"{\\\"zqka\\\": \\\"zqva\\\"}\""

struct pair {
        size_t name, arguments;
};

static bool pair_find(struct tdm_form_text text, size_t from, struct pair *ret)
{
        ret->name = tdm_form_find_slot(text, TDM_FORM_NAME, from);
        if (ret->name == SIZE_MAX)
                return false;
        ret->arguments = tdm_form_find_slot(text, TDM_FORM_ARGUMENTS, ret->name);
        return ret->arguments != SIZE_MAX && tdm_form_find_slot(text, TDM_FORM_ARGUMENTS, from) > ret->name;
}

/* Learns from two calls: the gap between them, what ends both, and whether all calls are written alike. 1: they are; 0:
 * only one call is shown. */
static int second_take(struct tdm_form_calls_probe *c, const struct pair *first, struct tdm_form_text one,
                       char **ret_behind)
{
        struct tdm_form_call_marks *m = &c->form->marks;
        const char *a = c->as_text ? ONE_ARGUMENT_TEXT : ONE_ARGUMENT, *arguments[] = { a, a };
        _cleanup_(freep) char *two = tdm_form_calls_render(c, arguments, 2);
        struct tdm_form_text text = tdm_form_string(two);
        struct pair p, q;
        int r;

        if (!two || !pair_find(text, 0, &p) || !pair_find(text, p.arguments + 1, &q))
                return 0;
        r = tdm_form_set(&m->gap, tdm_form_cut(text, p.arguments + 1, q.name));
        if (r == 0)
                r = tdm_form_set(ret_behind, tdm_form_cut(text, q.arguments + 1, text.size));
        if (r < 0)
                return r;
        r = tdm_form_indexed(c->form, tdm_form_cut(one, first->name + 1, first->arguments),
                             tdm_form_cut(text, q.name + 1, q.arguments), &m->between);
        return r;
}

int tdm_form_derive_json(struct tdm_form_calls_probe *c, const char *one)
{
        struct tdm_form_call_marks *m = &c->form->marks;
        struct tdm_form_text text = tdm_form_string(one);
        _cleanup_(freep) char *behind = NULL; /* of the last call */
        struct pair p;
        int r;

        if (!pair_find(text, 0, &p))
                return tdm_form_why(c->form, "a call's arguments stand in front of its name");
        r = tdm_form_set(&m->before, tdm_form_cut(text, 0, p.name));
        if (r == 0)
                r = tdm_form_set(&m->between, tdm_form_cut(text, p.name + 1, p.arguments));
        if (r == 0)
                r = tdm_form_set(&behind, tdm_form_cut(text, p.arguments + 1, text.size));
        if (r == 0)
                r = second_take(c, &p, text, &behind);
        if (r < 0)
                return r;
        if (r == 0 && m->gap)
                return tdm_form_why(c->form, "a turn's second call is written in another way than the first");
        r = tdm_form_set(&m->after, tdm_form_calls_behind(c, tdm_form_string(behind), m->gap));
        if (r < 0)
                return r;
        if (m->before[0] == '\0' || m->between[0] == '\0')
                return tdm_form_why(c->form, "nothing marks the beginning of a call");
        c->form->calls = TDM_FORM_CALLS_JSON;
        return 0;
}
