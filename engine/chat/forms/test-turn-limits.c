/* What bounds tools, marks and turns, and that nothing of a turn is lost, wherever it is cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "engine/chat/forms/test-templates.h"
#include "engine/chat/forms/turn.h"

static const char one_tool[] = "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{}}}}]";

static struct tdm_chat_form *form_of_template(const char *source)
{
        _cleanup_(tdm_template_destroyp) struct tdm_template *template = NULL;
        struct tdm_chat_form *form = NULL;
        struct tdm_error err = { 0 };

        if (tdm_template_new(&template, source, strlen(source), &err) != 0)
                fail_msg("%s", err.message);
        assert_int_equal(tdm_chat_form_derive(&form, template, "<s>", "</s>"), 0);
        return form;
}

static struct tdm_chat_form *form_of_style(const char *name)
{
        unsigned k = 0;

        while (strcmp(styles[k].name, name) != 0)
                k++;
        return form_of_template(styles[k].template);
}

/* What a turn is, cut into pushes of the sizes that cuts gives, from 1 on; 0: all at once. */
struct told {
        char text[8192], thinking[8192], arguments[8192];
        size_t n_calls, n_at_end; /* bytes that finish() gave */
};

static void told_add(struct told *to, const struct tdm_form_part *parts, size_t n)
{
        for (size_t i = 0; i < n; i++) {
                char *field = parts[i].kind == TDM_FORM_PART_TEXT     ? to->text :
                              parts[i].kind == TDM_FORM_PART_THINKING ? to->thinking :
                                                                        to->arguments;

                to->n_calls += parts[i].kind == TDM_FORM_PART_CALL;
                assert_true(strlen(field) + parts[i].size < sizeof(to->text));
                strncat(field, parts[i].data, parts[i].size);
        }
}

static void turn_tell(const struct tdm_chat_form *form, const char *tools, enum tdm_form_choice choice,
                      const char *turn, size_t size, unsigned *cuts, struct told *ret)
{
        const struct tdm_form_use use = { .tools = tools, .tools_size = tools ? strlen(tools) : 0, .choice = choice };
        _cleanup_(tdm_form_parser_destroyp) struct tdm_form_parser *parser = NULL;
        const struct tdm_form_part *parts;
        size_t n, at = 0;

        memset(ret, 0, sizeof(*ret));
        assert_int_equal(tdm_form_parser_new(&parser, form, NULL, &use), 0);
        while (at < size) {
                size_t step = cuts ? 1 + (*cuts = *cuts * 1103515245u + 12345u) / 65536u % 12u : size;

                step = TDM_MIN(step, size - at);
                assert_int_equal(tdm_form_parser_push(parser, turn + at, step, &parts, &n), 0);
                told_add(ret, parts, n);
                at += step;
        }
        assert_int_equal(tdm_form_parser_finish(parser, &parts, &n), 0);
        for (size_t i = 0; i < n; i++)
                ret->n_at_end += parts[i].kind == TDM_FORM_PART_TEXT ? parts[i].size : 0;
        told_add(ret, parts, n);
}

/* ---- tools ---- */

static char *many_tools(unsigned n)
{
        struct tdm_json_buffer to = { 0 };
        char line[96];

        for (unsigned i = 0; i < n; i++)
                tdm_json_write(&to, line,
                               (size_t)snprintf(line, sizeof(line), "%s{\"name\":\"t%u\",\"parameters\":{}}",
                                                i ? "," : "[", i));
        tdm_json_write(&to, "]", 2);
        return to.data;
}

/* One tool with n properties, of which the first `required` names are required, and as often over again. */
static char *many_properties(unsigned n, unsigned required)
{
        struct tdm_json_buffer to = { 0 };
        char line[96];

        tdm_json_write(&to, line,
                       (size_t)snprintf(line, sizeof(line), "[{\"name\":\"t\",\"parameters\":{\"properties\":{"));
        for (unsigned i = 0; i < n; i++)
                tdm_json_write(&to, line, (size_t)snprintf(line, sizeof(line), "%s\"p%u\":{}", i ? "," : "", i));
        tdm_json_write(&to, line, (size_t)snprintf(line, sizeof(line), "},\"required\":["));
        for (unsigned i = 0; i < required; i++)
                tdm_json_write(&to, line, (size_t)snprintf(line, sizeof(line), "%s\"p%u\"", i ? "," : "", i % n));
        tdm_json_write(&to, "]}}]", 5);
        return to.data;
}

