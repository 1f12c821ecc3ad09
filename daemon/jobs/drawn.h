/* Tokens that a job's client has already: an earlier job of the same request drew them, and this one goes on behind
 * them.
 *
 * They are taken like tokens that a worker draws, through decoder, stops, turn, thought and grammar, but nobody is
 * told. Then the job stands where the earlier one stood, and its rows are read again as those of a job that was pushed
 * out. What the client sends is checked: ids that the job cannot have drawn are refused. Loop thread only; taking them
 * is work that the caller cuts in pieces. */
#ifndef TDM_DAEMON_JOBS_DRAWN_H
#define TDM_DAEMON_JOBS_DRAWN_H

#include "daemon/jobs/options.h"

struct tdm_job_drawn {
        uint32_t *ids; /* [n], until they are taken */
        uint32_t n, n_taken;
        bool is_compared;      /* the arithmetic is known to be the same, or may be another */
        bool may_degrade;      /* it may be another */
        char numerics_id[192]; /* what drew them; "": not said */
};

/* From the options of a job, which have some. TDM_E_BAD_REQUEST, TDM_E_TOO_LONG, -ENOMEM. */
int tdm_job_drawn_init(struct tdm_job_drawn *drawn, const struct tdm_job_options *options, struct tdm_error *err);
/* Against the model and the most that the job may generate. TDM_E_BAD_REQUEST. */
int tdm_job_drawn_check(const struct tdm_job_drawn *drawn, uint32_t n_vocab, uint32_t max_tokens,
                        struct tdm_error *err);

/* Some of them are not taken yet. */
static inline bool tdm_job_drawn_waits(const struct tdm_job_drawn *drawn)
{
        return drawn->n_taken < drawn->n;
}

#endif
