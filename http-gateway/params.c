/* The tables, and the one check for all of them. */
#include "http-gateway/params.h"

#define HONOURED(name, type, low, high, note)                                                                          \
        {                                                                                                              \
                name, PARAM_HONOURED, type, low, high, 0, note, NULL                                                   \
        }
#define HARMLESS(name, note)                                                                                           \
        {                                                                                                              \
                name, PARAM_HARMLESS, PARAM_ANY, 0, 0, 0, note, NULL                                                   \
        }
#define OBJECT(name, class, table, note)                                                                               \
        {                                                                                                              \
                name, class, PARAM_OBJECT, 0, 0, 0, note, table                                                        \
        }
#define IGNORED(name, note)                                                                                            \
        {                                                                                                              \
                name, PARAM_IGNORED, PARAM_ANY, 0, 0, 0, note, NULL                                                    \
        }
#define REFUSED(name, neutral, note)                                                                                   \
        {                                                                                                              \
                name, PARAM_REFUSED, PARAM_ANY, 0, 0, neutral, note, NULL                                              \
        }
#define TABLE(symbol, title, context, rows)                                                                            \
        const struct param_table symbol = { title, context, rows, TDM_ARRAY_SIZE(rows) }

#define MAX_TOKENS 2147483647.0
#define SEED_LOW (-9223372036854775807.0 - 1)
#define SEED_HIGH 9223372036854775807.0

#define NO_TOOLS "not supported here yet; /v1/chat/completions has tools"
#define OWN_TOOLS "tools run at the client"
#define ONE_MODALITY "models read and write text only"

/* Of every API that makes text. In OpenAI's and Anthropic's beside the others, in Ollama's among its options. */
#define SPECULATION                                                                                                    \
        HONOURED("speculation", PARAM_STRING, 0, 0, "an extension; auto, off, lookup, draft"),                         \
                HONOURED("draft", PARAM_STRING, 0, 0, "an extension; the model that guesses"),                         \
                HONOURED("draft_max", PARAM_INTEGER, 0, 16, "an extension; guesses in a step; 0: as configured")

/* What both of OpenAI's older endpoints share. */
#define OPENAI_COMMON                                                                                                  \
        HONOURED("model", PARAM_STRING, 0, 0, "the daemon's default"),                                                 \
                HONOURED("stream", PARAM_BOOL, 0, 0, "server-sent events"),                                            \
                HONOURED("stream_options", PARAM_OBJECT, 0, 0, "`include_usage`"),                                     \
                HONOURED("temperature", PARAM_NUMBER, 0, 2, "1"), HONOURED("top_p", PARAM_NUMBER, 0, 1, "1"),          \
                HONOURED("top_k", PARAM_INTEGER, -1, MAX_TOKENS, "an extension; 0, off; -1: off"),                     \
                HONOURED("min_p", PARAM_NUMBER, 0, 1, "an extension; 0, off"),                                         \
                HONOURED("repetition_penalty", PARAM_NUMBER, 0, 10, "an extension; 1, off"),                           \
                HONOURED("seed", PARAM_INTEGER, SEED_LOW, SEED_HIGH, "random; choice i of n uses seed + i"),           \
                HONOURED("stop", PARAM_ANY, 0, 0, "a text, or up to 16"),                                              \
                HONOURED("n", PARAM_INTEGER, 1, 16, "each choice is a job of its own"),                                \
                HONOURED("response_format", PARAM_OBJECT, 0, 0, "text, json_object, json_schema"),                     \
                HONOURED("grammar", PARAM_STRING, 0, 0, "an extension; GBNF"),                                         \
                HONOURED("regex", PARAM_STRING, 0, 0, "an extension; the whole answer matches"),                       \
                HONOURED("frequency_penalty", PARAM_NUMBER, -2, 2, "0, off; the last 256 tokens of the answer count"), \
                HONOURED("presence_penalty", PARAM_NUMBER, -2, 2, "0, off; the last 256 tokens of the answer count"),  \
                HONOURED("logit_bias", PARAM_OBJECT, 0, 0, "biases from -100 to 100 by token id; up to 512"),          \
                SPECULATION, HARMLESS("user", "who asks; not used"), HARMLESS("metadata", "not kept"),                 \
                HARMLESS("service_tier", "there is one tier"), HARMLESS("store", "nothing is kept"),                   \
                HARMLESS("safety_identifier", "not used"), HARMLESS("prompt_cache_key", "every prompt is cached"),     \
                HARMLESS("prompt_cache_retention", "the cache decides itself")