static int tools_compile(const struct tdm_chat_form *form, char *tools, struct tdm_error *err)
{
        const struct tdm_form_use use = { .tools = tools, .tools_size = strlen(tools) };
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *grammar = NULL;
        int r = tdm_form_grammar(&grammar, form, NULL, &use, NULL, err);

        free(tools);
        return r;
}

static void test_tools_are_bounded(void **state)
{
        static const char *const names[] = { "qwen3", "qwen3-coder", "gemma4", "gpt-oss" };
        struct tdm_error err;

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(names); i++) {
                _cleanup_(tdm_chat_form_destroyp) struct tdm_chat_form *form = form_of_style(names[i]);

                assert_int_equal(tools_compile(form, many_tools(TDM_FORM_TOOLS_MAX + 1), &err), TDM_E_BAD_REQUEST);
                assert_string_equal(err.message, "tools: 1025 are given; at most 1024 are taken");
                assert_int_equal(tools_compile(form, many_tools(128), &err), 0);
        }
}

static void test_properties_are_bounded(void **state)
{
        _cleanup_(tdm_chat_form_destroyp) struct tdm_chat_form *form = form_of_style("qwen3-coder");
        struct tdm_error err;

        assert_int_equal(tools_compile(form, many_properties(TDM_FORM_PROPERTIES_MAX + 1, 0), &err), TDM_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "parameters of t: 1025 properties of one object; at most 1024 are taken"));
        assert_int_equal(tools_compile(form, many_properties(64, 64), &err), 0);
        assert_int_equal(tools_compile(form, many_properties(2, 3), &err), TDM_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "more names than there are properties"));
}

/* ---- turns ---- */

static void without_blanks(const char *from, char *to)
{
        for (; *from; from++)
                if (!strchr(" \n", *from))
                        *to++ = *from;
        *to = '\0';
}

/* Beginnings of marks, white space and words: none of them is a mark, so all of it is text, wherever it is cut. */
static void test_nothing_is_lost(void **state)
{
        static char turn[4096], want[4096], got[8192];
        static const char blanks[] = "                                                                      ";
        unsigned random = 7;

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(styles); i++) {
                _cleanup_(tdm_chat_form_destroyp) struct tdm_chat_form *form = form_of_template(styles[i].template);
                const char *before = form->marks.before ? form->marks.before : "";

                for (unsigned round = 0; round < 60 && form->calls != TDM_FORM_CALLS_CHANNELLED; round++) {
                        static struct told told, whole;
                        size_t size = (size_t)snprintf(turn, sizeof(turn), "So");

                        for (unsigned n = 0; n < 4 + round % 5; n++) {
                                unsigned what = (random = random * 1103515245u + 12345u) / 65536u % 4u;
                                size_t part = strlen(before) > 1 ? random / 131072u % strlen(before) : 0;

                                if (what == 0)
                                        size += (size_t)snprintf(turn + size, sizeof(turn) - size, "%s%s%s%s%s%s%s%s%s",
                                                                 blanks, blanks, blanks, blanks, blanks, blanks, blanks,
                                                                 blanks, blanks);
                                else if (what == 1 && memchr(before, TDM_FORM_INDEX, part) == NULL)
                                        size += (size_t)snprintf(turn + size, sizeof(turn) - size, "%.*s%s", (int)part,
                                                                 before, round % 2 || n % 2 ? "Z" : blanks);
                                else
                                        size += (size_t)snprintf(turn + size, sizeof(turn) - size, "%.*s words Z",
                                                                 (int)(part % 3), before);
                        }
                        turn_tell(form, one_tool, TDM_FORM_CHOICE_AUTO, turn, size, &random, &told);
                        if (told.n_calls > 0 || told.thinking[0])
                                continue; /* the beginning of a mark was another mark */
                        without_blanks(turn, want);
                        without_blanks(told.text, got);
                        if (strcmp(got, want) != 0)
                                fail_msg("%s: of\n%s\nthis is told:\n%s", styles[i].name, want, got);
                        assert_true(told.n_at_end <= TDM_FORM_HELD_MAX);
                        turn_tell(form, one_tool, TDM_FORM_CHOICE_AUTO, turn, size, NULL, &whole);
                        assert_string_equal(told.text, whole.text);
                }
        }
}

