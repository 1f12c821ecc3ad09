/* What a template renders for the assistant's turn, when it is parsed in the form that was derived from the template,
 * gives the same thinking, text and calls; and the form's grammar takes it. Also for all templates in a folder, where
 * TANDEM_CHAT_TEMPLATES names one: FAMILY/NAME.jinja. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <ftw.h>
#include "engine/chat/forms/generic.h"
#include "engine/chat/forms/test-templates.h"
#include "engine/chat/forms/turn.h"

static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"book\",\"description\":\"d\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{\"who\":{\"type\":\"string\",\"description\":\"d\"},\"code\":{\"type\":\"string\","
        "\"description\":\"d\"},\"big\":{\"type\":\"integer\",\"description\":\"d\"},\"price\":{\"type\":\"number\","
        "\"description\":\"d\"},\"ok\":{\"type\":\"boolean\",\"description\":\"d\"},\"legs\":{\"type\":\"array\","
        "\"items\":{\"type\":\"integer\"},\"description\":\"d\"}},\"required\":[\"who\"]}}},{\"type\":\"function\","
        "\"function\":{\"name\":\"now\",\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{},"
        "\"required\":[]}}}]";

/* Arguments of the calls of a turn. */
static const struct turn {
        const char *name;
        bool thinks, says;
        struct {
                const char *name, *arguments;
        } calls[3];
} turns[] = {
        { .name = "a text", .says = true },
        { .name = "a thought and a text", .thinks = true, .says = true },
        { .name = "one call", .calls = { { "book", "{\"who\": \"Zo\\u00eb \\\"Z\\\" & <b>\\n {x}, \\\\\"}" } } },
        { .name = "a text and a call",
          .says = true,
          .calls = { { "book", "{\"who\": \"x\", \"big\": 12345678901234567890}" } } },
        { .name = "all types",
          .thinks = true,
          .calls = { { "book", "{\"who\": \"7\", \"code\": \"true\", \"big\": -3, \"price\": 12.5, \"ok\": true, "
                               "\"legs\": [1, 2]}" } } },
        { .name = "a call without arguments", .calls = { { "now", "{}" } } },
        { .name = "three calls",
          .thinks = true,
          .says = true,
          .calls = { { "book", "{\"who\": \"a\"}" }, { "now", "{}" }, { "book", "{\"who\": \"b\", \"ok\": false}" } } },
};

#define WORDS_SAID "Zqwords, two\nlines."
#define THOUGHT_SAID "Zqthought: hm.\n\nSo."

struct model {
        const char *name;
        struct tdm_template *template;
        struct tdm_chat_form *form;
};

static void put(struct tdm_json_buffer *to, const char *text)
{
        tdm_json_write(to, text, strlen(text));
}

static char *input_render(const struct model *m, const char *input)
{
        const struct tdm_template_limits limits = { .steps = 1000000, .bytes = 1 << 24 };
        struct tm now = { .tm_year = 126, .tm_mday = 15 };
        struct tdm_json json = { 0 };
        struct tdm_template_input in = { .json = &json, .bos = "<s>", .eos = "</s>", .now = &now };
        struct tdm_template_result result = { 0 };
        struct tdm_error err;
        char *text = NULL;

        assert_int_equal(tdm_json_parse(&json, input, strlen(input), 64, &err), 0);
        if (tdm_template_render(m->template, &in, &limits, &result, &err) == 0)
                text = steal_ptr(&result.text);
        tdm_template_result_deinit(&result);
        tdm_json_deinit(&json);
        return text;
}

/* A text with calls, as a conversation has it whose template shows none. */
static void calls_put_as_text(const struct model *m, const struct turn *turn, struct tdm_json_buffer *to)
{
        struct tdm_form_call calls[3] = { 0 };
        struct tdm_json_buffer text = { 0 };
        unsigned n = 0;

        for (; n < 3 && turn->calls[n].name; n++)
                calls[n] = (struct tdm_form_call){ turn->calls[n].name, turn->calls[n].arguments,
                                                   strlen(turn->calls[n].name), strlen(turn->calls[n].arguments) };
        put(&text, turn->says ? WORDS_SAID "\n" : "");
        tdm_form_write_calls(m->form, calls, n, &text);
        tdm_json_write_string(to, text.data, text.size);
        free(text.data);
}

