/* Rendered conversations against tests/golden/chat/rendered.chats, what else templates of that form write, and what is
 * refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "common/sigbus.h"
#include "engine/chat/test-vocabularies.h"
#include "engine/chat/tools.h"
#include "engine/grammar/compose.h"

static size_t count(const char *text, const char *what)
{
        size_t n = 0;

        for (const char *at = strstr(text, what); at; at = strstr(at + 1, what))
                n++;
        return n;
}

/* The prompt is this text, and its ids read like it, each marker in it one piece. */
static void assert_reads(const struct vocabulary *v, const struct chat *c, const struct tdm_chat_message *messages,
                         size_t n_messages, const struct tdm_chat_options *options, const char *text)
{
        static uint32_t ids[16384];
        static char read[16384];
        size_t size = 0, found = 0, wanted = 0;
        struct tdm_chat_prompt prompt;
        struct tdm_error err = { 0 };
        ssize_t n;

        if (tdm_chat_render(c->chat, messages, n_messages, options, &prompt, &err))
                fail_msg("%s: %s", v->family, err.message);
        n = tdm_chat_encode(c->chat, &prompt, NULL, ids, TDM_ARRAY_SIZE(ids));
        assert_true(n >= 0 && (size_t)n <= TDM_ARRAY_SIZE(ids));
        assert_int_equal(tdm_chat_encode(c->chat, &prompt, NULL, NULL, 0), n);
        for (ssize_t i = 0; i < n; i++) {
                const char *data;
                size_t piece = tdm_tokenizer_piece(c->tokenizer, ids[i], true, &data);

                found += ids[i] < v->n;
                memcpy(read + size, data, piece);
                size += piece;
        }
        read[size] = 0;
        assert_string_equal(read, text);
        for (uint32_t i = 0; i < v->n; i++)
                wanted += count(text, v->markers[i].text);
        assert_int_equal(found, wanted);
        tdm_chat_prompt_deinit(&prompt);
}

/* ---- the golden file ---- */

#define MESSAGES_MAX 8

struct conversation {
        struct tdm_chat_message messages[MESSAGES_MAX];
        struct tdm_chat_call calls[MESSAGES_MAX];
        size_t n;
        struct tdm_chat_options options;
};

static char *unescape(char *text)
{
        char *to = text;

        for (const char *from = text; *from; from++) {
                if (*from != '\\')
                        *to++ = *from;
                else if (*++from == 'n')
                        *to++ = '\n';
                else {
                        assert_true(*from == '\\' || *from == '"');
                        *to++ = *from;
                }
        }
        *to = 0;
        return text;
}

static struct tdm_chat_text text_of(const char *s)
{
        return (struct tdm_chat_text){ s, strlen(s) };
}

/* Cuts off a word. */
static char *next_word(char **rest)
{
        char *word = *rest, *space = strchr(word, ' ');

        assert_non_null(space);
        *space = 0;
        *rest = space + 1;
        return word;
}

static void add_message(struct conversation *v, enum tdm_chat_role role, const char *text)
{
        assert_true(v->n < MESSAGES_MAX);
        v->messages[v->n++] = (struct tdm_chat_message){ .role = role, .text = text, .size = strlen(text) };
}

static void take_line(struct conversation *v, const char *word, char *rest)
{
        struct tdm_chat_message *last = v->n ? &v->messages[v->n - 1] : NULL;

        if (strcmp(word, "system") == 0)
                add_message(v, TDM_CHAT_SYSTEM, unescape(rest));
        else if (strcmp(word, "user") == 0)
                add_message(v, TDM_CHAT_USER, unescape(rest));
        else if (strcmp(word, "assistant") == 0)
                add_message(v, TDM_CHAT_ASSISTANT, unescape(rest));
        else if (strcmp(word, "thinking") == 0)
                last->thinking = text_of(unescape(rest));
        else if (strcmp(word, "call") == 0) {
                struct tdm_chat_call *call = &v->calls[v->n - 1];

                call->id = text_of(next_word(&rest));
                call->name = text_of(next_word(&rest));
                call->arguments = text_of(unescape(rest));
                last->calls = call;
                last->n_calls = 1;
        } else if (strcmp(word, "tool") == 0) {
                struct tdm_chat_text id = text_of(next_word(&rest)), name = text_of(next_word(&rest));

                add_message(v, TDM_CHAT_TOOL, unescape(rest));
                v->messages[v->n - 1].call_id = id;
                v->messages[v->n - 1].name = name;
        } else if (strcmp(word, "tools") == 0)
                v->options.tools = text_of(unescape(rest));
        else if (strcmp(word, "option") == 0) {
                v->options.tools_in_system |= strcmp(rest, "tools_in_user_message False") == 0;
                if (strcmp(rest, "enable_thinking False") == 0)
                        v->options.thinking = TDM_CHAT_THINK_OFF;
                if (strcmp(rest, "reasoning_effort high") == 0)
                        v->options.effort = TDM_CHAT_EFFORT_HIGH;
        } else
                assert_int_equal(word[0], '#');
}

