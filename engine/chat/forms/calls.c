/* The form of calls, from renderings of turns with calls. See calls-json.c and calls-tagged.c for the two kinds. */
#include "engine/chat/forms/private.h"

#define ONE_ARGUMENT "{\"zqka\":\"zqva\"}"
#define ONE_ARGUMENT_TEXT "\"{\\\"zqka\\\": \\\"zqva\\\"}\""

/* Nine letters and digits, as some templates want them. */
static const char *const ids[] = { "Zqidaaaa1", "Zqidaaaa2" };
static const char *const kimi_ids[] = { "functions.zqfa:0", "functions.zqfb:1" };

static const struct {
        const char *needle;
        enum tdm_form_slot slot;
} needles[] = {
        { "zqfa", TDM_FORM_NAME },    { "zqfb", TDM_FORM_NAME },   { "Zqidaaaa1", TDM_FORM_ID },
        { "Zqidaaaa2", TDM_FORM_ID }, { "zqka", TDM_FORM_KEY },    { "zqkb", TDM_FORM_KEY },
        { "zqva", TDM_FORM_VALUE },   { "70917", TDM_FORM_VALUE }, { "70918", TDM_FORM_VALUE },
};

int tdm_form_why(struct tdm_chat_form *form, const char *why)
{
        snprintf(form->why, sizeof(form->why), "%s", why);
        return 0;
}

static size_t blanks_skip(struct tdm_form_text text, size_t at)
{
        while (at < text.size && memchr(" \n\t\r", text.data[at], 4))
                at++;
        return at;
}

/* Bytes of {"zqka": "zqva"} with any white space at `at`, or 0. */
static size_t arguments_match(struct tdm_form_text text, size_t at)
{
        static const char *const words[] = { "{", "\"zqka\"", ":", "\"zqva\"", "}" };
        size_t i = at;

        for (unsigned w = 0; w < TDM_ARRAY_SIZE(words); w++) {
                size_t n = strlen(words[w]);

                i = w > 0 ? blanks_skip(text, i) : i;
                if (i + n > text.size || memcmp(text.data + i, words[w], n) != 0)
                        return 0;
                i += n;
        }
        return i - at;
}

/* Bytes of the needle at `at`, or 0. */
static size_t needle_match(struct tdm_form_text text, size_t at, enum tdm_form_slot *ret)
{
        size_t n = arguments_match(text, at);

        *ret = TDM_FORM_ARGUMENTS;
        if (n > 0)
                return n;
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(needles); i++) {
                n = strlen(needles[i].needle);
                *ret = needles[i].slot;
                if (at + n <= text.size && memcmp(text.data + at, needles[i].needle, n) == 0)
                        return n;
        }
        return 0;
}

static char *slots_put(struct tdm_form_text text)
{
        char *to = malloc(text.size + 1);
        size_t n = 0;

        for (size_t at = 0; to && at < text.size;) {
                enum tdm_form_slot slot;
                size_t size = needle_match(text, at, &slot);

                to[n++] = size > 0 ? (char)slot : text.data[at];
                at += size > 0 ? size : 1;
        }
        if (to)
                to[n] = '\0';
        return to;
}

/* Without a thought in front, which may be empty. */
static struct tdm_form_text thought_skip(const struct tdm_chat_form *form, struct tdm_form_text text)
{
        struct tdm_form_text rest = tdm_form_trim(text), begin = tdm_form_string(form->think_begin),
                             end = tdm_form_string(form->think_end);
        size_t at;

        if (!form->think_begin)
                return text;
        if (rest.size >= end.size && memcmp(rest.data, end.data, end.size) == 0)
                return tdm_form_cut(rest, end.size, rest.size);
        if (rest.size < begin.size || memcmp(rest.data, begin.data, begin.size) != 0)
                return text;
        at = tdm_form_find(rest, form->think_end, begin.size);
        return at == SIZE_MAX ? text : tdm_form_cut(rest, at + end.size, rest.size);
}

/* In front, white space does not count. */
static struct tdm_form_text front_trim(struct tdm_form_text text)
{
        size_t n = blanks_skip(text, 0);

