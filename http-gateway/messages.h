/* What the APIs' requests have in common, from JSON into a generation_request. Each returns 0, or the status of the
 * failure that it fills in. */
#ifndef TDM_HTTP_MESSAGES_H
#define TDM_HTTP_MESSAGES_H

#include "http-gateway/reading.h"

/* `model`, a trailing ":latest" left out; none: the daemon's default. */
int request_take_model(struct generation_request *r, struct failure *f);
/* Adds messages of an array. */
int request_take_messages(struct generation_request *r, const json_t *messages, const char *name,
                          const struct param_table *table, struct failure *f);
/* The same of one, which is number i of the array. */
int request_take_message(struct generation_request *r, const json_t *message, const char *name, size_t i,
                         const struct param_table *table, struct failure *f);
/* That there are some. */
int request_check_messages(const struct generation_request *r, const char *name, struct failure *f);
/* `continue_final_message` and `add_generation_prompt`. Behind the messages. */
int request_take_continuation(const struct generation_request *r, struct failure *f);
/* One message: a text, or an array of parts of text with separator between them, and pictures among them. */
int request_add_message(struct generation_request *r, const char *role, const json_t *content, const char *separator,
                        const char *name, struct failure *f);
/* A text, or an array of them. */
int request_take_stops(struct generation_request *r, const json_t *stops, const char *name, struct failure *f);
/* temperature, top_p, top_k, min_p, seed, where the table lets them through; else what options hold. */
void request_take_sampling(struct generation_request *r, const json_t *from);
/* speculation, draft, draft_max. prefix: in front of a name in messages, "" or "options." */
int request_take_speculation(struct generation_request *r, const json_t *from, const char *prefix, struct failure *f);
int request_take_logit_bias(struct generation_request *r, struct failure *f);
int request_take_stream_options(struct generation_request *r, struct failure *f);

#endif