/* The assistant's turn with the call, as the model would write it. */
static struct tdm_chat_text turn_of(const char *text, const char *name)
{
        static const char *const openings[] = { "<|start_header_id|>assistant<|end_header_id|>\n\n",
                                                "<|im_start|>assistant\n", "<|start|>assistant", "[/INST]" };
        static const char *const ends[] = { "<|eot_id|>", "<|im_end|>", "<|call|>", "</s>" };
        const char *from = NULL, *to = NULL, *called = NULL;
        char quoted[3][128];

        snprintf(quoted[0], sizeof(quoted[0]), "{\"name\": \"%s\", \"arguments\": {", name);
        snprintf(quoted[1], sizeof(quoted[1]), "{\"name\": \"%s\", \"parameters\": {", name);
        snprintf(quoted[2], sizeof(quoted[2]), " to=functions.%s<|channel|>", name);
        for (unsigned i = 0; i < 3 && !called; i++)
                called = strstr(text, quoted[i]);
        assert_non_null(called);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(openings); i++) {
                for (const char *at = strstr(text, openings[i]); at && at < called; at = strstr(at + 1, openings[i]))
                        if (at + strlen(openings[i]) > from)
                                from = at + strlen(openings[i]);
        }
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(ends); i++) {
                const char *at = strstr(called, ends[i]);

                if (at && (!to || at < to))
                        to = at;
        }
        assert_non_null(from);
        assert_non_null(to);
        return (struct tdm_chat_text){ from, (size_t)(to - from) };
}

static char *without_spaces(char *text)
{
        char *to = text;

        for (const char *from = text; *from; from++)
                if (*from != ' ')
                        *to++ = *from;
        *to = '\0';
        return text;
}

/* The grammar takes the golden call, token by token, and the parser gives back what it was made of. */
static void assert_call(const struct chat *c, const struct conversation *conversation, const struct tdm_chat_call *call,
                        const char *text)
{
        const struct tdm_chat_tool_use use = { .tools = conversation->options.tools };
        char name[80], arguments[512] = "", want[512], got[80] = "", bytes[64];
        struct tdm_form_parser *parser;
        struct tdm_vocabulary *vocabulary;
        struct tdm_grammar *grammar;
        struct tdm_matcher *matcher;
        struct tdm_error err;
        struct tdm_chat_text turn;
        uint32_t ids[2048];
        ssize_t n;

        snprintf(name, sizeof(name), "%.*s", (int)call->name.size, call->name.data);
        turn = turn_of(text, name);
        n = tdm_tokenizer_encode(c->tokenizer, turn.data, turn.size, TDM_TOKENIZE_SPECIAL, ids, TDM_ARRAY_SIZE(ids));
        assert_true(n >= 1 && (size_t)n <= TDM_ARRAY_SIZE(ids));
        assert_int_equal(tdm_vocabulary_new_tokenizer(&vocabulary, c->tokenizer, tdm_tokenizer_n_vocab(c->tokenizer)),
                         0);
        if (tdm_chat_tools_grammar(&grammar, c->chat, &use, NULL, &err))
                fail_msg("%s", err.message);
        assert_int_equal(tdm_matcher_new(&matcher, grammar, vocabulary), 0);
        assert_int_equal(tdm_chat_parser_new(&parser, c->chat, use.tools, TDM_FORM_PROMPT_SILENT, 0), 0);
        for (ssize_t i = 0; i < n; i++) {
                const struct tdm_form_part *parts;
                const char *data;
                size_t n_parts, size = tdm_tokenizer_piece(c->tokenizer, ids[i], false, &data);

                if (tdm_matcher_accept(matcher, ids[i]) != 1)
                        fail_msg("token %zd of %.*s is not allowed", i, (int)turn.size, turn.data);
                if (size == 0) {
                        data = bytes;
                        size = tdm_vocabulary_marker(c->tokenizer, ids[i], bytes, sizeof(bytes));
                }
                assert_int_equal(tdm_form_parser_push(parser, data, size, &parts, &n_parts), 0);
                for (size_t k = 0; k < n_parts; k++) {
                        if (parts[k].kind == TDM_FORM_PART_CALL)
                                snprintf(got, sizeof(got), "%.*s", (int)parts[k].size, parts[k].data);
                        else if (parts[k].kind == TDM_FORM_PART_ARGUMENTS)
                                strncat(arguments, parts[k].data, parts[k].size);
                }
        }
        assert_true(tdm_matcher_is_whole(matcher));
        assert_string_equal(got, name);
        /* The templates write the same JSON with spaces behind its marks; no value here has one. */
        snprintf(want, sizeof(want), "%.*s", (int)call->arguments.size, call->arguments.data);
        assert_string_equal(without_spaces(arguments), without_spaces(want));
        tdm_form_parser_destroy(parser);
        tdm_matcher_destroy(matcher);
        tdm_grammar_unref(grammar);
        tdm_vocabulary_unref(vocabulary);
}