        return tdm_form_cut(text, n, text.size);
}

static char *calls_write(const struct tdm_form_calls_probe *c, const char *const *arguments, unsigned n_calls)
{
        struct tdm_json_buffer to = { 0 };

        for (unsigned i = 0; i < n_calls; i++) {
                const char *texts[] = { i > 0 ? ",{\"id\":\"" : "[{\"id\":\"",
                                        c->form->is_kimi_id ? kimi_ids[i] : ids[i],
                                        "\",\"type\":\"function\",\"function\":{\"name\":\"",
                                        i > 0 ? "zqfb" : "zqfa",
                                        "\",\"arguments\":",
                                        arguments[i],
                                        "}}" };

                for (unsigned t = 0; t < TDM_ARRAY_SIZE(texts); t++)
                        tdm_json_write(&to, texts[t], strlen(texts[t]));
        }
        tdm_json_write(&to, "]", 2); /* with the NUL */
        if (to.failed) {
                free(to.data);
                c->p->failed = true;
                return NULL;
        }
        return to.data;
}

char *tdm_form_calls_render(struct tdm_form_calls_probe *c, const char *const *arguments, unsigned n_calls)
{
        _cleanup_(freep) char *calls = calls_write(c, arguments, n_calls), *text = NULL;
        struct tdm_form_turn turn = { .content = c->content, .calls = calls, .has_tools = true };
        struct tdm_form_text all, rest;
        size_t at;
        char *marked;

        if (!calls)
                return NULL;
        text = tdm_form_render(c->p, &turn);
        if (!text)
                return NULL;
        all = tdm_form_string(text);
        at = tdm_form_common_start(tdm_form_string(c->plain), all);
        at = tdm_form_snap(all, TDM_MIN(at, c->words_at));
        rest = front_trim(thought_skip(c->form, tdm_form_cut(all, at, all.size)));
        marked = slots_put(rest);
        c->p->failed |= !marked;
        return marked;
}

static struct tdm_form_text end_trim(struct tdm_form_text text)
{
        struct tdm_form_text trimmed = tdm_form_trim(text);

        return trimmed.size > 0 ? tdm_form_cut(text, 0, (size_t)(trimmed.data - text.data) + trimmed.size) : trimmed;
}

struct tdm_form_text tdm_form_calls_behind(struct tdm_form_calls_probe *c, struct tdm_form_text behind, const char *gap)
{
        struct tdm_form_text end = tdm_form_string(c->end), rest;
        size_t same = c->form->ends[0] ? tdm_form_find(behind, c->form->ends[0], 0) : SIZE_MAX;

        if (same != SIZE_MAX)
                return end_trim(tdm_form_cut(behind, 0, same));
        if (end.size > 0 && tdm_form_ends_with(behind, end))
                return end_trim(tdm_form_cut(behind, 0, behind.size - end.size));
        if (end.size == 0 || !gap)
                return end_trim(behind);
        same = tdm_form_snap(behind, tdm_form_common_start(behind, tdm_form_string(gap)));
        rest = tdm_form_trim(tdm_form_cut(behind, same, behind.size));
        if (!c->form->ends[1] && rest.size > 0)
                c->form->ends[1] = tdm_form_copy(rest);
        return end_trim(tdm_form_cut(behind, 0, same));
}

int tdm_form_indexed(struct tdm_chat_form *form, struct tdm_form_text text, struct tdm_form_text second, char **to)
{
        char *copy = tdm_form_copy(text);
        bool fits = text.size == second.size;

        if (!copy)
                return -ENOMEM;
        for (size_t i = 0; fits && i < text.size; i++) {
                char c = text.data[i];

                if (c == second.data[i])
                        continue;
                fits = (c == '0' || c == '1') && second.data[i] == c + 1;
                form->first_index = (unsigned)(c - '0');
                copy[i] = (char)TDM_FORM_INDEX;
        }
        free(*to); /* text may be a part of it */
        *to = copy;
        return fits;
}

