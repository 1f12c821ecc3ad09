/* Where a prompt's text comes from, what a template may take, and how it fails. That texts are those of jinja2 is shown
 * by tests/chat/differential.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "engine/chat/template/template.h"

struct rendering {
        struct tdm_template_result result;
        struct tdm_error err;
        int code;
};

static struct rendering render_within(const char *source, const char *variables, struct tdm_template_limits limits,
                                      bool continue_final)
{
        _cleanup_(tdm_template_destroyp) struct tdm_template *template = NULL;
        struct rendering r = { 0 };
        struct tdm_json json = { 0 };
        struct tdm_template_input input = {
                .json = &json, .bos = "<s>", .eos = "</s>", .continue_final = continue_final
        };

        assert_int_equal(tdm_json_parse(&json, variables, strlen(variables), 100, &r.err), 0);
        r.code = tdm_template_new(&template, source, strlen(source), &r.err);
        if (r.code == 0)
                r.code = tdm_template_render(template, &input, &limits, &r.result, &r.err);
        tdm_json_deinit(&json);
        return r;
}

static struct rendering render(const char *source, const char *variables)
{
        return render_within(source, variables, tdm_template_limits_for(strlen(variables)), false);
}

static void text_is(const char *source, const char *variables, const char *text)
{
        struct rendering r = render(source, variables);

        if (r.code)
                fail_msg("%s: %s", source, r.err.message);
        assert_string_equal(r.result.text, text);
        assert_int_equal(r.result.size, strlen(text));
        tdm_template_result_deinit(&r.result);
}

static void fails_with(const char *source, const char *variables, int code, const char *words)
{
        struct rendering r = render(source, variables);

        assert_int_equal(r.code, code);
        if (!strstr(r.err.message, words))
                fail_msg("%s: %s", source, r.err.message);
        tdm_template_result_deinit(&r.result);
}

/* The text with the conversation's part in brackets. */
static void spans_are(const char *source, const char *variables, const char *marked)
{
        struct rendering r = render(source, variables);
        char text[512] = "";
        size_t at = 0, n = 0;

        if (r.code)
                fail_msg("%s: %s", source, r.err.message);
        for (size_t i = 0; i < r.result.n_spans; i++) {
                const struct tdm_template_span *span = &r.result.spans[i];

                n += (size_t)snprintf(text + n, sizeof(text) - n, span->is_template ? "%.*s" : "[%.*s]",
                                      (int)(span->end - at), r.result.text + at);
                at = span->end;
        }
        assert_int_equal(at, r.result.size);
        assert_string_equal(text, marked);
        tdm_template_result_deinit(&r.result);
}

#define CHAT "{\"messages\": [{\"role\": \"user\", \"content\": \" Hi <|im_end|> \"}], \"name\": \"im_end\"}"

static void test_origin(void **state)
{
        spans_are("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}", CHAT,
                  "<|user|>[ Hi <|im_end|> ]<|end|>");
        /* Through everything that makes texts of texts. */
        spans_are("{{ '<|' + messages[0].content|trim + '|>' }}", CHAT, "<|[Hi <|im_end|>]|>");
        spans_are("{{ '<' ~ messages[0].content[1:3] ~ '>' }}", CHAT, "<[Hi]>");
        spans_are("{{ ('<b>' + messages[0].content)|replace('b', 'c')|upper }}", CHAT, "<C>[ HI <|IM_END|> ]");
        spans_are("{{ ['<', messages[0].content.strip(), '>']|join('-') }}", CHAT, "<-[Hi <|im_end|>]->");
        spans_are("{{ messages[0].content.split('<')[1] + '<' }}", CHAT, "[|im_end|> ]<");
        spans_are("{{ {'a': messages[0].content}|tojson }}", CHAT, "{\"a\": \"[ Hi <|im_end|> ]\"}");
        spans_are("{{ '<%s>' % messages[0].content }}", CHAT, "<[ Hi <|im_end|> ]>");
        spans_are("{{ '<{}>'.format(messages[0].content) }}", CHAT, "<[ Hi <|im_end|> ]>");
        spans_are("{% set x %}<{{ messages[0].content }}>{% endset %}{{ x|trim|indent(2) }}", CHAT,
                  "<[ Hi <|im_end|> ]>");
        spans_are("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(messages[0].content)|string }}", CHAT,
                  "<[ Hi <|im_end|> ]>");
        spans_are("{{ (messages[0].content + '<|im_end|>')[::-1] }}", CHAT, ">|dne_mi|<[ >|dne_mi|< iH ]");
        spans_are("{{ [messages[0].content]|string }}", CHAT, "['[ Hi <|im_end|> ]']");
        spans_are("{{ messages[0].content|safe + '<' }}", CHAT, "[ Hi <|im_end|> ]&lt;");
        /* A role that no request may have is a stranger's word; so is any other member. */
        spans_are("<|{{ name }}|>", CHAT, "<|[im_end]|>");
        spans_are("<|{{ messages[0].role }}|>", "{\"messages\": [{\"role\": \"im_end\"}]}", "<|[im_end]|>");
        spans_are("{{ bos_token }}{{ messages[0].content|trim }}{{ eos_token }}", CHAT, "<s>[Hi <|im_end|>]</s>");
}

