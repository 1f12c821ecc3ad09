/* The parameters of OpenAI's API. */
#include "http-gateway/params-rows.h"

/* Shared by both of OpenAI's older endpoints. */
#define OPENAI_COMMON                                                                                                  \
        HONOURED("model", PARAM_STRING, 0, 0, "the daemon's default"),                                                 \
                HONOURED("stream", PARAM_BOOL, 0, 0, "server-sent events"),                                            \
                HONOURED("stream_options", PARAM_OBJECT, 0, 0, "`include_usage`"),                                     \
                HONOURED("return_progress", PARAM_BOOL, 0, 0, "of a stream: how much of the prompt was read"),         \
                HONOURED("temperature", PARAM_NUMBER, 0, 2, "1"), HONOURED("top_p", PARAM_NUMBER, 0, 1, "1"),          \
                HONOURED("top_k", PARAM_INTEGER, -1, MAX_TOKENS, "an extension; 0, off; -1: off"),                     \
                HONOURED("min_p", PARAM_NUMBER, 0, 1, "an extension; 0, off"),                                         \
                HONOURED("repetition_penalty", PARAM_NUMBER, 0, 10, "an extension; 1, off"),                           \
                HONOURED("repeat_penalty", PARAM_NUMBER, 0, 10, "llama-server's name of repetition_penalty"),          \
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
        HONOURED("continue_final_message", PARAM_BOOL, 0, 0, "an extension; as the last message has it"),
        HONOURED("add_generation_prompt", PARAM_BOOL, 0, 0, "an extension; false: only where one goes on"),
        HONOURED("max_tokens", PARAM_INTEGER, -1, MAX_TOKENS, "-1: until the model ends; 0 is refused"),
        HONOURED("max_completion_tokens", PARAM_INTEGER, -1, MAX_TOKENS, "goes before max_tokens"),
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
        HONOURED("reasoning", PARAM_OBJECT, 0, 0, "an extension; as on /v1/responses"),
        TEMPLATE_KWARGS,
        REFUSED("verbosity", NEUTRAL_EMPTY | NEUTRAL_MEDIUM, "no model has this"),
        REFUSED("web_search_options", NEUTRAL_EMPTY, "nothing is searched"),
};
TABLE(params_chat, "POST /v1/chat/completions", "", chat_rows);

static const struct param completion_rows[] = {
        HONOURED("prompt", PARAM_ANY, 0, 0, "required: a text, ids, or up to 16 of either"),
        OPENAI_COMMON,
        HONOURED("max_tokens", PARAM_INTEGER, -1, MAX_TOKENS, "16; -1: until the model ends; 0 is refused"),
        HONOURED("logprobs", PARAM_INTEGER, 0, 20, "of the chosen tokens, and this number of alternatives"),
        HONOURED("echo", PARAM_BOOL, 0, 0, "the prompt in front; a text, without logprobs"),
        REFUSED("suffix", NEUTRAL_EMPTY, "text is only continued, not filled in"),
        REFUSED("best_of", NEUTRAL_ONE, "choices are not ranked"),
};
TABLE(params_completions, "POST /v1/completions", "", completion_rows);

static const struct param message_rows[] = {
        HONOURED("role", PARAM_STRING, 0, 0, "system, developer, user, assistant, tool"),
        HONOURED("content", PARAM_ANY, 0, 0, "a text, or parts of text and pictures"),
        HONOURED("name", PARAM_STRING, 0, 0, "of a tool's messages: the tool's; refused of others"),
        HONOURED("tool_calls", PARAM_ARRAY, 0, 0, "of the assistant's messages"),
        HONOURED("tool_call_id", PARAM_STRING, 0, 0, "of a tool's messages"),
        REFUSED("function_call", NEUTRAL_EMPTY, "the older form of tool_calls"),
        REFUSED("audio", NEUTRAL_EMPTY, ONE_MODALITY),
        HARMLESS("refusal", "not part of the prompt"),
        HARMLESS("annotations", "not part of the prompt"),
        HONOURED("reasoning_content", PARAM_STRING, 0, 0, "where the template keeps it: between calls"),
        HARMLESS("parsed", "a client's own copy of the content"),
        HARMLESS("type", "of an item of /v1/responses"),
        HARMLESS("id", "of an item of /v1/responses"),
        HARMLESS("status", "of an item of /v1/responses"),
        HARMLESS("phase", "of an item of /v1/responses"),
};
TABLE(params_message, "A message of OpenAI's APIs", "messages[].", message_rows);

