/* A job between two gateways: what one asks of the other when its own daemon has died, and what comes back.
 *
 * The asking gateway sends the job as libtandem would get it, with its seed, and the tokens that the client has, but
 * for the last TAKEOVER_COMPARED. The other reads them, which takes much less time than drawing them took, and goes on
 * from there. Same model, same arithmetic, same seed: same tokens. So what comes again is compared with what the client
 * has, id by id and bit by bit of each log-probability, and only what is new goes on to the client. These bits depend
 * on all that was read before. That is a proof where a digest of the model and a name of the arithmetic would be
 * promises. */
#ifndef TDM_HTTP_TAKEOVER_H
#define TDM_HTTP_TAKEOVER_H

#include "http-gateway/reading.h"

#define TAKEOVER_PATH "/tandem/generate"
#define TAKEOVER_COMPARED 8u

/* The request for one choice: an object. NULL: out of memory. pictures: the request's, for all choices; NULL: they are
 * made. */
json_t *takeover_request(const struct generation_request *r, unsigned choice, json_t *pictures);
/* A token that the client gets, for a peer, in case that the daemon dies. -ENOMEM. */
int takeover_remember(struct choice *c, const struct tandem_token *token);
/* Adds the tokens that the peer is to read, if it can. request may be NULL. -ENOMEM. */
int takeover_give_drawn(struct choice *c, json_t *request);
/* POST TAKEOVER_PATH: lines of JSON. */
void takeover_generate(struct exchange *x);
extern const struct reader takeover_reader; /* for tests */

/* What a line says. The rest is empty where it does not belong to the kind. */
enum takeover_kind {
        TAKEOVER_NOTHING,
        TAKEOVER_ACCEPTED,
        TAKEOVER_TOKEN,
        TAKEOVER_TAIL,
        TAKEOVER_DONE,
        TAKEOVER_BROKEN
};
struct takeover_line {
        enum takeover_kind kind;
        json_t *json; /* owned: the texts below lie in it */
        uint32_t prompt_tokens;
        uint32_t drawn;            /* of an accepted job: tokens that it reads and does not tell */
        struct tandem_token token; /* its arrays are owned */
        struct tandem_result result;
        char *bytes; /* owned: of the alternatives' texts and the token's own */
        size_t n_bytes;
        struct tandem_call_delta *deltas;
        const struct tandem_call_delta **calls;
        struct tandem_alternative *top;
};
/* Whatever a line holds, it is taken apart within its size; what is no line of ours is TAKEOVER_BROKEN. */
void takeover_read(struct takeover_line *line, const char *data, size_t size);
void takeover_line_free(struct takeover_line *line);

#endif
