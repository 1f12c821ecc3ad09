/* The table of families, how one is recognised, and what all renderers share the start and the end of. */
#include "engine/chat/private.h"

/* From the most particular to the least: the first row that fits is taken. */
static const struct row {
        enum tdm_chat_family family;
        struct tdm_chat_row row;
} rows[] = {
        { TDM_CHAT_GPT_OSS,
          { .name = "gpt-oss",
            .with = { "<|start|>", "<|channel|>", "<|message|>" },
            .markers = { "<|start|>", "<|message|>", "<|end|>", "<|channel|>", "<|call|>" },
            .tools = true,
            .calls = TDM_CHAT_CALLS_CHANNELLED,
            .render = tdm_chat_render_gpt_oss } },
        { TDM_CHAT_GEMMA4_LARGE,
          { .name = "gemma4-large",
            .with = { "<|turn>", "<turn|>", "<|channel>thought\\n<channel|>" },
            .markers = { "<|turn>", "<turn|>" },
            .thinking = true,
            .empty_thought = true,
            .starts_with_bos = true,
            .render = tdm_chat_render_gemma4 } },
        { TDM_CHAT_GEMMA4,
          { .name = "gemma4",
            .with = { "<|turn>", "<turn|>" },
            .markers = { "<|turn>", "<turn|>" },
            .thinking = true,
            .starts_with_bos = true,
            .render = tdm_chat_render_gemma4 } },
        { TDM_CHAT_GEMMA,
          { .name = "gemma",
            .with = { "<start_of_turn>" },
            .markers = { "<start_of_turn>", "<end_of_turn>" },
            .render = tdm_chat_render_gemma } },
        { TDM_CHAT_LLAMA32,
          { .name = "llama3.2",
            .with = { "<|start_header_id|>", "Cutting Knowledge Date", "strftime_now" },
            .markers = { "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>" },
            .says_today = true,
            .tools = true,
            .calls = TDM_CHAT_CALLS_WHOLE,
            .starts_with_bos = true,
            .render = tdm_chat_render_llama31 } },
        { TDM_CHAT_LLAMA31,
          { .name = "llama3.1",
            .with = { "<|start_header_id|>", "Cutting Knowledge Date", "26 Jul 2024" },
            .markers = { "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>" },
            .tools = true,
            .calls = TDM_CHAT_CALLS_WHOLE,
            .starts_with_bos = true,
            .render = tdm_chat_render_llama31 } },
        { TDM_CHAT_LLAMA3,
          { .name = "llama3",
            .with = { "<|start_header_id|>" },
            .without = { "Cutting Knowledge Date" },
            .markers = { "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>" },
            .starts_with_bos = true,
            .render = tdm_chat_render_llama3 } },
        { TDM_CHAT_QWEN25,
          { .name = "qwen2.5",
            .with = { "<|im_start|>", "You are Qwen, created by Alibaba Cloud", "<tool_call>" },
            .without = { "think>", "<function=" },
            .markers = { "<|im_start|>", "<|im_end|>" },
            .system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
            .tools = true,
            .render = tdm_chat_render_qwen25 } },
        { TDM_CHAT_QWEN3,
          { .name = "qwen3",
            .with = { "<|im_start|>", "<tool_call>", "</think>", "enable_thinking" },
            .without = { "<function=" },
            .markers = { "<|im_start|>", "<|im_end|>" },
            .tools = true,
            .thinking = true,
            .splits_thinking = true,
            .render = tdm_chat_render_qwen3 } },
        { TDM_CHAT_QWEN3_THINKING,
          { .name = "qwen3-thinking",
            .with = { "<|im_start|>", "<tool_call>", "</think>", "assistant\\n<think>\\n" },
            .without = { "<function=", "enable_thinking" },
            .markers = { "<|im_start|>", "<|im_end|>" },
            .tools = true,
            .splits_thinking = true,
            .always_thinks = true,
            .render = tdm_chat_render_qwen3 } },
        { TDM_CHAT_QWEN3_INSTRUCT,
          { .name = "qwen3-instruct",
            .with = { "<|im_start|>", "<tool_call>", "<tools>" },
            .without = { "think>", "<function=", "You are " },
            .markers = { "<|im_start|>", "<|im_end|>" },
            .tools = true,
            .render = tdm_chat_render_qwen3 } },
        { TDM_CHAT_QWEN2,
          { .name = "qwen2",
            .with = { "<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n" },
            .without = { "<tool_call>", "think>" },
            .markers = { "<|im_start|>", "<|im_end|>" },
            .system = "You are a helpful assistant.",
            .render = tdm_chat_render_chatml } },
        { TDM_CHAT_SMOLLM2,
          { .name = "smollm2",
            .with = { "<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
                      "Face<|im_end|>\\n" },
            .without = { "<tool_call>", "think>" },
            .markers = { "<|im_start|>", "<|im_end|>" },
            .system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
            .render = tdm_chat_render_chatml } },
        { TDM_CHAT_CHATML,
          { .name = "chatml",
            .with = { "<|im_start|>" },
            .without = { "think>", "You are " }, /* says more than is known here */
            .markers = { "<|im_start|>", "<|im_end|>" },
            .render = tdm_chat_render_chatml } },
        { TDM_CHAT_MISTRAL_V7,
          { .name = "mistral-v7",
            .with = { "[INST]", "[SYSTEM_PROMPT]" },
            .without = { "[THINK]", "[ARGS]" },
            .markers = { "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "</s>" },
            .system_turn = true,
            .starts_with_bos = true,
            .render = tdm_chat_render_mistral } },
        { TDM_CHAT_MISTRAL,
          { .name = "mistral",
            .with = { "[INST]", "[AVAILABLE_TOOLS][", "[TOOL_CALLS][" },
            .without = { "[SYSTEM_PROMPT]", "[INST] ", "[ARGS]" },
            .markers = { "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]" },
            .tools = true,
            .calls = TDM_CHAT_CALLS_LISTED,
            .starts_with_bos = true,
            .render = tdm_chat_render_mistral } },
};

const struct tdm_chat_row *tdm_chat_row_of(enum tdm_chat_family family)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(rows); i++) {
                if (rows[i].family == family)
                        return &rows[i].row;
        }
        return NULL;
}