static const struct param response_rows[] = {
        HONOURED("model", PARAM_STRING, 0, 0, "the daemon's default"),
        HONOURED("input", PARAM_ANY, 0, 0, "required: a text, or items"),
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
        HARMLESS("client_metadata", "not used"),
        HONOURED("parallel_tool_calls", PARAM_BOOL, 0, 0, "false: at most one call"),
        HARMLESS("max_tool_calls", "it counts those that a provider runs"),
        REFUSED("previous_response_id", NEUTRAL_EMPTY, "nothing is kept; send the whole conversation"),
        REFUSED("conversation", NEUTRAL_EMPTY, "nothing is kept; send the whole conversation"),
        REFUSED("prompt", NEUTRAL_EMPTY, "there are no stored prompts"),
        HONOURED("text", PARAM_OBJECT, 0, 0, "`format`: text, json_object, json_schema"),
        HONOURED("tools", PARAM_ARRAY, 0, 0, "function, custom, namespace; not with a format"),
        HONOURED("tool_choice", PARAM_ANY, 0, 0, "auto, none, required, or a tool by type and name"),
        REFUSED("truncation", NEUTRAL_DISABLED, "a prompt is never shortened"),
        HONOURED("reasoning", PARAM_OBJECT, 0, 0, "`effort`: none, minimal to xhigh"),
        HONOURED("reasoning_effort", PARAM_STRING, 0, 0, "an extension; the same as `reasoning.effort`"),
        TEMPLATE_KWARGS,
        HONOURED("include", PARAM_ARRAY, 0, 0, "`reasoning.encrypted_content`; what never comes is harmless"),
        REFUSED("background", NEUTRAL_FALSE, "an answer lives as long as its connection"),
        REFUSED("top_logprobs", NEUTRAL_ZERO, "alternatives are not reported yet"),
};
TABLE(params_responses, "POST /v1/responses", "", response_rows);

static const struct param stream_option_rows[] = {
        HONOURED("include_usage", PARAM_BOOL, 0, 0, "false; true: a last event with the usage"),
        HARMLESS("include_obfuscation", "nothing is obfuscated"),
        REFUSED("continuous_usage_stats", NEUTRAL_FALSE, "usage is told once, at the end"),
};
TABLE(params_stream_options, "`stream_options` of OpenAI's APIs", "stream_options.", stream_option_rows);

static const struct param reasoning_rows[] = {
        HONOURED("effort", PARAM_STRING, 0, 0, "as the template has it; none, minimal to xhigh"),
        HARMLESS("summary", "thoughts are given whole"),
        HARMLESS("generate_summary", "thoughts are given whole"),
};
TABLE(params_reasoning, "`reasoning` of OpenAI's APIs", "reasoning.", reasoning_rows);

static const struct param reasoning_item_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "reasoning"),
        HONOURED("content", PARAM_ARRAY, 0, 0, "parts reasoning_text, where the template keeps them"),
        HARMLESS("id", "not used"),
        HARMLESS("summary", "not part of the prompt"),
        HARMLESS("status", "not used"),
        HONOURED("encrypted_content", PARAM_STRING, 0, 0, "instead of content, as it came"),
};
TABLE(params_reasoning_item, "An item reasoning", "input[].", reasoning_item_rows);

static const struct param embeddings_rows[] = {
        HONOURED("model", PARAM_STRING, 0, 0, "the daemon's default"),
        HONOURED("input", PARAM_ANY, 0, 0, "a text, or up to 2048; token ids are refused"),
        HONOURED("encoding_format", PARAM_STRING, 0, 0, "`float`, or `base64`"),
        HONOURED("dimensions", PARAM_INTEGER, 1, 65536, "that number of first values, made a vector of length 1"),
        HARMLESS("user", "not needed"),
};
TABLE(params_embeddings, "POST /v1/embeddings", "", embeddings_rows);