static const struct param chat_rows[] = {
        HONOURED("messages", PARAM_ARRAY, 0, 0, "required"),
        OPENAI_COMMON,
        HONOURED("max_tokens", PARAM_INTEGER, 1, MAX_TOKENS, "until the model ends"),
        HONOURED("max_completion_tokens", PARAM_INTEGER, 1, MAX_TOKENS, "goes before max_tokens"),
        HONOURED("logprobs", PARAM_BOOL, 0, 0, "of the chosen tokens"),
        HONOURED("top_logprobs", PARAM_INTEGER, 0, 20, "0; beside logprobs: alternatives of each token"),
        HONOURED("tools", PARAM_ARRAY, 0, 0, "functions; not with a format, a grammar or a regex"),
        HONOURED("tool_choice", PARAM_ANY, 0, 0, "auto, none, required, or a function"),
        REFUSED("functions", NEUTRAL_EMPTY, "the older form of tools"),
        REFUSED("function_call", NEUTRAL_NONE | NEUTRAL_AUTO, "the older form of tool_choice"),
        HONOURED("parallel_tool_calls", PARAM_BOOL, 0, 0, "false: at most one call"),
        REFUSED("modalities", NEUTRAL_TEXT | NEUTRAL_EMPTY, ONE_MODALITY),
        REFUSED("audio", NEUTRAL_EMPTY, ONE_MODALITY),
        REFUSED("prediction", NEUTRAL_EMPTY, "a predicted output is not supported"),
        HONOURED("reasoning_effort", PARAM_STRING, 0, 0, "as the template has it; none, minimal to xhigh"),
        HONOURED("reasoning_budget", PARAM_INTEGER, -1, MAX_TOKENS, "an extension; thoughts end there; -1; 0: none"),
        REFUSED("verbosity", NEUTRAL_EMPTY | NEUTRAL_MEDIUM, "no model has this"),
        REFUSED("web_search_options", NEUTRAL_EMPTY, "nothing is searched"),
};
TABLE(params_chat, "POST /v1/chat/completions", "", chat_rows);

static const struct param completion_rows[] = {
        HONOURED("prompt", PARAM_ANY, 0, 0, "required: a text, ids, or up to 16 of either"),
        OPENAI_COMMON,
        HONOURED("max_tokens", PARAM_INTEGER, 1, MAX_TOKENS, "16"),
        HONOURED("logprobs", PARAM_INTEGER, 0, 20, "of the chosen tokens, and this number of alternatives"),
        REFUSED("echo", NEUTRAL_FALSE, "the prompt is not repeated"),
        REFUSED("suffix", NEUTRAL_EMPTY, "text is only continued, not filled in"),
        REFUSED("best_of", NEUTRAL_ONE, "choices are not ranked"),
};
TABLE(params_completions, "POST /v1/completions", "", completion_rows);

static const struct param message_rows[] = {
        HONOURED("role", PARAM_STRING, 0, 0, "system, developer, user, assistant, tool"),
        HONOURED("content", PARAM_ANY, 0, 0, "a text, or parts of text"),
        REFUSED("name", NEUTRAL_EMPTY, "no chat template takes names"),
        HONOURED("tool_calls", PARAM_ARRAY, 0, 0, "of the assistant's messages"),
        HONOURED("tool_call_id", PARAM_STRING, 0, 0, "of a tool's messages"),
        REFUSED("function_call", NEUTRAL_EMPTY, "the older form of tool_calls"),
        REFUSED("audio", NEUTRAL_EMPTY, ONE_MODALITY),
        HARMLESS("refusal", "not part of the prompt"),
        HARMLESS("annotations", "not part of the prompt"),
        HONOURED("reasoning_content", PARAM_STRING, 0, 0, "where the template keeps it: between calls"),
        HARMLESS("type", "of an item of /v1/responses"),
        HARMLESS("id", "of an item of /v1/responses"),
        HARMLESS("status", "of an item of /v1/responses"),
};
TABLE(params_message, "A message of OpenAI's APIs", "messages[].", message_rows);

