/* Where thinking begins and ends, from renderings with a thought and without. */
#include "engine/chat/forms/private.h"

/* These marks are tried if the template shows no thoughts of earlier turns. */
#define COMMON_BEGIN "<think>"
#define COMMON_END "</think>"

static const char *const keys[] = { "reasoning_content", "thinking", "reasoning" };
static const char *const switches[][3] = {
        { "enable_thinking", "\"enable_thinking\":true,", "\"enable_thinking\":false," },
        { "thinking", "\"thinking\":true,", "\"thinking\":false," },
};
static const char call[] = "[{\"id\":\"Zqidaaaa1\",\"type\":\"function\",\"function\":{\"name\":\"zqfa\","
                           "\"arguments\":{\"zqka\":\"zqva\"}}}]";
/* Contents with a part of its own for the thought. */
static const char *const parts[] = {
        "[{\"type\":\"thinking\",\"thinking\":\"" TDM_FORM_THOUGHT "\"},{\"type\":\"text\",\"text\":\"" TDM_FORM_WORDS
        "\"}]",
        "[{\"type\":\"thinking\",\"thinking\":[{\"type\":\"text\",\"text\":\"" TDM_FORM_THOUGHT
        "\"}]},{\"type\":\"text\",\"text\":\"" TDM_FORM_WORDS "\"}]",
};

struct thought {
        struct tdm_form_text plain, with;        /* renderings without and with a thought */
        size_t words_at;                         /* in plain */
        size_t thought_at, thought_end, said_at; /* in with: said are the words */
};

static bool thought_find(struct thought *t, const char *plain, const char *with)
{
        t->plain = tdm_form_string(plain);
        t->with = tdm_form_string(with);
        t->words_at = tdm_form_find(t->plain, TDM_FORM_WORDS, 0);
        t->thought_at = tdm_form_find(t->with, TDM_FORM_THOUGHT, 0);
        if (t->words_at == SIZE_MAX || t->thought_at == SIZE_MAX)
                return false;
        t->thought_end = t->thought_at + strlen(TDM_FORM_THOUGHT);
        t->said_at = tdm_form_find(t->with, TDM_FORM_WORDS, t->thought_end);
        return t->said_at != SIZE_MAX;
}

/* The text that stands in front of the thought, and not in front of words alone. An empty thought there leaves the last
 * mark. */
static struct tdm_form_text thought_begin_of(const struct thought *t)
{
        size_t at = tdm_form_snap(t->with, tdm_form_common_start(t->plain, t->with));
        struct tdm_form_text before = tdm_form_trim(tdm_form_cut(t->with, 0, t->thought_at)), rest;

        if (at < t->thought_at && at <= t->words_at) {
                rest = tdm_form_trim(tdm_form_cut(t->with, at, t->thought_at));
                if (rest.size > 0 && tdm_form_trim(tdm_form_cut(t->plain, at, t->words_at)).size == 0)
                        return rest;
        }
        return tdm_form_cut(before, tdm_form_last_mark(before), before.size);
}

/* Behind the thought, up to what stands in front of words alone too. */
static struct tdm_form_text thought_end_of(const struct thought *t)
{
        struct tdm_form_text behind = tdm_form_cut(t->with, t->thought_end, t->said_at), trimmed;
        size_t same = tdm_form_common_end(behind, tdm_form_cut(t->plain, 0, t->words_at));
        size_t at = behind.size - same, mark = tdm_form_snap(behind, at);

        if (mark != at)
                at = mark + tdm_form_first_mark(tdm_form_cut(behind, mark, behind.size));
        trimmed = tdm_form_trim(tdm_form_cut(behind, 0, at));
        if (trimmed.size > 0)
                return trimmed;
        trimmed = tdm_form_trim(behind);
        return tdm_form_cut(trimmed, 0, tdm_form_first_mark(trimmed));
}

/* Two marks in a row behind the words: the first ends the text, the next one the turn. */
static int text_end_take(struct tdm_chat_form *form, struct tdm_form_text behind)
{
        struct tdm_form_text rest = tdm_form_trim(behind), first;
        size_t n = tdm_form_first_mark(rest);

        first = tdm_form_cut(rest, 0, n);
        rest = tdm_form_trim(tdm_form_cut(rest, n, rest.size));
        if (first.size < 3 || rest.size == 0 || (first.data[0] != '<' && first.data[0] != '['))
                return 0;
        form->text_end = tdm_form_copy(first);
        return form->text_end ? 0 : -ENOMEM;
}

static int marks_take(struct tdm_chat_form *form, const struct thought *t)
{
        struct tdm_form_text begin = thought_begin_of(t), end = thought_end_of(t), rest;
        size_t behind = (size_t)(end.data + end.size - t->with.data);

        if (begin.size == 0 || end.size == 0 || tdm_form_find(begin, "'type'", 0) != SIZE_MAX ||
            tdm_form_find(begin, "\"type\"", 0) != SIZE_MAX)
                return 0; /* parts are printed as they are */
        form->think_begin = tdm_form_copy(begin);
        form->think_end = tdm_form_copy(end);
        if (!form->think_begin || !form->think_end)
                return -ENOMEM;
        rest = tdm_form_trim(tdm_form_cut(t->with, behind, t->said_at));
        if (rest.size < 3 || (rest.data[0] != '<' && rest.data[0] != '['))
                return 0;
        form->text_begin = tdm_form_copy(rest);
        if (!form->text_begin)
                return -ENOMEM;
        return text_end_take(form, tdm_form_cut(t->with, t->said_at + strlen(TDM_FORM_WORDS), t->with.size));
}

