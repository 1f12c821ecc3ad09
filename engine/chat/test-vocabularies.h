/* Vocabularies with the pieces that each family's template is made of, for tests. */
#ifndef TDM_ENGINE_CHAT_TEST_VOCABULARIES_H
#define TDM_ENGINE_CHAT_TEST_VOCABULARIES_H

#include "engine/chat/chat.h"
#include "engine/file/test-gguf-builder.h"

/* The pieces that the families' frames are made of; the first is BOS. */
static const struct marker {
        const char *text;
        uint8_t type;
} llama_markers[] = { { "<|begin_of_text|>", 3 },
                      { "<|start_header_id|>", 3 },
                      { "<|end_header_id|>", 3 },
                      { "<|eot_id|>", 3 } },
  qwen_markers[] = { { "<|endoftext|>", 3 },    { "<|im_start|>", 3 }, { "<|im_end|>", 3 },
                     { "<tool_call>", 4 },      { "</tool_call>", 4 }, { "<tool_response>", 4 },
                     { "</tool_response>", 4 }, { "<think>", 4 },      { "</think>", 4 } },
  oss_markers[] = { { "<|startoftext|>", 3 }, { "<|start|>", 4 }, { "<|message|>", 4 }, { "<|end|>", 4 },
                    { "<|channel|>", 4 },     { "<|call|>", 3 },  { "<|return|>", 3 } },
  mistral_markers[] = { { "<s>", 3 },
                        { "</s>", 3 },
                        { "[INST]", 3 },
                        { "[/INST]", 3 },
                        { "[AVAILABLE_TOOLS]", 3 },
                        { "[/AVAILABLE_TOOLS]", 3 },
                        { "[TOOL_CALLS]", 3 },
                        { "[TOOL_RESULTS]", 3 },
                        { "[/TOOL_RESULTS]", 3 },
                        { "[SYSTEM_PROMPT]", 3 },
                        { "[/SYSTEM_PROMPT]", 3 } },
  gemma4_markers[] = { { "<bos>", 3 },      { "<|turn>", 3 },   { "<turn|>", 3 },     { "<|channel>", 4 },
                       { "<channel|>", 4 }, { "<|think|>", 4 }, { "<|tool_call>", 4 } };

static const struct vocabulary {
        const char *family;
        const struct marker *markers;
        uint32_t n;
        bool add_bos;
        const char *template; /* what the family is recognised by, in the middle of other things */
} vocabularies[] = {
        { "llama3.1", llama_markers, TDM_ARRAY_SIZE(llama_markers), true,
          "{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}{{- \"Cutting Knowledge Date: December 2023\\n\" "
          "}}"
          "{%- set date_string = \"26 Jul 2024\" %}" },
        { "llama3.2", llama_markers, TDM_ARRAY_SIZE(llama_markers), true,
          "{%- if strftime_now is defined %}{%- set date_string = strftime_now(\"%d %b %Y\") %}{%- else %}"
          "{%- set date_string = \"26 Jul 2024\" %}<|start_header_id|>Cutting Knowledge Date: December 2023\\n" },
        { "llama3", llama_markers, TDM_ARRAY_SIZE(llama_markers), true,
          "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | "
          "trim" },
        { "qwen2.5", qwen_markers, TDM_ARRAY_SIZE(qwen_markers), false,
          "{{- '<|im_start|>system\\n' }}You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
          "<tools></tools>\\n<tool_call>\\n" },
        { "qwen3", qwen_markers, TDM_ARRAY_SIZE(qwen_markers), false,
          "{{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content + '\\n</think>\\n\\n' }}<tool_call>"
          "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}" },
        { "qwen3-thinking", qwen_markers, TDM_ARRAY_SIZE(qwen_markers), false,
          "{{- '<|im_start|>' }}'\\n</think>\\n\\n'<tool_call>{{- '<|im_start|>assistant\\n<think>\\n' }}" },
        { "qwen3-instruct", qwen_markers, TDM_ARRAY_SIZE(qwen_markers), false,
          "{{- '<|im_start|>system\\n' }}<tools></tools>\\n<tool_call>\\n" },
        { "qwen2", qwen_markers, TDM_ARRAY_SIZE(qwen_markers), false,
          "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}" },
        { "chatml", qwen_markers, TDM_ARRAY_SIZE(qwen_markers), false, "{{'<|im_start|>' + message['role'] + '\\n'}}" },
        { "gpt-oss", oss_markers, TDM_ARRAY_SIZE(oss_markers), false,
          "{{- \"<|start|>system<|message|>\" }}<|channel|>analysis" },
        { "mistral", mistral_markers, TDM_ARRAY_SIZE(mistral_markers), true,
          "{{- \"[AVAILABLE_TOOLS][\" }}{{- \"[INST]\" + system_message }}{{- \"[TOOL_CALLS][\" }}" },
        { "mistral-v7", mistral_markers, TDM_ARRAY_SIZE(mistral_markers), true,
          "{{- '[SYSTEM_PROMPT]' + system_message + '[/SYSTEM_PROMPT]' }}{{- '[INST]' + content + '[/INST]' }}" },
        { "gemma4", gemma4_markers, TDM_ARRAY_SIZE(gemma4_markers), true,
          "{{- '<|turn>system\\n' }}{{- '<turn|>\\n' }}" },
        { "gemma4-large", gemma4_markers, TDM_ARRAY_SIZE(gemma4_markers), true,
          "{{- '<|turn>system\\n' }}{{- '<turn|>\\n' }}{{- '<|channel>thought\\n<channel|>' }}" },
};