static const struct param response_rows[] = {
        HONOURED("model", PARAM_STRING, 0, 0, "the daemon's default"),
        HONOURED("input", PARAM_ANY, 0, 0, "required: a text, or messages"),
        HONOURED("instructions", PARAM_STRING, 0, 0, "a system message in front"),
        HONOURED("max_output_tokens", PARAM_INTEGER, 1, MAX_TOKENS, "until the model ends"),
        HONOURED("temperature", PARAM_NUMBER, 0, 2, "1"),
        HONOURED("top_p", PARAM_NUMBER, 0, 1, "1"),
        HONOURED("stream", PARAM_BOOL, 0, 0, "server-sent events"),
        HONOURED("seed", PARAM_INTEGER, SEED_LOW, SEED_HIGH, "an extension; random"),
        SPECULATION,
        OBJECT("stream_options", PARAM_HONOURED, &params_stream_options, "usage always comes, nothing is obfuscated"),
        HARMLESS("store", "nothing is kept"),
        HARMLESS("metadata", "repeated in the answer"),
        HARMLESS("user", "not used"),
        HARMLESS("safety_identifier", "not used"),
        HARMLESS("service_tier", "there is one tier"),
        HARMLESS("prompt_cache_key", "every prompt is cached"),
        HARMLESS("prompt_cache_retention", "the cache decides itself"),
        HONOURED("parallel_tool_calls", PARAM_BOOL, 0, 0, "repeated; there are no tool calls"),
        HARMLESS("max_tool_calls", "there are no tool calls"),
        REFUSED("previous_response_id", NEUTRAL_EMPTY, "nothing is kept; send the whole conversation"),
        REFUSED("conversation", NEUTRAL_EMPTY, "nothing is kept; send the whole conversation"),
        REFUSED("prompt", NEUTRAL_EMPTY, "there are no stored prompts"),
        HONOURED("text", PARAM_OBJECT, 0, 0, "`format`: text, json_object, json_schema"),
        REFUSED("tools", NEUTRAL_EMPTY, NO_TOOLS),
        REFUSED("tool_choice", NEUTRAL_NONE | NEUTRAL_AUTO, NO_TOOLS),
        REFUSED("truncation", NEUTRAL_DISABLED, "a prompt is never shortened"),
        HONOURED("reasoning", PARAM_OBJECT, 0, 0, "`effort`: none, minimal to xhigh"),
        REFUSED("include", NEUTRAL_EMPTY, "nothing more can be included"),
        REFUSED("background", NEUTRAL_FALSE, "an answer lives as long as its connection"),
        REFUSED("top_logprobs", NEUTRAL_ZERO, "alternatives are not reported yet"),
};
TABLE(params_responses, "POST /v1/responses", "", response_rows);

#define ANTHROPIC_PROMPT                                                                                               \
        HONOURED("model", PARAM_STRING, 0, 0, "the daemon's default"),                                                 \
                HONOURED("messages", PARAM_ARRAY, 0, 0, "required"),                                                   \
                HONOURED("system", PARAM_ANY, 0, 0, "a text, or blocks of text"),                                      \
                HONOURED("tools", PARAM_ARRAY, 0, 0, "custom ones; not with a format"),                                \
                HONOURED("tool_choice", PARAM_OBJECT, 0, 0, "auto, any, tool, none; disable_parallel_tool_use"),       \
                HONOURED("thinking", PARAM_OBJECT, 0, 0, "enabled, adaptive, disabled; none: not told"),               \
                REFUSED("mcp_servers", NEUTRAL_EMPTY, OWN_TOOLS),                                                      \
                HONOURED("output_config", PARAM_OBJECT, 0, 0, "`format`: json_schema"),                                \
                HONOURED("output_format", PARAM_OBJECT, 0, 0, "the older form of output_config"),                      \
                REFUSED("context_management", NEUTRAL_EMPTY, "a prompt is never shortened"),                           \
                OBJECT("cache_control", PARAM_HARMLESS, &params_cache_control, "every prompt is cached")

static const struct param anthropic_rows[] = {
        ANTHROPIC_PROMPT,
        HONOURED("max_tokens", PARAM_INTEGER, 1, MAX_TOKENS, "required"),
        HONOURED("temperature", PARAM_NUMBER, 0, 1, "1"),
        HONOURED("top_p", PARAM_NUMBER, 0, 1, "off"),
        HONOURED("top_k", PARAM_INTEGER, -1, MAX_TOKENS, "off; so are 0 and -1"),
        HONOURED("seed", PARAM_INTEGER, SEED_LOW, SEED_HIGH, "an extension; random"),
        SPECULATION,
        HONOURED("stop_sequences", PARAM_ARRAY, 0, 0, "up to 16"),
        HONOURED("stream", PARAM_BOOL, 0, 0, "server-sent events"),
        REFUSED("container", NEUTRAL_EMPTY, OWN_TOOLS),
        OBJECT("metadata", PARAM_HARMLESS, &params_anthropic_metadata, "not kept"),
        HARMLESS("service_tier", "there is one tier"),
        HARMLESS("inference_geo", "it runs here"),
};
TABLE(params_anthropic, "POST /v1/messages", "", anthropic_rows);