static void test_golden(void **state)
{
        FILE *f = fopen("tests/golden/chat/rendered.chats", "re");
        const struct vocabulary *v = NULL;
        struct conversation conversation;
        struct chat chat = { 0 };
        char *lines[64]; /* of one case, which messages point into */
        size_t n_lines = 0, n_cases = 0, n_calls = 0, capacity = 0;
        ssize_t n;

        assert_non_null(f);
        for (lines[0] = NULL; (n = getline(&lines[n_lines], &capacity, f)) > 0;) {
                char *line = lines[n_lines], *rest;

                line[n - 1] = 0;
                rest = strchr(line, ' ');
                *rest++ = 0;
                if (strcmp(line, "family") == 0) {
                        close_chat(&chat);
                        v = find(rest);
                        chat = open_chat(v);
                        assert_string_equal(tdm_chat_state(chat.chat), "jinja");
                        continue;
                }
                if (strcmp(line, "case") == 0) {
                        conversation = (struct conversation){ 0 };
                        conversation.options.now = 1795435200; /* 23 November 2026, noon in UTC */
                        continue;
                }
                if (strcmp(line, "text") != 0) {
                        take_line(&conversation, line, rest);
                        n_lines++;
                        lines[n_lines] = NULL;
                        capacity = 0;
                        assert_true(n_lines < TDM_ARRAY_SIZE(lines) - 1);
                        continue;
                }
                assert_reads(v, &chat, conversation.messages, conversation.n, &conversation.options, unescape(rest));
                for (size_t i = 0; i < conversation.n; i++) {
                        const struct tdm_chat_message *m = &conversation.messages[i];

                        if (m->n_calls > 0)
                                assert_call(&chat, &conversation, &m->calls[0], rest);
                        n_calls += m->n_calls;
                }
                n_cases++;
                while (n_lines > 0)
                        free(lines[n_lines--]);
        }
        assert_int_equal(n_cases, 33);
        assert_true(n_calls >= 7);
        free(lines[0]);
        close_chat(&chat);
        fclose(f);
}

/* ---- forms without a golden, and what is refused ---- */

#define M(who, words)                                                                                                  \
        {                                                                                                              \
                .role = TDM_CHAT_##who, .text = (words), .size = strlen(words)                                         \
        }

static void reads(const char *family, const struct tdm_chat_message *messages, size_t n,
                  const struct tdm_chat_options *options, const char *text)
{
        const struct vocabulary *v = find(family);
        struct chat c = open_chat(v);

        assert_reads(v, &c, messages, n, options, text);
        close_chat(&c);
}

