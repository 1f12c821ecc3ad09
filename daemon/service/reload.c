/* Applies a configuration that was read again. It reaches into models and scheduler, because that is where the values
 * live; it changes nothing but values that both look up each time they need them. */
#include "daemon/service/reload.h"

#include "daemon/models/private.h"
#include "daemon/schedule/private.h"

int tdm_reload_apply(const struct tdm_config *config, struct tdm_models *models, struct tdm_scheduler *scheduler)
{
        char **dirs = NULL;
        int r = tdm_models_default_dirs((const char *const *)config->model_dirs, &dirs);

        if (r < 0)
                return r;
        tdm_strv_freep(&models->dirs);
        models->dirs = dirs;
        scheduler->config.max_jobs_per_uid = TDM_MIN(config->max_jobs_per_user, scheduler->config.max_jobs);
        tdm_log_set_level(config->log_level);
        return 0;
}
