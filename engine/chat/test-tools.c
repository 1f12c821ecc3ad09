/* Which turns a grammar with tools takes in each family, and what the parser makes of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "common/sigbus.h"
#include "engine/chat/test-vocabularies.h"
#include "engine/chat/tools.h"
#include "engine/grammar/compose.h"

static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\","
        "\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}},\"required\":[\"city\"],"
        "\"additionalProperties\":false}}},"
        "{\"name\":\"now\"},"
        "{\"name\":\"add\",\"parameters\":{\"$ref\":\"#/$defs/"
        "sum\",\"$defs\":{\"sum\":{\"properties\":{\"a\":{\"type\":"
        "\"number\"},\"s\":{\"type\":\"string\"}},\"required\":[\"a\"]}}}}]";

static char *add(char *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
static char *add(char *to, const char *format, ...)
{
        va_list args;

        va_start(args, format);
        to += vsprintf(to, format, args);
        va_end(args);
        return to;
}

/* The stream's bytes of a turn; its marks are pieces. */
static size_t bytes_of(const struct chat *c, const char *turn, char *to)
{
        uint32_t ids[1024];
        ssize_t n = tdm_tokenizer_encode(c->tokenizer, turn, strlen(turn), TDM_TOKENIZE_SPECIAL, ids, 1024);
        size_t size = 0;

        assert_true(n >= 0 && n <= 1024);
        for (ssize_t i = 0; i < n; i++) {
                const char *data;
                size_t piece = tdm_tokenizer_piece(c->tokenizer, ids[i], false, &data);

                if (piece > 0)
                        memcpy(to + size, data, piece);
                else
                        piece = tdm_vocabulary_marker(c->tokenizer, ids[i], to + size, 64);
                size += piece;
        }
        return size;
}

static char *write_parts(char *to, const struct tdm_form_part *parts, size_t n, enum tdm_form_part_kind *last)
{
        static const char *const names[] = { "text:", "thinking:", "call:", "" };

        for (size_t i = 0; i < n; i++) {
                if (parts[i].kind != *last || parts[i].kind == TDM_FORM_PART_CALL)
                        to = add(to, "|%s", names[parts[i].kind]);
                to = add(to, "%.*s", (int)parts[i].size, parts[i].data);
                *last = parts[i].kind;
                assert_int_equal(strlen(parts[i].id), parts[i].kind == TDM_FORM_PART_CALL ? TDM_FORM_ID_BYTES : 0);
        }
        return to;
}

/* Parsed in pieces of every size, a turn gives the same parts. */
static void assert_parts(const struct chat *c, const char *turn, const char *want)
{
        char bytes[4096], got[4096];
        size_t size = bytes_of(c, turn, bytes);

        for (size_t step = 1; step <= size + 1; step += step > 12 ? 17 : 1) {
                enum tdm_form_part_kind last = (enum tdm_form_part_kind)99;
                const struct tdm_form_part *parts;
                struct tdm_form_parser *parser;
                char *to = got;
                size_t n;

                *to = '\0';
                assert_int_equal(tdm_chat_parser_new(&parser, c->chat,
                                                     (struct tdm_chat_text){ tools, sizeof(tools) - 1 },
                                                     tdm_chat_prompt_end(c->chat, true, TDM_CHAT_THINK_AS_TRAINED), 0),
                                 0);
                for (size_t at = 0; at < size; at += step) {
                        assert_int_equal(tdm_form_parser_push(parser, bytes + at, TDM_MIN(step, size - at), &parts, &n),
                                         0);
                        to = write_parts(to, parts, n, &last);
                }
                assert_int_equal(tdm_form_parser_finish(parser, &parts, &n), 0);
                to = write_parts(to, parts, n, &last);
                assert_string_equal(got, want);
                tdm_form_parser_destroy(parser);
        }
}

static bool takes(const struct chat *c, const struct tdm_chat_tool_use *use, const char *turn)
{
        struct tdm_grammar *grammar;
        struct tdm_matcher *matcher;
        struct tdm_error err = { 0 };
        char bytes[4096];
        size_t size = bytes_of(c, turn, bytes);
        bool whole;

        if (tdm_chat_tools_grammar(&grammar, c->chat, use, NULL, &err))
                fail_msg("%s", err.message);
        assert_int_equal(tdm_matcher_new(&matcher, grammar, NULL), 0);
        whole = tdm_matcher_accept_bytes(matcher, bytes, size) == 1 && tdm_matcher_is_whole(matcher);
        tdm_matcher_destroy(matcher);
        tdm_grammar_unref(grammar);
        return whole;
}