static void message_put(const struct model *m, const struct turn *turn, struct tdm_json_buffer *to)
{
        const char *key = m->form->thinking_key;
        bool as_text = turn->calls[0].name && !m->form->renders_calls;
        bool in_parts = key && strcmp(key, "content") == 0 && turn->thinks && !m->form->null_content;

        put(to, ",{\"role\":\"assistant\",\"content\":");
        if (!turn->says && m->form->null_content)
                put(to, "null");
        if (in_parts) {
                put(to, "[{\"type\":\"thinking\",\"thinking\":");
                tdm_json_write_string(to, THOUGHT_SAID, strlen(THOUGHT_SAID));
                put(to, "},{\"type\":\"text\",\"text\":");
        }
        if (as_text)
                calls_put_as_text(m, turn, to);
        else if (turn->says || !m->form->null_content)
                tdm_json_write_string(to, WORDS_SAID, turn->says ? strlen(WORDS_SAID) : 0);
        put(to, in_parts ? "}]" : "");
        if (turn->thinks && key && !in_parts) {
                put(to, ",\"");
                put(to, key);
                put(to, "\":");
                tdm_json_write_string(to, THOUGHT_SAID, strlen(THOUGHT_SAID));
        }
        for (unsigned i = 0; i < 3 && turn->calls[i].name && !as_text; i++) {
                char line[160];

                snprintf(line, sizeof(line),
                         "%s{\"id\":\"%s%s%u\",\"type\":\"function\",\"function\":{\"name\":\"%s\",\"arguments\":",
                         i ? "," : ",\"tool_calls\":[", m->form->is_kimi_id ? "functions." : "abcdefgh",
                         m->form->is_kimi_id ? turn->calls[i].name : "", i, turn->calls[i].name);
                if (m->form->is_kimi_id)
                        snprintf(line, sizeof(line),
                                 "%s{\"id\":\"functions.%s:%u\",\"type\":\"function\",\"function\":{\"name\":\"%s\","
                                 "\"arguments\":",
                                 i ? "," : ",\"tool_calls\":[", turn->calls[i].name, i, turn->calls[i].name);
                put(to, line);
                if (m->form->arguments_as_object)
                        put(to, turn->calls[i].arguments);
                else
                        tdm_json_write_string(to, turn->calls[i].arguments, strlen(turn->calls[i].arguments));
                put(to, "}}");
        }
        put(to, turn->calls[0].name && !as_text ? "]}" : "}");
}

static char *conversation_render(const struct model *m, const struct turn *turn)
{
        struct tdm_json_buffer to = { 0 };
        char *text;

        put(&to, turn ? "{\"add_generation_prompt\":false" : "{\"add_generation_prompt\":true");
        if (m->form->switch_variable) {
                put(&to, ",\"");
                put(&to, m->form->switch_variable);
                put(&to, "\":true");
        }
        put(&to, ",\"documents\":null,\"tools\":");
        put(&to, tools);
        put(&to, ",\"messages\":[{\"role\":\"user\",\"content\":\"Zqasked\"}");
        if (turn)
                message_put(m, turn, &to);
        put(&to, "]}");
        tdm_json_write(&to, "", 1);
        text = input_render(m, to.data);
        free(to.data);
        return text;
}

