/* The parameters of Ollama's API. */
#include "http-gateway/params-rows.h"

#define OLLAMA_COMMON                                                                                                  \
        HONOURED("model", PARAM_STRING, 0, 0, "the daemon's default; `:latest` is left out"),                          \
                HONOURED("stream", PARAM_BOOL, 0, 0, "lines of JSON; true"),                                           \
                HONOURED("options", PARAM_OBJECT, 0, 0, "see below"),                                                  \
                HONOURED("keep_alive", PARAM_ANY, 0, 0, "0 without a prompt unloads; else how long the model stays"),  \
                HONOURED("format", PARAM_ANY, 0, 0, "`json`, or a JSON Schema"),                                       \
                HONOURED("think", PARAM_ANY, 0, 0, "as the template has it; true, false, low, medium, high"),          \
                HARMLESS("truncate", "a prompt that is too long is refused"),                                          \
                HARMLESS("shift", "an answer ends with the context"),                                                  \
                REFUSED("logprobs", NEUTRAL_FALSE, "not reported here"),                                               \
                REFUSED("_debug_render_only", NEUTRAL_FALSE, "prompts are not shown"),                                 \
                REFUSED("top_logprobs", NEUTRAL_ZERO, "alternatives are not reported yet")

static const struct param ollama_chat_rows[] = {
        OLLAMA_COMMON,
        HONOURED("messages", PARAM_ARRAY, 0, 0, "none: load the model"),
        HONOURED("tools", PARAM_ARRAY, 0, 0, "functions; not with a format"),
        TEMPLATE_KWARGS,
};
TABLE(params_ollama_chat, "POST /api/chat", "", ollama_chat_rows);

static const struct param ollama_generate_rows[] = {
        OLLAMA_COMMON,
        HONOURED("prompt", PARAM_STRING, 0, 0, "none: load the model"),
        HONOURED("system", PARAM_STRING, 0, 0, "a system message in front"),
        HONOURED("raw", PARAM_BOOL, 0, 0, "true: no chat template"),
        HONOURED("images", PARAM_ARRAY, 0, 0, "pictures in base64, in front of the prompt"),
        REFUSED("suffix", NEUTRAL_EMPTY, "text is only continued, not filled in"),
        REFUSED("template", NEUTRAL_EMPTY, "the model's own template is applied"),
        REFUSED("context", NEUTRAL_EMPTY, "send the conversation to /api/chat"),
};
TABLE(params_ollama_generate, "POST /api/generate", "", ollama_generate_rows);

static const struct param ollama_option_rows[] = {
        HONOURED("num_predict", PARAM_INTEGER, -2, MAX_TOKENS, "-1, -2 and 0: until the model ends"),
        HONOURED("num_ctx", PARAM_INTEGER, -1, MAX_TOKENS, "prompt and answer; a longer prompt is refused; 0, -1: off"),
        HONOURED("temperature", PARAM_NUMBER, 0, 100, "0.8"),
        HONOURED("top_k", PARAM_INTEGER, -1, MAX_TOKENS, "40; 0 and -1: off"),
        HONOURED("top_p", PARAM_NUMBER, 0, 1, "0.9"),
        HONOURED("min_p", PARAM_NUMBER, 0, 1, "0"),
        HONOURED("repeat_penalty", PARAM_NUMBER, 0, 10, "1.1"),
        HONOURED("repeat_last_n", PARAM_INTEGER, -1, 256, "64; 0: no repeat_penalty; -1: 256, the most"),
        HONOURED("seed", PARAM_INTEGER, SEED_LOW, SEED_HIGH, "random; -1: random, too"),
        HONOURED("stop", PARAM_ANY, 0, 0, "a text, or up to 16"),
        HONOURED("frequency_penalty", PARAM_NUMBER, -2, 2, "0; the last 256 tokens of the answer count"),
        HONOURED("presence_penalty", PARAM_NUMBER, -2, 2, "0; the last 256 tokens of the answer count"),
        SPECULATION,
        REFUSED("typical_p", NEUTRAL_ONE, "not supported"),
        REFUSED("tfs_z", NEUTRAL_ONE, "not supported"),
        REFUSED("mirostat", NEUTRAL_ZERO, "not supported"),
        HARMLESS("mirostat_eta", "mirostat is off"),
        HARMLESS("mirostat_tau", "mirostat is off"),
        REFUSED("penalize_newline", NEUTRAL_TRUE, "a line end counts as every token"),
        HARMLESS("num_keep", "nothing is dropped from a context"),
        HARMLESS("num_batch", "the daemon decides"),
        HARMLESS("num_gpu", "the daemon decides"),
        HARMLESS("main_gpu", "the daemon decides"),
        HARMLESS("num_thread", "the daemon decides"),
        HARMLESS("use_mmap", "the daemon decides"),
        HARMLESS("use_mlock", "the daemon decides"),
        HARMLESS("low_vram", "the daemon decides"),
        HARMLESS("numa", "the daemon decides"),
        HARMLESS("f16_kv", "the daemon decides"),
        HARMLESS("logits_all", "the daemon decides"),
        REFUSED("vocab_only", NEUTRAL_FALSE, "a model without weights makes no text"),
};
TABLE(params_ollama_options, "Ollama's `options`", "options.", ollama_option_rows);

