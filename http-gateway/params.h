/* The parameters of every API, in one table each, in three classes: honoured; harmless (accepted, changes nothing that
 * the API promises); refused by name, because to ignore it would change the answer. A refused parameter may have
 * values that ask for nothing ("tools": []); those are accepted. What no table knows is refused too.
 * docs/http-api.md repeats these tables, and a test compares. */
#ifndef TDM_HTTP_PARAMS_H
#define TDM_HTTP_PARAMS_H

#include "http-gateway/json.h"

enum param_class { PARAM_HONOURED, PARAM_HARMLESS, PARAM_REFUSED };
enum param_type { PARAM_ANY, PARAM_BOOL, PARAM_INTEGER, PARAM_NUMBER, PARAM_STRING, PARAM_ARRAY, PARAM_OBJECT };

/* Values of a refused parameter that ask for nothing. null always does. */
#define NEUTRAL_FALSE 1u
#define NEUTRAL_TRUE 2u
#define NEUTRAL_ZERO 4u
#define NEUTRAL_ONE 8u
#define NEUTRAL_EMPTY 16u     /* "", [], {} */
#define NEUTRAL_TEXT 32u      /* "text", {"type":"text"}, ["text"] */
#define NEUTRAL_NONE 64u      /* "none", {"type":"none"} */
#define NEUTRAL_AUTO 128u     /* "auto", {"type":"auto"} */
#define NEUTRAL_DISABLED 256u /* "disabled", {"type":"disabled"} */

struct param {
        const char *name;
        enum param_class class;
        enum param_type type;
        double low, high; /* of a number; both 0: any */
        unsigned neutral;
        const char *note; /* for the documentation and the refusal */
};

struct param_table {
        const char *title;   /* "POST /v1/chat/completions" */
        const char *context; /* in front of a name in messages: "options."; "" */
        const struct param *params;
        size_t n;
};

extern const struct param_table params_chat, params_completions, params_message, params_responses, params_anthropic,
        params_anthropic_message, params_count_tokens, params_ollama_chat, params_ollama_generate,
        params_ollama_options, params_ollama_message, params_tokenize, params_embeddings, params_ollama_embed;

/* 0, or a failure that names the first member that cannot be taken. */
int params_check(const struct param_table *table, const json_t *object, struct failure *f);
/* All tables as Markdown. */
void params_print(FILE *to);

#endif