const char *tdm_chat_family_name(enum tdm_chat_family family)
{
        const struct tdm_chat_row *row = tdm_chat_row_of(family);

        return row ? row->name : "none";
}

enum tdm_chat_family tdm_chat_family_by_name(const char *name)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(rows); i++) {
                if (strcmp(rows[i].row.name, name) == 0)
                        return rows[i].family;
        }
        return TDM_CHAT_NONE;
}

bool tdm_chat_family_has_tools(enum tdm_chat_family family)
{
        const struct tdm_chat_row *row = tdm_chat_row_of(family);

        return row && row->tools;
}

bool tdm_chat_family_can_think(enum tdm_chat_family family)
{
        const struct tdm_chat_row *row = tdm_chat_row_of(family);

        return row && row->thinking;
}

enum tdm_chat_thoughts tdm_chat_family_thoughts(enum tdm_chat_family family)
{
        const struct tdm_chat_row *row = tdm_chat_row_of(family);

        if (!row)
                return TDM_CHAT_THOUGHTS_NONE;
        return row->thinking                              ? TDM_CHAT_THOUGHTS_SWITCH :
               row->calls == TDM_CHAT_CALLS_CHANNELLED    ? TDM_CHAT_THOUGHTS_EFFORT :
               row->splits_thinking || row->always_thinks ? TDM_CHAT_THOUGHTS_ALWAYS :
                                                            TDM_CHAT_THOUGHTS_NONE;
}

/* A line end in a template's string may be written as one or as backslash-n, as rows have it: Qwen 2 and SmolLM2 were
 * released with the former. */
static bool template_has(struct tdm_gguf_string template, const char *text)
{
        char ended[128];
        size_t n = 0;

        if (memmem(template.data, template.size, text, strlen(text)))
                return true;
        for (const char *from = text; *from && n < sizeof(ended); from++, n++) {
                ended[n] = *from;
                if (from[0] == '\\' && from[1] == 'n') {
                        ended[n] = '\n';
                        from++;
                }
        }
        return memmem(template.data, template.size, ended, n);
}

static bool chat_fits(const struct tdm_chat_row *row, struct tdm_gguf_string template,
                      const struct tdm_tokenizer *tokenizer)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(row->with) && row->with[i]; i++) {
                if (!template_has(template, row->with[i]))
                        return false;
        }
        for (size_t i = 0; i < TDM_ARRAY_SIZE(row->without) && row->without[i]; i++) {
                if (template_has(template, row->without[i]))
                        return false;
        }
        for (size_t i = 0; i < TDM_ARRAY_SIZE(row->markers) && row->markers[i]; i++) {
                uint32_t id;

                if (tdm_tokenizer_find_marker(tokenizer, row->markers[i], &id) < 0 ||
                    tdm_tokenizer_may_form(tokenizer, id))
                        return false;
        }
        return true;
}

enum tdm_chat_family tdm_chat_family_of(const struct tdm_gguf *gguf, const struct tdm_tokenizer *tokenizer)
{
        struct tdm_gguf_string template;

        if (tdm_gguf_get_string(gguf, "tokenizer.chat_template", &template) < 0)
                return TDM_CHAT_NONE;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(rows); i++) {
                if (chat_fits(&rows[i].row, template, tokenizer))
                        return rows[i].family;
        }
        return TDM_CHAT_NONE;
}