static void test_other_forms(void **state)
{
        const struct tdm_chat_message chat[] = { M(SYSTEM, "Be brief."), M(USER, " Hi "), M(ASSISTANT, "Hello."),
                                                 M(USER, "2+2?") };
        const struct tdm_chat_message thought[] = { M(USER, "Hi"),
                                                    M(ASSISTANT, "<|channel>thought\nThey greet me.<channel|>Hello."),
                                                    M(USER, "2+2?") };
        const struct tdm_chat_options think = { .thinking = TDM_CHAT_THINK_ON };

        reads("llama3", chat, 4, NULL,
              "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
              "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
              "\n\nHello.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n2+2?<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n");
        reads("chatml", chat + 1, 1, NULL, "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n");
        reads("qwen3-thinking", chat + 1, 1, NULL,
              "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n<think>\n");
        reads("gemma4", chat + 1, 1, &think,
              "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n");
        reads("gemma4", thought, 3, NULL,
              "<bos><|turn>user\nHi<turn|>\n<|turn>model\nHello.<turn|>\n<|turn>user\n2+2?<turn|>\n<|turn>model\n"
              "<|channel>thought\n<channel|>");
}

/* Thoughts behind the last question stay, earlier ones go, also where they stand in the text. */
static void test_thinking(void **state)
{
        const struct tdm_chat_call call = { { "1", 1 }, { "f", 1 }, { "{}", 2 } };
        struct tdm_chat_message messages[] = { M(USER, "A"), M(ASSISTANT, "<think>\nearly\n</think>\n\nB"),
                                               M(USER, "C"), M(ASSISTANT, "D"),
                                               M(TOOL, "1"), M(TOOL, "2") };

        messages[3].thinking = (struct tdm_chat_text){ "late", 4 };
        messages[3].calls = &call;
        messages[3].n_calls = 1;
        reads("qwen3", messages, 6, NULL,
              "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n"
              "<|im_start|>assistant\n<think>\nlate\n</think>\n\nD\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n"
              "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n"
              "</tool_response><|im_end|>\n<|im_start|>assistant\n");
        /* gpt-oss reads thoughts under another name. */
        messages[3] = (struct tdm_chat_message)M(ASSISTANT, "");
        messages[3].thinking = (struct tdm_chat_text){ "late", 4 };
        messages[3].calls = &call;
        messages[3].n_calls = 1;
        reads("gpt-oss", messages + 2, 3, &(struct tdm_chat_options){ .now = 1795435200 },
              "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
              "Knowledge cutoff: 2024-06\nCurrent date: 2026-11-23\n\nReasoning: medium\n\n# Valid channels: analysis, "
              "commentary, final. Channel must be included for every message.<|end|><|start|>user<|message|>C<|end|>"
              "<|start|>assistant<|channel|>analysis<|message|>late<|end|><|start|>assistant to=functions.f<|channel|>"
              "commentary json<|message|>{}<|call|><|start|>functions.f to=assistant<|channel|>commentary<|message|>"
              "\"1\"<|end|><|start|>assistant");
}

/* Digits that no float holds, and a tool without its frame. */
static void test_digits(void **state)
{
        static const char arguments[] = "{\"n\":12345678901234567890123,\"x\":[1e400,-0.10]}";
        const struct tdm_chat_call call = { { "1", 1 }, { "f", 1 }, { arguments, sizeof(arguments) - 1 } };
        struct tdm_chat_message messages[] = { M(USER, "A"), M(ASSISTANT, ""), M(TOOL, "1") };
        const struct tdm_chat_options options = { .tools = { "[{\"name\":\"f\"}]", 14 } };

        messages[1].calls = &call;
        messages[1].n_calls = 1;
        reads("qwen2.5", messages, 3, &options,
              "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.\n\n# Tools\n\n"
              "You may call one or more functions to assist with the user query.\n\nYou are provided with function "
              "signatures within <tools></tools> XML tags:\n<tools>\n{\"type\": \"function\", \"function\": {\"name\": "
              "\"f\"}}\n</tools>\n\nFor each function call, return a json object with function name and arguments "
              "within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
              "<args-json-object>}\n</tool_call><|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n"
              "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 12345678901234567890123, \"x\": [Infinity, -0.1]}}"
              "\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n1\n</tool_response><|im_end|>\n"
              "<|im_start|>assistant\n");
}

