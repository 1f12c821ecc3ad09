/* What goes wrong with a request, once, and how each API tells it. */
#ifndef TDM_HTTP_ERRORS_H
#define TDM_HTTP_ERRORS_H

#include <jansson.h>
#include "client-lib/include/tandem.h"
#include "common/util.h"

enum dialect { DIALECT_OPENAI, DIALECT_ANTHROPIC, DIALECT_OLLAMA };

struct failure {
        int status;       /* HTTP's; 0: nothing went wrong */
        const char *code; /* "model_not_found" */
        char param[96];   /* which member of the request; "" */
        char message[900];
        unsigned n_tokens, n_max; /* of a prompt that is too long, where they are known */
        unsigned retry_ms;        /* when it may go better; 0: the client should not try again by itself */
};

/* Fills f and returns the status. param may be NULL. */
int failure_set(struct failure *f, int status, const char *code, const char *param, const char *fmt, ...)
        _printf_(5, 6);
/* Says that the prompt has n_tokens tokens, and that n_max is the most. */
void failure_set_too_long(struct failure *f, unsigned n_tokens, unsigned n_max);
/* What libtandem or the daemon said, without folders of this machine. model: what was asked for. */
int failure_from_tandem(struct failure *f, const struct tandem_error *err, const char *model);

/* The body of an answer; NULL: out of memory. request_id: the answer's, for the dialect that repeats it. */
json_t *failure_json(const struct failure *f, enum dialect dialect, const char *request_id);

#endif