/* A number in front of the name that the gap counts on. */
static void index_find(struct tdm_chat_form *form)
{
        struct tdm_form_call_marks *m = &form->marks;
        size_t same, before, gap;

        if (!m->before || !m->gap)
                return;
        same = tdm_form_common_end(tdm_form_string(m->before), tdm_form_string(m->gap));
        before = strlen(m->before) - same;
        gap = strlen(m->gap) - same;
        if (before == 0 || gap == 0 || (m->before[before - 1] != '0' && m->before[before - 1] != '1') ||
            m->gap[gap - 1] != m->before[before - 1] + 1)
                return;
        form->first_index = (unsigned)(m->before[before - 1] - '0');
        m->before[before - 1] = m->gap[gap - 1] = (char)TDM_FORM_INDEX;
}

static bool is_channelled(struct tdm_form_text one)
{
        return tdm_form_find(one, "<|message|>", 0) != SIZE_MAX && tdm_form_find(one, "<|channel|>", 0) != SIZE_MAX &&
               tdm_form_find(one, "to=functions.\xf9", 0) != SIZE_MAX;
}

static int channelled_take(struct tdm_chat_form *form)
{
        static const char *const marks[] = { "<|channel|>analysis<|message|>", "<|end|>", "<|channel|>final<|message|>",
                                             "<|return|>", "<|call|>" };
        char **const to[] = { &form->think_begin, &form->think_end, &form->text_begin, &form->ends[0], &form->ends[1] };

        form->calls = TDM_FORM_CALLS_CHANNELLED;
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(to); i++) {
                free(*to[i]);
                *to[i] = strdup(marks[i]);
                if (!*to[i])
                        return -ENOMEM;
        }
        free(steal_ptr(&form->text_end));
        return 0;
}

/* The text that a text before a call cannot hold. */
static int start_take(struct tdm_chat_form *form)
{
        struct tdm_form_text before = tdm_form_string(form->marks.before);
        size_t n = tdm_form_first_mark(before);

        if (before.size < 2 || before.data[0] == '{' ||
            (before.data[0] == '[' && !memchr(before.data, ']', before.size)))
                return 0; /* JSON alone: the whole turn is the call */
        if (before.data[0] != '<' && before.data[0] != '[' && n < before.size)
                n++;
        form->marks.start = tdm_form_copy(tdm_form_trim(tdm_form_cut(before, 0, n)));
        return form->marks.start ? 0 : -ENOMEM;
}

static bool is_quoted_twice(struct tdm_form_text one)
{
        return tdm_form_find(one, "\\\"\xfc", 0) != SIZE_MAX;
}

/* The prompt has all that stands in front of the first name. */
static bool begins_in_prompt(struct tdm_form_calls_probe *c, struct tdm_form_text one)
{
        _cleanup_(freep) char *prompt = tdm_form_render_prompt(c->p, NULL, true);
        struct tdm_form_text before = tdm_form_trim(tdm_form_cut(one, 0, tdm_form_find_slot(one, TDM_FORM_NAME, 0)));

        return prompt && before.size > 0 && tdm_form_ends_with(tdm_form_trim(tdm_form_string(prompt)), before);
}

static void results_take(struct tdm_form_calls_probe *c, const char *const *arguments)
{
        _cleanup_(freep) char *calls = calls_write(c, arguments, 1);
        const struct tdm_form_turn turn = { .content = c->content,
                                            .calls = calls,
                                            .has_tools = true,
                                            .result_of = c->form->is_kimi_id ? kimi_ids[0] : ids[0] };

        if (calls)
                tdm_form_derive_results(c->form, c->p, turn);
}