enum { AUTO = 1, NONE = 2, REQUIRED = 4, NAMED = 8, ONE = 16 };

/* turn is taken with just these choices (NAMED is get_weather; ONE is AUTO with one_call), and has these parts. */
static void check(const char *family, const char *turn, unsigned choices, const char *want)
{
        const struct vocabulary *v = find(family);
        struct chat c = open_chat(v);

        for (unsigned i = 0; i < 5; i++) {
                struct tdm_chat_tool_use use = { .tools = { tools, sizeof(tools) - 1 },
                                                 .choice = (enum tdm_form_choice)(i % 4),
                                                 .name = { "get_weather", 11 },
                                                 .one_call = i == 4,
                                                 .thought_is_open = tdm_chat_opens_thought(c.chat, true,
                                                                                           TDM_CHAT_THINK_AS_TRAINED) };

                if (takes(&c, &use, turn) != (choices >> i & 1))
                        fail_msg("%s, choice %u: %s", family, i, turn);
        }
        if (want)
                assert_parts(&c, turn, want);
        close_chat(&c);
}

#define OSLO "{\"city\": \"Oslo\", \"days\": 2}"

static void test_qwen(void **state)
{
        static const char *const families[] = { "qwen2.5", "qwen3" };
        const unsigned all = AUTO | REQUIRED | NAMED | ONE;

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(families); i++) {
                const char *f = families[i];

                check(f, "Hello <b>you</b>.", AUTO | NONE | ONE, "|text:Hello <b>you</b>.");
                check(f, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " OSLO "}\n</tool_call>", all,
                      "|call:get_weather|" OSLO);
                check(f, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", AUTO | REQUIRED | ONE,
                      "|call:now|{}");
                check(f, "Let me see. <to\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
                      AUTO | ONE, "|text:Let me see. <to|call:now|{}");
                check(f,
                      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": "
                      "{\"city\":\"}\\\"{\\\\\"}}\n</tool_call>\n"
                      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " OSLO "}\n</tool_call>",
                      AUTO | REQUIRED, "|call:get_weather|{\"city\":\"}\\\"{\\\\\"}|call:get_weather|" OSLO);
                /* Arguments that the schema does not take, and a tool that there is not. */
                check(f, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"days\": 2}}\n</tool_call>", 0,
                      NULL);
                check(f, "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"x\": 1}}\n</tool_call>", 0, NULL);
                check(f, "<tool_call>\n{\"name\": \"add\", \"arguments\": [1]}\n</tool_call>", 0, NULL);
                check(f, "<tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n</tool_call>", 0, NULL);
                check(f, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}", 0, NULL);
                check(f, "<tool_call>", 0, NULL);
        }
        check("qwen3",
              "<think>\nHm, <tool>.\n</think>\n\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1.5}}\n"
              "</tool_call>",
              AUTO | ONE, "|thinking:Hm, <tool>.|call:add|{\"a\": 1.5}");
        check("qwen3", "<think>\nHm.\n</think>\n\nFour.", AUTO | NONE | ONE, "|thinking:Hm.|text:Four.");
        check("qwen3-thinking", "Hm.\n</think>\n\nFour.", AUTO | NONE | ONE, "|thinking:Hm.|text:Four.");
        check("qwen3-thinking",
              "</think>\n\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " OSLO "}\n</tool_call>", all,
              "|call:get_weather|" OSLO);
}

static void test_llama(void **state)
{
        static const char *const families[] = { "llama3.1", "llama3.2" };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(families); i++) {
                const char *f = families[i];

                check(f, "{\"name\": \"get_weather\", \"parameters\": " OSLO "}", AUTO | REQUIRED | NAMED | ONE,
                      "|call:get_weather|" OSLO);
                check(f, "{\"name\": \"now\", \"parameters\": {}}", AUTO | REQUIRED | ONE, "|call:now|{}");
                check(f, "Hi {\"name\": 1}", AUTO | NONE | ONE, "|text:Hi {\"name\": 1}");
                check(f, "{\"nam\": 1}", AUTO | NONE | ONE, "|text:{\"nam\": 1}");
                check(f, "{\"name\": 1}", 0, NULL);
                check(f, " {\"name\": \"now\", \"parameters\": {}}", 0, NULL);
                check(f, "{\"name\": \"get_weather\", \"parameters\": {}}", 0, NULL);
        }
}