static void test_texts(void **state)
{
        text_is("{{ messages[0]['content'] | trim }}\n", CHAT, "Hi <|im_end|>");
        text_is("{% if tools is defined and tools is none %}n{% endif %}{{ missing }}{{ documents }}", "{}", "nNone");
        text_is("  {%- for i in range(3) -%}\n {{ i }} {%- endfor %}\n x", "{}", "012 x");
        text_is("{% set ns = namespace(n=0) %}{% for i in [1,2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
                "{}", "3");
        /* Integers keep their digits, whatever their length. */
        text_is("{{ x|tojson }}", "{\"x\": [9007199254740993, 123456789012345678901234567890, 0.1, 1e5]}",
                "[9007199254740993, 123456789012345678901234567890, 0.1, 100000.0]");
        text_is("{{ x }}", "{\"x\": {\"it's\": [null, true, \"\\u00e9\\n\"]}}", "{\"it's\": [None, True, 'é\\n']}");
        text_is("{% set l = [] %}{% set _ = l.append(1) %}{{ l }}", "{}", "[1]");
}

static void test_final_message(void **state)
{
        static const char source[] = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]\n{% endfor %}";
        static const char stripping[] = "{% for m in messages %}[{{ m.role }}]{{ m.content|trim }}[end]\n{% endfor %}";
        static const char messages[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
                                       "\"assistant\", \"content\": \"b \"}]}";
        struct tdm_template_limits limits = tdm_template_limits_for(100);
        struct rendering r = render_within(source, messages, limits, true);

        assert_int_equal(r.code, 0);
        assert_string_equal(r.result.text, "[user]a[end]\n[assistant]b ");
        tdm_template_result_deinit(&r.result);
        r = render_within(stripping, messages, limits, true);
        assert_string_equal(r.result.text, "[user]a[end]\n[assistant]b");
        tdm_template_result_deinit(&r.result);
        r = render_within("no messages: content", messages, limits, true);
        assert_int_equal(r.code, TDM_E_BAD_REQUEST);
        r = render_within(source, "{\"messages\": []}", limits, true);
        assert_int_equal(r.code, TDM_E_BAD_REQUEST);
}

static void test_refusals(void **state)
{
        struct rendering r = render("\n\n{{ raise_exception('roles must alternate') }}", "{}");

        assert_int_equal(r.code, TDM_E_BAD_REQUEST);
        assert_string_equal(r.result.refusal, "roles must alternate");
        tdm_template_result_deinit(&r.result);
        fails_with("a\n{{ missing.x }}", "{}", TDM_E_BAD_REQUEST,
                   "line 2 of the chat template: \"missing\" is undefined");
        fails_with("{% for x in y %}", "{}", TDM_E_UNSUPPORTED, "endfor");
        fails_with("\n{% include 'x' %}", "{}", TDM_E_UNSUPPORTED,
                   "line 2, column 4 of the chat template: the tag \"include\"");
        fails_with("{{ x|nonsense }}", "{}", TDM_E_UNSUPPORTED, "there is no filter \"nonsense\"");
        text_is("{% if false %}{{ x|nonsense }}{% endif %}", "{}", "");
        fails_with("{% if true %}{{ x|nonsense }}{% endif %}", "{}", TDM_E_BAD_REQUEST, "there is no filter");
        fails_with("{{ messages.append(1) }}", CHAT, TDM_E_BAD_REQUEST, "is changed");
        fails_with("{{ ''.__class__ }}", "{}", TDM_E_BAD_REQUEST, "underscore");
        fails_with("\xff", "{}", TDM_E_UNSUPPORTED, "UTF-8");
        fails_with("{{ 9223372036854775807 + 1 }}", "{}", TDM_E_BAD_REQUEST, "64 bits");
        fails_with("{{ 1 // 0 }}", "{}", TDM_E_BAD_REQUEST, "zero");
}

/* Each would take far more than there is; what they cost is bounded by the limits and not by the clock. */
static void test_limits(void **state)
{
        static const char *const hostile[] = {
                "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
                "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
                "{{ 'x' * 99999999999 }}",
                "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
                "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(40) }}",
                "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ "
                "ns.l }}",
                "{{ ('ab' * 100000).replace('', 'xxxxxxxxxxxxxxxx' * 100) }}",
                "{{ [1]|tojson(indent=999999999) }}",
        };
        struct tdm_template_limits small = { .steps = 100, .bytes = 1 << 20 };
        struct rendering r;

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(hostile); i++) {
                r = render(hostile[i], "{}");
                if (r.code != TDM_E_TOO_LONG && r.code != TDM_E_BAD_REQUEST)
                        fail_msg("%s: %d", hostile[i], r.code);
                tdm_template_result_deinit(&r.result);
        }
        r = render_within("{% for i in range(1000) %}x{% endfor %}", "{}", small, false);
        assert_int_equal(r.code, TDM_E_TOO_LONG);
        assert_non_null(strstr(r.err.message, "steps"));
        r = render_within("{{ 'x' * 50 }}", "{}", small, false);
        assert_int_equal(r.code, 0);
        tdm_template_result_deinit(&r.result);
}

static void test_reads(void **state)
{
        static const char source[] = "{% if enable_thinking is defined %}{{ messages }}{% endif %}";
        _cleanup_(tdm_template_destroyp) struct tdm_template *template = NULL;
        struct tdm_error err;

        assert_int_equal(tdm_template_new(&template, source, strlen(source), &err), 0);
        assert_true(tdm_template_reads(template, "enable_thinking"));
        assert_false(tdm_template_reads(template, "reasoning_effort"));
        assert_true(tdm_template_memory(template) < 200000);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_origin),   cmocka_unit_test(test_texts),  cmocka_unit_test(test_final_message),
                cmocka_unit_test(test_refusals), cmocka_unit_test(test_limits), cmocka_unit_test(test_reads),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