/* Whether these calls are shown in a way that a form can have. 1, 0, -ENOMEM. */
static int way_try(struct tdm_form_calls_probe *c)
{
        const char *arguments[] = { c->as_text ? ONE_ARGUMENT_TEXT : ONE_ARGUMENT };
        _cleanup_(freep) char *one = tdm_form_calls_render(c, arguments, 1);
        struct tdm_form_text text = tdm_form_string(one);
        bool has_name, has_json, has_tags;
        int r;

        if (!one)
                return 0;
        has_name = tdm_form_find_slot(text, TDM_FORM_NAME, 0) != SIZE_MAX;
        has_json = tdm_form_find_slot(text, TDM_FORM_ARGUMENTS, 0) != SIZE_MAX;
        has_tags = tdm_form_find_slot(text, TDM_FORM_KEY, 0) != SIZE_MAX && !is_quoted_twice(text);
        if (!has_name && has_json && !c->form->is_kimi_id && tdm_form_find_slot(text, TDM_FORM_ID, 0) != SIZE_MAX) {
                c->form->is_kimi_id = true;
                r = way_try(c);
                c->form->is_kimi_id = r > 0;
                return r;
        }
        if (!has_name || !(has_json || has_tags))
                return 0;
        c->form->renders_calls = true;
        if (begins_in_prompt(c, text))
                return tdm_form_why(c->form, "a call begins in the prompt"), 1;
        c->form->arguments_as_object = !c->as_text;
        c->form->null_content = !c->content || c->content[0] == 'n';
        results_take(c, arguments);
        if (is_channelled(text))
                r = channelled_take(c->form);
        else if (has_json)
                r = tdm_form_derive_json(c, one);
        else
                r = tdm_form_derive_tagged(c, one);
        index_find(c->form);
        if (r == 0 && c->form->calls != TDM_FORM_CALLS_GENERIC && c->form->marks.before)
                r = start_take(c->form);
        return r < 0 ? r : 1;
}

static int ways_try(struct tdm_form_calls_probe *c)
{
        static const char *const contents[] = { "\"\"", "null", NULL };
        int r = 0;

        for (unsigned as_text = 0; as_text < 2 && r == 0; as_text++) {
                for (unsigned i = 0; i < TDM_ARRAY_SIZE(contents) && r == 0; i++) {
                        c->as_text = as_text;
                        c->content = contents[i];
                        r = way_try(c);
                }
        }
        if (r == 0)
                return tdm_form_why(c->form, "the template shows no calls of earlier turns");
        return r < 0 ? r : 0;
}

static bool plain_take(struct tdm_form_calls_probe *c)
{
        static const struct tdm_form_turn turn = { .content = "\"" TDM_FORM_WORDS "\"", .has_tools = true };
        struct tdm_form_text text, behind;

        c->plain = tdm_form_render(c->p, &turn);
        text = tdm_form_string(c->plain);
        c->words_at = c->plain ? tdm_form_find(text, TDM_FORM_WORDS, 0) : SIZE_MAX;
        if (c->words_at == SIZE_MAX)
                return false;
        behind = tdm_form_cut(text, c->words_at + strlen(TDM_FORM_WORDS), text.size);
        if (c->form->text_end) {
                size_t at = tdm_form_find(behind, c->form->text_end, 0);

                if (at != SIZE_MAX)
                        behind = tdm_form_cut(behind, at + strlen(c->form->text_end), behind.size);
        }
        if (behind.size < sizeof(c->end))
                memcpy(c->end, behind.data, behind.size);
        return true;
}

int tdm_form_derive_calls(struct tdm_chat_form *form, struct tdm_form_probe *p)
{
        struct tdm_form_calls_probe c = { .form = form, .p = p };
        _cleanup_(freep) char *with = tdm_form_render_prompt(p, NULL, true);
        int r;

        form->renders_tools = with && strstr(with, "zqfa");
        if (plain_take(&c))
                r = ways_try(&c);
        else if (c.plain)
                r = tdm_form_why(form, "the template shows no text of the assistant");
        else
                r = tdm_form_why(form, p->refusal);
        free(c.plain);
        if (r == 0 && form->calls == TDM_FORM_CALLS_GENERIC && form->renders_tools && !form->renders_calls)
                r = tdm_form_derive_text(form, p, tdm_form_string(with));
        if (p->is_exhausted && form->calls == TDM_FORM_CALLS_GENERIC)
                return tdm_form_why(form, "the template takes too long");
        return r;
}
