/* The listening socket: our own, or the one that a service manager has opened for us. */
#ifndef TDM_HTTP_LISTEN_H
#define TDM_HTTP_LISTEN_H

#include "http-gateway/config.h"

/* TDM_E_BUSY: the port is taken. A passed socket's address replaces the configured one, and is held to the same rule
 * about keys. */
int listen_open(struct config *c, int *ret_fd, struct tdm_error *err);
unsigned listen_port(int fd); /* 0: it has none */

#endif