/* The model goes on with the last message. */
static void test_prefill(void **state)
{
        const struct tdm_chat_message messages[] = { M(USER, "Hi"), M(ASSISTANT, "Hel") };
        const struct tdm_chat_message blank[] = { M(USER, "Hi"), M(ASSISTANT, "Sure: ") };

        reads("chatml", messages, 2, NULL, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHel");
        reads("chatml", blank, 2, NULL, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nSure: ");
        reads("llama3", messages, 2, NULL,
              "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\nHel");
}

static void refused(const char *family, const struct tdm_chat_message *messages, size_t n,
                    const struct tdm_chat_options *options, const char *why)
{
        const struct vocabulary *v = find(family);
        struct chat c = open_chat(v);
        struct tdm_chat_prompt prompt;
        struct tdm_error err = { 0 };
        int r = tdm_chat_render(c.chat, messages, n, options, &prompt, &err);

        assert_true(r == TDM_E_BAD_REQUEST || r == TDM_E_UNSUPPORTED);
        if (!strstr(err.message, why))
                fail_msg("wanted \"%s\", got \"%s\"", why, err.message);
        close_chat(&c);
}

static void test_refused(void **state)
{
        struct tdm_chat_call calls[2] = { { { "1", 1 }, { "f", 1 }, { "{}", 2 } },
                                          { { "2", 1 }, { "f", 1 }, { "{}", 2 } } };
        struct tdm_chat_message turn[] = { M(USER, "A"), M(ASSISTANT, ""), M(TOOL, "1") };
        const struct tdm_chat_message two_users[] = { M(USER, "A"), M(USER, "B") };
        struct tdm_chat_options options = { .tools = { "[{\"name\": \"a\"}, {}]", 19 } };

        refused("qwen3", turn, 1, &options, "tools: the one at index 1 is not {");
        options.tools = (struct tdm_chat_text){ "{}", 2 };
        refused("qwen3", turn, 1, &options, "the tools are not a JSON array");
        options.tools = (struct tdm_chat_text){ "[", 1 };
        refused("qwen3", turn, 1, &options, "the tools: not JSON");
        refused("qwen3", turn, 0, NULL, "there are no messages");
        refused("chatml", turn, 3, NULL, "message 3 is a tool's result, and no call");
        turn[1].calls = calls;
        turn[1].n_calls = 2;
        refused("qwen3", turn, 2, NULL, "answer its calls");
        refused("llama3.1", turn, 3, NULL, "refuses the conversation: This model takes one tool call at once");
        refused("gpt-oss", turn, 3, NULL, "refuses the conversation: one tool call in a message");
        calls[1].arguments = (struct tdm_chat_text){ "[1]", 3 };
        refused("qwen2.5", turn, 3, NULL, "a call's arguments are not a JSON object");
        turn[1].n_calls = 1;
        refused("mistral", turn, 3, NULL, "the id of a tool call has 9 letters or digits");
        refused("mistral", two_users, 2, NULL, "user and assistant take turns");
        turn[1].n_calls = 0;
        refused("gpt-oss", turn, 3, NULL, "a tool answers, and there is no call before it");
        options = (struct tdm_chat_options){ .thinking = TDM_CHAT_THINK_OFF };
        refused("gpt-oss", turn, 1, &options, "no switch for thinking");
        options = (struct tdm_chat_options){ .effort = TDM_CHAT_EFFORT_LOW };
        refused("qwen3", turn, 1, &options, "does not read how much to think (reasoning_effort)");
}

/* A template that shows no tools, calls or results gets them as text. */
static void test_flat(void **state)
{
        static const char explained[] =
                "You can call tools. A call is written so, with the tool's name and its arguments as JSON:\n"
                "```tool_call\n{\"name\": \"NAME\", \"arguments\": {\"ARGUMENT\": VALUE}}\n```\n"
                "Several calls may follow one another.\n"
                "Write nothing behind a call: its result comes in the next message. Call a tool only where it helps; "
                "else answer in words.\nThe tools, each with a JSON Schema of its arguments:\n{\"name\":\"f\"}";
        static const char without_system[] = "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}{{ "
                                             "raise_exception('no') }}{% endif %}"
                                             "<{{ m.role }}>{{ m.content }}{% endfor %}";
        static const char calls_text[] = "```tool_call\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n```\n"
                                         "```tool_call\n{\"name\": \"f\", \"arguments\": {}}\n```";
        static const char results[] = "```tool_output f\n21\n```\n\n```tool_output\n22\n```";
        struct tdm_chat_call calls[2] = { { { "1", 1 }, { "f", 1 }, { "{\"a\": 1}", 8 } },
                                          { { "2", 1 }, { "f", 1 }, { "", 0 } } };
        struct tdm_chat_message messages[] = { M(SYSTEM, "Be brief."), M(USER, "A"),  M(ASSISTANT, "I look."),
                                               M(TOOL, "21"),          M(TOOL, "22"), M(USER, "B") };
        const struct tdm_chat_options options = { .tools = { "[{\"function\":{\"name\":\"f\"}}]", 27 } };
        struct chat c = open_chat_with(find("chatml"), without_system, NULL);
        char want[4096];

        messages[2].calls = calls;
        messages[2].n_calls = 2;
        messages[3].name = (struct tdm_chat_text){ "f", 1 };
        snprintf(want, sizeof(want),
                 "<|im_start|>system\nBe brief.\n\n%s<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n"
                 "I look.\n%s<|im_end|>\n<|im_start|>user\n%s\n\nB<|im_end|>\n<|im_start|>assistant\n",
                 explained, calls_text, results);
        reads("chatml", messages, 6, &options, want);
        snprintf(want, sizeof(want),
                 "<|im_start|>system\n%s<|im_end|>\n<|im_start|>user\nA<|im_end|>\n"
                 "<|im_start|>assistant\n",
                 explained);
        reads("chatml", messages + 1, 1, &options, want);
        snprintf(want, sizeof(want), "<user>%s\n\nA<assistant>I look.\n%s<user>%s", explained, calls_text, results);
        assert_reads(find("chatml"), &c, messages + 1, 4, &options, want);
        close_chat(&c);
}

/* What a template takes is found by rendering. */
static void test_probes(void **state)
{
        static const struct {
                const char *family;
                bool tools;
                enum tdm_chat_thoughts thoughts;
        } cases[] = {
                { "qwen3", true, TDM_CHAT_THOUGHTS_SWITCH },  { "qwen3-thinking", true, TDM_CHAT_THOUGHTS_ALWAYS },
                { "qwen2.5", true, TDM_CHAT_THOUGHTS_NONE },  { "chatml", true, TDM_CHAT_THOUGHTS_NONE },
                { "gemma4", true, TDM_CHAT_THOUGHTS_SWITCH }, { "gpt-oss", true, TDM_CHAT_THOUGHTS_EFFORT },
                { "llama3.1", true, TDM_CHAT_THOUGHTS_NONE }, { "mistral", true, TDM_CHAT_THOUGHTS_NONE }
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                struct chat c = open_chat(find(cases[i].family));

                assert_int_equal(tdm_chat_has_tools(c.chat), cases[i].tools);
                assert_int_equal(tdm_chat_thoughts_of(c.chat), cases[i].thoughts);
                for (int k = 0; k < 3; k++)
                        assert_int_equal(tdm_chat_opens_thought(c.chat, false, (enum tdm_chat_thinking)k),
                                         strcmp(cases[i].family, "qwen3-thinking") == 0);
                assert_null(tdm_chat_refusal(c.chat));
                assert_true(tdm_chat_reads(c.chat, "messages") && !tdm_chat_reads(c.chat, "thinking_budget"));
                close_chat(&c);
        }
}

/* Arguments are text for a template that joins them to others. */
static void test_text_arguments(void **state)
{
        static const char template[] =
                "{% for m in messages %}{% if m['tool_calls'] %}{{ '<tool_call>' + "
                "m['tool_calls'][0]['function']['name'] + ':' + m['tool_calls'][0]['function']['arguments'] }}"
                "{% else %}{{ m.content }}{% endif %}{% endfor %}";
        const struct tdm_chat_call call = { { "1", 1 }, { "f", 1 }, { "{\"a\":  \"b\"}", 11 } };
        struct tdm_chat_message messages[] = { M(USER, "A"), M(ASSISTANT, ""), M(TOOL, "1") };
        struct chat c = open_chat_with(find("qwen3"), template, NULL);

        messages[1].calls = &call;
        messages[1].n_calls = 1;
        assert_reads(find("qwen3"), &c, messages, 3, NULL, "A<tool_call>f:{\"a\":  \"b\"}1");
        close_chat(&c);
}

/* A template for tools beside the other one, as transformers takes them. */
static void test_named(void **state)
{
        const struct tdm_chat_message hi = M(USER, "Hi");
        const struct tdm_chat_options options = { .tools = { "[{\"name\":\"f\"}]", 14 } };
        const struct named_template named = { "tokenizer.chat_template.tool_use",
                                              "{{ tools[0].function.name }}: {{ messages[-1].content[-2:] }}" };
        const struct named_template broken = { "tokenizer.chat_template.tool_use", "{% if %}" };
        struct chat c = open_chat_with(find("qwen3"), "{{ messages[0].content }}", &named);
        struct tdm_chat_prompt prompt;
        struct tdm_error err;

        assert_reads(find("qwen3"), &c, &hi, 1, NULL, "Hi");
        assert_reads(find("qwen3"), &c, &hi, 1, &options, "f: Hi");
        close_chat(&c);
        c = open_chat_with(find("qwen3"), "{{ messages[0].content }}", &broken);
        assert_reads(find("qwen3"), &c, &hi, 1, NULL, "Hi");
        assert_int_equal(tdm_chat_render(c.chat, &hi, 1, &options, &prompt, &err), TDM_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "the model's template for tools: line 1, column "));
        close_chat(&c);
}

static void unusable(const char *template, const char *state, const char *why)
{
        const struct tdm_chat_message hi = M(USER, "Hi");
        struct chat c = open_chat_with(find("qwen3"), template, NULL);
        struct tdm_chat_prompt prompt;
        struct tdm_error err;

        assert_int_equal(tdm_chat_render(c.chat, &hi, 1, NULL, &prompt, &err), TDM_E_UNSUPPORTED);
        assert_string_equal(err.message, tdm_chat_refusal(c.chat));
        if (!strstr(err.message, why) || !strstr(tdm_chat_state(c.chat), state))
                fail_msg("%s: %s", tdm_chat_state(c.chat), err.message);
        assert_false(tdm_chat_has_tools(c.chat));
        assert_int_equal(tdm_chat_thoughts_of(c.chat), TDM_CHAT_THOUGHTS_NONE);
        close_chat(&c);
}

static void test_unusable(void **state)
{
        unusable(NULL, "none", "the model has no chat template; send the prompt raw");
        unusable("{{ messages }}\n{% if messages %}", "line 2", "line 2, column ");
        unusable("{% include 'x' %}", "line 1", "; send the prompt raw");
}

/* A limit that is reached is the template's fault, and says so. */
static void test_limit(void **state)
{
        const struct tdm_chat_message hi = M(USER, "Hi");
        struct chat c = open_chat_with(find("qwen3"),
                                       "{% for a in range(99) %}{% for b in range(99) %}{% for c in range(99) %}{% "
                                       "endfor %}{% endfor %}{% endfor %}",
                                       NULL);
        struct tdm_chat_prompt prompt;
        struct tdm_error err;

        assert_int_equal(tdm_chat_render(c.chat, &hi, 1, NULL, &prompt, &err), TDM_E_TOO_LONG);
        assert_non_null(strstr(err.message, "the model's chat template is at fault, not the conversation: line 1 of "
                                            "the chat template: it takes more "));
        close_chat(&c);
}

/* What people and tools write stays text, whatever it spells: no turn, no channel, no call comes of it. */
static void test_forging(void **state)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(vocabularies); i++) {
                const struct vocabulary *v = &vocabularies[i];
                struct chat c = open_chat(v);
                char text[1024] = "x", arguments[2048] = "{\"", tools[4096];
                struct tdm_chat_call call = { { "abc123XYZ", 9 }, { "get", 3 }, { "{}", 2 } };
                struct tdm_chat_message m[] = { M(SYSTEM, "S"), M(USER, "U"), M(ASSISTANT, ""), M(TOOL, "T") };
                struct tdm_chat_options options = { .tools = { "[{\"name\":\"get\"}]", 16 } };
                size_t markers[2] = { 0 }, n = tdm_chat_has_tools(c.chat) ? 4 : 2;

                options.tools.size = n == 4 ? strlen(options.tools.data) : 0;
                m[2].calls = &call;
                m[2].n_calls = 1;
                m[3].call_id = call.id;
                for (unsigned forged = 0; forged < 2; forged++) {
                        static uint32_t ids[16384];
                        struct tdm_chat_prompt prompt;
                        struct tdm_error err = { 0 };
                        ssize_t n_ids;

                        if (tdm_chat_render(c.chat, m, n, &options, &prompt, &err))
                                fail_msg("%s: %s", v->family, err.message);
                        n_ids = tdm_chat_encode(c.chat, &prompt, NULL, ids, TDM_ARRAY_SIZE(ids));
                        assert_true(n_ids > 0 && (size_t)n_ids < TDM_ARRAY_SIZE(ids));
                        for (ssize_t k = 0; k < n_ids; k++)
                                markers[forged] += ids[k] < v->n && !tdm_tokenizer_may_form(c.tokenizer, ids[k]);
                        tdm_chat_prompt_deinit(&prompt);
                        for (uint32_t k = 0; k < v->n; k++)
                                strcat(text, v->markers[k].text);
                        snprintf(arguments, sizeof(arguments), "{\"%s\":[\"%s\"]}", text, text);
                        snprintf(tools, sizeof(tools), "[{\"name\":\"get\",\"description\":\"%s\",\"parameters\":%s}]",
                                 text, arguments);
                        for (unsigned k = 0; k < 4; k++)
                                if (k != 2)
                                        m[k].size = strlen(m[k].text = text);
                        call.name = text_of(text);
                        call.arguments = text_of(arguments);
                        if (n == 4)
                                options.tools = text_of(tools);
                }
                assert_int_equal(markers[0], markers[1]);
                assert_true(markers[0] > 0);
                close_chat(&c);
        }
}

