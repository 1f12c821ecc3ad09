/* tandemd as one object: puts loop, socket, models, scheduler, fleet and client face together, and takes them apart in
 * order when it is told to end. */
#ifndef TDM_DAEMON_SERVICE_SERVER_H
#define TDM_DAEMON_SERVICE_SERVER_H

#include "daemon/service/config.h"

/* Serves until SIGTERM or SIGINT; then jobs that run have five seconds. 0, or what stood in the way. */
int tdm_server_run(const struct tdm_config *config, struct tdm_error *err);

#endif
