/* Parameters of no API alone: what messages of several APIs consist of, and /tokenize. */
#include "http-gateway/params-rows.h"

static const struct param part_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "text, input_text, output_text"),
        HONOURED("text", PARAM_STRING, 0, 0, "required"),
        HARMLESS("annotations", "not part of the prompt"),
        HARMLESS("logprobs", "not part of the prompt"),
        HARMLESS("parsed", "a client's own copy of the text"),
        HARMLESS("parsed_output", "a client's own copy of the text"),
        OBJECT("cache_control", PARAM_HARMLESS, &params_cache_control, "every prompt is cached"),
        REFUSED("citations", NEUTRAL_EMPTY | NEUTRAL_FALSE, "nothing is cited"),
};
TABLE(params_part, "A part or block of text", "content[].", part_rows);

static const struct param image_part_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "image_url"),
        HONOURED("image_url", PARAM_ANY, 0, 0, "required: see below, or its `url` alone"),
        OBJECT("cache_control", PARAM_HARMLESS, &params_cache_control, "every prompt is cached"),
};
TABLE(params_image_part, "A part image_url", "content[].", image_part_rows);

#define DATA_URL "required: data:image/png;base64,… (or jpeg, webp)"
#define DETAIL "auto, low; high warns: a model has one size"

static const struct param image_url_rows[] = {
        HONOURED("url", PARAM_STRING, 0, 0, DATA_URL),
        HONOURED("detail", PARAM_STRING, 0, 0, DETAIL),
};
TABLE(params_image_url, "`image_url` of a part image_url", "content[].image_url.", image_url_rows);

static const struct param input_image_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "input_image"),
        HONOURED("image_url", PARAM_STRING, 0, 0, DATA_URL),
        HONOURED("detail", PARAM_STRING, 0, 0, DETAIL),
        REFUSED("file_id", NEUTRAL_EMPTY, "no files are kept; send the picture itself"),
};
TABLE(params_input_image, "A part input_image", "content[].", input_image_rows);

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
        HARMLESS("parsed_arguments", "a client's own copy of the arguments"),
        HARMLESS("index", "calls are in order"),
};
TABLE(params_call_function, "A call's function", "messages[].tool_calls[].function.", call_function_rows);

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

static const struct param document_rows[] = {
        HONOURED("text", PARAM_STRING, 0, 0, "required; all that is ranked"),
        HARMLESS("id", "comes back with `return_documents`"),
        HARMLESS("metadata", "comes back with `return_documents`"),
};
TABLE(params_document, "A document of POST /v1/rerank", "documents[].", document_rows);

static const struct param rerank_rows[] = {
        HONOURED("model", PARAM_STRING, 0, 0, "the daemon's default"),
        HONOURED("query", PARAM_STRING, 0, 0, "required"),
        HONOURED("documents", PARAM_ARRAY, 0, 0, "up to 2048 texts, or objects with a `text`"),
        HONOURED("top_n", PARAM_INTEGER, 0, MAX_TOKENS, "0, all; so many of the best"),
        HONOURED("return_documents", PARAM_BOOL, 0, 0, "false; true: each has its `document`"),
        HONOURED("use_activation", PARAM_BOOL, 0, 0, "with `documents`: false; true: scores from 0 to 1"),
        REFUSED("activation", NEUTRAL_FALSE, "an older name: send use_activation"),
        HONOURED("texts", PARAM_ARRAY, 0, 0, "in place of `documents`: the answer is an array"),
        HONOURED("return_text", PARAM_BOOL, 0, 0, "with `texts`: false; true: each has its `text`"),
        HONOURED("raw_scores", PARAM_BOOL, 0, 0, "with `texts`: false; true: what the head gives"),
        REFUSED("rank_fields", NEUTRAL_TEXT | NEUTRAL_EMPTY, "a document's `text` is ranked alone"),
        REFUSED("truncate", NEUTRAL_FALSE, "a document is never shortened"),
        REFUSED("instruction", NEUTRAL_EMPTY, "the model's file says how query and document are put"),
        IGNORED("max_tokens_per_doc", "a document is read whole, or refused"),
        IGNORED("max_chunks_per_doc", "a document is read whole, or refused"),
        HARMLESS("truncation_direction", "nothing is shortened"),
        HARMLESS("truncation_side", "nothing is shortened"),
        HARMLESS("user", "not needed"),
};
TABLE(params_rerank, "POST /v1/rerank, POST /rerank", "", rerank_rows);

static const struct param classify_rows[] = {
        HONOURED("model", PARAM_STRING, 0, 0, "the daemon's default"),
        HONOURED("input", PARAM_ANY, 0, 0, "required: a text, or up to 2048; token ids are refused"),
        HONOURED("use_activation", PARAM_BOOL, 0, 0, "true; false: what the head gives"),
        REFUSED("activation", NEUTRAL_TRUE, "an older name: send use_activation"),
        REFUSED("softmax", NEUTRAL_TRUE, "an older name: send use_activation"),
        REFUSED("messages", NEUTRAL_EMPTY, "a chat is not classified; send input"),
        REFUSED("add_special_tokens", NEUTRAL_TRUE, "a text always has those of its model"),
        HARMLESS("truncation_side", "nothing is shortened"),
        HARMLESS("user", "not needed"),
};
TABLE(params_classify, "POST /classify, POST /v1/classify", "", classify_rows);

static const struct param predict_rows[] = {
        HONOURED("model", PARAM_STRING, 0, 0, "the daemon's default"),
        HONOURED("inputs", PARAM_ANY, 0, 0, "a text, a pair, or up to 2048 of [text] and [text, text]"),
        HONOURED("raw_scores", PARAM_BOOL, 0, 0, "false; true: what the head gives"),
        REFUSED("truncate", NEUTRAL_FALSE, "a text is never shortened"),
        HARMLESS("truncation_direction", "nothing is shortened"),
};
TABLE(params_predict, "POST /predict", "", predict_rows);
