/* A request of /v1/responses: its input items, its tools, and the names by which it knows them. Each function that
 * takes something returns 0, or the status of the failure that it fills in. */
#ifndef TDM_HTTP_RESPONSES_H
#define TDM_HTTP_RESPONSES_H

#include "http-gateway/messages.h"

/* `instructions` and `input`. Calls and thoughts become part of the assistant's message that they belong to. */
int responses_take_input(struct generation_request *r, struct failure *f);
/* `tools`, `tool_choice`, `parallel_tool_calls`. Behind the format. */
int responses_take_tools(struct generation_request *r, struct failure *f);
/* `include`, and `text` but for its format. */
int responses_take_rest(struct generation_request *r, struct failure *f);

/* How an answer names a tool that the model calls by a name. */
struct responses_tool {
        const char *name, *space; /* space: the namespace; NULL: none */
        bool custom;              /* it takes a text, which is the member `input` of its arguments */
};
struct responses_tool responses_find_tool(const struct generation_request *r, const char *name);
/* The name that the model knows: for items that come back. */
#define RESPONSES_NAME_PART 75u /* bytes of a tool's name, and of its namespace's */
#define RESPONSES_NAME_BYTES 160u
void responses_join_name(const char *space, const char *name, char to[RESPONSES_NAME_BYTES]);

#endif
