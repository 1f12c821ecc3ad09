/* The parameters of Anthropic's API. */
#include "http-gateway/params-rows.h"

#define OWN_TOOLS "tools run at the client"

#define ANTHROPIC_PROMPT                                                                                               \
        HONOURED("model", PARAM_STRING, 0, 0, "the daemon's default"),                                                 \
                HONOURED("messages", PARAM_ARRAY, 0, 0, "required"),                                                   \
                HONOURED("system", PARAM_ANY, 0, 0, "a text, or blocks of text"),                                      \
                HONOURED("tools", PARAM_ARRAY, 0, 0, "custom ones; not with a format"),                                \
                HONOURED("tool_choice", PARAM_OBJECT, 0, 0, "auto, any, tool, none; disable_parallel_tool_use"),       \
                HONOURED("thinking", PARAM_OBJECT, 0, 0, "enabled, adaptive, disabled; none: not told"),               \
                TEMPLATE_KWARGS, REFUSED("mcp_servers", NEUTRAL_EMPTY, OWN_TOOLS),                                     \
                HONOURED("output_config", PARAM_OBJECT, 0, 0, "`format`: json_schema; `effort`"),                      \
                HONOURED("output_format", PARAM_OBJECT, 0, 0, "the older form of output_config"),                      \
                HONOURED("context_management", PARAM_OBJECT, 0, 0, "`edits`: clear_thinking; else refused"),           \
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
        HONOURED("role", PARAM_STRING, 0, 0, "user, assistant, system (the user's, behind others)"),
        HONOURED("content", PARAM_ANY, 0, 0, "a text, or blocks: text, image, thinking, tool_use, tool_result"),
};
TABLE(params_anthropic_message, "A message of Anthropic's API", "messages[].", anthropic_message_rows);

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
        HONOURED("content", PARAM_ANY, 0, 0, "a text, or blocks: text, image"),
        IGNORED("is_error", "templates have no errors; the content says it"),
        OBJECT("cache_control", PARAM_HARMLESS, &params_cache_control, "every prompt is cached"),
};
TABLE(params_tool_result, "A block tool_result", "content[].", tool_result_rows);

static const struct param image_block_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "image"),
        HONOURED("source", PARAM_OBJECT, 0, 0, "required"),
        OBJECT("cache_control", PARAM_HARMLESS, &params_cache_control, "every prompt is cached"),
};
TABLE(params_image_block, "A block image", "content[].", image_block_rows);

static const struct param image_source_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "base64"),
        HONOURED("media_type", PARAM_STRING, 0, 0, "required: image/png, image/jpeg, image/webp"),
        HONOURED("data", PARAM_STRING, 0, 0, "required: the file in base64"),
        REFUSED("url", NEUTRAL_EMPTY, "nothing is fetched; send the picture itself"),
        REFUSED("file_id", NEUTRAL_EMPTY, "no files are kept; send the picture itself"),
};
TABLE(params_image_source, "`source` of a block image", "content[].source.", image_source_rows);

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
