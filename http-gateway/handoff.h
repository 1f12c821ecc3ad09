/* A choice goes on at another gateway, since this one's daemon has died (takeover.h says why that is exact).
 *
 * One HTTP/1.0 request over a socket of its own, on the event loop. The peers of the file are tried in its order, each
 * once, from the first on; one that refuses, breaks, falls silent or tells other tokens than the client has is left for
 * the next. Addresses are numbers, so nothing here looks up a name. There is no TLS: peers talk in a network that they
 * trust, or through a tunnel. */
#ifndef TDM_HTTP_HANDOFF_H
#define TDM_HTTP_HANDOFF_H

#include "http-gateway/generation.h"
#include "http-gateway/takeover.h"

struct handoff;

/* line: of the job, from its first token on. NULL: no peer is left, and `why` says what the last one did. */
typedef void (*handoff_fn)(struct choice *c, const struct takeover_line *line, const char *why);

/* request: takeover_request()'s, taken over. 0 or a negative errno; told may be called from the loop only. */
int handoff_new(struct handoff **ret, struct exchange *x, struct choice *c, json_t *request, handoff_fn told);
void handoff_free(struct handoff *h); /* allowed in told; NULL is fine */
/* The peer told what cannot be: the next one, if there is any. */
void handoff_next(struct handoff *h, const char *why);
/* Whether it may read on. */
void handoff_pause(struct handoff *h, bool pause);
void handoff_tick(struct handoff *h, uint64_t now_ns);
void handoff_forgive(struct handoff *h, uint64_t late_ns, uint64_t now_ns);

#endif
