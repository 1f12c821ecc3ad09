/* Finds stop texts in a text that comes piece by piece, for the API that wants to know which one it was: libtandem ends
 * a job at a stop text, but does not say at which. */
#ifndef TDM_HTTP_STOPS_H
#define TDM_HTTP_STOPS_H

#include "http-gateway/buffer.h"

struct stops {
        const char *const *texts; /* [n], borrowed */
        size_t n;
        struct buffer held; /* what may be the beginning of one */
};

/* Adds a piece. What is free to go is appended to out; -1, or the index of the stop text that was found: nothing comes
 * after it. */
int stops_add(struct stops *s, const char *text, size_t size, struct buffer *out);
/* The text has ended: what is held goes out. */
void stops_flush(struct stops *s, struct buffer *out);
void stops_free(struct stops *s);

#endif