static void test_mistral(void **state)
{
        check("mistral", "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": " OSLO "}]",
              AUTO | REQUIRED | NAMED | ONE, "|call:get_weather|" OSLO);
        check("mistral",
              "I look. [TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}, \"id\": \"abc123XYZ\"}, {\"name\": "
              "\"add\", "
              "\"arguments\": {\"a\": 1, \"s\": \"]\"}}]",
              AUTO, "|text:I look.|call:now|{}|call:add|{\"a\": 1, \"s\": \"]\"}");
        check("mistral", "Hello [you].", AUTO | NONE | ONE, "|text:Hello [you].");
        check("mistral", "[TOOL_CALLS][]", 0, NULL);
        check("mistral", "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {\"a\": 1}}]", 0, NULL);
        check("mistral", "[INST]Hello", 0, NULL);
}

static void test_gpt_oss(void **state)
{
        check("gpt-oss", "<|channel|>commentary to=functions.get_weather json<|message|>" OSLO,
              AUTO | REQUIRED | NAMED | ONE, "|call:get_weather|" OSLO);
        check("gpt-oss", " to=functions.get_weather<|channel|>commentary json<|message|>" OSLO,
              AUTO | REQUIRED | NAMED | ONE, "|call:get_weather|" OSLO);
        check("gpt-oss",
              "<|channel|>analysis<|message|>Hm <|.<|end|><|start|>assistant<|channel|>commentary<|message|>I "
              "look.<|end|>"
              "<|start|>assistant<|channel|>commentary to=functions.now<|message|>{}",
              AUTO | ONE, "|thinking:Hm <|.|text:I look.|call:now|{}");
        check("gpt-oss", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Four.",
              AUTO | NONE | ONE, "|thinking:Hm.|text:Four.");
        check("gpt-oss", "Four.", 0, NULL);
        check("gpt-oss", "<|channel|>commentary to=functions.get_weather json<|message|>{}", 0, NULL);
        check("gpt-oss", "<|channel|>analysis<|message|>Hm.", 0, NULL);
}

/* Where the template shows no tools, calls stand in fences. */
static void test_generic(void **state)
{
        static const char *const families[] = { "chatml", "gemma4", "llama3" };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(families); i++) {
                check(families[i], "```c\nint x;\n```", AUTO | NONE | ONE, "|text:```c\nint x;\n```");
                check(families[i],
                      "Let me see.\n```tool_call\n{\"name\": \"get_weather\", \"arguments\": " OSLO "}\n```",
                      AUTO | ONE, "|text:Let me see.|call:get_weather|" OSLO);
                check(families[i],
                      "```tool_call\n{\"name\": \"get_weather\", \"arguments\": " OSLO "}\n```\n"
                      "```tool_call\n{\"name\": \"get_weather\", \"arguments\": " OSLO "}\n```",
                      AUTO, "|call:get_weather|" OSLO "|call:get_weather|" OSLO);
                check(families[i], "```tool_call\n{\"name\": \"now\", \"arguments\": {\"x\": 1}}\n```", 0, NULL);
                check(families[i], "```tool_call\nnow()\n```", 0, NULL);
        }
}

#define SHOWN "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
#define SAID "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"

/* A template that shows tools and no calls: the form of its own text, else a text that explains calls alone. */
static void assert_explained(const char *explanation, const char *start, const char *call)
{
        static const char both[] = "[{\"name\":\"get_weather\"},{\"name\":\"now\"}]";
        const struct tdm_chat_options options = { .tools = { both, sizeof(both) - 1 } };
        struct tdm_chat_call calls = { .name = { "now", 3 }, .arguments = { "{}", 2 } };
        const struct tdm_chat_message messages[] = { { .role = TDM_CHAT_USER, .text = "Hi", .size = 2 },
                                                     { .role = TDM_CHAT_ASSISTANT, .calls = &calls, .n_calls = 1 },
                                                     { .role = TDM_CHAT_TOOL, .text = "12:00", .size = 5 } };
        struct tdm_chat_prompt prompt;
        struct tdm_error err = { 0 };
        char template[512], end[256];
        struct chat c;

        snprintf(template, sizeof(template), "%s%s%s%s", SHOWN "{% if tools %}", explanation, "{% endif %}", SAID);
        c = open_chat_with(find("qwen3"), template, NULL);
        if (tdm_chat_render(c.chat, messages, 3, &options, &prompt, &err) != 0)
                fail_msg("%s", err.message);
        snprintf(end, sizeof(end), "<user>Hi<assistant>%s<user>```tool_output\n12:00\n```", call);
        if (strncmp(prompt.text, start, strlen(start)) != 0 || prompt.size < strlen(end) ||
            strcmp(prompt.text + prompt.size - strlen(end), end) != 0)
                fail_msg("%s", prompt.text);
        assert_null(strstr(prompt.text, "Schema")); /* the template's list is enough */
        tdm_chat_prompt_deinit(&prompt);
        close_chat(&c);
}

