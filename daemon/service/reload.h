/* The settings that can change while the daemon runs: the log level, the model directories, the default model,
 * the number of jobs a user may have. Everything else is built into segments and queues when they are made, and waits
 * for the next start.
 */
#ifndef TDM_DAEMON_SERVICE_RELOAD_H
#define TDM_DAEMON_SERVICE_RELOAD_H

#include "daemon/service/config.h"
#include "daemon/models/models.h"
#include "daemon/schedule/scheduler.h"

/* All of it or nothing (-ENOMEM). Jobs and models that are there stay, even over a lower limit. */
int tdm_reload_apply(const struct tdm_config *config, struct tdm_models *models, struct tdm_scheduler *scheduler);

/* Logs a warning where default-model names no model that is there. */
void tdm_reload_check_default(const struct tdm_config *config);

#endif