static const struct param count_rows[] = { ANTHROPIC_PROMPT };
TABLE(params_count_tokens, "POST /v1/messages/count_tokens", "", count_rows);

static const struct param anthropic_message_rows[] = {
        HONOURED("role", PARAM_STRING, 0, 0, "user, assistant"),
        HONOURED("content", PARAM_ANY, 0, 0, "a text, or blocks: text, thinking, tool_use, tool_result"),
};
TABLE(params_anthropic_message, "A message of Anthropic's API", "messages[].", anthropic_message_rows);

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
};
TABLE(params_ollama_chat, "POST /api/chat", "", ollama_chat_rows);

static const struct param ollama_generate_rows[] = {
        OLLAMA_COMMON,
        HONOURED("prompt", PARAM_STRING, 0, 0, "none: load the model"),
        HONOURED("system", PARAM_STRING, 0, 0, "a system message in front"),
        HONOURED("raw", PARAM_BOOL, 0, 0, "true: no chat template"),
        REFUSED("suffix", NEUTRAL_EMPTY, "text is only continued, not filled in"),
        REFUSED("images", NEUTRAL_EMPTY, ONE_MODALITY),
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
        REFUSED("images", NEUTRAL_EMPTY, ONE_MODALITY),
        HONOURED("tool_calls", PARAM_ARRAY, 0, 0, "of the assistant's messages"),
        HONOURED("tool_name", PARAM_STRING, 0, 0, "of a tool's messages"),
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

static const struct param tokenize_rows[] = {
        HONOURED("model", PARAM_STRING, 0, 0, "the daemon's default"),
        HONOURED("content", PARAM_STRING, 0, 0, "the text (or `prompt`)"),
        HONOURED("prompt", PARAM_STRING, 0, 0, "the text (or `content`)"),
        HONOURED("add_special", PARAM_BOOL, 0, 0, "false; true: BOS in front"),
        HONOURED("add_special_tokens", PARAM_BOOL, 0, 0, "the same"),
        HONOURED("parse_special", PARAM_BOOL, 0, 0, "false; true: control pieces are recognised"),
        REFUSED("with_pieces", NEUTRAL_FALSE, "ids only"),
        REFUSED("return_token_strs", NEUTRAL_FALSE, "ids only"),
};
TABLE(params_tokenize, "POST /tokenize", "", tokenize_rows);

static const struct param embeddings_rows[] = {
        HONOURED("model", PARAM_STRING, 0, 0, "the daemon's default"),
        HONOURED("input", PARAM_ANY, 0, 0, "a text, or up to 2048; token ids are refused"),
        HONOURED("encoding_format", PARAM_STRING, 0, 0, "`float`, or `base64`"),
        HONOURED("dimensions", PARAM_INTEGER, 1, 65536, "that number of first values, made a vector of length 1"),
        HARMLESS("user", "not needed"),
};
TABLE(params_embeddings, "POST /v1/embeddings", "", embeddings_rows);

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

static const struct param stream_option_rows[] = {
        HONOURED("include_usage", PARAM_BOOL, 0, 0, "false; true: a last event with the usage"),
        HARMLESS("include_obfuscation", "nothing is obfuscated"),
        REFUSED("continuous_usage_stats", NEUTRAL_FALSE, "usage is told once, at the end"),
};
TABLE(params_stream_options, "`stream_options` of OpenAI's APIs", "stream_options.", stream_option_rows);

static const struct param cache_control_rows[] = {
        HARMLESS("type", "ephemeral"),
        HARMLESS("ttl", "the cache decides itself"),
        HARMLESS("scope", "each owner has a cache of its own"),
};
TABLE(params_cache_control, "`cache_control` of Anthropic's API", "cache_control.", cache_control_rows);

static const struct param anthropic_metadata_rows[] = {
        HARMLESS("user_id", "who asks; not used"),
};
TABLE(params_anthropic_metadata, "`metadata` of Anthropic's API", "metadata.", anthropic_metadata_rows);

static const struct param part_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "text, input_text, output_text"),
        HONOURED("text", PARAM_STRING, 0, 0, "required"),
        HARMLESS("annotations", "not part of the prompt"),
        HARMLESS("logprobs", "not part of the prompt"),
        OBJECT("cache_control", PARAM_HARMLESS, &params_cache_control, "every prompt is cached"),
        REFUSED("citations", NEUTRAL_EMPTY | NEUTRAL_FALSE, "nothing is cited"),
};
TABLE(params_part, "A part or block of text", "content[].", part_rows);

