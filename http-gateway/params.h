/* The parameters of every API, in one table each, in four classes: honoured; harmless (accepted, changes nothing that
 * the API promises); ignored (accepted, and the answer's head warns); refused by name, because to ignore it would
 * change the answer's meaning. A refused parameter may have values that ask for nothing ("tools": []); those are
 * accepted. What no table knows is ignored at the top of a body, but for what is known to change the answer with other
 * servers, and refused inside of other members.
 * docs/http-api.md repeats these tables, and a test compares. */
#ifndef TDM_HTTP_PARAMS_H
#define TDM_HTTP_PARAMS_H

#include "http-gateway/json.h"

enum param_class { PARAM_HONOURED, PARAM_HARMLESS, PARAM_IGNORED, PARAM_REFUSED };
enum param_type { PARAM_ANY, PARAM_BOOL, PARAM_INTEGER, PARAM_NUMBER, PARAM_STRING, PARAM_ARRAY, PARAM_OBJECT };

/* Values of a refused or ignored parameter that ask for nothing. null always does. */
#define NEUTRAL_FALSE 1u
#define NEUTRAL_TRUE 2u
#define NEUTRAL_ZERO 4u
#define NEUTRAL_ONE 8u
#define NEUTRAL_EMPTY 16u        /* "", [], {} */
#define NEUTRAL_TEXT 32u         /* "text", {"type":"text"}, ["text"] */
#define NEUTRAL_NONE 64u         /* "none", {"type":"none"} */
#define NEUTRAL_AUTO 128u        /* "auto", {"type":"auto"} */
#define NEUTRAL_DISABLED 256u    /* "disabled", {"type":"disabled"} */
#define NEUTRAL_MEDIUM 512u      /* "medium" */
#define NEUTRAL_SUMMARIZED 1024u /* "summarized" */

/* Names of what is ignored, for the answer's head and the log. */
#define PARAMS_NAME_BYTES 48u
struct params_warnings {
        char names[8][PARAMS_NAME_BYTES]; /* [n] printing ASCII */
        unsigned n;
        char text[480]; /* "": nothing to warn of */
};

struct param {
        const char *name;
        enum param_class class;
        enum param_type type;
        double low, high; /* of a number; both 0: any */
        unsigned neutral;
        const char *note; /* for the documentation and the refusal */
        /* The members of an object that is checked too. In a harmless object only their names count. NULL: none. */
        const struct param_table *members;
};

struct param_table {
        const char *title;   /* "POST /v1/chat/completions" */
        const char *context; /* in front of a name in messages: "options."; "" */
        const struct param *params;
        size_t n;
};

extern const struct param_table params_chat, params_completions, params_message, params_responses, params_anthropic,
        params_anthropic_message, params_count_tokens, params_ollama_chat, params_ollama_generate,
        params_ollama_options, params_ollama_message, params_ollama_show, params_tokenize, params_embeddings,
        params_rerank, params_document, params_classify, params_predict, params_ollama_embed, params_stream_options,
        params_cache_control, params_anthropic_metadata, params_part, params_image_part, params_image_url,
        params_input_image, params_image_block, params_image_source, params_tool, params_function,
        params_anthropic_tool, params_anthropic_choice, params_call, params_call_function, params_tool_use,
        params_tool_result, params_reasoning, params_thinking, params_thinking_block, params_reasoning_item,
        params_response_function, params_response_custom, params_response_namespace, params_call_item,
        params_custom_item, params_answer_item;

/* 0, or a failure that names the first member that cannot be taken. */
int params_check(const struct param_table *table, const json_t *object, struct params_warnings *warnings,
                 struct failure *f);
/* The same, of an object that is one of several: where is its place in the request, "messages[3]". Warnings name the
 * table's place, so that what many messages have is warned of once. */
int params_check_at(const struct param_table *table, const char *where, const json_t *object,
                    struct params_warnings *warnings, struct failure *f);
/* Adds a warning in words, for a value that means something else here. */
void params_warn(struct params_warnings *warnings, const char *text);
/* All tables as Markdown. */
void params_print(FILE *to);

#endif
