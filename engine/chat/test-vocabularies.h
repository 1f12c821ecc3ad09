/* Vocabularies with the pieces that templates of a form are made of, and those templates, for tests. */
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

/* The template of a family is tests/golden/chat/templates/FAMILY.jinja. */
static const struct vocabulary {
        const char *family;
        const struct marker *markers;
        uint32_t n;
        bool add_bos;
        int32_t eos; /* -1: none */
} vocabularies[] = {
        { "llama3.1", llama_markers, TDM_ARRAY_SIZE(llama_markers), true, -1 },
        { "llama3.2", llama_markers, TDM_ARRAY_SIZE(llama_markers), true, -1 },
        { "llama3", llama_markers, TDM_ARRAY_SIZE(llama_markers), true, -1 },
        { "qwen2.5", qwen_markers, TDM_ARRAY_SIZE(qwen_markers), false, 2 },
        { "qwen3", qwen_markers, TDM_ARRAY_SIZE(qwen_markers), false, 2 },
        { "qwen3-thinking", qwen_markers, TDM_ARRAY_SIZE(qwen_markers), false, 2 },
        { "chatml", qwen_markers, TDM_ARRAY_SIZE(qwen_markers), false, 2 },
        { "gpt-oss", oss_markers, TDM_ARRAY_SIZE(oss_markers), false, 6 },
        { "mistral", mistral_markers, TDM_ARRAY_SIZE(mistral_markers), true, 1 },
        { "gemma4", gemma4_markers, TDM_ARRAY_SIZE(gemma4_markers), true, 2 },
};

struct chat {
        struct tdm_tokenizer *tokenizer;
        struct tdm_chat *chat;
};

static inline void close_chat(struct chat *c)
{
        tdm_chat_destroy(c->chat);
        tdm_tokenizer_destroy(c->tokenizer);
        *c = (struct chat){ 0 };
}

/* A named template of the file beside the first one. */
struct named_template {
        const char *key, *source;
};

/* template may be NULL. */
static inline struct chat open_chat_with(const struct vocabulary *v, const char *template,
                                         const struct named_template *named)
{
        struct gguf_builder b = { 0 };
        struct tdm_gguf *g = NULL;
        struct chat c = { 0 };
        struct tdm_error err;
        char byte[8];
        int fd;

        build_header(&b, 0, 7u + (v->eos >= 0) + (template != NULL) + (named != NULL));
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
        if (v->eos >= 0)
                build_key_u32(&b, "tokenizer.ggml.eos_token_id", (uint32_t)v->eos);
        if (template)
                build_key_string(&b, "tokenizer.chat_template", template);
        if (named)
                build_key_string(&b, named->key, named->source);
        fd = build_fd(b.data, b.size);
        build_reset(&b);
        assert_int_equal(tdm_gguf_open(&g, fd, "chat", &err), 0);
        close(fd);
        if (tdm_tokenizer_new(&c.tokenizer, g, &err))
                fail_msg("%s", err.message);
        assert_int_equal(tdm_chat_new(&c.chat, g, c.tokenizer, 0), 0);
        tdm_gguf_close(g);
        return c;
}

static inline char *read_template(const char *family)
{
        char path[128], *text = malloc(16384);
        size_t size;
        FILE *f;

        snprintf(path, sizeof(path), "tests/golden/chat/templates/%s.jinja", family);
        f = fopen(path, "re");
        assert_non_null(f);
        size = fread(text, 1, 16383, f);
        text[size] = '\0';
        fclose(f);
        return text;
}

static inline struct chat open_chat(const struct vocabulary *v)
{
        char *template = read_template(v->family);
        struct chat c = open_chat_with(v, template, NULL);

        free(template);
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
