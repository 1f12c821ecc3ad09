/* tandemd as one object: creates loop, socket, models, scheduler, fleet and faces, and destroys them in order when it
 * is told to end. */
#ifndef TDM_DAEMON_SERVICE_SERVER_H
#define TDM_DAEMON_SERVICE_SERVER_H

#include "daemon/service/config.h"

/* Serves until SIGTERM or SIGINT; running jobs then have five seconds. 0, or the error that ended it. */
int tdm_server_run(const struct tdm_config *config, struct tdm_error *err);

#endif