static void test_explained(void **state)
{
        assert_explained("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
                         "[get_weather][now]<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call><user>Hi",
                         "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>");
        assert_explained("Answer with <|tool_call|> and a list.",
                         "[get_weather][now]Answer with <|tool_call|> and a list.<system>You can call tools.",
                         "```tool_call\n{\"name\": \"now\", \"arguments\": {}}\n```");
}

/* What was cut off keeps what there is. */
static void test_cut(void **state)
{
        const struct vocabulary *v = find("qwen3");
        struct chat c = open_chat(v);

        assert_parts(&c, "Hi <tool_", "|text:Hi <tool_");
        assert_parts(&c, "Hi. \n", "|text:Hi. \n");
        assert_parts(&c, "<think>\nHm", "|thinking:Hm");
        assert_parts(&c, "<tool_call>\n{\"name\": \"no", "");
        assert_parts(&c, "<tool_call>\n{\"name\": \"now\", \"arg", "|call:now");
        assert_parts(&c, "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a", "|call:now|{\"a");
        assert_parts(&c, "", "");
        close_chat(&c);
        v = find("llama3.1");
        c = open_chat(v);
        assert_parts(&c, "{\"na", "|text:{\"na");
        close_chat(&c);
}

static void refuses(const char *family, const char *given, const char *name, int code, const char *part)
{
        const struct vocabulary *v = find(family);
        struct chat c = open_chat(v);
        struct tdm_chat_tool_use use = { .tools = { given, strlen(given) } };
        struct tdm_grammar *grammar;
        struct tdm_error err = { 0 };

        if (name) {
                use.choice = TDM_FORM_CHOICE_NAMED;
                use.name = (struct tdm_chat_text){ name, strlen(name) };
        }
        assert_int_equal(tdm_chat_tools_grammar(&grammar, c.chat, &use, NULL, &err), code);
        if (!strstr(err.message, part))
                fail_msg("'%s' is not in '%s'", part, err.message);
        close_chat(&c);
}

static void test_refused(void **state)
{
        refuses("qwen3", tools, "fly", TDM_E_BAD_REQUEST, "fly is none of the tools");
        refuses("qwen3", "{}", NULL, TDM_E_BAD_REQUEST, "not a JSON array");
        refuses("qwen3", "[]", NULL, TDM_E_BAD_REQUEST, "not a JSON array");
        refuses("qwen3", "[{\"name\": \"a\"}, {\"name\": 1}]", NULL, TDM_E_BAD_REQUEST,
                "tools: the one at index 1 is not {");
        refuses("qwen3", "[{\"name\": \"a\"}, {\"name\": \"a b\"}]", NULL, TDM_E_BAD_REQUEST,
                "tools: 'a b' is no name of a tool; it has 1 to 64 letters");
        refuses("qwen3", "[{\"name\": \"a\"}, {\"name\": \"b\"}, {\"name\": \"a\"}]", NULL, TDM_E_BAD_REQUEST,
                "tools: two have the name a");
        refuses("qwen3", "[{\"name\": \"a\", \"parameters\": {\"type\": \"string\"}}]", NULL, TDM_E_UNSUPPORTED,
                "parameters of a: no value");
        refuses("qwen3",
                "[{\"name\": \"a\", \"parameters\": {\"type\": \"object\", \"properties\": {\"x\": {\"pattern\": "
                "\"(?<=a)b\"}}}}]",
                NULL, TDM_E_UNSUPPORTED, "parameters of a: schema, at #/properties/x/pattern");
        refuses("qwen3", "[{\"name\": \"a\"", NULL, TDM_E_BAD_REQUEST, "tools: ");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_qwen),      cmocka_unit_test(test_llama),   cmocka_unit_test(test_mistral),
                cmocka_unit_test(test_gpt_oss),   cmocka_unit_test(test_cut),     cmocka_unit_test(test_generic),
                cmocka_unit_test(test_explained), cmocka_unit_test(test_refused),
        };

        assert_int_equal(tdm_sigbus_init(), 0);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
