/* From a request's body to a generation_request, by a table of the route's. Bodies of some size are parsed and
 * translated on threads, in turns by owner: the largest take a tenth of a second, and nobody else waits for it. */
#ifndef TDM_HTTP_READING_H
#define TDM_HTTP_READING_H

#include "http-gateway/generation.h"
#include "http-gateway/params.h"

struct reading;

struct reader {
        const struct param_table *table; /* of the body; NULL: it is not checked */
        /* Fills the request in from its JSON. On any thread: it uses nothing but its arguments. 0, or the status of the
         * failure. */
        int (*take)(struct generation_request *r, struct failure *f);
        /* On the loop. Takes the request over, and answers the exchange, now or later. */
        void (*start)(struct exchange *x, struct generation_request *r);
};

/* Takes the exchange's body, which is charged to its owner all the while. What goes wrong is answered. */
void exchange_read(struct exchange *x, const struct reader *reader);
/* The exchange goes. */
void reading_forget(struct reading *rd);
/* Frees a request, a large one on a thread. NULL is fine. */
void reading_free_request(struct server *s, struct generation_request *r);

#endif
