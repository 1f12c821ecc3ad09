/* Rendered conversations against tests/golden/chat/rendered.chats, and what is refused. */
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

/* The ids read like text, and each marker in it is one piece. */
static void assert_reads(const struct vocabulary *v, const struct chat *c, const struct tdm_chat_message *messages,
                         size_t n_messages, const struct tdm_chat_options *options, const char *text)
{
        static uint32_t ids[16384];
        static char read[16384];
        size_t size = 0, found = 0, wanted = 0;
        struct tdm_error err = { 0 };
        ssize_t n = tdm_chat_render(c->family, c->tokenizer, messages, n_messages, options, NULL, ids,
                                    TDM_ARRAY_SIZE(ids), &err);

        if (n < 0)
                fail_msg("%s: %s", v->family, err.message);
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
        struct tdm_chat_parser *parser;
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
        if (tdm_chat_tools_grammar(&grammar, c->family, c->tokenizer, &use, NULL, &err))
                fail_msg("%s", err.message);
        assert_int_equal(tdm_matcher_new(&matcher, grammar, vocabulary), 0);
        assert_int_equal(tdm_chat_parser_new(&parser, c->family, c->tokenizer, true), 0);
        for (ssize_t i = 0; i < n; i++) {
                const struct tdm_chat_part *parts;
                const char *data;
                size_t n_parts, size = tdm_tokenizer_piece(c->tokenizer, ids[i], false, &data);

                if (tdm_matcher_accept(matcher, ids[i]) != 1)
                        fail_msg("token %zd of %.*s is not allowed", i, (int)turn.size, turn.data);
                if (size == 0) {
                        data = bytes;
                        size = tdm_vocabulary_marker(c->tokenizer, ids[i], bytes, sizeof(bytes));
                }
                assert_int_equal(tdm_chat_parser_push(parser, data, size, &parts, &n_parts), 0);
                for (size_t k = 0; k < n_parts; k++) {
                        if (parts[k].kind == TDM_CHAT_PART_CALL)
                                snprintf(got, sizeof(got), "%.*s", (int)parts[k].size, parts[k].data);
                        else if (parts[k].kind == TDM_CHAT_PART_ARGUMENTS)
                                strncat(arguments, parts[k].data, parts[k].size);
                }
        }
        assert_true(tdm_matcher_is_whole(matcher));
        assert_string_equal(got, name);
        /* The templates write the same JSON with spaces behind its marks; no value here has one. */
        snprintf(want, sizeof(want), "%.*s", (int)call->arguments.size, call->arguments.data);
        assert_string_equal(without_spaces(arguments), without_spaces(want));
        tdm_chat_parser_destroy(parser);
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
                        tdm_tokenizer_destroy(chat.tokenizer);
                        v = find(rest);
                        chat = open_chat(v, v->template);
                        assert_string_equal(tdm_chat_family_name(chat.family), rest);
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
        tdm_tokenizer_destroy(chat.tokenizer);
        fclose(f);
}

/* ---- families without a golden, and what is refused ---- */

#define M(who, words)                                                                                                  \
        {                                                                                                              \
                .role = TDM_CHAT_##who, .text = (words), .size = strlen(words)                                         \
        }

static void reads(const char *family, const struct tdm_chat_message *messages, size_t n,
                  const struct tdm_chat_options *options, const char *text)
{
        const struct vocabulary *v = find(family);
        struct chat c = open_chat(v, v->template);

        assert_string_equal(tdm_chat_family_name(c.family), family);
        assert_int_equal(tdm_chat_family_by_name(family), c.family);
        assert_reads(v, &c, messages, n, options, text);
        tdm_tokenizer_destroy(c.tokenizer);
}

static void test_other_families(void **state)
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
        reads("qwen2", chat + 1, 1, NULL,
              "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
              "<|im_start|>assistant\n");
        reads("qwen3-thinking", chat + 1, 1, NULL,
              "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n<think>\n");
        reads("qwen3-instruct", chat, 2, NULL,
              "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n");
        reads("mistral-v7", chat, 4, NULL,
              "<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST] Hi [/INST]Hello.</s>[INST]2+2?[/INST]");
        reads("gemma4", chat, 4, NULL,
              "<bos><|turn>system\nBe brief.<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\nHello.<turn|>\n"
              "<|turn>user\n2+2?<turn|>\n<|turn>model\n");
        reads("gemma4", chat + 1, 1, &think,
              "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nHi<turn|>\n"
              "<|turn>model\n");
        reads("gemma4-large", chat + 1, 1, &think,
              "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n");
        reads("gemma4-large", thought, 3, NULL,
              "<bos><|turn>user\nHi<turn|>\n<|turn>model\nHello.<turn|>\n<|turn>user\n2+2?<turn|>\n<|turn>model\n"
              "<|channel>thought\n<channel|>");
}