static const struct param tool_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "function"),
        HONOURED("function", PARAM_OBJECT, 0, 0, "required"),
        OBJECT("cache_control", PARAM_HARMLESS, &params_cache_control, "every prompt is cached"),
};
TABLE(params_tool, "A tool of OpenAI's and Ollama's APIs", "tools[].", tool_rows);

static const struct param function_rows[] = {
        HONOURED("name", PARAM_STRING, 0, 0, "required"),
        HONOURED("description", PARAM_STRING, 0, 0, "part of the prompt"),
        HONOURED("parameters", PARAM_ANY, 0, 0, "a JSON Schema"),
        HARMLESS("strict", "arguments always follow the schema"),
};
TABLE(params_function, "A tool's function", "tools[].function.", function_rows);

static const struct param anthropic_tool_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "custom"),
        HONOURED("name", PARAM_STRING, 0, 0, "required"),
        HONOURED("description", PARAM_STRING, 0, 0, "part of the prompt"),
        HONOURED("input_schema", PARAM_OBJECT, 0, 0, "required: a JSON Schema"),
        HARMLESS("strict", "arguments always follow the schema"),
        OBJECT("cache_control", PARAM_HARMLESS, &params_cache_control, "every prompt is cached"),
        HARMLESS("eager_input_streaming", "pieces of a call come as they are made"),
        IGNORED("input_examples", "not part of the prompt"),
        REFUSED("defer_loading", NEUTRAL_FALSE, "all tools are in the prompt"),
};
TABLE(params_anthropic_tool, "A tool of Anthropic's API", "tools[].", anthropic_tool_rows);

static const struct param anthropic_choice_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "auto, any, tool, none"),
        HONOURED("name", PARAM_STRING, 0, 0, "of type tool"),
        HONOURED("disable_parallel_tool_use", PARAM_BOOL, 0, 0, "true: at most one call"),
};
TABLE(params_anthropic_choice, "`tool_choice` of Anthropic's API", "tool_choice.", anthropic_choice_rows);

static const struct param call_rows[] = {
        HONOURED("id", PARAM_STRING, 0, 0, "the answer's tool_call_id"),
        HONOURED("type", PARAM_STRING, 0, 0, "function"),
        HONOURED("function", PARAM_OBJECT, 0, 0, "required"),
        HARMLESS("index", "calls are in order"),
};
TABLE(params_call, "A call in a message", "messages[].tool_calls[].", call_rows);

static const struct param call_function_rows[] = {
        HONOURED("name", PARAM_STRING, 0, 0, "required"),
        HONOURED("arguments", PARAM_ANY, 0, 0, "an object, or its text"),
        HARMLESS("index", "calls are in order"),
};
TABLE(params_call_function, "A call's function", "messages[].tool_calls[].function.", call_function_rows);

static const struct param tool_use_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "tool_use"),
        HONOURED("id", PARAM_STRING, 0, 0, "required"),
        HONOURED("name", PARAM_STRING, 0, 0, "required"),
        HONOURED("input", PARAM_OBJECT, 0, 0, "required"),
        OBJECT("cache_control", PARAM_HARMLESS, &params_cache_control, "every prompt is cached"),
};
TABLE(params_tool_use, "A block tool_use", "content[].", tool_use_rows);

static const struct param tool_result_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "tool_result"),
        HONOURED("tool_use_id", PARAM_STRING, 0, 0, "required"),
        HONOURED("content", PARAM_ANY, 0, 0, "a text, or blocks of text"),
        IGNORED("is_error", "templates have no errors; the content says it"),
        OBJECT("cache_control", PARAM_HARMLESS, &params_cache_control, "every prompt is cached"),
};
TABLE(params_tool_result, "A block tool_result", "content[].", tool_result_rows);

static const struct param reasoning_rows[] = {
        HONOURED("effort", PARAM_STRING, 0, 0, "as the template has it; none, minimal to xhigh"),
        HARMLESS("summary", "thoughts are given whole"),
        HARMLESS("generate_summary", "thoughts are given whole"),
};
TABLE(params_reasoning, "`reasoning` of /v1/responses", "reasoning.", reasoning_rows);

