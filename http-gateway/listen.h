/* The listening socket: our own, or the one that a service manager has opened for us. */
#ifndef TDM_HTTP_LISTEN_H
#define TDM_HTTP_LISTEN_H

#include "http-gateway/config.h"

/* TDM_E_BUSY: the port is taken. A passed socket's address replaces the configured one, and is held to the same rule
 * about keys. */
int listen_open(struct config *c, int *ret_fd, struct tdm_error *err);
/* For tandem-http.socket, which systemd opens: says who has one of these addresses ("127.0.0.1:11434 …"; other words
 * are skipped). 1 if somebody has. */
int listen_say_who_has(const char *addresses);
unsigned listen_port(int fd); /* 0: it has none */

#endif