/* Thoughts behind the last question stay, earlier ones go, also where they stand in the text. */
static void test_thinking(void **state)
{
        const struct tdm_chat_call call = { { "1", 1 }, { "f", 1 }, { "{}", 2 } };
        struct tdm_chat_message messages[] = { M(USER, "A"), M(ASSISTANT, "<think>\nearly\n</think>\n\nB"),
                                               M(USER, "C"), M(ASSISTANT, "<think>\nlate\n</think>\n\nD"),
                                               M(TOOL, "1"), M(TOOL, "2") };

        messages[3].calls = &call;
        messages[3].n_calls = 1;
        reads("qwen3", messages, 6, NULL,
              "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n"
              "<|im_start|>assistant\n<think>\nlate\n</think>\n\nD\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n"
              "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n"
              "</tool_response><|im_end|>\n<|im_start|>assistant\n");
}

/* Types of parameters, as gpt-oss's template writes them. */
static void test_typescript(void **state)
{
        static const char tools[] =
                "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"F.\",\"parameters\":{"
                "\"properties\":{"
                "\"a\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"nullable\":true},\"b\":{\"type\":["
                "\"string\","
                "\"null\"]},\"c\":{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"boolean\",\"default\":true}],"
                "\"default\":\"x\"},"
                "\"d\":{\"type\":\"object\",\"properties\":{\"e\":{\"type\":\"number\"},\"g\":{}},\"required\":[\"g\"]}"
                ","
                "\"h\":{\"type\":\"string\",\"enum\":[\"u\",\"v\"],\"default\":\"u\"},\"i\":{\"type\":\"string\","
                "\"nullable\":true},\"j\":{\"type\":\"array\"}}}}},{\"function\":{\"name\":\"g\",\"description\":\"G."
                "\"}}]";
        const struct tdm_chat_message hi = M(USER, "Hi");
        const struct tdm_chat_options options = { .tools = { tools, sizeof(tools) - 1 },
                                                  .effort = TDM_CHAT_EFFORT_LOW,
                                                  .now = 1795435200 };

        reads("gpt-oss", &hi, 1, &options,
              "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
              "Knowledge cutoff: 2024-06\nCurrent date: 2026-11-23\n\nReasoning: low\n\n# Valid channels: analysis, "
              "commentary, final. Channel must be included for every message.\nCalls to these tools must go to the "
              "commentary channel: 'functions'.<|end|><|start|>developer<|message|># Tools\n\n## functions\n\n"
              "namespace functions {\n\n// F.\ntype f = (_: {\na?: number[] | null,\nb?: string | null,\n"
              "c?: string | boolean// default: true// default: x,\nd?: {\ne?: number, g: any},\n"
              "h?: \"u\" | \"v\", // default: u,\ni?: string | null,\nj?: any[],\n}) => any;\n\n"
              "// G.\ntype g = () => any;\n\n} // namespace functions<|end|><|start|>user<|message|>Hi<|end|>"
              "<|start|>assistant");
}

static void refused(const char *family, const struct tdm_chat_message *messages, size_t n,
                    const struct tdm_chat_options *options, const char *why)
{
        const struct vocabulary *v = find(family);
        struct chat c = open_chat(v, v->template);
        struct tdm_error err = { 0 };

        assert_int_equal(tdm_chat_render(c.family, c.tokenizer, messages, n, options, NULL, NULL, 0, &err), -EINVAL);
        if (!strstr(err.message, why))
                fail_msg("wanted \"%s\", got \"%s\"", why, err.message);
        tdm_tokenizer_destroy(c.tokenizer);
}

static void test_refused(void **state)
{
        const struct tdm_chat_call calls[2] = { { { "1", 1 }, { "f", 1 }, { "{}", 2 } },
                                                { { "2", 1 }, { "f", 1 }, { "[1]", 3 } } };
        struct tdm_chat_message turn[] = { M(USER, "A"), M(ASSISTANT, ""), M(TOOL, "1") };
        const struct tdm_chat_message two_users[] = { M(USER, "A"), M(USER, "B") };
        struct tdm_chat_options options = { .tools = { "[{\"function\":{\"name\":\"f\"}}]", 28 } };

        options.tools.size = strlen(options.tools.data);
        refused("llama3", turn, 1, &options, "tools have no form in the model's chat template (llama3)");
        refused("gemma4", turn, 1, &options, "tools have no form");
        options.tools = (struct tdm_chat_text){ "[{}]", 4 };
        refused("qwen3", turn, 1, &options, "a tool is not {");
        options.tools = (struct tdm_chat_text){ "{}", 2 };
        refused("qwen3", turn, 1, &options, "the tools are not a JSON array");
        options.tools = (struct tdm_chat_text){ "[", 1 };
        refused("qwen3", turn, 1, &options, "the tools: not JSON");
        refused("qwen3", turn, 0, NULL, "there are no messages");
        refused("qwen3", turn, 2, NULL, "the last message is the assistant's own");
        refused("chatml", turn, 3, NULL, "tool calls have no form");
        turn[1].calls = calls;
        turn[1].n_calls = 2;
        refused("llama3.1", turn, 3, NULL, "takes one tool call in a message, not 2");
        refused("gpt-oss", turn, 3, NULL, "takes one tool call in a message, not 2");
        refused("mistral", turn, 3, NULL, "to have 9 letters or digits, this one has 1");
        refused("qwen2.5", turn, 3, NULL, "a call's arguments: not a JSON object");
        refused("mistral", two_users, 2, NULL, "message 2: behind the first system message");
        turn[1].n_calls = 0;
        refused("gpt-oss", turn, 3, NULL, "message 3 answers a tool's call, and there is none before it");
        options = (struct tdm_chat_options){ .thinking = TDM_CHAT_THINK_OFF };
        refused("gpt-oss", turn, 1, &options, "cannot be told not to think");
}