static int check_messages(struct tdm_chat_writer *w)
{
        if (w->n_messages == 0)
                return tdm_chat_refuse(w, "there are no messages");
        for (size_t i = 0; i < w->n_messages; i++) {
                const struct tdm_chat_message *m = &w->messages[i];

                if ((unsigned)m->role > TDM_CHAT_TOOL)
                        return tdm_chat_refuse(w, "message %zu has no role", i + 1);
                if (!w->row->tools && (m->role == TDM_CHAT_TOOL || m->n_calls > 0))
                        return tdm_chat_refuse(w, "tool calls have no form in the model's chat template (%s)",
                                               w->row->name);
                if (m->n_calls > 0 && m->role != TDM_CHAT_ASSISTANT)
                        return tdm_chat_refuse(w, "message %zu has tool calls and is not the assistant's", i + 1);
        }
        if (w->messages[w->n_messages - 1].role == TDM_CHAT_ASSISTANT)
                return tdm_chat_refuse(w, "the last message is the assistant's own");
        if (w->options.thinking == TDM_CHAT_THINK_OFF && w->row->render == tdm_chat_render_gpt_oss)
                return tdm_chat_refuse(w, "gpt-oss cannot be told not to think; ask for low effort");
        return 0;
}

static int read_tools(struct tdm_chat_writer *w)
{
        struct tdm_error err;

        if (w->options.tools.size == 0)
                return 0;
        if (!w->row->tools)
                return tdm_chat_refuse(w, "tools have no form in the model's chat template (%s)", w->row->name);
        if (tdm_json_parse(&w->tools, w->options.tools.data, w->options.tools.size, 64, &err) != 0)
                return tdm_chat_refuse(w, "the tools: %s", err.message);
        if (w->tools.nodes[0].type != TDM_JSON_ARRAY)
                return tdm_chat_refuse(w, "the tools are not a JSON array");
        for (uint32_t tool = w->tools.nodes[0].first; tool != TDM_JSON_NONE; tool = w->tools.nodes[tool].next) {
                uint32_t function = tdm_chat_function(w, tool), name = TDM_JSON_NONE;

                if (w->tools.nodes[function].type == TDM_JSON_OBJECT)
                        name = tdm_json_member(&w->tools, function, "name");
                if (name == TDM_JSON_NONE || w->tools.nodes[name].type != TDM_JSON_STRING)
                        return tdm_chat_refuse(w,
                                               "a tool is not {\"type\": \"function\", \"function\": {\"name\": …}}");
        }
        return 0;
}

static int put_bos(struct tdm_chat_writer *w)
{
        int32_t bos = tdm_tokenizer_bos(w->tokenizer);

        if (!w->row->starts_with_bos)
                return tdm_chat_flush(w, TDM_TOKENIZE_BOS); /* no text yet: BOS alone, where the file says so */
        if (bos < 0)
                return 0;
        if (w->n_ids < w->capacity)
                w->ids[w->n_ids] = (uint32_t)bos;
        w->n_ids++;
        return 0;
}

ssize_t tdm_chat_render(enum tdm_chat_family family, const struct tdm_tokenizer *tokenizer,
                        const struct tdm_chat_message *messages, size_t n_messages,
                        const struct tdm_chat_options *options, struct tdm_encode_budget *budget, uint32_t *ids,
                        size_t capacity, struct tdm_error *err)
{
        struct tdm_error local;
        struct tdm_chat_writer w = { .row = tdm_chat_row_of(family),
                                     .tokenizer = tokenizer,
                                     .messages = messages,
                                     .n_messages = n_messages,
                                     .ids = ids,
                                     .capacity = capacity,
                                     .budget = budget,
                                     .err = err ? err : &local };
        int r;

        if (options)
                w.options = *options;
        if (!w.row)
                return tdm_chat_refuse(&w, "the model has no chat template that is known here");
        r = check_messages(&w);
        if (r == 0)
                r = read_tools(&w);
        if (r == 0)
                r = put_bos(&w);
        if (r == 0)
                r = w.row->render(&w);
        if (r == 0)
                r = tdm_chat_flush(&w, 0);
        free(w.run.data);
        tdm_json_deinit(&w.tools);
        return r < 0 ? r : (ssize_t)w.n_ids;
}

ssize_t tdm_chat_encode_within(enum tdm_chat_family family, const struct tdm_tokenizer *tokenizer,
                               const struct tdm_chat_message *messages, size_t n_messages,
                               struct tdm_encode_budget *budget, uint32_t *ids, size_t capacity)
{
        return tdm_chat_render(family, tokenizer, messages, n_messages, NULL, budget, ids, capacity, NULL);
}

ssize_t tdm_chat_encode(enum tdm_chat_family family, const struct tdm_tokenizer *tokenizer,
                        const struct tdm_chat_message *messages, size_t n_messages, uint32_t *ids, size_t capacity)
{
        return tdm_chat_encode_within(family, tokenizer, messages, n_messages, NULL, ids, capacity);
}
