/* What a template takes and writes, found by rendering short conversations when the model is loaded. */
#include "engine/chat/private.h"

/* What a probe may take; a released template takes less than a tenth. */
#define PROBE_STEPS 100000u
#define PROBE_BYTES (UINT64_C(4) << 20)

#define QUESTION "{\"messages\":[{\"role\":\"user\",\"content\":\"Question?\"}],\"add_generation_prompt\":true"

static const char question[] = QUESTION "}";
static const char thinks[] = QUESTION ",\"enable_thinking\":true,\"thinking\":true}";
static const char thinks_not[] = QUESTION ",\"enable_thinking\":false,\"thinking\":false}";

/* A call and its answer; the arguments stand in between. Mistral's templates want ids like this one. */
static const char call_before[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Question?\"},{\"role\":\"assistant\",\"content\":\"\","
        "\"tool_calls\":[{\"type\":\"function\",\"id\":\"tdmcall01\",\"function\":{\"name\":\"tdm_tool\","
        "\"arguments\":";
static const char call_behind[] =
        "}}]},{\"role\":\"tool\",\"tool_call_id\":\"tdmcall01\",\"name\":\"tdm_tool\",\"content\":\"1\"}],"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"tdm_tool\",\"description\":\"A tool.\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{}}}}],\"add_generation_prompt\":true}";
static const char as_object[] = "{\"tdm_key\": \"tdm_value\"}";
static const char as_text[] = "\"{\\\"tdm_key\\\": \\\"tdm_value\\\"}\"";

/* The text, or NULL where the template fails on the input. */
static int probe_render(const struct tdm_chat *chat, const struct tdm_chat_template *t, const char *input, char **ret)
{
        static const struct tm now = { .tm_year = 126, .tm_mday = 1, .tm_wday = 4 };
        static const struct tdm_template_limits limits = { PROBE_STEPS, PROBE_BYTES };
        struct tdm_template_result result;
        struct tdm_error err;
        int r;

        r = tdm_chat_render_input(chat, t, input, strlen(input), &limits, &now, false, &result, &err);
        *ret = r == 0 ? steal_ptr(&result.text) : NULL;
        tdm_template_result_deinit(&result);
        return r < 0 ? r : 0;
}

/* Whether it ends with the start of a thought. */
static bool is_opened(const char *text)
{
        size_t size = text ? strlen(text) : 0;

        while (size > 0 && strchr(" \n", text[size - 1]))
                size--;
        return size >= 7 && memcmp(text + size - 7, "<think>", 7) == 0;
}

static int probe_thinking(const struct tdm_chat *chat, struct tdm_chat_template *t)
{
        static const char *const inputs[] = {
                [TDM_CHAT_THINK_AS_TRAINED] = question, [TDM_CHAT_THINK_OFF] = thinks_not, [TDM_CHAT_THINK_ON] = thinks
        };
        char *texts[TDM_ARRAY_SIZE(inputs)] = { 0 };
        int r = 0;

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(inputs) && r == 0; i++) {
                r = probe_render(chat, t, inputs[i], &texts[i]);
                t->opens_thought[i] = is_opened(texts[i]);
        }
        t->switches_thinking = texts[TDM_CHAT_THINK_ON] && texts[TDM_CHAT_THINK_OFF] &&
                               strcmp(texts[TDM_CHAT_THINK_ON], texts[TDM_CHAT_THINK_OFF]) != 0;
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(inputs); i++)
                free(texts[i]);
        return r;
}

static bool has(const char *text, const char *what)
{
        return text && strstr(text, what);
}

/* As an object where that works. A text is quoted twice by templates that want objects, and an object is printed as
 * Python prints it by templates that want texts. */
static enum tdm_chat_arguments arguments_of(const char *object, const char *text)
{
        if (has(object, "tdm_key") && !has(object, "\\\"tdm_key") && !has(object, "'tdm_key'"))
                return TDM_CHAT_ARGUMENTS_OBJECT;
        if (has(text, as_object))
                return TDM_CHAT_ARGUMENTS_TEXT;
        return has(object, "tdm_key") ? TDM_CHAT_ARGUMENTS_OBJECT : TDM_CHAT_ARGUMENTS_NONE;
}

static enum tdm_chat_call_form form_of(const struct tdm_tokenizer *tokenizer, const char *text)
{
        static const struct {
                enum tdm_chat_call_form form;
                const char *text;
        } forms[] = {
                { TDM_CHAT_CALLS_TAGGED, "<tool_call>\n{\"name\": \"tdm_tool\", \"arguments\": {\"tdm_key\"" },
                { TDM_CHAT_CALLS_WHOLE, "<|end_header_id|>\n\n{\"name\": \"tdm_tool\", \"parameters\": {\"tdm_key\"" },
                { TDM_CHAT_CALLS_LISTED, "[TOOL_CALLS][{\"name\": \"tdm_tool\", \"arguments\": {\"tdm_key\"" },
                { TDM_CHAT_CALLS_LISTED, "[TOOL_CALLS] [{\"name\": \"tdm_tool\", \"arguments\": {\"tdm_key\"" },
                { TDM_CHAT_CALLS_CHANNELLED,
                  " to=functions.tdm_tool<|channel|>commentary json<|message|>{\"tdm_key\"" },
        };
        static const char *const channels[] = { "<|start|>", "<|message|>", "<|end|>", "<|channel|>", "<|call|>" };
        enum tdm_chat_call_form form = TDM_CHAT_CALLS_NONE;
        uint32_t id;

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(forms) && form == TDM_CHAT_CALLS_NONE; i++)
                if (has(text, forms[i].text))
                        form = forms[i].form;
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(channels) && form == TDM_CHAT_CALLS_CHANNELLED; i++)
                if (tdm_tokenizer_find_marker(tokenizer, channels[i], &id) < 0)
                        form = TDM_CHAT_CALLS_NONE;
        return form;
}

static int probe_calls(const struct tdm_chat *chat, struct tdm_chat_template *t)
{
        char input[sizeof(call_before) + sizeof(as_text) + sizeof(call_behind)];
        _cleanup_(freep) char *object = NULL, *text = NULL;
        int r;

        snprintf(input, sizeof(input), "%s%s%s", call_before, as_object, call_behind);
        r = probe_render(chat, t, input, &object);
        if (r < 0)
                return r;
        snprintf(input, sizeof(input), "%s%s%s", call_before, as_text, call_behind);
        r = probe_render(chat, t, input, &text);
        if (r < 0)
                return r;
        t->arguments = arguments_of(object, text);
        t->calls = form_of(chat->tokenizer, t->arguments == TDM_CHAT_ARGUMENTS_TEXT ? text : object);
        return 0;
}

int tdm_chat_probe(const struct tdm_chat *chat, struct tdm_chat_template *t, const char *source, size_t size)
{
        int r = probe_thinking(chat, t);

        t->splits_thinking = memmem(source, size, "</think>", 8) != NULL;
        if (r == 0 && tdm_template_reads(t->template, "tool_calls"))
                r = probe_calls(chat, t);
        return r;
}