/* The turn as a model would write it behind the prompt. */
static char *turn_cut(const struct model *m, const char *all, bool text_only, enum tdm_form_prompt *ret_prompt)
{
        _cleanup_(freep) char *prompt = conversation_render(m, NULL);
        const char *asked = strstr(all, "Zqasked"), *behind = prompt ? strstr(prompt, "Zqasked") : NULL;
        const char *said = strstr(all, WORDS_SAID);
        size_t at = asked ? (size_t)(asked - all) : 0, end = strlen(all);
        char *turn;

        if (!behind || !asked)
                return NULL;
        while (*behind && *behind == all[at]) {
                behind++;
                at++;
        }
        *ret_prompt = tdm_chat_form_prompt(m->form, all, at);
        if (*behind && (at <= (size_t)(asked - all) + 7 || m->form->calls == TDM_FORM_CALLS_GENERIC))
                return NULL; /* the prompt and the turn of such a template do not fit together */
        if (*behind) {       /* the prompt says something of thinking */
                while (at > 0 && all[at - 1] != '>' && all[at - 1] != ']' && all[at - 1] != '\n')
                        at--;
                if (at <= (size_t)(asked - all) + 7)
                        return NULL;
                *ret_prompt = tdm_chat_form_prompt(m->form, all, at);
        }
        if (*ret_prompt == TDM_FORM_PROMPT_OPEN && !strstr(all + at, m->form->think_end))
                *ret_prompt = TDM_FORM_PROMPT_SILENT; /* an earlier turn's thought is left open */
        for (unsigned i = 0; i < 2; i++) {
                const char *mark = m->form->ends[i], *found = mark ? strstr(all + at, mark) : NULL;

                end = found ? TDM_MIN(end, (size_t)(found - all)) : end;
        }
        if (text_only && said)
                end = (size_t)(said - all) + strlen(WORDS_SAID);
        while (end > at && strchr(" \n", all[end - 1]))
                end--;
        turn = strndup(all + at, end - at);
        assert_non_null(turn);
        return turn;
}

struct parsed {
        char text[4096], thinking[4096];
        struct {
                char name[80], arguments[4096];
        } calls[4];
        unsigned n_calls;
};

static void parsed_add(struct parsed *to, const struct tdm_form_part *parts, size_t n)
{
        for (size_t i = 0; i < n; i++) {
                const struct tdm_form_part *x = &parts[i];

                if (x->kind == TDM_FORM_PART_CALL) {
                        assert_true(to->n_calls < 4 && x->call == to->n_calls);
                        assert_int_equal(strlen(x->id), TDM_FORM_ID_BYTES);
                        snprintf(to->calls[to->n_calls++].name, 80, "%.*s", (int)x->size, x->data);
                } else {
                        char *field = x->kind == TDM_FORM_PART_TEXT     ? to->text :
                                      x->kind == TDM_FORM_PART_THINKING ? to->thinking :
                                                                          to->calls[x->call].arguments;

                        assert_true(strlen(field) + x->size < sizeof(to->text));
                        strncat(field, x->data, x->size);
                }
        }
}

static void turn_parse(const struct tdm_chat_form *form, const char *turn, size_t step, enum tdm_form_prompt prompt,
                       struct parsed *ret)
{
        const struct tdm_form_use use = { .tools = tools, .tools_size = sizeof(tools) - 1, .prompt = prompt };
        _cleanup_(tdm_form_parser_destroyp) struct tdm_form_parser *parser = NULL;
        const struct tdm_form_part *parts;
        size_t n, size = strlen(turn);

        memset(ret, 0, sizeof(*ret));
        assert_int_equal(tdm_form_parser_new(&parser, form, NULL, &use), 0);
        for (size_t at = 0; at < size; at += step) {
                assert_int_equal(tdm_form_parser_push(parser, turn + at, TDM_MIN(step, size - at), &parts, &n), 0);
                parsed_add(ret, parts, n);
        }
        assert_int_equal(tdm_form_parser_finish(parser, &parts, &n), 0);
        parsed_add(ret, parts, n);
}

static bool is_same_json(const char *a, const char *b)
{
        char both[8400];
        struct tdm_json json = { 0 };
        struct tdm_error err;
        bool same = false;

        snprintf(both, sizeof(both), "[%s,%s]", a, b);
        if (tdm_json_parse(&json, both, strlen(both), 64, &err) == 0 && tdm_json_get(&json, 0)->n == 2)
                same = tdm_json_equal(&json, tdm_json_get(&json, 0)->first, tdm_json_get(&json, 0)->last);
        tdm_json_deinit(&json);
        return same;
}

/* What is wrong with it, or NULL. */
static const char *parsed_check(const struct parsed *got, const struct turn *want, const char *turn, unsigned n_calls)
{
        const char *text = got->text + strspn(got->text, " \n");

        if (strcmp(text, want->says && strstr(turn, "Zqwords") ? WORDS_SAID : "") != 0)
                return "text";
        if (strcmp(got->thinking, want->thinks && strstr(turn, "Zqthought") ? THOUGHT_SAID : "") != 0)
                return "thinking";
        if (got->n_calls != n_calls)
                return "number of calls";
        for (unsigned i = 0; i < n_calls; i++) {
                if (strcmp(got->calls[i].name, want->calls[i].name) != 0)
                        return "name";
                if (!is_same_json(got->calls[i].arguments, want->calls[i].arguments))
                        return "arguments";
        }
        return NULL;
}