struct chat {
        struct tdm_tokenizer *tokenizer;
        enum tdm_chat_family family;
};

static inline struct chat open_chat(const struct vocabulary *v, const char *template)
{
        struct gguf_builder b = { 0 };
        struct tdm_gguf *g = NULL;
        struct chat c = { 0 };
        struct tdm_error err;
        char byte[8];
        int fd;

        build_header(&b, 0, 8);
        build_key_string(&b, "tokenizer.ggml.model", "llama");
        build_array(&b, "tokenizer.ggml.tokens", VALUE_STRING, v->n + 256);
        for (uint32_t i = 0; i < v->n; i++)
                build_string(&b, v->markers[i].text);
        for (unsigned i = 0; i < 256; i++) {
                snprintf(byte, sizeof(byte), "<0x%02X>", i & 255u);
                build_string(&b, byte);
        }
        build_array(&b, "tokenizer.ggml.scores", VALUE_F32, v->n + 256);
        for (uint32_t i = 0; i < v->n + 256; i++)
                build_f32(&b, 0.0f);
        build_array(&b, "tokenizer.ggml.token_type", VALUE_I32, v->n + 256);
        for (uint32_t i = 0; i < v->n + 256; i++)
                build_u32(&b, i < v->n ? v->markers[i].type : 6);
        build_key_bool(&b, "tokenizer.ggml.add_space_prefix", false);
        build_key_bool(&b, "tokenizer.ggml.add_bos_token", v->add_bos);
        build_key_u32(&b, "tokenizer.ggml.bos_token_id", 0);
        build_key_string(&b, "tokenizer.chat_template", template);
        fd = build_fd(b.data, b.size);
        build_reset(&b);
        assert_int_equal(tdm_gguf_open(&g, fd, "chat", &err), 0);
        close(fd);
        if (tdm_tokenizer_new(&c.tokenizer, g, &err))
                fail_msg("%s", err.message);
        c.family = tdm_chat_family_of(g, c.tokenizer);
        tdm_gguf_close(g);
        return c;
}

static inline const struct vocabulary *find(const char *family)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(vocabularies); i++) {
                if (strcmp(vocabularies[i].family, family) == 0)
                        return &vocabularies[i];
        }
        fail_msg("no vocabulary for %s", family);
        return NULL;
}

#endif
