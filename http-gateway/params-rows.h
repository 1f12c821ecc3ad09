/* How rows of the tables of parameters are written. Only params.c and the files with tables (params-*.c) include this.
 */
#ifndef TDM_HTTP_PARAMS_ROWS_H
#define TDM_HTTP_PARAMS_ROWS_H

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

#define ONE_MODALITY "models write text, and read text and pictures"

/* Every API that makes text has these: OpenAI's and Anthropic's beside the others, Ollama's among its options. */
#define SPECULATION                                                                                                    \
        HONOURED("speculation", PARAM_STRING, 0, 0, "an extension; auto, off, lookup, draft"),                         \
                HONOURED("draft", PARAM_STRING, 0, 0, "an extension; the model that guesses"),                         \
                HONOURED("draft_max", PARAM_INTEGER, 0, 16, "an extension; guesses in a step; 0: as configured")

/* Every API that applies a chat template to messages has it. */
#define TEMPLATE_KWARGS                                                                                                \
        HONOURED("chat_template_kwargs", PARAM_OBJECT, 0, 0, "an extension; variables of the chat template")

#endif