static bool grammar_takes(const struct tdm_chat_form *form, const char *turn, enum tdm_form_prompt prompt,
                          enum tdm_form_choice choice)
{
        const struct tdm_form_use use = {
                .tools = tools, .tools_size = sizeof(tools) - 1, .prompt = prompt, .choice = choice
        };
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *grammar = NULL;
        _cleanup_(tdm_matcher_destroyp) struct tdm_matcher *matcher = NULL;
        struct tdm_error err = { 0 };

        if (tdm_form_grammar(&grammar, form, NULL, &use, NULL, &err) != 0)
                fail_msg("%s", err.message);
        assert_int_equal(tdm_matcher_new(&matcher, grammar, NULL), 0);
        return tdm_matcher_accept_bytes(matcher, turn, strlen(turn)) == 1 && tdm_matcher_is_whole(matcher);
}

/* The grammar has JSON's words, where the template writes Python's. */
static void words_settle(const struct tdm_chat_form *form, char *turn)
{
        static const char *const words[] = { "True", "False" };

        for (unsigned i = 0; form->python_words && i < TDM_ARRAY_SIZE(words); i++)
                for (char *at = strstr(turn, words[i]); at; at = strstr(at, words[i]))
                        *at = (char)(*at - 'A' + 'a');
}

/* Returns how many turns went wrong, and says which. */
static unsigned turn_check(const struct model *m, const struct turn *want)
{
        _cleanup_(freep) char *all = conversation_render(m, want), *turn = NULL;
        static struct parsed got;
        enum tdm_form_prompt prompt = TDM_FORM_PROMPT_SILENT;
        unsigned n_calls = 0;
        const char *wrong = NULL;

        while (n_calls < 3 && want->calls[n_calls].name)
                n_calls++;
        if (all)
                turn = turn_cut(m, all, n_calls == 0, &prompt);
        if (!turn || !strstr(all, "Zqasked"))
                return 0; /* the template refuses such a turn */
        if (n_calls > 0 && want->says && !strstr(turn, want->calls[0].name))
                return 0; /* it shows no calls beside a text */
        if (n_calls > 0 && (m->form->calls == TDM_FORM_CALLS_CHANNELLED ?
                                    want->says || n_calls > 1 :
                                    (!m->form->marks.gap && n_calls > 1) ||
                                            ((!m->form->marks.start || m->form->null_content) && want->says)))
                return 0; /* the form has no such turns */
        for (size_t step = 1; step <= strlen(turn) + 1 && !wrong; step += step < 4 ? 1 : 13) {
                turn_parse(m->form, turn, step, prompt, &got);
                wrong = parsed_check(&got, want, turn, n_calls);
        }
        words_settle(m->form, turn);
        if (!wrong && n_calls == 1 && m->form->null_content) { /* the mark behind several calls */
                const char *last = strrchr(m->form->marks.after, '<');
                char *more;

                if (last && !strstr(turn, last)) {
                        assert_true(asprintf(&more, "%s%s", turn, last) > 0);
                        free(turn);
                        turn = more;
                }
        }
        if (!wrong && !grammar_takes(m->form, turn, prompt, TDM_FORM_CHOICE_AUTO))
                wrong = "grammar";
        if (!wrong && n_calls == 0 && grammar_takes(m->form, turn, prompt, TDM_FORM_CHOICE_REQUIRED))
                wrong = "no call where one is required";
        if (!wrong && n_calls > 0 && grammar_takes(m->form, turn, prompt, TDM_FORM_CHOICE_NONE) && m->form->marks.start)
                wrong = "a call where there may be none";
        if (wrong)
                print_message("%s, %s: %s is wrong in\n%s\n-> text '%s', thinking '%s', %u calls: %s %s\n", m->name,
                              want->name, wrong, turn, got.text, got.thinking, got.n_calls, got.calls[0].name,
                              got.calls[0].arguments);
        return wrong != NULL;
}