static const struct param thinking_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "enabled, adaptive (as the template has it), disabled"),
        HONOURED("budget_tokens", PARAM_INTEGER, 1, MAX_TOKENS, "of type enabled: thoughts end there"),
        REFUSED("display", NEUTRAL_SUMMARIZED, "thoughts are given whole"),
};
TABLE(params_thinking, "`thinking` of Anthropic's API", "thinking.", thinking_rows);

static const struct param thinking_block_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "thinking"),
        HONOURED("thinking", PARAM_STRING, 0, 0, "required"),
        HONOURED("signature", PARAM_STRING, 0, 0, "required, as it came"),
        OBJECT("cache_control", PARAM_HARMLESS, &params_cache_control, "every prompt is cached"),
};
TABLE(params_thinking_block, "A block thinking", "content[].", thinking_block_rows);

static const struct param reasoning_item_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "reasoning"),
        HONOURED("content", PARAM_ARRAY, 0, 0, "parts reasoning_text, where the template keeps them"),
        HARMLESS("id", "not used"),
        HARMLESS("summary", "not part of the prompt"),
        HARMLESS("status", "not used"),
        HARMLESS("encrypted_content", "nothing is encrypted here"),
};
TABLE(params_reasoning_item, "An item reasoning", "input[].", reasoning_item_rows);

static const struct param_table *const tables[] = {
        &params_chat,
        &params_completions,
        &params_message,
        &params_responses,
        &params_anthropic,
        &params_count_tokens,
        &params_anthropic_message,
        &params_ollama_chat,
        &params_ollama_generate,
        &params_ollama_options,
        &params_ollama_message,
        &params_ollama_show,
        &params_tokenize,
        &params_embeddings,
        &params_ollama_embed,
        &params_stream_options,
        &params_cache_control,
        &params_anthropic_metadata,
        &params_part,
        &params_tool,
        &params_function,
        &params_anthropic_tool,
        &params_anthropic_choice,
        &params_call,
        &params_call_function,
        &params_tool_use,
        &params_tool_result,
        &params_reasoning,
        &params_thinking,
        &params_thinking_block,
        &params_reasoning_item,
};

/* What other servers take at the top of a body, and what would be another answer without it. */
static const char *const meaningful[] = {
        "add_generation_prompt",
        "allowed_token_ids",
        "assistant_prefix",
        "bad_words",
        "beam_width",
        "best_of",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "dry_multiplier",
        "dynatemp_range",
        "echo",
        "function_call",
        "functions",
        "grammar",
        "guided_choice",
        "guided_decoding_backend",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "guided_whitespace_pattern",
        "ignore_eos",
        "image_data",
        "images",
        "input_prefix",
        "input_suffix",
        "json_schema",
        "length_penalty",
        "logit_bias",
        "logits_processors",
        "logprobs",
        "lora",
        "max_completion_tokens",
        "max_new_tokens",
        "max_output_tokens",
        "max_tokens",
        "min_p",
        "min_tokens",
        "mirostat",
        "n",
        "n_predict",
        "n_probs",
        "num_beams",
        "num_ctx",
        "num_predict",
        "plugins",
        "prompt_logprobs",
        "regex",
        "repeat_penalty",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "response_format",
        "samplers",
        "stop",
        "stop_sequences",
        "stop_token_ids",
        "structural_tag",
        "structured_outputs",
        "suffix",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_a",
        "top_k",
        "top_logprobs",
        "top_n_sigma",
        "top_p",
        "transforms",
        "truncate_prompt_tokens",
        "typical_p",
        "use_beam_search",
        "web_search_options",
        "xtc_probability",
};

/* "text", {"type":"text"} with nothing else, ["text"], and for /v1/responses {"format":{"type":"text"}}. */
static bool says(const json_t *value, const char *word)
{
        if (json_is_string(value))
                return strcmp(json_string_value(value), word) == 0;
        if (json_is_array(value))
                return json_array_size(value) == 1 && json_is_string(json_array_get(value, 0)) &&
                       says(json_array_get(value, 0), word);
        if (json_is_object(value) && json_object_size(value) == 1)
                return says(json_object_get(value, json_object_get(value, "format") ? "format" : "type"), word);
        return false;
}

static bool is_neutral(const struct param *p, const json_t *value);

/* An object whose members ask for nothing either: {"effort": null}, {"edits": []}. */
static bool is_hollow(const struct param *p, const json_t *value)
{
        const char *key;
        json_t *part;

        json_object_foreach((json_t *)(uintptr_t)value, key, part)
        {
                if (!json_is_null(part) && !is_neutral(p, part))
                        return false;
        }
        return json_is_object(value);
}

