/* Who may ask at all. A page in a browser can make the browser ask a server on this machine: directly, then its Origin
 * tells, or by a name that it makes resolve to 127.0.0.1 (DNS rebinding), then the Host tells and a GET has no Origin.
 * So both are checked before anything else, whatever the method. */
#ifndef TDM_HTTP_GUARD_H
#define TDM_HTTP_GUARD_H

#include "http-gateway/config.h"
#include "http-gateway/errors.h"

/* host: the header's value (NULL: none came). localhost, loopback literals, the machine's own name, *.local,
 * *.internal, configured names and `local`, the address that the connection came to; any port. 0, or a failure (400,
 * 403). */
int guard_check_host(const struct config *c, const struct sockaddr_storage *local, const char *host, struct failure *f);
/* origin: the header's value, not NULL. Pages of this machine and of configured names or origins: other machines of the
 * network are elsewhere. */
int guard_check_origin(const struct config *c, const struct sockaddr_storage *local, const char *origin,
                       struct failure *f);
/* authorization, x_api_key: values or NULL. Without a key file everything is accepted. *ret: the key's label, NULL
 * without. */
int guard_check_key(const struct config *c, const char *authorization, const char *x_api_key, const char **ret,
                    struct failure *f);

#endif