static unsigned template_check(const char *name, const char *source, size_t size, struct model *m)
{
        struct tdm_error err = { 0 };
        unsigned n_wrong = 0;

        *m = (struct model){ .name = name };
        if (tdm_template_new(&m->template, source, size, &err) != 0)
                return 0;
        assert_int_equal(tdm_chat_form_derive(&m->form, m->template, "<s>", "</s>"), 0);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(turns); i++)
                if ((m->form->calls != TDM_FORM_CALLS_GENERIC || !turns[i].calls[0].name) &&
                    (m->form->calls != TDM_FORM_CALLS_CHANNELLED || !turns[i].thinks))
                        n_wrong += turn_check(m, &turns[i]);
        return n_wrong;
}

/* The model of a style that the tests know by its name. */
static void style_model(const char *name, struct model *m)
{
        for (unsigned k = 0; k < TDM_ARRAY_SIZE(styles); k++)
                if (strcmp(styles[k].name, name) == 0) {
                        (void)template_check(name, styles[k].template, strlen(styles[k].template), m);
                        return;
                }
        fail_msg("no style is named %s", name);
}

static void model_deinit(struct model *m)
{
        tdm_chat_form_destroy(m->form);
        tdm_template_destroy(m->template);
}

static void test_round_trip(void **state)
{
        unsigned n_wrong = 0;

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(styles); i++) {
                struct model m;

                n_wrong += template_check(styles[i].name, styles[i].template, strlen(styles[i].template), &m);
                model_deinit(&m);
        }
        assert_int_equal(n_wrong, 0);
}

/* ---- the generic form ---- */

static void test_generic(void **state)
{
        static const struct tdm_form_call calls[] = { { "book", "{\"who\": \"a ``` b\"}", 4, 18 },
                                                      { "now", "{}", 3, 2 } };
        _cleanup_(tdm_chat_form_destroyp) struct tdm_chat_form *form = NULL;
        _cleanup_(freep) char *text = NULL;
        struct tdm_json_buffer to = { 0 };
        struct tdm_error err;
        static struct parsed got;

        assert_int_equal(tdm_chat_form_new_generic(&form, "no template"), 0);
        assert_int_equal(tdm_form_instruct(form, tools, sizeof(tools) - 1, &text, &err), 0);
        assert_non_null(
                strstr(text, "```tool_call\n{\"name\": \"NAME\", \"arguments\": {\"ARGUMENT\": VALUE}}\n```\n"));
        assert_non_null(strstr(text, "\n{\"name\":\"book\","));
        assert_non_null(strstr(text, "\n{\"name\":\"now\","));
        tdm_json_write(&to, "I look.\n", 8);
        tdm_form_write_calls(form, calls, 2, &to);
        tdm_json_write(&to, "", 1);
        for (size_t step = 1; step < 40; step += 6) {
                turn_parse(form, to.data, step, TDM_FORM_PROMPT_SILENT, &got);
                assert_string_equal(got.text, "I look.");
                assert_int_equal(got.n_calls, 2);
                assert_string_equal(got.calls[0].arguments, calls[0].arguments);
                assert_string_equal(got.calls[1].name, "now");
        }
        assert_true(grammar_takes(form, to.data, TDM_FORM_PROMPT_SILENT, TDM_FORM_CHOICE_AUTO));
        assert_false(grammar_takes(form, to.data, TDM_FORM_PROMPT_SILENT, TDM_FORM_CHOICE_NONE));
        /* One is enough where one has to be. */
        assert_false(grammar_takes(form, to.data + 8, TDM_FORM_PROMPT_SILENT, TDM_FORM_CHOICE_REQUIRED));
        to.size = 0;
        tdm_form_write_result("now", 3, "12:00", 5, &to);
        tdm_json_write(&to, "", 1);
        assert_string_equal(to.data, "```tool_output now\n12:00\n```");
        free(to.data);
        assert_int_equal(tdm_form_instruct(form, "{}", 2, &text, &err), TDM_E_BAD_REQUEST);
}

/* Arguments that the schema does not take, a tool that there is not, a call that is cut off; and what a schema for the
 * text binds. */