static bool is_neutral(const struct param *p, const json_t *value)
{
        static const struct {
                unsigned bit;
                const char *word;
        } words[] = { { NEUTRAL_TEXT, "text" },     { NEUTRAL_NONE, "none" },
                      { NEUTRAL_AUTO, "auto" },     { NEUTRAL_DISABLED, "disabled" },
                      { NEUTRAL_MEDIUM, "medium" }, { NEUTRAL_SUMMARIZED, "summarized" } };

        if ((p->neutral & NEUTRAL_FALSE && json_is_false(value)) || (p->neutral & NEUTRAL_TRUE && json_is_true(value)))
                return true;
        if ((p->neutral & NEUTRAL_ZERO && json_is_number(value) && json_number_value(value) == 0) ||
            (p->neutral & NEUTRAL_ONE && json_is_number(value) && json_number_value(value) == 1))
                return true;
        if (p->neutral & NEUTRAL_EMPTY && ((json_is_string(value) && json_string_length(value) == 0) ||
                                           (json_is_array(value) && json_array_size(value) == 0) ||
                                           (json_is_object(value) && json_object_size(value) == 0)))
                return true;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(words); i++)
                if (p->neutral & words[i].bit && says(value, words[i].word))
                        return true;
        return p->neutral & NEUTRAL_EMPTY && is_hollow(p, value);
}

static const char *const type_names[] = {
        [PARAM_ANY] = "a value",      [PARAM_BOOL] = "true or false", [PARAM_INTEGER] = "a whole number",
        [PARAM_NUMBER] = "a number",  [PARAM_STRING] = "a string",    [PARAM_ARRAY] = "an array",
        [PARAM_OBJECT] = "an object",
};

static bool is_of_type(enum param_type type, const json_t *value)
{
        switch (type) {
        case PARAM_BOOL:
                return json_is_boolean(value);
        case PARAM_INTEGER: /* 5.0 is one: clients in JavaScript and Lua have no other numbers */
                return json_is_integer(value) ||
                       (json_is_real(value) && json_real_value(value) > -9e15 && json_real_value(value) < 9e15 &&
                        json_real_value(value) == (double)(int64_t)json_real_value(value));
        case PARAM_NUMBER:
                return json_is_number(value);
        case PARAM_STRING:
                return json_is_string(value);
        case PARAM_ARRAY:
                return json_is_array(value);
        case PARAM_OBJECT:
                return json_is_object(value);
        default:
                return true;
        }
}

/* One more thing that is ignored. The head of an answer holds printing ASCII, and has an end. */
static void add_warning(struct params_warnings *w, const char *context, const char *name)
{
        char clean[PARAMS_NAME_BYTES];
        size_t n = strlen(w->text);

        snprintf(clean, sizeof(clean), "%s%.40s", context, name);
        for (char *p = clean; *p; p++)
                if (*p <= ' ' || *p >= 127 || *p == ',')
                        *p = '?';
        for (unsigned i = 0; i < w->n; i++)
                if (strcmp(w->names[i], clean) == 0)
                        return;
        if (w->n == TDM_ARRAY_SIZE(w->names))
                return;
        memcpy(w->names[w->n++], clean, sizeof(clean));
        snprintf(w->text + n, sizeof(w->text) - n, "%s%s", n ? ", " : "not used here: ", clean);
}

void params_warn(struct params_warnings *w, const char *text)
{
        size_t n = strlen(w->text);

        snprintf(w->text + n, sizeof(w->text) - n, "%s%s", n ? "; " : "", text);
}

/* "role, content, …" */
static void write_names(const struct param_table *table, char *to, size_t size)
{
        size_t used = 0;

        for (size_t i = 0; i < table->n && used < size; i++)
                if (table->params[i].class != PARAM_REFUSED)
                        used += (size_t)snprintf(to + used, size - used, "%s%s", used ? ", " : "",
                                                 table->params[i].name);
}

static int check_unknown(const struct param_table *table, const char *key, const json_t *value,
                         struct params_warnings *warnings, struct failure *f)
{
        static const struct param nothing = { .neutral = NEUTRAL_FALSE | NEUTRAL_EMPTY };
        char names[500] = "";

        if (json_is_null(value))
                return 0;
        if (table->context[0]) {
                write_names(table, names, sizeof(names));
                return failure_set(f, 400, "unknown_parameter", key, "'%s%.90s' is not known; there are: %.480s",
                                   table->context, key, names);
        }
        for (size_t i = 0; i < TDM_ARRAY_SIZE(meaningful); i++)
                if (strcmp(meaningful[i], key) == 0 && !is_neutral(&nothing, value))
                        return failure_set(f, 400, "unsupported_parameter", key,
                                           "'%.90s' cannot be taken: %s has nothing like it, and the answer would be "
                                           "another one without it",
                                           key, table->title);
        add_warning(warnings, "", key);
        return 0;
}

