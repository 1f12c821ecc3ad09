/* Applies a configuration that was read again: values that models and scheduler look up each time they need them. */
#include "daemon/service/reload.h"

#include "common/log.h"

void tdm_reload_check_default(const struct tdm_config *config)
{
        _cleanup_(tdm_strv_freep) char **dirs = NULL;
        bool given = config->models && config->models[0]; /* by --model: the first of them is the default */

        if (!config->default_model || given ||
            tdm_models_default_dirs((const char *const *)config->model_dirs, &dirs) < 0 ||
            tdm_models_have_name(dirs, config->default_model))
                return;
        tdm_log_warning("configuration: default-model = %s: there is no such model now, so requests that name none "
                        "will fail (`tandem models` lists those that there are)",
                        config->default_model);
}

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
