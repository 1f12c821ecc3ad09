/* Taking tandemd's connection from a socket that a service manager passed ($LISTEN_FDS). Main thread, before anything
 * else. */
#ifndef TDM_ENGINE_WORKER_LISTEN_H
#define TDM_ENGINE_WORKER_LISTEN_H

#include "common/error.h"

/* This process was given a socket by its manager. */
bool tdm_worker_is_unit(void);
/* Waits for tandemd, greets it, lets go of the listening socket. -ETIMEDOUT: tandemd did not connect.
 * TDM_E_BAD_REQUEST: what was passed is no listening Unix stream socket. */
int tdm_worker_accept(int *ret_fd, struct tdm_error *err);

#endif