static const struct param *find_param(const struct param_table *table, const char *key)
{
        for (size_t i = 0; i < table->n; i++)
                if (strcmp(table->params[i].name, key) == 0)
                        return &table->params[i];
        return NULL;
}

/* What a harmless object holds has to be known, and its values change nothing. */
static int check_members(const struct param *p, const json_t *object, struct params_warnings *warnings,
                         struct failure *f)
{
        const char *key;
        json_t *value;

        if (p->class == PARAM_HONOURED)
                return params_check(p->members, object, warnings, f);
        json_object_foreach((json_t *)(uintptr_t)object, key, value)
        {
                if (!find_param(p->members, key) && check_unknown(p->members, key, value, warnings, f) != 0)
                        return f->status;
        }
        return 0;
}

static int check_one(const struct param_table *table, const struct param *p, const json_t *value,
                     struct params_warnings *warnings, struct failure *f)
{
        char name[96];

        snprintf(name, sizeof(name), "%s%s", table->context, p->name);
        if (p->class == PARAM_HARMLESS && !p->members)
                return 0;
        if (p->class == PARAM_REFUSED)
                return is_neutral(p, value) ? 0 :
                                              failure_set(f, 400, "unsupported_parameter", name,
                                                          "'%s' cannot be taken with this value: %s", name, p->note);
        if (!is_of_type(p->type, value))
                return failure_set(f, 400, "invalid_type", name, "'%s' has to be %s", name, type_names[p->type]);
        if ((p->low != 0 || p->high != 0) && json_is_number(value) &&
            (json_number_value(value) < p->low || json_number_value(value) > p->high))
                return failure_set(f, 400, "invalid_value", name, "'%s' has to be from %.10g to %.10g", name, p->low,
                                   p->high);
        return p->members ? check_members(p, value, warnings, f) : 0;
}

int params_check(const struct param_table *table, const json_t *object, struct params_warnings *warnings,
                 struct failure *f)
{
        const char *key;
        json_t *value;

        json_object_foreach((json_t *)(uintptr_t)object, key, value)
        {
                const struct param *p = find_param(table, key);

                if (!p && check_unknown(table, key, value, warnings, f) != 0)
                        return f->status;
                if (!p || json_is_null(value))
                        continue;
                if (p->class != PARAM_IGNORED && check_one(table, p, value, warnings, f) != 0)
                        return f->status;
                if (p->class == PARAM_IGNORED && !is_neutral(p, value))
                        add_warning(warnings, table->context, p->name);
        }
        return 0;
}

static void print_neutral(FILE *to, unsigned neutral)
{
        static const char *const words[] = { "false", "true", "0",        "1",      "empty",     "text",
                                             "none",  "auto", "disabled", "medium", "summarized" };
        const char *comma = "";

        for (size_t i = 0; i < TDM_ARRAY_SIZE(words); i++)
                if (neutral & 1u << i) {
                        fprintf(to, "%s%s", comma, words[i]);
                        comma = ", ";
                }
}

void params_print(FILE *to)
{
        static const char *const classes[] = { "honoured", "harmless", "ignored", "refused" };

        for (size_t t = 0; t < TDM_ARRAY_SIZE(tables); t++) {
                fprintf(to, "### %s\n\n| parameter | class | accepted | note |\n|---|---|---|---|\n", tables[t]->title);
                for (size_t i = 0; i < tables[t]->n; i++) {
                        const struct param *p = &tables[t]->params[i];

                        fprintf(to, "| `%s` | %s | ", p->name, classes[p->class]);
                        if (p->class == PARAM_REFUSED)
                                print_neutral(to, p->neutral);
                        else if (p->class != PARAM_HONOURED && !p->members)
                                fputs("anything", to);
                        else if (p->high == SEED_HIGH)
                                fputs("a whole number of 64 bits", to);
                        else if (p->high == MAX_TOKENS)
                                fprintf(to, "from %.0f", p->low);
                        else if (p->low != 0 || p->high != 0)
                                fprintf(to, "%.10g to %.10g", p->low, p->high);
                        else
                                fputs(type_names[p->type], to);
                        fprintf(to, " | %s |\n", p->note);
                }
                fputc('\n', to);
        }
}
