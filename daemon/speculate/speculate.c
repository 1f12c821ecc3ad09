/* How many guesses the configuration and a job allow, and the guesses that tests want. */
#include "daemon/speculate/private.h"

int tdm_speculate_new(struct tdm_speculate **ret, const struct tdm_speculate_config *config)
{
        struct tdm_speculate *sp = calloc(1, sizeof(*sp));
        int r = 0;

        if (!sp)
                return -ENOMEM;
        sp->config = *config;
        sp->order = calloc(TDM_MAX_STEP_LOGITS, sizeof(*sp->order));
        if (!sp->order)
                r = -ENOMEM;
        if (r == 0 && config->guess_file) {
                r = tdm_guess_file_open(&sp->guess_file, config->guess_file);
                sp->config.guess = tdm_guess_file_guess;
                sp->config.guess_data = sp->guess_file;
        }
        if (r < 0) {
                tdm_speculate_destroy(sp);
                return r;
        }
        *ret = sp;
        return 0;
}

void tdm_speculate_destroy(struct tdm_speculate *sp)
{
        if (!sp)
                return;
        tdm_guess_file_close(sp->guess_file);
        free(sp->order);
        free(sp);
}

enum tdm_speculation tdm_speculate_mode(const struct tdm_speculate *sp, const struct tdm_job *job)
{
        enum tdm_speculation asked = (enum tdm_speculation)job->request.options.speculation;

        if (job->request.draft_name)
                return asked; /* it wants more than what is meant for all */
        return asked == TDM_SPECULATION_AUTO ? sp->config.mode : asked;
}

uint32_t tdm_speculate_most(const struct tdm_speculate *sp, const struct tdm_job *job)
{
        uint32_t most = sp->config.draft_max, left = job->max_tokens - job->generated;

        if (job->request.options.draft_max > 0)
                most = TDM_MIN(most, job->request.options.draft_max);
        /* The row of the last token draws the last one. */
        return TDM_MIN(TDM_MIN(most, TDM_MAX_GUESSES), left - TDM_MIN(left, 1u));
}

bool tdm_speculate_wants_all(const struct tdm_speculate *sp)
{
        return sp->config.all_guesses;
}

bool tdm_speculate_is_on(const struct tdm_speculate *sp)
{
        return sp->config.draft_max > 0;
}

bool tdm_speculate_copies(const struct tdm_speculate *sp)
{
        return sp->guess_file && tdm_guess_file_copies(sp->guess_file);
}