static void test_grammar(void **state)
{
        static const struct {
                const char *style, *turn;
                bool is_taken;
        } cases[] = {
                { "qwen3-coder",
                  "<tool_call>\n<function=book>\n<parameter=who>\nx\n</parameter>\n<parameter=big>\n"
                  "12\n</parameter>\n</function>\n</tool_call>",
                  true },
                { "qwen3-coder",
                  "<tool_call>\n<function=book>\n<parameter=who>\nx\n</parameter>\n<parameter=big>\n"
                  "1.5\n</parameter>\n</function>\n</tool_call>",
                  false },
                { "qwen3-coder",
                  "<tool_call>\n<function=book>\n<parameter=big>\n12\n</parameter>\n</function>\n"
                  "</tool_call>",
                  false },
                { "qwen3-coder", "<tool_call>\n<function=book>\n</function>\n</tool_call>", false },
                /* As much white space as the example has, or as JSON has at most. */
                { "wide-example", "<tool_call>\n{\"name\":  \"now\",  \"arguments\":  {}}\n</tool_call>", true },
                { "wide-example", "<tool_call>\n{\"name\": \"now\", \"arguments\":{}}\n</tool_call>", true },
                { "wide-example", "<tool_call>\n{\"name\":   \"now\", \"arguments\": {}}\n</tool_call>", false },
                { "qwen3-coder", "<tool_call>\n<function=fly>\n</function>\n</tool_call>", false },
                { "qwen3-coder", "<tool_call>\n<function=now>\n", false },
                { "qwen3-coder",
                  "<tool_call>\n<function=book>\n<parameter=who>\na</parameter>b\n</parameter>\n"
                  "</function>\n</tool_call>",
                  false },
                { "gemma4", "<|tool_call>call:book{who:<|\"|>x<|\"|>,legs:[1,2]}<tool_call|>", true },
                { "gemma4", "<|tool_call>call:book{who:x}<tool_call|>", false },
                { "gemma4", "<|tool_call>call:book{who:<|\"|>x<|\"|>,legs:[1,<|\"|>2<|\"|>]}<tool_call|>", false },
                { "kimi-k3",
                  "<|open|>call tool=\"book\" index=\"1\"<|sep|><|open|>argument key=\"who\" type=\"number\""
                  "<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|>",
                  false },
                { "qwen3", "<tool_call>\n{\"name\": \"book\", \"arguments\": {\"who\": 1}}\n</tool_call>", false },
        };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                struct model m;

                style_model(cases[i].style, &m);
                if (grammar_takes(m.form, cases[i].turn, TDM_FORM_PROMPT_SILENT, TDM_FORM_CHOICE_AUTO) !=
                    cases[i].is_taken)
                        fail_msg("%s", cases[i].turn);
                model_deinit(&m);
        }
}

/* A bare value whose type the schema leaves open is JSON where it reads as such. Control pieces that are no mark say
 * nothing. */
static void test_values(void **state)
{
        static const char open_tools[] = "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{}}}}]";
        static const char *const values[][2] = {
                { "12", "12" },
                { "12 apples", "\"12 apples\"" },
                { "True", "true" },
                { "{\"b\": [1]}", "{\"b\": [1]}" },
                { "a text of more than forty bytes, \"quoted\", and so on",
                  "\"a text of more than forty bytes, \\\"quoted\\\", and so on\"" },
        };
        struct model m;

        style_model("qwen3-coder", &m);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(values); i++) {
                const struct tdm_form_use use = { .tools = open_tools, .tools_size = sizeof(open_tools) - 1 };
                _cleanup_(tdm_form_parser_destroyp) struct tdm_form_parser *parser = NULL;
                const struct tdm_form_part *parts;
                static struct parsed got;
                char turn[256], want[256];
                size_t n;

                memset(&got, 0, sizeof(got));
                snprintf(turn, sizeof(turn),
                         "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n</function>\n</tool_call>",
                         values[i][0]);
                snprintf(want, sizeof(want), "{\"a\": %s}", values[i][1]);
                assert_int_equal(tdm_form_parser_new(&parser, m.form, NULL, &use), 0);
                assert_int_equal(tdm_form_parser_push(parser, "\xff<|x|>", 6, &parts, &n), 0);
                parsed_add(&got, parts, n);
                assert_int_equal(tdm_form_parser_push(parser, turn, strlen(turn), &parts, &n), 0);
                parsed_add(&got, parts, n);
                assert_string_equal(got.text, "");
                assert_int_equal(got.n_calls, 1);
                assert_string_equal(got.calls[0].arguments, want);
        }
        model_deinit(&m);
}