/* As much as can be held: behind a bracket of a mark around JSON any number of blanks may follow. */
static void test_held_at_end(void **state)
{
        _cleanup_(tdm_chat_form_destroyp) struct tdm_chat_form *form = form_of_style("qwen3");
        static char turn[2048];
        static struct told told;
        size_t most = 0;

        for (unsigned n = 100; n < 700; n += 7) {
                snprintf(turn, sizeof(turn), "Well%300s<tool_call>%*s", "", (int)n, "");
                turn_tell(form, one_tool, TDM_FORM_CHOICE_AUTO, turn, strlen(turn), NULL, &told);
                assert_int_equal(strlen(told.text), strlen(turn));
                assert_true(told.n_at_end <= TDM_FORM_HELD_MAX);
                most = TDM_MAX(most, told.n_at_end);
        }
        assert_true(most > TDM_FORM_HELD_MAX / 2); /* the bound is no larger than it has to be */
}

/* Where a call has to come, its beginning is no text, wherever it is cut off. */
static void test_forced_call_is_cut(void **state)
{
        static const char turn[] = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
        _cleanup_(tdm_chat_form_destroyp) struct tdm_chat_form *form = form_of_style("qwen3");
        static struct told told;

        for (size_t size = 1; size < sizeof(turn); size++) {
                turn_tell(form, one_tool, TDM_FORM_CHOICE_REQUIRED, turn, size, NULL, &told);
                assert_string_equal(told.text, "");
                assert_int_equal(told.n_calls, size > strlen("<tool_call>\n{\"name\": \"f"));
        }
        for (size_t size = 1; size < sizeof(turn); size++) {
                char two[2 * sizeof(turn)];

                snprintf(two, sizeof(two), "%s\n%.*s", turn, (int)size, turn);
                turn_tell(form, one_tool, TDM_FORM_CHOICE_REQUIRED, two, strlen(two), NULL, &told);
                assert_string_equal(told.text, "");
                assert_in_range(told.n_calls, 1, 2);
        }
        turn_tell(form, one_tool, TDM_FORM_CHOICE_AUTO, turn, 9, NULL, &told);
        assert_string_equal(told.text, "<tool_cal");
}

static bool grammar_takes_forced(const struct tdm_chat_form *form, enum tdm_form_choice choice, const char *turn)
{
        const struct tdm_form_use use = {
                .tools = one_tool, .tools_size = sizeof(one_tool) - 1, .choice = choice, .name = "f", .name_size = 1
        };
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *grammar = NULL;
        _cleanup_(tdm_matcher_destroyp) struct tdm_matcher *matcher = NULL;
        struct tdm_error err = { 0 };

        assert_int_equal(tdm_form_grammar(&grammar, form, NULL, &use, NULL, &err), 0);
        assert_int_equal(tdm_matcher_new(&matcher, grammar, NULL), 0);
        return tdm_matcher_accept_bytes(matcher, turn, strlen(turn)) == 1;
}

/* Behind a forced call nothing more is due, unless the model was trained on several. */
static void test_forced_call_ends(void **state)
{
        static const char one[] = "```tool_call\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n```";
        static const char native[] = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
        _cleanup_(tdm_chat_form_destroyp) struct tdm_chat_form *generic = NULL, *form = form_of_style("qwen3");
        char two[256], more[256];

        snprintf(two, sizeof(two), "%s\n%s", one, one);
        snprintf(more, sizeof(more), "%s\n%s", native, native);
        assert_int_equal(tdm_chat_form_new_generic(&generic, "no template"), 0);
        for (unsigned choice = TDM_FORM_CHOICE_REQUIRED; choice <= TDM_FORM_CHOICE_NAMED; choice++) {
                assert_true(grammar_takes_forced(generic, (enum tdm_form_choice)choice, one));
                assert_false(grammar_takes_forced(generic, (enum tdm_form_choice)choice, two));
        }
        assert_true(grammar_takes_forced(generic, TDM_FORM_CHOICE_AUTO, two));
        assert_true(grammar_takes_forced(form, TDM_FORM_CHOICE_REQUIRED, more));
        assert_false(grammar_takes_forced(form, TDM_FORM_CHOICE_NAMED, more));
}

/* gpt-oss: what has no header is text, and a header has an end. */
static void test_channels(void **state)
{
        static const struct {
                const char *turn, *text, *thinking;
        } cases[] = {
                { "Hello there, analysis of it.", "Hello there, analysis of it.", "" },
                { " to be or not", "to be or not", "" },
                { "to=", "", "" },
                { "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.", "Yes.",
                  "Hm." },
                { "<|channel|>analysis<|message|>Hm.<|end|>Then without.", "Then without.", "Hm." },
        };
        _cleanup_(tdm_chat_form_destroyp) struct tdm_chat_form *form = form_of_style("gpt-oss");
        static char endless[4096];
        static struct told told;

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                unsigned random = i;

                turn_tell(form, NULL, TDM_FORM_CHOICE_AUTO, cases[i].turn, strlen(cases[i].turn), &random, &told);
                assert_string_equal(told.text, cases[i].text);
                assert_string_equal(told.thinking, cases[i].thinking);
        }
        strcpy(endless, "\xff<|channel|>analysis");
        for (unsigned i = 0; i < 200; i++)
                strcat(endless, " word");
        turn_tell(form, NULL, TDM_FORM_CHOICE_AUTO, endless, strlen(endless), NULL, &told);
        assert_int_equal(strlen(told.text), strlen("analysis") + 200 * strlen(" word"));
}

