/* What the files of a generation share: generation.c has its jobs from the connection to the end, generation-choice.c
 * what is told of each. */
#ifndef TDM_HTTP_GENERATION_PRIVATE_H
#define TDM_HTTP_GENERATION_PRIVATE_H

#include "http-gateway/generation.h"

/* ---- generation.c ---- */

/* Notes the failure that ends all choices; the first one counts. */
void generation_note_failure(struct generation *g, const struct tandem_error *err);
/* A loss that a peer makes up for is no failure yet, but what is said if none can. */
void generation_note_loss(struct generation *g, const struct tandem_error *err);
/* Whether a peer can make the rest of it. */
bool generation_may_go_on(const struct generation *g);
/* The daemon has gone, or is about to, and not for something that is wrong with the request. */
bool generation_code_is_a_death(int code);
void generation_begin_stream(struct generation *g);

/* ---- generation-choice.c ---- */

void generation_listen(struct tandem_callbacks *callbacks); /* of a job whose userdata is a choice */
void choice_take_token(struct choice *c, const struct tandem_token *token);
void choice_take_done(struct choice *c, const struct tandem_result *result);

#endif