/* A control piece that the model writes within arguments leaves its letters, and they stay UTF-8. */
static void test_piece_in_arguments(void **state)
{
        static const char some_tools[] = "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{}}}}]";
        static const char turn[] =
                "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x\xff<|y|>z\"}}\n</tool_call>";
        const struct tdm_form_use use = { .tools = some_tools, .tools_size = sizeof(some_tools) - 1 };
        _cleanup_(tdm_form_parser_destroyp) struct tdm_form_parser *parser = NULL;
        const struct tdm_form_part *parts;
        static struct parsed got;
        struct model m;
        size_t n;

        style_model("qwen3", &m);
        assert_int_equal(tdm_form_parser_new(&parser, m.form, NULL, &use), 0);
        assert_int_equal(tdm_form_parser_push(parser, turn, sizeof(turn) - 1, &parts, &n), 0);
        parsed_add(&got, parts, n);
        assert_int_equal(got.n_calls, 1);
        assert_string_equal(got.calls[0].arguments, "{\"a\": \"x<|y|>z\"}");
        model_deinit(&m);
}

/* A text in front: what stands there is lost behind a thought, a call or another text alone. A text that goes on with
 * the prompt's, or that a schema binds, keeps all of it, and so does one that is white space alone. */
static void test_front(void **state)
{
        enum { GOES_ON = 1, BOUND = 2, TOOLS = 4, BEGINS = 8 /* what is bound begins at the bar */ };
        static const struct {
                const char *style;
                enum tdm_form_prompt prompt;
                unsigned how;
                const char *turn, *text, *thinking;
        } cases[] = {
                { "qwen3", TDM_FORM_PROMPT_SILENT, 0, " time\n", " time\n", "" },
                { "qwen3", TDM_FORM_PROMPT_SILENT, 0, "\n<think>\n\n</think>\n\nHi", "Hi", "" },
                { "qwen3", TDM_FORM_PROMPT_SILENT, 0, "<think>\nHm\n</think>\n\n Hi", "Hi", "Hm" },
                { "qwen3", TDM_FORM_PROMPT_SILENT, TOOLS,
                  "\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n"
                  "</tool_call>\nYes",
                  "Yes", "" },
                { "qwen3", TDM_FORM_PROMPT_CLOSED, 0, "\n\nHi", "Hi", "" },
                { "qwen3", TDM_FORM_PROMPT_OPEN, 0, "Hm\n</think>\n\nHi", "Hi", "Hm" },
                { "qwen3", TDM_FORM_PROMPT_SILENT, GOES_ON, " time", " time", "" },
                { "qwen3", TDM_FORM_PROMPT_SILENT, GOES_ON, " \n", " \n", "" },
                { "qwen3", TDM_FORM_PROMPT_SILENT, GOES_ON | TOOLS, "  time", "  time", "" },
                { "qwen3", TDM_FORM_PROMPT_SILENT, GOES_ON | BOUND, "\n    return", "\n    return", "" },
                { "qwen3", TDM_FORM_PROMPT_CLOSED, BOUND, "\n  x\n", "\n  x\n", "" },
                { "qwen3", TDM_FORM_PROMPT_CLOSED, BOUND, "\n\n", "\n\n", "" },
                { "qwen3", TDM_FORM_PROMPT_SILENT, BOUND, "\n  x\n", "\n  x\n", "" },
                { "qwen3", TDM_FORM_PROMPT_OPEN, BOUND | BEGINS, "Hm\n</think>\n\n|\n  x\n", "\n  x\n", "Hm" },
                { "qwen3", TDM_FORM_PROMPT_OPEN, BOUND | BEGINS, "</think>|\n  x\n", "\n  x\n", "" },
                { "llama3.1", TDM_FORM_PROMPT_SILENT, GOES_ON | TOOLS, " time", " time", "" },
                { "llama3.1", TDM_FORM_PROMPT_SILENT, GOES_ON | TOOLS, " ", " ", "" },
                { "gpt-oss", TDM_FORM_PROMPT_SILENT, GOES_ON, " time", " time", "" },
                { "gpt-oss", TDM_FORM_PROMPT_SILENT, GOES_ON, " ", " ", "" },
                { "gpt-oss", TDM_FORM_PROMPT_SILENT, GOES_ON | BOUND, "\n  {}", "\n  {}", "" },
        };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                const struct tdm_form_use use = { .tools = cases[i].how & TOOLS ? tools : NULL,
                                                  .tools_size = cases[i].how & TOOLS ? sizeof(tools) - 1 : 0,
                                                  .schema = cases[i].how & BOUND ? "" : NULL,
                                                  .goes_on = cases[i].how & GOES_ON,
                                                  .prompt = cases[i].prompt };
                _cleanup_(tdm_form_parser_destroyp) struct tdm_form_parser *parser = NULL;
                const struct tdm_form_part *parts;
                static struct parsed got;
                struct model m;
                size_t n;

                memset(&got, 0, sizeof(got));
                style_model(cases[i].style, &m);
                assert_int_equal(tdm_form_parser_new(&parser, m.form, NULL, &use), 0);
                for (const char *at = cases[i].turn; *at; at++) {
                        if (*at == '|' && cases[i].how & BEGINS) {
                                tdm_form_parser_begin_answer(parser);
                                continue;
                        }
                        assert_int_equal(tdm_form_parser_push(parser, at, 1, &parts, &n), 0);
                        parsed_add(&got, parts, n);
                }
                assert_int_equal(tdm_form_parser_finish(parser, &parts, &n), 0);
                parsed_add(&got, parts, n);
                if (strcmp(got.text, cases[i].text) != 0 || strcmp(got.thinking, cases[i].thinking) != 0)
                        fail_msg("case %u, '%s': text '%s', thinking '%s'", i, cases[i].turn, got.text, got.thinking);
                model_deinit(&m);
        }
}

