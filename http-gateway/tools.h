/* Tools in the three APIs: from their forms of tools, choices, calls and answers into a generation_request, and a
 * choice's calls as they come. */
#ifndef TDM_HTTP_TOOLS_H
#define TDM_HTTP_TOOLS_H

#include "http-gateway/buffer.h"
#include "http-gateway/errors.h"
#include "http-gateway/exact.h"

#include <tandem.h>

struct generation_request;
struct param_table;

/* The tools and calls of a request. */
struct request_tools {
        char *json; /* of options.tools */
        char choice[80];
        struct tandem_message_details **details; /* [n_details] of messages; NULL: none */
        size_t n_details;
        char **texts; /* [n_texts] that details point to */
        size_t n_texts;
        unsigned n_named, n_answered; /* calls and answers without an id, which get one here */
        json_t *renamed;              /* /v1/responses: by the name that the model knows, what a client is told */
};
void request_tools_free(struct request_tools *tools);

/* `tools`, `tool_choice` and what goes with them; each returns 0 or the status of f. */
int request_take_openai_tools(struct generation_request *r, struct failure *f);
int request_take_anthropic_tools(struct generation_request *r, struct failure *f);
/* The calls, the answer's name and the reasoning of the last message, in OpenAI's or Ollama's form. */
int request_take_message_tools(struct generation_request *r, const json_t *message, const char *name,
                               struct failure *f);
/* Messages whose blocks may be calls and answers. An answer becomes a message of its own. */
int request_take_anthropic_messages(struct generation_request *r, const json_t *messages,
                                    const struct param_table *table, struct failure *f);
/* The text, which is taken over and kept as long as the request; NULL: no memory. */
const char *request_keep_text(struct generation_request *r, struct buffer *text);
/* Whether there are too many `tools`. */
int request_check_n_tools(const json_t *given, struct failure *f);
/* Tools one by one into a text; description and schema may be NULL. Then the text for the daemon; it is taken over. */
void request_write_tool(struct generation_request *r, struct buffer *to, const json_t *name, const json_t *description,
                        const json_t *schema);
int request_finish_tools(struct generation_request *r, struct buffer *text, struct failure *f);
/* auto, none, required; or the name of a tool. */
int request_set_tool_choice(struct generation_request *r, const char *choice, const char *name, struct failure *f);
/* A call of the last message, or what a tool answered, which is the last message. The texts live as long as the
 * request; name NULL: the call has it; id NULL: one is made. */
int request_add_call(struct generation_request *r, const char *id, const char *name, const char *arguments,
                     struct failure *f);
int request_add_answer(struct generation_request *r, const char *id, const char *name, struct failure *f);
/* The details of the last message; NULL: no memory. */
struct tandem_message_details *request_last_details(struct generation_request *r);
/* [n_messages], or NULL: for libtandem. */
const struct tandem_message_details *const *request_details(struct generation_request *r);

/* The calls that a choice has made so far. */
struct choice_calls {
        struct choice_call {
                char *id, *name;
                struct buffer arguments;
        } * items;
        size_t n, bytes; /* what they take */
        bool failed;
};
/* Whether its deltas begin the next calls and go on with the last one, as calls are made. */
bool choice_calls_fit(const struct choice_calls *calls, const struct tandem_token *token);
void choice_calls_add(struct choice_calls *calls, const struct tandem_token *token);
void choice_calls_free(struct choice_calls *calls);
/* The arguments as the model wrote them, a node of texts; NULL: they were cut off. */
json_t *choice_call_arguments(const struct choice_call *call, struct exact *texts);

#endif
