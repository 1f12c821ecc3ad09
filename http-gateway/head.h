/* The head of a request: the headers that matter, and whether a proxy in front can have read it otherwise than it was
 * read here. */
#ifndef TDM_HTTP_HEAD_H
#define TDM_HTTP_HEAD_H

#include <microhttpd.h>
#include "http-gateway/errors.h"

struct head {
        unsigned n_host, n_length, n_encoding;
        const char *host, *origin, *encoding, *length, *expect, *authorization, *x_api_key, *wants_headers,
                *wants_method, *content_encoding;
        char target_host[260]; /* of a target in absolute form: it goes before the header */
        bool odd_name;         /* a header's name has a character that no name has */
        bool odd_place;        /* there are bytes between its parts that are told as no part */
        const char *edge;      /* where the next part begins, or the line end before it */
};

/* Texts are valid as long as the request. method and version: as libmicrohttpd gives them, by address. */
void head_read(struct head *h, struct MHD_Connection *mhd, const char *method, const char *version);
/* Where one request ends and the next begins has to be beyond doubt. 0, or a failure, after which the connection has to
 * be closed. */
int head_check_framing(const struct head *h, const char *version, struct failure *f);
/* The path of a target. One in absolute form ("http://HOST/PATH", as sent to proxies) names the host, which then goes
 * before the header (RFC 9112, 3.2.2). */
const char *head_take_target(struct head *h, const char *target);

#endif