/* ---- a folder of templates ---- */

static unsigned n_templates, n_calls_shown, n_derived, n_explained, n_wrong_templates;

static int file_check(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
        static char source[1 << 20];
        const char *suffix = strrchr(path, '.');
        struct model m;
        unsigned n;
        size_t size;
        FILE *f;

        if (type != FTW_F || !suffix || strcmp(suffix, ".jinja") != 0)
                return 0;
        f = fopen(path, "re");
        assert_non_null(f);
        size = fread(source, 1, sizeof(source), f);
        fclose(f);
        n_templates++;
        n = template_check(path, source, size, &m);
        n_wrong_templates += n > 0;
        if (m.form && m.form->renders_calls) {
                n_calls_shown++;
                n_derived += m.form->calls != TDM_FORM_CALLS_GENERIC;
        }
        n_explained += m.form && !m.form->renders_calls && m.form->calls != TDM_FORM_CALLS_GENERIC;
        if (m.form && m.form->calls == TDM_FORM_CALLS_GENERIC)
                print_message("%s: generic: %s\n", path + ftw->base, m.form->why);
        model_deinit(&m);
        return 0;
}

static void test_folder(void **state)
{
        const char *folder = getenv("TANDEM_CHAT_TEMPLATES");

        if (!folder)
                skip();
        assert_int_equal(nftw(folder, file_check, 20, FTW_PHYS), 0);
        print_message(
                "%u templates; %u show calls, of %u the form was derived; of %u others from their text; %u with a "
                "wrong turn\n",
                n_templates, n_calls_shown, n_derived, n_explained, n_wrong_templates);
        assert_true(n_templates > 0 && 100 * n_derived >= 95 * n_calls_shown);
        assert_int_equal(n_wrong_templates, 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_round_trip),
                                            cmocka_unit_test(test_generic),
                                            cmocka_unit_test(test_grammar),
                                            cmocka_unit_test(test_values),
                                            cmocka_unit_test(test_piece_in_arguments),
                                            cmocka_unit_test(test_front),
                                            cmocka_unit_test(test_folder) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