/* One way to say an earlier turn's thought. 1: the template shows it. */
static int way_try(struct tdm_chat_form *form, struct tdm_form_probe *p, const char *plain,
                   const struct tdm_form_turn *turn, const char *key)
{
        _cleanup_(freep) char *with = tdm_form_render(p, turn);
        struct thought t;
        int r;

        if (!with || !thought_find(&t, plain, with))
                return 0;
        r = marks_take(form, &t);
        if (r < 0 || !form->think_begin)
                return r;
        form->thinking_key = strdup(key);
        return form->thinking_key ? 1 : -ENOMEM;
}

/* Some templates show a thought only beside a call. */
static int shown_find(struct tdm_chat_form *form, struct tdm_form_probe *p, bool with_call)
{
        for (unsigned v = 0; v <= TDM_ARRAY_SIZE(switches); v++) {
                const char *variables = v > 0 ? switches[v - 1][1] : NULL;
                struct tdm_form_turn turn = { .content = "\"" TDM_FORM_WORDS "\"",
                                              .variables = variables,
                                              .calls = with_call ? call : NULL,
                                              .has_tools = with_call };
                _cleanup_(freep) char *plain = NULL;
                int r = 0;

                if (v > 0 && !tdm_template_reads(p->template, switches[v - 1][0]))
                        continue;
                plain = tdm_form_render(p, &turn);
                for (unsigned i = 0; plain && r == 0 && i < TDM_ARRAY_SIZE(keys); i++) {
                        turn.reasoning_key = keys[i];
                        r = way_try(form, p, plain, &turn, keys[i]);
                }
                turn.reasoning_key = NULL;
                for (unsigned i = 0; plain && r == 0 && i < TDM_ARRAY_SIZE(parts); i++) {
                        turn.content = parts[i];
                        r = way_try(form, p, plain, &turn, "content");
                }
                if (r != 0)
                        return r < 0 ? r : 0;
        }
        return 0;
}

/* Templates that cut a thought out of the content of earlier turns, or open or skip one in the prompt. */
static int common_try(struct tdm_chat_form *form, struct tdm_form_probe *p)
{
        static const struct tdm_form_turn turn = { .content = "\"" COMMON_BEGIN "\\n" TDM_FORM_THOUGHT "\\n" COMMON_END
                                                              "\\n\\n" TDM_FORM_WORDS "\"",
                                                   .ends_with_user = true };
        _cleanup_(freep) char *text = tdm_form_render(p, &turn);
        bool is_cut = text && !strstr(text, TDM_FORM_THOUGHT) && strstr(text, TDM_FORM_WORDS);

        for (unsigned v = 0; !is_cut && v <= 2 * TDM_ARRAY_SIZE(switches); v++) {
                const char *const *row = v > 0 ? switches[(v - 1) / 2] : NULL;
                _cleanup_(freep) char *prompt = NULL;

                if (row && !tdm_template_reads(p->template, row[0]))
                        continue;
                prompt = tdm_form_render_prompt(p, row ? row[1 + (v - 1) % 2] : NULL, false);
                if (prompt) {
                        struct tdm_form_text end = tdm_form_trim(tdm_form_string(prompt));

                        is_cut = tdm_form_ends_with(end, tdm_form_string(COMMON_BEGIN)) ||
                                 tdm_form_ends_with(end, tdm_form_string(COMMON_END));
                }
        }
        if (!is_cut)
                return 0;
        form->think_begin = strdup(COMMON_BEGIN);
        form->think_end = strdup(COMMON_END);
        return form->think_begin && form->think_end ? 0 : -ENOMEM;
}

enum tdm_form_prompt tdm_chat_form_prompt(const struct tdm_chat_form *form, const char *text, size_t size)
{
        struct tdm_form_text end = tdm_form_trim((struct tdm_form_text){ text, size });

        if (!form->think_begin)
                return TDM_FORM_PROMPT_SILENT;
        return tdm_form_ends_with(end, tdm_form_string(form->think_end))   ? TDM_FORM_PROMPT_CLOSED :
               tdm_form_ends_with(end, tdm_form_string(form->think_begin)) ? TDM_FORM_PROMPT_OPEN :
                                                                             TDM_FORM_PROMPT_SILENT;
}

static enum tdm_form_prompt prompt_state(const struct tdm_chat_form *form, const char *prompt)
{
        return prompt ? tdm_chat_form_prompt(form, prompt, strlen(prompt)) : TDM_FORM_PROMPT_SILENT;
}

