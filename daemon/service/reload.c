/* Applies a configuration that was read again: values that models and scheduler look up each time they need them. */
#include "daemon/service/reload.h"

#include "common/log.h"

int tdm_reload_apply(const struct tdm_config *config, struct tdm_models *models, struct tdm_scheduler *scheduler)
{
        _cleanup_(tdm_strv_freep) char **dirs = NULL;
        int r = tdm_models_default_dirs((const char *const *)config->model_dirs, &dirs);

        if (r == 0)
                r = tdm_models_set_default(models, config->default_model);
        if (r < 0)
                return r;
        tdm_models_take_dirs(models, steal_ptr(&dirs));
        tdm_scheduler_set_max_jobs_per_uid(scheduler, config->max_jobs_per_user);
        tdm_log_set_level(config->log_level);
        return 0;
}