/* In the midst of a thought its own beginning is letters. The byte that stands for a control piece is none of them. */
static void test_thought_in_thought(void **state)
{
        static const char turn[] = "\xff<think>Hm, \xff<think> so\xff</think>Yes";
        _cleanup_(tdm_chat_form_destroyp) struct tdm_chat_form *form = form_of_style("qwen3");
        static struct told told;

        free(form->think_begin);
        free(form->think_end);
        form->think_begin = strdup("\xff<think>"); /* as a vocabulary binds it that has it as a control piece */
        form->think_end = strdup("\xff</think>");
        turn_tell(form, NULL, TDM_FORM_CHOICE_AUTO, turn, sizeof(turn) - 1, NULL, &told);
        assert_string_equal(told.thinking, "Hm, <think> so");
        assert_string_equal(told.text, "Yes");
}

/* ---- what a template makes them ---- */

static char *repeated(const char *start, const char *text, unsigned n, const char *end)
{
        char *all = malloc(strlen(start) + n * strlen(text) + strlen(end) + 1);

        assert_non_null(all);
        strcpy(all, start);
        for (unsigned i = 0; i < n; i++)
                strcat(all, text);
        strcat(all, end);
        return all;
}

/* Marks of more than 256 bytes are none: the calls have the generic form, and thoughts are text. */
static void test_long_marks(void **state)
{
        for (unsigned n = 20; n <= 40; n += 20) { /* of eight bytes */
                _cleanup_(freep) char *mark = repeated("<", "abcdefgh", n, ">"), *source = NULL;
                _cleanup_(tdm_chat_form_destroyp) struct tdm_chat_form *form = NULL;

                assert_true(asprintf(&source,
                                     "%s{%% for m in messages %%}<|im_start|>{{ m.role }}\n{%% if m.tool_calls "
                                     "%%}{%% for c in m.tool_calls %%}%s{\"name\": \"{{ c.function.name }}\", "
                                     "\"arguments\": {{ c.function.arguments | tojson }}}</call>{%% endfor %%}"
                                     "{%% else %%}{%% if m.reasoning_content %%}%s{{ m.reasoning_content }}"
                                     "</think>\n{%% endif %%}{{ m.content }}{%% endif %%}<|im_end|>\n"
                                     "{%% endfor %%}{%% if add_generation_prompt %%}<|im_start|>assistant\n"
                                     "{%% endif %%}",
                                     TOOLS_SHOWN, mark, mark) > 0);
                form = form_of_template(source);
                assert_int_equal(form->calls, n == 20 ? TDM_FORM_CALLS_JSON : TDM_FORM_CALLS_GENERIC);
                assert_true((form->think_begin != NULL) == (n == 20));
                if (n == 40)
                        assert_string_equal(form->why, "a mark of its calls is too long");
        }
}

/* All probes of a template share their steps: one that takes many is asked little. */
static void test_probes_share_steps(void **state)
{
        static const char slow[] = "{% set x = range(48000)|list %}";
        unsigned k = 0;
        _cleanup_(freep) char *source = NULL;
        _cleanup_(tdm_chat_form_destroyp) struct tdm_chat_form *form = NULL, *quick = form_of_style("qwen3");

        while (strcmp(styles[k].name, "qwen3") != 0)
                k++;
        assert_true(asprintf(&source, "%s%s", slow, styles[k].template) > 0);
        form = form_of_template(source);
        assert_int_equal(quick->calls, TDM_FORM_CALLS_JSON);
        assert_int_equal(form->calls, TDM_FORM_CALLS_GENERIC);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_tools_are_bounded),  cmocka_unit_test(test_properties_are_bounded),
                cmocka_unit_test(test_nothing_is_lost),    cmocka_unit_test(test_held_at_end),
                cmocka_unit_test(test_forced_call_is_cut), cmocka_unit_test(test_forced_call_ends),
                cmocka_unit_test(test_channels),           cmocka_unit_test(test_thought_in_thought),
                cmocka_unit_test(test_long_marks),         cmocka_unit_test(test_probes_share_steps),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