static int switch_find(struct tdm_chat_form *form, struct tdm_form_probe *p)
{
        _cleanup_(freep) char *prompt = tdm_form_render_prompt(p, NULL, false);

        form->prompt_default = form->prompt_on = form->prompt_off = prompt_state(form, prompt);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(switches); i++) {
                _cleanup_(freep) char *on = NULL, *off = NULL;

                if (!tdm_template_reads(p->template, switches[i][0]))
                        continue;
                on = tdm_form_render_prompt(p, switches[i][1], false);
                off = tdm_form_render_prompt(p, switches[i][2], false);
                if (!on || !off || strcmp(on, off) == 0)
                        continue;
                form->prompt_on = prompt_state(form, on);
                form->prompt_off = prompt_state(form, off);
                form->switch_variable = strdup(switches[i][0]);
                return form->switch_variable ? 0 : -ENOMEM;
        }
        return 0;
}

static int effort_find(struct tdm_chat_form *form, struct tdm_form_probe *p)
{
        _cleanup_(freep) char *low = NULL, *high = NULL;

        if (!tdm_template_reads(p->template, "reasoning_effort"))
                return 0;
        low = tdm_form_render_prompt(p, "\"reasoning_effort\":\"low\",", false);
        high = tdm_form_render_prompt(p, "\"reasoning_effort\":\"high\",", false);
        if (!low || !high || strcmp(low, high) == 0)
                return 0;
        form->effort_variable = strdup("reasoning_effort");
        return form->effort_variable ? 0 : -ENOMEM;
}

/* Finds what ends a turn: the first mark behind the words, and the file's own end. */
static int ends_find(struct tdm_chat_form *form, struct tdm_form_probe *p)
{
        for (unsigned i = 0; i < 4 && !form->ends[0]; i++) {
                const struct tdm_form_turn turn = { .content = "\"" TDM_FORM_WORDS "\"",
                                                    .ends_with_user = i & 1,
                                                    .has_tools = i & 2 };
                _cleanup_(freep) char *text = tdm_form_render(p, &turn);
                struct tdm_form_text rest = tdm_form_string(text);
                size_t at = tdm_form_find(rest, TDM_FORM_WORDS, 0);

                if (!text || at == SIZE_MAX)
                        continue;
                rest = tdm_form_trim(tdm_form_cut(rest, at + strlen(TDM_FORM_WORDS), rest.size));
                if (form->text_end && strncmp(rest.data, form->text_end, strlen(form->text_end)) == 0)
                        rest = tdm_form_trim(tdm_form_cut(rest, strlen(form->text_end), rest.size));
                rest.size = tdm_form_first_mark(rest);
                if (rest.size < 3 || !memchr("<[", rest.data[0], 2))
                        continue;
                form->ends[0] = tdm_form_copy(rest);
                if (!form->ends[0])
                        return -ENOMEM;
        }
        return 0;
}

/* Finds the text between the prompt and the words, unless it is a thought. */
static int text_begin_find(struct tdm_chat_form *form, struct tdm_form_probe *p)
{
        const struct tdm_form_turn turn = { .content = "\"" TDM_FORM_WORDS "\"" };
        _cleanup_(freep) char *prompt = tdm_form_render_prompt(p, NULL, false), *text = NULL;
        size_t size = prompt ? strlen(prompt) : 0, at;
        struct tdm_form_text rest;

        text = size > 0 ? tdm_form_render(p, &turn) : NULL;
        if (!text || strncmp(text, prompt, size) != 0)
                return 0;
        at = tdm_form_find(tdm_form_string(text), TDM_FORM_WORDS, 0);
        if (at == SIZE_MAX || at <= size ||
            tdm_form_ends_with(tdm_form_string(prompt), tdm_form_string(TDM_FORM_ASKED)))
                return 0;
        rest = tdm_form_trim(tdm_form_cut(tdm_form_string(text), size, at));
        if (rest.size < 3 || (!memchr(rest.data, '<', rest.size) && !memchr(rest.data, '[', rest.size)))
                return 0; /* words that an answer may hold too */
        if (form->think_begin && (tdm_form_find(rest, form->think_begin, 0) != SIZE_MAX ||
                                  tdm_form_find(rest, form->think_end, 0) != SIZE_MAX))
                return 0;
        form->text_begin = tdm_form_copy(rest);
        if (!form->text_begin)
                return -ENOMEM;
        return text_end_take(form, tdm_form_cut(tdm_form_string(text), at + strlen(TDM_FORM_WORDS), strlen(text)));
}

int tdm_form_derive_thinking(struct tdm_chat_form *form, struct tdm_form_probe *p)
{
        int r = shown_find(form, p, false);

        if (r == 0 && !form->think_begin)
                r = shown_find(form, p, true);
        if (r == 0 && !form->think_begin)
                r = common_try(form, p);
        if (r == 0 && !form->text_begin)
                r = text_begin_find(form, p);
        if (r == 0)
                r = switch_find(form, p);
        if (r == 0)
                r = effort_find(form, p);
        return r < 0 ? r : ends_find(form, p);
}