/* The first piece is BOS, and no other. */
static void assert_bos(const struct chat *c, const struct tdm_chat_message *message)
{
        struct tdm_chat_prompt prompt;
        struct tdm_error err;
        uint32_t ids[64];
        ssize_t n;

        assert_int_equal(tdm_chat_render(c->chat, message, 1, NULL, &prompt, &err), 0);
        n = tdm_chat_encode(c->chat, &prompt, NULL, ids, TDM_ARRAY_SIZE(ids));
        assert_true(n > 1 && n <= (ssize_t)TDM_ARRAY_SIZE(ids));
        for (ssize_t i = 0; i < n; i++)
                assert_int_equal(ids[i] == (uint32_t)tdm_tokenizer_bos(c->tokenizer), i == 0);
        tdm_chat_prompt_deinit(&prompt);
}

/* BOS stands once, whether the template writes it or the file asks for it. */
static void test_bos(void **state)
{
        const struct tdm_chat_message hi = M(USER, "Hi");
        const struct tdm_chat_message forged = M(USER, "<|begin_of_text|>");
        struct chat c = open_chat_with(find("llama3"), "{{ bos_token }}{{ messages[0].content }}", NULL);

        assert_reads(find("llama3"), &c, &hi, 1, NULL, "<|begin_of_text|>Hi");
        close_chat(&c);
        c = open_chat_with(find("llama3"), "{{ messages[0].content }}", NULL);
        assert_reads(find("llama3"), &c, &hi, 1, NULL, "<|begin_of_text|>Hi");
        close_chat(&c);
        /* What a message spells is none. */
        c = open_chat_with(find("llama3"), "{{ messages[0].content }}", NULL);
        assert_bos(&c, &forged);
        close_chat(&c);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_golden),         cmocka_unit_test(test_other_forms),
                cmocka_unit_test(test_thinking),       cmocka_unit_test(test_digits),
                cmocka_unit_test(test_prefill),        cmocka_unit_test(test_refused),
                cmocka_unit_test(test_probes),         cmocka_unit_test(test_flat),
                cmocka_unit_test(test_text_arguments), cmocka_unit_test(test_named),
                cmocka_unit_test(test_unusable),       cmocka_unit_test(test_limit),
                cmocka_unit_test(test_forging),        cmocka_unit_test(test_bos),
        };

        if (tdm_sigbus_init() < 0)
                return 1;
        setenv("TZ", "UTC", 1);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