/* As released: line ends in the template's strings are line ends, not backslash-n. */
static void test_real_line_ends(void **state)
{
#define TURNS                                                                                                          \
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"           \
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
        static const struct {
                const char *family, *system, *template;
        } cases[] = {
                { "qwen2", "You are a helpful assistant.",
                  "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
                  "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}" TURNS },
                { "smollm2", "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
                  "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
                  "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
                  "<|im_end|>\n' }}{% endif %}" TURNS },
        };
        const struct tdm_chat_message chat[] = { M(USER, "Hi") };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                struct chat c = open_chat(find("qwen2"), cases[i].template);
                char text[256];

                assert_string_equal(tdm_chat_family_name(c.family), cases[i].family);
                snprintf(text, sizeof(text),
                         "<|im_start|>system\n%s<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
                         cases[i].system);
                assert_reads(find("qwen2"), &c, chat, 1, NULL, text);
                tdm_tokenizer_destroy(c.tokenizer);
        }
}

/* A template that says more than is known is not taken for its nearest relative. */
static void test_unknown(void **state)
{
        static const char *const templates[] = {
                "<|im_start|>system\\nYou are Hermes, created by Nous<|im_end|>",
                "{{'<|im_start|>'}}<think>{{'\\n</think>'}}",
                "{{'<|im_start|>'}}<tool_call>\\n<function=f>You are Qwen, created by Alibaba Cloud",
                "[INST] {{ prompt }} [/INST]",
                "<\xef\xbd\x9cUser\xef\xbd\x9c>",
                "",
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(templates); i++) {
                struct chat c = open_chat(find("qwen3"), templates[i]);

                assert_int_equal(c.family, TDM_CHAT_NONE);
                tdm_tokenizer_destroy(c.tokenizer);
        }
        /* The markers of the template are not in the vocabulary. */
        for (size_t i = 0; i < TDM_ARRAY_SIZE(vocabularies); i++) {
                struct chat c = open_chat(find(i < 3 ? "gpt-oss" : "llama3"), vocabularies[i].template);

                assert_int_equal(c.family, TDM_CHAT_NONE);
                tdm_tokenizer_destroy(c.tokenizer);
        }
}

/* What a user writes stays text, whatever it spells: no turn, no channel, no call comes of it. */
static void test_forging(void **state)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(vocabularies); i++) {
                const struct vocabulary *v = &vocabularies[i];
                struct chat c = open_chat(v, v->template);
                uint32_t honest[4096], forged[4096];
                ssize_t n_honest, n_forged;
                size_t markers = 0, formed = 0;
                char text[1024] = "x";
                struct tdm_chat_message m = { TDM_CHAT_USER, text, 1 };

                n_honest = tdm_chat_encode(c.family, c.tokenizer, &m, 1, honest, 4096);
                for (uint32_t k = 0; k < v->n; k++) {
                        strcat(text, v->markers[k].text);
                        formed += tdm_tokenizer_may_form(c.tokenizer, k);
                        assert_int_equal(tdm_tokenizer_may_form(c.tokenizer, k),
                                         v->markers == qwen_markers && v->markers[k].type == 4);
                }
                m.size = strlen(text);
                n_forged = tdm_chat_encode(c.family, c.tokenizer, &m, 1, forged, 4096);
                assert_true(n_honest > 0 && n_forged > n_honest);
                for (ssize_t k = 0; k < n_forged; k++)
                        markers += forged[k] < v->n;
                for (ssize_t k = 0; k < n_honest; k++)
                        markers -= honest[k] < v->n;
                assert_int_equal(markers, formed);
                tdm_tokenizer_destroy(c.tokenizer);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_golden),   cmocka_unit_test(test_other_families),
                cmocka_unit_test(test_thinking), cmocka_unit_test(test_typescript),
                cmocka_unit_test(test_refused),  cmocka_unit_test(test_real_line_ends),
                cmocka_unit_test(test_unknown),  cmocka_unit_test(test_forging),
        };

        if (tdm_sigbus_init() < 0)
                return 1;
        setenv("TZ", "UTC", 1);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
