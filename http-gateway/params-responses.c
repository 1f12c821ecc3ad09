/* Parameters of the tools and items of /v1/responses. Those of its body are OpenAI's others (params-openai.c). */
#include "http-gateway/params-rows.h"

static const struct param function_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "function"),
        HONOURED("name", PARAM_STRING, 0, 0, "required"),
        HONOURED("description", PARAM_STRING, 0, 0, "part of the prompt"),
        HONOURED("parameters", PARAM_ANY, 0, 0, "a JSON Schema"),
        HARMLESS("strict", "arguments always follow the schema"),
        HARMLESS("defer_loading", "all tools are in the prompt"),
        OBJECT("cache_control", PARAM_HARMLESS, &params_cache_control, "every prompt is cached"),
};
TABLE(params_response_function, "A function among the tools of /v1/responses", "tools[].", function_rows);

static const struct param custom_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "custom"),
        HONOURED("name", PARAM_STRING, 0, 0, "required"),
        HONOURED("description", PARAM_STRING, 0, 0, "part of the prompt"),
        HONOURED("format", PARAM_OBJECT, 0, 0, "text, or a grammar that only the model is told of"),
        HARMLESS("defer_loading", "all tools are in the prompt"),
};
TABLE(params_response_custom, "A custom tool of /v1/responses", "tools[].", custom_rows);

static const struct param namespace_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "namespace"),
        HONOURED("name", PARAM_STRING, 0, 0, "required; in front of the functions' names"),
        HARMLESS("description", "not part of the prompt"),
        HONOURED("tools", PARAM_ARRAY, 0, 0, "functions"),
        HARMLESS("defer_loading", "all tools are in the prompt"),
};
TABLE(params_response_namespace, "A namespace of tools of /v1/responses", "tools[].", namespace_rows);

static const struct param call_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "function_call"),
        HONOURED("call_id", PARAM_STRING, 0, 0, "required"),
        HONOURED("name", PARAM_STRING, 0, 0, "required"),
        HONOURED("namespace", PARAM_STRING, 0, 0, "of the function"),
        HONOURED("arguments", PARAM_STRING, 0, 0, "required: an object's text"),
        HARMLESS("parsed_arguments", "a client's own copy of the arguments"),
        HARMLESS("id", "not used"),
        HARMLESS("status", "not used"),
};
TABLE(params_call_item, "An item function_call", "input[].", call_rows);

static const struct param custom_call_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "custom_tool_call"),
        HONOURED("call_id", PARAM_STRING, 0, 0, "required"),
        HONOURED("name", PARAM_STRING, 0, 0, "required"),
        HONOURED("input", PARAM_STRING, 0, 0, "required"),
        HARMLESS("id", "not used"),
        HARMLESS("status", "not used"),
};
TABLE(params_custom_item, "An item custom_tool_call", "input[].", custom_call_rows);

static const struct param answer_rows[] = {
        HONOURED("type", PARAM_STRING, 0, 0, "function_call_output, custom_tool_call_output"),
        HONOURED("call_id", PARAM_STRING, 0, 0, "required"),
        HONOURED("output", PARAM_ANY, 0, 0, "required: a text, or parts of text and pictures"),
        HARMLESS("name", "the call has it"),
        HARMLESS("id", "not used"),
        HARMLESS("status", "not used"),
};
TABLE(params_answer_item, "An item function_call_output or custom_tool_call_output", "input[].", answer_rows);
