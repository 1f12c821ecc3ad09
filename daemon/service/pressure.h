/* Tells when processes of this machine wait for memory: the kernel's pressure stall information. A service manager may
 * name the file to watch (MEMORY_PRESSURE_WATCH, as systemd does); otherwise it is that of the whole machine. A kernel
 * without it, or one that does not let this user watch, is no error: then only idle-unload frees idle models. */
#ifndef TDM_DAEMON_SERVICE_PRESSURE_H
#define TDM_DAEMON_SERVICE_PRESSURE_H

#include "common/loop.h"

struct tdm_pressure;

/* fn runs on the loop, at most once in two seconds, for as long as memory is short. *ret is NULL where nothing can be
 * watched. */
int tdm_pressure_new(struct tdm_pressure **ret, struct tdm_loop *loop, void (*fn)(void *userdata), void *userdata);
void tdm_pressure_destroy(struct tdm_pressure *pressure); /* before the loop; NULL is fine */

#endif