static const struct param ollama_message_rows[] = {
        HONOURED("role", PARAM_STRING, 0, 0, "system, user, assistant, tool"),
        HONOURED("content", PARAM_STRING, 0, 0, ""),
        HONOURED("images", PARAM_ARRAY, 0, 0, "pictures in base64, in front of the content"),
        HONOURED("tool_calls", PARAM_ARRAY, 0, 0, "of the assistant's messages"),
        HONOURED("tool_name", PARAM_STRING, 0, 0, "of a tool's messages"),
        HONOURED("name", PARAM_STRING, 0, 0, "the older form of tool_name"),
        HONOURED("tool_call_id", PARAM_STRING, 0, 0, "of a tool's messages"),
        HONOURED("thinking", PARAM_STRING, 0, 0, "where the template keeps it: between calls"),
};
TABLE(params_ollama_message, "A message of Ollama's API", "messages[].", ollama_message_rows);

static const struct param ollama_show_rows[] = {
        HONOURED("model", PARAM_STRING, 0, 0, "required; `:latest` is left out"),
        HONOURED("name", PARAM_STRING, 0, 0, "the older form of model"),
        { "verbose", PARAM_IGNORED, PARAM_ANY, 0, 0, NEUTRAL_FALSE, "there is no longer answer; false: no warning",
          NULL },
        REFUSED("system", NEUTRAL_EMPTY, "no Modelfile is shown"),
        REFUSED("template", NEUTRAL_EMPTY, "no Modelfile is shown"),
        REFUSED("options", NEUTRAL_EMPTY, "no Modelfile is shown"),
};
TABLE(params_ollama_show, "POST /api/show", "", ollama_show_rows);

static const struct param ollama_embed_rows[] = {
        HONOURED("model", PARAM_STRING, 0, 0, "the daemon's default"),
        HONOURED("input", PARAM_ANY, 0, 0, "of /api/embed: a text, or up to 2048"),
        HONOURED("prompt", PARAM_STRING, 0, 0, "of /api/embeddings: the text"),
        HONOURED("dimensions", PARAM_INTEGER, 1, 65536, "that number of first values, made a vector of length 1"),
        HARMLESS("truncate", "a text that is too long is refused, never cut"),
        HARMLESS("keep_alive", "the daemon decides"),
        OBJECT("options", PARAM_HARMLESS, &params_ollama_options, "none of them has to do with vectors"),
};
TABLE(params_ollama_embed, "POST /api/embed, POST /api/embeddings", "", ollama_embed_rows);
